"""Verifying the audit trail: whether every entry is the one that was sealed, in its place, and none is missing.

What is found out, and how: an entry or a link that was changed or exchanged no longer fits its seal; a link that was
taken out leaves a gap, an entry that was taken out leaves its link; one that was put in has no link, or one that fits
nowhere; a trail that was cut short, or made anew, does not agree with the heads remembered outside the database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from tenuto.audit.checkpoints import Anchor
from tenuto.clock import steady
from tenuto.model.audit_chain import BEGINNING, AuditKeys, UnknownAuditKey, is_keyed, key_id
from tenuto.postgres.database import Database
from tenuto.store.access import audit_log
from tenuto.store.access.audit_log import Link

Kind = Literal["changed", "deleted", "inserted", "backdated", "cut", "rewritten", "unsealed", "weakened", "unknown_key"]
TOO_LONG = timedelta(minutes=1)
"""So long an entry may wait to be sealed, and so far may neighbours in the chain be out of order in time."""
_PAGE, _ENTRIES = 500, 10_000
_NAMED = 100
_MOMENT = 3.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it was written."""

    kind: Kind
    says: str
    position: int | None = None
    entry: UUID | None = None


@dataclass(slots=True)
class Verification:
    """What became of looking: how much was looked at, and what is wrong."""

    links: int = 0
    """Links that were looked at."""
    position: int = 0
    """Where the chain ends."""
    keyed: bool = False
    """Whether its end is sealed with a key: without one, only the heads remembered outside show a trail made anew."""
    anchored: int = 0
    """Up to which position a head is remembered outside the database."""
    faults: list[Fault] = field(default_factory=list)
    more: bool = False
    """There are more faults than are told."""

    @property
    def sound(self) -> bool:
        return not self.faults

    def found(self, faults: Iterator[Fault] | Sequence[Fault]) -> None:
        for fault in faults:
            if len(self.faults) >= _NAMED:
                self.more = True
                return
            self.faults.append(fault)


@dataclass(frozen=True, slots=True)
class Place:
    """How far somebody has come who looks at the trail in parts: along the links first, from the oldest on, then along
    the entries, from the newest on."""

    link: int | None = 0
    """The last link that was looked at; None if that was the last of all."""
    entry: UUID | None = None
    """The last entry that was looked at."""
    left: int | None = None
    """How many entries are still to be looked at; None stands for all."""


async def verify(
    database: Database, keys: AuditKeys, anchors: Sequence[Anchor], *, newest: int | None = None
) -> Verification:
    """Look at the whole trail, or only at so many of its newest links and entries."""
    told, place = await verify_part(database, keys, anchors, newest=newest)
    while place is not None:
        part, place = await verify_part(database, keys, anchors, place=place)
        told.links, told.position, told.more = told.links + part.links, part.position, told.more or part.more
        told.found(part.faults)
    return told


async def verify_part(
    database: Database,
    keys: AuditKeys,
    anchors: Sequence[Anchor],
    *,
    newest: int | None = None,
    place: Place | None = None,
) -> tuple[Verification, Place | None]:
    """As `verify`, but no more than takes a moment; and from where to go on, if there is more."""
    head = await audit_log.head_now(database)
    told = Verification(position=head.position, keyed=is_keyed(head.seal))
    told.anchored = max((anchor.position for anchor in anchors), default=0)
    if place is None:
        place = Place(0 if newest is None else max(head.position - newest, 0), left=newest)
        reader = _Reader(keys, place.link or 0, {anchor.position: anchor for anchor in anchors})
    else:
        reader = _Reader(keys, max((place.link or 0) - 1, 0), {anchor.position: anchor for anchor in anchors})
        await _read_again(database, reader, place.link or 0)
    ends = steady() + _MOMENT
    if place.link is not None:
        place = await _along_links(database, reader, told, place, ends)
        if place.link is not None:
            return told, place
        told.found(_cut(anchors, told.position))
    while True:  # once at least: whoever asks again comes further
        count = _ENTRIES if place.left is None else min(place.left, _ENTRIES)
        last = await audit_log.nth_below(database, place.entry, count)
        told.found([_astray(each) for each in await audit_log.astray(database, TOO_LONG, place.entry, last, _NAMED)])
        left = None if place.left is None else place.left - count
        if last is None or left == 0:
            return told, None
        place = Place(None, last, left)
        if steady() >= ends:
            return told, place


