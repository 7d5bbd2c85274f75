"""Delivery by e-mail over the mail server of the settings, with TLS unless the settings say otherwise."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.model.access.secrets import SecretRef
from tenuto_notifications.delivery.approver_links import ApproverLink, create_links
from tenuto_notifications.delivery.mail_submission import (
    ACCEPTED,
    Envelope,
    Recipient,
    Submission,
    is_permanent,
    name_server,
    refusal,
    submit,
)
from tenuto_notifications.model.rules import Email
from tenuto_notifications.settings import NotificationSettings

_CHECKPOINT = "mail, part "
_MAX_NAMED_RECIPIENTS = 10


async def send_email(
    services: ExtensionServices,
    ctx: Context,
    channel: Email,
    document: Mapping[str, Any],
    message_id: str,
    rule_name: str,
) -> dict[str, Any]:
    """Send a message, and to each approver a copy with the links of this person if the channel says so.

    Recipients whose mail was accepted or refused for good in an earlier attempt are left out. Raise `PermanentFailure`
    if a retry cannot succeed, otherwise an error that leads to a retry.
    """
    section = services.section(NotificationSettings)
    if section.smtp_host is None or section.smtp_from is None:
        raise PermanentFailure(
            "no mail server is configured",
            code="notifications.smtp.not_configured",
            remedy="set TENUTO_NOTIFICATIONS_SMTP_HOST and TENUTO_NOTIFICATIONS_SMTP_FROM, and retry the dead letter",
        )
    password = None
    if section.smtp_password_secret is not None:
        password = await services.reveal_secret(ctx, SecretRef(secret=section.smtp_password_secret))
    stored = {name: text for name, text in (await ctx.steps.load()).items() if name.startswith(_CHECKPOINT)}
    codes = {key: code for text in stored.values() for key, code in _load_codes(text).items()}
    links: Sequence[ApproverLink] = ()
    unknown: Sequence[str] = ()
    if channel.approver_links:
        links, unknown = await create_links(
            services, rule_name, document, mailed={each.person for each in codes if each.person}
        )
    now = (await services.open_database()).clock.now()
    envelopes = _make_envelopes(section.smtp_from, channel, document, message_id, links, codes, now)
    if unknown:
        _report_unknown(ctx, unknown, is_only_target=not envelopes and not codes)
    if envelopes:
        submission = await asyncio.to_thread(submit, section, password, envelopes)
        codes |= submission.final_codes
        waiting = sorted(each for envelope in envelopes for each in envelope.to if each not in codes)
        if waiting:
            if submission.final_codes:
                await ctx.steps.save(f"{_CHECKPOINT}{len(stored) + 1}", _dump_codes(submission.final_codes))
            raise _retry_error(section, submission, waiting)
    elif not codes:
        ctx.warn("no mail was sent: no approver has to decide")
    refused = sorted({each.address for each, code in codes.items() if is_permanent(code)})
    accepted = {each.address for each, code in codes.items() if code == ACCEPTED}
    if refused and not accepted:
        code = min(codes.values())
        raise refusal(f"the {name_server(section)} refused all recipients with {code}", code)
    if refused:
        ctx.warn(f"the mail server refused {', '.join(refused)}")
    return {"recipients": len(accepted), "refused": refused}


def _make_envelopes(
    sender: str,
    channel: Email,
    document: Mapping[str, Any],
    message_id: str,
    links: Sequence[ApproverLink],
    settled: Container[Recipient],
    now: datetime,
) -> list[Envelope]:
    """Return the mails to send: one to the recipients of the rule who are not settled, and one to each approver."""
    envelopes = []
    if to := [each for each in map(Recipient, dict.fromkeys(channel.to)) if each not in settled]:
        id = f"<{message_id}@tenuto.invalid>"
        envelopes.append(Envelope(_compose(sender, channel.to, document, document["body"], id, now), to))
    for recipient in dict.fromkeys(Recipient(each.address, each.person) for each in links):
        own = [each for each in links if each.person == recipient.person]
        body = _add_links(document["body"], recipient.person, own)
        mark = hashlib.sha256(recipient.person.encode()).hexdigest()[:16]  # the same in a repeated attempt
        id = f"<{message_id}.{mark}@tenuto.invalid>"
        envelopes.append(Envelope(_compose(sender, [recipient.address], document, body, id, now), [recipient]))
    return envelopes


def _report_unknown(ctx: Context, persons: Sequence[str], *, is_only_target: bool) -> None:
    names = ", ".join(persons)
    if is_only_target:
        raise PermanentFailure(
            f"no e-mail address is known of {names}",
            code="notifications.address.unknown",
            remedy="set TENUTO_NOTIFICATIONS_ADDRESSES, and retry the dead letter",
        )
    ctx.warn(f"no e-mail address is known of {names}: set TENUTO_NOTIFICATIONS_ADDRESSES")


def _retry_error(section: NotificationSettings, submission: Submission, waiting: Sequence[Recipient]) -> Exception:
    """Return the error of an attempt in which some recipients have no final reply."""
    postponed = [each for each in waiting if each in submission.codes]
    if not postponed:
        assert submission.failure is not None
        return submission.failure
    names = ", ".join(dict.fromkeys(each.address for each in postponed[:_MAX_NAMED_RECIPIENTS]))
    more = f" and {len(postponed) - _MAX_NAMED_RECIPIENTS} more" if len(postponed) > _MAX_NAMED_RECIPIENTS else ""
    code = submission.codes[postponed[0]]
    return refusal(f"the {name_server(section)} refused the message for {names}{more} with {code}", code)


def _dump_codes(codes: Mapping[Recipient, int]) -> str:
    return json.dumps({"value": [[each.address, each.person, code] for each, code in codes.items()]})


def _load_codes(text: str) -> dict[Recipient, int]:
    return {Recipient(address, person): code for address, person, code in json.loads(text)["value"]}


def _add_links(body: str, person: str, links: Sequence[ApproverLink]) -> str:
    lines = [body.rstrip("\n"), "", f"Decide as {person}; each link works once and asks for confirmation:"]
    for each in links:
        lines += [f"  {each.title}", f"  {each.url}"]
    return "\n".join(lines)


def _compose(
    sender: str, to: Sequence[str], document: Mapping[str, Any], body: str, id: str, now: datetime
) -> EmailMessage:
    mail = EmailMessage()
    mail["Subject"] = document["subject"]
    mail["From"] = sender
    mail["To"] = ", ".join(to)
    mail["Date"] = format_datetime(now)
    mail["Message-ID"] = id
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(body)
    return mail
