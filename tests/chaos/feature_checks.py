"""Checks after a chaos run, of workflows, chains, waits, rate limits, expiry, data, approvals, backfills and
notifications.

The tables `chaos.*` hold independent facts: runs of durable steps (`steps`), the marks in the outputs of tasks
(`recorded`), the acknowledged events, and what the receiver of notifications got (`messages`, `named_tasks`).
"""

from __future__ import annotations

from tests.chaos.check import Check
from tests.chaos.feature_jobs import (
    APPROVER,
    DATA,
    EXPIRES_SECONDS,
    GATED,
    HISTORY,
    MANY,
    METER,
    METER_COUNT,
)
from tests.chaos.notification_receiver import EACH, GROUPED

_TOLERANCE = "interval '20 ms'"
"""Difference between an instant of a claim and the rule that it follows, both by the clock of the database."""


def _step(index: int, column: str = "past.output") -> str:
    return (
        f"(SELECT {column} FROM tenuto.activities AS past"
        f" WHERE past.execution_id = execution.id AND past.step_index = {index} AND past.final)"
    )


def _effect(index: int, column: str) -> str:
    return (
        f"(SELECT {column} FROM chaos.effects JOIN tenuto.activities AS past ON past.task_id = task AND past.final"
        f" WHERE past.execution_id = execution.id AND past.step_index = {index})"
    )


