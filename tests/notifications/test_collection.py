"""Events are found once, also if transactions commit late, several processes collect, or one is killed."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tenuto import RetryPolicy, Tenuto
from tenuto.ids import new_id
from tenuto_notifications.model.dispatch import Decision
from tests.notifications.failing_schedule import (
    add_broken_job,
    add_schedule,
    collector_of,
    delivered,
    events_of,
    operations_of,
    run_concurrently,
    run_schedule,
    webhook_rule,
)
from tests.notifications.killed_process import add_pager
from tests.notifications.receivers import MailServer, WebhookReceiver
from tests.support.waiting import eventually


async def test_failed_execution_leads_to_one_webhook(app: Tenuto, receiver: WebhookReceiver) -> None:
    add_broken_job(app)
    await add_schedule(app)
    await add_schedule(app, "Other", "sound")
    await webhook_rule(app, receiver.url("/hook"), filter="schedule:Nightly error:~space")
    async with app.worker(), app.scheduler():
        execution_id = await run_schedule(app)
        await run_schedule(app, "Other")
        (delivery,) = await eventually(lambda: delivered(app), 20)
    (document,) = receiver.documents
    assert document["subject"] == delivery.subject == "Nightly failed"
    assert document["events"][0]["fields"]["id"] == str(execution_id)
    assert (document["count"], document["is_test"], delivery.attempt) == (1, False, 1)
    assert receiver.requests[0].headers["idempotency-key"] == str(delivery.id)


async def test_events_of_executions_tasks_and_dead_letters_are_found(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app)
    await add_schedule(app, "Other", "sound")
    for event in ("execution.failed", "execution.completed", "task.failed", "dead_letter.opened"):
        await webhook_rule(app, "http://127.0.0.1:9/", event, name=event)
    async with app.worker():
        await run_schedule(app)
        await run_schedule(app, "Other")
        task = await app.enqueue(app.jobs.get_job("broken"), "disk full")
        await app.wait(task, 30)
    await collector_of(app).run_cycle()
    assert sorted(await events_of(await app.open())) == [
        ("dead_letter.opened", "Dead letter of broken", "sent"),
        ("execution.completed", "Other completed", "sent"),
        ("execution.failed", "Nightly failed", "sent"),
        ("task.failed", "Task broken failed for good", "sent"),
        ("task.failed", "Task broken failed for good", "sent"),
    ]


async def test_missed_instant_and_lost_process_are_found(app: Tenuto) -> None:
    database = await app.open()
    await webhook_rule(app, "http://127.0.0.1:9/", "schedule.missed", name="missed")
    await webhook_rule(app, "http://127.0.0.1:9/", "worker.lost", name="lost")
    await database.write_all(
        "INSERT INTO tenuto.occurrences (id, schedule_id, schedule_name, due_at, origin, decision, reason, decided_at,"
        " decided_by) VALUES ($1, $2, 'Nightly', now(), 'trigger', 'missed', 'too late', clock_timestamp(), 'test')",
        new_id(),
        new_id(),
    )
    await database.write_all(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at,"
        " silence_limit) VALUES ($1, 'w-1', 'worker', 'h', 'b', 1, '0', '{default}', 1, now(), now() - interval '1 h',"
        " interval '1 s')",
        new_id(),
    )
    from tenuto.store.work import workers

    assert await workers.end_silent_processes(database, timedelta(minutes=1), [])
    await collector_of(app).run_cycle()
    found = await events_of(database)
    assert [(kind, state) for kind, _, state in found] == [("schedule.missed", "sent"), ("worker.lost", "sent")]
    assert found[1][1] == "Worker w-1 was lost"


async def test_event_that_commits_after_later_ones_is_found(app: Tenuto) -> None:
    """A transaction that wrote its row first and commits last is neither skipped nor found twice."""
    add_broken_job(app)
    database = await app.open()
    await webhook_rule(app, "http://127.0.0.1:9/", "task.failed")
    collector = collector_of(app)
    insert = (
        "INSERT INTO tenuto.activities (id, task_id, attempt, status, final, kind, name, queue, priority, created_at,"
        " run_at, ended_at, fence, failures, losses, input, error, initiator_type, initiator_name)"
        " VALUES ($1, $1, 1, 'failed', true, 'job', $2, 'default', 0, now(), now(), clock_timestamp(), 1, 1, 0, '{}',"
        " '{}', 'system', 'test')"
    )
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(insert, new_id(), "slow")
        await database.write_all(insert, new_id(), "quick")
        await collector.run_cycle()
        assert [title for _, title, _ in await events_of(database)] == ["Task quick failed for good"]
        await transaction.commit()
    await collector.run_cycle()
    await collector.run_cycle()
    titles = sorted(title for _, title, _ in await events_of(database))
    assert titles == ["Task quick failed for good", "Task slow failed for good"]


async def test_event_is_recorded_once_although_it_is_found_again(app: Tenuto) -> None:
    """After a restore the progress may lie before events that were handled: the unique key refuses them."""
    add_broken_job(app)
    await add_schedule(app)
    await webhook_rule(app, "http://127.0.0.1:9/")
    database = await app.open()
    before = await database.fetch_one("SELECT next_transaction_id AS id FROM tenuto_notifications.progress")
    assert before is not None
    async with app.worker():
        await run_schedule(app)
    collector = collector_of(app)
    await collector.run_cycle()
    await database.write_all("UPDATE tenuto_notifications.progress SET next_transaction_id = $1", before["id"])
    await collector.run_cycle()
    assert await events_of(database) == [("execution.failed", "Nightly failed", "sent")]
    assert len(await operations_of(app).deliveries()) == 1


async def test_progress_of_another_server_is_replaced(app: Tenuto) -> None:
    """A restored database may have the progress of a server with higher transaction ids."""
    add_broken_job(app)
    await add_schedule(app)
    await webhook_rule(app, "http://127.0.0.1:9/")
    database = await app.open()
    await database.write_all("UPDATE tenuto_notifications.progress SET next_transaction_id = 1000000000")
    collector = collector_of(app)
    await collector.run_cycle()
    async with app.worker():
        await run_schedule(app)
    await collector.run_cycle()
    assert await events_of(database) == [("execution.failed", "Nightly failed", "sent")]


async def test_many_collectors_create_one_message_for_each_event(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app)
    await webhook_rule(app, "http://127.0.0.1:9/")
    async with app.worker():
        for _ in range(5):
            await run_schedule(app)
    for _ in range(3):
        await run_concurrently(*(collector_of(app) for _ in range(4)))
    assert len(await events_of(await app.open())) == 5
    assert len(await operations_of(app).deliveries()) == 5


async def test_second_collector_does_not_wait_for_the_first(app: Tenuto) -> None:
    await webhook_rule(app, "http://127.0.0.1:9/")
    database = await app.open()
    async with database.connection() as connection, connection.transaction():
        await connection.execute("SELECT FROM tenuto_notifications.progress FOR UPDATE")
        await asyncio.wait_for(collector_of(app).run_cycle(), 5)


async def test_events_from_before_the_rule_do_not_concern_it(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app)
    database = await app.open()
    await webhook_rule(app, "http://127.0.0.1:9/", name="first")
    async with app.worker():
        await run_schedule(app)
    await webhook_rule(app, "http://127.0.0.1:9/", name="second")
    collector = collector_of(app)
    await collector.run_cycle()
    rows = await database.fetch_all("SELECT rule_name FROM tenuto_notifications.events")
    assert [row["rule_name"] for row in rows] == ["first"]


async def test_progress_exists_exactly_while_a_rule_is_enabled(app: Tenuto) -> None:
    database, collector = await app.open(), collector_of(app)

    async def count() -> Any:
        return await database.fetch_value("SELECT count(*) FROM tenuto_notifications.progress")

    assert await collector.run_cycle() == 30.0
    await webhook_rule(app, "http://127.0.0.1:9/")
    assert await count() == 1
    await operations_of(app).disable("rule")
    await collector.run_cycle()
    assert await count() == 0
    await operations_of(app).enable("rule")
    assert await count() == 1


async def test_rule_that_is_enabled_while_the_last_one_is_forgotten_keeps_its_progress(app: Tenuto) -> None:
    """The collector removes the progress in one transaction while another creates a rule: events are not lost."""
    await webhook_rule(app, "http://127.0.0.1:9/")
    await operations_of(app).disable("rule")
    database = await app.open()
    async with database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("SELECT FROM tenuto_notifications.progress FOR UPDATE")  # as the collector does
        creation = asyncio.create_task(webhook_rule(app, "http://127.0.0.1:9/", name="new"))
        await eventually(
            lambda: database.fetch_value("SELECT count(*) FROM pg_locks WHERE NOT granted"), what="creation waits"
        )
        await connection.execute("DELETE FROM tenuto_notifications.progress")
        await transaction.commit()
        await creation
    assert await database.fetch_value("SELECT count(*) FROM tenuto_notifications.progress") == 1


async def test_failure_of_a_delivery_leads_to_no_notification(app: Tenuto, receiver: WebhookReceiver) -> None:
    """Otherwise a broken channel would send messages about itself for ever."""
    add_broken_job(app)
    await webhook_rule(app, receiver.url("/gone"), "task.failed", name="tasks")
    await webhook_rule(app, receiver.url("/gone"), "dead_letter.opened", name="letters")
    broken = {"kind": "job", "job": "broken"}
    await webhook_rule(app, "", "task.failed", name="job", channel=broken)
    async with app.worker(), app.scheduler():
        await app.wait(await app.enqueue(app.jobs.get_job("broken")), 30)
        failed = await eventually(lambda: _at_least(app, 3), 20)
    assert {each.rule for each in failed} == {"tasks", "letters", "job"}
    await collector_of(app).run_cycle()
    assert len(await operations_of(app).deliveries()) == 3
    assert len(await events_of(await app.open())) == 3


async def _at_least(app: Tenuto, count: int) -> Any:
    found = await delivered(app, "failed")
    return found if len(found) >= count else None


@pytest.mark.parametrize("point", ["messages_created", "webhook_sent"])
async def test_killed_process_leads_to_one_message(
    app: Tenuto, url: str, tmp_path: Path, receiver: WebhookReceiver, point: str
) -> None:
    """Killed before the commit: the next collector repeats. Killed after the request: the receiver gets the same id."""
    add_broken_job(app)
    await add_schedule(app)
    await webhook_rule(app, receiver.url("/hook"))
    async with app.worker():
        await run_schedule(app)
    await _run_until_killed(url, tmp_path, point)
    async with app.worker(lease_seconds=1.5), app.scheduler():
        (delivery,) = await eventually(lambda: delivered(app), 30)
    assert receiver.message_ids == [str(delivery.id)]
    assert len(receiver.requests) == (2 if point == "webhook_sent" else 1)
    assert len({request.body for request in receiver.requests}) == 1
    assert len(await events_of(await app.open())) == 1


async def test_killed_process_leads_to_mails_with_one_message_id(
    app: Tenuto, url: str, tmp_path: Path, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mail_server.configure(app, monkeypatch)
    await webhook_rule(app, "", channel={"kind": "email", "to": ["ops@example.org"]})
    add_broken_job(app)
    await add_schedule(app)
    async with app.worker():
        await run_schedule(app)
    await _run_until_killed(url, tmp_path, "email_sent")
    async with app.worker(lease_seconds=1.5), app.scheduler():
        (delivery,) = await eventually(lambda: delivered(app), 30)
    assert {mail["Message-ID"] for mail in mail_server.received} == {f"<{delivery.id}@tenuto.invalid>"}
    assert len(mail_server.received) == 2


@pytest.mark.parametrize("point", ["messages_created", "job_ran"])
async def test_killed_process_leads_to_one_message_for_a_job(app: Tenuto, url: str, tmp_path: Path, point: str) -> None:
    paged = tmp_path / "paged"
    add_broken_job(app)
    add_pager(app, paged, kills=False)
    await add_schedule(app)
    await webhook_rule(app, "", channel={"kind": "job", "job": "pager"})
    async with app.worker():
        await run_schedule(app)
    await _run_until_killed(url, tmp_path, point)
    async with app.worker(lease_seconds=1.5), app.scheduler():
        (delivery,) = await eventually(lambda: delivered(app), 30)
    assert paged.read_text().split() == [str(delivery.id)] * (2 if point == "job_ran" else 1)


@pytest.mark.parametrize("kind", ["slack", "teams"])
async def test_killed_process_leads_to_one_message_for_a_chat(
    app: Tenuto, url: str, tmp_path: Path, receiver: WebhookReceiver, kind: str
) -> None:
    add_broken_job(app)
    await add_schedule(app)
    await app.secrets.set("chat", receiver.url("/hook"))
    await webhook_rule(app, "", channel={"kind": kind, "url": {"secret": "chat"}})
    async with app.worker():
        await run_schedule(app)
    await _run_until_killed(url, tmp_path, "webhook_sent")
    async with app.worker(lease_seconds=1.5), app.scheduler():
        (delivery,) = await eventually(lambda: delivered(app), 30)
    assert receiver.message_ids == [str(delivery.id)]
    assert len(receiver.requests) == 2
    assert len({request.body for request in receiver.requests}) == 1


async def _run_until_killed(url: str, home: Path, point: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.notifications.killed_process", url, str(home), point,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert await asyncio.wait_for(process.wait(), 60) == -9


async def test_decisions_are_named_like_the_states_of_events() -> None:
    assert {Decision.SILENCE.value, Decision.DROP.value} == {"silenced", "dropped"}


def test_retry_policy_of_deliveries_covers_hours() -> None:
    assert sum(RetryPolicy().delay_after(n, "x").total_seconds() for n in range(1, 15)) > 5 * 3600
