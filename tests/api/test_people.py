"""Sessions, the account of the caller and invitations over HTTP: who may do what, and what the audit log says."""

from __future__ import annotations

from uuid import UUID

import httpx2

from tenuto.api.security.authentication import SESSION_COOKIE
from tenuto.model.access.actors import Caller, Role
from tests.api.conftest import ApiClient, assert_problem

PAGE = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin", "Tenuto-Page": "1"}


async def caller_of(service: ApiClient, role: Role) -> Caller:
    found = await service.app.api_keys.authenticate(service.keys[role])
    assert found is not None
    return found


async def open_session(service: ApiClient, role: Role) -> tuple[str, UUID]:
    opened = await service.app.api_keys.open_session(await caller_of(service, role), browser="Test/1.0")
    assert opened is not None
    assert opened[1].session_id is not None
    return opened[0], opened[1].session_id


async def test_callers_list_and_end_their_own_sessions_only(service: ApiClient) -> None:
    _, admin_session = await open_session(service, Role.ADMIN)
    token, own = await open_session(service, Role.VIEWER)
    _, second = await open_session(service, Role.VIEWER)

    service.client.cookies.set(SESSION_COOKIE, token)
    listed = (await service.get("/api/v1/account/sessions", role=None)).json()["items"]
    assert {each["id"]: each["is_current"] for each in listed} == {str(own): True, str(second): False}
    assert {each["browser"] for each in listed} == {"Test/1.0"}
    service.client.cookies.clear()

    refused = await service.delete(f"/api/v1/account/sessions/{admin_session}", role=Role.VIEWER)
    assert_problem(refused, 404, "session.not_found")
    assert len(await service.app.api_keys.sessions()) == 3
    assert_problem(await service.delete(f"/api/v1/sessions/{admin_session}", role=Role.EDITOR), 403)
    assert_problem(await service.get("/api/v1/sessions", role=Role.EDITOR), 403)
    ended = await service.delete(f"/api/v1/account/sessions/{second}", role=Role.VIEWER)
    assert ended.status_code == 204
    assert [entry.action for entry in await service.app.audit.list(limit=1)] == ["session.end"]


async def test_admin_lists_and_ends_all_sessions(service: ApiClient) -> None:
    token, session = await open_session(service, Role.VIEWER)
    listed = await service.get_json("/api/v1/sessions")
    assert [(each["id"], each["name"], each["role"]) for each in listed["items"]] == [
        (str(session), "viewer", "viewer")
    ]
    ended = await service.delete(f"/api/v1/sessions/{session}", headers={"X-Reason": "laptop lost"})
    assert ended.status_code == 204
    [entry] = await service.app.audit.list(limit=1)
    assert (entry.action, entry.target, entry.actor_name, entry.reason) == (
        "session.end",
        "viewer",
        "admin",
        "laptop lost",
    )
    service.client.cookies.set(SESSION_COOKIE, token)
    assert_problem(await service.get("/api/v1/session", role=None), 401)
    assert_problem(await service.delete(f"/api/v1/sessions/{session}"), 404, "session.not_found")


async def test_caller_ends_all_other_sessions(service: ApiClient) -> None:
    token, own = await open_session(service, Role.OPERATOR)
    for _ in range(2):
        await open_session(service, Role.OPERATOR)
    await open_session(service, Role.VIEWER)
    service.client.cookies.set(SESSION_COOKIE, token)
    ended = await service.post("/api/v1/account/sessions/end-others", role=None, headers=PAGE)
    assert ended.json() == {"ended": 2}
    assert {each.id for each in await service.app.api_keys.sessions() if each.name == "operator"} == {own}
    assert len(await service.app.api_keys.sessions()) == 2


async def test_invitation_is_created_listed_accepted_and_revoked(service: ApiClient) -> None:
    body = {"name": "ana", "role": "operator"}
    for role in (Role.VIEWER, Role.OPERATOR, Role.EDITOR):
        assert_problem(await service.post("/api/v1/invitations", role=role, json=body), 403)
    made = await service.post("/api/v1/invitations", json=body)
    assert made.status_code == 201, made.text
    link = made.json()["link"]
    assert made.json()["path"] == f"/login?link={link}"
    assert_problem(await service.post("/api/v1/invitations", json=body), 409, "invitation.name.taken")
    [listed] = (await service.get_json("/api/v1/invitations"))["items"]
    assert (listed["name"], listed["state"], "link" in listed) == ("ana", "open", False)

    accepted = await service.post("/api/v1/invitations/accept", role=None, json={"link": link})
    assert accepted.status_code == 201, accepted.text
    assert accepted.json()["name"] == "ana"
    cookie = accepted.headers["set-cookie"].lower()
    assert all(each in cookie for each in ("httponly", "samesite=lax", "path=/", f"max-age={7 * 86400}"))
    own = await service.client.get("/api/v1/session", headers={"Authorization": f"Bearer {accepted.json()['key']}"})
    assert own.json() == {"name": "ana", "role": "operator", "session": False}
    service.client.cookies.clear()
    again = await service.post("/api/v1/invitations/accept", role=None, json={"link": link})
    assert_problem(again, 401, "auth.link.invalid")
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    refused = await service.post("/api/v1/invitations/accept", role=None, json={"link": link}, headers=foreign)
    assert_problem(refused, 403, "auth.csrf")

    second = (await service.post("/api/v1/invitations", json={"name": "ben", "role": "viewer"})).json()
    revoked = await service.delete(f"/api/v1/invitations/{second['id']}")
    assert revoked.json()["state"] == "revoked"
    assert_problem(await service.delete("/api/v1/invitations/ben"), 404, "invitation.not_found")
    assert_problem(await service.delete(f"/api/v1/invitations/{second['id']}"), 409, "invitation.not_open")
    actions = [(entry.action, entry.target) for entry in await service.app.audit.list(limit=4)]
    assert actions == [
        ("invitation.revoke", "ben"),
        ("invitation.create", "ben"),
        ("invitation.accept", "ana"),
        ("invitation.create", "ana"),
    ]


async def test_guesses_of_invitations_are_limited(service: ApiClient) -> None:
    statuses = []
    for number in range(25):
        link = f"tni_{number:043}"
        answer: httpx2.Response = await service.post("/api/v1/invitations/accept", role=None, json={"link": link})
        statuses.append(answer.status_code)
    assert set(statuses[:20]) == {401}
    assert statuses[-1] == 429


async def test_key_of_a_person_is_created_over_http(service: ApiClient) -> None:
    made = await service.post("/api/v1/keys", json={"name": "ana", "role": "operator", "person": True})
    assert made.json()["kind"] == "person"
    key = {"Authorization": f"Bearer {made.json()['key']}"}
    done = await service.client.post("/api/v1/queues/mail/pause", headers=key)
    assert done.status_code == 204, done.text
    [entry] = await service.app.audit.list(limit=1)
    assert (entry.actor_type, entry.actor_name, entry.action) == ("user", "ana", "queue.pause")
