"""The executor for jobs on a cluster: the common part of the executors for Celery, Dask and Ray.

The engine only carries a launch request to one of its processes and starts `remote_runner.run_attempt` there.
Permission to start, leases, progress, log lines, stop requests and outcomes go over a direct connection
(`attempt_server`). An attempt is recorded as lost when the lease of its process has ended, or earlier if the connection
is lost and the engine reports that the process has ended. A task that no process started returns to its queue, and no
attempt is counted. Steps of other kinds than jobs run in the worker, because they use its database.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol

from tenuto.clock import monotonic_seconds
from tenuto.errors import EngineError, Invalid, UnknownJob
from tenuto.ids import new_id
from tenuto.jobs import outcomes
from tenuto.jobs.attempts import Attempt
from tenuto.logs import Log
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, error_json
from tenuto.worker.executors import ExecutorContext
from tenuto.worker.executors.attempt_messages import LaunchRequest, Message, decode_outcome
from tenuto.worker.executors.attempt_server import AttemptServer, Session
from tenuto.worker.executors.job_fingerprint import find_difference, job_fingerprint
from tenuto.worker.executors.native import NativeExecutor

STOP_FRACTION = 0.2
"""Fraction of a lease that is reserved for stopping code, as in the watchdog."""
EXIT_FRACTION = 0.05
"""A process whose code has not stopped exits this fraction of the lease before the lease ends."""
CHECK_SECONDS = 0.25
CAPACITY_SECONDS = 1.0
FORCE_AGAIN_SECONDS = 10.0
MAX_BACKOFF_SECONDS = 10.0
CLOSE_SECONDS = 5.0
"""How long a worker that ends waits for calls of the engine, which may never return while the cluster is silent."""
RETURN_DELAY = timedelta(seconds=5)
"""Delay of a task that the cluster could not start."""

log = Log("tenuto.executor")


class EngineUnavailable(Exception):
    """The cluster or its broker does not answer."""


class Engine(Protocol):
    """An engine that runs functions in processes of a cluster.

    Methods may block, because the executor calls them on separate threads. Each raises `EngineUnavailable` if the
    cluster does not answer.
    """

    name: str
    host: str
    """A host of the cluster; the worker listens on the address from which it reaches it. `connect` may change it."""

    def connect(self) -> None:
        """Connect, also again after the cluster did not answer."""
        ...

    def count_slots(self) -> int:
        """Return how many attempts the cluster can run at the same time now."""
        ...

    def submit(self, requests: Sequence[LaunchRequest]) -> None:
        """Have `remote_runner.run_attempt` called once for each request, each in a separate slot."""
        ...

    def withdraw(self, id: str) -> None:
        """Remove a launch that has not started. If it starts nevertheless, the worker refuses it the permission."""
        ...

    def has_ended(self, id: str, place: dict[str, Any]) -> bool:
        """Return whether the engine knows that the launch or its process has ended."""
        ...

    def force_stop(self, id: str, place: dict[str, Any]) -> bool:
        """Kill the process that runs a launch; return False if the engine cannot do that without affecting others."""
        ...

    def forget(self, id: str) -> None:
        """Release what belongs to a launch that has ended."""
        ...

    def disconnect(self) -> None:
        """Close the connection and leave no thread behind."""
        ...

    def abandon(self) -> None:
        """Let the process end although calls of a silent cluster have not returned. It is the last call."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterTiming:
    """Timing of a cluster executor: values that tests shorten."""

    start_seconds: float = 30.0
    """How long a launch may wait in the engine before the task returns to its queue."""
    force_seconds: float = 4.0
    """How long code may take to stop before its process is killed. A worker that shuts down waits for 5 s."""
    reconnect_seconds: float = 1.0
    """How long a process may be disconnected before the engine is asked whether it is gone."""


@dataclass(eq=False, slots=True)
class _Launch:
    """An attempt between launch and result."""

    id: str
    attempt: Attempt
    submitted_at: float
    session: Session | None = None
    """The process that was permitted to start the code."""
    exit_at: float = 0.0
    """Instant by which the process has stopped the code or has exited."""
    disconnected_at: float | None = None
    stop_sent_at: float | None = None
    forced_at: float | None = None
    calls: set[asyncio.Task[None]] = field(default_factory=set)


