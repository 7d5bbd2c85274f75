"""``tenuto once``: work for one instant: ask for it, see what is to come, stop it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import ago, local, one_line, span
from tenuto.cli.option_parsing import by_option
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

Record = dict[str, Any]
Status = Literal["pending", "running", "completed", "failed", "terminated"]
Id = Annotated[str, typer.Argument(metavar="ID", help="The one-shot's id, or the beginning of it.")]
_OPTION_OF = {"prompt_type": "TYPE", "tags": "--tag", "payload": "--payload", "max_retries": "--retries"}
_PAST = ("completed", "failed", "terminated")


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    once = group(
        root,
        "once",
        "Have something done once, at an instant.",
        'tenuto once add log.append --in 2h --payload \'{"message": "Hello"}\'',
        "tenuto once list",
    )
    command(
        once,
        "add",
        'tenuto once add log.append --in 2h --payload \'{"message": "Hello"}\'',
        "tenuto once add resize --at 2031-05-17T12:00:00+02:00 --payload @picture.json --app tasks:app",
    )(add)
    command(once, "list", "tenuto once list", "tenuto once list --tag order-7 --search picture -o json")(list_them)
    command(once, "show", "tenuto once show 019a8b3c-1d2e", "tenuto once show 019a8b3c-1d2e -o json")(show_one)
    command(once, "cancel", "tenuto once cancel 019a8b3c-1d2e", "tenuto once cancel 019a8b3c-1d2e -q")(cancel)
    command(once, "wipe", "tenuto once wipe", "tenuto once wipe --yes -o json")(wipe)


# --- asking ---------------------------------------------------------------------------------------------------------


async def add(
    session: Session,
    prompt_type: Annotated[
        str, typer.Argument(metavar="TYPE", help="log.append, http.call, or the name of a job of the app.")
    ],
    at: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="When, with its offset: 2031-05-17T12:00:00+02:00.")
    ] = None,
    after: Annotated[
        str | None, typer.Option("--in", metavar="SPAN", help="How long from now: 90s, 15m, 2h, 3d.")
    ] = None,
    given: Annotated[
        str,
        typer.Option("--payload", metavar="JSON|@FILE|-", help="What it is given, as a JSON object; - reads stdin."),
    ] = "{}",
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="A word to find it by. Give several.")
    ] = None,
    retries: Annotated[
        int | None, typer.Option(min=0, max=1000, metavar="N", help="How many attempts may fail; otherwise one.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="SPAN", help="How long an attempt may take.")] = None,
) -> int:
    """Have something done once. Prints its id.

    The payload is checked at once against what the type takes. An instant that has passed means: at once.
    """
    from tenuto.cli.definitions.manifest_options import json_object
    from tenuto.cli.output import show_json, show_text
    from tenuto.cli.work.jobs import text_given
    from tenuto.model.policies import RetryPolicy

    if (at is None) == (after is None):
        raise Invalid("says when, or --in does: give one of them", field="--at", remedy="--in 2h, or --at INSTANT")
    payload = json_object(text_given(given, "--payload"), "--payload")
    said_in = {"exec_at": "--in" if at is None else "--at"}
    with session.as_user() as app, by_option({**_OPTION_OF, **said_in}):
        now = (await app.open()).clock.now()
        made = await app.one_shots.create(
            at if at is not None else _from(now, after or ""),
            prompt_type,
            payload,
            tags=tags or (),
            retry=None if retries is None else RetryPolicy(max_retries=retries),
            timeout=timeout,
        )
    if session.as_json:
        show_json({"id": made.id, "exec_at": made.exec_at})
    else:
        show_text(str(made.id))
        when = "at once" if made.exec_at <= now else f"{local(made.exec_at)} ({ago(made.exec_at, now)})"
        session.say(f"runs {when}; see it with: tenuto once show {made.id}")
    return exit_codes.OK


def _from(now: datetime, text: str) -> datetime:
    from datetime import timedelta

    from tenuto.model.tasks import seconds

    found = seconds(text, field="--in")
    if found is None or not found >= 0:
        raise Invalid("must not be less than nothing", field="--in", remedy="write it as 90s, 15m, 2h or 3d")
    try:
        return now + timedelta(seconds=found)
    except (OverflowError, ValueError):
        raise Invalid(f"{text!r:.40} is too long", field="--in", remedy="name the instant with --at") from None


# --- looking --------------------------------------------------------------------------------------------------------


async def list_them(
    session: Session,
    status: Annotated[Status | None, typer.Option(help="Only those that stand so; an end implies --ended.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Those that have ended, the newest first.")] = False,
    prompt_type: Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only those of this type.")] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only those with this tag. Give several.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those with this in type, tags or payload.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="How many at most.")] = 50,
    after: Annotated[str | None, typer.Option(metavar="ID", help="Only those after this one: the next page.")] = None,
) -> None:
    """List what is still to end, the next one first; with --ended, what has been."""
    from tenuto.cli.output import show_json

    shots = session.app.one_shots
    narrowed: Record = {"status": status, "prompt_type": prompt_type, "tags": tags or (), "search": search}
    if ended or status in _PAST:
        last = None if after is None else (await session.app.attempts(await shots.find(after)))[-1]["id"]
        found = await shots.past(**narrowed, below=last, limit=limit)
    else:
        found = await shots.list(**narrowed, after=None if after is None else await _place(session, after), limit=limit)
    if session.as_json:
        show_json(found)
    elif not found:
        session.say("no one-shots" if not any(narrowed.values()) else "no one-shots like that")
    else:
        _show_list(found, (await session.app.open()).clock.now())
        if len(found) == limit:
            session.say(f"there may be more: add --after {found[-1]['id']}")


async def _place(session: Session, after: str) -> tuple[datetime, UUID]:
    """Where a one-shot stands in the list, or stood."""
    id = await session.app.one_shots.find(after)
    return (await session.app.attempts(id))[-1]["run_at"], id


def _show_list(found: Sequence[Record], now: datetime) -> None:
    from tenuto.cli.output import show_table
    from tenuto.cli.output import state as in_words

    show_table(
        ("id", "status", "type", "due", "when", "tags", "by"),
        [
            (
                row["id"],
                in_words(row["status"].lower()),
                row["name"],
                local(row["exec_at"]),
                ago(row.get("ended_at") or row["run_at"], now),
                ", ".join(row["tags"] or []),
                row["initiator_name"],
            )
            for row in found
        ],
        spare=("by", "due", "tags"),
        flexible=("type", "tags"),
    )


async def show_one(session: Session, id: Id) -> None:
    """Show a one-shot, open or ended, and everything that has happened to it."""
    from rich.text import Text

    from tenuto.cli.output import compact, fitted, pairs, show, show_json
    from tenuto.cli.output import state as in_words

    shots = session.app.one_shots
    found = await shots.status(await shots.find(id), history=True)
    if session.as_json:
        show_json(found)
        return
    now = (await session.app.open()).clock.now()
    stopping = found["stopping"] and f"asked to {ago(found['stopping']['at'], now)} by {found['stopping']['by']}"
    again = found["next_attempt_at"]
    facts = [
        ("due", f"{local(found['exec_at'])} ({ago(found['exec_at'], now)})"),
        ("next try", again and f"{local(again)} ({ago(again, now)})"),
        ("created", f"{local(found['created_at'])} ({ago(found['created_at'], now)}) by {found['created_by']}"),
        ("tags", ", ".join(found["tags"])),
        ("payload", compact(found["input"])),
        ("output", compact(found["output"])),
        ("error", found["error"] and one_line(f"{found['error']['type']}: {found['error']['message']}", 500)),
        ("stopping", stopping),
    ]
    rows = [
        (local(event["at"]), event["event"], event["attempt"], _told(event, found["exec_at"]))
        for event in found["history"]
    ]
    show(
        Text.assemble(
            in_words(found["status"].lower()),
            "  ",
            (one_line(found["prompt_type"]), "bold"),
            "  ",
            (str(found["id"]), "dim"),
        ),
        "",
        pairs(*facts),
        "",
        fitted(("when", "what", "attempt", ""), rows, flexible=("",)),
    )


def _told(event: Record, due: datetime) -> str | None:
    if event.get("error"):
        return one_line(f"{event['error']['type']}: {event['error']['message']}")
    if "exec_at" in event:
        return f"for {local(event['exec_at'])}"
    if event["event"] == "Started" and event["attempt"] == 1 and event["at"] >= due:
        return f"{span(event['at'] - due)} after it was due, by {event.get('worker', 'a worker')}"
    by = event.get("by") or event.get("worker")
    return f"by {by}" if by else None


# --- stopping -------------------------------------------------------------------------------------------------------


async def cancel(session: Session, id: Id) -> int:
    """Stop a one-shot: at once if nobody runs it; otherwise its code is told to stop.

    One that has ended already is left as it is.
    """
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        found = await app.one_shots.find(id)
        how = await app.one_shots.cancel(found)
    if session.as_json:
        show_json({"id": found, "outcome": how})
    elif how == "terminated":
        session.say(f"one-shot {found} is cancelled, by {login_name()}")
    elif how == "stopping":
        session.say(f"one-shot {found} is running; it has been told to stop, by {login_name()}")
    else:
        session.say(f"one-shot {found} has ended already; nothing was changed")
    return exit_codes.OK


async def wipe(session: Session, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> int:
    """Stop all one-shots there are, in one transaction: all of them, or none."""
    import sys

    from tenuto.cli.output import show_json

    with session.as_user() as app:
        if not yes:
            if not sys.stdin.isatty():
                raise Invalid(
                    "would stop all one-shots, and nobody is there to be asked", field="--yes", remedy="add it"
                )
            waiting = len(await app.one_shots.list(limit=1000))
            number = "1,000 or more" if waiting == 1000 else f"{waiting:,}"
            if not typer.confirm(f"stop all one-shots ({number})?", err=True):
                session.say("nothing was changed")
                return exit_codes.FAILED
        wiped = await app.one_shots.wipe()
    if session.as_json:
        show_json({"terminated": wiped.terminated, "total": len(wiped.terminated), "stopping": wiped.stopping})
        return exit_codes.OK
    session.say(f"{len(wiped.terminated):,} one-shots are cancelled, by {login_name()}")
    if wiped.stopping:
        session.say(f"  {len(wiped.stopping):,} of them were running, and have been told to stop")
    return exit_codes.OK
