"""``tenuto operation``: act on many objects at once and track it; also `--where` of commands that act on one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import RenderableType
from rich.text import Text

from tenuto.app import Tenuto
from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.lists import PAGE, limit, list_command, print_page
from tenuto.cli.option_parsing import confirm, missing_option, option_conflict, require_wait
from tenuto.cli.output import print_json
from tenuto.cli.parameters import Declaration, argument, choice, flag, option
from tenuto.cli.tables import name_value_table, print_rich, record_heading
from tenuto.cli.work.live_view import watch
from tenuto.model.work.bulk_operations import BulkKind, BulkState, ItemOutcome
from tenuto.presentation.text_formats import format_with_age
from tenuto.presentation.work_views import BULK_ITEMS, BULK_OPERATIONS
from tenuto.store.work.bulk_operations import BulkOperationRecord

Id = Annotated[str, argument("ID", "Id of the bulk operation, or its first characters.")]
Timeout = Annotated[float | None, option("SECONDS", "Maximum time to wait; requires --wait.", min=0)]
_POLL_SECONDS = 0.3

BULK_OPTIONS: dict[str, Declaration] = {
    "where": option("FILTER", "All objects that meet this filter, as a bulk operation; see `tenuto operation`."),
    "reason": option("TEXT", "Reason, stored with the change."),
    "yes": flag("With --where: act without confirmation.", "--yes"),
    "wait": flag("With --where: wait until all objects are processed.", "--wait"),
    "timeout": option("SECONDS", "Maximum time to wait; requires --wait.", type=float, min=0),
}
"""Options of commands that act on one object or, with --where, on many."""

operations = group(
    "operation",
    "Act on many objects at once, and track it.",
    "start task.cancel --where 'queue:mail state:queued'",
    "show 019a8b3c",
)


@command(
    operations,
    "start",
    "task.cancel --where 'queue:mail state:queued' --reason 'server down'",
    "execution.retry --where 'state:failed started:>1d' --yes --wait",
)
async def start_operation(
    session: Session,
    kind: Annotated[BulkKind, argument("KIND", f"Kind of operation: {', '.join(BulkKind)}.")],
    where: Annotated[str, option("FILTER", "Filter of the objects; see the reference of filters.")],
    reason: Annotated[str | None, option("TEXT", "Reason, stored with the operation.")] = None,
    yes: Annotated[bool, flag("Act without confirmation.", "--yes")] = False,
    wait: Annotated[bool, flag("Wait until all objects are processed; exit code 1 if some failed.", "--wait")] = False,
    timeout: Timeout = None,
) -> int:
    """Start a bulk operation. Prints its id.

    The objects are selected when it starts; those that appear later are not affected. Schedulers process them in
    chunks, also after a crash.
    """
    return await run_bulk_operation(session, BulkKind(kind), where, reason, yes=yes, wait=wait, timeout=timeout)


async def run_bulk_operation(
    session: Session,
    kind: BulkKind,
    where: str,
    reason: str | None,
    *,
    yes: bool,
    wait: bool,
    timeout: float | None,
) -> int:
    """Preview a bulk operation, ask for confirmation, start it and return the exit code."""
    require_wait(timeout, wait=wait)
    with session.as_user() as app:
        preview = await app.bulk_operations.preview(kind, where)
        count = f"{preview.count:,}{'' if preview.is_exact else ' or more'}"
        noun, verb = kind.partition(".")[0].replace("_", " "), kind.partition(".")[2]
        if not preview.count:
            session.print_message(f"no {noun}s match: {preview.description}")
            return exit_codes.OK
        if not yes and not confirm(f"{verb} {count} {noun}s ({preview.description})", "--yes"):
            session.print_message("nothing was changed")
            return exit_codes.FAILED
        expected = preview.count if preview.is_exact else None
        started = await app.bulk_operations.create(kind, where, until=preview.until, expected=expected, reason=reason)
    if wait:
        return await watch_operation(session, started, timeout)
    hint = f"{started.item_count:,} {noun}s selected; watch it with: tenuto operation watch {started.id}"
    return session.report(started, hint, result=started.id)


def check_one_or_where(id: str | None, options: dict[str, Any], command_line: str) -> str | None:
    """Return the filter if --where is given instead of an id."""
    where: str | None = options["where"]
    if (id is None) == (where is None):
        remedy = f"write {command_line} ID, or {command_line} --where FILTER"
        raise (
            missing_option(command_line, "an ID or --where", remedy)
            if id is None
            else option_conflict("ID", "--where", remedy)
        )
    if where is None:
        for name in ("yes", "wait", "timeout"):
            if options[name]:
                raise missing_option(f"--{name}", "--where", f"omit --{name}")
    return where


@list_command(
    operations,
    "list",
    BULK_OPERATIONS,
    "",
    "--state running -o json",
    keys=None,
    count=None,
    state=choice("Filter by state.", BulkState),
    kind=choice("Filter by kind.", BulkKind),
    **PAGE,
)
async def list_operations(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List bulk operations, newest first."""
    return await app.bulk_operations.list(**filters)


