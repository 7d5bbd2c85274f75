"""Plans of lookups that were made on empty tables (A68): they stay fast and use indexes when the tables have grown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tenuto.postgres.database import Connection, Database
from tenuto_identity.store import evaluated_objects, exports, metaverse, objects, sync_marks, transaction_settings

COUNT = 50_000
PAGE = 1_000
FACTOR = 5
LEAST_MS = 10.0
"""Shorter times are noise on a loaded machine."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NUMBERS = range(100, 100 + PAGE)
IDS = "'{" + ",".join(map(str, NUMBERS)) + "}'"
ONES = "'{" + ",".join("1" for _ in NUMBERS) + "}'"
ANCHORS = "'{" + ",".join(f"a{n}" for n in NUMBERS) + "}'"
PRINTS = "'{" + ",".join(r'"\\x00"' for _ in NUMBERS) + "}'"

LOOKUPS: dict[str, tuple[str, str]] = {
    "classify_objects": (objects.SQL.classify_objects, f"1::smallint, {ONES}, {ANCHORS}, {PRINTS}"),
    "load_objects": (objects.SQL.load_objects, IDS),
    "load_joined_objects": (objects.SQL.load_joined_objects, IDS),
    "lock_objects": (objects.SQL.lock_objects, IDS),
    "load_object_references": (objects.SQL.load_references, IDS),
    "find_referring": (objects.SQL.find_referring, f"{IDS}, 20000"),
    "load_identities": (metaverse.SQL.load_identities, IDS),
    "load_metaverse_references": (metaverse.SQL.load_references, IDS),
    "find_by_keys": (metaverse.SQL.find_by_keys, f"{ONES}, {ONES}, {ANCHORS}, 1::smallint"),
    "taken_keys": (metaverse.SQL.taken_keys, f"{ONES}, {ONES}, {ANCHORS}"),
    "find_unjoined_by_keys": (objects.SQL.find_unjoined_by_keys, f"{ONES}, {ONES}, {ANCHORS}"),
    "load_exports": (exports.SQL.load_exports, IDS),
    "lock_exports": (exports.SQL.lock_exports, IDS),
    "load_stamps": (sync_marks.SQL.load_stamps, IDS),
    "load_marks_page": (sync_marks.SQL.load_marks_page, f"1::smallint, 0, {10**12}, {PAGE}"),
    "load_facts": (evaluated_objects.SQL.load_facts, f"1::smallint, 0, {PAGE}, now()"),
    "load_objects_page": (objects.SQL.load_objects_page, f"1::smallint, 0, {PAGE}"),
}

FILL = f"""
INSERT INTO connector_objects (id, system_number, type_number, anchor, address, address_key, fingerprint, changed_at,
                               metaverse_id, join_kind)
SELECT n, 1, 1, 'a' || n, 'a' || n, 'a' || n, '\\x01', now(), n, 'joined' FROM generate_series(1, {COUNT}) AS n;
INSERT INTO metaverse_objects (id, type_number, changed_at) SELECT n, 1, now() FROM generate_series(1, {COUNT}) AS n;
INSERT INTO match_keys SELECT 1, 1, 'a' || n, n FROM generate_series(1, {COUNT}) AS n;
INSERT INTO object_keys SELECT 1, 1, 'a' || n, n, '"a"' FROM generate_series(1, {COUNT}) AS n;
INSERT INTO metaverse_references SELECT n, 1, n + 1, 1 FROM generate_series(1, {COUNT}) AS n;
INSERT INTO connector_references SELECT n, 1, 1, 'a' || n, 'a' || n, n + 1 FROM generate_series(1, {COUNT}) AS n;
INSERT INTO sync_marks (object_id, system_number, reason)
SELECT n, 1, 'imported' FROM generate_series(1, {COUNT}) AS n;
INSERT INTO pending_exports (object_id, system_number, kind, changes, phase, changed_at)
SELECT n, 1, 'update', '[]', 2, now() FROM generate_series(1, {COUNT}) AS n;
"""


def scanned(plan: dict[str, Any]) -> Iterator[str]:
    """Yield the tables that a plan reads sequentially."""
    if plan["Node Type"] == "Seq Scan":
        yield plan["Relation Name"]
    for part in plan.get("Plans", ()):
        yield from scanned(part)


async def prepare_all(connection: Connection) -> None:
    async with transaction_settings.transaction(connection):
        for name, (statement, _) in LOOKUPS.items():
            await connection.execute(f"PREPARE {name} AS {statement}")


async def measure(connection: Connection, name: str) -> tuple[float, list[str]]:
    """Return the shortest of three times, and the tables that are read sequentially."""
    times: list[float] = []
    tables: list[str] = []
    for _ in range(3):
        async with transaction_settings.transaction(connection):
            found = await connection.fetchval(
                f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE {name} ({LOOKUPS[name][1]})"
            )
        (explained,) = json.loads(found)
        times.append(explained["Planning Time"] + explained["Execution Time"])
        tables = list(scanned(explained["Plan"]))
    return min(times), tables


