"""Options of ``schedule add`` and ``schedule edit``: the definition they build, and the option named in an error."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.cli.definitions.definition_options import SCHEDULE_OPTIONS, build_schedule, change_schedule
from tenuto.errors import Invalid
from tenuto.model.definitions.schedules import MisfirePolicy, OverlapPolicy, ScheduleDefinition
from tenuto.model.triggers import trigger_from_fields
from tests.support.errors import raises_code


def make_options(**options: Any) -> dict[str, Any]:
    return {**{name: declared.default for name, declared in SCHEDULE_OPTIONS.items()}, **options}


def make_schedule(**options: Any) -> ScheduleDefinition:
    return build_schedule("nightly", make_options(**{"steps": ["a"], **options}))


@pytest.mark.parametrize(
    ("options", "description"),
    [
        ({"cron": "0 2 * * *", "zone": "Europe/London"}, "Every day at 02:00, Europe/London"),
        (
            {"every": "15m", "between": "22:00-06:00", "days": "mon-fri"},
            "Every 15 minutes from 22:00 to 06:00 on weekdays, UTC",
        ),
        ({"at": "06:00, 18:30", "days": "sat,sun"}, "Every Saturday and Sunday at 06:00 and 18:30, UTC"),
        ({"manual": True}, "Only when started by hand"),
        (
            {"cron": "@daily", "start": "2031-01-01", "end": "2031-12-31", "excluded": ["2031-05-01, 2031-12-25"]},
            "Every day at 00:00, UTC, from 2031-01-01, until 2031-12-31, except 2031-05-01 and 2031-12-25",
        ),
        ({"every": "1h", "jitter": "5m"}, "Every hour, UTC, spread over 5 minutes"),
    ],
)
def test_trigger_is_built_from_its_options(options: dict[str, Any], description: str) -> None:
    assert make_schedule(**options).trigger.describe() == description


@pytest.mark.parametrize(
    ("options", "field", "code"),
    [
        ({}, "--cron", "schedule.trigger.missing"),
        ({"cron": "0 2 * * *", "every": "5m"}, "--cron", "cli.option.conflict"),
        ({"cron": "0 2 * * *", "days": "mon"}, "--on", "cli.option.requires_other"),
        ({"cron": "0 2 * * *", "between": "1:00-2:00"}, "--between", "cli.option.requires_other"),
        ({"manual": True, "zone": "Europe/London"}, "--zone", "cli.option.requires_other"),
        ({"manual": True, "steps": None}, "--step", "schedule.steps.missing"),
        ({"manual": True, "grace": "5m"}, "--grace", "cli.option.requires_other"),
        ({"manual": True, "misfire": "skip", "max_runs": 5}, "--max-runs", "cli.option.requires_other"),
    ],
    ids=str,
)
def test_conflicting_or_missing_options_are_rejected(options: dict[str, Any], field: str, code: str) -> None:
    with raises_code(code, Invalid) as caught:
        make_schedule(**options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"cron": "61 * * * *"}, "--cron, minute"),
        ({"cron": "0 2 30 2 *"}, "--cron, day of month"),
        ({"every": "5"}, "--every"),
        ({"at": "25:00"}, "--at"),
        ({"at": "06:00", "days": "noday"}, "--on"),
        ({"every": "5m", "between": "22:00"}, "--between"),
        ({"cron": "0 2 * * *", "zone": "Europe/Lndon"}, "--zone"),
        ({"cron": "0 2 * * *", "excluded": ["x"]}, "--exclude"),
        ({"manual": True, "misfire": "all", "max_runs": 5000}, "--max-runs"),
        ({"manual": True, "misfire": "skip", "grace": "0s"}, "--grace"),
        ({"manual": True, "misfire": "skip", "grace": "59s"}, "--grace"),
    ],
    ids=str,
)
def test_error_of_the_model_names_the_option(options: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        make_schedule(**options)
    assert caught.value.field == field
    assert caught.value.message


def test_policies_and_steps_are_built_from_options() -> None:
    new = make_schedule(
        manual=True, steps=["a", "b, c"], overlap="queue_one", misfire="skip", grace="10m", description="for a reason"
    )
    assert [[step.name for step in group] for group in new.plan.groups] == [["a"], ["b", "c"]]
    assert (new.overlap, new.misfire.policy, new.misfire.grace_seconds) == (
        OverlapPolicy.QUEUE_ONE,
        MisfirePolicy.SKIP,
        600,
    )
    assert new.description == "for a reason"


BEFORE = make_schedule(
    every="15m", between="22:00-06:00", days="mon-fri", zone="Europe/London", end="2031-12-31", steps=["a"]
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {}),
        ({"zone": "Europe/Berlin"}, {"zone": "Europe/Berlin"}),
        ({"every": "1h"}, {"every": 3600}),
        ({"between": "none", "end": "none"}, {"between": None, "end": None}),
        ({"days": "none"}, {"days": None}),
        ({"excluded": ["2031-01-01"]}, {"excluded": ["2031-01-01"]}),
        ({"at": "06:00"}, {"kind": "times", "every": None, "between": None, "times": ["06:00"]}),
        ({"cron": "0 2 * * *"}, {"kind": "cron", "every": None, "between": None, "days": None, "cron": "0 2 * * *"}),
    ],
    ids=str,
)
def test_edit_changes_only_the_given_options(options: dict[str, Any], expected: dict[str, Any]) -> None:
    after = change_schedule(BEFORE, make_options(**options))
    fields = {**BEFORE.trigger.to_fields(), **expected}
    assert after.trigger == trigger_from_fields({name: value for name, value in fields.items() if value is not None})
    assert (after.plan, after.misfire, after.overlap) == (BEFORE.plan, BEFORE.misfire, BEFORE.overlap)


def test_edit_to_manual_removes_the_dates() -> None:
    assert change_schedule(BEFORE, make_options(manual=True)).trigger.to_fields() == {"kind": "manual"}


def test_edit_changes_arguments_misfire_policy_and_name() -> None:
    after = change_schedule(
        BEFORE, make_options(arguments=["a.n=5"], misfire="all", max_runs=7, rename="later", description="")
    )
    assert dict(after.plan.groups[0][0].arguments) == {"n": 5}
    assert (after.misfire.policy, after.misfire.max_runs, after.name) == (MisfirePolicy.ALL, 7, "later")
    again = change_schedule(after, make_options(max_runs=9))
    assert (again.misfire.policy, again.misfire.max_runs) == (MisfirePolicy.ALL, 9)
    with pytest.raises(Invalid) as caught:
        change_schedule(BEFORE, make_options(arguments=["b.n=5"]))
    assert caught.value.field == "--set b"