@command(operations, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_operation(session: Session, operation_id: Id) -> None:
    """Show a bulk operation: selection, counters, and who started it."""
    app = session.app
    found = await app.bulk_operations.get(await app.bulk_operations.find(operation_id))
    if session.as_json:
        print_json(found)
        return
    now = await session.now()
    facts = name_value_table(
        ("selection", found.description),
        ("started", format_with_age(found.created_at, now, by=found.actor_name)),
        ("reason", found.reason),
        ("progress", describe_progress(found)),
        ("at a time", f"{found.max_running:,}" if found.max_running else None),
        ("paused", format_with_age(found.paused_at, now, by=found.paused_by)),
        ("arrived later", f"{found.arrived_count:,}, not affected" if found.arrived_count else None),
        ("ended", format_with_age(found.ended_at, now)),
        ("aborted by", found.aborted_by),
    )
    print_rich(record_heading(found.state, found.kind, found.id), "", facts)
    if found.failed_count or found.skipped_count:
        session.print_message(f"see why with: tenuto operation items {found.id}")


def describe_progress(found: BulkOperationRecord) -> str:
    """Return the counters in one line."""
    parts = [
        f"{found.succeeded_count:,} of {found.item_count:,} done",
        f"{found.failed_count:,} failed" if found.failed_count else "",
        f"{found.skipped_count:,} skipped" if found.skipped_count else "",
        f"{found.remaining_count:,} remaining" if found.remaining_count else "",
    ]
    return ", ".join(part for part in parts if part)


@command(
    operations,
    "items",
    "019a8b3c-1d2e",
    "019a8b3c-1d2e --outcome failed -o csv",
    is_list=True,
    options={
        "outcome": choice("Filter by outcome.", ItemOutcome),
        "limit": limit(100),
        "above": option("ID", "Pagination cursor: the id of the last item shown."),
    },
)
async def list_items(session: Session, operation_id: Id, **filters: Any) -> None:
    """List the items of a bulk operation that failed or were skipped, with the reason."""
    app = session.app
    id = await app.bulk_operations.find(operation_id)
    given = {name: value for name, value in filters.items() if value is not None}
    if "above" in given:
        given["above"] = await app.find(given["above"])
    await print_page(session, BULK_ITEMS, await app.bulk_operations.items(id, **given), given)


@command(operations, "abort", "019a8b3c-1d2e", "019a8b3c-1d2e -q")
async def abort_operation(session: Session, operation_id: Id) -> None:
    """Abort a bulk operation after the chunk in progress. The rest of its objects is left untouched."""
    with session.as_user() as app:
        aborted = await app.bulk_operations.abort(await app.bulk_operations.find(operation_id))
    session.report(aborted, f"bulk operation {aborted.id} aborted by {login_name()}: {describe_progress(aborted)}")


@command(operations, "pause", "019a8b3c-1d2e", "019a8b3c-1d2e -q")
async def pause_operation(session: Session, operation_id: Id) -> None:
    """Pause a bulk operation after the chunk in progress. Running executions of a backfill go on."""
    with session.as_user() as app:
        paused = await app.bulk_operations.pause(await app.bulk_operations.find(operation_id))
    session.report(paused, f"bulk operation {paused.id} paused by {paused.paused_by}: {describe_progress(paused)}")


@command(operations, "resume", "019a8b3c-1d2e", "019a8b3c-1d2e -q")
async def resume_operation(session: Session, operation_id: Id) -> None:
    """Resume a paused bulk operation."""
    with session.as_user() as app:
        resumed = await app.bulk_operations.resume(await app.bulk_operations.find(operation_id))
    session.report(resumed, f"bulk operation {resumed.id} resumed: {describe_progress(resumed)}")


@command(operations, "watch", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def watch_by_id(
    session: Session,
    operation_id: Id,
    timeout: Annotated[float | None, option("SECONDS", "Maximum time to wait.", min=0)] = None,
) -> int:
    """Watch a bulk operation until it ends.

    Exit code 0 if all items were processed without failure, 1 if some failed or the operation was aborted.
    """
    app = session.app
    found = await app.bulk_operations.get(await app.bulk_operations.find(operation_id))
    return await watch_operation(session, found, timeout)


@dataclass(frozen=True, slots=True)
class OperationProgress:
    """The state of a bulk operation at one moment."""

    record: BulkOperationRecord
    reasons: Sequence[str]

    @property
    def is_over(self) -> bool:
        return self.record.state is not BulkState.RUNNING

    @property
    def is_idle(self) -> bool:
        return not self.is_over and self.record.processed_at is None

    def render(self, width: int, height: int) -> RenderableType:
        return Text("\n".join([f"{self.record.kind} {describe_progress(self.record)}", *self.reasons]))

    def changed_lines(self, before: OperationProgress | None) -> list[str]:
        lines = [describe_progress(self.record), *self.reasons]
        shown = [] if before is None else [describe_progress(before.record), *before.reasons]
        return [] if lines == shown else lines


async def watch_operation(session: Session, started: BulkOperationRecord, timeout: float | None) -> int:
    """Watch a bulk operation until it ends and return the exit code."""

    async def explain() -> list[str]:
        return ["waiting for a scheduler; start one with: tenuto scheduler"]

    ended: BulkOperationRecord = await watch(
        session,
        "operation",
        started.id,
        make_view=OperationProgress,
        operations=session.app.bulk_operations,
        explain=explain,
        poll_seconds=lambda _: _POLL_SECONDS,
        timeout=timeout,
    )
    if ended.failed_count or ended.skipped_count:
        session.print_message(f"see why with: tenuto operation items {ended.id}")
    has_failed = ended.state is BulkState.ABORTED or ended.failed_count > 0
    return exit_codes.FAILED if has_failed else exit_codes.OK
