"""What the executors on a cluster have in common: leases, permissions, lost connections, without an engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tenuto.clock import monotonic_seconds
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.model.work.tasks import OutcomeReason, OutcomeStatus
from tenuto.worker.executors import Executor, ExecutorContext, cluster
from tenuto.worker.executors.attempt_messages import LaunchRequest, encode_line
from tenuto.worker.executors.attempt_server import Session
from tenuto.worker.executors.cluster import ClusterExecutor, ClusterTiming, EngineUnavailable, _Launch
from tenuto.worker.executors.remote_runner import CHECK_SECONDS
from tests.support.errors import raises_code
from tests.support.waiting import eventually_blocking
from tests.worker.executors import conformance_jobs
from tests.worker.executors.cluster_tests import APP, is_alive, pid_of, ticks_of
from tests.worker.executors.conformance import ANA, Conformance, ExecutorHarness, wait_until_written
from tests.worker.executors.process_engine import NOT_STARTED, ProcessEngine
from tests.worker.executors.relay import Relay


class TestProcessEngine(Conformance):
    """Conformance of the executor on a cluster, with the smallest engine."""

    runs_elsewhere = True

    def make_executor(self, context: ExecutorContext) -> Executor:
        return ClusterExecutor(context, ProcessEngine(), APP)


class _Harness(ExecutorHarness):
    """A harness with access to engine and executor."""

    def __init__(self, engine: ProcessEngine, timing: ClusterTiming) -> None:
        self.engine = engine
        self.cluster: ClusterExecutor

        def make_executor(context: ExecutorContext) -> Executor:
            self.cluster = ClusterExecutor(context, engine, APP, timing=timing)
            return self.cluster

        super().__init__(make_executor)

    def start_with_lease(self, seconds: float, file: Path, *, blocks: bool = False) -> Attempt:
        """Start code with a lease that no watchdog renews; it runs from the start of the code."""
        attempt = self.start(conformance_jobs.block if blocks else conformance_jobs.tick, file)
        wait_until_written(file)
        attempt.renewed_at = monotonic_seconds()
        attempt.lease_expires_at = attempt.renewed_at + seconds
        (launch,) = self.cluster._launches.values()
        eventually_blocking(lambda: launch.exit_at < attempt.lease_expires_at, what="the next ping")
        return attempt

    def assert_lost(self, attempt: Attempt, *, because: str = "") -> None:
        outcome = self.wait_for_outcome(attempt)
        assert outcome is not None
        assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, OutcomeReason.LOST)
        assert because in str(outcome.error)

    def drop_connections(self) -> None:
        """Close all connections, as a broken network does."""
        for session in list(self.cluster._server._sessions.values()):
            self.cluster._loop.call_soon_threadsafe(session.disconnect)


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture
def engine() -> ProcessEngine:
    return ProcessEngine()


@pytest.fixture
def harness(engine: ProcessEngine) -> Iterator[_Harness]:
    harness = _Harness(engine, ClusterTiming(force_seconds=0.3, reconnect_seconds=0.3))
    yield harness
    harness.close_and_expect_no_results()


def test_launch_that_the_engine_delivers_twice_starts_once(
    harness: _Harness, engine: ProcessEngine, tmp_path: Path
) -> None:
    engine.deliveries = 2
    file = tmp_path / "ticks"
    attempt = harness.start(conformance_jobs.tick, file)
    wait_until_written(file)
    (launched,) = engine.processes.values()
    eventually_blocking(lambda: any(process.exitcode is not None for process in launched), timeout=60)
    assert sorted(process.exitcode or 0 for process in launched) == [0, NOT_STARTED]
    attempt.stop(StopReason.CANCELLED, ANA)
    harness.wait_for_outcome(attempt)
    assert len({line.split()[0] for line in ticks_of(file)}) == 1, "no second copy has started"


class _LatePermits(ClusterExecutor):
    """Lets a process wait for its permission longer than it waits between two checks of leases."""

    def _permit(self, launch: _Launch, session: Session) -> None:
        self._renew_lease(launch)  # as a permission that is sent at once does
        self._loop.call_later(2 * CHECK_SECONDS, super()._permit, launch, session)


def test_attempt_whose_app_takes_long_to_import_is_not_lost_before_it_starts() -> None:
    slow_app = "tests.worker.executors.slow_app:app"
    harness = ExecutorHarness(lambda context: _LatePermits(context, ProcessEngine(), slow_app))
    outcome = harness.run(conformance_jobs.double, 21)
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED, "42")
    harness.close_and_expect_no_results()


def test_code_stops_when_its_lease_is_not_renewed(harness: _Harness, tmp_path: Path) -> None:
    file = tmp_path / "ticks"
    attempt = harness.start_with_lease(4.0, file)
    harness.assert_lost(attempt, because="it stopped because its lease was not renewed in time")
    assert monotonic_seconds() < attempt.lease_expires_at
    ticks = ticks_of(file)
    eventually_blocking(lambda: not is_alive(pid_of(file)), timeout=60)
    assert ticks_of(file) == ticks


def test_process_exits_if_its_code_does_not_stop_before_the_lease_ends(harness: _Harness, tmp_path: Path) -> None:
    file = tmp_path / "ticks"
    attempt = harness.start_with_lease(4.0, file, blocks=True)
    pid = pid_of(file)
    try:
        eventually_blocking(lambda: not is_alive(pid), timeout=30)
        assert monotonic_seconds() < attempt.lease_expires_at
        harness.assert_lost(attempt)
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
            harness.wait_for_outcome(attempt)


def test_frozen_process_is_lost_when_its_lease_has_ended(harness: _Harness, tmp_path: Path) -> None:
    file = tmp_path / "ticks"
    attempt = harness.start_with_lease(4.0, file)
    os.kill(pid_of(file), signal.SIGSTOP)
    try:
        eventually_blocking(lambda: attempt.has_ended, timeout=30)
        assert monotonic_seconds() > attempt.lease_expires_at - 1
    finally:
        os.kill(pid_of(file), signal.SIGCONT)
        harness.assert_lost(attempt)


def test_attempt_continues_after_a_lost_connection_and_its_log_is_complete(harness: _Harness, tmp_path: Path) -> None:
    attempt = harness.start(conformance_jobs.report_progress, tmp_path / "flag")
    eventually_blocking(lambda: '"kneading"' in (attempt.context.progress_json or ""), timeout=60)
    (session,) = harness.cluster._server._sessions.values()
    first = session._writer
    harness.drop_connections()
    eventually_blocking(lambda: session._writer not in (None, first), timeout=60)
    (tmp_path / "flag").touch()
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert (outcome.status, attempt.stop_reason) == (OutcomeStatus.COMPLETED, None)
    assert outcome.log is not None
    assert outcome.log.count("kneading") == 1, "messages that were sent again are handled once"


@pytest.fixture
def relay(harness: _Harness) -> Iterator[Relay]:
    """A relay through which the processes reach the worker."""
    server = harness.cluster._server
    relay = Relay(server.port)
    server.port = relay.port
    yield relay
    relay.close()


def test_launch_starts_over_another_connection_where_the_first_is_silent(harness: _Harness, relay: Relay) -> None:
    relay.is_silent_after_welcome = True
    asked_at = monotonic_seconds()
    outcome = harness.run(conformance_jobs.double, 21)
    assert (outcome.status, outcome.output) == (OutcomeStatus.COMPLETED, "42")
    assert b'"start"' in relay.swallowed
    assert relay.count == 2
    assert monotonic_seconds() - asked_at < harness.cluster._timing.start_seconds


def test_attempt_continues_over_another_connection_where_the_first_is_silent(
    harness: _Harness, relay: Relay, tmp_path: Path
) -> None:
    attempt = harness.start(conformance_jobs.report_progress, tmp_path / "flag")
    eventually_blocking(lambda: '"kneading"' in (attempt.context.progress_json or ""), timeout=60)
    relay.silence()
    eventually_blocking(lambda: relay.count == 2, timeout=60, what="another connection")
    (tmp_path / "flag").touch()
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert (outcome.status, attempt.stop_reason) == (OutcomeStatus.COMPLETED, None)


def test_process_ends_only_after_the_worker_has_its_result(harness: _Harness, relay: Relay, tmp_path: Path) -> None:
    attempt = harness.start(conformance_jobs.report_progress, tmp_path / "flag")
    eventually_blocking(lambda: '"kneading"' in (attempt.context.progress_json or ""), timeout=60)
    relay.silence()
    (tmp_path / "flag").touch()
    eventually_blocking(lambda: b'"ended"' in relay.swallowed, timeout=60)
    relay.close_connections()
    outcome = harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (OutcomeStatus.COMPLETED, None)
    ((process,),) = harness.engine.processes.values()
    eventually_blocking(lambda: not process.is_alive(), timeout=60, what="end of the process")


def test_launch_that_no_process_starts_returns_without_an_attempt() -> None:
    harness = _Harness(ProcessEngine(deliveries=0), ClusterTiming(start_seconds=1.0))
    outcome = harness.wait_for_outcome(harness.start(conformance_jobs.double, 1))
    assert outcome is not None
    assert outcome.deferral is not None
    assert outcome.started_at is None
    assert outcome.progress is not None
    message = json.loads(outcome.progress)["message"]
    assert "it waited 1 s in the cluster" in message
    assert f"127.0.0.1:{harness.cluster._server.port}" in message
    harness.close_and_expect_no_results()


def test_session_of_a_process_that_died_while_it_ran_code_is_forgotten(harness: _Harness, tmp_path: Path) -> None:
    file = tmp_path / "ticks"
    attempt = harness.start(conformance_jobs.tick, file)
    wait_until_written(file)
    os.kill(pid_of(file), signal.SIGKILL)
    harness.assert_lost(attempt)
    assert harness.cluster._server._sessions == {}


class _StubbornEngine(ProcessEngine):
    """Cannot kill processes: it says so, or the cluster does not answer."""

    is_answering = True

    def force_stop(self, id: str, place: dict[str, Any]) -> bool:
        if not self.is_answering:
            raise EngineUnavailable("the broker is away")
        return False


@pytest.mark.parametrize(
    ("is_answering", "reason"), [(True, "runs other attempts"), (False, "the broker is away")], ids=["no", "no answer"]
)
def test_code_that_cannot_be_killed_is_not_logged_as_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_answering: bool, reason: str
) -> None:
    engine = _StubbornEngine()
    engine.is_answering = is_answering
    harness = _Harness(engine, ClusterTiming(force_seconds=0.3))
    file = tmp_path / "ticks"
    attempt = harness.start(conformance_jobs.block, file)
    wait_until_written(file)
    attempt.stop(StopReason.CANCELLED, ANA)
    eventually_blocking(lambda: "unstoppable code not killed" in caplog.text, timeout=30)
    assert reason in caplog.text
    assert "unstoppable code killed" not in caplog.text
    os.kill(pid_of(file), signal.SIGKILL)
    harness.wait_for_outcome(attempt)
    harness.close_and_expect_no_results()


class _LateEngine(ProcessEngine):
    """The name of its host is unknown at first."""

    host = "no-such-host.invalid"

    def connect(self) -> None:
        if self.is_known:
            self.host = "127.0.0.1"

    is_known = False


def test_worker_waits_for_a_cluster_whose_host_is_not_known_yet(caplog: pytest.LogCaptureFixture) -> None:
    engine = _LateEngine()
    harness = _Harness(engine, ClusterTiming())
    assert "no-such-host.invalid" in caplog.text
    assert harness.cluster._addresses == []
    engine.is_known = True
    assert harness.run(conformance_jobs.double, 21).output == "42"
    harness.close_and_expect_no_results()


class _SilentEngine(ProcessEngine):
    """A cluster that stops answering: calls do not return."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.answers = threading.Event()
        self.is_abandoned = False

    def count_slots(self) -> int:
        self.asked.set()
        self.answers.wait()
        return 0

    def submit(self, requests: Sequence[LaunchRequest]) -> None:
        self.answers.wait()

    def abandon(self) -> None:
        self.is_abandoned = True


