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
from tests.support.repetition_counts import THOROUGH, times

pytestmark = pytest.mark.slow
EXPECTED_VISITS = {
    "holder finishes", "stale worker finishes", "next group claimed", "leases renewed", "no lease renewed",
    "completed", "completed_with_warning",
    "failed error", "failed timed_out", "failed lost", "cancelled requested", "cancelled handed_back",
    "cancelled not_run", "execution completed", "execution failed", "execution cancelled", "instant fired",
    "instant queued", "instant coalesced", "instant skipped", "instant missed",
}  # fmt: skip
INITIAL = ("initial_state", 1, "skip", (2, 1), 2)
LOST_TASK: list[tuple[Any, ...]] = [
    ("claim", "ann", 3), ("claim_limited", "ann", 4), ("stall_worker", "ann"), ("renew", 0), ("sweep",),
    ("finish", 0, "completed"), ("advance_time", 60), ("promote_due_tasks",),
]  # fmt: skip
SET_ASIDE_TASK: list[tuple[Any, ...]] = [
    ("claim", "bob", 3), ("restart_worker", "bob"), ("ended_worker_claims_nothing", 0), ("renew", 0),
    ("return_to_queue", 0), ("recover_tasks_of_worker", 0), ("finish", 0, "failed"), ("claim", "bob", 1), ("renew", 0),
]  # fmt: skip
SEQUENCES: list[list[tuple[Any, ...]]] = [
    [INITIAL, *LOST_TASK, *LOST_TASK, *LOST_TASK, *SET_ASIDE_TASK],
    [INITIAL, *(step for how in OUTCOMES for step in (
        ("enqueue", "other", 1, 0), ("claim", "bob", 1), ("cancel_task", 50), ("finish", 0, how),
        ("enqueue", "other", 1, 0), ("claim", "bob", 1), ("renew", 0), ("finish", 0, how), ("finish", 0, how),
        ("repeat_request", 1),
    ))],
    [INITIAL, ("run_smoothly", "ann"), ("run_manually", 0), ("finish_all_claimable", "ann", "final"),
     ("advance_time_and_fire", 3), ("run_manually", 0), ("pause_or_resume_execution", 0),
     ("finish_all_claimable", "ann", "completed"), ("pause_or_resume_execution", 0),
     ("delete_schedule", 0), ("cancel_execution", 2), ("cancel_execution", 2), ("advance_time", 60),
     ("edit_schedule", 0, 2, "skip", (1,)), ("advance_time", 150), ("set_schedule_enabled", 0, False),
     ("delete_schedule", 0), ("ended_task_cannot_be_cancelled", 0)],
    *([("initial_state", 1, overlap, (2, 1), 2), ("claim", "ann", 1), ("advance_time_and_fire", 1),
       ("advance_time_and_fire", 3), ("run_smoothly", "ann"),
       ("start_queued_runs",), ("advance_time_and_fire", 1), ("run_manually", 0),
       ("set_schedule_enabled", 0, False), ("advance_time", 150), ("edit_schedule", 0, 2, overlap, (1,)),
       ("advance_time", 150), ("set_schedule_enabled", 0, True), ("repair_finds_nothing",)]
      for overlap in ("queue_one", "cancel_previous", "allow")),
    [("initial_state", 1, "skip", (1, 2, 1), 0), ("claim", "ann", 3),
     *(("finish_and_claim_next", pick) for pick in (0, 1, 0, 0, 0, 0))],
    [("initial_state", 1, "skip", (1, 2, 1), 0), ("claim", "ann", 3), ("pause_or_resume_queue", "default", True),
     ("finish_and_claim_next", 0), ("finish_and_claim_next", 1)],
    [INITIAL, ("claim_limited", "ann", 2), ("pause_or_resume_batch", 0), ("finish", 0, "failed"),
     ("finish", 0, "handed_back"), ("finish", 1, "deferred"), ("claim_limited", "bob", 4),
     ("pause_or_resume_batch", 0), ("advance_time", 150), ("promote_due_tasks",),
     ("claim_limited", "bob", 4), ("cancel_batch", 0), ("pause_or_resume_batch", 0),
     ("finish", 0, "failed"), ("limit_queue", "default", 1), ("claim_limited", "bob", 4),
     ("pause_or_resume_queue", "default", True), ("claim_limited", "ann", 4), ("claim", "ann", 4)],
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
