"""A small process between a worker and a program it runs: what sees to it that nothing of the program is left behind.

Started by `programs` as a script of its own, with an interpreter that loads next to nothing; imports nothing of
Tenuto's. It starts the program in a session of its own, tells the worker how it ended, and ends everything that is
left of it: when the program has ended, when it was told to stop and the grace is over, and when the worker is gone,
however that came about (the socket to it closes, and the kernel says so). On Linux it adopts what the program leaves
without a parent, so that not even a daemon gets away.

The worker sends one order (its length, then fields that end with NUL) and later may send T (stop: SIGTERM, and SIGKILL
after the grace) or K (kill now). The answers are lines: ``started PID``, ``refused ERRNO WHAT``, ``ended CODE``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OPEN_FILE = b"/proc/self/fd/"
_ROUNDS = 500
_ROUND_MS = 10
"""How long it tries to end what is left: five seconds. What cannot be killed by then (another user's) is not ours."""


class Order:
    """What to run, and how."""

    def __init__(self, fields: list[bytes]) -> None:
        self.path, self.folder, self.scratch, grace, count, *rest = fields
        self.grace = float(grace)
        self.argv = rest[: int(count)]
        self.env = dict(pair.split(b"=", 1) for pair in rest[int(count) :])


class Guardian:
    """The life of one program."""

    def __init__(self, control: int, worker: int) -> None:
        self._control = control
        self._worker = worker
        self._woken, wake = os.pipe()
        for end in (self._woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _ask_the_kernel(_PR_SET_CHILD_SUBREAPER, 1)
        _ask_the_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
        self._grace = 0.0
        self._pid = 0
        self._code: int | None = None

    def live(self) -> None:
        given = _read_order(self._control)
        if given is None or os.getppid() != self._worker:
            return
        order = Order(given)
        self._grace = order.grace
        try:
            refusal = self._start(order)
            if refusal is None:
                self._say(b"started %d" % self._pid)
                self._watch()
            self._end_what_is_left()
        finally:
            _remove(order.scratch)
        self._say(b"ended %d" % (self._code or 0) if refusal is None else b"refused " + refusal)

    def _start(self, order: Order) -> bytes | None:
        """Start the program; why it could not be, if so."""
        told, tell = os.pipe()
        guardian = os.getpid()
        self._pid = os.fork()
        if not self._pid:
            _become(order, guardian, tell)
        os.close(tell)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # from here on they are the program's alone, so that their end can be seen
            os.dup2(nothing, stream)
        os.close(nothing)
        refusal = os.read(told, 4096)
        os.close(told)
        return refusal or None

    def _watch(self) -> None:
        """Until the program has ended."""
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        while self._code is None:
            ready = {descriptor for descriptor, _ in poller.poll()}
            if self._woken in ready:
                self._hear_signals(os.read(self._woken, 512))
            if self._control in ready and self._code is None:
                self._hear_worker(poller)

    def _hear_signals(self, numbers: bytes) -> None:
        self._reap()
        # The kernel's word comes also when only the thread has ended that started us: then the worker lives.
        worker_is_gone = signal.SIGTERM in numbers and os.getppid() != self._worker
        if self._code is None and (worker_is_gone or signal.SIGALRM in numbers):
            self._kill()

    def _hear_worker(self, poller: select.poll) -> None:
        try:
            words = os.read(self._control, 512)
        except OSError:
            words = b""
        if not words:
            poller.unregister(self._control)
        if not words or b"K" in words:
            self._kill()
        elif b"T" in words:
            _signal_group(self._pid, signal.SIGTERM)
            _signal_group(self._pid, signal.SIGCONT)  # one that is stopped would not hear it
            if not signal.getitimer(signal.ITIMER_REAL)[0]:
                signal.setitimer(signal.ITIMER_REAL, max(self._grace, 0.001))

    def _kill(self) -> None:
        _signal_group(self._pid, signal.SIGKILL)
        for pid in _descendants(os.getpid()):
            _kill_one(pid)

    def _reap(self) -> bool:
        """Bury the dead; whether anybody lives."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self._pid:
                self._code = os.waitstatus_to_exitcode(status)

    def _end_what_is_left(self) -> None:
        _signal_group(self._pid, signal.SIGKILL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        pause = select.poll()
        for _ in range(_ROUNDS):
            if not self._reap():
                return
            self._kill()
            pause.poll(_ROUND_MS)

    def _say(self, words: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(self._control, words.replace(b"\n", b" ") + b"\n")


def _become(order: Order, guardian: int, tell: int) -> None:
    """In the new process: turn into the program. Comes back in no case."""
    what = b""
    try:
        os.setsid()
        _ask_the_kernel(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _no_core_dumps()
        what = order.folder
        os.chdir(order.folder)
        what = order.path
        if order.path.startswith(_OPEN_FILE):
            # A script is opened once more, by what its first line names; of anything else nothing stays open.
            program = int(order.path.rpartition(b"/")[2])
            os.set_inheritable(program, os.pread(program, 2, 0) == b"#!")
        os.execve(order.path, order.argv, order.env)
    except OSError as error:
        os.write(tell, b"%d %s" % (error.errno or 0, what))
    finally:
        os._exit(127)


def _no_core_dumps() -> None:
    """The memory of a program that was given secrets does not go to disk."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_order(control: int) -> list[bytes] | None:
    length = _read(control, 8)
    text = _read(control, int.from_bytes(length, "big")) if length is not None else None
    return None if text is None else text.split(b"\0")[:-1]


def _read(descriptor: int, size: int) -> bytes | None:
    """So many bytes; None if the other side is gone before."""
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
    """Everything below a process, as far as it can be seen."""
    if sys.platform != "linux":
        return []
    below: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 — a hundred paths would be made for nothing
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:  # noqa: PTH123 — loading pathlib takes longer than all else
                    parent = int(stat.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _remove(folder: bytes) -> None:
    """Take the attempt's own folder away, without following a link out of it."""
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


def _ask_the_kernel(what: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(what, value, 0, 0, 0)


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)
    Guardian(int(sys.argv[1]), int(sys.argv[2])).live()
