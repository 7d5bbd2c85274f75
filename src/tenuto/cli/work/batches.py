"""``tenuto batch``: submit, list, watch, pause, resume and cancel batches, retry their failures, export their items."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from rich.console import Group, RenderableType
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.definitions.manifests import MANIFESTS
from tenuto.cli.formatting import (
    escape_control_characters,
    format_duration,
    format_relative,
    format_with_age,
    one_line,
    safe_text,
)
from tenuto.cli.option_parsing import BelowOption, LimitOption, build_filters
from tenuto.cli.output import (
    Column,
    Record,
    compact_json,
    live_console,
    name_value_table,
    print_json,
    print_list,
    print_rich,
    record_heading,
    state_colour,
    state_symbol,
    styled_state,
)
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.work.batch_rows import RowFormat, RowReader, submit_rows
from tenuto.cli.work.jobs import suggest_job_list
from tenuto.cli.work.live_view import LiveView, watch
from tenuto.cli.work.task_report import error_summary, run_duration
from tenuto.clock import SystemClock
from tenuto.errors import Invalid, NotFound
from tenuto.ids import new_id

_MIN_PRINTED_SHARE = 0.05
"""In a pipe: the share of the items that must finish before the next line."""
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
    "batch",
    "Run a manifest for many rows, and control them as one batch.",
    "submit replicate-users --from rows.jsonl --app tasks:app --watch",
    "list",
)


@command(
    batches,
    "submit",
    "replicate-users --from rows.jsonl --app tasks:app --watch",
    "replicate-users --from rows.csv --key id --batch-key users-2031-05 --app tasks:app",
    "replicate-users --from - --format csv --atomic --app tasks:app",
)
async def submit_batch(
    session: Session,
    manifest: Annotated[str, argument("MANIFEST", "External id of the manifest to run.")],
    source: Annotated[str, option("FILE|-", "Rows: JSON lines, or CSV with a header; - reads stdin.", "--from")],
    format: Annotated[RowFormat | None, choice("Format of the rows. (default: by the file name, else jsonl)")] = None,
    key: Annotated[
        str | None, option("FIELD", "Field with the key of an item; items whose key is open are skipped.")
    ] = None,
    batch_key: Annotated[
        str | None, option("KEY", "Idempotency key: submitting again with it continues, without duplicates.")
    ] = None,
    name: Annotated[str | None, option("TEXT", "Name of the batch.")] = None,
    atomic: Annotated[bool, flag("All rows or none, in one transaction; rows are held in memory.", "--atomic")] = False,
    watch: Annotated[bool, flag("Watch until the end; exit code 1 unless all items completed.", "--watch")] = False,
) -> int:
    """Submit the rows of a file as a batch of a manifest. Prints the id of the batch.

    A row holds the arguments of the job, or the one argument that the manifest's properties do not set. Rows are
    submitted while the file is read. An invalid row ends the command with exit code 2 and its line number; the rows
    before it stay submitted (with --atomic: no row is). --app names the app with the job.
    """
    with session.as_user() as app, suggest_job_list(session):
        stored = await MANIFESTS.get(app, manifest)
        job = session.app_with_jobs.jobs.get_job(stored.manifest.job)
        rows = RowReader(source, format, key, drop_key=key is not None and key not in job.parameters)
        batch = await submit_rows(
            session,
            app,
            manifest,
            rows,
            batch_key or f"cli-{new_id().hex[-12:]}",
            name=name,
            atomic=atomic,
            keyed=key is not None,
        )
    if watch:
        session.print_message(f"batch {batch.id}")
        return await watch_batch(session, batch.id)
    found = await batch.progress()
    skipped = f" ({found['duplicates']:,} skipped: already open)" if found["duplicates"] else ""
    submitted = f"{found['total']:,} items of {manifest} submitted{skipped}; watch them with:"
    return session.report(found, submitted, f"  tenuto batch watch {batch.id}", result=batch.id)


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
    await print_list(
        session,
        await session.app.batches.list(**filters),
        {
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
        },
        noun="batches",
        hint="create one with: tenuto batch submit --help",
        filters=filters,
        two_line_columns={
            "batch": _batch_cell,
            "state": lambda row, _: (
                styled_state(_display_state(row)),
                f"{row['failed']:,} failed" if row["failed"] else "",
            ),
            "items": lambda row, _: (f"{row['total']:,}", f"{row['open']:,} open" if row["open"] else None),
            "created": lambda row, now: (format_relative(row["created_at"], now), f"by {row['initiator_name']}"),
        },
        flexible=("batch",),
    )


def _batch_cell(row: Record, _: datetime) -> tuple[Any, Any]:
    name = row["name"] or _chosen_key(row)
    return f"{row['external_id']}{f'  {name}' if name else ''}", row["id"]


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
            Text(f"  {kind['dead_letter_count']:>6,} × {one_line(kind['reason'], 66)}", style="red")
            for kind in failure_kinds
        ]
        failures.append(Text(f"  see: tenuto dead-letter list --batch {id}", style="dim"))
    console = live_console()
    print_rich(render_batch(found, 80 if console is None else console.width), "", facts, *failures)


# --- progress -------------------------------------------------------------------------------------------------------


def progress_bar(batch: Record, width: int) -> Text:
    """Draw a bar of the given width; every state that occurs has at least one cell."""
    parts = [
        (batch["done"], "━", "green"),
        (batch["failed"], "━", "red"),
        (batch["cancelled"], "━", "magenta"),
        (batch["running"], "━", "yellow"),
        (batch["left"] - batch["running"], "╌", "dim"),
    ]
    total = sum(count for count, _, _ in parts)
    if not total:
        return Text("╌" * width, style="dim")
    cells = [max(round(count / total * width), 1) if count else 0 for count, _, _ in parts]
    while sum(cells) != width:
        largest = max(range(len(cells)), key=lambda place: cells[place])
        cells[largest] += 1 if sum(cells) < width else -1
    bar = Text()
    for size, (_, character, style) in zip(cells, parts, strict=True):
        bar.append(character * size, style=style)
    return bar


def finished_share(batch: Record) -> float:
    """Return the finished share of the items, from 0 to 1."""
    finished = batch["done"] + batch["failed"] + batch["cancelled"]
    total = finished + batch["left"]
    return finished / total if total else float(batch["complete_at"] is not None)


def count_summary(batch: Record) -> Text:
    """Return the number of items by state."""
    waiting = batch["left"] - batch["running"]
    retrying = batch["open"].get("scheduled", 0)
    counts = [
        ("completed", batch["done"], "done"),
        ("failed", batch["failed"], "failed"),
        ("cancelled", batch["cancelled"], "cancelled"),
        ("running", batch["running"], "running"),
        ("queued", waiting, "waiting" + (f" ({retrying:,} to be retried)" if retrying else "")),
    ]
    summary = Text()
    for state, count, label in counts:
        if count or state == "completed":
            text = f"{state_symbol(state)} {count:,} {label}"
            summary.append(("  " if summary else "") + text, style=state_colour(state))
    return summary


def rate_summary(batch: Record) -> str:
    """Return the rate and the time left, or the total duration."""
    if batch["state"] == "paused":
        return f"paused by {batch['paused_by']}"
    if batch["state"] == "filling":
        return f"{batch['total']:,} items so far; submission not complete"
    if not batch["left"]:
        if batch["ended_at"] is None:
            return ""
        duration = batch["ended_at"] - batch["created_at"]
        return f"took {format_duration(duration)}, {_rate(batch['total'] / max(duration.total_seconds(), 0.001))}"
    if batch["seconds_left"] is None:
        return "no item finished in the last seconds"
    time_left = format_duration(float(max(round(batch["seconds_left"]), 1))).replace(".0 s", " s")
    return f"{_rate(batch['rate'])}, about {time_left} left"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def render_batch(batch: Record, width: int) -> RenderableType:
    """Draw a batch in four lines, and below them the reasons if nothing runs."""
    state = batch["state"]
    if state == "ended":
        state = "some_failed" if batch["failed"] else "completed"
    name = f"  {one_line(batch['name'], 40)}" if batch["name"] else ""
    percent = f" {finished_share(batch) * 100:3.0f} %"
    return Group(
        record_heading(state, batch["external_id"], batch["id"], name),
        Text.assemble(progress_bar(batch, max(min(width, 100) - len(percent), 10)), percent),
        count_summary(batch),
        Text(safe_text(rate_summary(batch)), style="dim"),
        *(Text(f"  {safe_text(reason)}", style="yellow") for reason in batch.get("why", [])),
    )


class BatchView(LiveView):
    """A batch while it is watched."""

    noun = "batch"
    poll_seconds = 0.3
    size_field = "total"
    polled_per_second = 100_000

    async def explain(self) -> list[str]:
        """Return the reasons of one queued item."""
        async for item in self.app.batches.items(self.id, status="queued"):
            try:
                return [reason.message for reason in (await self.app.why(item["task_id"])).reasons]
            except NotFound:  # it ended between the two queries
                break
        return []

    def is_over(self, snapshot: Record) -> bool:
        return snapshot["complete_at"] is not None and not snapshot["left"]

    def is_idle(self, snapshot: Record) -> bool:
        return not (snapshot["running"] or snapshot["rate"]) and snapshot["state"] == "in_progress"

    def draw(self, snapshot: Record, width: int, height: int) -> RenderableType:
        return render_batch(snapshot, width)

    def changes(self, printed: Record | None, current: Record) -> list[str]:
        share = finished_share(current)
        if (
            printed is not None
            and printed["state"] == current["state"]
            and (printed.get("why") or not current.get("why"))
            and share < finished_share(printed) + _MIN_PRINTED_SHARE
            and not self.is_over(current)
        ):
            return []
        time = SystemClock().now().astimezone().strftime("%H:%M:%S")
        state = f"{current['state'].replace('_', ' ')} {share * 100:.0f} %"
        line = f"{time} {state}  {count_summary(current).plain}  {rate_summary(current)}".rstrip()
        return [line, *(f"  {reason}" for reason in current.get("why", []))]


async def watch_batch(session: Session, id: UUID, timeout: float | None = None) -> int:
    """Watch a batch until all its items have ended and return the exit code."""
    ended = await watch(session, BatchView(session.app, session.app.batches, id), timeout)
    if ended["failed"]:
        session.print_message(f"show the failures: tenuto dead-letter list --group --batch {id}")
        session.print_message(f"retry them:        tenuto batch retry-failed {id}")
    return exit_codes.FAILED if ended["failed"] or ended["cancelled"] else exit_codes.OK


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
    await _report_change(session, id, "paused", f"  resume with: tenuto batch resume {id}")


@command(batches, "resume", "019a8b3c-1d2e", "users-2031-05 -o json")
async def resume_batch(session: Session, batch_id: Id) -> None:
    """Resume a paused batch."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        await app.batches.resume(id)
    await _report_change(session, id, "resumed", f"  watch it with: tenuto batch watch {id}")


