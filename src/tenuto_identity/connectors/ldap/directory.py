"""A directory: its connection, what its root DSE says, and searches whose every partial result is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Final

from tenuto.extras import require_extra
from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.ldap import filters
from tenuto_identity.connectors.ldap.protocol import controls
from tenuto_identity.connectors.ldap.protocol.client import (
    Code,
    Control,
    Disconnected,
    Entry,
    LdapClient,
    Reply,
    Request,
    Scope,
    Search,
)
from tenuto_identity.connectors.ldap.settings import LdapSettings, Library
from tenuto_identity.model import dn

UNIQUE_ANCHORS = ("entryuuid", "objectguid")
"""Attributes, in lower case, whose values the server draws and never gives to another entry."""
AD_CAPABILITY = "1.2.840.113556.1.4.800"
_ROOT_DSE: Final = (
    "objectClass", "namingContexts", "supportedControl", "supportedCapabilities", "subschemaSubentry",
    "defaultNamingContext", "configurationNamingContext", "schemaNamingContext", "highestCommittedUSN",
    "dsServiceName", "dnsHostName",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RootDse:
    """What a server says about itself."""

    values: Mapping[str, tuple[str, ...]]
    """Names in lower case."""

    def all(self, name: str) -> tuple[str, ...]:
        return self.values.get(name.lower(), ())

    def first(self, name: str) -> str:
        return next(iter(self.all(name)), "")

    def supports(self, control: str) -> bool:
        return control in self.all("supportedControl")

    @property
    def is_active_directory(self) -> bool:
        return AD_CAPABILITY in self.all("supportedCapabilities")

    @property
    def is_openldap(self) -> bool:
        return "OpenLDAProotDSE" in self.all("objectClass")


class Directory:
    """One connection to a server, opened when it is needed."""

    def __init__(self, settings: LdapSettings, password: str | None, client: LdapClient | None = None) -> None:
        self.settings = settings
        self._password = password
        self._client = client
        self._root_dse: RootDse | None = None
        self._has_open_pages = False
        self._is_interrupted = False

    def clone(self) -> Directory:
        """Return a further connection to the same server."""
        other = Directory(self.settings, self._password)
        other._root_dse = self._root_dse
        return other

    @property
    def client(self) -> LdapClient:
        """The connection; opened if there is none."""
        if self._client is None:
            self._client = open_client(self.settings, self._password)
        return self._client

    def disconnect(self) -> None:
        """Drop the connection; the next request opens another."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def interrupt(self) -> None:
        """End the requests of another thread, which raises `Disconnected` and does not connect again."""
        self._is_interrupted = True
        client = self._client
        if client is not None:
            client.interrupt()

    def request(self, request: Request) -> Reply:
        """Send one request that may be repeated, and return its reply. Reconnects once."""
        try:
            return self._request(request)
        except Disconnected:
            if self._is_interrupted:
                raise
            self.disconnect()
            return self._request(request)

    def _request(self, request: Request) -> Reply:
        client = self.client
        return client.receive(client.send(request))

    # --- searches ---------------------------------------------------------------------------------------------------

    def search(self, search: Search) -> list[Entry]:
        """Return all entries of a search without pages; raise `ConnectorError` unless they are complete."""
        reply = self.request(self.limited(search))
        check_complete(reply, search)
        return list(reply.entries)

    def read_entry(self, name: str, attributes: Sequence[str]) -> Entry | None:
        """Return one entry; None if it does not exist."""
        search = Search(name, Scope.BASE, filters.EVERYTHING, tuple(attributes))
        reply = self.request(self.limited(search))
        if reply.code == Code.NO_SUCH_OBJECT:
            return None
        check_complete(reply, search)
        return next(iter(reply.entries), None)

    def matches(self, name: str, condition: str) -> bool | None:
        """Return whether an entry satisfies a filter; None if it does not exist."""
        search = Search(name, Scope.BASE, condition, ("1.1",))
        reply = self.request(self.limited(search))
        if reply.code == Code.NO_SUCH_OBJECT:
            return None
        check_complete(reply, search)
        return bool(reply.entries)

    def probe(self, name: str, attributes: Sequence[str]) -> Entry | None:
        """Return one entry; None if it does not exist or the account may not read it."""
        search = self.limited(Search(name, Scope.BASE, filters.EVERYTHING, tuple(attributes)))
        reply = self.request(search)
        if reply.code in (Code.NO_SUCH_OBJECT, Code.INSUFFICIENT_ACCESS):
            return None
        check_complete(reply, search)
        return next(iter(reply.entries), None)

    def search_pages(self, search: Search) -> Iterator[Sequence[Entry]]:
        """Yield the pages of a search, and ask for the next page before the previous one is processed.

        A lost connection is an error, except before the first page: pages belong to their connection. A server has one
        search in pages for each connection: another one may begin only after the last page. A search that ends before
        its last page drops the connection, so that no page of it stays behind."""
        limited = self.limited(search)
        if not self.settings.paged:
            yield self.search(search)
            return
        if self._has_open_pages:
            raise AssertionError("a search in pages has begun before the last page of another one")
        self._has_open_pages = True
        is_over = False
        try:
            reply = self.request(self._page(limited, b""))
            while True:
                check_complete(reply, search)
                cookie = controls.page_cookie(reply.controls)
                if not cookie:
                    is_over, self._has_open_pages = True, False
                    yield reply.entries
                    return
                number = self.client.send(self._page(limited, cookie))
                yield reply.entries
                reply = self.client.receive(number)
        finally:
            if not is_over:
                self._has_open_pages = False
                self.disconnect()

    def limited(self, search: Search) -> Search:
        """Return a search with the time limit and the controls that all searches have."""
        common = (Control(controls.DOMAIN_SCOPE),) if self.root_dse.is_active_directory else ()
        return replace(search, controls=(*search.controls, *common), time_limit_seconds=self.settings.timeout_seconds)

    def _page(self, search: Search, cookie: bytes) -> Search:
        page = controls.paged_results(self.settings.page_size, cookie)
        return replace(search, controls=(*search.controls, page))

    # --- what the server is -----------------------------------------------------------------------------------------

    @property
    def root_dse(self) -> RootDse:
        """The root DSE, read once."""
        if self._root_dse is None:
            self._root_dse = self.read_root_dse()
        return self._root_dse

    def read_root_dse(self) -> RootDse:
        """Read the root DSE now."""
        search = Search("", Scope.BASE, filters.EVERYTHING, _ROOT_DSE)
        reply = self.request(search)
        check_complete(reply, search)
        values = reply.entries[0].attributes if reply.entries else {}
        return RootDse(
            {name.lower(): tuple(each.decode("utf-8", "replace") for each in values[name]) for name in values}
        )

    def context_csn(self, base: str) -> list[str]:
        """Return the contextCSN of the suffix of a base, sorted: the newest change of each server, kept by syncprov."""
        for context in (base, *self.root_dse.all("namingContexts")):
            if dn.is_below(base, context):
                entry = self.probe(context, ("contextCSN",))
                found = (
                    [each.decode("ascii", "replace") for each in attribute_values(entry, "contextCSN")] if entry else []
                )
                if found:
                    return sorted(found)
        return []

    def change_position(self, base: str) -> str:
        """Return what changes with every write below a base; empty if the server has no such value."""
        if self.root_dse.is_active_directory:
            return self.read_root_dse().first("highestCommittedUSN")
        return max(self.context_csn(base), default="") if self.root_dse.is_openldap else ""

    def changed_since(self, position: str) -> str:
        """Return the filter for the entries that were written after a position."""
        if self.root_dse.is_active_directory:
            return filters.at_least("uSNChanged", str(int(position) + 1))
        return filters.at_least("entryCSN", position)

    @property
    def anchor(self) -> str:
        """Name of the attribute that identifies an entry for ever."""
        return "objectGUID" if self.root_dse.is_active_directory else "entryUUID"

    @cached_property
    def bases(self) -> tuple[str, ...]:
        """Where objects are searched: the setting ``base``, or the naming contexts with data."""
        if self.settings.base:
            return self.settings.base
        root = self.root_dse
        if root.is_active_directory:
            return tuple(filter(None, [root.first("defaultNamingContext")]))
        found = tuple(each for each in root.all("namingContexts") if not self._is_log(each))
        if not found:
            raise ConnectorError(
                "missing_container", "the server names no naming contexts", remedy="set base to the DN to read from"
            )
        return found

    @cached_property
    def log_bases(self) -> tuple[str, ...]:
        """Suffixes of the logs of the accesslog overlay."""
        if self.settings.log_base is not None:
            return (self.settings.log_base,)
        return tuple(each for each in self.root_dse.all("namingContexts") if self._is_log(each))

    def _is_log(self, context: str) -> bool:
        if not self.root_dse.is_openldap:
            return False
        found = self.probe(context, ("objectClass",))
        classes = [each.lower() for each in attribute_values(found, "objectClass")] if found else []
        return b"auditcontainer" in classes


