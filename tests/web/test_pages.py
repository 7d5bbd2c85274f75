"""Every page for every role: it renders, its parts equal the page, actions follow roles, foreign text stays text."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
from fastapi.routing import iter_route_contexts

from tenuto import Context, Step, StepFailed, Tenuto, every, manual
from tenuto.api.api_route import ApiRoute
from tenuto.ids import smallest_id_at
from tenuto.model.access.actors import Actor, ActorType, Role
from tenuto.operations.events.approvals import LINK_PATH
from tenuto.settings import load_settings
from tenuto.testing import run_until_idle
from tenuto.web.application import create_web_application
from tenuto.web.page import PageRoute
from tests.api.conftest import ApiClient
from tests.support.waiting import eventually
from tests.web.conftest import get_page, log_in

HOSTILE = '"><img src=x onerror=window.__x=1>{{7*7}}</script><script>window.__x=1</script>\u202etxt'
NEXT_YEAR = datetime.now(UTC) + timedelta(days=365)
_VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Page(HTMLParser):
    """What a test needs of a page: its elements and whether they are nested correctly."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.errors: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        self.errors += [f"<{name}> is not closed" for name in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1] != tag:
            self.errors.append(f"</{tag}> closes {self._open[-1:]}")
        else:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def find(self, tag: str, **attributes: str) -> Iterator[dict[str, str | None]]:
        for name, found in self.elements:
            if name == tag and all(found.get(key.replace("_", "-")) == value for key, value in attributes.items()):
                yield found


async def make_fixture(app: Tenuto) -> dict[str, Any]:
    """Create objects of every kind, with a hostile name where a name is free; return values of path parameters."""
    double, boom = app.jobs.jobs_by_name["double"], app.jobs.jobs_by_name["boom"]
    steps = [Step.job(double, 1, name=HOSTILE[:60]), Step.job(boom, HOSTILE, name="explode"), Step.job(double, 2)]
    app.schedule("fails", every("1h"), steps)
    app.schedule(
        HOSTILE[:70],
        every("1h"),
        [Step.job(double, 3), [Step.job(double, 4, name="left"), Step.job(double, 5, name="right")]],
    )
    gate = Step.approval(HOSTILE, approvers=["ana", HOSTILE[:60]], count=2, context={"why": HOSTILE}, name=HOSTILE[:60])
    app.schedule("release", manual(), [gate])
    await app.schedules.deploy()
    failed = (await app.schedules.run("fails")).execution_id
    gated = (await app.schedules.run("release")).execution_id
    await app.schedules.run(HOSTILE[:70])
    task = await app.enqueue(double, 1)
    app.manifest("letters", boom, on_demand=True)
    await app.manifests.deploy()
    batch = await app.bulk_enqueue("letters", [{"why": HOSTILE}, {"why": "other"}])
    await app.logs.append("night", HOSTILE)

    @app.job
    async def await_payment(ctx: Context) -> None:
        await ctx.wait_for_event(HOSTILE[:60], key=HOSTILE[:60], timeout="1d")

    await app.enqueue(await_payment)
    event = await app.events.send("invoice.paid", {HOSTILE: HOSTILE}, key=HOSTILE[:60])
    await run_until_idle(app)
    waiting = (await app.schedules.run(HOSTILE[:70])).execution_id
    await app.pause_queue("mail", HOSTILE)
    open_task = await app.enqueue(app.jobs.jobs_by_name["mail/send"], HOSTILE)
    assert failed is not None
    record = await app.executions.get(failed)
    operation = await app.bulk_operations.create("task.cancel", "queue:mail", reason=HOSTILE)
    letter = (await app.dead_letters.list())[0]
    acting = app.acting_as(Actor(ActorType.USER, None, HOSTILE[:70]), source="test")
    await acting.pause_queue("print", HOSTILE)
    await acting.one_shots.create(NEXT_YEAR, "log.append", {"message": HOSTILE}, tags=[HOSTILE[:60]])
    await acting.one_shots.create(datetime.now(UTC) - timedelta(minutes=7), "log.append", {"message": "late"})
    app.manifest("follow", double, after="letters", properties={"n": 1})
    await app.manifests.deploy()
    await app.manifests.disable("letters")
    await acting.limit_queue("print", 3)
    stored = await app.schedules.get("fails")
    changed = replace(stored.definition, description=HOSTILE)
    await acting.schedules.edit("fails", changed, reason=HOSTILE, version=stored.version)
    [entry] = await app.audit.list("action:queue.limit")
    [approval] = await app.approvals.pending()
    await app.acting_as(Actor.user("ana")).approvals.approve(approval.id, HOSTILE)
    link = await app.approvals.create_link(approval.id, HOSTILE[:60])
    return {
        "/approvals": ["/approvals", "/approvals?state=pending", "/approvals?state=expired"],
        "/approvals/{id}": [str(approval.id)],
        "/approve": [link.path],
        "/events": ["/events", "/events?name=invoice.paid&state=kept", "/events?key=nothing"],
        "/events/{id}": [str(event.id)],
        "/executions/{id}": [
            str(failed),
            str(waiting),
            f"{failed}?step=2&tab=attempts",
            f"{waiting}?step=1&tab=why",
            str(gated),
        ],
        "/tasks/{id}": [str(open_task.id), str(task.id)],
        "/activities/{id}": [str(record.steps[1].activity_id)],
        "/batches/{id}": [str(batch.id), f"{batch.id}?items=all", f"{batch.id}?items=cancelled"],
        "/manifests/{external_id}": ["letters", "follow", "letters?tab=versions", "letters?tab=history"],
        "/manifests/{external_id}/edit": ["letters/edit", "follow/edit"],
        "/manifests/new": ["/manifests/new", "/manifests/new?job=double", "/manifests/new?copy=letters"],
        "/executions/compare": [f"/executions/compare?a={failed}&b={waiting}", f"/executions/compare?a={failed}"],
        "/schedules/new": ["/schedules/new", "/schedules/new?type=sql", f"/schedules/new?copy={quote(HOSTILE[:70])}"],
        "/schedules/{name}/edit": ["fails/edit", f"{quote(HOSTILE[:70], safe='')}/edit"],
        "/docs/{operation}": ["tasks_enqueue", "executions_list", "service_health", "batches_items_csv"],
        "/logs/{name}": ["night"],
        "/jobs/{name}": ["double", "mail%2Fsend"],
        "/audit/{id}": [str(entry.id)],
        "/operations/{id}": [str(operation.id)],
        "/dead-letters/{id}": [str(letter.id)],
        "/schedules/{name}": ["fails", "fails?tab=versions", "fails?tab=history"],
        "/queues/{name}": ["mail"],
    }


