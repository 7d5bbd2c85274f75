"""A directory for the benchmark `ldap`: slapd on loopback with the overlays of a site, without privileges.

It does not wait for the disk, so that the figures are those of the client. The folder is removed afterwards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import ContenderFailed

SUFFIX = "dc=bench,dc=test"
MANAGER = f"cn=manager,{SUFFIX}"
PEOPLE = f"ou=people,{SUFFIX}"
PASSWORD = "bench"
_PROGRAM = shutil.which("slapd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib/openldap")
_CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
moduleload accesslog
moduleload syncprov
moduleload memberof
pidfile {folder}/slapd.pid
sizelimit unlimited

database mdb
suffix cn=log
directory {folder}/log
rootdn cn=log
maxsize 8589934592
envflags nosync
index entryCSN,objectClass,reqEnd,reqResult,reqStart eq
access to * by dn.exact="{manager}" read by * none
limits dn.exact="{manager}" size=unlimited
overlay syncprov
syncprov-nopresent TRUE
syncprov-reloadhint TRUE

database mdb
suffix {suffix}
directory {folder}/data
rootdn {manager}
rootpw {password}
maxsize 8589934592
envflags nosync
index objectClass,entryCSN,entryUUID,uid,mail eq
overlay syncprov
syncprov-sessionlog 100000
overlay accesslog
logdb cn=log
logops writes
logsuccess TRUE
overlay memberof
"""


@contextlib.contextmanager
def slapd_server() -> Iterator[str]:
    """Yield the URL of a server with an empty container of people."""
    if _PROGRAM is None:
        raise ContenderFailed("slapd is not installed (Debian: apt-get install slapd ldap-utils)")
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-slapd-", dir="/var/tmp") as name:
        folder = Path(name)
        for each in ("log", "data"):
            (folder / each).mkdir()
        (folder / "slapd.conf").write_text(
            _CONFIGURATION.format(folder=folder, suffix=SUFFIX, manager=MANAGER, password=PASSWORD)
        )
        if os.geteuid() == 0:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, "nobody", "nogroup")
        with socket.create_server(("127.0.0.1", 0)) as free:
            url = f"ldap://127.0.0.1:{free.getsockname()[1]}"
        command = [_PROGRAM, "-d", "0", "-f", str(folder / "slapd.conf"), "-h", url]
        with (folder / "slapd.log").open("wb") as log:
            if os.geteuid() == 0:
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, user="nobody", group="nogroup", extra_groups=()
                )
            else:
                process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait(process, url, folder / "slapd.log")
            yield url
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    limit = time.monotonic() + 20
    port = int(url.rpartition(":")[2])
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        if process.poll() is not None or time.monotonic() > limit:
            raise ContenderFailed(f"slapd did not start: {log.read_text()}")
        time.sleep(0.02)
