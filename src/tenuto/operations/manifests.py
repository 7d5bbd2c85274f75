"""``app.manifests``: job definitions, their versions, groups and runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel

from tenuto.definitions import manifest_definitions
from tenuto.definitions.declarations import Effect
from tenuto.definitions.manifest_files import DeclaredManifest
from tenuto.definitions.versioned import Author
from tenuto.errors import Conflict, Invalid, NotFound, UnknownJob
from tenuto.ids import new_id
from tenuto.jobs.registry import Job, Jobs
from tenuto.model import stored_values
from tenuto.model.actors import Actor
from tenuto.model.manifests import Manifest, ScheduleType, those_needed_first
from tenuto.model.policies import Policy, RetryPolicy, retry_policy
from tenuto.model.steps import policy_of
from tenuto.model.tasks import seconds
from tenuto.model.triggers import Manual, Trigger
from tenuto.operations.listing import MAX_LISTED, Open, Record, listed
from tenuto.postgres.database import Connection, Database
from tenuto.scheduling import manifest_manager
from tenuto.scheduling.manifest_manager import PollResult
from tenuto.store import manifests
from tenuto.store import tasks as queue
from tenuto.store.access import audit_recorder
from tenuto.store.definition_rows import Version
from tenuto.store.manifests import StoredManifest

_RULES = ("timeout", "retry", "max_retries", "on_lost")


class Manifests:
    """``app.manifests``: job definitions, their versions, groups and runs."""

    def __init__(self, open: Open, who: Callable[[], Actor], jobs: Jobs) -> None:
        self._open = open
        self._who = who
        self._jobs = jobs
        self.declared: dict[str, Manifest] = {}
        """What this program declares, by external id."""

    # --- declared in code -------------------------------------------------------------------------------------------

    def declare(self, new: Manifest) -> Manifest:
        """Remember a manifest of this program; it comes into force when a service starts, or with `deploy`."""
        if new.external_id in self.declared:
            raise Invalid(f"{new.external_id!r} is declared already", field="external_id")
        self.declared[new.external_id] = new
        return new

    async def deploy(self, database: Database | None = None) -> dict[str, Effect]:
        """Bring everything this program declares into force, as far as it says something new."""
        if not self.declared:
            return {}
        return await self.apply(self.declared.values(), origin="code", reason="declared in code", database=database)

    async def apply(
        self,
        wanted: Iterable[Manifest],
        *,
        origin: str = "file",
        reason: str | None = None,
        database: Database | None = None,
    ) -> dict[str, Effect]:
        """Bring definitions into force, those that others run after first; what became of each."""
        database = database or await self._open()
        effects: dict[str, Effect] = {}
        for each in those_needed_first([self.checked(each) for each in wanted]):
            effects[each.external_id] = await manifest_definitions.declare(
                database, each, self._author(database, reason, origin)
            )
        await self._tell(database)
        return effects

    def checked(self, manifest: Manifest) -> Manifest:
        """A manifest whose job is known and whose properties fit it."""
        job = self._jobs.get(manifest.job)
        properties = _fitting(job, manifest.properties)
        if manifest.schedule_type not in (ScheduleType.ON_DEMAND, ScheduleType.NONE):
            missing = sorted(job.required - properties.keys())
            if missing:
                raise Invalid("is needed: it runs by itself", field=f"properties.{missing[0]}")
        kept = ", ".join(f"{name}: {_type_name(job.parameters[name])}" for name in properties)
        return replace(manifest, properties=properties, property_type=kept)

    def whole(self, declared: DeclaredManifest) -> Manifest:
        """A manifest as a file says it, with what the file leaves to the job."""
        try:
            job = self._jobs.get(declared.job)
        except UnknownJob as error:
            raise Invalid(str(error), field="job", remedy="name a job of the app, or the app with --app") from error
        rules = {name: declared.said[name] for name in _RULES if name in declared.said}
        said = {name: value for name, value in declared.said.items() if name not in _RULES}
        made = manifest_of(job, declared.external_id, **said)
        return self.checked(replace(made, policy=policy_of(job.policy, **rules)))

    # --- changing ---------------------------------------------------------------------------------------------------

    async def create(
        self, new: Manifest, *, enabled: bool = True, reason: str | None = None, request_id: UUID | None = None
    ) -> StoredManifest:
        """Make a manifest. Asking again with the same ``request_id`` makes one."""
        database = await self._open()
        made = await manifest_definitions.create(
            database, self.checked(new), self._author(database, reason), enabled=enabled, id=request_id
        )
        await self._tell(database)
        return made

    async def edit(
        self, external_id: str, new: Manifest, *, reason: str | None = None, version: int | None = None
    ) -> StoredManifest:
        """Change a manifest; with ``version``, only if nobody has changed it since that one."""
        database = await self._open()
        author = self._author(database, reason)
        present = (await manifest_definitions.get(database, external_id)).manifest
        if _input_of(new) != _input_of(present):  # else checked when it was saved: no need to have its job at hand
            new = self.checked(new)
        changed = await manifest_definitions.edit(database, external_id, new, author, version=version)
        await self._tell(database)
        return changed

    async def enable(self, external_id: str, *, reason: str | None = None) -> bool:
        """Switch a manifest on, from now on; False if it was on."""
        return await self._switch(external_id, reason, enabled=True)

    async def disable(self, external_id: str, *, reason: str | None = None) -> bool:
        """Switch a manifest off: it does not run by itself. False if it was off."""
        return await self._switch(external_id, reason, enabled=False)

    async def _switch(self, external_id: str, reason: str | None, *, enabled: bool) -> bool:
        database = await self._open()
        switched = await manifest_definitions.switch(
            database, external_id, self._author(database, reason), enabled=enabled
        )
        await self._tell(database)
        return switched

    async def delete(self, external_id: str, *, reason: str | None = None, version: int | None = None) -> None:
        """Delete a manifest of which nothing is open; what it did stays on record. With ``version``, only if nobody
        has changed it since that one."""
        database = await self._open()
        await manifest_definitions.delete(database, external_id, self._author(database, reason), version=version)

    # --- asking -----------------------------------------------------------------------------------------------------

    async def get(self, external_id: str) -> StoredManifest:
        """The manifest of that external id."""
        return await manifest_definitions.get(await self._open(), external_id)

    async def list(
        self,
        *,
        after: str | None = None,
        enabled: bool | None = None,
        group: str | None = None,
        search: str | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """Manifests by external id, each with what is open of it."""
        return await manifests.list_manifests(
            await self._open(), after=after, enabled=enabled, group=group, search=search, limit=listed(limit)
        )

    async def versions(
        self, external_id: str | UUID, *, before: tuple[datetime, int] | None = None, limit: int = 50
    ) -> Sequence[Version]:
        """The changes of every manifest that has had this external id, or of the one with this id, the newest first;
        also of one that has been deleted. The next page is ``before`` the last (at, version)."""
        found = await manifests.versions(await self._open(), external_id, listed(limit), before)
        if not found and before is None:
            raise manifest_definitions.unknown(str(external_id))
        return found

    async def details(self, external_id: str, *, limit: int = 5) -> Record:
        """What goes on with a manifest: what is open of it, its last runs, its group, who runs after it, letters."""
        database = await self._open()
        stored = await manifest_definitions.get(database, external_id)
        return {"manifest": stored, **await manifests.details(database, stored, listed(limit))}

    async def polls(self, *, below: UUID | None = None, busy: bool = False, limit: int = 50) -> Sequence[Record]:
        """What the manager did, the newest first; with ``busy`` only where it did something."""
        return await manifests.polls(await self._open(), below=below, busy=busy, limit=listed(limit))

    # --- groups -----------------------------------------------------------------------------------------------------

    async def groups(self, *, after: str | None = None, limit: int = MAX_LISTED) -> Sequence[Record]:
        """The groups of manifests (``*``: all together) by name, with what is active of each."""
        return await manifests.list_groups(await self._open(), after=after, limit=listed(limit))

    async def group(self, name: str) -> Record:
        """One group, with what is active of it."""
        found = await manifests.list_groups(await self._open(), [name])
        if not found:
            raise NotFound(f"there is no group {name!r:.80}", remedy="see `tenuto manifest groups`")
        return found[0]

    async def change_group(
        self,
        name: str,
        *,
        max_active: int | Literal["keep"] | None = "keep",
        priority: int | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Set how many of a group may be active, its priority, and whether anything of it may begin."""
        if name != manifests.ALL:
            stored_values.name(name, field="group", limit=64)
        database = await self._open()
        await manifest_definitions.change_group(
            database,
            name,
            database.clock.now(),
            self._who(),
            max_active=max_active,
            priority=priority,
            enabled=enabled,
        )
        await queue.wake(database, ["limits"])

    # --- running ----------------------------------------------------------------------------------------------------

    async def run(
        self, external_id: str, arguments: Mapping[str, Any] | None = None, *, request_id: UUID | None = None
    ) -> UUID:
        """Run a manifest once, now, with its properties and these arguments; the id of the task.

        Refused while an earlier run of it is not over. Asking again with the same ``request_id`` runs it once.
        """

        def input_for(held: StoredManifest) -> str:
            return self._job(held).dump_input((), {**held.manifest.properties, **(arguments or {})})

        return await self._start(external_id, input_for, None, request_id)

    async def enqueue(
        self, external_id: str, item: Any, *, key: str | None = None, request_id: UUID | None = None
    ) -> UUID:
        """Have a manifest run for one item; the id of the task. An item whose key is open already is refused. Asking
        again with the same ``request_id`` creates one task."""
        if key is not None:
            stored_values.label(key, field="key")
        return await self._start(external_id, lambda held: self.dumper(held)(item), key or str(new_id()), request_id)

    async def _start(
        self, external_id: str, input_for: Callable[[StoredManifest], str], key: str | None, request_id: UUID | None
    ) -> UUID:
        database = await self._open()
        now, by, id = database.clock.now(), self._who(), request_id or new_id()
        audit_recorder.tell(target=external_id, after={"task_id": str(id), "item": key})
        sent = request_id is not None

        async def act(connection: Connection) -> UUID:
            nonlocal sent
            held = await manifests.locked(connection, external_id)
            # Asked while it is held: whoever made it with this id has committed by then, and it cannot end unseen.
            if sent and await connection.fetchval(queue.SQL.standing, id, None) is not None:
                audit_recorder.changed_nothing()
                return id  # only the reply was lost; by now it may even have ended
            sent = True
            if held is None:
                raise manifest_definitions.unknown(external_id)
            group = await manifests.group(connection, held.manifest.group) if held.manifest.group else None
            run = manifest_manager.run_of(
                held.id, held.manifest, now, by, id=id, input=input_for(held), item_key=key,
                group_priority=0 if group is None else group["priority"],
            )  # fmt: skip
            if not await manifests.start_runs(connection, [run]):
                what = f"an earlier run of {external_id!r}" if key is None else f"the item {key!r}"
                raise Conflict(f"{what} is not over", remedy="wait for it, or cancel it")
            if key is None:
                await manifests.ran(connection, [(held.id, now, held.next_run_at)])
            return id

        return await database.transaction(act)

    async def poll(self) -> PollResult:
        """Reap, determine and enqueue here and now, as a manager does."""
        database = await self._open()
        return await manifest_manager.poll(database, database.clock.now(), self._who().name)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _job(self, stored: StoredManifest) -> Job[..., Any]:
        return self._jobs.get(stored.manifest.job)

    def dumper(self, stored: StoredManifest) -> Callable[[Any], str]:
        """What makes the stored input of one item."""
        return _dumper(self._job(stored), stored.manifest.properties)

    def _author(self, database: Database, reason: str | None, origin: str = "hand") -> Author:
        return Author(self._who(), database.clock.now(), reason, origin)

    async def _tell(self, database: Database) -> None:
        await queue.wake(database, ["manifests", "limits"])


