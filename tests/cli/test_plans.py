"""The commands ``tenuto plan`` and ``tenuto apply``."""

from __future__ import annotations

import csv
import io
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


def test_plan_ends_with_2_if_there_are_changes_and_with_0_otherwise(shell: Shell, file: Path) -> None:
    first = shell("plan", "schedules.yaml")
    assert (first.code, first.err) == (2, "1 to create\n")
    assert first.out.startswith("+ nightly  created\n    Every day at 02:00, Europe/London\n    1 ─ double {")
    assert first.out.count("    + ") == 3, "the next three runs"
    assert shell("schedule", "list", "-o", "json").json == []
    (row,) = csv.DictReader(io.StringIO(shell("plan", "schedules.yaml", "-o", "csv").out))
    assert (row["list"], row["name"], row["effect"], row["path"]) == ("schedules", "nightly", "created", "schedules[0]")

    applied = shell("apply", "schedules.yaml", "--reason", "release 42", LOGNAME="ana")
    assert (applied.code, applied.out) == (0, first.out), "apply prints the plan first"
    assert applied.err == "1 to create\napplied by ana\n"
    (version,) = shell("schedule", "history", "nightly", "-o", "json").json
    assert (version["reason"], version["actor"]["name"]) == ("release 42", "ana")

    again = shell("plan", "schedules.yaml")
    assert (again.code, again.out, again.err) == (0, "= nightly  unchanged\n", "1 unchanged\n")
    assert shell("apply", "schedules.yaml").err == "1 unchanged\n"


def test_plan_shows_a_change_as_a_difference(shell: Shell, file: Path) -> None:
    shell("apply", "schedules.yaml")
    file.write_text(FILE.replace("0 2 *", "30 3 *").replace("n: 21", "n: 22"))
    shown = shell("plan", "schedules.yaml").out
    assert "      - Every day at 02:00, Europe/London\n      + Every day at 03:30, Europe/London\n" in shown
    assert '      - ─ double {"n": 21}\n      + ─ double {"n": 22}\n' in shown
    runs = shown.partition("    next runs\n")[2].splitlines()
    assert sorted(line.split()[0] for line in runs) == ["+", "+", "+", "-", "-", "-"]
    assert "".join(line.split()[0] for line in runs) in ("-+-+-+", "+-+-+-"), "in time order"


def test_run_that_only_moves_down_the_list_is_not_shown_as_removed(shell: Shell, file: Path) -> None:
    shell("apply", "schedules.yaml")
    file.write_text(FILE.replace("0 2 *", "0 2,14 *"))
    runs = shell("plan", "schedules.yaml").out.partition("    next runs\n")[2].splitlines()
    signs = [line[6] for line in runs]
    assert signs in (["+", " ", "+"], [" ", "+", " "]), "the run at two is kept"


def test_plan_as_json_is_one_document(shell: Shell, file: Path) -> None:
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
    ("text", "line", "path"),
    [
        (FILE.replace("n: 21", "n: many"), "line 8", "schedules[0].steps[0].input.n"),
        (FILE.replace("job: last", "job: lost"), "line 9", "schedules[0].steps[1][0]"),
        (FILE.replace("zone:", "zome:"), "line 5", "zome"),
        (FILE.replace('"0 2 * * *"', "*/5 * * * *"), "line 4", "YAML"),
        (FILE.replace('cron: "0 2 * * *"', "times: [1830]"), "line 4", "schedules[0].times"),
        ("jobs: []", "line 1", "jobs"),
    ],
)
def test_error_in_a_file_has_file_line_and_path_and_nothing_is_applied(
    shell: Shell, file: Path, text: str, line: str, path: str
) -> None:
    file.write_text(text)
    planned, applied = shell("plan", "schedules.yaml"), shell("apply", "schedules.yaml")
    for ended in (planned, applied):
        assert all(part in ended.err for part in ("schedules.yaml", line, path)), ended.err
    assert (planned.code, applied.code) == (1, 2), "2 of a plan means that there are changes, and nothing else"
    assert shell("schedule", "list", "-o", "json").json == []


def test_usage_error_of_plan_never_ends_with_2(shell: Shell) -> None:
    assert shell("plan", "--wat", "x.yaml").code == 1
    assert shell("plan").code == 1
    assert shell("plan", "nothing.yaml").code == 1
    assert shell("plan", "tasks.py").code == 1
    assert shell("plan", "x.yaml", "--app", "nothing:app").code == 1
    assert shell("plan", "--help").code == 0
    unreadable = shell("apply", "nothing.yaml", "-o", "json")
    assert unreadable.error == {
        "code": "definition_file.unreadable",
        "message": "nothing.yaml cannot be read: No such file or directory",
        "field": "FILE",
        "remedy": "check the path and its permissions",
    }


