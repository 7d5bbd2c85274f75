"""``/api/v1/keys`` and ``/api/v1/session``: manage API keys and browser sessions."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import After, Limit, Page, decode_cursor, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Name, quote_path_part
from tenuto.api.problems import Refused
from tenuto.api.security.authentication import (
    ApiCall,
    browser_name,
    client_address,
    refuse_cross_site,
    requires,
    session_cookie_name,
    session_token,
)
from tenuto.api.security.rate_limit import RateLimiter
from tenuto.app import Tenuto
from tenuto.model.access.actors import Actor, Caller, Role
from tenuto.operations.admin.api_keys import LINK_LIFETIME, MAX_SESSION_LIFETIME
from tenuto.presentation.admin_views import API_KEYS
from tenuto.store.access.api_keys import ApiKeyRecord, KeyKind

router = APIRouter(prefix="/api/v1", route_class=ApiRoute)

KEY = {
    "name": "ci",
    "prefix": "k3y5d8a1",
    "role": "operator",
    "kind": "service",
    "created_by": "admin",
    "last_used_at": None,
}
RoleName = Literal["viewer", "operator", "editor", "admin"]
Admin = Annotated[ApiCall, requires(Role.ADMIN, "key.read")]


class NewKey(Body):
    """Name, role and expiry of a new API key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "role": "operator"}]})

    name: str
    role: RoleName
    expires_at: datetime | None = None
    person: bool = Field(False, description="Whether the key belongs to a person, whom the audit log then names.")


