"""Running a program: found, started with a clean environment, listened to, ended for good.

Never through a shell: an argument is one argument, whatever is in it. Between worker and program stands a guardian
process, which ends everything the program started; see there. What goes wrong before the program has begun is final,
since it would go wrong the next time too.

Ends what a program has left behind when nobody watched over it: its guardian was killed, by hand or by the system.

Such processes are known by the attempt their environment speaks of, which children inherit. Only where ``/proc`` shows
it; one that has thrown its environment away is not found. Kills nothing that belongs to another attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tenuto.clock import steady
from tenuto.errors import EngineError
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.model.secrets import Text
from tenuto.settings import Settings
from tenuto.steps.programs.output import Input, Output, inert
from tenuto.steps.step_kinds import Means

GUARDIAN = Path(__file__).with_name("guardian.py")
KEPT = 64 * 1024
GRACE = 5.0
_INHERITED = ("HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "TMPDIR", "TZ", "USER")
_LAST_WORDS = 2.0
"""How long a stream may stay open after everything has ended: somebody out of reach may hold it."""
_IN_THE_ERROR = 2000
_PIPE = 256 * 1024


class NoSuchProgram(PermanentFailure):
    """There is no program of that name on this machine."""


class ProgramFailed(EngineError):
    """A program ended in a way that is not set down as success."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a program is run, and how its end is understood."""

    success_codes: Sequence[int] = (0,)
    warning_codes: Sequence[int] = ()
    keep: int = KEPT
    grace: float = GRACE


@dataclass(frozen=True, slots=True)
class Command:
    """What is started."""

    path: str
    """The file itself, behind every link; or a copy of what was in it, if that was checked."""
    argv: Sequence[str]
    env: Mapping[str, str]
    folder: str
    scratch: str = ""
    """A folder of the attempt's own, taken away when everything has ended; or none."""
    stdin: str | None = None
    checked: int | None = None
    """An open file the program is read from, if it is that and not ``path`` by which it is found."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What is kept of a run."""

    exit_code: int
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    duration_seconds: float


@dataclass(slots=True)
class _Run:
    """A program that runs, or has run."""

    guardian: subprocess.Popen[bytes]
    control: socket.socket
    out: Output
    err: Output
    pid: int | None = None
    answer: list[bytes] = field(default_factory=list)
    ordered: bool = False
    """The whole order is on its way: before, a word would become part of it."""
    unsaid: list[bytes] = field(default_factory=list)

    def stop(self, *, at_once: bool) -> None:
        word = b"K" if at_once else b"T"
        if not self.ordered:
            self.unsaid.append(word)
            return
        with contextlib.suppress(OSError):
            self.control.send(word)

    async def order(self, order: bytes) -> bool:
        """Have the guardian start the program, unless somebody wants it stopped already; whether it was told to."""
        if self.unsaid:
            return False
        await asyncio.get_running_loop().sock_sendall(self.control, order)
        self.ordered = True
        if self.unsaid:
            self.stop(at_once=b"K" in self.unsaid)
        return True


# --- which program ----------------------------------------------------------------------------------------------------


def find(program: str, settings: Settings) -> tuple[str, str]:
    """(what it is called, the file itself) of a program that may be run here."""
    named = program
    if "/" not in program:
        named = shutil.which(program, path=search_path(settings)) or ""
        if not named:
            raise NoSuchProgram(
                f"there is no program named {program!r} in {search_path(settings)}",
                field="program",
                remedy="install it on this machine, give its whole path, or set TENUTO_PROGRAM_PATH",
            )
    try:
        real = Path(named).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise PermanentFailure(
            f"{named} cannot be found: {error}", field="program", remedy="see whether it is on this machine"
        ) from error
    if not real.is_file() or not os.access(real, os.X_OK):
        raise PermanentFailure(f"{named} is not a program", field="program", remedy=f"make it one: chmod +x {real}")
    refuse_outside(named, real, settings, field="program")
    return named, str(real)


def search_path(settings: Settings) -> str:
    return os.pathsep.join(str(folder) for folder in settings.program_path)


def refuse_outside(named: str, real: Path, settings: Settings, *, field: str) -> None:
    """Only what is listed may be run, if there is a list; a link does not lead out of it."""
    if not settings.programs:
        return
    for allowed in settings.programs:
        root = allowed.resolve()
        if real == root or root in real.parents:
            return
    behind = "" if str(real) == named else f" (in truth {real})"
    raise PermanentFailure(
        f"{named}{behind} is none of the programs that may be run here",
        field=field,
        remedy="list it, or its folder, in TENUTO_PROGRAMS of the worker",
    )


