"""Batches (J6): streaming, counting, pausing, resuming and repeating the submission of many inputs."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from tenuto import RetryPolicy, Tenuto
from tenuto.errors import Conflict, Invalid
from tenuto.operations.work.batch_inputs import CHUNK_SIZE, PipelinedWriter
from tests.support.errors import raises_code
from tests.support.manifests import batch_counts
from tests.support.repetition_counts import times
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


@dataclass
class Source:
    name: str


@dataclass
class TableSlice:
    table: str
    number: int


@pytest.fixture
async def replicating(app: Tenuto) -> Tenuto:
    """An app with the manifest "replicate", which takes a slice of a table per item."""

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0.01, jitter=0))
    async def replicate(source: Source, slice: TableSlice) -> str:
        if slice.number < 0:
            raise ValueError(f"slice {slice.number} is not there")
        return f"{source.name}.{slice.table}#{slice.number}"

    app.manifest("replicate", replicate, on_demand=True, properties=Source("prod"), max_active=7)
    await app.manifests.deploy()
    return app


def slices(*numbers: int) -> Iterator[TableSlice]:
    return (TableSlice("users", number) for number in numbers)


async def open_tasks(app: Tenuto) -> int:
    return int(await (await app.open()).fetch_value("SELECT count(*) FROM tenuto.tasks"))


async def test_batch_runs_a_hundred_items_under_one_manifest(replicating: Tenuto, worker: WorkerFactory) -> None:
    async with worker(slots=20):
        batch = await replicating.bulk_enqueue("replicate", slices(*range(100)), name="users by slices")
        progress = await batch.wait(30)
    assert (progress.item_count, progress.done_count, progress.open_count, progress.failed_count) == (100, 100, 0, 0)
    assert (progress.state, progress.name, progress.external_id) == ("ended", "users by slices", "replicate")
    outputs = {item.output async for item in batch.items()}
    assert outputs == {f"prod.users#{number}" for number in range(100)}


async def test_batch_retry_runs_only_failed_items(replicating: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        batch = await replicating.bulk_enqueue("replicate", slices(1, -2, 3, -4))
        progress = await batch.wait(10)
        assert (progress.done_count, progress.failed_count) == (2, 2)
        assert {item.input["slice"]["number"] async for item in batch.items(state="failed")} == {-2, -4}
        assert await batch.retry_failed() == 2
        progress = await batch.wait(10)
        assert (progress.item_count, progress.done_count, progress.failed_count, progress.open_count) == (4, 2, 2, 0)
        assert await batch.retry_failed() == 2
        await batch.wait(10)
        assert await replicating.dead_letters.acknowledge_all(batch=batch.id) == 2
        assert await batch.retry_failed() == 0, "acknowledged dead letters are not retried"
        assert len([item async for item in batch.items()]) == 4


async def test_batch_counts_are_consistent_during_run_pause_resume_and_cancel(
    replicating: Tenuto, worker: WorkerFactory
) -> None:
    @replicating.job
    async def unrelated() -> None: ...

    paused = threading.Event()

    @replicating.job(retry=RetryPolicy(max_attempts=2, base_seconds=0.01, jitter=0))
    async def gated(slice: TableSlice) -> None:
        """Items below 100 end at once, items below 300 after the pause, and the rest never."""
        await eventually(lambda: abs(slice.number) < (300 if paused.is_set() else 100), 60)
        if slice.number < 0:
            raise ValueError(f"slice {slice.number} is not there")

    replicating.manifest("gated", gated, on_demand=True, max_active=7)
    await replicating.manifests.deploy()
    database, seen, over = await replicating.open(), 0, asyncio.Event()
    batch = await replicating.bulk_enqueue("gated", slices(*(n if n % 5 else -n - 1 for n in range(600))))

    async def watch() -> None:
        nonlocal seen
        while not over.is_set():
            await batch_counts(database, batch.id)
            seen += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with worker(slots=20):

        async def some_are_done() -> bool:
            return int((await batch.progress()).done_count) > 30

        await eventually(some_are_done)
        await batch.pause()
        paused.set()
        assert (await batch.progress()).state == "paused"

        async def nothing_runs() -> bool:
            return int((await batch.progress()).running_count) == 0

        await eventually(nothing_runs)
        before = await batch.progress()

        async def all_are_due() -> bool:
            return not await database.fetch_value("SELECT count(*) FROM tenuto.tasks WHERE run_at > clock_timestamp()")

        await eventually(all_are_due)
        # A later task has run, so the worker has passed over the paused items.
        await replicating.wait(
            (await replicating.enqueue(unrelated.using(limit_key="unrelated", limit=1))).id, timeout=10
        )
        assert (await batch.progress()).ended_counts == before.ended_counts
        assert set((await batch.progress()).open_counts) == {"waiting"}
        await batch.resume()
        await eventually(lambda: _moved_on(batch, before.done_count))
        await batch.cancel()
        progress = await batch.wait(10)
    over.set()
    await watching
    assert progress.state == "cancelled"
    assert progress.item_count == 600 == progress.done_count + progress.failed_count + progress.cancelled_count
    assert seen > 10


async def _moved_on(batch: Any, done: int) -> bool:
    return int((await batch.progress()).done_count) > done


@pytest.mark.slow
async def test_bulk_enqueue_streams_items_in_constant_memory(app: Tenuto) -> None:
    @app.job
    async def note(text: str) -> None: ...

    app.manifest("note", note, on_demand=True)
    await app.manifests.deploy()

    def texts(count: int) -> Iterator[str]:
        for number in range(count):
            yield f"{number:0100}"

    await app.bulk_enqueue("note", texts(4000))  # allocates everything that is allocated once
    peaks = []
    for count in (5_000, times(40_000, in_a_proof=200_000)):
        tracemalloc.start()
        batch = await app.bulk_enqueue("note", texts(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (await batch.progress()).item_count == count
    assert peaks[1] < peaks[0] * 1.5 + 1_000_000, peaks
    assert peaks[1] < 20_000_000, peaks


async def test_interrupted_submission_continues_after_last_stored_chunk(replicating: Tenuto) -> None:
    def failing_at(at: int) -> Iterator[TableSlice]:
        for number in range(at):
            yield TableSlice("users", number)
        raise RuntimeError("power failure")

    with pytest.raises(RuntimeError, match="power failure"):
        await replicating.bulk_enqueue("replicate", failing_at(4500), batch_key="monday")
    (interrupted,) = await replicating.batches.list()
    assert interrupted.complete_at is None
    assert 0 < interrupted.item_count < 4500
    batch = await replicating.bulk_enqueue("replicate", slices(*range(5000)), batch_key="monday")
    assert batch.id == interrupted.id
    again = await replicating.bulk_enqueue("replicate", slices(*range(5000)), batch_key="monday")
    assert again.id == batch.id
    numbers = [item.input["slice"]["number"] async for item in batch.items()]
    assert sorted(numbers) == list(range(5000))


@pytest.mark.parametrize("other", [range(1, 5001), range(4999), range(5001), range(0)])
async def test_batch_key_with_different_inputs_is_an_error_and_changes_nothing(
    replicating: Tenuto, other: range
) -> None:
    batch = await replicating.bulk_enqueue("replicate", slices(*range(5000)), batch_key="monday")
    with raises_code("batch.inputs.different", Conflict) as refused:
        await replicating.bulk_enqueue("replicate", slices(*other), batch_key="monday")
    assert refused.value.field == "batch_key"
    db = await replicating.open()
    await db.fetch_all("UPDATE tenuto.batches SET complete_at = NULL")  # as after an interruption
    if len(other) < 5001:
        with raises_code("batch.inputs.different", Conflict):
            await replicating.bulk_enqueue("replicate", slices(*other), batch_key="monday")
    assert (await batch.progress()).item_count == await open_tasks(replicating) == 5000


class BlockingInputs:
    """Inputs that block the event loop while another thread queries the open transactions."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self.open_transactions: list[str] = []
        self.query_count = 0

    def __iter__(self) -> Iterator[dict[str, str]]:
        for number in range(self._count):
            if number % 500 == 0:
                query = threading.Thread(target=lambda: asyncio.run(self._query_transactions()))
                query.start()
                query.join()
            yield {"text": f"{number:0400}"}

    async def _query_transactions(self) -> None:
        connection = await asyncpg.connect(self._url)
        found = await connection.fetch(
            "SELECT query FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            " AND datname = current_database() AND backend_type = 'client backend'"
        )
        await connection.close()
        self.open_transactions += [row["query"] for row in found]
        self.query_count += 1