def list_page_paths(app: Tenuto) -> list[str]:
    """Return the paths of all pages."""
    return sorted(
        context.path_format or ""
        for context in iter_route_contexts(create_web_application(app).routes)
        if isinstance(context.route, PageRoute) and "GET" in (context.methods or ())
    )


async def list_addresses(service: ApiClient) -> list[str]:
    """Return the addresses of all pages with the objects of the fixture."""
    values = await make_fixture(service.app)
    addresses = []
    for path in list_page_paths(service.app):
        if path == "/login":
            continue
        if "{" not in path:
            addresses += values.get(path, [path])
            continue
        prefix = path[: path.index("{")]
        given = values.get(path, [])
        assert given, f"the fixture has no object for {path}"
        addresses += [prefix + value for value in given]
    return addresses


def test_every_page_declares_its_role() -> None:
    public = ("/login", LINK_PATH, "/static/{version}/{path:path}")
    for context in iter_route_contexts(create_web_application(Tenuto()).routes):
        route = context.route
        if isinstance(route, PageRoute) and route.path not in public:
            assert route.required_role is not None, route.path
        assert not isinstance(route, PageRoute) or set(route.methods or ()) <= {"GET", "HEAD", "POST"}


@pytest.mark.slow
async def test_every_page_renders_for_every_role(service: ApiClient) -> None:
    addresses = await list_addresses(service)
    for role in Role:
        await log_in(service, role)
        for address in addresses:
            response = await service.client.get(address, headers={"Accept": "text/html"})
            assert response.status_code in (200, 403), (role, address, response.text[:2000])
            check_headers(address, response.headers)
            if response.status_code == 200:
                check_page(address, response.text)


