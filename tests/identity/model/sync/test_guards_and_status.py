"""Safety guards and the status of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.model.work.tasks import OutcomeStatus
from tenuto_identity.model.sync.guards import (
    DEFAULT_LIMITS,
    Consequence,
    GuardKind,
    GuardLimit,
    GuardLimits,
    GuardMeasurement,
    allowed_count,
    evaluate_guards,
)
from tenuto_identity.model.sync.run_status import RunTotals, decide_status


@pytest.mark.parametrize(
    ("affected", "total", "trips"),
    [
        (21, 100, True),
        (20, 100, False),
        (9, 15, False),
        (10, 15, True),
        (10, 50, False),
        (11, 50, True),
        (100, 100, True),
        (0, 0, False),
    ],
)
@pytest.mark.parametrize(
    "kind", [GuardKind.DELETIONS, GuardKind.CLEARING, GuardKind.IDENTITY_DELETIONS, GuardKind.EXPORT_DELETES]
)
def test_guard_trips_above_its_percentage_from_its_minimum(
    kind: GuardKind, affected: int, total: int, trips: bool
) -> None:
    found = evaluate_guards([GuardMeasurement(kind, "person", affected, total)], DEFAULT_LIMITS)
    assert bool(found) is trips


def test_message_has_numbers_and_limit() -> None:
    (found,) = evaluate_guards([GuardMeasurement(GuardKind.DELETIONS, "person", 21, 100)], DEFAULT_LIMITS)
    assert found.message == "21 of 100 (21 %) of person would be deleted, limit 20 % from 10"
    assert found.consequence is Consequence.HOLD
    (cleared,) = evaluate_guards([GuardMeasurement(GuardKind.CLEARING, "department", 100, 100)], DEFAULT_LIMITS)
    assert "cleared department" in cleared.message
    assert "100 of 100" in cleared.message


def test_empty_source_fails_whatever_the_limits_are() -> None:
    generous = GuardLimits(GuardLimit(100, 1_000_000))
    (found,) = evaluate_guards([GuardMeasurement(GuardKind.EMPTY_SOURCE, "person", 1, 1)], generous)
    assert found.consequence is Consequence.FAIL
    assert not evaluate_guards([GuardMeasurement(GuardKind.EMPTY_SOURCE, "person", 0, 0)], generous)


def test_emptied_type_is_held_even_if_all_deletions_are_allowed() -> None:
    generous = GuardLimits(GuardLimit(100, 10))
    assert not evaluate_guards([GuardMeasurement(GuardKind.DELETIONS, "person", 10, 10)], generous)
    (found,) = evaluate_guards([GuardMeasurement(GuardKind.EMPTIED, "person", 10, 10)], generous)
    assert found.consequence is Consequence.HOLD
    assert not evaluate_guards([GuardMeasurement(GuardKind.EMPTIED, "person", 9, 9)], generous)


def test_most_severe_guard_is_first_and_limits_apply_by_kind() -> None:
    limits = GuardLimits(GuardLimit(), {GuardKind.CLEARING: GuardLimit(50, 100)})
    found = evaluate_guards(
        [
            GuardMeasurement(GuardKind.EXPORT_DELETES, "AD", 50, 100),
            GuardMeasurement(GuardKind.CLEARING, "mail", 60, 100),
            GuardMeasurement(GuardKind.DELETIONS, "person", 50, 100),
            GuardMeasurement(GuardKind.EMPTY_SOURCE, "person", 5, 5),
        ],
        limits,
    )
    assert [each.kind for each in found] == [GuardKind.EMPTY_SOURCE, GuardKind.DELETIONS, GuardKind.EXPORT_DELETES]


@given(st.integers(1, 10_000), st.floats(0, 100), st.integers(1, 50))
def test_allowed_count_is_the_largest_that_does_not_trip(total: int, percent: float, at_least: int) -> None:
    limit = GuardLimit(percent, at_least)
    allowed = allowed_count(total, limit)
    assert not limit.is_exceeded(allowed, total)
    assert allowed == total or limit.is_exceeded(allowed + 1, total)


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        (RunTotals(), OutcomeStatus.COMPLETED),
        (RunTotals(processed=10_000), OutcomeStatus.COMPLETED),
        (RunTotals(processed=10_000, errors=1), OutcomeStatus.COMPLETED_WITH_WARNING),
        (RunTotals(processed=10, warnings=1), OutcomeStatus.COMPLETED_WITH_WARNING),
        (RunTotals(processed=4, errors=4), OutcomeStatus.FAILED),
        (RunTotals(processed=10, errors=1, unhandled=1), OutcomeStatus.COMPLETED_WITH_ERROR),
        (RunTotals(processed=10, held=True), OutcomeStatus.COMPLETED_WITH_ERROR),
        (RunTotals(processed=1, errors=1, unhandled=1), OutcomeStatus.FAILED),
        (RunTotals(processed=10, failed=True), OutcomeStatus.FAILED),
        (RunTotals(held=True), OutcomeStatus.COMPLETED_WITH_ERROR),
    ],
)
def test_first_condition_that_applies_decides_the_status(totals: RunTotals, expected: OutcomeStatus) -> None:
    assert decide_status(totals) is expected
