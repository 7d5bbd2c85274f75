"""The adapter for ldap3: a pure Python library, installed by the extra ``identity``.

ldap3 encodes requests and decodes replies. Its strategies either allow one request at a time or lose the reason of a
broken connection, so `_Pipeline` collects the replies of several requests on one connection.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, cast

import ldap3
from ldap3.core.exceptions import LDAPException
from ldap3.operation.add import add_operation
from ldap3.operation.delete import delete_operation
from ldap3.operation.modify import modify_operation
from ldap3.operation.modifyDn import modify_dn_operation
from ldap3.operation.search import raw_attributes_to_dict_fast, search_operation
from ldap3.strategy.base import RESPONSE_COMPLETE
from ldap3.strategy.sync import SyncStrategy
from ldap3.utils.asn1 import decode_message_fast

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.ldap.protocol.client import (
    Add,
    Code,
    Delete,
    Disconnected,
    Entry,
    LdapClient,
    Mod,
    Modify,
    ModifyDn,
    Reply,
    Request,
    Search,
    code_name,
)
from tenuto_identity.connectors.ldap.settings import LdapSettings, TlsMode

_PARTIAL = ("searchResEntry", "searchResRef", "intermediateResponse")
_MODS = {Mod.ADD: ldap3.MODIFY_ADD, Mod.DELETE: ldap3.MODIFY_DELETE, Mod.REPLACE: ldap3.MODIFY_REPLACE}
_ENTRY = 4
"""Protocol operation of an entry of a search."""


class _VerifiedTls(ldap3.Tls):  # type: ignore[misc]  # ldap3 has no types
    """TLS by a context of the standard library, which checks certificate and host name in the handshake."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        super().__init__(validate=ssl.CERT_REQUIRED)
        self._context = context
        self._host = host

    def wrap_socket(self, connection: Any, do_handshake: bool = False) -> None:
        connection.socket = self._context.wrap_socket(connection.socket, server_hostname=self._host)


