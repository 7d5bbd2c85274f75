"""``tenuto log``: list and read named logs, and append to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from tenuto.app import Tenuto
from tenuto.cli.command import Session, command, group
from tenuto.cli.lists import limit, list_command, print_csv, print_next_page, take_filter
from tenuto.cli.option_parsing import read_json_option
from tenuto.cli.output import print_json, print_text
from tenuto.cli.parameters import argument, flag, option
from tenuto.model.filter_keys import LOG_ENTRY_KEYS
from tenuto.presentation.admin_views import LOG_ENTRIES, LOGS
from tenuto.presentation.text_formats import (
    compact_json,
    escape_control_characters,
    format_local_time,
    one_line,
    safe_text,
)
from tenuto.store.named_logs import LogEntryRecord

LogName = Annotated[str, argument("LOG", "Name of the log.")]

logs = group("log", "Read named logs and append to them.", "list", "show orders --limit 20")


_AFTER = option("LOG", "Pagination cursor: last name of the page before.")


_SEARCH = option("TEXT", "Filter by part of the name.")


@list_command(logs, "list", LOGS, "", "--search order -o json", search=_SEARCH, limit=limit(100), after=_AFTER)
async def list_logs(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List logs by name, each with its newest entry."""
    return await app.logs.names(**filters)


_KEYS = ", ".join(key.name for key in LOG_ENTRY_KEYS.keys if key.name != "log")


@command(logs, "show", "orders", "orders --where 'refused at:>1d'", "orders --oldest-first -o json", is_list=True)
async def show_log(
    session: Session,
    log: LogName,
    where: Annotated[str | None, option("FILTER", f"Filter such as 'refused at:>1d'. Keys: {_KEYS}.")] = None,
    limit: Annotated[int, limit(50)] = 50,
    oldest_first: Annotated[bool, flag("Sort by time, oldest first.", "--oldest-first")] = False,
    below: Annotated[int | None, option("ENTRY", "Pagination cursor: only entries older than this one.", min=0)] = None,
    above: Annotated[
        int | None, option("ENTRY", "With --oldest-first: only entries newer than this one.", min=0)
    ] = None,
) -> None:
    """Show the entries of a log, newest first."""
    filter = await take_filter(session, LOG_ENTRY_KEYS, {"where": where})
    entries = await session.app.logs.read(log, filter, below=below, above=above, oldest_first=oldest_first, limit=limit)
    if session.as_json:
        print_json(entries)
    elif session.output == "csv":
        print_csv(LOG_ENTRIES, entries)
    elif not entries:
        session.print_message(f"no {'more ' if below or above else ''}entries in {safe_text(log)}")
    else:
        print_text("\n".join(_entry_line(entry) for entry in entries))
        if len(entries) == limit:
            print_next_page(session, {"--above" if oldest_first else "--below": entries[-1].id})


def _entry_line(entry: LogEntryRecord) -> str:
    fields = f"  {escape_control_characters(compact_json(entry.fields) or '')}" if entry.fields else ""
    return f"{format_local_time(entry.at)}  {one_line(entry.message, 2000)}{fields}"


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
    session.report(entry, f"entry {entry.id} appended to {safe_text(log)}")
