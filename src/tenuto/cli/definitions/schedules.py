"""``tenuto schedule``: list, show, create, change, enable, disable, delete and run schedules."""

from __future__ import annotations

import asyncio
from datetime import datetime
from shlex import quote
from typing import Annotated, Any, Literal
from uuid import UUID

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tenuto.app import Tenuto
from tenuto.cli import descriptions
from tenuto.cli.command import Session, command, group
from tenuto.cli.definitions.definition_commands import (
    DefinitionResource,
    ReasonOption,
    definition_heading,
    enabled_label,
    origin_facts,
    section_title,
)
from tenuto.cli.definitions.definition_options import (
    SCHEDULE_OPTIONS,
    build_schedule,
    change_schedule,
    translate_schedule_errors,
)
from tenuto.cli.definitions.step_syntax import parse_overrides
from tenuto.cli.descriptions import format_in_zone
from tenuto.cli.formatting import format_duration, format_local_time, format_relative
from tenuto.cli.option_parsing import LimitOption, build_filters, missing_option, require_wait, translate_error_fields
from tenuto.cli.output import (
    Record,
    name_value_table,
    print_json,
    print_list,
    print_rich,
    state_colour,
    state_symbol,
    styled_state,
)
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.work.executions import render_executions, watch_execution
from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.triggers.parsing import parse_instant
from tenuto.store.schedules import Schedule

schedules = group(
    "schedule",
    "Create, inspect, change and run schedules.",
    "list",
    "add nightly --cron '0 2 * * *' --step import_hr --step sync --app tasks:app",
)

DecisionName = Literal["fired", "queued", "coalesced", "skipped", "missed"]
ScheduleName = Annotated[str, argument("NAME", "Name of the schedule.")]
ArgumentOverrides = Annotated[
    list[str] | None,
    option("STEP.ARGUMENT=VALUE", "New value for an argument of a step: JSON or text. May be repeated.", "--set"),
]
_ANNOUNCED_RUN_COUNT = 3
_NEXT_RUN_COUNT = 5
_LAST_RUN_COUNT = 5
_POLL_SECONDS = 0.3


async def _print_next_runs(session: Session, schedule: Schedule) -> None:
    now = await session.now()
    if not schedule.enabled:
        session.print_message(f"it is disabled; enable it with: tenuto schedule enable {quote(schedule.name)}")
        return
    for number, instant in enumerate(preview_runs(schedule, now, _ANNOUNCED_RUN_COUNT)):
        label = "next" if number == 0 else "then"
        session.print_message(f"  {label} {format_in_zone(instant)} ({format_relative(instant, now)})")


SCHEDULES = DefinitionResource[Schedule](
    "schedule", "name", lambda app: app.schedules, lambda definition: definition.trigger.describe(), _print_next_runs
)


# --- list -------------------------------------------------------------------------------------------------------


@command(schedules, "list", "", "--search hr --off -o json")
async def list_schedules(
    session: Session,
    on: Annotated[bool | None, flag("Filter by enabled or disabled.", "--on/--off")] = None,
    search: Annotated[str | None, option("TEXT", "Filter by text in the name.")] = None,
    limit: LimitOption = 100,
    after: Annotated[str | None, option("NAME", "Pagination cursor: the last name shown.")] = None,
) -> None:
    """List schedules by name with their next run and the state of the last one."""
    filters = build_filters(after=after, enabled=on, search=search, limit=limit)
    found = await session.app.schedules.list(**filters)
    await print_list(
        session,
        [{**row, "when": descriptions.describe_trigger(row["trigger"])} for row in found],
        {
            "name": "name",
            "state": _enabled,
            "when": "when",
            "next run": _next_run,
            "at": _next_run_time,
            "last run": _last_run,
            "ended": _last_run_age,
        },
        two_line_columns={
            "schedule": lambda row, _: (row["name"], row["when"]),
            "state": lambda row, now: (_enabled(row, now), None),
            "next run": lambda row, now: (_next_run(row, now), _next_run_time(row, now)),
            "last run": lambda row, now: (_last_run(row, now), _last_run_age(row, now)),
        },
        flexible=("schedule",),
        noun="schedules",
        hint=SCHEDULES.empty_list_hint(session.app),
        filters=filters,
        next_page="--after",
        cursor="name",
    )


