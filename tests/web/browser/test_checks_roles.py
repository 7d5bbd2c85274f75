"""Actions of all pages in every role: allowed ones are audited with the person, others name the role they need."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tenuto import Step, manual
from tenuto.api.openapi import openapi_document
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.schedules import schedule_definition
from tests.support.waiting import eventually
from tests.web.browser.conftest import Site, make_app, running_site
from tests.web.browser.test_accessibility import fill

READ_ACTIONS = """async (addresses) => {
  const { parse } = await import(document.querySelector("script[src*=app]").src.replace("app.js", "live.js"));
  const read = (each) => ({
    operation: each.dataset.operation, disabled: each.disabled, title: each.title, method: each.dataset.method,
    url: each.dataset.url, body: each.dataset.body ?? null,
    fields: each.dataset.dialog ? JSON.parse(each.dataset.dialog).fields : []});
  return Promise.all(addresses.map(async (address) => {
    const response = await fetch(address, {headers: {Accept: "text/html"}});
    const buttons = parse(await response.text()).querySelectorAll("main button[data-operation]");
    return {address, status: response.status, actions: [...buttons].map(read)};
  }));
}"""
"""Reads the actions of pages as the server renders them; to load each page took half of the time."""
READ_BUTTONS = """() => [...document.querySelectorAll("main button[data-operation]")]
  .map((each) => [each.dataset.operation, each.disabled])"""
SEND = """async ([action, values]) => {
  const headers = {"Tenuto-Page": "1", "X-Reason": "checked"};
  if (action.method === "POST") headers["Idempotency-Key"] = crypto.randomUUID();
  const url = action.url.replace(/%7B(\\w+)%7D/g, (_, name) => encodeURIComponent(values[name] ?? "new"));
  const body = {...JSON.parse(action.body ?? "{}"), ...values};
  const request = {method: action.method, headers};
  if (Object.keys(body).length) { headers["Content-Type"] = "application/json"; request.body = JSON.stringify(body); }
  return (await fetch(url, request)).status;
}"""
NOT_SENT = {"sessions_end", "account_end_session", "account_end_other_sessions", "keys_revoke", "keys_rotate"}
"""They would end the session of this test; `test_checks_access.py` and `test_actions_of_pages.py` perform them."""
WITHOUT_BUTTON = {
    "approvals_create_link",
    "dead_letters_acknowledge_selected",
    "dead_letters_retry_selected",
    "manifests_bulk",
    "one_shots_cancel_all",
    "plans_apply",
    "session_close",
    "tasks_retry",
}
"""Changes for programs and the command line; the dashboard has bulk operations, *Run again* and a form to log out."""
MAX_TRIES = 8
FIELD_VALUES = {
    "rate_limit": "100/m",
    "max_running": 7,
    "max_active": 7,
}
"""Values of fields without which an action changes nothing, or is refused."""


def list_operations(site: Site) -> dict[str, dict[str, Any]]:
    """Return the operations of the OpenAPI document by id, each with its method."""
    return {
        operation["operationId"]: {**operation, "method": method}
        for methods in openapi_document(site.api)["paths"].values()
        for method, operation in methods.items()
        if "operationId" in operation
    }


def changes_nothing(operation: dict[str, Any]) -> bool:
    return operation["method"] == "get" or bool(operation.get("x-action", ".read").endswith(".read"))


@pytest_asyncio.fixture(loop_scope="session")
async def site(url: str, tmp_path: Path, browser: Browser, master_key: None) -> AsyncIterator[Site]:
    """Only the web service: the test runs the others."""
    async with running_site(make_app(url, tmp_path), browser, services=False) as found:
        yield found


@asynccontextmanager
async def objects_in_every_state(site: Site, scheduler: AsyncExitStack) -> AsyncIterator[list[str]]:
    """Create objects whose state allows each action; yield their pages. Then no scheduler runs that would change it."""
    app = site.app
    app.manifest("grouped", app.jobs.jobs_by_name["quick"], on_demand=True, group="mail", max_active=3)
    await app.manifests.deploy()
    await app.pause_queue("held", "server down")
    held = [await app.bulk_enqueue("held", [{"number": number} for number in range(2)]) for _ in range(2)]
    await app.batches.pause(held[1].id)
    failed = await app.bulk_enqueue("bills", [{"number": number} for number in range(4)])

    async def have_failed() -> bool:
        return (await app.dead_letters.count(f"batch:{failed.id}")).count == 4

    await eventually(have_failed, 30)
    for _ in range(2):
        await site.run("Month end", wait=True)
    site.hold_talks()
    running = [await site.run(name) for name in ("Limited", "Parent")]
    await app.executions.pause(running[1])
    await app.one_shots.create(datetime.now(UTC) + timedelta(hours=2), "log.append", {"message": "later"})
    await app.secrets.set("hr/database", "password")
    await app.invitations.create("ben", Role.VIEWER)
    await app.schedules.disable("Chatter")
    await app.manifests.disable("paid")
    gates = [Step.approval(f"Deploy {number}?", role="viewer", name=f"Gate {number}") for number in range(3)]
    await app.schedules.apply([schedule_definition("Gates", manual(), [gates])])
    await site.run("Gates")
    pending = await eventually(app.approvals.pending)
    async with app.worker(queues=["other"], name="box-2"), app.worker(queues=["other"], name="box-3"):
        await app.drain_worker("box-3")
        await scheduler.aclose()
        operations = [await app.bulk_operations.create("task.cancel", "queue:held") for _ in range(3)]
        await app.bulk_operations.pause(operations[2].id)
        yield [
            *(f"/batches/{each.id}" for each in (*held, failed)),
            *(f"/executions/{each}" for each in running),
            *(f"/operations/{each.id}" for each in operations),
            *(f"/approvals/{each.id}" for each in pending),
            "/queues/held",
            "/manifests/paid",
            "/schedules/Chatter",
        ]


def choose_values(action: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of a dialog: their defaults, else a value that changes something."""
    values = {}
    for field in action["fields"]:
        value = field.get("value", "")
        if value in ("", None):
            value = FIELD_VALUES.get(field["name"])
        if value in ("", None) and field.get("required"):
            value = f"checked-{action['operation']}".replace("_", "-")
        if field.get("type") == "json" and isinstance(value, str) and value:
            value = json.loads(value)
        if value not in ("", None):
            values[field["name"]] = value
    return values