def test_plan_without_app_names_the_option_app_in_the_remedy(shell: Shell, file: Path) -> None:
    ended = shell("plan", "schedules.yaml", TENUTO_APP="")
    assert ended.code == 1
    assert "--app" in ended.err.partition("\n  try: ")[2]


def test_plan_and_apply_accept_files_and_folders(shell: Shell, file: Path) -> None:
    folder = shell.folder / "more"
    folder.mkdir()
    assert shell("plan", "more", "-o", "json").error["code"] == "definition_file.none_in_folder"
    (folder / "a.toml").write_text('[[schedules]]\nname = "small"\nsteps = [{schedule = "nightly"}]\n')
    (folder / "notes.txt").write_text("not a definition")
    assert shell("apply", "more", "schedules.yaml").err.startswith("2 to create\n")
    only = shell("plan", "schedules.yaml")
    assert (only.code, only.err) == (0, "1 unchanged, 1 no longer declared\n")
    assert "? small  no longer declared; kept\n" in only.out


def test_prune_asks_for_confirmation_and_needs_yes_without_a_terminal(shell: Shell, file: Path) -> None:
    (shell.folder / "small.yaml").write_text(SMALL)
    shell("apply", "schedules.yaml", "small.yaml")
    planned = shell("plan", "small.yaml", "--prune")
    assert (planned.code, planned.err) == (2, "1 to delete, 1 unchanged\n")
    assert "- nightly  deleted: not declared in the files\n" in planned.out
    rejected = shell("apply", "small.yaml", "--prune", "-o", "json")
    assert (rejected.code, rejected.error["code"]) == (2, "cli.confirmation.unavailable")
    assert _run_at_terminal(shell, "n", "apply", "small.yaml", "--prune") == 1
    assert len(shell("schedule", "list", "-o", "json").json) == 2
    assert _run_at_terminal(shell, "y", "apply", "small.yaml", "--prune") == 0
    assert [row["name"] for row in shell("schedule", "list", "-o", "json").json] == ["small"]
    shell("apply", "schedules.yaml", "small.yaml")
    assert shell("apply", "schedules.yaml", "--prune", "--yes").code == 0
    assert [row["name"] for row in shell("schedule", "list", "-o", "json").json] == ["nightly"]


def _run_at_terminal(shell: Shell, answer: str, *arguments: str) -> int:
    """Run a command at a terminal, type the answer, and return the exit code."""
    controller, terminal = pty.openpty()
    try:
        os.write(controller, f"{answer}\n".encode())
        discarded = subprocess.DEVNULL
        return shell.start_process(*arguments, stdin=terminal, stdout=discarded, stderr=discarded).wait(60)
    finally:
        os.close(controller)
        os.close(terminal)


def test_changes_of_operators_are_kept_and_reported(shell: Shell, file: Path) -> None:
    (shell.folder / "small.yaml").write_text(SMALL)
    shell("apply", "schedules.yaml", "small.yaml")
    shell("schedule", "disable", "small")
    shell("schedule", "edit", "nightly", "--cron", "0 5 * * *")
    ended = shell("apply", "schedules.yaml", "small.yaml")
    assert (ended.code, ended.err) == (0, "1 unchanged, 1 kept with changes of operators\n")
    assert "! nightly  kept\n    " in ended.out
    assert "= small  unchanged\n    disabled" in ended.out
    shown = {row["name"]: row for row in shell("schedule", "list", "-o", "json").json}
    assert shown["nightly"]["trigger"]["cron"] == "0 5 * * *"
    assert shown["small"]["enabled"] is False


