"""``tenuto batch``: submit, list, watch, pause, resume and cancel batches, retry their failures, export their items."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import typer
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name, top_level
from tenuto.cli.formatting import (
    escape_control_characters,
    format_duration,
    format_relative,
    format_with_age,
    one_line,
    safe_text,
)
from tenuto.cli.option_parsing import BelowOption, LimitOption, argument, build_filters, flag, option
from tenuto.cli.output import (
    Column,
    Record,
    TwoLineColumn,
    compact_json,
    live_console,
    name_value_table,
    print_json,
    print_list,
    print_rich,
    print_table,
    styled_state,
)
from tenuto.cli.work.batch_progress import count_summary, render_batch, watch_batch
from tenuto.cli.work.batch_submit import submit_batch
from tenuto.cli.work.task_report import error_summary
from tenuto.errors import Invalid

Id = Annotated[str, argument("ID", "Id of the batch, the beginning of its id, or its key.")]
ItemStatus = Literal[
    "waiting", "scheduled", "queued", "in_progress",
    "completed", "completed_with_warning", "completed_with_error", "failed", "cancelled",
]  # fmt: skip
Format = Literal["table", "json", "jsonl", "csv"]
_ITEM_FIELDS = ("key", "status", "reason", "attempt", "started_at", "ended_at", "input", "output", "error", "task_id")
_SHOWN_FAILURE_KINDS = 5
_FORMULA_PREFIXES = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
"""Text that begins so is a formula to a spreadsheet; the last four are full-width forms of the first four."""

batches = group(
    top_level,
    "batch",
    "Run a manifest for many rows, and control them as one batch.",
    "tenuto batch submit replicate-users --from rows.jsonl --app tasks:app --watch",
    "tenuto batch list",
)
command(
    batches,
    "submit",
    "replicate-users --from rows.jsonl --app tasks:app --watch",
    "replicate-users --from rows.csv --key id --batch-key users-2031-05 --app tasks:app",
    "replicate-users --from - --format csv --atomic --app tasks:app",
)(submit_batch)


# --- list and show --------------------------------------------------------------------------------------------------


@command(batches, "list", "", "--manifest replicate-users -o json")
async def list_batches(
    session: Session,
    manifest: Annotated[str | None, option("EXTERNAL_ID", "Filter by manifest.")] = None,
    limit: LimitOption = 50,
    below: BelowOption = None,
) -> None:
    """List batches, newest first."""
    filters = build_filters(manifest=manifest, limit=limit, below=below)
    columns: dict[str, Column] = {
        "id": "id",
        "manifest": "external_id",
        "name": "name",
        "key": "key",
        "state": lambda row, _: styled_state(_display_state(row)),
        "items": "total",
        "open": "open",
        "failed": "failed",
        "created": lambda row, now: format_relative(row["created_at"], now),
        "by": "initiator_name",
    }
    await print_list(
        session,
        await session.app.batches.list(**filters),
        columns,
        noun="batches",
        hint="create one with: tenuto batch submit --help",
        filters=filters,
        two_line_columns=_TWO_LINE_COLUMNS,
        flexible=("batch",),
    )


def _batch_cell(row: Record, _: datetime) -> tuple[Any, Any]:
    name = row["name"] or _chosen_key(row)
    return f"{row['external_id']}{f'  {name}' if name else ''}", row["id"]


_TWO_LINE_COLUMNS: dict[str, TwoLineColumn] = {
    "batch": _batch_cell,
    "state": lambda row, _: (styled_state(_display_state(row)), f"{row['failed']:,} failed" if row["failed"] else ""),
    "items": lambda row, _: (f"{row['total']:,}", f"{row['open']:,} open" if row["open"] else None),
    "created": lambda row, now: (format_relative(row["created_at"], now), f"by {row['initiator_name']}"),
}


def _chosen_key(row: Record) -> str | None:
    """Return the key unless `batch submit` generated it."""
    return None if (row["key"] or "").startswith("cli-") else row["key"]


def _display_state(row: Record) -> str:
    if row["cancelled_at"] is not None:
        return "cancelled"
    if row["paused_at"] is not None:
        return "paused"
    if row["complete_at"] is None:
        return "filling"
    if row["open"]:
        return "in_progress"
    return "some_failed" if row["failed"] else "completed"


@command(batches, "show", "019a8b3c-1d2e", "users-2031-05 -o json")
async def show_batch(session: Session, batch_id: Id) -> None:
    """Show a batch: counts by state, rate, time left and the kinds of failures."""
    app = session.app
    id = await app.batches.find(batch_id)
    found = await app.batches.get(id)
    if session.as_json:
        print_json(found)
        return
    failure_kinds = await app.dead_letters.groups(batch=id, limit=_SHOWN_FAILURE_KINDS)
    now = await session.now()
    duplicates = f", {found['duplicates']:,} skipped as duplicates" if found["duplicates"] else ""
    facts = name_value_table(
        ("created", format_with_age(found["created_at"], now, by=found["initiator_name"])),
        ("key", _chosen_key(found)),
        ("items", f"{found['total']:,}{duplicates}"),
        ("retried", f"{found['retried']:,}" if found["retried"] else None),
        ("cancelled", format_with_age(found["cancelled_at"], now, by=found["cancelled_by"])),
        ("ended", format_with_age(found["ended_at"], now)),
    )
    failures: list[Any] = []
    if failure_kinds:
        failures = ["", Text("failures", style="bold")]
        failures += [
            Text(f"  {kind['letters']:>6,} × {one_line(kind['reason'], 66)}", style="red") for kind in failure_kinds
        ]
        failures.append(Text(f"  see: tenuto dead-letter list --batch {id}", style="dim"))
    console = live_console()
    print_rich(render_batch(found, 80 if console is None else console.width), "", facts, *failures)


@command(batches, "watch", "019a8b3c-1d2e", "users-2031-05 --timeout 600")
async def watch_by_id(
    session: Session,
    batch_id: Id,
    timeout: Annotated[float | None, option("SECONDS", "Maximum time to wait.", min=0)] = None,
) -> int:
    """Watch a batch until it ends.

    Exit code 0 if every item completed, 1 if an item failed or was cancelled. In a pipe, progress is printed line by
    line; as JSON, the final record. Ctrl-C stops watching and leaves the batch running.
    """
    return await watch_batch(session, await session.app.batches.find(batch_id), timeout)


# --- control --------------------------------------------------------------------------------------------------------


@command(batches, "pause", "019a8b3c-1d2e", "users-2031-05 -o json")
async def pause_batch(session: Session, batch_id: Id) -> None:
    """Pause a batch: start no more of its items. Running items continue."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        await app.batches.pause(id)
    await _report_change(session, id, "paused", f"resume with: tenuto batch resume {id}")


