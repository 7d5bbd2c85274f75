"""Dead letters are resolved here: run again, with another input if need be, or acknowledged.

A letter and the task that runs it again are one transaction, under the letter's lock: of two who decide at once, one
does.

``app.dead_letters``: what failed for good, and waits for somebody to decide.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.jobs.registry import Jobs
from tenuto.model import stored_values
from tenuto.model.actors import Actor
from tenuto.model.dead_letters import LetterStatus
from tenuto.operations.listing import MAX_LISTED, Open, Record, listed, the_one
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling.manifest_manager import run_of
from tenuto.store import activities, batches, dead_letters, manifests, step_checkpoints
from tenuto.store.access import audit_recorder
from tenuto.store.manifests import NewRun, StoredManifest

InputFor = Callable[[StoredManifest], str]


async def retry(
    database: Database,
    ids: Sequence[UUID],
    now: datetime,
    by: Actor,
    *,
    note: str | None = None,
    input: InputFor | None = None,
    refuse: bool = False,
    task: UUID | None = None,
    request: UUID | None = None,
) -> dict[UUID, UUID]:
    """Run what these letters stand for again, counting failures from nothing; letter → new task.

    Letters that somebody has resolved meanwhile are left out, and so are those that cannot be run again now, unless
    that is to be a refusal (``refuse``). ``task`` is the id of the new task, if there is one letter. What ``input``
    makes for the manifest as it is by then takes the place of what failed. Those the same ``request`` has run again
    before are told as it ran them. Batches and manifests are held before the letters, in the order in which the end of
    a task takes them.
    """
    tasks = {id: task or new_id() for id in ids}
    asked = request or task or new_id()

    async def act(connection: Connection) -> dict[UUID, UUID]:
        named, lots = await dead_letters.concerned(connection, ids)
        held = await batches.shared(connection, lots)
        kept = await manifests.locked_any(connection, named)
        letters = await dead_letters.lock_open(connection, ids)
        runs = []
        for letter in letters:
            refused = _why_not(letter, kept.get(letter["external_id"]), held)
            if refused is None:
                runs.append(await _run(connection, letter, kept, held, now, by, tasks[letter["id"]], input))
            elif refuse:
                raise refused
        created = await manifests.start_runs(connection, runs)
        pairs = [(letter["id"], tasks[letter["id"]]) for letter in letters if tasks[letter["id"]] in created]
        if refuse and len(pairs) < len(runs):
            raise Conflict("a run of the same item is open already", remedy="wait for it")
        if input is None:  # a chain goes on after its last finished step
            run_again = [
                (letter["task_id"], tasks[letter["id"]]) for letter in letters if tasks[letter["id"]] in created
            ]
            await step_checkpoints.carry_over(connection, run_again)
        await dead_letters.resolve(connection, pairs, now, by, note, asked)
        return await dead_letters.resolved_by(connection, ids, asked)

    return await database.transaction(act)


def _why_not(
    letter: Mapping[str, Any], manifest: StoredManifest | None, held: Mapping[UUID, Mapping[str, Any]]
) -> Conflict | None:
    """Why a letter cannot be run again."""
    if manifest is None or manifest.id != letter["manifest_id"]:
        return Conflict(f"the manifest {letter['external_id']!r} is gone", remedy="acknowledge the letter instead")
    if letter["batch_id"] in held and held[letter["batch_id"]]["cancelled"]:
        return Conflict(
            f"batch {letter['batch_id']} was cancelled", remedy="enqueue the item anew, and acknowledge the letter"
        )
    return None


async def _run(
    connection: Connection,
    letter: Mapping[str, Any],
    kept: Mapping[str, StoredManifest],
    held: Mapping[UUID, Mapping[str, Any]],
    now: datetime,
    by: Actor,
    id: UUID,
    input: InputFor | None,
) -> NewRun:
    stored = kept[letter["external_id"]]
    group = await manifests.group(connection, stored.manifest.group) if stored.manifest.group else None
    run = run_of(
        stored.id, stored.manifest, now, by, id=id, batch_id=letter["batch_id"],
        input=letter["input"] if input is None else input(stored),
        item_key=_key(letter["item"], letter["task_id"]), group_priority=0 if group is None else group["priority"],
    )  # fmt: skip
    run.held_back = letter["batch_id"] in held and held[letter["batch_id"]]["paused"]
    return run


def _key(item: str, task_id: UUID) -> str | None:
    """Only a key somebody gave: that of one without is its task's id, and the new task has another."""
    return None if item in ("", str(task_id)) else item


