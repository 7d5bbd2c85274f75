"""Commands ``tenuto identity …``: systems, runs and their items, pending exports, holds, explanations."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.lists import print_page
from tenuto.cli.option_parsing import confirm
from tenuto.cli.parameters import argument, flag, option
from tenuto.definitions.document_loader import read_documents
from tenuto.errors import NotFound
from tenuto.model.work.tasks import ActivityState
from tenuto_identity.cli.preview_text import (
    GOOD_STATES,
    describe_counts,
    describe_step,
    format_preview,
    is_good,
    load_preview,
    preview_document,
    wait_for_preview,
)
from tenuto_identity.list_views import (
    ATTRIBUTE_FLOWS,
    HISTORY,
    IDENTITIES,
    ITEMS,
    OBJECTS,
    PENDING_EXPORTS,
    PREVIEWS,
    RUNS,
    SYSTEMS,
)
from tenuto_identity.model.definitions.definition_reader import suggestion
from tenuto_identity.model.sync.explanation import (
    DeletedExplanation,
    IdentityExplanation,
    format_deleted,
    format_identity,
    format_object,
    referenced_ids,
)
from tenuto_identity.store.runs import RunState

identity = group(
    "identity",
    "Manage connected systems, runs and pending exports.",
    "systems",
    'run HR "Full Import" --wait',
    "explain HR 1001",
)
template = group("identity template", "Generate example data from templates.", "run people")
identity.add_command(template, "template")

System = Annotated[str, argument("SYSTEM", "Name of the connected system.")]
Anchor = Annotated[str, argument("ANCHOR", "Anchor of the object in the system.")]
Limit = Annotated[int, option("N", "Maximum number of entries.", min=1, max=500)]
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
        lines += [f"approve it with: tenuto identity approve {shlex.quote(system)} --run {held.run_id} --reason TEXT"]
    lines += ["", json.dumps(found.definition, indent=2, ensure_ascii=False)]
    session.report({**asdict(found), "hold": None if held is None else asdict(held)}, result="\n".join(lines))


@command(identity, "rules", "", "--system AD", "--type person -o json", is_list=True)
async def rules(session: Session, system: SystemFilter = None, type: TypeFilter = None) -> None:
    """List attributes with the rules that set them, in the order in which they win, and those that send them."""
    found = await session.app.extensions.identity.attribute_flows(type=type, system=system)
    await print_page(session, ATTRIBUTE_FLOWS, found, {"limit": len(found) + 1})


@command(
    identity,
    "approve",
    'HR --reason "the branch was closed"',
    'HR --run 01a1e30e-df3e-7536-8f11-1c7c02f1d0a1 --reason "the branch was closed"',
)
async def approve(
    session: Session,
    system: System,
    reason: Annotated[str, option("TEXT", "Why the held changes are right.")] = "",
    run: Annotated[
        UUID | None,
        option("RUN", "Run of the hold that was examined; refused if another run holds the system.", type=UUID),
    ] = None,
) -> None:
    """Approve what a guard holds."""
    with session.as_user(reason) as app:
        task_id = await app.extensions.identity.approve(system, reason=reason, run_id=run)
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


@command(identity, "check", "HR", "HR -o json")
async def check(session: Session, system: System) -> int:
    """Check the settings of a system and whether a worker can reach it."""
    with session.as_user() as app:
        task_id = await app.extensions.identity.check(system)
    record = await session.app.wait(task_id)
    if record.state != ActivityState.COMPLETED:
        return _report_failure(session, record, f"{system} cannot be used")
    found = record.output
    able = [name.replace("_", " ") for name, value in found.items() if value is True]
    return session.report(found, f"{system} can be used: {', '.join(able)}")


@command(identity, "discover", "HR", "Directory --type inetOrgPerson", "HR -o json")
async def discover(session: Session, system: System, type: TypeFilter = None) -> int:
    """Read the schema of a system, and compare it with what is selected. A directory has hundreds of types."""
    with session.as_user() as app:
        task_id = await app.extensions.identity.discover(system)
    record = await session.app.wait(task_id)
    if record.output is None:
        return _report_failure(session, record, f"the schema of {system} cannot be read")
    found = record.output
    if type is not None:
        names = [each["name"] for each in found["types"]]
        found = {**found, "types": [each for each in found["types"] if each["name"].lower() == type.lower()]}
        if not found["types"]:
            raise NotFound(
                f"the system {system!r} has no type {type!r}",
                code="identity.type.unknown",
                remedy=suggestion(type, names),
            )
    lines: list[str] = []
    for each in found["types"]:
        lines.append(f"{each['name']} (anchor {each['anchor']})")
        for attribute in each["attributes"]:
            is_new = f"{each['name']}.{attribute['name']}" in found["unselected"]
            several = ", several values" if attribute["multi"] else ""
            lines.append(f"  {attribute['name']}: {attribute['type']}{several}{', not selected' if is_new else ''}")
    lines += [f"container {each['address']}" for each in found["containers"]]
    missing = [f"selected but not in the system: {name}" for name in found["missing"]]
    return session.report(found, *missing, result="\n".join(lines))


def _report_failure(session: Session, record: Any, what: str) -> int:
    error = record.error or {}
    message = error.get("message") if isinstance(error, dict) else str(error)
    session.report({"status": record.state, "error": error}, f"{what}: {message or record.state}")
    return exit_codes.FAILED


# --- runs -----------------------------------------------------------------------------------------------------------


@command(identity, "run", 'HR "Full Import"', 'HR "Full Import" --wait')
async def run(
    session: Session,
    system: System,
    profile: Annotated[str, argument("PROFILE", "Name of the run profile.")],
    wait: Annotated[bool, flag("Wait until the run has ended; exit code 1 unless it succeeded.")] = False,
) -> int:
    """Start a run of a run profile."""
    with session.as_user() as app:
        task_id = await app.extensions.identity.run(system, profile)
    if not wait:
        return session.report({"task_id": str(task_id)}, f"started {profile} of {system}", result=task_id)
    record = await session.app.wait(task_id)
    counts = record.output if isinstance(record.output, dict) else {}
    problem = f"; {record.error['message']}" if record.error and record.error.get("message") else ""
    session.report(
        {"task_id": str(task_id), "status": record.state, **counts},
        f"{profile} of {system}: {describe_counts(str(record.state), counts)}{problem}",
    )
    return exit_codes.OK if record.state in GOOD_STATES else exit_codes.FAILED


@command(identity, "runs", "", "--system HR --state failed", "-o json", is_list=True)
async def runs(
    session: Session,
    system: SystemFilter = None,
    state: Annotated[RunState | None, option("STATE", "Filter by state.")] = None,
    before: Annotated[UUID | None, option("ID", "Pagination cursor: the id of the last row shown.", type=UUID)] = None,
    limit: Limit = 20,
) -> None:
    """List runs, the newest first."""
    found = await session.app.extensions.identity.runs(system=system, state=state, before=before, limit=limit)
    await print_page(session, RUNS, found, {"system": system or "", "state": state or "", "limit": limit})


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
    change: Annotated[str | None, option("CHANGE", "Filter by change, such as Updated.")] = None,
    error: Annotated[str | None, option("ERROR", "Filter by error.")] = None,
    after: AfterId = 0,
    limit: Limit = 100,
) -> None:
    """List the results of a run, object by object."""
    await session.app.extensions.identity.run_record(run_id)
    found = await session.app.extensions.identity.items(
        run_id, errors_only=errors, change=change, error=error, after=after, limit=limit
    )
    filters = {"errors": errors, "change": change or "", "error": error or ""}
    await print_page(session, ITEMS, found, {**filters, "limit": limit})


@command(identity, "item-changes", "01a1ed2d-27a4-760d-add0-896cd9098778 1", is_list=True)
async def item_changes(
    session: Session,
    run_id: Annotated[UUID, argument("RUN", "Id of the run.", type=UUID)],
    number: Annotated[int, argument("NUMBER", "Number of the item.", type=int)],
) -> None:
    """List the values before and after of one item of a run."""
    await session.app.extensions.identity.run_record(run_id)
    await print_page(session, HISTORY, await session.app.extensions.identity.item_changes(run_id, [number]))


@command(
    identity,
    "preview",
    'HR "Full Import"',
    '--schedule "Nightly HR Sync"',
    '--schedule "Nightly HR Sync" --file nightly.yaml',
    "--file nightly.yaml",
)
async def preview(
    session: Session,
    system: Annotated[str | None, argument("SYSTEM", "Name of the connected system.", default=None)] = None,
    profile: Annotated[str | None, argument("PROFILE", "Name of the run profile.", default=None)] = None,
    schedule: Annotated[str | None, option("NAME", "Preview the run profile steps of a schedule.")] = None,
    file: Annotated[list[str] | None, option("FILE", "Use definitions as if applied; repeatable.", "--file")] = None,
    limit: Annotated[int, option("N", "Maximum number of requests shown for each target.", min=1, max=500)] = 20,
    no_wait: Annotated[bool, flag("Start the preview and return its id.", "--no-wait")] = False,
) -> int:
    """Show what runs would do, without doing it. Over HTTP, a preview with definitions needs the role editor.

    With files only, it shows the delta syncs and exports that follow when they are applied.
    """
    documents = list(read_documents(file or ()))
    with session.as_user() as app:
        id = await app.extensions.identity.preview(
            system=system, profile=profile, schedule=schedule, documents=documents
        )
    if no_wait:
        return session.report({"preview_id": str(id)}, "preview started", result=id)
    await wait_for_preview(session.app, id, session.print_message)
    return await _show_preview(session, id, limit)


@command(identity, "show-preview", "01a1ed2d-27a4-760d-add0-896cd9098778")
async def show_preview(
    session: Session,
    id: Annotated[UUID, argument("PREVIEW", "Id of the preview.", type=UUID)],
    limit: Annotated[int, option("N", "Maximum number of requests shown for each target.", min=1, max=500)] = 20,
) -> int:
    """Show the results of a preview."""
    return await _show_preview(session, id, limit)


async def _show_preview(session: Session, id: UUID, limit: int) -> int:
    record, requests, counts = await load_preview(session.app.extensions.identity, id, limit)
    session.report(preview_document(record, requests, counts), result=format_preview(record, requests, counts))
    return exit_codes.OK if is_good(record) else exit_codes.FAILED


@command(identity, "previews", "", "-o json", is_list=True)
async def previews(
    session: Session,
    before: Annotated[UUID | None, option("ID", "Pagination cursor: the id of the last row shown.", type=UUID)] = None,
    limit: Limit = 20,
) -> None:
    """List previews, the newest first."""
    found = await session.app.extensions.identity.previews(before=before, limit=limit)
    await print_page(session, PREVIEWS, found, {"limit": limit})


@command(identity, "sync-one", "HR 1003", "HR 1003 --export")
async def sync_one(
    session: Session,
    system: System,
    anchor: Anchor,
    export: Annotated[bool, flag("Export the resulting changes to the targets and confirm them.")] = False,
) -> int:
    """Import and sync one object now."""
    with session.as_user() as app:
        task_id = await app.extensions.identity.sync_one(system, anchor, export=export)
    record = await session.app.wait(task_id)
    if record.output is None:
        return _report_failure(session, record, f"{anchor} of {system} was not synchronised")
    lines = [f"{each['system']}, {each['profile']}: {describe_step(each)}" for each in record.output["steps"]]
    session.report({"status": record.state, **record.output}, result="\n".join(lines))
    return exit_codes.OK if record.state in GOOD_STATES else exit_codes.FAILED


# --- pending exports ------------------------------------------------------------------------------------------------


@command(identity, "pending", "", "--system AD --state failed", is_list=True)
async def pending(
    session: Session,
    system: SystemFilter = None,
    state: Annotated[str | None, option("STATE", "Filter by state, such as failed.")] = None,
    errors: Annotated[bool, flag("List only exports with an error.")] = False,
    after: AfterId = 0,
    limit: Limit = 100,
) -> None:
    """List pending exports."""
    found = await session.app.extensions.identity.pending_exports(
        system=system, state=state, errors_only=errors, after=after, limit=limit
    )
    filters = {"system": system or "", "state": state or "", "errors": errors}
    await print_page(session, PENDING_EXPORTS, found, {**filters, "limit": limit})


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


@command(identity, "show-object", "HR 1003", "HR 1003 -o json")
async def show_object(session: Session, system: System, anchor: Anchor) -> None:
    """Show an object of the connector space with its values."""
    found = await session.app.extensions.identity.object(system, anchor)
    joined = "not joined" if found.metaverse_id is None else f"joined to the identity {found.metaverse_id}"
    lines = [
        f"{found.type} {found.anchor} of {found.system}: {found.state.value}, {joined}"
        + (", decided by a user" if found.pinned else ""),
        *([f"address: {found.address}"] if found.address else []),
    ]
    values = {**found.attributes, **found.reference_values}
    lines += [f"  {name}: {', '.join(map(str, values[name]))}" for name in sorted(values)]
    session.report(asdict(found), result="\n".join(lines))


@command(identity, "join", 'AD 5f0c9a2e 8 --reason "found by the help desk"')
async def join(
    session: Session,
    system: System,
    anchor: Anchor,
    id: Annotated[int, argument("IDENTITY", "Id of the identity.", type=int)],
    reason: Reason = None,
) -> int:
    """Join an object to an identity; the rules leave the join as it is."""
    with session.as_user(reason) as app:
        done = await app.extensions.identity.join(system, anchor, id, reason=reason)
    return session.report(asdict(done), f"{anchor} of {system} is joined to {id}; the next sync applies it")


@command(identity, "unjoin", 'AD 5f0c9a2e --reason "another person"')
async def unjoin(session: Session, system: System, anchor: Anchor, reason: Reason = None) -> int:
    """Disconnect an object from its identity; the rules do not join it again."""
    with session.as_user(reason) as app:
        done = await app.extensions.identity.unjoin(system, anchor, reason=reason)
    messages = [f"{anchor} of {system} is disconnected"]
    if done.delete_after is not None:
        messages.append(
            f"the identity is deleted after {done.delete_after:%Y-%m-%d %H:%M} UTC, unless it is joined again"
        )
    return session.report(asdict(done), *messages)


@command(identity, "unpin", "AD 5f0c9a2e")
async def unpin(session: Session, system: System, anchor: Anchor, reason: Reason = None) -> int:
    """Return an object to the rules: the next sync may join or disconnect it."""
    with session.as_user(reason) as app:
        done = await app.extensions.identity.unpin(system, anchor, reason=reason)
    return session.report(asdict(done), f"the rules decide about {anchor} of {system}")


@command(identity, "forget", '8 --yes --reason "request of the person"')
async def forget(
    session: Session,
    id: Annotated[int, argument("IDENTITY", "Id of the identity, which may be deleted already.", type=int)],
    yes: Confirmed = False,
    reason: Annotated[str, option("TEXT", "Why the history is erased.")] = "",
) -> int:
    """Erase the history of an identity. Current values stay."""
    if not yes and not confirm(f"erase the history of the identity {id}", "--yes"):
        return exit_codes.OK
    with session.as_user(reason) as app:
        done = await app.extensions.identity.forget(id, reason=reason)
    return session.report(asdict(done), f"erased {done.change_count} changes and the values of {done.item_count} items")


@command(identity, "identities", "", "--text turing", "--to-be-deleted", is_list=True)
async def identities(
    session: Session,
    type: TypeFilter = None,
    text: Annotated[str | None, option("TEXT", "Filter by a part of the display name.")] = None,
    to_be_deleted: Annotated[bool, flag("List only identities whose deletion is scheduled.")] = False,
    id: Annotated[list[int] | None, option("ID", "Filter by id; repeatable.", "--id")] = None,
    after: AfterId = 0,
    limit: Limit = 100,
) -> None:
    """List identities: the objects of the metaverse."""
    found = await session.app.extensions.identity.identities(
        type=type, text=text, deletion_scheduled=True if to_be_deleted else None, ids=id, after=after, limit=limit
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
    anchor: Anchor,
) -> None:
    """Explain an identity: winners, expressions, scopes and targets; or why an object is not joined.

    A deleted object is explained from the history of its identity.
    """
    found = await session.app.extensions.identity.explain(system, anchor)
    match found:
        case IdentityExplanation():
            records = await session.app.extensions.identity.identities(ids=referenced_ids(found))
            text = format_identity(found, {each.id: each.display for each in records})
        case DeletedExplanation():
            text = format_deleted(found)
        case _:
            text = format_object(found)
    session.report(asdict(found), result=text)
