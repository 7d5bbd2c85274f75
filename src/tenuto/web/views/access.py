"""Pages about access: keys, invitations and sessions for administrators, and the account of the viewer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Request, Response

from tenuto.api.security.authentication import ApiCall
from tenuto.model.access.actors import ActorType, Caller, Role
from tenuto.presentation.admin_views import API_KEYS
from tenuto.presentation.columns import ResourceView
from tenuto.store.access.api_keys import ApiKeyRecord, SessionRecord
from tenuto.store.access.invitations import InvitationRecord
from tenuto.web.page import PageRoute, PageView, Reader, page_role

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Admin = Annotated[ApiCall, page_role(Role.ADMIN, "page.read")]
_MAX_INVITATIONS = 50
_MAX_SESSIONS = 200


_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"), ("Safari/", "Safari"))
_SYSTEMS = ("Windows", "Android", "iPhone", "iPad", "Mac OS X", "Linux")


def describe_browser(agent: str | None) -> str:
    """Return browser and system that a User-Agent names, else its beginning."""
    browser = next((name for mark, name in _BROWSERS if mark in (agent or "")), "")
    system = next((name for name in _SYSTEMS if name in (agent or "")), "")
    return " on ".join(filter(None, (browser, system))) if browser else (agent or "unknown")[:60]


@dataclass(frozen=True, slots=True)
class KeysPage:
    keys: Sequence[ApiKeyRecord]
    invitations: Sequence[InvitationRecord]
    sessions: Sequence[SessionRecord]
    current_session: UUID | None
    origin: str
    """Scheme, host and port of this service, as the browser sees it."""
    key_view: ResourceView = API_KEYS
    describe_browser: Callable[[str | None], str] = describe_browser
    roles: Sequence[str] = tuple(role.key for role in Role)


@dataclass(frozen=True, slots=True)
class AccountPage:
    sessions: Sequence[SessionRecord]
    current_session: UUID | None
    has_key: bool
    login: str
    """How the viewer is known."""
    describe_browser: Callable[[str | None], str] = describe_browser


@router.get("/keys")
async def show_keys(request: Request, call: Admin) -> Response:
    """Show keys without their texts, invitations and open sessions."""
    view = PageView(request, call)
    keys, invitations, sessions = await asyncio.gather(
        view.app.api_keys.list(),
        view.app.invitations.list(limit=_MAX_INVITATIONS),
        view.app.api_keys.sessions(limit=_MAX_SESSIONS),
    )
    origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    model = KeysPage(keys, invitations, sessions, call.caller.session_id, origin)
    return await view.render("pages/keys.html", model, title="Keys", current="/keys")


@router.get("/account")
async def show_account(request: Request, call: Reader) -> Response:
    """Show the viewer's own name, role and sessions."""
    view, caller = PageView(request, call), call.caller
    sessions = [] if caller.key_id is None else await view.app.api_keys.sessions(caller.key_id, limit=_MAX_SESSIONS)
    model = AccountPage(sessions, caller.session_id, caller.key_id is not None, _describe_login(caller))
    return await view.render("pages/account.html", model, title="Account", current="/account")


def _describe_login(caller: Caller) -> str:
    if caller.key_id is None:
        return "by the proxy in front of this service"
    if caller.is_initial_key:
        return "with the initial key, which belongs to no person"
    return "with your own key" if caller.actor.type == ActorType.USER else "with the key of a program"
