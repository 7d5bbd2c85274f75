"""Translation of filters to SQL conditions.

Every condition is made of fixed expressions, declared here for each key, and of parameters. No text of a user becomes
part of a statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenuto.model.filter_keys import (
    ACTIVITY_KEYS,
    AUDIT_KEYS,
    BATCH_KEYS,
    DEAD_LETTER_KEYS,
    EXECUTION_KEYS,
    LEDGER_KEYS,
    LOG_ENTRY_KEYS,
    ONE_SHOT_KEYS,
    SCHEDULE_KEYS,
    TASK_KEYS,
)
from tenuto.model.filters import Clause, Filter, FilterSchema, IdRange, KeyType, Match, Range
from tenuto.postgres.database import Database

PLACEHOLDER = "/* filter */ true"
"""Stands in a statement where the condition of a filter goes; without one, the statement returns all rows."""
MAX_EXACT_COUNT = 10_000
_LOWEST_ID = "'00000000-0000-0000-0000-000000000000'::uuid"


@dataclass(frozen=True, slots=True)
class Column:
    """The SQL of one key."""

    expression: str
    """The value; for a flag, a condition."""
    equals: str | None = None
    """Condition for equal texts, with ``{values}`` for the array of texts; by default the expression is compared."""
    at_least: str | None = None
    """An indexed column that is never below the expression: a lower bound applies to it as well."""
    choices: Mapping[str, str] = field(default_factory=dict)
    """Conditions of choices that are no values of the expression."""
    implied: Mapping[str, str] = field(default_factory=dict)
    """Conditions that rows with one of the choices meet in any case, so that an index finds them."""


@dataclass(frozen=True, slots=True)
class FilterTable:
    """The table of a resource and the columns of its keys."""

    schema: FilterSchema
    relation: str
    columns: Mapping[str, Column]
    text: str
    """The expression that words without a key are searched in."""
    newest_first: str | None = "id"
    """Column of the order in which a window is counted; None if the schema has no window."""
    lowest: str = _LOWEST_ID
    """A value of that column below all others."""

    def add_filter(self, statement: str, filter: Filter, *values: Any) -> tuple[Any, ...]:
        """Return a statement with the condition of a filter, then its parameters, beginning with ``values``."""
        if filter.schema is not self.schema:
            raise ValueError(f"a filter of {filter.schema.noun} does not apply to {self.schema.noun}")
        if PLACEHOLDER not in statement:
            raise ValueError(f"the statement has no place for a filter: {statement[:60]}")
        condition, parameters = _Compiler(self, list(values)).compile(filter)
        return statement.replace(PLACEHOLDER, condition), *parameters


@dataclass(frozen=True, slots=True)
class CappedCount:
    """Number of records, exact up to a limit."""

    count: int
    is_exact: bool
    """Whether ``count`` is the exact number; otherwise there are more."""


async def count_rows(database: Database, table: FilterTable, statement: str, filter: Filter) -> CappedCount:
    """Count the rows that meet a filter, up to `MAX_EXACT_COUNT`; the statement takes the number to stop at."""
    found: int = await database.fetch_value(*table.add_filter(statement, filter, MAX_EXACT_COUNT + 1))
    return _cap(found)


async def count_rows_of_each(
    database: Database, table: FilterTable, statement: str | Callable[[Filter], str], filters: Sequence[Filter]
) -> list[CappedCount]:
    """Like `count_rows`, for several filters in one statement, so that each uses its own index. ``statement`` may be a
    function that returns the statement of a filter."""
    if not filters:
        return []
    parameters: list[Any] = [MAX_EXACT_COUNT + 1]
    counts = []
    for filter in filters:
        counting = statement if isinstance(statement, str) else statement(filter)
        counted, *parameters = table.add_filter(counting, filter, *parameters)
        counts.append(f"({counted.rstrip().rstrip(';')})")
    found = await database.fetch_value(f"SELECT ARRAY[{', '.join(counts)}]::bigint[]", *parameters)
    return [_cap(each) for each in found]


def _cap(found: int) -> CappedCount:
    return CappedCount(min(found, MAX_EXACT_COUNT), found <= MAX_EXACT_COUNT)


class _Compiler:
    """Collects the parameters while it translates the clauses of one filter."""

    def __init__(self, table: FilterTable, parameters: list[Any]) -> None:
        self._table = table
        self._parameters = parameters

    def compile(self, filter: Filter) -> tuple[str, list[Any]]:
        table = self._table
        indexed = [self._clause(clause) for clause in filter.clauses if not clause.is_windowed]
        windowed = [self._clause(clause) for clause in filter.clauses if clause.is_windowed]
        if filter.is_windowed and filter.window is not None:
            key, offset = table.newest_first, self._parameter(filter.window - 1, "bigint")
            conditions = " AND ".join(indexed) or "true"
            first = f"SELECT {key} FROM {table.relation} WHERE {conditions} ORDER BY {key} DESC LIMIT 1"  # noqa: S608
            windowed.append(f"{key} >= coalesce(({first} OFFSET {offset}), {table.lowest})")
        return " AND ".join([*indexed, *windowed]) or "true", self._parameters

    def _clause(self, clause: Clause) -> str:
        condition = self._condition(clause)
        # IS NOT TRUE: a row without the value does not have it.
        return f"({condition}) IS NOT TRUE" if clause.is_negated else f"({condition})"

    def _condition(self, clause: Clause) -> str:
        if clause.key is None:
            return self._contains(self._table.text, clause)
        column = self._table.columns[clause.key.name]
        if clause.match is Match.CONTAINS:
            is_list = clause.key.type is KeyType.TAGS
            expression = f"array_to_string({column.expression}, E'\\n')" if is_list else column.expression
            return self._contains(expression, clause)
        if clause.match is Match.RANGE:
            return " OR ".join(self._range(column, value, clause) for value in clause.values)
        match clause.key.type:
            case KeyType.CHOICE:
                # Literals of the schema, so that partial indexes apply.
                chosen = [choice for choice in clause.key.choices if choice in clause.values]
                conditions = [column.choices[choice] for choice in chosen if choice in column.choices]
                if known := [f"'{choice}'" for choice in chosen if choice not in column.choices]:
                    conditions.insert(0, f"{column.expression} IN ({', '.join(known)})")
                condition = " OR ".join(conditions)
                implied = column.implied.get(str(clause.values[0])) if len(clause.values) == 1 else None
                return condition if implied is None or clause.is_negated else f"{condition} AND {implied}"
            case KeyType.FLAG:
                return " OR ".join(
                    column.expression if value else f"NOT ({column.expression})" for value in clause.values
                )
            case KeyType.ID:
                exact = [each.low for each in clause.values if isinstance(each, IdRange) and each.low == each.high]
                if len(exact) == len(clause.values) > 1:
                    return f"{column.expression} = ANY ({self._parameter(exact, 'uuid[]')})"
                return " OR ".join(self._id_range(column, value) for value in clause.values)
            case KeyType.TAGS:
                return f"{column.expression} && {self._texts(clause)}"
            case _:
                pass
        if column.equals is not None:
            return column.equals.replace("{values}", self._texts(clause))
        if len(clause.values) == 1:  # an index on the key and the id then provides the order, in a generic plan too
            return f"{column.expression} = {self._parameter(str(clause.values[0]), 'text')}"
        return f"{column.expression} = ANY ({self._texts(clause)})"

    def _contains(self, expression: str, clause: Clause) -> str:
        texts = [self._parameter(str(value), "text") for value in clause.values]
        return " OR ".join(f"strpos(lower({expression}), lower({text})) > 0" for text in texts)

    def _range(self, column: Column, value: Any, clause: Clause) -> str:
        assert isinstance(value, Range)
        assert clause.key is not None
        sql_type = {KeyType.NUMBER: "bigint", KeyType.DURATION: "interval", KeyType.INSTANT: "timestamptz"}[
            clause.key.type
        ]
        conditions = []
        if value.low is not None:
            low = self._parameter(value.low, sql_type)
            conditions.append(f"{column.expression} >= {low}")
            if column.at_least is not None and not clause.is_negated:
                conditions.append(f"{column.at_least} >= {low}")
        if value.high is not None:
            conditions.append(f"{column.expression} < {self._parameter(value.high, sql_type)}")
        return f"({' AND '.join(conditions)})"

    def _id_range(self, column: Column, value: Any) -> str:
        assert isinstance(value, IdRange)
        if value.low == value.high:
            return f"{column.expression} = {self._parameter(value.low, 'uuid')}"
        low, high = self._parameter(value.low, "uuid"), self._parameter(value.high, "uuid")
        return f"{column.expression} BETWEEN {low} AND {high}"

    def _texts(self, clause: Clause) -> str:
        return self._parameter([str(value) for value in clause.values], "text[]")

    def _parameter(self, value: Any, sql_type: str) -> str:
        self._parameters.append(value)
        return f"${len(self._parameters)}::{sql_type}"


# --- the columns ------------------------------------------------------------------------------------------------------


def _named_actor(name: str, id: str) -> Column:
    return Column(name, equals=f"{name} = ANY ({{values}}) OR {id} = ANY ({{values}})")


_BY = _named_actor("initiator_name", "initiator_id")
_WORKER = Column(
    "(SELECT workers.name FROM tenuto.workers WHERE workers.id = worker_id)",
    equals="worker_id = ANY (ARRAY(SELECT workers.id FROM tenuto.workers WHERE workers.name = ANY ({values})))",
)
_MANIFEST = Column(
    "(SELECT manifests.external_id FROM tenuto.manifests WHERE manifests.id = manifest_id)",
    # Of deleted manifests, the versions are left.
    equals="manifest_id = ANY (ARRAY("
    "SELECT manifests.id FROM tenuto.manifests WHERE manifests.external_id = ANY ({values})"
    " UNION SELECT versions.manifest_id FROM tenuto.manifest_versions AS versions"
    " WHERE versions.external_id = ANY ({values})))",
)

_SCHEDULE_EQUALS = (
    # By id, which is indexed. Of deleted schedules, the versions are left.
    "schedule_id = ANY (ARRAY("
    "SELECT schedules.id FROM tenuto.schedules WHERE schedules.name = ANY ({values})"
    " UNION SELECT versions.schedule_id FROM tenuto.schedule_versions AS versions"
    " WHERE versions.name = ANY ({values})))"
)

EXECUTIONS = FilterTable(
    EXECUTION_KEYS,
    "tenuto.executions",
    {
        "id": Column("id"),
        "state": Column(
            "state",
            implied={"in_progress": "ended_at IS NULL", "completed": "ended_at IS NOT NULL"},
        ),
        "schedule": Column("schedule_name", equals=_SCHEDULE_EQUALS),
        "paused": Column("paused_at IS NOT NULL"),
        "origin": Column("origin"),
        "by": _BY,
        "started": Column("started_at"),
        "ended": Column("ended_at"),
        "due": Column("due_at"),
        "ran": Column("ended_at - started_at"),
        "failed_steps": Column("failed_steps"),
        "error": Column("error"),
    },
    text="concat_ws(E'\\n', schedule_name, error)",
)

_TASK_STATE = Column(
    "state",
    implied={
        # A task waits for a step group, a paused execution, a paused batch or an execution that its step started.
        "waiting": "(execution_id IS NOT NULL OR batch_id IS NOT NULL OR waits_for IS NOT NULL)",
        # Two indexes hold the queued tasks.
        "queued": "(limit_key IS NULL OR limit_key IS NOT NULL)",
        # Two hold the scheduled ones: those that are not due, and those that wait for a token of a rate limit.
        "scheduled": "(parked_for IS NULL OR parked_for IS NOT NULL)",
    },
)
TASKS = FilterTable(
    TASK_KEYS,
    "tenuto.tasks",
    {
        "id": Column("id"),
        "state": _TASK_STATE,
        "name": Column("name"),
        "kind": Column("kind"),
        "queue": Column("queue"),
        "worker": _WORKER,
        "by": _BY,
        "by_type": Column("initiator_type"),
        "tag": Column("tags"),
        "key": Column("unique_key"),
        "limit_key": Column("limit_key"),
        "execution": Column("execution_id"),
        "manifest": _MANIFEST,
        "batch": Column("batch_id"),
        "created": Column("created_at"),
        "due": Column("run_at"),
        "started": Column("claimed_at"),
        "attempts": Column("attempt"),
        "correlation": Column("correlation_id"),
    },
    text="concat_ws(E'\\n', name, unique_key)",
)

ACTIVITIES = FilterTable(
    ACTIVITY_KEYS,
    "tenuto.activities",
    {
        "id": Column("id"),
        "task": Column("task_id"),
        "state": Column("status", choices={"expired": "status = 'cancelled' AND reason = 'expired'"}),
        "reason": Column("reason"),
        "final": Column("final"),
        "name": Column("name"),
        "kind": Column("kind"),
        "queue": Column("queue"),
        "worker": _WORKER,
        "by": _BY,
        "by_type": Column("initiator_type"),
        "tag": Column("tags"),
        "execution": Column("execution_id"),
        "manifest": _MANIFEST,
        "batch": Column("batch_id"),
        "created": Column("created_at"),
        "due": Column("run_at"),
        "started": Column("started_at", at_least="ended_at"),
        "ended": Column("ended_at"),
        "waited": Column("started_at - run_at"),
        "ran": Column("ended_at - started_at"),
        "attempts": Column("attempt"),
        "error": Column("error ->> 'message'"),
        "correlation": Column("correlation_id"),
    },
    text="concat_ws(E'\\n', name, error ->> 'type', error ->> 'message')",
)

DEAD_LETTERS = FilterTable(
    DEAD_LETTER_KEYS,
    "tenuto.dead_letters",
    {
        "id": Column("id"),
        "state": Column("status"),
        "name": Column("name"),
        "task": Column("task_id"),
        "manifest": Column("external_id"),
        "fingerprint": Column("fingerprint"),
        "batch": Column("batch_id"),
        "item": Column("item"),
        "created": Column("dead_lettered_at"),
        "resolved": Column("resolved_at"),
        "by": _named_actor("resolved_name", "resolved_id"),
        "attempts": Column("attempts"),
        "error": Column("reason"),
        "note": Column("note"),
    },
    text="concat_ws(E'\\n', external_id, name, item, reason, note)",
)

_ONE_SHOT_TEXT = "concat_ws(E'\\n', name, array_to_string(tags, E'\\n'), input::text)"
OPEN_ONE_SHOTS = FilterTable(
    ONE_SHOT_KEYS,
    "tenuto.tasks",
    {
        "id": Column("id"),
        "state": Column("CASE state WHEN 'running' THEN 'running' ELSE 'pending' END"),
        "type": Column("name"),
        "by": _BY,
        "tag": Column("tags"),
        "due": Column("run_at"),
        "created": Column("created_at"),
    },
    text=_ONE_SHOT_TEXT,
    newest_first=None,
)
ENDED_ONE_SHOTS = FilterTable(
    ONE_SHOT_KEYS,
    "tenuto.activities",
    {
        "id": Column("task_id"),
        "state": Column(
            "CASE status WHEN 'completed' THEN 'completed' WHEN 'completed_with_warning' THEN 'completed'"
            " WHEN 'cancelled' THEN 'terminated' ELSE 'failed' END"
        ),
        "type": Column("name"),
        "by": _BY,
        "tag": Column("tags"),
        "due": Column("run_at"),
        "created": Column("created_at"),
    },
    text=_ONE_SHOT_TEXT,
    newest_first=None,
)

BATCHES = FilterTable(
    BATCH_KEYS,
    "tenuto.batches",
    {
        "id": Column("id"),
        "key": Column("key"),
        "name": Column("name"),
        "manifest": Column("external_id"),
        "paused": Column("paused_at IS NOT NULL"),
        "cancelled": Column("cancelled_at IS NOT NULL"),
        "complete": Column("complete_at IS NOT NULL"),
        "items": Column("total"),
        "by": _BY,
        "created": Column("created_at"),
    },
    text="concat_ws(E'\\n', external_id, key, name)",
)

AUDIT = FilterTable(
    AUDIT_KEYS,
    "tenuto.audit",
    {
        "id": Column("audit.id"),
        "by": _named_actor("actor_name", "actor_id"),
        "by_type": Column("actor_type"),
        "action": Column("action", equals="action = ANY ({values}) OR split_part(action, '.', 1) = ANY ({values})"),
        "target": Column("target"),
        "source": Column("source"),
        "request": Column("request_id"),
        "reason": Column("reason"),
        "at": Column("at"),
    },
    text="concat_ws(E'\\n', action, target, actor_name, reason)",
    newest_first="audit.id",
)

SCHEDULES = FilterTable(
    SCHEDULE_KEYS,
    "tenuto.schedules",
    {
        "id": Column("id"),
        "name": Column("name"),
        "enabled": Column("enabled"),
        "origin": Column("origin"),
        "created": Column("created_at"),
        "next": Column("next_run_at"),
        "last": Column("last_run_at"),
    },
    text="concat_ws(E'\\n', name, description)",
    newest_first=None,
)

LEDGER = FilterTable(
    LEDGER_KEYS,
    "tenuto.occurrences",
    {
        "schedule": Column("schedule_name", equals=_SCHEDULE_EQUALS),
        "decision": Column("decision"),
        "origin": Column("origin"),
        "due": Column("due_at"),
        "decided": Column("decided_at"),
        "by": Column("decided_by"),
        "execution": Column("execution_id"),
        "reason": Column("reason"),
    },
    text="concat_ws(E'\\n', schedule_name, reason)",
    newest_first=None,
)

LOG_ENTRIES = FilterTable(
    LOG_ENTRY_KEYS,
    "tenuto.log_entries",
    {"log": Column("log"), "at": Column("at"), "message": Column("message"), "task": Column("task_id")},
    text="concat_ws(E'\\n', message, fields::text)",
    lowest="0",
)

FILTER_TABLES = (
    EXECUTIONS,
    TASKS,
    ACTIVITIES,
    DEAD_LETTERS,
    OPEN_ONE_SHOTS,
    ENDED_ONE_SHOTS,
    BATCHES,
    AUDIT,
    SCHEDULES,
    LEDGER,
    LOG_ENTRIES,
)
"""All tables, for checks."""
