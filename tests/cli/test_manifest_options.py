"""A manifest by the options of a command line: what was typed, and which option is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.app import Tenuto
from tenuto.cli.definitions.manifest_options import OPTIONS, by_option, changed, new_manifest
from tenuto.errors import Invalid
from tenuto.model.policies import RetryPolicy

app = Tenuto()


@app.job(retry=RetryPolicy(max_retries=4, base_seconds=3), timeout="1m")
async def copy(number: int, days: int = 1) -> None: ...


def given(**options: Any) -> dict[str, Any]:
    return {name: default for name, (_, default) in OPTIONS.items()} | options


def test_what_is_not_said_is_as_the_job_has_it() -> None:
    made = new_manifest("x", copy, given(settings=["number=7"]))
    assert (made.properties, made.policy, made.on_demand, made.name) == ({"number": 7}, copy.policy, False, "x")


def test_every_option_finds_its_place() -> None:
    made = new_manifest(
        "x",
        copy,
        given(
            every="2h", zone="Europe/London", properties='{"number": 1}', settings=["days=3"], title="X", max_retries=9,
            retry_wait="30s", timeout="5m", queue="slow", priority=4, group="g", max_active="6",
        ),
    )  # fmt: skip
    assert made.trigger.words() == "Every 2 hours, Europe/London"
    assert made.properties == {"number": 1, "days": 3}
    retry = made.policy.retry
    assert (made.name, retry.max_retries, retry.base_seconds, made.policy.timeout_seconds) == ("X", 9, 30, 300)
    assert (made.queue, made.priority, made.group, made.max_active) == ("slow", 4, "g", 6)


def test_a_change_leaves_all_else_and_none_takes_away() -> None:
    before = new_manifest("x", copy, given(cron="0 2 * * *", settings=["number=1"], group="g", max_active="3"))
    after = changed(before, given(after="y", group="none", max_active="none", timeout="none"))
    assert (after.depends_on, after.trigger.kind, after.group, after.max_active) == ("y", "manual", None, None)
    assert (after.policy.timeout_seconds, after.policy.retry, after.properties) == (
        None,
        before.policy.retry,
        {"number": 1},
    )
    assert changed(after, given(after="none")).depends_on is None
    assert changed(before, given(zone="Asia/Tokyo")).trigger.words() == "Every day at 02:00, Asia/Tokyo"
    assert changed(before, given()) == before


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
        ({"max_retries": -1}, "--max-retries"),
        ({"timeout": "0s"}, "--timeout"),
    ],
)
def test_a_refusal_names_the_option(options: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as refused, by_option():
        new_manifest("x", copy, given(**options))
    assert refused.value.field == field
