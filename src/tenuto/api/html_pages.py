"""HTML pages: start page, login by a one-time link, and an overview of the API.

They contain no scripts and no external resources. GET of a login link does not use up the link, because mail programs
and browsers prefetch links; the button does. A browser without a session is redirected to the login page and back;
other clients get 401.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Coroutine
from html import escape
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.routing import iter_route_contexts

from tenuto.api.api_route import ApiRoute
from tenuto.api.auth import SESSION_COOKIE, ApiCall, RequiredRole, find_session_caller, requires
from tenuto.api.problems import Refused
from tenuto.api.routes.api_keys import delete_session_cookie, redeem_link, set_session_cookie
from tenuto.app import Tenuto
from tenuto.model.actors import Role
from tenuto.version import __version__

_PAGES = ("/", "/docs")
"""Allowed targets of the redirect after a login; other targets lead to the first."""


class PageRoute(ApiRoute):
    """Route that redirects browsers without a session to the login page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_or_redirect(request: Request) -> Response:
            try:
                return await handle(request)
            except Refused as refused:
                if refused.status_code != 401 or not _is_browser_navigation(request):
                    raise
                return _redirect(f"/login?next={quote(request.url.path, safe='')}")

        return handle_or_redirect


def _is_browser_navigation(request: Request) -> bool:
    accepts_html = "text/html" in request.headers.get("accept", "").lower()
    return request.method == "GET" and accepts_html and "authorization" not in request.headers


router = APIRouter(route_class=PageRoute, include_in_schema=False)

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 4rem auto; padding: 0 1.5rem }
button, input { font: inherit; padding: .4rem 1rem }
input { width: 100%; max-width: 32rem; box-sizing: border-box; margin-bottom: .75rem }
code, td { font-family: ui-monospace, monospace; font-size: .9em }
table { border-collapse: collapse } td { padding: .15rem 1.5rem .15rem 0; vertical-align: top }
td + td + td { font-family: inherit }
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_DIGEST}'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    # With no-referrer, a browser would omit the Origin header of a form, which the CSRF check needs.
    "Referrer-Policy": "same-origin",
}
_LOGIN_HINT = "run <code>tenuto login</code> on the machine of the service and open the link that it prints"


@router.get("/")
async def show_start_page(request: Request) -> HTMLResponse:
    """Show the start page."""
    caller = await find_session_caller(request)
    if caller is None:
        return _page("Tenuto", f"<p>You are not logged in: {_LOGIN_HINT}.</p>")
    return _page(
        "Tenuto",
        f"<p>You are logged in as <b>{escape(caller.actor.name)}</b> ({caller.role.key}).</p>"
        '<ul><li><a href="/docs">API overview</a></li>'
        '<li><a href="/api/v1/openapi.json">OpenAPI document</a></li>'
        '<li><a href="/api/v1/schedules">Schedules</a>, <a href="/api/v1/executions">executions</a>,'
        ' <a href="/api/v1/tasks">tasks</a>, <a href="/api/v1/activities">activities</a>,'
        ' <a href="/api/v1/workers">workers</a> as JSON</li></ul>'
        f'<form method="post" action="/logout"><button>Log out</button></form><p>Version {escape(__version__)}</p>',
    )


@router.get("/login")
async def show_login_page(
    link: Annotated[str, Query(max_length=200)] = "", next: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """Show the login page of a one-time link, or a form to enter one."""
    if link:
        return _page("Log in", _form(f'<input type="hidden" name="link" value="{escape(link)}">', next))
    hint = f"<p>To log in, {_LOGIN_HINT}; or enter what follows <code>link=</code> in it.</p>"
    return _page("Log in", hint + _form(_LINK_FIELD, next))


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Open a session with the link."""
    fields = _parse_form(await request.body())
    try:
        token, _ = await redeem_link(request, fields.get("link", ""))
    except Refused as refused:
        if refused.status_code == 403:
            raise
        text = f"<p>You are not logged in: {escape(str(refused.detail))}.</p><p>For a new link, {_LOGIN_HINT}.</p>"
        return _page("Log in", text, refused.status_code, dict(refused.headers or {}))
    response = _redirect(_redirect_target(fields.get("next", "")))
    set_session_cookie(request, response, token)
    return response


@router.post("/logout")
async def log_out(request: Request, call: Annotated[ApiCall, requires(Role.VIEWER, "session.close")]) -> Response:
    """Close the session."""
    if call.caller.via_session:
        await call.app.api_keys.end_session(request.cookies[SESSION_COOKIE])
    response = _redirect(_PAGES[0])
    delete_session_cookie(response)
    return response


@router.get("/docs", dependencies=[Depends(RequiredRole(Role.VIEWER, "openapi.read"))])
async def show_api_overview(request: Request) -> HTMLResponse:
    """Show all routes by tag."""
    app: Tenuto = request.app.state.tenuto
    rows: dict[str, list[str]] = {}
    for context in iter_route_contexts(request.app.routes):
        route = context.route
        if not isinstance(route, ApiRoute) or not route.include_in_schema:
            continue
        role = "none" if route.required_role is None else route.required_role.role.key
        for method in sorted((route.methods or set()) - {"HEAD"}):
            path = escape(route.path.replace(":name}", "}"))
            row = f"<tr><td>{method}</td><td>{path}</td><td>{escape(route.summary or '')}</td><td>{role}</td></tr>"
            rows.setdefault(str(context.tags[0] if context.tags else "about"), []).append(row)
    parts = [f"<h2>{escape(tag).capitalize()}</h2><table>{''.join(each)}</table>" for tag, each in rows.items()]
    lead = (
        "<p>Routes with their required roles. Parameters and examples are in the"
        ' <a href="/api/v1/openapi.json">OpenAPI document</a>. Programs send an API key as'
        f" <code>Authorization: Bearer …</code>. Registered jobs: {len(app.jobs.jobs_by_name)}.</p>"
    )
    return _page("API overview", lead + "".join(parts))


def _parse_form(body: bytes) -> dict[str, str]:
    """Return the fields of a form, the first value of each; empty if the body is not one of our forms."""
    try:
        values_by_name = parse_qs(body.decode("utf-8", "replace")[:2000], max_num_fields=10)
    except ValueError:  # too many fields
        return {}
    return {name: values[0] for name, values in values_by_name.items()}


def _redirect_target(path: str) -> str:
    """Return the path if it is one of our pages, otherwise the start page: never another site."""
    return path if path in _PAGES else _PAGES[0]


def _redirect(path: str) -> Response:
    return Response(status_code=303, headers={"Location": path, **_HEADERS})


_LINK_FIELD = '<label>Link<br><input name="link" autocomplete="off" required></label><br>'


def _form(field: str, next: str) -> str:
    page = _redirect_target(next)
    back = "" if page == _PAGES[0] else f'<input type="hidden" name="next" value="{page}">'
    return (
        f'<form method="post" action="/login">{field}{back}<button autofocus>Log in</button></form>'
        "<p>The link works once.</p>"
    )


def _page(title: str, body: str, status: int = 200, headers: dict[str, str] | None = None) -> HTMLResponse:
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>{body}</main></body></html>"
    )
    return HTMLResponse(text, status, {**_HEADERS, **(headers or {})})
