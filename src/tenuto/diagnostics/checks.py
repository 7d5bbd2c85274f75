"""What a rule of the doctor is: one statement in ``store/reports/doctor.sql`` that finds offenders, and the words for them.

What must always hold of schedules, executions, manifests and batches. Only the words and the weight stand here.

What must always hold of tasks, their records, keys and guards. Only the words and the weight stand here.

What must always hold: the doctor's list. Each entry is one statement in ``store/reports/doctor.sql`` that finds offenders.

The order is the order of the report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Work may be late or at risk."""
    PROBLEM = "problem"
    """A promise is broken."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One rule."""

    name: str
    holds: str
    """What to say when it does."""
    fault: str
    """What to say when it does not, and how grave that is."""
    otherwise: Verdict
    says: str
    """One offending row in words; names in braces are its columns."""
    means: str
    remedy: str
    given: tuple[str, ...] = ()
    """The bounds its statement takes, in order."""
    lasting: str | None = None
    """The column that names what offends, of a rule that work under way may break for a moment: it counts only if it is
    still there when it is asked for again."""


REPORT = "this should be impossible: keep the rows, and report it with the output of `tenuto doctor -o json`"

NAMED = 20
"""So many offenders are named of each rule."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question."""

    name: str
    title: str
    verdict: Verdict
    details: list[str] = field(default_factory=list)
    means: str | None = None
    remedy: str | None = None


