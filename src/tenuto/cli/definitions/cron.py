"""``tenuto cron``: what a cron line means, without a database or an app."""

from __future__ import annotations

from typing import Annotated

import typer

from tenuto.cli.command import Session, command, group

_EXAMPLES = (
    "tenuto cron explain '0 2 * * *' --zone Europe/London",
    "tenuto cron explain '*/15 9-17 * * mon-fri' -n 10 -o json",
)


def add_to(root: typer.Typer) -> None:
    """Put the command into the tree."""
    cron = group(root, "cron", "Explain cron lines.", *_EXAMPLES)
    command(cron, "explain", *_EXAMPLES, shared=("output", "quiet"))(explain)


def explain(
    session: Session,
    line: Annotated[str, typer.Argument(metavar="LINE", help="Five fields, or a word such as @daily, in quotes.")],
    zone: Annotated[str, typer.Option(metavar="ZONE", help="The time zone it is meant in.")] = "UTC",
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, max=1000, help="How many runs.")] = 5,
) -> None:
    """Say in words when a cron line runs, and show the next runs; or say what is wrong with it, and where."""
    from tenuto.cli import descriptions
    from tenuto.cli.output import show, show_json
    from tenuto.clock import SystemClock
    from tenuto.errors import Invalid
    from tenuto.model.triggers import cron

    try:
        trigger = cron(line, zone=zone)
    except Invalid as error:
        whole, _, part = (error.field or "").partition(".")
        error.field = part.replace("_", " ") or ("line" if whole == "cron" else f"--{whole}")
        raise
    now = SystemClock().now()
    runs = trigger.preview(now, count)
    if session.as_json:
        show_json({"line": trigger.line, "zone": zone, "words": trigger.words(), "next_runs": runs})
        return
    show(trigger.words(), "", descriptions.runs(runs, zone, now))
