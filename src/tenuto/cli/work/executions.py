"""``tenuto execution``: list, show, watch, cancel, pause, resume and retry the runs of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import (
    format_duration,
    format_local_time,
    format_relative,
    format_with_age,
    one_line,
    safe_text,
)
from tenuto.cli.option_parsing import BelowOption, LimitOption, build_filters, require_wait
from tenuto.cli.output import (
    Record,
    TwoLineColumn,
    fitted_table,
    is_terminal,
    name_value_table,
    print_json,
    print_list,
    print_rich,
    record_heading,
    state_colour,
    state_symbol,
    styled_state,
    two_line_table,
)
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.work import execution_view, task_report
from tenuto.cli.work.live_view import LiveView, watch
from tenuto.clock import monotonic_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

State = Literal["in_progress", "completed", "failed", "cancelled"]
Id = Annotated[str, argument("ID", "Id of the execution, or its beginning.")]
Timeout = Annotated[float | None, option("SECONDS", "Maximum time to wait.", min=0)]
_ORIGINS = {
    "trigger": "when due",
    "manual": "manually",
    "step": "as a step of another execution",
    "retry": "as a retry",
}


executions = group(
    "execution", "List, watch, cancel, pause and retry runs of schedules.", "list --state failed", "watch 019a8b3c"
)


# --- list and show --------------------------------------------------------------------------------------------------


@command(executions, "list", "", "--schedule nightly -o json")
async def list_executions(
    session: Session,
    state: Annotated[State | None, choice("Filter by state.")] = None,
    schedule: Annotated[str | None, option("NAME", "Filter by schedule.")] = None,
    limit: LimitOption = 50,
    below: BelowOption = None,
) -> None:
    """List executions, newest first."""
    filters = build_filters(state=state, schedule=schedule, limit=limit, below=below)
    await print_list(
        session,
        await session.app.executions.list(**filters),
        {
            "id": "id",
            "state": lambda row, _: styled_state(display_state(row)),
            "schedule": "schedule_name",
            "group": lambda row, _: f"{row['current_group'] + 1} of {row['group_count']}",
            "started": lambda row, now: format_relative(row["started_at"], now),
            "duration": lambda row, now: format_duration((row["ended_at"] or now) - row["started_at"]),
            "by": "initiator_name",
            "outcome": lambda row, _: outcome_text(row),
        },
        noun="executions",
        filters=filters,
        two_line_columns=_two_line_columns(with_schedule_name=True),
        flexible=("state",),
    )


def render_executions(records: Sequence[Record], now: datetime, *, with_schedule_name: bool = True) -> RenderableType:
    """Return a table for a terminal with two lines per execution."""
    columns = _two_line_columns(with_schedule_name=with_schedule_name)
    rows = [[column(each, now) for column in columns.values()] for each in records]
    return two_line_table(list(columns), rows, flexible="state")


def _two_line_columns(*, with_schedule_name: bool) -> dict[str, TwoLineColumn]:
    def name_cell(row: Record, _: datetime) -> tuple[Any, Any]:
        return (row["schedule_name"], row["id"]) if with_schedule_name else (row["id"], f"by {row['initiator_name']}")

    def state_cell(row: Record, _: datetime) -> tuple[Any, Any]:
        state = display_state(row)
        place = "" if state == "completed" else f" {row['current_group'] + 1} of {row['group_count']}"
        name = {"in_progress": "running", "failed": "failed at", "cancelled": "cancelled at"}.get(state, state)
        text = Text(f"{state_symbol(state)} {name}{place}", style=state_colour(state))
        return text, one_line(outcome_text(row) or "", 120)

    def time_cell(row: Record, now: datetime) -> tuple[Any, Any]:
        duration = format_duration((row["ended_at"] or now) - row["started_at"])
        return format_relative(row["started_at"], now), f"took {duration}" if row["ended_at"] else f"{duration} so far"

    return {"execution": name_cell, "state": state_cell, "started": time_cell}


def display_state(execution: Record) -> str:
    """Return the stored state, or ``paused`` or ``stopping``, which the stored state does not distinguish."""
    state = execution_view.execution_state(execution)
    return "in_progress" if state == "running" else state


def outcome_text(execution: Record) -> str | None:
    """Return the error, the operator who cancelled or paused the execution, or the number of failed steps."""
    if execution["error"]:
        return str(execution["error"]).removeprefix("cancelled ")
    if execution["cancelled_at"] is not None:
        reason = f": {execution['cancel_reason']}" if execution.get("cancel_reason") else ""
        return f"by {execution['cancel_name']}{reason}"
    if execution["failed_step_count"]:
        return f"{execution['failed_step_count']} of {execution['step_count']} steps failed"
    if execution["paused_at"] is not None and execution["ended_at"] is None:
        return f"by {execution['paused_by']}"
    return None


@command(executions, "show", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def show_execution(session: Session, execution_id: Id) -> None:
    """Show an execution with all its steps.

    For each step: state, attempt, wait, duration, error, worker and the id of its activity.
    """
    app = session.app
    found = await app.executions.get(await app.executions.find(execution_id))
    why = await app.executions.why(found["id"])
    if session.as_json:
        print_json({**found, "why": task_report.reason_documents(why)})
        return
    now = await session.now()
    print_rich(
        record_heading(display_state(found), found["schedule_name"], found["id"]),
        "",
        name_value_table(*_facts(found, now)),
        *task_report.reasons_section(why, now),
        "",
        _two_line_steps(found) if is_terminal() else _step_table(found),
        *_step_errors(found),
    )


def _facts(found: Record, now: datetime) -> list[tuple[str, Any]]:
    initiator = f"{safe_text(found['initiator_name'])} ({found['initiator_type'].replace('_', ' ')})"
    running = found["ended_at"] is None
    return [
        ("group", f"{found['current_group'] + 1} of {found['group_count']}"),
        ("started", f"{format_with_age(found['started_at'], now)} {_ORIGINS[found['origin']]}, by {initiator}"),
        ("due", format_local_time(found["due_at"]) if found["origin"] == "trigger" else None),
        ("ended", format_with_age(found["ended_at"], now)),
        ("duration", f"{format_duration(found['duration_seconds'])}{' so far' if running else ''}"),
        ("version", f"{found['version']} of the schedule"),
        ("retry of", found["retry_of"]),
        ("step of task", found["parent_task_id"]),
        ("outcome", outcome_text(found)),
    ]


def _step_table(found: Record) -> RenderableType:
    return fitted_table(
        ("group", "step", "state", "attempt", "waited", "ran", "worker", "activity", "error"),
        [
            (
                step["group"] + 1,
                step["name"],
                execution_view.state_text(execution_view.step_state(step, found)),
                step["attempt"] or None,
                "" if step["wait_seconds"] is None else format_duration(step["wait_seconds"]),
                "" if step["duration_seconds"] is None else format_duration(step["duration_seconds"]),
                step["worker"],
                step["activity_id"],
                (_last_error(step, found) or {}).get("message"),
            )
            for step in found["steps"]
        ],
    )


def _two_line_steps(found: Record) -> RenderableType:
    """For a terminal: the step above its activity, the state above the worker, the duration above the wait."""
    width = len(str(found["group_count"]))
    rows: list[list[tuple[Any, Any]]] = []
    previous_group = None
    for step in found["steps"]:
        label = "" if step["group"] == previous_group else str(step["group"] + 1)
        previous_group = step["group"]
        state = execution_view.state_text(execution_view.step_state(step, found))
        if step["attempt"] > 1:
            state.append(f", attempt {step['attempt']}")
        rows.append(
            [
                (Text(f"{label:>{width}} {one_line(step['name'])}"), Text(f"{'':{width}} {step['activity_id'] or ''}")),
                (state, step["worker"]),
                (
                    None if step["duration_seconds"] is None else format_duration(step["duration_seconds"]),
                    None if step["wait_seconds"] is None else f"waited {format_duration(step['wait_seconds'])}",
                ),
            ]
        )
    return two_line_table(("step", "state", "ran"), rows, flexible="state")


def _last_error(step: Record, found: Record) -> Record | None:
    """Return the last error of a step; a step that was not run repeats the error of the failed step, so it has none."""
    return step["last_error"] if execution_view.step_state(step, found) != "not run" else None


def _step_errors(found: Record) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for step in found["steps"]:
        if (error := _last_error(step, found)) is not None:
            title = Text(f"error of {safe_text(step['name'])}, attempt {error['attempt']}", style="bold")
            lines += [Text(""), title, Text(f"  {safe_text(error['message'])}", style="red")]
            lines.append(Text(f"  see: tenuto activity show {error['activity_id']}", style="dim"))
    return lines


# --- watch ----------------------------------------------------------------------------------------------------------


class ExecutionView(LiveView):
    """An execution while it is watched."""

    noun = "execution"
    poll_seconds = 0.2
    size_field = "step_count"
    polled_per_second = 5000

    async def explain(self) -> list[str]:
        reasons = (await self.app.executions.why(self.id)).reasons
        return [f"{reason.step}: {reason.message}" if reason.step else reason.message for reason in reasons]

    def is_over(self, snapshot: Record) -> bool:
        return snapshot["ended_at"] is not None

    def is_idle(self, snapshot: Record) -> bool:
        running = any(execution_view.step_state(step, snapshot) == "running" for step in snapshot["steps"])
        return not running and not self.is_over(snapshot)

    def draw(self, snapshot: Record, width: int, height: int) -> RenderableType:
        return execution_view.render_execution(snapshot, width=width, height=height)

    def changes(self, printed: Record | None, current: Record) -> list[str]:
        return execution_view.describe_changes(printed, current)


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
    waited = 0.0 if wait_started_at is None else monotonic_seconds() - wait_started_at
    ended = await watch(session, ExecutionView(session.app, session.app.executions, id), timeout, waited_seconds=waited)
    state, outcome = ended["state"], outcome_text(ended)
    text = f"{execution_view.symbol(state)} {state}"
    if state != "completed":
        text += f" at group {ended['current_group'] + 1} of {ended['group_count']}"
    text += f" after {format_duration(ended['duration_seconds'])}"
    session.print_message(f"{text}: {outcome}" if outcome else text)
    if state == "completed":
        return exit_codes.OK
    session.print_message(f"  retry it from that group: tenuto execution retry {ended['id']}")
    return exit_codes.FAILED


# --- control --------------------------------------------------------------------------------------------------------


@command(executions, "cancel", "019a8b3c-1d2e", "019a8b3c-1d2e --reason 'wrong file'")
async def cancel_execution(
    session: Session,
    execution_id: Id,
    reason: Annotated[str | None, option("TEXT", "Reason, stored with the execution.")] = None,
) -> None:
    """Cancel an execution: remove the steps that have not started and stop the running ones."""
    with session.as_user() as app:
        id = await app.executions.find(execution_id)
        outcome = await app.executions.cancel(id, reason=reason)
    hints = [] if outcome == "cancelled" else [f"  running steps are being stopped; watch: tenuto execution watch {id}"]
    document = {"id": id, "outcome": outcome, "by": login_name()}
    session.report(document, f"execution {id} cancelled by {login_name()}", *hints)


@command(executions, "pause", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def pause_execution(session: Session, execution_id: Id) -> None:
    """Pause an execution: start no more of its steps.

    Running steps continue, including child executions that run as a step.
    """
    with session.as_user() as app:
        id = await app.executions.find(execution_id)
        await app.executions.pause(id)
    message = f"execution {id} paused by {login_name()}; resume with: tenuto execution resume {id}"
    session.report(await app.executions.get(id), message)


@command(executions, "resume", "019a8b3c-1d2e", "019a8b3c-1d2e -o json")
async def resume_execution(session: Session, execution_id: Id) -> None:
    """Resume a paused execution."""
    with session.as_user() as app:
        id = await app.executions.find(execution_id)
        await app.executions.resume(id)
    session.report(await app.executions.get(id), f"execution {id} resumed by {login_name()}")


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
    return session.report(
        {"id": new_id, "retry_of": id}, f"watch it with: tenuto execution watch {new_id}", result=new_id
    )
