"""``tenuto execution``: list, show, watch, cancel, pause, resume and retry executions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from rich.console import RenderableType
from rich.text import Text

from tenuto.app import Tenuto
from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.lists import PAGE, list_command
from tenuto.cli.option_parsing import require_wait
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.tables import name_value_table, print_rich, record_heading, render_table
from tenuto.cli.work import execution_view, task_report
from tenuto.cli.work.bulk_operations import BULK_OPTIONS, check_one_or_where, run_bulk_operation
from tenuto.cli.work.execution_view import ExecutionProgress
from tenuto.cli.work.live_view import watch
from tenuto.cli.work.state_changes import add_state_change
from tenuto.clock import monotonic_seconds
from tenuto.model.filter_keys import EXECUTION_KEYS
from tenuto.model.work.bulk_operations import BulkKind
from tenuto.model.work.executions import ExecutionState
from tenuto.operations.work.executions import ExecutionDetails
from tenuto.presentation.execution_states import step_state
from tenuto.presentation.text_formats import format_duration, format_local_time, format_with_age, safe_text
from tenuto.presentation.work_views import EXECUTIONS, STEPS, execution_display_state, execution_outcome, step_error

ID = argument("ID", "Id of the execution, or its first characters.")
Id = Annotated[str, ID]
OptionalId = Annotated[str | None, argument("[ID]", "Id of the execution, or its first characters.", default=None)]
Timeout = Annotated[float | None, option("SECONDS", "Maximum time to wait.", min=0)]
_ORIGINS = {
    "trigger": "when due",
    "manual": "manually",
    "step": "as a step of another execution",
    "retry": "as a retry",
}
_POLL_SECONDS = 0.2
_STEPS_POLLED_PER_SECOND = 5000

executions = group(
    "execution", "List, watch, cancel, pause and retry runs of schedules.", "list --state failed", "watch 019a8b3c"
)


_STATE = choice("Filter by state.", ExecutionState)
_SCHEDULE = option("NAME", "Filter by schedule.")


@list_command(
    executions,
    "list",
    EXECUTIONS,
    "--schedule nightly -o json",
    "--where 'state:failed,cancelled started:>1d'",
    keys=EXECUTION_KEYS,
    count=lambda app, **filters: app.executions.count(**filters),
    state=_STATE,
    schedule=_SCHEDULE,
    **PAGE,
)
async def list_executions(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List executions, newest first."""
    return await app.executions.list(**filters)


