"""``tenuto audit``: list, verify and export the audit log."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.formatting import format_local_time, one_line
from tenuto.cli.option_parsing import BelowOption, LimitOption, build_filters
from tenuto.cli.output import fitted_table, print_json, print_list, print_rich
from tenuto.cli.parameters import argument, option
from tenuto.model.triggers.parsing import parse_instant

if TYPE_CHECKING:
    from tenuto.audit.verifier import Verification

_MAX_CELL_LENGTH = 60

audit_log = group("audit", "List, verify and export the audit log.", "list", "verify")


@command(audit_log, "list", "--action schedule --actor ana", "--target nightly -o json | jq '.[0].before, .[0].after'")
async def list_entries(
    session: Session,
    actor: Annotated[str | None, option("NAME", "Filter by user or API key.")] = None,
    action: Annotated[str | None, option("ACTION", "Filter by action: schedule.disable, or all of schedule.")] = None,
    target: Annotated[str | None, option("NAME|ID", "Filter by the changed object.")] = None,
    since: Annotated[str | None, option("INSTANT", "Start of the period.")] = None,
    until: Annotated[str | None, option("INSTANT", "End of the period, exclusive.")] = None,
    limit: LimitOption = 50,
    below: BelowOption = None,
) -> None:
    """List audit entries, newest first: actor, source, action, target and reason."""
    filters = build_filters(
        actor=actor,
        action=action,
        target=target,
        since=None if since is None else parse_instant(since, field="--since"),
        until=None if until is None else parse_instant(until, field="--until"),
        limit=limit,
        below=below,
    )
    await print_list(
        session,
        await session.app.audit.list(**filters),
        {
            "time": lambda entry, _: format_local_time(entry["at"]),
            "actor": "actor_name",
            "source": "source",
            "action": "action",
            "target": lambda entry, _: one_line(entry["target"] or "", _MAX_CELL_LENGTH),
            "reason": lambda entry, _: one_line(entry["reason"] or "", _MAX_CELL_LENGTH),
            "position": "position",
        },
        noun="audit entries",
        filters=filters,
        optional=("position", "source"),
        flexible=("target", "reason"),
    )


@command(audit_log, "verify", "", "--newest 10000 -o json")
async def verify_audit_log(
    session: Session, newest: Annotated[int | None, option("N", "Number of newest entries to verify.", min=1)] = None
) -> int:
    """Verify that no entry was changed, deleted, inserted, reordered or cut off.

    The seal of each entry covers the entry before it and is made with the master key. Without a master key, a
    completely rewritten log is detected only by the checkpoints outside the database (audit.heads in the home folder).
    Exit code 1 if the verification fails.
    """
    result = await session.app.audit.verify(newest=newest)
    if session.as_json:
        print_json(
            {
                "is_sound": result.is_sound,
                "checked_link_count": result.checked_link_count,
                "end_position": result.end_position,
                "is_keyed": result.is_keyed,
                "checkpoint_position": result.checkpoint_position,
                "faults": result.faults,
                "has_more_faults": result.has_more_faults,
            }
        )
        return exit_codes.OK if result.is_sound else exit_codes.FAILED
    if result.is_sound:
        session.print_message(f"the audit log is intact: {_extent(result)}")
        return exit_codes.OK
    table = fitted_table(
        ("position", "fault", "description"),
        [(fault.position, fault.kind.replace("_", " "), fault.description) for fault in result.faults],
        flexible=("description",),
    )
    print_rich(table)
    more = " (more faults are not shown)" if result.has_more_faults else ""
    session.print_message(f"the audit log was altered{more}: {_extent(result)}")
    return exit_codes.FAILED


def _extent(result: Verification) -> str:
    if result.end_position == 0:
        return "no entry is sealed yet"
    seal = "sealed with a key" if result.is_keyed else "sealed without a key"
    checkpoint = f"checkpoint at {result.checkpoint_position:,}" if result.checkpoint_position else "no checkpoint yet"
    return f"{result.checked_link_count:,} of {result.end_position:,} entries verified, {seal}, {checkpoint}"


@command(audit_log, "export", "trail.jsonl", "- | gzip > trail.jsonl.gz")
async def export_audit_log(
    session: Session, file: Annotated[str, argument("FILE|-", "File to write; - writes to stdout.")]
) -> None:
    """Export the whole audit log as JSON lines, oldest first, with the seals.

    An existing file is replaced when the export is complete. Only its owner may read the file.
    """
    app = session.app
    if file == "-":
        async for line in app.audit.export_lines():
            sys.stdout.write(f"{line}\n")
        return
    count = await app.audit.export(Path(file))
    session.report({"file": file, "entries": count}, f"{count:,} entries exported to {file}")
