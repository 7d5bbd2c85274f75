"""Drawing of an execution: its step groups one after the other, parallel steps below the number of their group.

Every state has a symbol, a name and a colour; each of them identifies it. Nothing is queried here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tenuto.operations.work.executions import ExecutionDetails, StepDetails
from tenuto.presentation.execution_states import execution_state, group_state, step_state
from tenuto.presentation.text_formats import format_duration, format_relative, one_line, safe_text

_STYLES = {
    "done": ("●", "green"),
    "done before": ("●", "dim green"),
    "done with warning": ("●", "yellow"),
    "running": ("◐", "yellow"),
    "waiting": ("○", "dim"),
    "queued": ("○", "blue"),
    "retrying": ("○", "yellow"),
    "failed": ("✗", "red"),
    "cancelled": ("⊘", "magenta"),
    "not run": ("⊘", "dim"),
    "skipped": ("⊘", "dim"),
    "paused": ("‖", "yellow"),
    "stopping": ("◐", "magenta"),
    "completed": ("●", "green"),
}
_BAR_WIDTH = 12
_LINES_AROUND_STEPS = 8
"""Heading, group line, blank lines and the reasons why nothing runs."""
_MIN_NAME_WIDTH = 20
_MAX_REASONS = 2


def symbol(state: str) -> str:
    return _STYLES.get(state, ("?", ""))[0]


def colour(state: str) -> str:
    return _STYLES.get(state, ("", ""))[1]


def state_text(state: str) -> Text:
    """Return symbol and name of a display state in its colour."""
    return Text(f"{symbol(state)} {state}", style=colour(state))


# --- drawing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExecutionProgress:
    """An execution at one moment, for a live view; ``why`` are the reasons why nothing runs."""

    record: ExecutionDetails
    why: Sequence[str] = ()

    @property
    def is_over(self) -> bool:
        return self.record.ended_at is not None

    @property
    def is_idle(self) -> bool:
        return not self.is_over and "running" not in (step_state(each, self.record) for each in self.record.steps)

    def render(self, width: int, height: int | None = None) -> RenderableType:
        return render_execution(self.record, self.why, width=width, height=height)

    def changed_lines(self, before: ExecutionProgress | None) -> list[str]:
        return _describe_changes(before, self)


def render_execution(
    execution: ExecutionDetails, why: Sequence[str] = (), *, width: int, height: int | None = None
) -> RenderableType:
    """Draw the execution within the width and, if given, the height of the terminal."""
    groups = [list(steps) for _, steps in groupby(execution.steps, key=lambda step: step.group)]
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(justify="right", style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(width // 3, _MIN_NAME_WIDTH))
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    grid.add_column(justify="right", style="dim", no_wrap=True)
    line_count = None if height is None else max(height - _LINES_AROUND_STEPS, len(groups) and 4)
    for row in _rows(groups, execution, line_count):
        grid.add_row(*row)
    reasons = [Padding(Text(one_line(reason, 150), style="yellow"), (0, 0, 0, 2)) for reason in why[:_MAX_REASONS]]
    return Group(_heading(execution, groups, width), Text(""), grid, *reasons)


def _heading(execution: ExecutionDetails, groups: Sequence[Sequence[StepDetails]], width: int) -> RenderableType:
    name, id = (safe_text(execution.schedule_name), "bold"), (str(execution.id), "dim")
    title = Text.assemble(state_text(execution_state(execution)), "  ", name, "  ", id)
    title.truncate(width, overflow="ellipsis")
    line = Text()
    for number, steps in enumerate(groups):
        state = group_state([step_state(step, execution) for step in steps])
        if number:
            line.append("━━" if number <= execution.current_group else "──", style="dim")
        line.append(symbol(state), style=colour(state))
    place = f"group {execution.current_group + 1} of {execution.group_count}"
    facts = f"  {place}  {format_duration(execution.duration_seconds)}"
    if execution.paused_at is not None and execution.state == "in_progress":
        facts += f"  paused by {safe_text(execution.paused_by)}"
    if line.cell_len + len(facts) > width:  # too many groups for one symbol each
        line = Text()
    line.append(facts.strip() if not line else facts)
    return Group(title, line)


def _rows(
    groups: Sequence[Sequence[StepDetails]], execution: ExecutionDetails, line_count: int | None
) -> Iterator[tuple[Text | str, ...]]:
    """Yield one line per step; if they do not fit, one line per group, and at last only the groups near the current."""
    total = sum(len(steps) for steps in groups)
    current: int = execution.current_group
    shown = range(len(groups))
    if line_count is not None and total > line_count and len(groups) > line_count:
        first = max(0, min(current - line_count // 2, len(groups) - line_count))
        shown = range(first, first + line_count)
    free_lines = 0 if line_count is None else line_count - len(shown)
    for number in shown:
        steps = groups[number]
        folded = line_count is not None and total > line_count and (number != current or len(steps) - 1 > free_lines)
        if folded and len(steps) > 1:
            yield _group_row(number, steps, execution)
            continue
        for position, step in enumerate(steps):
            yield _step_row(str(number + 1) if position == 0 else "", step, execution)


def _step_row(label: str, step: StepDetails, execution: ExecutionDetails) -> tuple[Text | str, ...]:
    state = step_state(step, execution)
    style = colour(state)
    if state == "retrying":
        now = execution.started_at + timedelta(seconds=execution.duration_seconds)
        text = Text(f"retry {format_relative(step.run_at, now)}, attempt {step.attempt}", style=style)
    else:
        text = _progress(step.progress) if state == "running" and step.progress else Text(state, style=style)
        if step.attempt > 1:
            text.append(f"  attempt {step.attempt}", style="dim")
        if step.error and state in ("failed", "cancelled", "skipped"):
            text.append(f": {_error(step)}")
    duration = "" if step.duration_seconds is None else format_duration(step.duration_seconds)
    return label, Text(symbol(state), style=style), Text(one_line(step.name)), text, duration


def _error(step: StepDetails) -> str:
    """Return the error without repeating that the step was cancelled or skipped."""
    return one_line(step.error).removeprefix("cancelled ").removeprefix("skipped: ")


def _progress(progress: dict[str, Any]) -> Text:
    """Draw a bar if the total is known, then the numbers and the message."""
    done, total, message = progress.get("done"), progress.get("total"), progress.get("message")
    text = Text()
    if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
        share = min(max(done / total, 0.0), 1.0)
        full = int(share * _BAR_WIDTH)
        text.append("━" * full, style="yellow")
        text.append("─" * (_BAR_WIDTH - full), style="dim")
        text.append(f" {share:4.0%} {done:,}/{total:,}")
    else:
        text.append(f"running {done:,}" if isinstance(done, int | float) else "running", style="yellow")
    if message:
        text.append(f" {one_line(message)}")
    return text


def _group_row(number: int, steps: Sequence[StepDetails], execution: ExecutionDetails) -> tuple[Text | str, ...]:
    counts = Counter(step_state(step, execution) for step in steps)
    state = group_state(list(counts))
    longest = max((step.duration_seconds or 0.0 for step in steps), default=0.0)
    return (
        str(number + 1),
        Text(symbol(state), style=colour(state)),
        Text(f"{len(steps):,} steps"),
        Text(", ".join(f"{count:,} {name}" for name, count in counts.most_common()), style=colour(state)),
        format_duration(longest) if longest else "",
    )


# --- lines for a pipe -----------------------------------------------------------------------------------------------


def _describe_changes(before: ExecutionProgress | None, current: ExecutionProgress) -> list[str]:
    """Return one line for each change between two snapshots."""
    execution = current.record
    earlier = {each.number: _step_progress(each, before.record) for each in before.record.steps} if before else {}
    state = execution_state(execution)
    state_line = f"{symbol(state)} {execution.schedule_name}: {state}"
    lines = [state_line] if before is None else []
    for step in execution.steps:
        progress = _step_progress(step, execution)
        if progress != earlier.get(step.number, ("waiting", 0)):
            lines.append(_step_line(step, progress[0], execution))
    if before is not None and execution_state(before.record) != state:
        lines.append(state_line)
    known = () if before is None else before.why
    lines += [f"… {reason}" for reason in current.why[:_MAX_REASONS] if reason not in known]
    return [one_line(line, 500) for line in lines]


def _step_progress(step: StepDetails, execution: ExecutionDetails) -> tuple[str, int]:
    state = step_state(step, execution)
    return ("waiting", 0) if state in ("queued", "waiting") else (state, step.attempt)


def _step_line(step: StepDetails, state: str, execution: ExecutionDetails) -> str:
    attempt = f", attempt {step.attempt}" if step.attempt > 1 else ""
    seconds = None if step.ended_at is None else step.duration_seconds
    duration = "" if seconds is None else f" after {format_duration(seconds)}"
    error = f": {_error(step)}" if step.error and state in ("failed", "cancelled", "skipped") else ""
    place = f"{step.group + 1} of {execution.group_count}"
    return f"{symbol(state)} {place}  {step.name}: {state}{attempt}{duration}{error}"