OF_RUNS = (
    Invariant(
        "execution_stands_still",
        "every open execution has a step that moves it",
        "executions stand still",
        Verdict.PROBLEM,
        "execution {id} ({name}) is {state} in group {place}, and no step of that group is left to move it",
        "No step will end that could begin the next group, so it would stay open for ever.",
        "see that a scheduler runs: it moves them on; if one does, its log says why it cannot",
        ("looked_at",),
    ),
    Invariant(
        "step_out_of_turn",
        "only steps of the current group can be taken",
        "steps can be taken out of their turn",
        Verdict.PROBLEM,
        "task {id} ({name}) of group {place} is {state} while group {current} is the current one",
        "A step runs before those it depends on have ended, or was forgotten when its group was over.",
        "cancel the execution with `tenuto execution cancel ID`, and report it: this should be impossible",
        ("looked_at",),
    ),
    Invariant(
        "group_before_its_turn",
        "no step began before those it depends on had ended",
        "steps began before those they depend on had ended",
        Verdict.PROBLEM,
        "execution {id} ({name}): step {step} of group {place} began before step {earlier} had ended",
        "A step has worked with what was not there yet.",
        REPORT,
        ("horizon", "followed"),
    ),
    Invariant(
        "step_without_execution",
        "every step has its execution",
        "steps have no execution",
        Verdict.PROBLEM,
        "task {id} ({name}) is a step of execution {execution_id}, which is not there",
        "It will wait for ever, or run without anything that follows it.",
        "cancel it with `tenuto task cancel ID`, and report it: this should be impossible",
        ("looked_at",),
    ),
    Invariant(
        "step_after_the_end",
        "no step outlives its execution",
        "steps outlive their execution",
        Verdict.PROBLEM,
        "task {id} ({name}) is {state}, and its execution {execution} has ended as {ended}",
        "Work goes on that its execution no longer counts.",
        "cancel it with `tenuto task cancel ID`, and report it: this should be impossible",
        ("looked_at",),
    ),
    Invariant(
        "step_not_told_to_stop",
        "what is left of cancelled executions has been told to stop",
        "steps of cancelled executions go on",
        Verdict.PROBLEM,
        "task {id} ({name}) is {state}, and its execution {execution} was cancelled",
        "The execution stays open until a step has ended that nobody asked to stop.",
        "cancel it with `tenuto task cancel ID`, and report it: this should be impossible",
    ),
    Invariant(
        "step_recorded_otherwise",
        "every step of an ended execution has ended once",
        "steps of ended executions have not ended, or more than once",
        Verdict.PROBLEM,
        "execution {id} ({name}) has {steps} steps and {records} last records",
        "A step was lost, run twice, or its record was deleted.",
        REPORT,
        ("horizon", "followed"),
    ),
    Invariant(
        "plan_not_as_begun",
        "every execution follows the plan it began with",
        "executions do not follow the plan they began with",
        Verdict.PROBLEM,
        "execution {id} ({name}): {groups} groups and {steps} steps, begun with {total_groups} and {total_steps}",
        "The plan was changed while it ran, and steps may be missing.",
        "cancel it with `tenuto execution cancel ID`, run it anew, and report it: this should be impossible",
        ("horizon", "followed"),
    ),
    Invariant(
        "step_waits_for_nothing",
        "no step waits for an execution that is over",
        "steps wait for executions that are over",
        Verdict.WARNING,
        "task {id} ({name}) waits for execution {waits_for}, which is over",
        "It should have been called again when that one ended.",
        "see that a scheduler runs: it lets them go; if one does, its log says why it cannot",
    ),
    Invariant(
        "fired_without_execution",
        "every due instant that fired has its execution",
        "due instants fired without an execution",
        Verdict.PROBLEM,
        "{name}, due at {due_at:%Y-%m-%d %H:%M:%S} UTC: execution {execution_id} is not there",
        "The ledger says that it ran, and it did not, or its execution was deleted.",
        "run it with `tenuto schedule run NAME`, and report it: this should be impossible",
        ("kept", "followed"),
    ),
    Invariant(
        "run_not_in_the_ledger",
        "the ledger tells of every run",
        "the ledger does not tell of every run",
        Verdict.PROBLEM,
        "execution {id} ({name}) was started by {origin}, and the ledger does not tell of it",
        "The same due instant may have been fired twice, or a row of the ledger was deleted.",
        REPORT,
        ("horizon", "kept", "followed"),
    ),
    Invariant(
        "run_not_alone",
        "no schedule that may not overlap runs twice",
        "schedules that may not overlap run more than once",
        Verdict.PROBLEM,
        "{name}: {running} runs are active",
        "What must not happen side by side does.",
        "cancel one with `tenuto execution cancel ID`, and report it: this should be impossible",
    ),
    Invariant(
        "schedule_overdue",
        "schedules fire when they are due",
        "schedules that are due do not fire",
        Verdict.PROBLEM,
        "{name} was due {seconds} s ago, and scheduler {scheduler} is alive",
        "A scheduler is there but cannot fire them.",
        "its log says why; `tenuto schedule show NAME` shows the schedule",
        ("late_schedule", "silent_scheduler"),
    ),
    Invariant(
        "scheduler_missing",
        "there is a scheduler for what is due",
        "there is no scheduler for what is due",
        Verdict.WARNING,
        "{name} was due {seconds} s ago",
        "Nothing fires until a scheduler runs; then the rule for missed runs decides.",
        "start one: tenuto scheduler --app MODULE:OBJECT",
        ("late_schedule", "silent_scheduler"),
    ),
    Invariant(
        "schedule_not_planned",
        "every enabled schedule has its next run worked out",
        "enabled schedules have no next run worked out",
        Verdict.WARNING,
        "{name} is enabled, and nobody has worked out when it runs next",
        "It does not fire until a scheduler has.",
        "see that a scheduler runs: each of them does it",
        ("late_schedule",),
    ),
    Invariant(
        "turn_not_taken",
        "runs wait for their turn only while another is active",
        "runs wait for their turn though nothing is active",
        Verdict.WARNING,
        "{name}, due at {due_at:%Y-%m-%d %H:%M:%S} UTC: has waited {seconds} s",
        "It should have been started when the run before it ended.",
        "see that a scheduler runs: each of them starts what waits",
        ("late_schedule",),
    ),
    Invariant(
        "letter_missing",
        "every manifest's failure for good has left a dead letter",
        "failures of manifests have left no dead letter",
        Verdict.PROBLEM,
        "task {id} ({name}) failed for good at {ended_at:%Y-%m-%d %H:%M:%S} UTC",
        "Nobody is told of these failures, and nobody can run them again.",
        "see that a scheduler runs: its manager writes what is missing of the last two days; for older ones, report it",
        ("horizon", "looked_at"),
    ),
    Invariant(
        "cap_overrun",
        "no more is active than manifests and their groups allow",
        "more is active than manifests or their groups allow",
        Verdict.WARNING,
        "{what}: {active} active, {most} allowed",
        "The cap was lowered while they ran, or is being overrun.",
        "wait for them to end; if their number does not fall, report it with the output of `tenuto doctor -o json`",
    ),
    Invariant(
        "manifest_runs_twice",
        "no manifest runs twice at once",
        "manifests run more than once at a time",
        Verdict.PROBLEM,
        "{name}: {runs} runs are open",
        "What must not happen side by side does.",
        REPORT,
    ),
    Invariant(
        "manifest_gone",
        "every run has its manifest",
        "runs have no manifest",
        Verdict.PROBLEM,
        "task {id} ({name}) is a run of manifest {manifest_id}, which is not there",
        "It runs without the caps of its manifest, and its success moves nothing.",
        "cancel it with `tenuto task cancel ID`, and report it: this should be impossible",
        ("looked_at",),
    ),
    Invariant(
        "batch_does_not_add_up",
        "every item of a batch is open or on record",
        "batches do not add up",
        Verdict.PROBLEM,
        "batch {id} ({name}): {total} items, {open} open, {ended} ended, {again} of them run again",
        "An item was lost or done twice, or a record was deleted.",
        REPORT,
        ("horizon",),
    ),
    Invariant(
        "batch_half_done",
        "batches were resumed and cancelled to the end",
        "batches were resumed or cancelled halfway",
        Verdict.WARNING,
        "batch {id} ({name}): tenuto batch {verb} {id}",
        "Whoever did it was interrupted; some items wait for nothing.",
        "do it once more, as the line says",
        lasting="item",
    ),
    Invariant(
        "manifest_not_planned",
        "every enabled manifest has its next run worked out",
        "enabled manifests have no next run worked out",
        Verdict.WARNING,
        "{name} is enabled, and nobody has worked out when it runs next",
        "It does not run until a manager has.",
        "see that a scheduler runs: each of them manages manifests",
        ("late_schedule",),
    ),
)


