"""The few pages a browser is shown: the one a one-time link leads to, where one arrives, and what can be asked here.

No script, nothing from elsewhere. Looking at the page of a link does not use the link up, since mail programs and
browsers look ahead: that takes the button. A browser that asks for a page without a login is sent to where one logs in,
and from there back to the page; where a program would be, it is refused as everywhere.
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

from tenuto.api.auth import COOKIE, Needs, Visit, caller_of_session
from tenuto.api.problems import Refused
from tenuto.api.routes.api_keys import follow_link, forget_session, keep_session
from tenuto.api.strict_route import StrictRoute
from tenuto.app import Tenuto
from tenuto.model.actors import Role
from tenuto.version import __version__

_PAGES = ("/", "/docs")
"""Where a login may lead to; whatever else a browser was told to ask for leads to the first."""


class PageRoute(StrictRoute):
    """A route for people: a browser that nobody has logged in on is shown where to."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handle(request)
            except Refused as refused:
                if refused.status_code != 401 or not _is_a_browser_looking(request):
                    raise
                return _lead_to(f"/login?next={quote(request.url.path, safe='')}")

        return shown


def _is_a_browser_looking(request: Request) -> bool:
    wants_a_page = "text/html" in request.headers.get("accept", "").lower()
    return request.method == "GET" and wants_a_page and "authorization" not in request.headers


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
    # To ourselves only: with none at all a browser would not say either where a form was sent from.
    "Referrer-Policy": "same-origin",
}
_LOGIN = "run <code>tenuto login</code> where the service is installed, and open the link it prints"


@router.get("/")
async def start(request: Request) -> HTMLResponse:
    """Where one arrives."""
    caller = await caller_of_session(request)
    if caller is None:
        return _page("Tenuto", f"<p>You are not logged in: {_LOGIN}.</p>")
    return _page(
        "Tenuto",
        f"<p>You are logged in as <b>{escape(caller.actor.name)}</b> ({caller.role.word}).</p>"
        '<ul><li><a href="/docs">What can be asked here</a></li>'
        '<li><a href="/api/v1/openapi.json">The same as an OpenAPI document</a></li>'
        '<li><a href="/api/v1/schedules">Schedules</a>, <a href="/api/v1/executions">executions</a>,'
        ' <a href="/api/v1/tasks">tasks</a>, <a href="/api/v1/activities">activities</a>,'
        ' <a href="/api/v1/workers">workers</a> as JSON</li></ul>'
        f'<form method="post" action="/logout"><button>Log out</button></form><p>Version {escape(__version__)}</p>',
    )


@router.get("/login")
async def login_page(
    link: Annotated[str, Query(max_length=200)] = "", next: Annotated[str, Query(max_length=200)] = ""
) -> HTMLResponse:
    """What a one-time link leads to."""
    if link:
        return _page("Log in", _form(f'<input type="hidden" name="link" value="{escape(link)}">', next))
    how = f"<p>To log in, {_LOGIN}; or enter what follows <code>link=</code> in it.</p>"
    return _page("Log in", how + _form(_ASKED, next))


@router.post("/login")
async def login(request: Request) -> Response:
    """Turn the link into a session."""
    fields = _fields(await request.body())
    try:
        token, _ = await follow_link(request, fields.get("link", ""))
    except Refused as refused:
        if refused.status_code == 403:
            raise
        what = f"<p>You are not logged in: {escape(str(refused.detail))}.</p><p>For a new link, {_LOGIN}.</p>"
        return _page("Log in", what, refused.status_code, dict(refused.headers or {}))
    response = _lead_to(_page_of_ours(fields.get("next", "")))
    keep_session(request, response, token)
    return response


@router.post("/logout")
async def logout(request: Request, visit: Annotated[Visit, Depends(Needs(Role.VIEWER, "session.close"))]) -> Response:
    """End the session."""
    if visit.caller.session:
        await visit.app.keys.leave(request.cookies[COOKIE])
    response = _lead_to(_PAGES[0])
    forget_session(response)
    return response


@router.get("/docs", dependencies=[Depends(Needs(Role.VIEWER, "openapi.read"))])
async def documentation(request: Request) -> HTMLResponse:
    """What can be asked, by what it is about."""
    app: Tenuto = request.app.state.tenuto
    rows: dict[str, list[str]] = {}
    for context in iter_route_contexts(request.app.routes):
        route = context.route
        if not isinstance(route, StrictRoute) or not route.include_in_schema:
            continue
        about = (route.endpoint.__doc__ or "").strip().split("\n\n")[0]
        who = "anybody" if route.needs is None else route.needs.role.word
        for method in sorted((route.methods or set()) - {"HEAD"}):
            path = escape(route.path.replace(":name}", "}"))
            row = f"<tr><td>{method}</td><td>{path}</td><td>{escape(about)}</td><td>{who}</td></tr>"
            rows.setdefault(str(context.tags[0] if context.tags else "about"), []).append(row)
    parts = [f"<h2>{escape(tag).capitalize()}</h2><table>{''.join(each)}</table>" for tag, each in rows.items()]
    lead = (
        "<p>By path, what it does, and the role it takes; in full, with examples, in the"
        ' <a href="/api/v1/openapi.json">OpenAPI document</a>. Programs send a key as'
        f" <code>Authorization: Bearer …</code>. Jobs known here: {len(app.jobs.by_name)}.</p>"
    )
    return _page("What can be asked here", lead + "".join(parts))


def _fields(body: bytes) -> dict[str, str]:
    """What a form says, the first of each name; nothing if it is none of ours."""
    try:
        read = parse_qs(body.decode("utf-8", "replace")[:2000], max_num_fields=10)
    except ValueError:  # there are more
        return {}
    return {name: values[0] for name, values in read.items()}


def _page_of_ours(asked: str) -> str:
    """Never elsewhere, whoever wrote it into the link that a browser followed."""
    return asked if asked in _PAGES else _PAGES[0]


def _lead_to(place: str) -> Response:
    return Response(status_code=303, headers={"Location": place, **_HEADERS})


_ASKED = '<label>Link<br><input name="link" autocomplete="off" required></label><br>'


def _form(field: str, next: str) -> str:
    page = _page_of_ours(next)
    back = "" if page == _PAGES[0] else f'<input type="hidden" name="next" value="{page}">'
    return (
        f'<form method="post" action="/login">{field}{back}<button autofocus>Log in</button></form>'
        "<p>The link is good for one time.</p>"
    )


def _page(title: str, body: str, status: int = 200, headers: dict[str, str] | None = None) -> HTMLResponse:
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>{body}</main></body></html>"
    )
    return HTMLResponse(text, status, {**_HEADERS, **(headers or {})})
