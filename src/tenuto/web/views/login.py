"""Login and logout: by a one-time link, an invitation or an API key.

GET of a login link does not use up the link, because mail programs and browsers prefetch links; the button does.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qs, unquote

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.problems import Refused
from tenuto.api.routes.admin.access import redeem_invitation
from tenuto.api.routes.admin.api_keys import delete_session_cookie, redeem_key, redeem_link, set_session_cookie
from tenuto.api.security.authentication import ApiCall, requires, session_token
from tenuto.errors import Conflict
from tenuto.model.access.actors import Role
from tenuto.model.access.redirect_paths import is_page_path
from tenuto.web.page import NEXT_COOKIE, Dashboard, PageRoute, redirect
from tenuto.web.rendering import html_response
from tenuto.web.viewer import read_viewer

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MAX_FORM_LENGTH = 4000


@router.get("/login")
async def show_login_page(
    request: Request,
    link: Annotated[str, Query(max_length=200)] = "",
    next: Annotated[str, Query(max_length=2000)] = "",
) -> Response:
    """Show the login page of a one-time link, or a form to enter a link or a key."""
    return _login_page(request, link=link, next=next)


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Open a session with a link or a key."""
    fields = _parse_form(await request.body())
    target = fields.get("next") or unquote(request.cookies.get(NEXT_COOKIE, ""))
    text = (fields.get("link") or fields.get("credential") or "").strip()
    text = text.rpartition("link=")[2].partition("&")[0]  # a whole address was pasted
    try:
        if text.startswith("tni_"):
            return await _accept_invitation(request, text)
        redeem = redeem_key if text.startswith("tnt_") else redeem_link
        token, _ = await redeem(request, text)
    except Refused as refused:
        if refused.status_code == 403:
            raise
        return _login_page(request, next=target, refused=refused)
    except Conflict as conflict:  # the name of the invitation was taken meanwhile
        return _login_page(request, refused=Refused(409, conflict.message, code=conflict.code))
    response = redirect(target if is_page_path(target) else "/")
    set_session_cookie(request, response, token)
    if NEXT_COOKIE in request.cookies:
        response.delete_cookie(NEXT_COOKIE, path=f"{request.app.state.tenuto.settings.web_path}/login")
    return response


@router.post("/logout")
async def log_out(
    request: Request, call: Annotated[ApiCall, requires(Role.VIEWER, "session.close", accepts_forms=True)]
) -> Response:
    """Close the session."""
    if call.caller.via_session:
        await call.app.api_keys.end_session(session_token(request) or "")
    response = redirect("/login")
    delete_session_cookie(request, response)
    return response


async def _accept_invitation(request: Request, link: str) -> Response:
    """Accept an invitation and show the key of the person once; the session is open already."""
    accepted = await redeem_invitation(request, link)
    dashboard = _dashboard(request)
    context = {
        "key": accepted.key,
        "text": accepted.text,
        "links": dashboard.links,
        "version": dashboard.assets.version,
        "viewer": read_viewer(request, accepted.key.name, accepted.caller.role),
        "settings": request.app.state.tenuto.settings,
    }
    response = html_response(dashboard.environment.get_template("welcome.html").render(context).encode())
    set_session_cookie(request, response, accepted.token)
    return response


def _dashboard(request: Request) -> Dashboard:
    dashboard: Dashboard = request.app.state.dashboard
    return dashboard


def _login_page(request: Request, *, link: str = "", next: str = "", refused: Refused | None = None) -> Response:
    dashboard = _dashboard(request)
    context = {
        "link": link,
        "next": next if is_page_path(next) and next != "/" else "",
        "refused": None if refused is None else str(refused.detail),
        "links": dashboard.links,
        "version": dashboard.assets.version,
        "viewer": read_viewer(request, "", Role.VIEWER),
        "settings": request.app.state.tenuto.settings,
    }
    body = dashboard.environment.get_template("login.html").render(context).encode()
    status, headers = (200, {}) if refused is None else (refused.status_code, dict(refused.headers or {}))
    return html_response(body, status, headers)


def _parse_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form, the first value of each; empty if the body is not one of our forms."""
    try:
        values_by_name = parse_qs(body.decode("utf-8", "replace")[:_MAX_FORM_LENGTH], max_num_fields=10)
    except ValueError:  # too many fields
        return {}
    return {name: values[0] for name, values in values_by_name.items()}
