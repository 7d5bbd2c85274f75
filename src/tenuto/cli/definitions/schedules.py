"""``tenuto schedule``: make and change schedules, switch them on and off, run them. Looking at them is next door."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.definitions import definition_views, schedule_history, schedule_views
from tenuto.cli.definitions.definition_views import say_if_made_again
from tenuto.cli.definitions.schedule_options import with_options
from tenuto.cli.formatting import ago
from tenuto.cli.option_parsing import by_option

if TYPE_CHECKING:
    from uuid import UUID

    from tenuto.app import Tenuto
    from tenuto.store.schedules import Schedule

Name = schedule_history.Name
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for whoever wonders.")]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="STEP.ARGUMENT=VALUE",
        help="Another value for an argument of a step: JSON, or else text. Give it several times for several.",
    ),
]
_SHOWN = 3


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    schedules = group(
        root,
        "schedule",
        "Make schedules, look at them, change and run them.",
        "tenuto schedule list",
        "tenuto schedule add nightly --cron '0 2 * * *' --step import_hr --step sync --app tasks:app",
    )
    command(
        schedules,
        "add",
        "tenuto schedule add nightly --cron '0 2 * * *' --zone Europe/London --step import_hr --step sync",
        "tenuto schedule add fetch --every 15m --between 22:00-06:00 --on mon-fri --step 'fetch:{\"pages\": 5}'",
        "tenuto schedule add export --at 06:00,18:30 --on mon-fri --step 'to_ad, to_ldap continue_on_failure'",
        "tenuto schedule add both --manual --step 'nightly kind=schedule' --step '\"Last one\" kind=schedule'",
    )(add_schedule)
    command(
        schedules,
        "edit",
        "tenuto schedule edit nightly --cron '30 3 * * *' --reason 'the backup runs at two'",
        "tenuto schedule edit nightly --set import_hr.pages=10 --overlap queue_one --end none",
    )(edit_schedule)
    schedule_views.add_to(schedules)
    schedule_history.add_to(schedules)
    for word, function in (("enable", enable), ("disable", disable), ("delete", delete)):
        command(
            schedules,
            word,
            f"tenuto schedule {word} nightly",
            f"tenuto schedule {word} nightly --reason 'moved to the new server'",
        )(function)
    command(
        schedules,
        "run",
        "tenuto schedule run nightly --wait",
        "tenuto schedule run nightly --set import_hr.pages=1 --app tasks:app",
    )(run_schedule)


# --- making and changing --------------------------------------------------------------------------------------------


@with_options
async def add_schedule(
    session: Session,
    name: Name,
    disabled: Annotated[bool, typer.Option("--disabled", help="Make it, but do not let it run yet.")] = False,
    reason: Reason = None,
    **given: Any,
) -> None:
    """Make a schedule: when, and which steps.

    Steps run one after the other, those with a comma between them side by side. The app that has the jobs is named
    with --app.
    """
    from tenuto.cli.definitions.schedule_options import by_option as of_schedule
    from tenuto.cli.definitions.schedule_options import definition_of
    from tenuto.cli.output import show_json

    new = definition_of(name, given)
    with session.as_user() as app, of_schedule():
        made = await app.schedules.create(new, enabled=not disabled, reason=reason)
    if session.as_json:
        show_json(schedule_views.as_data(made))
        return
    session.say(f"schedule {name} is made, by {login_name()}: {new.trigger.words()}")
    await _say_next(session, app, made)


@with_options
async def edit_schedule(
    session: Session,
    name: Name,
    arguments: Arguments = None,
    rename: Annotated[str | None, typer.Option(metavar="NAME", help="Another name for it.")] = None,
    reason: Reason = None,
    **given: Any,
) -> None:
    """Change what is given, and nothing else.

    `none` takes away --between, --on, --start, --end, --exclude; --step puts new steps in the place of all there were.
    Shows what was and what is, and what that does to the next runs. A run that is under way goes on as it began.
    """
    from tenuto.cli.definitions.schedule_options import by_option as of_schedule
    from tenuto.cli.definitions.schedule_options import changed
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        async with known(session, app, name):
            before = await app.schedules.get(name)
        new = changed(before.definition, {**given, "arguments": arguments, "rename": rename})
        with of_schedule(renamed=True, arguments=bool(arguments)):
            after = await app.schedules.edit(name, new, reason=reason, version=before.version)
    now = (await app.open()).clock.now()
    if session.as_json:
        show_json(_change_as_data(before, after, now))
        return
    if after.version == before.version:
        session.say(f"nothing changed: schedule {name} is so already")
        return
    schedule_views.show_change(before, after, now)
    session.say(f"schedule {after.name} is at version {after.version} now, by {login_name()}")


def _change_as_data(before: Schedule, after: Schedule, now: datetime) -> dict[str, Any]:
    from tenuto.model.schedules import changes

    differing = changes(before.definition.to_fields(), after.definition.to_fields())
    return {
        "name": after.name,
        "version": after.version,
        "changes": {field: {"before": old, "after": new} for field, (old, new) in differing.items()},
        "next_runs_before": schedule_views.next_runs(before, now),
        "next_runs": schedule_views.next_runs(after, now),
    }


async def enable(session: Session, name: Name, reason: Reason = None) -> None:
    """Switch a schedule on, from now on: what it would have run meanwhile is not made up for."""
    with session.as_user() as app:
        async with known(session, app, name):
            switched = await app.schedules.enable(name, reason=reason)
        after = await app.schedules.get(name)
    await _switched(session, app, after, f"schedule {name} is on{'' if switched else ' already'}")


async def disable(session: Session, name: Name, reason: Reason = None) -> None:
    """Switch a schedule off; it can still be run by hand, and what runs goes on."""
    with session.as_user() as app:
        async with known(session, app, name):
            switched = await app.schedules.disable(name, reason=reason)
        after = await app.schedules.get(name)
    again = f"; go on with: tenuto schedule enable {_typed(name)}"
    await _switched(session, app, after, f"schedule {name} is off{again if switched else ' already'}")


async def _switched(session: Session, app: Tenuto, after: Schedule, words: str) -> None:
    from tenuto.cli.output import show_json

    if session.as_json:
        show_json(schedule_views.as_data(after))
        return
    session.say(words)
    if after.enabled:
        await _say_next(session, app, after)


async def _say_next(session: Session, app: Tenuto, schedule: Schedule) -> None:
    from tenuto.cli.descriptions import on_the_wall

    now = (await app.open()).clock.now()
    if not schedule.enabled:
        session.say(f"it is off; let it run with: tenuto schedule enable {_typed(schedule.name)}")
        return
    for number, instant in enumerate(schedule_views.next_runs(schedule, now, _SHOWN)):
        away = ago(instant, now)
        session.say(f"  {'next' if number == 0 else 'then'} {on_the_wall(instant)} ({away})")


async def delete(session: Session, name: Name, reason: Reason = None) -> None:
    """Delete a schedule that is not running; its executions, ledger and history stay.

    One that is declared in code or in a file comes back, switched on, with the next start or apply: disable it instead.
    """
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        async with known(session, app, name):
            before = await app.schedules.get(name)
            await app.schedules.delete(name, reason=reason)
    if session.as_json:
        show_json({"name": name, "deleted": True})
    else:
        session.say(f"schedule {name} is deleted, by {login_name()}")
    origin = "code" if name in app.schedules.declared else before.origin
    say_if_made_again(session, origin, f"tenuto schedule disable {_typed(name)}")


# --- running --------------------------------------------------------------------------------------------------------


async def run_schedule(
    session: Session,
    name: Name,
    arguments: Arguments = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end; exit 1 unless it completed.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="With --wait: give up after so long.")
    ] = None,
) -> int:
    """Run a schedule now. Prints the id of the execution.

    The overlap rule decides if it is running already: a run that is refused ends with exit code 7 and the reason, one
    that waits for its turn says so. --set holds for this run only, and needs the app that has the jobs.
    """
    from tenuto.cli.definitions.step_syntax import overrides_of
    from tenuto.cli.output import show_json, show_text
    from tenuto.cli.work.executions import follow
    from tenuto.cli.work.jobs import only_with_wait
    from tenuto.clock import steady
    from tenuto.errors import Conflict
    from tenuto.ids import new_id

    only_with_wait(timeout, wait=wait)
    request = new_id()
    with session.as_user() as app:
        given = overrides_of(arguments)
        with by_option({"steps.": "--set {}"}, otherwise="--set {}"):
            async with known(session, app, name):
                started = await app.schedules.run(name, arguments=given, request_id=request)
        if started.decision in ("skipped", "coalesced", "missed"):
            raise Conflict(
                f"{name!r} was not run: {started.reason}",
                remedy=f"see what is active: tenuto execution list --schedule {_typed(name)} --state in_progress",
            )
        id, began = started.execution_id, steady()
        if wait and id is None:
            session.say(f"queued: {started.reason}")
            id = await _its_turn(app, name, request, timeout, began)
    if wait and id is not None:
        return await follow(session, id, timeout, began)
    if session.as_json:
        show_json({"execution_id": id, "decision": started.decision, "reason": started.reason})
    elif id is None:
        session.say(f"queued: {started.reason}")
    else:
        show_text(str(id))
        session.say(f"follow it with: tenuto execution watch {id}")
    return exit_codes.OK


async def _its_turn(app: Tenuto, name: str, request: UUID, timeout: float | None, began: float) -> UUID:
    """Wait until a queued run begins. Asked again with the same request, the app tells what became of it: on the
    account of who asked first, so that it can only be told, never run as somebody else."""
    import asyncio

    from tenuto.clock import steady
    from tenuto.errors import Conflict

    while True:
        asked = await app.schedules.run(name, request_id=request)
        if asked.execution_id is not None:
            return asked.execution_id
        if asked.decision != "queued":
            raise Conflict(f"{name!r} was not run: {asked.reason}", remedy=f"tenuto schedule ledger {_typed(name)}")
        if timeout is not None and steady() > began + timeout:
            raise Conflict(f"its turn has not come after {timeout:g} s", remedy="wait longer; it stays queued")
        await asyncio.sleep(0.3)


# --- names ----------------------------------------------------------------------------------------------------------


def known(session: Session, app: Tenuto, name: str) -> AbstractAsyncContextManager[None]:
    """Whoever names a schedule that is not there is told which one they may have meant."""

    async def names() -> list[str]:
        return [each["name"] for each in await app.schedules.list(limit=500)]

    return definition_views.known("schedule", name, app.schedules.declared, names)


def _typed(name: str) -> str:
    from shlex import quote

    return quote(name)
