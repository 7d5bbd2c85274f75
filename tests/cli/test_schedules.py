"""The commands ``tenuto schedule`` and ``tenuto cron``."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from tenuto import Step, Tenuto, manual
from tenuto.cli.command import Session, login_name
from tenuto.cli.definitions.schedules import run_schedule
from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.work.occurrences import Decision
from tenuto.scheduling.firing import start_queued_runs
from tenuto.store.definitions.schedules import LedgerEntry, write_ledger_entries
from tests.cli.conftest import Shell
from tests.support.errors import raises_code
from tests.support.waiting import eventually, eventually_blocking

NIGHTLY = ("schedule", "add", "nightly", "--cron", "0 2 * * *", "--zone", "Europe/London")
STEPS = ("--step", 'double:{"n": 1} name=first', "--step", 'third_time, double:{"n": 2} continue_on_failure')


# ---- create, show, list


def test_schedule_is_created_shown_and_listed(shell: Shell) -> None:
    ended = shell(*NIGHTLY, *STEPS, "--description", "for the night", "--reason", "asked for", LOGNAME="ana")
    assert (ended.code, ended.out) == (0, "")
    assert "schedule nightly created by ana: Every day at 02:00, Europe/London" in ended.err
    assert ended.err.count("  then ") == 2
    shown = shell("schedule", "show", "nightly").out
    assert shown.startswith("● on  nightly  version 1\nfor the night\n")
    assert "last change  created" in shown
    assert "by ana: asked for" in shown
    assert shown.count("GMT") + shown.count("BST") == 5
    assert (
        '  1 ─  first {"n": 1} (runs double)\n  2 ┬  third_time\n    └  double {"n": 2} (continues on failure)' in shown
    )
    document = shell("schedule", "show", "nightly", "-o", "json").json
    assert document["trigger"] == {"kind": "cron", "cron": "0 2 * * *", "zone": "Europe/London"}
    assert len(document["next_runs"]) == 5
    assert datetime.fromisoformat(document["next_runs"][0]) == datetime.fromisoformat(document["next_run_at"])
    (listed,) = shell("schedule", "list", "-o", "json").json
    assert (listed["name"], listed["when"], listed["last_state"]) == (
        "nightly",
        "Every day at 02:00, Europe/London",
        None,
    )
    header, row = shell("schedule", "list").out.splitlines()
    assert header.split("  ")[0] == "name"
    assert "Every day at 02:00, Europe/London" in row
    assert row.rstrip().endswith("never ran")


def test_due_schedule_shows_since_when_and_whether_a_scheduler_is_alive(shell: Shell, url: str) -> None:
    shell(*NIGHTLY, *STEPS)

    async def make_due() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("UPDATE tenuto.schedules SET next_run_at = now() - interval '3 minutes'")
        await connection.close()

    asyncio.run(make_due())
    assert "  due since " in (shown := shell("schedule", "show", "nightly").out)
    assert "no scheduler is alive" in shown
    shell("schedule", "disable", "nightly")
    assert "due since" not in shell("schedule", "show", "nightly").out


def test_schedule_list_is_filtered_and_paged(shell: Shell) -> None:
    for name in ("a", "b", "c"):
        shell("schedule", "add", name, "--manual", "--step", "third_time", *(["--disabled"] if name == "b" else []))
    listed = [each["name"] for each in shell("schedule", "list", "--off", "-o", "json").json]
    assert listed == ["b"]
    page = shell("schedule", "list", "--limit", "2")
    assert "--after b" in page.err
    assert [each["name"] for each in shell("schedule", "list", "--after", "b", "-o", "json").json] == ["c"]
    assert [each["name"] for each in shell("schedule", "list", "--search", "C", "-o", "json").json] == ["c"]
    nothing = shell("schedule", "list", "--search", "zzz")
    assert (nothing.out, nothing.err) == ("", "no matching schedules\n")


def test_requested_number_of_next_runs_is_shown(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS)
    runs = [datetime.fromisoformat(each) for each in shell("schedule", "next", "nightly", "9", "-o", "json").json]
    assert (len(runs), runs) == (9, sorted(runs))
    assert len(shell("schedule", "next", "nightly", "9").out.splitlines()) == 10
    shell("schedule", "add", "never", "--manual", "--step", "third_time")
    assert "manual runs only" in shell("schedule", "next", "never").err


def test_last_change_is_that_of_the_schedule_itself_although_its_name_was_used_before(shell: Shell, url: str) -> None:
    old = ("--manual", "--step", "third_time")
    shell("schedule", "add", "report", *old)
    shell("schedule", "edit", "report", "--rename", "report-old")
    shell("schedule", "add", "report", *old, "--reason", "the new one")
    shell("manifest", "add", "report", "--job", "third_time")
    shell("manifest", "delete", "report")
    shell("manifest", "add", "report", "--job", "third_time", "--reason", "the new one")
    asyncio.run(_add_versions_to_predecessors(url))
    for kind in ("schedule", "manifest"):
        assert "the new one" in shell(kind, "show", "report").out
        assert shell(kind, "show", "report", "-o", "json").json["last_change"]["reason"] == "the new one"


async def _add_versions_to_predecessors(url: str) -> None:
    """Store sixty later changes of the definitions that had the name before."""
    database = await asyncpg.connect(url)
    for kind, id, name in (("schedule", "schedule_id", "name"), ("manifest", "manifest_id", "external_id")):
        await database.execute(
            f"""
            INSERT INTO tenuto.{kind}_versions ({id}, version, {name}, change, at, actor_type, actor_name)
            SELECT {id}, version + number, {name}, 'edited', now() + interval '1 s' * number, actor_type, actor_name
            FROM (SELECT * FROM tenuto.{kind}_versions ORDER BY at, version LIMIT 1) AS first,
                 generate_series(5, 65) AS number
            """
        )
    await database.close()


@pytest.mark.parametrize(
    ("name", "step"), [("e\x1b[31mvil", "third_time"), ("fine", 'third_time name="\u202eli\u2066ve"')]
)
def test_schedule_with_invisible_characters_in_a_name_is_rejected(shell: Shell, name: str, step: str) -> None:
    rejected = shell("schedule", "add", name, "--manual", "--step", step)
    assert (rejected.code, "U+" in rejected.err) == (2, True), rejected.err
    assert shell("schedule", "list", "-o", "json").json == []


def test_stored_schedule_with_control_characters_in_its_name_can_be_shown_changed_and_deleted(
    shell: Shell, url: str
) -> None:
    shell("schedule", "add", "evil", "--manual", "--step", "third_time name=bad")
    evil = "e\x1b[31mvil"
    asyncio.run(_rename(url, evil))
    assert [each["name"] for each in shell("schedule", "list", "-o", "json").json] == [evil]
    assert "evil" in shell("schedule", "show", evil).out
    assert shell("schedule", "edit", evil, "--description", "as ever").code == 0
    rejected = shell("schedule", "edit", evil, "--rename", "\x1b[2J")
    assert (rejected.code, "U+001B" in rejected.err) == (2, True), rejected.err
    assert shell("schedule", "disable", evil).code == 0
    assert shell("schedule", "delete", evil).code == 0


async def _rename(url: str, name: str) -> None:
    database = await asyncpg.connect(url)
    await database.execute(
        "UPDATE tenuto.schedules SET name = $1, plan = replace(plan::text, '\"bad\"', '\"b\\u001bd\"')::jsonb", name
    )
    await database.execute("UPDATE tenuto.schedule_versions SET name = $1", name)
    await database.close()


# ---- change


def test_edit_prints_the_difference_and_its_effect_on_the_next_runs(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS)
    ended = shell("schedule", "edit", "nightly", "--cron", "0 3 * * *", "--set", "first.n=7", "--reason", "later")
    assert ended.code == 0
    assert "when\n  - Every day at 02:00, Europe/London\n  + Every day at 03:00, Europe/London\n" in ended.out
    assert '  - ─ first {"n": 1} (runs double)\n  + ─ first {"n": 7} (runs double)\n' in ended.out
    after = ended.out.partition("next runs\n")[2]
    assert (after.count("  - "), after.count("  + ")) == (5, 5)
    assert "changed to version 2" in ended.err
    again = shell("schedule", "edit", "nightly", "--cron", "0 3 * * *", "-o", "json").json
    assert (again["version"], again["changes"]) == (2, {})
    assert again["next_runs"] == again["next_runs_before"]
    assert "is unchanged" in shell("schedule", "edit", "nightly", "--overlap", "skip").err


def test_edit_that_keeps_the_steps_needs_no_app(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS)
    del shell.environment["TENUTO_APP"]
    assert shell("schedule", "edit", "nightly", "--end", "2090-01-01").code == 0
    rejected = shell("schedule", "edit", "nightly", "--set", "first.n=7")
    assert (rejected.code, "--app" in rejected.err) == (2, True)


def test_history_lists_author_reason_and_difference_of_each_change(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS, LOGNAME="ana")
    shell(
        "schedule", "edit", "nightly", "--rename", "at night", "--overlap", "allow", "--reason", "faster", LOGNAME="bo"
    )
    shell("schedule", "disable", "at night", LOGNAME="cy")
    shell("schedule", "delete", "at night", "--reason", "done with", LOGNAME="di")
    shown = shell("schedule", "history", "at night").out
    assert [line.split("  ")[1] for line in shown.splitlines() if line.startswith("version")] == [
        "deleted by di (user)",
        "disabled by cy (user)",
        "edited by bo (user)",
        "created by ana (user)",
    ]
    assert "  reason: faster\n  name\n    - nightly\n    + at night\n  overlap\n" in shown
    assert "  enabled\n    - yes\n    + no\n" in shown
    versions = shell("schedule", "history", "nightly", "-o", "json").json
    assert [version["version"] for version in versions] == [4, 3, 2, 1]
    assert (versions[2]["actor"]["name"], versions[2]["before"]["name"]) == ("bo", "nightly")


def test_declared_schedule_is_not_renamed_and_its_deletion_warns_that_it_is_created_again(shell: Shell) -> None:
    (shell.folder / "small.yaml").write_text("schedules: [{name: small, steps: [{job: third_time}]}]")
    shell("apply", "small.yaml")
    rejected = shell("schedule", "edit", "small", "--rename", "tiny", "-o", "json")
    assert (rejected.code, rejected.error["field"]) == (7, "--rename")
    assert "declared in a file" in rejected.error["message"]
    deleted = shell("schedule", "delete", "small", "-o", "json")
    assert deleted.json == {"name": "small", "deleted": True}
    assert "declared in a file: the next `tenuto apply` of that file creates it again, enabled" in deleted.err
    assert "tenuto schedule disable small" in deleted.err
    shell("schedule", "add", "mine", "--manual", "--step", "third_time")
    assert "creates it again" not in shell("schedule", "delete", "mine").err


def test_schedule_is_disabled_enabled_and_deleted(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS)
    disabled = shell("schedule", "disable", "nightly")
    assert "enable it with: tenuto schedule enable nightly" in disabled.err
    assert "is already disabled" in shell("schedule", "disable", "nightly").err
    assert shell("schedule", "show", "nightly").out.startswith("○ off  nightly")
    enabled = shell("schedule", "enable", "nightly", "-o", "json").json
    assert enabled["enabled"]
    assert enabled["next_run_at"]
    assert shell("schedule", "delete", "nightly").code == 0
    gone = shell("schedule", "show", "nightly")
    assert (gone.code, gone.out) == (3, "")


def test_schedule_declared_in_code_is_mentioned_before_it_exists(shell: Shell) -> None:
    with (shell.folder / "tasks.py").open("a") as file:
        file.write("\nfrom tenuto import Step, manual\napp.schedule('of code', manual(), [Step.job(hopeless)])\n")
    named = ("--app", "tasks:app")
    assert "is created when a service starts" in shell("schedule", "run", "of code", *named).err
    assert "1 declared in code are created when a service starts" in shell("schedule", "list", *named).err


# ---- run


def test_run_prints_the_id_of_the_execution(shell: Shell) -> None:
    shell("schedule", "add", "by hand", "--manual", "--step", 'double:{"n": 1}')
    ended = shell("schedule", "run", "by hand", "--set", "double.n=5", LOGNAME="ana")
    execution_id = str(UUID(ended.out.strip()))
    assert f"tenuto execution watch {execution_id}" in ended.err
    shown = shell("execution", "show", execution_id, "-o", "json").json
    assert (shown["initiator_name"], shown["origin"], shown["state"]) == ("ana", "manual", "in_progress")
    task = shell("task", "show", shown["steps"][0]["task_id"], "-o", "json").json["task"]
    assert task["input"] == {"n": 5}


def test_run_rejected_by_the_overlap_policy_ends_with_7_and_the_reason(shell: Shell) -> None:
    shell("schedule", "add", "one", "--manual", "--step", "last")
    shell("schedule", "run", "one")
    rejected = shell("schedule", "run", "one", "-o", "json")
    assert (rejected.code, rejected.out) == (7, "")
    assert rejected.error["code"] == "schedule.run.rejected"
    assert "tenuto execution list --schedule one" in rejected.error["remedy"]
    assert shell("schedule", "delete", "one").code == 7, "an execution is active"
    shell("schedule", "edit", "one", "--overlap", "queue_one")
    queued = shell("schedule", "run", "one")
    assert (queued.code, queued.out) == (0, "")
    assert queued.err.startswith("queued: ")
    rows = shell("schedule", "ledger", "one", "-o", "json").json
    assert [row["decision"] for row in rows] == ["queued", "skipped", "fired"]
    shown = shell("schedule", "ledger").out
    assert "⊘ skipped" in shown
    assert "manual run: " in shown
    only = shell("schedule", "ledger", "one", "--decision", "fired", "--before", rows[1]["due_at"], "-o", "json").json
    assert [row["id"] for row in only] == [rows[2]["id"]]


def test_queued_run_is_waited_for_and_followed(shell: Shell) -> None:
    shell("schedule", "add", "one", "--manual", "--overlap", "queue_one", "--step", "last")
    shell.start_service("up", "--queues", "default,slow").wait_for_line("worker started")
    first = shell("schedule", "run", "one", "-q").out.strip()
    waiting = shell.start_service("schedule", "run", "one", "--wait")
    waiting.wait_for_line("queued: ")
    shell("execution", "cancel", first)

    def find_second() -> str | None:
        found = shell("execution", "list", "--schedule", "one", "--state", "in_progress", "-o", "json").json
        return found[0]["id"] if found and found[0]["id"] != first else None

    assert shell("execution", "cancel", eventually_blocking(find_second, 60)).code == 0
    waiting.wait_for_line("cancelled at group 1 of 1")
    assert waiting.process.wait(60) == 1


def test_exit_code_of_a_waited_run_is_its_outcome(shell: Shell) -> None:
    shell("schedule", "add", "good", "--manual", *STEPS)
    shell("schedule", "add", "bad", "--manual", "--step", "hopeless", "--step", 'double:{"n": 1}')
    shell.start_service("worker").wait_for_line("worker started")
    good = shell("schedule", "run", "good", "--wait", "--timeout", "90")
    assert good.code == 0
    assert good.out.splitlines()[0] == "◐ good: running"
    assert good.out.splitlines()[-1] == "● good: completed"
    assert "● 1 of 2 first: done after" in good.out
    bad = shell("schedule", "run", "bad", "--wait", "--timeout", "90", "-o", "json")
    assert (bad.code, bad.json["state"], bad.json["steps"][1]["reason"]) == (1, "failed", "not_run")
    assert "✗ failed at group 1 of 2" in bad.err
    assert f"tenuto execution retry {bad.json['id']}" in bad.err
    listed = {each["name"]: each for each in shell("schedule", "list", "-o", "json").json}
    assert (listed["bad"]["last_state"], listed["bad"]["last_group"]) == ("failed", 0)
    assert "✕ failed at 1 of 2" in shell("schedule", "list").out


@pytest.mark.slow
async def test_time_in_the_queue_counts_towards_the_timeout_of_a_run(app: Tenuto) -> None:
    @app.job
    async def never() -> None: ...

    app.schedule("one", manual(), [Step.job(never)], overlap="queue_one")
    await app.schedules.deploy()
    first = (await app.schedules.run("one")).execution_id
    assert first is not None
    session = Session(quiet=True)
    session.__dict__["app"] = app
    started_at = monotonic_seconds()
    waiting = asyncio.create_task(run_schedule(session, "one", wait=True, timeout=5))
    await eventually(lambda: monotonic_seconds() > started_at + 4, what="most of its time is over")
    await app.executions.cancel(first)
    database = await app.open()
    dequeued_at = monotonic_seconds()
    assert await start_queued_runs(database, database.clock.now(), "scheduler") == 1
    with raises_code("execution.wait.timeout", Conflict):
        await asyncio.wait_for(waiting, 60)
    assert monotonic_seconds() - dequeued_at < 5, "the timeout started again when the run started"
    (second, _) = await app.executions.list(schedule="one")
    assert second.initiator_name == login_name()
    (entry,) = await app.audit.list()
    assert (entry.target, entry.actor_name) == ("one", login_name()), "a repeated request is not audited again"


async def test_ledger_pages_may_end_among_occurrences_of_one_instant(app: Tenuto) -> None:
    database, due_at = await app.open(), datetime(2031, 5, 17, 12, tzinfo=UTC)
    rows = [
        LedgerEntry(new_id(), new_id(), f"s{number}", due_at, None, "trigger", Decision.MISSED, None, "x", None)
        for number in range(5)
    ]
    await database.transaction(lambda connection: write_ledger_entries(connection, rows, due_at, "scheduler"))
    seen: list[str] = []
    page = await app.schedules.ledger(limit=2)
    while page:
        seen += [row.schedule_name for row in page]
        page = await app.schedules.ledger(before=page[-1].due_at, below=page[-1].id, limit=2)
    assert sorted(seen) == ["s0", "s1", "s2", "s3", "s4"]


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "exit_code", "field", "code", "remedy"),
    [
        ("add x --manual --step double", 2, "--step, double.n", "job.input.invalid", "tenuto"),
        ("add x --manual --step dbl", 2, "--step, dbl", "job.unknown", "--app"),
        ("add x --manual --step 'nil kind=schedule'", 2, "--step, nil", "schedule.step.schedule_not_found", "first"),
        ("add x --manual --step last,last", 2, "--step", "step.name.duplicate", "name"),
        ("add x --overlap maybe", 2, "--overlap", "cli.usage.invalid", "tenuto schedule add --help"),
        ("show x", 3, None, "schedule.not_found", "tenuto schedule list"),
        ("ledger --before yesterday", 2, "--before", "value.instant.invalid", "offset"),
    ],
)
def test_error_of_a_schedule_command_has_field_code_and_remedy(
    shell: Shell, arguments: str, exit_code: int, field: str | None, code: str, remedy: str
) -> None:
    ended = shell("schedule", *shlex.split(arguments), "-o", "json")
    assert (ended.code, ended.out) == (exit_code, "")
    assert (ended.error["field"], ended.error["code"]) == (field, code)
    assert remedy in ended.error["remedy"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code", "remedy"),
    [
        ("show zz", 2, "id.not_valid", "from a list"),
        ("show 00", 3, "id.prefix.not_found", "tenuto execution list"),
        ("list --schedule x", 3, "schedule.not_found", "tenuto schedule list"),
    ],
)
def test_error_of_an_execution_command_has_code_and_remedy(
    shell: Shell, arguments: str, exit_code: int, code: str, remedy: str
) -> None:
    ended = shell("execution", *arguments.split(), "-o", "json")
    assert (ended.code, ended.out, ended.error["code"]) == (exit_code, "", code)
    assert remedy in ended.error["remedy"]


def test_similar_schedule_name_is_suggested(shell: Shell) -> None:
    shell("schedule", "add", "Nightly HR Sync", "--manual", "--step", "third_time")
    assert "did you mean 'Nightly HR Sync'?" in shell("schedule", "show", "nightly hr synch").err


# ---- cron


def test_cron_line_is_explained_without_a_database(open_shell: Callable[..., Shell]) -> None:
    shell = open_shell()
    ended = shell("cron", "explain", "30 2 * * mon-fri", "--zone", "Europe/Berlin", "-n", "3")
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "Every weekday at 02:30, Europe/Berlin"
    assert len(ended.out.splitlines()) == 6
    document = shell("cron", "explain", "@daily", "-o", "json").json
    assert (document["description"], len(document["next_runs"])) == ("Every day at 00:00, UTC", 5)


@pytest.mark.parametrize(
    ("line", "field", "remedy"),
    [
        ("61 2 * * *", "minute", "0 to 59"),
        ("0 2 * * fry", "day of week", "sun, mon"),
        ("0 2 * *", "line", "minute, hour"),
        ("0 0 30 2 *", "day of month", "day"),
    ],
)
def test_invalid_cron_line_is_rejected_by_its_field(
    open_shell: Callable[..., Shell], line: str, field: str, remedy: str
) -> None:
    ended = open_shell()("cron", "explain", line, "-o", "json")
    assert (ended.code, ended.out, ended.error["field"]) == (2, "", field)
    assert remedy in ended.error["remedy"]
