"""Programs as steps (S6, B49–B57): what they are given arrives as it is, and nothing of them is left behind."""

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
from tenuto.definitions.schedule_files import schedules_of
from tenuto.definitions.strict_yaml import read
from tenuto.errors import Invalid
from tenuto.jobs.attempts import Attempt, Stop
from tenuto.jobs.context import Context
from tenuto.model.secrets import SecretRef
from tenuto.model.tasks import Outcome, Reason, Status
from tenuto.steps.programs import program as programs
from tenuto.steps.programs.program import Command, Rules
from tests.jobs.conftest import Bench
from tests.support.model_values import a_held_task
from tests.support.programs import NASTY, SECRET, Workshop, fields
from tests.support.waiting import eventually, eventually_here

ANA = Actor.user("ana", "Ana")


@pytest.fixture
def shop(bench: Bench, tmp_path: Path) -> Workshop:
    return Workshop(bench, tmp_path)


def run(shop: Workshop, **arguments: Any) -> Outcome:
    return shop.bench.run(shop.executable, _fields=fields(shop.executable), **arguments)


def shell(shop: Workshop, script: str, **arguments: Any) -> Outcome:
    """For what a program does; the shell is the program here, not the way to it."""
    return run(shop, program="/bin/sh", args=["-c", script], **arguments)


def output(outcome: Outcome) -> dict[str, Any]:
    assert outcome.status in (Status.COMPLETED, Status.COMPLETED_WITH_WARNING), outcome.error
    found: dict[str, Any] = json.loads(outcome.output or "")
    return found


def message(outcome: Outcome) -> str:
    assert outcome.error is not None
    return str(json.loads(outcome.error)["message"])


def said(outcome: Outcome) -> list[list[str]]:
    return [line.split(maxsplit=2)[1:] for line in (outcome.log or "").splitlines()]


def runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def begun(shop: Workshop, script: str, **arguments: Any) -> tuple[Attempt, list[int]]:
    """A program under way that has written the ids of its processes, and those ids."""
    file = shop.folder / "pids"
    file.unlink(missing_ok=True)
    attempt = shop.bench.begin(
        shop.executable,
        _fields=fields(shop.executable, policy_json='{"timeout_seconds": 60}'),
        program="/bin/sh",
        args=["-c", script, "sh", str(file)],
        **arguments,
    )
    eventually_here(lambda: file.exists() and file.read_text().endswith("\n"), timeout=30)
    return attempt, [int(pid) for pid in file.read_text().split()]


# --- what it is given -------------------------------------------------------------------------------------------------


def test_every_text_arrives_byte_for_byte_and_nothing_else_is_given(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "inherited")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/inherited")
    monkeypatch.setenv("TZ", "Europe/London")
    attempt = shop.bench.begin(
        shop.executable,
        _fields=fields(shop.executable, attempt=2, fence=7),
        program=shop.recorder(),
        args=NASTY,
        env={"GREETING": "$(id) ’", "EMPTY": "", "TOKEN": SecretRef(secret="token", prefix="Bearer ")},
        stdin="first\nsecond €",
    )
    outcome = shop.bench.outcome(attempt)
    assert outcome is not None
    assert output(outcome)["exit_code"] == 0
    assert shop.recorded_arguments()[1:] == NASTY
    record = shop.record()
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
    assert {name: value for name, value in env.items() if name.startswith("TENUTO_")} == {
        f"TENUTO_{name}": value for name, value in ours.items()
    }
    assert env.keys() <= {f"TENUTO_{name}" for name in ours} | {
        "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "TMPDIR", "USER",
    }  # fmt: skip
    assert record["leads"] == [True, True], "a session and a group of its own"
    assert len(record["fds"]) == 4, "its three streams, and the folder it looks at just then"
    assert record["folder"].startswith(tempfile.gettempdir())
    assert not Path(record["folder"]).exists(), "a folder of its own, gone when it has ended"


