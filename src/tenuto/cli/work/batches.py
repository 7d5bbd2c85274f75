"""``tenuto batch``: bulk work as one thing: submit it, watch it, pause, resume, cancel it, run what failed again."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import ago, escaped, local, one_line, plain, span
from tenuto.cli.option_parsing import Below, Limit, say_if_more, where
from tenuto.cli.work.batch_submit import submit
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

Record = dict[str, Any]
Id = Annotated[str, typer.Argument(metavar="ID", help="The batch's id, the beginning of it, or its key.")]
ItemStatus = Literal[
    "waiting", "scheduled", "queued", "in_progress",
    "completed", "completed_with_warning", "completed_with_error", "failed", "cancelled",
]  # fmt: skip
Form = Literal["table", "json", "jsonl", "csv"]
_COLUMNS = ("key", "status", "reason", "attempt", "started_at", "ended_at", "input", "output", "error", "task_id")
_KINDS_SHOWN = 5
# So begins what a spreadsheet takes for a formula; the last four are wide forms of the first four.
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    batches = group(
        root,
        "batch",
        "Give a manifest many rows at once, and keep them under control.",
        "tenuto batch submit replicate-users --from rows.jsonl --app tasks:app --watch",
        "tenuto batch list",
    )
    command(
        batches,
        "submit",
        "tenuto batch submit replicate-users --from rows.jsonl --app tasks:app --watch",
        "tenuto batch submit replicate-users --from rows.csv --key id --batch-key users-2031-05 --app tasks:app",
        "tenuto batch submit replicate-users --from - --format csv --atomic --app tasks:app",
    )(submit)
    command(batches, "list", "tenuto batch list", "tenuto batch list --manifest replicate-users -o json")(list_batches)
    command(batches, "watch", "tenuto batch watch 019a8b3c-1d2e", "tenuto batch watch users-2031-05 --timeout 600")(
        watch
    )
    for word, function in (("show", show_batch), ("pause", pause), ("resume", resume), ("cancel", cancel)):
        command(batches, word, f"tenuto batch {word} 019a8b3c-1d2e", f"tenuto batch {word} users-2031-05 -o json")(
            function
        )
    command(
        batches,
        "retry-failed",
        "tenuto batch retry-failed 019a8b3c-1d2e --watch",
        "tenuto batch retry-failed 019a8b3c-1d2e --note 'the server is back'",
    )(retry_failed)
    command(
        batches,
        "items",
        "tenuto batch items 019a8b3c-1d2e --status failed",
        "tenuto batch items 019a8b3c-1d2e -o csv > outcomes.csv",
        shared=("app", "database", "home", "quiet"),
    )(items)


# --- looking --------------------------------------------------------------------------------------------------------


async def list_batches(
    session: Session,
    manifest: Annotated[str | None, typer.Option(metavar="EXTERNAL_ID", help="Only those of this manifest.")] = None,
    limit: Limit = 50,
    below: Below = None,
) -> None:
    """List batches, the newest first."""
    from tenuto.cli.output import for_a_person, show, show_json, show_table, stacked
    from tenuto.cli.output import state as in_words

    narrowed = where(manifest=manifest, limit=limit, below=below)
    found = await session.app.batches.list(**narrowed)
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say(
            "no batches yet; make one: tenuto batch submit --help" if len(narrowed) == 1 else "no batches like that"
        )
        return
    now = (await session.app.open()).clock.now()
    if for_a_person():
        rows = [_over_and_under(row, now) for row in found]
        show(stacked(("batch", "state", "items", "made"), rows, flexible="batch"))
    else:
        show_table(
            ("id", "manifest", "name", "key", "state", "items", "open", "failed", "made", "by"),
            [
                (
                    row["id"],
                    row["external_id"],
                    row["name"],
                    row["key"],
                    in_words(_state(row)),
                    row["total"],
                    row["open"],
                    row["failed"],
                    ago(row["created_at"], now),
                    row["initiator_name"],
                )
                for row in found
            ],
        )
    say_if_more(session, found, limit)


def _over_and_under(row: Record, now: datetime) -> list[tuple[Any, Any]]:
    from tenuto.cli.output import state as in_words

    named = row["name"] or _own_key(row)
    failed = f"{row['failed']:,} failed" if row["failed"] else ""
    return [
        (f"{row['external_id']}{f'  {named}' if named else ''}", row["id"]),
        (in_words(_state(row)), failed),
        (f"{row['total']:,}", f"{row['open']:,} open" if row["open"] else None),
        (ago(row["created_at"], now), f"by {row['initiator_name']}"),
    ]


def _own_key(row: Record) -> str | None:
    """Its key, if somebody chose it."""
    return None if (row["key"] or "").startswith("cli-") else row["key"]


def _state(row: Record) -> str:
    if row["cancelled_at"] is not None:
        return "cancelled"
    if row["paused_at"] is not None:
        return "paused"
    if row["complete_at"] is None:
        return "filling"
    if row["open"]:
        return "in_progress"
    return "some_failed" if row["failed"] else "completed"


async def show_batch(session: Session, batch_id: Id) -> None:
    """Show a batch: counts by state, rate, time left, and the kinds of failures."""
    from tenuto.cli.output import pairs, show, show_json
    from tenuto.cli.work import batch_progress

    app = session.app
    id = await app.batches.find(batch_id)
    found = await app.batches.get(id)
    if session.as_json:
        show_json(found)
        return
    kinds = await app.dead_letters.groups(batch=id, limit=_KINDS_SHOWN)
    now = (await app.open()).clock.now()
    cancelled = f"{local(found['cancelled_at'])} by {found['cancelled_by']}" if found["cancelled_at"] else None
    about = pairs(
        ("made", f"{local(found['created_at'])} ({ago(found['created_at'], now)}) by {found['initiator_name']}"),
        ("key", _own_key(found)),
        (
            "items",
            f"{found['total']:,}"
            + (f", {found['duplicates']:,} left out as duplicates" if found["duplicates"] else ""),
        ),
        ("run again", f"{found['retried']:,}" if found["retried"] else None),
        ("cancelled", cancelled),
        ("ended", f"{local(found['ended_at'])} ({ago(found['ended_at'], now)})" if found["ended_at"] else None),
    )
    width = _width()
    show(batch_progress.drawn(found, width), "", about, *_kinds(kinds, id))


def _width() -> int:
    from tenuto.cli.output import console_for_live

    console = console_for_live()
    return 80 if console is None else console.width


def _kinds(kinds: Sequence[Record], id: UUID) -> list[Any]:
    """Of what kinds the failures are, the most frequent first."""
    from rich.text import Text

    if not kinds:
        return []
    told = [Text(f"  {kind['letters']:>6,} × {one_line(kind['reason'], 66)}", style="red") for kind in kinds]
    see = Text(f"  see: tenuto dead-letter list --batch {id}", style="dim")
    return ["", Text("why items failed", style="bold"), *told, see]


async def watch(
    session: Session,
    batch_id: Id,
    timeout: Annotated[float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after so long.")] = None,
) -> int:
    """Follow a batch to its end, live: exit 0 if every item is done, 1 if some failed or were cancelled.

    In a pipe, progress is told line by line. As JSON, the one document at the end. Ctrl-C stops the watching only.
    """
    from tenuto.cli.work.batch_progress import follow

    return await follow(session, await session.app.batches.find(batch_id), timeout)


# --- doing ----------------------------------------------------------------------------------------------------------


async def pause(session: Session, batch_id: Id) -> None:
    """Let nothing more of a batch begin; what runs goes on to its end."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        await app.batches.pause(id)
    await _done(session, id, f"batch {id} is paused, by {login_name()}", f"go on with: tenuto batch resume {id}")