async def test_c67_pages_without_login_errors_and_static_files_have_strict_headers(service: ApiClient) -> None:
    """The headers of all other pages are checked by test_every_page_renders_for_every_role."""
    login = await service.client.get("/login", headers={"Accept": "text/html"})
    check_headers("/login", login.headers)
    check_page("/login", login.text)
    await log_in(service)
    for address, status in (("/nothing", 404), ("/?window=nothing", 422), ("/keys", 403)):
        check_headers(address, (await get_page(service, address, status)).headers)
    overview = Page((await get_page(service, "/")).text)
    files = [found["src"] for found in overview.find("script")] + [found["href"] for found in overview.find("link")]
    assert len(files) > 3
    for file in files:
        response = await service.client.get(str(file))
        assert response.status_code == 200
        assert response.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert response.headers["x-content-type-options"] == "nosniff"


def check_headers(address: str, headers: Mapping[str, str]) -> None:
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy, address
    assert "unsafe-" not in policy, address
    assert "require-trusted-types-for 'script'" in policy, address
    assert headers["x-content-type-options"] == "nosniff", address
    assert headers["x-frame-options"] == "DENY", address
    assert headers["cache-control"] == "no-store", address


def check_page(address: str, text: str) -> None:
    page = Page(text)
    assert page.errors == [], (address, page.errors[:5])
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len(set(ids)), (address, sorted({each for each in ids if ids.count(each) > 1}, key=str))
    assert sum(1 for _ in page.find("h1")) == 1, address
    for tag, attributes in page.elements:
        assert "style" not in attributes, (address, tag)
        assert not any(name.startswith("on") for name in attributes), (address, tag, attributes)
        assert tag != "img", address
        if tag == "script":
            assert (attributes.get("src") or "").startswith("/static/"), address
        if tag == "a":
            assert not (attributes.get("href") or "").lower().startswith(("javascript:", "data:")), address


@pytest.mark.slow
async def test_parts_equal_the_page(service: ApiClient) -> None:
    addresses = await list_addresses(service)
    await log_in(service, Role.ADMIN)
    checked = 0
    for address in addresses:
        for name in re.findall(r'data-part="([a-z_-]+)"', (await get_page(service, address)).text):
            for _ in range(3):  # the time of a change, such as the last use of a key, may be recorded in between
                whole = without_time((await get_page(service, address)).text)
                part = await get_page(service, address, **{"Tenuto-Parts": name})
                headers = {"Tenuto-Parts": name, "If-None-Match": part.headers["etag"]}
                again = await service.client.get(address, headers=headers)
                is_equal = without_time(part.text).strip() in whole
                if is_equal and again.status_code == 304:
                    break
            assert is_equal, (address, name)
            assert again.status_code == 304, (address, name)
            checked += 1
    assert checked > 10


async def test_task_page_shows_the_stored_calls_of_a_workflow_as_a_tree(service: ApiClient) -> None:
    app = service.app

    async def pack(line: str) -> str:
        if line == "<b>":
            raise ValueError("no <b> left")
        return line

    @app.job(queue="elsewhere")
    async def deliver() -> None: ...

    @app.workflow
    async def ship(ctx: Context) -> None:
        for line in ("a", "<b>"):
            with contextlib.suppress(StepFailed):
                await ctx.step(pack, line)
        await ctx.gather(ctx.step(pack, "c"), ctx.run(deliver))

    task = await app.enqueue(ship)
    async with app.worker():
        await eventually(lambda: app.tasks(name="deliver"))
        await eventually(lambda: app.tasks(name="ship", state="scheduled"))
    (child,) = await app.tasks(name="deliver")
    await log_in(service)
    text = (await get_page(service, f"/tasks/{task.id}", 200, **{"Tenuto-Parts": "chain"})).text
    shown = [html.unescape(each) for each in re.findall(r"<bdi>(.*?)</bdi>", text)]
    assert shown == ["1 pack (1)", "2 pack (2)", "└ 3.1.1 pack", "└ 3.2.1 ctx.run(deliver)"]
    assert f"/tasks/{child.id}" in text
    assert "no &lt;b&gt; left" in text
    assert (await app.activity(child.id)).parent_id == task.id


def without_time(text: str) -> str:
    """Remove texts that change with time alone."""
    text = re.sub(r"(<(?:time|span)[^>]* data-(?:age|since|until)[^>]*>)[^<]*", r"\1", text)
    return re.sub(r" data-grow[^>]*| data-now=\"\d+\"", "", text)


