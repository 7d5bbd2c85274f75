"""Named logs: appended once per key, paged in both directions, deleted when old."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.clock import ManualClock
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.maintenance.housekeeping import Housekeeping
from tenuto.operations.built_in_extensions import NamedLogsExtension
from tenuto.postgres.database import Database
from tenuto.settings import load_settings
from tenuto.store import named_logs
from tests.support.tasks import Register, create_and_claim, read_rows

NOW = datetime(2027, 6, 15, tzinfo=UTC)


async def test_log_entry_is_appended_once_per_key(db: Database) -> None:
    key = new_id()
    first, *others = await asyncio.gather(
        *(named_logs.append_entry(db, "orders", NOW, f"words {n}", {"n": n}, key=key, task_id=key) for n in range(8))
    )
    assert all(other == first for other in others)
    assert len(await read_rows(db, "log_entries")) == 1
    assert await named_logs.append_entry(db, "other", NOW, "later", None, key=key) == first, (
        "the stored entry is returned"
    )
    assert (first.log, first.task_id) == ("orders", key)


async def test_log_is_paged_from_either_end(app: Tenuto) -> None:
    for n in range(5):
        await app.logs.append("orders", f"entry {n}", {"n": n, "name": "Zoë"} if n % 2 else None)
    await app.logs.append("other", "elsewhere")

    async def walk(*, oldest_first: bool = False) -> list[str]:
        said: list[str] = []
        bound: dict[str, Any] = {}
        while page := await app.logs.read("orders", limit=2, oldest_first=oldest_first, **bound):
            said += [entry.message[-1] for entry in page]
            bound = {"above" if oldest_first else "below": page[-1].id}
        return said

    assert await walk() == ["4", "3", "2", "1", "0"]
    assert await walk(oldest_first=True) == ["0", "1", "2", "3", "4"]
    newest, second = await app.logs.read("orders", limit=2)
    assert (newest.fields, second.fields) == (None, {"n": 3, "name": "Zoë"})
    assert await app.logs.read("unknown.log") == []
    assert await app.logs.read() == []


async def test_logs_are_listed_by_name_with_their_newest_entry(app: Tenuto) -> None:
    assert await app.logs.names() == []
    for name in ("b", "a", "c", "a", "b"):
        await app.logs.append(name, f"in {name}", key=None)
    await app.logs.append("b", "the newest")
    listed = await app.logs.names()
    assert [(each.log, each.last_message) for each in listed] == [
        ("a", "in a"),
        ("b", "the newest"),
        ("c", "in c"),
    ]
    assert [each.log for each in await app.logs.names(after="a", limit=1)] == ["b"]
    assert await app.logs.names(after="c") == []


MANY_LOGS = """
INSERT INTO tenuto.log_entries (log, at, message, key)
SELECT 'log.' || to_char(n, 'FM000000'), now(), 'an entry', gen_random_uuid() FROM generate_series(1, $1::integer) AS n
"""


async def test_search_of_logs_reads_all_names(app: Tenuto) -> None:
    """A statement reads a limited number of names; the search continues after the last one."""
    database = await app.open()
    await database.fetch_all(MANY_LOGS, 21_000)
    assert [each.log for each in await app.logs.names(search="log.0209")] == [f"log.0209{n:02}" for n in range(100)]
    assert [each.log for each in await app.logs.names(search="020999")] == ["log.020999"]
    pages = [each.log for each in await app.logs.names(search="5000", limit=2)]
    pages += [each.log for each in await app.logs.names(search="5000", after=pages[-1], limit=2)]
    assert pages == ["log.005000", "log.015000"]
    assert await app.logs.names(search="absent") == []


async def test_invalid_log_arguments_are_rejected(app: Tenuto) -> None:
    for log, message, fields, field in (
        ("", "m", None, "log"),
        ("a b", "m", None, "log"),
        ("../x", "m", None, "log"),
        ("a", " ", None, "message"),
        ("a", "m\x00", None, "message"),
        ("a", "m" * 70_000, None, "message"),
        ("a", "m\ud800", None, "message"),
        ("a", "m", {"x": float("nan")}, "fields"),
        ("a", "m", {"x": "y" * 70_000}, "fields"),
        ("a", "m", {"x": "\x00"}, "fields"),
    ):
        with pytest.raises(Invalid) as refusal:
            await app.logs.append(log, message, fields)
        assert refusal.value.field == field
    asked: list[tuple[dict[str, Any], str]] = [
        ({"limit": 0}, "limit"),
        ({"limit": 501}, "limit"),
        ({"below": -1}, "below"),
        ({"below": 2**63}, "below"),
        ({"above": 1}, "above"),
        ({"below": 1, "oldest_first": True}, "below"),
    ]
    for given, field in asked:
        with pytest.raises(Invalid) as refusal:
            await app.logs.read("a", **given)
        assert refusal.value.field == field
    assert await app.logs.names() == []


async def test_old_log_entries_are_deleted_except_those_of_open_tasks(db: Database, register_worker: Register) -> None:
    """A retry of an open task would append the entry again."""
    held = await create_and_claim(db, await register_worker())
    old = NOW - timedelta(days=91)
    await named_logs.append_entry(db, "a", old, "without a task", None, key=new_id())
    await named_logs.append_entry(db, "a", old, "of a task that has ended", None, key=new_id(), task_id=new_id())
    kept = await named_logs.append_entry(db, "a", old, "of an open task", None, key=held.id, task_id=held.id)
    young = await named_logs.append_entry(db, "a", NOW - timedelta(days=89), "young", None, key=new_id())
    housekeeping = Housekeeping(
        db,
        ManualClock(NOW),
        load_settings(database=db.url, retention_days=90),
        retention=NamedLogsExtension().retention(),
    )
    assert await housekeeping.apply_retention(NOW)
    assert [entry.id for entry in await named_logs.list_newest_entries(db, "a", None, 10)] == [
        young.id,
        kept.id,
    ]
    assert await named_logs.delete_old_entries(db, NOW, 10) == 1


async def test_log_pages_use_the_index(db: Database) -> None:
    await db.fetch_all(
        "INSERT INTO tenuto.log_entries (log, at, message, key)"
        " SELECT 'log ' || n % 5, now(), 'm', gen_random_uuid() FROM generate_series(1, 5000) AS n"
    )
    await db.fetch_all("ANALYZE tenuto.log_entries")
    for statement, values in (
        (named_logs.SQL.list_newest_entries, ("log 1", 100, 10)),
        (named_logs.SQL.list_oldest_entries, ("log 1", 100, 10)),
        (named_logs.SQL.list_logs, ("", 10)),
        (named_logs.SQL.search_names, ("", "1", 10)),
        (named_logs.SQL.load_newest_entries, (["log 1", "log 2"],)),
    ):
        plan = "\n".join(row[0] for row in await db.fetch_all(f"EXPLAIN (ANALYZE) {statement}", *values))
        assert "log_entries_pkey" in plan
        assert "Seq Scan on log_entries" not in plan
