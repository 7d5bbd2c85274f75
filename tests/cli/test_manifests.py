"""``tenuto manifest``, as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.support.waiting import eventually_here

REPORT = ("manifest", "add", "report", "--job", "double", "--cron", "0 6 * * mon-fri", "--set", "n=7")


def test_a_manifest_is_made_shown_and_listed(shell: Shell) -> None:
    made = shell(*REPORT, "--group", "reports", "--max-active", "3", "--reason", "asked for", LOGNAME="ana")
    assert (made.code, made.out) == (0, "")
    assert "manifest report is made, by ana: Every weekday at 06:00, UTC\n  next " in made.err
    assert shell("manifest", "add", "later", "--job", "double", "--after", "report", "--set", "n=1").code == 0
    shown = shell("manifest", "show", "report").out
    assert shown.startswith("● on  report  version 1\n")
    told = {line[:13].strip(): line[13:].strip() for line in shown.splitlines() if line[:1].isalpha()}
    assert told["properties"] == '{"n": 7}'
    assert told["when"] == "Every weekday at 06:00, UTC"
    assert told["last success"] == "never"
    assert told["limits"] == "itself 0 of 3 active; group reports 0 active, no limit"
    assert told["runs after it"] == "later"
    assert told["dead letters"] == "none"
    assert told["last change"].endswith("by ana: asked for")
    document = shell("manifest", "show", "report", "-o", "json").json
    assert (document["schedule_type"], document["property_type"]) == ("cron", "n: int")
    assert (document["dependents"], document["dead_letters"], document["open"]) == (["later"], 0, {})
    header, later, report = shell("manifest", "list").out.splitlines()
    assert header.startswith("external id")
    assert "After report has succeeded" in later
    assert "Every weekday at 06:00, UTC" in report
    listed = shell("manifest", "list", "--group", "reports", "-o", "json").json
    assert [each["external_id"] for each in listed] == ["report"]


def test_what_does_not_fit_is_refused_by_the_option_it_was_typed_into(shell: Shell) -> None:
    unknown = shell("manifest", "add", "x", "--job", "dubble")
    assert (unknown.code, "no job named 'dubble' is registered here" in unknown.err) == (3, True)
    unfit = shell("manifest", "add", "x", "--job", "double", "--every", "5m")
    assert (unfit.code, "error: --set n: is needed: it runs by itself" in unfit.err) == (2, True)
    alone = shell("manifest", "add", "x", "--job", "double", "--after", "nobody", "--set", "n=1")
    assert (alone.code, "error: --after: there is no manifest 'nobody'" in alone.err) == (2, True)
    assert shell("manifest", "list", "-o", "json").json == []


def test_an_edit_changes_what_is_given_and_needs_no_jobs_at_hand_unless_the_input_changes(shell: Shell) -> None:
    shell(*REPORT)
    del shell.environment["TENUTO_APP"]
    ended = shell("manifest", "edit", "report", "--every", "2h", "--max-retries", "5", "--reason", "more often")
    assert (ended.code, "version 2 now" in ended.err) == (0, True)
    assert ended.out.startswith("when\n  - Every weekday at 06:00, UTC\n  + Every 2 hours, UTC\nrules\n  - 3 attempts")
    assert "\n  + 5 attempts" in ended.out
    assert "nothing changed" in shell("manifest", "edit", "report", "--max-retries", "5").err
    refused = shell("manifest", "edit", "report", "--set", "n=8")
    assert (refused.code, "--app" in refused.err) == (3, True)
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
    assert "  why: more often\n" in shown


def test_a_manifest_is_switched_off_and_on_run_and_deleted(shell: Shell) -> None:
    shell(*REPORT)
    assert "tenuto manifest enable report" in shell("manifest", "disable", "report").err
    assert shell("manifest", "list", "--off", "-o", "json").json[0]["external_id"] == "report"
    assert "is on\n  next " in shell("manifest", "enable", "report").err
    assert "is on already" in shell("manifest", "enable", "report").err
    task = shell("manifest", "run", "report", "--set", "n=21").out.strip()
    again = shell("manifest", "run", "report")
    assert (again.code, "an earlier run of 'report' is not over" in again.err) == (7, True)
    assert shell("manifest", "delete", "report").code == 7, "something is open of it"
    shell.start("worker").until("worker ready")
    eventually_here(lambda: shell("task", "show", task, "-o", "json").json["attempts"][-1]["output"] == 42)
    waited = shell("manifest", "run", "report", "--wait")
    assert (waited.code, waited.out) == (0, "14\n")
    assert shell("manifest", "show", "report", "-o", "json").json["last_successful_run"] is not None
    assert shell("manifest", "delete", "report", "--reason", "done").code == 0
    gone = shell("manifest", "show", "reprot")
    assert (gone.code, "there is no manifest 'reprot'" in gone.err) == (3, True)
    assert shell("manifest", "history", "report", "-o", "json").json[0]["change"] == "deleted"


def test_a_name_that_is_not_there_leads_to_the_one_that_was_meant(shell: Shell) -> None:
    shell(*REPORT)
    refused = shell("manifest", "disable", "Reprot")
    assert (refused.code, "did you mean 'report'?" in refused.err) == (3, True)


def test_a_run_that_will_be_tried_again_says_at_which_attempt_it_is_and_when_it_goes_on(shell: Shell) -> None:
    shell("manifest", "add", "third", "--job", "third_time", "--max-retries", "5", "--retry-wait", "1h")
    shell.start("worker").until("worker ready")
    shell("manifest", "run", "third")
    state = eventually_here(lambda: shell("manifest", "show", "third", "-o", "json").json["open"].get("scheduled"), 30)
    assert state == 1
    shown = shell("manifest", "show", "third").out
    assert "open: 1 scheduled\n" in shown
    assert "◷ attempt 2 of 5, next in " in shown
    assert "✕ failed  1 ↻" in shown


def test_groups_have_limits_and_say_what_is_active(shell: Shell) -> None:
    assert shell("manifest", "group", "reports").code == 3
    shell(*REPORT, "--group", "reports")
    ended = shell("manifest", "group", "reports", "--max-active", "5", "--priority", "3", "--disable", LOGNAME="ana")
    assert ended.err == "group reports: at most 5 active (0 now), priority 3, disabled, by ana\n"
    (found,) = shell("manifest", "groups", "-o", "json").json
    assert (found["max_active"], found["priority"], found["enabled"], found["manifests"]) == (5, 3, False, 1)
    assert "group reports is disabled" in shell("manifest", "show", "report").out
    shell("manifest", "group", "reports", "--no-limit", "--enable")
    found = shell("manifest", "group", "reports", "-o", "json").json
    assert (found["max_active"], found["priority"], found["enabled"]) == (None, 3, True)
    assert shell("manifest", "group", "*", "--max-active", "9").code == 0
    assert "all manifests 0 of 9 active" in shell("manifest", "show", "report").out
    both = shell("manifest", "group", "reports", "--max-active", "1", "--no-limit")
    assert (both.code, "--max-active: cannot stand beside --no-limit" in both.err) == (2, True)


def test_the_polls_of_the_manager_tell_what_it_did(shell: Shell) -> None:
    assert shell("manifest", "polls").err == "nothing to do so far; --all shows every look\n"
    assert "no look yet; a scheduler takes them" in shell("manifest", "polls", "--all").err
    shell("manifest", "add", "tick", "--job", "double", "--every", "1s", "--set", "n=1")
    shell.start("up").until("worker ready")
    eventually_here(lambda: any(poll["enqueued"] for poll in shell("manifest", "polls", "-o", "json").json), 30)
    assert shell("manifest", "polls", "--limit", "1").out.splitlines()[0].split()[:2] == ["when", "enqueued"]


# ---- in files

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
    max_retries: 5
"""


