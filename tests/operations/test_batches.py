"""Bulk as an object (J6): thousands of inputs, streamed, counted, resumable; a hundred slices of tables."""

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
from tenuto.operations.batch_inputs import SIZE, Storing
from tests.support.engine_fixtures import Quick
from tests.support.manifests import counts
from tests.support.proofs import times
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
    """One manifest, a configuration of its own, and a slice of a table for each run."""

    @app.job(retry=RetryPolicy(max_retries=2, base_seconds=0.01, jitter=0))
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
    return int(await (await app.open()).value("SELECT count(*) FROM tenuto.tasks"))


async def test_a_hundred_table_slices_run_under_one_manifest(replicating: Tenuto, worker: Quick) -> None:
    async with worker(slots=20):
        batch = await replicating.bulk_enqueue("replicate", slices(*range(100)), name="users by slices")
        told = await batch.wait(30)
    assert (told["total"], told["done"], told["left"], told["failed"]) == (100, 100, 0, 0)
    assert (told["state"], told["name"], told["external_id"]) == ("ended", "users by slices", "replicate")
    outputs = {item["output"] async for item in batch.items()}
    assert outputs == {f"prod.users#{number}" for number in range(100)}


async def test_what_failed_is_run_again_and_only_that(replicating: Tenuto, worker: Quick) -> None:
    async with worker():
        batch = await replicating.bulk_enqueue("replicate", slices(1, -2, 3, -4))
        told = await batch.wait(10)
        assert (told["done"], told["failed"]) == (2, 2)
        assert {item["input"]["slice"]["number"] async for item in batch.items(status="failed")} == {-2, -4}
        assert await batch.retry_failed() == 2
        told = await batch.wait(10)
        assert (told["total"], told["done"], told["failed"], told["left"]) == (4, 2, 2, 0)
        assert await batch.retry_failed() == 2
        await batch.wait(10)
        assert await replicating.dead_letters.acknowledge_all(batch=batch.id) == 2
        assert await batch.retry_failed() == 0, "what was acknowledged is not run again"
        assert len([item async for item in batch.items()]) == 4


async def test_the_counts_add_up_while_it_runs_is_paused_resumed_and_cancelled(
    replicating: Tenuto, worker: Quick
) -> None:
    @replicating.job
    async def aside() -> None: ...

    paused = threading.Event()

    @replicating.job(retry=RetryPolicy(max_retries=2, base_seconds=0.01, jitter=0))
    async def gated(slice: TableSlice) -> None:
        """The first hundred go through at once, the next when it was paused, the last never: there is always a rest."""
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
            await counts(database, batch.id)
            seen += 1
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    async with worker(slots=20):

        async def some_are_done() -> bool:
            return int((await batch.progress())["done"]) > 30

        await eventually(some_are_done)
        await batch.pause()
        paused.set()
        assert (await batch.progress())["state"] == "paused"

        async def nothing_runs() -> bool:
            return int((await batch.progress())["running"]) == 0

        await eventually(nothing_runs)
        before = await batch.progress()

        async def all_are_due() -> bool:
            return not await database.value("SELECT count(*) FROM tenuto.tasks WHERE run_at > clock_timestamp()")

        await eventually(all_are_due)
        # Who takes what comes after them has passed them by.
        await replicating.wait((await replicating.enqueue(aside.using(limit_key="aside", limit=1))).id, timeout=10)
        assert (await batch.progress())["past"] == before["past"]
        assert set((await batch.progress())["open"]) == {"waiting"}
        await batch.resume()
        await eventually(lambda: _moved_on(batch, before["done"]))
        await batch.cancel()
        told = await batch.wait(10)
    over.set()
    await watching
    assert told["state"] == "cancelled"
    assert told["total"] == 600 == told["done"] + told["failed"] + told["cancelled"]
    assert seen > 10


async def _moved_on(batch: Any, done: int) -> bool:
    return int((await batch.progress())["done"]) > done


