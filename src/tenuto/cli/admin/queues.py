"""``tenuto queue``: list, limit, pause and resume queues."""

from __future__ import annotations

from typing import Annotated

from tenuto.cli.command import Session, command, group, login_name, top_level
from tenuto.cli.formatting import format_relative
from tenuto.cli.option_parsing import argument, option, parse_whole_number, translate_error_fields
from tenuto.cli.output import Column, Record, print_json, print_list, styled_state

QueueName = Annotated[str, argument("QUEUE", "Name of the queue.")]
_ARGUMENTS_BY_FIELD = {"queue": "QUEUE", "max_running": "N"}
_EMPTY_QUEUE = {
    **dict.fromkeys(("max_running", "paused_at", "paused_by", "reason")),
    **dict.fromkeys(("queued", "scheduled", "running"), 0),
    "oldest": None,
}
"""A queue without tasks and settings, which `app.queues` does not list."""

queues = group(
    top_level, "queue", "List queues, limit and pause them.", "tenuto queue list", "tenuto queue limit mail 5"
)


@command(queues, "list", "", "-o json")
async def list_queues(session: Session) -> None:
    """List queues with their limits and task counts."""
    columns: dict[str, Column] = {
        "name": "name",
        "state": lambda queue, _: styled_state("paused" if queue["paused_at"] else "open"),
        "limit": "max_running",
        "queued": "queued",
        "scheduled": "scheduled",
        "running": "running",
        "oldest": lambda queue, now: format_relative(queue["oldest"], now),
        "paused": lambda queue, _: _pause_text(queue),
    }
    await print_list(
        session,
        await session.app.queues(),
        columns,
        noun="queues with tasks or settings",
        optional=("oldest", "scheduled"),
        flexible=("paused",),
    )


def _pause_text(queue: Record) -> str | None:
    if not queue["paused_at"]:
        return None
    return f"by {queue['paused_by'] or 'unknown'}" + (f": {queue['reason']}" if queue["reason"] else "")


@command(queues, "limit", "mail 5", "mail none")
async def limit_queue(
    session: Session,
    name: QueueName,
    limit: Annotated[str, argument("N|none", "Maximum number of running tasks over all workers.")],
) -> None:
    """Limit how many tasks of a queue run at the same time; `none` removes the limit."""
    remedy = f"give a number or none: tenuto queue limit {name} 5"
    max_running = None if limit == "none" else parse_whole_number(limit, "N", remedy)
    with session.as_user() as app, translate_error_fields(_ARGUMENTS_BY_FIELD):
        await app.limit_queue(name, max_running)
    change = "has no limit" if max_running is None else f"is limited to {max_running} running tasks"
    await _report_change(session, name, f"queue {name} {change}")


@command(queues, "pause", "mail", "mail --reason 'server is down'")
async def pause_queue(
    session: Session,
    name: QueueName,
    reason: Annotated[str | None, option("TEXT", "Reason, shown in `tenuto queue list`.")] = None,
) -> None:
    """Pause a queue: workers claim no more of its tasks. Running tasks continue."""
    with session.as_user() as app, translate_error_fields(_ARGUMENTS_BY_FIELD):
        await app.pause_queue(name, reason)
    await _report_change(
        session, name, f"queue {name} paused by {login_name()}; resume with: tenuto queue resume {name}"
    )


@command(queues, "resume", "mail", "mail -q")
async def resume_queue(session: Session, name: QueueName) -> None:
    """Resume a paused queue."""
    with session.as_user() as app, translate_error_fields(_ARGUMENTS_BY_FIELD):
        await app.resume_queue(name)
    await _report_change(session, name, f"queue {name} resumed by {login_name()}")


async def _report_change(session: Session, name: str, message: str) -> None:
    if session.as_json:
        listed = (queue for queue in await session.app.queues() if queue["name"] == name)
        print_json(next(listed, {"name": name, **_EMPTY_QUEUE}))
    else:
        session.print_message(message)
