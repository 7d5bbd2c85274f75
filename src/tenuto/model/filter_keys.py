"""The keys by which each list can be filtered. `store.filter_sql` has the column of each."""

from __future__ import annotations

from tenuto.model.access.actors import ActorType
from tenuto.model.filters import FilterKey, FilterSchema, KeyType
from tenuto.model.work.dead_letters import DeadLetterState
from tenuto.model.work.executions import ExecutionState
from tenuto.model.work.occurrences import Decision
from tenuto.model.work.one_shots import RuntimeStatus
from tenuto.model.work.tasks import OutcomeChoice, OutcomeReason, TaskState

_BY = FilterKey("by", KeyType.TEXT, "name or id of the initiator", is_windowed=True)
_BY_TYPE = FilterKey("by_type", KeyType.CHOICE, "type of the initiator", tuple(ActorType), is_windowed=True)
_TAG = FilterKey("tag", KeyType.TAGS, "tag", is_windowed=True)
_QUEUE = FilterKey("queue", KeyType.TEXT, "queue")
_WORKER = FilterKey("worker", KeyType.TEXT, "name of the worker")
_KIND = FilterKey("kind", KeyType.TEXT, "kind: job, or a step kind", is_windowed=True)
_EXECUTION = FilterKey("execution", KeyType.ID, "execution of a step")
_MANIFEST = FilterKey("manifest", KeyType.TEXT, "external id of the manifest")
_BATCH = FilterKey("batch", KeyType.ID, "batch")

EXECUTION_KEYS = FilterSchema(
    "executions",
    (
        FilterKey("id", KeyType.ID, "id of the execution, or its first characters"),
        FilterKey("state", KeyType.CHOICE, "state", tuple(ExecutionState)),
        FilterKey("schedule", KeyType.TEXT, "name of the schedule"),
        FilterKey("paused", KeyType.FLAG, "whether it is paused"),
        FilterKey(
            "origin", KeyType.CHOICE, "cause", ("trigger", "manual", "step", "retry", "backfill"), is_windowed=True
        ),
        _BY,
        FilterKey("started", KeyType.INSTANT, "start"),
        FilterKey("ended", KeyType.INSTANT, "end"),
        FilterKey("due", KeyType.INSTANT, "due instant", is_windowed=True),
        FilterKey("ran", KeyType.DURATION, "duration", is_windowed=True),
        FilterKey("failed_steps", KeyType.NUMBER, "number of failed steps", is_windowed=True),
        FilterKey("error", KeyType.TEXT, "error message", is_windowed=True),
    ),
    "started",
    "schedule and error message",
)

TASK_KEYS = FilterSchema(
    "tasks",
    (
        FilterKey("id", KeyType.ID, "id of the task, or its first characters"),
        FilterKey("state", KeyType.CHOICE, "state", tuple(TaskState)),
        FilterKey("name", KeyType.TEXT, "name of the job"),
        _KIND,
        _QUEUE,
        _WORKER,
        _BY,
        _BY_TYPE,
        _TAG,
        FilterKey("key", KeyType.TEXT, "unique key"),
        FilterKey("limit_key", KeyType.TEXT, "limit key", is_windowed=True),
        _EXECUTION,
        _MANIFEST,
        _BATCH,
        FilterKey("created", KeyType.INSTANT, "creation"),
        FilterKey("due", KeyType.INSTANT, "due instant"),
        FilterKey("started", KeyType.INSTANT, "claim by the worker", is_windowed=True),
        FilterKey("attempts", KeyType.NUMBER, "number of the attempt", is_windowed=True),
        FilterKey("correlation", KeyType.TEXT, "correlation id", is_windowed=True),
    ),
    "created",
    "name of the job and unique key",
)

ACTIVITY_KEYS = FilterSchema(
    "activities",
    (
        FilterKey("id", KeyType.ID, "id of the attempt, or its first characters"),
        FilterKey("task", KeyType.ID, "id of the task, or its first characters", is_windowed=True),
        FilterKey("state", KeyType.CHOICE, "outcome", tuple(OutcomeChoice)),
        FilterKey("reason", KeyType.CHOICE, "reason of a failure", tuple(OutcomeReason), is_windowed=True),
        FilterKey("final", KeyType.FLAG, "whether the task ended with this attempt"),
        FilterKey("name", KeyType.TEXT, "name of the job"),
        _KIND,
        FilterKey("queue", KeyType.TEXT, "queue", is_windowed=True),
        FilterKey("worker", KeyType.TEXT, "name of the worker", is_windowed=True),
        _BY,
        _BY_TYPE,
        _TAG,
        _EXECUTION,
        _MANIFEST,
        _BATCH,
        FilterKey("created", KeyType.INSTANT, "creation of the task", is_windowed=True),
        FilterKey("due", KeyType.INSTANT, "due instant", is_windowed=True),
        FilterKey("started", KeyType.INSTANT, "start"),
        FilterKey("ended", KeyType.INSTANT, "end"),
        FilterKey("waited", KeyType.DURATION, "time from the due instant to the start", is_windowed=True),
        FilterKey("ran", KeyType.DURATION, "duration", is_windowed=True),
        FilterKey("attempts", KeyType.NUMBER, "number of the attempt", is_windowed=True),
        FilterKey("error", KeyType.TEXT, "error message", is_windowed=True),
        FilterKey("correlation", KeyType.TEXT, "correlation id", is_windowed=True),
    ),
    "ended",
    "name of the job and error message",
)

