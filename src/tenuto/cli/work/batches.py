"""``tenuto batch``: submit, list, watch, pause, resume and cancel batches, retry their failures, export their items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID

from rich.console import Group, RenderableType
from rich.text import Text

from tenuto.app import Tenuto
from tenuto.cli import exit_codes
from tenuto.cli.command import WITHOUT_OUTPUT, Session, command, group, login_name
from tenuto.cli.definitions.manifests import MANIFESTS
from tenuto.cli.lists import MANIFEST, PAGE, list_command, print_page
from tenuto.cli.option_parsing import missing_option
from tenuto.cli.output import csv_writer, print_json
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.tables import name_value_table, print_rich, record_heading, section_title, terminal_width
from tenuto.cli.work.batch_submission import submit_rows
from tenuto.cli.work.jobs import suggest_job_list
from tenuto.cli.work.live_view import watch
from tenuto.cli.work.state_changes import add_state_change
from tenuto.clock import SystemClock
from tenuto.errors import NotFound
from tenuto.ids import new_id
from tenuto.model.filter_keys import BATCH_KEYS
from tenuto.operations.work.batch_files import RowFormat, RowReader
from tenuto.operations.work.batches import BatchDetails
from tenuto.presentation.state_symbols import state_colour, state_label
from tenuto.presentation.text_formats import format_duration, format_with_age, one_line, safe_text
from tenuto.presentation.work_views import BATCH_ITEMS, BATCHES, batch_key

ID = argument("ID", "Id of the batch, the beginning of its id, or its key.")
Id = Annotated[str, ID]
ItemStatus = Literal[
    "waiting", "scheduled", "queued", "running",
    "completed", "completed_with_warning", "completed_with_error", "failed", "cancelled",
]  # fmt: skip
OutputFormat = Literal["table", "json", "jsonl", "csv"]
Watch = Annotated[bool, flag("Watch until the end; exit code 1 unless all items completed.", "--watch")]
_POLL_SECONDS = 0.3
_ITEMS_POLLED_PER_SECOND = 100_000
_SHOWN_FAILURE_KINDS = 5
_GROUP_EXAMPLES = ("submit replicate-users --from rows.jsonl --app tasks:app --watch", "list")
batches = group("batch", "Run a manifest for many rows, and control them as one batch.", *_GROUP_EXAMPLES)


@command(
    batches,
    "submit",
    "replicate-users --from rows.jsonl --app tasks:app --watch",
    "replicate-users --from rows.csv --key id --batch-key users-2031-05 --app tasks:app",
    "replicate-users --from - --format csv --atomic --app tasks:app",
    app_use="needed",
)
async def submit_batch(
    session: Session,
    manifest: Annotated[str, argument("MANIFEST", "External id of the manifest to run.")],
    source: Annotated[str, option("FILE|-", "Rows: JSON lines, or CSV with a header; - reads stdin.", "--from")],
    format: Annotated[RowFormat | None, choice("Format of the rows. (default: by the file name, else jsonl)")] = None,
    key: Annotated[
        str | None, option("FIELD", "Field with the item's key; items with an open key are skipped.")
    ] = None,
    batch_key: Annotated[
        str | None, option("KEY", "Idempotency key. A repeated submission with the same key continues the first.")
    ] = None,
    name: Annotated[str | None, option("TEXT", "Name of the batch.")] = None,
    atomic: Annotated[bool, flag("All rows or none, in one transaction; rows are held in memory.", "--atomic")] = False,
    watch: Watch = False,
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
    skipped = f" ({found.duplicate_count:,} skipped: already open)" if found.duplicate_count else ""
    submitted = f"{found.item_count:,} items of {manifest} submitted{skipped}; watch them with:"
    return session.report(found, submitted, f"  tenuto batch watch {batch.id}", result=batch.id)


@list_command(
    batches,
    "list",
    BATCHES,
    "--manifest replicate-users -o json",
    "--where 'paused:yes by:ana'",
    keys=BATCH_KEYS,
    count=lambda app, **filters: app.batches.count(**filters),
    manifest=MANIFEST,
    **PAGE,
)
async def list_batches(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List batches, newest first."""
    return await app.batches.list(**filters)


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
    duplicates = f", {found.duplicate_count:,} skipped as duplicates" if found.duplicate_count else ""
    facts = name_value_table(
        ("created", format_with_age(found.created_at, now, by=found.initiator_name)),
        ("key", batch_key(found)),
        ("items", f"{found.item_count:,}{duplicates}"),
        ("retried", f"{found.retried_count:,}" if found.retried_count else None),
        ("cancelled", format_with_age(found.cancelled_at, now, by=found.cancelled_by)),
        ("ended", format_with_age(found.ended_at, now)),
    )
    failures: list[RenderableType] = []
    if failure_kinds:
        failures += section_title("failures")
        for kind in failure_kinds:
            failures.append(Text(f"  {kind.dead_letter_count:>6,} × {one_line(kind.reason, 66)}", style="red"))
        failures.append(Text(f"  see: tenuto dead-letter list --batch {id}", style="dim"))
    print_rich(render_batch(found, width=terminal_width()), "", facts, *failures)