@pytest.fixture
def file(shell: Shell) -> Path:
    path = shell.folder / "all.yaml"
    path.write_text(FILE)
    return path


def test_manifests_of_a_file_are_planned_and_applied_those_needed_first(shell: Shell, file: Path) -> None:
    first = shell("plan", "all.yaml")
    assert (first.code, first.err) == (2, "3 to create\n")
    titles = [line for line in first.out.splitlines() if line.startswith("+")]
    assert titles == ["+ group reports  created", "+ manifest report  created", "+ manifest mail  created"]
    assert shell("manifest", "list", "-o", "json").json == []
    applied = shell("apply", "all.yaml", "--reason", "release 42", LOGNAME="ana")
    assert (applied.code, applied.out, applied.err) == (0, first.out, "3 to create\ndone, by ana\n")
    document = shell("manifest", "show", "report", "-o", "json").json
    assert (document["origin"], document["policy"]["max_retries"], document["dependents"]) == ("file", 5, ["mail"])
    assert document["group"]["max_active"] == 4
    assert document["last_change"]["reason"] == "release 42"
    again = shell("plan", "all.yaml")
    assert (again.code, again.err) == (0, "3 unchanged\n")

    shell("manifest", "edit", "report", "--max-retries", "9")
    shell("manifest", "disable", "mail")
    assert shell("plan", "all.yaml").code == 0, "what an operator changed stays"
    file.write_text(FILE.replace("0 6 *", "0 7 *").replace("max_active: 4", "max_active: 6"))
    plan = shell("plan", "all.yaml", "-o", "json").json
    assert [(each["external_id"], each["effect"]) for each in plan["manifests"]] == [
        ("report", "changed"),
        ("mail", "unchanged"),
    ]
    assert plan["groups"][0]["changes"] == {"max_active": {"before": 4, "after": 6}}
    assert "changed by an operator since it was declared" in plan["manifests"][0]["notes"][0]
    assert shell("apply", "all.yaml").code == 0
    after = shell("manifest", "show", "report", "-o", "json").json
    assert (after["trigger"]["cron"], after["policy"]["max_retries"], after["group"]["max_active"]) == (
        "0 7 * * *",
        5,
        6,
    )
    assert shell("manifest", "show", "mail", "-o", "json").json["enabled"] is False