@pytest.mark.parametrize("way", ["many", "batch", "keyed batch"])
async def test_no_transaction_is_open_while_inputs_are_read(app: Tenuto, way: str) -> None:
    @app.job
    async def note(text: str) -> None: ...

    app.manifest("note", note, on_demand=True)
    await app.manifests.deploy()
    inputs = BlockingInputs((await app.open()).url, 2 * CHUNK_SIZE + 1)
    if way == "many":
        await app.enqueue_many(note, inputs)
    else:
        key: Callable[[Any], str] | None = (lambda item: str(int(item["text"]))) if way == "keyed batch" else None
        await app.bulk_enqueue("note", inputs, batch_key="b", key=key)
    assert (inputs.open_transactions, inputs.query_count) == ([], 9)
    assert await open_tasks(app) == 2 * CHUNK_SIZE + 1


async def test_pipelined_writer_prepares_next_chunk_while_last_is_stored() -> None:
    may_store, events = asyncio.Event(), []

    async def store(sent: Callable[[], object]) -> int:
        sent()
        await may_store.wait()
        events.append("first stored")
        return 3

    async def store_more(sent: Callable[[], object]) -> int:
        events.append("second stored")
        return 4

    async with PipelinedWriter() as writer:
        await writer.submit(store)
        async with asyncio.timeout(5):
            await writer.start_pending()
        events.append("second prepared")
        asyncio.get_running_loop().call_soon(may_store.set)
        await writer.submit(store_more)
        events.append("third requested")
    assert events == ["second prepared", "first stored", "third requested", "second stored"]
    assert writer.created_count == 7


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_skipping_stored_inputs_does_not_block_the_event_loop(replicating: Tenuto, *, asynchronous: bool) -> None:
    turns, seen = 0, []
    await replicating.bulk_enqueue("replicate", slices(*range(3 * CHUNK_SIZE)), batch_key="monday")

    def watched() -> Iterator[TableSlice]:
        for number in range(3 * CHUNK_SIZE):
            if number % CHUNK_SIZE == 0:
                seen.append(turns)
            yield TableSlice("users", number)

    async def async_watched() -> AsyncIterator[TableSlice]:
        for each in watched():
            yield each

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    await replicating.bulk_enqueue("replicate", async_watched() if asynchronous else watched(), batch_key="monday")
    other.cancel()
    assert len(set(seen)) == 3, seen