def test_what_it_writes_is_kept_line_by_line_with_its_end_in_the_result(shop: Workshop) -> None:
    outcome = shell(shop, r"""printf 'one\ntwo\r\n\033[31mred\007\377\n\tno end'; echo oops >&2; printf '\0' """)
    found = output(outcome)
    assert found["stdout"] == "one\ntwo\n␛[31mred␇�\n\tno end␀"
    assert (found["stderr"], found["exit_code"]) == ("oops\n", 0)
    assert (found["stdout_bytes"], found["stderr_bytes"]) == (28, 5)
    assert 0 < found["duration_seconds"] < 30
    lines = said(outcome)
    assert [words for level, words in lines if level == "stdout"] == ["one", "two", "␛[31mred␇�", "no end␀"]
    assert ["stderr", "oops"] in lines


def test_the_log_can_be_read_while_it_runs(shop: Workshop) -> None:
    attempt, _ = begun(shop, 'echo working; echo $$ >"$1"; read line; echo "got $line"; sleep 600', stdin="go\n")
    eventually_here(lambda: "got go" in (attempt.context.log_text or ""))
    assert "working" in (attempt.context.log_text or "")
    attempt.stop(Stop.CANCELLED, ANA)
    shop.bench.outcome(attempt)


def test_secrets_are_masked_in_whatever_it_leaves_behind(shop: Workshop) -> None:
    secret = {"env": {"TOKEN": SecretRef(secret="token")}, "stdin": SecretRef(secret="token")}
    outcome = shell(shop, 'cat; echo "$TOKEN" | tr a-z a-z; yes x | head -c 9000; echo "$TOKEN" >&2', **secret)
    assert output(outcome)["stdout"].startswith("******\n")
    failed = shell(shop, 'printf "%s" "correct-"; sleep 0.05; echo horse-battery; echo "$TOKEN" >&2; exit 4', **secret)
    assert message(failed) == "sh ended with exit code 4: ***"
    for each in (outcome, failed):
        assert SECRET not in json.dumps([each.output, each.error, each.log])


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_exit_codes_mean_what_was_set_down(shop: Workshop) -> None:
    codes = {"success_codes": [0, 2], "warning_codes": [3]}
    assert output(shell(shop, "exit 2", **codes))["exit_code"] == 2
    warned = shell(shop, "exit 3", **codes)
    assert (warned.status, output(warned)["exit_code"]) == (Status.COMPLETED_WITH_WARNING, 3)
    assert "exit code 3" in message(warned)
    failed = shell(shop, "echo lots of talk; echo why it failed >&2; exit 4", **codes)
    assert (failed.status, failed.reason, failed.may_retry) == (Status.FAILED, Reason.ERROR, True)
    assert message(failed) == "sh ended with exit code 4: why it failed"
    assert ["stdout", "lots of talk"] in said(failed)
    killed = shell(shop, "kill -SEGV $$")
    assert message(killed) == "sh was ended by signal 11 (SIGSEGV); it wrote nothing to stderr"
    not_even_zero = shell(shop, "exit 0", success_codes=[1])
    assert not_even_zero.status is Status.FAILED


def test_a_flood_is_bounded_and_the_program_is_not_held_up_for_ever(shop: Workshop) -> None:
    outcome = shell(shop, "yes | head -c 40000000; printf %s 'the end'", output_limit=1000)
    found = output(outcome)
    assert found["stdout_bytes"] == 40_000_007
    assert len(found["stdout"].encode()) <= 1000
    assert found["stdout"].startswith("y\n")
    assert found["stdout"].endswith("y\nthe end")
    assert len(outcome.log or "") < 300_000
    assert said(outcome)[-1] == ["stdout", "the end"]
    assert "lines left out" in (outcome.log or "")
    one_line = shell(shop, r"head -c 5000000 /dev/zero | tr '\0' x; printf '\377%.0s' 1 2 3", output_limit=0)
    assert (output(one_line)["stdout"], output(one_line)["stdout_bytes"]) == ("", 5_000_003)
    assert len(one_line.log or "") < 300_000
    noise = shell(shop, "head -c 300000 /dev/urandom", output_limit=200_000)
    assert len(output(noise)["stdout"].encode()) <= 200_000


