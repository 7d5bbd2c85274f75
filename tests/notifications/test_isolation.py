"""One rule, or one event, does not stop the notifications of others, however large or invalid it is."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.ids import new_id
from tenuto.model.validation import MAX_INPUT_BYTES
from tenuto_notifications.collection.failure_isolation import FailureLog, record_events
from tenuto_notifications.model.messages import ListedEvent, compose
from tenuto_notifications.model.rules import parse_rule
from tenuto_notifications.store.messages import NewEvent
from tests.notifications.failing_schedule import (
    add_broken_job,
    collector_of,
    events_of,
    operations_of,
    webhook_rule,
)

JOB_CHANNEL = {"kind": "job", "job": "page_the_team"}
NOWHERE = "http://127.0.0.1:9/"


async def fail_tasks(app: Tenuto, *errors: str) -> None:
    """Run tasks of the job ``broken`` that fail with these errors."""
    async with app.worker():
        for error in errors:
            await app.wait(await app.enqueue(app.jobs.get_job("broken"), error), 30)


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        "\U0001f525" * 100_000,
        ["\u00e9" * 3000] * 100,
        {f"k{number}": "\x01" * 3000 for number in range(100)},
        [[["x" * 2000] * 20] * 20] * 2,
    ],
    ids=["text", "list", "mapping", "nested"],
)
def test_document_of_large_events_fits_into_the_input_of_a_task(value: Any) -> None:
    rule = parse_rule({"name": "r", "event": "topic", "channel": JOB_CHANNEL, "template": {"body": "{{value}}"}})
    fields = {"id": "1", "value": value, **{f"more{number}": value for number in range(20)}}
    events = [ListedEvent("topic", "title" * 1000, "2031-05-05", fields)] * 20
    document = compose("id", rule, events, 30, None, is_test=False).document
    assert len(json.dumps({"notification": document}, ensure_ascii=False).encode()) <= MAX_INPUT_BYTES
    assert document["events"][0]["fields"]["id"] == "1"
    assert document["omitted"] == 30 - len(document["events"])


def test_deep_value_of_an_event_is_cut() -> None:
    value: Any = "x"
    for _ in range(300):
        value = [value]
    rule = parse_rule({"name": "r", "event": "topic", "channel": JOB_CHANNEL})
    document = compose("id", rule, [ListedEvent("topic", "t", "", {"value": value})], 1, None, is_test=False).document
    assert document["events"][0]["fields"]["value"] == [[[[[["…"]]]]]]


async def test_job_gets_a_message_about_large_errors(app: Tenuto) -> None:
    """Escapes of ASCII would make six bytes of each character."""
    add_broken_job(app)
    await webhook_rule(app, "", "task.failed", channel=JOB_CHANNEL, group={"window": "1h"})
    await fail_tasks(app, *("é" * 7000 for _ in range(20)))
    await collector_of(app).run_cycle()
    assert {state for _, _, state in await events_of(await app.open())} == {"sent"}
    (delivery,) = await operations_of(app).deliveries()
    assert delivery.event_count == 20


async def test_group_by_a_long_error_has_a_short_key(app: Tenuto) -> None:
    add_broken_job(app)
    await webhook_rule(app, NOWHERE, "task.failed", group={"window": "1h", "by": ["error"]})
    letters = [chr(code) for code in range(0x4E00, 0x9000)]  # hardly compressible
    first, second = ("".join(random.Random(seed).choices(letters, k=2600)) for seed in (1, 2))
    await fail_tasks(app, first, second, first)
    await collector_of(app).run_cycle()
    assert [state for _, _, state in await events_of(await app.open())] == ["sent"] * 3
    assert sorted(each.event_count for each in await operations_of(app).deliveries()) == [1, 2]


# --- errors ---------------------------------------------------------------------------------------------------------


async def test_rule_whose_message_cannot_be_created_does_not_stop_others(app: Tenuto) -> None:
    """An earlier version has stored a name of a job that no task can have."""
    add_broken_job(app)
    await webhook_rule(app, "", "task.failed", name="bad", channel=JOB_CHANNEL)
    await webhook_rule(app, NOWHERE, "task.failed", name="good")
    database = await app.open()
    await database.write_all(
        "UPDATE tenuto_notifications.rules SET definition = jsonb_set(definition, '{channel,job}', '\"two words\"')"
        " WHERE name = 'bad'"
    )
    await fail_tasks(app, "first", "second")
    collector = collector_of(app)
    for _ in range(2):
        await collector.run_cycle()
    rows = await database.fetch_all("SELECT rule_name, state, reason FROM tenuto_notifications.events ORDER BY 1")
    assert [(row["rule_name"], row["state"]) for row in rows] == [("bad", "dropped")] * 2 + [("good", "sent")] * 2
    assert "two words" in rows[0]["reason"]
    assert {each.rule for each in await operations_of(app).deliveries()} == {"good"}
    findings = {finding.name: finding for finding in await app.doctor()}
    (detail,) = findings["notification_deliveries"].details
    assert detail.startswith("bad: no message about 2 events: Invalid: ")


async def test_rule_whose_filter_cannot_be_read_does_not_stop_others(app: Tenuto) -> None:
    add_broken_job(app)
    await webhook_rule(app, NOWHERE, "task.failed", name="bad", filter="queue:default")
    await webhook_rule(app, NOWHERE, "task.failed", name="good")
    database = await app.open()
    await database.write_all(
        "UPDATE tenuto_notifications.rules SET definition = jsonb_set(definition, '{filter}', '\"colour:red\"')"
        " WHERE name = 'bad'"
    )
    await fail_tasks(app, "first")
    await collector_of(app).run_cycle()
    assert [each.rule for each in await operations_of(app).deliveries()] == ["good"]


async def test_event_that_cannot_be_recorded_does_not_stop_others(app: Tenuto) -> None:
    database, at = await app.open(), datetime(2031, 5, 5, tzinfo=UTC)
    values = [1.0, 2.0, float("nan"), 4.0, 5.0]  # JSON of PostgreSQL has no NaN
    events = [
        NewEvent(new_id(), "r", f"topic:{n}", "topic", f"e{n}", {"value": value}, None, "", at)
        for n, value in enumerate(values)
    ]

    async def record(connection: Any) -> int:
        return await record_events(connection, events, at, FailureLog())

    assert await database.transaction(record) == 4
    assert [state for _, _, state in await events_of(database)] == ["pending"] * 2 + ["dropped"] + ["pending"] * 2
