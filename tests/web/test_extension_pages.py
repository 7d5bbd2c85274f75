"""Pages, panels and searches of extensions: they work without a change in `web`, and their errors stay with them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tenuto import Step, Tenuto, every, manual
from tenuto.api.application import add_middleware
from tenuto.extension import Extension
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings
from tenuto.testing import run_until_idle
from tenuto.web import extension_pages
from tenuto.web.application import create_web_application
from tenuto.web.rendering import CONTENT_SECURITY_POLICY
from tenuto_inventory.extension import Inventory
from tests.api.conftest import HOST, ApiClient
from tests.web import broken_extension
from tests.web.broken_extension import Broken
from tests.web.conftest import get_page, log_in


@asynccontextmanager
async def running(url: str, home: Path, *extensions: Extension, **settings: Any) -> AsyncIterator[ApiClient]:
    app = Tenuto(settings=load_settings(database=url, home=home, **settings), extensions=list(extensions))

    @app.job
    async def quick() -> None:
        return None

    await app.migrate()
    keys = {role: (await app.api_keys.create(role.key, role))[1] for role in Role}
    api = create_web_application(app)
    transport = httpx2.ASGITransport(app=add_middleware(app, api), client=("127.0.0.1", 50000))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST + app.settings.web_path) as client:
        yield ApiClient(app, api, keys, client)
    await app.close()


@pytest.fixture
async def service(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiClient]:
    monkeypatch.setattr(extension_pages, "PANEL_SECONDS", 1.5)
    async with running(url, tmp_path, Inventory(), Broken()) as client:
        client.app.extension_registry.timeout_seconds = 3.0
        yield client


def check_headers(response: httpx2.Response) -> None:
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert response.headers["cache-control"] == "no-store"


async def test_pages_of_an_extension_have_tables_filters_paging_and_details(service: ApiClient) -> None:
    inventory = service.app.extensions.inventory
    for number in range(60):
        await inventory.add(f"bolt/{number:02} <b>", level=number, stock=30)
    await log_in(service, Role.EDITOR)
    listed = await get_page(service, "/inventory/items")
    check_headers(listed)
    assert listed.text.count('<tr data-key="bolt/') == 50
    assert "<b>" not in re.findall(r'<th scope="row">.*?</th>', listed.text)[0].replace("<bdi>", "")
    assert 'href="/inventory/items?after=bolt%2F49+%3Cb%3E"' in listed.text
    assert 'href="/inventory/items" aria-current="page"' in listed.text
    following = await get_page(service, "/inventory/items?after=bolt%2F49+%3Cb%3E")
    assert following.text.count('<tr data-key="bolt/') == 10
    low = await get_page(service, "/inventory/items?stock=low")
    assert low.text.count('<tr data-key="bolt/') == 29
    assert '<option value="low" selected>low</option>' in low.text
    wrong = await service.client.get("/inventory/items?stock=none", headers={"Accept": "text/html"})
    assert wrong.status_code == 422
    assert "the stock &#39;none&#39; is unknown" in wrong.text
    part = await get_page(service, "/inventory/items", 200, **{"Tenuto-Parts": "list"})
    assert part.text.strip() in listed.text
    assert 'data-live="inventory.orders"' in part.text

    orders = await get_page(service, "/inventory/orders?item=none")
    assert '<input type="search" name="item" value="none"' in orders.text
    assert "No order matches." in orders.text

    item = await get_page(service, "/inventory/items/bolt%2F07%20%3Cb%3E")
    assert "<h1><bdi>bolt/07 &lt;b&gt;</bdi></h1>" in item.text
    assert "<title" in item.text
    assert "Item bolt/07 &lt;b&gt; ·" in item.text
    assert 'href="/inventory/items" aria-current="page"' in item.text
    assert (await get_page(service, "/inventory/items/none", 404)).text.count("there is no item") == 1


@pytest.mark.parametrize(("role", "is_allowed"), [(Role.OPERATOR, False), (Role.EDITOR, True)])
async def test_actions_of_an_extension_follow_the_role_of_their_routes(
    service: ApiClient, role: Role, is_allowed: bool
) -> None:
    await service.app.extensions.inventory.add("bolt", level=5)
    await log_in(service, role)
    text = (await get_page(service, "/inventory/items/bolt")).text
    [button] = re.findall(r'<button type="button" data-operation="inventory_items_remove".*?</button>', text)
    assert ("disabled" in button) != is_allowed
    assert ("Requires the role editor" in button) != is_allowed
    headers = {"Origin": HOST, "Sec-Fetch-Site": "same-origin", "Tenuto-Page": "1", "X-Reason": "sold out"}
    done = await service.client.delete("/api/v1/inventory/items/bolt", headers=headers)
    assert done.status_code == (204 if is_allowed else 403)
    entries = await service.app.audit.list("action:inventory.item.remove")
    assert [(entry.target, entry.reason) for entry in entries] == ([("bolt", "sold out")] if is_allowed else [])


async def test_panel_of_a_step_is_a_tab_of_the_inspector(service: ApiClient) -> None:
    await service.app.extensions.inventory.add("bolt", level=5)
    step = Step.of("inventory.order", {"item": "bolt", "quantity": 7}, name="Order bolts")
    service.app.schedule("Restock", manual(), [step])
    await service.app.schedules.deploy()
    execution = (await service.app.schedules.run("Restock")).execution_id
    await run_until_idle(service.app)
    await log_in(service)
    page = await get_page(service, f"/executions/{execution}?step=1&tab=panel")
    assert re.search(r'tab=panel[^>]*aria-current="true">Order</a>', page.text)
    assert "<dt>Quantity</dt><dd><bdi>7</bdi></dd>" in page.text
    log = await get_page(service, f"/executions/{execution}?step=1&tab=log")
    assert "<dt>Quantity</dt>" not in log.text
    part = await get_page(service, f"/executions/{execution}?step=1&tab=panel", 200, **{"Tenuto-Parts": "inspector"})
    assert "<dt>Quantity</dt>" in part.text
    assert part.text.strip() in page.text


async def test_panels_get_the_object_of_their_page(service: ApiClient) -> None:
    app = service.app
    app.schedule("Daily", every("1d"), [Step.job(app.jobs.get_job("quick"))])
    await app.schedules.deploy()
    execution = (await app.schedules.run("Daily")).execution_id
    task = await app.enqueue(app.jobs.get_job("quick"))
    await run_until_idle(app)
    await log_in(service, Role.OPERATOR)
    shown = (await get_page(service, f"/executions/{execution}?tab=panel")).text
    assert "subject ExecutionDetails for operator" in shown
    assert "subject StepSubject for operator" in shown
    assert "subject ActivityDetails for operator" in (await get_page(service, f"/tasks/{task.id}")).text


async def test_panels_that_fail_are_cards_that_name_the_extension(service: ApiClient) -> None:
    await service.app.extensions.inventory.add("bolt", level=5)
    await log_in(service, Role.VIEWER)
    page = (await get_page(service, "/")).text
    assert "Needs attention" in page
    assert "&lt;b&gt;all is well&lt;/b&gt;" in page
    assert "<bdi>bolt</bdi>: 0 of 5" in page
    assert "Silent panel" not in page
    assert "Admins only" not in page
    assert page.count("The extension <b>broken</b> cannot show this") == 3
    assert "RuntimeError. The log" in page
    assert "wheel" not in page
    assert "no answer within 1.5 seconds" in page
    assert "UndefinedError. The log" in page
    again = (await get_page(service, "/")).text  # the one that hangs does not delay every page
    assert "is not asked for a while" in again
    problems = {(each.extension, each.part) for each in service.app.extension_registry.failures}
    assert ("broken", "panel 'Raising panel'") in problems
    await log_in(service, Role.ADMIN)
    page = (await get_page(service, "/")).text
    assert "Admins only" in page
    assert "RuntimeError: the wheel &lt;came&gt; off" in page
    assert "&#39;nothing&#39; is undefined" in page
    part = await get_page(service, "/", 200, **{"Tenuto-Parts": "panels"})
    assert 'data-live="approvals.pending overview"' in part.text  # of the panel of approvals and of the sound panel


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("raises", "RuntimeError: the wheel &lt;came&gt; off"),
        ("exits", "SystemExit: 3"),
        ("hangs", "no answer within 3 seconds"),
        ("template", "&#39;nothing&#39; is undefined"),
        ("syntax", "TemplateSyntaxError"),
        ("absent", "TemplateNotFound"),
        ("long", "characters; the limit is 2,000,000"),
        ("missing", "no_such_function"),
        ("sync", "is not an async function"),
    ],
)
async def test_page_that_fails_is_a_card_in_a_working_page(service: ApiClient, path: str, problem: str) -> None:
    await log_in(service, Role.ADMIN)
    page = await get_page(service, f"/broken/{path}", 500)
    check_headers(page)
    assert problem in page.text
    assert "The extension <b>broken</b> cannot show this" in page.text
    assert 'href="/executions"' in page.text  # the sidebar works
    assert [each.part for each in service.app.extension_registry.failures if each.part.startswith("page")]
    await get_page(service, "/broken")
    await get_page(service, "/executions")


@pytest.mark.parametrize("role", [role for role in Role if role < Role.ADMIN])
async def test_text_of_an_unexpected_error_is_shown_to_admins_only(
    service: ApiClient, role: Role, caplog: pytest.LogCaptureFixture
) -> None:
    await log_in(service, role)
    page = await get_page(service, "/broken/raises", 500)
    assert "cannot show this: <bdi>RuntimeError. The log and admins see its text</bdi>" in page.text
    assert f"Request <code>{page.headers['x-request-id']}</code>" in page.text
    assert "wheel" not in page.text
    assert "wheel" not in (await get_page(service, "/broken/raises", 500)).text
    await log_in(service, Role.ADMIN)
    assert "RuntimeError: the wheel &lt;came&gt; off" in (await get_page(service, "/broken/raises", 500)).text
    [line] = [line for line in caplog.messages if "the wheel <came> off" in line]
    assert page.headers["x-request-id"] in line


async def test_template_with_an_error_is_rendered_again(service: ApiClient) -> None:
    await log_in(service, Role.ADMIN)
    broken_extension.renderings.clear()
    assert "the first one fails" in (await get_page(service, "/broken/once", 500)).text
    assert "<h1>rendered again</h1>" in (await get_page(service, "/broken/once")).text


async def test_slow_template_is_rendered_again_after_its_thread_has_ended(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_in(service)
    monkeypatch.setattr(extension_pages, "PAUSE_SECONDS", 0.0)
    broken_extension.slow_page_may_end.clear()
    others = set(threading.enumerate())
    service.app.extension_registry.timeout_seconds = 0.3
    assert "no answer within 0.3 seconds" in (await get_page(service, "/broken/slow", 500)).text
    [thread] = [each for each in set(threading.enumerate()) - others if each.name == "tenuto-extension-template"]
    assert "is not rendered for a while" in (await get_page(service, "/broken/slow", 500)).text
    broken_extension.slow_page_may_end.set()
    await asyncio.to_thread(thread.join)
    service.app.extension_registry.timeout_seconds = 3.0
    assert "<h1>rendered again</h1>" in (await get_page(service, "/broken/slow")).text


async def test_template_that_does_not_end_blocks_no_other_page(
    service: ApiClient,
) -> None:
    await log_in(service)
    service.app.extension_registry.timeout_seconds = 0.3
    first = await get_page(service, "/broken/endless", 500)
    assert "no answer within 0.3 seconds" in first.text
    second = await get_page(service, "/broken/endless", 500)
    assert "did not end" in second.text
    service.app.extension_registry.timeout_seconds = 3.0
    await get_page(service, "/executions")
    await get_page(service, "/broken")


async def test_pages_of_an_extension_require_their_role_and_a_login(service: ApiClient) -> None:
    await log_in(service, Role.EDITOR)
    assert "role admin is required" in (await get_page(service, "/broken/secret", 403)).text
    await log_in(service, Role.ADMIN)
    await get_page(service, "/broken/secret")
    service.client.cookies.clear()
    away = await service.client.get("/broken/secret", headers={"Accept": "text/html"})
    assert (away.status_code, away.headers["location"]) == (303, "/login?next=%2Fbroken%2Fsecret")


async def test_parameters_and_declared_query_reach_the_page(service: ApiClient) -> None:
    await log_in(service)
    page = await get_page(service, "/broken/things/a%2Fb?q=1&other=2")
    assert "{&#39;name&#39;: &#39;a/b&#39;, &#39;query&#39;: {&#39;q&#39;: &#39;1&#39;}}" in page.text
    assert "there is no thing none" in (await get_page(service, "/broken/things/none", 404)).text


async def test_search_finds_objects_of_extensions_with_their_own_paths_only(service: ApiClient) -> None:
    await service.app.extensions.inventory.add("thing bolt", level=5)
    found = await service.get_json("/api/v1/search?q=thing", role=Role.VIEWER)
    assert [(each["kind"], each["name"], each["path"]) for each in found["items"]] == [
        ("item", "thing bolt", "/inventory/items/thing%20bolt")
    ]
    assert ("broken", "searches") in {(each.extension, each.part) for each in service.app.extension_registry.failures}


async def test_extension_cannot_take_a_path_of_tenuto(url: str, tmp_path: Path) -> None:
    class Taken(Broken):
        name = "keys"

    async with running(url, tmp_path, Taken()) as service:
        await log_in(service, Role.ADMIN)
        assert "Browser sessions" in (await get_page(service, "/keys")).text
        problems = [each.problem for each in service.app.extension_registry.failures]
        assert "the path /keys belongs to Tenuto" in problems


async def test_pages_of_extensions_work_below_a_path(url: str, tmp_path: Path) -> None:
    async with running(url, tmp_path, Inventory(), web_path="/ops/tenuto") as service:
        await service.app.extensions.inventory.add("bolt", level=5)
        done = await service.client.post(
            "/login",
            data={"credential": service.keys[Role.EDITOR]},
            headers={"Origin": HOST, "Sec-Fetch-Site": "same-origin"},
        )
        service.client.cookies.set("tenuto_session", done.cookies["tenuto_session"])
        page = (await get_page(service, "/inventory/items")).text
        targets = re.findall(r'(?:href|action|src|data-url|data-href)="(/[^"]*)"', page)
        assert [each for each in targets if not each.startswith("/ops/tenuto")] == []
        assert "/ops/tenuto/inventory/items/bolt" in targets