@command(executions, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_execution(session: Session, execution_id: Id) -> None:
    """Show an execution with all its steps.

    For each step: state, attempt, wait, duration, error, worker and the id of its activity.
    """
    app = session.app
    found = await app.executions.get(await app.executions.find(execution_id))
    why = await app.executions.why(found.id)
    if session.as_json:
        print_json({**EXECUTIONS.document(found), "why": why.reasons})
        return
    now = await session.now()
    print_rich(
        record_heading(execution_display_state(found), found.schedule_name, found.id),
        "",
        name_value_table(*_facts(found, now)),
        *task_report.reasons_section(why, now),
        "",
        _step_table(found, now),
        *_step_errors(found),
    )


@command(executions, "why", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def explain_execution(session: Session, execution_id: Id) -> None:
    """Explain why an execution does not advance.

    For each open step of the current group: the reasons that hold it, and the commands that help.
    """
    app = session.app
    found = await app.executions.get(await app.executions.find(execution_id))
    why = await app.executions.why(found.id)
    if session.as_json:
        print_json(why)
        return
    heading = record_heading(execution_display_state(found), found.schedule_name, found.id)
    print_rich(heading, "", *task_report.reason_lines(why, await session.now()))


def _facts(found: ExecutionDetails, now: datetime) -> list[tuple[str, Any]]:
    initiator = f"{safe_text(found.initiator_name)} ({found.initiator_type.replace('_', ' ')})"
    return [
        ("group", f"{found.current_group + 1} of {found.group_count}"),
        ("started", f"{format_with_age(found.started_at, now)} {_ORIGINS[found.origin]}, by {initiator}"),
        ("due", format_local_time(found.due_at) if found.origin == "trigger" else None),
        ("ended", format_with_age(found.ended_at, now)),
        ("duration", f"{format_duration(found.duration_seconds)}{'' if found.ended_at else ' so far'}"),
        ("version", f"{found.version} of the schedule"),
        ("retry of", found.retry_of),
        ("step of task", found.parent_task_id),
        ("outcome", execution_outcome(found)),
    ]


def _step_table(found: ExecutionDetails, now: datetime) -> RenderableType:
    states = [execution_view.state_text(step_state(step, found)) for step in found.steps]
    columns = [each for each in STEPS.columns if each.name != "depends" or any(map(each.read, found.steps))]
    return render_table(columns, found.steps, now, {"state": states})


def _step_errors(found: ExecutionDetails) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for step in found.steps:
        if (error := step_error(step)) is not None:
            title = Text(f"error of {safe_text(step.name)}, attempt {error.attempt}", style="bold")
            lines += [Text(""), title, Text(f"  {safe_text(error.message)}", style="red")]
            lines.append(Text(f"  see: tenuto activity show {error.activity_id}", style="dim"))
    return lines


@command(executions, "watch", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def watch_by_id(session: Session, execution_id: Id, timeout: Timeout = None) -> int:
    """Watch an execution until it ends.

    Exit code 0 if it completed, 1 if it failed or was cancelled. In a pipe, each change is printed as a line; as JSON,
    the final record. Ctrl-C stops watching and leaves the execution running.
    """
    return await watch_execution(session, await session.app.executions.find(execution_id), timeout)


async def watch_execution(
    session: Session, id: UUID, timeout: float | None = None, wait_started_at: float | None = None
) -> int:
    """Watch an execution until it ends and return the exit code; the timeout counts from the monotonic start time."""
    operations = session.app.executions

    async def explain() -> list[str]:
        reasons = (await operations.why(id)).reasons
        return [f"{reason.step}: {reason.message}" if reason.step else reason.message for reason in reasons]

    ended: ExecutionDetails = await watch(
        session,
        "execution",
        id,
        make_view=ExecutionProgress,
        operations=operations,
        explain=explain,
        poll_seconds=lambda found: max(_POLL_SECONDS, found.step_count / _STEPS_POLLED_PER_SECOND),
        timeout=timeout,
        waited_seconds=0.0 if wait_started_at is None else monotonic_seconds() - wait_started_at,
    )
    outcome = execution_outcome(ended)
    text = f"{execution_view.symbol(ended.state)} {ended.state}"
    if ended.state != "completed":
        text += f" at group {ended.current_group + 1} of {ended.group_count}"
    text += f" after {format_duration(ended.duration_seconds)}"
    outcome = outcome and outcome.removeprefix(f"{ended.state} ")  # "cancelled by ana" follows "cancelled"
    session.print_message(f"{text}: {outcome}" if outcome else text)
    if ended.state == "completed":
        return exit_codes.OK
    session.print_message(f"  retry it from that group: tenuto execution retry {ended.id}")
    return exit_codes.FAILED


@command(
    executions,
    "cancel",
    "019a8b3c-1d2e --reason 'wrong file'",
    "--where 'state:in_progress schedule:nightly' --yes",
    options=BULK_OPTIONS,
)
async def cancel_execution(session: Session, execution_id: OptionalId = None, **options: Any) -> int:
    """Cancel an execution: remove the steps that have not started and stop the running ones.

    With --where, all executions that meet a filter are cancelled as a bulk operation, and its id is printed.
    """
    reason = options["reason"]
    where = check_one_or_where(execution_id, options, "tenuto execution cancel")
    if where is not None:
        return await run_bulk_operation(session, BulkKind.EXECUTION_CANCEL, **options)
    with session.as_user() as app:
        id = await app.executions.find(execution_id or "")
        outcome = await app.executions.cancel(id, reason=reason)
    hints = [] if outcome == "cancelled" else [f"  running steps are being stopped; watch: tenuto execution watch {id}"]
    document = {"id": id, "outcome": outcome, "by": login_name()}
    return session.report(document, f"execution {id} cancelled by {login_name()}", *hints)


_PAUSE_HELP = """Pause an execution: start no more of its steps.

Running steps continue, including child executions that run as a step."""
add_state_change(executions, "pause", _PAUSE_HELP, ID, lambda app: app.executions)
add_state_change(executions, "resume", "Resume a paused execution.", ID, lambda app: app.executions)


@command(executions, "retry", "019a8b3c-1d2e", "019a8b3c-1d2e --wait")
async def retry_execution(
    session: Session,
    execution_id: Id,
    wait: Annotated[bool, flag("Watch until the end; exit code 1 unless completed.", "--wait")] = False,
    timeout: Timeout = None,
) -> int:
    """Retry a failed or cancelled execution from the group in which it ended. Prints the id of the new execution.

    The new execution uses the steps of the old one, which stays unchanged.
    """
    require_wait(timeout, wait=wait)
    with session.as_user() as app:
        id = await app.executions.find(execution_id)
        new_id = await app.executions.retry(id)
    if wait:
        return await watch_execution(session, new_id, timeout)
    hint = f"watch it with: tenuto execution watch {new_id}"
    return session.report({"id": new_id, "retry_of": id}, hint, result=new_id)
