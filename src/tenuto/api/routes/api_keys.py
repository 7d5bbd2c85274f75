"""``/api/v1/keys`` and ``/api/v1/session``: manage API keys and browser sessions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from tenuto.api.auth import SESSION_COOKIE, ApiCall, client_address, refuse_cross_site, requires
from tenuto.api.paging import After, Limit, Page, decode_cursor, make_page
from tenuto.api.problems import Refused
from tenuto.api.rate_limit import RateLimiter
from tenuto.api.strict_route import StrictRoute
from tenuto.api.wire_format import Body, Name, example, example_page, quote_path_part
from tenuto.app import Tenuto
from tenuto.model.actors import Actor, Caller, Role
from tenuto.operations.api_keys import LINK_LIFETIME, SESSION_LIFETIME
from tenuto.store.access.audit_recorder import AuditContext, audited

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)

KEY = {"name": "ci", "prefix": "k3y5d8a1", "role": "operator", "created_by": "admin", "last_used_at": None}
Admin = Annotated[ApiCall, requires(Role.ADMIN, "key.read")]


class NewKey(Body):
    """Name, role and expiry of a new API key."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "role": "operator"}]})

    name: str
    role: Literal["viewer", "operator", "editor", "admin"]
    expires_at: datetime | None = None


class Link(Body):
    """A one-time link from `POST /api/v1/keys/{name}/link` or `tenuto login`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"link": "tnl_…"}]})

    link: str = Field(max_length=200)


@router.get("/keys", responses=example_page(KEY), tags=["keys"])
async def list_keys(call: Admin, limit: Limit = 100, after: After = None) -> Page:
    """List API keys by name, active keys first, without their texts."""
    cursor = decode_cursor(after, _parse_bool, str, UUID)
    found = await call.app.api_keys.list(after=(cursor[0], cursor[1], cursor[2]) if cursor else None, limit=limit)
    return make_page(
        [dict(each) for each in found], limit, lambda each: (each["revoked_at"] is not None, each["name"], each["id"])
    )


def _parse_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


@router.post("/keys", status_code=201, responses=example({**KEY, "key": "tnt_k3y5d8a1_…"}, 201), tags=["keys"])
async def create_key(
    call: Annotated[ApiCall, requires(Role.ADMIN, "key.create", stores_response=False)],
    new_key: NewKey,
    response: Response,
) -> dict[str, Any]:
    """Create an API key. The response contains its text, which cannot be read later."""
    key, text = await call.app.api_keys.create(new_key.name, Role.from_key(new_key.role), expires_at=new_key.expires_at)
    response.headers["Location"] = f"/api/v1/keys/{quote_path_part(new_key.name)}"
    return {**key, "key": text}


@router.get("/keys/{name:name}", responses=example(KEY), tags=["keys"])
async def get_key(call: Admin, name: Name) -> dict[str, Any]:
    """Get an API key by name or prefix, without its text."""
    return dict(await call.app.api_keys.get(name))


@router.delete("/keys/{name:name}", responses=example(KEY), tags=["keys"])
async def revoke_key(call: Annotated[ApiCall, requires(Role.ADMIN, "key.revoke")], name: Name) -> dict[str, Any]:
    """Revoke an API key and its sessions. It stops working within a second."""
    return dict(await call.app.api_keys.revoke(name))


@router.post("/keys/{name:name}/link", status_code=201, responses=example({"link": "tnl_…"}, 201), tags=["keys"])
async def create_link(
    call: Annotated[ApiCall, requires(Role.ADMIN, "key.link", stores_response=False)], name: Name
) -> dict[str, Any]:
    """Create a one-time link. It opens a browser session for the key, once, within ten minutes."""
    return {"link": await call.app.api_keys.create_link(name), "seconds": LINK_LIFETIME.total_seconds()}


# --- browser sessions ----------------------------------------------------------------------------------------------


@router.get("/session", responses=example({"name": "admin", "role": "admin", "session": True}), tags=["session"])
async def get_session(call: Annotated[ApiCall, requires(Role.VIEWER, "session.read")]) -> dict[str, Any]:
    """Get the name and role of the caller."""
    caller = call.caller
    return {"name": caller.actor.name, "role": caller.role.key, "session": caller.via_session}


@router.post(
    "/session",
    status_code=201,
    responses=example({"name": "admin", "role": "admin", "session": True}, 201),
    tags=["session"],
    openapi_extra={"security": []},
)
async def open_session(request: Request, body: Link, response: Response) -> dict[str, Any]:
    """Open a browser session with a one-time link. Sets a cookie that scripts cannot read; no API key is required."""
    token, caller = await redeem_link(request, body.link)
    set_session_cookie(request, response, token)
    return {"name": caller.actor.name, "role": caller.role.key, "session": True}


async def redeem_link(request: Request, link: str) -> tuple[str, Caller]:
    """Return the session token and the caller of a one-time link, or refuse it."""
    app: Tenuto = request.app.state.tenuto
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    address = client_address(request)
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        refuse_cross_site(request)
    audit_context = AuditContext(
        Actor.system("one-time link"), "session.open", address, request_id=request.scope.get("tenuto_request_id")
    )
    rate_limiter.count_lookup(address)
    with audited(audit_context):
        opened = await app.api_keys.redeem_link(link)
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


def set_session_cookie(request: Request, response: Response, token: str) -> None:
    """Set the session cookie, unreadable for scripts and not sent by other sites."""
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=int(SESSION_LIFETIME.total_seconds()),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def delete_session_cookie(response: Response) -> None:
    """Delete the session cookie."""
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")


@router.delete("/session", status_code=204, tags=["session"])
async def close_session(
    request: Request, response: Response, call: Annotated[ApiCall, requires(Role.VIEWER, "session.close")]
) -> None:
    """Close the browser session."""
    if call.caller.via_session:
        await call.app.api_keys.end_session(request.cookies[SESSION_COOKIE])
    delete_session_cookie(response)
