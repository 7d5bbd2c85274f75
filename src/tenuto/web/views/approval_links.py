"""The page behind an approval link: it shows what is to be decided, and its buttons decide.

GET changes nothing, because mail and chat programs open links to preview them. The link is the only credential: it
opens no session.
"""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.security.authentication import client_address, refuse_cross_site
from tenuto.api.security.rate_limit import RateLimiter
from tenuto.app import Tenuto
from tenuto.errors import UserError
from tenuto.model.access.actors import Actor, Role
from tenuto.model.events.approvals import ApprovalState, Decision
from tenuto.operations.events.approvals import LINK_PATH
from tenuto.web.page import Dashboard, PageRoute
from tenuto.web.rendering import html_response
from tenuto.web.viewer import read_viewer

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_MAX_FORM_LENGTH = 8000
_MAX_REASON_LENGTH = 1000


@router.get(LINK_PATH)
async def show_link_page(request: Request, link: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show what is to be decided, with buttons that decide."""
    app: Tenuto = request.app.state.tenuto
    _count_lookup(request)
    found = await app.approvals.open_link(link)
    if found is None or found.approval.state is not ApprovalState.PENDING:
        _count_failure(request)
        return _page(request, 404)
    return _page(
        request, approval=found.approval, person=found.person, expires_at=found.expires_at, link=link,
        context=json.dumps(found.approval.context, indent=2, ensure_ascii=False),
    )  # fmt: skip


@router.post(LINK_PATH)
async def decide_by_link(request: Request) -> Response:
    """Decide on behalf of the person of the link."""
    app: Tenuto = request.app.state.tenuto
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        refuse_cross_site(request)
    _count_lookup(request)
    fields = parse_qs((await request.body()).decode("utf-8", "replace")[:_MAX_FORM_LENGTH])
    link, decision = (fields.get(name, [""])[0] for name in ("link", "decision"))
    reason = fields.get("reason", [""])[0].replace("\x00", "").strip()[:_MAX_REASON_LENGTH]
    found = await app.approvals.open_link(link) if decision in list(Decision) else None
    if found is None:
        _count_failure(request)
        return _page(request, 404)
    acting = app.acting_as(
        Actor.user(found.person),
        source=client_address(request),
        correlation_id=request.scope.get("tenuto_request_id"),
    )
    try:
        approval = await acting.approvals.decide_by_link(link, Decision(decision), reason or None)
    except UserError as error:
        return _page(request, 409, problem=error.message)
    if approval is None:
        return _page(request, 404)
    return _page(request, approval=approval, decided=True)


def _count_lookup(request: Request) -> None:
    limiter: RateLimiter = request.app.state.rate_limiter
    limiter.count_lookup(client_address(request))


def _count_failure(request: Request) -> None:
    limiter: RateLimiter = request.app.state.rate_limiter
    limiter.refuse_after_failures(client_address(request))
    limiter.count_failure(client_address(request))


def _page(request: Request, status: int = 200, **values: Any) -> Response:
    dashboard: Dashboard = request.app.state.dashboard
    context = {
        "approval": None,
        "decided": False,
        "problem": "",
        **values,
        "links": dashboard.links,
        "version": dashboard.assets.version,
        "viewer": read_viewer(request, "", Role.VIEWER),
        "settings": request.app.state.tenuto.settings,
    }
    body = dashboard.environment.get_template("approve.html").render(context).encode()
    return html_response(body, status, {})
