"""``tenuto once``: create, list, show and cancel one-shots, which run once at a given time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from tenuto.app import Tenuto
from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.lists import limit, list_command
from tenuto.cli.option_parsing import confirm, invalid_value, read_json_option, translate_error_fields
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.tables import name_value_table, print_rich, record_heading, render_table
from tenuto.errors import Invalid
from tenuto.model.definitions.policies import MAX_ATTEMPTS
from tenuto.model.filter_keys import ONE_SHOT_KEYS
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.presentation.text_formats import compact_json, error_summary, format_relative, format_with_age, one_line
from tenuto.presentation.work_views import ONE_SHOT_EVENTS, ONE_SHOTS
from tenuto.store.filter_sql import CappedCount

Id = Annotated[str, argument("ID", "Id of the one-shot, or its first characters.")]
Status = Literal["pending", "running", "completed", "failed", "terminated"]
_OPTIONS_BY_FIELD = {"prompt_type": "TYPE", "tags": "--tag", "payload": "--payload"}
_ENDED_STATUSES = ("completed", "failed", "terminated")

one_shots = group(
    "once", "Run something once, at a given time.", 'add log.append --in 2h --payload \'{"message": "Hello"}\'', "list"
)


@command(
    one_shots,
    "add",
    'log.append --in 2h --payload \'{"message": "Hello"}\'',
    "resize --at 2031-05-17T12:00:00+02:00 --payload @picture.json --app tasks:app",
    app_use="needed",
)
async def create_one_shot(
    session: Session,
    prompt_type: Annotated[str, argument("TYPE", "log.append, http.call, or the name of a job of the app.")],
    at: Annotated[str | None, option("INSTANT", "Time with UTC offset: 2031-05-17T12:00:00+02:00.")] = None,
    delay: Annotated[str | None, option("DURATION", "Delay: 90s, 15m, 2h, 3d.", "--in")] = None,
    payload: Annotated[str, option("JSON|@FILE|-", "Input as a JSON object; - reads stdin.", "--payload")] = "{}",
    tags: Annotated[list[str] | None, option("TAG", "Tag; may be repeated.", "--tag")] = None,
    max_attempts: Annotated[
        int | None,
        option(
            "N",
            "Maximum number of attempts. (default: as the job; 1 for log.append, http.call)",
            min=1,
            max=MAX_ATTEMPTS,
        ),
    ] = None,
    timeout: Annotated[str | None, option("DURATION", "Maximum duration of an attempt.")] = None,
    expires_in: Annotated[
        str | None, option("DURATION", "Time after TIME at which it ends as expired if it has not started.")
    ] = None,
) -> int:
    """Create a one-shot. Prints its id.

    The payload is validated against the type. A time in the past means: run now.
    """
    if (at is None) == (delay is None):
        remedy = "write --in 2h, or --at INSTANT"
        raise Invalid("specify exactly one of --at and --in", code="cli.option.conflict", field="--at", remedy=remedy)
    arguments = read_json_option(payload, "--payload")
    time_option = {"exec_at": "--in" if at is None else "--at"}
    with session.as_user() as app, translate_error_fields({**_OPTIONS_BY_FIELD, **time_option}):
        now = await session.now()
        created = await app.one_shots.create(
            at if at is not None else _add_delay(now, delay or ""),
            prompt_type,
            arguments,
            tags=tags or (),
            max_attempts=max_attempts,
            timeout=timeout,
            expires_in=expires_in,
        )
    when = "now" if created.exec_at <= now else format_with_age(created.exec_at, now)
    message = f"runs {when}; show it with: tenuto once show {created.id}"
    return session.report({"id": created.id, "exec_at": created.exec_at}, message, result=created.id)


def _add_delay(now: datetime, text: str) -> datetime:
    seconds = parse_duration_seconds(text, field="--in")
    if seconds is None or not seconds >= 0:
        remedy = "write it as 90s, 15m, 2h or 3d"
        raise invalid_value("--in", text, "is negative", code="one_shot.delay.negative", remedy=remedy)
    try:
        return now + timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        remedy = "give the time with --at"
        raise invalid_value("--in", text, "is too long", code="one_shot.delay.too_long", remedy=remedy) from None


@list_command(
    one_shots,
    "list",
    ONE_SHOTS,
    "--tag order-7 --search picture -o json",
    "--where 'type:http.call due:<1h' --count",
    keys=ONE_SHOT_KEYS,
    count=lambda app, **filters: count_one_shots(app, **filters),
    status=choice("Filter by status; a final status implies --ended.", Status),
    ended=flag("Ended one-shots, newest first.", "--ended"),
    prompt_type=option("TYPE", "Filter by type.", "--type"),
    tags=option("TAG", "Filter by tag; may be repeated.", "--tag", type=list[str]),
    search=option("TEXT", "Filter by text in type, tags or payload."),
    limit=limit(50, 1000),
    after=option("ID", "Pagination cursor: id of the last row of the page before."),
)
async def list_one_shots(app: Tenuto, *, ended: bool, after: str | None = None, **filters: Any) -> Sequence[Any]:
    """List open one-shots, next one first; with --ended, the ended ones."""
    cursor = None if after is None else (await app.attempts(await app.one_shots.find(after)))[-1]
    if ended or filters.get("status") in _ENDED_STATUSES:
        return await app.one_shots.list_ended(**filters, below=None if cursor is None else cursor.id)
    return await app.one_shots.list(**filters, after=None if cursor is None else (cursor.run_at, cursor.task_id))


async def count_one_shots(app: Tenuto, *, ended: bool, after: str | None = None, **filters: Any) -> CappedCount:
    """Count the one-shots of a list."""
    is_ended = ended or filters.get("status") in _ENDED_STATUSES
    return await app.one_shots.count(**filters, ended=is_ended)


@command(one_shots, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_one_shot(session: Session, id: Id) -> None:
    """Show an open or ended one-shot with its history."""
    operations = session.app.one_shots
    found = await operations.status(await operations.find(id), history=True)
    if session.as_json:
        print_json(found)
        return
    now = await session.now()
    stopping = found.stopping
    facts = [
        ("due", format_with_age(found.exec_at, now)),
        ("next attempt", format_with_age(found.next_attempt_at, now)),
        ("created", format_with_age(found.created_at, now, by=found.created_by)),
        ("tags", ", ".join(found.tags)),
        ("payload", compact_json(found.input)),
        ("output", compact_json(found.output)),
        ("error", error_summary(found.error)),
        ("cancelled", stopping and f"{format_relative(stopping.at, now)} by {stopping.by}; stopping"),
    ]
    print_rich(
        record_heading(found.runtime_status.lower(), one_line(found.prompt_type), found.id),
        "",
        name_value_table(*facts),
        "",
        render_table(ONE_SHOT_EVENTS, found.history, now),
    )


@command(one_shots, "cancel", "019a8b3c-1d2e", "019a8b3c-1d2e -q")
async def cancel_one_shot(session: Session, id: Id) -> None:
    """Cancel a one-shot.

    A one-shot that is not running ends at once; a running one is asked to stop. An ended one stays unchanged.
    """
    with session.as_user() as app:
        found = await app.one_shots.find(id)
        outcome = await app.one_shots.cancel(found)
    messages = {
        "terminated": f"one-shot {found} cancelled by {login_name()}",
        "stopping": f"one-shot {found} is running; {login_name()} has asked it to stop",
    }
    ended = f"one-shot {found} has already ended; nothing was changed"
    session.report({"id": found, "outcome": outcome}, messages.get(outcome, ended))


@command(one_shots, "wipe", "", "--yes -o json")
async def cancel_all_one_shots(
    session: Session, yes: Annotated[bool, flag("Act without confirmation.", "--yes")] = False
) -> int:
    """Cancel all one-shots in one transaction."""
    with session.as_user() as app:
        count = len(await app.one_shots.list(limit=1000))
        shown_count = "1,000 or more" if count == 1000 else f"{count:,}"
        if not yes and not confirm(f"cancel all one-shots ({shown_count})", "--yes"):
            session.print_message("nothing was changed")
            return exit_codes.FAILED
        cancelled = await app.one_shots.cancel_all()
    terminated, stopping = cancelled.terminated, cancelled.stopping
    hints = [f"  {len(stopping):,} of them are running and have been asked to stop"] if stopping else []
    document = {"terminated": terminated, "total": len(terminated), "stopping": stopping}
    return session.report(document, f"{len(terminated):,} one-shots cancelled by {login_name()}", *hints)