def check_digest(file: Path | str, digest: str | None, *, field: str) -> bytes | None:
    """What is in a file, if it is what was said; nothing is read if nothing was said."""
    if digest is None:
        return None
    content = Path(file).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise PermanentFailure(
            f"{file} is not the file it was: its SHA-256 differs", field=field, remedy="see who changed it, and why"
        )
    return content


# --- its surroundings -------------------------------------------------------------------------------------------------


async def environment(ctx: Context, means: Means, given: Mapping[str, Text]) -> dict[str, str]:
    """All that a program finds in its environment."""
    revealed = {name: await reveal(ctx, means, value, field=f"env.{name}") for name, value in given.items()}
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    ours = {
        "TENUTO_TASK_ID": str(ctx.task_id),
        "TENUTO_ATTEMPT": str(ctx.attempt),
        "TENUTO_FENCE": str(ctx.fence),
        "TENUTO_IDEMPOTENCY_KEY": ctx.idempotency_key,
    }
    return {**inherited, "PATH": search_path(means.settings()), **revealed, **ours}


async def reveal(ctx: Context, means: Means, value: Text, *, field: str) -> str:
    """A text, or the secret that stands for it."""
    text = await means.reveal(ctx, value)
    if "\0" in text and field != "stdin":
        raise PermanentFailure("the secret contains a NUL character", field=field, remedy="pass it by stdin")
    return text


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder nobody else can look into. The guardian takes it away, also if the worker is gone by then; here it is
    only seen to that it is gone if no guardian has come to be."""
    folder = tempfile.mkdtemp(prefix="tenuto-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- running it -------------------------------------------------------------------------------------------------------


async def run(ctx: Context, command: Command, rules: Rules) -> ProgramResult:
    """Run a program to its end. If the attempt is told to stop, so is the program, and everything it started."""
    began = steady()
    run, streams = _start(ctx, command, rules)
    attending = asyncio.ensure_future(_attend(run, streams, command, rules))
    stopped = False
    while not attending.done():
        try:
            await asyncio.wait([attending])
        except asyncio.CancelledError:  # each time somebody presses; the guardian needs to be told only once
            stopped = True
            run.stop(at_once=ctx.lease_lost)
    attending.result()
    if stopped:
        raise asyncio.CancelledError
    code = _code(run, command)
    result = ProgramResult(
        code, run.out.tail(), run.err.tail(), run.out.total, run.err.total, round(steady() - began, 3)
    )
    name = Path(command.argv[0]).name
    if code in rules.warning_codes:
        ctx.warn(f"{name} ended with exit code {code}, which is set down as a warning")
    elif code not in rules.success_codes:
        raise ProgramFailed(_how_it_failed(name, code, result))
    return result


@dataclass(frozen=True, slots=True)
class _Streams:
    """Our ends."""

    out: int
    err: int
    stdin: int | None


def _start(ctx: Context, command: Command, rules: Rules) -> tuple[_Run, _Streams]:
    """Start the guardian. It waits for its order, so nothing has begun yet."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        control, to_guardian = socket.socketpair()
        ours.callback(control.close)
        theirs.callback(to_guardian.close)
        out, to_out = _wide_pipe(ours, theirs)
        err, to_err = _wide_pipe(ours, theirs)
        from_in, stdin = _pipe(theirs, ours) if command.stdin is not None else (None, None)
        guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARDIAN), str(to_guardian.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL if from_in is None else from_in,
            stdout=to_out,
            stderr=to_err,
            pass_fds=[to_guardian.fileno()] if command.checked is None else [to_guardian.fileno(), command.checked],
            env={},
            cwd="/",
            start_new_session=True,
        )
        ours.pop_all()  # from here on whoever attends to the program closes them
    control.setblocking(False)
    run = _Run(guardian, control, Output("stdout", ctx.log, rules.keep), Output("stderr", ctx.log, rules.keep))
    return run, _Streams(out, err, stdin)


def _wide_pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe that takes much at a time, where the system has such: a flood is then cheaper to hear."""
    reading, writing = _pipe(reader, writer)
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE)
    return reading, writing


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose two ends are closed with what they belong to."""
    reading, writing = os.pipe()
    reader.callback(os.close, reading)
    writer.callback(os.close, writing)
    return reading, writing