def test_what_it_leaves_running_ends_with_it_and_holds_nothing_up(shop: Workshop) -> None:
    """B57: in the background, as a daemon in a session of its own, deaf, with closed streams or holding them open."""
    script = """
        sleep 600 & echo $! >>"$1"
        (setsid sh -c 'trap "" TERM HUP INT; echo $$ >>"$0"; sleep 600; sleep 600' "$1" &)
        (setsid sh -c 'echo $$ >>"$0"; exec sleep 600' "$1" >&- 2>&- <&- &)
        while [ $(wc -l <"$1") -lt 3 ]; do sleep 0.01; done
    """
    file = shop.folder / "left"
    outcome = run(shop, program="/bin/sh", args=["-c", script, "sh", str(file)])
    assert output(outcome)["duration_seconds"] < 10
    pids = [int(pid) for pid in file.read_text().split()]
    assert len(pids) == 3
    assert not any(runs(pid) for pid in pids), "when the attempt has ended they are gone already"


def test_a_program_that_closes_its_streams_or_does_not_read_is_waited_for(shop: Workshop) -> None:
    found = output(shell(shop, "exec >&- 2>&- <&-; sleep 0.2; exit 0", stdin="x" * 200_000))
    assert found["duration_seconds"] >= 0.2


@pytest.mark.parametrize(
    ("stop", "status", "reason"),
    [
        (Stop.CANCELLED, Status.CANCELLED, Reason.REQUESTED),
        (Stop.TIMED_OUT, Status.FAILED, Reason.TIMED_OUT),
        (Stop.HANDED_BACK, Status.CANCELLED, Reason.HANDED_BACK),
        (Stop.LEASE_LOST, None, None),
    ],
)
def test_stopping_ends_the_whole_group_politely_first_and_however_deaf_it_is(
    shop: Workshop, stop: Stop, status: Status | None, reason: Reason | None
) -> None:
    polite = 'trap "echo tidied up; exit 0" TERM; echo $$ >"$1"; while :; do sleep 0.02; done'
    attempt, pids = begun(shop, polite, grace_seconds=50)
    attempt.stop(stop, ANA)
    outcome = shop.bench.outcome(attempt, timeout=30)
    assert (outcome and outcome.status, outcome and outcome.reason) == (status, reason)
    assert ("tidied up" in (attempt.context.log_text or "")) == (stop is not Stop.LEASE_LOST), (
        "or there is no time left"
    )

    deaf = """
        trap "" TERM HUP
        sleep 600 & one=$!
        yes & two=$!
        setsid sleep 600 & echo "$one $two $! $$" >"$1"
        wait
    """
    attempt, deaf_pids = begun(shop, deaf, grace_seconds=0.2)
    attempt.stop(stop, ANA)
    attempt.stop(stop, ANA)
    outcome = shop.bench.outcome(attempt, timeout=10)
    assert (outcome and outcome.status, outcome and outcome.reason) == (status, reason)
    assert not any(runs(pid) for pid in [*pids, *deaf_pids]), "the slot is free only when the code has stopped"


@pytest.mark.parametrize("turns", [1, 3, 8, 20])
async def test_one_that_is_stopped_while_it_is_being_started_runs_as_it_was_given_or_not_at_all(
    tmp_path: Path, turns: int
) -> None:
    given = ["x" * 100_000] * 8  # more than a socket takes at once
    got = tmp_path / "got"
    tell = f'echo "$#" "${{#8}}" > {got}; sleep 60'  # little, so that it is written at once if it is written at all
    command = Command("/bin/sh", ["sh", "-c", tell, "sh", *given], {}, "/")
    running = asyncio.ensure_future(programs.run(Context(a_held_task()), command, Rules(grace=0.1)))
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=20)
    assert running.cancelled()
    assert not got.exists() or got.read_text() in ("", "8 100000\n")


def test_a_guardian_that_is_killed_takes_the_program_with_it_and_the_attempt_fails(shop: Workshop) -> None:
    attempt, pids = begun(shop, 'sleep 600 & echo $! >"$1.new"; echo $$ >>"$1.new"; mv "$1.new" "$1"; wait')
    guardian = psutil.Process(pids[1]).ppid()
    assert psutil.Process(guardian).ppid() == os.getpid()
    os.kill(guardian, signal.SIGKILL)
    outcome = shop.bench.outcome(attempt)
    assert outcome is not None
    assert "was killed" in message(outcome)
    eventually_here(lambda: not any(runs(pid) for pid in pids))


