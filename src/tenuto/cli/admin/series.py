"""``tenuto series``: print how many attempts ended when, as the chart of the dashboard shows it."""

from __future__ import annotations

from typing import Annotated

from tenuto.cli.command import Session, command
from tenuto.cli.option_parsing import translate_error_fields
from tenuto.cli.output import print_json
from tenuto.cli.parameters import choice, option
from tenuto.cli.tables import print_rich, render_table, section_title
from tenuto.operations.reports import SeriesDivision
from tenuto.presentation.columns import json_value
from tenuto.presentation.overview_views import SERIES, SERIES_POINTS
from tenuto.presentation.text_formats import format_duration


@command(None, "series", "", "--window 7d --by queue", "--window 1d --name resize -o json")
async def show_series(
    session: Session,
    window: Annotated[str, option("DURATION", "Length of time until now, from 1m to 366d.")] = "1h",
    by: Annotated[SeriesDivision, choice("One series of all attempts, or one of each busy queue or name.")] = "outcome",
    queue: Annotated[str | None, option("NAME", "Only attempts of this queue.")] = None,
    name: Annotated[str | None, option("NAME", "Only attempts of this job or step kind.")] = None,
) -> None:
    """Show how many attempts ended when, with outcomes, waits and durations.

    Without --by there is a line for each span of time in which attempts ended; with --by queue or --by name a line for
    each of the 20 busiest. Schedulers add ended attempts every 10 seconds.
    """
    with translate_error_fields({}):
        report = await session.app.reports.series(window, by=by, queue=queue, name=name)
    if session.as_json:
        print_json(json_value(report))
        return
    span = format_duration(report.until - report.since)
    if by != "outcome":
        more = f", {report.omitted_label_count:,} more" if report.omitted_label_count else ""
        print_rich(*section_title(f"Last {span} by {by}{more}"), render_table(SERIES, report.series, report.until))
        return
    [series] = report.series
    points = [each for each in series.points if _count(each)]
    title = f"Last {span}, {format_duration(report.point_seconds)} each"
    print_rich(
        *section_title(title),
        render_table(SERIES_POINTS, points, report.until),
        "",
        *section_title("Together"),
        render_table(SERIES, [series], report.until),
    )


def _count(figures: object) -> int:
    """Return the number of ended attempts."""
    names = ("completed_count", "warning_count", "error_count", "failed_count", "cancelled_count")
    return sum(getattr(figures, name) for name in names)
