"""The pages of notifications: every page for every role, parts, hostile names, actions by role, search."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import httpx2
import pytest
from fastapi.routing import iter_route_contexts

from tenuto import Tenuto
from tenuto.api.api_route import ApiRoute
from tenuto.api.application import add_middleware
from tenuto.model.access.actors import Role
from tenuto.web.application import create_web_application
from tests.api.conftest import HOST, ApiClient
from tests.web.conftest import get_page, log_in
from tests.web.test_pages import HOSTILE, Page, check_headers, check_page, without_time

pytestmark = pytest.mark.slow

NAME = 'a/b "><b>'
ADDRESSES = (
    "/notifications/rules",
    "/notifications/rules/a%2Fb%20%22%3E%3Cb%3E",
    "/notifications/rules/idle",
    "/notifications/deliveries",
    "/notifications/deliveries?rule=idle",
    "/notifications/deliveries?state=open",
    "/notifications/silences",
)


@pytest.fixture
async def service(app: Tenuto) -> AsyncIterator[ApiClient]:
    """The web application with rules, a message that cannot be sent yet, and silences."""
    keys = {role: (await app.api_keys.create(role.key, role))[1] for role in Role}
    rules = app.extensions.notifications
    channel = {"kind": "webhook", "url": "http://127.0.0.1:9/hook"}
    await rules.create({"name": NAME, "event": "execution.failed", "channel": channel, "filter": "schedule:~nightly"})
    await rules.create({"name": "idle", "event": "approvals.requested", "channel": channel, "enabled": False})
    await rules.test(NAME)
    await rules.silence(NAME, "2h", reason=HOSTILE)
    await rules.silence(None, "1h", reason=HOSTILE)
    api = create_web_application(app)
    transport = httpx2.ASGITransport(app=add_middleware(app, api), client=("127.0.0.1", 50000))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as client:
        yield ApiClient(app, api, keys, client)


async def test_every_page_renders_for_every_role_with_its_actions(service: ApiClient) -> None:
    roles = {
        route.operation_id: route.required_role.role
        for route in (context.route for context in iter_route_contexts(service.api.routes))
        if isinstance(route, ApiRoute) and route.required_role is not None
    }
    seen = set()
    for role in Role:
        await log_in(service, role)
        for address in ADDRESSES:
            response = await get_page(service, address)
            check_headers(address, response.headers)
            check_page(address, response.text)
            for button in Page(response.text).find("button"):
                operation = button.get("data-operation")
                if operation is None or not operation.startswith("notification_"):
                    continue
                seen.add(operation)
                assert ("disabled" not in button) == (role >= roles[operation]), (role, address, operation)
                assert (button.get("title") == f"Requires the role {roles[operation].key}") == ("disabled" in button)
    assert seen == {
        *(f"notification_rules_{verb}" for verb in ("create", "edit", "delete", "enable", "disable", "test")),
        "notification_silences_create",
        "notification_silences_end",
    }


async def test_parts_equal_the_pages(service: ApiClient) -> None:
    await log_in(service, Role.ADMIN)
    for address in ADDRESSES:
        whole = (await get_page(service, address)).text
        for name in re.findall(r'data-part="([a-z_-]+)"', whole):
            part = (await get_page(service, address, **{"Tenuto-Parts": name})).text
            assert without_time(part).strip() in without_time(whole), (address, name)


async def test_palette_finds_rules(service: ApiClient) -> None:
    found = (await service.get_json("/api/v1/search?q=idl"))["items"]
    assert [(each["kind"], each["name"]) for each in found] == [("notification rule", "idle")]