def _input_of(manifest: Manifest) -> tuple[Any, ...]:
    by_itself = manifest.schedule_type not in (ScheduleType.ON_DEMAND, ScheduleType.NONE)
    return manifest.job, dict(manifest.properties), by_itself


def manifest_of(
    job: Job[..., Any],
    external_id: str,
    *,
    trigger: Trigger | None = None,
    on_demand: bool = False,
    after: Manifest | str | None = None,
    properties: Any = None,
    name: str = "",
    description: str = "",
    max_retries: int | None = None,
    retry: RetryPolicy | None = None,
    timeout: float | str | timedelta | None = None,
    queue: str | None = None,
    priority: int | None = None,
    group: str | None = None,
    max_active: int | None = None,
) -> Manifest:
    """A manifest of a job: what is not said is as the job has it."""
    own_retry = job.policy.retry if max_retries is None and retry is None else retry_policy(max_retries, retry)
    limit = job.policy.timeout_seconds if timeout is None else seconds(timeout, field="timeout")
    return Manifest(
        external_id,
        job.name,
        name,
        description,
        _fitting(job, properties_of(job, properties)),
        "",
        trigger or Manual(),
        on_demand,
        after.external_id if isinstance(after, Manifest) else after,
        Policy(own_retry, limit, job.policy.on_lost),
        queue or job.using_.queue,
        job.using_.priority if priority is None else priority,
        group,
        job.using_.limit if max_active is None else max_active,
    )


