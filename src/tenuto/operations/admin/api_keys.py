"""API key operations (``app.api_keys``): create, revoke and check API keys, browser sessions and the initial key file.

A key is long and random, so a plain SHA-256 protects it as well as a slow hash. Its text is shown once, to the caller
that creates it; only the digest is stored. Lookups are cached for less than a second, so a revoked key is valid for
at most that long.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
import string
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict, Invalid, NotFound, TenutoError
from tenuto.ids import new_id
from tenuto.logs import Log
from tenuto.model import validation
from tenuto.model.access.actors import Actor, ActorType, Caller, Role
from tenuto.model.access.operation_context import OperationCaller
from tenuto.operations.argument_checks import MAX_LIMIT, check_instant, check_limit
from tenuto.operations.bound_operation import OpenDatabase, Operation, OperationGroup
from tenuto.postgres.database import Connection
from tenuto.store.access import api_keys
from tenuto.store.access.api_keys import ApiKeyRecord, KeyKind, SessionRecord

INITIAL_KEY_FILE = "admin.key"
LINK_LIFETIME = timedelta(minutes=10)
SESSION_IDLE_LIFETIME = timedelta(hours=12)
"""A session ends this long after its last use."""
MAX_SESSION_LIFETIME = timedelta(days=7)
"""A session ends this long after the login, whatever its use."""
CACHE_SECONDS = 0.8  # guard: api_keys.short_cache
"""Validity of a cached lookup, counted from before the query."""
_MAX_CACHE_ENTRIES = 10_000
_PREFIX_CACHE_SECONDS = 1.0
_MAX_BROWSER_LENGTH = 200
_PREFIX_CHARACTERS = string.ascii_lowercase + string.digits
_KEY_PATTERN = re.compile(r"tnt_([a-z0-9]{8})_[A-Za-z0-9_-]{43}")
_LINK_PATTERN = re.compile(r"tnl_[A-Za-z0-9_-]{43}")
_SESSION_PATTERN = re.compile(r"tns_[A-Za-z0-9_-]{43}")

log = Log("tenuto.keys")

T = TypeVar("T")


class ApiKeys(OperationGroup):
    """Operations on API keys and browser sessions."""

    def __init__(self, open: OpenDatabase, caller: OperationCaller) -> None:
        super().__init__(open, caller)
        self._keys: _LookupCache[api_keys.ActiveKey] = _LookupCache()
        self._sessions: _LookupCache[Caller] = _LookupCache()
        self._recently_valid: dict[bytes, None] = {}
        self._prefixes: frozenset[str] = frozenset()
        self._prefixes_read_at = -inf
        self._background_tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait shortly for background writes, then cancel them, and clear the caches."""
        self._keys.clear()
        self._sessions.clear()
        tasks = [task for task in self._background_tasks if task.get_loop() is asyncio.get_running_loop()]
        if tasks:
            await asyncio.wait(tasks, timeout=2)
            for task in tasks:
                task.cancel()

    # --- keys -------------------------------------------------------------------------------------------------------

    async def create(
        self, name: str, role: Role, *, expires_at: datetime | None = None, is_person: bool = False
    ) -> tuple[ApiKeyRecord, str]:
        """Create a key and return its record and its text, which is not stored.

        The audit log names the caller with the key of a person as a user, and every other caller as an API key.
        """
        validation.check_name(name, field="name")
        operation = await self._begin("key.create", target=name)
        _check_expiry(expires_at, operation.now)
        while True:
            text = generate_key()
            kind: KeyKind = "person" if is_person else "service"
            new = key_row(text, name, role, operation.actor.name, expires_at, kind)
            operation.entry.after = audit_values(new)
            made = await operation.database.transaction(partial(api_keys.insert_key, new=new))
            if made is not None:
                return made, text

    async def list(
        self, *, after: api_keys.KeyPosition | None = None, limit: int = MAX_LIMIT
    ) -> Sequence[ApiKeyRecord]:
        """List keys by name, active ones first. The next page is ``after`` the last (is revoked, name, id)."""
        return await api_keys.list_keys(await self._open(), after, check_limit(limit))

    async def get(self, name_or_prefix: str) -> ApiKeyRecord:
        """Return the record of a key."""
        if not isinstance(name_or_prefix, str) or not 1 <= len(name_or_prefix) <= 200 or "\x00" in name_or_prefix:
            raise Invalid(
                "an API key is identified by its name or its prefix",
                code="api_key.name.invalid",
                field="key",
                remedy="see `tenuto key list`",
            )
        prefix = name_or_prefix.removeprefix("tnt_")
        found = await api_keys.find_keys(await self._open(), name_or_prefix, prefix)
        if not found:
            raise NotFound(
                f"there is no API key {name_or_prefix!r}", code="api_key.not_found", remedy="see `tenuto key list`"
            )
        if len(found) > 1:
            raise Conflict(
                f"{name_or_prefix!r} is the name of one API key and the prefix of another",
                code="api_key.name.ambiguous",
                field="key",
                remedy="use the prefix of the first or the name of the second",
            )
        return found[0]

    async def revoke(self, name_or_prefix: str, *, allow_last_admin: bool = False) -> ApiKeyRecord:
        """Revoke a key and its sessions, effective within a second, and return its record.

        The last usable admin key is revoked only with ``allow_last_admin``.
        """
        found = await self.get(name_or_prefix)
        operation = await self._begin(
            "key.revoke", target=found.name, before={"revoked": False}, after={"revoked": True}
        )
        by = operation.actor.name

        async def revoke(connection: Connection) -> None:
            if not allow_last_admin:
                admins = await api_keys.lock_active_admin_keys(connection)
                if admins == {found.id}:  # guard: api_keys.last_admin
                    raise Conflict(
                        f"{found.name} is the last admin key: without it, no caller could create keys over HTTP",
                        code="api_key.last_admin",
                        field="key",
                        remedy="create another admin key first, replace it with `tenuto key rotate`, or revoke it with"
                        " `tenuto key revoke KEY --last-admin`",
                    )
            await api_keys.revoke_key(connection, found.id, by)

        await operation.database.transaction(revoke)
        self._keys.clear()
        self._sessions.clear()
        return await self.get(found.prefix)

    async def rotate(self, name_or_prefix: str) -> tuple[ApiKeyRecord, str]:
        """Replace a key by a new one with the same name, role and expiry, and return its record and its text.

        The old key and its sessions end within a second.
        """
        found = await self.get(name_or_prefix)
        if found.revoked_at is not None or found.expired:
            raise _inactive_key_error(found, "expired" if found.revoked_at is None else "revoked")
        operation = await self._begin("key.rotate", target=found.name, before={"prefix": found.prefix})
        by = operation.actor.name

        async def replace(connection: Connection, new: api_keys.NewKey) -> ApiKeyRecord:
            made = await api_keys.replace_key(connection, found.id, new)
            if made is None:
                raise _inactive_key_error(found, "revoked")
            return made

        while True:
            text = generate_key()
            new = key_row(text, found.name, Role.from_key(found.role), by, found.expires_at, found.kind)
            operation.entry.after = audit_values(new)
            with contextlib.suppress(api_keys.PrefixInUse):
                made = await operation.database.transaction(partial(replace, new=new))
                self._keys.clear()
                self._sessions.clear()
                return made, text

    async def authenticate(self, text: str) -> Caller | None:
        """Return the caller with this key; None if the key is unknown, expired or revoked."""
        prefix = self.find_prefix(text)
        if prefix is None:
            return None
        known = await self._keys.get(prefix, lambda: self._load_key(prefix))
        if known is None:
            self._recently_valid.pop(digest(text), None)
            return None
        if not hmac.compare_digest(digest(text), known.digest):  # guard: api_keys.whole_key
            return None
        self._remember_valid(known.digest)
        if known.needs_use_update and self._keys.claim_mark(prefix):
            self._run_in_background(self._mark_used(known))
        return _caller_of(known)

    async def create_initial_key(self, home: Path) -> tuple[Path, str] | None:
        """If there has never been a key, create an admin key and write it to a file that only the owner can read.

        The file is written before the row, so after a crash in between the next start uses the key in the file. Of
        several processes that start at the same time, one creates the key.
        """
        caller = OperationCaller(lambda: Actor.system("tenuto"), is_audited=True, source="start")
        operation = await self.for_caller(caller)._begin("key.first", target="admin")

        async def make(connection: Connection) -> tuple[Path, str] | None:
            if not await api_keys.lock_if_no_key_exists(connection):
                return None
            path, text = _find_or_create_key_file(home)
            if _KEY_PATTERN.fullmatch(text) is None:
                raise _invalid_key_file(f"the key file {path} does not contain an API key")
            new = key_row(text, "admin", Role.ADMIN, "tenuto", None, "initial")
            operation.entry.after = audit_values(new)
            if await api_keys.insert_key(connection, new) is None:
                raise _invalid_key_file(f"the API key in {path} cannot be used")
            return path, text

        return await operation.database.transaction(make)

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def create_link(self, caller_or_key: Caller | str) -> str:
        """Create a link that opens one browser session for a key within ten minutes."""
        if isinstance(caller_or_key, Caller):
            name, key = caller_or_key.actor.name, _key_of(caller_or_key)
        else:
            found = await self.get(caller_or_key)
            name, key = found.name, found.id
        text, id = f"tnl_{secrets.token_urlsafe(32)}", new_id()
        operation = await self._begin("key.link", target=name)

        async def make(connection: Connection) -> bool:
            return await api_keys.create_login_link(connection, id, key, digest(text), LINK_LIFETIME)

        if not await operation.database.transaction(make):
            raise Conflict(
                f"the API key {name!r} is revoked or has expired",
                code="api_key.inactive",
                field="key",
                remedy="create a new key",
            )
        return text

    async def redeem_link(self, link: str, *, browser: str | None = None) -> tuple[str, Caller] | None:
        """Exchange a link for a session, once, and return the session token and the caller."""
        if _LINK_PATTERN.fullmatch(link) is None:
            return None
        token = generate_session_token()
        operation = await self._begin("session.open")
        new = new_session(token, operation, browser)

        async def redeem(connection: Connection) -> None:
            operation.entry.target = await api_keys.redeem_login_link(connection, digest(link), new)

        await operation.database.transaction(redeem)
        # Read back instead of counting rows: after a lost reply only the session itself is evidence.
        caller = await self.authenticate_session(token)
        return None if caller is None else (token, caller)

    async def open_session(self, caller: Caller, *, browser: str | None = None) -> tuple[str, Caller] | None:
        """Open a browser session for the key of a caller; return its token and the caller, None if the key ended."""
        token, id = generate_session_token(), new_id()
        operation = await self._begin("session.open", target=caller.actor.name)
        key, new = _key_of(caller), new_session(token, operation, browser)

        async def open_session(connection: Connection) -> None:
            await api_keys.open_session(connection, id, key, new)

        await operation.database.transaction(open_session)
        opened = await self.authenticate_session(token)
        return None if opened is None else (token, opened)

    async def sessions(self, key: UUID | None = None, *, limit: int = MAX_LIMIT) -> Sequence[SessionRecord]:
        """List the open browser sessions of a key, or of all keys, last used ones first."""
        return await api_keys.list_sessions(await self._open(), key, check_limit(limit))

    async def end_session_by_id(self, id: UUID, *, key: UUID | None = None) -> None:
        """End an open session, effective within a second; with ``key`` only a session of that key."""
        operation = await self._begin("session.end")

        async def end(connection: Connection) -> None:
            operation.entry.target = await api_keys.end_session_by_id(connection, id, key)
            if operation.entry.target is None:
                raise NotFound(
                    f"there is no open session {id}",
                    code="session.not_found",
                    remedy="see `tenuto session list`",
                )

        await operation.database.transaction(end)
        self._sessions.clear()

    async def end_other_sessions(self, key: UUID, *, kept: UUID | None = None) -> int:
        """End all open sessions of a key but one, effective within a second; return their number."""
        operation = await self._begin("session.end")

        async def end(connection: Connection) -> int:
            count = await api_keys.end_other_sessions(connection, key, kept)
            operation.entry.target, operation.entry.after = operation.actor.name, {"ended_sessions": count}
            return count

        ended = await operation.database.transaction(end)
        self._sessions.clear()
        return ended

    async def authenticate_session(self, token: str) -> Caller | None:
        """Return the caller of a session; None if the session or its key has ended."""
        if _SESSION_PATTERN.fullmatch(token) is None:
            return None
        token_digest = digest(token)
        caller = await self._sessions.get(token_digest, lambda: self._load_session(token_digest))
        if caller is None:
            self._recently_valid.pop(token_digest, None)
        else:
            self._remember_valid(token_digest)
        return caller

    @staticmethod
    def find_prefix(text: str) -> str | None:
        """Return the prefix of a text that has the form of a key, which names the key without proving anything."""
        shape = _KEY_PATTERN.fullmatch(text)
        return None if shape is None else shape[1]

    async def has_prefix(self, prefix: str) -> bool:
        """Return whether an active key has this prefix. The prefixes are read once per second at most, so that a flood
        of unknown keys causes no lookups."""
        if monotonic_seconds() > self._prefixes_read_at + _PREFIX_CACHE_SECONDS:
            self._prefixes_read_at = monotonic_seconds()
            self._prefixes = await api_keys.list_active_prefixes(await self._open_shared())
        return prefix in self._prefixes

    def was_recently_valid(self, text: str) -> bool:
        """Return whether this key or session was valid at its last check in this process.

        This grants no access. It separates known callers from random attempts at no cost.
        """
        return digest(text) in self._recently_valid

    async def end_session(self, token: str) -> None:
        """End a session."""
        if _SESSION_PATTERN.fullmatch(token) is not None:
            operation = await self._begin("session.close")
            await api_keys.end_session(operation.database, digest(token))
            self._sessions.remove(digest(token))

    # --- internals --------------------------------------------------------------------------------------------------

    async def _load_key(self, prefix: str) -> api_keys.ActiveKey | None:
        return await api_keys.load_active_key(await self._open_shared(), prefix)

    def _remember_valid(self, digest: bytes) -> None:
        if digest not in self._recently_valid:
            if len(self._recently_valid) >= _MAX_CACHE_ENTRIES:
                del self._recently_valid[next(iter(self._recently_valid))]  # the one that came first
            self._recently_valid[digest] = None

    async def _load_session(self, digest: bytes) -> Caller | None:
        found = await api_keys.load_session_key(await self._open_shared(), digest)
        if found is None:
            return None
        if found.needs_use_update:
            self._run_in_background(self._prolong(found))
        return _caller_of(found, found.session_id)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)

    async def _prolong(self, session: api_keys.SessionKey) -> None:
        try:
            await api_keys.prolong_session(await self._open_shared(), session.session_id, SESSION_IDLE_LIFETIME)
        except TenutoError as error:
            log.debug("session use not recorded", key=session.name, error=str(error))

    async def _mark_used(self, key: api_keys.ActiveKey) -> None:
        try:
            await api_keys.record_use(await self._open_shared(), key.id)
        except TenutoError as error:
            log.debug("API key use not recorded", key=key.name, error=str(error))


