"""``tenuto schedule``: list, show, create, change, enable, disable, delete and run schedules."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from shlex import quote
from typing import Annotated, Any
from uuid import UUID

from rich.console import RenderableType
from rich.text import Text

from tenuto.app import Tenuto
from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.definitions.definition_commands import DefinitionResource, definition_heading, origin_facts
from tenuto.cli.definitions.definition_options import (
    SCHEDULE_OPTIONS,
    TRIGGER_OPTIONS,
    build_schedule,
    build_trigger,
    change_schedule,
    translate_schedule_errors,
)
from tenuto.cli.definitions.step_syntax import parse_overrides
from tenuto.cli.lists import build_filters, limit, print_page, take_filter
from tenuto.cli.option_parsing import missing_option, require_wait, translate_error_fields
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.cli.tables import (
    name_value_table,
    print_rich,
    render_table,
    section_title,
    titled_diff,
    upcoming_runs_table,
)
from tenuto.cli.work.bulk_operations import watch_operation
from tenuto.cli.work.executions import watch_execution
from tenuto.cli.work.task_report import reason_lines
from tenuto.clock import SystemClock, monotonic_seconds
from tenuto.diagnostics.reasons import ReasonCode
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.filter_keys import LEDGER_KEYS
from tenuto.model.triggers.field_parser import parse_instant
from tenuto.model.work.occurrences import Decision
from tenuto.operations.definitions.schedule_checks import explain_trigger
from tenuto.presentation import definition_views, descriptions
from tenuto.presentation.columns import json_value
from tenuto.presentation.descriptions import format_in_zone
from tenuto.presentation.text_formats import format_local_time, format_relative
from tenuto.presentation.work_views import EXECUTIONS
from tenuto.store.definitions.schedules import Schedule

_GROUP_EXAMPLES = ("list", "add nightly --cron '0 2 * * *' --step import_hr --step sync --app tasks:app")
schedules = group("schedule", "Create, inspect, change and run schedules.", *_GROUP_EXAMPLES)

NAME = argument("NAME", "Name of the schedule.")
_OVERRIDES = option(
    "STEP.ARGUMENT=VALUE", "Argument of a step: JSON or text; may be repeated.", "--set", type=list[str]
)
_ANNOUNCED_RUN_COUNT = 3
_NEXT_RUN_COUNT = 5
_LAST_RUN_COUNT = 5
_POLL_SECONDS = 0.3
_LAST_RUN_COLUMNS = [replace(column, under="") for column in EXECUTIONS.columns if column.name != "schedule"]


async def _print_next_runs(session: Session, schedule: Schedule) -> None:
    now = await session.now()
    if not schedule.enabled:
        session.print_message(f"it is disabled; enable it with: tenuto schedule enable {quote(schedule.name)}")
        return
    for number, instant in enumerate(preview_runs(schedule, now, _ANNOUNCED_RUN_COUNT)):
        label = "next" if number == 0 else "then"
        session.print_message(f"  {label} {format_in_zone(instant)} ({format_relative(instant, now)})")


async def _create(session: Session, name: str, options: dict[str, Any], **settings: Any) -> Schedule:
    new = build_schedule(name, options)
    with session.as_user() as app, translate_schedule_errors():
        return await app.schedules.create(new, **settings)


async def _change(session: Session, before: Schedule, options: dict[str, Any], **settings: Any) -> Schedule:
    new = change_schedule(before.definition, options)
    with session.as_user() as app, translate_schedule_errors(renamed=True, arguments=bool(options["arguments"])):
        return await app.schedules.edit(before.name, new, **settings)


async def _compare_runs(
    session: Session, before: Schedule, after: Schedule
) -> tuple[dict[str, Any], list[RenderableType]]:
    now = await session.now()
    old, new = preview_runs(before, now), preview_runs(after, now)
    lines = ["unchanged"]
    if old != new:
        lines = descriptions.compare_runs(before.trigger, old, after.trigger, new, str(after.id))
    disabled = [] if after.enabled else [Text("  (it is disabled)", style="dim")]
    return {"next_runs_before": old, "next_runs": new}, [*titled_diff("next runs", lines, style="bold"), *disabled]


SCHEDULES = DefinitionResource[Schedule](
    group=schedules,
    noun="schedule",
    key=NAME,
    key_field="name",
    example="nightly",
    operations=lambda app: app.schedules,
    print_next_runs=_print_next_runs,
    create=_create,
    change=_change,
    compare_runs=_compare_runs,
    options=SCHEDULE_OPTIONS,
    add_options={},
    edit_options={"arguments": _OVERRIDES, "rename": option("NAME", "New name of the schedule.")},
    texts={
        "add": """Create a schedule with a trigger and steps.

