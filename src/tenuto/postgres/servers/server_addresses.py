"""Parse database URLs with one or several servers: ``postgresql://user:password@host-1:5432,host-2:5433/name``.

libpq and asyncpg understand the same URLs. They are parsed here so that each server can be connected to on its own and
so that errors can name it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

READ_WRITE = "read-write"
PREFER_STANDBY = "prefer-standby"
_TARGETS = ("any", "primary", "standby", "read-only", READ_WRITE, PREFER_STANDBY)
_TARGET = "target_session_attrs"
_DEFAULT_PORT = 5432
_MAX_SERVERS = 16


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Host (or socket directory) and port of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host or 'the local machine'} port {self.port}"


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A parsed database URL."""

    url: str
    """The URL without the parameters that only the client evaluates."""
    servers: tuple[ServerAddress, ...]
    target: str | None
    """Role that the server must have (``target_session_attrs``); None for any."""

    @property
    def has_several_servers(self) -> bool:
        return len(self.servers) > 1


def parse_database_url(url: str) -> DatabaseAddress:
    """Parse a URL; raise `ValueError` if it is not valid.

    With several servers the default target is ``read-write``: a standby cannot be used.
    """
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = dict(query)
    place = given.get("host") or unquote(parts.netloc.rpartition("@")[2])
    hosts, ports = _split_hosts(place, given.get("port"))
    if not any(hosts) and (environment := os.environ.get("PGHOST")):
        hosts, ports = _split_hosts(environment, given.get("port") or os.environ.get("PGPORT"))
    if len(hosts) > _MAX_SERVERS:
        raise ValueError(f"it names {len(hosts)} servers, more than {_MAX_SERVERS}")
    if len(hosts) > 1 and not all(hosts):
        raise ValueError("one of its servers has no host name")
    target = given.get(_TARGET) or os.environ.get("PGTARGETSESSIONATTRS") or None
    if target is not None and target not in _TARGETS:
        raise ValueError(f"{_TARGET} is {target!r}, not one of {', '.join(_TARGETS)}")
    if target is None and len(hosts) > 1:
        target = READ_WRITE
    kept = [(name, value) for name, value in query if name not in (_TARGET, "connect_timeout")]
    return DatabaseAddress(
        urlunsplit(parts._replace(query=urlencode(kept))) if len(kept) != len(query) else url,
        tuple(ServerAddress(host, port) for host, port in zip(hosts, ports, strict=True)),
        None if target == "any" else target,
    )


def prefer_target(url: str, target: str) -> str:
    """Return a URL with this role of the server, unless it names one; raise `ValueError` if it is not valid."""
    parse_database_url(url)
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    if any(name == _TARGET for name, _ in query):
        return url
    return urlunsplit(parts._replace(query=urlencode([*query, (_TARGET, target)])))


def _split_hosts(text: str, ports: str | None) -> tuple[list[str], list[int]]:
    """Split a list of hosts, each with or without a port; ``ports`` are those of the parameter ``port``."""
    hosts: list[str] = []
    found: list[str] = []
    for each in text.split(","):
        host, colon, port = each.rpartition(":") if re.search(r"(^|[^:])(\]|[^:\]]):\d*$", each) else (each, "", "")
        hosts.append(host.strip("[]") if not host.startswith("/") else host)
        found.append(port if colon else "")
    given = (ports or "").split(",")
    if len(given) not in (1, len(hosts)):
        raise ValueError(f"it has {len(given)} ports for {len(hosts)} hosts")
    given = given * len(hosts) if len(given) == 1 else given
    return hosts, [_parse_port(own or other) for own, other in zip(found, given, strict=True)]


def _parse_port(text: str) -> int:
    if not text:
        return _DEFAULT_PORT
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65_536:
        raise ValueError(f"{text!r} is not a port")
    return int(text)


def describe_address(url: str) -> str:
    """Return where a URL leads to, without login and password: ``db.example.org port 5432``."""
    try:
        return " or ".join(map(str, parse_database_url(url).servers))
    except ValueError:
        return "the address in TENUTO_DATABASE"
