"""The scenes of the tour, in order, from an empty directory to a ledger that balances.

Each tour has its own initiator, so a tour in a kept directory counts only its own work. The tour counts submitted work,
the database counts outcomes, and the ledger compares both.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from examples.tour import jobs, ledger
from examples.tour.directory import NAMES, SECRET, TourDirectory
from examples.tour.jobs import PACE, app
from examples.tour.ledger import Ledger
from examples.tour.live_views import TaskAttempts, WorkerOverview, WorkerState
from examples.tour.processes import LEASE_SECONDS, WorkerProcesses
from examples.tour.view import Presenter

from tenuto.cli.work.batches import BatchProgress
from tenuto.cli.work.execution_view import ExecutionProgress
from tenuto.clock import monotonic_seconds
from tenuto.definitions.document_parser import parse_document
from tenuto.errors import Unavailable
from tenuto.ids import new_id
from tenuto.model.access.actors import Actor, Role
from tenuto.operations.definitions.plans import read_declarations
from tenuto.operations.work.batches import BatchDetails
from tenuto.operations.work.executions import ExecutionDetails
from tenuto.store.work.activities import ActivityDetails, OutcomeCounts, TaskRecord
from tenuto.web.server import web_server

BATCH_SIZE, REPORT_COUNT, INVOICE_COUNT = 5000, 9, 300
TIMEOUT_SECONDS = 300.0
"""A tour that takes longer, even on a busy machine, has failed."""
_EXAMPLE = Path(__file__).resolve().parents[1] / "nightly_hr_sync"
_POLL_SECONDS = 0.12
_READING_SECONDS = 1.0
_REVOKE_TIMEOUT_SECONDS = 5.0
_LOG_LEVELS_OF_THE_RESTART = {
    "asyncpg": logging.CRITICAL,
    "tenuto.api": logging.ERROR,
    "tenuto.event_feed": logging.ERROR,
    "tenuto.listener": logging.ERROR,
    "tenuto.service": logging.ERROR,
    "tenuto.web": logging.ERROR,
}
"""Loggers that warn of the stopped database while pages of the dashboard are open."""
_MAX_PROGRESS_OF_VICTIM = 0.6
_REGIONS = ("north", "south", "east", "west", "coast", "hills", "lakes", "islands", "city")


class Tour:
    """Seven scenes."""

    def __init__(self, home: Path, presenter: Presenter) -> None:
        self._home = home
        self._presenter = presenter
        self._processes = WorkerProcesses(home)
        self._directory = TourDirectory(home)
        self._actor = Actor.user(f"tour-{new_id().hex[-12:]}", "the tour")
        self._app = app.acting_as(self._actor)
        self._started_at = monotonic_seconds()
        self._submitted_count = 0
        self._events: dict[str, Any] = {}
        self._killed_workers: set[str] = set()
        self._last_overview: WorkerOverview | None = None

    async def run(self) -> Ledger:
        self._presenter.scene(
            "Tenuto: durable jobs with a complete record",
            "Seven short scenes in under a minute. Everything is real: a PostgreSQL server, worker processes, and the "
            "failures.",
        )
        async with app:
            await self._start_processes()
            async with web_server(app, port=0) as address:
                await self._show_link(address)
                try:
                    await self._show_schedule()
                    await self._show_retries()
                    await self._show_dead_letter()
                    await self._show_batch()
                    await self._show_killed_worker()
                    with _hide_warnings_of_the_restart():
                        await self._show_database_restart()
                    return await self._build_ledger()
                finally:
                    await self._revoke_link()

    def stop(self) -> None:
        self._processes.stop()
        self._directory.stop()

    async def _start_processes(self) -> None:
        await self._app.open()
        self._presenter.message(f"PostgreSQL started in {self._home} after {self._elapsed_seconds():.1f} s")
        self._processes.start()
        await self._until(self._all_workers_registered)
        named = ", ".join(f"{name} (pid {pid})" for name, pid in self._processes.pids.items())
        self._presenter.message(f"three workers: {named}")

    async def _show_link(self, address: str) -> None:
        """Print a link to the dashboard, which shows the scenes while they run."""
        await self._app.api_keys.create(self._key_name, Role.VIEWER)
        link = await self._app.api_keys.create_link(self._key_name)
        self._presenter.link("watch the tour in a browser", f"{address}/login?link={link}")

    async def _revoke_link(self) -> None:
        """Revoke the key of the link: a kept directory would collect a usable key with each tour."""
        with suppress(Unavailable, TimeoutError):  # an interrupted tour may have stopped the database
            async with asyncio.timeout(_REVOKE_TIMEOUT_SECONDS):
                await self._app.api_keys.revoke(self._key_name)

    @property
    def _key_name(self) -> str:
        return self._actor.id or self._actor.name

    # --- scenes -----------------------------------------------------------------------------------------------------

    async def _show_schedule(self) -> None:
        self._scene(
            1,
            "A schedule: six steps in four groups",
            f"The schedule “{jobs.SCHEDULE}” runs now instead of at 02:00. It imports people from an HR file, decides "
            "by rules, and writes accounts to two targets. The steps of a group run in parallel; the next group starts "
            "when all of them have ended.",
        )
        await self._apply_definitions()
        started = await self._app.schedules.run(jobs.SCHEDULE)
        assert started.execution_id is not None
        self._submitted_count += jobs.STEP_COUNT
        ended = await self._watch_execution(started.execution_id)
        await self._outcome(
            f"All {jobs.STEP_COUNT} steps {ended.state} after {ended.duration_seconds:.1f} s. "
            f"{await self._count_identities()} people have an account in both targets. Each step has a record with "
            "initiator, input, output and duration."
        )

    async def _apply_definitions(self) -> None:
        """Write the HR file and apply the systems, rules and schedule of the example."""
        files = self._home / "files"
        files.mkdir(exist_ok=True)
        shutil.copy(_EXAMPLE / "people.csv", files)
        # An interrupted tour in a kept directory does not block the next one.
        text = (await self._read_definitions()).replace("overlap: skip", "overlap: allow")
        declared = read_declarations([parse_document("nightly.yaml", text.encode())])
        await self._app.plans.apply(await self._app.plans.plan(declared))

    async def _read_definitions(self) -> str:
        """Return the example with two directories on slapd as targets if it is installed, otherwise with files."""
        directory = self._directory
        if not directory.is_available:
            return (_EXAMPLE / "nightly.yaml").read_text("utf-8")
        await asyncio.to_thread(directory.start)
        await self._app.secrets.set(SECRET, directory.password)
        self._presenter.message("two LDAP directories on slapd are the targets")
        self._events["directories"] = len(NAMES)
        return directory.definitions()

    async def _count_identities(self) -> int:
        found = await self._app.extensions.identity.identities()
        return sum(each.systems == ["AD", "HR", "LDAP"] for each in found)

    async def _watch_execution(self, id: UUID) -> ExecutionDetails:
        async def ended() -> ExecutionDetails | None:
            execution = await self._app.executions.get(id)
            self._presenter.show(ExecutionProgress(execution))
            return execution if execution.ended_at is not None else None

        execution: ExecutionDetails = await self._until(ended)
        return execution

    async def _show_retries(self) -> None:
        self._scene(
            2,
            "A job that fails twice and recovers",
            f"A bank does not respond. The job has {jobs.MAX_ATTEMPTS} attempts, with longer waits after each failure.",
        )
        task = await self._app.enqueue(jobs.fetch_rates, "the bank")
        self._submitted_count += 1
        attempts = await self._watch_task(task.id)
        await self._outcome(
            f"Attempt {len(attempts)} succeeded. The two failed attempts are on record with their errors."
        )

    async def _show_dead_letter(self) -> None:
        self._scene(
            3,
            "A dead letter, corrected and retried",
            "A bill has no address. A retry would not help, so the task becomes a dead letter that waits for an "
            "operator.",
        )
        task = await self._app.manifests.enqueue(jobs.bills.external_id, {"number": 17})
        self._submitted_count += 1
        await self._watch_task(task)
        (dead_letter,) = [one for one in await self._app.dead_letters.list() if one.task_id == task]
        self._presenter.message(f"dead letter {str(dead_letter.id)[-12:]}: {dead_letter.reason}")
        await self._pause()
        self._presenter.message("an operator adds the address and retries the dead letter")
        corrected = {"number": 17, "address": "12 Reed Lane"}
        again = await self._app.dead_letters.retry(dead_letter.id, input=corrected, note="address looked up")
        self._submitted_count += 1
        self._events["dead_letters_retried"] = 1
        await self._watch_task(again)
        await self._outcome(
            "Done with the corrected input. The dead letter is resolved, with the operator and the note."
        )

    async def _watch_task(self, id: UUID) -> Sequence[ActivityDetails]:
        """Show a task's attempts until it has ended."""

        async def ended() -> Sequence[ActivityDetails] | None:
            attempts = await self._app.attempts(id)
            self._presenter.show(TaskAttempts(attempts))
            return attempts if attempts[-1].final else None

        attempts: Sequence[ActivityDetails] = await self._until(ended)
        self._presenter.finish_view()
        return attempts

    async def _show_batch(self) -> None:
        self._scene(
            4,
            f"{BATCH_SIZE:,} inputs as one batch",
            "One call submits all of them as one batch, which can be watched, paused, cancelled and retried.",
        )
        submitted_at = monotonic_seconds()
        batch = await self._app.bulk_enqueue(jobs.thumbnails, range(BATCH_SIZE))
        self._submitted_count += BATCH_SIZE
        self._presenter.message(f"{BATCH_SIZE:,} tasks committed in {monotonic_seconds() - submitted_at:.2f} s")

        async def ended() -> BatchDetails | None:
            progress = await batch.progress()
            self._presenter.show(BatchProgress(progress, min_printed_share=0.25))
            return progress if progress.complete_at is not None and not progress.open_count else None

        progress: BatchDetails = await self._until(ended)
        assert progress.ended_at is not None
        rate = round(progress.item_count / (progress.ended_at - progress.created_at).total_seconds())
        self._events |= {"batch_items": progress.item_count, "batch_items_a_second": rate}
        await self._outcome(
            f"{progress.done_count:,} done, {progress.failed_count} failed: {rate:,} a second, each with a record."
        )

    async def _show_killed_worker(self) -> None:
        self._scene(
            5,
            "A worker killed with kill -9",
            f"{REPORT_COUNT} reports of a few seconds each are running. The worker with most of them is killed. After "
            f"its leases of {LEASE_SECONDS:.0f} s have expired, other workers take over its tasks.",
        )
        before = (await self._counts()).lost_attempt_count
        total, victim, held = 0, "", 0
        while not victim:  # on a very busy machine all reports may end before one is seen running
            total += await self._enqueue_reports()
            victim, held = await self._until(partial(self._find_busiest_worker, total))
        self._processes.kill(victim)
        self._killed_workers.add(victim)
        self._events["killed_workers"] = 1
        self._presenter.message(
            f"kill -9 {self._processes.pids[victim]}: {victim} is dead, with {_reports(held)} unfinished", is_alert=True
        )
        died_at = monotonic_seconds()
        await self._until(lambda: self._all_tasks_recovered(victim, total))
        self._presenter.message(f"leases expired, tasks recovered after {monotonic_seconds() - died_at:.1f} s")
        await self._until(lambda: self._all_ended("reports", total))
        taken = (await self._counts()).lost_attempt_count - before
        await self._outcome(
            f"All {total} reports done; {taken} of them were recovered and done by {await self._recovering_workers()}. "
            "The lost attempts are on record too."
        )

    async def _recovering_workers(self) -> str:
        """Name the workers that did the recovered reports, as the records say."""
        found = await self._app.activities(name=jobs.nightly_report.name, final=True, limit=200)
        return (
            " and ".join(sorted({each.worker for each in found if each.loss_count and each.worker})) or "other workers"
        )

    async def _enqueue_reports(self) -> int:
        for number in range(REPORT_COUNT):
            await self._app.enqueue(jobs.nightly_report, _REGIONS[number % len(_REGIONS)])
            self._submitted_count += 1
        return REPORT_COUNT

    async def _show_database_restart(self) -> None:
        self._scene(
            6,
            "The database stopped and started again",
            f"{INVOICE_COUNT} invoices are running or queued when PostgreSQL is stopped. All connections are lost. "
            "Running code continues, and its outcomes wait in the worker until the database is back.",
        )
        await self._app.enqueue_many(jobs.send_invoice, range(INVOICE_COUNT))
        self._submitted_count += INVOICE_COUNT
        await self._until(lambda: self._one_fifth_ended(INVOICE_COUNT))
        stopped_at = monotonic_seconds()
        await self._processes.stop_database()
        self._events["database_restarts"] = 1
        self._presenter.message("PostgreSQL has been stopped", is_alert=True)
        assert self._last_overview is not None
        self._presenter.show(replace(self._last_overview, database="stopped"))
        await self._pause()
        await self._processes.start_database()
        down = monotonic_seconds() - stopped_at
        self._presenter.message(f"PostgreSQL is back after {down:.1f} s; the workers reconnect")
        await self._until(lambda: self._all_ended("invoices", INVOICE_COUNT))
        await self._outcome(f"All {INVOICE_COUNT} invoices done, none recorded twice. No worker was restarted.")

    async def _build_ledger(self) -> Ledger:
        self._scene(
            7,
            "The ledger",
            "Submitted work, counted by the tour, and outcomes, counted by the database.",
        )
        return ledger.build_ledger(
            self._submitted_count,
            await self._until(self._counts),
            **self._events,
            seconds=round(self._elapsed_seconds(), 1),
        )

    # --- queries ----------------------------------------------------------------------------------------------------

    async def _counts(self) -> OutcomeCounts:
        return await self._app.outcome_counts(initiator_id=self._actor.id)

    async def _all_workers_registered(self) -> bool:
        here = {worker.pid for worker in await self._app.workers() if worker.service == "worker"}
        return set(self._processes.pids.values()) <= here

    async def _load_overview(self, noun: str, total: int) -> WorkerOverview:
        """Return the state of the workers and of the work submitted last."""
        counts = await self._counts()
        self._last_overview = WorkerOverview(noun, total - counts.open_count, total, await self._load_worker_states())
        return self._last_overview

    async def _load_worker_states(self) -> list[WorkerState]:
        running = [
            task for task in await self._app.tasks(state="running", limit=200) if task.initiator_id == self._actor.id
        ]
        ids = {worker.name: worker.id for worker in await self._app.workers()}
        return [
            WorkerState(
                name,
                pid,
                name in self._killed_workers,
                [task for task in running if task.worker_id == ids.get(name, "")],
            )
            for name, pid in self._processes.pids.items()
        ]

    async def _all_tasks_recovered(self, victim: str, total: int) -> bool:
        overview = await self._load_overview("reports", total)
        self._presenter.show(overview)
        return not any(worker.tasks for worker in overview.workers if worker.name == victim)

    async def _find_busiest_worker(self, total: int) -> tuple[str, int] | None:
        """Return the worker with most unfinished tasks and their number; an empty name if all have ended."""
        overview = await self._load_overview("reports", total)
        self._presenter.show(overview)
        if overview.ended_count == total:
            return "", 0
        candidates = [worker for worker in overview.workers if any(_is_early(task) for task in worker.tasks)]
        busiest = max(candidates, key=lambda worker: len(worker.tasks), default=None)
        return None if busiest is None else (busiest.name, len(busiest.tasks))

    async def _one_fifth_ended(self, total: int) -> bool:
        overview = await self._load_overview("invoices", total)
        self._presenter.show(overview)
        return overview.ended_count >= total / 5

    async def _all_ended(self, noun: str, total: int) -> bool:
        overview = await self._load_overview(noun, total)
        self._presenter.show(overview)
        return overview.ended_count == total

    async def _until(self, query: Callable[[], Awaitable[Any]]) -> Any:
        """Poll until there is a result; while the database is stopped, there is none."""
        while self._elapsed_seconds() < TIMEOUT_SECONDS:
            try:
                result = await query()
            except Unavailable:
                result = None
            if result:
                return result
            if failed := self._processes.failed():
                raise RuntimeError("; ".join(f"{name} ended unexpectedly: {line}" for name, line in failed.items()))
            await asyncio.sleep(_POLL_SECONDS)
        raise TimeoutError(f"the tour has not ended within {TIMEOUT_SECONDS:.0f} s")

    # --- output -----------------------------------------------------------------------------------------------------

    def _scene(self, number: int, title: str, text: str) -> None:
        self._presenter.scene(f"{number}/7  {title}", text)

    async def _outcome(self, line: str) -> None:
        self._presenter.outcome(line)
        await self._pause()

    async def _pause(self) -> None:
        """Give viewers time to read."""
        await asyncio.sleep(_READING_SECONDS * PACE if self._presenter.has_readers else 0)

    def _elapsed_seconds(self) -> float:
        return monotonic_seconds() - self._started_at


@contextmanager
def _hide_warnings_of_the_restart() -> Iterator[None]:
    """Hide warnings that the tour causes by stopping the database; the tour itself says that it is stopped."""
    loggers = {name: logging.getLogger(name) for name in _LOG_LEVELS_OF_THE_RESTART}
    levels = {name: each.level for name, each in loggers.items()}
    for name, each in loggers.items():
        each.setLevel(_LOG_LEVELS_OF_THE_RESTART[name])
    try:
        yield
    finally:
        for name, each in loggers.items():
            each.setLevel(levels[name])


def _is_early(task: TaskRecord) -> bool:
    progress = task.progress
    return progress is not None and progress["done"] <= progress["total"] * _MAX_PROGRESS_OF_VICTIM


def _reports(count: int) -> str:
    return "1 report" if count == 1 else f"{count} reports"
