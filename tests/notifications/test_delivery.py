"""Messages over every channel: signed, retried, within the address rules, without credentials in what is stored."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.ids import new_id
from tests.notifications.failing_schedule import (
    add_broken_job,
    assert_stored_nowhere,
    delivered,
    operations_of,
    webhook_rule,
)
from tests.notifications.receivers import MailServer, WebhookReceiver
from tests.support.errors import raises_code
from tests.support.http_site import make_response
from tests.support.waiting import eventually

SIGNING_KEY = "a-key-of-the-receiver"


async def test_webhook_is_signed(app: Tenuto, receiver: WebhookReceiver) -> None:
    await app.secrets.set("hook-key", SIGNING_KEY)
    await app.secrets.set("hook-token", "token-of-the-receiver")
    channel = {
        "kind": "webhook",
        "url": receiver.url("/hook"),
        "signing_key": {"secret": "hook-key"},
        "headers": {"Authorization": {"secret": "hook-token", "prefix": "Bearer "}},
    }
    await webhook_rule(app, "", channel=channel)
    async with app.worker():
        sent = await operations_of(app).test("rule")
        await eventually(lambda: delivered(app))
    (request,) = receiver.requests
    content = f"{sent.id}.{request.headers['webhook-timestamp']}.".encode() + request.body
    expected = base64.b64encode(hmac.new(SIGNING_KEY.encode(), content, hashlib.sha256).digest()).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"
    assert request.headers["authorization"] == "Bearer token-of-the-receiver"
    assert json.loads(request.body)["is_test"]


async def test_webhook_is_retried_with_the_same_body_and_id(
    app: Tenuto, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.pages["/hook"] = [make_response(503, b"", "Retry-After: 1"), make_response(204)]
    await webhook_rule(app, receiver.url("/hook"))
    async with app.worker():
        sent = await operations_of(app).test("rule")
        (delivery,) = await eventually(lambda: delivered(app), 20)
    assert delivery.attempt == 2
    assert [request.headers["webhook-id"] for request in receiver.requests] == [str(sent.id)] * 2
    assert receiver.requests[0].body == receiver.requests[1].body


async def test_refused_message_becomes_a_dead_letter_that_can_be_retried(
    app: Tenuto, receiver: WebhookReceiver
) -> None:
    receiver.pages["/hook"] = [make_response(404), make_response(204)]
    await webhook_rule(app, receiver.url("/hook"))
    async with app.worker():
        sent = await operations_of(app).test("rule")
        (failed,) = await eventually(lambda: delivered(app, "failed"))
        assert "status 404" in str(failed.error)
        (letter,) = await app.dead_letters.list()
        assert letter.name == "notifications.deliver"
        await app.dead_letters.retry(letter.id)
        await eventually(lambda: len(receiver.requests) == 2)
    assert receiver.message_ids == [str(sent.id)]


async def test_address_that_is_not_allowed_is_refused(
    app: Tenuto, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.settings = app.settings.model_copy(update={"http_allowed_hosts": ()})
    await webhook_rule(app, receiver.url("/hook"))
    async with app.worker():
        await operations_of(app).test("rule")
        (failed,) = await eventually(lambda: delivered(app, "failed"))
    assert "127.0.0.1" in str(failed.error)
    assert receiver.requests == []


@pytest.mark.parametrize("kind", ["slack", "teams"])
async def test_chat_webhook_gets_its_format_and_its_address_is_stored_nowhere(
    app: Tenuto, receiver: WebhookReceiver, kind: str
) -> None:
    receiver.pages["/services/T0/B0/credential-of-the-channel"] = [make_response(404), make_response(200, b"ok")]
    await app.secrets.set("chat", receiver.url("/services/T0/B0/credential-of-the-channel"))
    await webhook_rule(app, "", channel={"kind": kind, "url": {"secret": "chat"}})
    async with app.worker():
        await operations_of(app).test("rule")
        await eventually(lambda: delivered(app, "failed"))
        await operations_of(app).test("rule")
        await eventually(lambda: delivered(app))
    document = json.loads(receiver.requests[1].body)
    if kind == "slack":
        assert document["text"].startswith("*[Test] This is a test of the rule rule*\n")
    else:
        card = document["attachments"][0]["content"]
        assert card["type"] == "AdaptiveCard"
        assert "This is a test of the rule rule" in card["body"][0]["text"]
    await assert_stored_nowhere(app, "credential-of-the-channel")


async def test_mail_is_sent_over_tls_with_a_login(
    app: Tenuto, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mail_server.configure(app, monkeypatch)
    channel = {"kind": "email", "to": ["ops@example.org", "ana@example.org"]}
    template = {"subject": "Tenuto: {{title}}", "body": "{{titles}}\nRule {{rule}}"}
    await webhook_rule(app, "", channel=channel, template=template)
    async with app.worker():
        sent = await operations_of(app).test("rule")
        await eventually(lambda: delivered(app), 20)
    (mail,) = mail_server.received
    assert mail["Subject"] == "[Test] Tenuto: This is a test of the rule rule"
    assert mail["To"] == "ops@example.org, ana@example.org"
    assert mail["Message-ID"] == f"<{sent.id}@tenuto.invalid>"
    assert mail.get_payload().splitlines() == ["This is a test of the rule rule", "Rule rule"]  # type: ignore[union-attr]
    await assert_stored_nowhere(app, "correct-horse-battery")


async def test_refused_recipient_is_a_warning_and_all_refused_a_failure(
    app: Tenuto, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await mail_server.configure(app, monkeypatch)
    mail_server.refused = {"gone@example.org"}
    await webhook_rule(app, "", name="one", channel={"kind": "email", "to": ["ops@example.org", "gone@example.org"]})
    await webhook_rule(app, "", name="all", channel={"kind": "email", "to": ["gone@example.org"]})
    async with app.worker():
        await operations_of(app).test("one")
        await operations_of(app).test("all")
        (failed,) = await eventually(lambda: delivered(app, "failed"), 20)
        await eventually(lambda: delivered(app), 20)
    assert failed.rule == "all"
    assert "refused all recipients with 550" in str(failed.error)
    assert [mail["To"] for mail in mail_server.received] == ["ops@example.org, gone@example.org"]
    outcomes = await (await app.open()).fetch_all("SELECT output FROM tenuto.activities WHERE output IS NOT NULL")
    assert [json.loads(row["output"]) for row in outcomes] == [{"recipients": 1, "refused": ["gone@example.org"]}]


async def test_mail_is_retried_after_a_temporary_refusal(
    app: Tenuto, mail_server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail_server.replies = ["451 try again later"]
    await mail_server.configure(app, monkeypatch)
    await webhook_rule(app, "", channel={"kind": "email", "to": ["ops@example.org"]})
    async with app.worker():
        sent = await operations_of(app).test("rule")
        await eventually(lambda: _attempt(app, sent.id, 2), 20)
        database = await app.open()
        await database.write_all("UPDATE tenuto.tasks SET run_at = now() WHERE id = $1", sent.id)
        await eventually(lambda: delivered(app), 20)
    assert len(mail_server.received) == 1


async def _attempt(app: Tenuto, id: Any, attempt: int) -> bool:
    database = await app.open()
    return bool(await database.fetch_value("SELECT attempt = $2 FROM tenuto.tasks WHERE id = $1", id, attempt))


async def test_mail_without_a_server_fails_with_the_setting(app: Tenuto) -> None:
    await webhook_rule(app, "", channel={"kind": "email", "to": ["ops@example.org"]})
    async with app.worker():
        await operations_of(app).test("rule")
        (failed,) = await eventually(lambda: delivered(app, "failed"))
    assert "no mail server is configured" in str(failed.error)
    findings = {finding.name: finding for finding in await app.doctor()}
    assert findings["notification_rules"].details == ["rule: no mail server is configured (smtp_host, smtp_from)"]
    assert findings["notification_deliveries"].details == ["rule: 1 failed"]
    assert 'tenuto_notifications_messages{rule="rule",state="failed"} 1.0' in await app.status.metrics()


async def test_job_gets_the_message(app: Tenuto) -> None:
    add_broken_job(app)
    received: list[dict[str, Any]] = []

    @app.job(max_attempts=1)
    async def page_the_team(notification: dict[str, Any]) -> None:
        received.append(notification)

    await webhook_rule(app, "", "task.failed", channel={"kind": "job", "job": "page_the_team"})
    async with app.worker(), app.scheduler():
        task = await app.enqueue(app.jobs.get_job("broken"), "disk full")
        (delivery,) = await eventually(lambda: delivered(app), 20)
    (document,) = received
    assert document["id"] == str(delivery.id)
    assert document["events"][0]["fields"]["error"] == "disk full"
    assert document["events"][0]["fields"]["id"] == str(task.id)


async def test_text_of_an_event_is_not_read_as_a_template(app: Tenuto, receiver: WebhookReceiver) -> None:
    add_broken_job(app)
    template = {"subject": "{{name}}: {{error}}"}
    await webhook_rule(app, receiver.url("/hook"), "task.failed", template=template)
    async with app.worker(), app.scheduler():
        await app.enqueue(app.jobs.get_job("broken"), "{{queue}}\r\nBcc: x@example.org")
        await eventually(lambda: receiver.requests, 20)
    assert receiver.documents[0]["subject"] == "broken: {{queue}} Bcc: x@example.org"


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"event": "execution.exploded"}, "notifications.event.unknown", "event"),
        ({"filter": "colour:red"}, "filter.key.unknown", "filter"),
        ({"filter": "ran:fast"}, "filter.value.invalid", "filter"),
        ({"after": "5m"}, "notifications.rule.after_unused", "after"),
        ({"template": {"subject": "{{colour}}"}}, "notifications.field.unknown", "template.subject"),
        ({"group": {"by": ["colour"]}}, "notifications.field.unknown", "group.by"),
        ({"group": {"window": "soon"}}, "value.duration.invalid", "group.window"),
        ({"quiet": {"start": "25:00", "end": "07:00"}}, "notifications.rule.invalid", "quiet.start"),
        ({"quiet": {"start": "22:00", "end": "07:00", "zone": "Mars"}}, "trigger.zone.unknown", "quiet.zone"),
        ({"channel": {"kind": "pigeon"}}, "notifications.rule.invalid", "channel"),
        ({"channel": {"kind": "webhook", "url": "ftp://example.org"}}, "step.http.url.invalid", "channel.url"),
        ({"channel": {"kind": "slack", "url": "https://example.org"}}, "notifications.rule.invalid", "channel.url"),
        ({"channel": {"kind": "email", "to": ["ana"]}}, "notifications.rule.invalid", "channel.to.0"),
        ({"channel": {"kind": "email", "to": ["a@b\r\nBcc:c@d"]}}, "notifications.rule.invalid", "channel.to.0"),
        ({"channel": {"kind": "job", "job": "two words"}}, "value.name.invalid", "channel.job"),
        ({"channel": {"kind": "job", "job": "j", "queue": "q" * 65}}, "value.name.invalid", "channel.queue"),
        ({"channel": {"kind": "job", "job": "j", "queue": ""}}, "value.name.invalid", "channel.queue"),
        ({"name": " "}, "notifications.rule.invalid", "name"),
        ({"colour": "red"}, "notifications.rule.invalid", "colour"),
    ],
)
async def test_invalid_rule_is_refused_with_its_field(
    app: Tenuto, change: dict[str, Any], code: str, field: str
) -> None:
    with raises_code(code) as error:
        await webhook_rule(app, "https://example.org/hook", **change)
    assert error.value.field == field
    assert await operations_of(app).rules() == []


@pytest.mark.parametrize("security", ["tls", "none"])
async def test_mail_is_sent_with_the_security_of_the_settings(
    app: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, security: str
) -> None:
    await webhook_rule(app, "", channel={"kind": "email", "to": ["ops@example.org"]})
    with MailServer(tmp_path, security=security) as server:
        await server.configure(app, monkeypatch)
        async with app.worker():
            await operations_of(app).test("rule")
            await eventually(lambda: delivered(app), 20)
    assert [mail["To"] for mail in server.received] == ["ops@example.org"]
    assert server.login_count == 1


@pytest.mark.parametrize(
    ("served", "wanted", "problem"),
    [
        ("none", "starttls", "STARTTLS"),
        ("none", "tls", "could not be used"),
        ("tls", "tls", "certificate verify failed"),
    ],
)
async def test_mail_is_not_sent_over_a_connection_that_is_not_secured(
    app: Tenuto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: str, wanted: str, problem: str
) -> None:
    await webhook_rule(app, "", channel={"kind": "email", "to": ["ops@example.org"]})
    with MailServer(tmp_path, security=served) as server:
        await server.configure(app, monkeypatch)
        monkeypatch.setenv("TENUTO_NOTIFICATIONS_SMTP_SECURITY", wanted)
        if served == "tls":
            monkeypatch.delenv("TENUTO_NOTIFICATIONS_SMTP_CA_FILE")  # the certificate is that of no known authority
        async with app.worker():
            sent = await operations_of(app).test("rule")
            await eventually(lambda: _attempt(app, sent.id, 2), 40)
    attempt = (await app.attempts(sent.id))[0]
    assert problem in str(attempt.error)
    assert server.received == []


async def test_repeated_test_request_sends_one_message(app: Tenuto, receiver: WebhookReceiver) -> None:
    await webhook_rule(app, receiver.url("/hook"))
    request = new_id()
    first, second = [await operations_of(app).test("rule", request_id=request) for _ in range(2)]
    assert first == second
    async with app.worker():
        await eventually(lambda: delivered(app))
    assert receiver.message_ids == [str(request)]
    assert len(await operations_of(app).deliveries()) == 1