def test_worker_ends_while_the_cluster_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "CLOSE_SECONDS", 0.2)
    engine = _SilentEngine()
    harness = _Harness(engine, ClusterTiming())
    assert engine.asked.wait(10)
    closed = threading.Thread(target=harness.close_and_expect_no_results, daemon=True)
    closed.start()
    closed.join(20)
    has_ended = not closed.is_alive()
    engine.answers.set()
    closed.join(20)
    assert has_ended
    assert engine.is_abandoned


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("worker.example.org", ("worker.example.org", 0)),
        ("10.0.0.7:9322", ("10.0.0.7", 9322)),
        ("[10.0.0.7]:9322", ("10.0.0.7", 9322)),
        ("2001:db8::7", ("2001:db8::7", 0)),
        ("[2001:db8::7]", ("2001:db8::7", 0)),
        ("[2001:db8::7]:9322", ("2001:db8::7", 9322)),
    ],
)
def test_callback_is_a_host_with_or_without_a_port(text: str, expected: tuple[str, int]) -> None:
    assert cluster.parse_callback(text) == expected


@pytest.mark.parametrize("text", ["", ":9322", "host:port", "host:70000", "2001:db8::7]:9322", "a:b:c"])
def test_callback_that_is_not_an_address_is_refused(text: str) -> None:
    with raises_code("worker.executor.callback_invalid"):
        cluster.parse_callback(text)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not _has_ipv6(), reason="no ::1"))]
)
def test_processes_reach_a_worker_at_its_callback(host: str) -> None:
    harness = ExecutorHarness(lambda context: ClusterExecutor(context, ProcessEngine(), APP, callback=f"[{host}]:0"))
    assert harness.run(conformance_jobs.double, 21).output == "42"
    harness.close_and_expect_no_results()


