"""``/docs``: the routes of the API with their required roles."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.routing import iter_route_contexts

from tenuto.api.api_route import ApiRoute
from tenuto.web.page import PageRoute, PageView, Reader

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class RouteRow:
    method: str
    path: str
    summary: str
    role: str


@router.get("/docs")
async def show_api_reference(request: Request, call: Reader) -> Response:
    """Show all routes by tag."""
    rows: dict[str, list[RouteRow]] = {}
    for context in iter_route_contexts(request.app.routes):
        route = context.route
        if not isinstance(route, ApiRoute) or not route.include_in_schema:
            continue
        role = "none" if route.required_role is None else route.required_role.role.key
        for method in sorted((route.methods or set()) - {"HEAD"}):
            path = (context.path_format or route.path).replace(":name}", "}")
            tag = str(context.tags[0] if context.tags else "about")
            rows.setdefault(tag, []).append(RouteRow(method, path, route.summary or "", role))
    return await PageView(request, call).render("pages/api_reference.html", rows, title="API", current="/docs")
