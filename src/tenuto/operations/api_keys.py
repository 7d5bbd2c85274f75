"""The file the first key is written to: whole or not at all, for its owner's eyes only, never over another one.

``app.keys``: who may ask, shown by a key or by a browser's session.

A key is random and long, so its plain SHA-256 is as good as a slow hash and costs a request nothing. The text is seen
once, by whoever makes it; what is stored finds and proves it, and cannot be turned back. An answer about a key is
remembered for less than a second: so long at most does a revoked one still open a door.
"""

from __future__ import annotations

import asyncio
import contextvars
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
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID

from tenuto.clock import steady
from tenuto.errors import Conflict, Invalid, NotFound, TenutoError
from tenuto.ids import new_id
from tenuto.logs import Log
from tenuto.model import stored_values
from tenuto.model.actors import Actor, ActorType, Caller, Role
from tenuto.operations.listing import MAX_LISTED, Open, Record, listed
from tenuto.postgres.database import Connection
from tenuto.store.access import api_keys, audit_recorder

NAME = "admin.key"


def keep(home: Path, make: Callable[[], str]) -> tuple[Path, str]:
    """The file, and the text that stands in it now: the one that was there already, or a new one."""
    path = home / NAME
    home.mkdir(parents=True, exist_ok=True)
    if not path.is_symlink() and not path.exists():
        _write(path, make())
    return path, _read(path)


def _write(path: Path, text: str) -> None:
    """By way of a file of its own and a link, which never replaces what another has written meanwhile."""
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


def _read(path: Path) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise Conflict(f"{path} cannot be read: {error.strerror}", remedy="move it away, and start again") from error
    with os.fdopen(handle, encoding="ascii", errors="replace") as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077 or not stat.S_ISREG(about.st_mode):
            raise Conflict(
                f"{path} may be read by others, or is somebody else's",
                remedy=f"move it away and start again, or chmod 600 {path}",
            )
        return file.read(1000).strip()


LINK_LASTS = timedelta(minutes=10)
SESSION_LASTS = timedelta(hours=12)
REMEMBERED = 0.8
"""How many seconds an answer is good for, counted from before it was asked for."""
_MOST_REMEMBERED = 10_000
_PREFIX_LETTERS = string.ascii_lowercase + string.digits
_KEY = re.compile(r"tnt_([a-z0-9]{8})_[A-Za-z0-9_-]{43}")
_LINK = re.compile(r"tnl_[A-Za-z0-9_-]{43}")
_SESSION = re.compile(r"tns_[A-Za-z0-9_-]{43}")

log = Log("tenuto.keys")

T = TypeVar("T")


