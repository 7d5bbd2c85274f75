"""``tenuto log``: named logs that steps append to, and people."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenuto.cli.command import Session, command, group
from tenuto.cli.formatting import ago, escaped, local, one_line, plain
from tenuto.cli.option_parsing import Limit

LogName = Annotated[str, typer.Argument(metavar="LOG", help="The log's name.")]


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    logs = group(
        root, "log", "Read named logs, and append to them.", "tenuto log list", "tenuto log show orders --limit 20"
    )
    command(logs, "list", "tenuto log list", "tenuto log list -o json")(list_logs)
    command(logs, "show", "tenuto log show orders", "tenuto log show orders --oldest-first --above 1200 -o json")(
        show_log
    )
    command(
        logs,
        "append",
        "tenuto log append orders 'stock counted'",
        "tenuto log append orders 'stock counted' --fields '{\"shelves\": 12}'",
    )(append)


async def list_logs(
    session: Session,
    limit: Limit = 100,
    after: Annotated[str, typer.Option(metavar="LOG", help="Only those after this name: the next page.")] = "",
) -> None:
    """List the logs there are, by name, each with its newest entry."""
    from tenuto.cli.output import show_json, show_table

    found = await session.app.logs.names(after=after, limit=limit)
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say("no logs yet")
        return
    now = (await session.app.open()).clock.now()
    show_table(
        ("name", "last", "entry", "message"),
        [
            (each["log"], ago(each["last_at"], now), each["last_entry"], one_line(each["last_message"]))
            for each in found
        ],
        spare=("entry",),
        flexible=("message",),
    )
    if len(found) == limit:
        session.say(f"there may be more: add --after {found[-1]['log']}")


async def show_log(
    session: Session,
    log: LogName,
    limit: Limit = 50,
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="Begin with the oldest entry.")] = False,
    below: Annotated[
        int | None, typer.Option(min=0, metavar="ENTRY", help="Only entries older than this one: the next page.")
    ] = None,
    above: Annotated[
        int | None, typer.Option(min=0, metavar="ENTRY", help="Only newer ones: the next page, the oldest first.")
    ] = None,
) -> None:
    """Show the entries of a log, the newest first."""
    from tenuto.cli.output import show_json, show_text

    found = await session.app.logs.read(log, below=below, above=above, oldest_first=oldest_first, limit=limit)
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say(f"nothing in {plain(log)}" + (" beyond that" if below or above else " yet"))
        return
    show_text("\n".join(_line(entry) for entry in found))
    if len(found) == limit:
        session.say(f"there may be more: add --{'above' if oldest_first else 'below'} {found[-1]['id']}")


def _line(entry: dict[str, Any]) -> str:
    import json

    data = "" if not entry["fields"] else "  " + escaped(json.dumps(entry["fields"], ensure_ascii=False))
    return f"{local(entry['at'])}  {one_line(entry['message'], 2000)}{data}"


async def append(
    session: Session,
    log: LogName,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="What to say.")],
    fields: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE|-", help="Data to go with it, as a JSON object; - reads stdin.")
    ] = None,
) -> None:
    """Append an entry to a log; a log comes to be with its first entry."""
    from tenuto.cli.output import show_json
    from tenuto.cli.work.jobs import text_given
    from tenuto.errors import Invalid
    from tenuto.model import stored_values

    data = None
    if fields is not None:
        try:
            data = stored_values.loads(text_given(fields, "--fields"))
        except (ValueError, RecursionError) as error:
            why = str(error) if isinstance(error, stored_values.NameTwice) else "is not a JSON object"
            raise Invalid(why, field="--fields", remedy='write it as \'{"name": "value"}\'') from None
        if not isinstance(data, dict):
            raise Invalid("is not a JSON object", field="--fields", remedy='write it as \'{"name": "value"}\'')
    with session.as_user() as app:
        entry = await app.logs.append(log, message, data)
    if session.as_json:
        show_json(entry)
    else:
        session.say(f"entry {entry['id']} in {plain(log)}")
