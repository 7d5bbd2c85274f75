"""Tests that every executor on a cluster must pass, on real processes of the engine."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tenuto import Job, Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.model.validation import MAX_INPUT_BYTES, MAX_OUTPUT_BYTES, dump_json
from tenuto.worker.executors import Executor, ExecutorContext
from tenuto.worker.executors.cluster import ClusterExecutor, ClusterTiming
from tenuto.worker.worker import Worker
from tests.support.waiting import eventually
from tests.worker.executors import conformance_jobs
from tests.worker.executors.clusters import ROOT, Cluster, kill_parent
from tests.worker.executors.conformance import Conformance
from tests.worker.executors.relay import Relay

APP = "tests.worker.executors.conformance_jobs:app"
LEASE_SECONDS = 4.0


class ClusterConformance(Conformance):
    """Conformance of an executor on a cluster."""

    runs_elsewhere = True

    @pytest.fixture(autouse=True)
    def _use_cluster(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def make_executor(self, context: ExecutorContext) -> Executor:
        return ClusterExecutor(context, self._cluster.make_engine(), APP)


def ticks_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def pid_of(file: Path) -> int:
    return int(ticks_of(file)[-1].split()[0])


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a process that is not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class ClusterFaults:
    """What happens when parts of a cluster, or the worker, are killed."""

    @pytest.fixture(autouse=True)
    def _use_cluster(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @asynccontextmanager
    async def worker(self, app: Tenuto, **options: Any) -> AsyncIterator[Worker]:
        def make_executor(context: ExecutorContext) -> Executor:
            timing = ClusterTiming(force_seconds=0.5)
            self._executor = ClusterExecutor(context, self._cluster.make_engine(), APP, timing=timing)
            return self._executor

        for name, job in conformance_jobs.app.jobs.jobs_by_name.items():
            app.jobs.jobs_by_name.setdefault(name, job)
        settings = {"poll_seconds": 0.5, "grace_seconds": 0, "lease_seconds": LEASE_SECONDS, **options}
        async with app.worker(executor=make_executor, **settings) as worker:
            yield worker

    @asynccontextmanager
    async def running_worker_process(self, app: Tenuto, home: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
        assert app.settings.database is not None
        process = subprocess.Popen(
            [
                sys.executable, "-m", "tenuto", "worker", "--app", APP, "--database", app.settings.database,
                "--home", str(home), "--executor", self._cluster.name, "--address", self._cluster.address,
                "--lease", str(LEASE_SECONDS), "--name", "killed",
            ],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _start_workers(self) -> None:
        """Start a worker of the cluster unless an earlier test has left one."""
        if not self._cluster.has_workers:
            self._cluster.start_worker(1)

    async def slots(self, app: Tenuto) -> int:
        return sum(each.slots for each in await app.workers() if each.service == "worker" and not each.ended_at)

    async def test_slots_follow_the_cluster_and_why_names_a_missing_one(self, app: Tenuto) -> None:
        self._cluster.kill_workers()
        async with self.worker(app):
            await eventually(lambda: self._is(app, slots=0), timeout=30, what="no slots")
            task = await app.enqueue(conformance_jobs.double, 4)
            why = await app.why(task.id)
            assert "no_capacity" in [str(reason.code) for reason in why.reasons]
            assert (await app.task(task.id)).state == "queued"
            self._cluster.start_worker(1)
            assert (await app.wait(task, timeout=60)).output == 8
            await eventually(lambda: self._is(app, slots=1), timeout=30, what="one slot")
            self._cluster.start_worker(1)
            await eventually(lambda: self._is(app, slots=2), timeout=30, what="two slots")
            why = await app.why(task.id)
            assert [str(reason.code) for reason in why.reasons] == ["ended"]

    async def _is(self, app: Tenuto, *, slots: int) -> bool:
        return await self.slots(app) == slots

    @pytest.mark.parametrize("job", [conformance_jobs.tick, conformance_jobs.block], ids=lambda job: job.name)
    async def test_killed_worker_leaves_no_code_that_outlives_its_lease(
        self, app: Tenuto, tmp_path: Path, job: Job[..., Any]
    ) -> None:
        """`tick` is stopped; `block` cannot be, so its process ends."""
        file = tmp_path / "ticks"
        self._start_workers()
        async with self.running_worker_process(app, tmp_path / "home") as process:
            task = await app.enqueue(job, file)
            await eventually(lambda: ticks_of(file), timeout=60)
            first = pid_of(file)
            process.send_signal(signal.SIGKILL)
            killed_at = monotonic_seconds()
            process.wait()
        if job is conformance_jobs.block:
            await eventually(lambda: not is_alive(first), timeout=30)
        else:
            await eventually(lambda: self._is_quiet(file), timeout=30)
        # The last renewal was at most a sixth of the lease before.
        assert monotonic_seconds() - killed_at < LEASE_SECONDS + 0.6
        before = len(ticks_of(file))
        async with self.worker(app):
            await eventually(lambda: len(ticks_of(file)) > before, timeout=60)
            attempts = await app.attempts(task.id)
            assert [attempt.reason for attempt in attempts][:-1] == ["lost"]
            await app.cancel(task.id)
            record = await app.wait(task, timeout=60)
        assert (record.state, record.attempt) == ("cancelled", 2)
        assert [attempt.state for attempt in await app.attempts(task.id)] == ["failed", "cancelled"]

    async def _is_quiet(self, file: Path) -> bool:
        before = len(ticks_of(file))
        await asyncio.sleep(0.3)  # sixty ticks
        return len(ticks_of(file)) == before

    async def test_killed_process_of_the_cluster_is_recorded_as_lost_and_the_task_retried(
        self, app: Tenuto, tmp_path: Path
    ) -> None:
        file = tmp_path / "ticks"
        self._start_workers()
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.tick_in_thread, file)
            await eventually(lambda: ticks_of(file), timeout=60)
            first = pid_of(file)
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: pid_of(file) != first, timeout=60)
            lost = (await app.attempts(task.id))[0]
            assert (lost.state, lost.reason) == ("failed", "lost")
            assert lost.error is not None
            assert f"process {first}" in lost.error["message"]
            await app.cancel(task.id)
            record = await app.wait(task, timeout=60)
        assert (record.state, record.attempt) == ("cancelled", 2)

    @asynccontextmanager
    async def relay(self, app: Tenuto) -> AsyncIterator[Relay]:
        """A relay through which the processes of the cluster reach the worker."""
        await eventually(lambda: self._has_slots(app), timeout=60, what="slots")  # it listens for the cluster then
        server = self._executor._server
        (host,) = self._executor._addresses
        relay = Relay(server.port, host)
        server.port = relay.port
        try:
            yield relay
        finally:
            relay.close()

    async def _has_slots(self, app: Tenuto) -> bool:
        return await self.slots(app) > 0

    async def test_code_behind_a_silent_network_stops_within_its_lease(self, app: Tenuto, tmp_path: Path) -> None:
        file = tmp_path / "ticks"
        self._start_workers()
        async with self.worker(app), self.relay(app) as relay:
            task = await app.enqueue(conformance_jobs.tick, file)
            await eventually(lambda: ticks_of(file), timeout=60)
            relay.cut()
            cut_at = monotonic_seconds()
            await eventually(lambda: self._is_quiet(file), timeout=30)
            assert monotonic_seconds() - cut_at < LEASE_SECONDS + 0.6
            before = len(ticks_of(file))
            await eventually(lambda: self._has_attempts(app, task.id, 1), timeout=60)
            assert len(ticks_of(file)) == before, "the next attempt cannot start without the worker"
            relay.restore()
            await eventually(lambda: len(ticks_of(file)) > before, timeout=60)
            await app.cancel(task.id)
            await app.wait(task, timeout=60)
        attempts = await app.attempts(task.id)
        assert [(attempt.state, attempt.reason) for attempt in attempts] == [
            ("failed", "lost"),
            ("cancelled", "requested"),
        ]

    async def _has_attempts(self, app: Tenuto, task_id: Any, count: int) -> bool:
        return len([each for each in await app.attempts(task_id) if each.ended_at is not None]) >= count

    async def test_cancelled_code_that_ignores_the_request_is_killed(self, app: Tenuto, tmp_path: Path) -> None:
        file = tmp_path / "ticks"
        self._start_workers()
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.block, file)
            await eventually(lambda: ticks_of(file), timeout=60)
            blocked = pid_of(file)
            await app.cancel(task.id)
            record = await app.wait(task, timeout=60)
            assert (record.state, record.reason) == ("cancelled", "requested")
            assert not is_alive(blocked)
            assert (await app.wait(await app.enqueue(conformance_jobs.double, 5), timeout=60)).output == 10

    async def test_another_version_of_a_job_is_refused(self, app: Tenuto) -> None:
        async def double(n: int) -> int:
            return n + n

        double.__qualname__ = "double"  # only the source differs
        app.job(double)
        self._start_workers()
        async with self.worker(app):
            task = await app.enqueue(app.jobs.jobs_by_name["double"], 3)
            await eventually(lambda: self._is_refused(app, task.id), timeout=60)
            record = await app.task(task.id)
            assert (record.state, record.attempt) == ("scheduled", 1)

    async def _is_refused(self, app: Tenuto, task_id: Any) -> bool:
        progress = (await app.task(task_id)).progress
        return progress is not None and "the source of job double" in str(progress)

    async def test_killed_head_of_the_cluster_delays_tasks_until_it_is_back(self, app: Tenuto) -> None:
        self._start_workers()
        async with self.worker(app):
            assert (await app.wait(await app.enqueue(conformance_jobs.double, 1), timeout=60)).output == 2
            self._cluster.kill_head()
            tasks = [await app.enqueue(conformance_jobs.double, n) for n in range(5)]
            await eventually(lambda: self._is(app, slots=0), timeout=60, what="no slots")
            why = await eventually(lambda: self._why_no_capacity(app), timeout=30)
            assert "does not answer" in why
            self._cluster.kill_workers()
            self._cluster.start_head()
            self._cluster.start_worker(1)
            records = [await app.wait(task, timeout=90) for task in tasks]
        assert [record.output for record in records] == [0, 2, 4, 6, 8]
        assert all(record.attempt == 1 for record in records)

    async def test_silent_head_of_the_cluster_delays_tasks_while_running_code_ends_normally(
        self, app: Tenuto, tmp_path: Path
    ) -> None:
        """The process that runs an attempt is connected to the worker, not through the head."""
        folder = tmp_path / "attempts"
        folder.mkdir()
        self._start_workers()
        async with self.worker(app):
            running = await app.enqueue(conformance_jobs.wait_for_others, folder, "running", 2)
            await eventually(lambda: (folder / "running").exists(), timeout=60)
            self._cluster.freeze_head()
            try:
                await eventually(lambda: self._is(app, slots=0), timeout=60, what="no slots")
                (folder / "other").touch()
                record = await app.wait(running, timeout=60)
                assert (record.state, record.attempt) == ("completed", 1)
                tasks = [await app.enqueue(conformance_jobs.double, n) for n in range(5)]
                await eventually(lambda: self._why_no_capacity(app), timeout=30)
            finally:
                self._cluster.thaw_head()
            records = [await app.wait(task, timeout=90) for task in tasks]
        assert [record.output for record in records] == [0, 2, 4, 6, 8]
        assert all(record.attempt == 1 for record in records)

    async def test_input_and_output_of_the_maximum_size_cross_over_and_larger_output_warns(self, app: Tenuto) -> None:
        largest = MAX_INPUT_BYTES - len(dump_json({"text": "", "count": 3}, field="input"))
        self._start_workers()
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.repeat, "x" * largest, 3)
            record = await app.wait(task, timeout=60)
            assert (record.state, record.output) == ("completed", "x" * (largest * 3))
            half = "y" * ((MAX_OUTPUT_BYTES - 2) // 8)
            record = await app.wait(await app.enqueue(conformance_jobs.repeat, half, 8), timeout=60)
            assert record.state == "completed"
            assert MAX_OUTPUT_BYTES - 8 <= len(str(record.output)) + 2 <= MAX_OUTPUT_BYTES
            larger = await app.wait(await app.enqueue(conformance_jobs.repeat, half, 9), timeout=60)
            assert str(larger.state) == "completed_with_warning", "the work itself is done"
            assert f"larger than {MAX_OUTPUT_BYTES:,} bytes" in str(larger.error)

    async def test_cluster_that_shrinks_while_busy_loses_one_attempt_and_runs_the_rest_in_turn(
        self, app: Tenuto, tmp_path: Path
    ) -> None:
        self._cluster.kill_workers()
        files = [tmp_path / "first", tmp_path / "second"]
        async with self.worker(app):
            for count in (1, 2):
                self._cluster.start_worker(1)
                await eventually(partial(self._is, app, slots=count), timeout=60, what="slots")
            tasks = [await app.enqueue(conformance_jobs.tick, file) for file in files]
            await eventually(lambda: all(ticks_of(file) for file in files), timeout=60)
            self._cluster.kill_newest_worker()
            await eventually(lambda: self._is(app, slots=1), timeout=60, what="one slot")

            async def one_attempt_is_lost() -> bool:
                return sum([await self._has_attempts(app, task.id, 1) for task in tasks]) == 1

            await eventually(one_attempt_is_lost, timeout=60, what="the attempt of the killed worker is lost")
            for task in tasks:
                await app.cancel(task.id)
            records = [await app.wait(task, timeout=60) for task in tasks]
            assert [record.state for record in records] == ["cancelled", "cancelled"]
            after = await app.enqueue(conformance_jobs.double, 4)
            assert (await app.wait(after, timeout=60)).output == 8, "the slot that is left is free again"
        attempts = [await app.attempts(task.id) for task in tasks]
        assert sorted(each.reason or "" for found in attempts for each in found).count("lost") == 1

    async def test_killed_parent_of_a_running_process_leaves_no_code_that_runs_twice(
        self, app: Tenuto, tmp_path: Path
    ) -> None:
        """The code ends with its parent, or goes on under its lease; a further attempt starts only after its end."""
        file = tmp_path / "ticks"
        self._cluster.kill_workers()
        self._cluster.start_worker(1)
        async with self.worker(app):
            task = await app.enqueue(conformance_jobs.tick, file)
            await eventually(lambda: ticks_of(file), timeout=60)
            first = pid_of(file)
            kill_parent(first)
            killed_at = monotonic_seconds()
            self._cluster.start_worker(1)
            await eventually(
                lambda: pid_of(file) != first or monotonic_seconds() > killed_at + 2 * LEASE_SECONDS, timeout=60
            )
            await app.cancel(task.id)
            record = await app.wait(task, timeout=60)
            await eventually(lambda: self._is_quiet(file), timeout=30, what="no code runs")
        assert record.state == "cancelled"
        pids = [line.split()[0] for line in ticks_of(file)]
        turns = [pid for number, pid in enumerate(pids) if number == 0 or pids[number - 1] != pid]
        assert len(turns) == len(set(turns)) == record.attempt, "attempts ran one after the other"

    async def test_worker_ends_in_order_while_the_head_of_the_cluster_is_silent(
        self, app: Tenuto, tmp_path: Path
    ) -> None:
        self._start_workers()
        async with self.running_worker_process(app, tmp_path / "home") as process:
            await eventually(lambda: self._has_slots(app), timeout=60, what="slots")
            self._cluster.freeze_head()
            try:
                await eventually(lambda: self._is(app, slots=0), timeout=60, what="no slots")
                process.send_signal(signal.SIGTERM)
                await eventually(lambda: process.poll() is not None, timeout=40, what="end of the worker")
            finally:
                self._cluster.thaw_head()
        assert process.returncode == 0

    async def _why_no_capacity(self, app: Tenuto) -> str | None:
        late = await app.enqueue(conformance_jobs.double, 9)
        reasons = (await app.why(late.id)).reasons
        return next((each.message for each in reasons if str(each.code) == "no_capacity"), None)
