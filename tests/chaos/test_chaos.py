"""A short storm breaks no rule; and an auditor who is shown damage finds it, so that his silence means something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import psutil
import pytest

from tests.chaos.task_audit import Auditor
from tests.chaos.chaos_run import raging
from tests.chaos.checks import AT_ITS_END, Figure
from tests.chaos.oracle import due_instants
from tests.chaos.pace import Wanted
from tests.chaos.report import ALLOWED, MUST_BE_ZERO
from tests.chaos.jobs import CANARY, EACH_FIRES, NARROW
from tests.races.processes import ROOT
from tests.support.proofs import seed, times
from tests.support.waiting import eventually_blocking

TASKS = times(300, in_a_proof=5000)
KILLS = times(20, in_a_proof=300)
SECONDS = AT_ITS_END + 10
"""Long enough for something to be due that must have run."""

Lines = list[str]


@dataclass(frozen=True)
class Damage:
    """Something that is not right, done by hand to a finished run."""

    name: str
    figure: Figure
    statement: str = ""
    to_the_ledger: Callable[[Lines], Lines] = lambda lines: lines
    shows_where: str = "true"
    """What must have happened for it to be wrong; as SQL."""
    rule: str = ""
    """How the rule begins that must find it, where others with the same figure would find it too."""


_COPIED = """
    attempt, status, reason, final, kind, name, queue, priority, created_at, run_at, claimed_at, started_at, ended_at,
    fence, worker_id, failures, losses, input, initiator_type, initiator_name, execution_id, group_index, step_index"""


def _another_record(of: str, *, attempt: str = "attempt", task: str = "task_id") -> str:
    """One record more, like an old one."""
    changed = _COPIED.replace("attempt,", f"{attempt},", 1)
    return (
        f"INSERT INTO tenuto.activities (id, task_id, {_COPIED})"
        f" SELECT gen_random_uuid(), {task}, {changed} FROM tenuto.activities WHERE {of} LIMIT 1"
    )


def _one(table: str, where: str) -> str:
    return f"DELETE FROM {table} WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM {table} WHERE {where} LIMIT 1)"


def _given_up_after(*, recorded: int) -> str:
    """One that was done at its first attempt, as if that had been lost."""
    return (
        f"UPDATE tenuto.activities SET status = 'failed', reason = 'lost', losses = {recorded}"
        " WHERE (tableoid, ctid) = (SELECT tableoid, ctid FROM tenuto.activities"
        " WHERE final AND attempt = 1 AND kind = 'job' AND status = 'completed' LIMIT 1)"
    )


def _without_the_end_of_an_item(lines: Lines) -> Lines:
    """Of one that was begun once and ended once: of another there would still be an end."""
    times = Counter(line.split()[0] for line in lines if " item " in line)
    chosen = (n for n, line in enumerate(lines) if " item ends " in line and times[line.split()[0]] == 2)
    n = next(chosen, len(lines))
    return lines[:n] + lines[n + 1 :]


def _without_a_run(group: str) -> Callable[[Lines], Lines]:
    """As if the code had never begun."""
    return lambda lines: [line for line in lines if line.split()[4] != group]


def _a_second_run_in_the_middle_of_the_first(lines: Lines) -> Lines:
    task, attempt, fence, pid, group, _, began = next(line for line in lines if " begins " in line).split()
    again = f"{task} {int(attempt) + 1} {int(fence) + 1} {pid} {group}"
    return [*lines, f"{again} begins {int(began) + 1}", f"{again} ends {int(began) + 2}"]


def _the_same_claim_once_more(lines: Lines) -> Lines:
    first = next(line for line in lines if " begins " in line)
    return [*lines, first]


def _four_at_once(lines: Lines) -> Lines:
    pid, at = lines[0].split()[3], int(lines[0].split()[6])
    several = [f"00000000-0000-0000-0000-00000000000{n} 1 1 {pid} {NARROW}" for n in range(4)]
    return [*lines, *(f"{each} begins {at}" for each in several), *(f"{each} ends {at + 9}" for each in several)]


def _every_step_begins_at_the_same_moment(lines: Lines) -> Lines:
    at = min(int(line.split()[6]) for line in lines)
    return [f"{line.rpartition(' ')[0]} {at}" if " step begins " in line else line for line in lines]


DAMAGES = (
    Damage("a due instant without a row", "missing_ledger_rows", _one("tenuto.occurrences", "origin = 'trigger'")),
    Damage(
        "a row for an instant that was not due",
        "missing_ledger_rows",
        """INSERT INTO tenuto.occurrences (
               id, schedule_id, schedule_name, due_at, origin, decision, decided_at, decided_by)
           SELECT gen_random_uuid(), schedule_id, schedule_name, due_at + interval '100 ms', origin, 'skipped',
                  decided_at, decided_by
           FROM tenuto.occurrences WHERE origin = 'trigger' LIMIT 1""",
    ),
    Damage("a one-shot without an end", "lost", _one("tenuto.activities", "origin = 'once' AND final")),
    Damage("an item of a batch without an end", "lost", _one("tenuto.activities", "batch_id IS NOT NULL AND final")),
    Damage("a failure without its dead letter", "lost", _one("tenuto.dead_letters", "true")),
    Damage(
        "an execution that never ended",
        "lost",
        "UPDATE tenuto.executions SET ended_at = NULL, state = 'in_progress'"
        " WHERE id = (SELECT id FROM tenuto.executions LIMIT 1)",
    ),
    Damage(
        "a failure recorded as done",
        "lost",
        "UPDATE tenuto.activities SET status = 'completed' WHERE final AND input ->> 'fate' = 'hopeless'",
    ),
    Damage(
        "a task that ended cancelled though nobody cancels",
        "lost",
        "UPDATE tenuto.activities SET status = 'cancelled' WHERE final AND batch_id IS NOT NULL",
    ),
    Damage(
        "a task given up at its first loss",
        "lost",
        _given_up_after(recorded=1),
        rule="nothing is given up before its third loss",
    ),
    Damage(
        "a task given up at its first loss and counted as if at its third",
        "lost",
        _given_up_after(recorded=3),
        rule="nothing is given up before its third loss",
    ),
    Damage(
        "a step that failed though nothing was wrong with it",
        "lost",
        "UPDATE tenuto.activities SET status = 'failed', reason = 'error' WHERE final AND execution_id IS NOT NULL"
        " AND kind = 'job' AND input ->> 'fate' IS DISTINCT FROM 'hopeless' AND status = 'completed'",
        rule="a step fails only if its input says so",
    ),
    Damage(
        "a step that failed though the run it waited for did not",
        "lost",
        "UPDATE tenuto.activities SET status = 'failed', reason = 'error'"
        " WHERE final AND execution_id IS NOT NULL AND kind = 'schedule' AND status = 'completed'",
        rule="a step fails only if its input says so",
    ),
    Damage(
        "a step that must fail recorded as done",
        "lost",
        "UPDATE tenuto.activities SET status = 'completed', reason = NULL"
        " WHERE final AND execution_id IS NOT NULL AND input ->> 'fate' = 'hopeless' AND status = 'failed'",
        rule="a step fails only if its input says so",
    ),
    Damage(
        "an execution that failed though no step did",
        "lost",
        "UPDATE tenuto.executions SET state = 'failed' WHERE state = 'completed'",
        rule="an execution fails only if a step of it has",
    ),
    Damage(
        "an execution that was cancelled though nobody cancels",
        "lost",
        "UPDATE tenuto.executions SET state = 'cancelled' WHERE state = 'completed' AND schedule_name = 'nested'",
        rule="an execution fails only if a step of it has",
    ),
    Damage(
        "a schedule that never ran",
        "lost",
        "",
        _without_a_run("step"),
        rule="every schedule runs",
    ),
    Damage(
        "a manifest that never ran",
        "lost",
        "",
        _without_a_run("pulse"),
        rule="every manifest runs",
    ),
    Damage(
        "a due instant passed over that may not be",
        "lost",
        f"""UPDATE tenuto.occurrences SET decision = 'skipped', execution_id = NULL
            WHERE decision = 'fired' AND schedule_name = '{EACH_FIRES[0]}'""",
        rule="what may overlap and makes up for all it missed",
    ),
    Damage(
        "a due instant missed in the middle",
        "lost",
        f"""UPDATE tenuto.occurrences SET decision = 'missed', execution_id = NULL
            WHERE decision = 'fired' AND schedule_name = '{EACH_FIRES[0]}'
              AND due_at < (SELECT max(due_at) FROM tenuto.occurrences) - interval '{AT_ITS_END + 1} s'""",
        rule="what may overlap and makes up for all it missed",
    ),
    Damage(
        "a success recorded twice",
        "doubled",
        _another_record("status = 'completed' AND final", attempt="attempt + 1"),
    ),
    Damage("an attempt recorded twice", "doubled", _another_record("status = 'failed' AND NOT final")),
    Damage(
        "a one-shot nobody asked for", "doubled", _another_record("origin = 'once' AND final", task="gen_random_uuid()")
    ),
    Damage("a step that is two tasks", "advanced_twice", _another_record("step_index = 3", task="gen_random_uuid()")),
    Damage("a step that never was", "advanced_twice", _one("tenuto.activities", "step_index = 3 AND final")),
    Damage(
        "an execution a net has moved",
        "repaired_executions",
        "INSERT INTO tenuto.repairs VALUES ('execution_stuck', 1, now())",
    ),
    Damage("a secret in a record", "else", f"UPDATE tenuto.repairs SET net = net || '{CANARY}'"),
    Damage("a net that found something", "else", "INSERT INTO tenuto.repairs VALUES ('dead_letter_missing', 1, now())"),
    Damage("a guard that is off", "else", "ALTER TABLE tenuto.executions DISABLE TRIGGER executions_end_once"),
    Damage("work that was recorded and not done", "missing_ledger_rows", "", _without_the_end_of_an_item),
    Damage("two runs of one task at once", "doubled", "", _a_second_run_in_the_middle_of_the_first),
    Damage("one claim that ran twice", "doubled", "", _the_same_claim_once_more),
    Damage("more of a key than its limit", "overlapping", "", _four_at_once),
    Damage("a group that did not wait for the one before", "advanced_twice", "", _every_step_begins_at_the_same_moment),
    Damage(
        "runs side by side that must be alone",
        "overlapping",
        "",
        _every_step_begins_at_the_same_moment,
        shows_where="""EXISTS (
            SELECT FROM tenuto.executions WHERE alone AND state = 'completed' GROUP BY schedule_id HAVING count(*) > 1
        )""",
    ),
)


async def is_found(damage: Damage, url: str, auditor: Auditor, ledger: Path) -> bool | None:
    """Whether it is, by its figure and rule; it is undone again. None if this storm has left nothing to damage."""
    lines = ledger.read_text().splitlines()
    changed = damage.to_the_ledger(lines)
    damaged = ledger.with_name("damaged")
    damaged.write_text("".join(f"{line}\n" for line in changed))
    connection = await asyncpg.connect(url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SET LOCAL session_replication_role = replica")  # whoever may switch the guards off
        done = await connection.execute(damage.statement) if damage.statement else ""
        possible = await connection.fetchval(f"SELECT {damage.shows_where}")
        found = await auditor.look(connection, damaged)
        await transaction.rollback()
    finally:
        await connection.close()
        damaged.unlink()
    if not possible or done.endswith(" 0") or (not damage.statement and changed == lines):
        return None
    return any(each.figure == damage.figure and each.rule.startswith(damage.rule) for each in found)


@pytest.mark.timeout(times(300, in_a_proof=900))
async def test_a_storm_breaks_no_rule_and_damage_done_by_hand_is_found() -> None:
    chosen = seed()
    async with raging(Wanted(seconds=SECONDS, tasks=TASKS, kills=KILLS, seed=chosen), print) as storm:
        auditor = await storm.run()
        report = await storm.report(auditor)
        told = json.loads(report.as_json())

        assert told["broken"] == [], (
            f"scripts/chaos --seconds {SECONDS} --tasks {TASKS} --kills {KILLS} --seed {chosen}"
        )
        assert report.holds
        assert list(told)[:9] == [*ALLOWED, *MUST_BE_ZERO]
        assert [told[name] for name in MUST_BE_ZERO] == [0] * 6
        assert told["kills"] >= KILLS
        assert told["tasks"] >= TASKS
        assert told["stops"] > 0
        assert told["database_restarts"] > 0
        assert "everything holds" in report.as_table()

        seen = {damage: await is_found(damage, storm.url, auditor, storm.ledger) for damage in DAMAGES}
        assert [damage.name for damage, found in seen.items() if found is False] == []
        # A storm is chance: now and then it leaves nothing that one or the other damage could be done to.
        nothing_to_damage = [damage.name for damage, found in seen.items() if found is None]
        assert len(nothing_to_damage) <= 4, nothing_to_damage


def test_due_instants_are_counted_from_the_first_midnight_of_2001() -> None:
    noon = datetime(2031, 5, 17, 12, tzinfo=UTC)
    second = timedelta(seconds=1)

    assert list(due_instants(3, noon, noon + 7 * second)) == [noon + 3 * second, noon + 6 * second]
    assert list(due_instants(1, noon, noon)) == []
    assert list(due_instants(86_400, noon, noon + timedelta(days=1))) == [datetime(2031, 5, 18, tzinfo=UTC)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130)], ids=["Ctrl-C"])
def test_a_storm_that_is_broken_off_leaves_nothing_running(number: signal.Signals, code: int, tmp_path: Path) -> None:
    told = tmp_path / "told"
    with told.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", "--seconds", "300"], cwd=ROOT, stderr=stderr, stdout=stderr
        )
    try:
        eventually_blocking(lambda: " kills" in told.read_text(), timeout=90)
        family: list[psutil.Process] = []

        def is_complete() -> bool:  # the storm kills them, too: at some moments there are few
            family[:] = psutil.Process(process.pid).children(recursive=True)
            return len(family) >= 7

        eventually_blocking(is_complete, timeout=30)
        os.kill(process.pid, number)
        assert process.wait(timeout=90) == code, told.read_text()
    finally:
        process.kill()
        process.wait()
    assert psutil.wait_procs(family, timeout=30)[1] == []
    assert "nothing is left running" in told.read_text()
