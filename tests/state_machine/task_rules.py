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
from tenuto.model.work.tasks import NewTask, Task
from tenuto.settings import Settings
from tests.state_machine.actions import OUTCOMES, QUEUES, Actions
from tests.state_machine.timetables import ScheduleModels
from tests.state_machine.world import Claim, TaskModel, World

START = datetime(2020, 1, 6, 12, 0, 30, tzinfo=UTC)
NAMES = ("ann", "bob")
pick = st.integers(0, 50)
queue = st.sampled_from(QUEUES)
minutes = st.sampled_from([1, 2])
overlap = st.sampled_from(["skip", "queue_one", "allow", "cancel_previous"])
groups = st.sampled_from([(1,), (2, 1), (1, 2, 1)])


class TaskRules(RuleBasedStateMachine):
    """Actions on tasks and workers with their expected results."""

    actions: ClassVar[Actions]
    settings: ClassVar[Settings]
    visited: ClassVar[Counter[str]] = Counter()
    """States visited over all examples; a state never visited proves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.actions.clear()
        self.world, self.schedule_models = World(START), ScheduleModels()
        self.worker_ids: dict[str, UUID] = {}
        self.ended_worker_ids: list[UUID] = []
        self.claims: list[tuple[Claim, Task]] = []
        self.requests: list[tuple[NewTask, UUID]] = []
        self.number = 0

    # --- time and workers -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([5, 30, 60, 150]))
    def advance_time(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    @rule()
    def promote_due_tasks(self) -> None:
        self.actions.promote(self.world.now)
        self.world.promote()

    @rule(name=st.sampled_from(NAMES))
    def stall_worker(self, name: str) -> None:
        self.actions.stall(self.worker_ids[name])
        self.world.stall(self.worker_ids[name])

    @rule(name=st.sampled_from(NAMES))
    def restart_worker(self, name: str) -> None:
        old = self.worker_ids[name]
        self.worker_ids[name], before = self.actions.register(name)
        assert before == old
        self.world.ended_workers.add(old)
        self.ended_worker_ids.append(old)

    @precondition(lambda self: self.ended_worker_ids)
    @rule(pick=pick)
    def recover_tasks_of_worker(self, pick: int) -> None:
        old = self.ended_worker_ids[pick % len(self.ended_worker_ids)]
        lost = [work.id for work in self.world.tasks.values() if work.worker == old]
        assert self.actions.recover(old, self.world.now) == len(lost)
        for id in lost:
            self.world.lose(id)

    @rule()
    def sweep(self) -> None:
        self.actions.sweep(self.world.now)
        self.world.sweep()

    @rule()
    def repair_finds_nothing(self) -> None:
        assert self.actions.repair(self.world.now) == 0

    # --- tasks ------------------------------------------------------------------------------------------------------

    @rule(queue=queue, priority=st.integers(-1, 1), delay=st.sampled_from([0, 0, 60]))
    def enqueue(self, queue: str, priority: int, delay: int) -> None:
        self._enqueue(queue=queue, priority=priority, run_at=self.world.now + timedelta(seconds=delay))

    @rule(key=st.sampled_from(["one", "two"]))
    def enqueue_with_unique_key(self, key: str) -> None:
        standing = self.world.has_open_key(key)
        if standing is None:
            self._enqueue(unique_key=key)
        else:
            assert self.actions.enqueue(self.world.now, unique_key=key)[1] == standing

    @rule(most=st.integers(1, 2))
    def enqueue_with_limit_key(self, most: int) -> None:
        self._enqueue(limit_key=f"at most {most}", limit_max=most)

    @precondition(lambda self: self.requests)
    @rule(pick=pick)
    def repeat_request(self, pick: int) -> None:
        task, answer = self.requests[pick % len(self.requests)]
        assert self.actions.enqueue_again(task) == answer

    def _enqueue(self, **fields: Any) -> None:
        task, id = self.actions.enqueue(self.world.now, **fields)
        assert id == task.id
        self.requests.append((task, id))
        self.world.add(
            TaskModel(
                id, task.queue, task.run_at or self.world.now, rank=-task.priority, unique_key=task.unique_key,
                limit_key=task.limit_key, limit_max=task.limit_max,
            )
        )  # fmt: skip

    @rule(name=st.sampled_from(NAMES), most=st.integers(1, 3))
    def claim(self, name: str, most: int) -> None:
        worker = self.worker_ids[name]
        wanted = self.world.next_to_claim(worker, QUEUES, most)
        taken = self.actions.claim(worker, most)
        assert [task.id for task in taken] == wanted
        self._record_claims(worker, taken)

    @rule(name=st.sampled_from(NAMES), most=st.integers(1, 4))
    def claim_limited(self, name: str, most: int) -> None:
        worker = self.worker_ids[name]
        taken = self.actions.claim_limited(worker, most)
        assert self.world.limited_claim_error(worker, [task.id for task in taken], most) is None
        self._record_claims(worker, taken)

    @precondition(lambda self: self.ended_worker_ids)
    @rule(pick=pick)
    def ended_worker_claims_nothing(self, pick: int) -> None:
        old = self.ended_worker_ids[pick % len(self.ended_worker_ids)]
        assert self.actions.claim(old, 5) == []
        assert self.actions.claim_limited(old, 5) == []

    def _record_claims(self, worker: UUID, taken: list[Task]) -> None:
        for task, held in zip(taken, self.world.claim(worker, [task.id for task in taken]), strict=True):
            assert task.fence == held.fence
            self.claims.append((held, task))

    @precondition(lambda self: self.claims)
    @rule(pick=pick)
    def renew(self, pick: int) -> None:
        """Renew all tasks that a process believes to hold, rightly or not."""
        worker = self.claims[pick % len(self.claims)][0].worker
        held = [memory for memory, _ in self.claims if memory.worker == worker]
        newest = {each.task: each for each in held}
        wanted = self.world.renewable(newest.values())
        self.visited["leases renewed" if wanted else "no lease renewed"] += 1
        assert self.actions.renew(worker, [(each.task, each.fence) for each in newest.values()]) == wanted

    @precondition(lambda self: self.claims)
    @rule(pick=pick, how=st.sampled_from(OUTCOMES))
    def finish(self, pick: int, how: str) -> None:
        """Finish a task by its holder, or by a worker that lost it: then nothing changes."""
        held, task = self.claims[-1 - pick % len(self.claims)]
        is_so = self.world.holds(held)
        self.visited["holder finishes" if is_so else "stale worker finishes"] += 1
        assert self.actions.finish(task, how, self.world.now) == ({held.task} if is_so else set())
        if is_so:
            self._apply_outcome(held.task, how)

    @precondition(lambda self: self.claims)
    @rule(pick=pick)
    def finish_and_claim_next(self, pick: int) -> None:
        """The worker that ends a group claims from the next one, under the conditions of any claim."""
        held, task = self.claims[-1 - pick % len(self.claims)]
        if task.execution_id is None:
            return
        is_so, before = self.world.holds(held), self._claimable_steps(task.execution_id)
        done, taken = self.actions.finish_and_claim_next(task, self.world.now)
        assert done == ({held.task} if is_so else set())
        wanted: set[UUID] = set()
        if is_so:
            self._apply_outcome(held.task, "completed")
            begun = self._claimable_steps(task.execution_id) - before
            shut = self.world.paused_queues | self.world.queue_limits.keys()
            may = held.worker not in self.world.ended_workers
            wanted = {id for id in begun if may and self.world.tasks[id].queue not in shut}
        assert {each.id for each in taken} == wanted
        self._record_claims(held.worker, taken)
        self.visited["next group claimed"] += bool(taken)

    def _claimable_steps(self, run: UUID) -> set[UUID]:
        return {work.id for work in self.world.tasks_of(run) if work.state == "queued"}

    def _apply_outcome(self, id: UUID, how: str) -> None:
        world = self.world
        if how in ("completed", "warning"):
            world.finish(id, "completed" if how == "completed" else "completed_with_warning")
        elif how in ("failed", "timed_out"):
            world.fail(id, "error" if how == "failed" else "timed_out")
        elif how == "final":
            world.finish(id, "failed", "error")
        elif how == "cancelled":
            world.finish(id, "cancelled", "requested")
        elif how == "handed_back":
            world.retry(id, world.now, "cancelled", "handed_back")
        else:
            world.defer(id, world.now + timedelta(seconds=60))

    @precondition(lambda self: self.claims)
    @rule(pick=pick)
    def return_to_queue(self, pick: int) -> None:
        held, task = self.claims[-1 - pick % len(self.claims)]
        returned = self.world.holds(held) and self.world.return_to_queue(held.task)
        assert self.actions.return_to_queue(held.worker, task) == ({held.task} if returned else set())

    @rule(name=st.sampled_from(NAMES), how=st.sampled_from(("completed", *OUTCOMES)))
    def finish_all_claimable(self, name: str, how: str) -> None:
        """Let executions reach their end, not only their start."""
        self.claim(name, 5)
        self.claim_limited(name, 5)
        for held, task in [(held, task) for held, task in self.claims if self.world.holds(held)]:
            if held.worker == self.worker_ids[name]:
                assert self.actions.finish(task, how, self.world.now) == {held.task}
                self._apply_outcome(held.task, how)

    @rule(name=st.sampled_from(NAMES))
    def run_smoothly(self, name: str) -> None:
        for _ in range(3):
            self.promote_due_tasks()
            self.finish_all_claimable(name, "completed")

    @precondition(lambda self: self.world.tasks)
    @rule(pick=pick)
    def cancel_task(self, pick: int) -> None:
        id = self._pick(self.world.tasks, pick)
        running = self.world.tasks[id].state == "running"
        assert self.actions.cancel(id) == ("stopping" if running else "cancelled")
        self.world.cancel_task(id)

    @precondition(lambda self: self.world.activities)
    @rule(pick=pick)
    def ended_task_cannot_be_cancelled(self, pick: int) -> None:
        over = sorted({record.task for record in self.world.activities if record.final})
        if over:
            with rejected():
                self.actions.cancel(over[pick % len(over)])

    # --- queues -----------------------------------------------------------------------------------------------------

    @rule(queue=queue, most=st.sampled_from([None, None, 1, 2]))
    def limit_queue(self, queue: str, most: int | None) -> None:
        self.actions.limit_queue(queue, most)
        self.world.queue_limits.pop(queue, None)
        if most is not None:
            self.world.queue_limits[queue] = most

    @rule(queue=queue, paused=st.booleans())
    def pause_or_resume_queue(self, queue: str, paused: bool) -> None:
        (self.actions.pause_queue if paused else self.actions.resume_queue)(queue)
        (self.world.paused_queues.add if paused else self.world.paused_queues.discard)(queue)

    @staticmethod
    def _pick(known: dict[UUID, Any], pick: int) -> UUID:
        return sorted(known)[pick % len(known)]


@contextmanager
def rejected() -> Iterator[None]:
    with pytest.raises(Conflict):
        yield