async def resume(session: Session, batch_id: Id) -> None:
    """Let a paused batch go on."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        await app.batches.resume(id)
    await _done(session, id, f"batch {id} goes on", f"follow it: tenuto batch watch {id}")


async def cancel(session: Session, batch_id: Id) -> None:
    """Cancel a batch: what has not begun is removed, what runs is told to stop, what is done stays done."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        await app.batches.cancel(id)
    await _done(session, id, f"batch {id} is cancelled, by {login_name()}")


async def _done(session: Session, id: UUID, words: str, then: str | None = None) -> None:
    from tenuto.cli.output import show_json
    from tenuto.cli.work.batch_progress import counts

    found = await session.app.batches.get(id)
    if session.as_json:
        show_json(found)
    else:
        session.say(words)
        session.say(f"  {counts(found).plain}")
        if then is not None:
            session.say(f"  {then}")


async def retry_failed(
    session: Session,
    batch_id: Id,
    note: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the record.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it to its end; exit 1 unless all went well.")] = False,
) -> int:
    """Run what failed for good in a batch again, with all its attempts anew; nothing else is touched."""
    from tenuto.cli.output import show_json
    from tenuto.cli.work.batch_progress import follow

    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        number = await app.batches.retry_failed(id, note=note)
    session.say(f"{number:,} items run again, by {login_name()}" if number else "no item has an open dead letter")
    if watch and number:
        return await follow(session, id)
    if session.as_json:
        show_json({"id": id, "retried": number})
    elif number:
        session.say(f"  follow them: tenuto batch watch {id}")
    return exit_codes.OK