async def test_invalid_input_error_has_the_number_of_the_input(replicating: Tenuto) -> None:
    def inputs(*, breaks: bool) -> Iterator[Any]:
        yield from slices(*range(CHUNK_SIZE + 300))
        yield {"slice": {"table": "users"}}
        yield from slices(1, 2, 3)
        if breaks:
            raise Invalid("the page is torn", code="test.page", field="page")

    for number, breaks in enumerate((False, True)):
        with pytest.raises(Invalid) as refused:
            await replicating.bulk_enqueue("replicate", inputs(breaks=breaks), batch_key=f"{number}")
        assert (refused.value.field, refused.value.item) == ("slice.number", CHUNK_SIZE + 301)
        assert await open_tasks(replicating) == (number + 1) * (CHUNK_SIZE + 300)


@pytest.mark.parametrize("first_atomic", [False, True])
@pytest.mark.parametrize("then_atomic", [False, True])
async def test_empty_batch_occupies_its_key(replicating: Tenuto, *, first_atomic: bool, then_atomic: bool) -> None:
    empty = await replicating.bulk_enqueue("replicate", [], batch_key="k", atomic=first_atomic)
    with raises_code("batch.inputs.different", Conflict):
        await replicating.bulk_enqueue("replicate", slices(1, 2, 3), batch_key="k", atomic=then_atomic)
    again = await replicating.bulk_enqueue("replicate", [], batch_key="k", atomic=then_atomic)
    assert (again.id, await open_tasks(replicating)) == (empty.id, 0)


