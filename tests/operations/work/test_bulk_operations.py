"""Bulk operations (X): a frozen selection, processed once in chunks, counted with its items, abortable, audited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tenuto import Actor, Step, Tenuto, every
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.model.work.bulk_operations import BulkKind, differs_too_much
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.operations.work import bulk_kinds, bulk_processor
from tenuto.operations.work.bulk_kinds import KINDS, ChunkContext, KindRules
from tenuto.operations.work.bulk_processor import process_chunk
from tenuto.postgres.database import Database
from tenuto.settings import load_settings
from tenuto.store.work import bulk_operations
from tenuto.store.work.bulk_operations import BulkOperationRecord
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory

ANA = Actor.user("u-1", "ana")
Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
async def bakery(app: Tenuto) -> Tenuto:
    """An app with a job, and a manifest whose runs fail."""

    @app.job
    async def bake(loaves: int = 1) -> int:
        return loaves

    @app.job(max_attempts=1)
    async def burn(loaves: int = 1) -> int:
        raise ValueError("the oven is too hot")

    app.manifest("oven", burn, on_demand=True)
    await app.manifests.deploy()
    return app


async def enqueue(app: Tenuto, count: int) -> None:
    await app.enqueue_many(app.jobs.get_job("bake"), [{"loaves": number} for number in range(count)])


async def process_all(app: Tenuto, chunk_size: int = bulk_processor.CHUNK_SIZE) -> int:
    database, chunk_count = await app.connect(), 0
    try:
        while await process_chunk(database, chunk_size):
            chunk_count += 1
    finally:
        await database.close()
    return chunk_count


def counts(found: BulkOperationRecord) -> tuple[int, int, int, int]:
    return found.item_count, found.succeeded_count, found.failed_count, found.skipped_count


async def test_bulk_operation_acts_on_its_frozen_selection_and_counts_later_arrivals(bakery: Tenuto, sql: Sql) -> None:
    await enqueue(bakery, 1204)
    preview = await bakery.bulk_operations.preview("task.cancel", "name:bake state:queued")
    assert (preview.count, preview.is_exact) == (1204, True)
    assert preview.description == "name is bake, state is queued"
    await enqueue(bakery, 10)
    started = await bakery.acting_as(ANA).bulk_operations.create(
        "task.cancel", "name:bake state:queued", until=preview.until, expected=1204, reason="server down"
    )
    assert (started.state, started.item_count, started.remaining_count) == ("running", 1204, 1204)
    assert await process_all(bakery) == 3, "two full chunks and the rest"
    ended = await bakery.bulk_operations.wait(started.id, 5)
    assert ended.state == "ended"
    assert counts(ended) == (1204, 1204, 0, 0)
    assert ended.arrived_count == 10
    assert (await bakery.count_tasks()).count == 10, "later arrivals are untouched"
    [row] = await sql("SELECT count(*) AS rows, count(DISTINCT task_id) AS tasks FROM tenuto.activities")
    assert row == {"rows": 1204, "tasks": 1204}
    assert await sql("SELECT 1 FROM tenuto.bulk_operation_items") == [], "items that succeeded are only counted"
    [entry] = await bakery.audit.list()
    assert (entry.action, entry.target, entry.actor_name, entry.reason) == (
        "operation.create", str(started.id), "ana", "server down",
    )  # fmt: skip
    assert (entry.after["kind"], entry.after["items"]) == ("task.cancel", 1204)


@pytest.mark.parametrize(
    ("expected", "selected", "is_refused"), [(100, 110, False), (100, 111, True), (100, 90, False), (0, 1, True)]
)
def test_selection_may_differ_by_a_tenth_from_the_expected_number(
    expected: int, selected: int, is_refused: bool
) -> None:
    assert differs_too_much(expected, selected) is is_refused


async def test_bulk_operation_is_refused_if_the_selection_has_changed(bakery: Tenuto, sql: Sql) -> None:
    await enqueue(bakery, 10)
    with raises_code("operation.selection.changed"):
        await bakery.bulk_operations.create("task.cancel", "", expected=5)
    assert await sql("SELECT 1 FROM tenuto.bulk_operations") == await sql("SELECT 1 FROM tenuto.bulk_operation_items")
    assert (await bakery.bulk_operations.create("task.cancel", "", expected=10)).item_count == 10


async def test_bulk_operation_of_a_repeated_request_is_created_once(bakery: Tenuto) -> None:
    await enqueue(bakery, 2)
    request = new_id()
    first = await bakery.bulk_operations.create("task.cancel", "", request_id=request)
    await enqueue(bakery, 1)
    again = await bakery.bulk_operations.create("task.cancel", "", request_id=request)
    assert (first.id, first.item_count) == (again.id, again.item_count) == (request, 2)


async def test_bulk_operation_acts_on_selected_ids_only(bakery: Tenuto) -> None:
    await enqueue(bakery, 5)
    chosen = [task.id for task in (await bakery.tasks())[:3]]
    started = await bakery.bulk_operations.create("task.cancel", ids=[*chosen, chosen[0]], expected=3)
    assert (started.item_count, started.description) == (3, "3 selected tasks")
    await enqueue(bakery, 1)
    await process_all(bakery)
    ended = await bakery.bulk_operations.get(started.id)
    assert (counts(ended), ended.arrived_count) == ((3, 3, 0, 0), 0)
    assert not {task.id for task in await bakery.tasks()} & set(chosen)
    with raises_code("operation.selection.ambiguous"):
        await bakery.bulk_operations.create("task.cancel", "name:bake", ids=chosen)
    for wrong in ([], [new_id() for _ in range(1001)]):
        with raises_code("operation.selection.size"):
            await bakery.bulk_operations.create("task.cancel", ids=wrong)


async def test_bulk_operation_without_objects_ends_at_once(bakery: Tenuto) -> None:
    created = await bakery.bulk_operations.create("task.cancel", "name:none")
    assert (created.state, created.item_count, created.arrived_count) == ("ended", 0, 0)


async def test_two_processors_act_on_every_item_once(bakery: Tenuto, sql: Sql) -> None:
    await enqueue(bakery, 300)
    started = await bakery.bulk_operations.create("task.cancel", "")
    await asyncio.gather(*(process_all(bakery, 20) for _ in range(4)))
    ended = await bakery.bulk_operations.get(started.id)
    assert (ended.state, counts(ended)) == ("ended", (300, 300, 0, 0))
    [row] = await sql("SELECT count(*) AS rows, count(DISTINCT task_id) AS tasks FROM tenuto.activities")
    assert row == {"rows": 300, "tasks": 300}


async def test_second_processor_does_not_wait_for_the_operation_of_the_first(bakery: Tenuto) -> None:
    await enqueue(bakery, 2)
    await bakery.bulk_operations.create("task.cancel", "")
    database = await bakery.connect()
    try:
        async with database.connection() as connection, connection.transaction():
            assert await bulk_operations.lock_next_operation(connection) is not None
            async with asyncio.timeout(5):
                assert await process_chunk(database) is False
    finally:
        await database.close()


class Killed(Exception):
    """The process ends in the middle of a chunk."""


async def test_chunk_of_a_dead_process_is_processed_again_as_a_whole(
    bakery: Tenuto, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await enqueue(bakery, 50)
    started = await bakery.bulk_operations.create("task.cancel", "")
    cancel = KINDS[BulkKind.TASK_CANCEL].act

    async def die(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(bulk_operations, "store_results", die)
    database = await bakery.connect()
    with pytest.raises(Killed):
        await process_chunk(database, 20)
    await database.close()
    monkeypatch.undo()
    assert (await bakery.count_tasks()).count == 50, "the actions are rolled back with their counters"
    assert cancel is KINDS[BulkKind.TASK_CANCEL].act
    await process_all(bakery, 20)
    assert counts(await bakery.bulk_operations.get(started.id)) == (50, 50, 0, 0)


async def test_aborted_bulk_operation_leaves_the_rest_untouched(bakery: Tenuto, database: Database) -> None:
    await enqueue(bakery, 100)
    started = await bakery.bulk_operations.create("task.cancel", "")
    assert await process_chunk(await bakery.open(), 40)
    aborted = await bakery.acting_as(ANA).bulk_operations.abort(started.id)
    assert (aborted.state, aborted.aborted_by, counts(aborted)) == ("aborted", "ana", (100, 40, 0, 0))
    assert await process_all(bakery) == 0
    assert (await bakery.count_tasks()).count == 60
    assert (await bakery.bulk_operations.abort(started.id)).state == "aborted", "a repetition changes nothing"
    assert [entry.action for entry in await bakery.audit.list()] == ["operation.abort"]
    done = await bakery.bulk_operations.create("task.cancel", "")
    await process_all(bakery)
    with raises_code("operation.already_ended"):
        await bakery.bulk_operations.abort(done.id)


async def test_item_that_ended_meanwhile_is_skipped_with_its_reason(bakery: Tenuto) -> None:
    await enqueue(bakery, 3)
    started = await bakery.bulk_operations.create("task.cancel", "")
    first = (await bakery.tasks())[-1]
    await bakery.cancel(first.id)
    await process_all(bakery)
    ended = await bakery.bulk_operations.get(started.id)
    assert counts(ended) == (3, 2, 0, 1)
    [item] = await bakery.bulk_operations.items(started.id)
    assert (item.item_id, item.outcome, item.code) == (first.id, "skipped", "task.already_ended")
    assert await bakery.bulk_operations.items(started.id, outcome="failed") == []


async def test_error_of_one_item_does_not_affect_the_others(bakery: Tenuto, monkeypatch: pytest.MonkeyPatch) -> None:
    await enqueue(bakery, 3)
    broken = (await bakery.tasks())[1].id
    rules = KINDS[BulkKind.TASK_CANCEL]

    async def act_on_one(context: ChunkContext, id: UUID) -> None:
        if id == broken:
            await context.connection.execute("SELECT 1 / 0")
        await bulk_kinds._cancel_task(context, id)

    async def act(context: ChunkContext, ids: Any) -> Any:
        return await bulk_kinds.act_on_each(context, ids, act_on_one)

    monkeypatch.setitem(KINDS, BulkKind.TASK_CANCEL, KindRules(rules.selection, act))
    started = await bakery.bulk_operations.create("task.cancel", "")
    await process_all(bakery)
    assert counts(await bakery.bulk_operations.get(started.id)) == (3, 2, 1, 0)
    [item] = await bakery.bulk_operations.items(started.id, outcome="failed")
    assert (item.item_id, item.code) == (broken, "database.statement_rejected")


async def test_running_tasks_are_asked_to_stop(bakery: Tenuto, worker: WorkerFactory) -> None:
    reached = asyncio.Event()

    @bakery.job
    async def rest() -> None:
        reached.set()
        await asyncio.sleep(60)

    async with worker():
        task = await bakery.enqueue(rest)
        await asyncio.wait_for(reached.wait(), 10)
        started = await bakery.acting_as(ANA).bulk_operations.create("task.cancel", "name:rest")
        await process_all(bakery)
        assert counts(await bakery.bulk_operations.get(started.id)) == (1, 1, 0, 0)
        assert (await bakery.wait(task, 10)).state == "cancelled"


async def test_executions_are_paused_resumed_cancelled_and_retried_in_bulk(bakery: Tenuto) -> None:
    bake = bakery.jobs.get_job("bake")
    for name in ("north", "south"):
        await bakery.schedules.create(schedule_definition(name, every("1d"), [Step.job(bake)]))
        await bakery.schedules.run(name)

    async def run(kind: str, where: str) -> tuple[int, int, int, int]:
        started = await bakery.bulk_operations.create(kind, where, reason="test")
        await process_all(bakery)
        return counts(await bakery.bulk_operations.get(started.id))

    assert await run("execution.pause", "schedule:north") == (1, 1, 0, 0)
    assert await run("execution.pause", "state:in_progress") == (2, 1, 0, 1), "one is paused already"
    assert await run("execution.resume", "paused:yes") == (2, 2, 0, 0)
    assert await run("execution.cancel", "schedule:north,south") == (2, 2, 0, 0)
    assert await run("execution.cancel", "") == (2, 0, 0, 2), "ended executions are skipped"
    assert await run("execution.retry", "state:cancelled schedule:south") == (1, 1, 0, 0)
    [open_one] = await bakery.executions.list("state:in_progress")
    assert (open_one.schedule_name, open_one.origin) == ("south", "retry")
    assert {one.cancel_name for one in await bakery.executions.list("state:cancelled")} == {"app"}


async def test_schedules_are_disabled_and_enabled_in_bulk(bakery: Tenuto) -> None:
    bake = bakery.jobs.get_job("bake")
    for name in ("north", "south", "east"):
        await bakery.schedules.create(schedule_definition(name, every("1d"), [Step.job(bake)]))
    started = await bakery.acting_as(ANA).bulk_operations.create("schedule.disable", "name:~th", reason="holiday")
    await process_all(bakery)
    assert counts(await bakery.bulk_operations.get(started.id)) == (2, 2, 0, 0)
    assert [one.name for one in await bakery.schedules.list(enabled=False)] == ["north", "south"]
    [version, *_] = await bakery.schedules.versions("north")
    assert (version.change, version.actor.name, version.reason) == ("disabled", "ana", "holiday")
    again = await bakery.bulk_operations.create("schedule.enable", "")
    await process_all(bakery)
    assert counts(await bakery.bulk_operations.get(again.id)) == (3, 2, 0, 1), "one was enabled"


async def test_dead_letters_are_resolved_in_bulk_without_later_arrivals(bakery: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        batch = await bakery.batches.enqueue("oven", [{"loaves": number} for number in range(5)])
        await batch.wait(20)
    where = "error:~hot manifest:oven"
    preview = await bakery.bulk_operations.preview("dead_letter.retry", where)
    assert preview.count == 5
    async with worker():
        late = await bakery.batches.enqueue("oven", [{"loaves": number} for number in range(3)])
        await late.wait(20)
    started = await bakery.acting_as(ANA).bulk_operations.create(
        "dead_letter.retry", where, until=preview.until, expected=5, reason="cooled down"
    )
    await process_all(bakery)
    ended = await bakery.bulk_operations.get(started.id)
    assert (counts(ended), ended.arrived_count) == ((5, 5, 0, 0), 3)
    retried = await bakery.dead_letters.list("state:retried")
    assert {(one.note, one.resolved_by) for one in retried} == {("cooled down", "ana")}
    rest = await bakery.bulk_operations.create("dead_letter.acknowledge", "")
    await process_all(bakery)
    assert counts(await bakery.bulk_operations.get(rest.id)) == (3, 3, 0, 0)
    assert await bakery.dead_letters.list() == []


async def test_dead_letter_of_a_deleted_manifest_is_skipped_with_its_reason(
    bakery: Tenuto, worker: WorkerFactory
) -> None:
    async with worker():
        await (await bakery.batches.enqueue("oven", [{}])).wait(20)
    await bakery.manifests.delete("oven")
    started = await bakery.bulk_operations.create("dead_letter.retry", "")
    await process_all(bakery)
    [item] = await bakery.bulk_operations.items(started.id)
    assert (item.outcome, item.code) == ("skipped", "dead_letter.manifest.deleted")


async def test_one_shots_are_cancelled_in_bulk_and_other_tasks_kept(bakery: Tenuto) -> None:
    await enqueue(bakery, 2)
    for tag in ("a", "b"):
        await bakery.one_shots.create("2131-01-01T00:00:00Z", "log.append", {"message": "x"}, tags=[tag])
    started = await bakery.bulk_operations.create("one_shot.cancel", "tag:a")
    await process_all(bakery)
    assert counts(await bakery.bulk_operations.get(started.id)) == (1, 1, 0, 0)
    assert [one.tags for one in await bakery.one_shots.list()] == [["b"]]
    assert (await bakery.count_tasks("name:bake")).count == 2


async def test_invalid_bulk_operations_are_rejected(bakery: Tenuto) -> None:
    operations = bakery.bulk_operations
    with raises_code("operation.kind.unknown"):
        await operations.create("task.destroy", "")
    with raises_code("filter.key.unknown"):
        await operations.preview("task.cancel", "stat:queued")
    with raises_code("operation.until.in_future"):
        await operations.create("task.cancel", "", until=(await bakery.open()).clock.now() + timedelta(hours=1))
    with raises_code("operation.not_found"):
        await operations.get(new_id())
    with raises_code("operation.not_found"):
        await operations.items(new_id())


async def test_bulk_resolution_requires_a_reason_if_notes_are_required(url: str, tmp_path: Any) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path, dead_letter_note_required=True))
    async with app:
        with pytest.raises(Invalid) as refusal:
            await app.bulk_operations.create("dead_letter.acknowledge", "")
        assert (refusal.value.code, refusal.value.field) == ("dead_letter.note.required", "reason")


async def test_scheduler_processes_a_new_bulk_operation_at_once(bakery: Tenuto) -> None:
    await enqueue(bakery, 20)
    async with bakery.scheduler():
        started = await bakery.bulk_operations.create("task.cancel", "")
        ended = await bakery.bulk_operations.wait(started.id, 10)
    assert counts(ended) == (20, 20, 0, 0)


async def test_ended_bulk_operations_are_deleted_after_their_retention(bakery: Tenuto, sql: Sql) -> None:
    await enqueue(bakery, 2)
    old = await bakery.bulk_operations.create("task.cancel", "")
    await bakery.cancel((await bakery.tasks())[0].id)
    await process_all(bakery)
    running = await bakery.bulk_operations.create("task.cancel", "")
    assert running.state == "ended"
    await enqueue(bakery, 1)
    running = await bakery.bulk_operations.create("task.cancel", "")
    database = await bakery.open()
    assert await bulk_operations.delete_old_operations(database, database.clock.now() + timedelta(days=1), 10) == 2
    assert [one.id for one in await bakery.bulk_operations.list()] == [running.id]
    assert await sql("SELECT 1 FROM tenuto.bulk_operation_items WHERE operation_id = $1", old.id) == []