def test_what_no_file_declares_any_more_goes_only_with_prune_and_dependents_first(shell: Shell, file: Path) -> None:
    shell(*("manifest", "add", "by-hand", "--job", "double"))
    shell("apply", "all.yaml")
    file.write_text("manifests: []\nschedules: []\n")
    plan = shell("plan", "all.yaml")
    assert (plan.code, plan.err) == (0, "2 not declared any more\n")
    pruned = shell("plan", "all.yaml", "--prune", "-o", "json")
    assert (pruned.code, pruned.json["deleted"]) == (2, ["mail", "report"])
    refused = shell("apply", "all.yaml", "--prune")
    assert (refused.code, "would delete mail, report" in refused.err) == (2, True)
    assert shell("apply", "all.yaml", "--prune", "--yes").code == 0
    assert [each["external_id"] for each in shell("manifest", "list", "-o", "json").json] == ["by-hand"]


def test_a_file_is_brought_into_force_as_a_whole_or_not_at_all(shell: Shell, file: Path) -> None:
    shell("manifest", "add", "report", "--job", "double")
    shell("manifest", "run", "report", "--set", "n=1")
    file.write_text("schedules: [{name: small, steps: [{job: third_time}]}]\nmanifests: []\n")
    document = json.dumps({"manifests": [{"external_id": "gone", "job": "double"}]})
    (shell.folder / "first.yaml").write_text(document)
    assert shell("apply", "first.yaml").code == 0
    assert shell("manifest", "run", "gone", "--set", "n=1").code == 0
    refused = shell("apply", "all.yaml", "--prune", "--yes")
    assert (refused.code, "'gone' has open tasks" in refused.err) == (7, True)
    assert shell("schedule", "list", "-o", "json").json == [], "the schedule is not made either"


def test_a_mistake_in_a_file_is_told_by_its_place(shell: Shell, file: Path) -> None:
    file.write_text(FILE.replace("{n: 7}", "{n: x}"))
    refused = shell("plan", "all.yaml")
    assert (refused.code, "all.yaml, line 11: manifests[1].properties.n: Input should be" in refused.err) == (1, True)
    file.write_text(FILE.replace("after: report", "after: nobody"))
    assert "manifests[0].after: there is no manifest 'nobody'" in shell("plan", "all.yaml").err


def test_the_deletion_of_what_is_declared_says_that_it_comes_back(shell: Shell) -> None:
    (shell.folder / "small.yaml").write_text("manifests: [{external_id: small, job: third_time}]")
    shell("apply", "small.yaml")
    deleted = shell("manifest", "delete", "small", "-o", "json")
    assert deleted.json == {"external_id": "small", "deleted": True}
    assert "declared in a file: the next `tenuto apply` of that file makes it again, switched on" in deleted.err
    assert "tenuto manifest disable small" in deleted.err
