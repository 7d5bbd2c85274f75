"""``tenuto audit``: list, verify and export the audit log."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tenuto.app import Tenuto
from tenuto.audit.verifier import Verification
from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.lists import PAGE, list_command
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, option
from tenuto.cli.tables import print_rich, render_table
from tenuto.model.filter_keys import AUDIT_KEYS
from tenuto.presentation.admin_views import AUDIT_ENTRIES, AUDIT_FAULTS
from tenuto.presentation.columns import json_value

audit_log = group("audit", "List, verify and export the audit log.", "list", "verify")


@list_command(
    audit_log,
    "list",
    AUDIT_ENTRIES,
    "--action schedule --actor ana",
    "--target nightly -o json | jq '.[0].before, .[0].after'",
    keys=AUDIT_KEYS,
    count=lambda app, **filters: app.audit.count(**filters),
    actor=option("NAME", "Filter by user or API key."),
    action=option("ACTION", "Filter by action: schedule.disable, or all of schedule."),
    target=option("NAME|ID", "Filter by the changed object."),
    **PAGE,
)
async def list_entries(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List audit entries, newest first: actor, source, action, target and reason."""
    return await app.audit.list(**filters)


@command(audit_log, "verify", "", "--newest 10000 -o json")
async def verify_audit_log(
    session: Session, newest: Annotated[int | None, option("N", "Number of newest entries to verify.", min=1)] = None
) -> int:
    """Verify that no entry was changed, deleted, inserted, reordered or cut off.

    The seal of each entry covers the entry before it and is made with the master key. Without a master key, a
    completely rewritten log is detected only by the checkpoints outside the database (audit.heads in the home folder).
    Exit code 1 if the log was altered, 6 if entries could not be checked: their key is missing, or no scheduler has
    sealed them yet.
    """
    result = await session.app.audit.verify(newest=newest)
    if session.as_json:
        print_json({"is_sound": result.is_sound, **json_value(result)})
    elif result.is_sound:
        session.print_message(f"the audit log is intact: {_extent(result)}")
    else:
        print_rich(render_table(AUDIT_FAULTS, result.faults, await session.now()))
        if result.lacks_keys_only:
            session.print_message(
                f"part of the audit log could not be checked, because its key is missing: {_extent(result)}",
                "there is no sign of tampering; add the missing key to TENUTO_MASTER_KEY_FILE or restore audit.keys",
            )
            return exit_codes.UNVERIFIED
        if result.lacks_seals_only:
            session.print_message(
                f"some entries of the audit log are not sealed yet: {_extent(result)}",
                "there is no sign of tampering; a scheduler seals entries: start one, and verify again",
            )
            return exit_codes.UNVERIFIED
        more = " (more faults are not shown)" if result.has_more_faults else ""
        session.print_message(f"the audit log was altered{more}: {_extent(result)}")
    if result.lacks_keys_only or result.lacks_seals_only:
        return exit_codes.UNVERIFIED
    return exit_codes.OK if result.is_sound else exit_codes.FAILED


def _extent(result: Verification) -> str:
    if result.end_position == 0:
        return "no entry is sealed yet"
    extent = f"{result.checked_link_count:,} of {result.end_position:,} entries verified"
    if result.is_keyed:
        return f"{extent}, sealed with the master key"
    position = result.checkpoint_position
    protected = f"only the first {position:,}, by the checkpoint in audit.heads," if position else "no entry yet"
    return f"{extent}; no master key is set, so {protected} is protected against the owner of the database"


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
