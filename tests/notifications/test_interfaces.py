"""Rules over the command line, HTTP, definition files and the dashboard; every change is in the audit log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tenuto import Actor, Tenuto
from tenuto.api.application import add_middleware, create_api
from tenuto.api.openapi import openapi_document
from tenuto.definitions.document_parser import parse_document
from tenuto.maintenance.housekeeping import Housekeeping
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.plans import Declarations, read_declarations
from tenuto.web.server import web_server
from tenuto_notifications.store import messages, rules, sources
from tests.api.conftest import HOST, ApiClient, assert_problem
from tests.notifications.failing_schedule import (
    add_broken_job,
    add_schedule,
    delivered,
    operations_of,
    run_schedule,
    webhook_rule,
)
from tests.notifications.receivers import WebhookReceiver
from tests.support import warm_process
from tests.support.errors import raises_code
from tests.support.waiting import eventually

FILE = """
notification_rules:
  - name: failures
    event: execution.failed
    filter: "schedule:~nightly"
    channel: {kind: webhook, url: "https://example.org/hook", signing_key: {secret: hook-key}}
    group: {window: 5m, by: [schedule]}
    quiet: {start: "22:00", end: "07:00", zone: Europe/London}
"""


def declare(text: str) -> Declarations:
    return read_declarations([parse_document("rules.yaml", text.encode())])


# --- operations and audit log ---------------------------------------------------------------------------------------


async def test_every_change_is_in_the_audit_log(app: Tenuto) -> None:
    caller = app.acting_as(Actor.user("ana"))
    operations = operations_of(caller)
    definition = {"name": "r", "event": "execution.failed", "channel": {"kind": "webhook", "url": "https://x.example"}}
    await operations.create(definition)
    with raises_code("notifications.rule.exists"):
        await operations.create(definition)
    await operations.edit("r", {**definition, "event": "worker.lost"}, reason="wrong event")
    await operations.edit("r", {**definition, "event": "worker.lost"})  # nothing changes
    await operations.disable("r")
    await operations.disable("r")
    await operations.enable("r")
    await operations.test("r")
    silence = await operations.silence("r", "1h")
    await operations.end_silence(silence.id)
    await operations.delete("r")
    with raises_code("notifications.rule.not_found"):
        await operations.get("r")
    entries = await app.audit.list()
    assert [(entry.action, entry.actor_name) for entry in reversed(entries)] == [
        (f"notifications.{action}", "ana")
        for action in (
            "rule.create", "rule.edit", "rule.disable", "rule.enable", "rule.test", "silence.create", "silence.end",
            "rule.delete",
        )
    ]  # fmt: skip


async def test_queries_of_an_audited_caller_change_nothing(app: Tenuto) -> None:
    await webhook_rule(app, "https://example.org/hook")
    operations = operations_of(app.acting_as(Actor.user("ana")))
    await operations.rules()
    await operations.get("rule")
    await operations.silences()
    await operations.deliveries(state="failed")
    assert operations.events()[0].name == "execution.failed"
    assert await app.audit.list() == []


# --- definition files -----------------------------------------------------------------------------------------------


async def test_rules_of_a_file_are_planned_applied_and_pruned(app: Tenuto) -> None:
    planned = await app.plans.plan(declare(FILE))
    assert planned.has_changes
    await app.plans.apply(planned)
    (rule,) = await operations_of(app).rules()
    assert (rule.name, rule.origin, rule.enabled, rule.filter) == ("failures", "file", True, "schedule:~nightly")
    assert rule.definition["group"] == {"window": 300.0, "by": ["schedule"]}
    assert not (await app.plans.plan(declare(FILE))).has_changes
    await operations_of(app).disable("failures")
    assert not (await app.plans.plan(declare(FILE))).has_changes  # the change of the operator is kept
    await app.plans.apply(await app.plans.plan(declare(FILE.replace("5m", "10m"))))
    assert (await operations_of(app).get("failures")).enabled
    await app.plans.apply(await app.plans.plan(declare("schedules: []"), prune=True))
    assert await operations_of(app).rules() == []


async def test_rule_that_changed_since_the_plan_is_not_overwritten(app: Tenuto) -> None:
    await app.plans.apply(await app.plans.plan(declare(FILE)))
    planned = await app.plans.plan(declare(FILE.replace("5m", "10m")))
    await operations_of(app).disable("failures")
    with raises_code("notifications.rule.changed"):
        await app.plans.apply(planned)


async def test_invalid_rule_of_a_file_is_located(app: Tenuto) -> None:
    with raises_code("filter.key.unknown") as error:
        await app.plans.plan(declare(FILE.replace("schedule:~", "colour:~")))
    assert error.value.field is not None
    assert error.value.field.startswith("rules.yaml, line 5: notification_rules[0].filter")


@pytest.mark.parametrize(
    ("event", "suggestion"),
    [
        ("execution.exploded", "execution.failed"),
        ("executon.failed", "execution.failed"),
        ("Task.Failed", "task.failed"),
        ("worker_lost", "worker.lost"),
        ("queue.", "queue.waiting"),
    ],
)
async def test_unknown_event_of_a_file_is_refused(app: Tenuto, event: str, suggestion: str) -> None:
    text = f"notification_rules: [{{name: r, event: {event}, channel: {{kind: webhook, url: 'https://example.org'}}}}]"
    with raises_code("notifications.event.unknown") as error:
        await app.plans.plan(declare(text))
    assert error.value.field is not None
    assert error.value.field.endswith("notification_rules[0].event")
    assert str(error.value.remedy).startswith(f"did you mean {suggestion}?")


@pytest.mark.parametrize("event", ["identity.runs", "identity.failed", "orders.changed", "task"])
async def test_topic_of_an_extension_is_accepted_in_a_file(app: Tenuto, event: str) -> None:
    text = f"notification_rules: [{{name: r, event: {event}, channel: {{kind: webhook, url: 'https://example.org'}}}}]"
    await app.plans.apply(await app.plans.plan(declare(text)))
    assert (await operations_of(app).get("r")).event == event


@pytest.mark.parametrize(
    ("old", "new", "code", "field"),
    [
        ("schedule:~", "colour:~", "filter.key.unknown", "filter"),
        ("by: [schedule]", "by: [colour]", "notifications.field.unknown", "group.by"),
        ("quiet:", "template: {subject: '{{colour}}'}\n    quiet:", "notifications.field.unknown", "template.subject"),
        ("{kind: webhook,", "{kind: job, job: a b} #", "value.name.invalid", "channel.job"),
    ],
)
async def test_unknown_field_of_a_file_is_refused(app: Tenuto, old: str, new: str, code: str, field: str) -> None:
    with raises_code(code) as error:
        await app.plans.plan(declare(FILE.replace(old, new)))
    assert error.value.field is not None
    assert error.value.field.endswith(f"notification_rules[0].{field}")


# --- HTTP -----------------------------------------------------------------------------------------------------------


async def test_routes_manage_rules_and_show_deliveries(app: Tenuto, receiver: WebhookReceiver) -> None:
    _, key = await app.api_keys.create("admin", Role.ADMIN)
    api = create_api(app)
    transport = httpx2.ASGITransport(app=add_middleware(app, api), client=("127.0.0.1", 50000))
    client = ApiClient(app, api, {Role.ADMIN: key}, httpx2.AsyncClient(transport=transport, base_url=HOST))
    base = "/api/v1/notifications"
    rule = {"name": "a/b", "event": "execution.failed", "channel": {"kind": "webhook", "url": receiver.url("/hook")}}
    assert (await client.post(f"{base}/rules", json=rule)).status_code == 201
    assert_problem(await client.post(f"{base}/rules", json=rule), 409, "notifications.rule.exists")
    wrong = {**rule, "name": "c", "filter": "colour:red"}
    assert_problem(await client.post(f"{base}/rules", json=wrong), 422, "filter.key.unknown")
    edited = {**rule, "filter": "schedule:Nightly", "group": {"window": "5m"}}
    del edited["name"]
    found = (await client.put(f"{base}/rules/a%2Fb", json=edited)).json()
    assert (found["filter"], found["definition"]["group"]) == ("schedule:Nightly", {"window": 300.0})
    assert (await client.post(f"{base}/rules/a%2Fb/disable")).json()["enabled"] is False
    assert (await client.post(f"{base}/rules/a%2Fb/enable")).json()["enabled"] is True
    headers = {"Idempotency-Key": "one"}
    first = await client.post(f"{base}/rules/a%2Fb/test", headers=headers)
    assert (first.status_code, (await client.post(f"{base}/rules/a%2Fb/test", headers=headers)).json()) == (
        202,
        first.json(),
    )
    async with app.worker():
        await eventually(lambda: delivered(app))
    page = await client.get_json(f"{base}/deliveries?rule=a/b&state=delivered&limit=1")
    assert [item["id"] for item in page["items"]] == [first.json()["id"]]
    assert (await client.get_json(f"{base}/deliveries?after={page['next']}"))["items"] == []
    assert (await client.get_json(f"{base}/deliveries/{first.json()['id']}"))["state"] == "delivered"
    assert_problem(await client.get(f"{base}/deliveries?state=lost"), 422, "notifications.delivery.state_unknown")
    silence = (await client.post(f"{base}/silences", json={"rule": "a/b", "duration": "1h"})).json()
    assert len((await client.get_json(f"{base}/silences?rule=a/b"))["items"]) == 1
    assert (await client.delete(f"{base}/silences/{silence['id']}")).status_code == 204
    assert "queue.waiting" in [item["name"] for item in (await client.get_json(f"{base}/events"))["items"]]
    assert (await client.delete(f"{base}/rules/a%2Fb")).status_code == 204
    assert_problem(await client.get(f"{base}/rules/a%2Fb"), 404, "notifications.rule.not_found")


def test_routes_are_documented(tmp_path: Path) -> None:
    app = Tenuto("postgresql://nowhere/x", home=tmp_path)
    paths = openapi_document(create_api(app))["paths"]
    own = {path: operations for path, operations in paths.items() if path.startswith("/api/v1/notifications")}
    assert len(own) == 10
    roles = {operations["post"]["x-role"] for operations in own.values() if "post" in operations}
    assert roles == {"editor", "operator"}
    assert app.extension_registry.failures == []


# --- command line ---------------------------------------------------------------------------------------------------


def test_commands_manage_rules(url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TENUTO_DATABASE": url, "TENUTO_HOME": str(tmp_path / "home"), "COLUMNS": "200"}

    def tenuto(*arguments: str, code: int = 0) -> str:
        done = warm_process.run(["-m", "tenuto", *arguments], cwd=tmp_path, env=environment, timeout=60)
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    create = ("notification", "create", "failures", "--event", "execution.failed", "--webhook", "https://example.org/")
    assert "failures" in tenuto(
        *create, "--filter", "schedule:~nightly", "--quiet-time", "22:00-07:00", "--window", "5m"
    )
    assert "there is a notification rule 'failures'" in tenuto(*create, code=7)
    assert "0 channels are given" in tenuto("notification", "create", "x", "--event", "worker.lost", code=2)
    assert "execution.failed" in tenuto("notification", "list")
    assert '"start": "22:00"' in tenuto("notification", "show", "failures")
    (tmp_path / "rule.yaml").write_text("event: worker.lost\nchannel: {kind: job, job: page}\n")
    tenuto("notification", "edit", "failures", "--file", "rule.yaml")
    assert json.loads(tenuto("notification", "list", "-o", "json", "-q"))[0]["target"] == "page"
    assert "failures is disabled" in tenuto("notification", "disable", "failures")
    assert "failures is enabled" in tenuto("notification", "enable", "failures")
    assert "silenced until" in tenuto("notification", "silence", "failures", "--for", "2h")
    (silence,) = json.loads(tenuto("notification", "silences", "-o", "json", "-q"))
    assert "the silence is ended" in tenuto("notification", "unsilence", silence["id"])
    sent = tenuto("notification", "test", "failures", "-q").strip()
    assert "open" in tenuto("notification", "deliveries")
    assert "[Test] This is a test of the rule failures" in tenuto("notification", "delivery", sent)
    assert "queue.waiting" in tenuto("notification", "events")
    assert "deleted failures" in tenuto("notification", "delete", "failures", "--yes")


# --- dashboard ------------------------------------------------------------------------------------------------------


async def test_pages_show_rules_deliveries_and_silences(app: Tenuto, receiver: WebhookReceiver) -> None:
    add_broken_job(app)
    await add_schedule(app)
    await webhook_rule(app, receiver.url("/hook"), name="<b>rule</b>")
    await operations_of(app).silence(None, 1, reason="first <i>minutes</i>")
    async with app.worker(), app.scheduler():
        await run_schedule(app)
        await operations_of(app).test("<b>rule</b>")
        await eventually(lambda: delivered(app), 20)
    _, key = await app.api_keys.create("admin", Role.ADMIN)
    async with web_server(app, port=0) as address, httpx2.AsyncClient(base_url=address) as client:
        client.headers["Authorization"] = f"Bearer {key}"
        texts = {
            path: (await client.get(f"/notifications/{path}")).text
            for path in ("rules", "deliveries", "deliveries?state=delivered", "silences", "rules/%3Cb%3Erule%3C%2Fb%3E")
        }
    for path, text in texts.items():
        assert "<b>rule" not in text, path
        assert "<i>minutes" not in text, path
        assert "could not be shown" not in text, path
    assert "&lt;b&gt;rule&lt;/b&gt;" in texts["rules"]
    assert "notification_rules_create" in texts["rules"]
    assert "[Test] This is a test of the rule" in texts["deliveries"]
    assert "notification_rules_test" in texts["rules/%3Cb%3Erule%3C%2Fb%3E"]
    assert app.extension_registry.failures == []


# --- retention and rows ---------------------------------------------------------------------------------------------


async def test_retention_deletes_old_records_and_keeps_open_ones(app: Tenuto) -> None:
    add_broken_job(app)
    await add_schedule(app)
    await webhook_rule(app, "https://example.org/hook")
    await operations_of(app).silence("rule", "1h")
    await operations_of(app).test("rule")
    database = await app.open()
    registry = app.extension_registry
    housekeeping = Housekeeping(
        database, database.clock, app.settings, retention=registry.retention(), tables=registry.partitioned_tables()
    )
    await database.write_all(
        "UPDATE tenuto_notifications.silences"
        " SET starts_at = now() - interval '200 d', ends_at = now() - interval '199 d'"
    )
    await database.write_all("UPDATE tenuto_notifications.messages SET created_at = now() - interval '200 d'")
    await housekeeping.apply_retention(database.clock.now())
    assert await database.fetch_value("SELECT count(*) FROM tenuto_notifications.silences") == 0
    assert len(await operations_of(app).deliveries()) == 1  # its task is still queued
    await database.write_all("DELETE FROM tenuto.tasks")
    await housekeeping.apply_retention(database.clock.now())
    assert list(await operations_of(app).deliveries()) == []


@pytest.mark.parametrize("module", [messages, rules, sources])
async def test_statements_prepare_and_their_columns_fit_the_records(app: Tenuto, module: Any) -> None:
    from tenuto.store import row_mapping

    database = await app.open()
    async with database.connection() as connection:
        for _, statement in module.SQL:
            await connection.prepare(statement)
        for mapper in row_mapping._registered:
            if not mapper.record_type.__module__.startswith(module.__name__):
                continue
            for statement in mapper.statements:
                columns = [each.name for each in (await connection.prepare(statement)).get_attributes()]
                names = [each.name for each in mapper.record_type.__dataclass_fields__.values()]
                assert sorted(columns) == sorted(names), statement
