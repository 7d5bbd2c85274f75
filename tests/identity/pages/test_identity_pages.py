"""The identity pages over HTTP: every page for every role, hostile and hidden values, filters, actions."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser

import httpx2
import pytest
import pytest_asyncio

from tenuto import Tenuto
from tenuto.api.application import add_middleware
from tenuto.model.access.actors import Role
from tenuto.settings import load_settings
from tenuto.web.application import create_web_application
from tenuto.web.rendering import CONTENT_SECURITY_POLICY
from tests.api.conftest import HOST, ApiClient
from tests.identity.pages.populated_site import HOSTILE, NIGHTLY, SECRET_TITLE, UNJOINED, Populated
from tests.web.conftest import get_page, log_in

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def service(populated: Populated) -> AsyncIterator[ApiClient]:
    app = Tenuto(settings=load_settings(database=populated.url, home=populated.home))
    api = create_web_application(app)
    transport = httpx2.ASGITransport(app=add_middleware(app, api), client=("127.0.0.1", 50000))
    async with httpx2.AsyncClient(transport=transport, base_url=HOST) as client:
        yield ApiClient(app, api, populated.keys, client)
    assert app.extension_registry.failures == []
    await app.close()


def addresses(populated: Populated) -> list[str]:
    return [
        "/identity/systems", "/identity/systems?state=held", "/identity/systems/HR", "/identity/systems/AD",
        "/identity/runs", "/identity/runs?system=HR&state=completed", f"/identity/runs/{populated.import_id}",
        f"/identity/runs/{populated.import_id}?show=errors", f"/identity/runs/{populated.import_id}?change=Updated",
        "/identity/exports", "/identity/exports?system=AD&errors=only", "/identity/exports?state=unconfirmed",
        "/identity/rules", "/identity/rules?system=AD", "/identity/held", "/identity/previews",
        f"/identity/previews/{populated.preview_id}",
        f"/identity/previews/{populated.preview_id}?system=AD&kind=update",
        f"/identity/previews/{populated.preview_id}?tab=objects",
        "/identity/identities", "/identity/identities?q=mallory", "/identity/identities?deletion=scheduled",
        "/identity/objects", "/identity/objects?system=AD&joined=no", f"/identity/identities/{populated.hostile_id}",
        f"/identity/identities/{populated.leaver_id}", f"/identity/identities/{populated.ada_id}",
        "/identity/objects/AD/stray%2F1", "/identity/objects/HR/1001", "/",
        f"/executions/{populated.execution_id}?step=3&tab=panel",
    ]  # fmt: skip


class _Page(HTMLParser):
    """Collects what must not be on a page: foreign elements, inline code and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.parts: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = dict(attributes)
        if tag in ("img", "style") or (tag == "script" and "src" not in names):
            self.found.append(tag)
        self.found += [f"{tag} {name}" for name in names if name.startswith("on") or name == "style"]
        if "data-part" in names:
            self.parts.add(str(names["data-part"]))


@pytest.mark.parametrize("role", list(Role))
async def test_every_identity_page_renders_for_every_role_without_foreign_markup(
    service: ApiClient, populated: Populated, role: Role
) -> None:
    await log_in(service, role)
    for address in addresses(populated):
        response = await get_page(service, address)
        assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert "cannot show this" not in response.text, address
        parsed = _Page()
        parsed.feed(response.text)
        assert parsed.found == [], address
        if role is Role.ADMIN:
            for part in parsed.parts - {"nav", "title"}:  # live updates fetch the same parts alone
                alone = await get_page(service, address, 200, **{"Tenuto-Parts": part})
                assert f'data-part="{part}"' in alone.text, (address, part)
                assert alone.text.count("<body") == 0


async def test_identity_pages_hide_sensitive_values_from_roles_below_admin(
    service: ApiClient, populated: Populated
) -> None:
    secret = "Keeper of &lt;b&gt;secrets&lt;/b&gt;"
    await log_in(service, Role.EDITOR)
    for address in addresses(populated):
        text = (await get_page(service, address)).text
        assert secret not in text, address
        assert SECRET_TITLE not in text, address
    await log_in(service, Role.ADMIN)
    assert secret in (await get_page(service, f"/identity/identities/{populated.hostile_id}")).text


async def test_identity_page_names_rule_system_and_joined_objects_of_each_value(
    service: ApiClient, populated: Populated
) -> None:
    await log_in(service)
    text = (await get_page(service, f"/identity/identities/{populated.ada_id}")).text
    assert re.search(r'data-key="display".*?Ada Lovelace.*?HR.*?HR people in.*?<code>first', text, re.DOTALL)
    assert text.count('<section class="card" data-key="') == 3  # one card for each system
    assert '<p class="is-fail"><bdi>***</bdi></p>' in text
    assert "constraint violation" not in text  # it can quote the title, which is sensitive
    assert "Export waiting to be sent" in text
    grace = (await get_page(service, f"/identity/identities/{populated.ada_id + 1}")).text
    assert f'<a href="/identity/identities/{populated.ada_id}"><bdi>Ada Lovelace</bdi></a>' in grace  # her manager
    leaver = (await get_page(service, f"/identity/identities/{populated.leaver_id}")).text
    assert "Deletion scheduled" in leaver
    assert "because <bdi>HR</bdi> disconnected" in leaver


