"""``tenuto task``, ``tenuto activity`` and ``tenuto queue``: open tasks, the records of past attempts, queues."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import format_duration, format_local_time, format_relative
from tenuto.cli.option_parsing import (
    BelowOption,
    JobFilter,
    LimitOption,
    QueueFilter,
    TagFilter,
    build_filters,
    parse_whole_number,
    translate_error_fields,
)
from tenuto.cli.output import Record, name_value_table, print_json, print_list, print_rich, record_heading, styled_state
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.work import task_report
from tenuto.errors import NotFound
from tenuto.store.workers import QueueRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

TaskState = Literal["waiting", "scheduled", "queued", "running"]
ActivityStatus = Literal["completed", "completed_with_warning", "completed_with_error", "failed", "cancelled"]
Id = Annotated[str, argument("ID", "Id of the task, or its beginning.")]

tasks = group("task", "List tasks, explain why they wait, cancel them.", "list --state running", "show 019a8b3c")
activities = group("activity", "List and show past attempts.", "list --state failed", "show 019a8b3c --log")


@command(tasks, "list", "", "--queue mail --state queued -o json")
async def list_tasks(
    session: Session,
    state: Annotated[TaskState | None, choice("Filter by state.")] = None,
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
    await print_list(
        session,
        await session.app.tasks(**filters),
        {
            "id": "id",
            "state": lambda row, _: styled_state(row["state"]),
            "name": "name",
            "queue": "queue",
            "attempt": "attempt",
            "when": _state_time,
            "worker": "worker",
        },
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
        record_heading(last["state"] if task is None else task["state"], record["name"], record["id"]),
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
async def cancel_task(session: Session, task_id: Id) -> None:
    """Cancel a task.

    A task that is not running ends at once. A running task is asked to stop and ends as cancelled when its code has
    stopped.
    """
    with session.as_user() as app:
        id = (await app.activity(await app.find(task_id)))["task_id"]
        outcome = await app.cancel(id)
    user = login_name()
    messages = [f"task {id} cancelled by {user}"]
    if outcome != "cancelled":
        messages = [
            f"task {id} is running; {user} has asked it to stop",
            f"  see its state with: tenuto task show {id}",
        ]
    session.report({"id": id, "outcome": outcome, "by": user}, *messages)


# --- activities -----------------------------------------------------------------------------------------------------


@command(activities, "list", "--state failed", "--name resize --limit 10 -o json")
async def list_activities(
    session: Session,
    state: Annotated[ActivityStatus | None, choice("Filter by status.")] = None,
    name: JobFilter = None,
    queue: QueueFilter = None,
    tag: TagFilter = None,
    limit: LimitOption = 50,
    below: BelowOption = None,
) -> None:
    """List past attempts, newest first.

    The sign ↻ marks attempts after which the task was retried.
    """
    filters = build_filters(state=state, name=name, queue=queue, tag=tag, limit=limit, below=below)
    await print_list(
        session,
        await session.app.activities(**filters),
        {
            "id": "id",
            "state": lambda row, _: styled_state(row["state"]),
            "name": "name",
            "attempt": lambda row, _: f"{row['attempt']}{'' if row['final'] else ' ↻'}",
            "ended": lambda row, now: format_relative(row["ended_at"], now),
            "ran": lambda row, _: task_report.run_duration(row),
            "worker": "worker",
            "error": lambda row, _: task_report.error_summary(row["error"]),
        },
        noun="activities",
        filters=filters,
        optional=("worker", "ran", "error", "attempt"),
        flexible=("error", "name"),
    )


@command(activities, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_activity(
    session: Session,
    activity_id: Annotated[str, argument("ID", "Id of the activity, or its beginning.")],
    log: Annotated[bool, flag("The whole log.", "--log")] = False,
) -> None:
    """Show one attempt: scheduled, running or ended."""
    record = await session.app.activity(await session.app.find(activity_id))
    if session.as_json:
        print_json(record)
        return
    now = await session.now()
    facts = [
        ("task", f"{record['task_id']}, attempt {record['attempt']}"),
        ("reason", (record["reason"] or "").replace("_", " ")),
        ("then", "retried" if record["ended_at"] and not record["final"] else None),
        *task_report.task_facts(record, now),
        ("worker", record["worker"] or record["worker_id"]),
        ("started", format_local_time(record["started_at"])),
        ("ended", format_local_time(record["ended_at"])),
        ("ran", task_report.run_duration(record)),
        ("progress", task_report.progress_text(record["progress"])),
        ("error", task_report.error_summary(record["error"])),
    ]
    print_rich(
        record_heading(record["state"], record["name"], record["id"]),
        "",
        name_value_table(*facts),
        *task_report.stack_section(record),
        *task_report.log_section(record, whole=log),
    )


# --- queues ---------------------------------------------------------------------------------------------------------

QueueName = Annotated[str, argument("QUEUE", "Name of the queue.")]
_ARGUMENTS_BY_FIELD = {"queue": "QUEUE", "max_running": "N"}

queues = group("queue", "List queues, limit and pause them.", "list", "limit mail 5")


@command(queues, "list", "", "-o json")
async def list_queues(session: Session) -> None:
    """List queues with their limits and task counts."""
    await print_list(
        session,
        await session.app.queues(),
        {
            "name": "name",
            "state": lambda queue, _: styled_state("paused" if queue["paused_at"] else "open"),
            "limit": "max_running",
            "queued": "queued_count",
            "scheduled": "scheduled_count",
            "running": "running_count",
            "oldest": lambda queue, now: format_relative(queue["oldest_due_at"], now),
            "paused": lambda queue, _: _pause_text(queue),
        },
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
    await _report_queue(session, name, f"queue {name} {change}")


@command(queues, "pause", "mail", "mail --reason 'server is down'")
async def pause_queue(
    session: Session,
    name: QueueName,
    reason: Annotated[str | None, option("TEXT", "Reason, shown in `tenuto queue list`.")] = None,
) -> None:
    """Pause a queue: workers claim no more of its tasks. Running tasks continue."""
    with session.as_user() as app, translate_error_fields(_ARGUMENTS_BY_FIELD):
        await app.pause_queue(name, reason)
    await _report_queue(
        session, name, f"queue {name} paused by {login_name()}; resume with: tenuto queue resume {name}"
    )


@command(queues, "resume", "mail", "mail -q")
async def resume_queue(session: Session, name: QueueName) -> None:
    """Resume a paused queue."""
    with session.as_user() as app, translate_error_fields(_ARGUMENTS_BY_FIELD):
        await app.resume_queue(name)
    await _report_queue(session, name, f"queue {name} resumed by {login_name()}")


async def _report_queue(session: Session, name: str, message: str) -> None:
    if session.as_json:
        listed = (queue for queue in await session.app.queues() if queue["name"] == name)
        print_json(next(listed, QueueRecord(name)))  # `app.queues` does not list a queue without tasks and settings
    else:
        session.print_message(message)