def _enabled(row: Record, _: datetime) -> Text:
    return enabled_label(enabled=row["enabled"])


def _next_run(row: Record, now: datetime) -> str:
    if not row["enabled"]:
        return "none"
    if row["trigger"].get("kind") == "manual":
        return "manual"
    if row["next_run_at"] is None:
        return "no further run" if row["planned"] else "being planned"
    return "due" if row["next_run_at"] <= now else format_relative(row["next_run_at"], now)


def _next_run_time(row: Record, _: datetime) -> str | None:
    if row["next_run_at"] is None or not row["enabled"]:
        return None
    return str(row["next_run_at"].astimezone().strftime("%a %d %b %H:%M %Z"))


def _last_run(row: Record, _: datetime) -> Text:
    state = row["last_state"]
    if state is None:
        return Text("never ran", style="dim")
    return Text(f"{state_symbol(state)} {describe_last_run(row)}", style=state_colour(state))


def _last_run_age(row: Record, now: datetime) -> str | None:
    if row["last_state"] is None:
        return None
    return format_relative(row["last_ended_at"] or row["last_started_at"], now)


def describe_last_run(row: Record) -> str:
    """Describe the state of the last execution, with its step group."""
    place = f"{row['last_group'] + 1} of {row['last_groups']}"
    match row["last_state"]:
        case "in_progress":
            return f"running {place}"
        case "completed":
            failed = row["last_failed_steps"]
            return f"completed, {failed} step{'s' if failed > 1 else ''} failed" if failed else "completed"
        case state:
            return f"{state} at {place}"


# --- one schedule ---------------------------------------------------------------------------------------------------


@command(schedules, "show", "nightly", "'Nightly HR Sync' -o json")
async def show_schedule(session: Session, name: ScheduleName) -> None:
    """Show a schedule with its policies, next runs, steps, last executions and last change."""
    app = session.app
    found = await SCHEDULES.get(app, name)
    last = await app.executions.list(schedule=name, limit=_LAST_RUN_COUNT)
    change, now = await SCHEDULES.last_change(app, found), await session.now()
    runs = preview_runs(found, now)
    if session.as_json:
        change_document = SCHEDULES.version_document(change)
        print_json(
            {**SCHEDULES.document(found), "next_runs": runs, "last_executions": last, "last_change": change_document}
        )
        return
    definition = found.definition
    facts = [
        ("when", definition.trigger.describe()),
        ("overlap", descriptions.describe_overlap(definition.overlap)),
        ("missed runs", descriptions.describe_misfire(definition.misfire.to_fields())),
        *origin_facts(found, change, now),
    ]
    parts = [*definition_heading(found), name_value_table(*facts), *section_title("next runs")]
    if found.enabled and found.next_run_at is not None and found.next_run_at <= now:
        parts.append(f"  due since {format_local_time(found.next_run_at)}: {await _describe_firing(app)}")
    if runs:
        parts.append(descriptions.upcoming_runs_table(runs, _time_zone(found), now))
    else:
        parts.append("  manual runs only" if definition.trigger.kind == "manual" else "  none within eight years")
    if runs and not found.enabled:
        parts.append("  (if it were enabled)")
    parts += [*section_title("steps"), steps_table(found)]
    if last:
        parts += [*section_title("last runs"), render_executions(last, now, with_schedule_name=False)]
    print_rich(*parts)


async def _describe_firing(app: Tenuto) -> str:
    """Say whether a scheduler is alive that will fire the due schedule."""
    services = await app.workers()
    if any(service["service"] == "scheduler" and service["state"] == "alive" for service in services):
        return "a scheduler will fire it"
    return "no scheduler is alive; start one with `tenuto scheduler` or `tenuto up`"


