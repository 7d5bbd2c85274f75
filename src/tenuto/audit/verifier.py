"""Verifies the audit chain: every entry is the one that was sealed, at its position, and none is missing.

A changed or exchanged entry or link no longer fits its seal. A removed link leaves a gap; a removed entry leaves its
link. An inserted entry has no link, or one that does not fit. A chain that was cut short or rebuilt does not match the
checkpoints outside the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from tenuto.audit.checkpoints import Checkpoint
from tenuto.clock import monotonic_seconds
from tenuto.model.access.audit_chain import (
    GENESIS_SEAL,
    AuditKeys,
    SealedEntry,
    UnknownAuditKey,
    is_keyed_seal,
    seal_key_id,
)
from tenuto.postgres.database import Database
from tenuto.store.access import audit_log
from tenuto.store.access.audit_log import ChainLink, UnchainedEntry

FaultKind = Literal[
    "changed", "deleted", "inserted", "backdated", "cut", "rewritten", "unsealed", "weakened", "unknown_key"
]
SEAL_DELAY_LIMIT = timedelta(minutes=1)
"""How long an entry may wait to be sealed, and how far neighbours in the chain may be out of order in time."""
_LINKS_PER_PAGE, _ENTRIES_PER_PAGE = 500, 10_000
_MAX_FAULTS = 100
_PART_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One deviation of the chain from the written entries."""

    kind: FaultKind
    description: str
    position: int | None = None
    entry_id: UUID | None = None


@dataclass(slots=True)
class Verification:
    """Result of a verification."""

    checked_link_count: int = 0
    end_position: int = 0
    """Last position of the chain."""
    is_keyed: bool = False
    """Whether the last link is sealed with a key; without one, only checkpoints detect a rebuilt chain."""
    checkpoint_position: int = 0
    """Position of the latest checkpoint."""
    faults: list[Fault] = field(default_factory=list)
    has_more_faults: bool = False
    """Whether faults beyond the reported ones exist."""

    @property
    def is_sound(self) -> bool:
        return not self.faults

    @property
    def lacks_keys_only(self) -> bool:
        """Whether links could not be verified because their keys are missing, and nothing else is wrong."""
        return bool(self.faults) and not self.has_more_faults and {each.kind for each in self.faults} == {"unknown_key"}

    @property
    def lacks_seals_only(self) -> bool:
        """Whether all faults are entries that no scheduler has sealed yet: there is no sign of tampering."""
        return bool(self.faults) and not self.has_more_faults and {each.kind for each in self.faults} == {"unsealed"}

    def add_faults(self, faults: Iterator[Fault] | Sequence[Fault]) -> None:
        for fault in faults:
            if len(self.faults) >= _MAX_FAULTS:
                self.has_more_faults = True
                return
            self.faults.append(fault)


@dataclass(frozen=True, slots=True)
class VerifierCursor:
    """Progress of a verification in parts: first along the links, oldest first, then the entries, newest first."""

    link: int | None = 0
    """Last verified link; None if all links are verified."""
    entry: UUID | None = None
    """Last verified entry."""
    entries_left: int | None = None
    """Number of entries still to verify; None means all."""


async def verify_chain(
    database: Database, keys: AuditKeys, checkpoints: Sequence[Checkpoint], *, newest: int | None = None
) -> Verification:
    """Verify the whole chain, or only its newest links and entries."""
    result, cursor = await verify_part(database, keys, checkpoints, newest=newest)
    while cursor is not None:
        part, cursor = await verify_part(database, keys, checkpoints, cursor=cursor)
        result.checked_link_count += part.checked_link_count
        result.end_position = part.end_position
        result.has_more_faults |= part.has_more_faults
        result.add_faults(part.faults)
    return result


async def verify_part(
    database: Database,
    keys: AuditKeys,
    checkpoints: Sequence[Checkpoint],
    *,
    newest: int | None = None,
    cursor: VerifierCursor | None = None,
) -> tuple[Verification, VerifierCursor | None]:
    """Verify for a few seconds; return the cursor to continue from, or None at the end."""
    head = await audit_log.load_head(database)
    result = Verification(end_position=head.position, is_keyed=is_keyed_seal(head.seal))
    known = {checkpoint.position: checkpoint for checkpoint in checkpoints}
    result.checkpoint_position = max(known, default=0)
    if cursor is None:
        cursor = VerifierCursor(0 if newest is None else max(head.position - newest, 0), entries_left=newest)
        reader = _LinkVerifier(keys, cursor.link or 0, known)
    else:
        reader = _LinkVerifier(keys, max((cursor.link or 0) - 1, 0), known)
        await _read_last_link(database, reader, cursor.link or 0)
    deadline = monotonic_seconds() + _PART_SECONDS
    if cursor.link is not None:
        cursor = await _verify_links(database, reader, result, cursor, deadline)
        if cursor.link is not None:
            return result, cursor
        result.add_faults(_find_cut(checkpoints, result.end_position))  # guard: audit.remembered_head
    while True:  # at least one page per call, so that every call makes progress
        count = _ENTRIES_PER_PAGE if cursor.entries_left is None else min(cursor.entries_left, _ENTRIES_PER_PAGE)
        last = await audit_log.find_nth_entry_below(database, cursor.entry, count)
        unchained = await audit_log.find_unchained_entries(database, SEAL_DELAY_LIMIT, cursor.entry, last, _MAX_FAULTS)
        result.add_faults([_unchained_entry_fault(each) for each in unchained])
        left = None if cursor.entries_left is None else cursor.entries_left - count
        if last is None or left == 0:
            return result, None
        cursor = VerifierCursor(None, last, left)
        if monotonic_seconds() >= deadline:
            return result, cursor


