"""The step kind executable (S6, B49–B57): exact arguments, limited output, and no processes left behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import resource
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenuto import Actor, Step, Tenuto, manual
from tenuto.definitions.definition_files import parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.errors import Invalid
from tenuto.jobs.attempts import Attempt, StopReason
from tenuto.jobs.context import Context
from tenuto.model.access.secrets import SecretRef
from tenuto.model.work.logical_time import format_logical_time
from tenuto.model.work.tasks import Outcome, OutcomeReason, OutcomeStatus
from tenuto.steps.programs import program as programs
from tenuto.steps.programs.program import Command, RunOptions
from tests.jobs.conftest import RunnerHarness
from tests.support.errors import raises_code
from tests.support.model_values import make_held_task
from tests.support.programs import HOSTILE_TEXTS, SECRET, ProgramHarness, task_fields
from tests.support.require_value import known
from tests.support.waiting import eventually, eventually_blocking

ANA = Actor.user("ana", "Ana")


@pytest.fixture
def program_harness(harness: RunnerHarness, tmp_path: Path) -> ProgramHarness:
    return ProgramHarness(harness, tmp_path)


def run(program_harness: ProgramHarness, **arguments: Any) -> Outcome:
    return program_harness.harness.run(
        program_harness.executable, _fields=task_fields(program_harness.executable), **arguments
    )


def run_shell(program_harness: ProgramHarness, script: str, **arguments: Any) -> Outcome:
    """Run a shell script; the shell is the program of the step."""
    return run(program_harness, program="/bin/sh", args=["-c", script], **arguments)


def load_output(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status in (OutcomeStatus.COMPLETED, OutcomeStatus.COMPLETED_WITH_WARNING), outcome.error
    found: dict[str, Any] = json.loads(outcome.output or "")
    return found


def error_message(outcome: Outcome) -> str:
    assert outcome.error is not None
    return str(json.loads(outcome.error)["message"])


def log_lines(outcome: Outcome) -> list[list[str]]:
    return [line.split(maxsplit=2)[1:] for line in (outcome.log or "").splitlines()]


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def start_script(program_harness: ProgramHarness, script: str, **arguments: Any) -> tuple[Attempt, list[int]]:
    """Start a script that writes the ids of its processes to a file; return the attempt and the ids."""
    file = program_harness.folder / "pids"
    file.unlink(missing_ok=True)
    attempt = program_harness.harness.start(
        program_harness.executable,
        _fields=task_fields(program_harness.executable, policy_json='{"timeout_seconds": 60}'),
        program="/bin/sh",
        args=["-c", script, "sh", str(file)],
        **arguments,
    )
    eventually_blocking(lambda: file.exists() and file.read_text().endswith("\n"), timeout=30)
    return attempt, [int(pid) for pid in file.read_text().split()]


# --- arguments and output --------------------------------------------------------------------------------------------


def test_program_gets_exact_arguments_environment_and_stdin(
    program_harness: ProgramHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "inherited")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/inherited")
    monkeypatch.setenv("TZ", "Europe/London")
    attempt = program_harness.harness.start(
        program_harness.executable,
        _fields=task_fields(program_harness.executable, attempt=2, fence=7),
        program=program_harness.create_recorder(),
        args=HOSTILE_TEXTS,
        env={"GREETING": "$(id) ’", "EMPTY": "", "TOKEN": SecretRef(secret="token", prefix="Bearer ")},
        stdin="first\nsecond €",
    )
    outcome = program_harness.harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert load_output(outcome)["exit_code"] == 0
    assert program_harness.load_arguments()[1:] == HOSTILE_TEXTS
    record = program_harness.load_record()
    assert bytes.fromhex(record["stdin"]).decode() == "first\nsecond €"
    env = record["env"]
    assert {name: env.pop(name) for name in ("GREETING", "EMPTY", "TOKEN", "PATH", "TZ")} == {
        "GREETING": "$(id) ’",
        "EMPTY": "",
        "TOKEN": f"Bearer {SECRET}",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TZ": "Europe/London",
    }
    task_id = str(attempt.task.id)
    ours = {"TASK_ID": task_id, "ATTEMPT": "2", "FENCE": "7", "IDEMPOTENCY_KEY": task_id}
    ours["SCHEDULED_FOR"] = format_logical_time(attempt.context.scheduled_for)
    assert {name: value for name, value in env.items() if name.startswith("TENUTO_")} == {
        f"TENUTO_{name}": value for name, value in ours.items()
    }
    assert env.keys() <= {f"TENUTO_{name}" for name in ours} | {
        "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "TMPDIR", "USER",
    }  # fmt: skip
    assert record["leads"] == [True, True], "the program leads a session and a process group"
    assert len(record["fds"]) == 4, "three streams, and the folder that is being listed"
    assert record["folder"].startswith(tempfile.gettempdir())
    assert not Path(record["folder"]).exists(), "the private folder is removed at the end"


def test_program_output_is_logged_by_line_and_stored(program_harness: ProgramHarness) -> None:
    outcome = run_shell(
        program_harness, r"""printf 'one\ntwo\r\n\033[31mred\007\377\n\tno end'; echo oops >&2; printf '\0' """
    )
    found = load_output(outcome)
    assert found["stdout"] == "one\ntwo\n␛[31mred␇�\n\tno end␀"
    assert (found["stderr"], found["exit_code"]) == ("oops\n", 0)
    assert (found["stdout_bytes"], found["stderr_bytes"]) == (28, 5)
    assert 0 < found["duration_seconds"] < 30
    lines = log_lines(outcome)
    assert [text for level, text in lines if level == "stdout"] == ["one", "two", "␛[31mred␇�", "no end␀"]
    assert ["stderr", "oops"] in lines


def test_program_output_is_logged_while_it_runs(program_harness: ProgramHarness) -> None:
    attempt, _ = start_script(
        program_harness, 'echo working; echo $$ >"$1"; read line; echo "got $line"; sleep 600', stdin="go\n"
    )
    eventually_blocking(lambda: "got go" in (attempt.context.log_text or ""))
    assert "working" in (attempt.context.log_text or "")
    attempt.stop(StopReason.CANCELLED, ANA)
    program_harness.harness.wait_for_outcome(attempt)


def test_secrets_are_redacted_in_output_error_and_log_of_a_program(program_harness: ProgramHarness) -> None:
    secret = {"env": {"TOKEN": SecretRef(secret="token")}, "stdin": SecretRef(secret="token")}
    outcome = run_shell(
        program_harness, 'cat; echo "$TOKEN" | tr a-z a-z; yes x | head -c 9000; echo "$TOKEN" >&2', **secret
    )
    assert load_output(outcome)["stdout"].startswith("******\n")
    failed = run_shell(
        program_harness, 'printf "%s" "correct-"; sleep 0.05; echo horse-battery; echo "$TOKEN" >&2; exit 4', **secret
    )
    assert error_message(failed) == "sh ended with exit code 4: ***"
    for each in (outcome, failed):
        assert SECRET not in json.dumps([each.output, each.error, each.log])


# --- end of a program ------------------------------------------------------------------------------------------------


def test_exit_codes_of_a_program_decide_the_outcome(program_harness: ProgramHarness) -> None:
    codes = {"success_codes": [0, 2], "warning_codes": [3]}
    assert load_output(run_shell(program_harness, "exit 2", **codes))["exit_code"] == 2
    warned = run_shell(program_harness, "exit 3", **codes)
    assert (warned.status, load_output(warned)["exit_code"]) == (OutcomeStatus.COMPLETED_WITH_WARNING, 3)
    assert "exit code 3" in error_message(warned)
    failed = run_shell(program_harness, "echo lots of talk; echo why it failed >&2; exit 4", **codes)
    assert (failed.status, failed.reason, failed.may_retry) == (OutcomeStatus.FAILED, OutcomeReason.ERROR, True)
    assert error_message(failed) == "sh ended with exit code 4: why it failed"
    assert ["stdout", "lots of talk"] in log_lines(failed)
    killed = run_shell(program_harness, "kill -SEGV $$")
    assert error_message(killed) == "sh was ended by signal 11 (SIGSEGV); it wrote nothing to stderr"
    not_even_zero = run_shell(program_harness, "exit 0", success_codes=[1])
    assert not_even_zero.status is OutcomeStatus.FAILED


def test_much_output_of_a_program_is_limited(program_harness: ProgramHarness) -> None:
    outcome = run_shell(program_harness, "yes | head -c 40000000; printf %s 'the end'", output_limit=1000)
    found = load_output(outcome)
    assert found["stdout_bytes"] == 40_000_007
    assert len(found["stdout"].encode()) <= 1000
    assert found["stdout"].startswith("y\n")
    assert found["stdout"].endswith("y\nthe end")
    assert len(outcome.log or "") < 300_000
    assert log_lines(outcome)[-1] == ["stdout", "the end"]
    assert "lines left out" in (outcome.log or "")
    one_line = run_shell(
        program_harness, r"head -c 5000000 /dev/zero | tr '\0' x; printf '\377%.0s' 1 2 3", output_limit=0
    )
    assert (load_output(one_line)["stdout"], load_output(one_line)["stdout_bytes"]) == ("", 5_000_003)
    assert len(one_line.log or "") < 300_000
    noise = run_shell(program_harness, "head -c 300000 /dev/urandom", output_limit=200_000)
    assert len(load_output(noise)["stdout"].encode()) <= 200_000


def test_processes_left_by_a_program_are_killed_at_its_end(program_harness: ProgramHarness) -> None:
    """B57: in the background, as a daemon in another session, ignoring signals, with closed or open streams."""
    script = """
        sleep 600 & echo $! >>"$1"
        (setsid sh -c 'trap "" TERM HUP INT; echo $$ >>"$0"; sleep 600; sleep 600' "$1" &)
        (setsid sh -c 'echo $$ >>"$0"; exec sleep 600' "$1" >&- 2>&- <&- &)
        while [ $(wc -l <"$1") -lt 3 ]; do sleep 0.01; done
    """
    file = program_harness.folder / "left"
    outcome = run(program_harness, program="/bin/sh", args=["-c", script, "sh", str(file)])
    assert load_output(outcome)["duration_seconds"] < 10
    pids = [int(pid) for pid in file.read_text().split()]
    assert len(pids) == 3
    assert not any(is_running(pid) for pid in pids), "they are killed before the attempt ends"


def test_program_with_closed_streams_is_waited_for(program_harness: ProgramHarness) -> None:
    found = load_output(run_shell(program_harness, "exec >&- 2>&- <&-; sleep 0.2; exit 0", stdin="x" * 200_000))
    assert found["duration_seconds"] >= 0.2


@pytest.mark.parametrize(
    ("stop", "status", "reason"),
    [
        (StopReason.CANCELLED, OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED),
        (StopReason.TIMED_OUT, OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT),
        (StopReason.HANDED_BACK, OutcomeStatus.CANCELLED, OutcomeReason.HANDED_BACK),
        (StopReason.LEASE_LOST, None, None),
    ],
)
def test_stop_terminates_then_kills_the_program_and_its_processes(
    program_harness: ProgramHarness, stop: StopReason, status: OutcomeStatus | None, reason: OutcomeReason | None
) -> None:
    polite = 'trap "echo tidied up; exit 0" TERM; echo $$ >"$1"; while :; do sleep 0.02; done'
    attempt, pids = start_script(program_harness, polite, grace_seconds=50)
    attempt.stop(stop, ANA)
    outcome = program_harness.harness.wait_for_outcome(attempt, timeout=30)
    assert (outcome and outcome.status, outcome and outcome.reason) == (status, reason)
    assert ("tidied up" in (attempt.context.log_text or "")) == (stop is not StopReason.LEASE_LOST), (
        "after a lost lease the program is killed at once"
    )

    ignoring = """
        trap "" TERM HUP
        sleep 600 & one=$!
        yes & two=$!
        setsid sleep 600 & echo "$one $two $! $$" >"$1"
        wait
    """
    attempt, ignoring_pids = start_script(program_harness, ignoring, grace_seconds=0.2)
    attempt.stop(stop, ANA)
    attempt.stop(stop, ANA)
    outcome = program_harness.harness.wait_for_outcome(attempt, timeout=10)
    assert (outcome and outcome.status, outcome and outcome.reason) == (status, reason)
    assert not any(is_running(pid) for pid in [*pids, *ignoring_pids]), "the attempt ends after all its processes"


@pytest.mark.parametrize("turns", [1, 3, 8, 20])
async def test_program_stopped_during_its_start_gets_all_arguments_or_does_not_run(tmp_path: Path, turns: int) -> None:
    arguments = ["x" * 100_000] * 8  # more than a socket buffer holds
    record = tmp_path / "record"
    script = f'echo "$#" "${{#8}}" > {record}; sleep 60'  # short, so that it is written at once or not at all
    command = Command("/bin/sh", ["sh", "-c", script, "sh", *arguments], {}, "/")
    running = asyncio.ensure_future(programs.run(Context(make_held_task()), command, RunOptions(grace_seconds=0.1)))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=20)
    assert running.cancelled()
    assert not record.exists() or record.read_text() in ("", "8 100000\n")


def test_killed_supervisor_ends_the_program_and_fails_the_attempt(program_harness: ProgramHarness) -> None:
    attempt, pids = start_script(
        program_harness, 'sleep 600 & echo $! >"$1.new"; echo $$ >>"$1.new"; mv "$1.new" "$1"; wait'
    )
    supervisor = psutil.Process(pids[1]).ppid()
    assert psutil.Process(supervisor).ppid() == os.getpid()
    os.kill(supervisor, signal.SIGKILL)
    outcome = program_harness.harness.wait_for_outcome(attempt)
    assert outcome is not None
    assert "was killed" in error_message(outcome)
    eventually_blocking(lambda: not any(is_running(pid) for pid in pids))


def test_programs_leave_no_process_descriptor_or_folder_behind(program_harness: ProgramHarness) -> None:
    """Whether they succeed, fail, cannot be started, are stopped, or their supervisor is killed."""
    escapee = """setsid sh -c 'trap "" TERM HUP; echo $$ >"$0.new"; mv "$0.new" "$0"; sleep 600' "$1" & wait"""
    me = psutil.Process()
    run_shell(program_harness, "exit 0")
    before = me.num_fds(), {child.pid for child in me.children(recursive=True)}
    for _ in range(5):
        run_shell(program_harness, "sleep 600 & exit 0")
        run_shell(program_harness, "exit 5", stdin="unread")
        run(program_harness, program="true", folder="/no/such/folder")
        run(
            program_harness,
            program="/bin/cat",
            sha256=hashlib.sha256(Path("/bin/cat").read_bytes()).hexdigest(),
            stdin="x",
        )
    stopped, _ = start_script(program_harness, 'echo $$ >"$1.new"; mv "$1.new" "$1"; sleep 600')
    stopped.stop(StopReason.CANCELLED, ANA)
    assert program_harness.harness.wait_for_outcome(stopped) is not None
    orphaned, pids = start_script(program_harness, escapee)
    os.kill(next(child.pid for child in me.children() if child.pid not in before[1]), signal.SIGKILL)
    outcome = program_harness.harness.wait_for_outcome(orphaned)
    assert outcome is not None
    assert "was killed" in error_message(outcome)
    assert not any(is_running(pid) for pid in pids), "including processes in another session"
    eventually_blocking(lambda: {child.pid for child in me.children(recursive=True)} <= before[1])
    eventually_blocking(lambda: me.num_fds() <= before[0])
    assert list(program_harness.folder.glob("tenuto-????????")) == []


@contextmanager
def limit_descriptors(free: int) -> Iterator[None]:
    """Limit the number of descriptors that can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 50, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(taken.pop())
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("free", range(10))
async def test_program_start_without_free_descriptors_leaves_none_open(free: int) -> None:
    command = Command("/bin/true", ["true"], {}, "/", stdin="x")
    before = psutil.Process().num_fds()
    with limit_descriptors(free), pytest.raises(OSError, match="Too many open files"):
        await programs.run(Context(make_held_task()), command, RunOptions())
    assert psutil.Process().num_fds() <= before


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_program_streams_that_cannot_be_connected_are_closed(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    loop = asyncio.get_running_loop()
    connected_pipes: list[object] = []

    def limit(connect: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def connected(*arguments: Any) -> Any:
            if len(connected_pipes) == taken:
                raise OSError("cannot watch another pipe")
            connected_pipes.append(arguments)
            return await connect(*arguments)

        return connected

    monkeypatch.setattr(loop, "connect_read_pipe", limit(loop.connect_read_pipe))
    monkeypatch.setattr(loop, "connect_write_pipe", limit(loop.connect_write_pipe))
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match="cannot watch"):
        await programs.run(Context(make_held_task()), Command("/bin/true", ["true"], {}, "/", stdin="x"), RunOptions())
    await eventually(lambda: psutil.Process().num_fds() <= before)


# --- rejected programs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [
        ({"program": "../../bin/sh"}, "program", "step.program.path_invalid"),
        ({"program": "bin/sh"}, "program", "step.program.path_invalid"),
        ({"program": ".\\x.bat"}, "program", "step.program.path_invalid"),
        ({"program": ""}, "program", "step.program.path_invalid"),
        ({"program": ".."}, "program", "step.program.path_invalid"),
        ({"program": "/bin/e\0cho"}, "program", "step.program.nul_character"),
        ({"program": "echo", "args": ["a", "b\0c"]}, "args.1", "step.program.nul_character"),
        ({"program": "echo", "args": ["x" * 131_072]}, "args.0", "step.program.argument_too_large"),
        ({"program": "echo", "args": ["x"] * 100_000}, "args", "step.program.args.too_many"),
        ({"program": "echo", "args": [5]}, "args", "step.program.args.not_text"),
        ({"program": "echo", "args": "one two"}, "args", "job.input.invalid"),
        ({"program": "echo", "args": [{"secret": "token"}]}, "args.0", "step.program.args.secret"),
        ({"program": "echo", "env": {"LD_PRELOAD": "/x.so"}}, "env.LD_PRELOAD", "step.program.env.reserved"),
        ({"program": "echo", "env": {"ld_library_path": "/x"}}, "env.ld_library_path", "step.program.env.reserved"),
        ({"program": "echo", "env": {"PATH": "/x"}}, "env.PATH", "step.program.env.reserved"),
        ({"program": "echo", "env": {"PYTHONPATH": "/x"}}, "env.PYTHONPATH", "step.program.env.reserved"),
        ({"program": "echo", "env": {"BASH_ENV": "/x"}}, "env.BASH_ENV", "step.program.env.reserved"),
        ({"program": "echo", "env": {"BASH_FUNC_x%%": "() { :; }"}}, "env", "step.program.env.name_invalid"),
        ({"program": "echo", "env": {"TENUTO_FENCE": "0"}}, "env.TENUTO_FENCE", "step.program.env.reserved"),
        ({"program": "echo", "env": {"A=B": "x"}}, "env", "step.program.env.name_invalid"),
        ({"program": "echo", "env": {"A": "x\0y"}}, "env.A", "step.program.nul_character"),
        ({"program": "echo", "env": {f"V{n}": "" for n in range(300)}}, "env", "step.program.env.too_many"),
        ({"program": "echo", "folder": "relative"}, "folder", "step.program.path_invalid"),
        ({"program": "echo", "success_codes": []}, "success_codes", "job.input.invalid"),
        ({"program": "echo", "success_codes": [256]}, "success_codes.0", "job.input.invalid"),
        ({"program": "echo", "warning_codes": [0]}, "warning_codes", "step.program.exit_codes.ambiguous"),
        ({"program": "echo", "output_limit": 10**9}, "output_limit", "job.input.invalid"),
        ({"program": "echo", "grace_seconds": -1}, "grace_seconds", "job.input.invalid"),
        ({"program": "echo", "sha256": "abc"}, "sha256", "step.program.digest.invalid"),
        ({"program": "echo", "shell": True}, "shell", "job.input.invalid"),
        ({}, "program", "job.input.invalid"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_invalid_program_argument_is_rejected(
    program_harness: ProgramHarness, arguments: dict[str, Any], field: str, code: str
) -> None:
    with raises_code(code, Invalid) as caught:
        program_harness.executable.validate_input(json.dumps(arguments))
    assert (caught.value.field or "").startswith(field)


def test_program_arguments_larger_than_the_input_limit_are_rejected(program_harness: ProgramHarness) -> None:
    with pytest.raises(Invalid):
        program_harness.executable.dump_input((), {"program": "echo", "args": ["x" * 100_000] * 21})


def test_program_that_cannot_be_started_fails_permanently(
    program_harness: ProgramHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        tempfile, "tempdir", str(program_harness.folder)
    )  # the default folder is shared with other programs
    not_a_program = program_harness.folder / "plain"
    not_a_program.write_text("text")
    no_interpreter = program_harness.create_program("broken", "")
    Path(no_interpreter).write_text("#!/no/such/interpreter\n")
    noise = program_harness.create_program("noise", "")
    Path(noise).write_bytes(b"\x7fELF nonsense")
    for arguments, expected in [
        ({"program": "no-such-program"}, "there is no program named 'no-such-program' in /usr/local/bin:/usr/bin:/bin"),
        ({"program": "/no/such/program"}, "cannot be found"),
        ({"program": str(not_a_program)}, "chmod +x"),
        ({"program": "/etc"}, "is not an executable file"),
        ({"program": no_interpreter}, "(#!)"),
        ({"program": noise}, "could not be started: Exec format error"),
        ({"program": "true", "folder": "/no/such/folder"}, "cannot be entered: No such file"),
        ({"program": "true", "sha256": "0" * 64}, "differs from the expected one"),
    ]:
        outcome = run(program_harness, **arguments)
        assert (outcome.status, outcome.may_retry) == (OutcomeStatus.FAILED, False)
        assert expected in error_message(outcome)
    assert list(program_harness.folder.glob("tenuto-????????")) == [], "no folder is left behind"


def test_only_listed_programs_run_and_links_do_not_bypass_the_list(harness: RunnerHarness, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    program_harness = ProgramHarness(harness, tmp_path, programs=f"{inside},/bin/true", program_path=str(inside))
    good = program_harness.create_program("good", "print('good')", folder=inside)
    evil = program_harness.create_program("evil", "print('evil')", folder=outside)
    (inside / "alias").symlink_to(good)
    (inside / "escape").symlink_to(evil)
    (inside / "folder").symlink_to(outside)
    digest = hashlib.sha256(Path(good).read_bytes()).hexdigest()
    for program in (good, "good", "alias", str(inside / "alias"), f"{inside}/../inside/good"):
        assert load_output(run(program_harness, program=program, sha256=digest))["stdout"] == "good\n"
    assert load_output(run(program_harness, program="/bin/true"))["exit_code"] == 0
    for program in (
        evil,
        str(inside / "escape"),
        "escape",
        f"{inside}/folder/evil",
        f"{inside}/../outside/evil",
        "/bin/sh",
    ):
        outcome = run(program_harness, program=program)
        assert "is not one of the programs that may run here" in error_message(outcome)
        assert "TENUTO_PROGRAMS" in error_message(outcome)


def test_only_listed_variables_are_set_while_programs_are_restricted(harness: RunnerHarness, tmp_path: Path) -> None:
    program = ProgramHarness(harness, tmp_path).create_program(
        "shows", "import os; print(sorted(os.environ.keys() & {'TAR_OPTIONS', 'REPORT_DATE', 'TZ', 'ONLY_HERE'}))"
    )
    restricted = ProgramHarness(
        harness,
        tmp_path,
        programs=str(tmp_path),
        program_variables=f"REPORT_DATE,{program}:ONLY_HERE,/bin/tar:TAR_OPTIONS",
    )
    allowed = {"REPORT_DATE": "2030-01-01", "TZ": "UTC", "ONLY_HERE": "1"}
    shown = load_output(run(restricted, program=program, env=allowed))["stdout"]
    assert shown == "['ONLY_HERE', 'REPORT_DATE', 'TZ']\n"
    for name in ("TAR_OPTIONS", "RSYNC_RSH", "PAGER", "HOME", "EDITOR", "report_date"):
        outcome = run(restricted, program=program, env={name: "--to-command=/bin/sh"})
        assert (outcome.status, outcome.may_retry) == (OutcomeStatus.FAILED, False)
        assert f"variable {name} may not be set" in error_message(outcome)
        assert "TENUTO_PROGRAM_VARIABLES" in error_message(outcome)
    free = ProgramHarness(harness, tmp_path)
    assert "TAR_OPTIONS" in load_output(run(free, program=program, env={"TAR_OPTIONS": "-v"}))["stdout"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another owner")
def test_hard_link_of_another_owner_does_not_bypass_the_list(harness: RunnerHarness, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    program_harness = ProgramHarness(harness, tmp_path, programs=str(inside))
    evil = program_harness.create_program("evil", "print('evil')")
    (inside / "linked").hardlink_to(evil)
    assert load_output(run(program_harness, program=str(inside / "linked")))["stdout"] == "evil\n", "of the same owner"
    os.chown(inside, 65_534, -1)
    outcome = run(program_harness, program=str(inside / "linked"))
    assert "is not one of the programs that may run here" in error_message(outcome)
    (inside / "linked").unlink()
    own = program_harness.create_program("own", "print('own')", folder=inside)
    assert load_output(run(program_harness, program=own))["stdout"] == "own\n", "it has no other name"


@pytest.mark.parametrize("in_memory", [True, False])
def test_program_with_digest_runs_the_checked_content(
    program_harness: ProgramHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    """B56: the file is replaced or overwritten between check and start."""
    if not in_memory:
        monkeypatch.setattr(os, "memfd_create", reject_memfd)
    program = Path(
        program_harness.create_program(
            "mine", "import os, sys; print('checked', sys.argv[1], os.environ['TENUTO_PROGRAM'])"
        )
    )
    content, digest = program.read_bytes(), hashlib.sha256(program.read_bytes()).hexdigest()

    def replace() -> None:
        Path(program_harness.create_program("evil", "print('evil')")).replace(program)

    def write_over() -> None:
        with program.open("r+b") as file:
            file.truncate()
            file.write(b"#!/bin/sh\necho evil\n")

    for change_file in (replace, write_over):
        program.write_bytes(content)
        program_harness.before_reveal = change_file
        given = {"args": ["one"], "stdin": {"secret": "x"}, "sha256": digest}
        assert load_output(run(program_harness, program=str(program), **given))["stdout"] == f"checked one {program}\n"
        assert "evil" in program.read_text()
        program_harness.before_reveal = lambda: None
        assert "differs from the expected one" in error_message(
            run(program_harness, program=str(program), sha256=digest)
        )
    binary = Path("/bin/cat").resolve()
    given = {"stdin": "through", "sha256": hashlib.sha256(binary.read_bytes()).hexdigest()}
    assert load_output(run(program_harness, program="/bin/cat", folder=str(tmp_path), **given))["stdout"] == "through"
    noise = tmp_path / "noise"
    noise.write_bytes(b"\x7fELF nonsense")
    noise.chmod(0o700)
    rejected = run(program_harness, program=str(noise), sha256=hashlib.sha256(noise.read_bytes()).hexdigest())
    assert f"{noise} could not be started: Exec format error" in error_message(rejected)
    assert list(program_harness.folder.glob("tenuto-????????")) == []


def reject_memfd(*_: object) -> int:
    raise PermissionError


# --- schedules -------------------------------------------------------------------------------------------------------


async def test_programs_are_steps_of_schedules_in_code_and_files(app: Tenuto) -> None:
    text = """
schedules:
  - name: From a file
    steps:
      - kind: executable
        name: say
        arguments: {program: echo, args: ["; id", "$(id)"], env: {TOKEN: {secret: token}}}
        timeout: 1m
      - {kind: executable, name: warn, arguments: {program: /bin/sh, args: ["-c", "exit 3"], warning_codes: [3]}}
"""
    (declared,) = parse_schedules([parse_document("schedules.yaml", text.encode())])
    say, warn = app.schedules.resolve_steps(declared.definition).plan.groups
    assert say[0].arguments["args"] == ["; id", "$(id)"]
    assert say[0].policy is not None
    assert (say[0].policy.timeout_seconds, say[0].policy.retry.max_attempts) == (60.0, 1)
    bad = text.replace("{TOKEN: {secret: token}}", "{LD_PRELOAD: /x.so}")
    (invalid,) = parse_schedules([parse_document("schedules.yaml", bad.encode())])
    with pytest.raises(Invalid) as caught:
        app.schedules.resolve_steps(invalid.definition)
    assert caught.value.code == "step.program.env.reserved"
    assert "schedules[0].steps[0].arguments.env.LD_PRELOAD" in str(invalid.locate_error(caught.value))

    app.schedule(
        "In code",
        manual(),
        [
            [Step.executable("echo", "$(id)", name="say"), warn[0]],
            Step.executable("/bin/sh", "-c", "sleep 600", timeout=0.5, name="hang"),
        ],
    )
    async with app.worker(slots=5):
        started = await app.schedules.run("In code")
        assert started.execution_id is not None
        execution = await app.executions.wait(started.execution_id, timeout=20)
    assert execution.state == "failed"
    steps = {step.name: step for step in execution.steps}
    ends = {name: await app.activity(known(step.activity_id)) for name, step in steps.items()}
    assert ends["say"].output["stdout"] == "$(id)\n"
    assert ends["warn"].state == "completed_with_warning"
    assert (ends["hang"].state, ends["hang"].reason) == ("failed", "timed_out")


def test_step_constructors_for_programs_set_the_arguments() -> None:
    step = Step.executable("/usr/bin/rsync", "-a", "x", env={"T": SecretRef(secret="t")}, timeout="5m")
    assert (step.kind, step.name) == ("executable", "rsync")
    assert step.arguments == {"program": "/usr/bin/rsync", "args": ["-a", "x"], "env": {"T": {"secret": "t"}}}
    assert step.rules == {"timeout": "5m"}
    script = Step.powershell("/srv/tidy.ps1", "-Days", "3", folder="/srv")
    assert (script.kind, script.name) == ("powershell", "tidy.ps1")
    assert script.arguments == {"script": "/srv/tidy.ps1", "args": ["-Days", "3"], "folder": "/srv"}
    assert Step.powershell(None, text="exit 3").arguments == {"text": "exit 3", "args": []}
