"""Files of definitions: looking changes nothing, doing changes what was shown, doing it again changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tenuto import Step, Tenuto, cron, manual
from tenuto.definitions.definition_files import DeclaredSchedule, parse_schedules
from tenuto.definitions.schedule_plan import SchedulePlan
from tenuto.definitions.document_parser import Document
from tenuto.errors import Conflict, Invalid
from tenuto.model.schedules import ScheduleDefinition, Plan
from tenuto.operations.plans import ApplyPlan
from tests.support.waiting import eventually

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
def app(app: Tenuto) -> Tenuto:
    @app.job(timeout="1h")
    async def load(rows: int = 1) -> None: ...

    @app.job
    async def tidy() -> None: ...

    return app


def schedule(name: str, *steps: Any, **fields: Any) -> dict[str, Any]:
    return {"name": name, "steps": list(steps) or [{"job": "tidy"}], **fields}


def files(*schedules: dict[str, Any]) -> list[DeclaredSchedule]:
    return parse_schedules([Document("file.yaml", {"schedules": list(schedules)})])


async def applied(app: Tenuto, *schedules: dict[str, Any], prune: bool = False) -> SchedulePlan:
    planned = await app.schedules.plan(files(*schedules), prune=prune)
    await app.plans.apply(ApplyPlan(planned), reason="because")
    return planned


def effects(planned: SchedulePlan) -> dict[str, str]:
    return {change.key: change.effect for change in planned.changes}


async def names(app: Tenuto) -> list[str]:
    return [row["name"] for row in await app.schedules.list()]


async def test_a_plan_changes_nothing(app: Tenuto, sql: Sql) -> None:
    await applied(app, schedule("kept"), schedule("gone"))
    before = await sql("SELECT * FROM tenuto.schedules ORDER BY name")
    planned = await app.schedules.plan(files(schedule("kept", cron="@daily"), schedule("new")), prune=True)
    assert effects(planned) == {"kept": "changed", "new": "created"}
    assert [each.name for each in planned.deleted] == ["gone"]
    assert await sql("SELECT * FROM tenuto.schedules ORDER BY name") == before


async def test_a_created_schedule_is_shown_with_its_next_three_runs(app: Tenuto) -> None:
    planned = await app.schedules.plan(files(schedule("x", cron="0 2 * * *", zone="Europe/London")))
    (change,) = planned.changes
    assert (change.effect, change.current, list(change.runs_before)) == ("created", None, [])
    assert list(change.runs_after) == cron("0 2 * * *", zone="Europe/London").preview(planned.at, 3)
    assert planned.has_changes


async def test_what_was_planned_is_what_is_then_in_force(app: Tenuto) -> None:
    await applied(app, schedule("x", {"job": "load", "input": {"rows": 5}, "max_retries": 7}, every="1h"))
    found = await app.schedules.get("x")
    (step,) = found.plan.groups[0]
    assert (step.target, step.arguments) == ("load", {"rows": 5})
    assert step.policy is not None
    assert (step.policy.retry.max_retries, step.policy.timeout_seconds) == (7, 3600), "the job's own rules, and these"
    assert (found.origin, found.version) == ("file", 1)
    (version,) = await app.schedules.versions("x")
    assert (version.change, version.reason) == ("created", "because")


async def test_doing_it_again_changes_nothing(app: Tenuto, sql: Sql) -> None:
    declared = (schedule("a", cron="@daily"), schedule("b", {"schedule": "a"}))
    await applied(app, *declared)
    before = await sql("SELECT * FROM tenuto.schedules ORDER BY name")
    again = await applied(app, *declared)
    assert set(effects(again).values()) == {"unchanged"}
    assert not again.has_changes
    assert await sql("SELECT * FROM tenuto.schedules ORDER BY name") == before
    assert len(await sql("SELECT * FROM tenuto.schedule_versions")) == 2


async def test_a_change_is_told_field_by_field_with_the_runs_before_and_after(app: Tenuto) -> None:
    await applied(app, schedule("x", {"job": "load"}, cron="0 2 * * *", description="old"))
    planned = await app.schedules.plan(files(schedule("x", {"job": "load"}, cron="0 3 * * *", overlap="allow")))
    (change,) = planned.changes
    assert change.effect == "changed"
    assert change.differences == {
        "description": ("old", ""),
        "trigger": (
            {"kind": "cron", "cron": "0 2 * * *", "zone": "UTC"},
            {"kind": "cron", "cron": "0 3 * * *", "zone": "UTC"},
        ),
        "overlap": ("skip", "allow"),
    }
    assert list(change.runs_before) == cron("0 2 * * *").preview(planned.at, 3)
    assert list(change.runs_after) == cron("0 3 * * *").preview(planned.at, 3)
    await app.plans.apply(ApplyPlan(planned))
    assert (await app.schedules.get("x")).next_run_at == change.runs_after[0]


async def test_a_run_with_jitter_is_foretold_at_its_very_instant(app: Tenuto) -> None:
    await applied(app, schedule("x", cron="0 2 * * *", jitter="1h"))
    planned = await app.schedules.plan(files(schedule("x", cron="0 4 * * *", jitter="1h")))
    await app.plans.apply(ApplyPlan(planned))
    assert (await app.schedules.get("x")).next_run_at == planned.changes[0].runs_after[0]


async def test_one_that_is_not_made_yet_says_that_its_runs_come_later_than_shown(app: Tenuto) -> None:
    (new,) = (await app.schedules.plan(files(schedule("x", cron="0 2 * * *", jitter="30m")))).changes
    assert new.notes == ["each run comes up to 30 minutes later than shown, once it has its place"]
    (new,) = (await app.schedules.plan(files(schedule("x", cron="0 2 * * *")))).changes
    assert list(new.notes) == []


async def test_an_operators_disable_survives(app: Tenuto) -> None:
    await applied(app, schedule("x", cron="@daily"))
    await app.schedules.disable("x")
    planned = await applied(app, schedule("x", cron="@hourly"))
    (change,) = planned.changes
    assert "disabled, and stays so" in change.notes
    assert (list(change.runs_before), list(change.runs_after)) == ([], [])
    found = await app.schedules.get("x")
    assert (found.enabled, found.next_run_at) == (False, None)
    assert found.definition.trigger == cron("@hourly")


async def test_what_an_operator_changed_is_kept_until_the_file_says_something_new(app: Tenuto) -> None:
    await applied(app, schedule("x", cron="@daily"))
    edited = ScheduleDefinition("x", cron("@weekly"), Plan.from_steps([Step("job", "tidy")]))
    await app.schedules.edit("x", edited)

    kept = await applied(app, schedule("x", cron="@daily"))
    assert effects(kept) == {"x": "kept"}
    assert not kept.has_changes
    assert list(kept.changes[0].differences) == ["trigger"]
    assert (await app.schedules.get("x")).definition.trigger == cron("@weekly")

    replaced = await applied(app, schedule("x", cron="@hourly"))
    assert effects(replaced) == {"x": "changed"}
    assert "changed by an operator since it was declared: the file replaces that" in replaced.changes[0].notes
    assert (await app.schedules.get("x")).definition.trigger == cron("@hourly")


async def test_a_schedule_made_by_hand_is_taken_over_and_that_is_said(app: Tenuto) -> None:
    await app.schedules.create(ScheduleDefinition("x", manual(), Plan.from_steps([Step("job", "tidy")])))
    planned = await applied(app, schedule("x"))
    assert effects(planned) == {"x": "unchanged"}
    assert planned.changes[0].notes == ["made by hand: from now on the file keeps it"]
    assert (await app.schedules.get("x")).origin == "file"
    assert (await app.schedules.plan(files(schedule("x")))).changes[0].notes == []


async def test_what_code_declares_too_is_refused(app: Tenuto) -> None:
    app.schedule("x", manual(), [Step("job", "tidy")])
    with pytest.raises(Invalid, match=r"file.yaml: schedules\[0\].name: 'x' is declared in code too"):
        await app.schedules.plan(files(schedule("x")))


# ---- what is not declared any more


async def test_what_is_not_declared_any_more_is_named_and_stays(app: Tenuto) -> None:
    await applied(app, schedule("a"), schedule("b"))
    await app.schedules.create(ScheduleDefinition("by hand", manual(), Plan.from_steps([Step("job", "tidy")])))
    planned = await applied(app, schedule("a"))
    assert [each.name for each in planned.undeclared] == ["b"], "and not what no file ever declared"
    assert (planned.deleted, planned.has_changes) == ((), False)
    assert await names(app) == ["a", "b", "by hand"]


async def test_pruning_deletes_what_files_declared_and_nothing_else(app: Tenuto) -> None:
    await applied(app, schedule("a"), schedule("z inner"), schedule("outer", {"schedule": "z inner"}))
    await app.schedules.create(ScheduleDefinition("by hand", manual(), Plan.from_steps([Step("job", "tidy")])))
    planned = await applied(app, schedule("a"), prune=True)
    assert [each.name for each in planned.deleted] == ["outer", "z inner"], "those that run others first"
    assert await names(app) == ["a", "by hand"]
    (last, *_) = await app.schedules.versions("outer")
    assert (last.change, last.reason) == ("deleted", "because")


async def test_what_is_still_a_step_of_another_is_not_pruned_and_nothing_is_done(app: Tenuto) -> None:
    await applied(app, schedule("a"), schedule("b"))
    await app.schedules.create(ScheduleDefinition("by hand", manual(), Plan.from_steps([Step.schedule("b")])))
    with pytest.raises(Conflict, match="'b' is a step of 'by hand'"):
        await applied(app, schedule("a"), schedule("c"), prune=True)
    assert await names(app) == ["a", "b", "by hand"]


async def test_a_step_that_runs_what_is_to_be_pruned_is_refused_by_its_place(app: Tenuto) -> None:
    await applied(app, schedule("b"))
    with pytest.raises(Invalid, match=r"schedules\[0\].steps\[0\]: there is no schedule named 'b'"):
        await app.schedules.plan(files(schedule("a", {"schedule": "b"})), prune=True)
    assert effects(await app.schedules.plan(files(schedule("a", {"schedule": "b"})))) == {"a": "created"}


# ---- checked before anything is changed


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (schedule("x", {"job": "lod"}), r"schedules\[1\].steps\[0\]: no job named 'lod' is registered here"),
        (schedule("x", {"job": "load", "input": {"rows": "many"}}), r"schedules\[1\].steps\[0\].input.rows: "),
        (schedule("x", {"job": "load", "input": {"row": 1}}), r"schedules\[1\].steps\[0\].input.row: "),
        (schedule("x", {"kind": "moon"}), r"schedules\[1\].steps\[0\]: there is no handler for tasks of kind 'moon'"),
        (schedule("x", {"schedule": "none"}), r"schedules\[1\].steps\[0\]: there is no schedule named 'none'"),
        (schedule("x", {"schedule": "x"}), r"schedules\[1\].steps: runs itself: x → x"),
        (
            schedule("x", {"schedule": "fine", "timeout": "1h"}),
            r"schedules\[1\].steps\[0\].timeout: a schedule has none",
        ),
        (schedule("x", trigger={"cron": "@daily", "end": "2020-01-01"}), r"schedules\[1\].trigger.end: it never runs"),
    ],
)
async def test_everything_is_checked_before_anything_is_changed(app: Tenuto, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        await applied(app, schedule("fine"), wrong)
    assert await names(app) == []


async def test_a_schedule_whose_end_has_passed_does_not_stand_in_the_way_of_the_others(app: Tenuto, sql: Sql) -> None:
    await applied(app, schedule("over", cron="@daily", end="2099-12-31"))
    await sql(
        "UPDATE tenuto.schedules SET trigger = jsonb_set(trigger, '{end}', '\"2020-01-01\"'),"
        " declared = jsonb_set(declared, '{trigger,end}', '\"2020-01-01\"')"
    )
    planned = await applied(app, schedule("over", cron="@daily", end="2020-01-01"), schedule("new"))
    assert effects(planned) == {"over": "unchanged", "new": "created"}
    edited = await applied(app, schedule("over", cron="@daily", end="2020-01-01", overlap="allow"))
    assert effects(edited) == {"over": "changed"}
    with pytest.raises(Invalid, match="end"):
        await applied(app, schedule("over", cron="@daily", end="2020-01-02"))


async def test_a_circle_over_several_files_and_the_database_is_refused(app: Tenuto) -> None:
    await applied(app, schedule("a"), schedule("b", {"schedule": "a"}))
    with pytest.raises(Invalid, match=r"schedules\[0\].steps: runs itself: a → c → b → a"):
        await app.schedules.plan(files(schedule("a", {"schedule": "c"}), schedule("c", {"schedule": "b"})))


async def test_who_runs_whom_can_be_turned_round_in_one_go(app: Tenuto) -> None:
    await applied(app, schedule("b"), schedule("a", {"schedule": "b"}))
    await applied(app, schedule("a"), schedule("b", {"schedule": "a"}))
    assert (await app.schedules.get("b")).plan.targets_of_kind("schedule") == {"a"}


async def test_the_order_in_the_file_does_not_matter(app: Tenuto) -> None:
    planned = await applied(app, schedule("a", {"schedule": "z"}), schedule("z"))
    assert [change.key for change in planned.changes] == ["z", "a"]


# ---- between looking and doing


async def test_nothing_is_done_if_somebody_has_changed_something_in_between(app: Tenuto) -> None:
    await applied(app, schedule("a", cron="@daily"), schedule("b"))
    planned = await app.schedules.plan(
        files(schedule("b", cron="@daily"), schedule("a", cron="@hourly"), schedule("c"))
    )
    await app.schedules.disable("a")
    with pytest.raises(Conflict, match="'a' was changed while this was planned"):
        await app.plans.apply(ApplyPlan(planned))
    assert await names(app) == ["a", "b"]
    assert (await app.schedules.get("b")).definition.trigger == manual()


async def test_nothing_is_deleted_if_it_was_changed_in_between(app: Tenuto) -> None:
    await applied(app, schedule("a"))
    planned = await app.schedules.plan(files(schedule("b")), prune=True)
    await app.schedules.disable("a")
    with pytest.raises(Conflict, match="'a' was changed while this was planned"):
        await app.plans.apply(ApplyPlan(planned))
    assert await names(app) == ["a"]


async def test_many_who_apply_the_same_at_once_change_it_once(app: Tenuto, sql: Sql) -> None:
    declared = [schedule("a", cron="@daily"), schedule("b", {"schedule": "a"}), schedule("c")]
    planned = [await app.schedules.plan(files(*declared)) for _ in range(8)]
    await asyncio.gather(*(app.plans.apply(ApplyPlan(each)) for each in planned))
    assert len(await sql("SELECT * FROM tenuto.schedule_versions")) == 3


async def test_many_who_apply_different_files_at_once_all_come_through_or_are_told(app: Tenuto) -> None:
    """Whatever the order of their schedules: nobody waits for ever, and no mixture of two files comes to be."""
    await applied(app, *(schedule(name) for name in "abcdef"))
    crons = ["0 1 * * *", "0 2 * * *", "0 3 * * *", "0 4 * * *"]
    plans = []
    for number, line in enumerate(crons):
        order = sorted("abcdef", reverse=bool(number % 2))
        plans.append(await app.schedules.plan(files(*(schedule(name, cron=line) for name in order))))
    ended = await asyncio.gather(*(app.plans.apply(ApplyPlan(each)) for each in plans), return_exceptions=True)
    assert ended.count(None) == 1
    assert all(isinstance(each, Conflict) for each in ended if each is not None)
    assert len({str((await app.schedules.get(name)).definition.trigger.to_fields()) for name in "abcdef"}) == 1


async def test_a_plan_that_is_carried_out_already_is_no_conflict(app: Tenuto) -> None:
    """As when the first commit went through and only its reply was lost."""
    await applied(app, schedule("a"), schedule("gone"))
    planned = await app.schedules.plan(files(schedule("a", cron="@daily"), schedule("new")), prune=True)
    await app.plans.apply(ApplyPlan(planned))
    await app.plans.apply(ApplyPlan(planned))
    assert await names(app) == ["a", "new"]
    assert [version.change for version in await app.schedules.versions("a")] == ["edited", "created"]


async def test_a_scheduler_is_told_at_once(app: Tenuto) -> None:
    """It sleeps for half a minute unless told; a run due in a second comes on time."""
    async with app.scheduler():
        await applied(app, schedule("x", {"job": "tidy"}, every="1s"))
        await eventually(lambda: app.executions.list(schedule="x"), timeout=15)


async def test_a_name_nobody_sees_is_refused_at_its_place_in_the_file_and_left_alone_where_it_is_in_force(
    app: Tenuto, sql: Sql
) -> None:
    with pytest.raises(Invalid, match=r"U\+202E") as refusal:
        await app.schedules.plan(files(schedule("fine"), schedule("\u202eelif")))
    assert "file.yaml" in str(refusal.value)
    with pytest.raises(Invalid, match=r"U\+001B"):
        await app.schedules.plan(files(schedule("fine", {"job": "tidy", "name": "\x1b[2J"})))
    await applied(app, schedule("old"))
    await sql("UPDATE tenuto.schedules SET name = U&'\\202Eold'")
    await applied(app, schedule("\u202eold", description="changed by a file"))
    assert (await app.schedules.get("\u202eold")).definition.description == "changed by a file"