async def acknowledge(
    database: Database,
    ids: Sequence[UUID],
    now: datetime,
    by: Actor,
    *,
    note: str | None,
    request: UUID | None = None,
) -> set[UUID]:
    """Say that somebody has seen to it; those that were still open, or that the same ``request`` has seen to before."""
    asked = request or new_id()

    async def act(connection: Connection) -> set[UUID]:
        letters = await dead_letters.lock_open(connection, ids)
        await dead_letters.resolve(connection, [(letter["id"], None) for letter in letters], now, by, note, asked)
        return set(await dead_letters.resolved_by(connection, ids, asked))

    return await database.transaction(act)


async def refusal(database: Database, id: UUID) -> NotFound | Conflict:
    """Why a letter could not be resolved."""
    found = await dead_letters.letter(database, id)
    if found is None:
        return NotFound(f"there is no dead letter {id}", remedy="see `tenuto dead-letter list`")
    return Conflict(
        f"dead letter {id} was {found['status']} by {found['resolved_name']}",
        remedy=f"see what became of it: tenuto dead-letter show {id}",
    )


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
        return await dead_letters.list_letters(
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
        return await dead_letters.groups(await self._open(), manifest, batch, listed(limit))

    async def summary(self, chosen: Sequence[UUID], *, limit: int = 20) -> Sequence[Record]:
        """What a selection is about: of each manifest and kind of failure, how many."""
        return await dead_letters.summary_of(await self._open(), chosen, listed(limit))

    async def find(self, prefix: str) -> UUID:
        """The one letter whose id begins so."""
        found = await dead_letters.find(await self._open(), *activities.ids_beginning(prefix))
        return the_one(found, prefix, whose="dead letter's id", listed_by="`tenuto dead-letter list`")

    async def get(self, id: UUID) -> Record:
        """A letter with every attempt it tells of, the first one first."""
        database = await self._open()
        found = await dead_letters.letter(database, id)
        if found is None:
            raise await refusal(database, id)
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
            known = await dead_letters.letter(database, id)
            if known is not None and known["retry_task_id"] == request_id:
                return request_id
        anew = None if input is None else partial(self._checked, json.dumps(dict(input)))
        audit_recorder.tell(target=str(id), reason=note, after=None if input is None else {"input": dict(input)})
        done = await retry(
            database, [id], database.clock.now(), self._who(), note=note, input=anew, refuse=True, task=request_id
        )
        if id not in done:
            raise await refusal(database, id)
        return done[id]

    async def acknowledge(self, id: UUID, *, note: str | None = None, request_id: UUID | None = None) -> None:
        """Say that somebody has seen to it; nothing is run. Asking again with the same ``request_id``: so it stays."""
        self._check_note(note)
        database = await self._open()
        audit_recorder.tell(target=str(id), reason=note)
        now, by = database.clock.now(), self._who()
        if not await acknowledge(database, [id], now, by, note=note, request=request_id):
            raise await refusal(database, id)

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
        return await dead_letters.selection(
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
            done += len(await retry(database, some, database.clock.now(), self._who(), note=note, request=request))
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
                await acknowledge(database, some, database.clock.now(), self._who(), note=note, request=request)
            )
        return done

    async def _chosen(self, request: UUID | None, **where: Any) -> Sequence[UUID]:
        """What a filter stands for; for a request that comes again, what it stood for then: what has failed since, such
        as what the request itself had run again, is not part of it."""
        if request is None:
            return await self.select(**where)
        before, since = await dead_letters.resolved_before(await self._open(), request)
        if since is not None:
            until = where.get("until")
            where["until"] = since if until is None else min(until, since)
        return sorted({*before, *await self.select(**where)})

    def _checked(self, text: str, manifest: StoredManifest) -> str:
        """An input as the job of a manifest takes it."""
        return self._jobs.get(manifest.manifest.job).check_input(text)

    def _check_note(self, note: str | None) -> None:
        if note is not None:
            stored_values.storable_text(note, field="note", limit=4000)
        if self._needs_note() and not (note or "").strip():
            raise Invalid("is needed here", field="note", remedy="say why, or set TENUTO_LETTERS_NEED_NOTES=false")


def _parts(chosen: Sequence[UUID]) -> Iterator[Sequence[UUID]]:
    """As many at a time as one transaction takes."""
    for start in range(0, len(chosen), MAX_LISTED):
        yield chosen[start : start + MAX_LISTED]


def _tell_of(chosen: Sequence[UUID], note: str | None) -> None:
    named = [str(id) for id in chosen[:_NAMED]]
    audit_recorder.tell(reason=note, after={"letters": len(chosen), "first": named})
