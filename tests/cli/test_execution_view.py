"""Drawing of executions: a symbol and a name for every state, within eighty columns and one screen for any size."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tenuto.cli.work import execution_view
from tenuto.cli.work.execution_view import ExecutionProgress
from tenuto.model.work.executions import ExecutionState, StepState
from tenuto.model.work.tasks import OutcomeStatus, TaskState
from tenuto.operations.work.executions import ExecutionDetails
from tenuto.presentation import execution_states
from tests.support.execution_records import NOW, make_execution, make_step


def draw_lines(
    execution: ExecutionDetails, *, why: Sequence[str] = (), width: int = 80, height: int | None = 24
) -> list[str]:
    """Return the drawn lines without colours."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None, highlight=False)
    console.print(execution_view.render_execution(execution, why, width=width, height=height))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert all(cell_len(line) <= width for line in lines), lines
    return lines


@pytest.mark.parametrize(
    ("status", "more", "expected"),
    [
        ("completed", {"duration_seconds": 2.5}, "● step 0 done"),
        ("completed_with_warning", {}, "● step 0 done with warning"),
        ("running", {}, "◐ step 0 running"),
        ("running", {"progress": {"done": 3, "total": 4, "message": "x"}}, "◐ step 0 ━━━━━━━━━───  75% 3/4 x"),
        ("running", {"progress": {"done": 1200}}, "◐ step 0 running 1,200"),
        ("running", {"progress": {"message": "saving"}}, "◐ step 0 running saving"),
        ("running", {"attempt": 2}, "◐ step 0 running  attempt 2"),
        ("waiting", {}, "○ step 0 waiting"),
        ("waiting", {"kind": "schedule"}, "◐ step 0 running"),
        ("queued", {}, "○ step 0 queued"),
        ("scheduled", {"attempt": 2, "run_at": NOW + timedelta(seconds=4)}, "○ step 0 retry in 4 s, attempt 2"),
        ("failed", {"error": "no such table"}, "✗ step 0 failed: no such table"),
        ("completed_with_error", {}, "✗ step 0 failed"),
        ("cancelled", {}, "⊘ step 0 cancelled"),
        ("cancelled", {"reason": "not_run", "error": "not run: since"}, "⊘ step 0 not run"),
        ("not_run", {}, "⊘ step 0 not run"),
        ("done_before", {}, "● step 0 done before"),
    ],
)
def test_step_is_drawn_with_symbol_and_state(status: str, more: dict[str, Any], expected: str) -> None:
    line = draw_lines(make_execution(make_step(0, 0, status, **more)))[3]
    assert line.startswith(f"1 {expected}")


def test_every_state_has_a_symbol() -> None:
    for status in {*OutcomeStatus, *TaskState} - {"running"}:
        step = make_step(0, 0, status)
        assert execution_view.symbol(execution_states.step_state(step, make_execution(step))) != "?"
    for state in ExecutionState:
        execution = make_execution(make_step(0, 0, "waiting"), state=state)
        assert execution_view.symbol(execution_states.execution_state(execution)) != "?"


def test_parallel_steps_are_drawn_below_the_number_of_their_group() -> None:
    lines = draw_lines(
        make_execution(
            make_step(0, 0, "completed"),
            make_step(1, 1, "running"),
            make_step(2, 1, "completed"),
            make_step(3, 2, "waiting"),
            current_group=1,
        )
    )
    assert lines[:2] == [
        "◐ running  Nightly HR Sync  01a1e242-455c-72c2-885f-37a6c45ee51c",
        "●━━◐──○  group 2 of 3  10.0 s",
    ]
    assert [line.split()[:2] for line in lines[3:]] == [["1", "●"], ["2", "◐"], ["●", "step"], ["3", "○"]]


def test_paused_execution_shows_the_operator_and_idle_execution_the_reasons() -> None:
    execution = make_execution(make_step(0, 0, "waiting"), paused_at=NOW, paused_by="ana")
    lines = draw_lines(execution, why=["a: no worker", "b", "c"])
    assert lines[0].startswith("‖ paused")
    assert lines[1].endswith("paused by ana")
    assert lines[-2:] == ["  a: no worker", "  b"]


def test_cancelled_execution_with_running_steps_is_stopping() -> None:
    assert draw_lines(make_execution(make_step(0, 0, "running"), state="cancelled"))[0].startswith("◐ stopping")


@pytest.mark.parametrize(("groups", "steps_per_group"), [(1, 1000), (1000, 1), (30, 30), (3, 9), (1000, 10)])
@pytest.mark.parametrize("width", [80, 40])
def test_large_execution_is_folded_around_its_current_group(groups: int, steps_per_group: int, width: int) -> None:
    current = groups // 2
    steps = [
        make_step(group * steps_per_group + place, group, "completed" if group < current else "waiting")
        for group in range(groups)
        for place in range(steps_per_group)
    ]
    steps[current * steps_per_group] = replace(steps[current * steps_per_group], state=StepState.RUNNING)
    lines = draw_lines(make_execution(*steps, current_group=current), width=width)
    assert len(lines) <= 24
    assert any(line.split()[:2] == [str(current + 1), "◐"] for line in lines)


def test_folded_group_shows_counts_by_state() -> None:
    steps = [make_step(place, 0, "completed" if place < 900 else "failed") for place in range(1000)]
    assert draw_lines(make_execution(*steps))[3] == "1 ✗ 1,000 steps 900 done, 100 failed"


def test_control_characters_in_names_and_errors_are_dropped() -> None:
    step = make_step(0, 0, "failed", error="bad \x1b[2J thing\nsecond", name="\x1b[31mred\x9b1m")
    execution = make_execution(step, schedule_name="a\x1b[0mb")
    assert not {
        character for character in "".join(draw_lines(execution)) if ord(character) < 32 or 127 <= ord(character) < 160
    }
    assert "\x1b" not in "".join(ExecutionProgress(execution).changed_lines(None))


# ---- lines for a pipe


def test_changed_lines_report_only_changes() -> None:
    first = make_execution(make_step(0, 0, "queued"), make_step(1, 1, "waiting"))
    assert ExecutionProgress(first).changed_lines(None) == ["◐ Nightly HR Sync: running"]
    assert ExecutionProgress(first).changed_lines(ExecutionProgress(first)) == []
    second = make_execution(make_step(0, 0, "running", duration_seconds=0.1), make_step(1, 1, "waiting"))
    assert ExecutionProgress(second).changed_lines(ExecutionProgress(first)) == ["◐ 1 of 2 step 0: running"]
    third = make_execution(
        make_step(0, 0, "failed", duration_seconds=2.0, ended_at=NOW, error="bad", attempt=3),
        make_step(1, 1, "cancelled", reason="not_run"),
        state="failed",
        ended_at=NOW,
    )
    assert ExecutionProgress(third).changed_lines(ExecutionProgress(second)) == [
        "✗ 1 of 2 step 0: failed, attempt 3 after 2.0 s: bad",
        "⊘ 2 of 2 step 1: not run",
        "✗ Nightly HR Sync: failed",
    ]


def test_changed_lines_report_a_reason_once() -> None:
    execution = make_execution(make_step(0, 0, "queued"))
    idle = ExecutionProgress(execution, ["step 0: no worker serves queue slow"])
    assert idle.changed_lines(ExecutionProgress(execution)) == ["… step 0: no worker serves queue slow"]
    assert idle.changed_lines(idle) == []
