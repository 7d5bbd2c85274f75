"""The rail: an execution drawn as its step groups, one after the other, those side by side stacked under their number.

Every state is a sign, a word and a colour; any one of them will do. Draws what it is given and asks nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tenuto.cli.formatting import ago, one_line, plain, span

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

Record = dict[str, Any]

_LOOKS = {
    "done": ("●", "green"),
    "done before": ("●", "dim green"),
    "done, with a warning": ("●", "yellow"),
    "running": ("◐", "yellow"),
    "waiting": ("○", "dim"),
    "queued": ("○", "blue"),
    "tried again": ("○", "yellow"),
    "failed": ("✗", "red"),
    "cancelled": ("⊘", "magenta"),
    "not run": ("⊘", "dim"),
    "paused": ("‖", "yellow"),
    "stopping": ("◐", "magenta"),
    "completed": ("●", "green"),
}
_BAR = 12
_WORST_FIRST = ("failed", "cancelled", "running", "tried again", "queued", "waiting", "not run")
_STILL_OPEN = ("running", "tried again", "queued", "waiting")
_AROUND = 8
"""Lines beside those of the steps: the head, the rail, blanks, and the reasons why nothing runs."""
_NARROW = 20
_REASONS = 2


def word_of(step: Record, execution: Record) -> str:
    """What has become of a step, in one of a few words."""
    match step["status"]:
        case "completed":
            return "done"
        case "completed_with_warning":
            return "done, with a warning"
        case "failed" | "completed_with_error":
            return "failed"
        case "in_progress":
            return "running"
        case "cancelled":
            return "not run" if step["reason"] == "not_run" else "cancelled"
        case "queued" | "scheduled":
            return "tried again" if step["attempt"] > 1 else "queued"
        case "waiting":
            # A step that runs another schedule lets its worker go: it waits for the end of that one.
            begun = step["kind"] == "schedule" and step["group"] == execution["current_group"]
            return "running" if begun and execution["paused_at"] is None else "waiting"
        case status:
            return str(status).replace("_", " ")


def word_of_all(execution: Record) -> str:
    """What has become of the whole."""
    if execution["state"] == "cancelled" and execution["ended_at"] is None:
        return "stopping"
    if execution["state"] == "in_progress":
        return "running" if execution["paused_at"] is None else "paused"
    return str(execution["state"])


def sign(word: str) -> str:
    return _LOOKS.get(word, ("?", ""))[0]


def colour(word: str) -> str:
    return _LOOKS.get(word, ("", ""))[1]


def told(word: str) -> Text:
    """Sign and word, in its colour."""
    from rich.text import Text

    return Text(f"{sign(word)} {word}", style=colour(word))


# --- the drawing ----------------------------------------------------------------------------------------------------


def drawn(execution: Record, *, width: int, height: int | None = None) -> RenderableType:
    """The whole picture, no wider than the terminal and, if it goes on changing, no higher."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    groups = [list(steps) for _, steps in groupby(execution["steps"], key=lambda step: step["group"])]
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(justify="right", style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(width // 3, _NARROW))
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(justify="right", style="dim", no_wrap=True)
    room = None if height is None else max(height - _AROUND, len(groups) and 4)
    for row in _rows(groups, execution, room):
        grid.add_row(*row)
    return Group(_head(execution, groups, width), Text(""), grid, *_reasons(execution))


def _reasons(execution: Record) -> list[RenderableType]:
    """Why nothing of it runs, if that was asked for."""
    from rich.padding import Padding
    from rich.text import Text

    told = execution.get("why", [])[:_REASONS]
    return [Padding(Text(one_line(words, 150), style="yellow"), (0, 0, 0, 2)) for words in told]


def _head(execution: Record, groups: Sequence[Sequence[Record]], width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    word = word_of_all(execution)
    place = f"group {execution['current_group'] + 1} of {execution['total_groups']}"
    title = Text.assemble(
        told(word), "  ", (plain(execution["schedule_name"]), "bold"), "  ", (str(execution["id"]), "dim")
    )
    title.truncate(width, overflow="ellipsis")
    line = Text()
    for number, steps in enumerate(groups):
        of_group = group_word([word_of(step, execution) for step in steps])
        if number:
            line.append("━━" if number <= execution["current_group"] else "──", style="dim")
        line.append(sign(of_group), style=colour(of_group))
    facts = f"  {place}  {span(execution['duration'])}"
    if execution["paused_at"] is not None and execution["state"] == "in_progress":
        facts += f"  paused by {plain(execution['paused_by'])}"
    if line.cell_len + len(facts) > width:  # too many groups to draw one sign for each
        line = Text()
    line.append(facts.strip() if not line else facts)
    return Group(title, line)


def group_word(words: Sequence[str]) -> str:
    """One word for all the steps of a group: the one that matters most."""
    present = set(words)
    if "running" in present or (present & set(_STILL_OPEN) and present - set(_STILL_OPEN)):
        return "running"
    return next((word for word in _WORST_FIRST if word in present), words[0])


def _rows(groups: Sequence[Sequence[Record]], execution: Record, room: int | None) -> Iterator[tuple[Text | str, ...]]:
    """A line for each step; if there is no room for all, a line for each group, and in the end for those around."""
    total = sum(len(steps) for steps in groups)
    current: int = execution["current_group"]
    shown = range(len(groups))
    if room is not None and total > room and len(groups) > room:
        first = max(0, min(current - room // 2, len(groups) - room))
        shown = range(first, first + room)
    spare = None if room is None else room - len(shown)
    for number in shown:
        steps = groups[number]
        folded = room is not None and total > room and (number != current or len(steps) - 1 > (spare or 0))
        if folded and len(steps) > 1:
            yield _summary(number, steps, execution)
            continue
        for position, step in enumerate(steps):
            yield _row(str(number + 1) if position == 0 else "", step, execution)


def _row(label: str, step: Record, execution: Record) -> tuple[Text | str, ...]:
    from rich.text import Text

    word = word_of(step, execution)
    look = colour(word)
    took = "" if step["duration"] is None else span(step["duration"])
    text = _state(step, word)
    if word == "tried again":
        now = execution["started_at"] + timedelta(seconds=execution["duration"])
        text = Text(f"tried again {ago(step['run_at'], now)}, attempt {step['attempt']}", style=look)
    return label, Text(sign(word), style=look), Text(one_line(step["name"])), text, took


def _state(step: Record, word: str) -> Text:
    from rich.text import Text

    text = Text(word, style=colour(word))
    if word == "running" and step["progress"]:
        text = _progress(step["progress"])
    if step["attempt"] > 1:
        text.append(f"  attempt {step['attempt']}", style="dim")
    if step["error"] and word in ("failed", "cancelled"):
        text.append(f": {_error(step)}")
    return text


def _error(step: Record) -> str:
    """What went wrong, without saying twice that it was cancelled."""
    return one_line(step["error"]).removeprefix("cancelled ")


def _progress(progress: Record) -> Text:
    """A bar as far as there is a total, then the figures and the message."""
    from rich.text import Text

    done, total, message = progress.get("done"), progress.get("total"), progress.get("message")
    text = Text()
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        share = min(max(done / total, 0.0), 1.0)
        full = int(share * _BAR)
        text.append("━" * full, style="yellow")
        text.append("─" * (_BAR - full), style="dim")
        text.append(f" {share:4.0%} {done:,}/{total:,}")
    elif done is not None:
        text.append(f"running {done:,}" if isinstance(done, int | float) else "running", style="yellow")
    else:
        text.append("running", style="yellow")
    if message:
        text.append(f" {one_line(message)}")
    return text


def _summary(number: int, steps: Sequence[Record], execution: Record) -> tuple[Text | str, ...]:
    """Many steps on one line."""
    from rich.text import Text

    counts = Counter(word_of(step, execution) for step in steps)
    whole = group_word(list(counts))
    told = ", ".join(f"{count:,} {word}" for word, count in counts.most_common())
    longest = max((step["duration"] or 0.0 for step in steps), default=0.0)
    return (
        str(number + 1),
        Text(sign(whole), style=colour(whole)),
        Text(f"{len(steps):,} steps"),
        Text(told, style=colour(whole)),
        span(longest) if longest else "",
    )


# --- line by line ---------------------------------------------------------------------------------------------------


def news(before: Record | None, after: Record) -> list[str]:
    """What has changed between two looks, a line for each change: for a pipe, where nothing can be drawn over."""
    earlier = {step["number"]: _seen(step, before) for step in before["steps"]} if before is not None else {}
    lines = []
    if before is None:
        lines.append(f"{sign(word_of_all(after))} {after['schedule_name']}: {word_of_all(after)}")
    for step in after["steps"]:
        seen = _seen(step, after)
        if seen == earlier.get(step["number"], ("waiting", 0)):
            continue
        lines.append(_line(step, seen[0], after))
    if before is not None and word_of_all(before) != word_of_all(after):
        lines.append(f"{sign(word_of_all(after))} {after['schedule_name']}: {word_of_all(after)}")
    known = [] if before is None else before.get("why", [])
    lines += [f"… {words}" for words in after.get("why", [])[:_REASONS] if words not in known]
    return [one_line(line, 500) for line in lines]


def _seen(step: Record, execution: Record | None) -> tuple[str, int]:
    word = word_of(step, execution or {})
    return ("waiting", 0) if word in ("queued", "waiting") else (word, step["attempt"])


def _line(step: Record, word: str, execution: Record) -> str:
    attempt = f", attempt {step['attempt']}" if step["attempt"] > 1 else ""
    ended = step["ended_at"] is not None and step["duration"] is not None
    took = f" after {span(step['duration'])}" if ended else ""
    why = f": {_error(step)}" if step["error"] and word in ("failed", "cancelled") else ""
    place = f"{step['group'] + 1} of {execution['total_groups']}"
    return f"{sign(word)} {place}  {step['name']}: {word}{attempt}{took}{why}"
