"""``tenuto audit``: what people and keys have changed, and whether the record of it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.formatting import local, one_line
from tenuto.cli.option_parsing import Below, Limit, say_if_more, where

if TYPE_CHECKING:
    from tenuto.audit.verifier import Verification

_COMMON_LENGTH = 60


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    trail = group(
        root, "audit", "Look at what was changed, and check the trail.", "tenuto audit list", "tenuto audit verify"
    )
    command(
        trail,
        "list",
        "tenuto audit list --action schedule --actor ana",
        "tenuto audit list --target nightly -o json | jq '.[0].before, .[0].after'",
    )(list_entries)
    command(trail, "verify", "tenuto audit verify", "tenuto audit verify --newest 10000 -o json")(verify)
    command(trail, "export", "tenuto audit export trail.jsonl", "tenuto audit export - | gzip > trail.jsonl.gz")(export)


async def list_entries(
    session: Session,
    actor: Annotated[str | None, typer.Option(metavar="NAME", help="Only what this person or key did.")] = None,
    action: Annotated[
        str | None, typer.Option(metavar="ACTION", help="Only this: schedule.disable, or all of schedule.")
    ] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME|ID", help="Only what was done to this.")] = None,
    since: Annotated[str | None, typer.Option(metavar="INSTANT", help="Only from then on.")] = None,
    until: Annotated[str | None, typer.Option(metavar="INSTANT", help="Only before then.")] = None,
    limit: Limit = 50,
    below: Below = None,
) -> None:
    """List what was changed, the newest first: who, from where, what, and why."""
    from tenuto.cli.output import show_json, show_table
    from tenuto.model.triggers.parsing import instant

    narrowed = where(
        actor=actor,
        action=action,
        target=target,
        since=None if since is None else instant(since, field="--since"),
        until=None if until is None else instant(until, field="--until"),
        limit=limit,
        below=below,
    )
    found = await session.app.audit.list(**narrowed)
    if session.as_json:
        show_json(found)
    elif not found:
        session.say("nothing is on record" if len(narrowed) == 1 else "nothing like that is on record")
    else:
        show_table(
            ("when", "who", "from", "action", "target", "why", "position"),
            [_row(entry) for entry in found],
            spare=("position", "from"),
            flexible=("target", "why"),
        )
        say_if_more(session, list(found), limit)


def _row(entry: dict[str, Any]) -> tuple[Any, ...]:
    return (
        local(entry["at"]),
        entry["actor_name"],
        entry["source"],
        entry["action"],
        one_line(entry["target"] or "", _COMMON_LENGTH),
        one_line(entry["reason"] or "", _COMMON_LENGTH),
        entry["position"],
    )


async def verify(
    session: Session,
    newest: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Look only at so many of the newest entries.")
    ] = None,
) -> int:
    """Check that the trail is as it was written: nothing changed, deleted, put in, exchanged or cut off.

    Each entry is sealed over the one before. The seals are made with the master key; without one, only what was
    remembered outside the database (audit.heads in the home) shows a trail that was made anew. Exit 1 if something is
    wrong.
    """
    from tenuto.cli.output import show_json, show_table

    told = await session.app.audit.verify(newest=newest)
    if session.as_json:
        show_json({"sound": told.sound, **_fields(told)})
        return exit_codes.OK if told.sound else exit_codes.FAILED
    if told.sound:
        session.say(f"the audit trail is sound: {_extent(told)}")
        return exit_codes.OK
    show_table(
        ("position", "what", "says"),
        [(fault.position, fault.kind.replace("_", " "), fault.says) for fault in told.faults],
        flexible=("says",),
    )
    more = ", and there is more" if told.more else ""
    session.say(f"the audit trail is not as it was written{more}: {_extent(told)}")
    return exit_codes.FAILED


def _fields(told: Verification) -> dict[str, Any]:
    return {
        "links": told.links,
        "position": told.position,
        "keyed": told.keyed,
        "anchored": told.anchored,
        "faults": told.faults,
        "more": told.more,
    }


def _extent(told: Verification) -> str:
    if told.position == 0:
        return "nothing is sealed yet"
    sealed = "sealed with a key" if told.keyed else "sealed without a key"
    anchored = f"remembered outside up to {told.anchored:,}" if told.anchored else "not yet remembered outside"
    return f"{told.links:,} entries looked at of {told.position:,}, {sealed}, {anchored}"


async def export(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="Where to write it; - for stdout.")],
) -> None:
    """Write the whole trail as lines of JSON, the oldest first, with the seals.

    The file takes the place of one of that name when it is complete, and only you may read it.
    """
    from tenuto.cli.output import show_json

    app = session.app
    if file == "-":
        import sys

        async for line in app.audit.lines():
            sys.stdout.write(f"{line}\n")
        return
    count = await app.audit.export(Path(file))
    if session.as_json:
        show_json({"file": file, "entries": count})
    else:
        session.say(f"{count:,} entries are in {file}")