def _fitting(job: Job[..., Any], properties: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return job.check_some(properties)
    except Invalid as error:
        raise Invalid(error.message, field=f"properties.{error.field}", remedy=error.remedy) from error


def properties_of(job: Job[..., Any], given: Any) -> dict[str, Any]:
    """Properties as arguments: a mapping of them, or a value of the type of one parameter."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    fitting = [name for name, annotation in job.parameters.items() if annotation is type(given)]
    if len(fitting) == 1:
        return {fitting[0]: given}
    if isinstance(given, BaseModel):
        fields = {name: getattr(given, name) for name in type(given).model_fields}
    elif dataclasses.is_dataclass(given) and not isinstance(given, type):
        fields = {each.name: getattr(given, each.name) for each in dataclasses.fields(given)}
    else:
        fields = {}
    if fields and fields.keys() <= job.parameters.keys():
        return fields
    known = ", ".join(f"{name}: {_type_name(kind)}" for name, kind in job.parameters.items()) or "no parameters"
    raise Invalid(
        f"{type(given).__name__} fits no parameter of {job.name}", field="properties", remedy=f"it has {known}"
    )


def _dumper(job: Job[..., Any], properties: Mapping[str, Any]) -> Callable[[Any], str]:
    free = [name for name in job.parameters if name not in properties]
    names = job.parameters.keys()

    def dump(item: Any) -> str:
        if (type(item) is dict or isinstance(item, Mapping)) and item.keys() <= names:
            return job.dump_input((), {**properties, **item})
        if not free:
            raise Invalid(f"{job.name} has no parameter left for it", field="input")
        return job.dump_input((), {**properties, free[0]: item})

    return dump


def _type_name(annotation: Any) -> str:
    return getattr(annotation, "__name__", str(annotation))
