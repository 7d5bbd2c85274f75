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
from tenuto.cli.parameters import Declaration, option
from tenuto.cli.tables import print_rich, render_table
from tenuto.presentation.columns import ResourceView

JOB = option("JOB", "Filter by job.")
QUEUE = option("QUEUE", "Filter by queue.")
TAG = option("TAG", "Filter by tag.")
MANIFEST = option("EXTERNAL_ID", "Filter by manifest.")
BELOW = option("ID", "Pagination cursor: the id of the last row shown.")
Fetch = Callable[..., Awaitable[Sequence[Any]]]


def limit(default: int, most: int = 500) -> Declaration:
    """Declare the option for the size of a page."""
    return option("N", "Maximum number of rows.", type=int, default=default, min=1, max=most)


PAGE = {"limit": limit(50), "below": BELOW}
TASK_FILTERS = {"name": JOB, "queue": QUEUE, "tag": TAG, **PAGE}


def list_command(
    group: click.Group,
    name: str,
    view: ResourceView,
    /,
    *examples: str,
    **options: Declaration,
) -> Callable[[Fetch], Fetch]:
    """Make a list command of a function that returns the records; it receives the app and the given options."""

    def register(fetch: Fetch) -> Fetch:
        async def run(session: Session, **given: Any) -> None:
            filters = build_filters(given)
            found = await fetch(session.app, **filters)
            narrowing = {name: value for name, value in filters.items() if options[name].type is not bool}
            await print_page(session, view, found, narrowing)  # a flag such as --all includes more rows

        run.__doc__ = fetch.__doc__
        command(group, name, *examples, options=options, is_list=True)(run)
        return fetch

    return register


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