DEAD_LETTER_KEYS = FilterSchema(
    "dead letters",
    (
        FilterKey("id", KeyType.ID, "id of the dead letter, or its first characters"),
        FilterKey("state", KeyType.CHOICE, "state", tuple(DeadLetterState)),
        FilterKey("name", KeyType.TEXT, "name of the job or step", is_windowed=True),
        FilterKey("task", KeyType.ID, "id of the failed task, or its first characters"),
        _MANIFEST,
        FilterKey("fingerprint", KeyType.TEXT, "kind of failure"),
        _BATCH,
        FilterKey("item", KeyType.TEXT, "item key", is_windowed=True),
        FilterKey("created", KeyType.INSTANT, "instant of the failure"),
        FilterKey("resolved", KeyType.INSTANT, "resolution"),
        FilterKey("by", KeyType.TEXT, "name or id of who resolved it", is_windowed=True),
        FilterKey("attempts", KeyType.NUMBER, "number of attempts", is_windowed=True),
        FilterKey("error", KeyType.TEXT, "reason of the failure", is_windowed=True),
        FilterKey("note", KeyType.TEXT, "note of the resolution", is_windowed=True),
    ),
    "created",
    "manifest, item, reason and note",
)

ONE_SHOT_KEYS = FilterSchema(
    "one-shots",
    (
        FilterKey("id", KeyType.ID, "id of the one-shot, or its first characters"),
        FilterKey("state", KeyType.CHOICE, "state", tuple(status.lower() for status in RuntimeStatus)),
        FilterKey("type", KeyType.TEXT, "prompt type: log.append, http.call, or the name of a job", is_windowed=True),
        _BY,
        _TAG,
        FilterKey("due", KeyType.INSTANT, "instant of the run"),
        FilterKey("created", KeyType.INSTANT, "creation", is_windowed=True),
    ),
    "due",
    "type, tags and payload",
    has_window=False,
)

BATCH_KEYS = FilterSchema(
    "batches",
    (
        FilterKey("id", KeyType.ID, "id of the batch, or its first characters"),
        FilterKey("key", KeyType.TEXT, "key of the batch"),
        FilterKey("name", KeyType.TEXT, "display name", is_windowed=True),
        _MANIFEST,
        FilterKey("paused", KeyType.FLAG, "whether it is paused"),
        FilterKey("cancelled", KeyType.FLAG, "whether it was cancelled"),
        FilterKey("complete", KeyType.FLAG, "whether all items were submitted"),
        FilterKey("items", KeyType.NUMBER, "number of items", is_windowed=True),
        _BY,
        FilterKey("created", KeyType.INSTANT, "creation"),
    ),
    "created",
    "manifest, key and name",
)

AUDIT_KEYS = FilterSchema(
    "audit entries",
    (
        FilterKey("id", KeyType.ID, "id of the entry, or its first characters"),
        FilterKey("by", KeyType.TEXT, "name or id of the actor", is_windowed=True),
        FilterKey("by_type", KeyType.CHOICE, "type of the actor", tuple(ActorType), is_windowed=True),
        FilterKey("action", KeyType.TEXT, "action such as schedule.disable, or its resource", is_windowed=True),
        FilterKey("target", KeyType.TEXT, "name or id of the changed object"),
        FilterKey("source", KeyType.TEXT, "address, cli or code", is_windowed=True),
        FilterKey("request", KeyType.TEXT, "id of the request", is_windowed=True),
        FilterKey("reason", KeyType.TEXT, "reason", is_windowed=True),
        FilterKey("at", KeyType.INSTANT, "instant of the change"),
    ),
    "at",
    "action, target, actor and reason",
)

SCHEDULE_KEYS = FilterSchema(
    "schedules",
    (
        FilterKey("id", KeyType.ID, "id of the schedule, or its first characters"),
        FilterKey("name", KeyType.TEXT, "name"),
        FilterKey("enabled", KeyType.FLAG, "whether it is enabled"),
        FilterKey("origin", KeyType.TEXT, "source of the definition: code, hand, or a file"),
        FilterKey("created", KeyType.INSTANT, "creation"),
        FilterKey("next", KeyType.INSTANT, "next run"),
        FilterKey("last", KeyType.INSTANT, "last run"),
    ),
    "created",
    "name and description",
    has_window=False,
)

LEDGER_KEYS = FilterSchema(
    "ledger entries",
    (
        FilterKey("schedule", KeyType.TEXT, "name of the schedule"),
        FilterKey("decision", KeyType.CHOICE, "decision", tuple(Decision)),
        FilterKey("origin", KeyType.CHOICE, "cause", ("trigger", "manual", "backfill"), is_windowed=True),
        FilterKey("due", KeyType.INSTANT, "due instant"),
        FilterKey("decided", KeyType.INSTANT, "instant of the decision"),
        FilterKey("by", KeyType.TEXT, "process or person that decided", is_windowed=True),
        FilterKey("execution", KeyType.ID, "execution that was started", is_windowed=True),
        FilterKey("reason", KeyType.TEXT, "reason of the decision", is_windowed=True),
    ),
    "due",
    "schedule and reason",
    has_window=False,
)

LOG_ENTRY_KEYS = FilterSchema(
    "log entries",
    (
        FilterKey("at", KeyType.INSTANT, "instant of the entry", is_windowed=True),
        FilterKey("message", KeyType.TEXT, "message", is_windowed=True),
        FilterKey("task", KeyType.ID, "task that appended the entry", is_windowed=True),
        FilterKey("log", KeyType.TEXT, "name of the log"),
    ),
    "at",
    "message and fields",
)