async def test_object_page_answers_why_the_object_is_not_joined(service: ApiClient) -> None:
    await log_in(service)
    text = (await get_page(service, "/identity/objects/AD/stray%2F1")).text
    assert "Why is it not joined?" in text
    assert "Match by <bdi>AD people out</bdi> on <code>mail</code>" in text
    assert "No rule in scope creates an identity for it." in text
    listed = (await get_page(service, "/identity/objects?system=AD&joined=no&q=cn=stray")).text
    assert 'href="/identity/objects/AD/stray%2F1"' in listed
    assert UNJOINED in listed


async def test_run_page_filters_items_by_change_and_error_and_shows_values(
    service: ApiClient, populated: Populated
) -> None:
    await log_in(service)
    path = f"/identity/runs/{populated.import_id}"
    whole = (await get_page(service, path)).text
    assert "First errors" in whole
    updated = (await get_page(service, f"{path}?change=Updated")).text
    items = updated[updated.index('data-part="items"') :]
    assert items.count('<tr data-key="') == 2  # the item, and the changed value
    assert '<th scope="row"><bdi>title</bdi></th>' in items
    assert "***" in items
    errors = (await get_page(service, f"{path}?error=duplicate_object")).text
    assert errors.count(">Duplicate object<") >= 2
    assert (await service.client.get(f"{path}?after=x", headers={"Accept": "text/html"})).status_code == 422
    await get_page(service, "/identity/runs/none", 404)
    await get_page(service, "/identity/identities/999999", 404)
    await get_page(service, "/identity/systems/none", 404)


async def test_run_panel_of_a_step_links_to_the_results(service: ApiClient, populated: Populated) -> None:
    await log_in(service)
    text = (await get_page(service, f"/executions/{populated.execution_id}?step=3&tab=panel")).text
    assert re.search(r'tab=panel[^>]*aria-current="true">Result</a>', text)
    assert "<dt>In error</dt><dd><bdi>1</bdi></dd>" in text
    assert 'class="button" href="/identity/runs/' in text


