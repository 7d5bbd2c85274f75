"""``tenuto plan`` and ``tenuto apply`` as typed: files in, a plan and an exit code out."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

FILE = """
schedules:
  - name: nightly
    cron: "0 2 * * *"
    zone: Europe/London
    steps:
      - job: double
        input: {n: 21}
      - - job: last
        - job: third_time
          name: Third time
"""
SMALL = "schedules: [{name: small, steps: [{job: third_time}]}]"


@pytest.fixture
def file(shell: Shell) -> Path:
    path = shell.folder / "schedules.yaml"
    path.write_text(FILE)
    return path


def test_a_plan_ends_with_2_while_something_would_change_and_with_0_when_nothing_would(
    shell: Shell, file: Path
) -> None:
    first = shell("plan", "schedules.yaml")
    assert (first.code, first.err) == (2, "1 to create\n")
    assert first.out.startswith("+ nightly  created\n    Every day at 02:00, Europe/London\n    1 ─ double {")
    assert first.out.count("    + ") == 3, "the next three runs"
    assert shell("schedule", "list", "-o", "json").json == []

    applied = shell("apply", "schedules.yaml", "--reason", "release 42", LOGNAME="ana")
    assert (applied.code, applied.out) == (0, first.out), "the same plan first"
    assert applied.err == "1 to create\ndone, by ana\n"
    (version,) = shell("schedule", "history", "nightly", "-o", "json").json
    assert (version["reason"], version["actor"]["name"]) == ("release 42", "ana")

    again = shell("plan", "schedules.yaml")
    assert (again.code, again.out, again.err) == (0, "= nightly  unchanged\n", "1 unchanged\n")
    assert shell("apply", "schedules.yaml").err == "1 unchanged\n"


def test_a_change_is_shown_as_it_was_and_as_it_will_be(shell: Shell, file: Path) -> None:
    shell("apply", "schedules.yaml")
    file.write_text(FILE.replace("0 2 *", "30 3 *").replace("n: 21", "n: 22"))
    shown = shell("plan", "schedules.yaml").out
    assert "      - Every day at 02:00, Europe/London\n      + Every day at 03:30, Europe/London\n" in shown
    assert '      - ─ double {"n": 21}\n      + ─ double {"n": 22}\n' in shown
    runs = shown.partition("    next runs\n")[2].splitlines()
    assert sorted(line.split()[0] for line in runs) == ["+", "+", "+", "-", "-", "-"]
    assert "".join(line.split()[0] for line in runs) in ("-+-+-+", "+-+-+-"), "in their order"


def test_a_run_that_only_moves_down_the_list_does_not_count_as_gone(shell: Shell, file: Path) -> None:
    shell("apply", "schedules.yaml")
    file.write_text(FILE.replace("0 2 *", "0 2,14 *"))
    runs = shell("plan", "schedules.yaml").out.partition("    next runs\n")[2].splitlines()
    signs = [line[6] for line in runs]
    assert signs in (["+", " ", "+"], [" ", "+", " "]), "every day at two stays"


def test_a_plan_for_programs_is_one_document(shell: Shell, file: Path) -> None:
    shell("apply", "schedules.yaml", "-q")
    file.write_text(FILE.replace("0 2 *", "30 3 *"))
    ended = shell("plan", "schedules.yaml", "-o", "json")
    assert (ended.code, ended.err) == (2, "")
    (change,) = ended.json["schedules"]
    assert (change["name"], change["effect"], change["file"]) == ("nightly", "changed", "schedules.yaml")
    assert (change["path"], change["version"]) == ("schedules[0]", 1)
    assert change["changes"]["trigger"]["before"]["cron"] == "0 2 * * *"
    assert change["changes"]["trigger"]["after"]["cron"] == "30 3 * * *"
    assert list(change["changes"]) == ["trigger"]
    assert [len(change["next_runs"][when]) for when in ("before", "after")] == [3, 3]
    applied = shell("apply", "schedules.yaml", "-o", "json")
    assert (applied.code, applied.json["applied"], applied.json["changes_something"]) == (0, True, True)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (FILE.replace("n: 21", "n: many"), "schedules.yaml, line 8: schedules[0].steps[0].input.n: "),
        (
            FILE.replace("job: last", "job: lost"),
            "schedules.yaml, line 9: schedules[0].steps[1][0]: no job named 'lost'",
        ),
        (FILE.replace("zone:", "zome:"), "schedules.yaml, line 5: schedules[0].zome: a schedule has no such field"),
        (FILE.replace('"0 2 * * *"', "*/5 * * * *"), "schedules.yaml, line 4: is not YAML"),
        (FILE.replace('cron: "0 2 * * *"', "times: [18:30]"), "line 4: schedules[0].times[0]: 18:30 without quotes"),
        ("jobs: []", "schedules.yaml, line 1: jobs: a file has no such field"),
    ],
)
def test_what_is_wrong_is_told_by_file_line_and_path_and_nothing_is_done(
    shell: Shell, file: Path, text: str, told: str
) -> None:
    file.write_text(text)
    planned, applied = shell("plan", "schedules.yaml"), shell("apply", "schedules.yaml")
    assert told in planned.err
    assert told in applied.err
    assert (planned.code, applied.code) == (1, 2), "2 of a plan means that something would change, and nothing else"
    assert shell("schedule", "list", "-o", "json").json == []


def test_2_of_a_plan_never_means_that_it_was_not_understood(shell: Shell) -> None:
    assert shell("plan", "--wat", "x.yaml").code == 1
    assert shell("plan").code == 1
    assert shell("plan", "nothing.yaml").code == 1
    assert shell("plan", "tasks.py").code == 1
    assert shell("plan", "x.yaml", "--app", "nothing:app").code == 1
    assert shell("plan", "--help").code == 0
    assert shell("apply", "nothing.yaml").err == (
        "error: FILE: nothing.yaml cannot be read: No such file or directory\n  try: look at the path\n"
    )


def test_without_the_app_its_jobs_are_not_known_and_the_remedy_says_so(shell: Shell, file: Path) -> None:
    ended = shell("plan", "schedules.yaml", TENUTO_APP="")
    assert ended.code == 1
    assert "try: name the app that has it: --app module:object" in ended.err


def test_several_files_and_folders_are_one_declaration(shell: Shell, file: Path) -> None:
    folder = shell.folder / "more"
    folder.mkdir()
    assert "more holds no YAML or TOML" in shell("plan", "more").err
    (folder / "a.toml").write_text('[[schedules]]\nname = "small"\nsteps = [{schedule = "nightly"}]\n')
    (folder / "notes.txt").write_text("not a definition")
    assert shell("apply", "more", "schedules.yaml").err.startswith("2 to create\n")
    only = shell("plan", "schedules.yaml")
    assert (only.code, only.err) == (0, "1 unchanged, 1 not declared any more\n")
    assert "? small  not declared any more; it stays\n" in only.out


def test_pruning_asks_and_without_anybody_there_needs_yes(shell: Shell, file: Path) -> None:
    (shell.folder / "small.yaml").write_text(SMALL)
    shell("apply", "schedules.yaml", "small.yaml")
    planned = shell("plan", "small.yaml", "--prune")
    assert (planned.code, planned.err) == (2, "1 to delete, 1 unchanged\n")
    assert "- nightly  deleted: the files do not declare it\n" in planned.out
    refused = shell("apply", "small.yaml", "--prune")
    assert refused.code == 2
    assert "would delete nightly, and nobody is there to be asked" in refused.err
    assert _at_a_terminal(shell, "n", "apply", "small.yaml", "--prune") == 1
    assert len(shell("schedule", "list", "-o", "json").json) == 2
    assert _at_a_terminal(shell, "y", "apply", "small.yaml", "--prune") == 0
    assert [row["name"] for row in shell("schedule", "list", "-o", "json").json] == ["small"]
    shell("apply", "schedules.yaml", "small.yaml")
    assert shell("apply", "schedules.yaml", "--prune", "--yes").code == 0
    assert [row["name"] for row in shell("schedule", "list", "-o", "json").json] == ["nightly"]


def _at_a_terminal(shell: Shell, answer: str, *words: str) -> int:
    """The exit code, with somebody at the keyboard."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        return shell.begin(*words, stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(60)
    finally:
        os.close(ours)
        os.close(theirs)


def test_what_an_operator_switched_off_or_changed_stays_and_is_said(shell: Shell, file: Path) -> None:
    (shell.folder / "small.yaml").write_text(SMALL)
    shell("apply", "schedules.yaml", "small.yaml")
    shell("schedule", "disable", "small")
    shell("schedule", "edit", "nightly", "--cron", "0 5 * * *")
    ended = shell("apply", "schedules.yaml", "small.yaml")
    assert (ended.code, ended.err) == (0, "1 unchanged, 1 kept as an operator changed them\n")
    assert "! nightly  kept\n    changed by an operator, and the file says nothing new" in ended.out
    assert "= small  unchanged\n    disabled, and stays so\n" in ended.out
    shown = {row["name"]: row for row in shell("schedule", "list", "-o", "json").json}
    assert shown["nightly"]["trigger"]["cron"] == "0 5 * * *"
    assert shown["small"]["enabled"] is False
