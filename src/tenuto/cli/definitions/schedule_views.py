"""Looking at schedules: the list, one of them, its next runs. Changes nothing; their past is next door."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli.command import Session, command
from tenuto.cli.definitions.definition_views import keeper, switch, title, version_as_data
from tenuto.cli.definitions.schedule_history import Name
from tenuto.cli.formatting import ago, local
from tenuto.cli.option_parsing import Limit

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from tenuto.app import Tenuto
    from tenuto.store.definition_rows import Version
    from tenuto.store.schedules import Schedule

_NEXT = 5
_LAST = 5


def add_to(schedules: typer.Typer) -> None:
    """Put the commands into the group."""
    command(schedules, "list", "tenuto schedule list", "tenuto schedule list --search hr --off -o json")(list_schedules)
    command(schedules, "show", "tenuto schedule show nightly", "tenuto schedule show 'Nightly HR Sync' -o json")(
        show_schedule
    )
    command(schedules, "next", "tenuto schedule next nightly", "tenuto schedule next nightly 20 -o json")(next_of)


# --- the list -------------------------------------------------------------------------------------------------------


async def list_schedules(
    session: Session,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Only those that are on, or off.")] = None,
    search: Annotated[str | None, typer.Option(metavar="TEXT", help="Only those with this in the name.")] = None,
    limit: Limit = 100,
    after: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those that come after this one: the next page.")
    ] = None,
) -> None:
    """List schedules by name: when each runs next, and how the last run ended."""
    from shlex import quote

    from tenuto.cli import descriptions
    from tenuto.cli.output import for_a_person, show, show_json, show_table, stacked

    found = await session.app.schedules.list(after=after, enabled=on, search=search, limit=limit)
    if session.as_json:
        show_json([{**row, "when": descriptions.trigger(row["trigger"])} for row in found])
        return
    if not found:
        narrowed = on is not None or search is not None or after is not None
        session.say("no schedules like that" if narrowed else "no schedules yet; make one: tenuto schedule add --help")
        if not narrowed and (declared := len(session.app.schedules.declared)):
            session.say(f"  {declared} declared in code come into force when a service starts, as with: tenuto up")
        return
    now = (await session.app.open()).clock.now()
    if for_a_person():
        rows = [_over_and_under(row, now) for row in found]
        show(stacked(("schedule", "state", "next run", "last run"), rows, flexible="schedule"))
    else:
        show_table(
            ("name", "state", "when", "next run", "at", "last run", "ended"),
            [
                (name, switch, when, following, at, last, ended)
                for (name, when), (switch, _), (following, at), (last, ended) in (
                    _over_and_under(row, now) for row in found
                )
            ],
        )
    if len(found) == limit:
        session.say(f"there may be more: add --after {quote(found[-1]['name'])}")


def _over_and_under(row: dict[str, Any], now: datetime) -> list[tuple[Any, Any]]:
    """What is said of a schedule in the list, each with what explains it."""
    from tenuto.cli import descriptions

    at = _short(row["next_run_at"]) if row["enabled"] else None
    ended = None if row["last_state"] is None else ago(row["last_ended_at"] or row["last_started_at"], now)
    return [
        (row["name"], descriptions.trigger(row["trigger"])),
        (switch(enabled=row["enabled"]), None),
        (_next_run(row, now), at),
        (_last_run(row), ended),
    ]


def _next_run(row: dict[str, Any], now: datetime) -> str:
    if not row["enabled"]:
        return "none"
    if row["trigger"].get("kind") == "manual":
        return "by hand"
    if row["next_run_at"] is None:
        return "never again" if row["planned"] else "being planned"
    return "due" if row["next_run_at"] <= now else ago(row["next_run_at"], now)


def _short(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone().strftime("%a %d %b %H:%M %Z")


def _last_run(row: dict[str, Any]) -> Text:
    from rich.text import Text

    from tenuto.cli.output import colour_of, glyph

    word = row["last_state"]
    if word is None:
        return Text("never ran", style="dim")
    return Text(f"{glyph(word)} {outcome(row)}", style=colour_of(word))


def outcome(row: dict[str, Any]) -> str:
    """How the last run ended, and where."""
    place = f"{row['last_group'] + 1} of {row['last_groups']}"
    match row["last_state"]:
        case "in_progress":
            return f"running {place}"
        case "completed":
            failed = row["last_failed_steps"]
            return f"completed, {_steps(failed)} failed" if failed else "completed"
        case word:
            return f"{word} at {place}"


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


# --- one schedule ---------------------------------------------------------------------------------------------------


async def show_schedule(session: Session, name: Name) -> None:
    """Show a schedule: when it runs next, its steps and rules, its last runs, and who changed it last."""
    from tenuto.cli import descriptions
    from tenuto.cli.definitions.schedules import known
    from tenuto.cli.output import show, show_json
    from tenuto.cli.work.executions import in_lines

    app = session.app
    async with known(session, app, name):
        found = await app.schedules.get(name)
    last = await app.executions.list(schedule=name, limit=_LAST)
    (change,) = await app.schedules.versions(found.id, limit=1)  # its own: others may have had its name
    now = (await app.open()).clock.now()
    if session.as_json:
        document = {**as_data(found), "next_runs": next_runs(found, now), "last_executions": last}
        show_json({**document, "last_change": version_as_data(change, "name")})
        return
    runs = next_runs(found, now)
    parts: list[RenderableType] = [_heading(found), *_about(found, change, now), *title("next runs")]
    if found.enabled and found.next_run_at is not None and found.next_run_at <= now:
        parts.append(f"  due since {local(found.next_run_at)}: {await _who_fires(app)}")
    if runs:
        parts.append(descriptions.runs(runs, _zone(found), now))
    else:
        parts.append("  only by hand" if found.definition.trigger.kind == "manual" else "  none within eight years")
    if runs and not found.enabled:
        parts.append("  (if it were on)")
    parts += [*title("steps"), drawn_plan(found)]
    if last:
        parts += [*title("last runs"), in_lines(last, now, named=False)]
    show(*parts)


async def _who_fires(app: Tenuto) -> str:
    """Who is to begin what is due."""
    services = await app.workers()
    if any(service["service"] == "scheduler" and service["state"] == "alive" for service in services):
        return "a scheduler is about to fire it"
    return "no scheduler is alive to fire it; start one with `tenuto scheduler` or `tenuto up`"


def _heading(found: Schedule) -> Text:
    from rich.text import Text

    from tenuto.cli.formatting import plain

    about = f"version {found.version}"
    return Text.assemble(switch(enabled=found.enabled), "  ", (plain(found.name), "bold"), "  ", (about, "dim"))


def _about(found: Schedule, change: Version, now: datetime) -> list[RenderableType]:
    from tenuto.cli import descriptions
    from tenuto.cli.formatting import plain
    from tenuto.cli.output import pairs

    definition = found.definition
    why = f": {change.reason}" if change.reason else ""
    about = pairs(
        ("when", definition.trigger.words()),
        ("overlap", descriptions.overlap(definition.overlap)),
        ("missed runs", descriptions.misfire(definition.misfire.to_fields())),
        ("kept by", keeper(found)),
        ("last change", f"{change.change} {ago(change.at, now)} by {change.actor.name}{why}"),
    )
    return [*([plain(definition.description)] if definition.description else []), "", about]


def drawn_plan(found: Schedule) -> RenderableType:
    """The steps, those of a group held together by a bracket."""
    from rich.table import Table
    from rich.text import Text

    from tenuto.cli import descriptions

    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, words in descriptions.plan(found.plan.to_fields()):
        grid.add_row(Text(f"  {label}"), Text(words))
    return grid


def as_data(found: Schedule) -> dict[str, Any]:
    """A schedule as one document."""
    return {
        "id": found.id,
        **found.definition.to_fields(),
        "enabled": found.enabled,
        "when": found.definition.trigger.words(),
        "version": found.version,
        "origin": found.origin,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
        "last_run_at": found.last_run_at,
        "next_run_at": found.next_run_at,
    }


def next_runs(found: Schedule, now: datetime, n: int = _NEXT) -> list[datetime]:
    """Its next runs, whether it is on or not."""
    return found.definition.trigger.preview(now, n, str(found.id))


def _zone(found: Schedule) -> str:
    return str(found.definition.trigger.fields().get("zone", "UTC"))


async def next_of(
    session: Session,
    name: Name,
    count: Annotated[int, typer.Argument(metavar="N", min=1, max=1000, help="How many.")] = _NEXT,
) -> None:
    """Show the next runs of a schedule, in its zone and here, whether it is on or not."""
    from tenuto.cli import descriptions
    from tenuto.cli.definitions.schedules import known
    from tenuto.cli.output import show, show_json

    async with known(session, session.app, name):
        found = await session.app.schedules.get(name)
    now = (await session.app.open()).clock.now()
    runs = next_runs(found, now, count)
    if session.as_json:
        show_json(runs)
        return
    if not found.enabled:
        session.say(f"schedule {name} is off; if it were on:")
    if runs:
        show(descriptions.runs(runs, _zone(found), now))
    else:
        session.say("it runs only by hand" if found.definition.trigger.kind == "manual" else "it never runs again")


def show_change(before: Schedule, after: Schedule, now: datetime) -> None:
    """What was and what is, and what that does to the next runs."""
    from rich.padding import Padding
    from rich.text import Text

    from tenuto.cli import descriptions
    from tenuto.cli.output import show

    parts: list[RenderableType] = []
    for what, lines in descriptions.differences(before.definition.to_fields(), after.definition.to_fields()):
        parts += [Text(what, style="bold"), Padding(descriptions.painted(lines), (0, 0, 0, 2))]
    was, becomes = next_runs(before, now), next_runs(after, now)
    parts.append(Text("next runs", style="bold"))
    if was == becomes:
        parts.append(Text("  as before", style="dim"))
    else:
        triggers = before.definition.trigger, after.definition.trigger
        lines = descriptions.moved_runs(triggers[0], was, triggers[1], becomes, str(after.id))
        parts.append(Padding(descriptions.painted(lines), (0, 0, 0, 2)))
    if not after.enabled:
        parts.append(Text("  (it is off)", style="dim"))
    show(*parts)
