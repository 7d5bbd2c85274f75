"""Dead letters are resolved here: run again, with another input if need be, or acknowledged.

A letter and the task that runs it again are one transaction, under the letter's lock: of two who decide at once, one
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from tenuto.engine.manager import run_of
from tenuto.errors import Conflict, NotFound
from tenuto.ids import new_id
from tenuto.model.access import Actor
from tenuto.store import batches, chainsteps, deadletters, manifests
from tenuto.store.database import Connection, Database
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
        named, lots = await deadletters.concerned(connection, ids)
        held = await batches.shared(connection, lots)
        kept = await manifests.locked_any(connection, named)
        letters = await deadletters.lock_open(connection, ids)
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
            await chainsteps.carry_over(connection, run_again)
        await deadletters.resolve(connection, pairs, now, by, note, asked)
        return await deadletters.resolved_by(connection, ids, asked)

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
        letters = await deadletters.lock_open(connection, ids)
        await deadletters.resolve(connection, [(letter["id"], None) for letter in letters], now, by, note, asked)
        return set(await deadletters.resolved_by(connection, ids, asked))

    return await database.transaction(act)


async def refusal(database: Database, id: UUID) -> NotFound | Conflict:
    """Why a letter could not be resolved."""
    found = await deadletters.letter(database, id)
    if found is None:
        return NotFound(f"there is no dead letter {id}", remedy="see `tenuto dead-letter list`")
    return Conflict(
        f"dead letter {id} was {found['status']} by {found['resolved_name']}",
        remedy=f"see what became of it: tenuto dead-letter show {id}",
    )
