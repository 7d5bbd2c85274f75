"""``tenuto activity``: the past, one record for each attempt."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tenuto.cli.command import Session, command, group
from tenuto.cli.formatting import ago, local, span
from tenuto.cli.option_parsing import Below, Limit, Name, Queue, Tag, say_if_more, where

Status = Literal["completed", "completed_with_warning", "completed_with_error", "failed", "cancelled"]


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    activities = group(
        root,
        "activity",
        "Look at past attempts.",
        "tenuto activity list --state failed",
        "tenuto activity show 019a8b3c --log",
    )
    command(
        activities,
        "list",
        "tenuto activity list --state failed",
        "tenuto activity list --name resize --limit 10 -o json",
    )(list_activities)
    command(activities, "show", "tenuto activity show 019a8b3c-1d2e", "tenuto activity show 019a8b3c-1d2e -o json")(
        show_activity
    )


async def list_activities(
    session: Session,
    state: Annotated[Status | None, typer.Option(help="Only those that ended so.")] = None,
    name: Name = None,
    queue: Queue = None,
    tag: Tag = None,
    limit: Limit = 50,
    below: Below = None,
) -> None:
    """List past attempts, the newest first.

    An attempt after which its task was tried again is marked with ↻.
    """
    from tenuto.cli.output import show_json, show_table
    from tenuto.cli.output import state as in_words
    from tenuto.cli.work.task_report import summary

    narrowed = where(state=state, name=name, queue=queue, tag=tag, limit=limit, below=below)
    found = await session.app.activities(**narrowed)
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say("no activities yet" if len(narrowed) == 1 else "no activities like that")
        return
    now = (await session.app.open()).clock.now()
    show_table(
        ("id", "status", "name", "attempt", "ended", "ran", "worker", "error"),
        [
            (
                record["id"],
                in_words(record["status"]),
                record["name"],
                f"{record['attempt']}{'' if record['final'] else ' ↻'}",
                ago(record["ended_at"], now),
                span(record["ended_at"] - record["started_at"]) if record["started_at"] else "",
                record["worker"],
                summary(record["error"]),
            )
            for record in found
        ],
        spare=("worker", "ran", "error", "attempt"),
        flexible=("error", "name"),
    )
    say_if_more(session, found, limit)


async def show_activity(
    session: Session,
    activity_id: Annotated[str, typer.Argument(metavar="ID", help="The activity's id, or the beginning of it.")],
    log: Annotated[bool, typer.Option("--log", help="Show the whole log.")] = False,
) -> None:
    """Show one attempt, whether it lies ahead, is in progress or is past."""
    from tenuto.cli.output import pairs, show, show_json
    from tenuto.cli.work import task_report

    record = await session.app.activity(await session.app.find(activity_id))
    if session.as_json:
        show_json(record)
        return
    now = (await session.app.open()).clock.now()
    ran = span(record["ended_at"] - record["started_at"]) if record["ended_at"] and record["started_at"] else None
    about = [
        ("task", f"{record['task_id']}, attempt {record['attempt']}"),
        ("reason", (record["reason"] or "").replace("_", " ")),
        ("then", "tried again" if record["ended_at"] and not record["final"] else None),
        *task_report.facts(record, now),
        ("worker", record["worker"] or record["worker_id"]),
        ("started", local(record["started_at"])),
        ("ended", local(record["ended_at"])),
        ("ran", ran),
        ("progress", task_report.progress(record["progress"])),
        ("error", task_report.summary(record["error"])),
    ]
    show(
        task_report.heading(record, record["status"]),
        "",
        pairs(*about),
        *task_report.stack_of(record),
        *task_report.log_of(record, whole=log),
    )
