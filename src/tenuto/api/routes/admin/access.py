"""``/api/v1/sessions``, ``/api/v1/account`` and ``/api/v1/invitations``: browser sessions and invitations."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Id, Name
from tenuto.api.problems import Refused
from tenuto.api.routes.admin.api_keys import RoleName, set_session_cookie
from tenuto.api.security.authentication import ApiCall, browser_name, client_address, refuse_cross_site, requires
from tenuto.api.security.rate_limit import RateLimiter
from tenuto.app import Tenuto
from tenuto.model.access.actors import Actor, Role
from tenuto.operations.admin.invitations import INVITATION_LIFETIME, MAX_INVITATION_LIFETIME, AcceptedInvitation
from tenuto.presentation.admin_views import INVITATIONS
from tenuto.store.access.api_keys import KeyKind, SessionRecord
from tenuto.store.access.invitations import InvitationRecord

router = APIRouter(prefix="/api/v1", route_class=ApiRoute)

SESSION = {"name": "ana", "role": "operator", "kind": "person", "address": "10.0.0.7", "is_current": True}
INVITATION = {"name": "ana", "role": "operator", "state": "open", "created_by": "admin"}
_SESSIONS_LIMIT = 500


class OpenSession(BaseModel):
    """An open browser session."""

    id: UUID
    name: str = Field(description="Name of its key.")
    role: RoleName
    kind: KeyKind
    opened_at: datetime
    last_used_at: datetime | None
    expires_at: datetime = Field(description="End of the session unless it is used before.")
    ends_at: datetime | None = Field(description="Latest end of the session.")
    address: str | None = Field(description="IP address that opened it.")
    browser: str | None = Field(description="Browser that opened it, in its own words.")
    is_current: bool = Field(description="Whether the request was made with this session.")


class SessionList(BaseModel):
    """Open browser sessions, last used ones first."""

    items: list[OpenSession]


class EndedSessions(BaseModel):
    """Number of sessions that were ended."""

    ended: int


class NewInvitation(Body):
    """Name and role of a person."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ana", "role": "operator"}]})

    name: str
    role: RoleName
    lifetime_seconds: float = Field(
        INVITATION_LIFETIME.total_seconds(),
        ge=60,
        le=MAX_INVITATION_LIFETIME.total_seconds(),
        description="Time until the link expires; 3 days unless given.",
    )


class Invitation(BaseModel):
    """An invitation, without its link."""

    id: UUID
    name: str
    role: RoleName
    state: Literal["open", "accepted", "revoked", "expired"]
    created_at: datetime
    created_by: str
    expires_at: datetime
    accepted_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None


class CreatedInvitation(Invitation):
    """A new invitation with its link."""

    link: str = Field(description="Link text. It is not stored and cannot be read later.")
    path: str = Field(description="Page of the dashboard at which the person accepts it.")


class InvitationLink(Body):
    """The link of an invitation."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"link": "tni_…"}]})

    link: str = Field(max_length=200)


class AcceptedKey(BaseModel):
    """The key of a person who accepted an invitation."""

    name: str
    role: RoleName
    key: str = Field(description="Text of the key. It is not stored and cannot be read later.")


# --- sessions ---------------------------------------------------------------------------------------------------------


def _to_session(record: SessionRecord, call: ApiCall) -> OpenSession:
    return OpenSession.model_validate({**asdict(record), "is_current": record.id == call.caller.session_id})


@router.get("/sessions", operation_id="sessions_list", responses=describe({"items": [SESSION]}), tags=["sessions"])
async def list_sessions(call: Annotated[ApiCall, requires(Role.ADMIN, "session.read")]) -> SessionList:
    """List the open browser sessions of all keys, last used ones first, at most 500."""
    found = await call.app.api_keys.sessions(limit=_SESSIONS_LIMIT)
    return SessionList(items=[_to_session(each, call) for each in found])


@router.delete(
    "/sessions/{id}",
    operation_id="sessions_end",
    status_code=204,
    responses=describe(None, 204, not_found="session.not_found"),
    tags=["sessions"],
)
async def end_session(call: Annotated[ApiCall, requires(Role.ADMIN, "session.end")], id: Id) -> None:
    """End a browser session. It stops working within a second."""
    await call.app.api_keys.end_session_by_id(id)


@router.get(
    "/account/sessions", operation_id="account_sessions", responses=describe({"items": [SESSION]}), tags=["account"]
)
async def list_own_sessions(call: Annotated[ApiCall, requires(Role.VIEWER, "session.read")]) -> SessionList:
    """List the open browser sessions of the key of the caller, last used ones first.

    A user that a proxy names has none."""
    key = call.caller.key_id
    found = [] if key is None else await call.app.api_keys.sessions(key, limit=_SESSIONS_LIMIT)
    return SessionList(items=[_to_session(each, call) for each in found])


@router.delete(
    "/account/sessions/{id}",
    operation_id="account_end_session",
    status_code=204,
    responses=describe(None, 204, not_found="session.not_found"),
    tags=["account"],
)
async def end_own_session(call: Annotated[ApiCall, requires(Role.VIEWER, "session.end")], id: Id) -> None:
    """End a browser session of the key of the caller. It stops working within a second."""
    # A user of a proxy has no key, and no session has the key with the id 0.
    await call.app.api_keys.end_session_by_id(id, key=call.caller.key_id or UUID(int=0))


@router.post(
    "/account/sessions/end-others",
    operation_id="account_end_other_sessions",
    responses=describe({"ended": 2}),
    tags=["account"],
)
async def end_other_sessions(call: Annotated[ApiCall, requires(Role.VIEWER, "session.end")]) -> EndedSessions:
    """End all browser sessions of the caller's key except the current one."""
    key = call.caller.key_id
    count = 0 if key is None else await call.app.api_keys.end_other_sessions(key, kept=call.caller.session_id)
    return EndedSessions(ended=count)


