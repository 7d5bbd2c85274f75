"""Uses a service through the generated Python client, as a program of a user would: strict mypy checks this file too.

Run as ``drive_service.py ADDRESS KEY``. It creates a schedule, runs it and follows the execution, reads a list page by
page, submits a batch, cancels a task, retries a dead letter, and handles errors by their codes.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from tenuto_client import AuthenticatedClient
from tenuto_client.api.activities import activities_list
from tenuto_client.api.batches import batches_get
from tenuto_client.api.dead_letters import dead_letters_get, dead_letters_list, dead_letters_retry
from tenuto_client.api.executions import executions_get
from tenuto_client.api.manifests import manifests_bulk, manifests_create, manifests_enqueue
from tenuto_client.api.schedules import schedules_create, schedules_get, schedules_replace, schedules_run
from tenuto_client.api.tasks import tasks_cancel, tasks_enqueue, tasks_get
from tenuto_client.models import (
    ActivityPage,
    ActivityRecord,
    ActivityState,
    Cancellation,
    CancellationState,
    CronTrigger,
    DeadLetterPage,
    DeadLetterRecord,
    DeadLetterState,
    Decision,
    EnqueuedTask,
    ExecutionDetails,
    ExecutionState,
    JobStep,
    JobStepInput,
    NewManifest,
    NewSchedule,
    NewTask,
    NewTaskInput,
    OutcomeStatus,
    Problem,
    RetryBody,
    RetryPolicyFields,
    RunArguments,
    RunArgumentsArguments,
    ScheduleReplacement,
    ScheduleResource,
    TaskResource,
)
from tenuto_client.types import File, Response

T = TypeVar("T")
TIMEOUT_SECONDS = 60.0


class ApiError(Exception):
    """The service answered with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.status} {problem.code}: {problem.detail}")
        self.problem = problem


def expect(kind: type[T], response: Response[T | Problem]) -> T:
    """Return the result of a request, or raise its problem."""
    found = response.parsed
    if isinstance(found, Problem):
        raise ApiError(found)
    assert isinstance(found, kind), response
    return found


