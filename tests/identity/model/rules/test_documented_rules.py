"""The page about sync rules: its example is valid, and it names every function and guard."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tenuto_identity.connectors import registry
from tenuto_identity.model.definitions.system_definitions import parse_system
from tenuto_identity.model.rules.expression_functions import (
    FUNCTIONS,
)
from tenuto_identity.model.sync.guards import GuardKind
from tests.identity.model.definitions.test_system_definitions import bind

DOCS = Path(__file__).resolve().parents[4] / "docs" / "how-to"
RULES = (DOCS / "sync-rules.md").read_text(encoding="utf-8")


def test_documented_example_is_valid() -> None:
    block, *_ = re.findall(r"```yaml\n(.*?)```", RULES, re.DOTALL)
    whole = yaml.safe_load(block)
    assert len(bind(whole).rules) == 2
    for each in map(parse_system, whole["systems"]):
        registry.parse_settings(registry.find_connector(each.connector), each.settings)


def test_documentation_names_every_function_and_guard() -> None:
    words = set(re.findall(r"[a-z_0-9]+", RULES))
    assert set(FUNCTIONS) - words == set()
    assert {each.value for each in GuardKind} - words == set()


def test_documentation_names_every_setting_of_the_csv_connector() -> None:
    words = set(re.findall(r"[a-z_0-9]+", (DOCS / "connectors.md").read_text(encoding="utf-8")))
    assert set(registry.find_connector("csv").settings.model_fields) - words == set()