async def test_hold_is_shown_with_its_numbers_and_approved_by_an_editor_only(
    service: ApiClient, populated: Populated
) -> None:
    await log_in(service, Role.OPERATOR)
    for address in ("/identity/held", "/identity/systems/HR"):
        text = (await get_page(service, address)).text
        assert "more than 20 %, from 10 on" in text
        assert re.search(r"\d+ of 29</td>", text), address
        assert "Leslie Lamport" in text
        [button] = re.findall(r'<button type="button" data-operation="identity_systems_approve".*?</button>', text)
        assert "Requires the role editor" in button
    overview = (await get_page(service, "/")).text
    assert 'aria-label="Held systems"' in overview
    await log_in(service, Role.EDITOR)
    text = (await get_page(service, "/identity/held")).text
    [button] = re.findall(r'<button type="button" data-operation="identity_systems_approve".*?</button>', text)
    assert "disabled" not in button
    headers = {"Origin": HOST, "Sec-Fetch-Site": "same-origin", "Tenuto-Page": "1"}
    address = "/api/v1/identity/systems/HR/approve"
    assert f"run_id&#34;: &#34;{populated.held_run_id}&#34;" in button  # an approval is for what the page shows
    refused = await service.client.post(address, headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (422, "identity.hold.reason_missing")


async def test_preview_page_shows_requests_by_target_and_kind(service: ApiClient, populated: Populated) -> None:
    await log_in(service, Role.OPERATOR)
    path = f"/identity/previews/{populated.preview_id}"
    text = (await get_page(service, path)).text
    assert f"Preview of <bdi>{NIGHTLY}</bdi>" in text
    assert f'href="{path}?system=AD&amp;kind=update"' in text
    updates = (await get_page(service, f"{path}?system=AD&kind=update")).text
    assert "<b>Update</b>" in updates
    assert "<b>Create</b>" not in updates
    listed = (await get_page(service, "/identity/previews")).text
    assert "Preview a schedule…" in listed


@pytest.mark.parametrize("digits", ["9" * 5_000, "9" * 19], ids=["5,000 digits", "more than 64 bits"])
async def test_identity_pages_refuse_numbers_that_are_too_large(
    service: ApiClient, populated: Populated, digits: str
) -> None:
    await log_in(service)
    await get_page(service, f"/identity/objects?after={digits}", 422)
    await get_page(service, f"/identity/identities/{digits}", 404)
    cursor = f"{populated.import_id}.{digits}.object"
    await get_page(service, f"/identity/identities/{populated.ada_id}?tab=history&before={cursor}", 422)


async def test_system_page_shows_runs_of_a_system_whose_definition_another_version_stored(service: ApiClient) -> None:
    await log_in(service)
    database = await service.app.open()
    change = "UPDATE tenuto_identity.systems SET definition = definition {} WHERE name = 'LDAP' RETURNING 1"
    await database.fetch_value(change.format("""|| '{"not_known_yet": 1}'"""))
    try:
        text = (await get_page(service, "/identity/systems/LDAP")).text
    finally:
        await database.fetch_value(change.format("- 'not_known_yet'"))
    assert "This version cannot read the definition" in text
    assert "not_known_yet" in text
    assert "Last runs" in text
    assert "This version cannot read" not in (await get_page(service, "/identity/systems/LDAP")).text


async def test_rules_page_shows_who_wins_each_attribute_and_links_to_preview_and_definition(service: ApiClient) -> None:
    await log_in(service, Role.OPERATOR)
    text = (await get_page(service, "/identity/rules")).text
    display = re.search(r'<tr data-key="person-display">.*?</tr>', text, re.DOTALL)
    assert display is not None
    assert re.search(
        r'href="#rule-HR%20people%20in">.*of <bdi>HR</bdi>, priority 100: <code>first [+] .* last</code>', display[0]
    )
    assert re.search(r"<bdi>AD</bdi> <bdi>cn</bdi> by", display[0])
    card = text[text.index('id="rule-AD people out"') :]
    card = card[: card.index("</section>")]
    assert "mail = mail" in card
    assert "an object is created in the system" in card
    assert "the object is deleted in the system" in card
    assert "on_out_of_scope: delete" in card  # its definition
    [button] = re.findall(r'<button type="button" data-operation="identity_previews_create".*?</button>', card)
    assert "Full Sync" in button
    of_ad = (await get_page(service, "/identity/rules?system=AD")).text
    assert 'id="rule-AD people out"' in of_ad
    assert 'id="rule-HR people in"' not in of_ad
    await get_page(service, "/identity/rules?system=none", 422)
    system = (await get_page(service, "/identity/systems/AD")).text
    assert 'href="/identity/rules?system=AD"' in system


async def test_rules_page_says_that_another_version_stored_a_definition(service: ApiClient) -> None:
    await log_in(service)
    database = await service.app.open()
    change = "UPDATE tenuto_identity.systems SET definition = definition {} WHERE name = 'LDAP' RETURNING 1"
    await database.fetch_value(change.format("""|| '{"not_known_yet": 1}'"""))
    try:
        text = (await get_page(service, "/identity/rules")).text
    finally:
        await database.fetch_value(change.format("- 'not_known_yet'"))
    assert "This version cannot read the definitions" in text


async def test_search_finds_systems_and_identities(service: ApiClient, populated: Populated) -> None:
    await log_in(service)
    found = (await service.client.get("/api/v1/search?q=lovelace")).json()
    assert f"/identity/identities/{populated.ada_id}" in str(found)
    assert "/identity/systems/LDAP" in str((await service.client.get("/api/v1/search?q=LDAP")).json())


async def test_pending_exports_show_sent_beside_seen_and_offer_a_retry(
    service: ApiClient, populated: Populated
) -> None:
    await log_in(service, Role.OPERATOR)
    text = (await get_page(service, "/identity/exports?state=unconfirmed&system=LDAP")).text
    assert "Alan Turing" in text
    assert "ALAN TURING" in text  # what the system made of it
    refused = (await get_page(service, "/identity/exports?errors=only")).text
    error = f"constraint violation: {HOSTILE}".replace("<", "&lt;").replace(">", "&gt;")
    assert "constraint violation" not in refused  # it can quote the title, which is sensitive
    assert '<span class="sub is-fail"><bdi>***</bdi></span>' in refused
    await log_in(service, Role.ADMIN)
    assert error in (await get_page(service, "/identity/exports?errors=only")).text
    await log_in(service, Role.OPERATOR)
    [button] = re.findall(r'<button type="button" data-operation="identity_pending_exports_retry".*?</button>', refused)
    assert "object_id" in button
    # The last test of the site: it changes what the others show.
    headers = {"Origin": HOST, "Sec-Fetch-Site": "same-origin", "Tenuto-Page": "1"}
    body = {"system": "AD", "object_id": re.findall(r"object_id&#34;: &#34;(\d+)", button)[0]}
    done = await service.client.post("/api/v1/identity/pending-exports/retry", json=body, headers=headers)
    assert done.json() == {"retried": 1}
    assert "identity_pending_exports_retry" not in (await get_page(service, "/identity/exports?errors=only")).text