@command(batches, "resume", "019a8b3c-1d2e", "users-2031-05 -o json")
async def resume_batch(session: Session, batch_id: Id) -> None:
    """Resume a paused batch."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        await app.batches.resume(id)
    await _report_change(session, id, "resumed", f"watch it with: tenuto batch watch {id}")


@command(batches, "cancel", "019a8b3c-1d2e", "users-2031-05 -o json")
async def cancel_batch(session: Session, batch_id: Id) -> None:
    """Cancel a batch: remove the items that have not started and stop the running ones."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        await app.batches.cancel(id)
    await _report_change(session, id, "cancelled")


async def _report_change(session: Session, id: UUID, change: str, next_step: str | None = None) -> None:
    found = await session.app.batches.get(id)
    if session.as_json:
        print_json(found)
        return
    session.print_message(f"batch {id} {change} by {login_name()}")
    session.print_message(f"  {count_summary(found).plain}")
    if next_step is not None:
        session.print_message(f"  {next_step}")


@command(batches, "retry-failed", "019a8b3c-1d2e --watch", "019a8b3c-1d2e --note 'the server is back'")
async def retry_failed_items(
    session: Session,
    batch_id: Id,
    note: Annotated[str | None, option("TEXT", "Note, stored with the dead letters.")] = None,
    watch: Annotated[bool, flag("Watch until the end; exit code 1 unless all items completed.", "--watch")] = False,
) -> int:
    """Retry the items of a batch that have open dead letters. Their attempts are counted from one."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        count = await app.batches.retry_failed(id, note=note)
    session.print_message(f"{count:,} items retried by {login_name()}" if count else "no item has an open dead letter")
    if watch and count:
        return await watch_batch(session, id)
    if session.as_json:
        print_json({"id": id, "retried": count})
    elif count:
        session.print_message(f"  watch them with: tenuto batch watch {id}")
    return exit_codes.OK


# --- items ----------------------------------------------------------------------------------------------------------


@command(
    batches,
    "items",
    "019a8b3c-1d2e --status failed",
    "019a8b3c-1d2e -o csv > outcomes.csv",
    shared=("app", "database", "home", "quiet"),
)
async def list_items(
    session: Session,
    batch_id: Id,
    status: Annotated[ItemStatus | None, typer.Option(help="Filter by status.")] = None,
    limit: Annotated[
        int | None, option("N", "Maximum number of items. (default: 50 in a table, else all)", min=1)
    ] = None,
    format: Annotated[
        Format, option("table|json|jsonl|csv", "Output format.", "--output", "-o", show_default=False)
    ] = "table",
    raw: Annotated[bool, flag("With csv: no apostrophe before text that looks like a formula.", "--raw")] = False,
) -> None:
    """List the items of a batch with input, attempts, and result or error.

    Formats jsonl and csv are written while the items are read, so their number does not matter. In csv, an apostrophe
    precedes text that a spreadsheet would run as a formula; --raw omits it, for programs.
    """
    if raw and format != "csv":
        raise Invalid("--raw requires -o csv", code="cli.option.requires_other", field="--raw", remedy="omit --raw")
    id = await session.app.batches.find(batch_id)
    max_count = limit or (50 if format == "table" else None)
    rows: list[Record] = []
    write_csv_row = _csv_writer(raw=raw) if format == "csv" else None
    count, more = 0, False
    async for item in session.app.batches.items(id, status=status):
        if count == max_count:
            more = True
            break
        count += 1
        if format == "jsonl":
            document = json.dumps(_item_document(item), ensure_ascii=False, default=str)
            sys.stdout.write(escape_control_characters(document) + "\n")
        elif write_csv_row is not None:
            write_csv_row(_item_document(item))
        else:
            rows.append(item)
    if format == "json":
        print_json([_item_document(item) for item in rows])
    elif format == "table":
        _print_item_table(session, rows)
    if more:
        session.print_message(f"there may be more: add --limit {count * 10}")


def _item_document(item: Record) -> Record:
    document = {**item, "key": item["item_key"]}
    for name in ("started_at", "ended_at"):
        document[name] = None if item[name] is None else item[name].isoformat()
    return {name: document[name] for name in _ITEM_FIELDS}


def _csv_writer(*, raw: bool) -> Callable[[Record], None]:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_ITEM_FIELDS)

    def write(item: Record) -> None:
        cells = {**item, "error": error_summary(item["error"])}
        writer.writerow([_csv_cell(cells[name], raw=raw) for name in _ITEM_FIELDS])

    return write


def _csv_cell(value: Any, *, raw: bool) -> Any:
    if isinstance(value, str):
        text = safe_text(value)
        return f"'{text}" if text.startswith(_FORMULA_PREFIXES) and not raw else text
    if isinstance(value, dict | list):
        return escape_control_characters(json.dumps(value, ensure_ascii=False))
    return value


def _print_item_table(session: Session, items: list[Record]) -> None:
    if not items:
        session.print_message("no matching items")
        return
    rows = [
        {
            "status": styled_state(item["status"]),
            "key": item["item_key"],
            "attempt": item["attempt"],
            "ran": format_duration(item["ended_at"] - item["started_at"])
            if item["ended_at"] and item["started_at"]
            else "",
            "result": error_summary(item["error"]) or compact_json(item["output"]),
            "input": compact_json(item["input"]),
            "task": item["task_id"],
        }
        for item in items
    ]
    columns = [name for name in rows[0] if name != "key" or any(row["key"] for row in rows)]
    print_table(
        columns,
        [[row[name] for name in columns] for row in rows],
        optional=("task", "ran"),
        flexible=("result", "input", "key"),
    )
