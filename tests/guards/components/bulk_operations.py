"""Guards of bulk operations."""

from __future__ import annotations

from tests.guards.guard import Condition, Replace, guard

GUARDS = (
    guard(
        "bulk_operations.one_processor",
        "An operation has one processor at a time, and others do not wait for it.",
        Replace("FOR UPDATE SKIP LOCKED", ""),
        "operations/work/test_bulk_operations.py::test_two_processors_act_on_every_item_once",
        "operations/work/test_bulk_operations.py::test_second_processor_does_not_wait_for_the_operation_of_the_first",
    ),
    guard(
        "bulk_operations.paused",
        "A paused operation is not processed.",
        Condition("true"),
        "scheduling/test_backfills.py::test_paused_backfill_starts_nothing_until_it_is_resumed",
    ),
    guard(
        "bulk_operations.frozen_selection",
        "Objects that appear after the upper instant are not selected.",
        Condition("$2::timestamptz IS NOT NULL"),
        "operations/work/test_bulk_operations.py::test_bulk_operation_acts_on_its_frozen_selection_and_counts_later_arrivals",
        "operations/work/test_bulk_operations.py::test_dead_letters_are_resolved_in_bulk_without_later_arrivals",
        places=5,
    ),
    guard(
        "bulk_operations.expected_number",
        "A selection that differs from the expected number is refused.",
        Condition("False"),
        "operations/work/test_bulk_operations.py::test_bulk_operation_is_refused_if_the_selection_has_changed",
    ),
    guard(
        "bulk_operations.item_savepoint",
        "An error of one item is rolled back alone.",
        Replace("self._connection.transaction()", "nullcontext()"),
        "operations/work/test_bulk_operations.py::test_error_of_one_item_does_not_affect_the_others",
    ),
)
