"""Keys and sessions: what opens, what no longer does, and that nothing stored can be turned back into a key."""

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
from tenuto.clock import steady
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.model.actors import Actor, Caller, Role
from tenuto.operations.api_keys import REMEMBERED
from tenuto.postgres.database import Database
from tenuto.store.access import api_keys, audit_recorder
from tenuto.store.access.audit_recorder import Deed
from tests.support.waiting import eventually

WHO = Actor.user("eve")
WHO_ID = UUID(int=7)


async def forgotten(shut: Callable[[], Awaitable[bool]]) -> None:
    """What was remembered runs out by itself: whoever asks later than that, less than a second, finds the door shut."""
    since, in_vain = steady(), list[float]()

    async def look() -> bool:
        asked = steady()
        if not await shut():
            in_vain.append(asked - since)
            return False
        return True

    await eventually(look)
    assert max(in_vain, default=0.0) < REMEMBERED < 1


async def test_a_key_opens_and_only_its_digest_is_stored(app: Tenuto, db: Database) -> None:
    with app.acting_as(WHO):
        made, text = await app.keys.make("deploy", Role.EDITOR)

    assert re.fullmatch(r"tnt_[a-z0-9]{8}_[A-Za-z0-9_-]{43}", text)
    assert made["prefix"] == text[4:12]
    assert (made["name"], made["role"], made["created_by"], made["expired"]) == ("deploy", "editor", "eve", None)
    caller = await app.keys.check(text)
    assert caller == Caller(Actor.api_key(str(made["id"]), "deploy"), Role.EDITOR)
    row = await db.one("SELECT api_keys::text AS whole, digest FROM tenuto.api_keys")
    assert row is not None
    assert row["digest"] == hashlib.sha256(text.encode()).digest()
    assert text[13:] not in row["whole"]
    assert "digest" not in made
    assert "digest" not in (await app.keys.list())[0]


async def test_what_is_no_key_opens_nothing(app: Tenuto) -> None:
    _, text = await app.keys.make("deploy", Role.ADMIN)
    other = text[:-1] + ("A" if text[-1] != "A" else "B")
    for wrong in (
        "", "tnt_", text[:-1], text + "A", text.upper(), other, f" {text}", f"{text}\n", "tnt_aaaaaaaa_" + text[13:],
        text.replace("tnt_", "tns_"), "é" * 56, "\x00" * 56, text[:13] + "'" * 43, "x" * 1_000_000,
    ):  # fmt: skip
        assert await app.keys.check(wrong) is None
        assert await app.keys.session(wrong) is None
        assert await app.keys.follow(wrong) is None
    assert await app.keys.check(text) is not None


async def test_a_revoked_key_and_all_it_opened_are_shut_within_a_second(app: Tenuto, url: str, tmp_path: Path) -> None:
    made, text = await app.keys.make("deploy", Role.OPERATOR)
    followed = await app.keys.follow(await app.keys.link("deploy"))
    assert followed is not None
    link = await app.keys.link("deploy")
    async with Tenuto(url, home=tmp_path) as elsewhere:  # another process, which remembers
        assert await elsewhere.keys.check(text) is not None
        assert await elsewhere.keys.session(followed[0]) is not None

        with app.acting_as(WHO):
            ended = await app.keys.revoke("deploy")

        assert ended["revoked_by"] == "eve"
        assert await app.keys.check(text) is None  # here at once
        assert await app.keys.session(followed[0]) is None
        assert await app.keys.follow(link) is None

        async def shut() -> bool:
            return await elsewhere.keys.check(text) is None and await elsewhere.keys.session(followed[0]) is None

        await forgotten(shut)
    with pytest.raises(Conflict, match="revoked"):
        await app.keys.link(made["prefix"])
    again = await app.keys.revoke(made["prefix"])  # a second time changes nothing
    assert again["revoked_at"] == ended["revoked_at"]
    with pytest.raises(NotFound):
        await app.keys.revoke("deploy")
    assert (await app.keys.make("deploy", Role.VIEWER))[0]["prefix"] != made["prefix"]  # the name is free again


