"""``tenuto dead-letter``, as people type it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from tenuto.cli.work.attempt_diff import compared
from tests.cli.conftest import Shell
from tests.support.waiting import eventually_here


@pytest.fixture
def failed(shell: Shell) -> Shell:
    """A terminal with a manifest of which three items have failed for good."""
    shell("manifest", "add", "bad", "--job", "hopeless", "--on-demand")
    (shell.folder / "rows.jsonl").write_text("{}\n{}\n{}\n")
    worker = shell.start("worker")
    worker.until("worker ready")
    assert shell("batch", "submit", "bad", "--from", "rows.jsonl", "--batch-key", "b", "--watch").code == 1
    assert worker.stop() == 0
    return shell


def letters(shell: Shell, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell("dead-letter", "list", *words, "-o", "json").json
    return found


def test_letters_are_listed_grouped_and_shown(failed: Shell) -> None:
    found = letters(failed)
    assert [(each["external_id"], each["attempts"], each["status"]) for each in found] == [
        ("bad", 1, "awaiting_intervention")
    ] * 3
    (kind,) = failed("dead-letter", "list", "--group", "--batch", "b", "-o", "json").json
    assert (kind["letters"], kind["fingerprint"], kind["external_id"]) == (3, found[0]["fingerprint"], "bad")
    hints = failed("dead-letter", "list", "--group").err
    assert f"tenuto dead-letter retry --all --where fingerprint={kind['fingerprint']}" in hints
    assert letters(failed, "--manifest", "other") == []
    assert len(letters(failed, "--limit", "2")) == 2
    shown = failed("dead-letter", "show", found[0]["id"])
    assert shown.out.startswith(f"✉ awaiting intervention  bad  {found[0]['id']}\n")
    assert "\x1b" not in shown.out, "what the failure says moves no cursor"
    assert "attempt 1\n" in shown.out
    assert "error of attempt 1" in shown.out
    assert f"  tenuto dead-letter acknowledge {found[0]['id']}\n" in shown.err


def test_a_letter_is_decided_on_once(failed: Shell) -> None:
    first, second, _ = (each["id"] for each in letters(failed))
    retried = failed("dead-letter", "retry", first, "--note", "the server is back", LOGNAME="ana")
    assert retried.code == 0
    again = failed("dead-letter", "acknowledge", first)
    assert (again.code, f"dead letter {first} was retried by ana" in again.err) == (7, True)
    document = failed("dead-letter", "show", first, "-o", "json").json
    assert (document["status"], document["note"], document["retry_task_id"]) == (
        "retried",
        "the server is back",
        retried.out.strip(),
    )
    assert failed("dead-letter", "acknowledge", second, "--note", "seen", LOGNAME="bo").code == 0
    assert [each["id"] for each in letters(failed, "--status", "acknowledged")] == [second]
    assert len(letters(failed, "--status", "all")) == 3
    assert failed("dead-letter", "retry").code == 2
    assert failed("dead-letter", "show", "00000000").code == 3


PICKY = """
from tenuto import PermanentFailure, Tenuto

app = Tenuto()


@app.job
async def root_of(n: int) -> float:
    if n < 0:
        raise PermanentFailure("it has none")
    return n ** 0.5
