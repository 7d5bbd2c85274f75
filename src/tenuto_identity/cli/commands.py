"""Commands ``tenuto identity …``: systems, runs and their items, pending exports, holds, explanations."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Annotated
from uuid import UUID

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.lists import print_page
from tenuto.cli.option_parsing import confirm
from tenuto.cli.parameters import argument, flag, option
from tenuto.model.tasks import ActivityState
from tenuto_identity.cli.views import HISTORY, IDENTITIES, ITEMS, OBJECTS, PENDING_EXPORTS, RUNS, SYSTEMS
from tenuto_identity.model.explanation import IdentityExplanation, format_identity, format_object

identity = group(
    "identity",
    "Connected systems, runs, pending exports and explanations.",
    "systems",
    'run HR "Full Import" --wait',
    "explain HR 1001",
)
template = group("identity template", "Templates of example data.", "run people")
identity.add_command(template, "template")

System = Annotated[str, argument("SYSTEM", "Name of the connected system.")]
Limit = Annotated[int, option("N", "Largest number of entries.", min=1, max=500)]
AfterId = Annotated[int, option("ID", "Pagination cursor: the id of the last row shown.", min=0)]
SystemFilter = Annotated[str | None, option("NAME", "Filter by connected system.")]
TypeFilter = Annotated[str | None, option("TYPE", "Filter by type.")]
Reason = Annotated[str | None, option("TEXT", "Reason for the audit log.")]
Confirmed = Annotated[bool, flag("Delete without confirmation.", "--yes")]


# --- systems --------------------------------------------------------------------------------------------------------


@command(identity, "systems", "", "-o json", is_list=True)
async def systems(
    session: Session,
    after: Annotated[str, option("NAME", "Pagination cursor: the name of the last row shown.")] = "",
    limit: Limit = 100,
) -> None:
    """List connected systems with their state."""
    found = await session.app.extensions.identity.systems(after=after, limit=limit)
    await print_page(session, SYSTEMS, found, {"limit": limit})
    session.print_message(
        *(f"{each.name} is on hold: {each.held['message']}" for each in found if each.held and "message" in each.held)
    )


@command(identity, "show", "HR", "HR -o json")
async def show(session: Session, system: System) -> None:
    """Show a connected system: its definition, its run profiles, and what a guard holds."""
    found = await session.app.extensions.identity.system(system)
    record = found.system
    held = None if record.held is None else await session.app.extensions.identity.hold(system)
    lines = [
        f"{record.name}: {record.connector}, {'held' if record.held else record.state}",
        f"objects: {record.object_count:,}, pending exports: {record.export_count:,}",
        f"run profiles: {', '.join(found.run_profiles) or 'none'}",
        f"version {record.version} from {record.origin}",
    ]
    if held is not None:
        lines += ["", f"on hold: {held.message}"]
        lines += [f"  {each.type} {each.anchor or each.address or ''} {each.display or ''}" for each in held.objects]
        lines += [f"approve it with: tenuto identity approve {shlex.quote(system)} --reason TEXT"]
    lines += ["", json.dumps(found.definition, indent=2, ensure_ascii=False)]
    session.report({**asdict(found), "hold": None if held is None else asdict(held)}, result="\n".join(lines))


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


@command(identity, "enable", "HR")
async def enable(session: Session, system: System, reason: Reason = None) -> None:
    """Enable a connected system."""
    await _set_enabled(session, system, reason, enabled=True)


@command(identity, "disable", 'HR --reason "maintenance"')
async def disable(session: Session, system: System, reason: Reason = None) -> None:
    """Disable a connected system: its runs are refused until it is enabled."""
    await _set_enabled(session, system, reason, enabled=False)


async def _set_enabled(session: Session, system: str, reason: str | None, *, enabled: bool) -> None:
    with session.as_user(reason) as app:
        changed = await app.extensions.identity.set_enabled(system, enabled=enabled, reason=reason)
    state = "enabled" if enabled else "disabled"
    session.report({"changed": changed}, f"{system} is {state}" if changed else f"{system} was {state} already")


@command(identity, "clear", 'HR --yes --reason "imported from the wrong file"')
async def clear(session: Session, system: System, yes: Confirmed = False, reason: Reason = None) -> int:
    """Delete all objects of a system from the connector space; the metaverse is not touched."""
    if not yes and not confirm(f"delete all objects of {system} from the connector space", "--yes"):
        return exit_codes.OK
    with session.as_user(reason) as app:
        task_id = await app.extensions.identity.clear(system, reason=reason)
    return session.report({"task_id": str(task_id)}, f"clearing {system}", result=task_id)


@command(identity, "delete-system", 'Phonebook --yes --reason "replaced"')
async def delete_system(session: Session, system: System, yes: Confirmed = False, reason: Reason = None) -> int:
    """Delete a connected system with its objects and rules."""
    if not yes and not confirm(f"delete the system {system} with its objects and rules", "--yes"):
        return exit_codes.OK
    with session.as_user(reason) as app:
        task_id = await app.extensions.identity.delete_system(system, reason=reason)
    return session.report({"task_id": str(task_id)}, f"deleting {system}", result=task_id)


@command(template, "run", "people", "people --seed 2")
async def run_template(
    session: Session,
    name: Annotated[str, argument("TEMPLATE", "Name of the template.")],
    seed: Annotated[str, option("TEXT", "The same seed generates the same values.")] = "1",
) -> int:
    """Generate example data from a template."""
    with session.as_user() as app:
        task_id = await app.extensions.identity.run_template(name, seed=seed)
    return session.report({"task_id": str(task_id)}, f"generating data from {name}", result=task_id)


# --- runs -----------------------------------------------------------------------------------------------------------


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


@command(identity, "runs", "", "--system HR", "-o json", is_list=True)
async def runs(
    session: Session,
    system: SystemFilter = None,
    before: Annotated[UUID | None, option("ID", "Pagination cursor: the id of the last row shown.", type=UUID)] = None,
    limit: Limit = 20,
) -> None:
    """List runs, the newest first."""
    found = await session.app.extensions.identity.runs(system=system, before=before, limit=limit)
    await print_page(session, RUNS, found, {"system": system or "", "limit": limit})


@command(
    identity,
    "items",
    "01a1ed2d-27a4-760d-add0-896cd9098778",
    "01a1ed2d-27a4-760d-add0-896cd9098778 --errors",
    is_list=True,
)
async def items(
    session: Session,
    run_id: Annotated[UUID, argument("RUN", "Id of the run.", type=UUID)],
    errors: Annotated[bool, flag("List only objects in error.")] = False,
    after: AfterId = 0,
    limit: Limit = 100,
) -> None:
    """List the results of a run, object by object."""
    await session.app.extensions.identity.run_record(run_id)
    found = await session.app.extensions.identity.items(run_id, errors_only=errors, after=after, limit=limit)
    await print_page(session, ITEMS, found, {"errors": errors, "limit": limit})


# --- pending exports ------------------------------------------------------------------------------------------------


@command(identity, "pending", "", "--system AD --state failed", is_list=True)
async def pending(
    session: Session,
    system: SystemFilter = None,
    state: Annotated[str | None, option("STATE", "Filter by state, such as failed.")] = None,
    after: AfterId = 0,
    limit: Limit = 100,
) -> None:
    """List pending exports."""
    found = await session.app.extensions.identity.pending_exports(system=system, state=state, after=after, limit=limit)
    await print_page(session, PENDING_EXPORTS, found, {"system": system or "", "state": state or "", "limit": limit})


@command(identity, "retry", "AD", "AD --object 17")
async def retry(
    session: Session,
    system: System,
    object: Annotated[int | None, option("ID", "Id of the object whose export is sent again.", min=1)] = None,
    reason: Reason = None,
) -> None:
    """Send failed and refused exports again."""
    with session.as_user(reason) as app:
        count = await app.extensions.identity.retry(system, object_id=object, reason=reason)
    session.report({"retried": count}, f"{count} exports of {system} are sent again by the next export")


# --- objects and identities -----------------------------------------------------------------------------------------


@command(identity, "objects", "", "--system HR --unjoined", "--text 100 -o csv", is_list=True)
async def objects(
    session: Session,
    system: SystemFilter = None,
    type: TypeFilter = None,
    state: Annotated[str | None, option("STATE", "Filter by state: normal, obsolete or provisioning.")] = None,
    text: Annotated[str | None, option("TEXT", "Filter by the beginning of anchor or address.")] = None,
    unjoined: Annotated[bool, flag("List only objects that are not joined.")] = False,
    after: AfterId = 0,
    limit: Limit = 100,
) -> None:
    """List connector space objects."""
    found = await session.app.extensions.identity.objects(
        system=system,
        type=type,
        state=state,
        text=text,
        joined=False if unjoined else None,
        after=after,
        limit=limit,
    )
    filters = {"system": system or "", "type": type or "", "state": state or "", "text": text or ""}
    await print_page(session, OBJECTS, found, {**filters, "unjoined": unjoined, "limit": limit})


@command(identity, "identities", "", "--text turing", "--to-be-deleted", is_list=True)
async def identities(
    session: Session,
    type: TypeFilter = None,
    text: Annotated[str | None, option("TEXT", "Filter by a part of the display name.")] = None,
    to_be_deleted: Annotated[bool, flag("List only identities whose deletion is scheduled.")] = False,
    after: AfterId = 0,
    limit: Limit = 100,
) -> None:
    """List identities: the objects of the metaverse."""
    found = await session.app.extensions.identity.identities(
        type=type, text=text, deletion_scheduled=True if to_be_deleted else None, after=after, limit=limit
    )
    filters = {"type": type or "", "text": text or "", "to_be_deleted": to_be_deleted}
    await print_page(session, IDENTITIES, found, {**filters, "limit": limit})


@command(identity, "history", "8", "8 -o json", is_list=True)
async def history(
    session: Session,
    id: Annotated[int, argument("IDENTITY", "Id of the identity.", type=int)],
    limit: Limit = 100,
) -> None:
    """List the changes of an identity and of the objects joined to it, the newest first."""
    found = await session.app.extensions.identity.history(id, limit=limit)
    await print_page(session, HISTORY, found)


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
