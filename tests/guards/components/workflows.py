"""Guards of workflows."""

from __future__ import annotations

from tests.guards.guard import Condition, Value, guard

_CHILDREN = "worker/test_child_tasks.py"

GUARDS = (
    guard(
        "workflows.changed_code",
        "A call whose position holds the result of another call is refused.",
        Condition("False"),
        "worker/test_workflow_versions.py::test_changed_code_without_a_patch_is_found",
    ),
    guard(
        "workflows.unused_results",
        "A workflow that ends without a stored call is refused: its code has changed.",
        Condition("False"),
        "worker/test_workflow_versions.py::test_changed_code_without_a_patch_is_found",
    ),
    guard(
        "workflows.patch_of_passed_place",
        "A run that has passed a place keeps the code that it passed it with.",
        Value("True"),
        "worker/test_workflow_versions.py::test_patched_code_is_used_by_runs_that_have_not_passed_its_place",
    ),
    guard(
        "workflows.version_of_run",
        "A run continues with the version that it has begun with.",
        Value("job"),
        "worker/test_workflow_versions.py::test_run_continues_with_the_version_that_it_has_begun_with",
    ),
    guard(
        "workflows.version_before_first_call",
        "A run whose first step failed or was interrupted continues with the version that it has begun with.",
        Condition("history.is_empty"),
        "worker/test_workflow_versions.py::test_run_keeps_its_version_when_its_first_step_failed_before_a_deployment",
        "cli/test_workflow_deployment.py::test_run_whose_worker_is_killed_in_its_first_step_keeps_its_version",
    ),
    guard(
        "workflows.decision_before_parallel_calls",
        "No branch makes a durable call before the version and the patches of the run are stored.",
        Condition("self._unsaved and not self._decision_lock.locked()"),
        "worker/test_workflow_versions.py::test_parallel_branch_stores_nothing_before_the_version_is_stored",
    ),
    guard(
        "workflows.calls_of_other_tasks",
        "A durable call outside of the branches of a workflow, which has no fixed position, is refused.",
        Condition("False"),
        "worker/test_workflows.py::test_durable_call_outside_of_a_branch_is_refused",
    ),
    guard(
        "workflows.no_call_after_deferral",
        "A workflow that has given up its slot makes no further durable call.",
        Condition("False"),
        "worker/test_workflows.py::test_workflow_that_gave_up_its_slot_makes_no_call_in_its_clean_up",
    ),
    guard(
        "workflows.handled_failure_is_stored",
        "A failure that the workflow has handled is stored before its next call.",
        Condition("False"),
        "worker/test_workflows.py::test_failed_step_is_raised_again_in_later_attempts_once_the_workflow_has_handled_it",
    ),
    guard(
        "workflows.failure_before_branches",
        "A failure that the workflow has handled is stored before parallel branches begin.",
        Condition("False"),
        "worker/test_workflows.py::test_failed_step_is_raised_again_in_later_attempts_once_the_workflow_has_handled_it",
    ),
    guard(
        "workflows.kept_failure_of_attempt",
        "A failure that waited for other branches does not count in the next attempt.",
        Condition("True"),
        "worker/test_workflows.py::test_branches_sleep_and_wait_without_a_slot",
    ),
    guard(
        "workflows.retry_before_failure",
        "An operator's retry of a workflow does not repeat a stored failure.",
        Condition("false"),
        "worker/test_workflows.py::test_failed_step_is_raised_again_in_later_attempts_once_the_workflow_has_handled_it",
    ),
    # --- child tasks
    guard(
        "workflows.child_end_is_reported",
        "The end of a child task is reported to its workflow.",
        Condition("False"),
        f"{_CHILDREN}::test_workflow_waits_for_its_children_without_a_slot",
    ),
    guard(
        "workflows.one_child",
        "A workflow whose child has started starts no second one.",
        Condition("True"),
        "store/events/test_child_tasks.py::test_child_is_started_once",
    ),
    guard(
        "workflows.cancelled_starts_no_child",
        "A workflow that is being cancelled starts no child.",
        Condition("(NOT $11::boolean OR true)"),
        "store/events/test_child_tasks.py::test_cancelled_workflow_starts_no_child",
    ),
    guard(
        "workflows.end_of_this_child",
        "The end of another task than the child does not end the wait.",
        Condition("given.child IS NOT NULL"),
        "store/events/test_child_tasks.py::test_end_of_another_task_does_not_end_the_wait",
    ),
    guard(
        "workflows.cancelled_with_children",
        "Cancelling a workflow cancels its children.",
        Value("[]"),
        f"{_CHILDREN}::test_cancelling_a_workflow_cancels_its_children",
    ),
    guard(
        "workflows.children_of_open_workflows",
        "Children of open workflows are not cancelled.",
        Condition("true"),
        f"{_CHILDREN}::test_children_of_a_workflow_that_ended_without_them_are_cancelled",
    ),
    guard(
        "workflows.retry_starts_failed_child_again",
        "An operator's retry of a workflow starts its failed children again.",
        Condition("true"),
        f"{_CHILDREN}::test_failure_of_a_child_is_raised_with_its_error",
    ),
)
