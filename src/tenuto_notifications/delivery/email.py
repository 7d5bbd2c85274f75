"""Delivery by e-mail over the mail server of the settings, with TLS unless the settings say otherwise."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from tenuto.errors import EngineError
from tenuto.extension import ExtensionServices
from tenuto.jobs.context import Context, PermanentFailure
from tenuto.model.access.secrets import SecretRef
from tenuto_notifications.model.rules import Email
from tenuto_notifications.settings import NotificationSettings

TIMEOUT_SECONDS = 20.0
"""Time limit of each exchange with the mail server."""


class MailFailed(EngineError):
    """The mail server did not accept a message, but a retry may succeed."""


async def send_email(
    services: ExtensionServices, ctx: Context, channel: Email, document: Mapping[str, Any], message_id: str
) -> dict[str, Any]:
    """Send a message. Raise `PermanentFailure` if a retry cannot succeed, otherwise an error that leads to a retry."""
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
    mail = EmailMessage()
    mail["Subject"] = document["subject"]
    mail["From"] = section.smtp_from
    mail["To"] = ", ".join(channel.to)
    mail["Date"] = format_datetime(now)
    mail["Message-ID"] = f"<{message_id}@tenuto.invalid>"
    mail["Auto-Submitted"] = "auto-generated"
    mail.set_content(document["body"])
    refused = await asyncio.to_thread(_submit, section, password, mail, channel.to)
    if refused:
        ctx.warn(f"the mail server refused {', '.join(sorted(refused))}")
    return {"recipients": len(channel.to) - len(refused), "refused": sorted(refused)}


def _submit(section: NotificationSettings, password: str | None, mail: EmailMessage, to: list[str]) -> set[str]:
    """Hand the message to the mail server; return the recipients that it refused."""
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
            return set(server.send_message(mail, to_addrs=to))
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        raise _failure(f"the {where} refused all recipients with {codes[0]}", min(codes)) from None
    except smtplib.SMTPAuthenticationError as error:
        raise _failure(f"the {where} refused the login with {error.smtp_code}", error.smtp_code) from None
    except smtplib.SMTPResponseException as error:
        raise _failure(f"the {where} refused the message with {error.smtp_code}", error.smtp_code) from None
    except (smtplib.SMTPException, OSError) as error:
        text = str(error)[:300] or type(error).__name__
        raise MailFailed(f"the {where} could not be used: {text}", code="notifications.smtp.failed") from None


def _failure(message: str, status: int) -> Exception:
    if 500 <= status < 600:
        return PermanentFailure(message, code="notifications.smtp.refused", remedy="see the log of the mail server")
    return MailFailed(message, code="notifications.smtp.failed")
