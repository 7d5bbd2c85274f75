"""`tenuto dead-letter`: list, show, retry and acknowledge; comparison of attempts."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from tenuto.cli.work.dead_letters import render_attempt_diff
from tenuto.model.work.tasks import ActivityState, OutcomeReason
from tenuto.store.work.activities import ActivityDetails
from tests.cli.conftest import Shell
from tests.support.waiting import eventually_blocking


@pytest.fixture
def failed_batch(shell: Shell) -> Shell:
    """A shell with a manifest that has three open dead letters."""
    shell("manifest", "add", "bad", "--job", "hopeless", "--on-demand")
    (shell.folder / "rows.jsonl").write_text("{}\n{}\n{}\n")
    worker = shell.start_service("worker")
    worker.wait_for_line("worker started")
    assert shell("batch", "submit", "bad", "--from", "rows.jsonl", "--batch-key", "b", "--watch").code == 1
    assert worker.stop() == 0
    return shell


def list_dead_letters(shell: Shell, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell("dead-letter", "list", *arguments, "-o", "json").json
    return found


def test_dead_letters_are_listed_grouped_and_shown(failed_batch: Shell) -> None:
    found = list_dead_letters(failed_batch)
    assert [(each["external_id"], each["attempt_count"], each["state"]) for each in found] == [
        ("bad", 1, "awaiting_intervention")
    ] * 3
    (kind,) = failed_batch("dead-letter", "list", "--group", "--batch", "b", "-o", "json").json
    assert (kind["dead_letter_count"], kind["fingerprint"], kind["external_id"]) == (3, found[0]["fingerprint"], "bad")
    hints = failed_batch("dead-letter", "list", "--group").err
    assert f"tenuto dead-letter retry --all --where fingerprint:{kind['fingerprint']}" in hints
    assert list_dead_letters(failed_batch, "--manifest", "other") == []
    assert len(list_dead_letters(failed_batch, "--limit", "2")) == 2
    shown = failed_batch("dead-letter", "show", found[0]["id"])
    assert shown.out.startswith(f"✉ awaiting intervention  bad  {found[0]['id']}\n")
    assert "\x1b" not in shown.out, "no control characters of the error"
    assert "attempt 1\n" in shown.out
    assert "error of attempt 1" in shown.out
    assert f"  tenuto dead-letter acknowledge {found[0]['id']}\n" in shown.err


def test_dead_letter_is_resolved_only_once(failed_batch: Shell) -> None:
    first, second, _ = (each["id"] for each in list_dead_letters(failed_batch))
    retried = failed_batch("dead-letter", "retry", first, "--note", "the server is back", LOGNAME="ana")
    assert retried.code == 0
    again = failed_batch("dead-letter", "acknowledge", first)
    assert again.code == 7
    assert first in again.err
    assert "ana" in again.err
    document = failed_batch("dead-letter", "show", first, "-o", "json").json
    assert (document["state"], document["note"], document["retry_task_id"]) == (
        "retried",
        "the server is back",
        retried.out.strip(),
    )
    assert failed_batch("dead-letter", "acknowledge", second, "--note", "seen", LOGNAME="bo").code == 0
    assert [each["id"] for each in list_dead_letters(failed_batch, "--state", "acknowledged")] == [second]
    assert len(list_dead_letters(failed_batch, "--state", "all")) == 3
    assert failed_batch("dead-letter", "retry").code == 2
    assert failed_batch("dead-letter", "show", "00000000").code == 3


PICKY = """
from tenuto import PermanentFailure, Tenuto

app = Tenuto()


@app.job
async def root_of(n: int) -> float:
    if n < 0:
        raise PermanentFailure("a negative number has no root")
    return n ** 0.5