class _EngineCalls:
    """Calls the engine on one daemon thread, which a call that never returns does not keep from ending."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tenuto-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function that raises nothing after the earlier ones."""
        self._calls.put(partial(function, *arguments))

    def close(self, seconds: float) -> bool:
        """Return whether all calls have ended within a time."""
        self._calls.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()


class ClusterExecutor:
    """Runs the jobs of a worker in a cluster."""

    def __init__(
        self,
        context: ExecutorContext,
        engine: Engine,
        app: str,
        *,
        callback: str | None = None,
        timing: ClusterTiming = ClusterTiming(),  # noqa: B008 — frozen
    ) -> None:
        """``callback`` is HOST or HOST:PORT at which the processes of the cluster reach this worker; an IPv6 address
        with a port is in brackets."""
        self._context = context
        self._engine = engine
        self._app = app
        self._callback = None if callback is None else parse_callback(callback)
        self._timing = timing
        self._native = NativeExecutor(context)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="tenuto-cluster", daemon=True)
        self._submitter = _EngineCalls()
        self._monitor = threading.Thread(target=self._watch_engine, name="tenuto-engine-monitor", daemon=True)
        self._closing = threading.Event()
        self._server = AttemptServer(self)
        self._addresses: list[str] = []
        self._launches: dict[str, _Launch] = {}
        self._pending: list[_Launch] = []
        self._is_available = False
        self._is_submitting = False
        self._slots = 0
        self._fingerprints: dict[str, dict[str, str | None]] = {}

    # --- executor ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._native.start()
        self._context.set_capacity(0)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self._submitter.start()
        self._monitor.start()

    def launch(self, attempts: Sequence[Attempt]) -> None:
        if steps := [attempt for attempt in attempts if attempt.task.kind != "job"]:
            self._native.launch(steps)
        if jobs := [attempt for attempt in attempts if attempt.task.kind == "job"]:
            self._loop.call_soon_threadsafe(self._accept, jobs)

    def check_for_stalls(self) -> None:
        self._native.check_for_stalls()

    def close(self) -> None:
        self._closing.set()
        self._native.close()
        self._monitor.join(CLOSE_SECONDS)
        if not self._monitor.is_alive():
            self._submitter.submit(self._disconnect_engine)
        if not self._submitter.close(CLOSE_SECONDS) or self._monitor.is_alive():
            log.warning("cluster not disconnected", executor=self._engine.name, reason="it does not answer")
            self._try(self._engine.abandon)
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _listen(self) -> None:
        if self._callback is not None:
            host, port = self._callback
            self._addresses = [host]
            await self._server.start(None, port)
            self._log_listening()
        else:
            try:
                await self._listen_for_engine(self._engine.host, _own_address(self._engine.host))
            except EngineError as error:  # its name may be known later: the monitor tries again with each connection
                log.warning("executor not listening", executor=self._engine.name, reason=error.message)
        self._loop.call_later(CHECK_SECONDS, self._check_launches)

    def _log_listening(self) -> None:
        log.info("executor listening", executor=self._engine.name, address=self._addresses[0], port=self._server.port)

    async def _listen_for_engine(self, host: str, address: str) -> None:
        """Listen on the address from which a host of the engine is reached; earlier ones remain open."""
        if self._addresses == [address]:
            return
        await self._server.start(address, 0)
        self._addresses = [address]
        self._log_listening()
        if _is_loopback(address) and not _is_loopback(host):
            log.warning(
                "worker not reachable from other machines", executor=self._engine.name, host=host,
                address=address, remedy="set the address of this machine with --callback",
            )  # fmt: skip

    # --- launches (on the loop of the executor) ----------------------------------------------------------------------

    def _accept(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            try:
                self._context.jobs.get_job(attempt.task.name)
            except UnknownJob as error:
                self._deliver(attempt, outcomes.from_error(attempt, error, self._context.clock.now()))
                continue
            launch = _Launch(new_id().hex, attempt, monotonic_seconds())
            self._launches[launch.id] = launch
            self._pending.append(launch)
            attempt.set_halt(partial(self._call_soon, self._halt, launch))
        self._submit_pending()

    def _call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed after the last attempt
            self._loop.call_soon_threadsafe(function, *arguments)

    def _submit_pending(self) -> None:
        """Submit all pending launches to the engine in one call."""
        if self._is_submitting or not self._pending or not self._is_available:
            return
        launches = [each for each in self._pending if each.id in self._launches]
        self._pending.clear()
        self._is_submitting = True
        requests = [
            LaunchRequest(each.id, self._addresses, self._server.port, self._server.token, self._app, each.attempt.task)
            for each in launches
        ]
        self._submitter.submit(self._submit, requests)

    def _submit(self, requests: Sequence[LaunchRequest]) -> None:
        """Submit launches, on the thread of the engine."""
        problem: str | None = None
        try:
            self._engine.submit(requests)
        except EngineUnavailable as error:
            problem = str(error)
        except Exception as error:  # the engine or its client may raise anything; the tasks return to their queue
            log.exception("launch failed", executor=self._engine.name)
            problem = f"{type(error).__name__}: {error}"
        self._call_soon(self._on_submitted, [request.id for request in requests], problem)

    def _on_submitted(self, ids: Sequence[str], problem: str | None) -> None:
        self._is_submitting = False
        if problem is not None:
            self._return_unstarted(ids, f"the {self._engine.name} cluster does not answer: {problem}")
        self._submit_pending()

    def _halt(self, launch: _Launch) -> None:
        """Stop the code of a launch, or withdraw a launch that has not started."""
        if launch.id not in self._launches:
            return
        now = monotonic_seconds()
        if launch.session is None:
            self._submitter.submit(self._try, self._engine.withdraw, launch.id)
            self._end(launch, outcomes.from_stop(launch.attempt, self._context.clock.now()))
            return
        if launch.stop_sent_at is None:
            launch.stop_sent_at = now
        self._send_stop(launch)

    def _send_stop(self, launch: _Launch) -> None:
        reason, actor = launch.attempt.stop_reason, launch.attempt.stop_actor
        if launch.session is not None and reason is not None:
            by = None if actor is None else [str(actor.type), actor.id, actor.name]
            launch.session.send({"kind": "stop", "id": launch.id, "reason": reason.name, "actor": by})

    def _end(self, launch: _Launch, outcome: Outcome | None) -> None:
        """Deliver the outcome of a launch that has ended or will not start."""
        if self._launches.pop(launch.id, None) is None:  # recorded as lost before its process reported the end
            return
        for call in launch.calls:
            call.cancel()
        session = launch.session
        if session is not None and not session.is_connected and not self._is_used(session):
            self._server.forget(session)
        self._submitter.submit(self._try, self._engine.forget, launch.id)
        self._deliver(launch.attempt, outcome)

    def _is_used(self, session: Session) -> bool:
        return any(launch.session is session for launch in self._launches.values())

    def _deliver(self, attempt: Attempt, outcome: Outcome | None) -> None:
        attempt.mark_ended()
        self._context.deliver([(attempt, outcome)])

    def _try(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call the engine and ignore errors: leases and permissions do not depend on the call."""
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 — see above
            log.debug("call of engine failed", executor=self._engine.name, error=str(error))

    def _return_unstarted(self, ids: Iterable[str], problem: str) -> None:
        """Return tasks that have not started to their queue."""
        returned = [launch for id in ids if (launch := self._launches.get(id)) is not None and launch.session is None]
        if not returned:
            return
        log.warning("tasks returned by executor", executor=self._engine.name, tasks=len(returned), reason=problem)
        for launch in returned:
            self._submitter.submit(self._try, self._engine.withdraw, launch.id)
            self._refuse(launch, problem, RETURN_DELAY)

    def _refuse(self, launch: _Launch, problem: str, delay: timedelta) -> None:
        """Defer a task whose code cannot start. No attempt is counted, and the progress of the task has the reason."""
        attempt = launch.attempt
        message = f"not started by executor {self._engine.name}: {problem}"
        attempt.context.set_progress_json(json.dumps({"done": 0, "message": message[:500]}, ensure_ascii=False))
        now = self._context.clock.now()
        outcome = Outcome(
            OutcomeStatus.COMPLETED, progress=attempt.context.progress_json, deferral=Deferral(now + delay)
        )
        self._end(launch, outcome)

    # --- sessions ---------------------------------------------------------------------------------------------------

    def on_connected(self, session: Session, attempts: Iterable[str]) -> None:
        for id in attempts:
            launch = self._launches.get(id)
            if launch is not None and launch.session is session:  # the process was connected before
                launch.disconnected_at = None
                self._permit(launch, session)
                self._send_stop(launch)
            elif launch is None:
                session.send({"kind": "permit", "id": id, "is_permitted": False})

    def on_disconnected(self, session: Session) -> None:
        now = monotonic_seconds()
        is_used = False
        for launch in self._launches.values():
            if launch.session is session:
                launch.disconnected_at, is_used = now, True
        if not is_used:
            self._server.forget(session)

    def on_message(self, session: Session, message: Message) -> None:
        launch = self._launches.get(message["id"])
        if message["kind"] == "start":
            self._on_start(session, launch, message)
            return
        if launch is None or launch.session is not session:
            return
        context = launch.attempt.context
        match message["kind"]:
            case "log":
                context.log.add_line(message["level"], message["text"])
            case "progress":
                context.set_progress_json(message["state"])
                context.current_step = message["step"]
            case "call":
                call = self._loop.create_task(self._call(session, launch, message))
                launch.calls.add(call)
                call.add_done_callback(launch.calls.discard)
            case "ended":
                if message["progress"] is not None:
                    context.set_progress_json(message["progress"])
                context.current_step = message["step"]
                self._end(launch, self._make_outcome(launch.attempt, message["outcome"]))
            case _:
                pass  # a kind of message of a later version

    def _on_start(self, session: Session, launch: _Launch | None, message: Message) -> None:
        """Permit a process to start a launch, if no process has started it and the process runs the same program."""
        # guard: executors.one_start
        if launch is None or launch.session is not None:
            session.send({"kind": "permit", "id": message["id"], "is_permitted": False})
            return
        problem = message["problem"] or self._find_difference(launch.attempt.task.name, message["fingerprint"])
        if problem is not None:
            log.error(
                "task refused by cluster process", executor=self._engine.name, reason=problem,
                process=session.describe(), remedy="restart the processes of the cluster with the worker's program",
                **launch.attempt.task.log_fields,
            )  # fmt: skip
            session.send({"kind": "permit", "id": launch.id, "is_permitted": False})
            self._refuse(launch, problem, outcomes.UNKNOWN_JOB_DELAY)
            return
        launch.session = session
        launch.attempt.mark_started(self._context.clock.now())
        if launch.attempt.stop_reason is not None:
            session.send({"kind": "permit", "id": launch.id, "is_permitted": False})
            self._end(launch, outcomes.from_stop(launch.attempt, self._context.clock.now()))
            return
        self._permit(launch, session)

    def _permit(self, launch: _Launch, session: Session) -> None:
        session.send({"kind": "permit", "id": launch.id, "is_permitted": True, "lease": self._renew_lease(launch)})

    def _find_difference(self, name: str, there: dict[str, str | None]) -> str | None:
        here = self._fingerprints.get(name)
        if here is None:
            here = self._fingerprints[name] = job_fingerprint(self._context.jobs.get_job(name))
        if "contract" not in there and here["tenuto"] == there.get("tenuto"):
            return f"the app {self._app} in the cluster has no job {name}"
        return find_difference(name, here, there)

    def leases_of(self, session: Session) -> dict[str, tuple[float, float]]:
        launches = [launch for launch in self._launches.values() if launch.session is session]
        return {launch.id: self._renew_lease(launch) for launch in launches}

    def _renew_lease(self, launch: _Launch) -> tuple[float, float]:
        """Renew the lease of the process; return the seconds until it must have stopped the code and until it exits."""
        attempt, now = launch.attempt, monotonic_seconds()
        lease = attempt.lease_expires_at - attempt.renewed_at
        left = attempt.lease_expires_at - now
        launch.exit_at = max(now + left - lease * EXIT_FRACTION, now)
        return left - lease * STOP_FRACTION, launch.exit_at - now

    async def _call(self, session: Session, launch: _Launch, message: Message) -> None:
        reply: Message = {"kind": "reply", "call": message["number"]}
        try:
            reply["value"] = await self._use_checkpoints(launch.attempt, message["name"], message["arguments"])
        except Exception as error:  # noqa: BLE001 — it is raised in the job
            reply["error"] = str(error)
        session.replies[message["number"]] = reply
        if len(session.replies) > 1000:
            del session.replies[next(iter(session.replies))]
        session.send(reply)

    async def _use_checkpoints(self, attempt: Attempt, name: str, arguments: Sequence[Any]) -> Any:
        checkpoints, context = attempt.context.steps, attempt.context
        if name == "load":
            return await checkpoints.load()
        if name == "save":
            return await checkpoints.save(*arguments)
        if name == "wait_for_event":
            step, number, event, key, seconds = arguments
            wait = await checkpoints.wait_for_event(
                step, number, event, key, timedelta(seconds=seconds), context.log_text
            )
            if wait.log is not None:
                context.log.prepend(wait.log)
            return wait.name, wait.key, wait.ends_at.isoformat(), wait.has_ended, wait.has_timed_out, wait.payload
        step, number, seconds = arguments
        sleep = await checkpoints.sleep(step, number, timedelta(seconds=seconds), context.log_text)
        if sleep.log is not None:
            context.log.prepend(sleep.log)
        return sleep.ends_at.isoformat(), sleep.has_ended

    def _make_outcome(self, attempt: Attempt, message: Message) -> Outcome | None:
        now = self._context.clock.now()
        if message.get("is_stopped"):
            if attempt.stop_reason is not None:
                return outcomes.from_stop(attempt, now)
            return self._lost(attempt, "it stopped because its lease was not renewed in time")
        outcome, retry_after = decode_outcome(message)
        outcome.started_at, outcome.ended_at = attempt.started_at, now
        outcome.log, outcome.progress = attempt.context.log_text, attempt.context.progress_json
        if retry_after is not None:
            outcome.retry_at = now + timedelta(seconds=retry_after)
        return outcome

    def _lost(self, attempt: Attempt, problem: str) -> Outcome:
        error = error_json("tenuto.Lost", problem, step=attempt.context.current_step or attempt.task.name)
        return outcomes.failed(attempt, self._context.clock.now(), OutcomeReason.LOST, error)

    # --- checks -----------------------------------------------------------------------------------------------------

    def _check_launches(self) -> None:
        now = monotonic_seconds()
        late = []
        for launch in list(self._launches.values()):
            if launch.session is None:
                if now > launch.submitted_at + self._timing.start_seconds:
                    late.append(launch.id)
                continue
            if now > launch.exit_at:  # guard: executors.lost_after_lease
                self._end_lost(launch)
                continue
            if launch.disconnected_at is not None:
                self._check_disconnected(launch, now)
            if launch.stop_sent_at is not None:
                self._check_stopping(launch, now)
        if late:
            self._return_unstarted(
                late,
                f"it waited {self._timing.start_seconds:g} s in the cluster: no process was free, or its process could "
                f"not reach this worker at {self._addresses[0]}:{self._server.port} (set --callback if it cannot)",
            )
        if not self._closing.is_set():
            self._loop.call_later(CHECK_SECONDS, self._check_launches)

    def _check_disconnected(self, launch: _Launch, now: float) -> None:
        assert launch.disconnected_at is not None
        if now > launch.disconnected_at + self._timing.reconnect_seconds:
            self._submitter.submit(self._try, self._ask_engine, launch)

    def _ask_engine(self, launch: _Launch) -> None:
        """End a disconnected launch if the engine knows that it has ended. Called on the thread of the engine."""
        if launch.id not in self._launches or launch.disconnected_at is None or launch.session is None:
            return
        if self._engine.has_ended(launch.id, launch.session.place):
            self._call_soon(self._end_if_disconnected, launch)

    def _end_if_disconnected(self, launch: _Launch) -> None:
        if launch.disconnected_at is not None:
            self._end_lost(launch)

    def _end_lost(self, launch: _Launch) -> None:
        attempt = launch.attempt
        if attempt.stop_reason is not None:
            self._end(launch, outcomes.from_stop(attempt, self._context.clock.now()))
            return
        process = launch.session.describe() if launch.session is not None else "a process"
        problem = f"{process} of the {self._engine.name} cluster, which ran it, ended or lost its connection"
        self._end(launch, self._lost(attempt, problem))

    def _check_stopping(self, launch: _Launch, now: float) -> None:
        assert launch.stop_sent_at is not None
        due_at = launch.stop_sent_at + self._timing.force_seconds
        if launch.forced_at is not None:
            due_at = launch.forced_at + FORCE_AGAIN_SECONDS
        if now < due_at or launch.session is None:
            return
        launch.forced_at = now
        self._submitter.submit(self._force_stop, launch, launch.session.place)

    def _force_stop(self, launch: _Launch, place: dict[str, Any]) -> None:
        """Kill the process of a launch, on the thread of the engine."""
        if launch.id not in self._launches:
            return
        fields = {"executor": self._engine.name, **launch.attempt.task.log_fields}
        try:
            if self._engine.force_stop(launch.id, place):
                log.warning("unstoppable code killed", **fields)
                return
            reason = "its process cannot be killed, or runs other attempts"
        except Exception as error:  # noqa: BLE001 — it is tried again, and the lease of the process ends
            reason = str(error) or type(error).__name__
        log.warning(
            "unstoppable code not killed", reason=reason,
            remedy="run each slot of the cluster in a separate process", **fields,
        )  # fmt: skip

    # --- engine -----------------------------------------------------------------------------------------------------

    def _watch_engine(self) -> None:
        """Keep the connection and the number of slots up to date; runs on a separate thread."""
        delay, is_connected = 0.5, False
        while not self._closing.is_set():
            try:
                if not is_connected:
                    self._engine.connect()
                    if self._callback is None:
                        host = self._engine.host
                        listening = self._listen_for_engine(host, _own_address(host))
                        asyncio.run_coroutine_threadsafe(listening, self._loop).result()
                    is_connected = True
                slots = self._engine.count_slots()
                delay = 0.5
                self._call_soon(self._on_engine_answered, slots)
                self._closing.wait(CAPACITY_SECONDS)
            except Exception as error:  # noqa: BLE001 — the client of an engine may raise anything
                is_connected = False
                problem = str(error) or type(error).__name__
                self._call_soon(self._on_engine_unavailable, problem, delay)
                self._closing.wait(delay)
                delay = min(delay * 2, MAX_BACKOFF_SECONDS)

    def _on_engine_answered(self, slots: int) -> None:
        if not self._is_available or slots != self._slots:
            log.info("cluster connected" if slots else "cluster found empty", executor=self._engine.name, slots=slots)
        self._is_available = True
        self._set_slots(slots)
        self._submit_pending()

    def _on_engine_unavailable(self, problem: str, delay: float) -> None:
        if self._is_available or delay == MAX_BACKOFF_SECONDS:
            log.error(
                "cluster not reached", executor=self._engine.name, host=self._engine.host, reason=problem,
                retry_seconds=delay,
            )  # fmt: skip
        was_available, self._is_available = self._is_available, False
        self._set_slots(0)
        if was_available:
            self._return_unstarted(list(self._launches), f"the {self._engine.name} cluster does not answer: {problem}")

    def _set_slots(self, slots: int) -> None:
        if slots != self._slots:
            self._slots = slots
            self._context.set_capacity(slots)

    def _disconnect_engine(self) -> None:
        self._try(self._engine.disconnect)


def parse_callback(text: str) -> tuple[str, int]:
    """Return host and port of HOST, HOST:PORT or [HOST]:PORT; the port is 0 for any."""
    found = re.fullmatch(
        r"\[(?P<address>[^][]+)\](?::(?P<port>\d{1,5}))?|(?P<host>[^][:]+)(?::(?P<number>\d{1,5}))?", text
    )
    if found is None:
        with contextlib.suppress(ValueError):
            return str(IPv6Address(text)), 0
    elif (port := int(found["port"] or found["number"] or 0)) < 65_536:
        return found["address"] or found["host"], port
    raise Invalid(
        f"{text!r} is not HOST or HOST:PORT",
        code="worker.executor.callback_invalid",
        field="executor_callback",
        remedy="write an IPv6 address with a port as in [2001:db8::7]:9322",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def _own_address(host: str) -> str:
    """Return the address of this machine from which a host is reached. No packet is sent."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise EngineError(
            f"the host {host!r} of the cluster cannot be reached: {error}",
            code="executor.host_unreachable",
            remedy="check the address, or set the address of this worker with --callback",
        ) from error
