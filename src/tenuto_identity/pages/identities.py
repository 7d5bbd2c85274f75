"""Pages of identities and of connector space objects: search, and the explanation of one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid, NotFound
from tenuto.extension import PageRequest
from tenuto.web.components.extension_kit import Action, FieldChange, FilterField, Listing, path_of
from tenuto_identity.model.definitions.system_definitions import parse_system
from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.sync.explanation import (
    AttributeExplanation,
    ContributionExplanation,
    DeletedExplanation,
    IdentityExplanation,
    ObjectExplanation,
    ScopeExplanation,
    SourceExplanation,
    TargetAttributeExplanation,
    TargetExplanation,
)
from tenuto_identity.model.values import DataType
from tenuto_identity.pages.page_query import (
    PAGE_SIZE,
    before_and_after,
    choice_of,
    id_of,
    label_of,
    number_of,
    operations,
    reveals,
    text_of,
    values_text,
)
from tenuto_identity.store.definitions import DefinitionKind
from tenuto_identity.store.list_queries import HistoryEntry, IdentityRecord, ObjectRecord

HISTORY_SIZE = 20
MAX_NAMES = 100
DELETION = {"scheduled": "deletion scheduled", "none": "not to be deleted"}
JOINED = {"yes": "joined", "no": "not joined"}
ACTIONS = {
    "nothing": "Up to date",
    "provision": "The next sync creates the object",
    "join": "The next sync joins an existing object",
    "update": "The next sync stages an update",
    "delete": "The next sync stages a delete",
    "disconnect": "The next sync disconnects the object",
    "withdraw": "The next sync withdraws the pending export",
    "remove": "The next sync removes the object, which was never created",
}
JOIN_KINDS = {"projected": "created the identity", "joined": "joined by a match", "provisioned": "created by a rule"}
EXPORT_STATES = {
    "pending": ("scheduled", "waiting to be sent"),
    "executing": ("running", "being sent"),
    "exported": ("waiting", "sent, not confirmed yet"),
    "unconfirmed": ("retrying", "not confirmed"),
    "failed": ("failed", "given up"),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """A value; a reference has the page of its identity."""

    text: str
    path: str | None = None


@dataclass(frozen=True, slots=True)
class ContributionRow:
    """What one joined object supplies for an attribute."""

    contribution: ContributionExplanation
    origin: str
    """The attribute or the expression it comes from."""
    inputs: Sequence[tuple[str, str]]
    values: Sequence[Shown]


@dataclass(frozen=True, slots=True)
class AttributeView:
    """One attribute of the identity with its origin."""

    name: str
    values: Sequence[Shown]
    winner: ContributionRow | None
    others: Sequence[ContributionRow]
    reason: str | None


@dataclass(frozen=True, slots=True)
class TermRow:
    term: str
    result: str
    inputs: str


@dataclass(frozen=True, slots=True)
class ScopeRow:
    """Whether a rule applies, and why not."""

    rule: str
    in_scope: bool
    expression: str | None
    terms: Sequence[TermRow]
    error: str | None


@dataclass(frozen=True, slots=True)
class TargetAttributeRow:
    """One attribute in a target: desired, in the system, and the pending change."""

    name: str
    rule: str | None
    desired: Sequence[Shown]
    imported: Sequence[Shown]
    pending: str
    observed: str | None
    is_equal: bool


@dataclass(frozen=True, slots=True)
class SystemCard:
    """One system around the identity: the joined object, what it supplies and what it is sent."""

    system: str
    path: str
    object_path: str | None
    name: str
    """Address or anchor of the object."""
    state: str
    label: str
    facts: Sequence[tuple[str, str]]
    supplies: Sequence[str]
    """Attributes of the identity whose value comes from here."""
    scopes: Sequence[ScopeRow]
    is_target: bool
    export: tuple[str, str] | None
    """State and label of its pending export."""
    export_text: str
    error: str | None
    attributes: Sequence[TargetAttributeRow]
    notes: Sequence[str]
    sync: Action | None


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A change as a sentence with its values."""

    entry: HistoryEntry
    sentence: str
    run_path: str
    changes: Sequence[FieldChange]


