"""Hypothesis rules on tasks, workers and queues: see `machine`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tenuto.errors import Conflict
from tenuto.model.tasks import NewTask, Task
from tenuto.settings import Settings
from tests.state_machine.actions import ENDS, QUEUES, Actions
from tests.state_machine.timetables import Calendar
from tests.state_machine.world import Held, Work, World

LONG_AGO = datetime(2020, 1, 6, 12, 0, 30, tzinfo=UTC)
NAMES = ("ann", "bob")
pick = st.integers(0, 50)
queue = st.sampled_from(QUEUES)
minutes = st.sampled_from([1, 2])
overlap = st.sampled_from(["skip", "queue_one", "allow", "cancel_previous"])
groups = st.sampled_from([(1,), (2, 1), (1, 2, 1)])


class WorkRules(RuleBasedStateMachine):
    """Actions on tasks and workers with their expected results."""

    actions: ClassVar[Actions]
    settings: ClassVar[Settings]
    been: ClassVar[Counter[str]] = Counter()
    """States visited over all examples; a state never visited proves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.actions.clear()
        self.world, self.calendar = World(LONG_AGO), Calendar()
        self.workers: dict[str, UUID] = {}
        self.gone: list[UUID] = []
        self.memories: list[tuple[Held, Task]] = []
        self.requests: list[tuple[NewTask, UUID]] = []
        self.number = 0

    # --- time and workers -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([5, 30, 60, 150]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @rule()
    def what_is_due_is_let_in(self) -> None:
        self.actions.promote(self.world.now)
        self.world.promote()

    @rule(name=st.sampled_from(NAMES))
    def a_worker_stalls(self, name: str) -> None:
        self.actions.stall(self.workers[name])
        self.world.stall(self.workers[name])

    @rule(name=st.sampled_from(NAMES))
    def a_worker_dies_and_is_started_again(self, name: str) -> None:
        old = self.workers[name]
        self.workers[name], before = self.actions.register(name)
        assert before == old
        self.world.ended_workers.add(old)
        self.gone.append(old)

    @precondition(lambda self: self.gone)
    @rule(pick=pick)
    def what_it_held_is_taken_back(self, pick: int) -> None:
        old = self.gone[pick % len(self.gone)]
        lost = [work.id for work in self.world.tasks.values() if work.holder == old]
        assert self.actions.recover(old, self.world.now) == len(lost)
        for id in lost:
            self.world.is_lost(id)

    @rule()
    def a_sweep(self) -> None:
        self.actions.sweep(self.world.now)
        self.world.sweep()

    @rule()
    def the_repair_net_finds_nothing(self) -> None:
        assert self.actions.repair(self.world.now) == 0

    # --- tasks ------------------------------------------------------------------------------------------------------

    @rule(queue=queue, priority=st.integers(-1, 1), delay=st.sampled_from([0, 0, 60]))
    def enqueue(self, queue: str, priority: int, delay: int) -> None:
        self._enqueue(queue=queue, priority=priority, run_at=self.world.now + timedelta(seconds=delay))

    @rule(key=st.sampled_from(["one", "two"]))
    def enqueue_with_a_unique_key(self, key: str) -> None:
        standing = self.world.open_with(key)
        if standing is None:
            self._enqueue(unique_key=key)
        else:
            assert self.actions.enqueue(self.world.now, unique_key=key)[1] == standing

    @rule(most=st.integers(1, 2))
    def enqueue_with_a_limited_key(self, most: int) -> None:
        self._enqueue(limit_key=f"at most {most}", limit_max=most)

    @precondition(lambda self: self.requests)
    @rule(pick=pick)
    def a_request_is_sent_again(self, pick: int) -> None:
        task, answer = self.requests[pick % len(self.requests)]
        assert self.actions.enqueue_again(task) == answer

    def _enqueue(self, **fields: Any) -> None:
        task, id = self.actions.enqueue(self.world.now, **fields)
        assert id == task.id
        self.requests.append((task, id))
        self.world.add(
            Work(
                id, task.queue, task.run_at or self.world.now, rank=-task.priority, unique_key=task.unique_key,
                limit_key=task.limit_key, limit_max=task.limit_max,
            )
        )  # fmt: skip

    @rule(name=st.sampled_from(NAMES), most=st.integers(1, 3))
    def claim(self, name: str, most: int) -> None:
        worker = self.workers[name]
        wanted = self.world.next_to_claim(worker, QUEUES, most)
        taken = self.actions.claim(worker, most)
        assert [task.id for task in taken] == wanted
        self._remember(worker, taken)

    @rule(name=st.sampled_from(NAMES), most=st.integers(1, 4))
    def claim_under_limits(self, name: str, most: int) -> None:
        worker = self.workers[name]
        taken = self.actions.claim_limited(worker, most)
        assert self.world.refused(worker, [task.id for task in taken], most) is None
        self._remember(worker, taken)

    @precondition(lambda self: self.gone)
    @rule(pick=pick)
    def the_dead_claim_nothing(self, pick: int) -> None:
        old = self.gone[pick % len(self.gone)]
        assert self.actions.claim(old, 5) == []
        assert self.actions.claim_limited(old, 5) == []

    def _remember(self, worker: UUID, taken: list[Task]) -> None:
        for task, held in zip(taken, self.world.take(worker, [task.id for task in taken]), strict=True):
            assert task.fence == held.fence
            self.memories.append((held, task))

    @precondition(lambda self: self.memories)
    @rule(pick=pick)
    def renew(self, pick: int) -> None:
        """Renew all tasks that a process believes to hold, rightly or not."""
        worker = self.memories[pick % len(self.memories)][0].worker
        held = [memory for memory, _ in self.memories if memory.worker == worker]
        newest = {each.task: each for each in held}
        wanted = self.world.renewable(newest.values())
        self.been["some are renewed" if wanted else "nothing is renewed"] += 1
        assert self.actions.renew(worker, [(each.task, each.fence) for each in newest.values()]) == wanted

    @precondition(lambda self: self.memories)
    @rule(pick=pick, how=st.sampled_from(ENDS))
    def finish(self, pick: int, how: str) -> None:
        """Finish a task by its holder, or by a worker that lost it: then nothing changes."""
        held, task = self.memories[-1 - pick % len(self.memories)]
        is_so = self.world.holds(held)
        self.been["a holder ends" if is_so else "a zombie ends"] += 1
        assert self.actions.finish(task, how, self.world.now) == ({held.task} if is_so else set())
        if is_so:
            self._ended(held.task, how)

    @precondition(lambda self: self.memories)
    @rule(pick=pick)
    def finish_and_go_on(self, pick: int) -> None:
        """The worker that ends a group claims from the next one, under the conditions of any claim."""
        held, task = self.memories[-1 - pick % len(self.memories)]
        if task.execution_id is None:
            return
        is_so, before = self.world.holds(held), self._free_of(task.execution_id)
        done, taken = self.actions.finish_and_claim_next(task, self.world.now)
        assert done == ({held.task} if is_so else set())
        wanted: set[UUID] = set()
        if is_so:
            self._ended(held.task, "completed")
            begun = self._free_of(task.execution_id) - before
            shut = self.world.paused_queues | self.world.limits.keys()
            may = held.worker not in self.world.ended_workers
            wanted = {id for id in begun if may and self.world.tasks[id].queue not in shut}
        assert {each.id for each in taken} == wanted
        self._remember(held.worker, taken)
        self.been["next group claimed"] += bool(taken)

    def _free_of(self, run: UUID) -> set[UUID]:
        return {work.id for work in self.world.of_run(run) if work.state == "queued"}

    def _ended(self, id: UUID, how: str) -> None:
        world = self.world
        if how in ("completed", "warning"):
            world.ends(id, "completed" if how == "completed" else "completed_with_warning")
        elif how in ("failed", "timed_out"):
            world.fails(id, "error" if how == "failed" else "timed_out")
        elif how == "final":
            world.ends(id, "failed", "error")
        elif how == "cancelled":
            world.ends(id, "cancelled", "requested")
        elif how == "handed_back":
            world.again(id, world.now, "cancelled", "handed_back")
        else:
            world.aside(id, world.now + timedelta(seconds=60))

    @precondition(lambda self: self.memories)
    @rule(pick=pick)
    def put_back(self, pick: int) -> None:
        held, task = self.memories[-1 - pick % len(self.memories)]
        returned = self.world.holds(held) and self.world.put_back(held.task)
        assert self.actions.return_to_queue(held.worker, task) == ({held.task} if returned else set())

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(("completed", *ENDS)))
    def a_worker_does_all_it_finds(self, name: str, how: str) -> None:
        """Let executions reach their end, not only their start."""
        self.claim(name, 5)
        self.claim_under_limits(name, 5)
        for held, task in [(held, task) for held, task in self.memories if self.world.holds(held)]:
            if held.worker == self.workers[name]:
                assert self.actions.finish(task, how, self.world.now) == {held.task}
                self._ended(held.task, how)

    @rule(name=st.sampled_from(NAMES))
    def all_goes_well_for_a_while(self, name: str) -> None:
        for _ in range(3):
            self.what_is_due_is_let_in()
            self.a_worker_does_all_it_finds(name, "completed")

    @precondition(lambda self: self.world.tasks)
    @rule(pick=pick)
    def cancel_a_task(self, pick: int) -> None:
        id = self._one_of(self.world.tasks, pick)
        running = self.world.tasks[id].state == "running"
        assert self.actions.cancel(id) == ("stopping" if running else "cancelled")
        self.world.cancel_task(id)

    @precondition(lambda self: self.world.records)
    @rule(pick=pick)
    def what_has_ended_cannot_be_cancelled(self, pick: int) -> None:
        over = sorted({record.task for record in self.world.records if record.final})
        if over:
            with refused():
                self.actions.cancel(over[pick % len(over)])

    # --- queues -----------------------------------------------------------------------------------------------------

    @rule(queue=queue, most=st.sampled_from([None, None, 1, 2]))
    def a_queue_is_limited(self, queue: str, most: int | None) -> None:
        self.actions.limit_queue(queue, most)
        self.world.limits.pop(queue, None)
        if most is not None:
            self.world.limits[queue] = most

    @rule(queue=queue, paused=st.booleans())
    def a_queue_is_paused_or_resumed(self, queue: str, paused: bool) -> None:
        (self.actions.pause_queue if paused else self.actions.resume_queue)(queue)
        (self.world.paused_queues.add if paused else self.world.paused_queues.discard)(queue)

    @staticmethod
    def _one_of(known: dict[UUID, Any], pick: int) -> UUID:
        return sorted(known)[pick % len(known)]


@contextmanager
def refused() -> Iterator[None]:
    with pytest.raises(Conflict):
        yield
