"""The command ``tenuto manifest``, and manifests in definition files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.support.waiting import eventually_blocking

REPORT = ("manifest", "add", "report", "--job", "double", "--cron", "0 6 * * mon-fri", "--set", "n=7")


def test_manifest_is_created_shown_and_listed(shell: Shell) -> None:
    created = shell(*REPORT, "--group", "reports", "--max-active", "3", "--reason", "asked for", LOGNAME="ana")
    assert (created.code, created.out) == (0, "")
    assert "manifest report created by ana: Every weekday at 06:00, UTC\n  next " in created.err
    assert shell("manifest", "add", "later", "--job", "double", "--after", "report", "--set", "n=1").code == 0
    shown = shell("manifest", "show", "report").out
    assert shown.startswith("● on  report  version 1\n")
    values = {line[:13].strip(): line[13:].strip() for line in shown.splitlines() if line[:1].isalpha()}
    assert values["properties"] == '{"n": 7}'
    assert values["when"] == "Every weekday at 06:00, UTC"
    assert values["last success"] == "never"
    assert values["limits"] == "manifest 0 of 3 active; group reports 0 active, no limit"
    assert values["dependents"] == "later"
    assert values["dead letters"] == "none"
    assert values["last change"].endswith("by ana: asked for")
    document = shell("manifest", "show", "report", "-o", "json").json
    assert (document["schedule_type"], document["property_type"]) == ("cron", "n: int")
    assert (document["dependents"], document["open_dead_letter_count"], document["open_counts"]) == (["later"], 0, {})
    header, later, report = shell("manifest", "list").out.splitlines()
    assert header.startswith("external id")
    assert "After each success of report" in later
    assert "Every weekday at 06:00, UTC" in report
    listed = shell("manifest", "list", "--group", "reports", "-o", "json").json
    assert [each["external_id"] for each in listed] == ["report"]


@pytest.mark.parametrize(
    ("options", "exit_code", "field"),
    [
        (("--job", "dubble"), 3, None),
        (("--job", "double", "--every", "5m"), 2, "--set n"),
        (("--job", "double", "--after", "nobody", "--set", "n=1"), 2, "--after"),
    ],
)
def test_invalid_manifest_is_rejected_by_the_option(
    shell: Shell, options: tuple[str, ...], exit_code: int, field: str | None
) -> None:
    rejected = shell("manifest", "add", "x", *options, "-o", "json")
    assert rejected.code == exit_code
    assert field is None or rejected.error["field"] == field
    assert shell("manifest", "list", "-o", "json").json == []


def test_edit_changes_only_the_given_options_and_needs_the_app_only_for_new_input(shell: Shell) -> None:
    shell(*REPORT)
    del shell.environment["TENUTO_APP"]
    ended = shell("manifest", "edit", "report", "--every", "2h", "--max-attempts", "5", "--reason", "more often")
    assert (ended.code, "changed to version 2" in ended.err) == (0, True)
    assert ended.out.startswith(
        "when\n  - Every weekday at 06:00, UTC\n  + Every 2 hours, UTC\npolicy\n  - 15 attempts"
    )
    assert "\n  + 5 attempts" in ended.out
    assert "is unchanged" in shell("manifest", "edit", "report", "--max-attempts", "5").err
    rejected = shell("manifest", "edit", "report", "--set", "n=8")
    assert (rejected.code, "--app" in rejected.err) == (3, True)
    dependent = shell("manifest", "edit", "report", "--on-demand", TENUTO_APP="tasks:app", LOGNAME="bo")
    assert dependent.code == 0
    newest, *_ = shell("manifest", "history", "report", "-o", "json").json
    assert (newest["version"], newest["actor"]["name"], newest["after"]["schedule_type"]) == (3, "bo", "on_demand")
    shown = shell("manifest", "history", "report").out
    assert [line.split("  ")[1].split()[0] for line in shown.splitlines() if line.startswith("version")] == [
        "edited",
        "edited",
        "created",
    ]
    assert "  reason: more often\n" in shown


def test_manifest_is_disabled_enabled_run_and_deleted(shell: Shell) -> None:
    shell(*REPORT)
    assert "tenuto manifest enable report" in shell("manifest", "disable", "report").err
    assert shell("manifest", "list", "--off", "-o", "json").json[0]["external_id"] == "report"
    assert "is enabled\n  next " in shell("manifest", "enable", "report").err
    assert "is already enabled" in shell("manifest", "enable", "report").err
    task = shell("manifest", "run", "report", "--set", "n=21").out.strip()
    assert shell("manifest", "run", "report").code == 7, "an earlier run is open"
    assert shell("manifest", "delete", "report").code == 7, "a run is open"
    shell.start_service("worker").wait_for_line("worker started")
    eventually_blocking(lambda: shell("task", "show", task, "-o", "json").json["attempts"][-1]["output"] == 42)
    waited = shell("manifest", "run", "report", "--wait")
    assert (waited.code, waited.out) == (0, "14\n")
    assert shell("manifest", "show", "report", "-o", "json").json["last_successful_run_at"] is not None
    assert shell("manifest", "delete", "report", "--reason", "done").code == 0
    assert shell("manifest", "show", "report").code == 3
    assert shell("manifest", "history", "report", "-o", "json").json[0]["change"] == "deleted"


def test_similar_external_id_is_suggested(shell: Shell) -> None:
    shell(*REPORT)
    rejected = shell("manifest", "disable", "Reprot")
    assert (rejected.code, "did you mean 'report'?" in rejected.err) == (3, True)


def test_open_run_shows_its_attempt_and_the_time_of_the_next_one(shell: Shell) -> None:
    shell("manifest", "add", "third", "--job", "third_time", "--max-attempts", "5", "--retry-wait", "1h")
    shell.start_service("worker").wait_for_line("worker started")
    shell("manifest", "run", "third")

    def count_scheduled() -> int | None:
        count: int | None = shell("manifest", "show", "third", "-o", "json").json["open_counts"].get("scheduled")
        return count

    assert eventually_blocking(count_scheduled, 30) == 1
    shown = shell("manifest", "show", "third").out
    assert "open: 1 scheduled\n" in shown
    assert "◷ attempt 2 of 5, next in " in shown
    assert "✕ failed  1 ↻" in shown


def test_group_has_a_limit_and_shows_active_runs(shell: Shell) -> None:
    assert shell("manifest", "group", "reports").code == 3
    shell(*REPORT, "--group", "reports")
    ended = shell("manifest", "group", "reports", "--max-active", "5", "--priority", "3", "--disable", LOGNAME="ana")
    assert ended.err == "group reports: at most 5 active (0 now), priority 3, disabled, by ana\n"
    (found,) = shell("manifest", "groups", "-o", "json").json
    assert (found["max_active"], found["priority"], found["enabled"], found["manifest_count"]) == (5, 3, False, 1)
    assert "group reports is disabled" in shell("manifest", "show", "report").out
    shell("manifest", "group", "reports", "--no-limit", "--enable")
    found = shell("manifest", "group", "reports", "-o", "json").json
    assert (found["max_active"], found["priority"], found["enabled"]) == (None, 3, True)
    assert shell("manifest", "group", "*", "--max-active", "9").code == 0
    assert "all manifests 0 of 9 active" in shell("manifest", "show", "report").out
    both = shell("manifest", "group", "reports", "--max-active", "1", "--no-limit", "-o", "json")
    assert (both.code, both.error["code"]) == (2, "cli.option.conflict")


def test_polls_of_the_manifest_manager_are_listed(shell: Shell) -> None:
    assert shell("manifest", "polls").err.endswith("--all lists those without work\n")
    assert "no polls; a scheduler makes them" in shell("manifest", "polls", "--all").err
    shell("manifest", "add", "tick", "--job", "double", "--every", "1s", "--set", "n=1")
    shell.start_service("up").wait_for_line("worker started")
    list_polls = ("manifest", "polls", "-o", "json")
    eventually_blocking(lambda: any(poll["enqueued_count"] for poll in shell(*list_polls).json), 30)
    assert shell("manifest", "polls", "--limit", "1").out.splitlines()[0].split()[:2] == ["when", "enqueued"]


# ---- definition files

FILE = """
groups:
  - {name: reports, max_active: 4}
