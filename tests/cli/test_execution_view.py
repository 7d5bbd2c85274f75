"""The rail: every state a sign and a word, in eighty columns and on one screen, whatever the plan."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tenuto.cli.work import execution_view
from tenuto.model.executions import ExecutionState
from tenuto.model.tasks import Status, TaskState

NOW = datetime(2031, 5, 17, 12, tzinfo=UTC)


def a_step(number: int, group: int, status: str, **more: Any) -> dict[str, Any]:
    return {
        "number": number,
        "group": group,
        "name": f"step {number}",
        "kind": "job",
        "status": status,
        "reason": None,
        "attempt": 1,
        "progress": None,
        "error": None,
        "duration": None,
        "ended_at": None,
        "run_at": NOW,
        **more,
    }


def an_execution(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = max(step["group"] for step in steps) + 1
    return {
        "id": "01a1e242-455c-72c2-885f-37a6c45ee51c",
        "schedule_name": "Nightly HR Sync",
        "state": "in_progress",
        "current_group": 0,
        "total_groups": groups,
        "total_steps": len(steps),
        "paused_at": None,
        "paused_by": None,
        "started_at": NOW - timedelta(seconds=10),
        "ended_at": None,
        "duration": 10.0,
        "steps": list(steps),
        **more,
    }


def seen(execution: dict[str, Any], width: int = 80, height: int | None = 24) -> list[str]:
    """What stands on the screen, without colours."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None, highlight=False)
    console.print(execution_view.drawn(execution, width=width, height=height))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert all(cell_len(line) <= width for line in lines), lines
    return lines


@pytest.mark.parametrize(
    ("status", "more", "expected"),
    [
        ("completed", {"duration": 2.5}, "● step 0 done"),
        ("completed_with_warning", {}, "● step 0 done, with a warning"),
        ("in_progress", {}, "◐ step 0 running"),
        ("in_progress", {"progress": {"done": 3, "total": 4, "message": "x"}}, "◐ step 0 ━━━━━━━━━───  75% 3/4 x"),
        ("in_progress", {"progress": {"done": 1200}}, "◐ step 0 running 1,200"),
        ("in_progress", {"progress": {"message": "saving"}}, "◐ step 0 running saving"),
        ("in_progress", {"attempt": 2}, "◐ step 0 running  attempt 2"),
        ("waiting", {}, "○ step 0 waiting"),
        ("waiting", {"kind": "schedule"}, "◐ step 0 running"),
        ("queued", {}, "○ step 0 queued"),
        ("scheduled", {"attempt": 2, "run_at": NOW + timedelta(seconds=4)}, "○ step 0 tried again in 4 s, attempt 2"),
        ("failed", {"error": "no such table"}, "✗ step 0 failed: no such table"),
        ("completed_with_error", {}, "✗ step 0 failed"),
        ("cancelled", {}, "⊘ step 0 cancelled"),
        ("cancelled", {"reason": "not_run", "error": "not run: since"}, "⊘ step 0 not run"),
        ("not_run", {}, "⊘ step 0 not run"),
        ("done_before", {}, "● step 0 done before"),
    ],
)
def test_a_step_is_a_sign_and_a_word(status: str, more: dict[str, Any], expected: str) -> None:
    line = seen(an_execution(a_step(0, 0, status, **more)))[3]
    assert line.startswith(f"1 {expected}")


def test_every_state_there_is_has_its_sign() -> None:
    for status in {*Status, *TaskState} - {"running"}:
        assert (
            execution_view.sign(execution_view.word_of(a_step(0, 0, status), an_execution(a_step(0, 0, status)))) != "?"
        )
    for state in ExecutionState:
        assert (
            execution_view.sign(execution_view.word_of_all(an_execution(a_step(0, 0, "waiting"), state=state))) != "?"
        )


