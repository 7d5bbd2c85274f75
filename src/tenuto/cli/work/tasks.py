"""``tenuto task``, ``tenuto activity`` and ``tenuto queue``: open tasks, the records of past attempts, queues."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

from rich.console import RenderableType

from tenuto.app import Tenuto
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.lists import TASK_FILTERS, list_command
from tenuto.cli.option_parsing import option_conflict, parse_whole_number, read_json_option, translate_error_fields
from tenuto.cli.output import print_json, write
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.tables import name_value_table, print_rich, record_heading
from tenuto.cli.work import task_report
from tenuto.cli.work.bulk_operations import BULK_OPTIONS, check_one_or_where, run_bulk_operation
from tenuto.cli.work.jobs import suggest_job_list
from tenuto.clock import monotonic_seconds
from tenuto.errors import NotFound
from tenuto.model.filter_keys import ACTIVITY_KEYS, TASK_KEYS
from tenuto.model.work.bulk_operations import BulkKind
from tenuto.model.work.tasks import OutcomeChoice, TaskState
from tenuto.operations.work.attempt_logs import AttemptLogText
from tenuto.presentation.text_formats import error_summary, format_duration, format_local_time, safe_text
from tenuto.presentation.work_views import ACTIVITIES, QUEUES, TASKS, progress_text, run_duration
from tenuto.store.work.activities import ActivityRecord
from tenuto.store.work.workers import QueueRecord

_LOG_POLL_SECONDS = 0.5
_LOG_LINE = re.compile(r"(?P<time>\d\d:\d\d:\d\d\.\d+) (?P<level>\w+) +(?P<text>.*)")
_LOG_WAIT_SECONDS = 2.0
Id = Annotated[str, argument("ID", "Id of the task, or its first characters.")]
OptionalId = Annotated[str | None, argument("[ID]", "Id of the task, or its first characters.", default=None)]
Log = Annotated[bool, flag("The whole log of every attempt.", "--log")]

tasks = group(
    "task", "List tasks, explain why they wait, cancel or retry them.", "list --state running", "show 019a8b3c"
)
activities = group("activity", "List and show past attempts.", "list --state failed", "show 019a8b3c --log")


_STATE = choice("Filter by state.", TaskState)
_OUTCOME = choice("Filter by state; expired tasks are also cancelled.", OutcomeChoice)


@list_command(
    tasks,
    "list",
    TASKS,
    "--queue mail --state queued -o json",
    "--where 'worker:box-1,box-2 -tag:demo' --count",
    keys=TASK_KEYS,
    count=lambda app, **filters: app.count_tasks(**filters),
    state=_STATE,
    **TASK_FILTERS,
)
async def list_tasks(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List open tasks, newest first.

    `tenuto activity list` lists the attempts of ended tasks.
    """
    return await app.tasks(**filters)


@command(tasks, "show", "019a8b3c-1d2e", "019a8b3c-1d2e --log")
async def show_task(session: Session, task_id: Id, log: Log = False) -> None:
    """Show an open or ended task with all its attempts.

    A time line shows when each attempt waited and ran. For a chain, the results of the completed steps are shown.
    """
    app = session.app
    attempts = await app.attempts((await app.activity(await app.find(task_id))).task_id)
    last = attempts[-1]
    try:
        task = None if last.final else await app.task(last.task_id)
    except NotFound:  # it ended between the two queries
        task = None
    why, steps = await app.why(last.task_id), await app.chain_steps(last.task_id)
    if session.as_json:
        print_json({"id": last.task_id, "task": task, "why": why.reasons, "attempts": attempts, "steps": steps})
        return
    now = await session.now()
    facts = task_report.task_facts(task or last, now)
    parts: list[RenderableType] = [
        record_heading(task.state if task else last.state, last.name, last.task_id),
        "",
        name_value_table(*facts, *([] if task is None else task_report.open_task_facts(task, now))),
        *([] if task is None else task_report.reasons_section(why, now)),
        "",
        task_report.attempt_table(attempts, now),
        *task_report.chain_step_table(steps, now),
        *(task_report.stack_section(last) if task is None else []),
    ]
    for attempt in attempts if log else attempts[-2:]:
        parts += task_report.log_section(attempt, whole=log)
    print_rich(*parts)


