"""Pages of connected systems and of what guards hold, and the panel of the overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenuto.errors import Invalid
from tenuto.extension import FoundObject, PageRequest
from tenuto.web.components.extension_kit import Action, FilterField, Listing, path_of
from tenuto_identity.model.definitions.system_definitions import SystemDefinition, parse_system
from tenuto_identity.model.schema import Attribute, ContainerSelection, ObjectType, Writable
from tenuto_identity.model.sync.guards import GuardKind, GuardLimits
from tenuto_identity.operations.identity_operations import Hold
from tenuto_identity.pages.page_query import (
    MAX_TEXT_LENGTH,
    Count,
    choice_of,
    counts_of,
    number_of,
    operations,
    text_of,
)
from tenuto_identity.store.definitions import DefinitionKind, RecentRun, SystemRecord, WatermarkRecord
from tenuto_identity.store.list_queries import HeldObject
from tenuto_identity.store.runs import RunRecord

PAGE_SIZE = 100
HELD_SAMPLE = 20
MAX_HOLDS = 20
STATES = {"active": "active", "held": "on hold", "disabled": "disabled", "deleting": "being deleted"}
KINDS = {
    "full_import": "Reads every object",
    "delta_import": "Reads what changed since the last import",
    "full_sync": "Applies the rules to every object",
    "delta_sync": "Applies the rules to changed objects",
    "export": "Sends pending exports",
}
GUARDS = {
    GuardKind.EMPTY_SOURCE: "Empty source",
    GuardKind.EMPTIED: "Emptied",
    GuardKind.DELETIONS: "Deletions in the source",
    GuardKind.CLEARING: "Cleared attribute",
    GuardKind.IDENTITY_DELETIONS: "Deletions of identities",
    GuardKind.EXPORT_DELETES: "Deletes in the target",
}


@dataclass(frozen=True, slots=True)
class SystemRow:
    """A connected system in the list."""

    system: SystemRecord
    path: str
    state: str
    """State of `tenuto.presentation.statuses` with the label beside it."""
    label: str
    last_run: RecentRun | None
    runs: Sequence[RecentRun]
    """The last runs, the oldest first."""


@dataclass(frozen=True, slots=True)
class SystemsPage:
    listing: Listing
    holds: Sequence[SystemRow]


@dataclass(frozen=True, slots=True)
class GuardView:
    """The numbers of a guard that holds something."""

    label: str
    subject: str
    affected: int | None
    total: int | None
    percent: float | None
    limit: str

    @property
    def share(self) -> float:
        """The affected share, as the width of a bar."""
        return min(self.percent or 0.0, 100.0)


@dataclass(frozen=True, slots=True)
class HoldView:
    """What a guard holds, with its approval."""

    system: str
    path: str
    message: str
    is_approved: bool
    held_at: datetime | None
    run_path: str
    what: str
    """What the approval does."""
    guards: Sequence[GuardView]
    objects: Sequence[HeldObject]
    next: str | None
    approve: Action


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A run profile with its last run."""

    name: str
    kind: str
    text: str
    last_run: RunRecord | None
    changes: Sequence[Count]
    run: Action
    preview: Action


@dataclass(frozen=True, slots=True)
class LimitRow:
    name: str
    percent: float
    at_least: int


@dataclass(frozen=True, slots=True)
class AttributeRow:
    name: str
    type: str
    notes: str


@dataclass(frozen=True, slots=True)
class TypeView:
    name: str
    anchor: str
    attributes: Sequence[AttributeRow]


@dataclass(frozen=True, slots=True)
class RuleRow:
    name: str
    direction: str
    flow: str
    scope: str
    attributes: int


@dataclass(frozen=True, slots=True)
class SystemPage:
    row: SystemRow
    hold: HoldView | None
    profiles: Sequence[ProfileRow]
    runs: Sequence[RunRecord]
    problem: str
    """Why this version cannot read the definition; empty if it can."""
    limits: Sequence[LimitRow]
    types: Sequence[TypeView]
    containers: Sequence[ContainerSelection]
    rules: Sequence[RuleRow]
    watermarks: Sequence[WatermarkRecord]
    actions: Sequence[Action]


@dataclass(frozen=True, slots=True)
class HeldPage:
    holds: Sequence[HoldView]
    count: int


# --- lists ----------------------------------------------------------------------------------------------------------


async def load_systems(request: PageRequest) -> SystemsPage:
    state, after = choice_of(request, "state", STATES), text_of(request, "after")
    found = await operations(request).systems(after=after, limit=PAGE_SIZE)
    rows = [_row(each) for each in found]
    shown = [row for row in rows if not state or _state_key(row.system) == state]
    listing = Listing(
        "Connected systems",
        shown,
        "/identity/systems",
        filters=[FilterField("state", "State", state, tuple(STATES.items()))],
        next=found[-1].name if len(found) == PAGE_SIZE else None,
        is_first=not after,
    )
    return SystemsPage(listing, [row for row in rows if row.system.held])