@pytest.mark.slow
async def test_actions_are_enabled_for_the_roles_of_their_operations(service: ApiClient) -> None:
    addresses = await list_addresses(service)
    roles = {
        route.operation_id: route.required_role.role
        for route in (context.route for context in iter_route_contexts(service.api.routes))
        if isinstance(route, ApiRoute) and route.required_role is not None
    }
    found = 0
    for role in Role:
        await log_in(service, role)
        for address in addresses:
            response = await service.client.get(address, headers={"Accept": "text/html"})
            for button in Page(response.text).find("button"):
                operation = button.get("data-operation")
                if operation is None:
                    continue
                found += 1
                assert "disabled" in button or role >= roles[operation], (role, address, operation)
                if role < roles[operation]:
                    assert roles[operation].key in (button.get("title") or ""), (role, address, operation)
                else:
                    assert not (button.get("title") or "").startswith("Requires the role"), (role, address, operation)
    assert found > 20


async def test_lists_show_last_outcomes_of_manifests_and_late_one_shots(service: ApiClient) -> None:
    app = service.app
    double, boom = app.jobs.jobs_by_name["double"], app.jobs.jobs_by_name["boom"]
    app.manifest("sound", double, on_demand=True)
    app.manifest("unsound", boom, on_demand=True)
    await app.manifests.deploy()
    await app.bulk_enqueue("sound", [{"n": number} for number in range(25)])
    await app.bulk_enqueue("unsound", [{"why": "broken"}])
    await run_until_idle(app)
    await log_in(service)
    manifests = Page((await get_page(service, "/manifests")).text)
    marks = [found for found in manifests.find("a") if (found.get("class") or "").startswith("b-")]
    assert [found["class"] for found in marks] == ["b-done"] * 20 + ["b-fail"]
    [failed] = await app.activities("manifest:unsound")
    assert marks[-1]["href"] == f"/activities/{failed.id}"
    assert (marks[-1]["title"] or "").startswith("Failed, ")

    due_at = (await app.open()).clock.now() - timedelta(minutes=7)
    await app.one_shots.create(due_at, "log.append", {"message": "late"})
    await app.one_shots.create(NEXT_YEAR, "log.append", {"message": "later"})
    late = (await get_page(service, "/one-shots")).text
    [since] = [found for found in Page(late).find("span") if "data-since" in found]
    assert since["data-since"] == due_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    await run_until_idle(app)
    ended = (await get_page(service, "/one-shots?q=state:completed")).text
    assert "7 min" in ended
    assert not [found for found in Page(ended).find("span") if "data-since" in found]


async def test_jobs_name_their_live_workers_and_those_that_only_workers_know(service: ApiClient, url: str) -> None:
    async with Tenuto(settings=load_settings(database=url)) as other:

        @other.job
        async def double(n: int) -> int:
            return n

        @other.job
        async def elsewhere() -> None: ...

        await log_in(service)
        async with other.worker(name="box-7"):
            text = (await get_page(service, "/jobs")).text
    page = " ".join(Page(text).texts)
    assert "known to this web service or to live workers" in page
    assert "Jobs of workers only" in page
    assert "elsewhere" in page
    assert "box-7" in page
    rows = re.findall(r'<tr data-key="(\w+)"[^>]*>(.*?)</tr>', text, re.DOTALL)
    counts = {name: "none knows it" not in row for name, row in rows}
    assert (counts["double"], counts["boom"]) == (True, False)


async def test_batch_in_a_paused_queue_says_why_no_item_starts(service: ApiClient) -> None:
    app = service.app
    app.manifest("mails", app.jobs.jobs_by_name["mail/send"], on_demand=True)
    await app.manifests.deploy()
    await app.pause_queue("mail", "server down")
    batch = await app.bulk_enqueue("mails", [{"to": "a"}, {"to": "b"}])
    await log_in(service)
    page = " ".join(" ".join(Page((await get_page(service, f"/batches/{batch.id}")).text).texts).split())
    assert "No item starts: queue paused by" in page
    assert "server down" in page
    await app.resume_queue("mail")
    later = " ".join(Page((await get_page(service, f"/batches/{batch.id}")).text).texts)
    assert "no live worker serves the queue" in later


async def test_unknown_page_and_object_are_shown_as_pages(service: ApiClient) -> None:
    await log_in(service)
    unknown = await get_page(service, "/executions/01a1e30e-df3e-7536-8f11-1c7c02f1d0a1", 404)
    assert "execution.not_found" in unknown.text
    assert (await get_page(service, "/nothing", 404)).headers["content-type"].startswith("text/html")
    invalid = await get_page(service, "/?window=nothing", 422)
    assert "request.invalid" in invalid.text