def test_steps_side_by_side_stand_under_the_number_of_their_group() -> None:
    lines = seen(
        an_execution(
            a_step(0, 0, "completed"),
            a_step(1, 1, "in_progress"),
            a_step(2, 1, "completed"),
            a_step(3, 2, "waiting"),
            current_group=1,
        )
    )
    assert lines[:2] == [
        "◐ running  Nightly HR Sync  01a1e242-455c-72c2-885f-37a6c45ee51c",
        "●━━◐──○  group 2 of 3  10.0 s",
    ]
    assert [line.split()[:2] for line in lines[3:]] == [["1", "●"], ["2", "◐"], ["●", "step"], ["3", "○"]]


def test_a_paused_one_says_who_paused_it_and_an_idle_one_why() -> None:
    lines = seen(an_execution(a_step(0, 0, "waiting"), paused_at=NOW, paused_by="ana", why=["a: no worker", "b", "c"]))
    assert lines[0].startswith("‖ paused")
    assert lines[1].endswith("paused by ana")
    assert lines[-2:] == ["  a: no worker", "  b"]


def test_a_cancelled_one_that_has_not_come_to_rest_is_stopping() -> None:
    assert seen(an_execution(a_step(0, 0, "in_progress"), state="cancelled"))[0].startswith("◐ stopping")


@pytest.mark.parametrize(("groups", "side_by_side"), [(1, 1000), (1000, 1), (30, 30), (3, 9), (1000, 10)])
@pytest.mark.parametrize("width", [80, 40])
def test_a_plan_too_large_for_the_screen_is_folded_around_where_it_is(
    groups: int, side_by_side: int, width: int
) -> None:
    current = groups // 2
    steps = [
        a_step(group * side_by_side + place, group, "completed" if group < current else "waiting")
        for group in range(groups)
        for place in range(side_by_side)
    ]
    steps[current * side_by_side]["status"] = "in_progress"
    lines = seen(an_execution(*steps, current_group=current), width=width)
    assert len(lines) <= 24
    assert any(line.split()[:2] == [str(current + 1), "◐"] for line in lines)


def test_many_steps_on_one_line_are_counted() -> None:
    steps = [a_step(place, 0, "completed" if place < 900 else "failed") for place in range(1000)]
    assert seen(an_execution(*steps))[3] == "1 ✗ 1,000 steps 900 done, 100 failed"


def test_what_others_wrote_cannot_move_the_cursor() -> None:
    step = a_step(0, 0, "failed", error="bad \x1b[2J thing\nsecond", name="\x1b[31mred\x9b1m")
    execution = an_execution(step, schedule_name="a\x1b[0mb")
    assert not {letter for letter in "".join(seen(execution)) if ord(letter) < 32 or 127 <= ord(letter) < 160}
    assert "\x1b" not in "".join(execution_view.news(None, execution))


# ---- line by line


def test_only_what_has_changed_is_told() -> None:
    first = an_execution(a_step(0, 0, "queued"), a_step(1, 1, "waiting"))
    assert execution_view.news(None, first) == ["◐ Nightly HR Sync: running"]
    assert execution_view.news(first, first) == []
    second = an_execution(a_step(0, 0, "in_progress", duration=0.1), a_step(1, 1, "waiting"))
    assert execution_view.news(first, second) == ["◐ 1 of 2 step 0: running"]
    third = an_execution(
        a_step(0, 0, "failed", duration=2.0, ended_at=NOW, error="bad", attempt=3),
        a_step(1, 1, "cancelled", reason="not_run"),
        state="failed",
        ended_at=NOW,
    )
    assert execution_view.news(second, third) == [
        "✗ 1 of 2 step 0: failed, attempt 3 after 2.0 s: bad",
        "⊘ 2 of 2 step 1: not run",
        "✗ Nightly HR Sync: failed",
    ]


def test_a_reason_is_told_once() -> None:
    idle = an_execution(a_step(0, 0, "queued"), why=["step 0: no worker serves queue slow"])
    assert execution_view.news(an_execution(a_step(0, 0, "queued")), idle) == ["… step 0: no worker serves queue slow"]
    assert execution_view.news(idle, idle) == []