async def load_held(request: PageRequest) -> HeldPage:
    held = [each for each in await operations(request).systems(limit=500) if each.held]
    holds = [await _load_hold(request, each, 0) for each in held[:MAX_HOLDS]]
    return HeldPage([each for each in holds if each is not None], len(held))


async def load_held_panel(request: PageRequest) -> Sequence[SystemRow] | None:
    """Show the panel of the overview only while a guard holds something."""
    held = [_row(each) for each in await operations(request).systems(limit=500) if each.held]
    return held[:MAX_HOLDS] or None


async def search_systems(request: PageRequest) -> Sequence[FoundObject]:
    """Find systems by a part of the name, and identities by a part of the display name."""
    text = request.query["q"].strip()[:MAX_TEXT_LENGTH]
    systems = [each for each in await operations(request).systems(limit=500) if text.lower() in each.name.lower()]
    identities = await operations(request).identities(text=text, limit=10)
    return [
        *(
            FoundObject("connected system", each.name, path_of("identity", "systems", each.name), _state_key(each))
            for each in systems[:10]
        ),
        *(
            FoundObject(each.type, each.display or str(each.id), path_of("identity", "identities", each.id))
            for each in identities
        ),
    ]


# --- one system -----------------------------------------------------------------------------------------------------


async def load_system(request: PageRequest) -> SystemPage:
    name = request.parameters["system"]
    found = await operations(request).system(name)
    record, definition = found.system, found.definition
    parsed, problem = _parse(definition)
    runs = await operations(request).runs(system=name, limit=100)
    rules = await operations(request).definitions(DefinitionKind.SYNC_RULE, limit=500)
    last: dict[str, RunRecord] = {}
    for run in runs:
        last.setdefault(run.profile, run)
    return SystemPage(
        row=_row(record),
        hold=await _load_hold(request, record, number_of(request)),
        profiles=[_profile(record, each, last.get(each["name"])) for each in definition.get("run_profiles", ())],
        runs=runs[:10],
        problem=problem,
        limits=_limits(parsed.guards) if parsed else (),
        types=[_type(each) for each in parsed.types.values()] if parsed else (),
        containers=parsed.containers if parsed else (),
        rules=[row for each in rules if (row := _rule(each.name, each.definition, name)) is not None],
        watermarks=await operations(request).watermarks(name),
        actions=_actions(record),
    )


def _parse(definition: Mapping[str, Any]) -> tuple[SystemDefinition | None, str]:
    """Return a definition, or why it cannot be read: another version may have stored it."""
    try:
        return parse_system(definition), ""
    except Invalid as error:
        return None, error.message


async def _load_hold(request: PageRequest, record: SystemRecord, after: int) -> HoldView | None:
    if not record.held:
        return None
    found = await operations(request).hold(record.name, after=after, limit=HELD_SAMPLE)
    return _hold(record, found)


def _hold(record: SystemRecord, found: Hold) -> HoldView:
    held = record.held or {}
    deletes_only = bool(held.get("deletes_only"))
    what = (
        "Approving lets the next export send the deletes that wait now. Later ones are measured again."
        if deletes_only
        else "Approving applies exactly what is held, without objects that have come back. Syncs and exports run again."
    )
    guards = [_guard(each) for each in found.guards]
    count = sum(each.affected or 0 for each in guards)
    at = held.get("at")
    return HoldView(
        record.name,
        path_of("identity", "systems", record.name),
        found.message,
        found.is_approved,
        datetime.fromisoformat(at) if at else None,
        path_of("identity", "runs", found.run_id),
        what,
        guards,
        found.objects,
        str(found.objects[-1].id) if len(found.objects) == HELD_SAMPLE else None,
        Action(
            "identity_systems_approve",
            "Approve…",
            {"name": record.name},
            body={"run_id": str(found.run_id)},
            title=f"Approve what is held in {record.name}",
            text=f"{found.message}. {what}",
            reason="required",
            submit="Approve",
            done="The hold was approved.",
            style="danger",
            blocked="It is approved; the task that applies it has not ended" if found.is_approved else "",
            expected=count,
        ),
    )


def _guard(guard: Mapping[str, Any]) -> GuardView:
    affected, total = guard.get("affected"), guard.get("total")
    percent = affected * 100 / total if affected is not None and total else None
    limit = ""
    if guard.get("limit_percent") is not None:
        limit = f"more than {guard['limit_percent']:g} %, from {guard['limit_count']:,} on"
    if guard["kind"] == GuardKind.EMPTIED:
        limit = "none of them was read"
    return GuardView(
        GUARDS.get(guard["kind"], str(guard["kind"])), guard.get("subject", ""), affected, total, percent, limit
    )


