"""Login by the header of a trusted proxy: the proxy authenticates people and names them in a header of each request.

The header counts only if the request comes directly from an address in ``web_proxies``. From all other addresses it is
removed before anything reads it. The pages and the API never read the header itself, only what this module left in the
scope of the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from tenuto.errors import Invalid
from tenuto.model.access.actors import Role
from tenuto.model.validation import INVISIBLE_CHARACTERS
from tenuto.settings import Settings

SCOPE_KEY = "tenuto_proxy_login"
_MAX_USER_LENGTH = 200


@dataclass(frozen=True, slots=True)
class ProxyLogin:
    """User and role of a request, as stated by a trusted proxy."""

    user: str
    role: Role | None
    """None if no role is configured for the user."""


class ProxyMiddleware:
    """Trust the headers of known proxies: the address of the client and, if configured, the name of the user."""

    def __init__(self, inner: ASGIApp, settings: Settings) -> None:
        self._settings = settings
        self._inner = inner
        if settings.web_behind_proxy:
            known = ",".join(settings.web_proxies) or "127.0.0.1"
            # uvicorn describes the same protocol with narrower types than Starlette
            self._inner = cast("ASGIApp", ProxyHeadersMiddleware(cast("Any", inner), known))
        self._networks = tuple(_networks(settings.web_proxies))
        names = (settings.web_user_header, settings.web_role_header)
        self._user_header, self._role_header = (None if name is None else name.lower().encode() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._user_header is not None and scope["type"] in ("http", "websocket"):
            login = self._read_login(scope) if self._is_trusted(scope) else None  # guard: proxy_login.trusted_address
            own = (self._user_header, self._role_header)
            headers = [header for header in scope["headers"] if header[0].lower() not in own]
            scope = {**scope, "headers": headers, SCOPE_KEY: login}
        await self._inner(scope, receive, send)

    def _is_trusted(self, scope: Scope) -> bool:
        """Return whether the peer itself is a trusted proxy, whatever addresses its headers name."""
        client = scope.get("client")
        try:
            address = ip_address(client[0]) if client else None
        except ValueError:
            return False
        return address is not None and any(address in network for network in self._networks)

    def _read_login(self, scope: Scope) -> ProxyLogin | None:
        users = [value for name, value in scope["headers"] if name.lower() == self._user_header]
        if len(users) != 1:  # guard: proxy_login.one_user
            return None
        user = users[0].decode("utf-8", "replace").strip()
        if not 1 <= len(user) <= _MAX_USER_LENGTH or INVISIBLE_CHARACTERS.search(user) or not user.isprintable():
            return None
        groups = [
            group.strip()
            for name, value in scope["headers"]
            if name.lower() == self._role_header
            for group in value.decode("utf-8", "replace").replace(";", ",").split(",")
        ]
        return ProxyLogin(user, find_role(self._settings, groups))


def find_role(settings: Settings, groups: Iterable[str]) -> Role | None:
    """Return the highest role of the groups of a user, else the role of all users, else None.

    ``web_roles`` maps groups to roles. Without it, the names of the roles themselves count as groups.
    """
    mapping = dict(each.rpartition("=")[::2] for each in settings.web_roles)
    if not mapping and settings.web_role_header is not None:
        mapping = {role.key: role.key for role in Role}
    roles = [Role.from_key(mapping[group]) for group in groups if group in mapping]
    if settings.web_user_role is not None:
        roles.append(Role.from_key(settings.web_user_role))
    return max(roles, default=None)


def check_proxy_login(settings: Settings) -> None:
    """Refuse settings by which any caller could name a user, or no user would have a role."""
    if settings.web_user_header is None:
        return
    if not settings.web_behind_proxy or not settings.web_proxies or "*" in settings.web_proxies:
        raise Invalid(
            "web_user_header is set, but web_proxies does not name the proxies that may send it",
            code="web.proxy_login.untrusted",
            field="web_proxies",
            remedy="set web_behind_proxy = true, and web_proxies to the addresses of the proxy",
        )
    if settings.web_role_header is None and settings.web_user_role is None:
        raise Invalid(
            "web_user_header is set, but no setting gives its users a role",
            code="web.proxy_login.no_role",
            field="web_user_role",
            remedy="set web_role_header (and web_roles), or web_user_role for all users",
        )


def _networks(addresses: Iterable[str]) -> Iterable[IPv4Network | IPv6Network]:
    for address in addresses:
        try:
            yield ip_network(address, strict=False)
        except ValueError:  # uvicorn also accepts names of Unix sockets, which name no user
            continue
