"""Programs as steps: their arguments, how a program is found, started, supervised and ended.

No shell is involved: an argument is passed as it is. Between worker and program runs a supervisor process, which kills
everything the program started (see `supervisor`). A failure before the start of the program is permanent, because a
retry would fail in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from tenuto.clock import monotonic_seconds
from tenuto.errors import EngineError, Invalid, quoted
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.model.access.secrets import SecretRef, TextOrSecret
from tenuto.model.work.logical_time import format_logical_time
from tenuto.settings import Settings
from tenuto.steps.built_in_kinds import StepServices
from tenuto.steps.programs.output import OutputReader, StdinWriter, escape_control_characters

SUPERVISOR_SCRIPT = Path(__file__).with_name("supervisor.py")
DEFAULT_OUTPUT_BYTES = 64 * 1024
DEFAULT_GRACE_SECONDS = 5.0
MAX_ARGUMENT_COUNT = 4096
MAX_ARGUMENT_BYTES = 128 * 1024 - 1
"""The limit of Linux for one argument or variable."""
MAX_PATH_BYTES = 4096
MAX_VARIABLE_COUNT = 256
MAX_OUTPUT_BYTES = 200_000
_INHERITED_VARIABLES = ("HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "TMPDIR", "TZ", "USER")
_HARMLESS_VARIABLES = re.compile(r"LANG|LANGUAGE|LC_[A-Z]+|TZ")
"""Variables that no program takes for an instruction."""
_DRAIN_SECONDS = 2.0
"""How long a stream may stay open after the end of the program: an escaped process may hold it."""
_MAX_STDERR_CHARACTERS = 2000
_PIPE_BYTES = 256 * 1024
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_CODE_VARIABLES = re.compile(
    # Variables that change which code a program runs: loader, interpreters, shells; and the variables of Tenuto.
    r"LD_.*|DYLD_.*|PYTHON.*|PERL.*|RUBY.*|NODE_.*|BASH_.*|DOTNET_.*|COMPLUS_.*|CORECLR_.*|GIT_.*|TENUTO_.*"
    r"|PATH|PATHEXT|ENV|IFS|SHELL|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|CDPATH|GLOBIGNORE|PSMODULEPATH|GCONV_PATH"
    r"|LOCPATH|NLSPATH|HOSTALIASES|RESOLV_.*|RES_OPTIONS|CLASSPATH|JAVA_TOOL_OPTIONS|_JAVA_OPTIONS|JDK_JAVA_OPTIONS"
    r"|GLIBC_TUNABLES|MALLOC_.*|OPENSSL_CONF|OPENSSL_MODULES|SSLKEYLOGFILE|COMSPEC|R_HOME|LUA_.*|TCLLIBPATH",
    re.IGNORECASE,  # guard: programs.code_variables_in_any_case
)


class NoSuchProgram(PermanentFailure):
    """There is no program of that name on this machine."""


class ProgramFailed(EngineError):
    """A program ended with a code that does not mean success."""


# --- arguments: checked before a definition is stored, without access to the machine ----------------------------------


def _check_text(text: str, name: str, *, limit: int = MAX_ARGUMENT_BYTES) -> str:
    if "\0" in text:
        raise Invalid(
            f"{name} contains a NUL character", code="step.program.nul_character", field=name, remedy="remove it"
        )
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise Invalid(
            f"{name} is larger than {limit:,} bytes",
            code="step.program.argument_too_large",
            field=name,
            remedy="pass it by stdin or in a file",
        )
    return text


def _check_program(text: str) -> str:
    _check_text(text, "program", limit=MAX_PATH_BYTES)
    if not text or text in (".", "..") or ("/" in text and not text.startswith("/")) or "\\" in text:
        raise Invalid(
            f"program {quoted(text)} is neither an absolute path nor a file name",
            code="step.program.path_invalid",
            field="program",
            remedy="write /the/whole/path, or the name of a program in TENUTO_PROGRAM_PATH",
        )
    return text


def _reject_numbers(value: Any) -> Any:
    """Reject unquoted numbers of a definition file: 010 and 1e3 would become other texts."""
    if isinstance(value, bool | int | float):
        raise Invalid(
            f"argument {value!r} is not a text",
            code="step.program.args.not_text",
            field="args",
            remedy="put it in quotes",
        )
    return value


def _check_args(values: list[TextOrSecret]) -> list[TextOrSecret]:
    if len(values) > MAX_ARGUMENT_COUNT:
        raise Invalid(
            f"args has {len(values):,} entries; at most {MAX_ARGUMENT_COUNT:,} are allowed",
            code="step.program.args.too_many",
            field="args",
            remedy="pass the values by stdin or in a file",
        )
    for number, value in enumerate(values):
        if isinstance(value, SecretRef):
            raise Invalid(
                f"args.{number} is a secret, and every user of the machine can read the arguments of a program",
                code="step.program.args.secret",
                field=f"args.{number}",
                remedy="pass the secret by env or stdin",
            )
        _check_text(value, f"args.{number}")
    return values


def _check_env(values: dict[str, TextOrSecret]) -> dict[str, TextOrSecret]:
    if len(values) > MAX_VARIABLE_COUNT:
        raise Invalid(
            f"env has {len(values):,} variables; at most {MAX_VARIABLE_COUNT} are allowed",
            code="step.program.env.too_many",
            field="env",
        )
    for name, value in values.items():
        if not _VARIABLE_NAME.fullmatch(name):
            raise Invalid(
                f"{quoted(name)} is not a valid variable name",
                code="step.program.env.name_invalid",
                field="env",
                remedy="use A-Z, a-z, 0-9 and _",
            )
        if _CODE_VARIABLES.fullmatch(name):  # guard: programs.code_variables
            raise Invalid(
                f"variable {name} cannot be set: it decides which code runs, or is reserved for Tenuto",
                code="step.program.env.reserved",
                field=f"env.{name}",
                remedy="set TENUTO_PROGRAM_PATH for the worker" if name.upper() == "PATH" else "remove it",
            )
        if isinstance(value, str):
            _check_text(value, f"env.{name}")
    return values


def _check_folder(text: str | None) -> str | None:
    if text is not None:
        check_absolute_path(text, "folder")
    return text


def check_absolute_path(text: str, name: str) -> str:
    _check_text(text, name, limit=MAX_PATH_BYTES)
    if not text.startswith("/"):
        raise Invalid(
            f"{name} {quoted(text)} is not an absolute path",
            code="step.program.path_invalid",
            field=name,
            remedy="write /the/whole/path",
        )
    return text


def _check_warning_codes(codes: list[int], info: ValidationInfo) -> list[int]:
    before: Mapping[str, Any] = info.data or {}
    both = sorted(set(codes) & set(before.get("field_success_codes") or ()))
    if both:
        raise Invalid(
            f"exit code {both[0]} is listed in success_codes and in warning_codes",
            code="step.program.exit_codes.ambiguous",
            field="warning_codes",
        )
    return codes


def _check_digest(text: str | None) -> str | None:
    if text is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise Invalid(
            "sha256 is not a SHA-256 digest",
            code="step.program.digest.invalid",
            field="sha256",
            remedy="give the 64 digits printed by `sha256sum FILE`",
        )
    return text and text.lower()


Program = Annotated[str, AfterValidator(_check_program)]
Arguments = Annotated[list[Annotated[TextOrSecret, BeforeValidator(_reject_numbers)]], AfterValidator(_check_args)]
Environment = Annotated[dict[str, TextOrSecret], AfterValidator(_check_env)]
Folder = Annotated[str | None, AfterValidator(_check_folder)]
ExitCodes = Annotated[list[Annotated[int, Field(ge=0, le=255)]], Field(max_length=256)]
SuccessCodes = Annotated[ExitCodes, Field(min_length=1)]
WarningCodes = Annotated[ExitCodes, AfterValidator(_check_warning_codes)]
OutputLimit = Annotated[int, Field(ge=0, le=MAX_OUTPUT_BYTES)]
GraceSeconds = Annotated[float, Field(ge=0, le=300)]
Digest = Annotated[str | None, AfterValidator(_check_digest)]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a program run, and the exit codes that mean success."""

    success_codes: Sequence[int] = (0,)
    warning_codes: Sequence[int] = ()
    output_limit: int = DEFAULT_OUTPUT_BYTES
    grace_seconds: float = DEFAULT_GRACE_SECONDS


