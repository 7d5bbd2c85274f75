"""The adapter for ldap3: a pure Python library, installed by the extra ``identity``."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any

import ldap3
from ldap3.core.exceptions import LDAPException, LDAPStartTLSError
from ldap3.operation.search import search_operation
from ldap3.utils.asn1 import encode

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.ldap.protocol.ber import BerError
from tenuto_identity.connectors.ldap.protocol.client import (
    Code,
    Disconnected,
    Entry,
    LdapClient,
    Reply,
    Request,
    Search,
    code_name,
)
from tenuto_identity.connectors.ldap.protocol.messages import (
    Intermediate,
    Part,
    Referrals,
    Result,
    decode_message,
    encode_message,
    encode_write,
    message_end,
)
from tenuto_identity.connectors.ldap.protocol.tls import create_context, refused_certificate
from tenuto_identity.connectors.ldap.settings import LdapSettings, TlsMode

RECEIVED_BYTES = 1 << 18
"""How much is received at once."""
SENT_BYTES = 1 << 16
"""How much is kept before it is sent."""


class _VerifiedTls(ldap3.Tls):  # type: ignore[misc]  # ldap3 has no types
    """TLS by a context of the standard library, which checks certificate and host name in the handshake."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        super().__init__(validate=ssl.CERT_REQUIRED)
        self._context = context
        self._host = host

    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        connection.socket = self._context.wrap_socket(connection.socket, server_hostname=self._host)