FEATURE_CHECKS = (
    Check(
        "I4",
        "missing_ledger_rows",
        "a recorded result of a durable step is that of a run that ended",
        """SELECT task, name, step, mark FROM chaos.recorded
           WHERE step NOT IN ('event', 'child') AND NOT EXISTS (
               SELECT FROM chaos.steps
               WHERE steps.task = recorded.task AND steps.step = recorded.step AND steps.mark = recorded.mark
                 AND steps.ended IS NOT NULL)""",
    ),
    Check(
        "I4",
        "doubled",
        "a durable step does not run again after its result was recorded",
        """SELECT recorded.task, recorded.name, recorded.step, again.fence, steps.fence AS recorded_fence
           FROM chaos.recorded
           JOIN chaos.steps USING (task, step, mark)
           JOIN chaos.steps AS again ON again.task = steps.task AND again.step = steps.step AND again.mark <> steps.mark
           WHERE again.began > steps.ended AND again.fence >= steps.fence""",
    ),
    Check(
        "I4",
        "lost",
        "a completed task has the result of each of its durable steps once",
        """SELECT task_id, name, output FROM tenuto.activities
           WHERE final AND status = 'completed' AND name IN ('deliver_order', 'voyage', 'listen')
             AND (SELECT array_agg(split_part(value, ' ', 1) ORDER BY place)
                  FROM jsonb_array_elements_text(output) WITH ORDINALITY AS mark (value, place)
                 ) IS DISTINCT FROM CASE name
                 WHEN 'deliver_order' THEN ARRAY[
                     'round-0', 'round-1', 'round-2', 'left', 'right', 'last', 'event', 'child']
                 WHEN 'voyage' THEN ARRAY['depart', 'rest', 'arrive']
                 ELSE ARRAY['event'] END""",
    ),
    Check(
        "I1",
        "lost",
        "a task that waits for an event receives its own",
        """SELECT events.task, payload, mark FROM chaos.events
           JOIN chaos.recorded ON recorded.task = events.task AND step = 'event'
           WHERE mark <> payload""",
    ),
    Check(
        "I1 I4",
        "doubled",
        "an acknowledged event is delivered to the task that waits for it, once",
        """SELECT events.key, events.task, sent.delivery_count, count(wait.*) AS waits FROM chaos.events
           LEFT JOIN tenuto.sent_events AS sent ON sent.key = events.key
           LEFT JOIN tenuto.event_waits AS wait ON wait.event_id = sent.id
           WHERE EXISTS (SELECT FROM tenuto.activities WHERE task_id = events.task AND final AND status = 'completed')
           GROUP BY events.key, events.task, sent.id, sent.delivery_count
           HAVING sent.delivery_count IS DISTINCT FROM 1""",
    ),
    Check(
        "I4",
        "doubled",
        "a workflow has one child task",
        """SELECT workflow.task_id, count(DISTINCT child.task_id) FROM tenuto.activities AS workflow
           JOIN tenuto.activities AS child ON child.parent_id = workflow.id AND child.final
           WHERE workflow.name = 'deliver_order'
           GROUP BY workflow.task_id HAVING count(DISTINCT child.task_id) > 1""",
    ),
    Check(
        "I13",
        "overlapping",
        "a rate limit is not exceeded in any second",
        f"""SELECT claimed_at, earlier FROM (
                SELECT claimed_at, lag(claimed_at, {METER_COUNT}) OVER (ORDER BY claimed_at) AS earlier
                FROM tenuto.activities WHERE name = '{METER}ed' AND claimed_at IS NOT NULL) AS starts
            WHERE claimed_at - earlier < interval '1 s' - {_TOLERANCE}""",
    ),
    Check(
        "I4",
        "doubled",
        "a task that has expired never started, and a task starts before it expires",
        f"""SELECT task_id, status, reason, run_at, claimed_at FROM tenuto.activities
            WHERE name = 'hurried' AND (
                (final AND reason = 'expired' AND EXISTS (SELECT FROM chaos.effects WHERE task = task_id))
                OR (fence = 1 AND claimed_at > created_at + interval '{EXPIRES_SECONDS} s' + {_TOLERANCE}))""",
    ),
    Check(
        "I7",
        "advanced_twice",
        "a step gets the recorded output of the step it refers to",
        f"""SELECT id, {_step(0)} AS extracted, {_step(4)} AS after FROM tenuto.executions AS execution
            WHERE schedule_name = '{DATA}' AND state = 'completed'
              AND ({_step(1)} IS DISTINCT FROM {_step(0)} -> 'mark'
                   OR {_step(4)} IS DISTINCT FROM {_step(0)} -> 'mark')""",
    ),
    Check(
        "I7",
        "advanced_twice",
        "a step runs if its condition holds, and is skipped without running if not",
        f"""SELECT id, {_step(0)} AS extracted, {_step(2, "past.status")} AS status
            FROM tenuto.executions AS execution
            WHERE schedule_name = '{DATA}' AND state = 'completed' AND (
                ({_step(2, "past.status")} = 'skipped') IS DISTINCT FROM (({_step(0)} ->> 'count')::integer < {MANY})
                OR ({_step(2, "past.status")} = 'skipped') = ({_effect(2, "min(began)")} IS NOT NULL))""",
    ),
    Check(
        "I6",
        "advanced_twice",
        "a step that names what it needs begins after that has ended",
        f"""SELECT id FROM tenuto.executions AS execution
            WHERE schedule_name = '{DATA}' AND (
                {_effect(4, "min(began)")} < {_effect(1, "max(held_until)")}
                OR {_effect(1, "min(began)")} < {_effect(0, "max(held_until)")})""",
    ),
    Check(
        "I6",
        "advanced_twice",
        "a step behind an approval begins after one person has approved",
        f"""SELECT execution.id, approval.state, approval.ended_at FROM tenuto.executions AS execution
            LEFT JOIN tenuto.approvals AS approval ON approval.execution_id = execution.id
            WHERE execution.schedule_name = '{GATED}' AND {_effect(1, "min(began)")} IS NOT NULL
              AND (approval.state IS DISTINCT FROM 'approved'
                   OR {_step(1, "past.claimed_at")} < approval.ended_at - {_TOLERANCE}
                   OR ARRAY(SELECT person FROM tenuto.approval_decisions WHERE approval_id = approval.id)
                      <> ARRAY['{APPROVER}'])""",
    ),
    Check(
        "I10",
        "missing_ledger_rows",
        "a backfill runs each due instant of its period once",
        f"""SELECT at, count(past.id) FROM chaos.backfilled
            LEFT JOIN (tenuto.occurrences AS past JOIN tenuto.executions ON executions.id = past.execution_id)
                ON past.schedule_name = '{HISTORY}' AND past.origin = 'backfill' AND past.due_at = at
            GROUP BY at HAVING count(past.id) <> 1
            UNION ALL
            SELECT due_at, 0 FROM tenuto.occurrences
            WHERE origin = 'backfill' AND due_at NOT IN (SELECT at FROM chaos.backfilled)""",
    ),
    Check(
        "I1",
        "lost",
        "a message about each task that failed for good is received, unless the delivery lost its workers three times",
        f"""SELECT past.task_id, past.name, event.message_id FROM tenuto.activities AS past
            LEFT JOIN tenuto_notifications.events AS event
                ON event.rule_name = '{EACH}' AND event.event_key = 'task:' || past.task_id
            WHERE past.final AND past.status = 'failed' AND past.name <> 'notifications.deliver'
              AND NOT EXISTS (
                  SELECT FROM chaos.named_tasks WHERE message = event.message_id AND task = past.task_id)
              AND NOT EXISTS (
                  SELECT FROM tenuto.activities WHERE task_id = event.message_id AND final AND reason = 'lost')""",
    ),
    Check(
        "I4",
        "doubled",
        "one message is sent for each event and rule",
        """SELECT task, count(*) FROM chaos.named_tasks GROUP BY task HAVING count(*) > 1
           UNION ALL
           SELECT message, 0 FROM chaos.messages
           WHERE message NOT IN (SELECT id FROM tenuto_notifications.messages)""",
    ),
    Check(
        "I4",
        "doubled",
        "grouped messages together count each event once",
        f"""SELECT listed.events, sent.number FROM (
                SELECT coalesce(sum(event_count), 0) AS events FROM tenuto_notifications.messages
                WHERE rule_name = '{GROUPED}') AS listed, (
                SELECT count(*) AS number FROM tenuto.dead_letters WHERE name <> 'notifications.deliver') AS sent
            WHERE listed.events <> sent.number
            UNION ALL
            SELECT received.events, message.event_count FROM chaos.messages AS received
            JOIN tenuto_notifications.messages AS message ON message.id = received.message
            WHERE received.events <> message.event_count""",
    ),
)
