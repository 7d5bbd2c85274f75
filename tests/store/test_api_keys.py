"""API keys and sessions: accepted, revoked, expired; only digests are stored."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import stat
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.model.access.actors import Actor, Caller, Role
from tenuto.operations.admin.api_keys import CACHE_SECONDS, has_key_file_of, replace_in_key_file
from tenuto.postgres.database import Database
from tenuto.store.access import api_keys
from tests.support.errors import raises_code
from tests.support.waiting import eventually

WHO = Actor.user("eve")
WHO_ID = UUID(int=7)


async def wait_until_cache_expires(is_rejected: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the cache of the key has expired, which takes less than a second."""
    since, in_vain = monotonic_seconds(), list[float]()

    async def look() -> bool:
        asked = monotonic_seconds()
        if not await is_rejected():
            in_vain.append(asked - since)
            return False
        return True

    await eventually(look)
    assert max(in_vain, default=0.0) < CACHE_SECONDS < 1


async def test_api_key_is_accepted_and_only_its_digest_is_stored(app: Tenuto, db: Database) -> None:
    made, text = await app.acting_as(WHO).api_keys.create("deploy", Role.EDITOR)

    assert re.fullmatch(r"tnt_[a-z0-9]{8}_[A-Za-z0-9_-]{43}", text)
    assert made.prefix == text[4:12]
    assert (made.name, made.role, made.created_by, made.expired) == ("deploy", "editor", "eve", False)
    caller = await app.api_keys.authenticate(text)
    assert caller == Caller(Actor.api_key(str(made.id), "deploy"), Role.EDITOR)
    row = await db.fetch_one("SELECT api_keys::text AS whole, digest FROM tenuto.api_keys")
    assert row is not None
    assert row["digest"] == hashlib.sha256(text.encode()).digest()
    assert text[13:] not in row["whole"]
    assert not hasattr(made, "digest")
    assert not hasattr((await app.api_keys.list())[0], "digest")


async def test_invalid_api_key_is_rejected(app: Tenuto) -> None:
    _, text = await app.api_keys.create("deploy", Role.ADMIN)
    other = text[:-1] + ("A" if text[-1] != "A" else "B")
    for wrong in (
        "", "tnt_", text[:-1], text + "A", text.upper(), other, f" {text}", f"{text}\n", "tnt_aaaaaaaa_" + text[13:],
        text.replace("tnt_", "tns_"), "é" * 56, "\x00" * 56, text[:13] + "'" * 43, "x" * 1_000_000,
    ):  # fmt: skip
        assert await app.api_keys.authenticate(wrong) is None
        assert await app.api_keys.authenticate_session(wrong) is None
        assert await app.api_keys.redeem_link(wrong) is None
    assert await app.api_keys.authenticate(text) is not None


async def test_revoked_key_and_its_sessions_end_within_a_second(app: Tenuto, url: str, tmp_path: Path) -> None:
    made, text = await app.api_keys.create("deploy", Role.OPERATOR)
    followed = await app.api_keys.redeem_link(await app.api_keys.create_link("deploy"))
    assert followed is not None
    link = await app.api_keys.create_link("deploy")
    async with Tenuto(url, home=tmp_path) as elsewhere:  # another process with its own cache
        assert await elsewhere.api_keys.authenticate(text) is not None
        assert await elsewhere.api_keys.authenticate_session(followed[0]) is not None

        ended = await app.acting_as(WHO).api_keys.revoke("deploy")

        assert ended.revoked_by == "eve"
        assert await app.api_keys.authenticate(text) is None  # at once in this process
        assert await app.api_keys.authenticate_session(followed[0]) is None
        assert await app.api_keys.redeem_link(link) is None

        async def is_rejected() -> bool:
            return (
                await elsewhere.api_keys.authenticate(text) is None
                and await elsewhere.api_keys.authenticate_session(followed[0]) is None
            )

        await wait_until_cache_expires(is_rejected)
    with raises_code("api_key.inactive", Conflict):
        await app.api_keys.create_link(made.prefix)
    again = await app.api_keys.revoke(made.prefix)  # a second time changes nothing
    assert again.revoked_at == ended.revoked_at
    with pytest.raises(NotFound):
        await app.api_keys.revoke("deploy")
    assert (await app.api_keys.create("deploy", Role.VIEWER))[0].prefix != made.prefix  # the name is free again


