"""``tenuto log``: list and read named logs, and append to them."""

from __future__ import annotations

import json
from typing import Annotated

from tenuto.cli.command import Session, command, group
from tenuto.cli.formatting import escape_control_characters, format_local_time, format_relative, one_line, safe_text
from tenuto.cli.option_parsing import LimitOption, read_json_option
from tenuto.cli.output import Record, print_json, print_list, print_text
from tenuto.cli.parameters import argument, flag, option

LogName = Annotated[str, argument("LOG", "Name of the log.")]

logs = group("log", "Read named logs and append to them.", "list", "show orders --limit 20")


@command(logs, "list", "", "-o json")
async def list_logs(
    session: Session,
    limit: LimitOption = 100,
    after: Annotated[str, option("LOG", "Pagination cursor: last name of the page before.")] = "",
) -> None:
    """List logs by name, each with its newest entry."""
    await print_list(
        session,
        await session.app.logs.names(after=after, limit=limit),
        {
            "name": "log",
            "last": lambda row, now: format_relative(row["last_entry_at"], now),
            "entry": "last_entry_id",
            "message": lambda row, _: one_line(row["last_message"]),
        },
        noun="logs",
        filters={"after": after, "limit": limit},
        optional=("entry",),
        flexible=("message",),
        next_page="--after",
        cursor="log",
    )


@command(logs, "show", "orders", "orders --oldest-first --above 1200 -o json")
async def show_log(
    session: Session,
    log: LogName,
    limit: LimitOption = 50,
    oldest_first: Annotated[bool, flag("Oldest entry first.", "--oldest-first")] = False,
    below: Annotated[int | None, option("ENTRY", "Pagination cursor: only entries older than this one.", min=0)] = None,
    above: Annotated[
        int | None, option("ENTRY", "Pagination cursor with --oldest-first: only newer entries.", min=0)
    ] = None,
) -> None:
    """Show the entries of a log, newest first."""
    entries = await session.app.logs.read(log, below=below, above=above, oldest_first=oldest_first, limit=limit)
    if session.as_json:
        print_json(entries)
        return
    if not entries:
        session.print_message(f"no {'more ' if below or above else ''}entries in {safe_text(log)}")
        return
    print_text("\n".join(_entry_line(entry) for entry in entries))
    if len(entries) == limit:
        option = "--above" if oldest_first else "--below"
        session.print_message(f"there may be more: add {option} {entries[-1]['id']}")


def _entry_line(entry: Record) -> str:
    fields = ""
    if entry["fields"]:
        fields = "  " + escape_control_characters(json.dumps(entry["fields"], ensure_ascii=False))
    return f"{format_local_time(entry['at'])}  {one_line(entry['message'], 2000)}{fields}"


@command(logs, "append", "orders 'stock counted'", "orders 'stock counted' --fields '{\"shelves\": 12}'")
async def append_entry(
    session: Session,
    log: LogName,
    message: Annotated[str, argument("MESSAGE", "Text of the entry.")],
    fields: Annotated[str | None, option("JSON|@FILE|-", "Data of the entry as a JSON object; - reads stdin.")] = None,
) -> None:
    """Append an entry to a log. The first entry creates the log."""
    data = None if fields is None else read_json_option(fields, "--fields")
    with session.as_user() as app:
        entry = await app.logs.append(log, message, data)
    session.report(entry, f"entry {entry['id']} appended to {safe_text(log)}")