async def _read_last_link(database: Database, reader: _LinkVerifier, position: int) -> None:
    """Read the last link of the previous part, whose faults are already reported: the next link must follow it."""
    for last in await audit_log.list_links(database, position - 1, 1) if position > 0 else []:
        if last.position == position:
            for _already_reported in reader.verify(last):
                pass


async def _verify_links(
    database: Database, reader: _LinkVerifier, result: Verification, cursor: VerifierCursor, deadline: float
) -> VerifierCursor:
    after = cursor.link or 0
    while links := await audit_log.list_links(database, after, _LINKS_PER_PAGE):
        for link in links:
            result.add_faults(reader.verify(link))
        result.checked_link_count += len(links)
        after = links[-1].position
        if monotonic_seconds() >= deadline:
            return VerifierCursor(after, None, cursor.entries_left)
    result.end_position = max(result.end_position, after)
    return VerifierCursor(None, None, cursor.entries_left)


class _LinkVerifier:
    """Verifies links in order; the next link must follow the previous one."""

    def __init__(self, keys: AuditKeys, start: int, checkpoints: dict[int, Checkpoint]) -> None:
        self._keys = keys
        self._checkpoints = checkpoints
        self._position = start
        self._seal: bytes | None = GENESIS_SEAL if start == 0 else None
        """Previous seal; None if it is unknown, so that the next seal cannot be checked."""
        self._was_keyed = False
        self._latest_at: datetime | None = None

    def verify(self, link: ChainLink) -> Iterator[Fault]:
        if link.position != self._position + 1:
            yield _missing_links(self._position + 1, link.position - 1)
            self._seal = None
        if link.entry is None:
            yield Fault("deleted", f"entry {link.audit_id} is missing", link.position, link.audit_id)
        elif self._seal is not None:
            yield from self._check_seal(link, self._seal, link.entry)
        if self._was_keyed and not is_keyed_seal(link.seal):
            yield Fault("weakened", "sealed without a key after links sealed with a key", link.position, link.audit_id)
        checkpoint = self._checkpoints.get(link.position)
        if checkpoint is not None and checkpoint.seal != link.seal:  # guard: audit.remembered_seals
            description = f"the seal differs from the checkpoint of {checkpoint.at:%Y-%m-%d %H:%M} UTC"
            yield Fault("rewritten", description, link.position, link.audit_id)
        yield from self._check_time(link)
        self._position, self._seal = link.position, link.seal
        self._was_keyed = self._was_keyed or is_keyed_seal(link.seal)

    def _check_seal(self, link: ChainLink, previous: bytes, entry: SealedEntry) -> Iterator[Fault]:
        try:
            is_valid = self._keys.is_valid_seal(link.seal, previous, entry)
        except UnknownAuditKey:
            description = f"sealed with the key {seal_key_id(link.seal)}, which is not available: it cannot be verified"
            yield Fault("unknown_key", description, link.position, link.audit_id)
            return
        if not is_valid:
            description = (
                f"entry {link.audit_id} is not the one that was sealed here: it was changed, exchanged or inserted"
            )
            yield Fault("changed", description, link.position, link.audit_id)

    def _check_time(self, link: ChainLink) -> Iterator[Fault]:
        if link.entry_at is None:
            return
        if self._latest_at is not None and link.entry_at < self._latest_at - SEAL_DELAY_LIMIT:
            description = (
                f"entry {link.audit_id} is dated before its predecessors:"
                " it was inserted later, or the database clock was set back"
            )
            yield Fault("backdated", description, link.position, link.audit_id)
        self._latest_at = link.entry_at if self._latest_at is None else max(self._latest_at, link.entry_at)


def _missing_links(first: int, last: int) -> Fault:
    links = f"link {first} is" if first == last else f"links {first} to {last} are"
    return Fault("deleted", f"{links} missing", first)


def _find_cut(checkpoints: Sequence[Checkpoint], position: int) -> Iterator[Fault]:
    longest = max(checkpoints, key=lambda checkpoint: checkpoint.position, default=None)
    if longest is not None and longest.position > position:
        yield Fault(
            "cut",
            f"the chain ends at position {position}, but a checkpoint of {longest.at:%Y-%m-%d %H:%M} UTC"
            f" has position {longest.position}",
            position,
        )


def _unchained_entry_fault(entry: UnchainedEntry) -> Fault:
    if entry.fault == "deleted":
        return Fault("deleted", f"entry {entry.id} was removed before it was sealed", entry_id=entry.id)
    description = f"entry {entry.id} ({entry.action} by {entry.actor_name})"
    if entry.fault == "inserted":
        return Fault("inserted", f"{description} is not in the chain and was not written by Tenuto", entry_id=entry.id)
    since = f"{entry.at:%Y-%m-%d %H:%M} UTC"
    return Fault("unsealed", f"{description} has not been sealed since {since}", entry_id=entry.id)
