"""HTTP for extensions, to the addresses that HTTP steps may call: public ones, and those that the operator lists."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tenuto.extras import require_extra
from tenuto.steps.address_policy import AllowList

if TYPE_CHECKING:
    import ssl

    import httpx2


def open_http_transport(
    allowed_hosts: Collection[str], ssl_context: ssl.SSLContext | None = None, *, max_connections: int = 1
) -> httpx2.HTTPTransport:
    """Return a transport for ``httpx2.Client`` in plain code.

    ``allowed_hosts`` is the setting ``http_allowed_hosts``. A connection to another address that is not public raises
    `tenuto.errors.Forbidden`. Each address of a host name is checked, and the checked address is connected to.
    """
    require_extra("http", "an HTTP connection")
    from tenuto.steps.http_transport import CheckedBlockingTransport

    return CheckedBlockingTransport(AllowList.parse(allowed_hosts), ssl_context, max_connections)
