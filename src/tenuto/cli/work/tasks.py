"""``tenuto task``: the present and the future, and the whole story of one task."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import ago, span
from tenuto.cli.option_parsing import Below, Limit, Name, Queue, Tag, say_if_more, where
from tenuto.cli.work import task_report

if TYPE_CHECKING:
    from rich.console import RenderableType

TaskState = Literal["waiting", "scheduled", "queued", "running"]
Id = Annotated[str, typer.Argument(metavar="ID", help="The task's id, or the beginning of it.")]


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    tasks = group(
        root,
        "task",
        "Look at tasks, ask why they do not run, cancel them.",
        "tenuto task list --state running",
        "tenuto task show 019a8b3c",
    )
    command(tasks, "list", "tenuto task list", "tenuto task list --queue mail --state queued -o json")(list_tasks)
    command(tasks, "show", "tenuto task show 019a8b3c-1d2e", "tenuto task show 019a8b3c-1d2e --log")(show_task)
    command(tasks, "why", "tenuto task why 019a8b3c-1d2e", "tenuto task why 019a8b3c-1d2e -o json")(
        task_report.why_task
    )
    command(tasks, "cancel", "tenuto task cancel 019a8b3c-1d2e", "tenuto task cancel 019a8b3c-1d2e -q")(cancel_task)


async def list_tasks(
    session: Session,
    state: Annotated[TaskState | None, typer.Option(help="Only those in this state.", show_choices=True)] = None,
    name: Name = None,
    queue: Queue = None,
    tag: Tag = None,
    limit: Limit = 50,
    below: Below = None,
) -> None:
    """List open tasks, the newest first.

    A task that has ended is no longer here: `tenuto activity list` shows the past.
    """
    from tenuto.cli.output import show_json, show_table
    from tenuto.cli.output import state as in_words

    narrowed = where(state=state, name=name, queue=queue, tag=tag, limit=limit, below=below)
    found = await session.app.tasks(**narrowed)
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say(
            "no open tasks; what has ended: tenuto activity list" if len(narrowed) == 1 else "no open tasks like that"
        )
        return
    now = (await session.app.open()).clock.now()
    show_table(
        ("id", "state", "name", "queue", "attempt", "when", "worker"),
        [
            (
                task["id"],
                in_words(task["state"]),
                task["name"],
                task["queue"],
                task["attempt"],
                _when(task, now),
                task["worker"],
            )
            for task in found
        ],
        spare=("worker", "queue", "attempt"),
        flexible=("name",),
    )
    say_if_more(session, found, limit)


def _when(task: dict[str, Any], now: datetime) -> str:
    match task["state"]:
        case "running":
            stopping = ", stopping" if task["cancel_at"] else ""
            return f"runs for {span(now - task['claimed_at'])}{stopping}"
        case "queued":
            return f"waits for {span(now - task['run_at'])}"
        case "scheduled":
            return f"due {ago(task['run_at'], now)}"
        case _:
            return f"created {ago(task['created_at'], now)}"


async def show_task(
    session: Session,
    task_id: Id,
    log: Annotated[bool, typer.Option("--log", help="Show the whole log of every attempt.")] = False,
) -> None:
    """Show a task, open or ended, and all its attempts.

    The attempts stand side by side in time: when each waited, and when it ran. Of a chain also the steps done so far.
    """
    from tenuto.cli.output import pairs, show, show_json
    from tenuto.cli.work import task_report
    from tenuto.errors import NotFound

    app = session.app
    attempts = await app.attempts((await app.activity(await app.find(task_id)))["task_id"])
    last = attempts[-1]
    try:
        task = None if last["final"] else await app.task(last["task_id"])
    except NotFound:  # it has ended between the two looks
        task = None
    reasons, steps = await app.why(last["task_id"]), await app.chain_steps(last["task_id"])
    if session.as_json:
        found = {"id": last["task_id"], "task": task, "why": reasons.reasons, "attempts": attempts, "steps": steps}
        show_json(found)
        return
    now = (await app.open()).clock.now()
    word = last["status"] if task is None else task["state"]
    record = {**(task or last), "id": last["task_id"]}
    about = task_report.facts(record, now) + ([] if task is None else task_report.present(task, now))
    parts: list[RenderableType] = [
        task_report.heading(record, word),
        "",
        pairs(*about),
        *([] if task is None else task_report.in_brief(reasons, now)),
        "",
        task_report.attempts(attempts, now),
        *task_report.chain(steps, now),
    ]
    if task is None:
        parts += task_report.stack_of(last)
    for attempt in attempts if log else attempts[-2:]:
        parts += task_report.log_of(attempt, whole=log)
    show(*parts)


async def cancel_task(session: Session, task_id: Id) -> int:
    """Cancel a task.

    At once if nobody runs it; otherwise its code is told to stop, and it ends as cancelled as soon as it has.
    """
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        found = (await app.activity(await app.find(task_id)))["task_id"]
        how = await app.cancel(found)
    who = login_name()
    if session.as_json:
        show_json({"id": found, "outcome": how, "by": who})
    elif how == "cancelled":
        session.say(f"task {found} is cancelled, by {who}")
    else:
        session.say(f"task {found} is running; it has been told to stop, by {who}")
        session.say(f"  see it stop: tenuto task show {found}")
    return exit_codes.OK
