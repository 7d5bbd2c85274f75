"""Commands ``tenuto identity …``: systems, runs and their items, pending exports, holds, explanations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.parameters import argument, flag, option
from tenuto.model.tasks import ActivityState
from tenuto_identity.model.explanation import IdentityExplanation, format_identity, format_object

identity = group(
    "identity",
    "Connected systems, runs, pending exports and explanations.",
    "systems",
    'run HR "Full Import" --wait',
    "explain HR 1001",
)

System = Annotated[str, argument("SYSTEM", "Name of the connected system.")]
Limit = Annotated[int, option("N", "Largest number of entries.")]


@command(identity, "systems", "", "-o json")
async def systems(session: Session) -> None:
    """List connected systems with their state."""
    found = await session.app.extensions.identity.systems()
    rows = [
        (each.name, each.connector, "held" if each.held else each.state, each.object_count, each.export_count)
        for each in found
    ]
    session.report(
        [asdict(each) for each in found],
        *(f"{each.name} is on hold: {each.held['message']}" for each in found if each.held and "message" in each.held),
        result=_table(("name", "connector", "state", "objects", "pending exports"), rows),
    )


@command(identity, "run", 'HR "Full Import"', 'HR "Full Import" --wait')
async def run(
    session: Session,
    system: System,
    profile: Annotated[str, argument("PROFILE", "Name of the run profile.")],
    wait: Annotated[bool, flag("Wait until the run has ended; the exit code says how.")] = False,
) -> int:
    """Start a run of a run profile."""
    with session.as_user() as app:
        task_id = await app.extensions.identity.run(system, profile)
    if not wait:
        return session.report({"task_id": str(task_id)}, f"started {profile} of {system}", result=task_id)
    record = await session.app.wait(task_id)
    session.report({"task_id": str(task_id), "status": record.state}, f"{profile} of {system}: {record.state}")
    is_good = record.state in (ActivityState.COMPLETED, ActivityState.COMPLETED_WITH_WARNING)
    return exit_codes.OK if is_good else exit_codes.FAILED


@command(identity, "runs", "", "--system HR", "-o json")
async def runs(
    session: Session,
    system: Annotated[str | None, option("NAME", "Filter by connected system.")] = None,
    limit: Limit = 20,
) -> None:
    """List runs, the newest first."""
    found = await session.app.extensions.identity.runs(system=system, limit=limit)
    rows = [
        (
            each.id,
            each.system,
            each.profile,
            each.state,
            each.started_at.isoformat(timespec="seconds"),
            each.problem or "",
        )
        for each in found
    ]
    session.report(
        [asdict(each) for each in found],
        result=_table(("run", "system", "profile", "state", "started", "problem"), rows),
    )


@command(identity, "items", "01a1ed2d-27a4-760d-add0-896cd9098778", "01a1ed2d-27a4-760d-add0-896cd9098778 --errors")
async def items(
    session: Session,
    run_id: Annotated[UUID, argument("RUN", "Id of the run.", type=UUID)],
    errors: Annotated[bool, flag("List only objects in error.")] = False,
    limit: Limit = 100,
) -> None:
    """List the results of a run, object by object."""
    found = await session.app.extensions.identity.items(run_id, errors_only=errors, limit=limit)
    rows = [
        (
            each.type or "",
            each.anchor or "",
            each.display or "",
            each.change or "",
            each.error or "",
            each.message or "",
        )
        for each in found
    ]
    session.report(
        [asdict(each) for each in found],
        result=_table(("type", "anchor", "name", "change", "error", "message"), rows),
    )


@command(identity, "pending", "", "--system AD --state failed")
async def pending(
    session: Session,
    system: Annotated[str | None, option("NAME", "Filter by connected system.")] = None,
    state: Annotated[str | None, option("STATE", "Filter by state, such as failed.")] = None,
    limit: Limit = 100,
) -> None:
    """List pending exports."""
    found = await session.app.extensions.identity.pending_exports(system=system, state=state, limit=limit)
    rows = [
        (
            each.system,
            each.address or each.anchor or "",
            each.kind.value,
            each.state.value,
            ", ".join(sorted({change["attribute"] for change in each.changes})),
            each.error or "",
        )
        for each in found
    ]
    session.report(
        [asdict(each) for each in found],
        result=_table(("system", "object", "kind", "state", "attributes", "error"), rows),
    )


@command(identity, "retry", "AD")
async def retry(
    session: Session,
    system: System,
    reason: Annotated[str | None, option("TEXT", "Reason for the audit log.")] = None,
) -> None:
    """Send failed and refused exports again."""
    with session.as_user(reason) as app:
        count = await app.extensions.identity.retry(system, reason=reason)
    session.report({"retried": count}, f"{count} exports of {system} are sent again by the next export")


@command(identity, "approve", 'HR --reason "the branch was closed"')
async def approve(
    session: Session,
    system: System,
    reason: Annotated[str, option("TEXT", "Why the held changes are right.")] = "",
) -> None:
    """Approve what a guard holds."""
    with session.as_user(reason) as app:
        task_id = await app.extensions.identity.approve(system, reason=reason)
    session.report({"task_id": str(task_id) if task_id else None}, f"approved what was held in {system}")


@command(identity, "explain", "HR 1001", "AD 5f0c9a2e-7a7e-4ef6-9d0e-4c6d5e1b2a33 -o json")
async def explain(
    session: Session,
    system: System,
    anchor: Annotated[str, argument("ANCHOR", "Anchor of the object in the system.")],
) -> None:
    """Explain an identity: winners, expressions, scopes and targets; or why an object is not joined."""
    found = await session.app.extensions.identity.explain(system, anchor)
    text = format_identity(found) if isinstance(found, IdentityExplanation) else format_object(found)
    session.report(asdict(found), result=text)


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as aligned columns; the last column is not padded."""
    lines = [tuple(header), *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