async def test_key_and_its_sessions_end_at_expiry(app: Tenuto, db: Database) -> None:
    now = db.clock.now()
    _, text = await app.api_keys.create("brief", Role.VIEWER, expires_at=now + timedelta(hours=1))
    followed = await app.api_keys.redeem_link(await app.api_keys.create_link("brief"))
    assert followed is not None
    assert await app.api_keys.authenticate(text) is not None
    await db.fetch_all("UPDATE tenuto.api_keys SET expires_at = clock_timestamp()")

    async def is_rejected() -> bool:
        return (
            await app.api_keys.authenticate(text) is None
            and await app.api_keys.authenticate_session(followed[0]) is None
        )

    await wait_until_cache_expires(is_rejected)
    assert (await app.api_keys.list())[0].expired
    with raises_code("api_key.inactive", Conflict):
        await app.api_keys.create_link("brief")
    for wrong in (now - timedelta(seconds=1), (now + timedelta(days=1)).replace(tzinfo=None), "tomorrow"):
        with pytest.raises(Invalid) as caught:
            await app.api_keys.create("other", Role.VIEWER, expires_at=wrong)  # type: ignore[arg-type]
        assert caught.value.field == "expires_at"


async def test_key_names_are_validated_and_unique(app: Tenuto) -> None:
    made = await asyncio.gather(*(app.api_keys.create("ci", Role.VIEWER) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(one, tuple) for one in made) == 1
    assert sum(isinstance(one, Conflict) for one in made) == 4
    for wrong in ("", "a b", "x" * 201, "é", "a\x00"):
        with raises_code("value.name.invalid", Invalid):
            await app.api_keys.create(wrong, Role.VIEWER)
    for unknown in ("unknown", "tnt_unknownx", "' OR 1=1 --"):
        with pytest.raises(NotFound):
            await app.api_keys.get(unknown)
    for nothing in ("", "x" * 201, "\x00"):
        with pytest.raises(Invalid):
            await app.api_keys.get(nothing)
    prefix = (await app.api_keys.get("ci")).prefix
    await app.api_keys.create(prefix, Role.VIEWER)
    with raises_code("api_key.name.ambiguous", Conflict):
        await app.api_keys.revoke(prefix)


async def test_key_creation_with_a_lost_reply_creates_one_key(app: Tenuto, db: Database) -> None:
    await app.api_keys.create("first", Role.VIEWER)
    row = await db.fetch_one("SELECT id, name, prefix, digest FROM tenuto.api_keys")
    assert row is not None
    same = api_keys.NewKey(row["id"], row["name"], row["prefix"], row["digest"], Role.VIEWER, "app")
    assert await db.transaction(lambda connection: api_keys.insert_key(connection, same)) is not None
    taken = api_keys.NewKey(WHO_ID, "second", row["prefix"], b"x", Role.VIEWER, "app")
    assert await db.transaction(lambda connection: api_keys.insert_key(connection, taken)) is None


async def test_last_use_of_a_key_is_stored_once_a_minute_without_audit_entry(app: Tenuto, db: Database) -> None:
    _, text = await app.api_keys.create("deploy", Role.VIEWER)

    async def last_used() -> Any:
        return (await app.api_keys.get("deploy")).last_used_at

    acting = app.acting_as(WHO)
    await asyncio.gather(*(acting.api_keys.authenticate(text) for _ in range(20)))
    is_stored = await eventually(last_used)
    assert await db.fetch_value("SELECT count(*) FROM tenuto.audit") == 0
    app.api_keys._keys.clear()
    await app.api_keys.authenticate(text)
    await asyncio.gather(*app.api_keys._background_tasks)
    assert await last_used() == is_stored
    await db.fetch_all("UPDATE tenuto.api_keys SET last_used_at = last_used_at - interval '61 seconds'")
    app.api_keys._keys.clear()
    await app.api_keys.authenticate(text)
    assert await eventually(lambda: _is_later(last_used, is_stored))


async def _is_later(ask: Any, than: datetime) -> bool:
    now: datetime = await ask()
    return now > than


async def test_key_check_does_not_wait_for_storing_the_last_use(app: Tenuto, db: Database, url: str) -> None:
    _, text = await app.api_keys.create("deploy", Role.VIEWER)
    holder = await asyncpg.connect(url)
    async with holder.transaction():
        await holder.execute("SELECT FROM tenuto.api_keys FOR UPDATE")
        assert (
            await asyncio.wait_for(app.api_keys.authenticate(text), 8) is not None
        )  # less than the lock timeout of 10 s
        assert (await app.api_keys.get("deploy")).last_used_at is None
    await holder.close()

    async def is_stored() -> bool:
        return (await app.api_keys.get("deploy")).last_used_at is not None

    await eventually(is_stored)


async def test_login_link_creates_one_session_for_concurrent_requests(app: Tenuto, db: Database) -> None:
    made, _ = await app.api_keys.create("deploy", Role.OPERATOR)
    caller = Caller(Actor.api_key(str(made.id), "deploy"), Role.OPERATOR)
    link = await app.api_keys.create_link(caller)

    opened = [
        one for one in await asyncio.gather(*(app.api_keys.redeem_link(link) for _ in range(20))) if one is not None
    ]

    assert len(opened) == 1
    token, who = opened[0]
    assert who == Caller(caller.actor, Role.OPERATOR, via_session=True)
    assert await app.api_keys.authenticate_session(token) == who
    assert await app.api_keys.redeem_link(link) is None
    whole = await db.fetch_value("SELECT string_agg(sessions::text, ' ') FROM tenuto.sessions")
    assert link not in whole
    assert token not in whole
    await app.api_keys.end_session(token)
    assert await app.api_keys.authenticate_session(token) is None
    await app.api_keys.end_session(token)
    await app.api_keys.end_session("nonsense")
    with raises_code("api_key.required", Invalid):
        await app.api_keys.create_link(Caller(WHO, Role.ADMIN))


async def test_login_links_and_sessions_expire_and_are_deleted(app: Tenuto, db: Database) -> None:
    await app.api_keys.create("deploy", Role.OPERATOR)
    late = await app.api_keys.create_link("deploy")
    followed = await app.api_keys.redeem_link(await app.api_keys.create_link("deploy"))
    assert followed is not None
    lasts = await db.fetch_one(
        "SELECT max(expires_at - clock_timestamp()) FILTER (WHERE link IS NOT NULL) AS link,"
        " max(expires_at - clock_timestamp()) FILTER (WHERE token IS NOT NULL) AS session FROM tenuto.sessions"
    )
    assert lasts is not None
    assert timedelta(minutes=9) < lasts["link"] <= timedelta(minutes=10)
    assert timedelta(hours=11) < lasts["session"] <= timedelta(hours=12)
    await db.fetch_all("UPDATE tenuto.sessions SET expires_at = clock_timestamp()")
    assert await app.api_keys.redeem_link(late) is None

    async def is_rejected() -> bool:
        return await app.api_keys.authenticate_session(followed[0]) is None

    await wait_until_cache_expires(is_rejected)
    assert await api_keys.delete_old_sessions(db, db.clock.now() + timedelta(seconds=1), 10) == 2


async def test_first_start_creates_one_admin_key_file_for_the_owner(app: Tenuto, url: str, tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("a", "b", "c")]
    async with contextlib.AsyncExitStack() as stack:
        apps = [app] + [await stack.enter_async_context(Tenuto(url, home=home)) for home in homes[1:]]
        made = await asyncio.gather(
            *(one.api_keys.create_initial_key(home) for one, home in zip(apps, homes, strict=True))
        )
    [(path, text)] = [one for one in made if one is not None]

    assert path.name == "admin.key"
    assert path.read_text() == f"{text}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sum((home / "admin.key").exists() for home in homes) == 1
    assert [file.name for file in path.parent.iterdir()] == ["admin.key"]
    caller = await app.api_keys.authenticate(text)
    assert caller is not None
    assert caller.has_role(Role.ADMIN)
    assert await app.api_keys.create_initial_key(path.parent) is None
    await app.api_keys.revoke("admin", allow_last_admin=True)
    assert await app.api_keys.create_initial_key(path.parent) is None  # not after the key was revoked


async def test_interrupted_first_start_continues_with_the_key_in_the_file(app: Tenuto, tmp_path: Path) -> None:
    left = f"tnt_abcdefgh_{'x' * 43}"
    file = tmp_path / "admin.key"
    file.write_text(left)
    with raises_code("api_key.file.exposed", Conflict):
        await app.api_keys.create_initial_key(tmp_path)
    file.chmod(0o600)
    assert await app.api_keys.create_initial_key(tmp_path) == (file, left)
    assert await app.api_keys.authenticate(left) is not None


async def test_foreign_key_file_is_neither_followed_nor_overwritten(app: Tenuto, tmp_path: Path) -> None:
    target, file = tmp_path / "elsewhere", tmp_path / "admin.key"
    file.symlink_to(target)
    with raises_code("api_key.file.invalid", Conflict):
        await app.api_keys.create_initial_key(tmp_path)
    assert not target.exists()
    file.unlink()
    file.write_text("my notes")
    file.chmod(0o600)
    with raises_code("api_key.file.invalid", Conflict):
        await app.api_keys.create_initial_key(tmp_path)
    assert file.read_text() == "my notes"
    assert await app.api_keys.list() == []


def test_key_cache_lasts_less_than_a_second() -> None:
    assert CACHE_SECONDS < 1.0


async def test_last_admin_key_is_revoked_only_on_explicit_request(app: Tenuto) -> None:
    await app.api_keys.create("admin", Role.ADMIN)
    await app.api_keys.create("gone", Role.ADMIN, expires_at=(await app.open()).clock.now() + timedelta(seconds=60))
    await (await app.open()).fetch_all(
        "UPDATE tenuto.api_keys SET expires_at = clock_timestamp() - interval '1 s' WHERE name = 'gone'"
    )
    await app.api_keys.create("editor", Role.EDITOR)
    await app.api_keys.revoke("editor")
    with raises_code("api_key.last_admin", Conflict) as refusal:
        await app.api_keys.revoke("admin")
    assert "--last-admin" in (refusal.value.remedy or "")
    await app.api_keys.create("second", Role.ADMIN)
    await app.api_keys.revoke("admin")
    assert (await app.api_keys.revoke("second", allow_last_admin=True)).revoked_at is not None


async def test_concurrent_revocation_of_the_last_admin_keys_is_refused_once(app: Tenuto) -> None:
    first, _ = await app.api_keys.create("first", Role.ADMIN)
    await app.api_keys.create("second", Role.ADMIN)
    database = await app.open()
    async with database.connection() as connection, connection.transaction():
        await api_keys.lock_active_admin_keys(connection)
        await api_keys.revoke_key(connection, first.id, "ana")
        other = asyncio.create_task(app.api_keys.revoke("second"))
        await asyncio.wait([other], timeout=0.3)
    with raises_code("api_key.last_admin", Conflict):
        await other


async def test_rotated_key_keeps_name_and_role_and_the_old_one_ends(app: Tenuto, tmp_path: Path) -> None:
    before, old = await app.api_keys.create("deploy", Role.EDITOR)
    made, text = await app.api_keys.rotate("deploy")
    assert (made.name, made.role, made.id != before.id) == ("deploy", "editor", True)
    assert await app.api_keys.authenticate(old) is None
    caller = await app.api_keys.authenticate(text)
    assert caller is not None
    assert caller.actor.name == "deploy"
    with raises_code("api_key.inactive", Conflict):
        await app.api_keys.rotate(before.prefix)


async def test_key_that_is_revoked_while_it_is_rotated_is_not_replaced(app: Tenuto, db: Database) -> None:
    made, _ = await app.api_keys.create("deploy", Role.EDITOR)
    async with db.connection() as connection:
        async with connection.transaction():
            assert await api_keys.revoke_key(connection, made.id, "the other")
            rotation = asyncio.create_task(app.api_keys.rotate("deploy"))
            await eventually(lambda: has_lock_waiter(db))
        with raises_code("api_key.inactive", Conflict):
            await rotation
    [key] = await app.api_keys.list()
    assert key.revoked_by == "the other"


async def test_key_is_not_revoked_if_the_prefix_of_its_replacement_exists(app: Tenuto, db: Database) -> None:
    made, text = await app.api_keys.create("deploy", Role.EDITOR)
    new = api_keys.NewKey(UUID(int=8), "deploy", made.prefix, b"d" * 32, Role.EDITOR, "eve")
    with pytest.raises(api_keys.PrefixInUse):
        await db.transaction(lambda connection: api_keys.replace_key(connection, made.id, new))
    assert await app.api_keys.authenticate(text) is not None


async def test_replacement_of_a_key_that_runs_again_after_its_commit_returns_the_new_key(
    app: Tenuto, db: Database
) -> None:
    made, _ = await app.api_keys.create("deploy", Role.EDITOR)
    new = api_keys.NewKey(UUID(int=8), "deploy", "abcdefgh", b"d" * 32, Role.EDITOR, "eve")
    for _ in range(2):
        replaced = await db.transaction(lambda connection: api_keys.replace_key(connection, made.id, new))
        assert replaced is not None
        assert (replaced.id, replaced.revoked_at) == (new.id, None)


async def has_lock_waiter(db: Database) -> bool:
    return bool(
        await db.fetch_value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
    )


async def test_rotated_admin_key_is_written_to_the_key_file(app: Tenuto, tmp_path: Path) -> None:
    created = await app.api_keys.create_initial_key(tmp_path / "keys")
    assert created is not None
    before = await app.api_keys.get("admin")
    assert has_key_file_of(tmp_path / "keys", before.prefix)
    _, text = await app.api_keys.rotate("admin")  # the last admin key may be rotated
    assert replace_in_key_file(tmp_path / "keys", before.prefix, text) == created[0]
    assert created[0].read_text().strip() == text
    assert stat.S_IMODE(created[0].stat().st_mode) == 0o600
    assert replace_in_key_file(tmp_path / "keys", before.prefix, text) is None
