"""Parts of live pages are rendered once for all viewers that see the same, and not for other viewers."""

from __future__ import annotations

import re

import httpx2
import pytest

from tenuto import Step, manual
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.testing import run_until_idle
from tenuto.web.shared_renderings import MAX_ANSWERS, MAX_ENTRIES, Renderings, SharedRenderings
from tenuto.web.view_cache import ViewCache
from tests.api.conftest import ApiClient
from tests.web.conftest import get_page, log_in
from tests.web.test_view_cache import VALID_SECONDS


class Source:
    """Renders parts and remembers which."""

    def __init__(self) -> None:
        self.rendered: list[str] = []

    def render(self, name: str) -> str:
        self.rendered.append(name)
        return f"<p>{name} {len(self.rendered)}</p>"


def test_parts_of_the_same_objects_are_rendered_once() -> None:
    renderings, source, model, counts = SharedRenderings(), Source(), object(), object()
    first = renderings.find("page", model, counts).answer(["list", "head"], source.render)
    again = renderings.find("page", model, counts).answer(["list", "head"], source.render)
    more = renderings.find("page", model, counts).answer(["list", "nav"], source.render)
    assert again is first
    assert first.body == b"<p>list 1</p>\n<p>head 2</p>"
    assert more.body == b"<p>list 1</p>\n<p>nav 3</p>"
    assert source.rendered == ["list", "head", "nav"]


def test_parts_of_other_objects_are_rendered_again() -> None:
    renderings, source, model, counts = SharedRenderings(), Source(), object(), object()
    renderings.find("page", model, counts).answer(["list"], source.render)
    for key, *sources in (("page", object(), counts), ("page", model, object()), ("other", model, counts)):
        renderings.find(key, *sources).answer(["list"], source.render)
    assert source.rendered == ["list"] * 4


def test_unshared_parts_are_rendered_each_time() -> None:
    renderings, source = Renderings(()), Source()
    renderings.answer(["list", "panels"], source.render, {"panels"})
    renderings.answer(["list", "panels"], source.render, {"panels"})
    assert source.rendered == ["list", "panels", "panels"]


def test_kept_renderings_are_bounded() -> None:
    renderings, source, model = SharedRenderings(), Source(), object()
    for number in range(MAX_ENTRIES + 1):
        renderings.find(number, model).answer(["list"], source.render)
    assert renderings.find(MAX_ENTRIES, model).answers
    assert not renderings.find(0, model).answers
    found = Renderings(())
    for number in range(MAX_ANSWERS + 1):
        found.answer([str(number)], source.render)
    assert len(found.answers) == MAX_ANSWERS


@pytest.fixture(autouse=True)
def kept_models(service: ApiClient) -> None:
    """Keep the models of pages for so long that all requests of a test share them."""
    service.api.state.dashboard.cache = ViewCache(VALID_SECONDS)


async def get_parts(service: ApiClient, path: str, names: str, *, status: int = 200, **headers: str) -> httpx2.Response:
    """Return parts of a page; underscores of the names of headers are dashes."""
    given = {"Tenuto-Parts": names, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return await get_page(service, path, status, **given)


async def test_viewers_with_other_roles_and_zones_get_their_own_rendering(service: ApiClient) -> None:
    await service.app.pause_queue("mail", "server down")
    texts: dict[Role, str] = {}
    for role in (Role.OPERATOR, Role.VIEWER, Role.OPERATOR):
        await log_in(service, role)
        text = (await get_parts(service, "/queues", "list")).text
        assert texts.setdefault(role, text) == text
    assert 'data-operation="queues_resume" data-method' in texts[Role.OPERATOR]
    assert 'title="Requires the role operator"' in texts[Role.VIEWER]
    service.client.cookies.set("tenuto_zone", "Asia/Kathmandu")
    assert "(Asia/Kathmandu)" in (await get_parts(service, "/queues", "list")).text


async def test_parts_are_compressed_and_answered_with_their_tag(service: ApiClient) -> None:
    for number in range(20):
        await service.app.pause_queue(f"queue-{number}", "server down")
    await log_in(service)
    plain = await get_parts(service, "/queues", "list", Accept_Encoding="identity")
    packed = await get_parts(service, "/queues", "list", Accept_Encoding="gzip")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in packed.headers["vary"].lower()
    assert int(packed.headers["content-length"]) < len(plain.content) / 3
    assert packed.text == plain.text
    assert packed.headers["etag"] == plain.headers["etag"]
    again = await get_parts(service, "/queues", "list", status=304, If_None_Match=packed.headers["etag"])
    assert again.content == b""


async def test_panels_of_one_person_are_not_shown_to_another(service: ApiClient) -> None:
    app = service.app
    await app.schedules.apply([schedule_definition("Release", manual(), [Step.approval("Go?", approvers=["ana"])])])
    await app.schedules.run("Release")
    await run_until_idle(app)
    keys = {name: (await app.api_keys.create(name, Role.VIEWER, is_person=True))[1] for name in ("ana", "ben")}
    for person, may_decide in (("ana", True), ("ben", False), ("ana", True)):
        panels = await get_parts(service, "/", "panels", Authorization=f"Bearer {keys[person]}")
        button = re.search(r"<button[^>]*approvals_approve[^>]*>", panels.text)
        assert button is not None
        assert ("disabled" not in button[0]) == may_decide, person
