"""Actions on events, waits for them, and approvals."""

from __future__ import annotations

from datetime import timedelta

from tenuto.lifecycle.completion import finish
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.model.events.approvals import Decision
from tenuto.model.events.event_names import EventWait
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeStatus, Settlement, Task, WaitKey
from tenuto.operations.events.approvals import Approvals
from tenuto.operations.work import dead_letters
from tenuto.postgres.database import Connection, Database
from tenuto.store.events import approvals, child_tasks, external_events
from tenuto.store.events.approvals import NewApproval
from tenuto.store.events.external_events import NewEvent
from tenuto.store.work import task_creation
from tests.races.execution_actions import fail_permanently, run_to_end
from tests.races.scenarios.scenario import LATER, Action, Preparation, Scenario, in_transaction
from tests.races.scenarios.tasks import claim_tasks
from tests.races.task_actions import ACTOR, claim, complete

APPROVERS = ["ana", "ben"]


async def enqueue(db: Database, scenario: Scenario) -> None:
    names = ("finds an event", "waits for an event", "waits for approvals", "runs a child")
    await task_creation.enqueue_tasks(db, [scenario.task(name) for name in names])


def send_event(key: str) -> Action:
    async def send(connection: Connection, scenario: Scenario) -> None:
        now = scenario.db.clock.now()
        event = NewEvent(scenario.id(f"event {key}"), "paid", key, "1", now, now + timedelta(days=1), ACTOR)
        await external_events.send_event(connection, event)

    return in_transaction(send)


async def find_kept_event(db: Database, scenario: Scenario) -> None:
    await _register_wait(db, scenario.held[0], "kept")


async def wait_for_event(db: Database, scenario: Scenario) -> None:
    await _register_wait(db, scenario.held[1], "awaited")
    await _give_up_slot(db, scenario.held[1])


async def _register_wait(db: Database, task: Task, key: str) -> None:
    now = db.clock.now()
    await external_events.register_wait(db, task, EventWait("", 1, "paid", key, now + timedelta(hours=1)), now)


async def _give_up_slot(db: Database, task: Task) -> None:
    now = db.clock.now()
    deferral = Deferral(resume_at=now + timedelta(hours=1), waits=(WaitKey("", 1),))
    await finish(db, [Settlement(task, Outcome(OutcomeStatus.COMPLETED, started_at=now, deferral=deferral))])


async def run_child(db: Database, scenario: Scenario) -> None:
    """Start a child task, once however often the action is interrupted, and wait for it."""
    child, now = scenario.task("child"), db.clock.now()
    child.let_wait(scenario.held[3].id, "1")
    await child_tasks.start_child(db, scenario.held[3], "1", child, None)
    deferral = Deferral(resume_at=now + timedelta(hours=1), waits=(WaitKey("1", 1),))
    outcome = Outcome(OutcomeStatus.COMPLETED, started_at=now, deferral=deferral)
    await finish(db, [Settlement(scenario.held[3], outcome)])


async def claim_child(db: Database, scenario: Scenario) -> None:
    scenario.held += await claim(db, scenario.worker, 1)


async def end_child(db: Database, scenario: Scenario) -> None:
    await finish(db, [complete(db, scenario.held[4])])


async def request_approval(db: Database, scenario: Scenario) -> None:
    task, now = scenario.held[2], db.clock.now()
    new = NewApproval(
        "go live", None, None, "Deploy?", "{}", None, APPROVERS, len(APPROVERS), "fail", now + timedelta(hours=1), ACTOR
    )
    await db.transaction(lambda connection: approvals.request_approval(connection, task, new, now))
    await _give_up_slot(db, task)


def _operations(db: Database, name: str) -> Approvals:
    async def open_database() -> Database:
        return db

    return Approvals(open_database, OperationCaller(lambda: Actor.user(name)))


async def create_link(db: Database, scenario: Scenario) -> None:
    scenario.approval_link = (await _operations(db, "admin").create_link(scenario.held[2].id, "ana")).link


async def approve_by_link(db: Database, scenario: Scenario) -> None:
    await _operations(db, "ana").decide_by_link(scenario.approval_link, Decision.APPROVE)


async def approve(db: Database, scenario: Scenario) -> None:
    await _operations(db, "ben").approve(scenario.held[2].id)


async def end_links(connection: Connection, scenario: Scenario) -> None:
    await approvals.end_links(connection)


async def fail_after_event(db: Database, scenario: Scenario) -> None:
    await finish(db, [fail_permanently(db, scenario.held[0])])


async def retry_dead_letter(db: Database, scenario: Scenario) -> None:
    """Retry a task that has received an event: the new task has received it too."""
    (dead_letter,) = await scenario.db.fetch_all("SELECT id FROM tenuto.dead_letters")
    await dead_letters.retry_dead_letters(db, [dead_letter["id"]], db.clock.now(), ACTOR, task_id=scenario.id("again"))


async def finish_all(db: Database, scenario: Scenario) -> None:
    await run_to_end(db, scenario.worker)


async def delete_old_rows(db: Database, scenario: Scenario) -> None:
    cutoff = db.clock.now() + LATER
    await external_events.delete_expired_events(db, cutoff, 100)
    await external_events.delete_orphaned_waits(db, cutoff, 100)
    await approvals.delete_ended_approvals(db, cutoff, 100)


EVENTS: tuple[Action, ...] = (
    Preparation(enqueue), Preparation(claim_tasks), send_event("kept"), find_kept_event, wait_for_event,
    send_event("awaited"), request_approval, create_link, approve_by_link, create_link, in_transaction(end_links),
    approve, run_child, Preparation(claim_child), end_child, fail_after_event, retry_dead_letter,
    Preparation(finish_all), delete_old_rows,
)  # fmt: skip
