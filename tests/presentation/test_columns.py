"""Columns: the value for programs, the text for people, documents and CSV rows; views name fields that exist."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tenuto.model.work.one_shots import OneShotSummary
from tenuto.operations.work.executions import StepDetails
from tenuto.presentation import admin_views, definition_views, work_views
from tenuto.presentation.columns import Column, Format, ResourceView, json_value
from tenuto.store.access.api_keys import ApiKeyRecord
from tenuto.store.access.audit_log import AuditEntryRecord
from tenuto.store.access.secrets import SecretRecord
from tenuto.store.definitions.manifests import (
    ManifestGroupRecord,
    ManifestRecord,
    OpenRunRecord,
    PollRecord,
    RunAttemptRecord,
)
from tenuto.store.definitions.schedules import LedgerRecord, ScheduleRecord
from tenuto.store.named_logs import LogEntryRecord, NamedLogRecord
from tenuto.store.reports.failure_groups import FailureGroup
from tenuto.store.work.activities import ActivityRecord, TaskRecord
from tenuto.store.work.batches import BatchItemRecord, BatchRecord
from tenuto.store.work.dead_letters import DeadLetterRecord
from tenuto.store.work.executions import ExecutionRecord
from tenuto.store.work.workers import QueueRecord, WorkerRecord

NOW = datetime(2031, 5, 17, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Note:
    id: UUID
    text: str | None
    at: datetime
    tags: tuple[str, ...] = ()


NOTES = ResourceView(
    "notes",
    (
        Column("id", "id", "id"),
        Column("text", "text", flexible=True),
        Column("written at", "at", "age"),
        Column("tags", "tags", "list"),
    ),
)
NOTE = Note(UUID("01a8c3f0-2b40-7d11-9c3e-5f0a7be1d2c4"), "=1+1 \x1b[31mred", NOW - timedelta(minutes=5), ("a", "b"))


@pytest.mark.parametrize(
    ("value", "format", "text"),
    [
        (None, "text", ""),
        ("a\nb", "text", "a b"),
        ("in_progress", "state", "● in progress"),
        (False, "switch", "○ off"),
        (True, "flag", "yes"),
        (NOW - timedelta(minutes=5), "age", "5 min ago"),
        (timedelta(seconds=90), "duration", "1 min 30 s"),
        (0.25, "duration", "250 ms"),
        (1204, "count", "1,204"),
        (1204, "number", "1204"),
        (["a", "b"], "list", "a, b"),
        ({"n": 1}, "json", '{"n": 1}'),
        ({"type": "ValueError", "message": "bad"}, "error", "ValueError: bad"),
        ("bad", "error", "bad"),
    ],
)
def test_cell_formats_the_value(value: Any, format: Format, text: str) -> None:
    assert Column("x", "x", format).cell(SimpleNamespace(x=value), NOW).text == text


def test_cell_of_a_state_has_its_colour_and_may_have_another_name() -> None:
    column = Column("x", "x", "state", text=lambda record, now: f"failed at {record.place}")
    cell = column.cell(SimpleNamespace(x="failed", place=2), NOW)
    assert (cell.text, cell.colour) == ("✕ failed at 2", "red")


def test_document_has_the_fields_of_the_record() -> None:
    document = json.loads(json.dumps(NOTES.document(NOTE), default=json_value))
    assert document == {
        "id": str(NOTE.id),
        "text": NOTE.text,
        "at": "2031-05-17T11:55:00+00:00",
        "tags": ["a", "b"],
    }


def test_csv_row_has_values_for_programs_and_no_formulas_unless_raw() -> None:
    assert NOTES.csv_header() == ["id", "text", "written_at", "tags"]
    expected = [str(NOTE.id), "'=1+1 red", "2031-05-17T11:55:00+00:00", '["a", "b"]']
    assert NOTES.csv_row(NOTE) == expected
    assert NOTES.csv_row(NOTE, raw=True)[1] == "=1+1 red"
    values = ResourceView("x", tuple(Column(name, name) for name in ("none", "number", "flag", "duration")))
    record = SimpleNamespace(none=None, number=-1.5, flag=True, duration=timedelta(seconds=90))
    assert values.csv_row(record) == ["", "-1.5", "true", "90.0"]


@pytest.mark.parametrize(
    ("view", "record_type"),
    [
        (work_views.TASKS, TaskRecord),
        (work_views.ACTIVITIES, ActivityRecord),
        (work_views.ATTEMPTS, RunAttemptRecord),
        (work_views.EXECUTIONS, ExecutionRecord),
        (work_views.STEPS, StepDetails),
        (work_views.BATCHES, BatchRecord),
        (work_views.BATCH_ITEMS, BatchItemRecord),
        (work_views.DEAD_LETTERS, DeadLetterRecord),
        (definition_views.SCHEDULES, ScheduleRecord),
        (definition_views.LEDGER, LedgerRecord),
        (work_views.FAILURE_GROUPS, FailureGroup),
        (work_views.ONE_SHOTS, OneShotSummary),
        (work_views.QUEUES, QueueRecord),
        (work_views.WORKERS, WorkerRecord),
        (definition_views.MANIFESTS, ManifestRecord),
        (definition_views.GROUPS, ManifestGroupRecord),
        (definition_views.POLLS, PollRecord),
        (definition_views.OPEN_RUNS, OpenRunRecord),
        (admin_views.API_KEYS, ApiKeyRecord),
        (admin_views.SECRETS, SecretRecord),
        (admin_views.AUDIT_ENTRIES, AuditEntryRecord),
        (admin_views.LOGS, NamedLogRecord),
        (admin_views.LOG_ENTRIES, LogEntryRecord),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_view_names_fields_of_its_record(view: ResourceView, record_type: type[Any]) -> None:
    known = {field.name for field in fields(record_type)}
    named = {column.value for column in view.columns if isinstance(column.value, str)}
    assert named <= known
    assert set(view.next_page.values()) <= known or not view.next_page


VIEWS = [
    view
    for module in (admin_views, definition_views, work_views)
    for view in vars(module).values()
    if isinstance(view, ResourceView)
]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.noun)
def test_view_has_distinct_columns_that_stand_under_others_of_the_view(view: ResourceView) -> None:
    names = [column.name for column in view.columns]
    assert len(set(names)) == len(names)
    own_line = {column.name for column in view.columns if not column.under}
    assert {column.under for column in view.columns if column.under} <= own_line
