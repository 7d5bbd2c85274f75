"""Fixtures of the tests of the LDAP connector: one slapd for all tests of a process, emptied before each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ldap3
import pytest

from tests.identity.ldap.slapd import PASSWORD, PREFIX, READER_PASSWORD, SLAPD, Slapd, running_slapd
from tests.support.temp_dirs import remove_stale_temp_dirs

MISSING = "slapd is not installed: apt-get install slapd ldap-utils"
HERE = Path(__file__).parent
NAMES = ("ad", "ldap")
LIBRARIES = (
    "ldap3",
    pytest.param(
        "python-ldap",
        marks=pytest.mark.skipif(
            find_spec("_ldap") is None and not os.environ.get("TENUTO_REQUIRE_PYTHON_LDAP"),
            reason="python-ldap is not installed: pip install 'tenuto[ldap]'",
        ),
    ),
)
OF_LIBRARIES = ("test_conformance", "test_reading", "test_writing", "test_moving_entries")
"""Modules whose tests run with each library."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "slapd" in metafunc.fixturenames and metafunc.module.__name__.rpartition(".")[2] in OF_LIBRARIES:
        metafunc.parametrize("slapd", LIBRARIES, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need slapd without it; fail where it is required."""
    for item in items:
        if HERE in item.path.parents and "slapd" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slapd)
            if SLAPD is None and not os.environ.get("TENUTO_REQUIRE_SLAPD"):
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def slapd_server() -> Iterator[Slapd]:
    if SLAPD is None:
        pytest.fail(MISSING)
    remove_stale_temp_dirs(PREFIX)
    with running_slapd(NAMES) as server:
        yield server


class Administrator:
    """A plain client with all rights, for what a test sets up and looks at."""

    def __init__(self, server: Slapd, name: str) -> None:
        self.suffix = f"dc={name},dc=test"
        self.people = f"ou=people,{self.suffix}"
        self._server = ldap3.Server("localhost", server.port, get_info=ldap3.NONE)
        self._connection: Any = None
        self._account = f"cn=manager,{self.suffix}"

    @property
    def connection(self) -> Any:
        if self._connection is None:
            self._connection = ldap3.Connection(
                self._server, self._account, PASSWORD, auto_bind=True, check_names=False, raise_exceptions=True
            )
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            with suppress(ldap3.core.exceptions.LDAPException):
                self._connection.unbind()
            if self._connection.socket is not None:  # the server was stopped
                self._connection.socket.close()
            self._connection = None

    def add(self, address: str, classes: str | list[str], **attributes: Any) -> str:
        """Create an entry; return its entryUUID."""
        self.connection.add(address, classes, attributes)
        return self.uuid(address)

    def person(self, name: str, container: str | None = None, **attributes: Any) -> str:
        """Create a person; return its entryUUID."""
        return self.add(f"cn={name},{container or self.people}", "inetOrgPerson", **{"sn": name, **attributes})

    def modify(self, address: str, **attributes: list[str]) -> None:
        self.connection.modify(address, {name: [(ldap3.MODIFY_REPLACE, values)] for name, values in attributes.items()})

    def rename(self, address: str, rdn: str, superior: str | None = None) -> None:
        self.connection.modify_dn(address, rdn, new_superior=superior)

    def delete(self, address: str) -> None:
        self.connection.delete(address)

    def uuid(self, address: str) -> str:
        self.connection.search(address, "(objectClass=*)", ldap3.BASE, attributes=["entryUUID"])
        return str(self.connection.response[0]["raw_attributes"]["entryUUID"][0].decode())

    def timestamp(self, address: str) -> str:
        """Return when an entry was changed, to the second."""
        self.connection.search(address, "(objectClass=*)", ldap3.BASE, attributes=["modifyTimestamp"])
        return str(self.connection.response[0]["raw_attributes"]["modifyTimestamp"][0].decode())

    def entries(self, condition: str = "(objectClass=inetOrgPerson)") -> dict[str, dict[str, list[str]]]:
        """Return entries by DN."""
        found: dict[str, dict[str, list[str]]] = {}
        for each in self.connection.extend.standard.paged_search(
            self.suffix, condition, attributes=["*"], paged_size=500
        ):
            values = {name: sorted(v.decode() for v in raw) for name, raw in each["raw_attributes"].items()}
            found[each["dn"]] = values
        return found

    def log(self, kind: str = "*") -> list[dict[str, list[str]]]:
        """Return the rows of the log of changes, oldest first."""
        name = self.suffix.split(",")[0].partition("=")[2]
        log = ldap3.Connection(self._server, f"cn=log-{name}", PASSWORD, auto_bind=True, check_names=False)
        try:
            log.search(f"cn=log-{name}", f"(&(objectClass=auditWriteObject)(reqType={kind}))", attributes=["*"])
            rows = [
                {key: [v.decode("utf-8", "replace") for v in raw] for key, raw in each["raw_attributes"].items()}
                for each in log.response
            ]
        finally:
            log.unbind()
        return sorted(rows, key=lambda row: row["reqStart"])

    def reset(self) -> None:
        """Remove everything, and create suffix, account and the container of people."""
        connection = self.connection
        connection.raise_exceptions = False
        connection.search(self.suffix, "(objectClass=*)", attributes=["1.1"])
        for each in sorted((each["dn"] for each in connection.response or ()), key=lambda d: -d.count(",")):
            connection.delete(each)
        connection.raise_exceptions = True
        connection.add(self.suffix, ["dcObject", "organization"], {"o": "test"})
        for account in ("reader", "clerk"):
            connection.add(f"cn={account},{self.suffix}", ["person"], {"sn": account, "userPassword": READER_PASSWORD})
        connection.add(self.people, "organizationalUnit")


@pytest.fixture
def slapd(slapd_server: Slapd, request: pytest.FixtureRequest) -> Slapd:
    """The server, running. Its settings name the library of the parameter; ldap3 without one."""
    slapd_server.library = getattr(request, "param", "ldap3")
    slapd_server.ensure_running()
    return slapd_server


@pytest.fixture
def administrator(slapd: Slapd) -> Iterator[Callable[[str], Administrator]]:
    """Opens an emptied directory of the server."""
    opened: dict[str, Administrator] = {}

    def open_directory(name: str) -> Administrator:
        if name not in opened:
            opened[name] = Administrator(slapd, name)
            opened[name].reset()
        return opened[name]

    yield open_directory
    for each in opened.values():
        each.close()


@pytest.fixture
def ad(administrator: Callable[[str], Administrator]) -> Administrator:
    """The directory ``dc=ad,dc=test``."""
    return administrator("ad")


@pytest.fixture
def ldap(administrator: Callable[[str], Administrator]) -> Administrator:
    """The directory ``dc=ldap,dc=test``."""
    return administrator("ldap")
