"""Plan and apply of schedules in definition files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest

from tenuto import Step, Tenuto, cron, manual
from tenuto.definitions.definition_files import DeclaredSchedule, parse_schedules
from tenuto.definitions.definition_plan import SchedulePlan
from tenuto.definitions.document_parser import Document
from tenuto.errors import Conflict
from tenuto.model.definitions.schedules import Plan, ScheduleDefinition
from tenuto.operations.definitions.plans import ApplyPlan
from tests.support.errors import raises_code
from tests.support.waiting import eventually

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
def app(app: Tenuto) -> Tenuto:
    @app.job(timeout="1h")
    async def load(rows: int = 1) -> None: ...

    @app.job
    async def tidy() -> None: ...

    return app


def make_schedule_data(name: str, *steps: Any, **fields: Any) -> dict[str, Any]:
    return {"name": name, "steps": list(steps) or [{"job": "tidy"}], **fields}


def parse(*schedules: dict[str, Any]) -> list[DeclaredSchedule]:
    return parse_schedules([Document("file.yaml", {"schedules": list(schedules)})])


async def apply(app: Tenuto, *schedules: dict[str, Any], prune: bool = False) -> SchedulePlan:
    planned = await app.schedules.plan(parse(*schedules), prune=prune)
    await app.plans.apply(ApplyPlan(planned), reason="because")
    return planned


def effects(planned: SchedulePlan) -> dict[str, str]:
    return {change.key: change.effect for change in planned.changes}


async def database_now(app: Tenuto) -> datetime:
    return (await app.open()).clock.now()


async def list_names(app: Tenuto) -> list[str]:
    return [row.name for row in await app.schedules.list()]


async def test_schedule_plan_changes_nothing(app: Tenuto, sql: Sql) -> None:
    await apply(app, make_schedule_data("kept"), make_schedule_data("gone"))
    before = await sql("SELECT * FROM tenuto.schedules ORDER BY name")
    planned = await app.schedules.plan(
        parse(make_schedule_data("kept", cron="@daily"), make_schedule_data("new")), prune=True
    )
    assert effects(planned) == {"kept": "changed", "new": "created"}
    assert [each.name for each in planned.deleted] == ["gone"]
    assert await sql("SELECT * FROM tenuto.schedules ORDER BY name") == before


async def test_schedule_plan_previews_runs_of_a_new_schedule(app: Tenuto) -> None:
    planned = await app.schedules.plan(parse(make_schedule_data("x", cron="0 2 * * *", zone="Europe/London")))
    (change,) = planned.changes
    assert (change.effect, change.current, list(change.runs_before)) == ("created", None, [])
    assert list(change.runs_after) == cron("0 2 * * *", zone="Europe/London").preview(await database_now(app), 3)
    assert planned.has_changes


async def test_applied_schedule_plan_has_the_planned_result(app: Tenuto) -> None:
    await apply(app, make_schedule_data("x", {"job": "load", "input": {"rows": 5}, "max_attempts": 7}, every="1h"))
    found = await app.schedules.get("x")
    (step,) = found.plan.groups[0]
    assert (step.target, step.arguments) == ("load", {"rows": 5})
    assert step.policy is not None
    assert (step.policy.retry.max_attempts, step.policy.timeout_seconds) == (7, 3600), (
        "policy of the job with overrides of the step"
    )
    assert (found.origin, found.version) == ("file", 1)
    (version,) = await app.schedules.versions("x")
    assert (version.change, version.reason) == ("created", "because")


async def test_applying_a_schedule_file_twice_changes_nothing(app: Tenuto, sql: Sql) -> None:
    declared = (make_schedule_data("a", cron="@daily"), make_schedule_data("b", {"schedule": "a"}))
    await apply(app, *declared)
    before = await sql("SELECT * FROM tenuto.schedules ORDER BY name")
    again = await apply(app, *declared)
    assert set(effects(again).values()) == {"unchanged"}
    assert not again.has_changes
    assert await sql("SELECT * FROM tenuto.schedules ORDER BY name") == before
    assert len(await sql("SELECT * FROM tenuto.schedule_versions")) == 2


async def test_schedule_plan_lists_changed_fields_and_runs(app: Tenuto) -> None:
    await apply(app, make_schedule_data("x", {"job": "load"}, cron="0 2 * * *", description="old"))
    planned = await app.schedules.plan(
        parse(make_schedule_data("x", {"job": "load"}, cron="0 3 * * *", overlap="allow"))
    )
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
    assert list(change.runs_before) == cron("0 2 * * *").preview(await database_now(app), 3)
    assert list(change.runs_after) == cron("0 3 * * *").preview(await database_now(app), 3)
    await app.plans.apply(ApplyPlan(planned))
    assert (await app.schedules.get("x")).next_run_at == change.runs_after[0]


async def test_schedule_plan_previews_runs_with_jitter(app: Tenuto) -> None:
    await apply(app, make_schedule_data("x", cron="0 2 * * *", jitter="1h"))
    planned = await app.schedules.plan(parse(make_schedule_data("x", cron="0 4 * * *", jitter="1h")))
    await app.plans.apply(ApplyPlan(planned))
    assert (await app.schedules.get("x")).next_run_at == planned.changes[0].runs_after[0]


async def test_schedule_plan_notes_jitter_of_a_new_schedule(app: Tenuto) -> None:
    (new,) = (await app.schedules.plan(parse(make_schedule_data("x", cron="0 2 * * *", jitter="30m")))).changes
    assert new.notes == ["after creation each run is up to 30 minutes later than shown (jitter)"]
    (new,) = (await app.schedules.plan(parse(make_schedule_data("x", cron="0 2 * * *")))).changes
    assert list(new.notes) == []


async def test_applying_a_file_keeps_a_schedule_disabled(app: Tenuto) -> None:
    await apply(app, make_schedule_data("x", cron="@daily"))
    await app.schedules.disable("x")
    planned = await apply(app, make_schedule_data("x", cron="@hourly"))
    (change,) = planned.changes
    assert "disabled, and remains disabled" in change.notes
    assert (list(change.runs_before), list(change.runs_after)) == ([], [])
    found = await app.schedules.get("x")
    assert (found.enabled, found.next_run_at) == (False, None)
    assert found.definition.trigger == cron("@hourly")


async def test_operators_change_of_a_schedule_is_kept_until_the_file_changes(app: Tenuto) -> None:
    await apply(app, make_schedule_data("x", cron="@daily"))
    edited = ScheduleDefinition("x", cron("@weekly"), Plan.from_steps([Step("job", "tidy")]))
    await app.schedules.edit("x", edited)

    kept = await apply(app, make_schedule_data("x", cron="@daily"))
    assert effects(kept) == {"x": "kept"}
    assert not kept.has_changes
    assert list(kept.changes[0].differences) == ["trigger"]
    assert (await app.schedules.get("x")).definition.trigger == cron("@weekly")

    replaced = await apply(app, make_schedule_data("x", cron="@hourly"))
    assert effects(replaced) == {"x": "changed"}
    assert "changed by an operator since it was declared: the file replaces that change" in replaced.changes[0].notes
    assert (await app.schedules.get("x")).definition.trigger == cron("@hourly")


async def test_schedule_plan_takes_over_a_schedule_created_by_an_operator(app: Tenuto) -> None:
    await app.schedules.create(ScheduleDefinition("x", manual(), Plan.from_steps([Step("job", "tidy")])))
    planned = await apply(app, make_schedule_data("x"))
    assert effects(planned) == {"x": "unchanged"}
    assert planned.changes[0].notes == ["created by an operator: from now on managed by the file"]
    assert (await app.schedules.get("x")).origin == "file"
    assert (await app.schedules.plan(parse(make_schedule_data("x")))).changes[0].notes == []


async def test_schedule_declared_in_code_and_file_is_rejected(app: Tenuto) -> None:
    app.schedule("x", manual(), [Step("job", "tidy")])
    with raises_code("plan.declared_in_code") as rejected:
        await app.schedules.plan(parse(make_schedule_data("x")))
    assert rejected.value.field == "file.yaml: schedules[0].name"


# --- undeclared schedules -------------------------------------------------------------------------------------------


async def test_schedule_plan_lists_undeclared_schedules_and_keeps_them(app: Tenuto) -> None:
    await apply(app, make_schedule_data("a"), make_schedule_data("b"))
    await app.schedules.create(ScheduleDefinition("by hand", manual(), Plan.from_steps([Step("job", "tidy")])))
    planned = await apply(app, make_schedule_data("a"))
    assert [each.name for each in planned.undeclared] == ["b"], "only schedules that a file declared"
    assert (planned.deleted, planned.has_changes) == ([], False)
    assert await list_names(app) == ["a", "b", "by hand"]


async def test_prune_deletes_only_schedules_from_parse(app: Tenuto) -> None:
    await apply(
        app,
        make_schedule_data("a"),
        make_schedule_data("z inner"),
        make_schedule_data("outer", {"schedule": "z inner"}),
    )
    await app.schedules.create(ScheduleDefinition("by hand", manual(), Plan.from_steps([Step("job", "tidy")])))
    planned = await apply(app, make_schedule_data("a"), prune=True)
    assert [each.name for each in planned.deleted] == ["outer", "z inner"], "those that run others first"
    assert await list_names(app) == ["a", "by hand"]
    (last, *_) = await app.schedules.versions("outer")
    assert (last.change, last.reason) == ("deleted", "because")


async def test_prune_of_a_schedule_used_as_step_is_rejected(app: Tenuto) -> None:
    await apply(app, make_schedule_data("a"), make_schedule_data("b"))
    await app.schedules.create(ScheduleDefinition("by hand", manual(), Plan.from_steps([Step.schedule("b")])))
    with raises_code("schedule.in_use", Conflict):
        await apply(app, make_schedule_data("a"), make_schedule_data("c"), prune=True)
    assert await list_names(app) == ["a", "b", "by hand"]


async def test_step_that_runs_a_pruned_schedule_is_rejected_with_its_location(app: Tenuto) -> None:
    await apply(app, make_schedule_data("b"))
    with raises_code("schedule.step.schedule_not_found") as rejected:
        await app.schedules.plan(parse(make_schedule_data("a", {"schedule": "b"})), prune=True)
    assert rejected.value.field == "file.yaml: schedules[0].steps[0]"
    assert effects(await app.schedules.plan(parse(make_schedule_data("a", {"schedule": "b"})))) == {"a": "created"}


# --- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("invalid", "code", "path"),
    [
        (make_schedule_data("x", {"job": "lod"}), "job.unknown", "steps[0]"),
        (
            make_schedule_data("x", {"job": "load", "input": {"rows": "many"}}),
            "job.input.invalid",
            "steps[0].input.rows",
        ),
        (make_schedule_data("x", {"job": "load", "input": {"row": 1}}), "job.input.invalid", "steps[0].input.row"),
        (make_schedule_data("x", {"kind": "moon"}), "step.kind.unknown", "steps[0]"),
        (make_schedule_data("x", {"schedule": "none"}), "schedule.step.schedule_not_found", "steps[0]"),
        (make_schedule_data("x", {"schedule": "x"}), "schedule.steps.cycle", "steps"),
        (
            make_schedule_data("x", {"schedule": "fine", "timeout": "1h"}),
            "step.timeout.not_supported",
            "steps[0].timeout",
        ),
        (
            make_schedule_data("x", trigger={"cron": "@daily", "end": "2020-01-01"}),
            "schedule.trigger.never_fires",
            "trigger.end",
        ),
    ],
)
async def test_schedule_plan_checks_everything_before_changes(
    app: Tenuto, invalid: dict[str, Any], code: str, path: str
) -> None:
    with raises_code(code) as rejected:
        await apply(app, make_schedule_data("fine"), invalid)
    assert rejected.value.field == f"file.yaml: schedules[1].{path}"
    assert await list_names(app) == []


async def test_ended_schedule_does_not_prevent_applying_a_file(app: Tenuto, sql: Sql) -> None:
    await apply(app, make_schedule_data("over", cron="@daily", end="2099-12-31"))
    await sql(
        "UPDATE tenuto.schedules SET trigger = jsonb_set(trigger, '{end}', '\"2020-01-01\"'),"
        " declared = jsonb_set(declared, '{trigger,end}', '\"2020-01-01\"')"
    )
    planned = await apply(app, make_schedule_data("over", cron="@daily", end="2020-01-01"), make_schedule_data("new"))
    assert effects(planned) == {"over": "unchanged", "new": "created"}
    edited = await apply(app, make_schedule_data("over", cron="@daily", end="2020-01-01", overlap="allow"))
    assert effects(edited) == {"over": "changed"}
    with raises_code("schedule.trigger.never_fires"):
        await apply(app, make_schedule_data("over", cron="@daily", end="2020-01-02"))


async def test_schedule_cycle_across_files_and_database_is_rejected(app: Tenuto) -> None:
    await apply(app, make_schedule_data("a"), make_schedule_data("b", {"schedule": "a"}))
    with raises_code("schedule.steps.cycle") as rejected:
        await app.schedules.plan(
            parse(make_schedule_data("a", {"schedule": "c"}), make_schedule_data("c", {"schedule": "b"}))
        )
    assert rejected.value.field == "file.yaml: schedules[0].steps"
    assert "a → c → b → a" in rejected.value.message


async def test_schedule_dependency_can_be_reversed_in_one_plan(app: Tenuto) -> None:
    await apply(app, make_schedule_data("b"), make_schedule_data("a", {"schedule": "b"}))
    await apply(app, make_schedule_data("a"), make_schedule_data("b", {"schedule": "a"}))
    assert (await app.schedules.get("b")).plan.targets_of_kind("schedule") == {"a"}


async def test_order_of_schedules_in_a_file_does_not_matter(app: Tenuto) -> None:
    planned = await apply(app, make_schedule_data("a", {"schedule": "z"}), make_schedule_data("z"))
    assert [change.key for change in planned.changes] == ["z", "a"]


# --- changes between plan and apply ---------------------------------------------------------------------------------


async def test_schedule_plan_conflicts_if_a_schedule_changed_since(app: Tenuto) -> None:
    await apply(app, make_schedule_data("a", cron="@daily"), make_schedule_data("b"))
    planned = await app.schedules.plan(
        parse(make_schedule_data("b", cron="@daily"), make_schedule_data("a", cron="@hourly"), make_schedule_data("c"))
    )
    await app.schedules.disable("a")
    with raises_code("definition.changed_since_plan", Conflict):
        await app.plans.apply(ApplyPlan(planned))
    assert await list_names(app) == ["a", "b"]
    assert (await app.schedules.get("b")).definition.trigger == manual()


async def test_prune_conflicts_if_a_schedule_changed_since(app: Tenuto) -> None:
    await apply(app, make_schedule_data("a"))
    planned = await app.schedules.plan(parse(make_schedule_data("b")), prune=True)
    await app.schedules.disable("a")
    with raises_code("definition.changed_since_plan", Conflict):
        await app.plans.apply(ApplyPlan(planned))
    assert await list_names(app) == ["a"]


async def test_concurrent_applies_of_one_file_change_schedules_once(app: Tenuto, sql: Sql) -> None:
    declared = [
        make_schedule_data("a", cron="@daily"),
        make_schedule_data("b", {"schedule": "a"}),
        make_schedule_data("c"),
    ]
    planned = [await app.schedules.plan(parse(*declared)) for _ in range(8)]
    await asyncio.gather(*(app.plans.apply(ApplyPlan(each)) for each in planned))
    assert len(await sql("SELECT * FROM tenuto.schedule_versions")) == 3


async def test_concurrent_applies_of_different_files_succeed_or_conflict(app: Tenuto) -> None:
    """In any order of their schedules there is no deadlock and no mixture of two files."""
    await apply(app, *(make_schedule_data(name) for name in "abcdef"))
    crons = ["0 1 * * *", "0 2 * * *", "0 3 * * *", "0 4 * * *"]
    plans = []
    for number, line in enumerate(crons):
        order = sorted("abcdef", reverse=bool(number % 2))
        plans.append(await app.schedules.plan(parse(*(make_schedule_data(name, cron=line) for name in order))))
    ended = await asyncio.gather(*(app.plans.apply(ApplyPlan(each)) for each in plans), return_exceptions=True)
    assert ended.count(None) == 1
    assert all(isinstance(each, Conflict) for each in ended if each is not None)
    assert len({str((await app.schedules.get(name)).definition.trigger.to_fields()) for name in "abcdef"}) == 1


async def test_schedule_plan_that_is_already_applied_is_no_conflict(app: Tenuto) -> None:
    """Like a retry after a lost commit acknowledgement."""
    await apply(app, make_schedule_data("a"), make_schedule_data("gone"))
    planned = await app.schedules.plan(
        parse(make_schedule_data("a", cron="@daily"), make_schedule_data("new")), prune=True
    )
    await app.plans.apply(ApplyPlan(planned))
    await app.plans.apply(ApplyPlan(planned))
    assert await list_names(app) == ["a", "new"]
    assert [version.change for version in await app.schedules.versions("a")] == ["edited", "created"]


async def test_applied_schedule_plan_notifies_the_scheduler(app: Tenuto) -> None:
    """Without notification the scheduler sleeps for half a minute."""
    async with app.scheduler():
        await apply(app, make_schedule_data("x", {"job": "tidy"}, every="1s"))
        await eventually(lambda: app.executions.list(schedule="x"), timeout=15)


async def test_schedule_name_with_invisible_characters_is_rejected_in_new_files_only(app: Tenuto, sql: Sql) -> None:
    with raises_code("value.invisible_character") as rejected:
        await app.schedules.plan(parse(make_schedule_data("fine"), make_schedule_data("\u202eelif")))
    assert "file.yaml" in str(rejected.value)
    with raises_code("value.invisible_character"):
        await app.schedules.plan(parse(make_schedule_data("fine", {"job": "tidy", "name": "\x1b[2J"})))
    await apply(app, make_schedule_data("old"))
    await sql("UPDATE tenuto.schedules SET name = U&'\\202Eold'")
    await apply(app, make_schedule_data("\u202eold", description="changed by a file"))
    assert (await app.schedules.get("\u202eold")).definition.description == "changed by a file"
