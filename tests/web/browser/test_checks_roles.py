"""Actions of all pages in every role: allowed ones are audited with the person, others name the role they need."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.async_api import Page

from tenuto.api.openapi import openapi_document
from tenuto.model.access.actors import Role
from tenuto.web.application import create_web_application
from tests.web.browser.conftest import Site
from tests.web.browser.test_accessibility import fill

READ_ACTIONS = """() => [...document.querySelectorAll("main button[data-operation]")].map((each) => ({
  operation: each.dataset.operation, disabled: each.disabled, title: each.title, method: each.dataset.method,
  url: each.dataset.url, body: each.dataset.body ?? null,
  fields: each.dataset.dialog ? JSON.parse(each.dataset.dialog).fields : []}))"""
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
FIELD_VALUES = {"rate_limit": "100/m", "max_running": 7}
"""Values of optional fields without which an action changes nothing, or is refused."""


def list_roles(site: Site) -> dict[str, str]:
    """Return the role that each operation needs, from the OpenAPI document."""
    document = openapi_document(create_web_application(site.app))
    return {
        operation["operationId"]: operation["x-role"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if "x-role" in operation
    }


def choose_values(action: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of a dialog: their defaults, else a value that changes something."""
    values = {}
    for field in action["fields"]:
        value = field.get("value", "")
        if value in ("", None) and field.get("required"):
            value = f"checked-{action['operation']}".replace("_", "-")
        if value in ("", None):
            value = FIELD_VALUES.get(field["name"])
        if value not in ("", None):
            values[field["name"]] = value
    return values


async def collect_actions(page: Page, addresses: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for address in addresses:
        answer = await page.goto(address)
        assert answer is not None
        assert answer.status in (200, 403, 404, 422), (address, answer.status)
        found += await page.evaluate(READ_ACTIONS)
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("role", list(Role))
async def test_c8_actions_of_all_pages_follow_the_role(site: Site, role: Role) -> None:
    addresses = [*(await fill(site)), "/account"]
    _, site.keys[role] = await site.app.api_keys.create(f"person-{role.key}", role, is_person=True)
    needed = list_roles(site)
    page = await site.open("/", role)
    actions = await collect_actions(page, addresses)
    assert len({each["operation"] for each in actions}) > 10
    for action in actions:
        is_allowed = role >= Role.from_key(needed[action["operation"]])
        if not is_allowed:
            assert action["disabled"], action
            assert action["title"] == f"Requires the role {needed[action['operation']]}", action
        if action["disabled"]:
            assert action["title"], action

    statuses: dict[str, int] = {}
    for action in actions:
        operation = action["operation"]
        if action["disabled"] or not action["url"] or operation in statuses or operation in NOT_SENT:
            continue
        statuses[operation] = await page.evaluate(SEND, [action, choose_values(action)])
    site.expect_problems("status of 4")  # forbidden pages, a wrong filter, actions that are no longer possible
    assert {each: status for each, status in statuses.items() if status in (401, 403) or status >= 500} == {}
    done = {each for each, status in statuses.items() if status < 300}
    if role >= Role.OPERATOR:
        assert len(done) > 5, statuses
    entries = [each for each in await site.app.audit.list(limit=200) if each.actor_name == f"person-{role.key}"]
    assert {each.actor_type for each in entries} == {"user"}
    changed = {each.action for each in entries}
    expected = {
        operation["x-action"]
        for methods in openapi_document(create_web_application(site.app))["paths"].values()
        for operation in methods.values()
        if operation.get("operationId") in done and not operation["x-action"].endswith((".read", ".verify"))
    }
    # Nothing is left to retry in the batch once its dead letters were retried, and what changes nothing has no entry.
    assert expected - changed <= {"batch.retry"}, (expected - changed, statuses)