OF_TASKS = (
    Invariant(
        "triggers_off",
        "the past cannot be rewritten",
        "the past can be rewritten",
        Verdict.PROBLEM,
        "{guard} is {how} on {relation}",
        "Records of the past can be changed or deleted unnoticed.",
        "ALTER TABLE … ENABLE TRIGGER …; one that is missing stands in `tenuto migrate --print`",
    ),
    Invariant(
        "keys_missing",
        "what must be there once is guarded by a key",
        "keys that guard what must be there once are missing",
        Verdict.PROBLEM,
        "{key} is missing, not unique or not valid",
        "The same instant may be fired twice, or the same work begun twice.",
        "the statement that makes it stands in `tenuto migrate --print`; first remove what is there twice",
    ),
    Invariant(
        "constraints_missing",
        "what must fit together is held together by the database",
        "what must fit together is no longer held together by the database",
        Verdict.PROBLEM,
        "{what} is missing or not valid",
        "Rows that contradict themselves can be written: a task held by nobody, an execution without its plan.",
        "the statement that makes it stands in `tenuto migrate --print`; first mend the rows it would refuse",
    ),
    Invariant(
        "held_by_nobody",
        "every held task has a worker that is there",
        "tasks are held by workers that are not there",
        Verdict.PROBLEM,
        "task {id} ({name}) is held by worker {worker_id}, which is not there",
        "Nobody works on these tasks, and no sweep has taken them back.",
        "see that a worker or a scheduler runs: each of them sweeps",
        ("left",),
    ),
    Invariant(
        "lease_run_out",
        "no lease has run out unnoticed",
        "leases have run out unnoticed",
        Verdict.PROBLEM,
        "task {id} ({name}): its lease ended {seconds} s ago",
        "A worker fell silent, and no sweep has taken its tasks back.",
        "see that a worker or a scheduler runs: each of them sweeps; if one does, its log says why the sweep fails",
        ("late_lease",),
    ),
    Invariant(
        "attempt_missing",
        "the records of attempts have no gaps",
        "records of attempts are missing",
        Verdict.PROBLEM,
        "task {id} ({name}): attempt {attempt} is recorded, the one before it is not",
        "A record has been deleted, or was never written.",
        REPORT,
        ("history",),
    ),
    Invariant(
        "attempt_missing_before_open",
        "every open task has its earlier attempts on record",
        "open tasks lack the record of an earlier attempt",
        Verdict.PROBLEM,
        "task {id} ({name}) is at attempt {attempt}, and the one before it is not recorded",
        "A record has been deleted, or was never written.",
        REPORT,
        ("horizon", "looked_at"),
    ),
    Invariant(
        "attempt_recorded_twice",
        "every attempt is recorded once",
        "attempts are recorded twice",
        Verdict.PROBLEM,
        "task {id} ({name}): attempt {attempt} has {records} records",
        "Two workers have written the end of the same attempt.",
        REPORT,
        ("history",),
    ),
    Invariant(
        "first_attempt_misnamed",
        "a first attempt has the id of its task",
        "first attempts have ids of their own",
        Verdict.PROBLEM,
        "activity {id} ({name}) is attempt {attempt} of task {task_id}",
        "Links to this task lead nowhere, or to another one.",
        REPORT,
        ("looked_at",),
    ),
    Invariant(
        "ended_twice",
        "every task ends once",
        "tasks have ended more than once",
        Verdict.PROBLEM,
        "task {id} ({name}) has ended {ends} times",
        "The work may have been done twice.",
        REPORT,
        ("history",),
    ),
    Invariant(
        "tried_after_success",
        "nothing is tried again that has succeeded",
        "tasks were tried again after they had succeeded",
        Verdict.PROBLEM,
        "task {id} ({name}): attempt {attempt} came after one that had completed",
        "The work was done twice.",
        REPORT,
        ("history",),
    ),
    Invariant(
        "fence_not_grown",
        "every attempt has a later fence than the one before",
        "attempts have the fence of an earlier one",
        Verdict.PROBLEM,
        "task {id} ({name}): attempt {attempt} has fence {fence}, the one before it {earlier}",
        "A worker that had lost the task may have written its end.",
        REPORT,
        ("history",),
    ),
    Invariant(
        "went_on_after_its_end",
        "nothing is tried again after its end",
        "tasks were tried again after their end",
        Verdict.PROBLEM,
        "task {id} ({name}): attempt {attempt} came after the last one",
        "The work may have been done twice.",
        REPORT,
        ("history",),
    ),
    Invariant(
        "open_and_ended",
        "no open task has ended already",
        "tasks that have ended are still open",
        Verdict.PROBLEM,
        "task {id} ({name}) is open, and attempt {attempt} is recorded as its end",
        "The work is done and will be done again, or its end cannot be written.",
        REPORT,
        ("history", "looked_at"),
    ),
    Invariant(
        "vanished",
        "no task has vanished",
        "tasks have vanished",
        Verdict.PROBLEM,
        "task {id} ({name}) was to be tried again after attempt {attempt}, and is gone",
        "Work that was accepted is neither done nor waiting.",
        "run it again with the input that `tenuto task show ID` shows, and report it: this should be impossible",
        ("horizon", "looked_at"),
    ),
    Invariant(
        "not_set_aside",
        "what has killed its workers is not tried again",
        "tasks that have killed their workers are still open",
        Verdict.PROBLEM,
        "task {id} ({name}) has lost {losses} workers and is {state}",
        "It will go on killing workers.",
        "cancel it with `tenuto task cancel ID`, and report it: this should be impossible",
        ("losses", "looked_at"),
    ),
    Invariant(
        "key_over_limit",
        "no limited key runs more than it may",
        "limited keys run more than they may",
        Verdict.PROBLEM,
        "key {key}: {running} running, {most} allowed",
        "What the limit protects is being overrun.",
        REPORT,
    ),
    Invariant(
        "queue_over_limit",
        "no limited queue runs more than it may",
        "limited queues run more than they may",
        Verdict.WARNING,
        "queue {queue}: {running} running, {most} allowed",
        "The limit was lowered while they ran, or is being overrun.",
        "wait for them to end; if their number does not fall, report it with the output of `tenuto doctor -o json`",
    ),
    Invariant(
        "queue_unserved",
        "every queue with work has a worker",
        "queues with work have no worker",
        Verdict.WARNING,
        "queue {queue}: {queued} waiting, and no living worker",
        "These tasks wait until a worker serves their queue.",
        "start one: tenuto worker --app MODULE:OBJECT --queues QUEUE",
        ("silent",),
    ),
    Invariant(
        "waiting_beside_idle_workers",
        "nothing waits while workers are idle",
        "tasks wait while workers are idle",
        Verdict.WARNING,
        "queue {queue}: the foremost task has waited {seconds} s, and worker {worker} has free slots",
        "A worker is alive but does not take work.",
        "look at that worker's log; restarting it is safe",
        ("waiting", "silent"),
        "task",
    ),
    Invariant(
        "overdue",
        "what falls due is made free to take",
        "tasks that fell due are not made free to take",
        Verdict.WARNING,
        "task {id} ({name}) was due {seconds} s ago",
        "No worker looks for what has fallen due.",
        "start a worker, or look at the log of the one that runs",
        ("overdue",),
    ),
)


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
