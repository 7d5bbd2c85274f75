"""``tenuto task why``: the reasons, laid out for a person; also for the commands that show one task or execution.

One task and its attempts, laid out for a person: what it is, how each attempt went, side by side in time.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tenuto.cli.command import Session
from tenuto.cli.formatting import ago, local, one_line, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.diagnostics.why import Reason, Why


from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tenuto.cli.formatting import span
from tenuto.cli.output import colour_of, compact, fitted, state

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


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
    from tenuto.cli.output import show, show_json

    app = session.app
    task = await app.activity(await app.find(task_id))
    why = await app.why(task["task_id"])
    if session.as_json:
        show_json(why)
        return
    state = "in_progress" if why.state == "running" else why.state
    now = (await app.open()).clock.now()
    show(heading({**task, "id": why.id}, state), "", *laid_out(why, now))


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


_BAR = 24
_TAIL = 8

Record = dict[str, Any]


def heading(record: Record, word: str) -> Text:
    """Glyph, state, name and id."""
    from rich.text import Text

    return Text.assemble(state(word), "  ", (plain(record["name"]), "bold"), "  ", (str(record["id"]), "dim"))


def facts(record: Record, now: datetime) -> list[tuple[str, Any]]:
    """What the task is, whoever runs it."""
    priority = f", priority {record['priority']}" if record["priority"] else ""
    return [
        ("queue", f"{record['queue']}{priority}"),
        ("created", f"{local(record['created_at'])} ({ago(record['created_at'], now)}) by {_who(record)}"),
        ("tags", ", ".join(record.get("tags") or [])),
        ("key", record.get("unique_key")),
        ("limit", _limit(record)),
        ("correlation", record.get("correlation_id")),
        ("asked for by", record.get("parent_id")),
        ("input", compact(record.get("input"))),
        ("output", compact(record.get("output"))),
    ]


def present(task: Record, now: datetime) -> list[tuple[str, Any]]:
    """What an open task is up to."""
    due = f"{local(task['run_at'])} ({ago(task['run_at'], now)})" if task["state"] == "scheduled" else None
    stopping = None
    if task["cancel_at"] is not None:
        stopping = f"asked to {ago(task['cancel_at'], now)} by {task['cancel_name']}"
    return [
        ("due", due),
        ("held by", task["worker"] or task["worker_id"]),
        ("lease ends", ago(task["lease_until"], now)),
        ("stopping", stopping),
        ("progress", progress(task["progress"])),
    ]


def attempts(records: Sequence[Record], now: datetime) -> RenderableType:
    """One line for each attempt, with a bar that shows when it waited and when it ran."""
    rows = []
    for record, bar in zip(records, _bars(records, now), strict=True):
        rows.append(
            (
                record["attempt"],
                state(record["status"]),
                (record["reason"] or "").replace("_", " "),
                *_spans(record, now),
                record["worker"] or record["worker_id"],
                bar,
                summary(record["error"]),
            )
        )
    return fitted(
        ("attempt", "status", "reason", "waited", "ran", "worker", "in time", "error"),
        rows,
        spare=("worker", "in time") if len(records) > 1 else ("worker",),
        flexible=("error",),
    )


def chain(steps: Sequence[Record], now: datetime) -> list[RenderableType]:
    """What the steps of a chain have come to; nothing for any other task."""
    if not steps:
        return []
    rows = [(step["name"], local(step["ended_at"]), _came_to(step, now)) for step in steps]
    return ["", fitted(("step", "ended", "result"), rows, spare=("ended",), flexible=("result",))]


def _came_to(step: Record, now: datetime) -> str | None:
    if step["until"] is not None:
        return f"until {local(step['until'])} ({ago(step['until'], now)})"
    return f"stopped with {compact(step['output'])}" if step["stopped"] else compact(step["output"])


def log_of(record: Record, *, whole: bool) -> list[RenderableType]:
    """The log of an attempt, or the end of it."""
    from rich.text import Text

    if not record.get("log"):
        return []
    lines = plain(record["log"]).rstrip("\n").split("\n")
    shown = lines if whole else lines[-_TAIL:]
    title = f"log of attempt {record['attempt']}"
    if len(shown) < len(lines):
        title += f" (the last {len(shown)} of {len(lines)} lines; --log for all)"
    return [Text(""), Text(title, style="bold"), Text("\n".join(f"  {line}" for line in shown))]


def stack_of(record: Record) -> list[RenderableType]:
    """The stack trace an attempt left."""
    from rich.text import Text

    stack = (record.get("error") or {}).get("stack")
    if not stack:
        return []
    lines = plain(stack).rstrip("\n").split("\n")
    title = Text(f"error of attempt {record['attempt']}", style="bold")
    return [Text(""), title, Text("\n".join(f"  {line}" for line in lines), style="red")]


def summary(error: Record | None) -> str | None:
    """An error in one line."""
    return None if error is None else one_line(f"{error.get('type', 'error')}: {error.get('message', '')}")


def progress(value: Record | None) -> str | None:
    """How far it has come, in one line."""
    if value is None:
        return None
    parts = []
    if value.get("done") is not None:
        parts.append(f"{value['done']}/{value['total']}" if value.get("total") else f"{value['done']}")
    if value.get("message"):
        parts.append(str(value["message"]))
    return one_line(" ".join(parts) or compact(value))


def _who(record: Record) -> str:
    kind = record["initiator_type"].replace("_", " ")
    return f"{plain(record['initiator_name'])} ({kind})"


def _limit(record: Record) -> str | None:
    if record.get("limit_key") is None:
        return None
    most = f"at most {record['limit_max']} of " if record.get("limit_max") else ""
    return f"{most}{record['limit_key']}"


def _spans(record: Record, now: datetime) -> tuple[str, str]:
    started, ended = record["started_at"], record["ended_at"]
    waited = span((started or ended or now) - record["run_at"]) if record["run_at"] <= (started or ended or now) else ""
    if started is None:
        return waited, ""
    return waited, span(ended - started) if ended else f"{span(now - started)} so far"


def _bars(records: Sequence[Record], now: datetime) -> list[Text]:
    """A bar for each attempt on one common scale, from the task's creation to the last end, or to now."""
    from rich.text import Text

    begin = records[0]["created_at"]
    end = max(max(record["ended_at"] or now, record["started_at"] or begin) for record in records)
    whole = max((end - begin).total_seconds(), 1e-6)

    def place(instant: datetime) -> int:
        return min(max(int((instant - begin).total_seconds() / whole * _BAR), 0), _BAR - 1)

    bars = []
    for record in records:
        due = place(min(record["run_at"], end))
        if record["started_at"] is None:
            bars.append(Text(" " * due + "·" * (_BAR - due), style="dim"))
            continue
        first, last = place(record["started_at"]), place(record["ended_at"] or now)
        bar = Text(" " * min(due, first))
        bar.append("·" * (first - due), style="dim")
        bar.append("━" * (last - first + 1), style=colour_of(record["status"]))
        bars.append(bar)
    return bars