def check_complete(reply: Reply, search: Search) -> None:
    """Raise `ConnectorError` unless the reply to a search has all entries."""
    where = search.base or "the root DSE"
    if reply.code == Code.SUCCESS and not reply.references:  # guard: identity.ldap_partial_search
        return
    if reply.code == Code.NO_SUCH_OBJECT:
        raise ConnectorError(
            "missing_container",
            f"there is no entry {where!r}, or the account may not read it",
            remedy="check the selected containers, the setting base and the permissions of the account",
        )
    if reply.references:
        raise ConnectorError(
            "incomplete",
            f"the search below {where!r} has referrals to other servers: {', '.join(reply.references)}",
            remedy="connect to the server that has the entries, or select the containers that this server has",
        )
    raise ConnectorError("incomplete", f"the search below {where!r} is not complete: {reply.describe()}")


def attribute_values(entry: Entry, name: str) -> Sequence[bytes]:
    """Return the values of an attribute, whatever the case of its name, and with the option ``;binary`` or without."""
    found = entry.attributes.get(name)
    if found is not None:
        return found
    folded = name.lower()
    names = (folded, f"{folded};binary")
    return next((values for each, values in entry.attributes.items() if each.lower() in names), ())


def open_client(settings: LdapSettings, password: str | None) -> LdapClient:
    """Connect by the library that the settings name, or by python-ldap if it is installed."""
    library = settings.library
    if library is Library.AUTO:
        library = Library.PYTHON_LDAP if find_spec("_ldap") is not None else Library.LDAP3
    if library is Library.PYTHON_LDAP:
        require_extra("ldap", "the connector ldap with library: python-ldap", alternative="set library: ldap3")
        from tenuto_identity.connectors.ldap.protocol import python_ldap_client

        return python_ldap_client.open_client(settings, password)
    if find_spec("ldap3") is None:
        require_extra("identity", "the connector ldap")
    from tenuto_identity.connectors.ldap.protocol import ldap3_client

    return ldap3_client.open_client(settings, password)