def test_nothing_of_programs_stays_with_the_worker_no_child_no_zombie_no_open_file_no_folder(shop: Workshop) -> None:
    """Whether they end well, fail, cannot be started, are stopped, or lose their guardian to a kill -9."""
    escapee = """setsid sh -c 'trap "" TERM HUP; echo $$ >"$0.new"; mv "$0.new" "$0"; sleep 600' "$1" & wait"""
    me = psutil.Process()
    shell(shop, "exit 0")
    before = me.num_fds(), {child.pid for child in me.children(recursive=True)}
    for _ in range(5):
        shell(shop, "sleep 600 & exit 0")
        shell(shop, "exit 5", stdin="unread")
        run(shop, program="true", folder="/no/such/folder")
        run(shop, program="/bin/cat", sha256=hashlib.sha256(Path("/bin/cat").read_bytes()).hexdigest(), stdin="x")
    stopped, _ = begun(shop, 'echo $$ >"$1.new"; mv "$1.new" "$1"; sleep 600')
    stopped.stop(Stop.CANCELLED, ANA)
    assert shop.bench.outcome(stopped) is not None
    orphaned, pids = begun(shop, escapee)
    os.kill(next(child.pid for child in me.children() if child.pid not in before[1]), signal.SIGKILL)
    outcome = shop.bench.outcome(orphaned)
    assert outcome is not None
    assert "was killed" in message(outcome)
    assert not any(runs(pid) for pid in pids), "also what had left its session"
    eventually_here(lambda: {child.pid for child in me.children(recursive=True)} <= before[1])
    eventually_here(lambda: me.num_fds() <= before[0])
    assert list(shop.folder.glob("tenuto-????????")) == []


@contextmanager
def descriptors(free: int) -> Iterator[None]:
    """No more than so many can be opened."""
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
async def test_where_descriptors_are_scarce_none_is_left_open_by_a_program_that_could_not_be_started(free: int) -> None:
    command = Command("/bin/true", ["true"], {}, "/", stdin="x")
    before = psutil.Process().num_fds()
    with descriptors(free), pytest.raises(OSError, match="Too many open files"):
        await programs.run(Context(a_held_task()), command, Rules())
    assert psutil.Process().num_fds() <= before


