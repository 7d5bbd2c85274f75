"""From the options of a command line to a schedule, and to one that is changed in places."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tenuto.cli.definitions import schedule_history, schedule_options
from tenuto.cli.definitions.schedule_options import OPTIONS, changed, definition_of
from tenuto.errors import Invalid
from tenuto.model.occurrences import Decision
from tenuto.model.schedules import Definition, Late, Overlap
from tenuto.model.triggers import trigger_from_fields


def given(**said: Any) -> dict[str, Any]:
    return {**{name: default for name, (_, default) in OPTIONS.items()}, **said}


def made(**said: Any) -> Definition:
    return definition_of("nightly", given(**{"steps": ["a"], **said}))


@pytest.mark.parametrize(
    ("said", "words"),
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
def test_a_trigger_is_made_of_its_options(said: dict[str, Any], words: str) -> None:
    assert made(**said).trigger.words() == words


@pytest.mark.parametrize(
    ("said", "field", "what"),
    [
        ({}, "--cron, --every, --at or --manual", "says when it runs"),
        ({"cron": "0 2 * * *", "every": "5m"}, "--cron", "cannot stand beside --every"),
        ({"cron": "61 * * * *"}, "--cron, minute", "'61' is not a minute"),
        ({"cron": "0 2 30 2 *"}, "--cron, day of month", "would never run"),
        ({"every": "5"}, "--every", "is not a span"),
        ({"at": "25:00"}, "--at", "is not a time of day"),
        ({"at": "06:00", "days": "noday"}, "--on", "is not a day of the week"),
        ({"every": "5m", "between": "22:00"}, "--between", "needs two times"),
        ({"cron": "0 2 * * *", "days": "mon"}, "--on", "goes with --every or --at"),
        ({"cron": "0 2 * * *", "between": "1:00-2:00"}, "--between", "goes with --every"),
        ({"manual": True, "zone": "Europe/London"}, "--zone", "goes with a clock"),
        ({"cron": "0 2 * * *", "zone": "Europe/Lndon"}, "--zone", "is not a time zone"),
        ({"cron": "0 2 * * *", "excluded": ["x"]}, "--exclude", "is not a date"),
        ({"manual": True, "steps": None}, "--step", "says what to run"),
        ({"manual": True, "grace": "5m"}, "--grace", "goes with --misfire skip, and it is once"),
        ({"manual": True, "misfire": "skip", "max_runs": 5}, "--max-runs", "goes with --misfire all"),
        ({"manual": True, "misfire": "all", "max_runs": 5000}, "--max-runs", "from 1 to 1,000"),
        ({"manual": True, "misfire": "skip", "grace": "0s"}, "--grace", "must be from 60 s"),
        ({"manual": True, "misfire": "skip", "grace": "59s"}, "--grace", "less than a minute late counts as on time"),
    ],
    ids=str,
)
def test_a_refusal_names_the_option(said: dict[str, Any], field: str, what: str) -> None:
    with pytest.raises(Invalid) as refused:
        made(**said)
    assert refused.value.field == field
    assert what in refused.value.message


def test_rules_and_steps_are_taken_over() -> None:
    new = made(
        manual=True, steps=["a", "b, c"], overlap="queue_one", misfire="skip", grace="10m", description="for a reason"
    )
    assert [[step.name for step in group] for group in new.plan.groups] == [["a"], ["b", "c"]]
    assert (new.overlap, new.misfire.policy, new.misfire.grace_seconds) == (Overlap.QUEUE_ONE, Late.SKIP, 600)
    assert new.description == "for a reason"


BEFORE = made(every="15m", between="22:00-06:00", days="mon-fri", zone="Europe/London", end="2031-12-31", steps=["a"])


@pytest.mark.parametrize(
    ("said", "expected"),
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
def test_an_edit_changes_only_what_is_given(said: dict[str, Any], expected: dict[str, Any]) -> None:
    after = changed(BEFORE, given(**said))
    fields = {**BEFORE.trigger.fields(), **expected}
    assert after.trigger == trigger_from_fields({name: value for name, value in fields.items() if value is not None})
    assert (after.plan, after.misfire, after.overlap) == (BEFORE.plan, BEFORE.misfire, BEFORE.overlap)


def test_a_schedule_that_loses_its_clock_loses_its_dates() -> None:
    assert changed(BEFORE, given(manual=True)).trigger.fields() == {"kind": "manual"}


def test_arguments_rules_and_the_name_are_edited_one_by_one() -> None:
    after = changed(BEFORE, given(arguments=["a.n=5"], misfire="all", max_runs=7, rename="later", description=""))
    assert dict(after.plan.groups[0][0].arguments) == {"n": 5}
    assert (after.misfire.policy, after.misfire.max_runs, after.name) == (Late.ALL, 7, "later")
    again = changed(after, given(max_runs=9))
    assert (again.misfire.policy, again.misfire.max_runs) == (Late.ALL, 9)
    with pytest.raises(Invalid, match="no step of that name"):
        changed(BEFORE, given(arguments=["b.n=5"]))


def test_the_words_that_can_be_typed_are_the_words_there_are() -> None:
    assert set(get_args(schedule_options.OverlapWord)) == set(Overlap)
    assert set(get_args(schedule_options.MisfireWord)) == set(Late)
    assert set(get_args(schedule_history.DecisionWord)) == set(Decision)
