"""``tenuto simulate``: what would fire when, drawn and listed; nothing is changed by asking.

A timeline in letters: one line for each schedule, one column for each stretch of time, never wider than 80.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tenuto.cli.command import Session, command
from tenuto.cli.formatting import span
from tenuto.cli.option_parsing import by_option, whole_number
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.model.schedules import Definition
    from tenuto.simulation.simulator import Clash, Run, Simulation


from typing import TYPE_CHECKING

from tenuto.cli.formatting import one_line

if TYPE_CHECKING:
    from tenuto.simulation.simulator import Run


V = TypeVar("V")


def add_to(root: typer.Typer) -> None:
    """Put the command into the tree."""
    command(
        root,
        "simulate",
        "tenuto simulate --to 7d",
        "tenuto simulate --from 2031-03-29 --to 2031-03-31 --zone Europe/London --duration 'Nightly HR Sync=45m'",
        "tenuto simulate --file schedules.yaml --slots mail=5 -o json",
    )(simulate)


async def simulate(
    session: Session,
    start: Annotated[
        str, typer.Option("--from", metavar="WHEN", help="now, a date or an instant such as 2031-03-29T02:00.")
    ] = "now",
    end: Annotated[
        str, typer.Option("--to", metavar="WHEN", help="The same, or how long: 90m, 36h, 7d. Not included.")
    ] = "1d",
    schedule: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this one, enabled or not; may be given again.")
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Schedules of a file, in the place of those of the same name."),
    ] = None,
    duration: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]SPAN",
            help="How long a run takes, such as 'Nightly=45m'; without a name, of those nothing is known of.",
        ),
    ] = None,
    slots: Annotated[
        list[str] | None,
        typer.Option(metavar="[QUEUE=]N", help="How many tasks run at a time; otherwise what the live workers have."),
    ] = None,
    outage: Annotated[
        list[str] | None,
        typer.Option(metavar="FROM/TO", help="No scheduler is there: what falls due is decided afterwards."),
    ] = None,
    zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Whose clock to read and show; otherwise this machine's.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="How many runs and clashes to list; -o json has all.")] = 40,
) -> None:
    """Say what would fire when, and what would get in its way.

    Plays the schedules through under their rules for runs that meet and for missed ones, with the time runs have taken
    lately. Names what is skipped, when a queue is asked for more than it has room for, and what a change of the clock
    does. Nothing is changed, and nothing runs.
    """
    from tenuto.cli.output import show_json
    from tenuto.simulation.inputs import Given

    app = session.app
    with by_option({}):
        here = _zone(zone)
    now = (await app.open()).clock.now()
    begins = _instant(start, here, now, "--from")
    given = Given(
        tuple(schedule or ()),
        _declared(session, file or ()),
        {name: _seconds(text) for name, text in _named(duration or (), "--duration")},
        {queue: whole_number(text, "--slots", "write it as mail=5") for queue, text in _named(slots or (), "--slots")},
        [_outage(text, here, now) for text in outage or ()],
    )
    with by_option({}):
        found = await app.schedules.simulate(begins, _end(end, here, now, begins), given)
    if session.as_json:
        show_json(found)
        return
    _show(found, here, limit)
    for note in found.notes:
        session.say(f"note: {note}")


# --- reading --------------------------------------------------------------------------------------------------------


def _zone(named: str | None) -> tzinfo:
    from tenuto.clock import SystemClock
    from tenuto.model.triggers.zones import zone_named

    if named is not None:
        return zone_named(named)
    here = SystemClock().now().astimezone().tzinfo
    assert here is not None
    return here


def _instant(text: str, zone: tzinfo, now: datetime, field: str) -> datetime:
    from datetime import UTC

    if text == "now":
        return now
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{text!r:.60} is not an instant", field=field, remedy="write it as 2031-03-29 or 2031-03-29T02:00"
        ) from None
    aware = found.replace(tzinfo=zone) if found.tzinfo is None else found
    if not 1970 <= aware.year < 9000:
        raise Invalid(f"the year {aware.year} is out of reach", field=field)
    return aware.astimezone(UTC)


def _end(text: str, zone: tzinfo, now: datetime, begins: datetime) -> datetime:
    from tenuto.model.tasks import seconds

    if text[-1:] in ("s", "m", "h", "d"):
        long = seconds(text, field="--to")
        if long is None or not 0 < long <= 366 * 86_400 * 10:
            raise Invalid("must be from a second to ten years", field="--to")
        return begins + timedelta(seconds=long)
    return _instant(text, zone, now, "--to")


def _outage(text: str, zone: tzinfo, now: datetime) -> tuple[datetime, datetime]:
    begins, slash, ends = text.partition("/")
    if not slash:
        raise Invalid("needs two instants", field="--outage", remedy="write it as 2031-03-29T01:00/2031-03-29T05:00")
    found = _instant(begins, zone, now, "--outage"), _instant(ends, zone, now, "--outage")
    if found[1] <= found[0]:
        raise Invalid("ends before it begins", field="--outage")
    return found


def _named(words: Iterable[str], field: str) -> Iterable[tuple[str, str]]:
    for word in words:
        name, equals, value = word.rpartition("=")
        if equals and not name:
            raise Invalid(f"{word!r:.60} names nothing", field=field)
        yield name or "*", value


def _seconds(text: str) -> float:
    from tenuto.model.tasks import seconds

    found = seconds(text, field="--duration")
    if found is None or not 0 <= found <= 366 * 86_400:
        raise Invalid("must be from 0 s to a year", field="--duration", remedy="write it as 'Nightly=45m'")
    return found


def _declared(session: Session, files: Sequence[str]) -> list[Definition]:
    """The schedules of files; with an app, each step as its job has it."""
    from tenuto.cli.definitions.plans import read

    found = [each.definition for each in read(files)] if files else []
    return [session.app.schedules.resolved(each) for each in found] if session.app_name else found


# --- showing --------------------------------------------------------------------------------------------------------


def _show(found: Simulation, zone: tzinfo, limit: int) -> None:
    from rich.text import Text

    from tenuto.cli.output import fitted, show

    names = [total.schedule for total in found.totals if total.due]
    parts: list[RenderableType] = [Text(f"{_when(found.start, zone)} to {_when(found.end, zone)}", style="bold"), ""]
    if names:
        drawing = drawn(names, found.runs, found.start, found.end, zone)
        parts += [Text("\n".join(drawing)), Text(LEGEND, style="dim"), ""]
    parts.append(
        fitted(
            ("schedule", "due", "fired", "waited", "skipped", "coalesced", "missed", "cut", "takes", "busy"),
            [
                (
                    total.schedule,
                    f"{total.due:,}",
                    *(_or_nothing(getattr(total, what)) for what in _COUNTS),
                    f"{span(total.seconds)} {_KNOWN[total.duration_is]}".strip(),
                    span(total.busy_seconds) if total.busy_seconds else "",
                )
                for total in found.totals
            ],
            spare=("cut", "missed", "coalesced", "busy"),
            flexible=("schedule",),
        )
    )
    if found.clashes:
        parts += ["", *_clashes(found.clashes, zone, limit)]
    if found.clock_changes:
        parts += ["", Text("changes of the clock", style="bold")]
        parts += [Text(f"  {each.schedule}: {each.words}") for each in found.clock_changes[: limit or None]]
    if found.runs and limit:
        parts += ["", _title("runs", len(found.runs), limit), _runs(found.runs[:limit], zone)]
    show(*parts)


_COUNTS = ("fired", "waited", "skipped", "coalesced", "missed", "cut")
_KNOWN = {"history": "", "given": "(given)", "assumed": "(assumed)"}


def _title(what: str, number: int, limit: int) -> RenderableType:
    from rich.text import Text

    shown = f" (the first {limit:,} of {number:,}; --limit for more)" if number > limit else f" ({number:,})"
    return Text(f"{what}{shown}", style="bold")


def _clashes(clashes: Sequence[Clash], zone: tzinfo, limit: int) -> list[RenderableType]:
    """Those that say the same are told once, with how often they come."""
    from rich.text import Text

    alike: dict[str, list[Clash]] = {}
    for clash in clashes:
        whose = f" ({', '.join(clash.schedules)})" if clash.kind == "slots" else ""
        alike.setdefault(f"{clash.words}{whose}", []).append(clash)
    lines: list[RenderableType] = [Text(f"clashes ({len(clashes):,})", style="bold")]
    for words, same in list(alike.items())[:limit]:
        first = same[0]
        until = f" to {_on_the_day(first.until, first.at, zone)}" if first.until is not None else ""
        often = f" — {len(same):,} times, the last {_when(same[-1].at, zone)}" if len(same) > 1 else ""
        lines.append(Text(f"  {_when(first.at, zone)}{until}  {words}{often}"))
    if len(alike) > limit:
        lines.append(Text(f"  … and {len(alike) - limit:,} more kinds; --limit for more"))
    return lines


def _runs(runs: Sequence[Run], zone: tzinfo) -> RenderableType:
    from tenuto.cli.output import fitted

    return fitted(
        ("due", "schedule", "decision", "begins", "ends", "reason"),
        [
            (
                _when(run.due_at, zone),
                run.schedule,
                "cut" if run.cut else str(run.decision),
                _on_the_day(run.starts_at, run.due_at, zone),
                _on_the_day(run.ends_at, run.due_at, zone),
                run.reason,
            )
            for run in runs
        ],
        spare=("ends", "begins"),
        flexible=("schedule", "reason"),
    )


def _on_the_day(instant: datetime | None, due_at: datetime, zone: tzinfo) -> str:
    """The time of day, with the day where that is not the one it was due on."""
    if instant is None:
        return ""
    here = instant.astimezone(zone)
    return f"{here:%H:%M:%S}" if here.date() == due_at.astimezone(zone).date() else f"{here:%Y-%m-%d %H:%M:%S}"


def _or_nothing(number: int) -> str:
    return f"{number:,}" if number else ""


def _when(instant: datetime, zone: tzinfo) -> str:
    return f"{instant.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"


WIDTH = 80
NAME = 18
COLUMNS = WIDTH - NAME - 2
LINES = 60
LEGEND = "1-9 + begin  ━ run  ◌ waits  × skipped, coalesced or missed  ‼ both  · nothing"

_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440, 2880, 4320, 10_080, 43_200, 525_600, 5_256_000)
_A_TICK = 8
"""Columns between two labels of the scale."""


def stretch_of(start: datetime, end: datetime) -> timedelta:
    """How much time a column stands for: an hour where that fits, otherwise what comes nearest."""
    if end - start > timedelta(hours=12) and end - start <= timedelta(hours=1) * COLUMNS:
        return timedelta(hours=1)
    return next(stretch for minutes in _MINUTES if (end - start) / (stretch := timedelta(minutes=minutes)) <= COLUMNS)


def drawn(names: Sequence[str], runs: Iterable[Run], start: datetime, end: datetime, zone: tzinfo) -> list[str]:
    """The scale, and a line for each of these schedules."""
    stretch = stretch_of(start, end)
    columns = -(-(end - start) // stretch)
    by_name: dict[str, list[Run]] = {name: [] for name in names[:LINES]}
    for run in runs:
        if run.schedule in by_name:
            by_name[run.schedule].append(run)
    lines = [*_scale(start, stretch, columns, zone)]
    for name, its_runs in by_name.items():
        lines.append(f"{_in_cells(name)}  {_line(its_runs, start, stretch, columns)}")
    if len(names) > LINES:
        lines.append(f"… and {len(names) - LINES:,} more schedules")
    return lines


def _in_cells(name: str) -> str:
    """The name in as many columns of the terminal as there are for it: some letters take two, some none."""
    from rich.cells import cell_len, set_cell_size

    line = one_line(name)
    return set_cell_size(line if cell_len(line) <= NAME else f"{set_cell_size(line, NAME - 1).rstrip()}…", NAME)


def _scale(start: datetime, stretch: timedelta, columns: int, zone: tzinfo) -> list[str]:
    form = "%H:%M" if stretch < timedelta(hours=6) else "%m-%d" if stretch < timedelta(days=30) else "%Y-%m"
    labels = [" "] * columns
    for column in range(0, columns, _A_TICK):
        label = (start + stretch * column).astimezone(zone).strftime(form)
        if column + len(label) <= columns:
            labels[column : column + len(label)] = label
    each = _words(stretch)
    ticks = "".join("|" if column % _A_TICK == 0 else " " for column in range(columns))
    return [f"{f'a column is {each}':<{NAME}}  {''.join(labels)}".rstrip(), f"{'':<{NAME}}  {ticks}".rstrip()]


def _line(runs: Sequence[Run], start: datetime, stretch: timedelta, columns: int) -> str:
    begun, lost = [0] * columns, [False] * columns
    running, waiting = [False] * columns, [False] * columns
    for run in runs:
        if run.starts_at is None:
            place = (run.due_at - start) // stretch
            if 0 <= place < columns:
                (waiting if run.decision == "queued" else lost)[place] = True
            continue
        first = (run.starts_at - start) // stretch
        begun[first] += 1
        if run.ends_at is not None and run.ends_at > run.starts_at:
            last = min(-(-(run.ends_at - start) // stretch), columns)
            running[first:last] = [True] * (last - first)
    return "".join(map(_sign, begun, running, waiting, lost))


def _sign(begun: int, running: bool, waiting: bool, lost: bool) -> str:
    if lost:
        return "‼" if begun else "×"
    if begun:
        return str(begun) if begun < 10 else "+"
    return "◌" if waiting else "━" if running else "·"


def _words(stretch: timedelta) -> str:
    minutes = round(stretch.total_seconds() / 60)
    for size, unit in ((1440, "d"), (60, "h")):
        if minutes % size == 0:
            return f"{minutes // size} {unit}"
    return f"{minutes} min"