async def test_items_are_streamed_and_memory_stays_flat(app: Tenuto) -> None:
    @app.job
    async def note(text: str) -> None: ...

    app.manifest("note", note, on_demand=True)
    await app.manifests.deploy()

    def texts(count: int) -> Iterator[str]:
        for number in range(count):
            yield f"{number:0100}"

    await app.bulk_enqueue("note", texts(4000))  # whatever is allocated once
    peaks = []
    for count in (5_000, times(40_000, in_a_proof=200_000)):
        tracemalloc.start()
        batch = await app.bulk_enqueue("note", texts(count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (await batch.progress())["total"] == count
    assert peaks[1] < peaks[0] * 1.5 + 1_000_000, peaks
    assert peaks[1] < 20_000_000, peaks


async def test_a_submission_that_was_interrupted_goes_on_after_the_last_part_that_is_in(replicating: Tenuto) -> None:
    def breaking_off(at: int) -> Iterator[TableSlice]:
        for number in range(at):
            yield TableSlice("users", number)
        raise RuntimeError("the power is gone")

    with pytest.raises(RuntimeError, match="power"):
        await replicating.bulk_enqueue("replicate", breaking_off(4500), batch_key="monday")
    (interrupted,) = await replicating.batches.list()
    assert interrupted["complete_at"] is None
    assert 0 < interrupted["total"] < 4500
    batch = await replicating.bulk_enqueue("replicate", slices(*range(5000)), batch_key="monday")
    assert batch.id == interrupted["id"]
    again = await replicating.bulk_enqueue("replicate", slices(*range(5000)), batch_key="monday")
    assert again.id == batch.id
    numbers = [item["input"]["slice"]["number"] async for item in batch.items()]
    assert sorted(numbers) == list(range(5000))


@pytest.mark.parametrize("other", [range(1, 5001), range(4999), range(5001), range(0)])
async def test_other_inputs_under_a_key_that_is_used_are_refused_and_change_nothing(
    replicating: Tenuto, other: range
) -> None:
    batch = await replicating.bulk_enqueue("replicate", slices(*range(5000)), batch_key="monday")
    with pytest.raises(Conflict, match="other inputs") as refused:
        await replicating.bulk_enqueue("replicate", slices(*other), batch_key="monday")
    assert refused.value.field == "batch_key"
    db = await replicating.open()
    await db.all("UPDATE tenuto.batches SET complete_at = NULL")  # as if it had been interrupted before its end
    if len(other) < 5001:
        with pytest.raises(Conflict, match="other inputs"):
            await replicating.bulk_enqueue("replicate", slices(*other), batch_key="monday")
    assert (await batch.progress())["total"] == await open_tasks(replicating) == 5000


class Watched:
    """Inputs that keep the loop waiting while somebody looks which transactions are open."""

    def __init__(self, url: str, count: int) -> None:
        self._url = url
        self._count = count
        self.open: list[str] = []
        self.looks = 0

    def __iter__(self) -> Iterator[dict[str, str]]:
        for number in range(self._count):
            if number % 500 == 0:
                looking = threading.Thread(target=lambda: asyncio.run(self._look()))
                looking.start()
                looking.join()
            yield {"text": f"{number:0400}"}

    async def _look(self) -> None:
        connection = await asyncpg.connect(self._url)
        found = await connection.fetch(
            "SELECT query FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            " AND datname = current_database() AND backend_type = 'client backend'"
        )
        await connection.close()
        self.open += [row["query"] for row in found]
        self.looks += 1


@pytest.mark.parametrize("way", ["many", "batch", "keyed batch"])
async def test_no_transaction_is_open_while_the_caller_is_asked_for_more(app: Tenuto, way: str) -> None:
    @app.job
    async def note(text: str) -> None: ...

    app.manifest("note", note, on_demand=True)
    await app.manifests.deploy()
    inputs = Watched((await app.open()).url, 2 * SIZE + 1)
    if way == "many":
        await app.enqueue_many(note, inputs)
    else:
        key: Callable[[Any], str] | None = (lambda item: str(int(item["text"]))) if way == "keyed batch" else None
        await app.bulk_enqueue("note", inputs, batch_key="b", key=key)
    assert (inputs.open, inputs.looks) == ([], 9)
    assert await open_tasks(app) == 2 * SIZE + 1


async def test_the_next_part_is_made_ready_while_the_last_is_stored() -> None:
    is_in, told = asyncio.Event(), []

    async def store(sent: Callable[[], object]) -> int:
        sent()
        await is_in.wait()
        told.append("the first is in")
        return 3

    async def store_more(sent: Callable[[], object]) -> int:
        told.append("the second is in")
        return 4

    async with Storing() as storing:
        await storing.take(store)
        async with asyncio.timeout(5):
            await storing.begin()
        told.append("the second is made ready")
        asyncio.get_running_loop().call_soon(is_in.set)
        await storing.take(store_more)
        told.append("a third is asked for")
    assert told == ["the second is made ready", "the first is in", "a third is asked for", "the second is in"]
    assert storing.created == 7


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_others_have_their_turn_while_a_batch_finds_what_it_knows(
    replicating: Tenuto, *, asynchronous: bool
) -> None:
    turns, seen = 0, []
    await replicating.bulk_enqueue("replicate", slices(*range(3 * SIZE)), batch_key="monday")

    def watched() -> Iterator[TableSlice]:
        for number in range(3 * SIZE):
            if number % SIZE == 0:
                seen.append(turns)
            yield TableSlice("users", number)

    async def watched_from_afar() -> AsyncIterator[TableSlice]:
        for each in watched():
            yield each

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    await replicating.bulk_enqueue("replicate", watched_from_afar() if asynchronous else watched(), batch_key="monday")
    other.cancel()
    assert len(set(seen)) == 3, seen


async def test_of_a_refused_input_it_is_told_which_one_it_was(replicating: Tenuto) -> None:
    def inputs(*, breaks: bool) -> Iterator[Any]:
        yield from slices(*range(SIZE + 300))
        yield {"slice": {"table": "users"}}
        yield from slices(1, 2, 3)
        if breaks:
            raise Invalid("is torn", field="page")

    for number, breaks in enumerate((False, True)):
        with pytest.raises(Invalid) as refused:
            await replicating.bulk_enqueue("replicate", inputs(breaks=breaks), batch_key=f"{number}")
        assert (refused.value.field, refused.value.item) == ("slice.number", SIZE + 301)
        assert await open_tasks(replicating) == (number + 1) * (SIZE + 300)


@pytest.mark.parametrize("first_atomic", [False, True])
@pytest.mark.parametrize("then_atomic", [False, True])
async def test_a_key_of_a_batch_of_nothing_is_used_all_the_same(
    replicating: Tenuto, *, first_atomic: bool, then_atomic: bool
) -> None:
    empty = await replicating.bulk_enqueue("replicate", [], batch_key="k", atomic=first_atomic)
    with pytest.raises(Conflict, match="other inputs"):
        await replicating.bulk_enqueue("replicate", slices(1, 2, 3), batch_key="k", atomic=then_atomic)
    again = await replicating.bulk_enqueue("replicate", [], batch_key="k", atomic=then_atomic)
    assert (again.id, await open_tasks(replicating)) == (empty.id, 0)


async def test_all_or_nothing_is_all_or_nothing(replicating: Tenuto) -> None:
    bad: list[Any] = [*slices(*range(3000)), {"slice": {"table": "users"}}]
    with pytest.raises(Invalid) as refused:
        await replicating.bulk_enqueue("replicate", bad, atomic=True)
    assert refused.value.field == "slice.number"
    assert await open_tasks(replicating) == 0
    assert await replicating.batches.list() == []
    batch = await replicating.bulk_enqueue("replicate", slices(*range(3000)), atomic=True, batch_key="k")
    again = await replicating.bulk_enqueue("replicate", slices(*range(3000)), atomic=True, batch_key="k")
    assert again.id == batch.id
    with pytest.raises(Conflict, match="other inputs"):
        await replicating.bulk_enqueue("replicate", slices(1), atomic=True, batch_key="k")
    assert (await batch.progress())["total"] == await open_tasks(replicating) == 3000


async def test_all_or_nothing_does_not_take_over_what_is_being_filled_in_parts(replicating: Tenuto) -> None:
    with pytest.raises(Invalid):
        await replicating.bulk_enqueue("replicate", [TableSlice("a", 1), 17], batch_key="k")
    with pytest.raises(Conflict, match="filled in parts"):
        await replicating.bulk_enqueue("replicate", slices(1, 2), batch_key="k", atomic=True)


async def test_an_item_whose_key_is_open_is_not_created_again(replicating: Tenuto) -> None:
    def key(slice: TableSlice) -> str:
        return f"{slice.table}/{slice.number}"

    first = await replicating.bulk_enqueue("replicate", slices(1, 2, 3), key=key)
    second = await replicating.bulk_enqueue("replicate", slices(2, 3, 4, 4), key=key)
    told = [await first.progress(), await second.progress()]
    assert [(each["total"], each["duplicates"]) for each in told] == [(3, 0), (1, 3)]
    assert await open_tasks(replicating) == 4
    assert [item["item_key"] async for item in second.items()] == ["users/4"]


async def test_a_batch_of_nothing_has_ended(replicating: Tenuto) -> None:
    told = await (await replicating.bulk_enqueue("replicate", [])).wait(1)
    assert (told["total"], told["left"], told["state"]) == (0, 0, "ended")


async def test_a_batch_says_how_fast_it_goes_and_how_long_it_will_take(replicating: Tenuto, worker: Quick) -> None:
    batch = await replicating.bulk_enqueue("replicate", slices(*range(40)))
    fresh = await batch.progress()
    assert (fresh["state"], fresh["rate"], fresh["seconds_left"]) == ("in_progress", 0, None)
    async with worker():
        told = await batch.wait(10)
        assert told["rate"] > 0
        assert told["ended_at"] is not None
    assert [each["id"] for each in await replicating.batches.list(manifest="replicate")] == [batch.id]


async def test_an_urgent_task_does_not_wait_behind_a_large_batch(app: Tenuto, worker: Quick) -> None:
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
        asked: dict[str, int] = {}
        urgent = await app.manifests.enqueue("urgent", "urgent")
        asked["urgent"] = len(ended)  # from here on it is in line, however long it took to be asked for
        await app.wait(urgent, 10)
        plain = await app.enqueue(note.using(priority=9), "plain")
        asked["plain"] = len(ended)
        await app.wait(plain, 10)
    assert ended.index("urgent") - asked["urgent"] < 1000
    assert ended.index("plain") - asked["plain"] < 1000
