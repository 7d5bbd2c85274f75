"""Routes of extensions: each router is mounted under the name of its extension, without routes that declare no role."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from enum import Enum

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import BaseRoute

from tenuto.api.api_route import ApiRoute
from tenuto.errors import Invalid
from tenuto.extension import Extension, RouterEntry
from tenuto.extension.registry import ExtensionRegistry, resolve_target


def include_extension_routers(api: FastAPI, registry: ExtensionRegistry, core: Sequence[APIRouter]) -> None:
    """Mount the routers of all extensions. A router that cannot be used is reported and left out."""
    core_paths = {getattr(route, "path", "") for router in core for route in router.routes}
    for contribution in registry.collect(
        "routers", lambda extension: registry.check(extension, extension.routers(), RouterEntry)
    ):
        with registry.isolate(contribution.extension, "routers"):
            router = _load_router(registry, contribution.extension, contribution.value)
            tags: list[str | Enum] = [] if router.tags else [contribution.extension.name]
            prefix = contribution.value.prefix
            if prefix is None or not registry.is_built_in(contribution.extension):
                prefix = f"/api/v1/{contribution.extension.name}"
                _check_path_is_free(prefix, core_paths)
            api.include_router(router, prefix=prefix, tags=tags)


def _load_router(registry: ExtensionRegistry, extension: Extension, entry: RouterEntry) -> APIRouter:
    """Return a router. Routes that cannot be used are reported and left out."""
    router = resolve_target(entry.target)
    if not isinstance(router, APIRouter):
        raise Invalid(
            f"{entry.target} is not a FastAPI router",
            code="extension.router.invalid",
            remedy=f"correct the routers of the extension {extension.name}",
        )
    usable = []
    for route in router.routes:
        with registry.isolate(extension, f"route {getattr(route, 'path', route)}"):
            for context in iter_route_contexts([route]):
                _check_route(context.route)
            usable.append(route)
    checked = copy(router)
    checked.routes = usable
    return checked


def _check_path_is_free(prefix: str, core_paths: set[str]) -> None:
    if taken := [path for path in core_paths if path == prefix or path.startswith(f"{prefix}/")]:
        raise Invalid(
            f"the path {prefix} belongs to Tenuto: {min(taken)}",
            code="extension.router.path_taken",
            remedy="rename the extension",
        )


def _check_route(route: BaseRoute) -> None:
    """Refuse a route that callers without an API key could use."""
    path = route.path if isinstance(route, APIRoute) else repr(route)
    if not isinstance(route, ApiRoute) or route.required_role is None:  # guard: extension.route_without_role
        raise Invalid(
            f"the route {path} declares no role",
            code="extension.route.no_role",
            remedy="create the router with route_class=ApiRoute, and give every route a parameter with requires(…)",
        )