async def test_a_key_and_its_sessions_end_at_its_expiry(app: Tenuto, db: Database) -> None:
    now = db.clock.now()
    _, text = await app.keys.make("brief", Role.VIEWER, expires_at=now + timedelta(hours=1))
    followed = await app.keys.follow(await app.keys.link("brief"))
    assert followed is not None
    assert await app.keys.check(text) is not None
    await db.all("UPDATE tenuto.api_keys SET expires_at = clock_timestamp()")

    async def shut() -> bool:
        return await app.keys.check(text) is None and await app.keys.session(followed[0]) is None

    await forgotten(shut)
    assert (await app.keys.list())[0]["expired"]
    with pytest.raises(Conflict, match="expired"):
        await app.keys.link("brief")
    for wrong in (now - timedelta(seconds=1), (now + timedelta(days=1)).replace(tzinfo=None), "tomorrow"):
        with pytest.raises(Invalid, match="expires_at"):
            await app.keys.make("other", Role.VIEWER, expires_at=wrong)  # type: ignore[arg-type]


async def test_names_are_checked_and_in_use_once(app: Tenuto) -> None:
    made = await asyncio.gather(*(app.keys.make("ci", Role.VIEWER) for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(one, tuple) for one in made) == 1
    assert sum(isinstance(one, Conflict) for one in made) == 4
    for wrong in ("", "a b", "x" * 201, "é", "a\x00"):
        with pytest.raises(Invalid, match="name"):
            await app.keys.make(wrong, Role.VIEWER)
    for unknown in ("nobody", "tnt_nobodyxx", "' OR 1=1 --"):
        with pytest.raises(NotFound):
            await app.keys.get(unknown)
    for nothing in ("", "x" * 201, "\x00"):
        with pytest.raises(Invalid):
            await app.keys.get(nothing)
    prefix = (await app.keys.get("ci"))["prefix"]
    await app.keys.make(prefix, Role.VIEWER)
    with pytest.raises(Conflict, match="prefix of another"):
        await app.keys.revoke(prefix)


async def test_a_key_whose_reply_was_lost_is_made_once(app: Tenuto, db: Database) -> None:
    await app.keys.make("first", Role.VIEWER)
    row = await db.one("SELECT id, name, prefix, digest FROM tenuto.api_keys")
    assert row is not None
    same = api_keys.NewKey(row["id"], row["name"], row["prefix"], row["digest"], Role.VIEWER, "app")
    assert await db.transaction(lambda connection: api_keys.make(connection, same)) is not None
    taken = api_keys.NewKey(WHO_ID, "second", row["prefix"], b"x", Role.VIEWER, "app")
    assert await db.transaction(lambda connection: api_keys.make(connection, taken)) is None


async def test_the_last_use_is_noted_once_a_minute_and_is_nobodys_deed(app: Tenuto, db: Database) -> None:
    _, text = await app.keys.make("deploy", Role.VIEWER)

    async def last_used() -> Any:
        return (await app.keys.get("deploy"))["last_used_at"]

    with audit_recorder.on_record(Deed(WHO, "task.list", "test")):
        await asyncio.gather(*(app.keys.check(text) for _ in range(20)))
        noted = await eventually(last_used)
    assert await db.value("SELECT count(*) FROM tenuto.audit") == 0
    app.keys._keys.clear()
    await app.keys.check(text)
    await asyncio.gather(*app.keys._beside)
    assert await last_used() == noted
    await db.all("UPDATE tenuto.api_keys SET last_used_at = last_used_at - interval '61 seconds'")
    app.keys._keys.clear()
    await app.keys.check(text)
    assert await eventually(lambda: _later(last_used, noted))


async def _later(ask: Any, than: datetime) -> bool:
    now: datetime = await ask()
    return now > than


async def test_a_check_does_not_wait_for_the_note_of_the_last_use(app: Tenuto, db: Database, url: str) -> None:
    _, text = await app.keys.make("deploy", Role.VIEWER)
    holder = await asyncpg.connect(url)
    async with holder.transaction():
        await holder.execute("SELECT FROM tenuto.api_keys FOR UPDATE")
        assert await asyncio.wait_for(app.keys.check(text), 8) is not None  # nobody waits for a lock for 10 s
        assert (await app.keys.get("deploy"))["last_used_at"] is None
    await holder.close()

    async def noted() -> bool:
        return (await app.keys.get("deploy"))["last_used_at"] is not None

    await eventually(noted)


async def test_a_link_opens_one_session_whoever_comes_at_once(app: Tenuto, db: Database) -> None:
    made, _ = await app.keys.make("deploy", Role.OPERATOR)
    caller = Caller(Actor.api_key(str(made["id"]), "deploy"), Role.OPERATOR)
    link = await app.keys.link(caller)

    opened = [one for one in await asyncio.gather(*(app.keys.follow(link) for _ in range(20))) if one is not None]

    assert len(opened) == 1
    token, who = opened[0]
    assert who == Caller(caller.actor, Role.OPERATOR, session=True)
    assert await app.keys.session(token) == who
    assert await app.keys.follow(link) is None
    whole = await db.value("SELECT string_agg(sessions::text, ' ') FROM tenuto.sessions")
    assert link not in whole
    assert token not in whole
    await app.keys.leave(token)
    assert await app.keys.session(token) is None
    await app.keys.leave(token)
    await app.keys.leave("nonsense")
    with pytest.raises(Invalid, match="no key"):
        await app.keys.link(Caller(WHO, Role.ADMIN))


async def test_links_and_sessions_run_out_and_are_let_go(app: Tenuto, db: Database) -> None:
    await app.keys.make("deploy", Role.OPERATOR)
    late = await app.keys.link("deploy")
    followed = await app.keys.follow(await app.keys.link("deploy"))
    assert followed is not None
    lasts = await db.one(
        "SELECT max(expires_at - clock_timestamp()) FILTER (WHERE link IS NOT NULL) AS link,"
        " max(expires_at - clock_timestamp()) FILTER (WHERE token IS NOT NULL) AS session FROM tenuto.sessions"
    )
    assert lasts is not None
    assert timedelta(minutes=9) < lasts["link"] <= timedelta(minutes=10)
    assert timedelta(hours=11) < lasts["session"] <= timedelta(hours=12)
    await db.all("UPDATE tenuto.sessions SET expires_at = clock_timestamp()")
    assert await app.keys.follow(late) is None

    async def shut() -> bool:
        return await app.keys.session(followed[0]) is None

    await forgotten(shut)
    assert await api_keys.forget_sessions(db, db.clock.now() + timedelta(seconds=1), 10) == 2


async def test_the_first_start_makes_one_admin_key_for_the_owner_alone(app: Tenuto, url: str, tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("a", "b", "c")]
    async with contextlib.AsyncExitStack() as stack:
        apps = [app] + [await stack.enter_async_context(Tenuto(url, home=home)) for home in homes[1:]]
        made = await asyncio.gather(*(one.keys.first(home) for one, home in zip(apps, homes, strict=True)))
    [(path, text)] = [one for one in made if one is not None]

    assert path.name == "admin.key"
    assert path.read_text() == f"{text}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sum((home / "admin.key").exists() for home in homes) == 1
    assert [file.name for file in path.parent.iterdir()] == ["admin.key"]
    caller = await app.keys.check(text)
    assert caller is not None
    assert caller.may(Role.ADMIN)
    assert await app.keys.first(path.parent) is None
    await app.keys.revoke("admin")
    assert await app.keys.first(path.parent) is None  # a key that is revoked is no reason to make another


async def test_a_first_start_that_was_cut_short_goes_on_with_the_key_in_the_file(app: Tenuto, tmp_path: Path) -> None:
    left = f"tnt_abcdefgh_{'x' * 43}"
    file = tmp_path / "admin.key"
    file.write_text(left)
    with pytest.raises(Conflict, match="read by others"):  # whoever could read it may know it
        await app.keys.first(tmp_path)
    file.chmod(0o600)
    assert await app.keys.first(tmp_path) == (file, left)
    assert await app.keys.check(left) is not None


async def test_a_file_that_is_not_ours_is_neither_followed_nor_overwritten(app: Tenuto, tmp_path: Path) -> None:
    target, file = tmp_path / "elsewhere", tmp_path / "admin.key"
    file.symlink_to(target)
    with pytest.raises(Conflict, match="cannot be read"):
        await app.keys.first(tmp_path)
    assert not target.exists()
    file.unlink()
    file.write_text("my notes")
    file.chmod(0o600)
    with pytest.raises(Conflict, match="no key of ours"):
        await app.keys.first(tmp_path)
    assert file.read_text() == "my notes"
    assert await app.keys.list() == []


def test_what_is_remembered_is_short_of_a_second() -> None:
    assert REMEMBERED < 1.0