@dataclass(frozen=True, slots=True)
class IdentityPage:
    record: IdentityRecord
    explanation: IdentityExplanation
    name: str
    attributes: Sequence[AttributeView]
    empty_attributes: Sequence[str]
    systems: Sequence[SystemCard]
    history: Listing
    forget: Action


@dataclass(frozen=True, slots=True)
class DeletedPage:
    explanation: DeletedExplanation
    name: str
    history: Listing
    forget: Action


@dataclass(frozen=True, slots=True)
class IdentityView:
    """An identity, or what the history knows of a deleted one."""

    found: IdentityPage | None
    deleted: DeletedPage | None


@dataclass(frozen=True, slots=True)
class MatchRow:
    rule: str
    attribute: str
    keys: str
    hits: Sequence[Shown]
    reason: str


@dataclass(frozen=True, slots=True)
class ObjectPage:
    record: ObjectRecord | None
    system: str
    anchor: str
    system_path: str
    values: Sequence[tuple[str, str]]
    identity: Shown | None
    scopes: Sequence[ScopeRow]
    matches: Sequence[MatchRow]
    projected_by: str | None
    is_explained: bool
    """Whether the object is not joined, so that the page says why."""
    deleted: Shown | None
    """The identity of an object that was deleted."""
    actions: Sequence[Action]


# --- lists ----------------------------------------------------------------------------------------------------------


async def load_identities(request: PageRequest) -> Listing:
    text, type, after = text_of(request, "q"), text_of(request, "type"), number_of(request)
    deletion = choice_of(request, "deletion", DELETION)
    types = await operations(request).definitions(DefinitionKind.METAVERSE_TYPE, limit=500)
    found = await operations(request).identities(
        type=type or None,
        text=text or None,
        deletion_scheduled=None if not deletion else deletion == "scheduled",
        after=after,
        limit=PAGE_SIZE,
        reveals=reveals(request),
    )
    return Listing(
        "Identities",
        found,
        "/identity/identities",
        filters=[
            FilterField("q", "Name contains", text),
            FilterField("type", "Type", type, [(each.name, each.name) for each in types]),
            FilterField("deletion", "Deletion", deletion, tuple(DELETION.items())),
        ],
        next=str(found[-1].id) if len(found) == PAGE_SIZE else None,
        is_first=not after,
    )


async def load_objects(request: PageRequest) -> Listing:
    text, system, after = text_of(request, "q"), text_of(request, "system"), number_of(request)
    state = choice_of(request, "state", [each.value for each in ObjectState])
    joined = choice_of(request, "joined", JOINED)
    systems = await operations(request).systems(limit=500)
    found = await operations(request).objects(
        system=system or None,
        state=state or None,
        joined=None if not joined else joined == "yes",
        text=text or None,
        after=after,
        limit=PAGE_SIZE,
        reveals=reveals(request),
    )
    return Listing(
        "Connector space",
        found,
        "/identity/objects",
        filters=[
            FilterField("q", "Anchor or address begins with", text),
            FilterField("system", "System", system, [(each.name, each.name) for each in systems]),
            FilterField("state", "State", state, [each.value for each in ObjectState]),
            FilterField("joined", "Join", joined, tuple(JOINED.items())),
        ],
        next=str(found[-1].id) if len(found) == PAGE_SIZE else None,
        is_first=not after,
    )


# --- one identity ---------------------------------------------------------------------------------------------------


async def load_identity(request: PageRequest) -> IdentityView:
    id = id_of(request, "id")
    explanation = await operations(request).explain_identity(id, reveals=reveals(request))
    history = await _load_history(request, id)
    forget = Action(
        "identity_identities_forget",
        "Forget history…",
        {"id": id},
        title="Erase the history of this identity",
        text="Changes and the values in results of runs are erased for ever. Current values stay.",
        reason="required",
        submit="Erase the history",
        done="The history was erased.",
        style="danger",
    )
    if isinstance(explanation, DeletedExplanation):
        name = explanation.display or f"{explanation.type or 'identity'} {id}"
        return IdentityView(None, DeletedPage(explanation, name, history, forget))
    record = await operations(request).identity(id, reveals=reveals(request))
    names = await _load_names(request, record, explanation)
    objects = await operations(request).objects(identity=id, limit=100, reveals=reveals(request))
    references = await _load_reference_attributes(request)
    attributes = [
        _attribute(each, set(record.reference_ids), names)
        for each in sorted(explanation.attributes, key=lambda each: (not each.values, each.name))
    ]
    return IdentityView(
        IdentityPage(
            record,
            explanation,
            record.display or f"{record.type} {record.id}",
            [each for each in attributes if each.values or each.others or each.winner],
            [each.name for each in attributes if not (each.values or each.others or each.winner)],
            _cards(explanation, objects, references, names),
            history,
            forget,
        ),
        None,
    )