class Ldap3Client:
    """A bound connection of ldap3.

    ldap3 connects, binds and encodes the filters of searches. Its strategies either allow one request at a time or lose
    the reason of a broken connection, so replies are received here: those of several requests, in any order."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._received = bytearray()
        self._unsent = bytearray()
        self._collected: dict[int, list[Part]] = {}

    def send(self, request: Request) -> int:
        """Send a search now, and a write at the latest when a reply is waited for: many writes are sent at once."""
        number = int(self._connection.server.next_message_id())
        try:
            if isinstance(request, Search):
                self._unsent += encode_message(number, bytes(encode(_search(request))), request.controls)
            else:
                self._unsent += encode_write(number, request)
        except LDAPException as error:  # a filter that cannot be encoded
            raise ConnectorError("invalid_filter", f"the search {request} cannot be sent: {error}") from None
        if isinstance(request, Search) or len(self._unsent) >= SENT_BYTES:
            self._flush()
        return number

    def _flush(self) -> None:
        try:
            self._connection.socket.sendall(self._unsent)
        except (OSError, AttributeError) as error:  # ldap3 removes the socket of a lost connection
            raise Disconnected(f"the request could not be sent: {error}") from None
        self._unsent.clear()

    def receive(self, message_number: int) -> Reply:
        parts = self._collect(message_number)
        last = parts.pop()
        assert isinstance(last, Result)
        entries: list[Entry] = []
        references: list[str] = []
        intermediates: list[tuple[str, bytes]] = []
        for each in parts:
            if isinstance(each, Entry):
                entries.append(each)
            elif isinstance(each, Referrals):
                references += each.urls
            elif isinstance(each, Intermediate):
                intermediates.append((each.name, each.value))
        return Reply(
            last.code,
            last.message,
            last.matched_dn,
            last.controls,
            entries,
            references or last.referrals,
            intermediates,
        )

    def _collect(self, message_number: int) -> list[Part]:
        """Return all parts of one reply; the last one is its result."""
        while True:
            found = self._collected.get(message_number)
            if found and isinstance(found[-1], Result):
                return self._collected.pop(message_number)
            if self._unsent:
                self._flush()
            try:
                data = self._connection.socket.recv(RECEIVED_BYTES)
            except (OSError, AttributeError) as error:
                raise Disconnected(f"the connection was lost: {error}") from None
            if not data:
                raise Disconnected("the server closed the connection")
            self._received += data
            self._decode()

    def _decode(self) -> None:
        """Decode the messages that have arrived completely."""
        try:
            if not 0 < message_end(self._received, 0) <= len(self._received):
                return  # a large message is copied once, when it is complete
            received, start = bytes(self._received), 0
            while (end := message_end(received, start)) and end <= len(received):
                number, part = decode_message(received, start)
                start = end
                if number == 0:
                    reason = part.message if isinstance(part, Result) else ""
                    raise Disconnected(f"the server ends the connection: {reason or 'no reason given'}")
                self._collected.setdefault(number, []).append(part)
        except BerError as error:
            raise Disconnected(str(error)) from None
        del self._received[:start]

    def interrupt(self) -> None:
        connected = self._connection.socket
        if connected is not None:
            with suppress(OSError):
                # Not by the method of a TLS socket, which would change its state in this thread.
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(LDAPException, OSError, Disconnected):  # it may be closed already
            self._connection.unbind()
        _close_socket(self._connection)


def _close_socket(connection: Any) -> None:
    """Close the socket, which ldap3 leaves open if the connection was lost or never made."""
    if connection is not None and connection.socket is not None:
        with suppress(OSError):
            connection.socket.close()


def _search(request: Search) -> Any:
    """Return a search as ldap3 encodes it."""
    return search_operation(
        request.base,
        request.filter,
        int(request.scope),
        0,  # aliases are never followed: a refresh refuses anything else, and an alias would be read twice
        list(request.attributes),
        0,
        request.time_limit_seconds,
        False,
        auto_escape=False,
        auto_encode=False,
    )


def open_client(settings: LdapSettings, password: str | None) -> LdapClient:
    """Connect and bind; raise `ConnectorError` with a message for users."""
    connection = None
    try:
        context = create_context(settings)
        server = ldap3.Server(
            settings.host,
            settings.port,
            use_ssl=settings.is_ldaps,
            tls=_VerifiedTls(context, settings.host),
            get_info=ldap3.NONE,
            connect_timeout=settings.connect_timeout_seconds,
        )
        connection = ldap3.Connection(
            server,
            settings.bind_dn,
            password,
            client_strategy=ldap3.SYNC,
            auto_bind=ldap3.AUTO_BIND_NONE,
            check_names=False,
            auto_referrals=False,
            auto_range=False,
            return_empty_attributes=False,
            raise_exceptions=False,
            receive_timeout=settings.connect_timeout_seconds,  # until the account is bound
        )
        return _bind(settings, connection)
    except (LDAPException, OSError, Disconnected) as error:
        _close_socket(connection)
        where = f"{settings.host}:{settings.port}"
        if _is_certificate_error(error):
            raise refused_certificate(settings, _reason(error)) from None
        raise ConnectorError("unreachable", f"{where} cannot be reached: {_reason(error)}") from None


def _bind(settings: LdapSettings, connection: Any) -> LdapClient:
    connection.open(read_server_info=False)
    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # ldap3 sets this limit too, which would hold after the account is bound.
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, bytes(16))
    client = Ldap3Client(connection)
    if not settings.is_ldaps and settings.tls is TlsMode.STARTTLS:
        _start_tls(settings, connection, client)
    if not connection.bind(read_server_info=False):
        result = connection.result or {}
        client.close()
        code = int(result.get("result", Code.OTHER))
        text = f"{code_name(code)} {result.get('message') or ''}".strip()
        raise ConnectorError(
            "bind_refused",
            f"{settings.host}:{settings.port} refuses the account {settings.bind_dn or 'anonymous'!r}: {text}",
            remedy="check bind_dn and the secret of the password",
        )
    connection.socket.settimeout(settings.timeout_seconds)
    return client


def _start_tls(settings: LdapSettings, connection: Any, client: Ldap3Client) -> None:
    problem: object
    try:
        if connection.start_tls(read_server_info=False):
            return
        problem = connection.last_error or connection.result
    except LDAPStartTLSError as error:  # the server does not support it
        problem = error
    client.close()
    if _is_certificate_error(problem):
        raise OSError(problem)
    raise ConnectorError(
        "tls",
        f"{settings.host}:{settings.port} refuses StartTLS: {problem}",
        remedy="use ldaps://, or set up TLS on the server; tls: none only for a server on the same machine",
    ) from None


def _is_certificate_error(error: object) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error) or "certificate verify failed" in str(error)


def _reason(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
