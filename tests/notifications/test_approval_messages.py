"""Messages about requested approvals lead to the decision: a link to the page, and a link for each approver by mail."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from email.message import Message

import httpx2
import pytest

from tenuto import Actor, Role, Step, Tenuto, manual
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.store.events.approvals import ApprovalRecord
from tenuto.web.server import web_server
from tests.notifications.failing_schedule import assert_stored_nowhere, delivered, operations_of, webhook_rule
from tests.notifications.receivers import MailServer, WebhookReceiver
from tests.support.errors import raises_code
from tests.support.waiting import eventually

EVENT = "approvals.requested"
CHANNEL = {"kind": "email", "to": ["ops@example.org"], "approver_links": True}


@pytest.fixture
async def dashboard(app: Tenuto) -> AsyncIterator[str]:
    """Address of the web service, which is the setting ``base_url``."""
    async with web_server(app, port=0) as address:
        app.settings = app.settings.model_copy(update={"base_url": address})
        yield address


async def request_approval(app: Tenuto, *approvers: str, count: int = 1, name: str = "Release") -> ApprovalRecord:
    gate = Step.approval("Deploy 4.2?", name="go live", approvers=approvers, count=count)
    await app.schedules.apply([schedule_definition(name, manual(), [gate])])
    await app.schedules.run(name)

    async def find() -> ApprovalRecord | None:
        return next((each for each in await app.approvals.pending() if each.schedule_name == name), None)

    found: ApprovalRecord = await eventually(find, 20)
    return found


def text_of(mail: Message) -> str:
    content = mail.get_payload(decode=True)
    assert isinstance(content, bytes)
    return content.decode()


async def test_message_links_to_the_page_where_persons_decide(
    app: Tenuto, receiver: WebhookReceiver, dashboard: str
) -> None:
    template = {"subject": "{{title}}", "body": "{{message}} {{approvers}} {{link}}"}
    await webhook_rule(app, receiver.url("/hook"), EVENT, template=template)
    _, key = await app.api_keys.create("ana", Role.VIEWER)
    async with app.worker(), app.scheduler():
        approval = await request_approval(app, "ana", "ben")
        await eventually(lambda: delivered(app), 20)
        (document,) = receiver.documents
        link = f"{dashboard}/approvals/{approval.id}"
        assert document["subject"] == "Release waits for approval: go live"
        assert document["body"] == f"Deploy 4.2? ana, ben {link}"
        assert document["events"][0]["link"] == link
        assert document["events"][0]["fields"]["execution"] == str(approval.execution_id)
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as browser:
            approve = link.replace("/approvals/", "/api/v1/approvals/") + "/approve"
            assert (await browser.post(approve)).status_code == 200
        assert approval.execution_id is not None
        assert (await app.executions.wait(approval.execution_id, 20)).state == "completed"


async def test_approver_decides_with_the_link_of_the_mail(
    app: Tenuto, mail_server: MailServer, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mail_server.configure(app, monkeypatch)
    monkeypatch.setenv("TENUTO_NOTIFICATIONS_ADDRESSES", '{"ana": "ana@example.org"}')
    await webhook_rule(app, "", EVENT, channel=CHANNEL)
    async with app.worker(), app.scheduler():
        approval = await request_approval(app, "ana", "ben@example.org", "carl", count=2)
        (delivery,) = await eventually(lambda: delivered(app), 20)
        mails = {mail["To"]: text_of(mail) for mail in mail_server.received}
        assert mails.keys() == {"ops@example.org", "ana@example.org", "ben@example.org"}
        links = {to: re.findall(rf"{dashboard}/approve\?link=(tna_\S+)", text) for to, text in mails.items()}
        assert [len(links[to]) for to in sorted(links)] == [1, 1, 0]
        assert "Decide as ana;" in mails["ana@example.org"]
        assert len({mail["Message-ID"] for mail in mail_server.received}) == 3
        log = (await app.attempts(delivery.id))[-1].log or ""
        assert "no e-mail address is known of carl" in log
        for link in (links["ana@example.org"][0], links["ben@example.org"][0]):
            await assert_stored_nowhere(app, link)
            async with httpx2.AsyncClient() as browser:
                page = await browser.get(f"{dashboard}/approve", params={"link": link})
                assert (page.status_code, "Deploy 4.2?" in page.text) == (200, True)
                form = {"link": link, "decision": "approve", "reason": "tested"}
                assert (await browser.post(f"{dashboard}/approve", data=form)).status_code == 200
                assert (await browser.post(f"{dashboard}/approve", data=form)).status_code == 404
        assert approval.execution_id is not None
        assert (await app.executions.wait(approval.execution_id, 20)).state == "completed"
    entries = await app.audit.list(action="approval.approve")
    assert {(each.actor_name, each.reason) for each in entries} == {("ana", "tested"), ("ben@example.org", "tested")}
    (created,) = await app.audit.list(action="approval.link")
    assert created.actor_name == "notification rule rule"
    assert created.after["persons"] == ["ana", "ben@example.org", "carl"]


async def test_repeated_mail_has_new_links_and_those_of_the_first_work(
    app: Tenuto, mail_server: MailServer, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts the mail of the approver, and then refuses the one of the next approver for now."""
    await mail_server.configure(app, monkeypatch)
    await webhook_rule(app, "", EVENT, channel={"kind": "email", "approver_links": True})
    mail_server.replies = ["", "451 later"]
    async with app.worker(), app.scheduler():
        approval = await request_approval(app, "ana@example.org", "ben@example.org", "eve@example.org")
        await eventually(lambda: mail_server.received, 20)
        first = re.findall(r"link=(tna_\S+)", text_of(mail_server.received[0]))[0]
        ben = app.acting_as(Actor.user("ben@example.org"))
        await ben.approvals.reject(approval.id)  # before the delivery is repeated
        page = await app.approvals.open_link(first)
        assert page is not None
        assert (page.person, page.approval.state) == ("ana@example.org", "rejected")
        database = await app.open()
        await eventually(
            lambda: database.write_all(
                "UPDATE tenuto.tasks SET run_at = now() WHERE kind = 'notifications.deliver' AND attempt = 2"
                " AND state = 'scheduled' RETURNING id"
            ),
            20,
        )
        (delivery,) = await eventually(lambda: delivered(app), 20)
    assert delivery.attempt == 2
    assert len(mail_server.received) == 1


async def test_links_for_approvers_need_the_address_of_the_dashboard(
    app: Tenuto, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mail_server.configure(app, monkeypatch)
    await webhook_rule(app, "", EVENT, channel=CHANNEL)
    findings = {finding.name: finding for finding in await app.doctor()}
    assert findings["notification_rules"].details == ["rule: the address of the dashboard is not set (base_url)"]
    async with app.worker(), app.scheduler():
        await request_approval(app, "ana@example.org")
        (failed,) = await eventually(lambda: delivered(app, "failed"), 20)
    assert "the address of the dashboard is not set" in str(failed.error)
    assert mail_server.received == []


async def test_links_for_approvers_are_refused_for_other_events(app: Tenuto) -> None:
    with raises_code("notifications.rule.approver_links_unused") as error:
        await webhook_rule(app, "", "task.failed", channel=CHANNEL)
    assert error.value.field == "channel.approver_links"
    with raises_code("notifications.rule.invalid"):
        await webhook_rule(app, "", EVENT, channel={"kind": "email"})
    assert await operations_of(app).rules() == []
