"""For any sequence of actions, the store behaves like a small model of it.

Hypothesis chooses the actions. After each step the tables are compared with the model, and at the end the doctor must
find no problem; its warnings concern delays and risks, which the actions cause on purpose. Concurrent actions are
tested in tests/races.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tenuto.settings import load_settings
from tests.state_machine.actions import OUTCOMES, Actions
from tests.state_machine.machine import Machine
from tests.support.proofs import THOROUGH, times

EXPECTED_VISITS = {
    "a holder ends", "a zombie ends", "next group claimed", "some are renewed", "nothing is renewed",
    "completed", "completed_with_warning",
    "failed error", "failed timed_out", "failed lost", "cancelled requested", "cancelled handed_back",
    "cancelled not_run", "execution completed", "execution failed", "execution cancelled", "instant fired",
    "instant queued", "instant coalesced", "instant skipped", "instant missed",
}  # fmt: skip
INITIAL = ("it_begins", 1, "skip", (2, 1), 2)
LOST_TASK: list[tuple[Any, ...]] = [
    ("claim", "ann", 3), ("claim_under_limits", "ann", 4), ("a_worker_stalls", "ann"), ("renew", 0), ("a_sweep",),
    ("finish", 0, "completed"), ("time_passes", 60), ("what_is_due_is_let_in",),
]  # fmt: skip
SET_ASIDE_TASK: list[tuple[Any, ...]] = [
    ("claim", "bob", 3), ("a_worker_dies_and_is_started_again", "bob"), ("the_dead_claim_nothing", 0), ("renew", 0),
    ("put_back", 0), ("what_it_held_is_taken_back", 0), ("finish", 0, "failed"), ("claim", "bob", 1), ("renew", 0),
]  # fmt: skip
SEQUENCES: list[list[tuple[Any, ...]]] = [
    [INITIAL, *LOST_TASK, *LOST_TASK, *LOST_TASK, *SET_ASIDE_TASK],
    [INITIAL, *(step for how in OUTCOMES for step in (
        ("enqueue", "other", 1, 0), ("claim", "bob", 1), ("cancel_a_task", 50), ("finish", 0, how),
        ("enqueue", "other", 1, 0), ("claim", "bob", 1), ("renew", 0), ("finish", 0, how), ("finish", 0, how),
        ("a_request_is_sent_again", 1),
    ))],
    [INITIAL, ("all_goes_well_for_a_while", "ann"), ("run_by_hand", 0), ("a_worker_does_all_it_finds", "ann", "final"),
     ("time_passes_and_a_scheduler_looks", 3), ("run_by_hand", 0), ("pause_or_resume_an_execution", 0),
     ("a_worker_does_all_it_finds", "ann", "completed"), ("pause_or_resume_an_execution", 0),
     ("delete_a_schedule", 0), ("cancel_an_execution", 2), ("cancel_an_execution", 2), ("time_passes", 60),
     ("edit_a_schedule", 0, 2, "skip", (1,)), ("time_passes", 150), ("switch_a_schedule", 0, False),
     ("delete_a_schedule", 0), ("what_has_ended_cannot_be_cancelled", 0)],
    *([("it_begins", 1, overlap, (2, 1), 2), ("claim", "ann", 1), ("time_passes_and_a_scheduler_looks", 1),
       ("time_passes_and_a_scheduler_looks", 3), ("all_goes_well_for_a_while", "ann"),
       ("those_that_waited_take_their_turn",), ("time_passes_and_a_scheduler_looks", 1), ("run_by_hand", 0),
       ("switch_a_schedule", 0, False), ("time_passes", 150), ("edit_a_schedule", 0, 2, overlap, (1,)),
       ("time_passes", 150), ("switch_a_schedule", 0, True), ("the_repair_net_finds_nothing",)]
      for overlap in ("queue_one", "cancel_previous", "allow")),
    [("it_begins", 1, "skip", (1, 2, 1), 0), ("claim", "ann", 3), ("finish_and_go_on", 0), ("finish_and_go_on", 1),
     ("finish_and_go_on", 0), ("finish_and_go_on", 0), ("finish_and_go_on", 0), ("finish_and_go_on", 0)],
    [("it_begins", 1, "skip", (1, 2, 1), 0), ("claim", "ann", 3), ("a_queue_is_paused_or_resumed", "default", True),
     ("finish_and_go_on", 0), ("finish_and_go_on", 1)],
    [INITIAL, ("claim_under_limits", "ann", 2), ("pause_or_resume_a_batch", 0), ("finish", 0, "failed"),
     ("finish", 0, "handed_back"), ("finish", 1, "aside"), ("claim_under_limits", "bob", 4),
     ("pause_or_resume_a_batch", 0), ("time_passes", 150), ("what_is_due_is_let_in",),
     ("claim_under_limits", "bob", 4), ("cancel_a_batch", 0), ("pause_or_resume_a_batch", 0),
     ("finish", 0, "failed"), ("a_queue_is_limited", "default", 1), ("claim_under_limits", "bob", 4),
     ("a_queue_is_paused_or_resumed", "default", True), ("claim_under_limits", "ann", 4), ("claim", "ann", 4)],
]  # fmt: skip


@pytest.fixture
def actions(url: str, tmp_path: Path) -> Iterator[Actions]:
    Machine.actions, Machine.settings = Actions(url), load_settings(database=url, home=tmp_path)
    yield Machine.actions
    Machine.actions.close()


def test_store_behaves_like_the_model_for_any_sequence_of_actions(actions: Actions) -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=times(40, in_a_proof=1000),
            stateful_step_count=40,
            deadline=None,
            derandomize=not THOROUGH,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_state_machine_can_reach_every_outcome_and_decision(actions: Actions) -> None:
    """Run fixed sequences for states that random choices may miss in a short run."""
    Machine.visited.clear()
    for steps in SEQUENCES:
        machine = Machine()
        for name, *given in steps:
            getattr(machine, name)(*given)
            machine.tables_match_model()
        machine.teardown()
    assert Machine.visited.keys() >= EXPECTED_VISITS