# --- its items ------------------------------------------------------------------------------------------------------


async def items(
    session: Session,
    batch_id: Id,
    status: Annotated[ItemStatus | None, typer.Option(help="Only those that stand so.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many at most. (default: 50 in a table, else all)")
    ] = None,
    form: Annotated[
        Form,
        typer.Option("--output", "-o", metavar="table|json|jsonl|csv", show_default=False, help="How to show them."),
    ] = "table",
    raw: Annotated[
        bool, typer.Option("--raw", help="With csv: put no apostrophe before text that looks like a formula.")
    ] = False,
) -> None:
    """Show every item of a batch with what became of it: its input, its result or error, its attempts.

    As jsonl and csv they are written as they are read, whatever their number. In csv, text that a spreadsheet would
    take for a formula has an apostrophe before it; --raw is for programs, which want it without.
    """
    from tenuto.cli.output import show_json

    if raw and form != "csv":
        raise Invalid("goes with -o csv", field="--raw", remedy="leave it out: in other forms, text is as it is")
    id = await session.app.batches.find(batch_id)
    most = limit or (50 if form == "table" else None)
    found: list[Record] = []
    write = _csv_writer(raw=raw) if form == "csv" else None
    number, more = 0, False
    async for item in session.app.batches.items(id, status=status):
        if most is not None and number == most:
            more = True
            break
        number += 1
        if form == "jsonl":
            sys.stdout.write(escaped(json.dumps(_item(item), ensure_ascii=False, default=str)) + "\n")
        elif write is not None:
            write(_item(item))
        else:
            found.append(item)
    if form == "json":
        show_json([_item(each) for each in found])
    elif form == "table":
        _show_items(session, found)
    if more:
        session.say(f"there may be more: add --limit {number * 10}")


def _item(item: Record) -> Record:
    told = {**item, "key": item["item_key"]}
    for name in ("started_at", "ended_at"):
        told[name] = None if item[name] is None else item[name].isoformat()
    return {name: told[name] for name in _COLUMNS}


def _csv_writer(*, raw: bool) -> Any:
    import csv

    from tenuto.cli.work.task_report import summary

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_COLUMNS)

    def write(item: Record) -> None:
        cells = {**item, "error": summary(item["error"])}  # on one line; as jsonl, all of it
        writer.writerow([_cell(cells[name], raw=raw) for name in _COLUMNS])

    return write


def _cell(value: Any, *, raw: bool) -> Any:
    if isinstance(value, str):
        text = plain(value)
        return f"'{text}" if text.startswith(_FORMULA) and not raw else text
    return escaped(json.dumps(value, ensure_ascii=False)) if isinstance(value, dict | list) else value


def _show_items(session: Session, found: list[Record]) -> None:
    from tenuto.cli.output import compact, show_table
    from tenuto.cli.output import state as in_words
    from tenuto.cli.work.task_report import summary

    if not found:
        session.say("no items like that")
        return
    rows = [
        {
            "status": in_words(item["status"]),
            "key": item["item_key"],
            "attempt": item["attempt"],
            "ran": span(item["ended_at"] - item["started_at"]) if item["ended_at"] and item["started_at"] else "",
            "came to": summary(item["error"]) or compact(item["output"]),
            "input": compact(item["input"]),
            "task": item["task_id"],
        }
        for item in found
    ]
    columns = [name for name in rows[0] if name != "key" or any(row["key"] for row in rows)]
    show_table(
        columns,
        [[row[name] for name in columns] for row in rows],
        spare=("task", "ran"),
        flexible=("came to", "input", "key"),
    )