def wait_for(find: Callable[[], T | None]) -> T:
    """Return the first result that is not None."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if (found := find()) is not None:
            return found
        time.sleep(0.05)
    raise TimeoutError


def run_schedule(client: AuthenticatedClient) -> None:
    steps: list[JobStep] = [
        JobStep(job="double", name=f"step {n}", input_=JobStepInput.from_dict({"n": n})) for n in (1, 2)
    ]
    definition = NewSchedule(
        name="client / nightly",
        trigger=CronTrigger(kind="cron", cron="0 2 * * *", zone="Europe/London"),
        steps=[
            steps[0],
            [steps[1], JobStep(job="third_time", retry=RetryPolicyFields(max_attempts=3, base_seconds=0))],
        ],
    )
    created = expect(ScheduleResource, schedules_create.sync_detailed(client=client, body=definition))
    assert isinstance(created.trigger, CronTrigger)
    assert created.version == 1
    shown = expect(ScheduleResource, schedules_get.sync_detailed(created.name, client=client))
    changed = ScheduleReplacement.from_dict({**shown.to_dict(), "description": "changed by the client"})
    answer = schedules_replace.sync_detailed(created.name, client=client, body=changed, if_match='"v1"')
    assert expect(ScheduleResource, answer).version == 2
    assert answer.headers["etag"] == '"v2"'

    arguments = RunArgumentsArguments.from_dict({"step 1": {"n": 20}})
    started = schedules_run.sync(created.name, client=client, body=RunArguments(arguments=arguments))
    assert started is not None
    assert not isinstance(started, Problem)
    assert started.decision is Decision.FIRED
    execution_id = started.execution_id
    assert isinstance(execution_id, UUID)

    def find_ended() -> ExecutionDetails | None:
        execution = expect(ExecutionDetails, executions_get.sync_detailed(execution_id, client=client))
        return None if execution.ended_at is None else execution

    ended = wait_for(find_ended)
    assert ended.state is ExecutionState.COMPLETED, ended
    assert [step.name for step in ended.steps] == ["step 1", "step 2", "third_time"]
    assert [step.attempt for step in ended.steps] == [1, 1, 3]


def read_pages(client: AuthenticatedClient) -> None:
    found: list[ActivityRecord] = []
    after: str | None = None
    page_count = 0
    while True:
        page = expect(ActivityPage, activities_list.sync_detailed(client=client, limit=2, after=after))
        found += page.items
        page_count += 1
        if page.next_ is None:
            break
        after = page.next_
    assert page_count >= 3
    assert [each.id for each in found] == sorted((each.id for each in found), reverse=True)
    assert {each.name for each in found} == {"double", "third_time"}
    failed = expect(
        ActivityPage, activities_list.sync_detailed(client=client, state=OutcomeStatus.FAILED, name="third_time")
    )
    assert [each.state for each in failed.items] == [ActivityState.FAILED] * 2


def submit_batch(client: AuthenticatedClient) -> None:
    manifest = NewManifest(external_id="client/doubles", job="double", on_demand=True)
    manifests_create.sync_detailed(client=client, body=manifest)
    lines = File(io.BytesIO(b'{"n": 1}\n{"n": 2}\n'))
    submitted = manifests_bulk.sync(manifest.external_id, client=client, body=lines, batch_key="client")
    assert submitted is not None
    assert not isinstance(submitted, Problem), submitted
    batch_id = submitted.id

    def find_ended() -> bool | None:
        batch = batches_get.sync(batch_id, client=client)
        assert batch is not None
        assert not isinstance(batch, Problem)
        return True if batch.ended_at is not None else None

    assert wait_for(find_ended)


def cancel_task(client: AuthenticatedClient) -> None:
    task = NewTask(job="double", input_=NewTaskInput.from_dict({"n": 1}), delay="1h", tags=["client"])
    created = expect(EnqueuedTask, tasks_enqueue.sync_detailed(client=client, body=task))
    shown = expect(TaskResource, tasks_get.sync_detailed(created.id, client=client))
    assert not shown.is_ended
    cancelled = expect(Cancellation, tasks_cancel.sync_detailed(created.id, client=client))
    assert cancelled.state is CancellationState.CANCELLED
    ended = expect(TaskResource, tasks_get.sync_detailed(created.id, client=client))
    assert (ended.id, ended.is_ended, ended.state) == (created.id, True, OutcomeStatus.CANCELLED)


def retry_dead_letter(client: AuthenticatedClient) -> None:
    manifest = NewManifest(external_id="client/hopeless", job="hopeless")
    manifests_create.sync_detailed(client=client, body=manifest)
    manifests_enqueue.sync_detailed(manifest.external_id, client=client)

    def find_dead_letter() -> DeadLetterRecord | None:
        response = dead_letters_list.sync_detailed(client=client, manifest=manifest.external_id)
        page = expect(DeadLetterPage, response)
        return page.items[0] if page.items else None

    dead_letter = wait_for(find_dead_letter)
    assert dead_letter.state is DeadLetterState.AWAITING_INTERVENTION
    retried = dead_letters_retry.sync(dead_letter.id, client=client, body=RetryBody(note="by the client"))
    assert retried is not None
    assert not isinstance(retried, Problem), retried
    resolved = dead_letters_get.sync(dead_letter.id, client=client)
    assert resolved is not None
    assert not isinstance(resolved, Problem)
    assert (resolved.state, resolved.retry_task_id) == (DeadLetterState.RETRIED, retried.task_id)
    assert expect_problem(dead_letters_retry.sync(dead_letter.id, client=client)).code == "dead_letter.already_resolved"


def handle_errors(client: AuthenticatedClient, address: str) -> None:
    missing = expect_problem(schedules_run.sync("none", client=client))
    assert (missing.status, missing.code) == (404, "schedule.not_found")
    invalid = expect_problem(
        schedules_create.sync(client=client, body=NewSchedule(name="bad", steps=[JobStep(job="unknown job")]))
    )
    assert (invalid.status, invalid.code) == (422, "job.unknown"), invalid
    assert invalid.remedy
    anonymous = AuthenticatedClient(base_url=address, token="tnt_aaaaaaaa_wrong")
    assert expect_problem(activities_list.sync(client=anonymous)).code == "auth.invalid"


def expect_problem(found: object) -> Problem:
    """Return a problem, which must have been answered."""
    assert isinstance(found, Problem), found
    return found


def main(address: str, key: str) -> None:
    client = AuthenticatedClient(base_url=address, token=key, raise_on_unexpected_status=True)
    with client:
        run_schedule(client)
        read_pages(client)
        submit_batch(client)
        cancel_task(client)
        retry_dead_letter(client)
        handle_errors(client, address)
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