"""


def test_a_letter_is_run_again_with_mended_input(shell: Shell) -> None:
    (shell.folder / "picky.py").write_text(PICKY)
    shell.environment["TENUTO_APP"] = "picky:app"
    shell("manifest", "add", "roots", "--job", "root_of", "--set", "n=-9")
    shell.start("worker").until("worker ready")
    assert shell("manifest", "run", "roots", "--wait").code == 1
    (letter,) = letters(shell)
    (shell.folder / "mended.json").write_text('{"n": "x"}')
    unfit = shell("dead-letter", "retry", letter["id"], "--input", "@mended.json")
    assert (unfit.code, "n: Input should be a valid integer" in unfit.err) == (2, True)
    assert shell("dead-letter", "retry", letter["id"], "--input", "[9]").code == 2
    assert shell("dead-letter", "retry", "--all", "--input", '{"n": 9}').code == 2, "it is for one letter"
    retried = shell("dead-letter", "retry", letter["id"], "--input", '{"n": 9}')
    assert retried.code == 0
    task = eventually_here(
        lambda: shell("task", "show", retried.out.strip(), "-o", "json").json["attempts"][-1]["output"], 30
    )
    assert task == 3.0
    assert letters(shell) == []


def test_all_of_a_selection_are_decided_on_after_it_was_shown(failed: Shell) -> None:
    fingerprint = letters(failed)[0]["fingerprint"]
    unasked = failed("dead-letter", "retry", "--all")
    assert (unasked.code, unasked.out.splitlines()[1].split()[:3]) == (2, ["3", "bad", fingerprint])
    assert "would run 3 dead letters again, and nobody is there to be asked" in unasked.err
    for where in ("manifest=other", "fingerprint=nothing", "until=2020-01-01T00:00:00Z"):
        assert "no open dead letters like that" in failed("dead-letter", "retry", "--all", "--where", where).err
    for wrong in ("manifst=bad", "manifest=", "until=yesterday"):
        assert failed("dead-letter", "retry", "--all", "--where", wrong, "--yes").code == 2
    assert failed("dead-letter", "retry", "--where", "manifest=bad").code == 2, "--all is said, not guessed"
    done = failed(
        *("dead-letter", "acknowledge", "--all", "--where", "manifest=bad", f"fingerprint={fingerprint}", "batch=b"),
        *("--yes", "--note", "test data", "-o", "json"),
    )
    assert done.json == {"selected": 3, "acknowledged": 3}
    assert letters(failed) == []


def test_a_condition_may_have_blanks_and_commas_in_its_value(shell: Shell) -> None:
    shell("manifest", "add", "bad", "--job", "hopeless", "--on-demand")
    (shell.folder / "rows.jsonl").write_text("{}\n")
    for key in ("May 2031, first", "May"):
        assert shell("batch", "submit", "bad", "--from", "rows.jsonl", "--batch-key", key).code == 0

    def retried(*conditions: str) -> tuple[int, str]:
        ended = shell("dead-letter", "retry", "--all", "--yes", "--where", *conditions)
        return ended.code, ended.err.splitlines()[0]

    nothing = (0, "no open dead letters like that")
    assert retried("batch=May 2031, first") == nothing
    assert retried("manifest=bad, batch=May 2031, first until=2031-05-17T00:00:00Z") == nothing
    assert retried("manifest=bad,", "batch=May") == nothing
    assert retried("batch=May", "2031") == (2, "error: --where: '2031' is no condition")
    assert retried("manifest=bad, fingerpint=x") == (2, "error: --where: 'fingerpint' is nothing a letter has")
    assert retried("manifest=bad until=") == (2, "error: --where: says no until")
    assert retried("batch=May, batch=May 2031, first") == (2, "error: --where: says batch twice")


def test_who_is_asked_and_says_no_has_changed_nothing(failed: Shell) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tenuto", "dead-letter", "retry", "--all"],
        cwd=failed.folder,
        env=failed.environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(ours, b"n\n")
    _, said = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 1
    assert "run 3 dead letters again? [y/N]" in said
    assert "nothing was changed" in said
    assert len(letters(failed)) == 3


def test_a_note_is_asked_for_where_that_is_configured(failed: Shell) -> None:
    id = letters(failed)[0]["id"]
    refused = failed("dead-letter", "acknowledge", id, TENUTO_LETTERS_NEED_NOTES="true")
    assert (refused.code, "note: is needed here" in refused.err) == (2, True)
    assert failed("dead-letter", "acknowledge", id, "--note", "why", TENUTO_LETTERS_NEED_NOTES="true").code == 0


def test_a_manifest_with_an_open_letter_says_so(shell: Shell) -> None:
    shell("manifest", "add", "sad", "--job", "hopeless", "--every", "1h")
    shell.start("worker").until("worker ready")
    shell("manifest", "run", "sad")
    eventually_here(lambda: letters(shell, "--manifest", "sad"), 30)
    shown = shell("manifest", "show", "sad").out
    assert "1 open; see: tenuto dead-letter list --manifest sad" in shown
    assert "passed over while its dead letter is open" in shown


# ---- side by side

BEGAN = datetime(2031, 5, 17, 12, tzinfo=UTC)


def attempt(number: int, **differing: Any) -> dict[str, Any]:
    began = BEGAN + timedelta(minutes=number)
    return {
        "attempt": number,
        "status": "failed",
        "reason": "error",
        "input": {"n": 1},
        "output": None,
        "worker": "w1",
        "worker_id": None,
        "error": {"type": "ValueError", "message": "no", "step": "load"},
        "run_at": began - timedelta(seconds=2),
        "started_at": began,
        "ended_at": began + timedelta(seconds=1),
        **differing,
    }


def drawn(attempts: list[dict[str, Any]], width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        for part in compared(attempts, width):
            console.print(part)
    return captured.get()


def test_what_is_the_same_is_said_once_and_what_differs_stands_side_by_side() -> None:
    slow = {"ended_at": BEGAN + timedelta(minutes=3, seconds=40)}
    text = drawn([attempt(1), attempt(2, worker="w2"), attempt(3, worker="w2", **slow)])
    same, _, beside = text.partition("\n\n")
    assert "the same in all 3 attempts" in same
    assert all(words in same for words in ('{"n": 1}', "ValueError", "load"))
    heads = next(line for line in beside.splitlines() if "attempt 1" in line)
    assert heads.split() == ["attempt", "1", "attempt", "2", "attempt", "3"]
    workers = next(line for line in beside.splitlines() if line.startswith("worker"))
    assert workers.split() == ["worker", "w1", "w2", "as", "before"]
    assert "40.0 s (longer)" in beside
    assert "1 min after the first" in beside
    assert "ValueError" not in beside


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 20])
def test_no_line_is_longer_than_the_terminal(number: int) -> None:
    long = {"type": "Error", "message": "a very long message " * 20, "step": "x"}
    for width in (40, 80, 120):
        text = drawn([attempt(each, error={**long, "step": str(each)}) for each in range(1, number + 1)], width)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        assert f"attempt {number}" in text
    if number == 20:
        assert "attempts 2 to 14 are left out" in text


def test_as_before_means_as_in_the_attempt_shown_before() -> None:
    others = {"worker": "w2", "ended_at": BEGAN + timedelta(minutes=3)}
    text = drawn([attempt(1), attempt(2), attempt(3, **others), *(attempt(each) for each in range(4, 10))])
    assert "attempts 2 to 3 are left out" in text
    workers = [line for line in text.splitlines() if line.startswith("worker")]
    assert " ".join(workers).replace("worker", "").split() == ["w1", *["as", "before"] * 6]
    assert "shorter" not in text
    assert "attempt 2 is left out" in drawn([attempt(1, worker="w2"), *(attempt(each) for each in range(2, 9))])
