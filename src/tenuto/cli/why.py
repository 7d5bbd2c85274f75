"""``tenuto task why``: the reasons, laid out for a person; also for the commands that show one task or execution."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tenuto.cli.frame import Session
from tenuto.cli.words import ago, local, one_line, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.engine.why import Reason, Why

_NOT_NEWS = ("ended", "running")
"""What the command that shows a task tells anyway."""


async def why_task(
    session: Session,
    task_id: Annotated[str, typer.Argument(metavar="ID", help="The task's id, or the beginning of it.")],
) -> None:
    """Say why a task is not running.

    What holds it up now comes first, what would hold it up next after it. Of one that runs it says who runs it, of one
    that has ended how.
    """
    from tenuto.cli import history
    from tenuto.cli.output import show, show_json

    app = session.app
    task = await app.activity(await app.find(task_id))
    why = await app.why(task["task_id"])
    if session.as_json:
        show_json(why)
        return
    state = "in_progress" if why.state == "running" else why.state
    now = (await app.open()).clock.now()
    show(history.heading({**task, "id": why.id}, state), "", *laid_out(why, now))


def in_brief(why: Why, now: datetime) -> list[RenderableType]:
    """The reasons as a part of something larger; nothing if they would only say what stands there already."""
    from rich.text import Text

    if all(reason.code in _NOT_NEWS for reason in why.reasons):
        return []
    title = "why it does not go on" if any(reason.step for reason in why.reasons) else "why it is not running"
    return [Text(""), Text(title, style="bold"), *laid_out(why, now)]


def laid_out(why: Why, now: datetime) -> list[RenderableType]:
    """One line for each reason, and below it the ids behind it."""
    from rich.text import Text

    lines: list[RenderableType] = []
    for reason in why.reasons:
        step = f"{plain(reason.step)}: " if reason.step else ""
        lines.append(Text(f"  • {step}{one_line(reason.words, 500)}{_when(reason, now)}"))
        lines += [Text(f"      {id}", style="dim") for id in reason.ids if str(id) not in reason.words]
    return lines


def _when(reason: Reason, now: datetime) -> str:
    if reason.until is None:
        return ""
    return f" (here {local(reason.until)}, {ago(reason.until, now)})"
