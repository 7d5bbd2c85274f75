"""``tenuto queue``: what is in the queues, and how fast they may go."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import ago
from tenuto.cli.option_parsing import by_option, whole_number

_SETTINGS = ("max_running", "paused_at", "paused_by", "reason")
_COUNTS = ("queued", "scheduled", "running")
_PLACES = {"queue": "QUEUE", "max_running": "N"}
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    queues = group(
        root, "queue", "Look at queues, limit and pause them.", "tenuto queue list", "tenuto queue limit mail 5"
    )
    command(queues, "list", "tenuto queue list", "tenuto queue list -o json")(list_queues)
    command(queues, "limit", "tenuto queue limit mail 5", "tenuto queue limit mail none")(limit_queue)
    command(queues, "pause", "tenuto queue pause mail", "tenuto queue pause mail --reason 'server is down'")(
        pause_queue
    )
    command(queues, "resume", "tenuto queue resume mail", "tenuto queue resume mail -q")(resume_queue)


async def list_queues(session: Session) -> None:
    """List every queue with its limit and what is in it."""
    from tenuto.cli.output import show_json, show_table
    from tenuto.cli.output import state as in_words

    found = await session.app.queues()
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say("no queue holds tasks or has settings")
        return
    now = (await session.app.open()).clock.now()
    show_table(
        ("name", "state", "limit", "queued", "scheduled", "running", "oldest", "paused"),
        [
            (
                queue["name"],
                in_words("paused" if queue["paused_at"] else "open"),
                queue["max_running"],
                queue["queued"],
                queue["scheduled"],
                queue["running"],
                ago(queue["oldest"], now),
                _paused(queue),
            )
            for queue in found
        ],
        spare=("oldest", "scheduled"),
        flexible=("paused",),
    )


def _paused(queue: dict[str, Any]) -> str | None:
    if not queue["paused_at"]:
        return None
    return f"by {queue['paused_by'] or 'somebody'}" + (f": {queue['reason']}" if queue["reason"] else "")


async def limit_queue(
    session: Session,
    name: QueueName,
    most: Annotated[str, typer.Argument(metavar="N|none", help="How many tasks may run at once, over all workers.")],
) -> None:
    """Bound how many tasks of a queue run at the same time; `none` lifts the bound."""
    limit = None if most == "none" else whole_number(most, "N", f"give one, or none: tenuto queue limit {name} 5")
    with session.as_user() as app, by_option(_PLACES):
        await app.limit_queue(name, limit)
    at_most = "without a limit" if limit is None else f"with at most {limit} running at a time"
    await _done(session, name, f"queue {name} goes on {at_most}")


async def pause_queue(
    session: Session,
    name: QueueName,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for whoever wonders.")] = None,
) -> None:
    """Let nothing more of a queue be taken; what runs goes on."""
    with session.as_user() as app, by_option(_PLACES):
        await app.pause_queue(name, reason)
    await _done(session, name, f"queue {name} is paused, by {login_name()}; go on with: tenuto queue resume {name}")


async def resume_queue(session: Session, name: QueueName) -> None:
    """Let tasks of a paused queue be taken again."""
    with session.as_user() as app, by_option(_PLACES):
        await app.resume_queue(name)
    await _done(session, name, f"queue {name} goes on")


async def _done(session: Session, name: str, words: str) -> None:
    from tenuto.cli.output import show_json

    if session.as_json:
        # A queue that nothing is in and nothing is said of is not listed; it is told of in the same shape.
        bare = {"name": name, **dict.fromkeys(_SETTINGS), **dict.fromkeys(_COUNTS, 0), "oldest": None}
        show_json(next((queue for queue in await session.app.queues() if queue["name"] == name), bare))
    else:
        session.say(words)
