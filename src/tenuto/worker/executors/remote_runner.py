"""The part of an executor that runs in a process of the cluster: it runs the code of one attempt for a worker.

The engine calls `run_attempt`. It connects to the worker, asks for the permission to start, runs the job with the same
runner as a worker does, and reports the outcome over the connection.

The process holds a lease on every attempt, which ends before the worker's lease in the database. Each reply of the
worker to a ping renews it, counted from the instant at which the ping was sent. Without renewal the process stops the
code. If the code has not stopped shortly before the worker's lease ends, a timer of the interpreter ends the process,
even while the code blocks all threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import os
import queue
import socket
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import IO, Any, cast

from pydantic_core import from_json

from tenuto.clock import SystemClock, monotonic_seconds
from tenuto.errors import EngineError, Invalid, TenutoError
from tenuto.jobs.app_import import find_object, import_app_module, split_app_name
from tenuto.jobs.attempt_log import AttemptLog
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.context import Context, StepCheckpoints, StepSleep, StepWait
from tenuto.jobs.output_capture import OutputCapture
from tenuto.jobs.registry import JobRegistry
from tenuto.jobs.runner import AttemptResult, Runner
from tenuto.logs import Log
from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.work.tasks import NewTask, Task, parse_instant
from tenuto.version import __version__
from tenuto.worker.executors.attempt_messages import (
    MAX_LINE_BYTES,
    PROTOCOL,
    LaunchRequest,
    Message,
    encode_line,
    encode_outcome,
)
from tenuto.worker.executors.job_fingerprint import job_fingerprint

CONNECT_SECONDS = 5.0
PING_SECONDS = 1.0
CHECK_SECONDS = 0.2
"""Interval between checks of the leases."""
PROGRESS_SECONDS = 0.1
"""Minimum interval between messages with the progress of an attempt; its end sends the last one."""
RECONNECT_DELAY_SECONDS = 0.2
MAX_THREADS = 1000

log = Log("tenuto.remote")


def run_attempt(payload: str, place: Mapping[str, Any]) -> str:
    """Run one attempt and return a summary for the log of the engine. The outcome goes to the worker.

    ``place`` are the names that the engine has for this process.
    """
    return _RemoteProcess.of_this_process().run(LaunchRequest.from_json(payload), place)


class _RemoteProcess:
    """The runners and connections of this process."""

    _current: _RemoteProcess | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._runners: dict[str, tuple[JobRegistry, Runner]] = {}
        self._links: dict[tuple[str, int, str], WorkerLink] = {}
        self._running: dict[int, _RemoteAttempt] = {}
        self._exit_timer = _ExitTimer()
        OutputCapture.start()

    @classmethod
    def of_this_process(cls) -> _RemoteProcess:
        """Return the state of this process. A forked process gets a new one: threads and connections stay behind."""
        with cls._lock:
            if cls._current is None or cls._current.pid != os.getpid():
                cls._current = cls()
            return cls._current

    def run(self, request: LaunchRequest, place: Mapping[str, Any]) -> str:
        link = self._open_link(request, place)
        if link is None:
            return "not started: the worker does not answer"
        attempt = _RemoteAttempt(request, link)
        jobs, runner, problem = self._load_app(request.app)
        fingerprint: dict[str, str | None] = {"tenuto": __version__}
        if jobs is not None and (job := jobs.jobs_by_name.get(request.task.name)) is not None:
            fingerprint = job_fingerprint(job)
        permit = link.ask_to_start(attempt, fingerprint, problem)
        if permit is None or runner is None:
            return "not started: the worker does not permit it"
        with self._lock:
            self._running[id(attempt.attempt)] = attempt
        runner.launch([attempt.attempt])
        attempt.done.wait()
        link.wait_until_received(attempt)  # the engine may end this process as soon as this returns
        return "run"

    def _open_link(self, request: LaunchRequest, place: Mapping[str, Any]) -> WorkerLink | None:
        key = (",".join(request.addresses), request.port, request.token)
        with self._lock:
            self._links = {each: link for each, link in self._links.items() if not link.is_closed}
            if (link := self._links.get(key)) is not None:
                return link
            link = self._links[key] = WorkerLink(request, place, self._exit_timer)
        if link.connect():
            return link
        return None

    def _load_app(self, name: str) -> tuple[JobRegistry | None, Runner | None, str | None]:
        """Return the jobs of an app and a runner for them, or why the app cannot be loaded."""
        with self._lock:
            found = self._runners.get(name)
            if found is None:
                try:
                    jobs = load_jobs(name)
                except TenutoError as error:
                    return None, None, f"{error.message}; {error.remedy}" if error.remedy else error.message
                runner = Runner(jobs, SystemClock(), self._deliver, threads=MAX_THREADS)
                runner.start()
                found = self._runners[name] = (jobs, runner)
        return found[0], found[1], None

    def _deliver(self, results: Sequence[AttemptResult]) -> None:
        for attempt, outcome in results:
            with self._lock:
                remote = self._running.pop(id(attempt))
            remote.link.report_end(remote, encode_outcome(outcome, is_stopped=attempt.stop_reason is not None))
            remote.done.set()


def load_jobs(name: str) -> JobRegistry:
    """Import an app and return its jobs."""
    module_name, object_name = split_app_name(name)
    module = import_app_module(module_name)
    jobs = (
        getattr(find_object(module, object_name), "jobs", None) if hasattr(module, object_name.split(".")[0]) else None
    )
    if not isinstance(jobs, JobRegistry):
        raise Invalid(
            f"{name} is not a Tenuto app in the processes of the cluster",
            code="cli.app.not_an_app",
            field="--app",
            remedy="install the same program there as at the worker",
        )
    return jobs


class _RemoteAttempt:
    """One attempt in this process."""

    def __init__(self, request: LaunchRequest, link: WorkerLink) -> None:
        self.id = request.id
        self.link = link
        self.stop_at = self.exit_at = monotonic_seconds() + CONNECT_SECONDS
        """Instants at which the code is stopped and the process exits, unless the lease is renewed."""
        self.ping_seconds = PING_SECONDS
        self.context = _RemoteContext(request.task, self)
        self.attempt = Attempt(request.task, self.context, self.stop_at, monotonic_seconds())
        self.is_permitted = False
        self.end_number = 0
        """Number of the message that carries its outcome."""
        self.done = threading.Event()

    def extend_lease(self, sent_at: float, seconds: Sequence[float]) -> None:
        self.stop_at, self.exit_at = sent_at + seconds[0], sent_at + seconds[1]
        self.ping_seconds = min(PING_SECONDS, max(seconds[1], 0.0) / 8)
        self.attempt.lease_expires_at = self.stop_at

    def send(self, kind: str, **values: Any) -> None:
        self.link.send({"kind": kind, "id": self.id, **values})

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        return self.link.call(self.id, name, list(arguments))


class _RemoteLog(AttemptLog):
    """A log that sends every line to the worker, which stores it."""

    __slots__ = ("_remote",)

    def __init__(self, task: Task, remote: _RemoteAttempt) -> None:
        super().__init__(task)
        self._remote = remote

    def add_line(self, level: str, text: str) -> None:
        self._remote.send("log", level=level, text=self._redact(text))


class _RemoteContext(Context):
    """A context that sends progress and calls to the worker."""

    __slots__ = ("_remote", "_sent_at", "_sent_state")

    def __init__(self, task: Task, remote: _RemoteAttempt) -> None:
        super().__init__(task, _no_connection, lambda _task: _RemoteCheckpoints(remote))
        self._log = _RemoteLog(task, remote)
        self._remote = remote
        self._sent_at, self._sent_state = 0.0, self.progress_json

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        super().progress(done, total, message)
        if monotonic_seconds() - self._sent_at > PROGRESS_SECONDS:
            self.send_progress()

    def send_progress(self) -> None:
        """Send the progress if it has changed since it was sent."""
        state = self.progress_json
        if state is not self._sent_state:
            self._sent_at, self._sent_state = monotonic_seconds(), state
            self._remote.send("progress", state=state, step=self.current_step)


def _no_connection() -> Any:
    raise EngineError(
        "a job in a process of the cluster has no connection to Tenuto's database",
        code="job.remote.no_connection",
        remedy="open a connection in the job, or let a worker with the built-in executor serve its queue",
    )


class _RemoteCheckpoints(StepCheckpoints):
    """The step checkpoints of an attempt, which the worker stores."""

    def __init__(self, remote: _RemoteAttempt) -> None:
        self._remote = remote

    async def load(self) -> dict[str, str]:
        return cast("dict[str, str]", await self._call("load"))

    async def save(self, name: str, output: str) -> str:
        return str(await self._call("save", name, output))

    async def sleep(self, step: str, number: int, duration: timedelta, log: str | None) -> StepSleep:
        ends_at, has_ended = await self._call("sleep", step, number, duration.total_seconds())
        return StepSleep(number, parse_instant(ends_at, field="until"), has_ended)  # the worker continues the log

    async def wait_for_event(
        self, step: str, number: int, name: str, key: str, timeout: timedelta, log: str | None
    ) -> StepWait:
        event, found_key, ends_at, has_ended, has_timed_out, payload = await self._call(
            "wait_for_event", step, number, name, key, timeout.total_seconds()
        )
        instant = parse_instant(ends_at, field="until")
        return StepWait(number, event, found_key, instant, has_ended, has_timed_out, payload)

    async def run_child(self, step: str, child: NewTask, log: str | None) -> StepWait:
        raise EngineError(
            f"a workflow in a process of the cluster cannot run {child.name} as a child",
            code="workflow.child.remote",
            remedy="let a worker with the built-in executor serve the queue of the workflow; the child may run in the"
            " cluster",
        )

    async def _call(self, name: str, *arguments: Any) -> Any:
        return await asyncio.wrap_future(self._remote.call(name, *arguments))


class WorkerLink:
    """The connection to one worker. After a lost connection it sends unconfirmed messages again."""

    def __init__(self, request: LaunchRequest, place: Mapping[str, Any], exit_timer: _ExitTimer) -> None:
        self._addresses, self._port, self._token = request.addresses, request.port, request.token
        self._session = os.urandom(12).hex()
        self._place = {"pid": os.getpid(), "host": socket.gethostname(), **place}
        self._exit_timer = exit_timer
        self.is_closed = False
        self._attempts: dict[str, _RemoteAttempt] = {}
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._number = 0
        self._unconfirmed: deque[tuple[int, bytes]] = deque()
        self._received = 0
        """Number of the last message that the worker has received."""
        self._confirmed = threading.Condition(self._lock)
        self._permits: dict[str, queue.SimpleQueue[Message | None]] = {}
        self._calls: dict[int, Future[Any]] = {}
        self._pings: deque[float] = deque()
        """Instants of the pings that the worker has not answered yet."""
        self._connected = threading.Event()
        self._closed = threading.Event()
        self._is_refused = False
        """Whether the last connection was refused, because the worker has ended."""
        self._lines: IO[bytes] = io.BytesIO()
        self._opened_at = 0.0
        """Instant at which the connection was opened, before every permission that arrives over it."""
        self._give_up_at = 0.0
        """Instant until which a lost connection is opened again."""

    # --- for attempts -----------------------------------------------------------------------------------------------

    def connect(self) -> bool:
        """Open the connection; return whether the worker accepted it."""
        threading.Thread(target=self._keep_connected, name="tenuto-link", daemon=True).start()
        threading.Thread(target=self._keep_leases, name="tenuto-link-leases", daemon=True).start()
        self._connected.wait(CONNECT_SECONDS)
        return not self.is_closed and self._connected.is_set()

    def ask_to_start(
        self, attempt: _RemoteAttempt, fingerprint: dict[str, str | None], problem: str | None
    ) -> Message | None:
        """Return the permission of the worker to start an attempt, or None."""
        answer: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        asked_at = monotonic_seconds()
        with self._lock:
            self._permits[attempt.id] = answer
            self._attempts[attempt.id] = attempt
        self.send({"kind": "start", "id": attempt.id, "fingerprint": fingerprint, "problem": problem})
        if self.is_closed:
            answer.put(None)
        permit = answer.get()
        with self._lock:
            del self._permits[attempt.id]
            if permit is None or not permit["is_permitted"]:
                del self._attempts[attempt.id]
                return None
        attempt.extend_lease(max(asked_at, permit["opened_at"]), permit["lease"])
        attempt.is_permitted = True  # from now on its lease is checked
        self._set_exit_timer()
        return permit

    def report_end(self, attempt: _RemoteAttempt, outcome: Message) -> None:
        context = attempt.context
        final = {"progress": context.progress_json, "step": context.current_step}
        with self._lock:
            self._attempts.pop(attempt.id, None)
            attempt.end_number = self._append({"kind": "ended", "id": attempt.id, "outcome": outcome, **final})
        self._set_exit_timer()

    def wait_until_received(self, attempt: _RemoteAttempt) -> None:
        """Wait until the worker has the outcome of an attempt, at most until it records the attempt as lost."""
        with self._confirmed:
            self._confirmed.wait_for(
                lambda: self.is_closed or self._received >= attempt.end_number,
                timeout=max(attempt.exit_at - monotonic_seconds(), 0.0),
            )

    def call(self, id: str, name: str, arguments: list[Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            number = self._append({"kind": "call", "id": id, "name": name, "arguments": arguments})
            self._calls[number] = future
        return future

    def send(self, message: Message) -> None:
        with self._lock:
            self._append(message)

    def _append(self, message: Message) -> int:
        """Number a message, keep it until the worker confirms it, and send it if the connection is open."""
        self._number += 1
        line = encode_line({**message, "number": self._number})
        self._unconfirmed.append((self._number, line))
        self._write(line)
        return self._number

    def _write(self, line: bytes) -> None:
        if self._socket is not None:
            try:
                self._socket.sendall(line)
            except OSError:  # the reading thread connects again
                self._drop_socket()

    def _drop_socket(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket = None

    # --- connection -------------------------------------------------------------------------------------------------

    def _keep_connected(self) -> None:
        """Read messages. After a lost connection, connect again while attempts run and their leases last."""
        while True:
            opened = self._open()
            if opened is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._read()
                with self._lock:
                    self._socket = None
                with contextlib.suppress(OSError):
                    opened.close()
                with self._lock:
                    if not self._attempts and not self._unconfirmed:
                        break
            elif not self._is_worth_waiting():
                break
            if self._closed.wait(RECONNECT_DELAY_SECONDS):
                break
        self._close()

    def _is_worth_waiting(self) -> bool:
        return not self._is_refused and monotonic_seconds() < self._give_up_at

    def _open(self) -> socket.socket | None:
        """Connect to the first address at which the worker accepts this process; None if there is none."""
        self._is_refused = True
        for address in self._addresses:
            try:
                opened_at = monotonic_seconds()
                opened = socket.create_connection((address, self._port), CONNECT_SECONDS)
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _detect_loss(opened)
                hello = {"kind": "hello", "protocol": PROTOCOL, "token": self._token, "session": self._session}
                with self._lock:
                    attempts = list(self._attempts)
                    calls = list(self._calls)
                opened.sendall(encode_line({**hello, "place": self._place, "attempts": attempts, "calls": calls}))
                opened.settimeout(CONNECT_SECONDS)
                lines = opened.makefile("rb")
                welcome = _read_line(lines)
                if welcome is None or welcome["kind"] != "welcome":
                    opened.close()
                    continue
                opened.settimeout(None)
                self._lines, self._opened_at = lines, opened_at
                with self._lock:
                    self._confirm(welcome["received"])
                    self._pings.clear()
                    self._socket = opened
                    for _, line in self._unconfirmed:
                        self._write(line)
                self._connected.set()
                return opened
            except ConnectionRefusedError:  # the worker has ended
                continue
            except (OSError, ValueError):
                self._is_refused = False
        return None

    def _read(self) -> None:
        while (message := _read_line(self._lines)) is not None:
            match message["kind"]:
                case "pong":
                    self._on_pong(message)
                case "confirm":
                    with self._lock:
                        self._confirm(message["received"])
                case "permit":
                    with self._lock:
                        answer = self._permits.get(message["id"])
                    if answer is not None:
                        answer.put({**message, "opened_at": self._opened_at})
                case "stop":
                    self._stop(message["id"], StopReason[message["reason"]], message["actor"])
                case "reply":
                    self._on_reply(message)
                case _:
                    pass  # a kind of message of a later version

    def _on_pong(self, message: Message) -> None:
        with self._lock:
            self._confirm(message["received"])
            sent_at = self._pings.popleft()
            attempts = list(self._attempts.values())
        leases = message["leases"]
        for attempt in attempts:
            if attempt.id in leases:
                attempt.extend_lease(sent_at, leases[attempt.id])
            elif attempt.is_permitted:  # the worker does not hold the attempt any more
                attempt.attempt.stop(StopReason.LEASE_LOST)
        self._set_exit_timer()

    def _on_reply(self, message: Message) -> None:
        with self._lock:
            future = self._calls.pop(message["call"], None)
        if future is None:
            return
        if "error" in message:
            future.set_exception(EngineError(message["error"], code="executor.call_failed"))
        else:
            future.set_result(message["value"])

    def _confirm(self, received: int) -> None:
        self._received = max(self._received, received)
        while self._unconfirmed and self._unconfirmed[0][0] <= received:
            self._unconfirmed.popleft()
        self._confirmed.notify_all()

    def _stop(self, id: str, reason: StopReason, actor: Sequence[Any] | None) -> None:
        with self._lock:
            attempt = self._attempts.get(id)
        if attempt is not None:
            attempt.attempt.stop(reason, None if actor is None else Actor(ActorType(actor[0]), actor[1], actor[2]))

    # --- leases -----------------------------------------------------------------------------------------------------

    def _keep_leases(self) -> None:
        """Ping the worker, drop a connection on which it does not answer, and stop code whose lease has ended.

        The pings begin before the permission to start, so that a lost connection is detected while a launch waits.
        """
        pinged_at = 0.0
        while not self._closed.wait(CHECK_SECONDS):
            now = monotonic_seconds()
            with self._lock:
                attempts = list(self._attempts.values())
                due_at = pinged_at + min((each.ping_seconds for each in attempts), default=PING_SECONDS)
                is_due = now >= due_at and bool(attempts or self._unconfirmed)
                if self._socket is not None and self._pings and now > self._pings[0] + CONNECT_SECONDS:
                    self._drop_socket()  # the reading thread connects again and sends unconfirmed messages again
                if is_due:
                    pinged_at = now
                    if self._socket is not None:
                        self._pings.append(now)
                        self._write(encode_line({"kind": "ping"}))
            for attempt in attempts:
                if is_due:
                    attempt.context.send_progress()
                # An attempt has no lease before it is permitted, and its app may take long to import.
                if attempt.is_permitted and now > attempt.stop_at:  # guard: executors.remote_lease
                    attempt.attempt.stop(StopReason.LEASE_LOST)

    def _set_exit_timer(self) -> None:
        with self._lock:
            ends = [each.exit_at for each in self._attempts.values() if each.is_permitted]
            self._give_up_at = max([self._give_up_at, *(each.stop_at for each in self._attempts.values())])
            self._exit_timer.set(self, ends)

    def _close(self) -> None:
        """Close the connection for good: the worker has ended, or no attempt is left."""
        self.is_closed = True
        self._closed.set()
        self._connected.set()
        with self._lock:
            self._confirmed.notify_all()
            attempts, permits, calls = list(self._attempts.values()), list(self._permits.values()), self._calls
            self._calls = {}
        for answer in permits:
            answer.put(None)
        for attempt in attempts:
            attempt.attempt.stop(StopReason.LEASE_LOST)
        for future in calls.values():
            future.cancel()


class _ExitTimer:
    """Ends this process when its first lease ends, by a timer that needs no Python thread."""

    def __init__(self) -> None:
        self._ends: dict[WorkerLink, float] = {}
        self._lock = threading.Lock()
        self._file = open(os.devnull, "wb") if sys.__stderr__ is None else None  # noqa: SIM115, PTH123 — kept open

    def set(self, link: WorkerLink, ends: Sequence[float]) -> None:
        with self._lock:
            if ends:
                self._ends[link] = min(ends)
            else:
                self._ends.pop(link, None)
            if not self._ends:
                faulthandler.cancel_dump_traceback_later()
                return
            seconds = max(min(self._ends.values()) - monotonic_seconds(), 0.001)
            file = self._file or sys.__stderr__
            assert file is not None
            # guard: executors.remote_exit
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)


def _detect_loss(connection: socket.socket) -> None:
    """Make the operating system close a connection within seconds after the other side has become silent.

    By default a write fails after 15 minutes and an idle connection stays open. Options that the system does not have
    are left out.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = int(CONNECT_SECONDS)
    options = {"TCP_KEEPIDLE": seconds, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": seconds, "TCP_USER_TIMEOUT": 1000 * seconds}
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _read_line(lines: IO[bytes]) -> Message | None:
    line = lines.readline(MAX_LINE_BYTES)
    return cast(Message, from_json(line)) if line.endswith(b"\n") else None
