"""Options of ``manifest add`` and ``manifest edit``: the manifest they build, and the option named in an error."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.app import Tenuto
from tenuto.cli.definitions.definition_options import (
    MANIFEST_OPTIONS,
    change_manifest,
    manifest_from_options,
    translate_manifest_errors,
)
from tenuto.errors import Invalid
from tenuto.model.definitions.policies import RetryPolicy

app = Tenuto()


@app.job(retry=RetryPolicy(max_attempts=4, base_seconds=3), timeout="1m")
async def copy(number: int, days: int = 1) -> None: ...


def make_options(**options: Any) -> dict[str, Any]:
    return {name: declared.default for name, declared in MANIFEST_OPTIONS.items()} | options


def test_job_provides_the_defaults_of_a_manifest() -> None:
    made = manifest_from_options("x", copy, make_options(settings=["number=7"]))
    assert (made.properties, made.policy, made.on_demand, made.name) == ({"number": 7}, copy.policy, False, "x")


def test_manifest_is_built_from_all_options() -> None:
    made = manifest_from_options(
        "x",
        copy,
        make_options(
            every="2h", zone="Europe/London", properties='{"number": 1}', settings=["days=3"], title="X",
            max_attempts=9,
            retry_wait="30s", timeout="5m", queue="slow", priority=4, group="g", max_active="6",
            on_dead_letter="continue",
        ),
    )  # fmt: skip
    assert made.trigger.describe() == "Every 2 hours, Europe/London"
    assert made.properties == {"number": 1, "days": 3}
    retry = made.policy.retry
    assert (made.name, retry.max_attempts, retry.base_seconds, made.policy.timeout_seconds) == ("X", 9, 30, 300)
    assert (made.queue, made.priority, made.group, made.max_active) == ("slow", 4, "g", 6)
    assert made.on_dead_letter == "continue"
    assert change_manifest(made, make_options(on_dead_letter="block")).on_dead_letter == "block"


def test_edit_changes_only_the_given_options_and_none_removes_values() -> None:
    before = manifest_from_options(
        "x", copy, make_options(cron="0 2 * * *", settings=["number=1"], group="g", max_active="3")
    )
    after = change_manifest(before, make_options(after="y", group="none", max_active="none", timeout="none"))
    assert (after.depends_on, after.trigger.kind, after.group, after.max_active) == ("y", "manual", None, None)
    assert (after.policy.timeout_seconds, after.policy.retry, after.properties) == (
        None,
        before.policy.retry,
        {"number": 1},
    )
    assert change_manifest(after, make_options(after="none")).depends_on is None
    assert (
        change_manifest(before, make_options(zone="Asia/Tokyo")).trigger.describe() == "Every day at 02:00, Asia/Tokyo"
    )
    assert change_manifest(before, make_options()) == before


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"settings": ["m=1"]}, "--set m"),
        ({"settings": ["days=many"]}, "--set days"),
        ({"settings": ["days"]}, "--set"),
        ({"properties": "[1]"}, "--properties"),
        ({"properties": "{"}, "--properties"),
        ({"cron": "61 * * * *"}, "--cron, minute"),
        ({"after": "x", "on_demand": True}, "--after"),
        ({"after": "x", "cron": "@daily"}, "--after"),
        ({"zone": "Europe/London"}, "--zone"),
        ({"max_active": "0"}, "--max-active"),
        ({"max_active": "few"}, "--max-active"),
        ({"priority": 5000}, "--priority"),
        ({"group": "two words"}, "--group"),
        ({"retry_wait": "soon"}, "--retry-wait"),
        ({"max_attempts": -1}, "--max-attempts"),
        ({"timeout": "0s"}, "--timeout"),
    ],
)
def test_error_names_the_option(options: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught, translate_manifest_errors():
        manifest_from_options("x", copy, make_options(**options))
    assert caught.value.field == field
