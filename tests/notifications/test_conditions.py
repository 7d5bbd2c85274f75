"""Conditions, many events at once, quiet times, silences and events of extensions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.postgres.database import Connection
from tenuto_inventory.extension import Inventory
from tenuto_notifications.model.dispatch import Decision, Group, decide
from tenuto_notifications.model.filter_matching import matches
from tenuto_notifications.model.rules import parse_rule
from tenuto_notifications.store import rules
from tests.notifications.failing_schedule import (
    add_broken_job,
    add_schedule,
    collector_of,
    delivered,
    events_of,
    operations_of,
    run_schedule,
    webhook_rule,
)
from tests.notifications.receivers import WebhookReceiver
from tests.support.errors import raises_code
from tests.support.waiting import eventually

NOON = datetime(2031, 5, 5, 12, tzinfo=UTC)  # a Monday
WEBHOOK = {"kind": "webhook", "url": "https://example.org/hook"}


# --- conditions -----------------------------------------------------------------------------------------------------


async def test_late_execution_is_one_event_until_it_has_ended(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app, "Nightly", "sound")
    await webhook_rule(app, "http://127.0.0.1:9/", "execution.late", after="1h")
    started = await app.schedules.run("Nightly")
    database, collector = await app.open(), collector_of(app)
    await collector.run_cycle()
    assert await events_of(database) == []
    await database.write_all("UPDATE tenuto.executions SET due_at = due_at - interval '2 hours'")
    for _ in range(3):
        collector._next_conditions = 0
        await collector.run_cycle()
    assert await events_of(database) == [("execution.late", "Nightly is late", "sent")]
    async with app.worker():
        assert started.execution_id is not None
        await app.executions.wait(started.execution_id, 30)
    for _ in range(2):
        collector._next_conditions = 0
        await collector.run_cycle()
    assert await events_of(database) == [
        ("execution.late", "Nightly is late", "sent"),
        ("execution.late", "Ended: Nightly is late", "sent"),
    ]


async def test_stuck_execution_and_waiting_queue_are_found(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app, "Nightly", "sound")
    await webhook_rule(app, "http://127.0.0.1:9/", "execution.stuck", name="stuck", recovered=False)
    await webhook_rule(app, "http://127.0.0.1:9/", "queue.waiting", name="queue", filter="queue:default tasks:>0")
    await webhook_rule(app, "http://127.0.0.1:9/", "queue.waiting", name="other", filter="queue:mail")
    started = await app.schedules.run("Nightly")
    database, collector = await app.open(), collector_of(app)
    await collector.run_cycle()
    assert await events_of(database) == []
    await database.write_all("UPDATE tenuto.executions SET started_at = started_at - interval '20 minutes'")
    await database.write_all("UPDATE tenuto.tasks SET run_at = run_at - interval '20 minutes'")
    collector._next_conditions = 0
    await collector.run_cycle()
    assert sorted(await events_of(database)) == [
        ("execution.stuck", "Nightly is stuck", "sent"),
        ("queue.waiting", "Tasks of queue default wait", "sent"),
    ]
    async with app.worker():
        assert started.execution_id is not None
        await app.executions.wait(started.execution_id, 30)
    collector._next_conditions = 0
    await collector.run_cycle()
    titles = [title for _, title, _ in await events_of(database) if title.startswith("Ended")]
    assert titles == ["Ended: Tasks of queue default wait"]


async def test_warning_of_the_doctor_is_an_event_and_its_end_another(app: Tenuto) -> None:
    await webhook_rule(app, "http://127.0.0.1:9/", "doctor.warning", filter="check:notification_rules")
    await operations_of(app).create(
        {"name": "mail", "event": "worker.lost", "channel": {"kind": "email", "to": ["ops@example.org"]}}
    )
    database, collector = await app.open(), collector_of(app)
    for _ in range(2):
        collector._next_conditions = collector._next_doctor = 0
        await collector.run_cycle()
    assert [title for _, title, _ in await events_of(database)] == ["Doctor: notification rules cannot send messages"]
    await operations_of(app).delete("mail")
    collector._next_conditions = collector._next_doctor = 0
    await collector.run_cycle()
    assert [title for _, title, _ in await events_of(database)][1:] == [
        "Ended: Doctor: notification rules cannot send messages"
    ]


async def test_rule_that_gets_another_event_forgets_its_conditions(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app, "Nightly", "sound")
    await webhook_rule(app, "http://127.0.0.1:9/", "execution.late", after="1h")
    await app.schedules.run("Nightly")
    database, collector = await app.open(), collector_of(app)
    await database.write_all("UPDATE tenuto.executions SET due_at = due_at - interval '2 hours'")
    await collector.run_cycle()
    definition = (await operations_of(app).get("rule")).definition
    del definition["after"]
    await operations_of(app).edit("rule", {**definition, "event": "queue.waiting"})
    collector._next_conditions = 0
    await collector.run_cycle()
    assert await events_of(database) == [("execution.late", "Nightly is late", "sent")]


async def test_condition_of_two_collectors_is_one_event(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app, "Nightly", "sound")
    await webhook_rule(app, "http://127.0.0.1:9/", "execution.late", after="1h")
    await app.schedules.run("Nightly")
    database = await app.open()
    await database.write_all("UPDATE tenuto.executions SET due_at = due_at - interval '2 hours'")
    for _ in range(3):
        await collector_of(app).run_cycle()
    assert len(await events_of(database)) == 1


# --- grouping -------------------------------------------------------------------------------------------------------


async def test_storm_becomes_two_messages(app: Tenuto, receiver: WebhookReceiver) -> None:
    """The first event is sent at once, the others when the window ends."""
    add_broken_job(app)
    await webhook_rule(app, receiver.url("/hook"), "task.failed", group={"window": "10m", "by": ["name"]})
    job = app.jobs.get_job("broken")
    collector, database = collector_of(app), await app.open()
    async with app.worker():
        await app.wait(await app.enqueue(job, "first"), 30)
        await collector.run_cycle()
        for task in [await app.enqueue(job, f"error {number}") for number in range(50)]:
            await app.wait(task, 30)
        await collector.run_cycle()
        assert len(await operations_of(app).deliveries()) == 1
        await database.write_all("UPDATE tenuto_notifications.messages SET created_at = created_at - interval '11 m'")
        await collector.run_cycle()
        await eventually(lambda: _delivered(app, 2), 20)
    first, second = receiver.documents
    assert (first["count"], second["count"], second["omitted"], len(second["events"])) == (1, 50, 30, 20)
    assert second["subject"] == "Task broken failed for good (and 49 more)"
    assert len(await events_of(database)) == 51


async def _delivered(app: Tenuto, count: int) -> bool:
    return len(await delivered(app)) == count


# --- silences and quiet times ---------------------------------------------------------------------------------------


async def test_silenced_events_are_recorded_and_never_sent(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app)
    await webhook_rule(app, "http://127.0.0.1:9/", name="one")
    await webhook_rule(app, "http://127.0.0.1:9/", name="two")
    operations, collector = operations_of(app), collector_of(app)
    made = await operations.silence("one", "2h", reason="maintenance")
    async with app.worker():
        await run_schedule(app)
    await collector.run_cycle()
    assert [each.rule for each in await operations.deliveries()] == ["two"]
    await operations.end_silence(made.id)
    assert await operations.silences() == []
    await operations.silence(None, 3600)
    async with app.worker():
        await run_schedule(app)
    await collector.run_cycle()
    assert [each.rule for each in await operations.deliveries()] == ["two"]
    assert sorted(state for _, _, state in await events_of(await app.open())) == ["sent"] + ["silenced"] * 3
    with raises_code("notifications.silence.out_of_range"):
        await operations.silence("one", "91d")
    with raises_code("notifications.rule.not_found"):
        await operations.silence("three", "1h")


def rule_with(**more: Any) -> Any:
    return parse_rule({"name": "r", "event": "execution.failed", "channel": WEBHOOK, **more})


async def test_silence_applies_between_its_start_and_its_end(app: Tenuto) -> None:
    await webhook_rule(app, "http://127.0.0.1:9/")
    now = (await app.open()).clock.now()
    silence = await operations_of(app).silence("rule", 60, starts_at=now + timedelta(hours=1))
    database = await app.open()

    async def silenced_at(instant: datetime) -> list[str | None]:
        async def read(connection: Connection) -> list[str | None]:
            return list(await rules.list_silenced_rules(connection, instant))

        return await database.transaction(read)

    second = timedelta(seconds=1)
    assert await silenced_at(silence.starts_at - second) == []
    assert await silenced_at(silence.starts_at) == await silenced_at(silence.ends_at - second) == ["rule"]
    assert await silenced_at(silence.ends_at) == []


def test_quiet_time_crosses_midnight_and_follows_its_zone() -> None:
    quiet = rule_with(quiet={"start": "22:00", "end": "07:00", "zone": "Europe/London"}).quiet
    at = {hour: quiet.contains(NOON.replace(hour=hour)) for hour in (5, 6, 20, 21, 23)}  # summer time: one hour ahead
    assert at == {5: True, 6: False, 20: False, 21: True, 23: True}


def test_quiet_time_of_some_days_lasts_into_the_next_morning() -> None:
    quiet = rule_with(quiet={"start": "22:00", "end": "07:00", "days": ["fri"]}).quiet
    friday = NOON + timedelta(days=4)
    assert quiet.contains(friday.replace(hour=23))
    assert quiet.contains(friday.replace(hour=3) + timedelta(days=1))
    assert not quiet.contains(friday.replace(hour=3))
    assert not quiet.contains(friday.replace(hour=23) + timedelta(days=1))


@pytest.mark.parametrize(
    ("more", "last_minutes", "silenced", "expected"),
    [
        ({}, None, [], Decision.SEND),
        ({"group": {"window": "5m"}}, 4, [], Decision.WAIT),
        ({"group": {"window": "5m"}}, 5, [], Decision.SEND),
        ({"quiet": {"start": "11:00", "end": "13:00"}}, None, [], Decision.WAIT),
        ({"quiet": {"start": "11:00", "end": "13:00", "then": "drop"}}, None, [], Decision.DROP),
        ({"quiet": {"start": "13:00", "end": "14:00"}}, None, [], Decision.SEND),
        ({"quiet": {"start": "11:00", "end": "13:00"}}, None, ["r"], Decision.SILENCE),
        ({}, None, [None], Decision.SILENCE),
        ({}, None, ["other"], Decision.SEND),
        ({"enabled": False}, None, [], Decision.DROP),
    ],
)
def test_decision_about_collected_events(
    more: dict[str, Any], last_minutes: int | None, silenced: list[str | None], expected: Decision
) -> None:
    last = None if last_minutes is None else NOON - timedelta(minutes=last_minutes)
    assert decide(rule_with(**more), Group("r", "", 3, last), silenced, NOON) is expected


def test_decision_without_rule_drops_the_events() -> None:
    assert decide(None, Group("r", "", 3, None), [], NOON) is Decision.DROP


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        ("", True),
        ("schedule:Nightly", True),
        ("schedule:nightly", False),
        ("schedule:~night", True),
        ("-schedule:Nightly", False),
        ("schedule:Weekly,Nightly", True),
        ("ran:>5m", True),
        ("ran:>15m", False),
        ("failed_steps:1..3", True),
        ("failed_steps:>=3", False),
        ("origin:manual", False),
        ("id:01a1e30e", True),
        ("id:01a1e30f", False),
        ("space", True),
        ("-space", False),
        ("by:ana", False),
        ("-by:ana", True),
        ("started:>2031-05-04", True),
    ],
)
def test_filter_is_evaluated_on_an_event(filter: str, expected: bool) -> None:
    fields = {
        "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
        "schedule": "Nightly",
        "origin": "trigger",
        "ran": timedelta(minutes=10),
        "failed_steps": 2,
        "error": "no space left",
        "started": NOON,
        "by": None,
    }
    assert matches(rule_with(filter=filter).parse_filter(NOON), "Nightly failed", fields) is expected


# --- extensions -----------------------------------------------------------------------------------------------------


async def test_event_of_an_extension_is_sent_once(url: str, tmp_path: Path, receiver: WebhookReceiver) -> None:
    async with Tenuto(url, home=tmp_path, extensions=[Inventory()]) as app:
        await app.migrate()
        operations = operations_of(app)
        assert "inventory.orders" in [each.name for each in operations.events()]
        await webhook_rule(app, receiver.url("/hook"), "inventory.orders", filter="item:bolt")
        await app.extensions.inventory.add("bolt", level=10)
        await app.extensions.inventory.add("nut", level=10)
        async with app.worker(), app.scheduler():
            for item in ("bolt", "nut", "bolt"):
                await _order(app, item)
            await eventually(lambda: _delivered(app, 2), 20)
        collector = collector_of(app)
        await collector.run_cycle()
        await collector.run_cycle()
        assert len(await operations.deliveries()) == 2
        assert [document["events"][0]["fields"] for document in receiver.documents] == [
            {"item": "bolt", "quantity": 5}
        ] * 2


async def _order(app: Tenuto, item: str) -> None:
    from tenuto.ids import new_id
    from tenuto_inventory import store

    await store.place_order(await app.open(), new_id(), item, 5)