@command(
    tasks, "log", "019a8b3c-1d2e", "019a8b3c-1d2e --follow", "019a8b3c-1d2e --tail 50", "019a8b3c-1d2e --follow -o json"
)
async def print_log(
    session: Session,
    task_id: Annotated[str, argument("ID", "Id of the task or of an attempt, or its first characters.")],
    tail: Annotated[int | None, option("N", "Number of lines from the end.", min=0, max=100_000)] = None,
    follow: Annotated[bool, flag("Print new lines until the task has ended.", "--follow", "-f")] = False,
) -> None:
    """Print the log of a task's last attempt, also while it runs.

    With the id of an attempt, print the log of that attempt. With --follow, new lines appear about a second after the
    job has written them; if the task is retried, the log of the next attempt follows. Ctrl-C stops printing. As JSON,
    --follow prints one object per line.
    """
    app = session.app
    found = await app.activity(await app.find(task_id))
    if found.id == found.task_id:
        found = (await app.attempts(found.task_id))[-1]
    page = await app.activity_log(found.id, tail=tail)
    if session.as_json and not follow:
        print_json(page)
        return
    if not follow and not page.text and not page.is_complete:  # the worker has not sent the log yet
        page = await _wait_for_text(app, found.id, tail)
    _write_log(session, found, page.text)
    while follow:
        while not page.is_complete:
            await asyncio.sleep(_LOG_POLL_SECONDS)
            page = await app.activity_log(found.id, from_offset=page.next_offset)
            _write_log(session, found, page.text)
        if (await app.activity(found.id)).final:
            return
        found = (await app.attempts(found.task_id))[-1]
        session.print_message(f"attempt {found.attempt}")
        page = await app.activity_log(found.id)
        _write_log(session, found, page.text)


def _write_log(session: Session, attempt: ActivityRecord, text: str) -> None:
    """Write a part of a log as text, or each of its lines as JSON."""
    if not session.as_json:
        write(safe_text(text))
        return
    for line in text.splitlines():
        found = _LOG_LINE.match(line)
        fields = {"text": line} if found is None else found.groupdict()
        print_json({"task_id": attempt.task_id, "attempt": attempt.attempt, **fields}, indent=None)


async def _wait_for_text(app: Tenuto, activity_id: UUID, tail: int | None) -> AttemptLogText:
    """Wait up to two seconds for the first lines of a running attempt."""
    started_at = monotonic_seconds()
    while True:
        page = await app.activity_log(activity_id, tail=tail)
        if page.text or page.is_complete or monotonic_seconds() > started_at + _LOG_WAIT_SECONDS:
            return page
        await asyncio.sleep(_LOG_POLL_SECONDS / 2)


