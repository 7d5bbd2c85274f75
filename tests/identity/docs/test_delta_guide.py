"""The configuration of OpenLDAP in the guide of delta imports works on a real slapd with `cn=config`."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ldap3
import pytest

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorContext,
    ConnectorError,
    DeletedObject,
    ImportedObject,
    ReadScope,
    Watermark,
    WatermarkLost,
)
from tests.docs.pages import ROOT, parts
from tests.identity.docs.page_session import FILE_NAME, wait_for_server
from tests.identity.docs.test_identity_tutorial import free_port, needs_slapd, stop_slapd
from tests.identity.ldap.slapd import MODULES, SCHEMAS, SLAPD
from tests.identity.ldap.test_conformance import PERSON
from tests.support.temp_dirs import new_temp_dir
from tests.support.waiting import eventually_blocking

PAGE = ROOT / "docs" / "how-to" / "delta-imports.md"
PASSWORD = "a password"
SCOPE = ReadScope((PERSON,))
BASE = "dc=example,dc=org"
CONFIGURATION = f"""
include {SCHEMAS}/core.schema
include {SCHEMAS}/cosine.schema
include {SCHEMAS}/inetorgperson.schema
modulepath {MODULES}
moduleload back_mdb
pidfile {{folder}}/slapd.pid
database config
rootpw "{PASSWORD}"
database mdb
suffix {BASE}
directory {{folder}}/data
rootdn cn=admin,{BASE}
rootpw "{PASSWORD}"
"""


def page_files() -> dict[str, str]:
    """Return the LDIF files of the page."""
    found: dict[str, str] = {}
    before = ""
    for part in parts(PAGE):
        if isinstance(part, str):
            before = part
        elif named := FILE_NAME.search(before):
            found[named[1]] = part.text
    return found


@pytest.fixture
def server() -> Iterator[tuple[Path, str]]:
    """A folder, and the URL of a slapd as an administrator finds it: with `cn=config`, without overlays."""
    assert SLAPD is not None
    folder, url = new_temp_dir("tenuto-delta-"), f"ldap://127.0.0.1:{free_port()}"
    for name in ("data", "log", "slapd.d"):
        (folder / name).mkdir()
    (folder / "slapd.conf").write_text(CONFIGURATION.format(folder=folder), encoding="utf-8")
    command = [SLAPD, "-f", str(folder / "slapd.conf"), "-F", str(folder / "slapd.d"), "-h", url]  # converts the file
    subprocess.run(command, check=True, capture_output=True)
    wait_for_server(url)
    pid = int((folder / "slapd.pid").read_text(encoding="ascii"))
    try:
        yield folder, url
    finally:
        stop_slapd(pid)
        shutil.rmtree(folder, ignore_errors=True)


class Reader:
    """An administrator, and the account of the page with a connector."""

    def __init__(self, server: tuple[Path, str]) -> None:
        self._folder, self._url = server
        self.admin: Any = ldap3.Connection(
            self._url, f"cn=admin,{BASE}", PASSWORD, auto_bind=True, raise_exceptions=True
        )
        self.admin.add(BASE, ["dcObject", "organization"], {"o": "Example"})
        self.admin.add(f"cn=tenuto,{BASE}", ["person"], {"sn": "tenuto", "userPassword": PASSWORD})
        self.admin.add(f"cn=gone,{BASE}", "inetOrgPerson", {"sn": "gone"})
        self._opened: list[Connector] = []

    def configure(self, name: str, text: str) -> None:
        """Apply a file of the page."""
        file = self._folder / name
        file.write_text(text.replace("/var/lib/ldap/accesslog", str(self._folder / "log")), encoding="utf-8")
        command = ["ldapmodify", "-x", "-H", self._url, "-D", "cn=config", "-w", PASSWORD, "-f", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def open(self, **more: Any) -> Connector:
        settings = {
            "url": self._url,
            "tls": "none",
            "bind_dn": f"cn=tenuto,{BASE}",
            "password": {"secret": "bind"},
            "base": BASE,
            **more,
        }
        context = ConnectorContext((PERSON,), secrets={"bind": PASSWORD})
        self._opened.append(registry.open_connector("ldap", settings, context))
        return self._opened[-1]

    def change(self) -> None:
        self.admin.add(f"cn=new,{BASE}", "inetOrgPerson", {"sn": "new"})
        self.admin.delete(f"cn=gone,{BASE}")

    def close(self) -> None:
        for each in self._opened:
            each.close()
        self.admin.unbind()


@pytest.fixture
def reader(server: tuple[Path, str]) -> Iterator[Reader]:
    found = Reader(server)
    yield found
    found.close()


@needs_slapd
@pytest.mark.slapd
@pytest.mark.parametrize(("method", "file"), [("syncrepl", "syncprov.ldif"), ("accesslog", "accesslog.ldif")])
def test_configuration_of_delta_guide_lets_a_reader_find_changes(reader: Reader, method: str, file: str) -> None:
    files = page_files()
    assert set(files) == {"account.ldif", "syncprov.ldif", "accesslog.ldif"}
    reader.configure("account.ldif", files["account.ldif"])
    reader.configure(file, files[file])
    connector = reader.open()  # delta: auto finds the method
    connector.check()

    def watermark() -> Watermark | None:
        """Return the watermark once the log has a row: slapd prepares a new log in the background, and does not log
        changes before that."""
        reader.admin.modify(f"cn=gone,{BASE}", {"title": [(ldap3.MODIFY_REPLACE, [str(time.monotonic_ns())])]})
        found = connector.watermark(SCOPE)
        assert found is not None
        return found if all(found.get("logs", {"": True}).values()) else None

    since: Watermark = eventually_blocking(watermark, what="the log has a row")
    assert since["method"] == method
    reader.change()
    events = list(connector.read(SCOPE, since))
    assert [each.address for each in events if isinstance(each, ImportedObject)] == [f"cn=new,{BASE}"]
    assert len([each for each in events if isinstance(each, DeletedObject)]) == 1


@needs_slapd
@pytest.mark.slapd
def test_accesslog_without_syncprov_on_the_log_is_refused_instead_of_finding_nothing(reader: Reader) -> None:
    files = page_files()
    reader.configure("account.ldif", files["account.ldif"])
    without = [each for each in files["accesslog.ldif"].split("\n\n") if "olcSpNoPresent" not in each]
    reader.configure("accesslog.ldif", "\n\n".join(without))
    since = reader.open().watermark(SCOPE)
    assert since is not None
    reader.change()
    with pytest.raises(WatermarkLost, match="contextCSN"):  # a full import follows
        list(reader.open().read(SCOPE, since))
    with pytest.raises(ConnectorError, match="add the overlay syncprov"):
        reader.open(delta="accesslog").check()
