"""Which addresses a step may call. Pure: no name resolution and no connections here.

A server that calls any address on request opens its own network to attackers. Steps may therefore call public addresses
only, and others that the operator has listed. The policy applies to the address that is connected to, not to its
spelling: every address of a host name is checked in its effective form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from tenuto.errors import Forbidden, Invalid, quoted

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK = "a loopback address"
PRIVATE = "a private address"
LOCAL = "an address of this machine"
_ALLOWED_BY_NAME = frozenset({PRIVATE, LOCAL})
"""Categories that a listed host name allows; all others need a listed network."""

_BLOCKED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "an unspecified address"),
    ("10.0.0.0/8", PRIVATE),
    ("100.64.0.0/10", PRIVATE),  # carrier-grade NAT; some clouds have metadata services here
    ("127.0.0.0/8", LOOPBACK),
    ("168.63.129.16/32", "the address of a cloud metadata service"),
    ("169.254.0.0/16", "a link-local address"),
    ("172.16.0.0/12", PRIVATE),
    ("192.0.0.0/24", "a reserved address"),
    ("192.0.2.0/24", "a documentation address"),
    ("192.88.99.0/24", "a reserved address"),
    ("192.168.0.0/16", PRIVATE),
    ("198.18.0.0/15", "a reserved address"),
    ("198.51.100.0/24", "a documentation address"),
    ("203.0.113.0/24", "a documentation address"),
    ("224.0.0.0/4", "a multicast address"),
    ("240.0.0.0/4", "a reserved address"),
    ("::/128", "an unspecified address"),
    ("::1/128", LOOPBACK),
    ("2001::/23", "a reserved address"),  # includes tunnels to arbitrary addresses
    ("2001:db8::/32", "a documentation address"),
    ("3fff::/20", "a documentation address"),
    ("fc00::/7", PRIVATE),
    ("fe80::/10", "a link-local address"),
    ("fec0::/10", PRIVATE),
    ("ff00::/8", "a multicast address"),
)
_BLOCKED_NETWORKS: tuple[tuple[Network, str], ...] = tuple((ip_network(each), category) for each, category in _BLOCKED)
_PUBLIC_V6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")

_HOST_NAME = re.compile(r"(?=.{1,253}\.?$)(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class AllowList:
    """Addresses that may be called although they are not public."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, entries: Collection[str]) -> AllowList:
        """Read host names and networks of the setting ``http_allowed_hosts``."""
        names, networks = set(), []
        for entry in entries:
            try:
                networks.append(ip_network(strip_brackets(entry)))
            except ValueError:
                names.add(parse_host_name(entry))
        return cls(frozenset(names), tuple(networks))

    def permits(self, host: str, address: Address, category: str) -> bool:
        """Whether an address of a blocked category may be called."""
        if any(address in network for network in self.networks):
            return True
        name = host.lower().rstrip(".")
        if name not in self.names:
            return False
        return category in _ALLOWED_BY_NAME or (category == LOOPBACK and name == "localhost")


def strip_brackets(host: str) -> str:
    """Return an IPv6 address without the brackets of a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def parse_host_name(text: str) -> str:
    """Return a host name in normalized form. Numbers that could be read as an address are rejected."""
    name = text.lower()
    if not _HOST_NAME.fullmatch(name):
        raise Invalid(
            f"{quoted(text)} is not a host name or an address", code="step.http.url.host_invalid", field="url"
        )
    if _NUMBER.fullmatch(name.rstrip(".").rpartition(".")[2]):
        raise Invalid(
            f"{quoted(text)} is an unusual spelling of an address",
            code="step.http.url.host_invalid",
            field="url",
            remedy="write the address as four decimal numbers",
        )
    return name.rstrip(".")


def parse_address(host: str) -> Address | None:
    """Return the address that a host is, or None if it is a name. Unusual spellings of addresses are rejected."""
    if "%" in host:
        raise Invalid(
            f"host {quoted(host)} names a network interface",
            code="step.http.url.host_invalid",
            field="url",
            remedy="remove the % and the text after it",
        )
    try:
        return ip_address(strip_brackets(host))
    except ValueError:
        parse_host_name(host)
        return None


def effective_address(address: Address) -> Address:
    """Return the address that is reached: IPv6 addresses may contain an IPv4 address in several ways."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64 or (address in IPv6Network("::/96") and int(address) > 1):
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        if address.sixtofour is not None:
            return address.sixtofour
    return address


def _never_local(_address: Address) -> bool:
    return False


def blocked_category(address: Address, is_local: Callable[[Address], bool] = _never_local) -> str | None:
    """Return the category of an address that is not public; ``is_local``: whether this machine has the address."""
    reached = effective_address(address)  # guard: http_call.plain_address
    for network, category in _BLOCKED_NETWORKS:
        if reached in network:
            return category
    if isinstance(reached, IPv6Address) and reached not in _PUBLIC_V6:
        return "a reserved address"
    return LOCAL if is_local(reached) or is_local(address) else None


def check_addresses(
    host: str,
    addresses: Sequence[Address],
    allow_list: AllowList,
    is_local: Callable[[Address], bool] = _never_local,
) -> Sequence[Address]:
    """Return the addresses of a host if all of them may be called; a single blocked one rejects the host."""
    for address in addresses:  # guard: http_call.every_address
        category = blocked_category(address, is_local)
        if category is not None and not allow_list.permits(host, effective_address(address), category):
            reason = (
                f"{host} is {category}"
                if parse_address(host) == address
                else f"{host} resolves to {address}, {category}"
            )
            raise Forbidden(
                f"the call is not allowed: {reason}",
                code="step.http.url.not_allowed",
                field="url",
                remedy="list the host or its network in TENUTO_HTTP_ALLOWED_HOSTS if Tenuto may call it",
            )
    return addresses
