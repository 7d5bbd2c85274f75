"""``app.dead_letters``: what failed for good, and waits for somebody to decide."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.engine import letters
from tenuto.errors import Invalid
from tenuto.handlers.jobs import Jobs
from tenuto.ids import new_id
from tenuto.model import payloads
from tenuto.model.access import Actor
from tenuto.model.deadletters import LetterStatus
from tenuto.store import activities, auditing, deadletters
from tenuto.store.manifests import StoredManifest
from tenuto.verbs.asking import MAX_LISTED, Open, Record, listed, the_one

_NAMED = 20


class DeadLetters:
    """``app.dead_letters``: what failed for good, and waits for somebody to decide."""

    def __init__(self, open: Open, who: Callable[[], Actor], jobs: Jobs, *, needs_note: Callable[[], bool]) -> None:
        self._open = open
        self._who = who
        self._jobs = jobs
        self._needs_note = needs_note

    async def list(
        self,
        *,
        below: UUID | None = None,
        status: str | None = LetterStatus.AWAITING_INTERVENTION,
        manifest: str | None = None,
        fingerprint: str | None = None,
        batch: UUID | None = None,
        limit: int = 50,
    ) -> Sequence[Record]:
        """Letters, the newest first."""
        return await deadletters.list_letters(
            await self._open(),
            below=below,
            status=status,
            manifest=manifest,
            fingerprint=fingerprint,
            batch=batch,
            limit=listed(limit),
        )

    async def groups(
        self, *, manifest: str | None = None, batch: UUID | None = None, limit: int = 100
    ) -> Sequence[Record]:
        """Open letters by the kind of failure, the most frequent first."""
        return await deadletters.groups(await self._open(), manifest, batch, listed(limit))

    async def summary(self, chosen: Sequence[UUID], *, limit: int = 20) -> Sequence[Record]:
        """What a selection is about: of each manifest and kind of failure, how many."""
        return await deadletters.summary_of(await self._open(), chosen, listed(limit))

    async def find(self, prefix: str) -> UUID:
        """The one letter whose id begins so."""
        found = await deadletters.find(await self._open(), *activities.ids_beginning(prefix))
        return the_one(found, prefix, whose="dead letter's id", listed_by="`tenuto dead-letter list`")

    async def get(self, id: UUID) -> Record:
        """A letter with every attempt it tells of, the first one first."""
        database = await self._open()
        found = await deadletters.letter(database, id)
        if found is None:
            raise await letters.refusal(database, id)
        return {**found, "tried": await activities.attempts(database, found["task_id"])}

    async def retry(
        self,
        id: UUID,
        *,
        input: Mapping[str, Any] | None = None,
        note: str | None = None,
        request_id: UUID | None = None,
    ) -> UUID:
        """Run what a letter stands for again, with another input if given; the id of the new task. Asking again with
        the same ``request_id`` runs it once."""
        self._check_note(note)
        database = await self._open()
        if request_id is not None:
            known = await deadletters.letter(database, id)
            if known is not None and known["retry_task_id"] == request_id:
                return request_id
        anew = None if input is None else partial(self._checked, json.dumps(dict(input)))
        auditing.tell(target=str(id), reason=note, after=None if input is None else {"input": dict(input)})
        done = await letters.retry(
            database, [id], database.clock.now(), self._who(), note=note, input=anew, refuse=True, task=request_id
        )
        if id not in done:
            raise await letters.refusal(database, id)
        return done[id]

    async def acknowledge(self, id: UUID, *, note: str | None = None, request_id: UUID | None = None) -> None:
        """Say that somebody has seen to it; nothing is run. Asking again with the same ``request_id``: so it stays."""
        self._check_note(note)
        database = await self._open()
        auditing.tell(target=str(id), reason=note)
        now, by = database.clock.now(), self._who()
        if not await letters.acknowledge(database, [id], now, by, note=note, request=request_id):
            raise await letters.refusal(database, id)

    async def select(
        self,
        *,
        manifest: str | None = None,
        fingerprint: str | None = None,
        batch: UUID | None = None,
        until: datetime | None = None,
    ) -> Sequence[UUID]:
        """The open letters a filter stands for now: a frozen list, so that what is shown is what is done."""
        database = await self._open()
        if until is not None and until.tzinfo is None:
            raise Invalid("has no time zone", field="until", remedy="write it with an offset, such as …T00:00:00Z")
        return await deadletters.selection(
            database, manifest=manifest, fingerprint=fingerprint, batch=batch, until=until
        )

    async def retry_all(self, *, note: str | None = None, request_id: UUID | None = None, **where: Any) -> int:
        """Run all open letters of a filter again; how many. Asking again with the same ``request_id``, as after a crash
        in the middle, does what is left of that, and tells the whole."""
        chosen = await self._chosen(request_id, **where)
        return await self.retry_these(chosen, note=note, request_id=request_id)

    async def retry_these(
        self, chosen: Sequence[UUID], *, note: str | None = None, request_id: UUID | None = None
    ) -> int:
        """Run letters again, as selected; how many. Those somebody has resolved meanwhile are left out. Asking again
        with the same ``request_id`` does what is left of it, and tells the whole."""
        self._check_note(note)
        database, request, done = await self._open(), request_id or new_id(), 0
        _tell_of(chosen, note)
        for some in _parts(chosen):
            done += len(
                await letters.retry(database, some, database.clock.now(), self._who(), note=note, request=request)
            )
        return done

    async def acknowledge_all(self, *, note: str | None = None, request_id: UUID | None = None, **where: Any) -> int:
        """Acknowledge all open letters of a filter; how many. Asking again: as with `retry_all`."""
        chosen = await self._chosen(request_id, **where)
        return await self.acknowledge_these(chosen, note=note, request_id=request_id)

    async def acknowledge_these(
        self, chosen: Sequence[UUID], *, note: str | None = None, request_id: UUID | None = None
    ) -> int:
        """Acknowledge letters, as selected; how many. Those somebody has resolved meanwhile are left out. Asking again:
        as with `retry_these`."""
        self._check_note(note)
        database, request, done = await self._open(), request_id or new_id(), 0
        _tell_of(chosen, note)
        for some in _parts(chosen):
            done += len(
                await letters.acknowledge(database, some, database.clock.now(), self._who(), note=note, request=request)
            )
        return done

    async def _chosen(self, request: UUID | None, **where: Any) -> Sequence[UUID]:
        """What a filter stands for; for a request that comes again, what it stood for then: what has failed since, such
        as what the request itself had run again, is not part of it."""
        if request is None:
            return await self.select(**where)
        before, since = await deadletters.resolved_before(await self._open(), request)
        if since is not None:
            until = where.get("until")
            where["until"] = since if until is None else min(until, since)
        return sorted({*before, *await self.select(**where)})

    def _checked(self, text: str, manifest: StoredManifest) -> str:
        """An input as the job of a manifest takes it."""
        return self._jobs.get(manifest.manifest.job).check_input(text)

    def _check_note(self, note: str | None) -> None:
        if note is not None:
            payloads.storable_text(note, field="note", limit=4000)
        if self._needs_note() and not (note or "").strip():
            raise Invalid("is needed here", field="note", remedy="say why, or set TENUTO_LETTERS_NEED_NOTES=false")


def _parts(chosen: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """As many at a time as one transaction takes."""
    for start in range(0, len(chosen), MAX_LISTED):
        yield chosen[start : start + MAX_LISTED]


def _tell_of(chosen: Sequence[UUID], note: str | None) -> None:
    named = [str(id) for id in chosen[:_NAMED]]
    auditing.tell(reason=note, after={"letters": len(chosen), "first": named})