async def test_atomic_batch_stores_all_items_or_none(replicating: Tenuto) -> None:
    bad: list[Any] = [*slices(*range(3000)), {"slice": {"table": "users"}}]
    with pytest.raises(Invalid) as refused:
        await replicating.bulk_enqueue("replicate", bad, atomic=True)
    assert refused.value.field == "slice.number"
    assert await open_tasks(replicating) == 0
    assert await replicating.batches.list() == []
    batch = await replicating.bulk_enqueue("replicate", slices(*range(3000)), atomic=True, batch_key="k")
    again = await replicating.bulk_enqueue("replicate", slices(*range(3000)), atomic=True, batch_key="k")
    assert again.id == batch.id
    with raises_code("batch.inputs.different", Conflict):
        await replicating.bulk_enqueue("replicate", slices(1), atomic=True, batch_key="k")
    assert (await batch.progress()).item_count == await open_tasks(replicating) == 3000


async def test_atomic_batch_does_not_continue_a_batch_submitted_in_chunks(replicating: Tenuto) -> None:
    with pytest.raises(Invalid):
        await replicating.bulk_enqueue("replicate", [TableSlice("a", 1), 17], batch_key="k")
    with raises_code("batch.key.not_atomic", Conflict):
        await replicating.bulk_enqueue("replicate", slices(1, 2), batch_key="k", atomic=True)


async def test_batch_item_with_open_key_is_not_created_again(replicating: Tenuto) -> None:
    def key(slice: TableSlice) -> str:
        return f"{slice.table}/{slice.number}"

    first = await replicating.bulk_enqueue("replicate", slices(1, 2, 3), key=key)
    second = await replicating.bulk_enqueue("replicate", slices(2, 3, 4, 4), key=key)
    progress = [await first.progress(), await second.progress()]
    assert [(each.item_count, each.duplicate_count) for each in progress] == [(3, 0), (1, 3)]
    assert await open_tasks(replicating) == 4
    assert [item.item_key async for item in second.items()] == ["users/4"]


async def test_empty_batch_has_ended(replicating: Tenuto) -> None:
    progress = await (await replicating.bulk_enqueue("replicate", [])).wait(1)
    assert (progress.item_count, progress.open_count, progress.state) == (0, 0, "ended")


async def test_batch_progress_has_rate_and_remaining_time(replicating: Tenuto, worker: WorkerFactory) -> None:
    batch = await replicating.bulk_enqueue("replicate", slices(*range(40)))
    fresh = await batch.progress()
    assert (fresh.state, fresh.rate_per_second, fresh.remaining_seconds) == ("in_progress", 0, None)
    async with worker():
        progress = await batch.wait(10)
        assert progress.rate_per_second > 0
        assert progress.ended_at is not None
    assert [each.id for each in await replicating.batches.list(manifest="replicate")] == [batch.id]


async def test_urgent_task_overtakes_a_large_batch(app: Tenuto, worker: WorkerFactory) -> None:
    ended: list[str] = []

    @app.job
    async def note(name: str) -> None:
        ended.append(name)

    app.manifest("many", note, on_demand=True, max_active=5)
    app.manifest("urgent", note, on_demand=True, priority=9)
    await app.manifests.deploy()
    await app.bulk_enqueue("many", ("many" for _ in range(20_000)))
    async with worker(slots=5):
        await eventually(lambda: len(ended) > 50)
        ended_before: dict[str, int] = {}
        urgent = await app.manifests.enqueue("urgent", "urgent")
        ended_before["urgent"] = len(ended)  # counted after the enqueue, however long it took
        await app.wait(urgent, 10)
        plain = await app.enqueue(note.using(priority=9), "plain")
        ended_before["plain"] = len(ended)
        await app.wait(plain, 10)
    assert ended.index("urgent") - ended_before["urgent"] < 1000
    assert ended.index("plain") - ended_before["plain"] < 1000
