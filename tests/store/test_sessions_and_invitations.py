"""People: keys that name them in the audit log, sessions that use prolongs, and invitations."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from tenuto import Tenuto
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.model.access.actors import Actor, ActorType, Caller, Role
from tenuto.operations.admin.api_keys import MAX_SESSION_LIFETIME, SESSION_IDLE_LIFETIME
from tenuto.postgres.database import Database
from tenuto.store.access import api_keys, invitations
from tests.support.errors import raises_code
from tests.support.waiting import eventually


async def open_session(app: Tenuto, name: str = "ana", role: Role = Role.OPERATOR) -> tuple[str, Caller]:
    """Create the key of a person and open a session with it."""
    _, text = await app.api_keys.create(name, role, is_person=True)
    caller = await app.api_keys.authenticate(text)
    assert caller is not None
    opened = await app.acting_as(caller.actor, source="10.0.0.7").api_keys.open_session(caller, browser="Firefox")
    assert opened is not None
    return opened


async def test_key_of_a_person_names_the_person_in_the_audit_log(app: Tenuto) -> None:
    made, text = await app.api_keys.create("ana", Role.OPERATOR, is_person=True)
    assert made.kind == "person"
    caller = await app.api_keys.authenticate(text)
    assert caller is not None
    assert caller.actor == Actor(ActorType.USER, str(made.id), "ana")
    assert (caller.key_id, caller.is_initial_key) == (made.id, False)

    await app.acting_as(caller.actor, source="10.0.0.7").pause_queue("mail", "server down")
    [entry] = [each for each in await app.audit.list() if each.action == "queue.pause"]
    assert (entry.actor_type, entry.actor_name, entry.source, entry.reason) == (
        "user",
        "ana",
        "10.0.0.7",
        "server down",
    )

    rotated, text = await app.api_keys.rotate("ana")
    assert rotated.kind == "person"
    program, _ = await app.api_keys.create("ci", Role.VIEWER)
    assert program.kind == "service"


async def test_session_is_prolonged_by_use_up_to_its_latest_end(app: Tenuto, db: Database) -> None:
    token, caller = await open_session(app)
    assert caller.session_id is not None
    [before] = await app.api_keys.sessions()
    assert (before.name, before.kind, before.address, before.browser) == ("ana", "person", "10.0.0.7", "Firefox")
    assert before.ends_at is not None
    assert abs(before.ends_at - before.opened_at - MAX_SESSION_LIFETIME) < timedelta(seconds=5)

    async def is_prolonged_to(lifetime: timedelta) -> bool:
        app.api_keys._sessions.clear()
        assert await app.api_keys.authenticate_session(token) is not None
        [now] = await app.api_keys.sessions()
        assert now.last_used_at is not None
        return abs(now.expires_at - now.last_used_at - lifetime) < timedelta(seconds=5)

    # used 11 hours after the login: 12 more hours
    await db.fetch_all(
        "UPDATE tenuto.sessions SET last_used_at = last_used_at - interval '11 hours',"
        " expires_at = expires_at - interval '11 hours'"
    )
    await eventually(lambda: is_prolonged_to(SESSION_IDLE_LIFETIME))
    # used an hour before the latest end: one more hour
    await db.fetch_all(
        "UPDATE tenuto.sessions SET last_used_at = last_used_at - interval '1 hour',"
        " ends_at = clock_timestamp() + interval '1 hour'"
    )
    await eventually(lambda: is_prolonged_to(timedelta(hours=1)))


async def test_expired_session_is_not_prolonged(app: Tenuto, db: Database) -> None:
    token, caller = await open_session(app)
    assert caller.session_id is not None
    await db.fetch_all(
        "UPDATE tenuto.sessions SET last_used_at = NULL, expires_at = clock_timestamp() - interval '1 second'"
    )
    app.api_keys._sessions.clear()
    await api_keys.prolong_session(db, caller.session_id, SESSION_IDLE_LIFETIME)
    assert await app.api_keys.authenticate_session(token) is None
    assert await app.api_keys.sessions() == []


async def test_sessions_are_listed_and_ended_one_by_one(app: Tenuto, db: Database) -> None:
    token, caller = await open_session(app)
    other = await app.api_keys.open_session(caller)
    assert other is not None
    theirs, ben = await open_session(app, "ben")
    assert len(await app.api_keys.sessions()) == 3
    assert {each.name for each in await app.api_keys.sessions(caller.key_id)} == {"ana"}
    whole = await db.fetch_value("SELECT string_agg(sessions::text, ' ') FROM tenuto.sessions")
    assert token not in whole

    assert other[1].session_id is not None
    with raises_code("session.not_found", NotFound):  # of another key
        await app.api_keys.end_session_by_id(other[1].session_id, key=ben.key_id)
    await app.api_keys.end_session_by_id(other[1].session_id, key=caller.key_id)
    assert await app.api_keys.authenticate_session(other[0]) is None
    with raises_code("session.not_found", NotFound):
        await app.api_keys.end_session_by_id(other[1].session_id)

    another = await app.api_keys.open_session(caller)
    assert another is not None
    assert caller.key_id is not None
    assert await app.api_keys.end_other_sessions(caller.key_id, kept=another[1].session_id) == 1
    assert await app.api_keys.authenticate_session(token) is None
    assert await app.api_keys.authenticate_session(another[0]) is not None
    assert await app.api_keys.authenticate_session(theirs) is not None


async def test_invitation_gives_a_key_and_a_session_of_the_person(app: Tenuto, db: Database) -> None:
    made, link = await app.acting_as(Actor.user("eve")).invitations.create("ana", Role.OPERATOR)
    assert (made.name, made.role, made.state, made.created_by) == ("ana", "operator", "open", "eve")
    assert abs(made.expires_at - made.created_at - timedelta(days=3)) < timedelta(seconds=5)
    accepted = await app.invitations.accept(link, browser="Firefox")
    assert accepted is not None
    assert (accepted.key.name, accepted.key.role, accepted.key.kind) == ("ana", "operator", "person")
    assert accepted.key.created_by == "eve"
    assert accepted.caller.actor == Actor.user(str(accepted.key.id), "ana")
    by_key = await app.api_keys.authenticate(accepted.text)
    assert by_key is not None
    assert by_key.actor == accepted.caller.actor
    assert await app.api_keys.authenticate_session(accepted.token) == accepted.caller
    assert [each.state for each in await app.invitations.list()] == ["accepted"]
    stored = await db.fetch_value(
        "SELECT (SELECT string_agg(i::text, ' ') FROM tenuto.invitations AS i)"
        " || (SELECT string_agg(k::text, ' ') FROM tenuto.api_keys AS k)"
        " || (SELECT string_agg(a::text, ' ') FROM tenuto.audit AS a)"
    )
    for secret in (link, link[4:], accepted.text[13:], accepted.token):
        assert secret not in stored


async def test_invitation_is_accepted_once_by_concurrent_requests(app: Tenuto) -> None:
    _, link = await app.invitations.create("ana", Role.OPERATOR)
    answers = await asyncio.gather(*(app.invitations.accept(link) for _ in range(10)), return_exceptions=True)
    assert [type(each).__name__ for each in answers if each is not None] == ["AcceptedInvitation"]
    assert await app.invitations.accept(link) is None
    assert len(await app.api_keys.list()) == 1


async def test_revoked_and_expired_invitations_give_no_access(app: Tenuto, db: Database) -> None:
    made, link = await app.invitations.create("ana", Role.ADMIN)
    assert (await app.invitations.revoke(str(made.id))).state == "revoked"
    assert await app.invitations.accept(link) is None
    with raises_code("invitation.not_open", Conflict):
        await app.invitations.revoke(str(made.id))
    with raises_code("invitation.not_found", NotFound):
        await app.invitations.revoke("ana")

    _, late = await app.invitations.create("ana", Role.ADMIN)
    await db.fetch_all("UPDATE tenuto.invitations SET expires_at = clock_timestamp() WHERE revoked_at IS NULL")
    assert await app.invitations.accept(late) is None
    assert [each.state for each in await app.invitations.list()] == ["expired", "revoked"]
    _, again = await app.invitations.create("ana", Role.ADMIN)  # an expired one does not block the name
    assert [each.state for each in await app.invitations.list()] == ["open", "expired", "revoked"]
    assert await app.invitations.accept(again) is not None
    assert await api_keys.list_keys(db, None, 10) != []
    for nonsense in ("", "tni_", again[:-1], again + "x", "tni_" + "'" * 43, "\x00" * 47):
        assert await app.invitations.accept(nonsense) is None
    assert await invitations.delete_old_invitations(db, db.clock.now() + timedelta(days=9), 10) == 3


async def test_invitations_end_with_the_key_of_the_inviter(app: Tenuto) -> None:
    _, text = await app.api_keys.create("eve", Role.ADMIN, is_person=True)
    await app.api_keys.create("mia", Role.ADMIN, is_person=True)
    eve = await app.api_keys.authenticate(text)
    assert eve is not None
    _, link = await app.acting_as(eve.actor).invitations.create("ana", Role.ADMIN)
    await app.api_keys.revoke("eve")
    assert await app.invitations.accept(link) is None
    assert [(each.state, each.revoked_by) for each in await app.invitations.list()] == [("revoked", "app")]


async def test_invitation_ends_when_the_key_of_the_inviter_expires(app: Tenuto, db: Database) -> None:
    end = db.clock.now() + timedelta(hours=1)
    _, text = await app.api_keys.create("eve", Role.ADMIN, is_person=True, expires_at=end)
    eve = await app.api_keys.authenticate(text)
    assert eve is not None
    made, link = await app.acting_as(eve.actor).invitations.create("ana", Role.ADMIN)
    assert made.expires_at == end, "the list shows when it ends"
    _, other = await app.invitations.create("ben", Role.VIEWER)
    await db.fetch_all("UPDATE tenuto.api_keys SET expires_at = clock_timestamp() - interval '1 second'")
    assert await app.invitations.accept(link) is None
    assert await app.invitations.accept(other) is not None


async def test_invitation_for_a_taken_name_is_refused(app: Tenuto) -> None:
    await app.api_keys.create("ana", Role.VIEWER)
    with raises_code("api_key.name.taken", Conflict):
        await app.invitations.create("ana", Role.VIEWER)
    _, link = await app.invitations.create("ben", Role.VIEWER)
    with raises_code("invitation.name.taken", Conflict):
        await app.invitations.create("ben", Role.ADMIN)
    await app.api_keys.create("ben", Role.VIEWER)
    with raises_code("api_key.name.taken", Conflict):
        await app.invitations.accept(link)
    assert [each.state for each in await app.invitations.list()] == ["open"]
    await app.api_keys.revoke("ben")
    assert await app.invitations.accept(link) is not None
    with raises_code("invitation.lifetime.invalid", Invalid):
        await app.invitations.create("mia", Role.VIEWER, lifetime=timedelta(days=31))