manifests:
  - external_id: mail
    job: double
    properties: {n: 2}
    after: report
  - external_id: report
    job: double
    properties: {n: 7}
    cron: "0 6 * * *"
    group: reports
    max_attempts: 5
"""


@pytest.fixture
def file(shell: Shell) -> Path:
    path = shell.folder / "all.yaml"
    path.write_text(FILE)
    return path


def test_manifests_of_a_file_are_planned_and_applied_in_dependency_order(shell: Shell, file: Path) -> None:
    first = shell("plan", "all.yaml")
    assert (first.code, first.err) == (2, "3 to create\n")
    titles = [line for line in first.out.splitlines() if line.startswith("+")]
    assert titles == ["+ group reports  created", "+ manifest report  created", "+ manifest mail  created"]
    assert shell("manifest", "list", "-o", "json").json == []
    applied = shell("apply", "all.yaml", "--reason", "release 42", LOGNAME="ana")
    assert (applied.code, applied.out, applied.err) == (0, first.out, "3 to create\napplied by ana\n")
    document = shell("manifest", "show", "report", "-o", "json").json
    assert (document["origin"], document["policy"]["max_attempts"], document["dependents"]) == ("file", 5, ["mail"])
    assert document["group"]["max_active"] == 4
    assert document["last_change"]["reason"] == "release 42"
    again = shell("plan", "all.yaml")
    assert (again.code, again.err) == (0, "3 unchanged\n")

    shell("manifest", "edit", "report", "--max-attempts", "9")
    shell("manifest", "disable", "mail")
    assert shell("plan", "all.yaml").code == 0, "changes of operators are kept"
    file.write_text(FILE.replace("0 6 *", "0 7 *").replace("max_active: 4", "max_active: 6"))
    plan = shell("plan", "all.yaml", "-o", "json").json
    assert [(each["external_id"], each["effect"]) for each in plan["manifests"]] == [
        ("report", "changed"),
        ("mail", "unchanged"),
    ]
    assert plan["groups"][0]["changes"] == {"max_active": {"before": 4, "after": 6}}
    assert "operator" in plan["manifests"][0]["notes"][0]
    assert shell("apply", "all.yaml").code == 0
    after = shell("manifest", "show", "report", "-o", "json").json
    assert (after["trigger"]["cron"], after["policy"]["max_attempts"], after["group"]["max_active"]) == (
        "0 7 * * *",
        5,
        6,
    )
    assert shell("manifest", "show", "mail", "-o", "json").json["enabled"] is False


def test_undeclared_manifests_are_deleted_only_with_prune_dependents_first(shell: Shell, file: Path) -> None:
    shell(*("manifest", "add", "by-hand", "--job", "double"))
    shell("apply", "all.yaml")
    file.write_text("manifests: []\nschedules: []\n")
    plan = shell("plan", "all.yaml")
    assert (plan.code, plan.err) == (0, "2 no longer declared\n")
    pruned = shell("plan", "all.yaml", "--prune", "-o", "json")
    assert (pruned.code, pruned.json["deleted"]) == (2, ["mail", "report"])
    rejected = shell("apply", "all.yaml", "--prune", "-o", "json")
    assert (rejected.code, rejected.error["code"]) == (2, "cli.confirmation.unavailable")
    assert "mail, report" in rejected.error["message"]
    assert shell("apply", "all.yaml", "--prune", "--yes").code == 0
    assert [each["external_id"] for each in shell("manifest", "list", "-o", "json").json] == ["by-hand"]


def test_file_is_applied_as_a_whole_or_not_at_all(shell: Shell, file: Path) -> None:
    shell("manifest", "add", "report", "--job", "double")
    shell("manifest", "run", "report", "--set", "n=1")
    file.write_text("schedules: [{name: small, steps: [{job: third_time}]}]\nmanifests: []\n")
    document = json.dumps({"manifests": [{"external_id": "gone", "job": "double"}]})
    (shell.folder / "first.yaml").write_text(document)
    assert shell("apply", "first.yaml").code == 0
    assert shell("manifest", "run", "gone", "--set", "n=1").code == 0
    rejected = shell("apply", "all.yaml", "--prune", "--yes")
    assert (rejected.code, "gone" in rejected.err) == (7, True)
    assert shell("schedule", "list", "-o", "json").json == [], "the schedule is not created either"


def test_error_in_a_file_has_line_and_path(shell: Shell, file: Path) -> None:
    file.write_text(FILE.replace("{n: 7}", "{n: x}"))
    rejected = shell("plan", "all.yaml")
    assert rejected.code == 1
    assert "all.yaml" in rejected.err
    assert "line 11" in rejected.err
    assert "manifests[1].properties.n" in rejected.err
    file.write_text(FILE.replace("after: report", "after: nobody"))
    assert "manifests[0].after" in shell("plan", "all.yaml").err


def test_deletion_of_a_declared_manifest_warns_that_it_is_created_again(shell: Shell) -> None:
    (shell.folder / "small.yaml").write_text("manifests: [{external_id: small, job: third_time}]")
    shell("apply", "small.yaml")
    deleted = shell("manifest", "delete", "small", "-o", "json")
    assert deleted.json == {"external_id": "small", "deleted": True}
    assert "declared in a file: the next `tenuto apply` of that file creates it again, enabled" in deleted.err
    assert "tenuto manifest disable small" in deleted.err
