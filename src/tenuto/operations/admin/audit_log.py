"""Audit log operations (``app.audit``): list, verify and export the tamper-evident log of changes."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from uuid import UUID

from tenuto.audit import checkpoints, verifier
from tenuto.audit import keys as auditkeys
from tenuto.audit.checkpoints import Checkpoint
from tenuto.audit.verifier import Verification, VerifierCursor
from tenuto.errors import Invalid, NotFound, quoted
from tenuto.model import validation
from tenuto.model.access.audit_chain import AuditKeys, SealedEntry
from tenuto.model.filter_keys import AUDIT_KEYS
from tenuto.model.filters import Filter
from tenuto.operations.argument_checks import OpenDatabase, build_filter, check_instant, check_limit
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tenuto.store.access import audit_log
from tenuto.store.access.audit_log import AuditEntryRecord, HistoryEntry
from tenuto.store.filter_sql import CappedCount

HISTORY_KINDS = (
    "task", "execution", "schedule", "manifest", "manifest_group", "batch", "dead_letter", "one_shot", "queue",
    "worker", "operation",
)  # fmt: skip
"""Kinds of objects whose history every user may see; API keys, sessions and secrets are not among them."""
_EXPORT_PAGE_SIZE = 500
_MAX_UNSEALED_ENTRIES = 5000


class AuditLog:
    """Operations on the audit log."""

    def __init__(self, open: OpenDatabase, settings: Callable[[], Settings]) -> None:
        self._open = open
        self._settings = settings

    async def list(
        self,
        where: str | Filter | None = None,
        *,
        below: UUID | None = None,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 50,
    ) -> Sequence[AuditEntryRecord]:
        """List entries, newest first; page with ``below``.

        ``where`` is a filter such as ``action:schedule by:ana at:>7d``. The other arguments are shorthands: actor (name
        or id), action (``schedule`` or ``schedule.disable``), target, and a period.
        """
        database = await self._open()
        filter = self._build_filter(database, where, actor, action, target, since, until)
        return await audit_log.list_entries(database, filter, below=below, limit=check_limit(limit))

    async def count(
        self,
        where: str | Filter | None = None,
        *,
        actor: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> CappedCount:
        """Count entries, exactly up to 10,000; the arguments are those of `list`."""
        database = await self._open()
        filter = self._build_filter(database, where, actor, action, target, since, until)
        return await audit_log.count_entries(database, filter)

    def _build_filter(
        self,
        database: Database,
        where: str | Filter | None,
        actor: str | None,
        action: str | None,
        target: str | None,
        since: datetime | None,
        until: datetime | None,
    ) -> Filter:
        for field, text in (("actor", actor), ("action", action), ("target", target)):
            if text is not None:
                validation.check_label(text, field=field)
        check_instant(since, field="since")
        check_instant(until, field="until")
        filter = build_filter(AUDIT_KEYS, where, database.clock.now())
        return filter.where(by=actor, action=action, target=target).within("at", since, until)

    async def history(self, target: str, *, below: UUID | None = None, limit: int = 50) -> Sequence[HistoryEntry]:
        """List the changes of one object, newest first: who, when, what and why. ``target`` is such as ``queue:mail``.

        Unlike `list`, it names no addresses and no values, and it is not for objects that only administrators see.
        """
        kind, colon, name = target.partition(":")
        if not colon or kind not in HISTORY_KINDS:
            raise Invalid(
                f"target {quoted(target, 80)} does not name a kind of object",
                code="history.target.invalid",
                field="target",
                remedy=f"write KIND:NAME or KIND:ID, with one of the kinds {', '.join(HISTORY_KINDS)}",
            )
        validation.check_label(name, field="target", limit=500)
        return await audit_log.list_history(await self._open(), kind, name, below=below, limit=check_limit(limit))

    async def get(self, id: UUID) -> AuditEntryRecord:
        """Return an entry with its position in the chain and its seal."""
        found = await audit_log.load_entry(await self._open(), id)
        if found is None:
            raise NotFound(
                f"there is no audit entry {id}", code="audit.entry.not_found", remedy="see `tenuto audit list`"
            )
        return found

    async def verify(self, *, newest: int | None = None) -> Verification:
        """Verify that the log is unchanged: all of it, or its ``newest`` entries."""
        return await verifier.verify_chain(*await self._verification_inputs(newest), newest=newest)

    async def verify_part(
        self, *, newest: int | None = None, cursor: VerifierCursor | None = None
    ) -> tuple[Verification, VerifierCursor | None]:
        """Verify a part of the log in bounded time; return the position to continue from, or None at the end."""
        return await verifier.verify_part(*await self._verification_inputs(newest), newest=newest, cursor=cursor)

    async def _verification_inputs(self, newest: int | None) -> tuple[Database, AuditKeys, Sequence[Checkpoint]]:
        if newest is not None and newest < 1:
            raise Invalid(f"newest must be at least 1, not {newest}", code="audit.newest.out_of_range", field="newest")
        database, settings = await self._open(), self._settings()
        keys = await asyncio.to_thread(auditkeys.load_audit_keys, settings)
        known = await asyncio.to_thread(
            checkpoints.read_checkpoints, settings.home, await audit_log.load_database_identity(database)
        )
        return database, keys, known

    async def export_lines(self) -> AsyncIterator[str]:
        """Yield the whole log as lines of JSON: sealed entries in the order of the chain, then unsealed ones.

        ``entry`` is the sealed data; its ``before`` and ``after`` are JSON texts.
        """
        database = await self._open()
        after = 0
        while True:
            while page := await audit_log.list_links(database, after, _EXPORT_PAGE_SIZE):
                for link in page:
                    yield _export_line(link.position, link.sealed_at.isoformat(), link.seal.hex(), link.entry)
                after = page[-1].position
            entries = await audit_log.list_unsealed_entries(database, _MAX_UNSEALED_ENTRIES)
            if (
                await audit_log.load_head(database)
            ).position == after:  # otherwise an entry was sealed between the two queries
                break
        for entry in entries:
            yield _export_line(None, None, None, entry)

    async def export(self, file: Path) -> int:
        """Write the whole log to a file atomically, readable by its owner only, and return the number of entries."""
        draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise Invalid(
                f"cannot write to {file.parent}: {error.strerror}", code="audit.export.failed", field="file"
            ) from error
        try:
            count = 0
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                async for line in self.export_lines():
                    out.write(f"{line}\n")
                    count += 1
                out.flush()
                await asyncio.to_thread(os.fsync, out.fileno())
            draft.replace(file)
        except OSError as error:
            raise Invalid(f"cannot write {file}: {error.strerror}", code="audit.export.failed", field="file") from error
        finally:
            draft.unlink(missing_ok=True)
        return count


def _export_line(position: int | None, sealed_at: str | None, seal: str | None, entry: SealedEntry | None) -> str:
    # ASCII, so that the line contains no control characters for a terminal. The seal covers the parsed line.
    line = {
        "position": position,
        "sealed_at": sealed_at,
        "seal": seal,
        "entry": None if entry is None else entry.to_fields(),
    }
    return json.dumps(line, separators=(",", ":"), sort_keys=True)