class Keys:
    """``app.keys``: API keys, and the browser sessions they open."""

    def __init__(self, open: Open, who: Callable[[], Actor]) -> None:
        self._open = open
        self._who = who
        self._keys: _Remembered[api_keys.InForce] = _Remembered()
        self._sessions: _Remembered[Caller] = _Remembered()
        self._let_in: dict[bytes, None] = {}
        self._beside: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """What is still being written beside the requests is finished or let go."""
        self._keys.clear()
        self._sessions.clear()
        ours = [task for task in self._beside if task.get_loop() is asyncio.get_running_loop()]
        if ours:
            await asyncio.wait(ours, timeout=2)
            for task in ours:
                task.cancel()

    # --- keys -------------------------------------------------------------------------------------------------------

    async def make(self, name: str, role: Role, *, expires_at: datetime | None = None) -> tuple[Record, str]:
        """Make a key: what is on record of it, and its text, which nobody will see again."""
        stored_values.name(name, field="name")
        database = await self._open()
        _check_end(expires_at, database.clock.now())
        by = self._who().name
        while True:
            text = _new_key()
            new = _as_row(text, name, role, by, expires_at)
            audit_recorder.tell(target=name, after=_told(new))
            made = await database.transaction(partial(api_keys.make, new=new))
            if made is not None:
                return made, text

    async def list(self, *, after: api_keys.Place | None = None, limit: int = MAX_LISTED) -> Sequence[Record]:
        """Keys, those in use first, by name; never their texts. The next page is ``after`` the last (whether it is
        revoked, name, id)."""
        return await api_keys.list_keys(await self._open(), after, listed(limit))

    async def get(self, name_or_prefix: str) -> Record:
        """What is on record of one key."""
        if not isinstance(name_or_prefix, str) or not 1 <= len(name_or_prefix) <= 200 or "\x00" in name_or_prefix:
            raise Invalid("must be the name or the prefix of a key", field="key", remedy="see `tenuto key list`")
        prefix = name_or_prefix.removeprefix("tnt_")
        found = await api_keys.called(await self._open(), name_or_prefix, prefix)
        if not found:
            raise NotFound(f"there is no key {name_or_prefix}", remedy="see `tenuto key list`")
        if len(found) > 1:
            raise Conflict(
                f"{name_or_prefix} is the name of one key and the prefix of another",
                field="key",
                remedy="use the other one's name, or this one's prefix",
            )
        return found[0]

    async def revoke(self, name_or_prefix: str) -> Record:
        """End a key and its sessions: within a second nothing opens with it any more. What is on record of it."""
        found = await self.get(name_or_prefix)
        audit_recorder.tell(target=found["name"], before={"revoked": False}, after={"revoked": True})
        by, database = self._who().name, await self._open()
        await database.transaction(lambda connection: api_keys.revoke(connection, found["id"], by))
        self._keys.clear()
        self._sessions.clear()
        return await self.get(found["prefix"])

    async def check(self, text: str) -> Caller | None:
        """Who shows this key; None if it is none, wrong, expired or revoked."""
        shape = _KEY.fullmatch(text)
        if shape is None:
            return None
        prefix = shape[1]
        known = await self._keys.recall(prefix, lambda: self._in_force(prefix))
        if known is None:
            self._let_in.pop(_digest(text), None)
            return None
        if not hmac.compare_digest(_digest(text), known.digest):
            return None
        self._note_let_in(known.digest)
        if known.to_be_marked and self._keys.first_to_mark(prefix):
            self._do_beside(self._mark_used(known))
        return Caller(Actor.api_key(str(known.id), known.name), known.role)

    async def first(self, home: Path) -> tuple[Path, str] | None:
        """If there never was a key: make one that may do everything, and write it where only the owner reads it.

        The file comes before the row: should the process die in between, the next start takes the key in the file. Of
        several that start at once, one makes the key.
        """
        database = await self._open()

        async def make(connection: Connection) -> tuple[Path, str] | None:
            if not await api_keys.there_is_none(connection):
                return None
            path, text = keep(home, _new_key)
            if _KEY.fullmatch(text) is None:
                raise Conflict(f"{path} holds no key of ours", remedy="move it away, and start again")
            new = _as_row(text, "admin", Role.ADMIN, "tenuto", None)
            audit_recorder.tell(target="admin", after=_told(new))
            if await api_keys.make(connection, new) is None:
                raise Conflict(f"the key in {path} cannot be used", remedy="move it away, and start again")
            return path, text

        with audit_recorder.on_record(audit_recorder.Deed(Actor.system("tenuto"), "key.first", "start")):
            return await database.transaction(make)

    # --- sessions ---------------------------------------------------------------------------------------------------

    async def link(self, caller_or_key: Caller | str) -> str:
        """What opens a browser's session, once and within ten minutes, on the account of a key."""
        if isinstance(caller_or_key, Caller):
            name = caller_or_key.actor.name
            if caller_or_key.actor.type != ActorType.API_KEY:
                raise Invalid(f"{name} has no key", field="key", remedy="name a key; `tenuto key list` shows them")
            key = UUID(caller_or_key.actor.id)
        else:
            found = await self.get(caller_or_key)
            name, key = found["name"], found["id"]
        text, id = f"tnl_{secrets.token_urlsafe(32)}", new_id()
        audit_recorder.tell(target=name)
        database = await self._open()

        async def make(connection: Connection) -> bool:
            return await api_keys.make_link(connection, id, key, _digest(text), LINK_LASTS)

        if not await database.transaction(make):
            raise Conflict(f"the key {name} is revoked or has expired", field="key", remedy="make a new one")
        return text

    async def follow(self, link: str) -> tuple[str, Caller] | None:
        """Turn a link into a session: what the browser is to hold, and who it is. Once, whoever else comes."""
        if _LINK.fullmatch(link) is None:
            return None
        token = f"tns_{secrets.token_urlsafe(32)}"
        await api_keys.follow(await self._open(), _digest(link), _digest(token), SESSION_LASTS)
        # Asked for, not concluded from the number of rows: of a lost reply only the session itself tells.
        caller = await self.session(token)
        return None if caller is None else (token, caller)

    async def session(self, token: str) -> Caller | None:
        """Whose session this is; None if it is none or has ended, or its key has."""
        if _SESSION.fullmatch(token) is None:
            return None
        digest = _digest(token)
        caller = await self._sessions.recall(digest, lambda: self._of_session(digest))
        if caller is None:
            self._let_in.pop(digest, None)
        else:
            self._note_let_in(digest)
        return caller

    def has_let_in(self, text: str) -> bool:
        """Whether this key or session was in force when it was last asked about here. It lets nobody in: it tells those
        who are worth asking about from those who try their luck, at no cost."""
        return _digest(text) in self._let_in

    async def leave(self, token: str) -> None:
        """End a session."""
        if _SESSION.fullmatch(token) is not None:
            await api_keys.end_session(await self._open(), _digest(token))
            self._sessions.forget(_digest(token))

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _in_force(self, prefix: str) -> api_keys.InForce | None:
        return await api_keys.in_force(await self._open(), prefix)

    def _note_let_in(self, digest: bytes) -> None:
        if digest not in self._let_in:
            if len(self._let_in) >= _MOST_REMEMBERED:
                del self._let_in[next(iter(self._let_in))]  # the one that came first
            self._let_in[digest] = None

    async def _of_session(self, digest: bytes) -> Caller | None:
        found = await api_keys.of_session(await self._open(), digest)
        if found is None:
            return None
        id, name, role = found
        return Caller(Actor.api_key(str(id), name), role, session=True)

    def _do_beside(self, work: Coroutine[Any, Any, None]) -> None:
        # In a context of its own: the deed of a request must not be written down for a mark that is nobody's deed.
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _mark_used(self, key: api_keys.InForce) -> None:
        try:
            await api_keys.mark_used(await self._open(), key.id)
        except TenutoError as error:
            log.debug("the last use of a key was not noted", key=key.name, error=str(error))