async def test_missing_object_names_retention_and_similar_ids(service: ApiClient) -> None:
    await log_in(service)
    task = await service.app.enqueue(service.app.jobs.jobs_by_name["double"], 1)
    known = str(task.id)
    near = await get_page(service, f"/executions/{known[:-4]}ffff", 404)
    assert f'href="/tasks/{known}"' in near.text
    old = smallest_id_at(datetime.now(UTC) - timedelta(days=200)).int | (7 << 76) | (2 << 62)
    page = await get_page(service, f"/executions/{UUID(int=old)}", 404)
    assert "Records are kept for 90 days, so it was removed" in page.text
    assert "kept for 90 days" not in near.text


async def test_wrong_filter_shows_its_error_and_no_records(service: ApiClient) -> None:
    await make_fixture(service.app)
    await log_in(service)
    for path in ("/executions", "/tasks", "/activities", "/dead-letters"):
        shown = await get_page(service, path)
        assert "data-key=" in shown.text.partition('data-part="list"')[2], path
        wrong = await get_page(service, f"{path}?q=stat:failed", 422)
        assert "Did you mean state?" in wrong.text or "did you mean state?" in wrong.text
        assert "data-key=" not in wrong.text.partition('data-part="list"')[2], path
    found = await get_page(service, "/activities?q=state:failed%20name:boom")
    assert "1 ended attempts" in found.text or "boom" in found.text


async def test_pages_show_instants_in_the_zone_of_the_viewer(service: ApiClient) -> None:
    values = await make_fixture(service.app)
    await log_in(service)
    service.client.cookies.set("tenuto_zone", "Asia%2FKathmandu")
    page = (await get_page(service, f"/executions/{values['/executions/{id}'][0]}")).text
    titles = re.findall(r'<time datetime="[^"]+" title="([^"]+)"', page)
    assert titles
    assert all("+0545 (Asia/Kathmandu)" in title for title in titles)


async def test_manifest_page_names_why_it_does_not_run(service: ApiClient) -> None:
    await make_fixture(service.app)
    await log_in(service)
    page = (await get_page(service, "/manifests/follow")).text
    assert "Why is it not running?" in page
    assert "letters is disabled" in page
    assert "waits for letters, which is disabled" in (await get_page(service, "/manifests")).text
    failed = (await get_page(service, "/manifests/letters")).text
    assert "Dead letters by failure" in failed
    assert 'data-operation="manifests_enqueue"' in failed


async def test_audit_entry_page_shows_what_changed(service: ApiClient) -> None:
    values = await make_fixture(service.app)
    await log_in(service, Role.ADMIN)
    page = (await get_page(service, f"/audit/{values['/audit/{id}'][0]}")).text
    assert "queue.limit" in page
    assert "is-changed" in page
    for role in (Role.VIEWER, Role.OPERATOR, Role.EDITOR):
        await log_in(service, role)
        refused = await get_page(service, f"/audit/{values['/audit/{id}'][0]}", 403)
        assert "queue.limit" not in refused.text


async def test_batch_page_lists_items_of_a_state(service: ApiClient) -> None:
    values = await make_fixture(service.app)
    address = f"/batches/{values['/batches/{id}'][0]}"
    await log_in(service)
    for query, count in (("", 2), ("?items=failed", 2), ("?items=all", 2), ("?items=completed", 0)):
        items = (await get_page(service, address + query, 200, **{"Tenuto-Parts": "items"})).text
        assert items.count("data-key=") == count, query
    assert "request.invalid" in (await get_page(service, f"{address}?items=unknown", 422)).text


async def test_page_of_a_queue_shows_a_change_at_once(service: ApiClient) -> None:
    """The overview, from which its figures come, may be a second old."""
    await log_in(service, Role.OPERATOR)
    await get_page(service, "/")
    assert "there is no queue" in (await get_page(service, "/queues/idle", 404)).text
    await service.app.pause_queue("idle", "server down")
    paused = (await get_page(service, "/queues/idle")).text
    assert 'data-operation="queues_resume"' in paused
    assert "server down" in paused
    await service.app.resume_queue("idle")
    await service.app.limit_queue("idle", 3)
    resumed = (await get_page(service, "/queues/idle")).text
    assert 'data-operation="queues_pause"' in resumed
    assert "of at most 3" in resumed