class _Pipeline(SyncStrategy):  # type: ignore[misc]  # ldap3 has no types
    """Receives the replies of several requests, in whatever order the server sends them."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._collected: dict[int, list[dict[str, Any]]] = {}

    def collect(self, message_number: int) -> list[dict[str, Any]]:
        """Return all messages of one reply."""
        while True:
            found = self._collected.get(message_number)
            if found and found[-1]["type"] not in _PARTIAL:
                return self._collected.pop(message_number)
            received = self.receiving()
            if not received:
                raise Disconnected("the server closed the connection")
            for data in received:
                decoded = decode_message_fast(data)
                message = self.decode_response_fast(decoded)
                number = int(decoded["messageID"])
                if number == 0:
                    raise Disconnected(f"the server ends the connection: {message.get('message') or 'no reason given'}")
                self._collected.setdefault(number, []).append(message)

    def _get_response(self, message_number: int, timeout: float) -> list[Any]:
        return [*self.collect(message_number), RESPONSE_COMPLETE]

    def decode_response_fast(self, message: Any) -> dict[str, Any]:
        """Decode a message; the values of entries stay as they are."""
        if message["protocolOp"] != _ENTRY:
            return cast("dict[str, Any]", super().decode_response_fast(message))
        name, attributes = message["payload"][0][3], message["payload"][1][3]
        entry: dict[str, Any] = {"type": "searchResEntry", "dn": name, "raw": raw_attributes_to_dict_fast(attributes)}
        if message["controls"]:
            entry["controls"] = dict(self.decode_control_fast(each[3]) for each in message["controls"])
        return entry

    @staticmethod
    def decode_control_fast(control: Any, from_server: bool = True) -> tuple[str, dict[str, Any]]:
        """Return the name of a control and its value as bytes."""
        value = next((part[3] for part in control[1:] if part[2] == 4), b"")
        return control[0][3].decode(), {"value": bytes(value)}


class Ldap3Client:
    """A bound connection of ldap3."""

    def __init__(self, connection: Any, strategy: _Pipeline) -> None:
        self._connection = connection
        self._strategy = strategy

    def send(self, request: Request) -> int:
        controls = [(each.oid, each.is_critical, each.value) for each in request.controls] or None
        kind, operation = _operation(request)
        try:
            return int(self._strategy.send(kind, operation, controls))
        except (LDAPException, OSError) as error:
            raise Disconnected(f"the request could not be sent: {error}") from None

    def receive(self, message_number: int) -> Reply:
        try:
            messages = self._strategy.collect(message_number)
        except (LDAPException, OSError) as error:
            raise Disconnected(f"the connection was lost: {error}") from None
        last = messages[-1]
        entries: list[Entry] = []
        references: list[str] = []
        intermediates: list[tuple[str, bytes]] = []
        for each in messages[:-1]:
            match each["type"]:
                case "searchResEntry":
                    entries.append(Entry(each["dn"].decode("utf-8", "replace"), each["raw"], _controls(each)))
                case "searchResRef":
                    references += each["uri"]
                case _:
                    intermediates.append((str(each["responseName"]), bytes(each["responseValue"] or b"")))
        return Reply(
            last["result"],
            last["message"] or "",
            last["dn"] or "",
            _controls(last),
            entries,
            references or last.get("referrals") or (),
            intermediates,
        )

    def close(self) -> None:
        with suppress(LDAPException, OSError, Disconnected):  # it may be closed already
            self._connection.unbind()
        _close_socket(self._connection)


def _close_socket(connection: Any) -> None:
    """Close the socket, which ldap3 leaves open if the connection was lost or never made."""
    if connection is not None and connection.socket is not None:
        with suppress(OSError):
            connection.socket.close()


def _controls(message: Mapping[str, Any]) -> dict[str, bytes]:
    found = message.get("controls")
    return {name: each["value"] for name, each in found.items()} if found else {}


def _operation(request: Request) -> tuple[str, Any]:
    """Return name and content of a request as ldap3 sends it."""
    match request:
        case Search():
            return "searchRequest", search_operation(
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
        case Add():
            return "addRequest", add_operation(request.dn, request.attributes, auto_encode=False)
        case Modify():
            changes: dict[str, list[tuple[str, list[bytes]]]] = {}
            for each in request.modifications:
                changes.setdefault(each.attribute, []).append((_MODS[each.mod], list(each.values)))
            return "modifyRequest", modify_operation(request.dn, changes, auto_encode=False)
        case ModifyDn():
            return "modDNRequest", modify_dn_operation(request.dn, request.new_rdn, True, request.new_superior)
        case Delete():
            return "delRequest", delete_operation(request.dn)


def open_client(settings: LdapSettings, password: str | None) -> LdapClient:
    """Connect and bind; raise `ConnectorError` with a message for users."""
    connection = None
    try:
        context = _tls_context(settings)
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
            receive_timeout=settings.timeout_seconds,
        )
        strategy = _Pipeline(connection)
        for name in ("send", "open", "get_response", "post_send_single_response", "post_send_search"):
            setattr(connection, name, getattr(strategy, name))
        connection.strategy = strategy
        return _bind(settings, connection, strategy)
    except (LDAPException, OSError, Disconnected) as error:
        _close_socket(connection)
        where = f"{settings.host}:{settings.port}"
        if _is_certificate_error(error):
            raise ConnectorError(
                "certificate",
                f"the certificate of {where} is not accepted: {_reason(error)}",
                remedy="name the issuer by ca_file, and the host as in the certificate by url",
            ) from None
        raise ConnectorError("unreachable", f"{where} cannot be reached: {_reason(error)}") from None


def _bind(settings: LdapSettings, connection: Any, strategy: _Pipeline) -> LdapClient:
    connection.open(read_server_info=False)
    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client = Ldap3Client(connection, strategy)
    if not settings.is_ldaps and settings.tls is TlsMode.STARTTLS and not connection.start_tls(read_server_info=False):
        client.close()
        if _is_certificate_error(connection.last_error):
            raise OSError(connection.last_error)
        raise ConnectorError(
            "tls",
            f"{settings.host}:{settings.port} refuses StartTLS: {connection.last_error or connection.result}",
            remedy="use ldaps://, or set up TLS on the server",
        )
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
    return client


def _tls_context(settings: LdapSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConnectorError("certificate", f"ca_file {settings.ca_file!r} cannot be read: {error}") from None
    if not settings.verify_certificate:  # guard: identity.ldap_certificate
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _is_certificate_error(error: object) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error) or "certificate verify failed" in str(error)


def _reason(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
