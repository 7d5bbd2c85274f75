"""The adapter for python-ldap: the C library of OpenLDAP, installed by the extra ``ldap``.

It has to be compiled. Both adapters pass the same tests, and read and write at the same speed, because the one for
ldap3 encodes and decodes messages by itself.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import ldap
from ldap.controls import RequestControl, ResponseControl

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.ldap.protocol.client import (
    Add,
    Code,
    Control,
    Delete,
    Disconnected,
    Entry,
    LdapClient,
    Modify,
    ModifyDn,
    Reply,
    Request,
    Search,
    code_name,
)
from tenuto_identity.connectors.ldap.protocol.tls import (
    create_context,
    find_certificate_problem,
    refused_certificate,
)
from tenuto_identity.connectors.ldap.settings import LdapSettings, TlsMode

T = TypeVar("T")
_INVALID_FILTER: Final = -7
"""Result codes of the client library are negative: the request did not get a reply."""


class _RawControl(ResponseControl):  # type: ignore[misc]  # python-ldap has no types
    """A control of a reply, not decoded."""

    def decodeControlValue(self, encodedControlValue: bytes | None) -> None:  # noqa: N802, N803 - names of python-ldap
        self.encodedControlValue = encodedControlValue


class _RawControls(dict[str, type[_RawControl]]):
    """The class of every control. python-ldap leaves out the controls that it does not know."""

    def __missing__(self, _oid: str) -> type[_RawControl]:
        return _RawControl


_CONTROLS: Final = _RawControls({"": _RawControl})  # an empty one would be replaced by those that python-ldap knows


class PythonLdapClient:
    """A bound connection of python-ldap."""

    def __init__(self, connection: Any, timeout_seconds: float) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        # `interrupt` must not call python-ldap, which locks the connection while another thread waits for a reply.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def send(self, request: Request) -> int:
        try:
            return int(self._send(request))
        except ldap.LDAPError as error:
            code, text = _describe(error)
            if code == _INVALID_FILTER:
                raise ConnectorError("invalid_filter", f"the search {request} cannot be sent: {text}") from None
            raise Disconnected(f"the request could not be sent: {text}") from None

    def _send(self, request: Request) -> Any:
        connection, controls = self._connection, [_control(each) for each in request.controls]
        match request:
            case Search():
                return connection.search_ext(
                    request.base,
                    int(request.scope),
                    request.filter,
                    list(request.attributes),
                    serverctrls=controls,
                    timeout=request.time_limit_seconds or -1,
                )
            case Add():
                return connection.add_ext(
                    request.dn, [(name, list(values)) for name, values in request.attributes.items()], controls
                )
            case Modify():
                changes = [(int(each.mod), each.attribute, list(each.values) or None) for each in request.modifications]
                return connection.modify_ext(request.dn, changes, controls)
            case ModifyDn():
                return connection.rename(request.dn, request.new_rdn, request.new_superior, 1, controls)
            case Delete():
                return connection.delete_ext(request.dn, controls)

    def receive(self, message_number: int) -> Reply:
        try:
            _, parts, _, controls, _, _ = self._connection.result4(
                message_number,
                1,
                self._timeout_seconds,
                add_ctrls=1,
                add_intermediates=1,
                resp_ctrl_classes=_CONTROLS,
            )
        except ldap.LDAPError as error:
            code, text = _describe(error)
            if code < 0:
                raise Disconnected(f"the connection was lost: {text}") from None
            return _failed(code, error)
        entries: list[Entry] = []
        references: list[str] = []
        intermediates: list[tuple[str, bytes]] = []
        for name, content, found in parts:
            if isinstance(content, dict):
                entries.append(Entry(name, content, _values(found)))
            elif isinstance(content, list):
                references += [each if isinstance(each, str) else each.decode() for each in content]
            else:
                intermediates.append((name, content))
        return Reply(
            Code.SUCCESS,
            controls=_values(controls),
            entries=entries,
            references=references,
            intermediates=intermediates,
        )

    def interrupt(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(ldap.LDAPError):  # it may be closed already
            self._connection.unbind_ext()
        self._socket.close()


def _control(control: Control) -> Any:
    return RequestControl(control.oid, control.is_critical, control.value)


def _values(controls: Sequence[Any]) -> dict[str, bytes]:
    return {each.controlType: each.encodedControlValue or b"" for each in controls}


def _failed(code: int, error: Exception) -> Reply:
    """Return the reply of a server that refuses a request; its entries, if it sent any, are not complete."""
    details: dict[str, Any] = error.args[0]
    controls = {oid: value or b"" for oid, _, value in details.get("ctrls") or ()}
    return Reply(code, details.get("info") or "", details.get("matched") or "", controls)


def _describe(error: Exception) -> tuple[int, str]:
    """Return the result code and the message of an error."""
    details: dict[str, Any] = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    parts = [str(details[name]) for name in ("desc", "info") if details.get(name)]
    return int(details.get("result", Code.OTHER)), ": ".join(parts) or type(error).__name__


def open_client(settings: LdapSettings, password: str | None) -> LdapClient:
    """Connect and bind; raise `ConnectorError` with a message for users."""
    where = f"{settings.host}:{settings.port}"
    connection = _initialize(settings, where)
    try:
        if not settings.is_ldaps and settings.tls is TlsMode.STARTTLS:
            _start_tls(connection, settings, where)
        number = _connect(settings, where, lambda: connection.simple_bind(settings.bind_dn or "", password or ""))
        try:
            connection.result4(number, 1, settings.connect_timeout_seconds)
        except ldap.LDAPError as error:
            code, text = _describe(error)
            if code < 0:
                raise ConnectorError("unreachable", f"{where} cannot be reached: {text}") from None
            text = f"{code_name(code)} {_failed(code, error).message}".strip()
            raise ConnectorError(
                "bind_refused",
                f"{where} refuses the account {settings.bind_dn or 'anonymous'!r}: {text}",
                remedy="check bind_dn and the secret of the password",
            ) from None
        connection.set_option(ldap.OPT_TIMEOUT, settings.timeout_seconds)
        return PythonLdapClient(connection, settings.timeout_seconds)
    except BaseException:
        with suppress(ldap.LDAPError):
            connection.unbind_ext()
        raise


def _initialize(settings: LdapSettings, where: str) -> Any:
    """Return a connection that is opened by the first request. No option of the files of OpenLDAP is left in force."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "ldaps" if settings.is_ldaps else "ldap"
    try:
        connection = ldap.initialize(f"{scheme}://{host}:{settings.port}")
        connection.set_option(ldap.OPT_PROTOCOL_VERSION, 3)
        connection.set_option(ldap.OPT_REFERRALS, 0)
        connection.set_option(ldap.OPT_DEREF, ldap.DEREF_NEVER)
        connection.set_option(ldap.OPT_RESTART, 1)
        connection.set_option(ldap.OPT_NETWORK_TIMEOUT, settings.connect_timeout_seconds)
        connection.set_option(ldap.OPT_TIMEOUT, settings.connect_timeout_seconds)
        _set_tls_options(connection, settings)
    except (ldap.LDAPError, ValueError) as error:
        raise ConnectorError("unreachable", f"{where} cannot be used: {error}") from None
    return connection