class _MovingEngine(ProcessEngine):
    """Knows its host only after it has connected, like Ray."""

    def connect(self) -> None:
        self.host = "::1"


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no second loopback address, ::1")
def test_worker_listens_where_the_engine_is_once_it_has_connected() -> None:
    harness = _Harness(_MovingEngine(), ClusterTiming())
    assert harness.run(conformance_jobs.double, 21).output == "42"
    assert harness.cluster._addresses == ["::1"]  # the only address that the process was given
    harness.close_and_expect_no_results()


@pytest.mark.parametrize(("host", "is_warned"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_worker_warns_if_other_machines_cannot_reach_it(
    host: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    engine = ProcessEngine()
    engine.host = host
    _Harness(engine, ClusterTiming()).close_and_expect_no_results()
    assert ("worker not reachable from other machines" in caplog.text) is is_warned


def test_server_answers_only_processes_that_know_its_token(harness: _Harness) -> None:
    server = harness.cluster._server
    hello = {"kind": "hello", "protocol": 1, "session": "s", "place": {}, "attempts": [], "calls": []}
    for token, answers in ((server.token, True), ("guessed", False)):
        with socket.create_connection((harness.cluster._addresses[0], server.port), 10) as connection:
            connection.sendall(encode_line({**hello, "token": token}))
            assert bool(connection.recv(1000)) is answers
