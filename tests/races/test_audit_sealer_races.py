"""The audit chain while several processes seal, write and crash, at every statement: always one valid chain."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tenuto.audit.sealer import seal_entries
from tenuto.audit.verifier import verify_chain
from tenuto.model.access.actors import Actor
from tenuto.model.access.audit_chain import AuditKey, AuditKeys
from tenuto.model.access.operation_context import OperationContext
from tenuto.postgres.database import Database
from tenuto.store.access.audit_recorder import AuditedDatabase, AuditEntry
from tenuto.store.work import workers
from tests.races.interleaving import InterleavedDatabase, interleavings

KEYS = AuditKeys(AuditKey("00112233445566aa", b"k" * 32))


class SimulatedCrash(Exception):
    """The simulated process is gone, with its uncommitted transaction."""


async def write_entries(database: Database, count: int = 1) -> None:
    for number in range(1, count + 1):
        entry = AuditEntry(OperationContext(Actor.user("eve"), "queue.limit", "test"), target="mail")
        limit = partial(workers.limit_queue, name="mail", max_running=number)
        await AuditedDatabase(database, entry).transaction(limit)


async def seal(database: Database) -> int:
    return await seal_entries(database, KEYS)


async def assert_chain_valid(database: Database) -> int:
    """Assert that every entry is sealed once and verifies; return the number of entries."""
    while await seal(database):
        pass
    found = await verify_chain(database, KEYS, [])
    assert found.faults == []
    assert found.checked_link_count == found.end_position
    entries: int = await database.fetch_value("SELECT count(*) FROM tenuto.audit")
    assert found.checked_link_count == entries
    assert await database.fetch_value("SELECT count(*) FROM tenuto.audit_unsealed") == 0
    return entries


async def test_two_concurrent_sealers_make_one_chain(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase
) -> None:
    expected = 0
    async for interleaving in interleavings(first, second):
        await write_entries(db, 3)
        expected += 3
        sealed = await interleaving.run(seal, seal)
        assert sum(sealed) <= 3, interleaving
        assert await assert_chain_valid(db) == expected, interleaving


async def test_entries_written_during_sealing_are_sealed_next(
    db: Database, first: InterleavedDatabase, second: InterleavedDatabase
) -> None:
    expected = 0
    async for interleaving in interleavings(first, second):
        await write_entries(db, 2)
        expected += 3
        await interleaving.run(seal, write_entries)
        assert await assert_chain_valid(db) == expected, interleaving
    async for interleaving in interleavings(first, second):
        await write_entries(db, 2)
        expected += 3
        await interleaving.run(write_entries, seal)
        assert await assert_chain_valid(db) == expected, interleaving


async def test_sealer_that_crashes_anywhere_leaves_a_valid_chain(db: Database, first: InterleavedDatabase) -> None:
    expected, place, died = 0, 0, True
    while died:
        place, died, seen = place + 1, False, 0

        async def before(place: int = place) -> None:
            nonlocal seen, died
            seen += 1
            if seen == place:
                died = True
                raise SimulatedCrash

        await write_entries(db, 3)
        expected += 3
        first.before = before
        with suppress(SimulatedCrash):
            await seal(first)
        first.before = first.nothing
        assert await assert_chain_valid(db) == expected, place
    assert place > 5


async def test_sealer_that_crashes_after_its_commit_has_sealed(db: Database, first: InterleavedDatabase) -> None:
    async def crash() -> Any:
        raise SimulatedCrash

    await write_entries(db, 3)
    first.after_commit = crash
    with pytest.raises(SimulatedCrash):
        await seal(first)
    first.after_commit = first.nothing
    assert await db.fetch_value("SELECT count(*) FROM tenuto.audit_chain") == 3
    assert await seal(db) == 0
    assert await assert_chain_valid(db) == 3


async def test_change_with_lost_reply_is_audited_once(db: Database, first: InterleavedDatabase) -> None:
    lost = 0

    async def lose_reply() -> None:
        nonlocal lost
        lost += 1
        if lost == 1:
            raise ConnectionResetError

    first.after_commit = lose_reply
    await write_entries(first)
    first.after_commit = first.nothing
    assert lost == 2  # the transaction was sent again
    assert await assert_chain_valid(db) == 1
