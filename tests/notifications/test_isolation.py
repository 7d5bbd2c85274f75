"""One rule, or one event, does not stop the notifications of others, however large or invalid it is."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.model.validation import MAX_INPUT_BYTES
from tenuto_notifications.model.messages import ListedEvent, compose
from tenuto_notifications.model.rules import parse_rule
from tests.notifications.site import (
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
