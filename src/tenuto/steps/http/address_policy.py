"""Which addresses a step may call: pure; names are resolved elsewhere, and nothing is dialled here.

A server that calls whatever it is told to is a door into its own network. So only public addresses may be called, and
of the others those that somebody who runs the service has listed. What counts is the address that is dialled, not
how it was written: every address a name stands for is looked at, in its plain form.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from tenuto.errors import Forbidden, Invalid

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOOPBACK = "a loopback address"
PRIVATE = "a private address"
OWN = "an address of this machine"
_OPENED_BY_NAME = frozenset({PRIVATE, OWN})
"""What listing a host name opens; the rest is opened by listing the network itself."""

_CLOSED: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "an address of no machine"),
    ("10.0.0.0/8", PRIVATE),
    ("100.64.0.0/10", PRIVATE),  # shared by a provider's customers; some clouds answer questions about machines here
    ("127.0.0.0/8", LOOPBACK),
    ("168.63.129.16/32", "an address at which a cloud speaks to its machines"),
    ("169.254.0.0/16", "a link-local address"),
    ("172.16.0.0/12", PRIVATE),
    ("192.0.0.0/24", "a reserved address"),
    ("192.0.2.0/24", "an address of documentation"),
    ("192.88.99.0/24", "a reserved address"),
    ("192.168.0.0/16", PRIVATE),
    ("198.18.0.0/15", "a reserved address"),
    ("198.51.100.0/24", "an address of documentation"),
    ("203.0.113.0/24", "an address of documentation"),
    ("224.0.0.0/4", "a multicast address"),
    ("240.0.0.0/4", "a reserved address"),
    ("::/128", "an address of no machine"),
    ("::1/128", LOOPBACK),
    ("2001::/23", "a reserved address"),  # among them tunnels to anywhere
    ("2001:db8::/32", "an address of documentation"),
    ("3fff::/20", "an address of documentation"),
    ("fc00::/7", PRIVATE),
    ("fe80::/10", "a link-local address"),
    ("fec0::/10", PRIVATE),
    ("ff00::/8", "a multicast address"),
)
_CLOSED_NETWORKS: tuple[tuple[Network, str], ...] = tuple((ip_network(network), what) for network, what in _CLOSED)
_PUBLIC_V6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")

_HOST_NAME = re.compile(r"(?=.{1,253}\.?$)(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may be called although it is not public."""

    names: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, entries: Collection[str]) -> Allowance:
        """From host names and networks, as the setting ``http_allow`` lists them."""
        names, networks = set(), []
        for entry in entries:
            try:
                networks.append(ip_network(without_brackets(entry)))
            except ValueError:
                names.add(host_name(entry))
        return cls(frozenset(names), tuple(networks))

    def opens(self, host: str, address: Address, closed_as: str) -> bool:
        """Whether a closed address may be called after all."""
        if any(address in network for network in self.networks):
            return True
        named = host.lower().rstrip(".")
        if named not in self.names:
            return False
        return closed_as in _OPENED_BY_NAME or (closed_as == LOOPBACK and named == "localhost")


def without_brackets(host: str) -> str:
    """An address as it is, not as it stands in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def host_name(text: str) -> str:
    """A host name in its plain form, or a refusal; numbers that could be taken for an address are none."""
    name = text.lower()
    if not _HOST_NAME.fullmatch(name):
        raise Invalid(f"{text!r:.80} is not a host", field="url", remedy="write a host name or an address")
    if _NUMBER.fullmatch(name.rstrip(".").rpartition(".")[2]):
        raise Invalid(
            f"{text!r:.80} is an address in an odd spelling", field="url", remedy="write it as four decimal numbers"
        )
    return name.rstrip(".")


def literal(host: str) -> Address | None:
    """The address a host is, or None if it is a name; odd spellings of addresses are refused."""
    if "%" in host:
        raise Invalid("names a network interface", field="url", remedy="leave out what comes after the %")
    try:
        return ip_address(without_brackets(host))
    except ValueError:
        host_name(host)
        return None


def plain(address: Address) -> Address:
    """The address that is reached in the end: those of the old kind come wrapped in several ways."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64 or (address in IPv6Network("::/96") and int(address) > 1):
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        if address.sixtofour is not None:
            return address.sixtofour
    return address


def closed_as(address: Address, own: Collection[Address] = ()) -> str | None:
    """What an address is, if it is not public."""
    reached = plain(address)
    for network, what in _CLOSED_NETWORKS:
        if reached in network:
            return what
    if isinstance(reached, IPv6Address) and reached not in _PUBLIC_V6:
        return "a reserved address"
    return OWN if reached in own or address in own else None


def callable_ones(
    host: str, addresses: Sequence[Address], allowance: Allowance, own: Collection[Address] = ()
) -> Sequence[Address]:
    """The addresses of a host, if each of them may be called: one that may not is reason to trust none."""
    for address in addresses:
        what = closed_as(address, own)
        if what is not None and not allowance.opens(host, plain(address), what):
            leads = f"{host} is {what}" if literal(host) == address else f"{host} leads to {address}, {what}"
            raise Forbidden(
                f"{leads}, and such are not called",
                field="url",
                remedy="if it may be called, list it in TENUTO_HTTP_ALLOW",
            )
    return addresses
