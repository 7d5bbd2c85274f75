"""`tenuto execution`: list, show, watch on a terminal and in a pipe, cancel, pause, retry."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import time

import pytest

from tenuto import Tenuto
from tests.cli.conftest import Shell
from tests.support.errors import raises_code
from tests.support.waiting import eventually_blocking


@pytest.fixture
def slow_execution(shell: Shell) -> str:
    """The id of an execution whose first step runs until it is cancelled, with a second step after it."""
    shell("schedule", "add", "slow", "--manual", "--step", "last", "--step", 'double:{"n": 1}')
    return shell("schedule", "run", "slow", "-q").out.strip()


def test_execution_list_filters_and_pages(shell: Shell) -> None:
    assert shell("execution", "list", "-o", "json").json == []
    assert shell("execution", "list").err == "no executions\n"
    shell("schedule", "add", "many", "--manual", "--overlap", "allow", "--step", "last")
    ids = [shell("schedule", "run", "many", "-q").out.strip() for _ in range(3)]
    assert [each["id"] for each in shell("execution", "list", "--limit", "2", "-o", "json").json] == ids[:0:-1]
    assert f"--below {ids[1]}" in shell("execution", "list", "--limit", "2").err
    page = shell("execution", "list", "--below", ids[1], "--state", "in_progress", "--schedule", "many", "-o", "json")
    assert [each["id"] for each in page.json] == [ids[0]]
    assert shell("execution", "list", "--state", "failed", "-o", "json").json == []
    header, row = shell("execution", "list", "--limit", "1").out.splitlines()
    assert header.split()[:4] == ["id", "state", "schedule", "group"]
    assert row.split()[:7] == [ids[2], "●", "in", "progress", "many", "1", "of"]


# The error of `hopeless` contains "\x9bd", a control sequence, which the output drops as a whole.


def test_execution_show_lists_every_step(shell: Shell) -> None:
    shell("schedule", "add", "bad", "--manual", "--step", "third_time, hopeless", "--step", 'double:{"n": 1}')
    shell.start_service("worker", "--name", "w1").wait_for_line("worker started")
    shell("schedule", "run", "bad", "--wait", "--timeout", "90")
    (execution,) = shell("execution", "list", "-o", "json").json
    shown = shell("execution", "show", execution["id"][:16]).out
    assert shown.startswith(f"✕ failed  bad  {execution['id']}\n")
    assert "step 'hopeless' failed: this cannot be one" in shown
    header, *rows = shown.partition("\ngroup  step")[2].splitlines()
    assert header.split() == ["state", "attempt", "waited", "ran", "worker", "activity", "error"]
    steps = [row.split() for row in rows[:3]]
    assert steps[0][:5] == ["1", "third_time", "●", "done", "3"]
    assert steps[1][:5] == ["1", "hopeless", "✗", "failed", "1"]
    assert steps[2][:6] == ["2", "double", "⊘", "not", "run", "1"]
    assert "w1" in rows[0]
    assert "error of hopeless, attempt 1\n  this cannot be one\n" in shown
    document = shell("execution", "show", execution["id"], "-o", "json").json
    assert document["steps"][0]["activity_id"] in rows[0]
    assert shell("activity", "show", document["steps"][0]["activity_id"], "-o", "json").json["attempt"] == 3


@pytest.mark.parametrize(
    "arguments",
    [("schedule", "run", "slow"), ("run", "last"), ("manifest", "run", "m"), ("execution", "retry", "019a")],
)
def test_timeout_option_requires_wait(shell: Shell, arguments: tuple[str, ...]) -> None:
    ended = shell(*arguments, "--timeout", "3")
    assert ended.code == 2
    assert "--timeout requires --wait" in ended.err


def test_execution_without_a_worker_is_explained_by_show_and_watch(shell: Shell, slow_execution: str) -> None:
    assert "why it does not continue" in shell("execution", "show", slow_execution).out
    (reason,) = shell("execution", "show", slow_execution, "-o", "json").json["why"]
    assert reason["code"] == "no_worker"
    watching = shell.start_process("execution", "watch", slow_execution, stderr=subprocess.DEVNULL)
    assert watching.stdout is not None
    try:
        assert watching.stdout.readline() == "◐ slow: running\n"
        assert watching.stdout.readline().startswith("… last: ")
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 130
    finally:
        watching.kill()
        watching.stdout.close()
        watching.wait()
    (still,) = shell("execution", "list", "-o", "json").json
    assert still["state"] == "in_progress", "Ctrl-C stops watching, not the execution"


def test_execution_watch_ends_after_its_timeout(shell: Shell, slow_execution: str) -> None:
    ended = shell("execution", "watch", slow_execution, "--timeout", "0.3")
    assert ended.code == 7
    assert "has not ended after 0.3 s" in ended.err
    assert f"tenuto execution watch {slow_execution}" in ended.err


def test_execution_pause_resume_cancel_and_retry(shell: Shell, slow_execution: str) -> None:
    paused = shell("execution", "pause", slow_execution, LOGNAME="ana")
    assert f"paused by ana\n  resume with: tenuto execution resume {slow_execution}" in paused.err
    assert shell("execution", "pause", slow_execution).code == 7
    assert "‖ paused" in shell("execution", "list").out
    assert "outcome paused by ana " in " ".join(shell("execution", "show", slow_execution).out.split())
    assert "paused by ana" in shell("execution", "list").out
    assert shell("execution", "resume", slow_execution, "-o", "json").json["paused_at"] is None
    ended = shell("execution", "cancel", slow_execution, "--reason", "wrong file", "-o", "json", LOGNAME="bo")
    assert ended.json == {"id": slow_execution, "outcome": "cancelled", "by": "bo"}
    shown = " ".join(shell("execution", "show", slow_execution).out.split())
    assert "outcome cancelled by bo: wrong file " in shown
    assert shell("execution", "cancel", slow_execution).code == 7
    again = shell("execution", "retry", slow_execution)
    new = shell("execution", "show", again.out.strip(), "-o", "json").json
    assert (new["retry_of"], new["origin"], new["state"]) == (slow_execution, "retry", "in_progress")
    assert shell("execution", "retry", slow_execution).code == 7


def test_execution_cancel_stops_running_steps(shell: Shell, slow_execution: str) -> None:
    shell.start_service("worker", "--queues", "default,slow").wait_for_line("under way")
    ended = shell("execution", "cancel", slow_execution)
    assert "running steps are being stopped" in ended.err
    watched = shell("execution", "watch", slow_execution, "--timeout", "60")
    assert watched.code == 1
    assert "⊘ cancelled at group 1 of 2" in watched.err


def test_execution_watch_draws_live_in_eighty_columns(shell: Shell) -> None:
    steps = ("--step", "third_time, hopeless continue_on_failure", "--step", 'double:{"n": 1}')
    shell("schedule", "add", "Nightly HR Sync", "--manual", *steps)
    shell.start_service("worker").wait_for_line("worker started")
    code, text = run_in_terminal(shell, "schedule", "run", "Nightly HR Sync", "--wait", "--timeout", "90")
    assert code == 0
    assert "\x1b[" in text, "drawn live"
    last = strip_escapes(text).rpartition("Nightly HR Sync")[2]
    assert re.search(r"✗━━●  group 2 of 2", last)
    assert re.search(r"1 ● third_time +done +attempt 3 .* m?s\r\n", last)
    assert re.search(r"\n  ✗ hopeless +failed: this cannot be one .* m?s\r\n2 ● double +done", last)
    assert max(len(line) for line in strip_escapes(text).splitlines()) <= 80
    for arguments in (("schedule", "list"), ("schedule", "show", "Nightly HR Sync"), ("execution", "list")):
        code, text = run_in_terminal(shell, *arguments)
        assert code == 0
        assert "Nightly HR Sync" in text
        assert max(len(line) for line in strip_escapes(text).splitlines()) <= 80
    bare = run_in_terminal(shell, "execution", "list", NO_COLOR="1")[1]
    assert "✓ completed" in bare


def run_in_terminal(shell: Shell, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run a command in a terminal of 80 by 24; return its exit code and all its output."""
    terminal, child_terminal = pty.openpty()
    size = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    environment = {**size, **environment}
    process = shell.start_process(*arguments, stdout=child_terminal, stderr=subprocess.DEVNULL, environment=environment)
    os.close(child_terminal)
    output = b""
    deadline = time.monotonic() + 100
    try:
        while time.monotonic() < deadline:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # Linux reports so that the other end was closed
                break
            if not piece:
                break
            output += piece
        return process.wait(60), output.decode()
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def strip_escapes(text: str) -> str:
    """Return the text without colours and cursor movements."""
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", text)


async def test_execution_is_found_by_the_beginning_of_its_id(shell: Shell, slow_execution: str, app: Tenuto) -> None:
    assert str(await app.executions.find(slow_execution[:20])) == slow_execution
    await asyncio.to_thread(shell, "schedule", "edit", "slow", "--overlap", "allow")
    await app.schedules.run("slow")
    with raises_code("id.prefix.ambiguous"):
        await app.executions.find(slow_execution[:2])


def test_schedule_run_waits_for_a_schedule_step(shell: Shell) -> None:
    shell("schedule", "add", "inner", "--manual", "--step", 'double:{"n": 1}')
    shell("schedule", "add", "outer", "--manual", "--step", "inner kind=schedule name=within")
    shell.start_service("up").wait_for_line("worker started")
    ended = shell("schedule", "run", "outer", "--wait", "--timeout", "90")
    assert ended.code == 0
    assert "● 1 of 1 within: done" in ended.out
    found = eventually_blocking(lambda: shell("execution", "list", "--schedule", "inner", "-o", "json").json)
    assert found[0]["origin"] == "step"