class _Remembered(Generic[T]):
    """Answers that are good for a moment. Of many who ask at once, as streams do that were woken together, one asks
    the database."""

    def __init__(self) -> None:
        self._answers: dict[str | bytes, tuple[float, T]] = {}
        self._asking: dict[str | bytes, tuple[float, asyncio.Task[T | None]]] = {}
        self._marked: set[str] = set()

    async def recall(self, key: str | bytes, ask: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        """The answer: one that is still good, one that is on its way, or a new one."""
        answer, now = self._answers.get(key), steady()
        if answer is not None and now - answer[0] < REMEMBERED:
            return answer[1]
        loop = asyncio.get_running_loop()
        began, asking = self._asking.get(key, (now, None))
        if asking is None or asking.get_loop() is not loop or now - began >= REMEMBERED:
            asking = loop.create_task(self._ask(key, ask, now), context=contextvars.Context())
            self._asking[key] = (now, asking)
        return await asyncio.shield(asking)

    async def _ask(self, key: str | bytes, ask: Callable[[], Coroutine[Any, Any, T | None]], now: float) -> T | None:
        try:
            found = await ask()
            if found is not None and self._is_wanted(key):
                self._remember(key, found, now)
            return found
        finally:
            if self._is_wanted(key):
                del self._asking[key]

    def _is_wanted(self, key: str | bytes) -> bool:
        """Whether the one that asks now is still to: after `clear` an answer that was on its way is not kept."""
        return key in self._asking and self._asking[key][1] is asyncio.current_task()

    def _remember(self, key: str | bytes, value: T, asked_at: float) -> None:
        if len(self._answers) >= _MOST_REMEMBERED:
            self._answers.clear()
            self._marked.clear()
        self._answers[key] = (asked_at, value)
        if isinstance(key, str):
            self._marked.discard(key)

    def first_to_mark(self, key: str) -> bool:
        """Once for each answer."""
        if key in self._marked:
            return False
        self._marked.add(key)
        return True

    def forget(self, key: str | bytes) -> None:
        self._answers.pop(key, None)
        self._asking.pop(key, None)

    def clear(self) -> None:
        self._answers.clear()
        self._asking.clear()
        self._marked.clear()


def _new_key() -> str:
    prefix = "".join(secrets.choice(_PREFIX_LETTERS) for _ in range(8))
    return f"tnt_{prefix}_{secrets.token_urlsafe(32)}"


def _as_row(text: str, name: str, role: Role, by: str, expires_at: datetime | None) -> api_keys.NewKey:
    shape = _KEY.fullmatch(text)
    assert shape is not None
    return api_keys.NewKey(new_id(), name, shape[1], _digest(text), role, by, expires_at)


def _told(new: api_keys.NewKey) -> Record:
    """What the audit trail says of a new key."""
    return {"prefix": new.prefix, "role": new.role.word, "expires_at": new.expires_at and new.expires_at.isoformat()}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _check_end(expires_at: datetime | None, now: datetime) -> None:
    if expires_at is None:
        return
    if not isinstance(expires_at, datetime) or expires_at.tzinfo is None:
        raise Invalid("must be an instant with a zone", field="expires_at", remedy="write it as 2031-12-25T00:00:00Z")
    if expires_at <= now:
        raise Invalid(f"{expires_at.isoformat()} is past", field="expires_at", remedy="give an instant to come")