class Link(Body):
    """A one-time link from `POST /api/v1/keys/{name}/link` or `tenuto login`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"link": "tnl_…"}]})

    link: str = Field(max_length=200)


class CreatedKey(BaseModel):
    """A new API key with its text."""

    id: UUID
    name: str
    prefix: str
    role: RoleName
    kind: KeyKind
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    expired: bool
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    key: str = Field(description="Text of the key. It is not stored and cannot be read later.")


class CreatedLink(BaseModel):
    """A one-time link."""

    link: str
    lifetime_seconds: float = Field(description="Time until the link expires.")


class Session(BaseModel):
    """Name and role of the caller."""

    name: str
    role: RoleName
    session: bool = Field(description="Whether the caller uses a browser session instead of an API key.")


@router.get("/keys", operation_id="keys_list", responses=describe_page(KEY), tags=["keys"])
@listed_as(API_KEYS)
async def list_keys(call: Admin, limit: Limit = 100, after: After = None) -> Page[ApiKeyRecord]:
    """List API keys by name, active keys first, without their texts."""
    found = await call.app.api_keys.list(after=decode_cursor(after, _parse_bool, str, UUID), limit=limit)
    return make_page(found, limit, lambda each: (each.revoked_at is not None, each.name, each.id))


def _parse_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


@router.post(
    "/keys",
    operation_id="keys_create",
    status_code=201,
    responses=describe(
        {**KEY, "key": "tnt_k3y5d8a1_…"}, 201, conflict="api_key.name.taken", invalid=("api_key.*", "value.*")
    ),
    tags=["keys"],
)
async def create_key(
    call: Annotated[ApiCall, requires(Role.ADMIN, "key.create", stores_response=False)],
    new_key: NewKey,
    response: Response,
) -> CreatedKey:
    """Create an API key. The response contains its text, which cannot be read later."""
    key, text = await call.app.api_keys.create(
        new_key.name, Role.from_key(new_key.role), expires_at=new_key.expires_at, is_person=new_key.person
    )
    response.headers["Location"] = f"/api/v1/keys/{quote_path_part(new_key.name)}"
    return CreatedKey.model_validate({**asdict(key), "key": text})


@router.get(
    "/keys/{name:name}",
    operation_id="keys_get",
    responses=describe(
        KEY, not_found="api_key.not_found", conflict="api_key.name.ambiguous", invalid="api_key.name.invalid"
    ),
    tags=["keys"],
)
async def get_key(call: Admin, name: Name) -> ApiKeyRecord:
    """Get an API key by name or prefix, without its text."""
    return await call.app.api_keys.get(name)


@router.post(
    "/keys/{name:name}/rotate",
    operation_id="keys_rotate",
    responses=describe(
        {**KEY, "key": "tnt_k3y5d8a1_…"},
        not_found="api_key.not_found",
        conflict=("api_key.name.ambiguous", "api_key.inactive"),
        invalid="api_key.name.invalid",
    ),
    tags=["keys"],
)
async def rotate_key(
    call: Annotated[ApiCall, requires(Role.ADMIN, "key.rotate", stores_response=False)], name: Name
) -> CreatedKey:
    """Replace an API key by a new one of the same name, role and expiry. The response contains its text."""
    key, text = await call.app.api_keys.rotate(name)
    return CreatedKey.model_validate({**asdict(key), "key": text})


@router.delete(
    "/keys/{name:name}",
    operation_id="keys_revoke",
    responses=describe(
        KEY,
        not_found="api_key.not_found",
        conflict=("api_key.name.ambiguous", "api_key.last_admin"),
        invalid="api_key.name.invalid",
    ),
    tags=["keys"],
)
async def revoke_key(
    call: Annotated[ApiCall, requires(Role.ADMIN, "key.revoke")],
    name: Name,
    last_admin: Annotated[bool, Query(description="Revoke it although no other admin key is left.")] = False,
) -> ApiKeyRecord:
    """Revoke an API key and its sessions. It stops working within a second."""
    return await call.app.api_keys.revoke(name, allow_last_admin=last_admin)


@router.post(
    "/keys/{name:name}/link",
    operation_id="keys_link",
    status_code=201,
    responses=describe(
        {"link": "tnl_…"},
        201,
        not_found="api_key.not_found",
        conflict=("api_key.name.ambiguous", "api_key.inactive"),
        invalid="api_key.name.invalid",
    ),
    tags=["keys"],
)
async def create_link(
    call: Annotated[ApiCall, requires(Role.ADMIN, "key.link", stores_response=False)], name: Name
) -> CreatedLink:
    """Create a one-time link. It opens a browser session for the key, once, within ten minutes."""
    link = await call.app.api_keys.create_link(name)
    return CreatedLink(link=link, lifetime_seconds=LINK_LIFETIME.total_seconds())


# --- browser sessions ----------------------------------------------------------------------------------------------


@router.get(
    "/session",
    operation_id="session_get",
    responses=describe({"name": "admin", "role": "admin", "session": True}),
    tags=["session"],
)
async def get_session(call: Annotated[ApiCall, requires(Role.VIEWER, "session.read")]) -> Session:
    """Get the name and role of the caller."""
    return _session_of(call.caller, via_session=call.caller.via_session)


@router.post(
    "/session",
    operation_id="session_open",
    status_code=201,
    responses=describe(
        {"name": "admin", "role": "admin", "session": True},
        201,
        unauthorized="auth.link.invalid",
        forbidden="auth.csrf",
        limited=("rate_limit.exceeded", "rate_limit.failed_authentications"),
    ),
    tags=["session"],
    openapi_extra={"security": []},
)
async def open_session(request: Request, body: Link, response: Response) -> Session:
    """Open a browser session with a one-time link. Sets a cookie that scripts cannot read; no API key is required."""
    token, caller = await redeem_link(request, body.link)
    set_session_cookie(request, response, token)
    return _session_of(caller, via_session=True)


def _session_of(caller: Caller, *, via_session: bool) -> Session:
    return Session.model_validate({"name": caller.actor.name, "role": caller.role.key, "session": via_session})


async def redeem_link(request: Request, link: str) -> tuple[str, Caller]:
    """Return the session token and the caller of a one-time link, or refuse it."""
    app: Tenuto = request.app.state.tenuto
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    address = client_address(request)
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        refuse_cross_site(request)
    rate_limiter.count_lookup(address)
    acting = app.acting_as(
        Actor.system("one-time link"), source=address, correlation_id=request.scope.get("tenuto_request_id")
    )
    opened = await acting.api_keys.redeem_link(link, browser=browser_name(request))
    if opened is None:
        rate_limiter.refuse_after_failures(address)
        rate_limiter.count_failure(address)
        raise Refused(
            401,
            "the one-time link is not valid, was used, or has expired",
            code="auth.link.invalid",
            remedy="create a new link",
        )
    return opened


async def redeem_key(request: Request, text: str) -> tuple[str, Caller]:
    """Return the session token and the caller of an API key, or refuse it."""
    app: Tenuto = request.app.state.tenuto
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    address = client_address(request)
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        refuse_cross_site(request)
    rate_limiter.count_lookup(address)
    caller = await app.api_keys.authenticate(text)
    if caller is not None:
        acting = app.acting_as(caller.actor, source=address, correlation_id=request.scope.get("tenuto_request_id"))
        opened = await acting.api_keys.open_session(caller, browser=browser_name(request))
        if opened is not None:
            return opened
    rate_limiter.refuse_after_failures(address)
    rate_limiter.count_failure(address)
    raise Refused(401, "the API key is not valid", code="auth.invalid", remedy="`tenuto key add` creates one")


def set_session_cookie(request: Request, response: Response, token: str) -> None:
    """Set the session cookie. Scripts cannot read it; from other sites, only links to our pages send it."""
    response.set_cookie(
        session_cookie_name(request),
        token,
        max_age=int(MAX_SESSION_LIFETIME.total_seconds()),
        path=_cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def delete_session_cookie(request: Request, response: Response) -> None:
    """Delete the session cookie."""
    secure = request.url.scheme == "https"
    name, path = session_cookie_name(request), _cookie_path(request)
    response.delete_cookie(name, path=path, secure=secure, httponly=True, samesite="lax")


def _cookie_path(request: Request) -> str:
    path: str = request.app.state.tenuto.settings.web_path
    return path or "/"


@router.delete("/session", operation_id="session_close", status_code=204, tags=["session"])
async def close_session(
    request: Request, response: Response, call: Annotated[ApiCall, requires(Role.VIEWER, "session.close")]
) -> None:
    """Close the browser session."""
    if call.caller.via_session:
        await call.app.api_keys.end_session(session_token(request) or "")
    delete_session_cookie(request, response)