async def _read_again(database: Database, reader: _Reader, link: int) -> None:
    """The last link of the part before: what is wrong with it was told then, but the next one must follow it."""
    for again in await audit_log.links(database, link - 1, 1) if link > 0 else []:
        if again.position == link:
            for _told_before in reader.read(again):
                pass


async def _along_links(database: Database, reader: _Reader, told: Verification, place: Place, ends: float) -> Place:
    after = place.link or 0
    while some := await audit_log.links(database, after, _PAGE):
        for link in some:
            told.found(reader.read(link))
        told.links += len(some)
        after = some[-1].position
        if steady() >= ends:
            return Place(after, None, place.left)
    told.position = max(told.position, after)
    return Place(None, None, place.left)


class _Reader:
    """Reads link after link, and remembers what the next one must follow."""

    def __init__(self, keys: AuditKeys, begin: int, anchors: dict[int, Anchor]) -> None:
        self._keys = keys
        self._anchors = anchors
        self._position = begin
        self._seal: bytes | None = BEGINNING if begin == 0 else None
        """The seal before, unless it is not known: then the next one can only be taken as it is."""
        self._was_keyed = False
        self._latest: datetime | None = None

    def read(self, link: Link) -> Iterator[Fault]:
        if link.position != self._position + 1:
            yield _gap(self._position + 1, link.position - 1)
            self._seal = None
        if link.entry is None:
            yield Fault("deleted", f"entry {link.audit_id} is gone", link.position, link.audit_id)
        elif self._seal is not None:
            yield from self._check_seal(link, self._seal, link.entry)
        if self._was_keyed and not is_keyed(link.seal):
            yield Fault("weakened", "sealed without a key after others with one", link.position, link.audit_id)
        anchor = self._anchors.get(link.position)
        if anchor is not None and anchor.seal != link.seal:
            says = f"not the seal that was remembered outside the database at {anchor.at:%Y-%m-%d %H:%M} UTC"
            yield Fault("rewritten", says, link.position, link.audit_id)
        yield from self._check_time(link)
        self._position, self._seal = link.position, link.seal
        self._was_keyed = self._was_keyed or is_keyed(link.seal)

    def _check_seal(self, link: Link, previous: bytes, entry: audit_log.Record) -> Iterator[Fault]:
        try:
            right = self._keys.is_right(link.seal, previous, entry)
        except UnknownAuditKey:
            says = f"sealed with the key {key_id(link.seal)}, which is not at hand: it cannot be checked"
            yield Fault("unknown_key", says, link.position, link.audit_id)
            return
        if not right:
            says = f"entry {link.audit_id} is not what was sealed here: it was changed, exchanged or put in"
            yield Fault("changed", says, link.position, link.audit_id)

    def _check_time(self, link: Link) -> Iterator[Fault]:
        if link.at is None:
            return
        if self._latest is not None and link.at < self._latest - TOO_LONG:
            says = (
                f"entry {link.audit_id} claims to be older than those before it:"
                " it was put in later, or the database's clock was set back"
            )
            yield Fault("backdated", says, link.position, link.audit_id)
        self._latest = link.at if self._latest is None else max(self._latest, link.at)


def _gap(first: int, last: int) -> Fault:
    which = f"link {first} is" if first == last else f"links {first} to {last} are"
    return Fault("deleted", f"{which} gone", first)


def _cut(anchors: Sequence[Anchor], position: int) -> Iterator[Fault]:
    longest = max(anchors, key=lambda anchor: anchor.position, default=None)
    if longest is not None and longest.position > position:
        yield Fault(
            "cut",
            f"the trail ends at {position}, and was {longest.position} long at {longest.at:%Y-%m-%d %H:%M} UTC",
            position,
        )


def _astray(row: audit_log.Record) -> Fault:
    if row["how"] == "deleted":
        return Fault("deleted", f"entry {row['id']} was gone before it could be sealed", entry=row["id"])
    what = f"entry {row['id']} ({row['action']} by {row['actor_name']})"
    if row["how"] == "inserted":
        return Fault("inserted", f"{what} is not in the chain, and was not written by Tenuto", entry=row["id"])
    return Fault("unsealed", f"{what} has been waiting since {row['at']:%Y-%m-%d %H:%M} UTC", entry=row["id"])
