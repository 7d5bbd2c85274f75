"""Events that wait, however many, do not delay the events of other rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.ids import new_id
from tenuto.postgres.database import Connection, Database
from tenuto_notifications.model.dispatch import Decision, Group, decide
from tenuto_notifications.model.rules import load_rule
from tenuto_notifications.store import messages
from tenuto_notifications.store.messages import NewEvent
from tests.notifications.failing_schedule import collector_of, operations_of, webhook_rule

NOWHERE = "http://127.0.0.1:9/"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


async def add_pending(database: Database, rule_name: str, count: int, at: datetime = LONG_AGO) -> None:
    """Record events of a rule, each in a separate group."""
    events = [
        NewEvent(new_id(), rule_name, f"{rule_name}:{n}", "worker.lost", "t", {}, None, f"{rule_name}:{n}", at)
        for n in range(count)
    ]

    async def insert(connection: Connection) -> int:
        return await messages.insert_events(connection, events, at)

    assert await database.transaction(insert) == count


async def count_states(database: Database) -> dict[tuple[str, str], int]:
    rows = await database.fetch_all(
        "SELECT rule_name, state, count(*) AS number FROM tenuto_notifications.events GROUP BY 1, 2"
    )
    return {(row["rule_name"], row["state"]): row["number"] for row in rows}


def quiet_now() -> dict[str, Any]:
    now = datetime.now(UTC)
    begin, end = now - timedelta(hours=2), now + timedelta(hours=2)
    return {"start": f"{begin:%H:%M}", "end": f"{end:%H:%M}"}


async def test_groups_that_wait_do_not_delay_other_rules(app: Tenuto) -> None:
    database = await app.open()
    await webhook_rule(app, NOWHERE, "worker.lost", name="quiet", quiet=quiet_now())
    await webhook_rule(app, NOWHERE, "worker.lost", name="combined", group={"window": "1d"})
    await webhook_rule(app, NOWHERE, "worker.lost", name="prompt")
    await add_pending(database, "quiet", 1100)
    await add_pending(database, "combined", 1100)
    await database.write_all(
        "INSERT INTO tenuto_notifications.messages (id, rule_name, event, group_key, event_count, is_test, channel,"
        " content, created_at) SELECT gen_random_uuid(), rule_name, kind, group_key, 1, false, '{}', '{}', now()"
        " FROM tenuto_notifications.events WHERE rule_name = 'combined'"
    )
    await add_pending(database, "prompt", 3, datetime.now(UTC))
    await collector_of(app).run_cycle()
    found = await count_states(database)
    assert found == {("quiet", "pending"): 1100, ("combined", "pending"): 1100, ("prompt", "sent"): 3}


async def test_rule_with_many_groups_does_not_delay_other_rules(app: Tenuto) -> None:
    database = await app.open()
    await webhook_rule(app, NOWHERE, "worker.lost", name="many")
    await webhook_rule(app, NOWHERE, "worker.lost", name="prompt")
    await add_pending(database, "many", 1100)
    await add_pending(database, "prompt", 3, datetime.now(UTC))
    collector = collector_of(app)
    await collector.run_cycle()
    assert (await count_states(database))["prompt", "sent"] == 3
    await collector.run_cycle()
    assert await count_states(database) == {("many", "sent"): 1100, ("prompt", "sent"): 3}


@pytest.mark.parametrize("ending", ["disable", "delete"])
async def test_all_events_of_stopped_rules_are_dropped(app: Tenuto, ending: str) -> None:
    database = await app.open()
    await webhook_rule(app, NOWHERE, "worker.lost")
    await add_pending(database, "rule", 1100)
    await getattr(operations_of(app), ending)("rule")
    await collector_of(app).run_cycle()
    assert await count_states(database) == {("rule", "dropped"): 1100}


async def test_all_events_of_silenced_rules_are_settled(app: Tenuto) -> None:
    database = await app.open()
    await webhook_rule(app, NOWHERE, "worker.lost")
    await webhook_rule(app, NOWHERE, "worker.lost", name="dropping", quiet={**quiet_now(), "then": "drop"})
    await add_pending(database, "rule", 1100)
    await add_pending(database, "dropping", 1100)
    await operations_of(app).silence("rule", "1h")
    await collector_of(app).run_cycle()
    assert await count_states(database) == {("rule", "silenced"): 1100, ("dropping", "dropped"): 1100}


@pytest.mark.parametrize("seconds", [None, 299, 300, 301])
async def test_statement_decides_about_windows_like_the_model(app: Tenuto, seconds: int | None) -> None:
    database = await app.open()
    await webhook_rule(app, NOWHERE, "worker.lost", group={"window": "5m"})
    await add_pending(database, "rule", 1)
    now = datetime(2031, 5, 5, tzinfo=UTC)
    last = None if seconds is None else now - timedelta(seconds=seconds)
    if last is not None:
        await database.write_all(
            "INSERT INTO tenuto_notifications.messages (id, rule_name, event, group_key, event_count, is_test, channel,"
            " content, created_at)"
            " VALUES (gen_random_uuid(), 'rule', 'worker.lost', 'rule:0', 1, false, '{}', '{}', $1)",
            last,
        )
    rule = load_rule((await operations_of(app).get("rule")).definition | {"name": "rule"})

    async def find(connection: Connection) -> Any:
        return await messages.list_due_groups(connection, {"rule": timedelta(minutes=5)}, now, 10)

    found = await database.transaction(find)
    group = Group("rule", "rule:0", 1, last)
    assert found == ([group] if decide(rule, group, [], now) is Decision.SEND else [])
