"""Recognition of unchanged objects by their fingerprints, without their anchors.

Most sources yield their objects in the order of the first import. The fingerprints of a page are therefore compared
with those of the next stored objects: an object whose fingerprint is among them has not changed, and only the others
are looked up by their anchors. If the source uses another order, recognition is switched off after a few pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tenuto.postgres.database import Connection
from tenuto_identity.runs.definition_snapshot import System
from tenuto_identity.runs.import_reader import ObjectMaker, PageReader, ReadPage, refuse_duplicates
from tenuto_identity.runs.imports.seen_objects import SeenObjects
from tenuto_identity.store import objects

LOOK_AHEAD_FACTOR = 1.2
"""Stored objects per object of a page that are compared: more than one, because the source may have deleted some."""
MAX_PAGES_IN_ANOTHER_ORDER = 2


@dataclass(slots=True)
class RecognisedPage:
    """A page, after its unchanged objects were recognised."""

    unchanged: list[int] = field(default_factory=list)
    """Ids of the recognised objects."""
    page: ReadPage = field(default_factory=ReadPage)
    """The page with its other objects."""


class Recognition:
    """Recognises the objects of one read."""

    def __init__(self, system: System, decode_key: bytes, seen: SeenObjects) -> None:
        self._system = system
        self._maker = ObjectMaker(system, decode_key)
        self._seen = seen
        self._last_id = 0
        self._pages_in_another_order = 0

    async def begin(self, connection: Connection, reader: PageReader) -> None:
        """Recognise objects from the first page on if the system has any."""
        ids, _ = await objects.load_fingerprints(connection, self._system.number, 0, 1)
        reader.makes_objects = not ids

    async def recognise(self, connection: Connection, read: ReadPage) -> RecognisedPage:
        """Return the unchanged objects of a page, and all others as they were read."""
        if not read.batches:
            return RecognisedPage([], read)
        count = sum(len(batch.fingerprints) for batch in read.batches)
        ids, fingerprints = await objects.load_fingerprints(
            connection, self._system.number, self._last_id, int(count * LOOK_AHEAD_FACTOR) + 1
        )
        known = dict(zip(fingerprints, ids, strict=True))
        if seen := set(self._seen.among(ids)):  # guard: identity.recognised_once
            known = {fingerprint: id for fingerprint, id in known.items() if id not in seen}
        return await self._separate(read, known)

    async def _separate(self, read: ReadPage, known: Mapping[bytes, int]) -> RecognisedPage:
        unchanged: list[int] = []
        others: list[list[int]] = []
        for batch in read.batches:
            found = list(map(known.get, batch.fingerprints))
            unchanged += [id for id in found if id is not None]
            others.append([position for position, id in enumerate(found) if id is None])
        # guard: identity.recognised_repetition
        if len(set(unchanged)) < len(unchanged):
            return await self.make_all(read)
        page = await self._with_objects(read, others)
        if len(page.refused) > len(read.refused) and any(each.error == "duplicate_object" for each in page.refused):
            return await self.make_all(read)
        return RecognisedPage(unchanged, page)

    async def make_all(self, read: ReadPage) -> RecognisedPage:
        """Return a page whose objects are all looked up by their anchors."""
        return RecognisedPage([], await self._with_objects(read, None))

    async def _with_objects(self, read: ReadPage, positions: list[list[int]] | None) -> ReadPage:
        page = replace(read, objects=list(read.objects), batches=[], refused=list(read.refused))
        if positions is None or any(positions):
            await asyncio.to_thread(self._maker.make_all, read.batches, page, positions)
            refuse_duplicates(page)
        return page

    def learn(self, reader: PageReader, read: ReadPage, recognised: Sequence[int], same: Collection[int]) -> None:
        """Decide after a page whether the next pages are recognised. ``same`` are its unchanged objects, including the
        recognised ones."""
        count = sum(len(batch.fingerprints) for batch in read.batches) or len(read.objects)
        is_mostly_same = 2 * len(same) > count
        if read.batches and 2 * len(recognised) < count:
            self._pages_in_another_order += is_mostly_same
            reader.makes_objects = True
        elif is_mostly_same:
            reader.makes_objects = self._pages_in_another_order >= MAX_PAGES_IN_ANOTHER_ORDER
        if recognised:
            self._last_id = recognised[-1]
        elif same:
            self._last_id = max(same)