class _LookupCache(Generic[T]):
    """Short-lived cache of lookups; concurrent lookups of one key share one query."""

    def __init__(self) -> None:
        self._results: dict[str | bytes, tuple[float, T]] = {}
        self._pending: dict[str | bytes, tuple[float, asyncio.Task[T | None]]] = {}
        self._marked: set[str] = set()

    async def get(self, key: str | bytes, query: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        """Return the cached result, the result of a pending query, or that of a new query."""
        cached, now = self._results.get(key), monotonic_seconds()
        if cached is not None and now - cached[0] < CACHE_SECONDS:
            return cached[1]
        loop = asyncio.get_running_loop()
        started_at, pending = self._pending.get(key, (now, None))
        if pending is None or pending.get_loop() is not loop or now - started_at >= CACHE_SECONDS:
            pending = loop.create_task(self._query(key, query, now))
            self._pending[key] = (now, pending)
        return await asyncio.shield(pending)

    async def _query(
        self, key: str | bytes, query: Callable[[], Coroutine[Any, Any, T | None]], now: float
    ) -> T | None:
        try:
            found = await query()
            if found is not None and self._is_current_query(key):
                self._store(key, found, now)
            return found
        finally:
            if self._is_current_query(key):
                del self._pending[key]

    def _is_current_query(self, key: str | bytes) -> bool:
        """Whether the running query is the current one; after `clear` a late result is not stored."""
        return key in self._pending and self._pending[key][1] is asyncio.current_task()

    def _store(self, key: str | bytes, value: T, queried_at: float) -> None:
        if len(self._results) >= _MAX_CACHE_ENTRIES:
            self._results.clear()
            self._marked.clear()
        self._results[key] = (queried_at, value)
        if isinstance(key, str):
            self._marked.discard(key)

    def claim_mark(self, key: str) -> bool:
        """Return True once per cached result."""
        if key in self._marked:
            return False
        self._marked.add(key)
        return True

    def remove(self, key: str | bytes) -> None:
        self._results.pop(key, None)
        self._pending.pop(key, None)

    def clear(self) -> None:
        self._results.clear()
        self._pending.clear()
        self._marked.clear()


def generate_key() -> str:
    """Return the text of a new key."""
    prefix = "".join(secrets.choice(_PREFIX_CHARACTERS) for _ in range(8))
    return f"tnt_{prefix}_{secrets.token_urlsafe(32)}"


def generate_session_token() -> str:
    """Return a new token: every login has its own, so that a token from before a login is never valid after it."""
    return f"tns_{secrets.token_urlsafe(32)}"


def new_session(token: str, operation: Operation, browser: str | None) -> api_keys.NewSession:
    """Return the row for a new browser session."""
    return api_keys.NewSession(
        digest(token),
        SESSION_IDLE_LIFETIME,
        MAX_SESSION_LIFETIME,
        operation.context.source,
        None if browser is None else validation.INVISIBLE_CHARACTERS.sub("", browser)[:_MAX_BROWSER_LENGTH],
    )


def _caller_of(key: api_keys.ActiveKey | api_keys.SessionKey, session_id: UUID | None = None) -> Caller:
    """Return the caller with a key: a user if the key belongs to a person."""
    make_actor = Actor.user if key.kind == "person" else Actor.api_key
    return Caller(
        make_actor(str(key.id), key.name),
        key.role,
        via_session=session_id is not None,
        key_id=key.id,
        session_id=session_id,
        is_initial_key=key.kind == "initial",
    )


def _key_of(caller: Caller) -> UUID:
    if caller.key_id is not None:
        return caller.key_id
    if caller.actor.type == ActorType.API_KEY and caller.actor.id is not None:
        return UUID(caller.actor.id)
    raise Invalid(
        f"the caller {caller.actor.name!r} has no API key",
        code="api_key.required",
        field="key",
        remedy="name a key; see `tenuto key list`",
    )


def _inactive_key_error(key: ApiKeyRecord, state: str) -> Conflict:
    return Conflict(
        f"the API key {key.name} ({key.prefix}) is {state}",
        code="api_key.inactive",
        field="key",
        remedy="create a new one with `tenuto key add`",
    )


def key_row(
    text: str,
    name: str,
    role: Role,
    by: str,
    expires_at: datetime | None,
    kind: KeyKind,
    *,
    id: UUID | None = None,
) -> api_keys.NewKey:
    """Return the row of a new key."""
    shape = _KEY_PATTERN.fullmatch(text)
    assert shape is not None
    return api_keys.NewKey(id or new_id(), name, shape[1], digest(text), role, by, expires_at, kind)


def audit_values(new: api_keys.NewKey) -> dict[str, Any]:
    """Return what the audit log says about a new key."""
    return {
        "prefix": new.prefix,
        "role": new.role.key,
        "kind": new.kind,
        "expires_at": new.expires_at and new.expires_at.isoformat(),
    }


def digest(text: str) -> bytes:
    """Return what is stored of a secret text."""
    return hashlib.sha256(text.encode()).digest()


def _check_expiry(expires_at: datetime | None, now: datetime) -> None:
    check_instant(expires_at, field="expires_at")
    if expires_at is not None and expires_at <= now:
        raise Invalid(
            f"expires_at {expires_at.isoformat()} is in the past",
            code="api_key.expires_at.past",
            field="expires_at",
            remedy="give a future instant",
        )


def replace_in_key_file(home: Path, old_prefix: str, text: str) -> Path | None:
    """Write a new key to the key file of the home directory if the file has the old key; return the file if so."""
    path = home / INITIAL_KEY_FILE
    if not has_key_file_of(home, old_prefix):
        return None
    path.unlink()
    _write_key_file(path, text)
    return path


def has_key_file_of(home: Path, prefix: str) -> bool:
    """Return whether the key file of the home directory has the key with this prefix."""
    path = home / INITIAL_KEY_FILE
    if path.is_symlink() or not path.exists():
        return False
    shape = _KEY_PATTERN.fullmatch(_read_key_file(path))
    return shape is not None and shape[1] == prefix


# --- initial key file -----------------------------------------------------------------------------------------------


def _find_or_create_key_file(home: Path) -> tuple[Path, str]:
    """Return the key file and its text; create the file if it does not exist."""
    path = home / INITIAL_KEY_FILE
    home.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink() and not path.exists():
        _write_key_file(path, generate_key())
    return path, _read_key_file(path)


def _write_key_file(path: Path, text: str) -> None:
    """Write a temporary file and link it, which never replaces a file of another process."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fchmod(handle, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink()


def _read_key_file(path: Path) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise _invalid_key_file(f"the key file {path} cannot be read: {error.strerror}") from error
    with os.fdopen(handle, encoding="ascii", errors="replace") as file:
        state = os.fstat(file.fileno())
        if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o077 or not stat.S_ISREG(state.st_mode):
            raise Conflict(
                f"the key file {path} belongs to another user or is accessible to others",
                code="api_key.file.exposed",
                remedy=f"move it away and start again, or run chmod 600 {path}",
            )
        return file.read(1000).strip()


def _invalid_key_file(message: str) -> Conflict:
    return Conflict(message, code="api_key.file.invalid", remedy="move the file away and start again")
