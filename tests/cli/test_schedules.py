"""``tenuto schedule`` and ``tenuto cron``, as people type them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from tenuto import Step, Tenuto, manual
from tenuto.cli.command import Session, login_name
from tenuto.cli.definitions.schedules import run_schedule
from tenuto.clock import steady
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.occurrences import Decision
from tenuto.scheduling.firing import take_turns
from tenuto.store.schedules import Entry, write_ledger
from tests.cli.conftest import Shell
from tests.support.waiting import eventually, eventually_here

NIGHTLY = ("schedule", "add", "nightly", "--cron", "0 2 * * *", "--zone", "Europe/London")
STEPS = ("--step", 'double:{"n": 1} name=first', "--step", 'third_time, double:{"n": 2} continue_on_failure')


# ---- making, looking


def test_a_schedule_is_made_shown_and_listed(shell: Shell) -> None:
    ended = shell(*NIGHTLY, *STEPS, "--description", "for the night", "--reason", "asked for", LOGNAME="ana")
    assert (ended.code, ended.out) == (0, "")
    assert "schedule nightly is made, by ana: Every day at 02:00, Europe/London" in ended.err
    assert ended.err.count("  then ") == 2
    shown = shell("schedule", "show", "nightly").out
    assert shown.startswith("● on  nightly  version 1\nfor the night\n")
    assert "last change  created" in shown
    assert "by ana: asked for" in shown
    assert shown.count("GMT") + shown.count("BST") == 5
    assert '  1 ─ first {"n": 1} (runs double)\n  2 ┬ third_time\n    └ double {"n": 2} (goes on if it fails)' in shown
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


def test_a_schedule_that_is_due_says_since_when_and_who_is_to_fire_it(shell: Shell, url: str) -> None:
    shell(*NIGHTLY, *STEPS)

    async def let_it_be_due() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("UPDATE tenuto.schedules SET next_run_at = now() - interval '3 minutes'")
        await connection.close()

    asyncio.run(let_it_be_due())
    assert "  due since " in (shown := shell("schedule", "show", "nightly").out)
    assert "no scheduler is alive to fire it" in shown
    shell("schedule", "disable", "nightly")
    assert "due since" not in shell("schedule", "show", "nightly").out


def test_a_list_of_schedules_is_narrowed_and_paged(shell: Shell) -> None:
    for name in ("a", "b", "c"):
        shell("schedule", "add", name, "--manual", "--step", "third_time", *(["--disabled"] if name == "b" else []))
    listed = [each["name"] for each in shell("schedule", "list", "--off", "-o", "json").json]
    assert listed == ["b"]
    page = shell("schedule", "list", "--limit", "2")
    assert "--after b" in page.err
    assert [each["name"] for each in shell("schedule", "list", "--after", "b", "-o", "json").json] == ["c"]
    assert [each["name"] for each in shell("schedule", "list", "--search", "C", "-o", "json").json] == ["c"]
    nothing = shell("schedule", "list", "--search", "zzz")
    assert (nothing.out, nothing.err) == ("", "no schedules like that\n")


def test_the_next_runs_are_shown_as_many_as_asked_for(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS)
    runs = [datetime.fromisoformat(each) for each in shell("schedule", "next", "nightly", "9", "-o", "json").json]
    assert (len(runs), runs) == (9, sorted(runs))
    assert len(shell("schedule", "next", "nightly", "9").out.splitlines()) == 10
    shell("schedule", "add", "never", "--manual", "--step", "third_time")
    assert "runs only by hand" in shell("schedule", "next", "never").err


def test_a_schedule_is_shown_though_another_had_its_name_and_was_changed_often_since(shell: Shell, url: str) -> None:
    old = ("--manual", "--step", "third_time")
    shell("schedule", "add", "report", *old)
    shell("schedule", "edit", "report", "--rename", "report-old")
    shell("schedule", "add", "report", *old, "--reason", "the new one")
    shell("manifest", "add", "report", "--job", "third_time")
    shell("manifest", "delete", "report")
    shell("manifest", "add", "report", "--job", "third_time", "--reason", "the new one")
    asyncio.run(_change_often(url))
    for what in ("schedule", "manifest"):
        assert "the new one" in shell(what, "show", "report").out
        assert shell(what, "show", "report", "-o", "json").json["last_change"]["reason"] == "the new one"


async def _change_often(url: str) -> None:
    """Sixty changes of those that had the name before, in a row."""
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


@pytest.mark.parametrize("given", [("--name", "e\x1b[31mvil"), ("--step", 'third_time name="\u202eli\u2066ve"')])
def test_a_schedule_that_could_not_be_named_as_it_is_seen_is_not_made(shell: Shell, given: tuple[str, str]) -> None:
    named, step = (given[1], "third_time") if given[0] == "--name" else ("fine", given[1])
    refused = shell("schedule", "add", named, "--manual", "--step", step)
    assert (refused.code, "contains U+" in refused.err, "remove it" in refused.err) == (2, True, True), refused.err
    assert shell("schedule", "list", "-o", "json").json == []


def test_a_schedule_stored_with_a_name_nobody_sees_is_shown_changed_and_deleted(shell: Shell, url: str) -> None:
    shell("schedule", "add", "evil", "--manual", "--step", "third_time name=bad")
    evil = "e\x1b[31mvil"
    asyncio.run(_rename(url, evil))
    assert [each["name"] for each in shell("schedule", "list", "-o", "json").json] == [evil]
    assert "evil" in shell("schedule", "show", evil).out
    assert shell("schedule", "edit", evil, "--description", "as ever").code == 0
    refused = shell("schedule", "edit", evil, "--rename", "\x1b[2J")
    assert (refused.code, "contains U+001B" in refused.err) == (2, True), refused.err
    assert shell("schedule", "disable", evil).code == 0
    assert shell("schedule", "delete", evil).code == 0


async def _rename(url: str, name: str) -> None:
    database = await asyncpg.connect(url)
    await database.execute(
        "UPDATE tenuto.schedules SET name = $1, plan = replace(plan::text, '\"bad\"', '\"b\\u001bd\"')::jsonb", name
    )
    await database.execute("UPDATE tenuto.schedule_versions SET name = $1", name)
    await database.close()


# ---- changing


def test_an_edit_shows_before_and_after_and_what_it_does_to_the_next_runs(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS)
    ended = shell("schedule", "edit", "nightly", "--cron", "0 3 * * *", "--set", "first.n=7", "--reason", "later")
    assert ended.code == 0
    assert "when\n  - Every day at 02:00, Europe/London\n  + Every day at 03:00, Europe/London\n" in ended.out
    assert '  - ─ first {"n": 1} (runs double)\n  + ─ first {"n": 7} (runs double)\n' in ended.out
    after = ended.out.partition("next runs\n")[2]
    assert (after.count("  - "), after.count("  + ")) == (5, 5)
    assert "version 2 now" in ended.err
    again = shell("schedule", "edit", "nightly", "--cron", "0 3 * * *", "-o", "json").json
    assert (again["version"], again["changes"]) == (2, {})
    assert again["next_runs"] == again["next_runs_before"]
    assert "nothing changed" in shell("schedule", "edit", "nightly", "--overlap", "skip").err


def test_what_leaves_the_steps_alone_needs_no_jobs_at_hand(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS)
    del shell.environment["TENUTO_APP"]
    assert shell("schedule", "edit", "nightly", "--end", "2090-01-01").code == 0
    refused = shell("schedule", "edit", "nightly", "--set", "first.n=7")
    assert refused.code == 2
    assert "--app module:object" in refused.err


def test_the_history_tells_who_when_why_and_what(shell: Shell) -> None:
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
    assert "  why: faster\n  name\n    - nightly\n    + at night\n  overlap\n" in shown
    assert "  enabled\n    - yes\n    + no\n" in shown
    versions = shell("schedule", "history", "nightly", "-o", "json").json
    assert [version["version"] for version in versions] == [4, 3, 2, 1]
    assert (versions[2]["actor"]["name"], versions[2]["before"]["name"]) == ("bo", "nightly")


def test_what_is_declared_is_not_renamed_by_hand_and_its_deletion_says_that_it_comes_back(shell: Shell) -> None:
    (shell.folder / "small.yaml").write_text("schedules: [{name: small, steps: [{job: third_time}]}]")
    shell("apply", "small.yaml")
    refused = shell("schedule", "edit", "small", "--rename", "tiny")
    assert refused.code == 7
    assert refused.err.startswith("error: --rename: 'small' is declared in a file")
    assert "try: rename it where it is declared" in refused.err
    deleted = shell("schedule", "delete", "small", "-o", "json")
    assert deleted.json == {"name": "small", "deleted": True}
    assert "declared in a file: the next `tenuto apply` of that file makes it again, switched on" in deleted.err
    assert "tenuto schedule disable small" in deleted.err
    shell("schedule", "add", "mine", "--manual", "--step", "third_time")
    assert "makes it again" not in shell("schedule", "delete", "mine").err


def test_a_schedule_is_switched_off_and_on_and_deleted(shell: Shell) -> None:
    shell(*NIGHTLY, *STEPS)
    off = shell("schedule", "disable", "nightly")
    assert "go on with: tenuto schedule enable nightly" in off.err
    assert "is off already" in shell("schedule", "disable", "nightly").err
    assert shell("schedule", "show", "nightly").out.startswith("○ off  nightly")
    on = shell("schedule", "enable", "nightly", "-o", "json").json
    assert on["enabled"]
    assert on["next_run_at"]
    assert shell("schedule", "delete", "nightly").code == 0
    gone = shell("schedule", "show", "nightly")
    assert (gone.code, gone.out) == (3, "")


def test_a_schedule_of_the_code_is_told_of_before_it_is_in_force(shell: Shell) -> None:
    with (shell.folder / "tasks.py").open("a") as file:
        file.write("\nfrom tenuto import Step, manual\napp.schedule('of code', manual(), [Step.job(hopeless)])\n")
    assert "comes into force when a service starts" in shell("schedule", "run", "of code").err
    assert "1 declared in code come into force" in shell("schedule", "list").err


# ---- running


def test_a_run_prints_the_id_of_its_execution(shell: Shell) -> None:
    shell("schedule", "add", "by hand", "--manual", "--step", 'double:{"n": 1}')
    ended = shell("schedule", "run", "by hand", "--set", "double.n=5", LOGNAME="ana")
    id = str(UUID(ended.out.strip()))
    assert f"tenuto execution watch {id}" in ended.err
    shown = shell("execution", "show", id, "-o", "json").json
    assert (shown["initiator_name"], shown["origin"], shown["state"]) == ("ana", "manual", "in_progress")
    task = shell("task", "show", shown["steps"][0]["task_id"], "-o", "json").json["task"]
    assert task["input"] == {"n": 5}


def test_a_run_the_overlap_rule_refuses_ends_with_7_and_the_reason(shell: Shell) -> None:
    shell("schedule", "add", "one", "--manual", "--step", "last")
    shell("schedule", "run", "one")
    refused = shell("schedule", "run", "one")
    assert (refused.code, refused.out) == (7, "")
    assert "'one' was not run: the previous run is still active" in refused.err
    assert "tenuto execution list --schedule one" in refused.err
    running = shell("schedule", "delete", "one")
    assert running.code == 7
    assert "is running" in running.err
    shell("schedule", "edit", "one", "--overlap", "queue_one")
    queued = shell("schedule", "run", "one")
    assert (queued.code, queued.out) == (0, "")
    assert queued.err == "queued: waits until the previous run has ended\n"
    rows = shell("schedule", "ledger", "one", "-o", "json").json
    assert [row["decision"] for row in rows] == ["queued", "skipped", "fired"]
    shown = shell("schedule", "ledger").out
    assert "⊘ skipped" in shown
    assert "by hand: the previous run is still active" in shown
    only = shell("schedule", "ledger", "one", "--decision", "fired", "--before", rows[1]["due_at"], "-o", "json").json
    assert [row["id"] for row in only] == [rows[2]["id"]]


def test_a_queued_run_is_waited_for_and_followed_in_its_turn(shell: Shell) -> None:
    shell("schedule", "add", "one", "--manual", "--overlap", "queue_one", "--step", "last")
    shell.start("up", "--queues", "default,slow").until("worker ready")
    first = shell("schedule", "run", "one", "-q").out.strip()
    waiting = shell.start("schedule", "run", "one", "--wait")
    waiting.until("queued: waits until the previous run has ended")
    shell("execution", "cancel", first)

    def second() -> str | None:
        found = shell("execution", "list", "--schedule", "one", "--state", "in_progress", "-o", "json").json
        return found[0]["id"] if found and found[0]["id"] != first else None

    assert shell("execution", "cancel", eventually_here(second, 60)).code == 0
    waiting.until("cancelled at group 1 of 1")
    assert waiting.process.wait(60) == 1


def test_a_run_is_waited_for_and_its_end_is_the_exit_code(shell: Shell) -> None:
    shell("schedule", "add", "good", "--manual", *STEPS)
    shell("schedule", "add", "bad", "--manual", "--step", "hopeless", "--step", 'double:{"n": 1}')
    shell.start("worker").until("worker ready")
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


async def test_the_wait_for_its_turn_counts_in_the_timeout_of_a_run(app: Tenuto) -> None:
    @app.job
    async def never() -> None: ...

    app.schedule("one", manual(), [Step.job(never)], overlap="queue_one")
    await app.schedules.deploy()
    first = (await app.schedules.run("one")).execution_id
    assert first is not None
    session = Session(quiet=True)
    session.__dict__["app"] = app
    began = steady()
    waiting = asyncio.create_task(run_schedule(session, "one", wait=True, timeout=5))
    await eventually(lambda: steady() > began + 4, what="most of its time is over")
    await app.executions.cancel(first)
    database = await app.open()
    turn = steady()
    assert await take_turns(database, database.clock.now(), "somebody") == 1
    with pytest.raises(Conflict, match=r"after 5 s"):
        await asyncio.wait_for(waiting, 60)
    assert steady() - turn < 5, "its time began anew with its turn"
    (second, _) = await app.executions.list(schedule="one")
    assert second["initiator_name"] == login_name()
    (entry,) = await app.audit.list()
    assert (entry["target"], entry["actor_name"]) == ("one", login_name()), "asking again is no other deed"


async def test_a_page_of_the_ledger_may_end_among_many_due_at_one_instant(app: Tenuto) -> None:
    database, due_at = await app.open(), datetime(2031, 5, 17, 12, tzinfo=UTC)
    rows = [
        Entry(new_id(), new_id(), f"s{number}", due_at, None, "trigger", Decision.MISSED, None, "x", None)
        for number in range(5)
    ]
    await database.transaction(lambda connection: write_ledger(connection, rows, due_at, "somebody"))
    seen: list[str] = []
    page = await app.schedules.ledger(limit=2)
    while page:
        seen += [row["schedule_name"] for row in page]
        page = await app.schedules.ledger(before=page[-1]["due_at"], below=page[-1]["id"], limit=2)
    assert sorted(seen) == ["s0", "s1", "s2", "s3", "s4"]


# ---- errors


@pytest.mark.parametrize(
    ("words", "code", "what", "remedy"),
    [
        (["schedule", "add", "x", "--manual", "--step", "double"], 2, "--step, double.n: Field required", "tenuto"),
        (["schedule", "add", "x", "--manual", "--step", "dbl"], 2, "no job named 'dbl'", "--app module:object"),
        (["schedule", "add", "x", "--manual", "--step", "nil kind=schedule"], 2, "no schedule named 'nil'", "first"),
        (["schedule", "add", "x", "--manual", "--step", "last,last"], 2, "two steps are named 'last'", "another name"),
        (["schedule", "add", "x", "--overlap", "maybe"], 2, "'maybe' is not one of", "tenuto schedule add --help"),
        (["schedule", "show", "x"], 3, "there is no schedule named 'x'", "tenuto schedule list"),
        (["schedule", "ledger", "--before", "yesterday"], 2, "--before: 'yesterday' is not an instant", "offset"),
        (["execution", "show", "zz"], 2, "is not an id", "copy it from a list"),
        (["execution", "show", "00"], 3, "no execution's id begins with 00", "tenuto execution list"),
        (["execution", "list", "--schedule", "x"], 3, "no schedule named 'x'", "tenuto schedule list"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_error_says_what_is_wrong_and_what_to_try(
    shell: Shell, words: list[str], code: int, what: str, remedy: str
) -> None:
    ended = shell(*words)
    assert (ended.code, ended.out) == (code, "")
    assert what in ended.err.partition("\n  try: ")[0]
    assert remedy in ended.err.partition("\n  try: ")[2]


def test_a_name_that_is_nearly_right_is_put_right(shell: Shell) -> None:
    shell("schedule", "add", "Nightly HR Sync", "--manual", "--step", "third_time")
    assert "did you mean 'Nightly HR Sync'?" in shell("schedule", "show", "nightly hr synch").err


# ---- cron


def test_a_cron_line_is_explained_without_a_database(open_shell: Callable[..., Shell]) -> None:
    shell = open_shell()
    ended = shell("cron", "explain", "30 2 * * mon-fri", "--zone", "Europe/Berlin", "-n", "3")
    assert ended.code == 0
    assert ended.out.splitlines()[0] == "Every weekday at 02:30, Europe/Berlin"
    assert len(ended.out.splitlines()) == 6
    document = shell("cron", "explain", "@daily", "-o", "json").json
    assert (document["words"], len(document["next_runs"])) == ("Every day at 00:00, UTC", 5)


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        ("61 2 * * *", "error: minute: '61' is not a minute", "0 to 59"),
        ("0 2 * * fry", "error: day of week: 'fry' is not a day of week", "sun, mon"),
        ("0 2 * *", "error: line: has 4 fields instead of five", "minute, hour"),
        ("0 0 30 2 *", "error: day of month: there is no such day", "name a day"),
    ],
)
def test_a_cron_line_that_is_wrong_is_refused_by_its_field(
    open_shell: Callable[..., Shell], line: str, what: str, remedy: str
) -> None:
    ended = open_shell()("cron", "explain", line)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(what)
    assert remedy in ended.err
