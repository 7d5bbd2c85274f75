"""Random workflows with random crashes give the same result as without, and no stored step runs again.

They consist of nested loops, parallel branches, handled failures, patches, sleeps and child workflows.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tenuto import Context, StepFailed, Tenuto
from tenuto.jobs.context import StepSleep, StepWait
from tenuto.jobs.runner import AttemptResult
from tenuto.model.work.tasks import NewTask, Outcome, OutcomeReason, OutcomeStatus
from tenuto.settings import load_settings
from tenuto.testing import inline_worker
from tenuto.worker.step_checkpoints import DatabaseStepCheckpoints
from tests.support.repetition_counts import THOROUGH, times

pytestmark = pytest.mark.slow
Block = list[Any]
_PLACE = re.compile(r"\d+")

_LEAVES = st.sampled_from([["step"], ["plain"], ["fails"], ["sleep"], ["patch"]])
PROGRAMS = st.lists(
    st.recursive(
        _LEAVES,
        lambda node: st.one_of(
            st.tuples(st.just("loop"), st.integers(1, 3), st.lists(node, max_size=3)).map(list),
            st.tuples(st.just("gather"), st.lists(st.lists(node, max_size=3), min_size=1, max_size=3)).map(list),
            st.tuples(st.just("child"), st.lists(node, max_size=2)).map(list),
        ),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)
CRASHES = st.lists(st.integers(1, 60), max_size=4, unique=True)


class SimulatedCrash(BaseException):
    """The simulated worker is gone."""


class Journal:
    """What has run and what was stored, and where the worker crashes."""

    def __init__(self, crashes: Sequence[int]) -> None:
        self._crashes = set(crashes)
        self._points = 0
        self.stored: set[tuple[UUID, str]] = set()
        self.repeated: list[str] = []

    def crashes_here(self) -> bool:
        self._points += 1
        return self._points in self._crashes

    def record_run(self, task: UUID, label: str) -> None:
        if (task, label) in self.stored:
            self.repeated.append(label)

    def record_failing_run(self, task: UUID, label: str) -> None:
        """A handled failure is stored before the next call of its block."""
        self.record_run(task, label)
        block, _, number = label.rpartition(".")
        later = [other.removeprefix(f"{block}.") for each, other in self.stored if each == task and block in other]
        if any(int(place[0]) > int(number) for other in later if (place := _PLACE.match(other)) is not None):
            self.repeated.append(label)


class CrashingCheckpoints(DatabaseStepCheckpoints):
    """Checkpoints of a worker that dies before or after a statement; nothing is stored after its death."""

    journal = Journal(())
    is_dead = False

    def pass_point(self) -> None:
        if not self.is_dead and self.journal.crashes_here():
            self.is_dead = True
        if self.is_dead:
            raise SimulatedCrash

    async def load(self) -> dict[str, str]:
        self.pass_point()
        return await super().load()

    async def save(self, name: str, output: str) -> str:
        self.pass_point()
        stored = await super().save(name, output)
        self.journal.stored.add((self._task.id, name.partition(" ")[2]))
        self.pass_point()
        return stored

    async def sleep(self, *given: Any) -> StepSleep:
        self.pass_point()
        found = await super().sleep(*given)
        self.pass_point()
        return found

    async def run_child(self, step: str, child: NewTask, log: str | None) -> StepWait:
        self.pass_point()
        found = await super().run_child(step, child, log)
        self.pass_point()
        return found


class CrashingWorker(inline_worker.InlineWorker):
    """Worker that reports nothing for attempts during which it died: another worker gets their tasks."""

    def _deliver(self, results: Sequence[AttemptResult]) -> None:
        now = self._database.clock.now()
        lost = Outcome(OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK, now, now)
        delivered: list[AttemptResult] = []
        for attempt, outcome in results:
            checkpoints = attempt.context.steps
            assert isinstance(checkpoints, CrashingCheckpoints)
            is_lost = checkpoints.is_dead or checkpoints.journal.crashes_here()
            delivered.append((attempt, lost if is_lost else outcome))
        super()._deliver(delivered)


async def mark(ctx: Context, label: str) -> str:
    CrashingCheckpoints.journal.record_run(ctx.task_id, label)
    return label


def mark_plain(ctx: Context, label: str) -> str:
    CrashingCheckpoints.journal.record_run(ctx.task_id, label)
    return label


async def fail(ctx: Context, label: str) -> None:
    CrashingCheckpoints.journal.record_failing_run(ctx.task_id, label)
    raise ValueError(label)


async def run_block(ctx: Context, block: Block, path: str, program: Any) -> list[str]:
    done: list[str] = []
    for number, (kind, *details) in enumerate(block):
        label = f"{path}.{number}"
        if kind == "loop":
            for turn in range(details[0]):
                done += await run_block(ctx, details[1], f"{label}x{turn}", program)
        elif kind == "gather":
            branches = [run_block(ctx, own, f"{label}b{place}", program) for place, own in enumerate(details[0])]
            for found in await ctx.gather(*branches):
                done += found
        elif kind == "child":
            done += await ctx.run(program, details[0], f"{label}c")
        else:
            done += await run_leaf(ctx, kind, label)
    return done


async def run_leaf(ctx: Context, kind: str, label: str) -> list[str]:
    step = ctx.step.using(name=label)
    if kind == "plain":
        return [await step(mark_plain, label)]
    if kind == "sleep":
        await ctx.sleep("1h")
        return []
    if kind == "fails":
        try:
            await step(fail, label)
        except StepFailed as failed:
            return [f"not {failed.text}"]
    if kind == "patch" and not ctx.patched(label):
        return ["a new run takes the new code"]
    return [await step(mark, label)]


def expected_result(block: Block, path: str = "r") -> list[str]:
    """Return what a workflow without crashes returns."""
    done: list[str] = []
    for number, (kind, *details) in enumerate(block):
        label = f"{path}.{number}"
        match kind:
            case "step" | "plain" | "patch":
                done.append(label)
            case "fails":
                done.append(f"not {label}")
            case "loop":
                for turn in range(details[0]):
                    done += expected_result(details[1], f"{label}x{turn}")
            case "gather":
                for place, own in enumerate(details[0]):
                    done += expected_result(own, f"{label}b{place}")
            case "child":
                done += expected_result(details[0], f"{label}c")
            case _:
                assert kind == "sleep"
    return done


def count_children(block: Block) -> int:
    count = 0
    for kind, *details in block:
        if kind == "loop":
            count += details[0] * count_children(details[1])
        elif kind == "gather":
            count += sum(count_children(own) for own in details[0])
        elif kind == "child":
            count += 1 + count_children(details[0])
    return count


async def run_program(app: Tenuto, job: Any, block: Block, crashes: Sequence[int]) -> None:
    journal = CrashingCheckpoints.journal = Journal(crashes)
    database = await app.open()
    task = await app.enqueue(job, block, "r")
    worker = CrashingWorker(database, app.jobs, slots=10, durations={}, max_attempts=1000)
    await worker.start()
    try:
        while True:
            await worker.run_until_idle()
            asleep = await database.fetch_all("SELECT id FROM tenuto.tasks WHERE state = 'scheduled'")
            if not asleep:
                break
            # The sleeps end: one hour is over. A workflow that waits for a child is not due.
            ended = "jsonb_set(output, '{until}', to_jsonb('2020-01-01T00:00:00+00:00'::text))"
            await database.write_all(
                f"UPDATE tenuto.chain_steps SET output = {ended} WHERE name LIKE 'sleep in %' RETURNING task_id"
            )
            await database.write_all("UPDATE tenuto.tasks SET run_at = now() WHERE state = 'scheduled' RETURNING id")
    finally:
        await worker.stop()
    record = await app.wait(task, timeout=1)
    assert (record.state, record.output) == ("completed", expected_result(block))
    assert journal.repeated == []
    names = Counter(each.state for each in await app.activities(f"correlation:{task.id}", final=True, limit=500))
    assert names == ({"completed": count_children(block)} if count_children(block) else {})


def test_random_workflow_with_random_crashes_gives_the_result_of_an_uninterrupted_one(
    url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline_worker, "DatabaseStepCheckpoints", CrashingCheckpoints)
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))

    @app.workflow
    async def program(ctx: Context, block: Block, path: str) -> list[str]:
        return await run_block(ctx, block, path, program)

    with asyncio.Runner() as runner:

        @settings(
            max_examples=times(25, in_a_proof=300),
            deadline=None,
            database=None,
            derandomize=not THOROUGH,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate, Phase.shrink],
        )
        @given(PROGRAMS, CRASHES)
        def check(block: Block, crashes: list[int]) -> None:
            runner.run(run_program(app, program, block, crashes))

        try:
            check()
        finally:
            runner.run(app.close())