def _row(record: SystemRecord) -> SystemRow:
    runs = tuple(reversed(record.recent_runs))
    last = record.recent_runs[0] if record.recent_runs else None
    key = _state_key(record)
    state, label = {
        "held": ("awaiting_intervention", "On hold"),
        "disabled": ("off", "Disabled"),
        "deleting": ("stopping", "Being deleted"),
    }.get(key, ("on", "Active"))
    return SystemRow(record, path_of("identity", "systems", record.name), state, label, last, runs)


def _state_key(record: SystemRecord) -> str:
    return "held" if record.held else record.state


def _profile(record: SystemRecord, profile: Mapping[str, Any], last: RunRecord | None) -> ProfileRow:
    name, kind = profile["name"], profile.get("kind", "")
    parameters = {"system": record.name, "profile": name}
    blocked = "" if record.state == "active" else "The system is not active"
    is_held = bool(record.held) and kind in ("full_sync", "delta_sync", "export")
    return ProfileRow(
        name,
        kind,
        KINDS.get(kind, ""),
        last,
        counts_of(last.counts, "changes") if last else (),
        Action(
            "identity_run_profiles_run",
            "Run",
            parameters,
            done=f"{name} of {record.name} was started.",
            goto="/tasks/{task_id}",
            style="small",
            blocked=blocked or ("The system is on hold" if is_held else ""),
        ),
        Action(
            "identity_previews_create",
            "Preview",
            body=parameters,
            done="The preview was started. Nothing is changed or sent.",
            goto="/identity/previews/{preview_id}",
            style="small",
            blocked=blocked,
        ),
    )


def _actions(record: SystemRecord) -> list[Action]:
    parameters = {"name": record.name}
    is_active = record.state == "active"
    switch = Action(
        "identity_systems_disable" if is_active else "identity_systems_enable",
        "Disable…" if is_active else "Enable",
        parameters,
        text=f"Runs of {record.name} are refused until it is enabled." if is_active else "",
        reason="optional" if is_active else "",
        done=f"{record.name} was {'disabled' if is_active else 'enabled'}.",
    )
    return [
        Action(
            "identity_systems_check",
            "Check",
            parameters,
            done="A worker checks the settings and the connection.",
            goto="/tasks/{task_id}",
        ),
        Action(
            "identity_systems_discover",
            "Discover schema",
            parameters,
            done="A worker reads the schema.",
            goto="/tasks/{task_id}",
        ),
        switch,
        Action(
            "identity_systems_clear",
            "Clear…",
            parameters,
            title=f"Clear the connector space of {record.name}",
            text=f"{record.object_count:,} objects and {record.export_count:,} pending exports are deleted here. The"
            " system itself and the metaverse are not touched. An import and a sync join the objects again.",
            reason="required",
            submit="Clear the connector space",
            done="The connector space is being cleared.",
            goto="/tasks/{task_id}",
            style="danger",
            expected=record.object_count,
        ),
    ]


# --- definitions ----------------------------------------------------------------------------------------------------


def _limits(limits: GuardLimits) -> list[LimitRow]:
    """Return the limit of all guards, and those of single ones."""
    others = {GUARDS[kind]: limit for kind, limit in (limits.by_kind or {}).items()}
    named = {"All guards" if not others else "Other guards": limits.default, **others}
    return [LimitRow(name, limit.percent, limit.at_least) for name, limit in named.items()]


def _type(found: ObjectType) -> TypeView:
    return TypeView(found.name, found.anchor, [_attribute(each) for each in found.attributes.values()])


def _attribute(attribute: Attribute) -> AttributeRow:
    notes = [
        *(["sensitive"] if attribute.sensitive else []),
        *(["several values"] if attribute.multi else []),
        *(["read only"] if attribute.writable is Writable.NO else []),
        *(["written on create"] if attribute.writable is Writable.ON_CREATE else []),
        *([f"refers to {attribute.to}"] if attribute.to else []),
    ]
    return AttributeRow(attribute.name, attribute.type.value, ", ".join(notes))


def _rule(name: str, definition: Mapping[str, Any], system: str) -> RuleRow | None:
    """Return a rule of the system; None for a rule of another one."""
    inbound, outbound = definition.get("in"), definition.get("out")
    ends = inbound or outbound or {}
    if ends.get("system") != system:
        return None
    flow = f"{ends.get('type')} → {ends.get('to')}" if inbound else f"{ends.get('from')} → {ends.get('type')}"
    mapped = definition.get("map") or {}
    same = mapped.get("same") or ()
    count = len(same) + sum(1 for key in mapped if key != "same")
    return RuleRow(name, "in" if inbound else "out", flow, str(definition.get("scope") or "every object"), count)