EXTENSIONS = '''
"""An app with extensions that have lists in definition files and previews of plans."""

from tenuto import Tenuto
from tenuto.extension import DefinitionList, Extension, ListChange, ListPlan, PlanPreview

HOSTILE = "Eve\\x1b]0;owned\\x07\\x1b[2J \\x9b31mred"


async def plan(connection, declared, prune):
    notes = [f"1 object: {HOSTILE}"]
    return ListPlan([ListChange(each, "created", after={"name": each}, notes=notes) for each in declared])


async def apply(connection, planned, author):
    pass


class Lists(Extension):
    def definition_lists(self):
        return [DefinitionList(f"{self.name}_items", lambda entry: entry.value, str, plan, apply)]


class Hostile(Lists):
    name = "hostile"

    async def preview_plan(self, app, declared, prune):
        return PlanPreview(f"line 1: {HOSTILE}\\nline 2", {"value": HOSTILE})


class Broken(Lists):
    name = "broken"

    async def preview_plan(self, app, declared, prune):
        raise KeyError("systems")


class Confused(Lists):
    name = "confused"

    async def preview_plan(self, app, declared, prune):
        return "a text"


app = Tenuto(extensions=[Broken(), Hostile(), Confused()])
'''


@pytest.fixture
def extended_shell(shell: Shell) -> Shell:
    (shell.folder / "extended.py").write_text(EXTENSIONS)
    shell.environment["TENUTO_APP"] = "extended:app"
    return shell


def test_plan_prints_notes_and_previews_of_extensions_without_escape_sequences(extended_shell: Shell) -> None:
    (extended_shell.folder / "items.yaml").write_text("hostile_items: [one]")
    shown = extended_shell("plan", "items.yaml", "--preview")
    assert shown.code == 2
    assert "    1 object: Eve red\n" in shown.out
    assert "line 1: Eve red\nline 2\n" in shown.out
    document = extended_shell("plan", "items.yaml", "--preview", "-o", "json")
    for ended in (shown, document):
        assert not any(character in ended.out + ended.err for character in "\x1b\x07\x9b")


def test_plan_names_extensions_whose_preview_is_broken_and_shows_the_others(extended_shell: Shell) -> None:
    (extended_shell.folder / "items.yaml").write_text("broken_items: [one]\nhostile_items: [two]\nconfused_items: [x]")
    ended = extended_shell("plan", "items.yaml", "--preview")
    assert ended.code == 1
    assert "error: the extension 'broken' cannot preview the plan: KeyError: 'systems'" in ended.err
    assert "the extension 'confused' cannot preview the plan: TypeError: expected PlanPreview" in ended.err
    assert "line 2" in ended.out
    ended = extended_shell("plan", "items.yaml", "--preview", "-o", "json")
    assert (ended.code, ended.error["code"]) == (1, "extension.preview.failed")
    assert list(ended.json["previews"]) == ["hostile"]


def test_plan_refuses_a_preview_as_csv(shell: Shell, file: Path) -> None:
    ended = shell("plan", "schedules.yaml", "--preview", "-o", "csv")
    assert (ended.code, ended.out) == (1, "")
    assert "error: --preview and -o csv cannot be combined" in ended.err


def test_queues_of_a_file_are_planned_applied_kept_and_pruned(shell: Shell) -> None:
    path = shell.folder / "queues.yaml"
    path.write_text("queues:\n- {name: mail, max_running: 20, rate_limit: 100/m}\n")
    planned = shell("plan", "queues.yaml")
    assert (planned.code, planned.err) == (2, "1 to create\n")
    assert planned.out.startswith("+ queue mail  created\n")
    assert "maximum running" in planned.out
    assert "+ 100/m" in planned.out
    assert shell("apply", "queues.yaml", "--reason", "release 42").code == 0
    (row,) = shell("queue", "list", "-o", "json").json
    assert (row["name"], row["max_running"], row["rate_limit"]) == ("mail", 20, "100/m")

    assert shell("queue", "limit", "mail", "5").code == 0
    kept = shell("plan", "queues.yaml")
    assert (kept.code, kept.err) == (0, "1 kept with changes of operators\n")
    assert kept.out.startswith("! queue mail  kept\n    max_running: changed by an operator")
    (change,) = shell("plan", "queues.yaml", "-o", "json").json["queues"]
    assert (change["name"], change["effect"], change["path"]) == ("mail", "kept", "queues[0]")

    path.write_text("queues:\n- {name: mail, max_runing: 20}\n")
    wrong = shell("plan", "queues.yaml")
    assert wrong.code == 1
    assert "queues[0].max_runing: a queue has no field 'max_runing'" in wrong.err
    assert "did you mean max_running?" in wrong.err

    path.write_text("queues: []\n")
    pruned = shell("apply", "queues.yaml", "--prune", "--yes")
    assert (pruned.code, pruned.out) == (0, "- queue mail  deleted: not declared in the files\n")
    (row,) = shell("queue", "list", "-o", "json").json
    assert (row["max_running"], row["rate_limit"]) == (5, None), "the operator's limit remains"