async def _attend(run: _Run, streams: _Streams, command: Command, rules: Rules) -> None:
    """See a program through. Never cancelled: whoever wants an end of it tells the guardian."""
    given = Input()
    try:
        await _connect(streams, run, given)
        if not await run.order(_order(command, rules)):
            return
        given.give(command.stdin or "")
        await _hear_the_guardian(run)
        if not run.answer and run.pid is not None:
            # It was killed itself: the program has died with it, but not what that had started.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(run.pid, signal.SIGKILL)
            await asyncio.to_thread(end, command.env)
        await asyncio.wait([run.out.ended, run.err.ended], timeout=_LAST_WORDS)
    finally:
        given.close()
        run.out.close()
        run.err.close()
        run.control.close()
        await _bury(run)


async def _connect(streams: _Streams, run: _Run, given: Input) -> None:
    """Have the loop take over our ends; it closes them, but for those it could not take."""
    loop = asyncio.get_running_loop()
    left = [os.fdopen(descriptor, "rb", buffering=0) for descriptor in (streams.out, streams.err)]
    if streams.stdin is not None:
        left.append(os.fdopen(streams.stdin, "wb", buffering=0))
    try:
        for output in (run.out, run.err):
            await loop.connect_read_pipe(lambda output=output: output, left[0])  # type: ignore[misc]
            del left[0]
        if left:
            await loop.connect_write_pipe(lambda: given, left[0])
            del left[0]
    finally:
        for end in left:
            with contextlib.suppress(OSError):
                end.close()


async def _hear_the_guardian(run: _Run) -> None:
    """Until it has nothing more to say."""
    loop = asyncio.get_running_loop()
    heard = b""
    while True:
        try:
            words = await loop.sock_recv(run.control, 8192)
        except ConnectionError:
            words = b""
        if not words:
            return
        *lines, heard = (heard + words).split(b"\n")
        for line in lines:
            if line.startswith(b"started "):
                run.pid = int(line.split()[1])
            else:
                run.answer = line.split(b" ", 2)


async def _bury(run: _Run) -> None:
    """The guardian ends by itself once it has answered, or once the socket is closed."""
    deadline = steady() + 2 * GRACE
    while run.guardian.poll() is None:
        if steady() > deadline:
            run.guardian.kill()
        await asyncio.sleep(0.002)


def _order(command: Command, rules: Rules) -> bytes:
    fields = [
        command.path, command.folder, command.scratch, str(rules.grace), str(len(command.argv)), *command.argv,
        *(f"{name}={value}" for name, value in command.env.items()),
    ]  # fmt: skip
    text = b"".join(each.encode("utf-8", "surrogateescape") + b"\0" for each in fields)
    return len(text).to_bytes(8, "big") + text


def _code(run: _Run, command: Command) -> int:
    """How the program ended: its exit code, or minus the signal."""
    if not run.answer:
        raise ProgramFailed("the process that watched over the program was killed, and the program with it")
    word, value, *rest = run.answer
    if word == b"ended":
        return int(value)
    number, where = int(value), os.fsdecode(rest[0] if rest else b"")
    if where == command.folder:
        raise PermanentFailure(
            f"{where} cannot be the working folder: {os.strerror(number)}",
            field="folder",
            remedy="see whether it is on this machine, and whether the worker may enter it",
        )
    raise PermanentFailure(
        f"{command.argv[0]} could not be started: {os.strerror(number)}",
        field="program",
        remedy="see whether it is made for this machine, and whether what its first line (#!) names is there",
    )


def _how_it_failed(name: str, code: int, result: ProgramResult) -> str:
    if code < 0:
        known = f" ({signal.Signals(-code).name})" if -code in set(signal.Signals) else ""
        how = f"was ended by signal {-code}{known}"
    else:
        how = f"ended with exit code {code}"
    said = result.stderr.strip()[-_IN_THE_ERROR:]
    return f"{inert(name)} {how}" + (f": {said}" if said else "; it wrote nothing to stderr")


MARKS = ("TENUTO_TASK_ID", "TENUTO_ATTEMPT", "TENUTO_FENCE")
_ROUNDS = 50
_PAUSE = 0.02


def end(environment: Mapping[str, str]) -> None:
    """Kill whatever runs with the marks of this environment, and what that starts meanwhile. Blocks for a moment."""
    marks = {f"{name}={environment[name]}".encode() for name in MARKS if name in environment}
    if len(marks) < len(MARKS):
        return
    for _ in range(_ROUNDS):
        strays = list(_with(marks))
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE)


def _with(marks: set[bytes]) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # gone, or somebody else's
            continue
        if marks <= set(found):
            yield int(entry.name)
