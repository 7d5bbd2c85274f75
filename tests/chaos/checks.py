"""Checks after a chaos run: each rule with its invariants, the figure it counts towards, and its query.

A query returns the rows that violate the rule. The tables `chaos.*` hold independent facts: acknowledged requests,
the
effects that jobs recorded themselves (`effects`), the lifetime of each process, and the expected due instants. Their
instants come from the monotonic clock; recorded instants of two processes may differ by some milliseconds. The other
checks are those of `tenuto doctor`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.check import Check, Figure
from tests.chaos.feature_checks import FEATURE_CHECKS
from tests.chaos.feature_jobs import DATA, DURABLE, DURABLE_JOBS
from tests.chaos.jobs import (
    BULK,
    BULK_MAX,
    CANCELLING,
    FIRE_ALL,
    INTERVALS,
    NARROW_KEY,
    NARROW_MAX,
    TRIGGERED_MANIFESTS,
)

UNCHECKED_SECONDS = 15
"""Due instants this close to the disabling of a schedule may be missed: no scheduler may be running at that moment."""


def _more_than(limit: int, where: str) -> str:
    """Return a query for instants at which more effects held a lease than the limit allows."""
    return f"""
        SELECT at, running FROM (
            SELECT at, sum(change) OVER (ORDER BY at, change) AS running FROM (
                SELECT began AS at, 1 AS change FROM chaos.effects WHERE {where}
                UNION ALL SELECT held_until, -1 FROM chaos.effects WHERE {where}
            ) AS changes
        ) AS moments
        WHERE running > {limit}"""


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _too_rarely(names: Iterable[str], ran: str) -> str:
    """Return a query for names that began less often than once, and once more in every five minutes.

    That is far below their rate even with full queues: it only detects that work stops. A run too short
    for
    anything to be due long before its end passes.
    """
    return f"""
        SELECT the.name, ran.times FROM unnest(ARRAY[{_quoted(names)}]) AS the (name)
        CROSS JOIN (SELECT max(at) - min(at) AS span FROM chaos.due) AS due,
             LATERAL ({ran}) AS ran
        WHERE due.span >= interval '{UNCHECKED_SECONDS + max(INTERVALS.values())} s'
          AND ran.times < 1 + floor(extract(epoch FROM due.span) / 300)"""


CHECKS = (
    Check(
        "I1",
        "lost",
        "every acknowledged task has ended",
        """SELECT task FROM chaos.accepted
           WHERE NOT EXISTS (SELECT FROM tenuto.activities WHERE task_id = task AND final)""",
    ),
    Check(
        "I1",
        "lost",
        "every item of an acknowledged batch has ended",
        """SELECT batch, items, count(past.id) AS ended
           FROM chaos.accepted_batches LEFT JOIN tenuto.activities AS past ON past.batch_id = batch AND past.final
           GROUP BY batch, items HAVING count(past.id) < items""",
    ),
    Check("I1 I12", "lost", "no task stays open", "SELECT id, name, state, attempt FROM tenuto.tasks"),
    Check("I8 I12", "lost", "every execution ends", "SELECT id, state FROM tenuto.executions WHERE ended_at IS NULL"),
    Check(
        "I12",
        "lost",
        "no queued run waits forever",
        "SELECT schedule_name, due_at FROM tenuto.occurrences WHERE decision = 'queued'",
    ),
    Check(
        "I1 I4",
        "lost",
        "a task has the outcome its input asks for, unless its workers died three times",
        """SELECT task_id, name, status, reason, input ->> 'fate' AS fate FROM tenuto.activities
           WHERE final AND reason IS DISTINCT FROM 'lost' AND execution_id IS NULL
             AND reason IS DISTINCT FROM 'expired'
             AND (parent_id IS NULL OR status <> 'cancelled' OR parent_id NOT IN (
                 SELECT attempt.id FROM tenuto.activities AS attempt
                 JOIN tenuto.activities AS last ON last.task_id = attempt.task_id
                 WHERE last.final AND last.reason = 'lost'))
             AND CASE input ->> 'fate' WHEN 'hopeless' THEN status <> 'failed' ELSE status NOT LIKE 'completed%' END""",
    ),
    Check(
        "I1 I15",
        "lost",
        "no task is set aside before its third loss",
        """SELECT task_id, count(*) FILTER (WHERE reason = 'lost') AS losses, max(losses) AS counted
           FROM tenuto.activities GROUP BY task_id
           HAVING bool_or(final AND reason = 'lost')
              AND least(count(*) FILTER (WHERE reason = 'lost'), max(losses)) < 3""",
    ),
    Check(
        "I4 I8",
        "lost",
        "a step fails only if its input asks for it, its workers died three times or its child execution failed",
        """SELECT task_id, execution_id, name, status, reason, input ->> 'fate' AS fate FROM tenuto.activities AS past
           WHERE final AND execution_id IS NOT NULL AND CASE
               WHEN kind = 'schedule' THEN status = 'failed' AND NOT EXISTS (
                   SELECT FROM tenuto.executions WHERE parent_task_id = task_id AND state = 'failed')
               WHEN input ->> 'fate' = 'hopeless' THEN status LIKE 'completed%'
               ELSE status = 'failed' END
             AND reason IS DISTINCT FROM 'lost'""",
    ),
    Check(
        "I8",
        "lost",
        "an execution fails only if one of its steps did, and is cancelled only by its overlap policy",
        f"""SELECT id, schedule_name, state FROM tenuto.executions AS execution
            WHERE state = 'failed' AND NOT EXISTS (
                SELECT FROM tenuto.activities WHERE execution_id = execution.id AND final AND status = 'failed')
               OR state = 'cancelled' AND schedule_name NOT IN ({_quoted(CANCELLING)})""",
    ),
    Check(
        "I10 I12",
        "lost",
        "every schedule runs, and keeps running",
        _too_rarely(
            INTERVALS,
            """SELECT count(DISTINCT execution.id) AS times FROM tenuto.executions AS execution
               JOIN tenuto.activities ON execution_id = execution.id AND final
               JOIN chaos.effects ON task = task_id WHERE schedule_name = the.name""",
        ),
    ),
    Check(
        "I12",
        "lost",
        "every manifest runs, and keeps running",
        _too_rarely(
            (BULK, *TRIGGERED_MANIFESTS),
            """SELECT count(DISTINCT task) AS times FROM tenuto.manifests
               JOIN tenuto.activities ON manifest_id = manifests.id AND final
               JOIN chaos.effects ON task = task_id WHERE external_id = the.name""",
        ),
    ),
    Check(
        "I10",
        "lost",
        "a schedule that allows overlap and fires all missed runs runs at every due instant, up to the last seconds",
        f"""SELECT schedule, due.at, decision, reason FROM chaos.due
            JOIN tenuto.occurrences ON schedule_name = schedule AND origin = 'trigger'
                 AND (due_at = due.at OR due.at BETWEEN due_at AND until)
            WHERE schedule IN ({_quoted(FIRE_ALL)}) AND decision <> 'fired' AND NOT (
                decision = 'missed' AND due.at > (SELECT max(at) FROM chaos.due) - interval '{UNCHECKED_SECONDS} s')""",
    ),
    Check(
        "I1",
        "lost",
        "every permanent failure has a dead letter, except of steps, which are retried with their execution",
        """SELECT task_id, name FROM tenuto.activities AS past
           WHERE final AND status = 'failed' AND execution_id IS NULL
             AND NOT EXISTS (SELECT FROM tenuto.dead_letters WHERE dead_letters.task_id = past.task_id)""",
    ),
    Check(
        "I4",
        "doubled",
        "a task succeeds once",
        """SELECT task_id, count(*) FROM tenuto.activities WHERE status LIKE 'completed%'
           GROUP BY task_id HAVING count(*) > 1""",
    ),
    Check(
        "I3 I8",
        "doubled",
        "a task ends once",
        "SELECT task_id, count(*) FROM tenuto.activities WHERE final GROUP BY task_id HAVING count(*) > 1",
    ),
    Check(
        "I3",
        "doubled",
        "attempts are numbered without gaps or repetitions, and the last one is final",
        """SELECT task_id, array_agg(attempt ORDER BY attempt) FROM tenuto.activities GROUP BY task_id
           HAVING count(*) <> max(attempt) OR min(attempt) <> 1 OR max(attempt) FILTER (WHERE final) < max(attempt)""",
    ),
    Check(
        "I5",
        "doubled",
        "each attempt that ran has a greater fence than the previous one",
        """SELECT task_id, attempt FROM (
               SELECT task_id, attempt, fence, worker_id,
                      lag(fence) OVER (PARTITION BY task_id ORDER BY attempt) AS before
               FROM tenuto.activities WHERE worker_id IS NOT NULL) AS past
           WHERE fence <= before""",
    ),
    Check(
        "I2 I5",
        "doubled",
        "one claim runs its code once",
        "SELECT task, attempt, fence, begins FROM chaos.effects WHERE begins > 1 OR pids > 1",
    ),
    Check(
        "I2",
        "doubled",
        "two runs of one task never hold its lease at once",
        """SELECT task, attempt, pid, began - held_before AS nanoseconds FROM (
               SELECT *, max(held_until) OVER (
                   PARTITION BY task ORDER BY began, fence ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS held_before FROM chaos.effects) AS runs
           WHERE began < held_before""",
    ),
    Check(
        "I1",
        "doubled",
        "a repeated request has one effect",
        """SELECT task_id AS id FROM tenuto.activities
           WHERE final AND execution_id IS NULL AND manifest_id IS NULL
             AND (parent_id IS NULL OR parent_id NOT IN (
                 SELECT id FROM tenuto.activities WHERE name = 'deliver_order'))
             AND kind <> 'notifications.deliver' AND NOT EXISTS (SELECT FROM chaos.accepted WHERE task = task_id)
           UNION ALL
           SELECT id FROM tenuto.batches
           WHERE id NOT IN (SELECT batch FROM chaos.accepted_batches) OR total <> (
               SELECT items FROM chaos.accepted_batches WHERE batch = id)
           UNION ALL
           SELECT batch FROM chaos.accepted_batches JOIN tenuto.activities ON batch_id = batch AND final
           GROUP BY batch, items HAVING count(*) > items""",
    ),
    Check(
        "I7",
        "advanced_twice",
        "a step of an execution is one task",
        """SELECT execution_id, step_index, count(DISTINCT task_id) FROM tenuto.activities
           WHERE execution_id IS NOT NULL GROUP BY execution_id, step_index HAVING count(DISTINCT task_id) > 1""",
    ),
    Check(
        "I6 I7",
        "advanced_twice",
        "a group begins when the previous one is over, unless its steps name what they need",
        f"""SELECT execution_id, group_index FROM (
               SELECT execution_id, group_index, min(began) AS began, max(max(held_until)) OVER (
                   PARTITION BY execution_id ORDER BY group_index ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS held_before
               FROM chaos.effects JOIN tenuto.activities ON task_id = task AND final
               WHERE execution_id IN (SELECT id FROM tenuto.executions WHERE schedule_name <> '{DATA}')
               GROUP BY execution_id, group_index) AS groups
           WHERE began < held_before""",
    ),
    Check(
        "I6 I7 I11",
        "advanced_twice",
        "an ended execution has one final activity for each step of its snapshot, and groups ended in order",
        """SELECT id FROM tenuto.executions AS execution
           WHERE ended_at IS NOT NULL AND first_group = 0 AND (
               total_steps <> (SELECT sum(jsonb_array_length(steps)) FROM jsonb_array_elements(plan) AS steps)
               OR total_steps <> (
                   SELECT count(*) FROM tenuto.activities WHERE execution_id = execution.id AND final))""",
    ),
    Check(
        "I8",
        "advanced_twice",
        "an execution completes only if all of its steps did",
        """SELECT DISTINCT execution.id FROM tenuto.executions AS execution
           JOIN tenuto.activities AS past ON past.execution_id = execution.id AND past.final
           WHERE execution.state = 'completed' AND past.status NOT IN ('completed', 'skipped')""",
    ),
    Check(
        "I9",
        "overlapping",
        "code of schedules without overlap does not overlap",
        """SELECT schedule_name, id, (held_before - began) / 1e6 AS by_ms FROM (
               SELECT execution.id, schedule_name, min(began) AS began, max(max(held_until)) OVER (
                   PARTITION BY schedule_id ORDER BY min(began) ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS held_before
               FROM chaos.effects
               JOIN tenuto.activities ON task_id = task AND final
               JOIN tenuto.executions AS execution ON execution.id = execution_id
               WHERE alone GROUP BY execution.id) AS runs
           WHERE began < held_before""",
    ),
    Check(
        "I9",
        "overlapping",
        "a manifest has one run at a time",
        """SELECT name, task, (held_before - began) / 1e6 AS by_ms FROM (
               SELECT name, task, min(began) AS began, max(max(held_until)) OVER (
                   PARTITION BY manifest_id ORDER BY min(began) ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
               ) AS held_before
               FROM chaos.effects JOIN tenuto.activities ON task_id = task AND final
               WHERE manifest_id IS NOT NULL AND batch_id IS NULL AND item_key IS NULL
               GROUP BY manifest_id, name, task) AS runs
           WHERE began < held_before""",
    ),
    Check("I13", "overlapping", "a limit key is not exceeded", _more_than(NARROW_MAX, f"grp = '{NARROW_KEY}'")),
    Check(
        "I13",
        "overlapping",
        "the limit of a manifest is not exceeded",
        _more_than(
            BULK_MAX,
            f"""task IN (SELECT task_id FROM tenuto.activities JOIN tenuto.manifests ON manifests.id = manifest_id
                         WHERE final AND external_id = '{BULK}')""",
        ),
    ),
    Check(
        "I10",
        "missing_ledger_rows",
        "every expected due instant is in the ledger",
        """SELECT schedule, due.at FROM chaos.due
           WHERE NOT EXISTS (
               SELECT FROM tenuto.occurrences WHERE schedule_name = schedule AND origin = 'trigger'
               AND (due_at = due.at OR due.at BETWEEN due_at AND until))""",
    ),
    Check(
        "I10",
        "missing_ledger_rows",
        "the ledger has no row twice, and none for an instant that was not due",
        """SELECT schedule_name, due_at FROM tenuto.occurrences
           WHERE origin = 'trigger' GROUP BY schedule_name, due_at
           HAVING count(*) > 1 OR NOT EXISTS (SELECT FROM chaos.due WHERE schedule = schedule_name AND at = due_at)""",
    ),
    Check(
        "I4",
        "missing_ledger_rows",
        "recorded successes really ran",
        f"""SELECT task_id, attempt, name FROM tenuto.activities
           WHERE status LIKE 'completed%' AND kind = 'job' AND name NOT IN ({_quoted(DURABLE_JOBS)}) AND NOT EXISTS (
               SELECT FROM chaos.effects
               WHERE task = task_id AND effects.attempt = activities.attempt AND effects.fence = activities.fence
                 AND ended IS NOT NULL)""",
    ),
    Check(
        "I3",
        "missing_ledger_rows",
        "successes that really ran are recorded",
        f"""SELECT task, attempt, fence FROM chaos.effects
           WHERE grp NOT LIKE '{DURABLE}%' AND NOT EXISTS (
               SELECT FROM tenuto.activities
               WHERE task_id = task AND activities.attempt = effects.attempt AND activities.fence = effects.fence)""",
    ),
    Check(
        "I7 I12",
        "repaired_executions",
        "no execution needed a repair",
        """SELECT net, generate_series(1, count) FROM tenuto.repairs
           WHERE net IN ('execution_stuck', 'step_waiting_for_nothing', 'execution_abandoned',
                         'steps_waiting_in_a_circle')""",
    ),
    Check(
        "I12",
        "else",
        "other repairs concern dead workers only",
        """SELECT net, count FROM tenuto.repairs
           WHERE net NOT IN ('lease_expired', 'worker_restarted',
                             'execution_stuck', 'step_waiting_for_nothing', 'execution_abandoned',
                             'steps_waiting_in_a_circle')""",
    ),
    Check(
        "I15",
        "else",
        "no task is retried after its third loss",
        "SELECT task_id, attempt FROM tenuto.activities WHERE losses >= 3 AND NOT final",
    ),
    Check(
        "I14",
        "else",
        "every outcome and every execution has an initiator",
        """SELECT id FROM tenuto.activities WHERE initiator_name = ''
           UNION ALL SELECT id FROM tenuto.executions WHERE initiator_name = ''""",
    ),
    *FEATURE_CHECKS,
)

FIGURES_OF_DOCTOR_CHECKS: dict[str, Figure] = {
    "task_lost": "lost",
    "lease_expired": "lost",
    "task_held_by_missing_worker": "lost",
    "execution_stuck": "lost",
    "fired_without_execution": "lost",
    "dead_letter_missing": "lost",
    "batch_counts_wrong": "lost",
    "task_overdue": "lost",
    "queued_run_not_started": "lost",
    "attempt_recorded_twice": "doubled",
    "task_ended_twice": "doubled",
    "attempt_after_end": "doubled",
    "task_open_and_ended": "doubled",
    "step_before_its_group": "advanced_twice",
    "step_after_execution_end": "advanced_twice",
    "step_end_not_recorded_once": "advanced_twice",
    "overlapping_executions": "overlapping",
    "manifest_runs_overlap": "overlapping",
    "key_limit_exceeded": "overlapping",
    "queue_limit_exceeded": "overlapping",
    "manifest_cap_exceeded": "overlapping",
    "execution_without_occurrence": "missing_ledger_rows",
    "attempt_missing": "missing_ledger_rows",
    "attempt_missing_of_open_task": "missing_ledger_rows",
}
"""The figure that a doctor check counts towards; all other checks: `else`."""
