"""Submission of mails to the mail server: each envelope is tried, and each recipient has its own result."""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import EmailMessage

from tenuto.errors import EngineError
from tenuto.jobs.context import PermanentFailure
from tenuto_notifications.settings import NotificationSettings

TIMEOUT_SECONDS = 20.0
"""Time limit of each exchange with the mail server."""
ACCEPTED = 250
_LATER = 421
"""The mail server did not come to the recipient before it closed the connection."""
_NOT_ALLOWED = 553
"""The mail server cannot transport the address."""


class MailFailed(EngineError):
    """The mail server did not accept a message, but a retry may succeed."""


@dataclass(frozen=True, slots=True, order=True)
class Recipient:
    """An address, and the approver whose links its mail contains; no person for the mail without links."""

    address: str
    person: str = ""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A mail and its recipients."""

    mail: EmailMessage
    to: Sequence[Recipient]


@dataclass(slots=True)
class Submission:
    """The replies of the mail server by recipient."""

    codes: dict[Recipient, int] = field(default_factory=dict)
    failure: Exception | None = None
    """Why the server gave no reply for the other recipients."""

    @property
    def final_codes(self) -> dict[Recipient, int]:
        """Replies that a retry does not change: accepted, or refused for good."""
        return {recipient: code for recipient, code in self.codes.items() if code == ACCEPTED or is_permanent(code)}


def is_permanent(code: int) -> bool:
    return 500 <= code < 600


def name_server(section: NotificationSettings) -> str:
    return f"mail server {section.smtp_host}:{section.smtp_port}"


def submit(section: NotificationSettings, password: str | None, envelopes: Iterable[Envelope]) -> Submission:
    """Hand each mail to the mail server. A mail that is not accepted does not stop the others."""
    result = Submission()
    server: smtplib.SMTP | None = None
    try:
        for envelope in envelopes:
            if server is None or server.sock is None:  # smtplib closes it after a reply 421
                try:
                    server = _connect(section, password)
                except (smtplib.SMTPException, OSError) as error:
                    result.failure = _connection_failure(section, error)
                    break
            try:
                result.codes |= _send(server, envelope)
            except (smtplib.SMTPException, OSError) as error:
                result.failure = _connection_failure(section, error)
                server.close()  # the next mail gets a new connection
    finally:
        if server is not None and server.sock is not None:
            with suppress(smtplib.SMTPException, OSError):
                server.quit()
    return result


def _connect(section: NotificationSettings, password: str | None) -> smtplib.SMTP:
    assert section.smtp_host is not None
    context = ssl.create_default_context()
    if section.smtp_ca_file is not None:
        context.load_verify_locations(section.smtp_ca_file)
    if section.smtp_security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            section.smtp_host, section.smtp_port, timeout=TIMEOUT_SECONDS, context=context
        )
    else:
        server = smtplib.SMTP(section.smtp_host, section.smtp_port, timeout=TIMEOUT_SECONDS)
    try:
        if section.smtp_security == "starttls":
            server.starttls(context=context)  # an error if the server does not offer it
        if section.smtp_user is not None:
            server.login(section.smtp_user, password or "")
    except BaseException:
        server.close()
        raise
    return server


def _send(server: smtplib.SMTP, envelope: Envelope) -> dict[Recipient, int]:
    """Return the reply for each recipient; raise an error if the connection is lost."""
    addresses = [each.address for each in envelope.to]
    try:
        refused = server.send_message(envelope.mail, to_addrs=addresses)
    except smtplib.SMTPRecipientsRefused as error:  # none of them gets the mail
        return {each: error.recipients.get(each.address, (_LATER, b""))[0] for each in envelope.to}
    except smtplib.SMTPNotSupportedError:
        return dict.fromkeys(envelope.to, _NOT_ALLOWED)
    except smtplib.SMTPResponseException as error:
        return dict.fromkeys(envelope.to, error.smtp_code)
    return {each: refused.get(each.address, (ACCEPTED, b""))[0] for each in envelope.to}


def _connection_failure(section: NotificationSettings, error: Exception) -> Exception:
    where = name_server(section)
    if isinstance(error, smtplib.SMTPResponseException):
        what = "login" if isinstance(error, smtplib.SMTPAuthenticationError) else "connection"
        return refusal(f"the {where} refused the {what} with {error.smtp_code}", error.smtp_code)
    text = str(error)[:300] or type(error).__name__
    return MailFailed(f"the {where} could not be used: {text}", code="notifications.smtp.failed")


def refusal(message: str, code: int) -> Exception:
    """Return the error for a reply of the mail server."""
    if is_permanent(code):
        return PermanentFailure(message, code="notifications.smtp.refused", remedy="see the log of the mail server")
    return MailFailed(message, code="notifications.smtp.failed")
