"""Python processes forked from an interpreter that has already imported the needed modules.

A start takes milliseconds instead of most of a second. Each process has its own directory, environment, streams,
signals and exit code, and runs a module (``-m tenuto …``) or a program like the interpreter. It cannot test a cold
start: the import order, and files that only a starting interpreter reads.

Run as a program, this file is the interpreter that forks. It receives one order per datagram, with the three streams
and a connection for the answers: first the pid, later the exit code. When the process that sends orders is gone, it
kills everything it started.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import IO, Any, TypeAlias

PRELOADED_MODULES = (
    "tenuto.app",
    "tenuto.cli.command_tree",
    "tenuto.cli.definitions.manifests",
    "tenuto.cli.definitions.plans",
    "tenuto.cli.definitions.schedules",
    "tenuto.cli.work.batches",
    "tenuto.cli.work.dead_letters",
    "tenuto.testing",
    "tenuto_identity.cli.commands",
    "tenuto_identity.extension",
    "tenuto_identity.runs.run_lifecycle",
    "asyncpg",
    "rich.live",
    "rich.table",
)

_MAX_ORDER_BYTES = 1 << 20


# ---- sending orders

Process: TypeAlias = "_ForkedProcess | subprocess.Popen[str]"


class _ForkedProcess:
    """A forked process with the interface of a `subprocess.Popen` in text mode."""

    def __init__(self, arguments: Sequence[str], pipes: Sequence[IO[str] | None], answers: socket.socket) -> None:
        self.args = arguments
        self.stdin, self.stdout, self.stderr = pipes
        self.returncode: int | None = None
        self._answers = answers
        self.pid = int(answers.recv(100))

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal; None while the process runs."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = int(self._answers.recv(100))
            self._answers.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._answers], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], input: str = "", timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `python …` to its end, like `subprocess.run` with captured text."""
    process = start(arguments, cwd=cwd, env=env, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + timeout
    with process.stdout, process.stderr, ThreadPoolExecutor(3) as threads:
        threads.submit(_write_input, process.stdin, input)
        output, errors = threads.submit(process.stdout.read), threads.submit(process.stderr.read)
        try:
            out, err = (each.result(deadline - time.monotonic()) for each in (output, errors))
            code = process.wait(deadline - time.monotonic())
        except TimeoutError:
            process.kill()
            raise subprocess.TimeoutExpired(process.args, timeout) from None
    return subprocess.CompletedProcess(process.args, code, out, err)


def _write_input(stdin: IO[str], text: str) -> None:
    with suppress(BrokenPipeError), stdin:  # it may have stopped reading
        stdin.write(text)


def start(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> Process:
    """Start `python …`. A stream is a pipe, `DEVNULL`, or a descriptor."""
    if sys.platform != "linux":  # forking without exec is not safe on every platform
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        return subprocess.Popen([sys.executable, *arguments], cwd=cwd, env=dict(env), text=True, **streams)
    answers, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    order = json.dumps({"arguments": list(arguments), "folder": os.fspath(cwd), "environment": dict(env)})
    ends = [_stream_ends(stdin, "w"), _stream_ends(stdout, "r"), _stream_ends(stderr, "r")]
    with line:
        socket.send_fds(_connect_to_interpreter(), [order.encode()], [line.fileno(), *(theirs for theirs, _ in ends)])
    for theirs, _ in ends:
        os.close(theirs)
    return _ForkedProcess(arguments, [ours for _, ours in ends], answers)


def _stream_ends(stream: int, mode: str) -> tuple[int, IO[str] | None]:
    """Return the end of a stream that is passed on, and our end."""
    if stream == subprocess.PIPE:
        reading, writing = os.pipe()
        theirs, ours = (writing, reading) if mode == "r" else (reading, writing)
        return theirs, os.fdopen(ours, mode, encoding="utf-8")
    return os.open(os.devnull, os.O_RDWR) if stream == subprocess.DEVNULL else os.dup(stream), None


@cache
def _connect_to_interpreter() -> socket.socket:
    """Return the connection to the forking interpreter, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# ---- receiving orders


class _OrderReceiver:
    """Forks a process for each order and reports its exit."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._answers: dict[int, socket.socket] = {}
        self._deaths, wake = socket.socketpair()
        for each in (self._deaths, wake):
            each.setblocking(False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; it is meant for the started ones
        signal.set_wakeup_fd(wake.fileno())

    def wait_for_order(self) -> dict[str, Any] | None:
        """Serve orders until the sender is gone (None); in a forked process, return its order."""
        while True:
            for ready in select.select([self._orders, self._deaths], [], [])[0]:
                if ready is self._deaths:
                    self._deaths.recv(1000)
                    self._report_exits()
                    continue
                text, descriptors, _, _ = socket.recv_fds(self._orders, _MAX_ORDER_BYTES, 4)
                if not text:
                    for pid in self._answers:
                        os.kill(pid, signal.SIGKILL)
                    return None
                if self._fork(*descriptors):
                    order: dict[str, Any] = json.loads(text)
                    return order

    def _fork(self, descriptor: int, *streams: int) -> bool:
        answers = socket.socket(fileno=descriptor)
        if pid := os.fork():
            self._answers[pid] = answers
            for each in streams:
                os.close(each)
            answers.send(str(pid).encode())
            return False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for place, stream in enumerate(streams):
            os.dup2(stream, place)
            os.close(stream)
        for line in (self._orders, self._deaths, self._wake, answers, *self._answers.values()):
            line.close()
        return True

    def _report_exits(self) -> None:
        while self._answers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with (
                self._answers.pop(pid) as answers,
                suppress(BrokenPipeError),
            ):  # the sender may not wait for it any more
                answers.send(str(os.waitstatus_to_exitcode(status)).encode())


def _prepare_process(order: dict[str, Any], path: Sequence[str]) -> tuple[ModuleType, Any]:
    """Set directory, environment, path and arguments as a fresh interpreter would have them; return the code to run."""
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    main = sys.modules["__main__"] = ModuleType("__main__")
    first, *rest = order["arguments"]
    if first == "-m":
        sys.path[:] = [order["folder"], *given, *path]
        name = rest.pop(0)
        found = find_spec(name)
        if found is not None and found.submodule_search_locations is not None:
            found = find_spec(f"{name}.__main__")
        assert found is not None, f"no module named {name}"
        assert found.origin is not None
        main.__spec__, main.__file__ = found, found.origin
    else:
        sys.path[:] = [str(Path(first).resolve().parent), *given, *path]
        main.__file__ = first
    sys.argv[:] = [main.__file__, *rest]
    return main, compile(Path(main.__file__).read_bytes(), main.__file__, "exec", dont_inherit=True)


def _stream(descriptor: int, mode: str, *, line_buffering: bool = False) -> io.TextIOWrapper:
    raw = open(descriptor, f"{mode}b", closefd=False)  # noqa: SIM115 — for as long as the process lives
    errors = "backslashreplace" if line_buffering else "strict"
    return io.TextIOWrapper(raw, "utf-8", errors, line_buffering=line_buffering or raw.isatty())


def _run(order: dict[str, Any], path: Sequence[str]) -> None:
    """Run to the end of the process. Exceptions reach the interpreter itself."""
    already = set(sys.modules)
    main, code = _prepare_process(order, path)
    try:
        exec(code, main.__dict__)
        answer: object = None
    except SystemExit as end:
        if not (end.code is None or isinstance(end.code, int)):
            raise
        answer = end.code
    # An exiting interpreter frees everything, which takes longer than most commands. This one frees only the objects
    # of this run.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for module in [main, *(sys.modules[name] for name in set(sys.modules) - already)]:
        module.__dict__.clear()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(answer & 0xFF if isinstance(answer, int) else 0)


if __name__ == "__main__":
    _path = sys.path[1 + len([each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]) :]
    for _name in PRELOADED_MODULES:
        import_module(_name)
    gc.collect()
    gc.freeze()
    _order = _OrderReceiver(socket.socket(fileno=int(sys.argv[1]))).wait_for_order()
    if _order is not None:
        _run(_order, _path)
