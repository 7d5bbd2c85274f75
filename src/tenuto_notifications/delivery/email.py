"""Delivery by e-mail over the mail server of the settings, with TLS unless the settings say otherwise."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from tenuto.errors import EngineError
from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.model.access.secrets import SecretRef
from tenuto_notifications.delivery.approver_links import ApproverLink
from tenuto_notifications.model.rules import Email, is_address
from tenuto_notifications.settings import NotificationSettings

TIMEOUT_SECONDS = 20.0
"""Time limit of each exchange with the mail server."""


class MailFailed(EngineError):
    """The mail server did not accept a message, but a retry may succeed."""


@dataclass(frozen=True, slots=True)
class _Envelope:
    mail: EmailMessage
    to: Sequence[str]


async def send_email(
    services: ExtensionServices,
    ctx: Context,
    channel: Email,
    document: Mapping[str, Any],
    message_id: str,
    links: Sequence[ApproverLink] = (),
) -> dict[str, Any]:
    """Send a message, and to each person of ``links`` a copy with the links of this person.

    Raise `PermanentFailure` if a retry cannot succeed, otherwise an error that leads to a retry.
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
    now = (await services.open_database()).clock.now()
    envelopes = []
    if channel.to:
        mail = _compose(
            section.smtp_from, channel.to, document, document["body"], f"<{message_id}@tenuto.invalid>", now
        )
        envelopes.append(_Envelope(mail, channel.to))
    unknown = []
    for number, person in enumerate(dict.fromkeys(each.person for each in links), 1):
        address = find_address(section, person)
        if address is None:
            unknown.append(person)
            continue
        body = _add_links(document["body"], person, [each for each in links if each.person == person])
        id = f"<{message_id}.{number}@tenuto.invalid>"
        envelopes.append(_Envelope(_compose(section.smtp_from, [address], document, body, id, now), [address]))
    if unknown:
        names = ", ".join(unknown)
        if not envelopes:
            raise PermanentFailure(
                f"no e-mail address is known of {names}",
                code="notifications.address.unknown",
                remedy="set TENUTO_NOTIFICATIONS_ADDRESSES, and retry the dead letter",
            )
        ctx.warn(f"no e-mail address is known of {names}: set TENUTO_NOTIFICATIONS_ADDRESSES")
    if not envelopes:
        ctx.warn("no mail was sent: no approver has to decide")
        return {"recipients": 0, "refused": []}
    refused = await asyncio.to_thread(_submit, section, password, envelopes)
    if refused:
        ctx.warn(f"the mail server refused {', '.join(sorted(refused))}")
    recipients = {address for each in envelopes for address in each.to}
    return {"recipients": len(recipients - refused), "refused": sorted(refused)}


def find_address(section: NotificationSettings, person: str) -> str | None:
    """Return the e-mail address of an approver."""
    return section.addresses.get(person) or (person if is_address(person) else None)


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


def _submit(section: NotificationSettings, password: str | None, envelopes: Sequence[_Envelope]) -> set[str]:
    """Hand mails to the mail server; return the recipients that it refused."""
    where = f"mail server {section.smtp_host}:{section.smtp_port}"
    assert section.smtp_host is not None
    try:
        context = ssl.create_default_context()
        if section.smtp_ca_file is not None:
            context.load_verify_locations(section.smtp_ca_file)
        if section.smtp_security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                section.smtp_host, section.smtp_port, timeout=TIMEOUT_SECONDS, context=context
            )
        else:
            server = smtplib.SMTP(section.smtp_host, section.smtp_port, timeout=TIMEOUT_SECONDS)
        with server:
            if section.smtp_security == "starttls":
                server.starttls(context=context)  # an error if the server does not offer it
            if section.smtp_user is not None:
                server.login(section.smtp_user, password or "")
            refused: dict[str, tuple[int, bytes]] = {}
            for each in envelopes:
                try:
                    refused |= server.send_message(each.mail, to_addrs=each.to)
                except smtplib.SMTPRecipientsRefused as error:
                    refused |= error.recipients
    except smtplib.SMTPAuthenticationError as error:
        raise _failure(f"the {where} refused the login with {error.smtp_code}", error.smtp_code) from None
    except smtplib.SMTPResponseException as error:
        raise _failure(f"the {where} refused the message with {error.smtp_code}", error.smtp_code) from None
    except (smtplib.SMTPException, OSError) as error:
        text = str(error)[:300] or type(error).__name__
        raise MailFailed(f"the {where} could not be used: {text}", code="notifications.smtp.failed") from None
    if refused.keys() >= {address for each in envelopes for address in each.to}:
        code = min(code for code, _ in refused.values())
        raise _failure(f"the {where} refused all recipients with {code}", code)
    return set(refused)


def _failure(message: str, status: int) -> Exception:
    if 500 <= status < 600:
        return PermanentFailure(message, code="notifications.smtp.refused", remedy="see the log of the mail server")
    return MailFailed(message, code="notifications.smtp.failed")
