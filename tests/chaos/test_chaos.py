"""A short chaos run violates no rule, and the auditor finds every kind of damage done to its result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import psutil
import pytest

from tests.chaos.chaos_run import open_chaos_run
from tests.chaos.check import Figure
from tests.chaos.checks import UNCHECKED_SECONDS
from tests.chaos.feature_jobs import DATA, METER_COUNT, step_ledger_path
from tests.chaos.jobs import CANARY, FIRE_ALL, NARROW_KEY
from tests.chaos.notification_receiver import EACH, GROUPED
from tests.chaos.oracle import due_instants
from tests.chaos.report import ALLOWED, MUST_BE_ZERO
from tests.chaos.run_size import RunSize
from tests.chaos.task_audit import Auditor
from tests.races.processes import ROOT
from tests.support.repetition_counts import seed, times
from tests.support.waiting import eventually_blocking

pytestmark = pytest.mark.slow
TASKS = times(300, in_a_proof=5000)
KILLS = times(20, in_a_proof=300)
SECONDS = UNCHECKED_SECONDS + 10
"""Long enough for something to become due that must have run."""

Lines = list[str]


@dataclass(frozen=True)
class Damage:
    """Damage done to the result of a finished run."""

    name: str
    figure: Figure
    statement: str = ""
    ledger_change: Callable[[Lines], Lines] = lambda lines: lines
    steps_change: Callable[[Lines], Lines] = lambda lines: lines
    detectable_if: str = "true"
    """SQL condition under which the damage is a violation."""
    rule: str = ""
    """Start of the rule that must find it, where other rules with the same figure would find it too."""
    may_lack_subject: bool = False
    """Whether a run may have nothing that could be damaged so. Otherwise a run without it is an error: then the check
    could not find anything."""


_COPIED = """
    attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at, started_at, ended_at,
    fence, worker_id, failures, losses, input, initiator_type, initiator_name, execution_id, group_index, step_index"""


def _copy_activity(of: str, *, attempt: str = "attempt", task: str = "task_id") -> str:
    """Return an INSERT of a copy of an activity."""
    changed = _COPIED.replace("attempt,", f"{attempt},", 1)
    return (
        f"INSERT INTO tenuto.activities (id, task_id, {_COPIED})"
        f" SELECT gen_random_uuid(), {task}, {changed} FROM tenuto.activities WHERE {of} LIMIT 1"
    )


def _one(table: str, where: str) -> str:
    return f"DELETE FROM {table} WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM {table} WHERE {where} LIMIT 1)"


def _set_aside_after(*, recorded: int) -> str:
    """Change a task that completed at its first attempt, as if that had been lost."""
    return (
        f"UPDATE tenuto.activities SET status = 'failed', reason = 'lost', losses = {recorded}"
        " WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM tenuto.activities"
        " WHERE final AND attempt = 1 AND kind = 'job' AND status = 'completed' LIMIT 1)"
    )


def _without_end_of_an_item(lines: Lines) -> Lines:
    """Remove the end of an item that began and ended once; with several runs, another end would remain."""
    times = Counter(line.split()[0] for line in lines if " item " in line)
    chosen = (n for n, line in enumerate(lines) if " item ends " in line and times[line.split()[0]] == 2)
    n = next(chosen, len(lines))
    return lines[:n] + lines[n + 1 :]


def _without_group(group: str) -> Callable[[Lines], Lines]:
    """Remove all runs of the group."""
    return lambda lines: [line for line in lines if line.split()[4] != group]


def _with_second_run_inside_the_first(lines: Lines) -> Lines:
    task, attempt, fence, pid, group, _, began = next(line for line in lines if " begins " in line).split()
    again = f"{task} {int(attempt) + 1} {int(fence) + 1} {pid} {group}"
    return [*lines, f"{again} begins {int(began) + 1}", f"{again} ends {int(began) + 2}"]


def _with_repeated_claim(lines: Lines) -> Lines:
    first = next(line for line in lines if " begins " in line)
    return [*lines, first]


def _with_four_concurrent_runs(lines: Lines) -> Lines:
    pid, at = lines[0].split()[3], int(lines[0].split()[6])
    several = [f"00000000-0000-0000-0000-00000000000{n} 1 1 {pid} {NARROW_KEY}" for n in range(4)]
    return [*lines, *(f"{each} begins {at}" for each in several), *(f"{each} ends {at + 9}" for each in several)]


def _with_all_steps_beginning_together(lines: Lines) -> Lines:
    at = min(int(line.split()[6]) for line in lines)
    return [f"{line.rpartition(' ')[0]} {at}" if " step begins " in line else line for line in lines]


def _with_a_repeated_step(lines: Lines) -> Lines:
    """Add a run of a step, of the same claim, after each run that ended."""
    again = []
    for task, fence, step, _, what, at in (line.split() for line in lines):
        if what == "ends":
            mark = "00000000-0000-0000-0000-000000000000"
            again += [f"{task} {fence} {step} {mark} begins {int(at) + 1}"]
    return [*lines, *again]


def _with_early_loads(lines: Lines) -> Lines:
    at = min(int(line.split()[6]) for line in lines)
    return [f"{line.rpartition(' ')[0]} {at}" if " load begins " in line else line for line in lines]


def _change_output(job: str, output: str) -> str:
    return f"UPDATE tenuto.activities SET output = {output} WHERE name = '{job}' AND final AND status = 'completed'"


_DATA_EXECUTIONS = f"(SELECT id FROM tenuto.executions WHERE schedule_name = '{DATA}' AND state = 'completed')"
FEATURE_DAMAGES = (
    Damage(
        "a result of a step that did not run",
        "missing_ledger_rows",
        _change_output("voyage", """jsonb_set(output, '{1}', '"rest 0"')"""),
        rule="a recorded result of a durable step",
    ),
    Damage(
        "a durable step that ran again",
        "doubled",
        steps_change=_with_a_repeated_step,
        rule="a durable step does not run again",
    ),
    Damage(
        "a workflow without the result of a step",
        "lost",
        _change_output("deliver_order", "output - 2"),
        rule="a completed task has the result of each",
    ),
    Damage(
        "a task that received another event",
        "lost",
        _change_output("listen", """'["event of-another"]'"""),
        rule="a task that waits for an event receives its own",
    ),
    Damage(
        "an event that was delivered twice",
        "doubled",
        "UPDATE tenuto.sent_events SET delivery_count = 2 WHERE delivery_count = 1",
        rule="an acknowledged event is delivered",
    ),
    Damage(
        "a workflow with two children",
        "doubled",
        f"""INSERT INTO tenuto.activities (id, task_id, parent_id, {_COPIED})
            SELECT gen_random_uuid(), gen_random_uuid(), parent_id, {_COPIED} FROM tenuto.activities
            WHERE name = 'item' AND final AND parent_id IN (
                SELECT id FROM tenuto.activities WHERE name = 'deliver_order') LIMIT 1""",
        rule="a workflow has one child task",
    ),
    Damage(
        "an exceeded rate limit",
        "overlapping",
        f"""INSERT INTO tenuto.activities (id, task_id, {_COPIED})
            SELECT gen_random_uuid(), gen_random_uuid(), {_COPIED}
            FROM (SELECT * FROM tenuto.activities WHERE name = 'metered' AND claimed_at IS NOT NULL LIMIT 1) AS one,
                 generate_series(1, {METER_COUNT})""",
        rule="a rate limit is not exceeded",
    ),
    Damage(
        "an expired task that had started",
        "doubled",
        "UPDATE tenuto.activities SET status = 'cancelled', reason = 'expired'"
        " WHERE name = 'hurried' AND final AND status = 'completed'",
        rule="a task that has expired never started",
        may_lack_subject=True,
    ),
    Damage(
        "a task that started after it had expired",
        "doubled",
        "UPDATE tenuto.activities SET claimed_at = created_at + interval '1 min' WHERE name = 'hurried' AND fence = 1",
        rule="a task that has expired never started",
        may_lack_subject=True,
    ),
    Damage(
        "a step that got another value",
        "advanced_twice",
        f"UPDATE tenuto.activities SET output = '0' WHERE step_index = 4 AND execution_id IN {_DATA_EXECUTIONS}",
        rule="a step gets the recorded output",
    ),
    Damage(
        "a step that ran against its condition, or was skipped against it",
        "advanced_twice",
        "UPDATE tenuto.activities SET status = CASE status WHEN 'skipped' THEN 'completed' ELSE 'skipped' END"
        f" WHERE step_index = 2 AND final AND execution_id IN {_DATA_EXECUTIONS}",
        rule="a step runs if its condition holds",
    ),
    Damage(
        "a step that did not wait for what it needs",
        "advanced_twice",
        ledger_change=_with_early_loads,
        rule="a step that names what it needs",
    ),
    Damage(
        "a step that did not wait for the approval",
        "advanced_twice",
        "DELETE FROM tenuto.approval_decisions",
        rule="a step behind an approval",
    ),
    Damage(
        "a due instant without a backfilled run",
        "missing_ledger_rows",
        _one("tenuto.occurrences", "origin = 'backfill'"),
        rule="a backfill runs each due instant",
    ),
    Damage(
        "a failure without a message",
        "lost",
        _one("tenuto_notifications.events", f"rule_name = '{EACH}'"),
        rule="a message about each task that failed",
    ),
    Damage(
        "a received message that was not recorded",
        "doubled",
        _one("tenuto_notifications.messages", f"rule_name = '{EACH}'"),
        rule="one message is sent for each event",
    ),
    Damage(
        "an event in two grouped messages",
        "doubled",
        f"UPDATE tenuto_notifications.messages SET event_count = event_count + 1 WHERE rule_name = '{GROUPED}'",
        rule="grouped messages together count each event once",
    ),
)


DAMAGES = (
    *FEATURE_DAMAGES,
    Damage(
        "a due instant without a ledger row", "missing_ledger_rows", _one("tenuto.occurrences", "origin = 'trigger'")
    ),
    Damage(
        "a ledger row for an instant that was not due",
        "missing_ledger_rows",
        """INSERT INTO tenuto.occurrences (
               id, schedule_id, schedule_name, due_at, origin, decision, decided_at, decided_by)
           SELECT gen_random_uuid(), schedule_id, schedule_name, due_at + interval '100 ms', origin, 'skipped',
                  decided_at, decided_by
           FROM tenuto.occurrences WHERE origin = 'trigger' LIMIT 1""",
    ),
    Damage("a one-shot without an end", "lost", _one("tenuto.activities", "origin = 'once' AND final")),
    Damage("a batch item without an end", "lost", _one("tenuto.activities", "batch_id IS NOT NULL AND final")),
    Damage(
        "a failed run without a dead letter",
        "lost",
        _one("tenuto.dead_letters", "manifest_id IS NOT NULL"),
        may_lack_subject=True,
    ),
    Damage(
        "a failed task without a dead letter",
        "lost",
        _one("tenuto.dead_letters", "manifest_id IS NULL"),
        may_lack_subject=True,
    ),
    Damage(
        "an execution that never ended",
        "lost",
        "UPDATE tenuto.executions SET ended_at = NULL, state = 'in_progress'"
        " WHERE id = (SELECT id FROM tenuto.executions LIMIT 1)",
    ),
    Damage(
        "a failure recorded as success",
        "lost",
        "UPDATE tenuto.activities SET status = 'completed' WHERE final AND input ->> 'fate' = 'hopeless'",
    ),
    Damage(
        "a task cancelled without a request",
        "lost",
        "UPDATE tenuto.activities SET status = 'cancelled' WHERE final AND batch_id IS NOT NULL",
    ),
    Damage(
        "a task set aside at its first loss",
        "lost",
        _set_aside_after(recorded=1),
        rule="no task is set aside before its third loss",
    ),
    Damage(
        "a task set aside at its first loss and counted as its third",
        "lost",
        _set_aside_after(recorded=3),
        rule="no task is set aside before its third loss",
    ),
    Damage(
        "a step that failed without a reason",
        "lost",
        "UPDATE tenuto.activities SET status = 'failed', reason = 'error' WHERE final AND execution_id IS NOT NULL"
        " AND kind = 'job' AND input ->> 'fate' IS DISTINCT FROM 'hopeless' AND status = 'completed'",
        rule="a step fails only if its input asks for it",
    ),
    Damage(
        "a step that failed although its child execution completed",
        "lost",
        "UPDATE tenuto.activities SET status = 'failed', reason = 'error'"
        " WHERE final AND execution_id IS NOT NULL AND kind = 'schedule' AND status = 'completed'",
        rule="a step fails only if its input asks for it",
    ),
    Damage(
        "a step that must fail recorded as success",
        "lost",
        "UPDATE tenuto.activities SET status = 'completed', reason = NULL"
        " WHERE final AND execution_id IS NOT NULL AND input ->> 'fate' = 'hopeless' AND status = 'failed'",
        rule="a step fails only if its input asks for it",
    ),
    Damage(
        "an execution that failed without a failed step",
        "lost",
        "UPDATE tenuto.executions SET state = 'failed' WHERE state = 'completed'",
        rule="an execution fails only if one of its steps did",
    ),
    Damage(
        "an execution cancelled without a request",
        "lost",
        "UPDATE tenuto.executions SET state = 'cancelled' WHERE state = 'completed' AND schedule_name = 'nested'",
        rule="an execution fails only if one of its steps did",
    ),
    Damage(
        "a schedule that never ran",
        "lost",
        "",
        _without_group("step"),
        rule="every schedule runs",
    ),
    Damage(
        "a manifest that never ran",
        "lost",
        "",
        _without_group("pulse"),
        rule="every manifest runs",
    ),
    Damage(
        "a due instant skipped against the policies",
        "lost",
        f"""UPDATE tenuto.occurrences SET decision = 'skipped', execution_id = NULL
            WHERE decision = 'fired' AND schedule_name = '{FIRE_ALL[0]}'""",
        rule="a schedule that allows overlap and fires all missed runs",
    ),
    Damage(
        "a due instant missed in the middle",
        "lost",
        f"""UPDATE tenuto.occurrences SET decision = 'missed', execution_id = NULL
            WHERE decision = 'fired' AND schedule_name = '{FIRE_ALL[0]}'
              AND due_at < (SELECT max(due_at) FROM tenuto.occurrences) - interval '{UNCHECKED_SECONDS + 1} s'""",
        rule="a schedule that allows overlap and fires all missed runs",
    ),
    Damage(
        "a success recorded twice",
        "doubled",
        _copy_activity("status = 'completed' AND final", attempt="attempt + 1"),
    ),
    Damage("an attempt recorded twice", "doubled", _copy_activity("status = 'failed' AND NOT final")),
    Damage(
        "a one-shot without a request", "doubled", _copy_activity("origin = 'once' AND final", task="gen_random_uuid()")
    ),
    Damage("a step that is two tasks", "advanced_twice", _copy_activity("step_index = 3", task="gen_random_uuid()")),
    Damage("a step without a task", "advanced_twice", _one("tenuto.activities", "step_index = 3 AND final")),
    Damage(
        "an execution that was repaired",
        "repaired_executions",
        "INSERT INTO tenuto.repairs VALUES ('execution_stuck', 1, now())",
    ),
    Damage("a secret in an activity", "else", f"UPDATE tenuto.repairs SET net = net || '{CANARY}'"),
    Damage("a counted repair", "else", "INSERT INTO tenuto.repairs VALUES ('dead_letter_missing', 1, now())"),
    Damage("a disabled guard", "else", "ALTER TABLE tenuto.executions DISABLE TRIGGER executions_end_once"),
    Damage("a success that was recorded but did not run", "missing_ledger_rows", "", _without_end_of_an_item),
    Damage("two concurrent runs of one task", "doubled", "", _with_second_run_inside_the_first),
    Damage("one claim that ran twice", "doubled", "", _with_repeated_claim),
    Damage("an exceeded limit key", "overlapping", "", _with_four_concurrent_runs),
    Damage("a group that did not wait for the previous one", "advanced_twice", "", _with_all_steps_beginning_together),
    Damage(
        "concurrent runs of a schedule without overlap",
        "overlapping",
        "",
        _with_all_steps_beginning_together,
        detectable_if="""EXISTS (
            SELECT FROM tenuto.executions WHERE alone AND state = 'completed' GROUP BY schedule_id HAVING count(*) > 1
        )""",
        may_lack_subject=True,
    ),
)


async def is_found(damage: Damage, url: str, auditor: Auditor, ledger: Path) -> bool | None:
    """Return whether the damage is found by its figure and rule, and undo it; None if the run has nothing to damage."""
    files = {ledger: damage.ledger_change, step_ledger_path(ledger): damage.steps_change}
    is_changed, damaged = False, []
    for path, change in files.items():
        lines = path.read_text().splitlines()
        changed = change(lines)
        is_changed |= changed != lines
        damaged.append(path.with_name(f"damaged-{path.name}"))
        damaged[-1].write_text("".join(f"{line}\n" for line in changed))
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SET LOCAL session_replication_role = replica")  # a superuser may disable the guards
        done = await connection.execute(damage.statement) if damage.statement else ""
        possible = await connection.fetchval(f"SELECT {damage.detectable_if}")
        found = await auditor.check(connection, *damaged)
        await transaction.rollback()
    finally:
        await connection.close()
        for path in damaged:
            path.unlink()
    if not possible or done.endswith(" 0") or (not damage.statement and not is_changed):
        return None
    return any(each.figure == damage.figure and each.rule.startswith(damage.rule) for each in found)


def unproven(seen: Mapping[Damage, bool | None]) -> list[str]:
    """Return the damages that were not done although every run must have something for them."""
    return [damage.name for damage, found in seen.items() if found is None and not damage.may_lack_subject]


@pytest.mark.timeout(times(300, in_a_proof=900))
async def test_chaos_run_violates_no_rule_and_auditor_finds_damage() -> None:
    chosen = seed()
    async with open_chaos_run(RunSize(seconds=SECONDS, tasks=TASKS, kills=KILLS, seed=chosen), print) as chaos_run:
        auditor = await chaos_run.run()
        report = await chaos_run.report(auditor)
        figures = json.loads(report.as_json())

        assert figures["broken"] == [], (
            f"scripts/chaos --seconds {SECONDS} --tasks {TASKS} --kills {KILLS} --seed {chosen}"
        )
        assert report.holds
        assert list(figures)[:9] == [*ALLOWED, *MUST_BE_ZERO]
        assert [figures[name] for name in MUST_BE_ZERO] == [0] * 6
        assert figures["kills"] >= KILLS
        assert figures["tasks"] >= TASKS
        assert figures["stops"] > 0
        assert figures["database_restarts"] > 0
        assert "everything holds" in report.as_table()

        seen = {damage: await is_found(damage, chaos_run.url, auditor, chaos_run.ledger) for damage in DAMAGES}
        assert [damage.name for damage, found in seen.items() if found is False] == []
        assert unproven(seen) == []


def test_chaos_run_without_approvals_backfills_or_messages_is_not_accepted() -> None:
    names = unproven(dict.fromkeys(FEATURE_DAMAGES))
    assert len(names) == len(FEATURE_DAMAGES) - 2
    assert {"a step that did not wait for the approval", "a due instant without a backfilled run"} < set(names)
    assert {"a failure without a message", "a received message that was not recorded"} < set(names)


def test_oracle_counts_due_instants_from_the_first_midnight_of_2001() -> None:
    noon = datetime(2031, 5, 17, 12, tzinfo=UTC)
    second = timedelta(seconds=1)

    assert list(due_instants(3, noon, noon + 7 * second)) == [noon + 3 * second, noon + 6 * second]
    assert list(due_instants(1, noon, noon)) == []
    assert list(due_instants(86_400, noon, noon + timedelta(days=1))) == [datetime(2031, 5, 18, tzinfo=UTC)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130)], ids=["Ctrl-C"])
def test_interrupted_chaos_run_leaves_no_process_running(number: signal.Signals, code: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", "--seconds", "300"], cwd=ROOT, stderr=stderr, stdout=stderr
        )
    try:
        eventually_blocking(lambda: " kills" in log.read_text(), timeout=90)
        family: list[psutil.Process] = []

        def is_complete() -> bool:  # the chaos run kills them too, so at times there are few
            family[:] = psutil.Process(process.pid).children(recursive=True)
            return len(family) >= 7

        eventually_blocking(is_complete, timeout=30)
        os.kill(process.pid, number)
        try:
            ended_with = process.wait(timeout=90)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # the log shows where it hangs
            ended_with = process.wait(timeout=30)
        assert ended_with == code, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert "nothing is left running" in log.read_text()