async def _load_names(
    request: PageRequest, record: IdentityRecord, explanation: IdentityExplanation
) -> Mapping[int, str]:
    """Return the display names of the identities that this one refers to."""
    ids = {int(each) for values in record.reference_ids.values() for each in values if str(each).isdigit()}
    for target in explanation.targets:
        for attribute in target.attributes:
            ids |= {each for each in attribute.imported if isinstance(each, int) and not isinstance(each, bool)}
    if not ids:
        return {}
    found = await operations(request).identities(ids=sorted(ids)[:MAX_NAMES], limit=MAX_NAMES)
    return {each.id: each.display or str(each.id) for each in found}


async def _load_reference_attributes(request: PageRequest) -> Mapping[str, frozenset[str]]:
    """Return the names of reference attributes by system."""
    found: dict[str, frozenset[str]] = {}
    for each in await operations(request).definitions(DefinitionKind.SYSTEM, limit=500):
        try:
            parsed = parse_system(each.definition)
        except Invalid:  # stored by another version
            continue
        found[each.name] = frozenset(
            name
            for type in parsed.types.values()
            for name, attribute in type.attributes.items()
            if attribute.type is DataType.REFERENCE
        )
    return found


def _attribute(found: AttributeExplanation, references: set[str], names: Mapping[int, str]) -> AttributeView:
    rows = [_contribution(each, found.name in references, names) for each in found.contributions]
    winner = next((row for row in rows if row.contribution.wins), None)
    return AttributeView(
        found.name,
        _shown(found.values, found.name in references, names),
        winner,
        [row for row in rows if row is not winner],
        found.reason,
    )


def _contribution(each: ContributionExplanation, is_reference: bool, names: Mapping[int, str]) -> ContributionRow:
    return ContributionRow(
        each,
        each.expression or (each.source or ""),
        [(name, values_text(value)) for name, value in each.inputs.items()] if each.expression else [],
        _shown(each.values, is_reference, names),
    )


def _shown(values: Iterable[object], is_reference: bool, names: Mapping[int, str]) -> list[Shown]:
    if not is_reference:
        return [Shown(str(value)) for value in values]
    return [
        Shown(names.get(value, f"identity {value}"), path_of("identity", "identities", value))
        if isinstance(value, int)
        else Shown(str(value))
        for value in values
    ]


def _cards(
    explanation: IdentityExplanation,
    objects: Sequence[ObjectRecord],
    references: Mapping[str, frozenset[str]],
    names: Mapping[int, str],
) -> list[SystemCard]:
    """Return one card for each system: sources first, then targets without an object."""
    stored = {each.system: each for each in objects}
    sources = {each.system: each for each in explanation.sources}
    targets = {each.system: each for each in explanation.targets}
    supplies: dict[str, list[str]] = {}
    for attribute in explanation.attributes:
        for each in attribute.contributions:
            if each.wins and attribute.name not in supplies.setdefault(each.system, []):
                supplies[each.system].append(attribute.name)
    ordered = sorted({*sources, *targets}, key=lambda name: (name not in supplies, name))
    return [
        _card(
            name,
            sources.get(name),
            targets.get(name),
            stored.get(name),
            supplies.get(name, []),
            references.get(name, frozenset()),
            names,
        )
        for name in ordered
    ]