@pytest.mark.parametrize("taken", [0, 1, 2])
async def test_streams_the_loop_cannot_take_over_are_closed(monkeypatch: pytest.MonkeyPatch, taken: int) -> None:
    loop = asyncio.get_running_loop()
    made: list[object] = []

    def scarce(connect: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def connected(*given: Any) -> Any:
            if len(made) == taken:
                raise OSError("no room to watch another")
            made.append(given)
            return await connect(*given)

        return connected

    monkeypatch.setattr(loop, "connect_read_pipe", scarce(loop.connect_read_pipe))
    monkeypatch.setattr(loop, "connect_write_pipe", scarce(loop.connect_write_pipe))
    before = psutil.Process().num_fds()
    with pytest.raises(OSError, match="no room"):
        await programs.run(Context(a_held_task()), Command("/bin/true", ["true"], {}, "/", stdin="x"), Rules())
    await eventually(lambda: psutil.Process().num_fds() <= before)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "field", "words"),
    [
        ({"program": "../../bin/sh"}, "program", "neither an absolute path nor a plain name"),
        ({"program": "bin/sh"}, "program", "neither"),
        ({"program": ".\\x.bat"}, "program", "neither"),
        ({"program": ""}, "program", "neither"),
        ({"program": ".."}, "program", "neither"),
        ({"program": "/bin/e\0cho"}, "program", "NUL"),
        ({"program": "echo", "args": ["a", "b\0c"]}, "args.1", "NUL"),
        ({"program": "echo", "args": ["x" * 131_072]}, "args.0", "larger than"),
        ({"program": "echo", "args": ["x"] * 100_000}, "args", "at most 4,096"),
        ({"program": "echo", "args": [5]}, "args", "put it in quotes"),
        ({"program": "echo", "args": "one two"}, "args", "array"),
        ({"program": "echo", "args": [{"secret": "token"}]}, "args.0", "pass it by env or stdin"),
        ({"program": "echo", "env": {"LD_PRELOAD": "/x.so"}}, "env.LD_PRELOAD", "decides which code is run"),
        ({"program": "echo", "env": {"ld_library_path": "/x"}}, "env.ld_library_path", "decides"),
        ({"program": "echo", "env": {"PATH": "/x"}}, "env.PATH", "TENUTO_PROGRAM_PATH"),
        ({"program": "echo", "env": {"PYTHONPATH": "/x"}}, "env.PYTHONPATH", "decides"),
        ({"program": "echo", "env": {"BASH_ENV": "/x"}}, "env.BASH_ENV", "decides"),
        ({"program": "echo", "env": {"BASH_FUNC_x%%": "() { :; }"}}, "env", "not the name of a variable"),
        ({"program": "echo", "env": {"TENUTO_FENCE": "0"}}, "env.TENUTO_FENCE", "Tenuto's own"),
        ({"program": "echo", "env": {"A=B": "x"}}, "env", "not the name of a variable"),
        ({"program": "echo", "env": {"A": "x\0y"}}, "env.A", "NUL"),
        ({"program": "echo", "env": {f"V{n}": "" for n in range(300)}}, "env", "at most 256"),
        ({"program": "echo", "folder": "relative"}, "folder", "absolute path"),
        ({"program": "echo", "success_codes": []}, "success_codes", "at least 1"),
        ({"program": "echo", "success_codes": [256]}, "success_codes.0", "255"),
        ({"program": "echo", "warning_codes": [0]}, "warning_codes", "success code too"),
        ({"program": "echo", "output_limit": 10**9}, "output_limit", "200000"),
        ({"program": "echo", "grace_seconds": -1}, "grace_seconds", "0"),
        ({"program": "echo", "sha256": "abc"}, "sha256", "64 digits"),
        ({"program": "echo", "shell": True}, "shell", "Extra inputs"),
        ({}, "program", "required"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_bad_argument_is_refused_before_it_is_stored_by_field_and_with_a_remedy(
    shop: Workshop, arguments: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(Invalid) as refusal:
        shop.executable.check_input(json.dumps(arguments))
    assert (refusal.value.field or "").startswith(field)
    assert words in str(refusal.value)


def test_more_than_two_megabytes_of_arguments_are_refused(shop: Workshop) -> None:
    with pytest.raises(Invalid, match="larger than"):
        shop.executable.dump_input((), {"program": "echo", "args": ["x" * 100_000] * 21})


def test_what_cannot_be_started_is_final_and_says_why(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shop.folder))  # that of the machine is others' too
    not_a_program = shop.folder / "plain"
    not_a_program.write_text("text")
    no_interpreter = shop.program("broken", "")
    Path(no_interpreter).write_text("#!/no/such/interpreter\n")
    noise = shop.program("noise", "")
    Path(noise).write_bytes(b"\x7fELF nonsense")
    for arguments, words in [
        ({"program": "no-such-program"}, "there is no program named 'no-such-program' in /usr/local/bin:/usr/bin:/bin"),
        ({"program": "/no/such/program"}, "cannot be found"),
        ({"program": str(not_a_program)}, "chmod +x"),
        ({"program": "/etc"}, "is not a program"),
        ({"program": no_interpreter}, "(#!)"),
        ({"program": noise}, "could not be started: Exec format error"),
        ({"program": "true", "folder": "/no/such/folder"}, "cannot be the working folder: No such file"),
        ({"program": "true", "sha256": "0" * 64}, "is not the file it was"),
    ]:
        outcome = run(shop, **arguments)
        assert (outcome.status, outcome.may_retry) == (Status.FAILED, False)
        assert words in message(outcome)
    assert list(shop.folder.glob("tenuto-????????")) == [], "and no folder stays behind"


def test_only_what_is_listed_may_be_run_and_no_link_leads_out(bench: Bench, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    shop = Workshop(bench, tmp_path, programs=f"{inside},/bin/true", program_path=str(inside))
    good = shop.program("good", "print('good')", folder=inside)
    evil = shop.program("evil", "print('evil')", folder=outside)
    (inside / "alias").symlink_to(good)
    (inside / "escape").symlink_to(evil)
    (inside / "folder").symlink_to(outside)
    digest = hashlib.sha256(Path(good).read_bytes()).hexdigest()
    for program in (good, "good", "alias", str(inside / "alias"), f"{inside}/../inside/good"):
        assert output(run(shop, program=program, sha256=digest))["stdout"] == "good\n"
    assert output(run(shop, program="/bin/true"))["exit_code"] == 0
    for program in (
        evil,
        str(inside / "escape"),
        "escape",
        f"{inside}/folder/evil",
        f"{inside}/../outside/evil",
        "/bin/sh",
    ):
        outcome = run(shop, program=program)
        assert "none of the programs that may be run here" in message(outcome)
        assert "TENUTO_PROGRAMS" in message(outcome)


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_was_checked_is_what_runs_however_quickly_it_is_exchanged(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    """B56: replaced by another file, and written over, between the look at it and its start."""
    if not in_memory:
        monkeypatch.setattr(os, "memfd_create", _forbidden)
    program = Path(shop.program("mine", "import os, sys; print('checked', sys.argv[1], os.environ['TENUTO_PROGRAM'])"))
    content, digest = program.read_bytes(), hashlib.sha256(program.read_bytes()).hexdigest()

    def replace() -> None:
        Path(shop.program("evil", "print('evil')")).replace(program)

    def write_over() -> None:
        with program.open("r+b") as file:
            file.truncate()
            file.write(b"#!/bin/sh\necho evil\n")

    for exchange in (replace, write_over):
        program.write_bytes(content)
        shop.before_revealing = exchange
        given = {"args": ["one"], "stdin": {"secret": "x"}, "sha256": digest}
        assert output(run(shop, program=str(program), **given))["stdout"] == f"checked one {program}\n"
        assert "evil" in program.read_text()
        shop.before_revealing = lambda: None
        assert "is not the file it was" in message(run(shop, program=str(program), sha256=digest))
    binary = Path("/bin/cat").resolve()
    given = {"stdin": "through", "sha256": hashlib.sha256(binary.read_bytes()).hexdigest()}
    assert output(run(shop, program="/bin/cat", folder=str(tmp_path), **given))["stdout"] == "through"
    noise = tmp_path / "noise"
    noise.write_bytes(b"\x7fELF nonsense")
    noise.chmod(0o700)
    refused = run(shop, program=str(noise), sha256=hashlib.sha256(noise.read_bytes()).hexdigest())
    assert f"{noise} could not be started: Exec format error" in message(refused)
    assert list(shop.folder.glob("tenuto-????????")) == []


def _forbidden(*_: object) -> int:
    raise PermissionError


# --- as part of the whole ---------------------------------------------------------------------------------------------


async def test_programs_are_steps_of_schedules_in_code_and_in_files(app: Tenuto) -> None:
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
    (declared,) = schedules_of([read("schedules.yaml", text.encode())])
    say, warn = app.schedules.resolved(declared.definition).plan.groups
    assert say[0].arguments["args"] == ["; id", "$(id)"]
    assert say[0].policy is not None
    assert (say[0].policy.timeout_seconds, say[0].policy.retry.max_retries) == (60.0, 1)
    bad = text.replace("{TOKEN: {secret: token}}", "{LD_PRELOAD: /x.so}")
    (refused,) = schedules_of([read("schedules.yaml", bad.encode())])
    with pytest.raises(Invalid) as refusal:
        app.schedules.resolved(refused.definition)
    assert "schedules[0].steps[0].arguments.env.LD_PRELOAD" in str(refused.refused(refusal.value))

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
    assert execution["state"] == "failed"
    steps = {step["name"]: step for step in execution["steps"]}
    ends = {name: await app.activity(step["activity_id"]) for name, step in steps.items()}
    assert ends["say"]["output"]["stdout"] == "$(id)\n"
    assert ends["warn"]["status"] == "completed_with_warning"
    assert (ends["hang"]["status"], ends["hang"]["reason"]) == ("failed", "timed_out")


def test_a_step_of_a_program_is_made_with_plain_words() -> None:
    step = Step.executable("/usr/bin/rsync", "-a", "x", env={"T": SecretRef(secret="t")}, timeout="5m")
    assert (step.kind, step.name) == ("executable", "rsync")
    assert step.arguments == {"program": "/usr/bin/rsync", "args": ["-a", "x"], "env": {"T": {"secret": "t"}}}
    assert step.rules == {"timeout": "5m"}
    script = Step.powershell("/srv/tidy.ps1", "-Days", "3", folder="/srv")
    assert (script.kind, script.name) == ("powershell", "tidy.ps1")
    assert script.arguments == {"script": "/srv/tidy.ps1", "args": ["-Days", "3"], "folder": "/srv"}
    assert Step.powershell(None, text="exit 3").arguments == {"text": "exit 3", "args": []}
