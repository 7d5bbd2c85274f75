"""Receivers of notifications: a real HTTP server and a real mail server on loopback, in threads of the test."""

from __future__ import annotations

import asyncio
import email
import json
import ssl
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session

from tenuto import Tenuto
from tests.support.certificates import create_certificate
from tests.support.http_site import ReceivedRequest, Site, make_response

PASSWORD = "correct-horse-battery"


class WebhookReceiver(Site):
    """An HTTP server that accepts messages at ``/hook``."""

    def __init__(self) -> None:
        super().__init__({"/hook": make_response(204)})

    def __enter__(self) -> WebhookReceiver:
        super().__enter__()
        return self

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The received documents."""
        return [json.loads(request.body) for request in self.requests]

    @property
    def message_ids(self) -> list[str]:
        """The message ids of the requests, each once, in the order of the first request."""
        return list(dict.fromkeys(request.headers["webhook-id"] for request in self.requests))

    def requests_of(self, message_id: str) -> list[ReceivedRequest]:
        return [request for request in self.requests if request.headers["webhook-id"] == message_id]


class _Controller(Controller):
    """A controller of a server on a port that the system chooses."""

    def _trigger_server(self) -> None:
        assert isinstance(self.server, asyncio.Server)
        self.port = int(self.server.sockets[0].getsockname()[1])
        super()._trigger_server()  # type: ignore[no-untyped-call]


@dataclass
class MailServer:
    """A mail server with a login; it accepts everything unless ``replies`` says otherwise."""

    folder: Path
    security: str = "starttls"
    """As in the setting ``smtp_security``."""
    replies: list[str] = field(default_factory=list)
    """Replies to the next messages, such as ``451 later``; an empty one accepts."""
    refused: set[str] = field(default_factory=set)
    """Recipients that are refused."""
    postponed: set[str] = field(default_factory=set)
    """Recipients that are refused for now."""
    received: list[Message] = field(default_factory=list)
    login_count: int = 0

    def __enter__(self) -> MailServer:
        certificate, key = create_certificate(self.folder, "localhost")
        self.ca_file = certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        starts_tls = self.security == "starttls"
        self._controller = _Controller(
            self, hostname="127.0.0.1", port=0, tls_context=context if starts_tls else None,
            ssl_context=context if self.security == "tls" else None, require_starttls=starts_tls,
            auth_required=starts_tls, auth_require_tls=starts_tls, authenticator=self._authenticate,
        )  # fmt: skip
        self._controller.start()
        self.port = self._controller.port
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    async def configure(self, app: Tenuto, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make it the mail server of the settings, with the password as a secret."""
        await app.secrets.set("smtp-password", PASSWORD)
        for name, value in {
            "HOST": "localhost",
            "PORT": str(self.port),
            "SECURITY": self.security,
            "CA_FILE": str(self.ca_file),
            "USER": "tenuto",
            "PASSWORD_SECRET": "smtp-password",
            "FROM": "tenuto@example.org",
        }.items():
            monkeypatch.setenv(f"TENUTO_NOTIFICATIONS_SMTP_{name}", value)

    def _authenticate(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.login_count += 1
        return AuthResult(success=(data.login, data.password) == (b"tenuto", PASSWORD.encode()))

    async def handle_RCPT(  # noqa: N802 — the name that the server calls
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return "550 no such mailbox"
        if address in self.postponed:
            return "450 mailbox busy"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 — as above
        content = envelope.content
        assert isinstance(content, bytes)
        if self.replies and (reply := self.replies.pop(0)):
            return reply
        self.received.append(email.message_from_bytes(content))
        return "250 accepted"