def _card(
    name: str,
    source: SourceExplanation | None,
    target: TargetExplanation | None,
    stored: ObjectRecord | None,
    supplies: Sequence[str],
    references: frozenset[str],
    names: Mapping[int, str],
) -> SystemCard:
    anchor = stored.anchor if stored else (source.anchor if source else None)
    facts: list[tuple[str, str]] = []
    if anchor:
        facts.append(("Anchor", anchor))
    if source and source.join_kind:
        pinned = ", decided by a user" if stored and stored.pinned else ""
        facts.append(("Join", JOIN_KINDS.get(source.join_kind, source.join_kind) + pinned))
    object_state = source.state if source else None
    state, label = ("done", "Joined") if source else ("not_run", "No object here")
    if object_state == ObjectState.PROVISIONING.value:
        state, label = "scheduled", "Being created"
    elif object_state == ObjectState.OBSOLETE.value:
        state, label = "stopping", "Deleted in the system"
    export = None if target is None or target.export_state is None else EXPORT_STATES.get(target.export_state)
    export_text = ""
    if target is not None:
        export_text = ACTIONS.get(target.action, target.action)
    sync = None
    if anchor and stored:
        sync = Action(
            "identity_objects_sync",
            "Sync now",
            body={"system": name, "anchor": anchor, "export": False},
            done=f"{anchor} of {name} is imported and synchronised.",
            goto="/tasks/{task_id}",
            style="small",
        )
    return SystemCard(
        system=name,
        path=path_of("identity", "systems", name),
        object_path=path_of("identity", "objects", name, anchor) if anchor else None,
        name=(stored.address if stored and stored.address else None)
        or (target.address if target and target.address else None)
        or anchor
        or "",
        state=state,
        label=label,
        facts=facts,
        supplies=sorted(supplies),
        scopes=[_scope(each) for each in (*(source.scopes if source else ()), *(target.scopes if target else ()))],
        is_target=target is not None,
        export=export,
        export_text=export_text,
        error=target.error if target else None,
        attributes=[_target_attribute(each, references, names) for each in (target.attributes if target else ())],
        notes=target.notes if target else (),
        sync=sync,
    )


def _target_attribute(
    each: TargetAttributeExplanation, references: frozenset[str], names: Mapping[int, str]
) -> TargetAttributeRow:
    is_reference = each.name in references
    pending = [_pending_text(change, each.desired, is_reference, names) for change in each.pending]
    observed = next((change["observed"] for change in each.pending if change["observed"] is not None), None)
    return TargetAttributeRow(
        each.name,
        each.rule,
        _shown(each.desired, is_reference, names),
        _shown(each.imported, is_reference, names),
        "; ".join(pending),
        None if observed is None or list(observed) == list(each.imported) else values_text(observed) or "no value",
        tuple(map(str, each.desired)) == tuple(map(str, each.imported)),
    )


def _pending_text(
    change: Mapping[str, Any], desired: Sequence[Any], is_reference: bool, names: Mapping[int, str]
) -> str:
    """Return the state of a change, with its values only where they are not those that are desired."""
    state: str = EXPORT_STATES.get(change["state"], ("", change["state"]))[1]
    if change["op"] == "set" and list(change["values"]) == list(desired):
        return state
    values = ", ".join(shown.text for shown in _shown(change["values"], is_reference, names))
    return f"{change['op']} {values}".strip() + f": {state}"


def _scope(scope: ScopeExplanation) -> ScopeRow:
    return ScopeRow(
        scope.rule,
        scope.in_scope,
        scope.expression,
        [
            TermRow(
                each.term,
                str(each.result).lower() if isinstance(each.result, bool) else str(each.result),
                ", ".join(f"{name} = {values_text(value) or 'none'}" for name, value in each.inputs.items()),
            )
            for each in scope.terms
        ],
        scope.error,
    )


# --- history --------------------------------------------------------------------------------------------------------


async def _load_history(request: PageRequest, id: int) -> Listing:
    before = _history_cursor(request)
    found = await operations(request).history(id, before=before, limit=HISTORY_SIZE, reveals=reveals(request))
    last = found[-1] if len(found) == HISTORY_SIZE else None
    return Listing(
        "History",
        [_history_row(each) for each in found],
        path_of("identity", "identities", id),
        cursor="before",
        next=f"{last.run_id}.{last.item_number}.{last.subject}" if last else None,
        is_first=before is None,
    )


