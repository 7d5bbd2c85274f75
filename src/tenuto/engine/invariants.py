"""What must always hold: the doctor's list. Each entry is one statement in ``store/doctor.sql`` that finds offenders.

The order is the order of the report.
"""

from __future__ import annotations

from tenuto.engine.rules import Invariant, Verdict
from tenuto.engine.rulesofruns import OF_RUNS
from tenuto.engine.rulesoftasks import OF_TASKS

__all__ = ["INVARIANTS", "Invariant", "Verdict"]

_UPKEEP = (
    Invariant(
        "old_snapshot",
        "no transaction stays open",
        "a transaction stays open",
        Verdict.WARNING,
        "{who} ({what}) has had a transaction open for {seconds} s; to end it: {cure}",
        "Rows that are gone cannot be cleaned away meanwhile, and the queue gets slower with every task.",
        "end that transaction, and set idle_in_transaction_session_timeout for whoever opened it",
        ("snapshot",),
    ),
    Invariant(
        "queue_paused",
        "no queue is paused",
        "queues are paused",
        Verdict.NOTE,
        "queue {queue} was paused by {paused_by}: {reason}",
        "Its tasks wait until it is resumed.",
        "tenuto queue resume QUEUE",
    ),
    Invariant(
        "repaired",
        "the nets have had nothing to repair",
        "the nets have had something to repair",
        Verdict.NOTE,
        "{net}: {count} tasks so far, the last at {last_at:%Y-%m-%d %H:%M:%S} UTC",
        "Workers have died or lost touch while they held tasks; the tasks were taken back.",
        "if the numbers keep growing, find out why workers die (memory, restarts) or lose the database",
    ),
)

INVARIANTS = (*OF_TASKS, *OF_RUNS, *_UPKEEP)
