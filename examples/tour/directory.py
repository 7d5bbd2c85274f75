"""A real directory for the first scene, where slapd is installed: started on loopback, in the directory of the tour.

Without slapd, files stand for the directories.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from string import Template

SECRET = "tour-directory"
DEFINITIONS = Path(__file__).with_name("directories.yaml")
_PROGRAM = shutil.which("slapd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/lib/openldap")
_SCHEMAS, _MODULES = Path("/etc/ldap/schema"), Path("/usr/lib/ldap")
_START_TIMEOUT_SECONDS = 20
_CONFIGURATION = """
include $schemas/core.schema
include $schemas/cosine.schema
include $schemas/inetorgperson.schema
modulepath $modules
moduleload back_mdb
pidfile $folder/slapd.pid
"""
_DATABASE = """
database mdb
suffix dc=$name,dc=test
directory $folder/$name
rootdn cn=tenuto,dc=$name,dc=test
rootpw $password
maxsize 67108864
index objectClass,entryUUID,uid,mail eq
"""
NAMES = ("ad", "ldap")


class TourDirectory:
    """One slapd with two suffixes, ``dc=ad,dc=test`` and ``dc=ldap,dc=test``."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "slapd"
        is_installed = _PROGRAM is not None and find_spec("ldap3") is not None
        has_used_files = (home / "files" / "people.csv").exists() and not self._folder.exists()
        self.is_available = is_installed and _SCHEMAS.is_dir() and _MODULES.is_dir() and not has_used_files
        """Whether the tour can use it: not in a kept directory whose earlier tour used files."""
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._password = secrets.token_hex(16)

    @property
    def password(self) -> str:
        return self._password

    def definitions(self) -> str:
        """Return systems, rules and schedule of the example, with these directories as targets."""
        return Template(DEFINITIONS.read_text("utf-8")).substitute(url=f"ldap://127.0.0.1:{self._port}", secret=SECRET)

    def start(self) -> None:
        """Start the server and create the two suffixes."""
        assert _PROGRAM is not None
        places = {"folder": self._folder, "schemas": _SCHEMAS, "modules": _MODULES, "password": self._password}
        text = Template(_CONFIGURATION).substitute(places)
        for name in NAMES:
            (self._folder / name).mkdir(parents=True, exist_ok=True)
            text += Template(_DATABASE).substitute(places, name=name)
        configuration = self._folder / "slapd.conf"
        configuration.touch(0o600)
        configuration.write_text(text, "utf-8")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        command = [_PROGRAM, "-d", "0", "-f", str(configuration), "-h", f"ldap://127.0.0.1:{self._port}"]
        with (self._folder / "slapd.log").open("wb") as log:
            if os.geteuid() == 0:
                for path in (self._folder, *self._folder.rglob("*")):
                    shutil.chown(path, "nobody", "nogroup")
                self._process = subprocess.Popen(
                    command, stdout=log, stderr=log, user="nobody", group="nogroup", extra_groups=()
                )
            else:
                self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._wait()
        self._create_suffixes()

    def _wait(self) -> None:
        assert self._process is not None
        limit = time.monotonic() + _START_TIMEOUT_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                if self._process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"slapd did not start; see {self._folder / 'slapd.log'}") from None
                time.sleep(0.02)

    def _create_suffixes(self) -> None:
        import ldap3

        for name in NAMES:
            suffix = f"dc={name},dc=test"
            server = ldap3.Server("127.0.0.1", self._port, get_info=ldap3.NONE)
            with ldap3.Connection(server, f"cn=tenuto,{suffix}", self._password, check_names=False) as connection:
                connection.add(suffix, ["dcObject", "organization"], {"o": name})  # it exists in a kept directory
                connection.add(f"ou=people,{suffix}", "organizationalUnit")

    def stop(self) -> None:
        """End the server; a second call has no effect."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_START_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
