"""``tenuto task``: list open tasks, show a task with its attempts, explain why it waits, cancel it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name, top_level
from tenuto.cli.formatting import format_duration, format_relative
from tenuto.cli.option_parsing import (
    BelowOption,
    JobFilter,
    LimitOption,
    QueueFilter,
    TagFilter,
    argument,
    build_filters,
    flag,
)
from tenuto.cli.output import (
    Column,
    Record,
    name_value_table,
    print_json,
    print_list,
    print_rich,
    record_heading,
    styled_state,
)
from tenuto.cli.work import task_report
from tenuto.errors import NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

TaskState = Literal["waiting", "scheduled", "queued", "running"]
Id = Annotated[str, argument("ID", "Id of the task, or its beginning.")]

tasks = group(
    top_level,
    "task",
    "List tasks, explain why they wait, cancel them.",
    "tenuto task list --state running",
    "tenuto task show 019a8b3c",
)


@command(tasks, "list", "", "--queue mail --state queued -o json")
async def list_tasks(
    session: Session,
    state: Annotated[TaskState | None, typer.Option(help="Filter by state.", show_choices=True)] = None,
    name: JobFilter = None,
    queue: QueueFilter = None,
    tag: TagFilter = None,
    limit: LimitOption = 50,
    below: BelowOption = None,
) -> None:
    """List open tasks, newest first.

    `tenuto activity list` lists the attempts of ended tasks.
    """
    filters = build_filters(state=state, name=name, queue=queue, tag=tag, limit=limit, below=below)
    columns: dict[str, Column] = {
        "id": "id",
        "state": lambda row, _: styled_state(row["state"]),
        "name": "name",
        "queue": "queue",
        "attempt": "attempt",
        "when": _state_time,
        "worker": "worker",
    }
    await print_list(
        session,
        await session.app.tasks(**filters),
        columns,
        noun="open tasks",
        hint="list ended ones with: tenuto activity list",
        filters=filters,
        optional=("worker", "queue", "attempt"),
        flexible=("name",),
    )


def _state_time(task: Record, now: datetime) -> str:
    match task["state"]:
        case "running":
            stopping = ", stopping" if task["cancel_at"] else ""
            return f"running for {format_duration(now - task['claimed_at'])}{stopping}"
        case "queued":
            return f"queued for {format_duration(now - task['run_at'])}"
        case "scheduled":
            return f"due {format_relative(task['run_at'], now)}"
        case _:
            return f"created {format_relative(task['created_at'], now)}"


@command(tasks, "show", "019a8b3c-1d2e", "019a8b3c-1d2e --log")
async def show_task(
    session: Session, task_id: Id, log: Annotated[bool, flag("The whole log of every attempt.", "--log")] = False
) -> None:
    """Show an open or ended task with all its attempts.

    A time line shows when each attempt waited and ran. For a chain, the results of the completed steps are shown.
    """
    app = session.app
    attempts = await app.attempts((await app.activity(await app.find(task_id)))["task_id"])
    last = attempts[-1]
    try:
        task = None if last["final"] else await app.task(last["task_id"])
    except NotFound:  # it ended between the two queries
        task = None
    why, steps = await app.why(last["task_id"]), await app.chain_steps(last["task_id"])
    if session.as_json:
        reasons = task_report.reason_documents(why)
        print_json({"id": last["task_id"], "task": task, "why": reasons, "attempts": attempts, "steps": steps})
        return
    now = await session.now()
    record = {**(task or last), "id": last["task_id"]}
    facts = task_report.task_facts(record, now) + ([] if task is None else task_report.open_task_facts(task, now))
    parts: list[RenderableType] = [
        record_heading(last["status"] if task is None else task["state"], record["name"], record["id"]),
        "",
        name_value_table(*facts),
        *([] if task is None else task_report.reasons_section(why, now)),
        "",
        task_report.attempt_table(attempts, now),
        *task_report.chain_step_table(steps, now),
    ]
    if task is None:
        parts += task_report.stack_section(last)
    for attempt in attempts if log else attempts[-2:]:
        parts += task_report.log_section(attempt, whole=log)
    print_rich(*parts)


@command(tasks, "why", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def explain_task(session: Session, task_id: Id) -> None:
    """Explain why a task is not running.

    The reasons that hold it now come first, then those that would hold it next. For a running task the command names
    its worker, for an ended one its outcome.
    """
    app = session.app
    task = await app.activity(await app.find(task_id))
    why = await app.why(task["task_id"])
    if session.as_json:
        print_json({"id": why.id, "state": why.state, "reasons": task_report.reason_documents(why)})
        return
    state = "in_progress" if why.state == "running" else why.state
    reasons = task_report.reason_lines(why, await session.now())
    print_rich(record_heading(state, task["name"], why.id), "", *reasons)


@command(tasks, "cancel", "019a8b3c-1d2e", "019a8b3c-1d2e -q")
async def cancel_task(session: Session, task_id: Id) -> int:
    """Cancel a task.

    A task that is not running ends at once. A running task is asked to stop and ends as cancelled when its code has
    stopped.
    """
    with session.as_user() as app:
        id = (await app.activity(await app.find(task_id)))["task_id"]
        outcome = await app.cancel(id)
    user = login_name()
    if session.as_json:
        print_json({"id": id, "outcome": outcome, "by": user})
    elif outcome == "cancelled":
        session.print_message(f"task {id} cancelled by {user}")
    else:
        session.print_message(f"task {id} is running; {user} has asked it to stop")
        session.print_message(f"  see its state with: tenuto task show {id}")
    return exit_codes.OK