@dataclass(frozen=True, slots=True)
class Command:
    """The program to start."""

    path: str
    """The file behind all links, or its pinned copy."""
    argv: Sequence[str]
    env: Mapping[str, str]
    folder: str
    scratch: str = ""
    """A private folder of the attempt, removed after the end of all processes; may be empty."""
    stdin: str | None = None
    descriptor: int | None = None
    """Open descriptor of a pinned copy in memory, if ``path`` refers to one."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The stored result of a run."""

    exit_code: int
    stdout: str
    stderr: str
    stdout_bytes: int
    stderr_bytes: int
    duration_seconds: float


# --- finding the program ----------------------------------------------------------------------------------------------


def find_program(program: str, settings: Settings) -> tuple[str, str]:
    """Return (path as named, file behind all links) of a program that may run here."""
    named = program
    if "/" not in program:
        named = shutil.which(program, path=search_path(settings)) or ""
        if not named:
            raise NoSuchProgram(
                f"there is no program named {program!r} in {search_path(settings)}",
                code="step.program.not_found",
                field="program",
                remedy="install it on this machine, give its whole path, or set TENUTO_PROGRAM_PATH",
            )
    try:
        real = Path(named).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise PermanentFailure(
            f"program {named} cannot be found: {error}",
            code="step.program.not_found",
            field="program",
            remedy="check whether it is installed on this machine",
        ) from error
    if not real.is_file() or not os.access(real, os.X_OK):
        raise PermanentFailure(
            f"{named} is not an executable file",
            code="step.program.not_executable",
            field="program",
            remedy=f"make it executable: chmod +x {real}",
        )
    check_allowed(named, real, settings, field="program")
    return named, str(real)