"""


def test_dead_letter_retry_with_corrected_input(shell: Shell) -> None:
    (shell.folder / "picky.py").write_text(PICKY)
    shell.environment["TENUTO_APP"] = "picky:app"
    shell("manifest", "add", "roots", "--job", "root_of", "--set", "n=-9")
    shell.start_service("worker").wait_for_line("worker started")
    assert shell("manifest", "run", "roots", "--wait").code == 1
    (dead_letter,) = list_dead_letters(shell)
    (shell.folder / "corrected.json").write_text('{"n": "x"}')
    invalid = shell("dead-letter", "retry", dead_letter["id"], "--input", "@corrected.json")
    assert (invalid.code, "valid integer" in invalid.err) == (2, True)
    assert shell("dead-letter", "retry", dead_letter["id"], "--input", "[9]").code == 2
    assert shell("dead-letter", "retry", "--all", "--input", '{"n": 9}').code == 2, "--input applies to one dead letter"
    retried = shell("dead-letter", "retry", dead_letter["id"], "--input", '{"n": 9}')
    assert retried.code == 0
    task = eventually_blocking(
        lambda: shell("task", "show", retried.out.strip(), "-o", "json").json["attempts"][-1]["output"], 30
    )
    assert task == 3.0
    assert list_dead_letters(shell) == []


def test_dead_letter_retry_all_shows_the_selection_and_requires_confirmation(failed_batch: Shell) -> None:
    fingerprint = list_dead_letters(failed_batch)[0]["fingerprint"]
    unconfirmed = failed_batch("dead-letter", "retry", "--all")
    assert (unconfirmed.code, unconfirmed.out.splitlines()[1].split()[:4]) == (2, ["3", "hopeless", "bad", fingerprint])
    assert "cannot ask for confirmation to retry 3 dead letters" in unconfirmed.err
    for where in ("manifest:other", "fingerprint:nothing", "created:<2020-01-01"):
        assert "no matching open dead letters" in failed_batch("dead-letter", "retry", "--all", "--where", where).err
    for wrong in ("manifst:bad", "manifest:", "created:soon"):
        assert failed_batch("dead-letter", "retry", "--all", "--where", wrong, "--yes").code == 2
    assert failed_batch("dead-letter", "retry", "--where", "manifest:bad").code == 2, (
        "--where without --all is rejected"
    )
    done = failed_batch(
        *("dead-letter", "acknowledge", "--all", "--where", f"manifest:bad fingerprint:{fingerprint} error:~cannot"),
        *("--yes", "--note", "test data", "-o", "json"),
    )
    assert done.json == {"selected": 3, "acknowledged": 3}
    assert list_dead_letters(failed_batch) == []


def test_dead_letter_filter_is_one_argument(shell: Shell) -> None:
    result = shell("dead-letter", "retry", "--all", "--yes", "-o", "json", "--where", "manifest:bad", "created:>1d")
    assert (result.code, result.error["code"]) == (2, "cli.option.conflict")


def test_dead_letter_retry_all_without_confirmation_changes_nothing(failed_batch: Shell) -> None:
    terminal, child_terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "tenuto", "dead-letter", "retry", "--all"],
        cwd=failed_batch.folder,
        env=failed_batch.environment,
        stdin=child_terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.write(terminal, b"n\n")
    _, messages = process.communicate(timeout=60)
    os.close(terminal)
    os.close(child_terminal)
    assert process.returncode == 1
    assert "retry 3 dead letters? [y/N]" in messages
    assert "nothing was changed" in messages
    assert len(list_dead_letters(failed_batch)) == 3


def test_dead_letter_acknowledge_requires_a_note_where_configured(failed_batch: Shell) -> None:
    id = list_dead_letters(failed_batch)[0]["id"]
    rejected = failed_batch("dead-letter", "acknowledge", id, TENUTO_DEAD_LETTER_NOTE_REQUIRED="true")
    assert (rejected.code, "note" in rejected.err) == (2, True)
    assert (
        failed_batch("dead-letter", "acknowledge", id, "--note", "why", TENUTO_DEAD_LETTER_NOTE_REQUIRED="true").code
        == 0
    )


def test_manifest_show_names_its_open_dead_letter(shell: Shell) -> None:
    shell("manifest", "add", "sad", "--job", "hopeless", "--every", "1h")
    shell.start_service("worker").wait_for_line("worker started")
    shell("manifest", "run", "sad")
    eventually_blocking(lambda: list_dead_letters(shell, "--manifest", "sad"), 30)
    shown = shell("manifest", "show", "sad").out
    assert "1 open; list them with: tenuto dead-letter list --manifest sad" in shown
    assert "skipped while a dead letter is open" in shown


# ---- comparison of attempts

STARTED_AT = datetime(2031, 5, 17, 12, tzinfo=UTC)


def make_attempt(number: int, **changes: Any) -> ActivityDetails:
    started_at = STARTED_AT + timedelta(minutes=number)
    values: dict[str, Any] = {
        **{field.name: None for field in fields(ActivityDetails)},
        "attempt": number,
        "state": ActivityState.FAILED,
        "reason": OutcomeReason.ERROR,
        "input": {"n": 1},
        "worker": "w1",
        "error": {"type": "ValueError", "message": "no", "step": "load"},
        "run_at": started_at - timedelta(seconds=2),
        "started_at": started_at,
        "ended_at": started_at + timedelta(seconds=1),
    }
    return ActivityDetails(**(values | changes))


def render(attempts: list[ActivityDetails], width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        for part in render_attempt_diff(attempts, width):
            console.print(part)
    return captured.get()


def test_attempt_diff_shows_shared_values_once_and_differing_values_side_by_side() -> None:
    slow = {"ended_at": STARTED_AT + timedelta(minutes=3, seconds=40)}
    text = render([make_attempt(1), make_attempt(2, worker="w2"), make_attempt(3, worker="w2", **slow)])
    same, _, beside = text.partition("\n\n")
    assert "the same in all 3 attempts" in same
    assert all(value in same for value in ('{"n": 1}', "ValueError", "load"))
    heads = next(line for line in beside.splitlines() if "attempt 1" in line)
    assert heads.split() == ["attempt", "1", "attempt", "2", "attempt", "3"]
    workers = next(line for line in beside.splitlines() if line.startswith("worker"))
    assert workers.split() == ["worker", "w1", "w2", "as", "before"]
    assert "40.0 s (longer)" in beside
    assert "1 min after the first" in beside
    assert "ValueError" not in beside


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 20])
def test_attempt_diff_fits_the_width_of_the_terminal(number: int) -> None:
    long = {"type": "Error", "message": "a very long message " * 20, "step": "x"}
    for width in (40, 80, 120):
        text = render([make_attempt(each, error={**long, "step": str(each)}) for each in range(1, number + 1)], width)
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        assert f"attempt {number}" in text
    if number == 20:
        assert "attempts 2 to 14 are omitted" in text


def test_attempt_diff_refers_as_before_to_the_attempt_shown_before() -> None:
    others = {"worker": "w2", "ended_at": STARTED_AT + timedelta(minutes=3)}
    text = render(
        [make_attempt(1), make_attempt(2), make_attempt(3, **others), *(make_attempt(each) for each in range(4, 10))]
    )
    assert "attempts 2 to 3 are omitted" in text
    workers = [line for line in text.splitlines() if line.startswith("worker")]
    assert " ".join(workers).replace("worker", "").split() == ["w1", *["as", "before"] * 6]
    assert "shorter" not in text
    assert "attempt 2 is omitted" in render(
        [make_attempt(1, worker="w2"), *(make_attempt(each) for each in range(2, 9))]
    )


def test_task_retry_runs_a_failed_task_again_with_corrected_input(shell: Shell) -> None:
    shell.start_service("worker").wait_for_line("worker started")
    failed = shell("run", "hopeless", "--wait", "--timeout", "60")
    assert failed.code != 0
    (dead_letter,) = list_dead_letters(shell)
    assert (dead_letter["name"], dead_letter["external_id"]) == ("hopeless", "")
    assert "hopeless" in shell("dead-letter", "list").out
    assert "hopeless" in shell("dead-letter", "list", "--group").out
    assert "hopeless" in shell("dead-letter", "show", dead_letter["id"]).out
    wrong = shell("task", "retry", dead_letter["task_id"], "--input", '{"n": 1}', "-o", "json")
    assert (wrong.code, wrong.error["code"]) == (2, "job.input.invalid")
    retried = shell("task", "retry", dead_letter["task_id"], "--note", "once more", TENUTO_APP="")
    assert retried.code == 0, retried.err
    assert retried.out.strip() != dead_letter["task_id"]
    again = shell("task", "retry", dead_letter["task_id"], "-o", "json")
    assert (again.code, again.error["code"]) == (7, "dead_letter.already_resolved")
