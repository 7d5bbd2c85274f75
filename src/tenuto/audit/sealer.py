"""Linking audit entries into the chain: a moment after they were committed, by one sealer at a time.

Entries are written in the transactions that do what they tell of. Were they linked there too, all those transactions
would wait for one another; so they are linked here, about every second. Any number of schedulers may seal: whoever has
the lock does, and the position's key would refuse a second link at the same place. A chain that has been sealed with a
key is never continued without one.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from tenuto.audit import checkpoints
from tenuto.audit import keys as auditkeys
from tenuto.clock import steady
from tenuto.errors import Conflict
from tenuto.logs import Log
from tenuto.model import audit_chain
from tenuto.model.audit_chain import AuditKeys
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import Loop
from tenuto.settings import Settings
from tenuto.store.access import audit_log
from tenuto.store.access.audit_log import Head

EVERY_SECONDS = 1.0
BATCH = 500

log = Log("tenuto.audit")


class Sealing:
    """One sealer, from start to stop."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._loop = Loop("tenuto-sealing", self.round, log)
        self._anchored_at: float | None = None

    def start(self) -> None:
        self._loop.start(after=EVERY_SECONDS)

    async def stop(self) -> None:
        await self._loop.stop()

    async def round(self) -> float:
        """Seal what waits, and remember the head now and then."""
        if await audit_log.is_waiting(self._database):
            keys = await asyncio.to_thread(auditkeys.at_hand, self._settings)
            while await seal_some(self._database, keys) == BATCH:
                pass
            if self._anchored_at is None:  # the first entries of a trail are not to wait for an hour
                await self._anchor()
        if self._anchored_at is None or steady() - self._anchored_at > checkpoints.EVERY.total_seconds():
            await self._anchor()
        return EVERY_SECONDS

    async def _anchor(self) -> None:
        await checkpoints.drop(self._database, self._settings.home)
        self._anchored_at = steady()


async def seal_some(database: Database, keys: AuditKeys, most: int = BATCH) -> int:
    """Link the oldest entries that wait; how many. None while somebody else is at it."""

    async def act(connection: Connection) -> int:
        if not await audit_log.may_seal(connection):
            return 0
        last = await audit_log.head(connection)
        entries = await audit_log.unsealed(connection, most)
        if not entries:
            return 0
        _refuse_to_weaken(last, keys)
        links = []
        position, seal = last.position, last.seal
        for entry in entries:
            position, seal = position + 1, audit_chain.seal(seal, entry, keys.current)
            links.append((position, UUID(entry["id"]), seal))
        await audit_log.append(connection, links)
        return len(links)

    return await database.transaction(act)


def _refuse_to_weaken(last: Head, keys: AuditKeys) -> None:
    if audit_chain.is_keyed(last.seal) and keys.current is None:
        raise Conflict(
            "the audit trail is sealed with a key, and none is given here",
            field="master_key",
            remedy="set TENUTO_MASTER_KEY_FILE for this service, too",
        )