def search_path(settings: Settings) -> str:
    return os.pathsep.join(str(folder) for folder in settings.program_path)


def check_allowed(named: str, real: Path, settings: Settings, *, field: str) -> None:
    """Reject a file that the setting ``programs`` does not list, if it is set; links are resolved before."""
    if not settings.programs:
        return
    for allowed in settings.programs:
        root = allowed.resolve()
        if real == root or root in real.parents:  # guard: programs.links_out_of_allowlist
            if root != real and is_foreign_hard_link(real.stat(), root.stat()):  # guard: programs.hard_links
                continue
            return
    target = "" if str(real) == named else f" (a link to {real})"
    raise PermanentFailure(
        f"{named}{target} is not one of the programs that may run here",
        code="step.program.not_allowed",
        field=field,
        remedy="list it, or its folder, in TENUTO_PROGRAMS of the worker",
    )


def is_foreign_hard_link(file: os.stat_result, folder: os.stat_result) -> bool:
    """Return whether a file of a listed folder has further names and belongs to another user than the folder: it may be
    a hard link to a program outside."""
    return file.st_nlink > 1 and file.st_uid != folder.st_uid


def check_variables(names: Iterable[str], path: str, settings: Settings) -> None:
    """Reject variables that the setting ``program_variables`` does not list, if ``programs`` is set: many programs run
    others that a variable names."""
    if not settings.programs:
        return
    for name in names:
        # guard: programs.listed_variables
        if _HARMLESS_VARIABLES.fullmatch(name) or {name, f"{path}:{name}"} & set(settings.program_variables):
            continue
        raise PermanentFailure(
            f"variable {name} may not be set for {path} here: it could make the program run another one",
            code="step.program.env.not_allowed",
            field=f"env.{name}",
            remedy=f"list {name}, or {path}:{name}, in TENUTO_PROGRAM_VARIABLES of the worker",
        )