async def test_a68_lookups_prepared_on_empty_tables_stay_fast_when_the_tables_have_grown(
    database: Database, url: str
) -> None:
    async with database.connection() as connection:
        await prepare_all(connection)
        for name, (_, arguments) in LOOKUPS.items():
            for _ in range(6):  # after five uses PostgreSQL may keep a generic plan
                async with transaction_settings.transaction(connection):
                    await connection.fetch(f"EXECUTE {name} ({arguments})")
        async with transaction_settings.transaction(connection, whole_tables=True):
            await connection.execute(FILL)
        grown = {name: await measure(connection, name) for name in LOOKUPS}
    other = await asyncpg.connect(url)
    try:
        async with transaction_settings.transaction(other, whole_tables=True):
            for table in ("connector_objects", "metaverse_objects", "match_keys", "object_keys", "sync_marks"):
                await other.execute(f"ANALYZE {table}")
            for table in ("metaverse_references", "connector_references", "pending_exports"):
                await other.execute(f"ANALYZE {table}")
        await prepare_all(other)
        fresh = {name: await measure(other, name) for name in LOOKUPS}
    finally:
        await other.close()
    slow = {
        name: (round(grown[name][0], 1), round(fresh[name][0], 1))
        for name in LOOKUPS
        if grown[name][0] > max(FACTOR * fresh[name][0], LEAST_MS)
    }
    assert slow == {}
    assert {name: tables for name, (_, tables) in grown.items() if tables} == {}


NEW_SYSTEM = f"""
INSERT INTO connector_objects (id, system_number, type_number, anchor, address, address_key, fingerprint, changed_at,
                               metaverse_id, join_kind)
SELECT {COUNT} + n, 2, 1, 'a' || n, 'a' || n, 'a' || n, '\\x01', now(), n, 'joined'
FROM generate_series(1, {PAGE}) AS n;
"""
OF_NEW_SYSTEM = {
    "classify_objects": (objects.SQL.classify_objects, f"2::smallint, {ONES}, {ANCHORS}, {PRINTS}"),
    "find_provisioning": (objects.SQL.find_provisioning, f"2::smallint, {ONES}, {ANCHORS}, {ANCHORS}"),
    "find_anchored": (objects.SQL.find_anchored, f"2::smallint, {ONES}, {ANCHORS}"),
    "find_reference_targets": (objects.SQL.find_reference_targets, f"2::smallint, {ANCHORS}, {ANCHORS}, {ONES}"),
    "load_addresses": (objects.SQL.load_addresses, f"2::smallint, {IDS}"),
    "find_by_keys": (metaverse.SQL.find_by_keys, f"{ONES}, {ONES}, {ANCHORS}, 2::smallint"),
}


def used_indexes(plan: dict[str, Any]) -> Iterator[str]:
    """Yield the indexes that a plan uses."""
    if "Index Name" in plan:
        yield plan["Index Name"]
    for part in plan.get("Plans", ()):
        yield from used_indexes(part)


async def test_lookups_in_a_system_that_statistics_do_not_know_read_single_objects(database: Database) -> None:
    """The first import of another system: its objects are newer than the statistics."""
    async with database.connection() as connection:
        async with transaction_settings.transaction(connection, whole_tables=True):
            await connection.execute(FILL)
        async with transaction_settings.transaction(connection, whole_tables=True):
            await connection.execute("ANALYZE connector_objects")
            await connection.execute(NEW_SYSTEM)
        slow: dict[str, list[str]] = {}
        for name, (statement, arguments) in OF_NEW_SYSTEM.items():
            async with transaction_settings.transaction(connection):
                await connection.execute(f"PREPARE of_new_system_{name} AS {statement}")
                found = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE of_new_system_{name} ({arguments})")
            indexes = list(used_indexes(json.loads(found)[0]["Plan"]))
            if "connector_objects_of_system" in indexes:
                slow[name] = indexes
    assert slow == {}


def most_rows(plan: Any) -> float:
    """Return the largest number of rows that a node of a plan returned."""
    own: float = plan["Actual Rows"] * plan["Actual Loops"]
    return max([own, *(most_rows(part) for part in plan.get("Plans", ()))])


async def test_housekeeping_finds_out_whether_anything_is_due_without_reading_the_backlog(database: Database) -> None:
    async with database.connection() as connection:
        async with transaction_settings.transaction(connection, whole_tables=True):
            await connection.execute(
                "INSERT INTO systems (id, name, connector, definition, origin, updated_at)"
                " SELECT gen_random_uuid(), 'HR', 'csv', '{}', 'web', now()"
            )
            await connection.execute(
                "INSERT INTO metaverse_objects (id, type_number, changed_at, delete_after, deletion_initiator)"
                f' SELECT n, 1, now(), now(), \'{{"system": "HR"}}\' FROM generate_series(1, {PAGE}) AS n'
            )
        async with transaction_settings.transaction(connection):
            await connection.execute(f"PREPARE is_anything_due AS {metaverse.SQL.is_anything_due}")
            found = await connection.fetchval("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE is_anything_due (now())")
    (explained,) = json.loads(found)
    assert most_rows(explained["Plan"]) < 10
