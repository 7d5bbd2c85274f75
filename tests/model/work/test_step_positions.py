"""The tree of the stored calls of a workflow."""

from __future__ import annotations

from tenuto.model.work.step_positions import position_of_step, tree_of_steps


def test_stored_calls_are_ordered_by_position_and_shown_as_a_tree() -> None:
    stored = [
        "10 send", "2 pack", "3 pack", "4.2.1 price", "4.1.1 price", "4.1.2 price", "version", "5 ctx.sleep",
        "sleep in 6 remind", "6 remind",
    ]  # fmt: skip
    names = sorted(stored, key=position_of_step)
    assert tree_of_steps(names) == [
        (0, "version"), (0, "2 pack (1)"), (0, "3 pack (2)"), (1, "4.1.1 price (1)"), (1, "4.1.2 price (2)"),
        (1, "4.2.1 price"), (0, "5 ctx.sleep"), (0, "sleep in 6 remind"), (0, "6 remind"), (0, "10 send"),
    ]  # fmt: skip
