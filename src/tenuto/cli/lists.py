"""List commands: filters, pages, and the output of a page as table, JSON or CSV."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from shlex import quote
from types import MappingProxyType
from typing import Any
from uuid import UUID

import click

from tenuto.cli import output
from tenuto.cli.command import Session, command
from tenuto.cli.option_parsing import invalid_value
from tenuto.cli.parameters import Declaration, flag, option
from tenuto.cli.tables import print_rich, render_table
from tenuto.model.filters import DEFAULT_WINDOW, MAX_WINDOW, Filter, FilterSchema, parse_condition, parse_filter
from tenuto.presentation.columns import ResourceView
from tenuto.store.filter_sql import CappedCount

JOB = option("JOB", "Filter by job.")
WORKER = option("NAME", "Filter by worker.")
QUEUE = option("QUEUE", "Filter by queue.")
TAG = option("TAG", "Filter by tag.")
MANIFEST = option("EXTERNAL_ID", "Filter by manifest.")
BELOW = option("ID", "Pagination cursor: the id of the last row shown.")
Fetch = Callable[..., Awaitable[Sequence[Any]]]
Count = Callable[..., Awaitable[CappedCount]]


def limit(default: int, maximum: int = 500) -> Declaration:
    """Declare the option for the size of a page."""
    return option("N", "Maximum number of rows.", type=int, default=default, min=1, max=maximum)


PAGE = {"limit": limit(50), "below": BELOW}
TASK_FILTERS = {"name": JOB, "queue": QUEUE, "tag": TAG, "worker": WORKER, **PAGE}


def filter_options(schema: FilterSchema) -> dict[str, Declaration]:
    """Declare the options of the filter grammar for a resource."""
    keys = ", ".join(key.name for key in schema.keys)
    return {
        "where": option("FILTER", f"Filter such as 'key:value {schema.time_key}:>2h -key:value text'. Keys: {keys}."),
        "since": option("TIME", f"Filter by {schema.time_key}: an age (2h), a date, an instant, or today."),
        "until": option("TIME", f"Filter by {schema.time_key} before this time."),
        "window": option(
            "N", "Number of newest records that keys without an index search.", type=int, min=1, max=MAX_WINDOW
        ),
        "count": flag("The number of matching records only; exact up to 10,000.", "--count"),
    }


def list_command(
    group: click.Group,
    name: str,
    view: ResourceView,
    /,
    *examples: str,
    keys: FilterSchema | None = None,
    count: Count | None = None,
    **options: Declaration,
) -> Callable[[Fetch], Fetch]:
    """Make a list command of a function that returns the records; it receives the app and the given options.

    With ``keys``, the command has the options of the filter grammar and passes the filter as ``where``; ``count``
    returns the number of records.
    """
    declared = options if keys is None else {**options, **filter_options(keys)}

    def register(fetch: Fetch) -> Fetch:
        async def run(session: Session, **given: Any) -> None:
            filter = None if keys is None else await take_filter(session, keys, given)
            is_count = given.pop("count", False)
            filters = build_filters(given)
            if filter is not None:
                filters["where"] = filter
            if is_count and count is not None:
                narrowing = {name: value for name, value in filters.items() if name not in PAGE}
                print_count(session, await count(session.app, **narrowing))
                return
            found = await fetch(session.app, **filters)
            narrowing = {name: value for name, value in filters.items() if declared[name].type is not bool}
            if filter is not None and not filter.clauses:
                del narrowing["where"]
            await print_page(session, view, found, narrowing)  # a flag such as --all includes more rows
            if filter is not None:
                print_window(session, filter, found, filters.get("limit"))

        run.__doc__ = fetch.__doc__
        command(group, name, *examples, options=declared, is_list=True)(run)
        return fetch

    return register


async def take_filter(session: Session, schema: FilterSchema, given: dict[str, Any]) -> Filter:
    """Remove the options of the filter grammar from the given ones and return them as a filter.

    Dates without an offset are in the time zone of the machine.
    """
    where, since, until = (given.pop(name, None) for name in ("where", "since", "until"))
    window, now = given.pop("window", None), await session.now()
    filter = parse_filter(schema, where or "", now, zone=None, field="--where", window=window or DEFAULT_WINDOW)
    for sign, text, field in ((">=", since, "--since"), ("<", until, "--until")):
        if text is not None:
            value = f"{sign}{text}"
            filter = filter.combine(parse_condition(schema, schema.time_key, value, now, zone=None, field=field))
    return filter


def print_count(session: Session, found: CappedCount) -> None:
    """Print a number of records."""
    if session.as_json:
        output.print_json(found)
    else:
        output.print_text(f"{found.count}{'' if found.is_exact else '+'}")


def print_window(session: Session, filter: Filter, found: Sequence[Any], limit: int | None) -> None:
    """Say that only the newest records were searched, if that may hide some."""
    if session.output == "table" and filter.searched_count is not None and len(found) != limit:
        noun, count = filter.schema.noun, filter.searched_count
        session.print_message(f"searched the newest {count:,} {noun}; search more with: --window {count * 10}")


def build_filters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options as filter arguments of a list operation."""
    filters = {field: value for field, value in options.items() if value is not None}
    if "below" in filters:
        try:
            filters["below"] = UUID(filters["below"])
        except ValueError:
            problem, remedy = "is not a complete id", "copy the last id of the previous page"
            raise invalid_value("--below", filters["below"], problem, code="cli.below.invalid", remedy=remedy) from None
    return filters


async def print_page(
    session: Session,
    view: ResourceView,
    records: Sequence[Any],
    filters: Mapping[str, Any] = MappingProxyType({}),
    *,
    hint: str = "",
    now: datetime | None = None,
) -> None:
    """Print records as table, JSON or CSV; if the page is full, how to get the next one.

    Without ``now`` the time is that of the database.
    """
    if session.as_json:
        output.print_json([view.document(record) for record in records])
    elif session.output == "csv":
        print_csv(view, records)
    elif not records:
        filtered = any(value not in ("", False) for name, value in filters.items() if name != "limit")
        hint = hint or view.hint
        advice = f"; {hint}" if hint else ""
        session.print_message(f"no matching {view.noun}" if filtered else f"no {view.noun}{advice}")
    else:
        print_rich(render_table(view, records, now or await session.now()))
        if len(records) == filters.get("limit"):
            last = records[-1]
            print_next_page(session, {f"--{name}": getattr(last, key) for name, key in view.next_page.items()})


def print_csv(view: ResourceView, records: Sequence[Any]) -> None:
    """Print records as CSV."""
    print_record = output.csv_writer(view)
    for record in records:
        print_record(record)


def print_next_page(session: Session, options: Mapping[str, Any]) -> None:
    """Say how to get the next page."""
    values = {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in options.items()}
    text = " ".join(f"{name} {quote(str(value))}" for name, value in values.items())
    session.print_message(f"there may be more: add {text}")
