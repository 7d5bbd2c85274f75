"""The audit sealer links audit entries into the hash chain, about once a second.

Entries are written in the transactions that make the changes. Linking them there would serialise these transactions.
Any number of schedulers may run a sealer: an advisory lock admits one at a time, and the key of the position refuses a
second link. A chain that was sealed with a key is never continued without one.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from tenuto.audit import checkpoints
from tenuto.audit.keys import load_audit_keys
from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict
from tenuto.logs import Log
from tenuto.model.access import audit_chain
from tenuto.model.access.audit_chain import AuditKeys
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import PollingLoop
from tenuto.settings import Settings
from tenuto.store.access import audit_log
from tenuto.store.access.audit_log import ChainHead

SEAL_INTERVAL_SECONDS = 1.0
BATCH_SIZE = 500

log = Log("tenuto.audit")


class AuditSealer:
    """Seals audit entries. ``loop`` runs its cycles in the background."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self.loop = PollingLoop("tenuto-audit-sealer", self.run_cycle, log, delay_seconds=SEAL_INTERVAL_SECONDS)
        self._checkpoint_at: float | None = None

    async def run_cycle(self) -> float:
        """Seal waiting entries, and record a checkpoint when it is due."""
        if await audit_log.has_unsealed_entries(self._database):
            keys = await asyncio.to_thread(load_audit_keys, self._settings)
            while await seal_entries(self._database, keys) == BATCH_SIZE:
                pass
            if self._checkpoint_at is None:  # the first entries get a checkpoint at once
                await self._record_checkpoint()
        if (
            self._checkpoint_at is None
            or monotonic_seconds() - self._checkpoint_at > checkpoints.CHECKPOINT_INTERVAL.total_seconds()
        ):
            await self._record_checkpoint()
        return SEAL_INTERVAL_SECONDS

    async def _record_checkpoint(self) -> None:
        await checkpoints.record_checkpoint(self._database, self._settings.home)
        self._checkpoint_at = monotonic_seconds()


async def seal_entries(database: Database, keys: AuditKeys, limit: int = BATCH_SIZE) -> int:
    """Link the oldest waiting entries and return their number; 0 while another sealer has the lock."""

    async def seal(connection: Connection) -> int:
        if not await audit_log.try_sealer_lock(connection):  # guard: audit.one_sealer
            return 0
        last = await audit_log.load_head_in_transaction(connection)
        entries = await audit_log.load_unsealed_entries(connection, limit)
        if not entries:
            return 0
        _check_keys(last, keys)  # guard: audit.keyed_chain
        links = []
        position, seal = last.position, last.seal
        for entry in entries:
            position, seal = position + 1, audit_chain.make_seal(seal, entry, keys.current)
            links.append((position, UUID(entry.id), seal))
        await audit_log.append_links(connection, links)
        return len(links)

    return await database.transaction(seal)


def _check_keys(last: ChainHead, keys: AuditKeys) -> None:
    if audit_chain.is_keyed_seal(last.seal) and keys.current is None:
        raise Conflict(
            "the audit chain is sealed with a key, but this service has no master key",
            code="audit.master_key.missing",
            field="master_key",
            remedy="set TENUTO_MASTER_KEY_FILE for this service",
        )
