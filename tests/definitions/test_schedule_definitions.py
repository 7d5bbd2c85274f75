"""Schedule definitions (S3, S13): creation, versions, enabling, deletion, declarations and cycles."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import Actor, Step, Tenuto, cron, every, manual
from tenuto.definitions.schedule_definitions import create, declare, delete, edit, get, set_enabled
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.diagnostics import deep_checks
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.lifecycle import execution_control
from tenuto.model.definitions.schedules import ScheduleDefinition, changed_fields
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto.store.definitions import schedules
from tests.support.errors import raises_code
from tests.support.model_values import NOON
from tests.support.schedules import (
    ANA,
    MINUTE,
    NAME,
    claim_steps,
    create_schedule,
    fire_due_schedules,
    load_execution,
    make_change_context,
    make_definition,
    read_table,
    run_claimable_steps,
    run_schedule_now,
    start_execution,
)
from tests.support.tasks import Register

LATER = NOON + MINUTE
CODE = ChangeContext(Actor.system("deploy"), LATER, "declared in code", "code")


async def list_changes(db: Database, name: str = NAME) -> list[tuple[int, str]]:
    return [(each.version, each.change) for each in await schedules.list_versions(db, name, 50)]


# --- creation -------------------------------------------------------------------------------------------------------


async def test_new_schedule_has_a_next_run_and_a_first_version(db: Database) -> None:
    made = await create(db, make_definition(), make_change_context(reason="because"))
    assert (made.enabled, made.version, made.origin, made.next_run_at) == (True, 1, "hand", LATER)
    (version,) = await schedules.list_versions(db, NAME, 50)
    assert (version.version, version.change, version.at, version.reason) == (1, "created", NOON, "because")
    assert (version.actor, version.definition_id) == (ANA, made.id)
    assert version.before is None
    assert version.after == {**make_definition().to_fields(), "enabled": True}


async def test_request_id_of_a_deleted_schedule_is_not_reused(db: Database) -> None:
    made = await create(db, make_definition(), make_change_context())
    await delete(db, NAME, make_change_context(LATER))
    with raises_code("definition.request.already_used", Conflict) as rejected:
        await create(db, make_definition(), make_change_context(LATER), id=made.id)
    assert rejected.value.field == "request_id"
    assert [change for _, change in await list_changes(db)] == ["deleted", "created"]


async def test_schedule_created_disabled_has_no_next_run(db: Database) -> None:
    made = await create(db, make_definition(), make_change_context(), enabled=False)
    assert (made.enabled, made.next_run_at) == (False, None)


async def test_schedule_name_is_unique(db: Database) -> None:
    await create_schedule(db, make_definition())
    with raises_code("schedule.already_exists", Conflict) as rejected:
        await create_schedule(db, make_definition("x"))
    assert rejected.value.field == "name"
    answers = await asyncio.gather(
        *(create_schedule(db, make_definition(name="other")) for _ in range(4)), return_exceptions=True
    )
    assert sum(isinstance(answer, Conflict) for answer in answers) == 3


async def test_schedule_whose_trigger_never_fires_is_rejected(db: Database) -> None:
    with raises_code("schedule.trigger.never_fires") as rejected:
        await create_schedule(db, make_definition(trigger=every("1h", end="2031-05-16")))
    assert rejected.value.field == "end"
    assert await read_table(db, "schedules") == []


async def test_step_that_runs_an_unknown_schedule_is_rejected(db: Database) -> None:
    with raises_code("schedule.step.schedule_not_found"):
        await create_schedule(db, make_definition(Step.schedule("nothing")))


# --- changes --------------------------------------------------------------------------------------------------------


async def test_schedule_edit_creates_a_version_with_before_and_after(db: Database) -> None:
    await create_schedule(db, make_definition("a"))
    made = await edit(db, NAME, make_definition("b", description="new"), make_change_context(LATER, "a better way"))
    assert (made.version, made.plan.step_at(0).name, made.updated_at) == (2, "b", LATER)
    newest = (await schedules.list_versions(db, NAME, 50))[0]
    assert (newest.version, newest.change, newest.reason, newest.actor) == (2, "edited", "a better way", ANA)
    assert set(changed_fields(newest.before, newest.after)) == {"steps", "description"}


async def test_schedule_edit_without_change_creates_no_version(db: Database) -> None:
    await create_schedule(db, make_definition())
    assert (await edit(db, NAME, make_definition(), make_change_context(LATER))).version == 1
    assert await list_changes(db) == [(1, "created")]


async def test_schedule_edit_with_an_old_version_conflicts(db: Database) -> None:
    await create_schedule(db, make_definition())
    await edit(db, NAME, make_definition("b"), make_change_context(LATER), version=1)
    with raises_code("definition.version_conflict", Conflict):
        await edit(db, NAME, make_definition("c"), make_change_context(LATER + MINUTE), version=1)


async def test_schedule_rename_is_rejected_if_the_name_exists_or_the_schedule_is_a_step(db: Database) -> None:
    made = await create_schedule(db, make_definition())
    await create_schedule(db, make_definition(name="other"))
    with raises_code("schedule.already_exists", Conflict) as rejected:
        await edit(db, NAME, make_definition(name="other"), make_change_context(LATER))
    assert rejected.value.field == "name"
    assert (await edit(db, NAME, make_definition(name="renamed"), make_change_context(LATER))).id == made.id
    with pytest.raises(NotFound):
        await get(db, NAME)
    await create_schedule(db, make_definition(Step.schedule("renamed"), name="outer"))
    with raises_code("schedule.in_use", Conflict):
        await edit(db, "renamed", make_definition(name="again"), make_change_context(LATER))


@pytest.mark.parametrize("origin", ["code", "file"])
async def test_declared_schedule_cannot_be_renamed_by_an_operator(db: Database, origin: str) -> None:
    declared = ChangeContext(CODE.actor, NOON, None, origin)
    await declare(db, make_definition("a"), declared)
    with raises_code("schedule.name.declared", Conflict) as rejected:
        await edit(db, NAME, make_definition("a", name="renamed"), make_change_context(LATER))
    assert rejected.value.field == "name"
    assert "where it is declared" in (rejected.value.remedy or "")
    assert await declare(db, make_definition("a"), declared) == "unchanged"
    assert [row["name"] for row in await read_table(db, "schedules")] == [NAME], (
        "a second schedule would run the work twice"
    )
    assert (await edit(db, NAME, make_definition("b"), make_change_context(LATER))).version == 2, (
        "other fields may be changed"
    )


async def test_enabling_a_schedule_creates_one_version(db: Database) -> None:
    await create_schedule(db, make_definition())
    assert await set_enabled(db, NAME, make_change_context(NOON, "holidays"), enabled=False)
    assert not await set_enabled(db, NAME, make_change_context(LATER), enabled=False)
    assert await set_enabled(db, NAME, make_change_context(LATER), enabled=True)
    assert await list_changes(db) == [(3, "enabled"), (2, "disabled"), (1, "created")]
    assert (await get(db, NAME)).next_run_at == LATER + MINUTE


async def list_missed(db: Database) -> list[tuple[Any, ...]]:
    rows = await read_table(db, "occurrences", "decision = 'missed'")
    return [(row["due_at"], row["until"], row["reason"], row["decided_by"]) for row in rows]


async def test_enabling_a_schedule_records_missed_instants_in_one_row(db: Database) -> None:
    await create_schedule(db, make_definition())
    await set_enabled(db, NAME, make_change_context(NOON, "holidays"), enabled=False)
    on = NOON + 10.5 * MINUTE
    await edit(
        db, NAME, make_definition(description="an edit of something else"), make_change_context(NOON + 3 * MINUTE)
    )
    await set_enabled(db, NAME, ChangeContext(Actor.system("bo"), on), enabled=True)
    assert await list_missed(db) == [(LATER, on, "it was disabled by Ana", "bo")]
    await fire_due_schedules(db, on + MINUTE)
    assert [row["due_at"] for row in await read_table(db, "occurrences", "decision = 'fired'")] == [NOON + 11 * MINUTE]
    assert (await deep_checks.check_ledger(db)).severity == "ok"


async def test_disabled_period_without_due_instants_leaves_no_row(db: Database) -> None:
    await create_schedule(db, make_definition())
    await set_enabled(db, NAME, make_change_context(NOON), enabled=False)
    await set_enabled(db, NAME, make_change_context(NOON + 0.5 * MINUTE), enabled=True)
    assert await list_missed(db) == []
    await set_enabled(db, NAME, make_change_context(NOON + 0.6 * MINUTE), enabled=False)
    await set_enabled(db, NAME, make_change_context(NOON + 1.5 * MINUTE), enabled=True)
    assert await list_missed(db) == [(LATER, None, "it was disabled by Ana", "Ana")]
    await create_schedule(db, make_definition(name="manual", trigger=manual()), enabled=False)
    await set_enabled(db, "manual", make_change_context(NOON + timedelta(days=9)), enabled=True)
    assert len(await list_missed(db)) == 1


async def test_overdue_instant_at_disabling_is_recorded_once(db: Database) -> None:
    await create_schedule(db, make_definition())
    off, on = NOON + 2.5 * MINUTE, NOON + 4.5 * MINUTE
    await set_enabled(db, NAME, make_change_context(off), enabled=False)
    await set_enabled(db, NAME, make_change_context(on), enabled=True)
    assert await list_missed(db) == [
        (LATER, off, "it was disabled before it fired", "Ana"),
        (NOON + 3 * MINUTE, on, "it was disabled by Ana", "Ana"),
    ]


async def test_trigger_changed_while_disabled_does_not_apply_to_earlier_instants(db: Database) -> None:
    await create_schedule(db, make_definition(), enabled=False)
    changed, on = NOON + 2.5 * MINUTE, NOON + 6 * MINUTE
    await edit(db, NAME, make_definition(trigger=every("2m")), make_change_context(changed))
    await set_enabled(db, NAME, make_change_context(on), enabled=True)
    assert await list_missed(db) == [
        (LATER, changed, "it was disabled", "Ana"),
        (NOON + 4 * MINUTE, on, "it was disabled", "Ana"),
    ]


async def test_ended_schedule_can_be_edited_and_disabled_but_not_enabled(db: Database) -> None:
    over = every("1h", end="2031-05-17")
    await create_schedule(db, make_definition(trigger=over))
    much_later = NOON + timedelta(days=30)
    await edit(db, NAME, make_definition(trigger=over, description="over"), make_change_context(much_later))
    assert await set_enabled(db, NAME, make_change_context(much_later), enabled=False)
    with raises_code("schedule.trigger.never_fires"):
        await set_enabled(db, NAME, make_change_context(much_later), enabled=True)


@pytest.mark.parametrize("act", ["edit", "disable", "delete"])
async def test_unknown_schedule_cannot_be_changed(db: Database, act: str) -> None:
    work: dict[str, Any] = {
        "edit": lambda: edit(db, NAME, make_definition(), make_change_context()),
        "disable": lambda: set_enabled(db, NAME, make_change_context(), enabled=False),
        "delete": lambda: delete(db, NAME, make_change_context()),
    }
    with raises_code("schedule.not_found", NotFound):
        await work[act]()


# --- deletion -------------------------------------------------------------------------------------------------------


async def test_running_schedule_cannot_be_deleted(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    run = await start_execution(db, "a", "b")
    with raises_code("schedule.running", Conflict) as rejected:
        await delete(db, NAME, make_change_context(LATER))
    assert str(run) in (rejected.value.remedy or "")
    await claim_steps(db, me)
    await execution_control.cancel_execution(db, run, LATER, ANA)
    with pytest.raises(Conflict):
        await delete(db, NAME, make_change_context(LATER))
    (task,) = await read_table(db, "tasks")
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 s'")
    from tenuto.maintenance.recovery import recover_lost_tasks

    await recover_lost_tasks(db, db.clock.now())
    await delete(db, NAME, make_change_context(LATER))
    assert task["execution_id"] == run


async def test_history_of_a_deleted_schedule_remains(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    run = await start_execution(db, "a")
    await run_claimable_steps(db, me)
    await delete(db, NAME, make_change_context(LATER, "no longer needed"))
    assert (await load_execution(db, run)).state == "completed"
    newest = (await schedules.list_versions(db, NAME, 1))[0]
    assert (newest.change, newest.version, newest.reason, newest.after) == ("deleted", 2, "no longer needed", None)
    assert newest.before is not None
    assert len(await read_table(db, "occurrences", "origin = 'manual'")) == 1
    made = await create_schedule(db, make_definition(), LATER)
    assert made.version == 1


async def test_due_instant_of_a_deleted_schedule_is_recorded(db: Database) -> None:
    await create_schedule(db, make_definition())
    await delete(db, NAME, make_change_context(LATER))
    (row,) = await read_table(db, "occurrences")
    assert (row["due_at"], row["decision"]) == (LATER, "missed")
    assert row["reason"] == "the schedule was deleted before it fired"


async def test_schedule_that_is_a_step_cannot_be_deleted(db: Database) -> None:
    await create_schedule(db, make_definition())
    await create_schedule(db, make_definition(Step.schedule(NAME), name="outer"))
    with raises_code("schedule.in_use", Conflict):
        await delete(db, NAME, make_change_context())
    await delete(db, "outer", make_change_context())
    await delete(db, NAME, make_change_context())


# --- declarations---------------------------------------------------------------------------------------------------


async def test_declaration_creates_changes_or_keeps_a_schedule(db: Database) -> None:
    assert await declare(db, make_definition("a"), CODE) == "created"
    assert await declare(db, make_definition("a"), CODE) == "unchanged"
    assert await declare(db, make_definition("b"), CODE) == "changed"
    present = await get(db, NAME)
    assert (present.origin, present.version, present.plan.step_at(0).name) == ("code", 2, "b")


async def test_operators_edit_is_kept_until_the_declaration_changes(db: Database) -> None:
    await declare(db, make_definition("a"), CODE)
    await edit(db, NAME, make_definition("operator"), make_change_context(LATER))
    assert await declare(db, make_definition("a"), CODE) == "kept"
    assert (await get(db, NAME)).plan.step_at(0).name == "operator"
    assert await declare(db, make_definition("new code"), CODE) == "changed"
    assert (await get(db, NAME)).plan.step_at(0).name == "new code"


async def test_declaration_does_not_enable_or_disable_a_schedule(db: Database) -> None:
    await declare(db, make_definition("a"), CODE)
    await set_enabled(db, NAME, make_change_context(LATER), enabled=False)
    assert await declare(db, make_definition("a"), CODE) == "unchanged"
    assert await declare(db, make_definition("b"), CODE) == "changed"
    present = await get(db, NAME)
    assert (present.enabled, present.next_run_at) == (False, None)


async def test_declaration_takes_over_a_schedule_created_by_an_operator(db: Database) -> None:
    await create_schedule(db, make_definition("a"))
    assert await declare(db, make_definition("a"), CODE) == "unchanged"
    await edit(db, NAME, make_definition("operator"), make_change_context(LATER))
    assert await declare(db, make_definition("a"), CODE) == "kept"


async def test_ended_declared_schedule_does_not_stop_a_deployment(db: Database) -> None:
    over = make_definition(trigger=every("1h", end="2031-05-17"))
    await declare(db, over, CODE)
    later = ChangeContext(CODE.actor, NOON + timedelta(days=300), "declared in code", "code")
    assert await declare(db, over, later) == "unchanged"


async def test_deployment_without_change_keeps_next_and_overdue_runs(db: Database) -> None:
    await declare(db, make_definition("a"), ChangeContext(CODE.actor, NOON, None, "code"))
    late = ChangeContext(CODE.actor, NOON + timedelta(hours=1), None, "code")
    await declare(db, make_definition("a"), late)
    assert (await get(db, NAME)).next_run_at == LATER
    await declare(db, make_definition("b"), late)
    assert (await get(db, NAME)).next_run_at == LATER, "only a new trigger computes a new next run"


async def test_concurrent_declarations_create_a_schedule_once(db: Database) -> None:
    effects = await asyncio.gather(*(declare(db, make_definition(), CODE) for _ in range(6)))
    assert sorted(effects) == ["created", *["unchanged"] * 5]
    assert await list_changes(db) == [(1, "created")]


async def test_undeclared_schedule_is_not_deleted(app: Tenuto) -> None:
    @app.job
    async def bake() -> None: ...

    app.schedule("mine", manual(), [Step.job(bake)])
    await app.schedules.create(schedule_definition("theirs", manual(), [Step.job(bake)]))
    assert await app.schedules.deploy() == {"mine": "created"}
    assert [row.name for row in await app.schedules.list()] == ["mine", "theirs"]


async def test_declared_schedule_exists_after_service_start(app: Tenuto) -> None:
    @app.job(max_attempts=7, queue="oven", priority=4, timeout="1h")
    async def bake(loaves: int = 3) -> None: ...

    app.schedule("mine", cron("0 2 * * *"), [Step.job(bake, max_attempts=2)], description="bread")
    async with app.scheduler():
        made = await app.schedules.get("mine")
    step = made.plan.step_at(0)
    assert (made.origin, made.definition.description) == ("code", "bread")
    assert (step.queue, step.priority, dict(step.arguments)) == ("oven", 4, {"loaves": 3})
    assert step.policy is not None
    assert (step.policy.retry.max_attempts, step.policy.timeout_seconds) == (2, 3600)


async def test_schedule_steps_are_checked_when_saved(app: Tenuto) -> None:
    @app.job
    async def bake(loaves: int) -> None: ...

    async def rejected_field(*steps: Any) -> str:
        with pytest.raises(Invalid) as rejected:
            await app.schedules.create(schedule_definition(NAME, manual(), steps))
        return rejected.value.field or ""

    assert await rejected_field(Step("job", "unknown")) == "steps.unknown"
    assert await rejected_field(Step("dance", "waltz")) == "steps.waltz"
    assert (await rejected_field(Step("job", "bake", {"loaves": "many"}))).startswith("steps.bake")
    assert (await rejected_field(Step("job", "bake", {"loaf": 1}))).startswith("steps.bake")
    assert await rejected_field(Step.job(bake, 1), Step.job(bake, 2)) == "steps"
    assert await app.schedules.list() == []


# --- cycles ---------------------------------------------------------------------------------------------------------


async def test_schedule_cycle_is_rejected_when_saved(db: Database) -> None:
    await create_schedule(db, make_definition(name="C"))
    await create_schedule(db, make_definition(Step.schedule("C"), name="B"))
    await create_schedule(db, make_definition(Step.schedule("B"), name="A"))
    with raises_code("schedule.steps.cycle"):
        await edit(db, "C", make_definition(Step.schedule("A"), name="C"), make_change_context(LATER))
    with raises_code("schedule.steps.cycle"):
        await edit(db, "C", make_definition(Step.schedule("C"), name="C"), make_change_context(LATER))
    assert (await get(db, "C")).version == 1


async def test_schedule_cycle_within_a_deployment_is_rejected_in_any_order(app: Tenuto) -> None:
    def make_outer(name: str, *others: str) -> ScheduleDefinition:
        return schedule_definition(name, manual(), [Step.schedule(other) for other in others])

    for cycle in (
        [make_outer("A", "B"), make_outer("B", "A")],
        [make_outer("B", "A"), make_outer("A", "B")],
        [make_outer("A", "A")],
    ):
        with raises_code("schedule.steps.cycle"):
            await app.schedules.apply(cycle)
    assert await app.schedules.list() == []


async def test_schedules_are_deployed_in_dependency_order(app: Tenuto) -> None:
    @app.job
    async def bake() -> None: ...

    outer = schedule_definition("A", manual(), [Step.schedule("B")])
    middle = schedule_definition("B", manual(), [Step.schedule("C")])
    inner = schedule_definition("C", manual(), [Step.job(bake)])
    assert list(await app.schedules.apply([outer, middle, inner])) == ["C", "B", "A"]


async def test_concurrent_edits_cannot_form_a_schedule_cycle(db: Database) -> None:
    for turn in range(10):
        one, two = f"A{turn}", f"B{turn}"
        await create_schedule(db, make_definition(name=one))
        await create_schedule(db, make_definition(name=two))
        answers = await asyncio.gather(
            edit(db, one, make_definition(Step.schedule(two), name=one), make_change_context(LATER)),
            edit(db, two, make_definition(Step.schedule(one), name=two), make_change_context(LATER)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, Invalid) for answer in answers) == 1


async def test_unreadable_stored_plan_does_not_prevent_other_schedule_changes(db: Database) -> None:
    await create_schedule(db, make_definition(name="inner"))
    await create_schedule(db, make_definition(Step.schedule("inner"), name="bad"))
    await db.fetch_all(
        """UPDATE tenuto.schedules SET plan = '[[{"kind": "schedule", "colour": 5}]]' WHERE name = 'bad'"""
    )
    assert (await create_schedule(db, make_definition(Step.schedule("inner"), name="good"))).version == 1


# --- one run with other arguments -----------------------------------------------------------------------------------


async def test_run_with_other_arguments_is_checked_and_does_not_change_the_schedule(app: Tenuto) -> None:
    @app.job
    async def bake(loaves: int, kind: str = "rye") -> None: ...

    await app.schedules.create(schedule_definition(NAME, manual(), [Step.job(bake, 3), Step.job(bake, 4, name="more")]))
    given: list[dict[str, dict[str, Any]]] = [{"bake": {"loaves": "many"}}, {"cook": {}}, {"bake": {"loaf": 1}}]
    for wrong in given:
        with pytest.raises(Invalid):
            await app.schedules.run(NAME, arguments=wrong)
    assert await app.executions.list() == []
    answer = await app.schedules.run(NAME, arguments={"bake": {"loaves": 9}})
    database = await app.open()
    inputs = await database.fetch_all("SELECT input FROM tenuto.tasks ORDER BY step_index")
    assert [row["input"] for row in inputs] == ['{"kind": "rye", "loaves": 9}', '{"kind": "rye", "loaves": 4}']
    assert answer.execution_id is not None
    assert dict((await app.schedules.get(NAME)).plan.step_at(0).arguments)["loaves"] == 3


async def test_schedule_change_during_a_run_applies_to_the_next_run(db: Database, register_worker: Register) -> None:
    me: UUID = await register_worker()
    run = await start_execution(db, "a", "b")
    await edit(db, NAME, make_definition("x"), make_change_context(LATER))
    assert await run_claimable_steps(db, me) == {"a"}
    assert await run_claimable_steps(db, me) == {"b"}
    assert (await load_execution(db, run)).state == "completed"
    await run_schedule_now(db, now=LATER)
    assert await run_claimable_steps(db, me) == {"x"}