@command(batches, "cancel", "019a8b3c-1d2e", "users-2031-05 -o json")
async def cancel_batch(session: Session, batch_id: Id) -> None:
    """Cancel a batch: remove the items that have not started and stop the running ones."""
    with session.as_user() as app:
        id = await app.batches.find(batch_id)
        await app.batches.cancel(id)
    await _report_change(session, id, "cancelled")


async def _report_change(session: Session, id: UUID, change: str, *hints: str) -> None:
    found = await session.app.batches.get(id)
    session.report(found, f"batch {id} {change} by {login_name()}", f"  {count_summary(found).plain}", *hints)


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
    hints = [f"  watch them with: tenuto batch watch {id}"] if count else []
    return session.report({"id": id, "retried": count}, *hints)


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
    status: Annotated[ItemStatus | None, choice("Filter by status.")] = None,
    limit: Annotated[
        int | None, option("N", "Maximum number of items. (default: 50 in a table, else all)", min=1)
    ] = None,
    format: Annotated[Format, option("table|json|jsonl|csv", "Output format.", "--output", "-o")] = "table",
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
        await _print_item_table(session, rows)
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


async def _print_item_table(session: Session, items: list[Record]) -> None:
    columns: dict[str, Column] = {
        "status": lambda item, _: styled_state(item["status"]),
        "key": "item_key",
        "attempt": "attempt",
        "ran": lambda item, _: run_duration(item),
        "result": lambda item, _: error_summary(item["error"]) or compact_json(item["output"]),
        "input": lambda item, _: compact_json(item["input"]),
        "task": "task_id",
    }
    if not any(item["item_key"] for item in items):
        del columns["key"]
    flexible = ("result", "input", "key")
    await print_list(session, items, columns, noun="matching items", optional=("task", "ran"), flexible=flexible)
