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
    assert created.after["persons"] == ["ana", "ben@example.org"]


async def repeat_delivery(app: Tenuto, attempt: int) -> None:
    """Let an attempt that waits for its retry begin."""
    database = await app.open()
    await eventually(
        lambda: database.write_all(
            "UPDATE tenuto.tasks SET run_at = now() WHERE kind = 'notifications.deliver' AND attempt = $1"
            " AND state = 'scheduled' RETURNING id",
            attempt,
        ),
        20,
    )


def recipients_of(mail_server: MailServer) -> list[str]:
    return sorted(str(mail["To"]) for mail in mail_server.received)


async def test_mail_that_is_refused_for_now_is_repeated_without_a_link_for_who_has_decided(
    app: Tenuto, mail_server: MailServer, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server accepts the mail of the approver, and then refuses the one of the next approver for now."""
    await mail_server.configure(app, monkeypatch)
    await webhook_rule(app, "", EVENT, channel={"kind": "email", "approver_links": True})
    mail_server.replies = ["", "451 later"]
    async with app.worker(), app.scheduler():
        approval = await request_approval(app, "ana@example.org", "ben@example.org", "eve@example.org")
        await eventually(lambda: len(mail_server.received) == 2 or None, 20)
        first = re.findall(r"link=(tna_\S+)", text_of(mail_server.received[0]))[0]
        ben = app.acting_as(Actor.user("ben@example.org"))
        await ben.approvals.reject(approval.id)  # before the delivery is repeated
        page = await app.approvals.open_link(first)
        assert page is not None
        assert (page.person, page.approval.state) == ("ana@example.org", "rejected")
        await repeat_delivery(app, 2)
        (delivery,) = await eventually(lambda: delivered(app), 20)
    assert delivery.attempt == 2
    assert recipients_of(mail_server) == ["ana@example.org", "eve@example.org"]


async def test_approver_whose_mailbox_is_busy_gets_the_link_later_and_others_no_second_mail(
    app: Tenuto, mail_server: MailServer, dashboard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mail_server.configure(app, monkeypatch)
    await webhook_rule(app, "", EVENT, channel=CHANNEL)
    mail_server.postponed = {"ben@example.org"}
    async with app.worker(), app.scheduler():
        await request_approval(app, "ana@example.org", "ben@example.org", "eve@example.org")
        for attempt in (2, 3):  # what an attempt has sent is known to all later ones
            await repeat_delivery(app, attempt)
        await eventually(lambda: _is_scheduled(app, 4), 20)
        assert recipients_of(mail_server) == ["ana@example.org", "eve@example.org", "ops@example.org"]
        mail_server.postponed = set()
        await repeat_delivery(app, 4)
        (delivery,) = await eventually(lambda: delivered(app), 20)
        (mail,) = [each for each in mail_server.received if each["To"] == "ben@example.org"]
        page = await app.approvals.open_link(re.findall(r"link=(tna_\S+)", text_of(mail))[0])
        assert page is not None
        assert page.person == "ben@example.org"
    assert len(mail_server.received) == 4
    activity = (await app.attempts(delivery.id))[-1]
    assert activity.output == {"recipients": 4, "refused": []}
    created = await app.audit.list(action="approval.link")
    people = ["ana@example.org", "ben@example.org", "eve@example.org"]
    assert [each.after["persons"] for each in created] == [["ben@example.org"]] * 3 + [people]


async def _is_scheduled(app: Tenuto, attempt: int) -> bool | None:
    database = await app.open()
    statement = "SELECT true FROM tenuto.tasks WHERE kind = 'notifications.deliver' AND attempt = $1"
    return bool(await database.fetch_value(f"{statement} AND state = 'scheduled'", attempt)) or None


@pytest.mark.parametrize(("reply", "is_repeated"), [("554 too large", False), ("421 closing", True)])
async def test_refusal_of_the_mail_to_the_recipients_of_the_rule_does_not_stop_those_to_approvers(
    app: Tenuto, mail_server: MailServer, dashboard: str, monkeypatch: pytest.MonkeyPatch, reply: str, is_repeated: bool
) -> None:
    """With the reply 421 the connection ends, so that the next mail needs another one."""
    await mail_server.configure(app, monkeypatch)
    await webhook_rule(app, "", EVENT, channel=CHANNEL)
    mail_server.replies = [reply]
    approvers = ["ana@example.org", "ben@example.org"]
    async with app.worker(), app.scheduler():
        await request_approval(app, *approvers)
        await eventually(lambda: len(mail_server.received) == 2 or None, 20)
        assert recipients_of(mail_server) == approvers
        if is_repeated:
            await repeat_delivery(app, 2)
        (delivery,) = await eventually(lambda: delivered(app), 20)
    assert recipients_of(mail_server) == [*approvers, *(["ops@example.org"] if is_repeated else [])]
    log = (await app.attempts(delivery.id))[-1].log or ""
    assert ("the mail server refused ops@example.org" in log) != is_repeated


async def test_each_approval_has_its_own_message_whatever_the_grouping(
    app: Tenuto,
    mail_server: MailServer,
    receiver: WebhookReceiver,
    dashboard: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for events that were combined before the rule had links."""
    await mail_server.configure(app, monkeypatch)
    group = {"window": "1h"}
    await webhook_rule(app, receiver.url("/hook"), EVENT, group=group)
    approvers = {"First": "ana@example.org", "Second": "ben@example.org", "Third": "eve@example.org"}
    async with app.worker(), app.scheduler():
        await request_approval(app, "dan@example.org", name="Before")
        await eventually(lambda: delivered(app), 20)
        for name in ("First", "Second"):
            await request_approval(app, approvers[name], name=name)
        database = await app.open()
        pending = "SELECT count(*) = 2 FROM tenuto_notifications.events WHERE state = 'pending'"
        await eventually(lambda: database.fetch_value(pending), 20)
        definition = {"name": "rule", "event": EVENT, "channel": {"kind": "email", "approver_links": True}}
        await operations_of(app).edit("rule", {**definition, "group": group})
        await request_approval(app, approvers["Third"], name="Third")
        await eventually(lambda: len(mail_server.received) == 3 or None, 20)
    texts = {str(mail["To"]): text_of(mail) for mail in mail_server.received}
    for name, person in approvers.items():
        assert [each for each in approvers if f"{each} waits" in texts[person]] == [name]


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
