"""The fingerprint of a failure (J4, X): the same for failures of the same kind, whatever their message and line."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from tenuto.model.dead_letters import DeadLetterStatus, error_fingerprint, error_fingerprint_from_json, error_summary


def _raised(act: Callable[[], object]) -> dict[str, Any]:
    try:
        act()
    except Exception as error:  # as whatever runs the code of others does
        return {"type": type(error).__name__, "message": str(error), "stack": traceback.format_exc()}
    raise AssertionError("nothing was raised")


def _no_flour(kind: type[Exception] = ValueError, message: str = "no flour") -> None:
    raise kind(message)


def _no_oven() -> None:
    raise ValueError("no flour")


def _in_a_library() -> None:
    json.loads("{")


def test_the_message_does_not_matter() -> None:
    assert error_fingerprint(_raised(_no_flour)) == error_fingerprint(_raised(lambda: _no_flour(message="no 17 flour")))


def test_where_the_line_has_moved_to_does_not_matter() -> None:
    error = _raised(_no_flour)
    moved = {**error, "stack": error["stack"].replace("line ", "line 1")}
    assert moved != error
    assert error_fingerprint(moved) == error_fingerprint(error)


def test_the_folder_it_is_installed_in_does_not_matter() -> None:
    error = _raised(_no_flour)
    elsewhere = {**error, "stack": error["stack"].replace(__file__, "/srv/other/test_deadletters.py")}
    assert elsewhere != error
    assert error_fingerprint(elsewhere) == error_fingerprint(error)


def test_the_type_and_the_function_and_the_step_do() -> None:
    error = _raised(_no_flour)
    others = [_raised(lambda: _no_flour(KeyError)), _raised(_no_oven), {**error, "step": "2 load"}]
    assert len({error_fingerprint(each) for each in [error, *others]}) == 4


def test_what_counts_is_the_innermost_frame_of_ones_own() -> None:
    error = _raised(_in_a_library)
    assert "json" in error["stack"]
    assert error_fingerprint(error) != error_fingerprint(_raised(lambda: json.loads("{")))
    shallower = {**error, "stack": error["stack"].replace('decoder.py", line', 'deeper.py", line')}
    assert error_fingerprint(shallower) == error_fingerprint(error)


def test_one_without_a_stack_or_anything_has_one_too() -> None:
    assert error_fingerprint({"type": "tenuto.Lost", "message": "a"}) == error_fingerprint({"type": "tenuto.Lost", "message": "b"})
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
def test_a_failure_in_one_line(error: dict[str, Any] | None, line: str) -> None:
    assert error_summary(error) == line


def test_a_letter_waits_or_was_retried_or_acknowledged() -> None:
    assert set(DeadLetterStatus) == {"awaiting_intervention", "retried", "acknowledged"}
