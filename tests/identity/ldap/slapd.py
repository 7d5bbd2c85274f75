"""A real slapd for tests: started without privileges on loopback, with memberof, refint, accesslog and syncprov.

One server has the suffixes of two directories, ``dc=ad,dc=test`` and ``dc=ldap,dc=test``, and a log of each.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.certificates import create_certificate
from tests.support.temp_dirs import new_temp_dir

SLAPD = shutil.which("slapd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib/openldap")
MODULES = Path("/usr/lib/ldap")
SCHEMAS = Path("/etc/ldap/schema")
PREFIX = "tenuto-slapd-"
PASSWORD = "manager's password"
READER_PASSWORD = "reader's password"
SIZE_LIMIT = 50
"""Entries that a search of the ordinary reader returns at most, unless it is paged."""
CLERK_LIMIT = 500
"""The same for the account ``clerk``; it is also the largest page of it."""

CONFIGURATION = """
include {schemas}/core.schema
include {schemas}/cosine.schema
include {schemas}/inetorgperson.schema
modulepath {modules}
moduleload back_mdb
moduleload accesslog
moduleload syncprov
moduleload memberof
moduleload refint
pidfile {folder}/slapd.pid
argsfile {folder}/slapd.args
TLSCertificateFile {folder}/server.crt
TLSCertificateKeyFile {folder}/server.key
# Durability is not what these tests are about.
sizelimit 10000
{databases}
"""
DATABASE = """
database mdb
suffix cn=log-{name}
directory {folder}/log-{name}
rootdn cn=log-{name}
rootpw "{password}"
maxsize 268435456
envflags nosync
index default eq
index entryCSN,objectClass,reqEnd,reqResult,reqStart
overlay syncprov
syncprov-nopresent TRUE
syncprov-reloadhint TRUE
access to * by dn.regex="^cn=(reader|manager),dc={name},dc=test$" read by * none
limits dn.exact="cn=reader,dc={name},dc=test" size.soft=unlimited size.hard=unlimited

database mdb
suffix dc={name},dc=test
directory {folder}/{name}
rootdn cn=manager,dc={name},dc=test
rootpw "{password}"
maxsize 268435456
envflags nosync
index objectClass,entryCSN,entryUUID,uid,mail,member eq
overlay syncprov
syncprov-sessionlog 200
overlay accesslog
logdb cn=log-{name}
logops writes
logsuccess TRUE
{log_options}
logold (objectClass=*)
logoldattr objectClass
overlay memberof
memberof-refint TRUE
overlay refint
refint_attributes member manager
refint_nothing cn=nothing,dc={name},dc=test
access to dn.subtree="ou=secret,dc={name},dc=test" by * none
access to attrs=userPassword by anonymous auth by * none
access to dn.children="ou=guarded,dc={name},dc=test" by group.exact="cn=readers,dc={name},dc=test" read by * none
access to dn.subtree="ou=vault,ou=first,dc={name},dc=test" by group.exact="cn=readers,dc={name},dc=test" read by * none
access to dn.children="ou=nameless,dc={name},dc=test" attrs=entryUUID by * none
access to dn.subtree="ou=nameless,dc={name},dc=test" by dn.exact="cn=clerk,dc={name},dc=test" write by * none
access to dn.children="ou=disclosed,dc={name},dc=test" by * disclose
access to dn.subtree="ou=shared,dc={name},dc=test" by dn.exact="cn=clerk,dc={name},dc=test" write by * none
access to * by dn.regex="^cn=(reader|clerk),dc={name},dc=test$" read by * auth
limits dn.exact="cn=clerk,dc={name},dc=test" size.soft={clerk_limit} size.hard={clerk_limit} size.pr={clerk_limit}
  size.prtotal=unlimited
limits dn.exact="cn=reader,dc={name},dc=test" size.soft={limit} size.hard={limit} size.pr=100 size.prtotal=unlimited
"""


class Slapd:
    """A running slapd."""

    def __init__(self, folder: Path, names: Sequence[str], *, log_options: str = "") -> None:
        self.folder = folder
        self.names = tuple(names)
        with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
            self.port, self.tls_port = first.getsockname()[1], second.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.library = "ldap3"
        """The library that connectors use."""
        # OpenLDAP takes localhost for the name of the machine.
        names_of_machine = (socket.gethostname(), socket.getfqdn())
        self.certificate, _ = create_certificate(folder, "localhost", further_names=names_of_machine)
        for name in names:
            (folder / name).mkdir()
            (folder / f"log-{name}").mkdir()
        databases = "".join(
            DATABASE.format(
                name=name,
                folder=folder,
                password=PASSWORD.replace('"', '\\"'),
                limit=SIZE_LIMIT,
                clerk_limit=CLERK_LIMIT,
                log_options=log_options,
            )
            for name in names
        )
        (folder / "slapd.conf").write_text(
            CONFIGURATION.format(schemas=SCHEMAS, modules=MODULES, folder=folder, databases=databases)
        )
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, "nobody", "nogroup")

    @property
    def url(self) -> str:
        return f"ldap://localhost:{self.port}"

    @property
    def tls_url(self) -> str:
        return f"ldaps://localhost:{self.tls_port}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        assert SLAPD is not None
        account: Mapping[str, Any] = (
            {"user": "nobody", "group": "nogroup", "extra_groups": ()} if os.geteuid() == 0 else {}
        )
        urls = f"ldap://127.0.0.1:{self.port} ldaps://127.0.0.1:{self.tls_port}"
        with (self.folder / "slapd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [SLAPD, "-d", "0", "-f", str(self.folder / "slapd.conf"), "-h", urls],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **account,
            )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.tls_port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"slapd did not start:\n{(self.folder / 'slapd.log').read_text()}") from None
                time.sleep(0.01)

    def stop(self, sent: int = signal.SIGTERM) -> None:
        """End the server and wait for it."""
        if self._process is not None:
            self._process.send_signal(sent)
            self._process.wait(20)
            self._process = None

    def ensure_running(self) -> None:
        """Start the server if a test has left it stopped."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server for a while."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def forget_log(self, name: str) -> None:
        """Lose the log of changes of a directory, as an administrator does who sets it up again."""
        with self.stopped():
            for path in (self.folder / f"log-{name}").iterdir():
                path.unlink()

    def settings(self, name: str, **more: Any) -> dict[str, Any]:
        """Return settings of the connector for a directory of this server."""
        return {
            "url": self.url,
            "tls": "starttls",
            "ca_file": str(self.certificate),
            "bind_dn": f"cn=manager,dc={name},dc=test",
            "password": {"secret": "bind"},
            "base": f"dc={name},dc=test",
            "library": self.library,
            **more,
        }


@contextmanager
def running_slapd(names: Sequence[str], *, log_options: str = "") -> Iterator[Slapd]:
    folder = new_temp_dir(PREFIX)
    server = Slapd(folder, names, log_options=log_options)
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