Steps run one after the other; steps separated by a comma run in parallel. --app names the app that defines the
jobs.""",
        "edit": """Change the given options of a schedule.

`none` removes the value of --between, --on, --start, --end or --exclude. --step replaces all steps. Prints the
difference and its effect on the next runs. Active executions keep their definition.""",
        "delete": "Delete a schedule that has no active execution; its executions, ledger and history remain.",
        "list": "List schedules by name with their next run and the state of the last one.",
    },
    view=definition_views.SCHEDULES,
    list_filters={"search": option("TEXT", "Filter by text in the name.")},
    list_example="--search hr --off -o json",
    add_examples=(
        "nightly --cron '0 2 * * *' --zone Europe/London --step import_hr --step sync",
        "fetch --every 15m --between 22:00-06:00 --on mon-fri --step 'fetch:{\"pages\": 5}'",
        "export --at 06:00,18:30 --on mon-fri --step 'to_ad, to_ldap continue_on_failure'",
        "both --manual --step 'nightly kind=schedule' --step '\"Last one\" kind=schedule'",
    ),
    edit_examples=(
        "nightly --cron '30 3 * * *' --reason 'the backup runs at two'",
        "nightly --set import_hr.pages=10 --overlap queue_one --end none",
    ),
)
SCHEDULES.add_commands()


@command(
    schedules,
    "explain",
    "--every 15m --between 22:00-06:00 --on mon-fri",
    "--at 06:00,18:30 --zone Europe/London -n 10 -o json",
    shared=("output", "quiet"),
    options={name: SCHEDULE_OPTIONS[name] for name in TRIGGER_OPTIONS},
)
def explain_trigger_options(
    session: Session,
    count: Annotated[int, option("N", "Number of runs.", "--count", "-n", min=1, max=1000)] = 5,
    **options: Any,
) -> None:
    """Describe a trigger and show its next runs and the clock changes of a year, or name its invalid option.

    Nothing is saved, and no database is needed. `tenuto cron explain` does it for a cron line alone.
    """
    now = SystemClock().now()
    found = explain_trigger(build_trigger(None, options), now, count)
    if session.as_json:
        print_json(json_value(found))
        return
    zone = found.zone or "UTC"
    changes = [f"{format_in_zone(each.at, zone)}: {each.message}" for each in found.clock_changes]
    parts: list[RenderableType] = [found.description]
    if found.next_runs:
        parts += ["", upcoming_runs_table(found.next_runs, zone, now)]
    if changes:
        parts += [*section_title("Clock changes"), *changes]
    print_rich(*parts)


@command(schedules, "show", "nightly", "'Nightly HR Sync' -o json")
async def show_schedule(session: Session, name: Annotated[str, NAME]) -> None:
    """Show a schedule with its policies, next runs, steps, last executions and last change."""
    app = session.app
    found = await SCHEDULES.get(app, name)
    last = await app.executions.list(schedule=name, limit=_LAST_RUN_COUNT)
    change, now = await SCHEDULES.last_change(app, found), await session.now()
    runs = preview_runs(found, now)
    if session.as_json:
        details = {"next_runs": runs, "last_executions": last, "last_change": SCHEDULES.version_document(change)}
        print_json({**SCHEDULES.document(found), **details})
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
        parts.append(upcoming_runs_table(runs, _time_zone(found), now))
    else:
        parts.append("  manual runs only" if definition.trigger.kind == "manual" else "  none within eight years")
    if runs and not found.enabled:
        parts.append("  (if it were enabled)")
    steps = [(f"  {label}", step) for label, step in descriptions.describe_steps(found.plan.to_fields())]
    parts += [*section_title("steps"), name_value_table(*steps)]
    if last:
        parts += [*section_title("last runs"), render_table(_LAST_RUN_COLUMNS, last, now)]
    print_rich(*parts)


@command(schedules, "why", "nightly", "'Nightly HR Sync' -o json")
async def explain_schedule(session: Session, name: Annotated[str, NAME]) -> None:
    """Explain why a schedule does not run, or when it will.

    The reasons that hold it now come first, each with the command that helps.
    """
    found = await SCHEDULES.get(session.app, name)
    why = await session.app.schedules.why(found.name)
    if session.as_json:
        print_json(why)
        return
    print_rich(*definition_heading(found), *reason_lines(why, await session.now()))


async def _describe_firing(app: Tenuto) -> str:
    """Say whether a scheduler is alive that will fire the due schedule."""
    services = await app.workers()
    if any(service.service == "scheduler" and service.state == "alive" for service in services):
        return "a scheduler will fire it"
    return "no scheduler is alive; start one with `tenuto scheduler` or `tenuto up`"


def preview_runs(found: Schedule, now: datetime, count: int = _NEXT_RUN_COUNT) -> list[datetime]:
    """Return the next runs, as if the schedule were enabled."""
    return found.definition.trigger.preview(now, count, str(found.id))


def _time_zone(found: Schedule) -> str:
    return str(found.definition.trigger.to_fields().get("zone", "UTC"))


@command(schedules, "next", "nightly", "nightly 20 -o json")
async def show_next_runs(
    session: Session,
    name: Annotated[str, NAME],
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
        print_rich(upcoming_runs_table(runs, _time_zone(found), now))
    else:
        is_manual = found.definition.trigger.kind == "manual"
        session.print_message("it has manual runs only" if is_manual else "it has no further run")


_LEDGER_KEY_NAMES = ", ".join(key.name for key in LEDGER_KEYS.keys)


@command(
    schedules,
    "ledger",
    "nightly --decision skipped",
    "--where 'decision:skipped,missed due:>7d' -o json",
    is_list=True,
    options={
        "where": option("FILTER", f"Filter such as 'decision:skipped due:>7d'. Keys: {_LEDGER_KEY_NAMES}."),
        "decision": choice("Filter by decision.", Decision),
        "before": option("INSTANT", "Filter by due time before this instant, e.g. 2031-05-17T12:00:00Z."),
        "below": option("ID", "Pagination cursor: the id of the last row shown; use with --before."),
        "limit": limit(50),
    },
)
async def show_ledger(
    session: Session,
    name: Annotated[str | None, argument("[NAME]", "Name of the schedule. (default: all)")] = None,
    **options: Any,
) -> None:
    """Show the occurrence ledger, newest first: for each due instant the decision, its reason, time and author."""
    where = await take_filter(session, LEDGER_KEYS, options)
    filters = build_filters(options)
    if "below" in filters and "before" not in filters:
        remedy = "add --before with the due time of that row; the hint below a full page has both"
        raise missing_option("--below", "--before", remedy)
    if "before" in filters:
        filters["before"] = parse_instant(filters["before"], field="--before")
    async with SCHEDULES.suggesting_names(session.app, name or ""):
        found = await session.app.schedules.ledger(name, where=where, **filters)
    await print_page(session, definition_views.LEDGER, found, filters)
    if name is not None and "before" not in filters and (await SCHEDULES.get(session.app, name)).enabled:
        for reason in (await session.app.schedules.why(name)).reasons:
            if reason.code is ReasonCode.DUE:
                session.print_message(reason.message)


@command(schedules, "run", "nightly --wait", "nightly --set import_hr.pages=1 --app tasks:app")
async def run_schedule(
    session: Session,
    name: Annotated[str, NAME],
    arguments: Annotated[list[str] | None, _OVERRIDES] = None,
    wait: Annotated[bool, flag("Wait for the end; exit code 1 unless the execution completed.", "--wait")] = False,
    timeout: Annotated[float | None, option("SECONDS", "With --wait: maximum time to wait.", min=0)] = None,
) -> int:
    """Run a schedule now, and print the id of the execution.

    The overlap policy applies if an execution is active: a rejected run ends with exit code 7 and the reason, a queued
    run is reported. --set applies to this run only, and needs --app to name the app that defines the jobs.
    """
    require_wait(timeout, wait=wait)
    request_id, overrides = new_id(), parse_overrides(arguments)
    if overrides:
        session.require_app()  # the arguments are checked by the jobs
    with session.as_user() as app:
        with translate_error_fields({"steps.": "--set {}"}, otherwise="--set {}"):
            async with SCHEDULES.suggesting_names(app, name):
                started = await app.schedules.run(name, arguments=overrides, request_id=request_id)
        if started.decision in ("skipped", "coalesced", "missed"):
            raise _rejection(name, started.reason)
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


@command(
    schedules,
    "backfill",
    "nightly --from 2031-05-01 --to 2031-05-31 --parallel 4",
    "nightly --from 2031-05-01T00:00:00Z --to 2031-05-02T12:00:00Z --preview -o json",
)
async def backfill_schedule(
    session: Session,
    name: Annotated[str, NAME],
    start: Annotated[str, option("INSTANT", "First due time: an instant, or a date in the schedule's zone.", "--from")],
    end: Annotated[str, option("INSTANT", "Last due time: an instant, or a date, whose whole day counts.", "--to")],
    parallel: Annotated[int, option("N", "Number of executions that may run at a time.", min=1, max=1000)] = 1,
    preview: Annotated[bool, flag("List the due times without a run, and change nothing.", "--preview")] = False,
    reason: Annotated[str | None, option("TEXT", "Reason, stored with the backfill.")] = None,
    wait: Annotated[bool, flag("Wait until all executions have ended; exit code 1 if some failed.", "--wait")] = False,
    timeout: Annotated[float | None, option("SECONDS", "With --wait: maximum time to wait.", min=0)] = None,
) -> int:
    """Run a schedule for past due times that have no run, and print the id of the bulk operation.

    Schedulers start the executions, oldest first. Due times that have a run are left out. Pause, resume, abort and
    watch it with `tenuto operation`.
    """
    require_wait(timeout, wait=wait)
    with session.as_user() as app, translate_error_fields({"start": "--from", "end": "--to"}):
        async with SCHEDULES.suggesting_names(app, name):
            if preview:
                found = await app.schedules.preview_backfill(name, start, end)
                if session.as_json:
                    print_json(found)
                    return exit_codes.OK
                for instant in found.instants:
                    print_rich(format_in_zone(instant))
                session.print_message(f"{len(found.instants):,} runs; {found.existing_count:,} due times have a run")
                return exit_codes.OK
            started = await app.schedules.backfill(name, start, end, parallel=parallel, reason=reason)
    if wait:
        return await watch_operation(session, started, timeout)
    hint = f"{started.item_count:,} runs; watch it with: tenuto operation watch {started.id}"
    return session.report(started, hint, result=started.id)


async def _wait_until_started(app: Tenuto, name: str, request_id: UUID, timeout: float | None, began: float) -> UUID:
    """Wait until a queued run starts, and return its execution id.

    A repeated call with the same request id returns the current decision; it never starts a second run.
    """
    while True:
        asked = await app.schedules.run(name, request_id=request_id)
        if asked.execution_id is not None:
            return asked.execution_id
        if asked.decision != "queued":
            raise _rejection(name, asked.reason)
        if timeout is not None and monotonic_seconds() > began + timeout:
            problem = f"the queued run of schedule {name!r} has not started after {timeout:g} s"
            remedy = "wait longer; the run stays queued"
            raise Conflict(problem, code="schedule.run.wait_timeout", remedy=remedy)
        await asyncio.sleep(_POLL_SECONDS)


def _rejection(name: str, reason: str | None) -> Conflict:
    remedy = f"list active executions: tenuto execution list --schedule {quote(name)} --state in_progress"
    return Conflict(f"schedule {name!r} was not run: {reason}", code="schedule.run.rejected", remedy=remedy)
