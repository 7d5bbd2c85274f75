"""The routes of the API by operation id, from which buttons take their method, address and required role.

A page can do nothing that the API cannot do, and no template names a role.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from tenuto.api.api_route import ApiRoute
from tenuto.model.access.actors import Role
from tenuto.web.components.links import quote_part

_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")


@lru_cache(maxsize=1000)
def _split(path: str) -> Sequence[str]:
    """Return the texts of a path and between them the names of its parameters."""
    return _PARAMETER.split(path)


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation of the API."""

    id: str
    method: str
    path: str
    role: Role

    def address(self, parameters: Mapping[str, Any]) -> str:
        """Return the path with its parameters."""
        pieces = _split(self.path)
        if len(pieces) == 1:
            return self.path
        # An id contains nothing that must be quoted.
        values = [parameters[name] for name in pieces[1::2]]
        quoted = [str(value) if isinstance(value, UUID) else quote_part(str(value)) for value in values]
        return "".join([text + value for text, value in zip(pieces[::2], [*quoted, ""], strict=True)])


class RouteTable:
    """All operations of an application that need a role."""

    def __init__(self, api: FastAPI) -> None:
        self._operations: dict[str, ApiOperation] = {}
        for context in iter_route_contexts(api.routes):
            route = context.route
            if not isinstance(route, ApiRoute) or not route.include_in_schema or route.required_role is None:
                continue
            method = next(iter(sorted((route.methods or set()) - {"HEAD"})))
            if route.operation_id:
                self._operations[route.operation_id] = ApiOperation(
                    route.operation_id, method, context.path_format or route.path, route.required_role.role
                )

    def __getitem__(self, operation_id: str) -> ApiOperation:
        return self._operations[operation_id]

    def __contains__(self, operation_id: str) -> bool:
        return operation_id in self._operations

    def may(self, role: Role, operation_id: str) -> bool:
        """Return whether a role may call an operation."""
        return role >= self._operations[operation_id].role
