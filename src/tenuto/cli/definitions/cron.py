"""``tenuto cron``: explain cron lines, without a database or an app."""

from __future__ import annotations

from typing import Annotated

from tenuto.cli.command import Session, command, group
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, option
from tenuto.cli.tables import print_rich, upcoming_runs_table
from tenuto.clock import SystemClock
from tenuto.errors import Invalid
from tenuto.model.triggers import cron

_EXAMPLES = ("'0 2 * * *' --zone Europe/London", "'*/15 9-17 * * mon-fri' -n 10 -o json")
cron_commands = group("cron", "Explain cron lines.", *(f"explain {example}" for example in _EXAMPLES))


@command(cron_commands, "explain", *_EXAMPLES, shared=("output", "quiet"))
def explain_cron_line(
    session: Session,
    line: Annotated[str, argument("LINE", "Five cron fields in quotes, or a macro such as @daily.")],
    zone: Annotated[str, option("ZONE", "Time zone of the line.")] = "UTC",
    count: Annotated[int, option("N", "Number of runs.", "--count", "-n", min=1, max=1000)] = 5,
) -> None:
    """Describe a cron line and show its next runs, or name its invalid field."""
    try:
        trigger = cron(line, zone=zone)
    except Invalid as error:
        whole, _, part = (error.field or "").partition(".")
        error.field = part.replace("_", " ") or ("line" if whole == "cron" else f"--{whole}")
        raise
    now = SystemClock().now()
    runs = trigger.preview(now, count)
    if session.as_json:
        print_json({"line": trigger.line, "zone": zone, "description": trigger.describe(), "next_runs": runs})
        return
    print_rich(trigger.describe(), "", upcoming_runs_table(runs, zone, now))
