"""The columns of a new task, of a claimed task and of an activity are listed once, in ``postgres/fragments.sql``."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tenuto
from tenuto.ids import new_id
from tenuto.model.access.actors import Actor, ActorType
from tenuto.model.work.tasks import NewTask
from tenuto.postgres.database import Database
from tenuto.postgres.sql_loader import SqlStatements, load_columns
from tenuto.store.work.task_creation import task_columns, task_row

PACKAGE = Path(tenuto.__file__).parent
FRAGMENTS = PACKAGE / "postgres" / "fragments.sql"
SOURCES = sorted(
    file
    for package in sorted(PACKAGE.parent.glob("tenuto*/"))
    for file in package.rglob("*")
    if file.suffix in (".sql", ".py") and file.parent.name != "migrations"
)
SECOND_LISTS = {
    "an INSERT into tasks": r"INSERT\s+INTO\s+(?:tenuto\.)?tasks\b",
    "an INSERT into activities": r"INSERT\s+INTO\s+(?:tenuto\.)?activities\b",
    "the columns of a claimed task": r"\bAS\s+policy_json\b",
    "the columns of an activity": r"\boutcome\.output,\s*outcome\.error\b",
}
NOT_OF_SQL_CALLERS = {
    "state": "follows from run_at", "kind": "always job", "rank": "priority",
    "origin": "one-shots are created by Tenuto",
    "manifest_id": "", "batch_id": "", "item_key": "", "limit_group": "runs are created by Tenuto",
    "execution_id": "", "group_index": "", "step_index": "steps are created by Tenuto",
}  # fmt: skip
"""Columns without a parameter of the SQL function tenuto.enqueue, and why."""


@pytest.mark.parametrize("what", SECOND_LISTS)
def test_source_has_no_second_list_of_columns(what: str) -> None:
    found = {
        str(file.relative_to(PACKAGE.parent)): len(re.findall(SECOND_LISTS[what], file.read_text(encoding="utf-8")))
        for file in SOURCES
    }
    assert found.pop(str(FRAGMENTS.relative_to(PACKAGE.parent))) == 1
    assert {file: count for file, count in found.items() if count} == {}


def test_tasks_are_copied_in_one_place() -> None:
    calls = [
        str(file.relative_to(PACKAGE))
        for file in SOURCES
        if file.suffix == ".py"
        and re.search(r'copy_\w+_to_table\(\s*"tasks"|copy_to_table\(\s*"tasks"', file.read_text())
    ]
    assert calls == ["postgres/bulk_copy.py"]


async def test_no_function_but_enqueue_inserts_tasks_or_activities(db: Database) -> None:
    rows = await db.fetch_all(
        r"SELECT proname FROM pg_proc WHERE pronamespace = 'tenuto'::regnamespace"
        r" AND prosrc ~* 'insert\s+into\s+tenuto\.(tasks|activities)\M'"
    )
    assert [row["proname"] for row in rows] == ["enqueue"]


async def test_listed_columns_have_the_types_and_defaults_of_the_table(db: Database) -> None:
    rows = await db.fetch_all(
        "SELECT attname AS name, format_type(atttypid, atttypmod) AS type, pg_get_expr(adbin, adrelid) AS value"
        " FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
        " WHERE attrelid = 'tenuto.tasks'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    stored = {
        row["name"]: (row["type"].replace("timestamp with time zone", "timestamptz"), row["value"]) for row in rows
    }
    columns = load_columns("new_task")
    assert {column.name: column.type for column in columns} == {
        column.name: stored[column.name][0] for column in columns
    }
    for column in columns:
        value = stored[column.name][1]
        if column.default is not None:
            assert re.sub(r"^'(.*)'::\w+$", r"\1", str(value)) == column.default


async def test_sql_function_sets_every_column_but_the_named_ones(db: Database) -> None:
    source = await db.fetch_value("SELECT prosrc FROM pg_proc WHERE oid = 'tenuto.enqueue'::regproc")
    listed = re.search(r"INSERT INTO tenuto\.tasks \(([^)]*)\)", source)
    assert listed is not None
    set_by_function = {name.strip() for name in listed[1].split(",")}
    parameters = await db.fetch_value("SELECT proargnames FROM pg_proc WHERE oid = 'tenuto.enqueue'::regproc")
    names = {column.name for column in load_columns("new_task")}
    assert set_by_function - {"activity_id"} <= names
    unset = {
        "origin",
        "manifest_id",
        "batch_id",
        "item_key",
        "limit_group",
        "execution_id",
        "group_index",
        "step_index",
    }
    assert names - set_by_function == unset
    assert names - set(parameters) - {"name"} == set(NOT_OF_SQL_CALLERS)


def test_row_and_columns_of_a_task_have_the_order_of_the_list() -> None:
    now = datetime(2027, 1, 1, tzinfo=UTC)
    task = NewTask(new_id(), "bake", "{}", now, Actor(ActorType.USER, None, "Ada"), priority=3, tags=["a", 'b"c'])
    names = [column.name for column in load_columns("new_task")]
    row = dict(zip(names, task_row(task), strict=True))
    assert (row["id"], row["name"], row["rank"], row["run_at"], row["initiator_name"]) == (
        task.id,
        "bake",
        -3,
        now,
        "Ada",
    )
    columns = dict(zip(names, task_columns([task, task]), strict=True))
    assert columns["tags"] == ['{"a","b\\"c"}'] * 2
    assert columns["unique_key"] is None
    assert columns["rank"] == [-3, -3]


@pytest.mark.parametrize(
    "text", ["SELECT {claimed_tusk}", "SELECT {new_task}", "SELECT {new_task.lists 1}", "SELECT {arrival.names}"]
)
def test_unknown_fragment_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.sql"
    file.write_text(f"-- name: a\n-- A.\n{text};\n")
    with pytest.raises(ValueError, match=r"no fragment|no form"):
        SqlStatements(file)