async def collect_actions(page: Page, role: Role, addresses: list[str]) -> list[dict[str, Any]]:
    """Return the actions of pages. Each page is also loaded by one of the roles below admin, which must show the same.

    `test_accessibility.py` loads all pages as admin.
    """
    found: list[dict[str, Any]] = []
    loaded = [] if role is Role.ADMIN else addresses[int(role) % 3 :: 3]
    for answer in await page.evaluate(READ_ACTIONS, addresses):
        assert answer["status"] in (200, 403, 404, 422), (answer["address"], answer["status"])
        found += answer["actions"]
        if answer["address"] in loaded:
            await page.goto(answer["address"])
            rendered = [[each["operation"], each["disabled"]] for each in answer["actions"]]
            assert await page.evaluate(READ_BUTTONS) == rendered, answer["address"]
    return found


def order_of(action: dict[str, Any]) -> int:
    """Return when to perform an action: what ends or removes objects comes last, because other actions need them."""
    verbs = (
        "one_shots_cancel",
        "cancel",
        "acknowledge",
        "retry",
        "end",
        "abort",
        "revoke",
        "delete",
        "operations_create",
    )
    return next((number for number, verb in enumerate(verbs, 1) if verb in action["operation"]), 0)


async def perform(page: Page, actions: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Perform each operation until it succeeds once: on the next object where the state of one no longer allows it."""
    statuses: dict[str, list[int]] = {}
    for action in sorted(actions, key=order_of):
        found = statuses.setdefault(action["operation"], [])
        if len(found) < MAX_TRIES and not any(status < 300 for status in found):
            found.append(await page.evaluate(SEND, [action, choose_values(action)]))
    return statuses


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", list(Role))
async def test_c8_actions_of_all_pages_follow_the_role(site: Site, role: Role) -> None:
    async with site.app.worker(queues=["default", "ldap", "held"]), AsyncExitStack() as scheduler:
        await scheduler.enter_async_context(site.app.scheduler())
        addresses = await fill(site)
        async with objects_in_every_state(site, scheduler) as more:
            await check_actions(site, role, [*addresses, *more, "/account"])
        site.release_talks()  # otherwise the worker waits for them


async def check_actions(site: Site, role: Role, addresses: list[str]) -> None:
    _, site.keys[role] = await site.app.api_keys.create(f"person-{role.key}", role, is_person=True)
    operations = list_operations(site)
    queries = {id for id, operation in operations.items() if changes_nothing(operation)}
    needed = {id: operation["x-role"] for id, operation in operations.items() if "x-role" in operation}
    await site.log_in(await site.new_context(), role)  # another session, which its owner may end
    page = await site.open("/account", role)
    actions = await collect_actions(page, role, addresses)
    for action in actions:
        is_allowed = role >= Role.from_key(needed[action["operation"]])
        if not is_allowed:
            assert action["disabled"], action
            assert action["title"] == f"Requires the role {needed[action['operation']]}", action
        if action["disabled"]:
            assert action["title"], action
    if role is Role.ADMIN:  # others do not see the pages whose actions are all for admins
        assert {each["operation"] for each in actions} - queries == set(needed) - queries - WITHOUT_BUTTON
    enabled = [each for each in actions if not each["disabled"]]
    allowed = {operation for operation, least in needed.items() if role >= Role.from_key(least)}
    assert {each["operation"] for each in enabled} - queries == allowed - queries - WITHOUT_BUTTON

    sent = [each for each in enabled if each["url"] and each["operation"] not in NOT_SENT]
    statuses = await perform(page, sent)
    site.expect_problems("status of 4")  # forbidden pages, a wrong filter, objects whose state does not allow an action
    done = {operation for operation, found in statuses.items() if min(found) < 300}
    assert {operation: found for operation, found in statuses.items() if operation not in done} == {}
    assert [found for found in statuses.values() if any(each in (401, 403) or each >= 500 for each in found)] == []
    entries = [each for each in await site.app.audit.list(limit=200) if each.actor_name == f"person-{role.key}"]
    assert {each.actor_type for each in entries} == {"user"}
    changed = {each.action for each in entries}
    recorded = {operations[id]["x-action"] for id in done}
    expected = {action for action in recorded if not action.endswith((".read", ".verify"))}
    assert expected - changed == set(), statuses
