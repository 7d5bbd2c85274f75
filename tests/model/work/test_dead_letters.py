"""Dead letters (J4, X): failures of the same kind share a fingerprint, whatever message and line."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from tenuto.model.work.dead_letters import (
    DeadLetterState,
    error_fingerprint,
    error_fingerprint_from_json,
    error_summary,
)


def _record_error(act: Callable[[], object]) -> dict[str, Any]:
    try:
        act()
    except Exception as error:
        return {"type": type(error).__name__, "message": str(error), "stack": traceback.format_exc()}
    raise AssertionError("the function raised nothing")


def _raise_no_flour(kind: type[Exception] = ValueError, message: str = "no flour") -> None:
    raise kind(message)


def _raise_no_oven() -> None:
    raise ValueError("no flour")


def _raise_in_library() -> None:
    json.loads("{")


def test_error_fingerprint_ignores_the_message() -> None:
    assert error_fingerprint(_record_error(_raise_no_flour)) == error_fingerprint(
        _record_error(lambda: _raise_no_flour(message="no 17 flour"))
    )


def test_error_fingerprint_ignores_line_numbers() -> None:
    error = _record_error(_raise_no_flour)
    moved = {**error, "stack": error["stack"].replace("line ", "line 1")}
    assert moved != error
    assert error_fingerprint(moved) == error_fingerprint(error)


def test_error_fingerprint_ignores_the_installation_directory() -> None:
    error = _record_error(_raise_no_flour)
    elsewhere = {**error, "stack": error["stack"].replace(__file__, "/srv/other/test_dead_letters.py")}
    assert elsewhere != error
    assert error_fingerprint(elsewhere) == error_fingerprint(error)


def test_error_fingerprint_depends_on_type_function_and_step() -> None:
    error = _record_error(_raise_no_flour)
    others = [
        _record_error(lambda: _raise_no_flour(KeyError)),
        _record_error(_raise_no_oven),
        {**error, "step": "2 load"},
    ]
    assert len({error_fingerprint(each) for each in [error, *others]}) == 4


def test_error_fingerprint_uses_the_innermost_frame_outside_libraries() -> None:
    error = _record_error(_raise_in_library)
    assert "json" in error["stack"]
    assert error_fingerprint(error) != error_fingerprint(_record_error(lambda: json.loads("{")))
    shallower = {**error, "stack": error["stack"].replace('decoder.py", line', 'deeper.py", line')}
    assert error_fingerprint(shallower) == error_fingerprint(error)


def test_error_without_stack_or_fields_has_a_fingerprint() -> None:
    assert error_fingerprint({"type": "tenuto.Lost", "message": "a"}) == error_fingerprint(
        {"type": "tenuto.Lost", "message": "b"}
    )
    assert error_fingerprint(None) == error_fingerprint({}) == error_fingerprint_from_json(None)
    assert len(error_fingerprint(None)) == 12


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ({"type": "ValueError", "message": "no flour\nand no salt"}, "ValueError: no flour"),
        ({"type": "ValueError", "message": ""}, "ValueError"),
        (None, "failed"),
    ],
)
def test_error_summary_is_one_line(error: dict[str, Any] | None, line: str) -> None:
    assert error_summary(error) == line


def test_dead_letter_statuses() -> None:
    assert set(DeadLetterState) == {"awaiting_intervention", "retried", "acknowledged"}