# --- invitations ------------------------------------------------------------------------------------------------------


def _to_invitation(record: InvitationRecord) -> Invitation:
    return Invitation.model_validate({**asdict(record), "state": record.state})


@router.get("/invitations", operation_id="invitations_list", responses=describe_page(INVITATION), tags=["invitations"])
@listed_as(INVITATIONS)
async def list_invitations(
    call: Annotated[ApiCall, requires(Role.ADMIN, "invitation.read")], limit: Limit = 100, after: After = None
) -> Page[Invitation]:
    """List invitations, newest first, without their links."""
    found = await call.app.invitations.list(below=decode_key(after, UUID), limit=limit)
    return make_page([_to_invitation(each) for each in found], limit, lambda each: (each.id,))


@router.post(
    "/invitations",
    operation_id="invitations_create",
    status_code=201,
    responses=describe(
        {**INVITATION, "link": "tni_…", "path": "/login?link=tni_…"},
        201,
        conflict=("api_key.name.taken", "invitation.name.taken"),
        invalid=("invitation.*", "value.*"),
    ),
    tags=["invitations"],
)
async def create_invitation(
    call: Annotated[ApiCall, requires(Role.ADMIN, "invitation.create", stores_response=False)],
    invitation: NewInvitation,
) -> CreatedInvitation:
    """Invite a person. The response contains the link, which cannot be read later.

    The first browser that opens the link gets a key with this name and role. The link works once, within 3 days unless
    another time is given."""
    made, link = await call.app.invitations.create(
        invitation.name,
        Role.from_key(invitation.role),
        lifetime=timedelta(seconds=invitation.lifetime_seconds),
    )
    path = f"{call.app.settings.web_path}/login?link={link}"
    return CreatedInvitation.model_validate({**asdict(made), "state": made.state, "link": link, "path": path})


@router.delete(
    "/invitations/{name:name}",
    operation_id="invitations_revoke",
    responses=describe(INVITATION, not_found="invitation.not_found", conflict="invitation.not_open"),
    tags=["invitations"],
)
async def revoke_invitation(
    call: Annotated[ApiCall, requires(Role.ADMIN, "invitation.revoke")], name: Name
) -> Invitation:
    """Revoke an open invitation, by the name of the person or by its id."""
    return _to_invitation(await call.app.invitations.revoke(name))


@router.post(
    "/invitations/accept",
    operation_id="invitations_accept",
    status_code=201,
    responses=describe(
        {"name": "ana", "role": "operator", "key": "tnt_k3y5d8a1_…"},
        201,
        unauthorized="auth.link.invalid",
        forbidden="auth.csrf",
        conflict="api_key.name.taken",
        limited=("rate_limit.exceeded", "rate_limit.failed_authentications"),
    ),
    tags=["invitations"],
    openapi_extra={"security": []},
)
async def accept_invitation(request: Request, body: InvitationLink, response: Response) -> AcceptedKey:
    """Accept an invitation: get the key of the person and a session cookie. No API key is required."""
    accepted = await redeem_invitation(request, body.link)
    set_session_cookie(request, response, accepted.token)
    return AcceptedKey.model_validate({"name": accepted.key.name, "role": accepted.key.role, "key": accepted.text})


async def redeem_invitation(request: Request, link: str) -> AcceptedInvitation:
    """Accept an invitation, or refuse it."""
    app: Tenuto = request.app.state.tenuto
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    address = client_address(request)
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        refuse_cross_site(request)
    rate_limiter.count_lookup(address)
    acting = app.acting_as(
        Actor.system("invitation"), source=address, correlation_id=request.scope.get("tenuto_request_id")
    )
    accepted = await acting.invitations.accept(link, browser=browser_name(request))
    if accepted is None:
        rate_limiter.refuse_after_failures(address)
        rate_limiter.count_failure(address)
        raise Refused(
            401,
            "the invitation is not valid, was accepted or revoked, or has expired",
            code="auth.link.invalid",
            remedy="ask for a new invitation",
        )
    return accepted