def steps_table(found: Schedule) -> RenderableType:
    """Return a table of the steps; a bracket joins the steps of a group."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, step in descriptions.describe_steps(found.plan.to_fields()):
        grid.add_row(Text(f"  {label}"), Text(step))
    return grid


def preview_runs(found: Schedule, now: datetime, count: int = _NEXT_RUN_COUNT) -> list[datetime]:
    """Return the next runs, as if the schedule were enabled."""
    return found.definition.trigger.preview(now, count, str(found.id))


def _time_zone(found: Schedule) -> str:
    return str(found.definition.trigger.to_fields().get("zone", "UTC"))


@command(schedules, "next", "nightly", "nightly 20 -o json")
async def show_next_runs(
    session: Session,
    name: ScheduleName,
    count: Annotated[int, argument("N", "Number of runs.", min=1, max=1000)] = _NEXT_RUN_COUNT,
) -> None:
    """Show the next runs of a schedule in its time zone and in local time, even if it is disabled."""
    found, now = await SCHEDULES.get(session.app, name), await session.now()
    runs = preview_runs(found, now, count)
    if session.as_json:
        print_json(runs)
        return
    if not found.enabled:
        session.print_message(f"schedule {name} is disabled; if it were enabled:")
    if runs:
        print_rich(descriptions.upcoming_runs_table(runs, _time_zone(found), now))
    else:
        session.print_message(
            "it has manual runs only" if found.definition.trigger.kind == "manual" else "it has no further run"
        )


@command(schedules, "history", "nightly", "nightly --limit 5")
async def show_history(session: Session, name: ScheduleName, limit: LimitOption = 20) -> None:
    """Show all changes of a schedule with author, time, reason and difference, even if it was deleted."""
    await SCHEDULES.print_history(session, name, limit)


@command(schedules, "ledger", "nightly", "nightly --decision skipped", "--limit 200 -o json")
async def show_ledger(
    session: Session,
    name: Annotated[str | None, argument("[NAME]", "Name of the schedule. (default: all)")] = None,
    decision: Annotated[DecisionName | None, choice("Filter by decision.")] = None,
    before: Annotated[
        str | None, option("INSTANT", "Filter by due time before this instant, e.g. 2031-05-17T12:00:00Z.")
    ] = None,
    below: Annotated[
        str | None, option("ID", "Pagination cursor: the id of the last row shown; use with --before.")
    ] = None,
    limit: LimitOption = 50,
) -> None:
    """Show the occurrence ledger, newest first: for each due instant the decision, its reason, time and author."""
    if below is not None and before is None:
        remedy = "add --before with the due time of that row; the hint below a full page has both"
        raise missing_option("--below", "--before", remedy)
    until = None if before is None else parse_instant(before, field="--before")
    async with SCHEDULES.suggesting_names(session.app, name or ""):
        found = await session.app.schedules.ledger(
            name, before=until, decision=decision, **build_filters(below=below, limit=limit)
        )
    await print_list(
        session,
        found,
        {
            "due": lambda row, _: format_local_time(row["due_at"]),
            "until": lambda row, _: format_local_time(row["until"]),
            "schedule": "schedule_name",
            "decision": lambda row, _: styled_state(row["decision"]),
            "reason": lambda row, _: _decision_reason(row),
            "decided": lambda row, _: format_local_time(row["decided_at"]),
            "by": "decided_by",
            "execution": "execution_id",
        },
        two_line_columns={
            "due": lambda row, _: (
                format_local_time(row["due_at"]),
                "" if row["until"] is None else f"up to {format_local_time(row['until'])}",
            ),
            "decision": lambda row, _: (styled_state(row["decision"]), _decision_reason(row)),
            "execution": lambda row, _: (
                row["execution_id"] or "no execution",
                _decision_note(row, with_schedule=name is None),
            ),
        },
        flexible=("decision",),
        noun="occurrences",
        filters={"decision": decision, "before": before},
    )
    if len(found) == limit and not session.as_json:
        session.print_message(
            f"there may be more: add --before {found[-1]['due_at'].isoformat()} --below {found[-1]['id']}"
        )


def _decision_reason(row: Record) -> str | None:
    if row["origin"] == "manual":
        return f"manual run: {row['reason']}" if row["reason"] else "manual run"
    return row["reason"] or None


def _decision_note(row: Record, *, with_schedule: bool) -> str:
    late = row["decided_at"] - row["due_at"]
    note = f"{format_duration(late)} later, " if row["origin"] == "trigger" and late.total_seconds() >= 1 else ""
    schedule = f"{row['schedule_name']}, " if with_schedule else ""
    return f"{schedule}{note}by {row['decided_by']}"


# --- create and change --------------------------------------------------------------------------------------------


@command(
    schedules,
    "add",
    "nightly --cron '0 2 * * *' --zone Europe/London --step import_hr --step sync",
    "fetch --every 15m --between 22:00-06:00 --on mon-fri --step 'fetch:{\"pages\": 5}'",
    "export --at 06:00,18:30 --on mon-fri --step 'to_ad, to_ldap continue_on_failure'",
    "both --manual --step 'nightly kind=schedule' --step '\"Last one\" kind=schedule'",
    options=SCHEDULE_OPTIONS,
)
async def add_schedule(
    session: Session,
    name: ScheduleName,
    disabled: Annotated[bool, flag("Create the schedule disabled.", "--disabled")] = False,
    reason: ReasonOption = None,
    **options: Any,
) -> None:
    """Create a schedule with a trigger and steps.

    Steps run one after the other; steps separated by a comma run in parallel. --app names the app that defines the
    jobs.
    """
    new = build_schedule(name, options)
    with session.as_user() as app, translate_schedule_errors():
        created = await app.schedules.create(new, enabled=not disabled, reason=reason)
    await SCHEDULES.report_created(session, created)


@command(
    schedules,
    "edit",
    "nightly --cron '30 3 * * *' --reason 'the backup runs at two'",
    "nightly --set import_hr.pages=10 --overlap queue_one --end none",
    options=SCHEDULE_OPTIONS,
)
async def edit_schedule(
    session: Session,
    name: ScheduleName,
    arguments: ArgumentOverrides = None,
    rename: Annotated[str | None, option("NAME", "New name of the schedule.")] = None,
    reason: ReasonOption = None,
    **options: Any,
) -> None:
    """Change the given options of a schedule.

    `none` removes the value of --between, --on, --start, --end or --exclude. --step replaces all steps. Prints the
    difference and its effect on the next runs. Active executions keep their definition.
    """
    with session.as_user() as app:
        before = await SCHEDULES.get(app, name)
        new = change_schedule(before.definition, {**options, "arguments": arguments, "rename": rename})
        with translate_schedule_errors(renamed=True, arguments=bool(arguments)):
            after = await app.schedules.edit(name, new, reason=reason, version=before.version)
    now = await session.now()
    old_runs, new_runs = preview_runs(before, now), preview_runs(after, now)
    document = {"next_runs_before": old_runs, "next_runs": new_runs}
    SCHEDULES.report_edited(session, before, after, document, _run_changes(before, old_runs, after, new_runs))


def _run_changes(
    before: Schedule, old_runs: list[datetime], after: Schedule, new_runs: list[datetime]
) -> list[RenderableType]:
    """Return the effect of a change on the next runs as lines."""
    lines = descriptions.compare_runs(before.trigger, old_runs, after.trigger, new_runs, str(after.id))
    if old_runs == new_runs:
        lines = ["unchanged"]
    disabled = [] if after.enabled else [Text("  (it is disabled)", style="dim")]
    return [*descriptions.titled_diff("next runs", lines, style="bold"), *disabled]


@command(schedules, "enable", "nightly", "nightly --reason 'moved to the new server'")
async def enable_schedule(session: Session, name: ScheduleName, reason: ReasonOption = None) -> None:
    """Enable a schedule from now on; runs missed while it was disabled are not made up."""
    await SCHEDULES.set_enabled(session, name, reason, enabled=True)


@command(schedules, "disable", "nightly", "nightly --reason 'moved to the new server'")
async def disable_schedule(session: Session, name: ScheduleName, reason: ReasonOption = None) -> None:
    """Disable a schedule; active executions continue, and manual runs remain possible."""
    await SCHEDULES.set_enabled(session, name, reason, enabled=False)


@command(schedules, "delete", "nightly", "nightly --reason 'moved to the new server'")
async def delete_schedule(session: Session, name: ScheduleName, reason: ReasonOption = None) -> None:
    """Delete a schedule that has no active execution; its executions, ledger and history remain.

    A schedule that is declared in code or in a file is created again, enabled, by the next start or apply. Disable it
    instead.
    """
    await SCHEDULES.delete(session, name, reason)


# --- run --------------------------------------------------------------------------------------------------------


@command(schedules, "run", "nightly --wait", "nightly --set import_hr.pages=1 --app tasks:app")
async def run_schedule(
    session: Session,
    name: ScheduleName,
    arguments: ArgumentOverrides = None,
    wait: Annotated[bool, flag("Wait for the end; exit 1 unless the execution completed.", "--wait")] = False,
    timeout: Annotated[float | None, option("SECONDS", "With --wait: maximum time to wait.", min=0)] = None,
) -> int:
    """Run a schedule now, and print the id of the execution.

    The overlap policy applies if an execution is active: a rejected run ends with exit code 7 and the reason, a queued
    run is reported. --set applies to this run only, and needs --app to name the app that defines the jobs.
    """
    require_wait(timeout, wait=wait)
    request_id = new_id()
    with session.as_user() as app:
        overrides = parse_overrides(arguments)
        with translate_error_fields({"steps.": "--set {}"}, otherwise="--set {}"):
            async with SCHEDULES.suggesting_names(app, name):
                started = await app.schedules.run(name, arguments=overrides, request_id=request_id)
        if started.decision in ("skipped", "coalesced", "missed"):
            raise Conflict(
                f"schedule {name!r} was not run: {started.reason}",
                code="schedule.run.rejected",
                remedy=f"list active executions: tenuto execution list --schedule {quote(name)} --state in_progress",
            )
        execution_id, began = started.execution_id, monotonic_seconds()
        if wait and execution_id is None:
            session.print_message(f"queued: {started.reason}")
            execution_id = await _wait_until_started(app, name, request_id, timeout, began)
    if wait and execution_id is not None:
        return await watch_execution(session, execution_id, timeout, began)
    document = {"execution_id": execution_id, "decision": started.decision, "reason": started.reason}
    if execution_id is None:
        return session.report(document, f"queued: {started.reason}")
    return session.report(document, f"follow it with: tenuto execution watch {execution_id}", result=execution_id)


async def _wait_until_started(app: Tenuto, name: str, request_id: UUID, timeout: float | None, began: float) -> UUID:
    """Wait until a queued run starts, and return its execution id.

    A repeated call with the same request id returns the current decision; it never starts a second run.
    """
    while True:
        asked = await app.schedules.run(name, request_id=request_id)
        if asked.execution_id is not None:
            return asked.execution_id
        if asked.decision != "queued":
            raise Conflict(
                f"schedule {name!r} was not run: {asked.reason}",
                code="schedule.run.rejected",
                remedy=f"tenuto schedule ledger {quote(name)}",
            )
        if timeout is not None and monotonic_seconds() > began + timeout:
            raise Conflict(
                f"the queued run of schedule {name!r} has not started after {timeout:g} s",
                code="schedule.run.wait_timeout",
                remedy="wait longer; the run stays queued",
            )
        await asyncio.sleep(_POLL_SECONDS)
