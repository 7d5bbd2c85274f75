"""TLS of connections to a directory: which certificates are trusted, and why one is refused."""

from __future__ import annotations

import socket
import ssl

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.ldap.protocol import ber
from tenuto_identity.connectors.ldap.settings import LdapSettings

_START_TLS = "1.3.6.1.4.1.1466.20037"
_MAX_REPLY_BYTES = 4096


def create_context(settings: LdapSettings) -> ssl.SSLContext:
    """Return how certificates are verified; raise `ConnectorError` if those to trust cannot be read."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConnectorError("certificate", f"ca_file {settings.ca_file!r} cannot be read: {error}") from None
    if not settings.verify_certificate:  # guard: identity.ldap_certificate
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def refused_certificate(settings: LdapSettings, reason: str) -> ConnectorError:
    """Return the error that says why a certificate is not accepted."""
    return ConnectorError(
        "certificate",
        f"the certificate of {settings.host}:{settings.port} is not accepted: {reason}",
        remedy="name the issuer by ca_file, and the host as in the certificate by url",
    )


def find_certificate_problem(settings: LdapSettings) -> str | None:
    """Connect once more, without a request, and return why the certificate of the server is refused.

    For libraries that report a refused certificate like a lost connection. None if it is not refused."""
    timeout = settings.connect_timeout_seconds
    try:
        with socket.create_connection((settings.host, settings.port), timeout) as connection:
            if not settings.is_ldaps:
                request = ber.encode(0x77, ber.octets(_START_TLS, 0x80))
                connection.sendall(ber.sequence(ber.integer(1), request))
                connection.recv(_MAX_REPLY_BYTES)
            create_context(settings).wrap_socket(connection, server_hostname=settings.host).close()
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)
    except OSError:
        return None
    return None