def _set_tls_options(connection: Any, settings: LdapSettings) -> None:
    context = create_context(settings)
    verifies = context.verify_mode is ssl.CERT_REQUIRED
    connection.set_option(ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_DEMAND if verifies else ldap.OPT_X_TLS_NEVER)
    trusted = ssl.get_default_verify_paths()
    file = settings.ca_file or cast("str | None", trusted.cafile)
    if file is not None:
        connection.set_option(ldap.OPT_X_TLS_CACERTFILE, str(Path(file).absolute()))
    else:
        connection.set_option(ldap.OPT_X_TLS_CACERTDIR, trusted.capath or trusted.openssl_capath)
    connection.set_option(ldap.OPT_X_TLS_NEWCTX, 0)  # puts the options above in force


def _start_tls(connection: Any, settings: LdapSettings, where: str) -> None:
    try:
        _connect(settings, where, connection.start_tls_s)
    except ldap.LDAPError as error:
        raise ConnectorError(
            "tls",
            f"{where} refuses StartTLS: {_describe(error)[1]}",
            remedy="use ldaps://, or set up TLS on the server; tls: none only for a server on the same machine",
        ) from None


def _connect(settings: LdapSettings, where: str, call: Callable[[], T]) -> T:
    """Call what opens the connection; a failure to connect is an error for users."""
    try:
        return call()
    except ldap.LDAPError as error:
        code, text = _describe(error)
        if code >= 0:
            raise
        has_tls = settings.is_ldaps or settings.tls is TlsMode.STARTTLS
        problem = find_certificate_problem(settings) if has_tls else None
        if problem is not None:
            raise refused_certificate(settings, problem) from None
        hint = None
        if has_tls and settings.host == "localhost":
            hint = "if the certificate is refused: OpenLDAP takes localhost for the name of this machine"
        raise ConnectorError("unreachable", f"{where} cannot be reached: {text}", remedy=hint) from None
