"""The page on notifications names every event, field, channel, setting and metric, and its definition file is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from tenuto.definitions.document_parser import parse_document
from tenuto.extension import ListEntry
from tenuto_notifications.definitions import NOTIFICATION_RULES
from tenuto_notifications.model.events import KINDS
from tenuto_notifications.model.rules import COMMON_FIELDS, Channel
from tenuto_notifications.monitoring import metric_sources
from tenuto_notifications.settings import NotificationSettings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "notifications.md").read_text(encoding="utf-8")


def test_page_names_every_event_with_its_fields() -> None:
    rows = {
        name: row for row in re.findall(r"^\| .+ \|$", PAGE, re.MULTILINE) for name in re.findall(r"`([\w.]+)`", row)
    }
    for kind in KINDS:
        row = rows[kind.name]
        if "the same" not in row:
            assert re.findall(r"`(\w+)`", row.rpartition("|")[0].rpartition("|")[2]) == list(kind.field_names), (
                kind.name
            )


def test_page_names_channels_settings_metrics_and_placeholders() -> None:
    (union, *_) = get_args(Channel)
    kinds = [get_args(each.model_fields["kind"].annotation)[0] for each in get_args(union)]
    settings = [
        name.upper() if name.startswith(("smtp", "base")) else name for name in NotificationSettings.model_fields
    ]
    metrics = [metric.name for source in metric_sources() for metric in source.metrics]
    placeholders = [f"{{{{{name}}}}}" for name in COMMON_FIELDS]
    assert [text for text in (*kinds, *settings, *metrics, *placeholders) if text not in PAGE] == []


def test_definition_file_of_the_page_is_valid() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    entries = parse_document("page.yaml", text.encode()).value["notification_rules"]
    rules = [NOTIFICATION_RULES.parse(ListEntry(entry, "page.yaml")) for entry in entries]
    assert [rule.name for rule in rules] == ["nightly failures", "mail queue"]