@command(tasks, "why", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def explain_task(session: Session, task_id: Id) -> None:
    """Explain why a task is not running.

    The reasons that hold it now come first, then those that would hold it next. For a running task the command names
    its worker, for an ended one its outcome.
    """
    app = session.app
    task = await app.activity(await app.find(task_id))
    why = await app.why(task.task_id)
    if session.as_json:
        print_json(why)
        return
    print_rich(record_heading(why.state, task.name, why.id), "", *task_report.reason_lines(why, await session.now()))


@command(
    tasks,
    "cancel",
    "019a8b3c-1d2e",
    "--where 'queue:mail created:<1d' --yes --wait",
    options=BULK_OPTIONS,
)
async def cancel_task(session: Session, task_id: OptionalId = None, **options: Any) -> int:
    """Cancel a task.

    A task that is not running ends at once. A running task is asked to stop and ends as cancelled when its code has
    stopped. With --where, all open tasks that meet a filter are cancelled as a bulk operation, and its id is printed.
    """
    where = check_one_or_where(task_id, options, "tenuto task cancel")
    if where is not None:
        return await run_bulk_operation(session, BulkKind.TASK_CANCEL, **options)
    with session.as_user(reason=options["reason"]) as app:
        id = (await app.activity(await app.find(task_id or ""))).task_id
        outcome = await app.cancel(id)
    user = login_name()
    messages = [f"task {id} cancelled by {user}"]
    if outcome != "cancelled":
        stopping = f"task {id} is running; {user} has asked it to stop"
        messages = [stopping, f"  see its state with: tenuto task show {id}"]
    return session.report({"id": id, "outcome": outcome, "by": user}, *messages)


@command(
    tasks,
    "retry",
    "019a8b3c-1d2e --input @new.json --app tasks:app",
    "--where 'name:resize error:~timeout created:>1d' --note 'the server is back'",
    options={name: declared for name, declared in BULK_OPTIONS.items() if name != "reason"},
)
async def retry_task(
    session: Session,
    task_id: OptionalId = None,
    input: Annotated[str | None, option("JSON|@FILE|-", "Corrected input of one task; requires --app.")] = None,
    note: Annotated[str | None, option("TEXT", "Note, stored with the dead letter.")] = None,
    **options: Any,
) -> int:
    """Retry a task that failed for good, with attempts counted from one. Prints the id of the new task.

    Its dead letter is resolved in the same transaction, so it is retried only once. With --where, all tasks whose open
    dead letters meet a filter are retried as a bulk operation, and its id is printed.
    """
    if check_one_or_where(task_id, options, "tenuto task retry") is not None:
        if input is not None:
            raise option_conflict("--input", "--where", "retry one task, or omit --input")
        return await run_bulk_operation(session, BulkKind.DEAD_LETTER_RETRY, reason=note, **options)
    new_input = None if input is None else read_json_option(input, "--input")
    if input is not None:
        session.require_app()  # the job checks its input
    with session.as_user() as app, suggest_job_list(session):
        id = (await app.activity(await app.find(task_id or ""))).task_id
        new_id = await app.tasks.retry(id, input=new_input, note=note)
    messages = (f"task {id} retried by {login_name()}; see the new task with:", f"  tenuto task show {new_id}")
    return session.report({"id": id, "task_id": new_id}, *messages, result=new_id)


@list_command(
    activities,
    "list",
    ACTIVITIES,
    "--state failed --final --since today",
    "--where 'error:~timeout ran:>30s' -o json",
    keys=ACTIVITY_KEYS,
    count=lambda app, **filters: app.count_activities(**filters),
    state=_OUTCOME,
    final=flag("Filter by attempts with which the task ended.", "--final", default=None),
    **TASK_FILTERS,
)
async def list_activities(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List past attempts, newest first.

    The sign ↻ marks attempts after which the task was retried.
    """
    return await app.activities(**filters)


@command(activities, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_activity(
    session: Session,
    activity_id: Annotated[str, argument("ID", "Id of the activity, or its first characters.")],
    log: Annotated[bool, flag("The whole log.", "--log")] = False,
) -> None:
    """Show one attempt: scheduled, running or ended."""
    record = await session.app.activity(await session.app.find(activity_id))
    if session.as_json:
        print_json(record)
        return
    ran = run_duration(record)
    facts = [
        ("task", f"{record.task_id}, attempt {record.attempt}"),
        ("reason", (record.reason or "").replace("_", " ")),
        ("then", "retried" if record.ended_at and not record.final else None),
        *task_report.task_facts(record, await session.now()),
        ("worker", record.worker or record.worker_id),
        ("started", format_local_time(record.started_at)),
        ("ended", format_local_time(record.ended_at)),
        ("ran", ran and format_duration(ran)),
        ("progress", progress_text(record.progress)),
        ("error", error_summary(record.error)),
    ]
    print_rich(
        record_heading(record.state, record.name, record.id),
        "",
        name_value_table(*facts),
        *task_report.stack_section(record),
        *task_report.log_section(record, whole=log),
    )


# --- queues -----------------------------------------------------------------------------------------------------------

QueueName = Annotated[str, argument("QUEUE", "Name of the queue.")]
_ARGUMENTS_BY_FIELD = {"queue": "QUEUE", "max_running": "N"}

queues = group("queue", "List queues, limit and pause them.", "list", "limit mail 5")


@list_command(queues, "list", QUEUES, "", "-o json")
async def list_queues(app: Tenuto) -> Sequence[Any]:
    """List queues with their limits and task counts."""
    return await app.queues()


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
    await _report_queue(session, name, change)


@command(queues, "rate", "mail 100/m", "mail '5/s burst 20'", "mail none")
async def limit_queue_rate(
    session: Session,
    name: QueueName,
    rate: Annotated[str, argument("RATE|none", "Maximum number of starts: 5/s, 100/m, 1000/h, '100/m burst 20'.")],
) -> None:
    """Limit how many tasks of a queue start per second, minute or hour; `none` removes the limit."""
    with session.as_user() as app, translate_error_fields({"queue": "QUEUE", "rate_limit": "RATE"}):
        await app.limit_queue_rate(name, None if rate == "none" else rate)
    change = "has no rate limit" if rate == "none" else f"starts at most {rate}"
    await _report_queue(session, name, change)


@command(queues, "pause", "mail", "mail --reason 'server is down'")
async def pause_queue(
    session: Session,
    name: QueueName,
    reason: Annotated[str | None, option("TEXT", "Reason, shown in `tenuto queue list`.")] = None,
) -> None:
    """Pause a queue: workers claim no more of its tasks. Running tasks continue."""
    with session.as_user() as app, translate_error_fields(_ARGUMENTS_BY_FIELD):
        await app.pause_queue(name, reason)
    await _report_queue(session, name, f"paused by {login_name()}; resume with: tenuto queue resume {name}")


@command(queues, "resume", "mail", "mail -q")
async def resume_queue(session: Session, name: QueueName) -> None:
    """Resume a paused queue."""
    with session.as_user() as app, translate_error_fields(_ARGUMENTS_BY_FIELD):
        await app.resume_queue(name)
    await _report_queue(session, name, f"resumed by {login_name()}")


async def _report_queue(session: Session, name: str, change: str) -> None:
    listed = (queue for queue in await session.app.queues() if queue.name == name) if session.as_json else iter(())
    session.report(next(listed, QueueRecord(name)), f"queue {name} {change}")
