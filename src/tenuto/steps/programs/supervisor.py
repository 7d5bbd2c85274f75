"""The supervisor: a small process between a worker and a program, which kills everything the program leaves behind.

`program` starts it as a script, with an interpreter that loads as little as possible; it imports nothing of Tenuto. It
starts the program in a new session, reports its end to the worker, and kills all its processes: after the end of the
program, after a stop and its grace period, and when the worker has ended (the socket closes, and the kernel sends a
signal). On Linux it adopts orphaned descendants, so that daemons cannot escape.

The worker sends one request (its length, then fields that end with NUL) and later may send T (SIGTERM, then SIGKILL
after the grace period) or K (SIGKILL at once). The answers are lines: ``started PID``, ``refused ERRNO PATH``,
``ended CODE``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_DESCRIPTOR_PATH = b"/proc/self/fd/"
_MAX_KILL_CYCLES = 500
_KILL_CYCLE_MILLISECONDS = 10
"""Five seconds in all. Processes that live longer belong to another user and cannot be killed."""


class Request:
    """The program to run."""

    def __init__(self, fields: list[bytes]) -> None:
        self.path, self.folder, self.scratch, grace, count, *rest = fields
        self.grace = float(grace)
        self.argv = rest[: int(count)]
        self.env = dict(pair.split(b"=", 1) for pair in rest[int(count) :])


class Supervisor:
    """Runs one program to its end."""

    def __init__(self, control: int, worker_pid: int) -> None:
        self._control = control
        self._worker_pid = worker_pid
        self._wake_read, wake_write = os.pipe()
        for end in (self._wake_read, wake_write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # guard: programs.adopt_orphans
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        self._grace = 0.0
        self._pid = 0
        self._code: int | None = None

    def run(self) -> None:
        fields = _read_request(self._control)
        if fields is None or os.getppid() != self._worker_pid:
            return
        request = Request(fields)
        self._grace = request.grace
        try:
            start_error = self._start(request)
            if start_error is None:
                self._send(b"started %d" % self._pid)
                self._watch()
            self._kill_remaining()
        finally:
            _remove_tree(request.scratch)
        self._send(b"ended %d" % (self._code or 0) if start_error is None else b"refused " + start_error)

    def _start(self, request: Request) -> bytes | None:
        """Start the program; return the error if that fails."""
        error_read, error_write = os.pipe()
        supervisor_pid = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            _exec_program(request, supervisor_pid, error_write)
        os.close(error_write)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # only the program holds its streams now, so that the worker sees their end
            os.dup2(null, stream)
        os.close(null)
        start_error = os.read(error_read, 4096)
        os.close(error_read)
        return start_error or None

    def _watch(self) -> None:
        """Handle signals and commands until the program has ended."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        while self._code is None:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._wake_read in ready:
                self._handle_signals(os.read(self._wake_read, 512))
            if self._control in ready and self._code is None:
                self._handle_commands(poller)

    def _handle_signals(self, numbers: bytes) -> None:
        self._reap()
        # The kernel also sends SIGTERM when only the starting thread has ended; then the worker is alive.
        worker_ended = signal.SIGTERM in numbers and os.getppid() != self._worker_pid
        if self._code is None and (worker_ended or signal.SIGALRM in numbers):
            self._kill()

    def _handle_commands(self, poller: select.poll) -> None:
        try:
            commands = os.read(self._control, 512)
        except OSError:
            commands = b""
        if not commands:
            poller.unregister(self._control)
        if not commands or b"K" in commands:
            self._kill()
        elif b"T" in commands:
            _signal_group(self._pid, signal.SIGTERM)
            _signal_group(self._pid, signal.SIGCONT)  # a stopped process would not receive it
            if not signal.getitimer(signal.ITIMER_REAL)[0]:
                signal.setitimer(signal.ITIMER_REAL, max(self._grace, 0.001))

    def _kill(self) -> None:
        _signal_group(self._pid, signal.SIGKILL)
        for pid in _descendants(os.getpid()):  # guard: programs.kill_descendants
            _kill_one(pid)

    def _reap(self) -> bool:
        """Reap ended children; return whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._pid:
                self._code = os.waitstatus_to_exitcode(status)

    def _kill_remaining(self) -> None:
        _signal_group(self._pid, signal.SIGKILL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pause = select.poll()
        for _ in range(_MAX_KILL_CYCLES):
            if not self._reap():
                return
            self._kill()
            pause.poll(_KILL_CYCLE_MILLISECONDS)

    def _send(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # the worker has ended
            os.write(self._control, line.replace(b"\n", b" ") + b"\n")


def _exec_program(request: Request, supervisor_pid: int, error_write: int) -> None:
    """Replace the new process by the program. Never returns."""
    path = b""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor_pid:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _disable_core_dumps()
        path = request.folder
        os.chdir(request.folder)
        path = request.path
        if request.path.startswith(_DESCRIPTOR_PATH):
            # The interpreter of a script opens it again; for other programs the descriptor is closed.
            program = int(request.path.rpartition(b"/")[2])
            os.set_inheritable(program, os.pread(program, 2, 0) == b"#!")
        os.execve(request.path, request.argv, request.env)
    except OSError as error:
        os.write(error_write, b"%d %s" % (error.errno or 0, path))
    finally:
        os._exit(127)


def _disable_core_dumps() -> None:
    """Keep the memory of a program that got secrets off the disk."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_request(control: int) -> list[bytes] | None:
    length = _read(control, 8)
    text = _read(control, int.from_bytes(length, "big")) if length is not None else None
    return None if text is None else text.split(b"\0")[:-1]


def _read(descriptor: int, size: int) -> bytes | None:
    """Read so many bytes; None if the worker closes the socket before."""
    found = bytearray()
    while len(found) < size:
        try:
            part = os.read(descriptor, size - len(found))
        except OSError:
            return None
        if not part:
            return None
        found += part
    return bytes(found)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _kill_one(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _descendants(ancestor: int) -> list[int]:
    """Return all descendants of a process that are visible."""
    if sys.platform != "linux":
        return []
    children_of: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 — hundreds of Path objects would be slow
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123 — importing pathlib is slow
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            children_of.setdefault(parent, []).append(int(name))
    found: list[int] = []
    pending = [ancestor]
    while pending:
        children = children_of.get(pending.pop(), [])
        found += children
        pending += children
    return found


def _remove_tree(folder: bytes) -> None:
    """Remove the scratch folder without following links."""
    if not folder:
        return
    for top, folders, files in os.walk(folder, topdown=False):
        for name in files + folders:
            path = os.path.join(top, name)  # noqa: PTH118 — bytes
            try:
                os.unlink(path)  # noqa: PTH108
            except OSError:
                _remove_folder(path)
    _remove_folder(folder)


def _remove_folder(path: bytes) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(path)  # noqa: PTH106


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)
    Supervisor(int(sys.argv[1]), int(sys.argv[2])).run()