def _history_cursor(request: PageRequest) -> tuple[UUID, int, str] | None:
    text = request.query.get("before")
    if not text:
        return None
    run_id, _, rest = text.partition(".")
    number, _, subject = rest.partition(".")
    try:
        return UUID(run_id), int(number), {"object": "object", "identity": "identity"}[subject]
    except (ValueError, KeyError):
        raise Invalid(
            "the parameter before is not the position in a history",
            code="identity.page.cursor_invalid",
            field="before",
            remedy="open the first page of the history",
        ) from None


def _history_row(entry: HistoryEntry) -> HistoryRow:
    who = "The identity" if entry.subject == "identity" else f"The object {entry.anchor or entry.subject_id}"
    where = f" in {entry.system}" if entry.system and entry.subject == "object" else ""
    by = f" by {entry.profile} of {entry.system}" if entry.profile else ""
    return HistoryRow(
        entry,
        f"{who}{where}: {label_of(entry.change or 'changed').lower()}{by}",
        path_of("identity", "runs", entry.run_id),
        [FieldChange(name, *before_and_after(diff)) for name, diff in sorted(entry.diff.items())],
    )


# --- one object -----------------------------------------------------------------------------------------------------


async def load_object(request: PageRequest) -> ObjectPage:
    system, anchor = request.parameters["system"], request.parameters["anchor"]
    explanation = await operations(request).explain(system, anchor, reveals=reveals(request))
    system_path = path_of("identity", "systems", system)
    try:
        record = await operations(request).object(system, anchor, reveals=reveals(request))
    except NotFound:
        record = None
    if record is None:
        deleted = None
        if isinstance(explanation, DeletedExplanation | IdentityExplanation):
            deleted = Shown(f"identity {explanation.id}", path_of("identity", "identities", explanation.id))
        return ObjectPage(None, system, anchor, system_path, (), None, (), (), None, False, deleted, ())
    values = {**record.attributes, **record.reference_values}
    identity = None
    if record.metaverse_id is not None:
        names = {each.id: each.display for each in await operations(request).identities(ids=[record.metaverse_id])}
        name = names.get(record.metaverse_id) or f"identity {record.metaverse_id}"
        identity = Shown(name, path_of("identity", "identities", record.metaverse_id))
    unjoined = explanation if isinstance(explanation, ObjectExplanation) else None
    return ObjectPage(
        record,
        system,
        anchor,
        system_path,
        [(name, values_text(values[name])) for name in sorted(values)],
        identity,
        [_scope(each) for each in unjoined.scopes] if unjoined else (),
        [
            MatchRow(
                each.rule,
                each.attribute,
                values_text(each.keys),
                [Shown(f"identity {hit}", path_of("identity", "identities", hit)) for hit in each.hits],
                each.reason,
            )
            for each in unjoined.matches
        ]
        if unjoined
        else (),
        unjoined.projected_by if unjoined else None,
        unjoined is not None,
        None,
        _object_actions(record),
    )


def _object_actions(record: ObjectRecord) -> list[Action]:
    body = {"system": record.system, "anchor": record.anchor}
    actions = [
        Action(
            "identity_objects_sync",
            "Sync now",
            body={**body, "export": False},
            done="The object is imported and synchronised.",
            goto="/tasks/{task_id}",
        )
    ]
    if record.metaverse_id is None:
        actions.append(
            Action(
                "identity_objects_join",
                "Join…",
                title=f"Join {record.anchor} to an identity",
                text="The rules leave the join as it is until the object is returned to them.",
                fields=[{"name": "identity", "label": "Id of the identity", "required": True}],
                body=body,
                reason="optional",
                submit="Join",
                done="The object was joined. The next sync applies it.",
            )
        )
    else:
        actions.append(
            Action(
                "identity_objects_unjoin",
                "Disconnect…",
                title=f"Disconnect {record.anchor} from its identity",
                text="The rules do not join it again until it is returned to them. What it contributed is withdrawn by"
                " the next sync.",
                body=body,
                reason="required",
                submit="Disconnect",
                done="The object was disconnected.",
                style="danger",
            )
        )
    if record.pinned:
        actions.append(
            Action(
                "identity_objects_unpin",
                "Return to the rules",
                body=body,
                done="The next sync may join or disconnect it.",
            )
        )
    return actions