def check_digest(file: Path | str, digest: str | None, *, field: str) -> bytes | None:
    """Return the content of a file with the given digest; None, without reading it, if there is no digest."""
    if digest is None:
        return None
    content = Path(file).read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise PermanentFailure(
            f"the SHA-256 digest of {file} differs from the expected one",
            code="step.program.digest.mismatch",
            field=field,
            remedy="find out who changed the file, and why",
        )
    return content


# --- environment and input --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """Environment, standard input and arguments with all secrets revealed."""

    env: dict[str, str]
    stdin: str | None
    args: list[str]


async def reveal_input(
    ctx: Context,
    services: StepServices,
    env: Mapping[str, TextOrSecret],
    stdin: TextOrSecret | None,
    args: Sequence[TextOrSecret],
) -> ProgramInput:
    """Reveal the secrets of a step. The environment also gets a few inherited variables and those of Tenuto."""
    revealed = {name: await _reveal(ctx, services, value, field=f"env.{name}") for name, value in env.items()}
    inherited = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    own = {
        "TENUTO_TASK_ID": str(ctx.task_id),
        "TENUTO_ATTEMPT": str(ctx.attempt),
        "TENUTO_FENCE": str(ctx.fence),
        "TENUTO_IDEMPOTENCY_KEY": ctx.idempotency_key,
        "TENUTO_SCHEDULED_FOR": format_logical_time(ctx.scheduled_for),
    }
    if ctx.interval is not None:
        own["TENUTO_INTERVAL_START"], own["TENUTO_INTERVAL_END"] = map(format_logical_time, ctx.interval)
    return ProgramInput(
        env={**inherited, "PATH": search_path(services.get_settings()), **revealed, **own},
        stdin=None if stdin is None else await _reveal(ctx, services, stdin, field="stdin"),
        args=[await _reveal(ctx, services, each, field="args") for each in args],
    )


