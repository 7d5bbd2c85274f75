"""Attempts side by side: what was the same in all of them said once, what differs in columns beneath each other.

Made to be read in 80 columns: as many attempts in a row as fit, the others below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tenuto.cli.formatting import local, one_line, plain, span

if TYPE_CHECKING:
    from rich.console import RenderableType

Record = dict[str, Any]
_COLUMN = 20
"""An attempt narrower than this cannot be read."""
_LABEL = 10
_SHOWN = 7
"""Of more attempts than this, the first and the last are shown."""


def compared(attempts: Sequence[Record], width: int) -> list[RenderableType]:
    """Every attempt in a column: what they share first, then how they differ."""
    from rich.text import Text

    from tenuto.cli.output import pairs

    told = [_facts(attempt) for attempt in attempts]
    same = {name for name in told[0] if len(attempts) > 1 and all(each[name] == told[0][name] for each in told)}
    lines: list[RenderableType] = []
    if shared := [(name, told[0][name]) for name in told[0] if name in same and told[0][name]]:
        lines += [Text(f"the same in all {len(attempts)} attempts", style="bold"), pairs(*shared), Text("")]
    if len(attempts) > _SHOWN:
        first, *hidden = [attempt["attempt"] for attempt in attempts[1 : 1 - _SHOWN]]
        left_out = f"attempts {first} to {hidden[-1]} are" if hidden else f"attempt {first} is"
        lines += [Text(f"{left_out} left out; -o json has all", style="dim")]
        # From here on there are only those that are shown: "as before" is as in the column before.
        attempts = [attempts[0], *attempts[1 - _SHOWN :]]
        told = [told[0], *told[1 - _SHOWN :]]
    differing = [name for name in told[0] if name not in same]
    beside = max((width - _LABEL) // (_COLUMN + 2), 1)
    for start in range(0, len(attempts), beside):
        some = range(len(attempts))[start : start + beside]
        lines += [*([Text("")] if start else []), _table(attempts, told, some, differing, width)]
    return lines


def _facts(attempt: Record) -> dict[str, str]:
    """What may be the same or differ, in words."""
    error: Mapping[str, Any] = attempt["error"] or {}
    from tenuto.cli.output import compact

    return {
        "input": compact(attempt["input"]) or "",
        "step": str(error.get("step") or ""),
        "error": str(error.get("type") or ""),
        "message": str(error.get("message") or ""),
        "reason": (attempt["reason"] or "").replace("_", " "),
        "output": compact(attempt["output"]) or "",
        "worker": str(attempt["worker"] or attempt["worker_id"] or ""),
    }


def _table(
    attempts: Sequence[Record], told: Sequence[dict[str, str]], some: Sequence[int], names: Sequence[str], width: int
) -> RenderableType:
    from rich import box
    from rich.table import Table

    from tenuto.cli.output import state

    each = max((min(width, 160) - _LABEL) // len(some) - 2, _COLUMN)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", style="dim", no_wrap=True, min_width=_LABEL - 2)
    for place in some:
        table.add_column(f"attempt {attempts[place]['attempt']}", overflow="fold", max_width=each)
    table.add_row("", *(state(attempts[place]["status"]) for place in some))
    table.add_row("began", *(_began(attempts, place) for place in some))
    table.add_row("waited", *(_waited(attempts[place]) for place in some))
    table.add_row("ran", *(_ran(attempts, place) for place in some))
    for name in names:
        if any(told[place][name] for place in some):
            table.add_row(name, *(_cell(told, place, name) for place in some))
    return table


def _cell(told: Sequence[dict[str, str]], place: int, name: str) -> Any:
    """As before is said so; what is new stands out."""
    from rich.text import Text

    value = told[place][name]
    if place and value == told[place - 1][name]:
        return Text("as before" if value else "", style="dim")
    return Text(one_line(plain(value), 240), style="red" if name in ("error", "message") else "")


def _began(attempts: Sequence[Record], place: int) -> str:
    started: datetime | None = attempts[place]["started_at"]
    if started is None:
        return "never"
    first = attempts[0]["started_at"]
    if place == 0 or first is None:
        return local(started)
    return f"{span(started - first)} after the first"


def _waited(attempt: Record) -> str:
    begun = attempt["started_at"] or attempt["ended_at"]
    return span(begun - attempt["run_at"]) if begun and begun >= attempt["run_at"] else ""


def _ran(attempts: Sequence[Record], place: int) -> str:
    ran = _seconds(attempts[place])
    if ran is None:
        return ""
    before = _seconds(attempts[place - 1]) if place else None
    if before is None or max(ran, before) < 0.1 or max(ran, before) < 2 * min(ran, before):
        return span(ran)
    return f"{span(ran)} ({'longer' if ran > before else 'shorter'})"


def _seconds(attempt: Record) -> float | None:
    if attempt["started_at"] is None or attempt["ended_at"] is None:
        return None
    return float((attempt["ended_at"] - attempt["started_at"]).total_seconds())
