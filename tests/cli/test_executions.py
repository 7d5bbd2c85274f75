"""``tenuto execution``, as people type it: looking, following live and in a pipe, cancelling, pausing, retrying."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import subprocess
import time
from typing import get_args

import pytest

from tenuto import Tenuto
from tenuto.cli.work import executions
from tenuto.errors import Conflict
from tenuto.model.executions import ExecutionState
from tests.cli.conftest import Shell
from tests.support.waiting import eventually_here


@pytest.fixture
def slow(shell: Shell) -> str:
    """An execution that goes on until it is cancelled, with a step after it."""
    shell("schedule", "add", "slow", "--manual", "--step", "last", "--step", 'double:{"n": 1}')
    return shell("schedule", "run", "slow", "-q").out.strip()


def test_executions_are_listed_narrowed_and_paged(shell: Shell) -> None:
    assert shell("execution", "list", "-o", "json").json == []
    assert shell("execution", "list").err == "no executions yet\n"
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


# `hopeless` says "be \x9bdone": the sequence goes as a whole, and takes the d with it


def test_an_execution_is_shown_with_every_step(shell: Shell) -> None:
    shell("schedule", "add", "bad", "--manual", "--step", "third_time, hopeless", "--step", 'double:{"n": 1}')
    shell.start("worker", "--name", "w1").until("worker ready")
    shell("schedule", "run", "bad", "--wait", "--timeout", "90")
    (execution,) = shell("execution", "list", "-o", "json").json
    shown = shell("execution", "show", execution["id"][:16]).out
    assert shown.startswith(f"✕ failed  bad  {execution['id']}\n")
    assert "came to  step 'hopeless' failed: this cannot be one" in shown
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
    "words", [("schedule", "run", "slow"), ("run", "last"), ("manifest", "run", "m"), ("execution", "retry", "019a")]
)
def test_a_limit_on_waiting_goes_with_waiting(shell: Shell, words: tuple[str, ...]) -> None:
    ended = shell(*words, "--timeout", "3")
    assert ended.code == 2
    assert "--timeout: goes with --wait" in ended.err


def test_an_execution_nobody_runs_says_why(shell: Shell, slow: str) -> None:
    assert "why it does not go on" in shell("execution", "show", slow).out
    (reason,) = shell("execution", "show", slow, "-o", "json").json["why"]
    assert reason["code"] == "no_worker"
    watching = shell.begin("execution", "watch", slow, stderr=subprocess.DEVNULL)
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
    assert still["state"] == "in_progress", "Ctrl-C stops the watching, not what is watched"


def test_watching_has_an_end(shell: Shell, slow: str) -> None:
    ended = shell("execution", "watch", slow, "--timeout", "0.3")
    assert ended.code == 7
    assert "has not ended after 0.3 s" in ended.err
    assert f"tenuto execution watch {slow}" in ended.err


def test_a_paused_one_goes_on_when_resumed_and_a_cancelled_one_is_retried(shell: Shell, slow: str) -> None:
    paused = shell("execution", "pause", slow, LOGNAME="ana")
    assert f"is paused, by ana; go on with: tenuto execution resume {slow}" in paused.err
    assert shell("execution", "pause", slow).code == 7
    assert "‖ paused" in shell("execution", "list").out
    assert shell("execution", "resume", slow, "-o", "json").json["paused_at"] is None
    ended = shell("execution", "cancel", slow, "--reason", "wrong file", "-o", "json", LOGNAME="bo")
    assert ended.json == {"id": slow, "outcome": "cancelled", "by": "bo"}
    shown = shell("execution", "show", slow).out
    assert "by bo: wrong file" in shown
    assert shell("execution", "cancel", slow).code == 7
    again = shell("execution", "retry", slow)
    new = shell("execution", "show", again.out.strip(), "-o", "json").json
    assert (new["retry_of"], new["origin"], new["state"]) == (slow, "retry", "in_progress")
    assert shell("execution", "retry", slow).code == 7


def test_what_runs_is_told_to_stop(shell: Shell, slow: str) -> None:
    shell.start("worker", "--queues", "default,slow").until("under way")
    ended = shell("execution", "cancel", slow)
    assert "what runs of it has been told to stop" in ended.err
    watched = shell("execution", "watch", slow, "--timeout", "60")
    assert watched.code == 1
    assert "⊘ cancelled at group 1 of 2" in watched.err


def test_in_a_terminal_it_is_drawn_live_in_eighty_columns(shell: Shell) -> None:
    steps = ("--step", "third_time, hopeless continue_on_failure", "--step", 'double:{"n": 1}')
    shell("schedule", "add", "Nightly HR Sync", "--manual", *steps)
    shell.start("worker").until("worker ready")
    code, text = in_a_terminal(shell, "schedule", "run", "Nightly HR Sync", "--wait", "--timeout", "90")
    assert code == 0
    assert "\x1b[" in text, "drawn over"
    last = plain(text).rpartition("Nightly HR Sync")[2]
    assert re.search(r"✗━━●  group 2 of 2", last)
    assert re.search(r"1 ● third_time +done +attempt 3 .* m?s\r\n", last)
    assert re.search(r"\n  ✗ hopeless +failed: this cannot be one .* m?s\r\n2 ● double +done", last)
    assert max(len(line) for line in plain(text).splitlines()) <= 80
    for words in (("schedule", "list"), ("schedule", "show", "Nightly HR Sync"), ("execution", "list")):
        code, text = in_a_terminal(shell, *words)
        assert code == 0
        assert "Nightly HR Sync" in text
        assert max(len(line) for line in plain(text).splitlines()) <= 80
    bare = in_a_terminal(shell, "execution", "list", NO_COLOR="1")[1]
    assert "✓ completed" in bare


def in_a_terminal(shell: Shell, *words: str, **environment: str) -> tuple[int, str]:
    """A command with a terminal of 80 by 24 before it: its exit code, and all that came to the screen."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": "80", "LINES": "24", "TERM": "xterm-256color"}
    environment = {**size, **environment}
    process = shell.begin(*words, stdout=theirs, stderr=subprocess.DEVNULL, environment=environment)
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 100
    try:
        while time.monotonic() < deadline:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody holds the other end any more
                break
            if not piece:
                break
            seen += piece
        return process.wait(60), seen.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def plain(text: str) -> str:
    """Without colours and movements."""
    return re.sub("\x1b\\[[0-9;?]*[A-Za-z]", "", text)


async def test_an_id_is_found_by_its_beginning(shell: Shell, slow: str, app: Tenuto) -> None:
    assert str(await app.executions.find(slow[:20])) == slow
    await asyncio.to_thread(shell, "schedule", "edit", "slow", "--overlap", "allow")
    await app.schedules.run("slow")
    with pytest.raises(Conflict, match="several ids begin"):
        await app.executions.find(slow[:2])


def test_the_states_that_can_be_asked_for_are_the_states_there_are() -> None:
    assert set(get_args(executions.State)) == set(ExecutionState)


def test_the_end_of_a_schedule_within_a_schedule_is_followed(shell: Shell) -> None:
    shell("schedule", "add", "inner", "--manual", "--step", 'double:{"n": 1}')
    shell("schedule", "add", "outer", "--manual", "--step", "inner kind=schedule name=within")
    shell.start("up").until("worker ready")
    ended = shell("schedule", "run", "outer", "--wait", "--timeout", "90")
    assert ended.code == 0
    assert "● 1 of 1 within: done" in ended.out
    found = eventually_here(lambda: shell("execution", "list", "--schedule", "inner", "-o", "json").json)
    assert found[0]["origin"] == "step"