async def _reveal(ctx: Context, services: StepServices, value: TextOrSecret, *, field: str) -> str:
    text = await services.reveal_secret(ctx, value)
    if "\0" in text and field != "stdin":
        raise PermanentFailure(
            f"the secret for {field} contains a NUL character",
            code="step.program.nul_character",
            field=field,
            remedy="pass it by stdin",
        )
    return text


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """Create a private folder. The supervisor removes it, even if the worker is dead; else it is removed here."""
    folder = tempfile.mkdtemp(prefix="tenuto-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- running it -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """A started supervisor and its program."""

    supervisor: subprocess.Popen[bytes]
    control: socket.socket
    stdout: OutputReader
    stderr: OutputReader
    pid: int | None = None
    answer: list[bytes] = field(default_factory=list)
    is_request_sent: bool = False
    """Commands wait until the request is sent completely; else they would become part of it."""
    pending_commands: list[bytes] = field(default_factory=list)

    def stop(self, *, at_once: bool) -> None:
        command = b"K" if at_once else b"T"  # guard: programs.kill_at_once
        if not self.is_request_sent:
            self.pending_commands.append(command)
            return
        with contextlib.suppress(OSError):
            self.control.send(command)

    async def start_program(self, request: bytes) -> bool:
        """Send the request to the supervisor; return False if a stop was requested before."""
        if self.pending_commands:
            return False
        await asyncio.get_running_loop().sock_sendall(self.control, request)
        self.is_request_sent = True
        if self.pending_commands:
            self.stop(at_once=b"K" in self.pending_commands)
        return True


@dataclass(frozen=True, slots=True)
class _Streams:
    """The worker's ends of the pipes."""

    stdout: int
    stderr: int
    stdin: int | None


async def run(ctx: Context, command: Command, options: RunOptions) -> ProgramResult:
    """Run a program to its end. A stop of the attempt stops the program and everything it started."""
    started_at = monotonic_seconds()
    run, streams = _start_supervisor(ctx, command, options)
    supervision = asyncio.ensure_future(_supervise_run(run, streams, command, options))
    stopped = False
    while not supervision.done():
        try:
            await asyncio.wait([supervision])
        except asyncio.CancelledError:  # once for each stop request
            stopped = True
            run.stop(at_once=ctx.lease_lost)
    supervision.result()
    if stopped:
        raise asyncio.CancelledError
    code = _exit_code(run, command)
    result = ProgramResult(
        code,
        run.stdout.tail(),
        run.stderr.tail(),
        run.stdout.byte_count,
        run.stderr.byte_count,
        round(monotonic_seconds() - started_at, 3),
    )
    name = Path(command.argv[0]).name
    if code in options.warning_codes:
        ctx.warn(f"{name} ended with exit code {code}, which is listed in warning_codes")
    elif code not in options.success_codes:
        raise ProgramFailed(_failure_message(name, code, result), code="step.program.failed")
    return result


def _start_supervisor(ctx: Context, command: Command, options: RunOptions) -> tuple[_Run, _Streams]:
    """Start the supervisor. It waits for the request before it starts the program."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        control, supervisor_end = socket.socketpair()
        ours.callback(control.close)
        theirs.callback(supervisor_end.close)
        stdout, stdout_write = _large_pipe(ours, theirs)
        stderr, stderr_write = _large_pipe(ours, theirs)
        stdin_read, stdin = _pipe(theirs, ours) if command.stdin is not None else (None, None)
        descriptors = [supervisor_end.fileno()]
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR_SCRIPT), str(supervisor_end.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL if stdin_read is None else stdin_read,
            stdout=stdout_write,
            stderr=stderr_write,
            pass_fds=descriptors if command.descriptor is None else [*descriptors, command.descriptor],
            env={},
            cwd="/",
            start_new_session=True,
        )
        ours.pop_all()  # from here on `_supervise_run` closes them
    control.setblocking(False)
    stdout_reader = OutputReader("stdout", ctx.log, options.output_limit)
    stderr_reader = OutputReader("stderr", ctx.log, options.output_limit)
    return _Run(supervisor, control, stdout_reader, stderr_reader), _Streams(stdout, stderr, stdin)


def _large_pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Create a pipe with a large buffer, where the system offers it: much output is then cheaper to read."""
    reading, writing = _pipe(reader, writer)
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return reading, writing


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    reading, writing = os.pipe()
    reader.callback(os.close, reading)
    writer.callback(os.close, writing)
    return reading, writing


async def _supervise_run(run: _Run, streams: _Streams, command: Command, options: RunOptions) -> None:
    """Start the program and wait for its end. Never cancelled: a stop is sent to the supervisor."""
    stdin = StdinWriter()
    try:
        await _connect_streams(streams, run, stdin)
        if not await run.start_program(_encode_request(command, options)):
            return
        stdin.write(command.stdin or "")
        await _read_supervisor(run)
        if not run.answer and run.pid is not None:
            # The supervisor was killed. The program died with it, but not the processes that the program started.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(run.pid, signal.SIGKILL)
            await asyncio.to_thread(kill_orphans, command.env)
        await asyncio.wait([run.stdout.ended, run.stderr.ended], timeout=_DRAIN_SECONDS)
    finally:
        stdin.close()
        run.stdout.close()
        run.stderr.close()
        run.control.close()
        await _reap_supervisor(run)


async def _connect_streams(streams: _Streams, run: _Run, stdin: StdinWriter) -> None:
    """Connect the pipes to the event loop, which closes them; those that cannot be connected are closed here."""
    loop = asyncio.get_running_loop()
    left = [os.fdopen(descriptor, "rb", buffering=0) for descriptor in (streams.stdout, streams.stderr)]
    if streams.stdin is not None:
        left.append(os.fdopen(streams.stdin, "wb", buffering=0))
    try:
        for reader in (run.stdout, run.stderr):
            await loop.connect_read_pipe(lambda reader=reader: reader, left[0])  # type: ignore[misc]
            del left[0]
        if left:
            await loop.connect_write_pipe(lambda: stdin, left[0])
            del left[0]
    finally:
        for pipe in left:
            with contextlib.suppress(OSError):
                pipe.close()


async def _read_supervisor(run: _Run) -> None:
    """Read the answers of the supervisor until it closes the socket."""
    loop = asyncio.get_running_loop()
    partial_line = b""
    while True:
        try:
            data = await loop.sock_recv(run.control, 8192)
        except ConnectionError:
            data = b""
        if not data:
            return
        *lines, partial_line = (partial_line + data).split(b"\n")
        for line in lines:
            if line.startswith(b"started "):
                run.pid = int(line.split()[1])
            else:
                run.answer = line.split(b" ", 2)


async def _reap_supervisor(run: _Run) -> None:
    """Wait for the supervisor, which ends after its last answer or when the socket closes."""
    deadline = monotonic_seconds() + 2 * DEFAULT_GRACE_SECONDS
    while run.supervisor.poll() is None:
        if monotonic_seconds() > deadline:
            run.supervisor.kill()
        await asyncio.sleep(0.002)


def _encode_request(command: Command, options: RunOptions) -> bytes:
    fields = [
        command.path, command.folder, command.scratch, str(options.grace_seconds), str(len(command.argv)),
        *command.argv, *(f"{name}={value}" for name, value in command.env.items()),
    ]  # fmt: skip
    text = b"".join(each.encode("utf-8", "surrogateescape") + b"\0" for each in fields)
    return len(text).to_bytes(8, "big") + text


def _exit_code(run: _Run, command: Command) -> int:
    """Return the exit code of the program, or minus the signal that ended it."""
    if not run.answer:
        raise ProgramFailed(
            "the supervisor process of the program was killed, and the program with it",
            code="step.program.supervisor_killed",
        )
    kind, value, *rest = run.answer
    if kind == b"ended":
        return int(value)
    number, path = int(value), os.fsdecode(rest[0] if rest else b"")
    if path == command.folder:
        raise PermanentFailure(
            f"the working folder {path} cannot be entered: {os.strerror(number)}",
            code="step.program.folder.unusable",
            field="folder",
            remedy="check whether it exists on this machine, and whether the worker may enter it",
        )
    raise PermanentFailure(
        f"program {command.argv[0]} could not be started: {os.strerror(number)}",
        code="step.program.start_failed",
        field="program",
        remedy="check whether it is built for this machine, and whether the interpreter in its first line (#!) exists",
    )


def _failure_message(name: str, code: int, result: ProgramResult) -> str:
    if code < 0:
        signal_name = f" ({signal.Signals(-code).name})" if -code in set(signal.Signals) else ""
        cause = f"was ended by signal {-code}{signal_name}"
    else:
        cause = f"ended with exit code {code}"
    stderr = result.stderr.strip()[-_MAX_STDERR_CHARACTERS:]
    return f"{escape_control_characters(name)} {cause}" + (f": {stderr}" if stderr else "; it wrote nothing to stderr")


# --- processes left behind by a killed supervisor ---------------------------------------------------------------------

ORPHAN_VARIABLES = ("TENUTO_TASK_ID", "TENUTO_ATTEMPT", "TENUTO_FENCE")
"""Variables that identify the attempt; child processes inherit them."""
_MAX_KILL_CYCLES = 50
_KILL_PAUSE_SECONDS = 0.02


def kill_orphans(environment: Mapping[str, str]) -> None:
    """Kill the processes whose environment names this attempt, and those they start meanwhile. Blocks shortly.

    Needs ``/proc``. A process that has cleared its environment is not found; other attempts are not affected.
    """
    marks = {f"{name}={environment[name]}".encode() for name in ORPHAN_VARIABLES if name in environment}
    if len(marks) < len(ORPHAN_VARIABLES):
        return
    for _ in range(_MAX_KILL_CYCLES):
        orphans = list(_find_processes(marks))
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_KILL_PAUSE_SECONDS)


def _find_processes(marks: set[bytes]) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # ended, or the process of another user
            continue
        if marks <= set(found):
            yield int(entry.name)
