"""``tenuto simulate``: print which runs would fire when, as a timeline and as lists. Nothing is changed.

The timeline has one line per schedule and one column per time interval, and is at most 80 characters wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Any

from rich.cells import cell_len, set_cell_size
from rich.console import RenderableType
from rich.text import Text

from tenuto.cli.command import Session, command
from tenuto.cli.lists import print_csv
from tenuto.cli.option_parsing import invalid_value, parse_whole_number, translate_error_fields
from tenuto.cli.output import print_json
from tenuto.cli.parameters import option
from tenuto.cli.tables import print_rich, render_table
from tenuto.clock import SystemClock
from tenuto.definitions.definition_files import find_further_entries, parse_schedules
from tenuto.definitions.document_loader import read_documents
from tenuto.model.definitions.schedules import ScheduleDefinition
from tenuto.model.triggers.zones import load_zone
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.operations.definitions.plans import check_lists
from tenuto.presentation.columns import Column, ResourceView
from tenuto.presentation.definition_views import SIMULATED_SCHEDULES
from tenuto.presentation.text_formats import one_line
from tenuto.simulation.input_loader import SimulationOptions
from tenuto.simulation.simulator import Clash, SimulatedRun, Simulation

WIDTH = 80
NAME_WIDTH = 18
MAX_COLUMNS = WIDTH - NAME_WIDTH - 2
MAX_LINES = 60
LEGEND = "1-9 + starts  ━ running  ◌ waiting  × skipped, coalesced, missed  ‼ both  · idle"

_COLUMN_MINUTES = (
    1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 4320, 10_080, 43_200, 525_600, 5_256_000,
)  # fmt: skip
_TICK_COLUMNS = 8
"""Columns between two labels of the scale."""
_MAX_SIMULATED_SECONDS = 10 * 366 * 86_400
_MAX_RUN_SECONDS = 366 * 86_400
Texts = list[str] | None
_DURATION_HELP = "Assumed run duration, e.g. 'Nightly=45m'. Without a name: the default for schedules without history."


@command(
    None,
    "simulate",
    "--to 7d",
    "--from 2031-03-29 --to 2031-03-31 --zone Europe/London --duration 'Nightly HR Sync=45m'",
    "--file schedules.yaml --slots mail=5 -o json",
    is_list=True,
)
async def simulate(
    session: Session,
    start: Annotated[str, option("WHEN", "Start: now, a date, or an instant: 2031-03-29T02:00.", "--from")] = "now",
    end: Annotated[str, option("WHEN", "End (exclusive): like --from, or a duration such as 7d.", "--to")] = "1d",
    schedule: Annotated[Texts, option("NAME", "Filter by name, also disabled ones; may be repeated.")] = None,
    file: Annotated[Texts, option("FILE", "Definition file; its schedules replace those of the same name.")] = None,
    duration: Annotated[Texts, option("[NAME=]DURATION", _DURATION_HELP)] = None,
    slots: Annotated[Texts, option("[QUEUE=]N", "Assumed slots of a queue. (default: as live workers have)")] = None,
    outage: Annotated[Texts, option("FROM/TO", "Assumed downtime of all schedulers; may be repeated.")] = None,
    zone: Annotated[str | None, option("ZONE", "Time zone of input and output. (default: local time zone)")] = None,
    limit: Annotated[int, option("N", "Maximum number of rows in the lists; -o json has all.", min=0)] = 40,
) -> None:
    """Simulate the schedules: runs, conflicts and skipped runs.

    Applies the overlap and misfire policies, with run durations from the recent history. Reports skipped runs, queues
    without free slots, and the effect of daylight saving changes. Nothing runs and nothing is changed.
    """
    if file:
        session.require_app()  # the steps of a file are checked by the jobs
    app = session.app
    with translate_error_fields({}):
        display_zone = _display_zone(zone)
    now = await session.now()
    begins = _parse_instant(start, display_zone, now, "--from")
    options = SimulationOptions(
        tuple(schedule or ()),
        _definitions_in_files(session, file or ()),
        {name: _parse_duration(text) for name, text in _split_named(duration or (), "--duration")},
        {
            name: parse_whole_number(text, "--slots", "write it as mail=5")
            for name, text in _split_named(slots or (), "--slots")
        },
        [_parse_outage(text, display_zone, now) for text in outage or ()],
    )
    with translate_error_fields({}):
        found = await app.schedules.simulate(begins, _parse_end(end, display_zone, now, begins), options)
    if session.as_json:
        print_json(_simulation_document(found))
        return
    if session.output == "csv":
        print_csv(_run_view(display_zone), found.runs)
        return
    _print_simulation(found, display_zone, limit)
    for note in found.notes:
        session.print_message(f"note: {note}")


# --- parse ----------------------------------------------------------------------------------------------------------


def _display_zone(name: str | None) -> tzinfo:
    if name is not None:
        return load_zone(name)
    local_zone = SystemClock().now().astimezone().tzinfo
    assert local_zone is not None
    return local_zone


def _parse_instant(text: str, zone: tzinfo, now: datetime, option: str) -> datetime:
    if text == "now":
        return now
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        remedy = "write it as 2031-03-29 or 2031-03-29T02:00"
        raise invalid_value(option, text, "is not an instant", code="value.instant.invalid", remedy=remedy) from None
    aware = found.replace(tzinfo=zone) if found.tzinfo is None else found
    if not 1970 <= aware.year < 9000:
        problem = "is not between 1970 and 8999"
        raise invalid_value(option, text, problem, code="simulation.instant.out_of_range")
    return aware.astimezone(UTC)


def _parse_end(text: str, zone: tzinfo, now: datetime, start: datetime) -> datetime:
    if text[-1:] in ("s", "m", "h", "d"):
        seconds = parse_duration_seconds(text, field="--to")
        if seconds is None or not 0 < seconds <= _MAX_SIMULATED_SECONDS:
            problem = "is not between one second and ten years"
            raise invalid_value("--to", text, problem, code="simulation.duration.out_of_range")
        return start + timedelta(seconds=seconds)
    return _parse_instant(text, zone, now, "--to")


def _parse_outage(text: str, zone: tzinfo, now: datetime) -> tuple[datetime, datetime]:
    start_text, slash, end_text = text.partition("/")
    if not slash:
        remedy = "write it as 2031-03-29T01:00/2031-03-29T05:00"
        raise invalid_value("--outage", text, "has no end", code="simulation.outage.invalid", remedy=remedy)
    start, end = (_parse_instant(part, zone, now, "--outage") for part in (start_text, end_text))
    if end <= start:
        raise invalid_value("--outage", text, "ends before it starts", code="simulation.outage.empty")
    return start, end


def _split_named(texts: Iterable[str], option: str) -> Iterable[tuple[str, str]]:
    """Split ``NAME=VALUE`` texts; a text without a name applies to ``*``."""
    for text in texts:
        name, equals, value = text.rpartition("=")
        if equals and not name:
            raise invalid_value(option, text, "has no name before the equals sign", code="simulation.option.no_name")
        yield name or "*", value


def _parse_duration(text: str) -> float:
    seconds = parse_duration_seconds(text, field="--duration")
    if seconds is None or not 0 <= seconds <= _MAX_RUN_SECONDS:
        problem, remedy = "is not between 0 s and one year", "write it as 'Nightly=45m'"
        raise invalid_value("--duration", text, problem, code="simulation.duration.out_of_range", remedy=remedy)
    return seconds


def _definitions_in_files(session: Session, files: Sequence[str]) -> list[ScheduleDefinition]:
    """Return the schedules in files; with an app, steps take the defaults of their jobs."""
    documents = list(read_documents(files)) if files else []
    check_lists(session.app.extension_registry, find_further_entries(documents))
    definitions = [schedule.definition for schedule in parse_schedules(documents)]
    if session.app_name is None:
        return definitions
    return [session.app.schedules.resolve_steps(definition) for definition in definitions]


# --- print ----------------------------------------------------------------------------------------------------------


def _simulation_document(found: Simulation) -> dict[str, Any]:
    """Return the JSON document of a simulation, with the runs of all schedules in one list."""
    return {
        "start": found.start,
        "end": found.end,
        "runs": found.runs,
        "clashes": found.clashes,
        "clock_changes": found.clock_changes,
        "totals": found.totals,
        "notes": found.notes,
    }


def _print_simulation(found: Simulation, zone: tzinfo, limit: int) -> None:
    names = [total.schedule for total in found.totals if total.due]
    parts: list[RenderableType] = [
        Text(f"{_format_instant(found.start, zone)} to {_format_instant(found.end, zone)}", style="bold"),
        "",
    ]
    if names:
        drawing = timeline_lines(names, found.runs, found.start, found.end, zone)
        parts += [Text("\n".join(drawing)), Text(LEGEND, style="dim"), ""]
    parts.append(render_table(SIMULATED_SCHEDULES, found.totals, found.start))
    if found.clashes:
        parts += ["", *_conflict_lines(found.clashes, zone, limit)]
    if found.clock_changes:
        parts += ["", Text("daylight saving changes", style="bold")]
        parts += [Text(f"  {change.schedule}: {change.message}") for change in found.clock_changes[: limit or None]]
    if found.runs and limit:
        count = len(found.runs)
        shown = f"the first {limit:,} of {count:,}; --limit for more" if count > limit else f"{count:,}"
        parts += ["", Text(f"runs ({shown})", style="bold")]
        parts.append(render_table(_run_view(zone), found.runs[:limit], found.start))
    print_rich(*parts)


def _conflict_lines(clashes: Sequence[Clash], zone: tzinfo, limit: int) -> list[RenderableType]:
    """Return the conflicts; those with the same text are one line with their count."""
    by_text: dict[str, list[Clash]] = {}
    for clash in clashes:
        schedules = f" ({', '.join(clash.schedules)})" if clash.kind == "slots" else ""
        by_text.setdefault(f"{clash.message}{schedules}", []).append(clash)
    lines: list[RenderableType] = [Text(f"conflicts ({len(clashes):,})", style="bold")]
    for text, same in list(by_text.items())[:limit]:
        first = same[0]
        until = f" to {_format_time(first.until, first.at, zone)}" if first.until is not None else ""
        often = f" — {len(same):,} times, the last {_format_instant(same[-1].at, zone)}" if len(same) > 1 else ""
        lines.append(Text(f"  {_format_instant(first.at, zone)}{until}  {text}{often}"))
    if len(by_text) > limit:
        lines.append(Text(f"  … and {len(by_text) - limit:,} more kinds; --limit for more"))
    return lines


def _run_view(zone: tzinfo) -> ResourceView:
    def time_text(field: str) -> Callable[[SimulatedRun, datetime], str]:
        return lambda run, _: _format_time(getattr(run, field), run.due_at, zone)

    return ResourceView(
        "runs",
        (
            Column("due", "due_at", "instant", text=lambda run, _: _format_instant(run.due_at, zone)),
            Column("schedule", "schedule", flexible=True),
            Column("decision", lambda run: "cut" if run.cut else str(run.decision)),
            Column("starts", "starts_at", "instant", text=time_text("starts_at"), drop=1),
            Column("ends", "ends_at", "instant", text=time_text("ends_at"), drop=2),
            Column("reason", "reason", flexible=True),
        ),
    )


def _format_time(instant: datetime | None, due_at: datetime, zone: tzinfo) -> str:
    """Format the time of day, with the date if it is not the due date."""
    if instant is None:
        return ""
    local = instant.astimezone(zone)
    return f"{local:%H:%M:%S}" if local.date() == due_at.astimezone(zone).date() else f"{local:%Y-%m-%d %H:%M:%S}"


def _format_instant(instant: datetime, zone: tzinfo) -> str:
    return f"{instant.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"


def column_duration(start: datetime, end: datetime) -> timedelta:
    """Return the duration of one column: an hour if that fits, otherwise the shortest one that fits."""
    if end - start > timedelta(hours=12) and end - start <= timedelta(hours=1) * MAX_COLUMNS:
        return timedelta(hours=1)
    durations = (timedelta(minutes=minutes) for minutes in _COLUMN_MINUTES)
    return next(duration for duration in durations if (end - start) / duration <= MAX_COLUMNS)


def timeline_lines(
    names: Sequence[str], runs: Iterable[SimulatedRun], start: datetime, end: datetime, zone: tzinfo
) -> list[str]:
    """Return the time scale, and one line for each of these schedules."""
    duration = column_duration(start, end)
    columns = -(-(end - start) // duration)
    by_name: dict[str, list[SimulatedRun]] = {name: [] for name in names[:MAX_LINES]}
    for run in runs:
        if run.schedule in by_name:
            by_name[run.schedule].append(run)
    lines = [*_scale_lines(start, duration, columns, zone)]
    for name, own_runs in by_name.items():
        lines.append(f"{_fit_name(name)}  {_timeline(own_runs, start, duration, columns)}")
    if len(names) > MAX_LINES:
        lines.append(f"… and {len(names) - MAX_LINES:,} more schedules")
    return lines


def _fit_name(name: str) -> str:
    """Pad or truncate the name to its width in terminal cells; some characters take two cells, some none."""
    line = one_line(name)
    if cell_len(line) > NAME_WIDTH:
        line = f"{set_cell_size(line, NAME_WIDTH - 1).rstrip()}…"
    return set_cell_size(line, NAME_WIDTH)


def _scale_lines(start: datetime, duration: timedelta, columns: int, zone: tzinfo) -> list[str]:
    form = "%H:%M" if duration < timedelta(hours=6) else "%m-%d" if duration < timedelta(days=30) else "%Y-%m"
    labels = [" "] * columns
    for column in range(0, columns, _TICK_COLUMNS):
        label = (start + duration * column).astimezone(zone).strftime(form)
        if column + len(label) <= columns:
            labels[column : column + len(label)] = label
    ticks = "".join("|" if column % _TICK_COLUMNS == 0 else " " for column in range(columns))
    return [
        f"{f'1 column = {_format_column_duration(duration)}':<{NAME_WIDTH}}  {''.join(labels)}".rstrip(),
        f"{'':<{NAME_WIDTH}}  {ticks}".rstrip(),
    ]


def _timeline(runs: Sequence[SimulatedRun], start: datetime, duration: timedelta, columns: int) -> str:
    started, lost = [0] * columns, [False] * columns
    running, waiting = [False] * columns, [False] * columns
    for run in runs:
        if run.starts_at is None:
            place = (run.due_at - start) // duration
            if 0 <= place < columns:
                (waiting if run.decision == "queued" else lost)[place] = True
            continue
        first = (run.starts_at - start) // duration
        started[first] += 1
        if run.ends_at is not None and run.ends_at > run.starts_at:
            last = min(-(-(run.ends_at - start) // duration), columns)
            running[first:last] = [True] * (last - first)
    return "".join(map(_cell_symbol, started, running, waiting, lost))


def _cell_symbol(started: int, running: bool, waiting: bool, lost: bool) -> str:
    if lost:
        return "‼" if started else "×"
    if started:
        return str(started) if started < 10 else "+"
    return "◌" if waiting else "━" if running else "·"


def _format_column_duration(duration: timedelta) -> str:
    minutes = round(duration.total_seconds() / 60)
    for size, unit in ((1440, "d"), (60, "h")):
        if minutes % size == 0:
            return f"{minutes // size} {unit}"
    return f"{minutes} min"