def progress_bar(batch: BatchDetails, width: int) -> Text:
    """Draw a bar of the given width; every state that occurs has at least one cell."""
    parts = [
        (batch.done_count, "━", "green"),
        (batch.failed_count, "━", "red"),
        (batch.cancelled_count, "━", "magenta"),
        (batch.running_count, "━", "yellow"),
        (batch.open_count - batch.running_count, "╌", "dim"),
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


def finished_share(batch: BatchDetails) -> float:
    """Return the finished share of the items, from 0 to 1."""
    finished = batch.done_count + batch.failed_count + batch.cancelled_count
    total = finished + batch.open_count
    return finished / total if total else float(batch.complete_at is not None)


def count_summary(batch: BatchDetails) -> Text:
    """Return the number of items by state."""
    waiting = batch.open_count - batch.running_count
    retrying = batch.open_counts.get("scheduled", 0)
    counts = [
        ("completed", batch.done_count, "done"),
        ("failed", batch.failed_count, "failed"),
        ("cancelled", batch.cancelled_count, "cancelled"),
        ("running", batch.running_count, "running"),
        ("queued", waiting, "waiting" + (f" ({retrying:,} to be retried)" if retrying else "")),
    ]
    summary = Text()
    for state, count, label in counts:
        if count or state == "completed":
            text = state_label(state, f"{count:,} {label}")
            summary.append(("  " if summary else "") + text, style=state_colour(state))
    return summary


def rate_summary(batch: BatchDetails) -> str:
    """Return the rate and the time left, or the total duration."""
    if batch.state == "paused":
        return f"paused by {batch.paused_by}"
    if batch.state == "filling":
        return f"{batch.item_count:,} items so far; submission not complete"
    if not batch.open_count:
        if batch.ended_at is None:
            return ""
        duration = batch.ended_at - batch.created_at
        return f"took {format_duration(duration)}, {_rate(batch.item_count / max(duration.total_seconds(), 0.001))}"
    if batch.remaining_seconds is None:
        return "no item finished in the last seconds"
    time_left = format_duration(float(max(round(batch.remaining_seconds), 1))).replace(".0 s", " s")
    return f"{_rate(batch.rate_per_second)}, about {time_left} left"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def render_batch(batch: BatchDetails, why: Sequence[str] = (), *, width: int) -> RenderableType:
    """Draw a batch in four lines, and below them the reasons if nothing runs."""
    state = str(batch.state)
    if state == "ended":
        state = "some_failed" if batch.failed_count else "completed"
    name = f"  {one_line(batch.name, 40)}" if batch.name else ""
    percent = f" {finished_share(batch) * 100:3.0f} %"
    return Group(
        record_heading(state, batch.external_id, batch.id, name),
        Text.assemble(progress_bar(batch, max(min(width, 100) - len(percent), 10)), percent),
        count_summary(batch),
        Text(safe_text(rate_summary(batch)), style="dim"),
        *(Text(f"  {safe_text(reason)}", style="yellow") for reason in why),
    )


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """A batch at one moment, for a live view; ``why`` are the reasons why nothing runs."""

    record: BatchDetails
    why: Sequence[str] = ()
    min_printed_share: float = 0.05
    """In a pipe: the share of the items that must finish before the next line."""

    @property
    def is_over(self) -> bool:
        return self.record.complete_at is not None and not self.record.open_count

    @property
    def is_idle(self) -> bool:
        batch = self.record
        return not (batch.running_count or batch.rate_per_second) and batch.state == "in_progress"

    def render(self, width: int, height: int | None = None) -> RenderableType:
        return render_batch(self.record, self.why, width=width)

    def changed_lines(self, before: BatchProgress | None) -> list[str]:
        batch, share = self.record, finished_share(self.record)
        if (
            before is not None
            and before.record.state == batch.state
            and (before.why or not self.why)
            and share < finished_share(before.record) + self.min_printed_share
            and not self.is_over
        ):
            return []
        time = SystemClock().now().astimezone().strftime("%H:%M:%S")
        state = f"{batch.state.replace('_', ' ')} {share * 100:.0f} %"
        line = f"{time} {state}  {count_summary(batch).plain}  {rate_summary(batch)}".rstrip()
        return [line, *(f"  {reason}" for reason in self.why)]


async def watch_batch(session: Session, id: UUID, timeout: float | None = None) -> int:
    """Watch a batch until all its items have ended and return the exit code."""
    app = session.app

    async def explain() -> list[str]:
        """Return the reasons of one queued item."""
        async for item in app.batches.items(id, state="queued"):
            try:
                return [reason.message for reason in (await app.why(item.task_id)).reasons]
            except NotFound:  # it ended between the two queries
                break
        return []

    ended = await watch(
        session,
        "batch",
        id,
        make_view=BatchProgress,
        operations=app.batches,
        explain=explain,
        poll_seconds=lambda batch: max(_POLL_SECONDS, batch.item_count / _ITEMS_POLLED_PER_SECOND),
        timeout=timeout,
    )
    if ended.failed_count:
        session.print_message(f"show the failures: tenuto dead-letter list --group --batch {id}")
        session.print_message(f"retry them:        tenuto batch retry-failed {id}")
    return exit_codes.FAILED if ended.failed_count or ended.cancelled_count else exit_codes.OK


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


for _name, _help in {
    "pause": "Pause a batch: start no more of its items. Running items continue.",
    "resume": "Resume a paused batch.",
    "cancel": "Cancel a batch: remove the items that have not started and stop the running ones.",
}.items():
    add_state_change(batches, _name, _help, ID, lambda app: app.batches, lambda batch: count_summary(batch).plain)


@command(batches, "retry-failed", "019a8b3c-1d2e --watch", "019a8b3c-1d2e --note 'the server is back'")
async def retry_failed_items(
    session: Session,
    batch_id: Id,
    note: Annotated[str | None, option("TEXT", "Note, stored with the dead letters.")] = None,
    watch: Watch = False,
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


@command(batches, "items", "019a8b3c-1d2e --state failed", "019a8b3c-1d2e -o csv > outcomes.csv", shared=WITHOUT_OUTPUT)
async def list_items(
    session: Session,
    batch_id: Id,
    state: Annotated[ItemStatus | None, choice("Filter by state.")] = None,
    limit: Annotated[int | None, option("N", "Maximum number. (default: 50 in a table, else all)", min=1)] = None,
    format: Annotated[OutputFormat, option("table|json|jsonl|csv", "Output format.", "--output", "-o")] = "table",
    raw: Annotated[bool, flag("With csv: no apostrophe before text that looks like a formula.", "--raw")] = False,
) -> None:
    """List the items of a batch with input, attempts, and result or error.

    Formats jsonl and csv are written while the items are read, so their number does not matter. In csv, an apostrophe
    precedes text that a spreadsheet would run as a formula; --raw omits it, for programs.
    """
    if raw and format != "csv":
        raise missing_option("--raw", "-o csv", "omit --raw")
    id = await session.app.batches.find(batch_id)
    max_count = limit or (50 if format == "table" else None)
    rows: list[Any] = []
    print_record = csv_writer(BATCH_ITEMS, raw=raw) if format == "csv" else _print_json_line
    count, more = 0, False
    use = print_record if format in ("jsonl", "csv") else rows.append
    async for item in session.app.batches.items(id, state=state):
        if count == max_count:
            more = True
            break
        count += 1
        use(item)
    if format == "json":
        print_json([BATCH_ITEMS.document(item) for item in rows])
    elif format == "table":
        await print_page(session, BATCH_ITEMS, rows, {"state": state or ""})
    if more:
        session.print_message(f"there may be more: add --limit {count * 10}")


def _print_json_line(item: Any) -> None:
    print_json(BATCH_ITEMS.document(item), indent=None)
