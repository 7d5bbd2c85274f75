"""Page of pending exports: what was sent, what the system shows, and when it is sent again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenuto.extension import PageRequest
from tenuto.web.components.extension_kit import Action, FilterField, Listing, path_of
from tenuto_identity.model.sync.pending_exports import MAX_ATTEMPTS, ChangeState, ExportKind, ExportState
from tenuto_identity.pages.page_query import choice_of, number_of, operations, reveals, text_of, values_text
from tenuto_identity.store.exports import ExportRecord

EXPORTS_OF_PAGE = 25
STATES = {
    ExportState.PENDING.value: "waiting to be sent",
    ExportState.EXECUTING.value: "being sent",
    ExportState.EXPORTED.value: "sent, not confirmed yet",
    ExportState.UNCONFIRMED.value: "not confirmed",
    ExportState.FAILED.value: "given up",
}
_STATUSES = {
    ExportState.PENDING.value: "scheduled",
    ExportState.EXECUTING.value: "running",
    ExportState.EXPORTED.value: "waiting",
    ExportState.UNCONFIRMED.value: "retrying",
    ExportState.FAILED.value: "failed",
}
OPERATIONS = {
    "set": "set to",
    "add": "add",
    "remove": "remove",
    "clear": "clear",
    "rename": "rename to",
}


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One attribute of an export."""

    attribute: str
    op: str
    sent: str
    observed: str | None
    """What an import found instead; None if nothing was observed yet."""
    state: str
    label: str
    attempts: int

    @property
    def differs(self) -> bool:
        return self.observed is not None and self.observed != self.sent


@dataclass(frozen=True, slots=True)
class ExportRow:
    """A pending export with its attributes."""

    export: ExportRecord
    name: str
    path: str | None
    state: str
    label: str
    changes: Sequence[ChangeRow]
    is_open: bool
    """Whether its attributes are shown without a click."""
    retry: Action | None


@dataclass(frozen=True, slots=True)
class ExportsPage:
    listing: Listing
    systems: Sequence[tuple[str, int]]
    """Systems with the numbers of their pending exports."""
    total: int
    max_attempts: int
    retry_all: Action | None


async def load_exports(request: PageRequest) -> ExportsPage:
    system, after = text_of(request, "system"), number_of(request)
    state = choice_of(request, "state", STATES)
    errors = choice_of(request, "errors", ("only",))
    systems = await operations(request).systems(limit=500)
    found = await operations(request).pending_exports(
        system=system or None,
        state=state or None,
        errors_only=bool(errors),
        after=after,
        limit=EXPORTS_OF_PAGE,
        reveals=reveals(request),
    )
    listing = Listing(
        "Pending exports",
        [_row(each) for each in found],
        "/identity/exports",
        filters=[
            FilterField("system", "System", system, [(each.name, each.name) for each in systems]),
            FilterField("state", "State", state, tuple(STATES.items())),
            FilterField("errors", "Errors", errors, (("only", "only with an error"),)),
        ],
        next=str(found[-1].object_id) if len(found) == EXPORTS_OF_PAGE else None,
        is_first=not after,
    )
    counts = [(each.name, each.export_count) for each in systems if each.export_count]
    retry = None
    if system and any(name == system for name, _ in counts):
        retry = Action(
            "identity_pending_exports_retry",
            f"Retry all of {system}…",
            body={"system": system},
            text=f"Failed and refused exports of {system} are sent by the next export, from the first attempt.",
            reason="optional",
            submit="Retry",
            done="{retried} exports are sent again by the next export.",
        )
    return ExportsPage(listing, counts, sum(count for _, count in counts), MAX_ATTEMPTS, retry)


def _row(export: ExportRecord) -> ExportRow:
    name = export.display or export.address or export.anchor or f"object {export.object_id}"
    path = None
    if export.metaverse_id is not None:
        path = path_of("identity", "identities", export.metaverse_id)
    elif export.anchor:
        path = path_of("identity", "objects", export.system, export.anchor)
    is_refused = export.error is not None and export.state is ExportState.PENDING
    can_retry = export.state is ExportState.FAILED or export.next_attempt_at is not None or export.error is not None
    retry = Action(
        "identity_pending_exports_retry",
        "Retry now",
        body={"system": export.system, "object_id": str(export.object_id)},
        done="The next export sends it from the first attempt.",
        style="small",
    )
    changes = [change_row(each) for each in export.changes]
    return ExportRow(
        export,
        name,
        path,
        "retrying" if is_refused else _STATUSES[export.state.value],
        "refused, sent again" if is_refused else STATES[export.state.value],
        changes,
        export.state is not ExportState.PENDING or export.kind is ExportKind.UPDATE or is_refused,
        retry if can_retry and export.state is not ExportState.EXECUTING else None,
    )


def change_row(change: Mapping[str, Any]) -> ChangeRow:
    """Return one attribute of an export or of a request."""
    values = change.get("values") or [f"identity {each}" for each in change.get("references", ())]
    state = change.get("state", ChangeState.PENDING.value)
    observed = change.get("observed")
    return ChangeRow(
        change["attribute"],
        OPERATIONS.get(change["op"], change["op"]),
        values_text(values),
        None if observed is None else values_text(observed) or "no value",
        _STATUSES.get(state, "scheduled"),
        STATES.get(state, state),
        int(change.get("attempts", 0)),
    )
