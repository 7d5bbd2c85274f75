"""``/api/v1/keys`` and ``/api/v1/session``: who may ask, shown by a key or by a browser's session."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from pydantic import ConfigDict, Field

from tenuto.api.auth import COOKIE, Needs, Visit, refuse_strangers
from tenuto.api.paging import After, Limit, Page, page, place
from tenuto.api.path_names import Name, part
from tenuto.api.problems import Refused
from tenuto.api.rate_limit import Rates
from tenuto.api.response_docs import Body, a_page, answers
from tenuto.api.strict_route import StrictRoute
from tenuto.app import Tenuto
from tenuto.model.actors import Actor, Caller, Role
from tenuto.operations.api_keys import LINK_LASTS, SESSION_LASTS
from tenuto.store.access.audit_recorder import Deed, on_record

router = APIRouter(prefix="/api/v1", route_class=StrictRoute)

KEY = {"name": "ci", "prefix": "k3y5d8a1", "role": "operator", "created_by": "admin", "last_used_at": None}
Admin = Annotated[Visit, Depends(Needs(Role.ADMIN, "key.read"))]


class NewKey(Body):
    """A key: its name, what it may do, and until when."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "role": "operator"}]})

    name: str
    role: Literal["viewer", "operator", "editor", "admin"]
    expires_at: datetime | None = None


class Link(Body):
    """A one-time link, as `POST /api/v1/keys/{name}/link` or `tenuto login` gives it."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"link": "tnl_…"}]})

    link: str = Field(max_length=200)


@router.get("/keys", responses=a_page(KEY), tags=["keys"])
async def list_keys(visit: Admin, limit: Limit = 100, after: After = None) -> Page:
    """Keys, those in use first, by name; never their texts."""
    at = place(after, _flag, str, UUID)
    found = await visit.app.keys.list(after=(at[0], at[1], at[2]) if at else None, limit=limit)
    return page(
        [dict(each) for each in found], limit, lambda each: (each["revoked_at"] is not None, each["name"], each["id"])
    )


def _flag(given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError
    return given


@router.post("/keys", status_code=201, responses=answers({**KEY, "key": "tnt_k3y5d8a1_…"}, 201), tags=["keys"])
async def make_key(
    visit: Annotated[Visit, Depends(Needs(Role.ADMIN, "key.create", keeps_answer=False))],
    wanted: NewKey,
    response: Response,
) -> dict[str, Any]:
    """Make a key. Its text is in this answer, and nobody will see it again."""
    made, text = await visit.app.keys.make(wanted.name, Role.named(wanted.role), expires_at=wanted.expires_at)
    response.headers["Location"] = f"/api/v1/keys/{part(wanted.name)}"
    return {**made, "key": text}


@router.get("/keys/{name:name}", responses=answers(KEY), tags=["keys"])
async def get_key(visit: Admin, name: Name) -> dict[str, Any]:
    """What is on record of one key, by its name or its prefix."""
    return await visit.app.keys.get(name)


@router.delete("/keys/{name:name}", responses=answers(KEY), tags=["keys"])
async def revoke_key(visit: Annotated[Visit, Depends(Needs(Role.ADMIN, "key.revoke"))], name: Name) -> dict[str, Any]:
    """End a key and its sessions: within a second nothing opens with it any more."""
    return await visit.app.keys.revoke(name)


@router.post("/keys/{name:name}/link", status_code=201, responses=answers({"link": "tnl_…"}, 201), tags=["keys"])
async def make_link(
    visit: Annotated[Visit, Depends(Needs(Role.ADMIN, "key.link", keeps_answer=False))], name: Name
) -> dict[str, Any]:
    """What opens a browser's session on the account of a key, once and within ten minutes."""
    return {"link": await visit.app.keys.link(name), "seconds": LINK_LASTS.total_seconds()}


# --- a browser's session ----------------------------------------------------------------------------------------------


@router.get("/session", responses=answers({"name": "admin", "role": "admin", "session": True}), tags=["session"])
async def get_session(visit: Annotated[Visit, Depends(Needs(Role.VIEWER, "session.read"))]) -> dict[str, Any]:
    """Who you are, and what you may do."""
    caller = visit.caller
    return {"name": caller.actor.name, "role": caller.role.word, "session": caller.session}


@router.post(
    "/session",
    status_code=201,
    responses=answers({"name": "admin", "role": "admin", "session": True}, 201),
    tags=["session"],
    openapi_extra={"security": []},
)
async def open_session(request: Request, followed: Link, response: Response) -> dict[str, Any]:
    """Turn a one-time link into a browser's session: a cookie that scripts cannot read. Open to who has the link."""
    token, caller = await follow_link(request, followed.link)
    keep_session(request, response, token)
    return {"name": caller.actor.name, "role": caller.role.word, "session": True}


async def follow_link(request: Request, link: str) -> tuple[str, Caller]:
    """What the browser is to hold, and who it is; or a refusal."""
    app: Tenuto = request.app.state.tenuto
    rates: Rates = request.app.state.rates
    address = request.client.host if request.client else "unknown"
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        refuse_strangers(request)
    deed = Deed(
        Actor.system("one-time link"), "session.open", address, request_id=request.scope.get("tenuto_request_id")
    )
    rates.look_up(address)
    with on_record(deed):
        opened = await app.keys.follow(link)
    if opened is None:
        rates.refuse_guessers(address)
        rates.guessed(address)
        raise Refused(401, "this link is none, has been followed, or is too old", remedy="ask for a new one")
    return opened


def keep_session(request: Request, response: Response, token: str) -> None:
    """Have the browser hold its session: out of reach of scripts, and of what comes from other sites."""
    response.set_cookie(
        COOKIE,
        token,
        max_age=int(SESSION_LASTS.total_seconds()),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def forget_session(response: Response) -> None:
    """Have the browser let go of it."""
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")


@router.delete("/session", status_code=204, tags=["session"])
async def close_session(
    request: Request, response: Response, visit: Annotated[Visit, Depends(Needs(Role.VIEWER, "session.close"))]
) -> None:
    """End the browser's session."""
    if visit.caller.session:
        await visit.app.keys.leave(request.cookies[COOKIE])
    forget_session(response)
