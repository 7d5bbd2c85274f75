"""The route class of the API: authorization before the body is read, strict input, stored responses, documentation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from tenuto.api.bodies.strict_json import StrictRequest, check_json_body
from tenuto.api.csv_lists import list_view
from tenuto.api.list_pages import Items, Page
from tenuto.api.openapi import general_problems, merge_responses
from tenuto.api.replica_reads import STALENESS_HEADER, ReplicaReads, replica_reads
from tenuto.api.security.authentication import SAFE_METHODS, ApiCall, RequiredRole, store_response
from tenuto.errors import Conflict, Invalid, NotFound, quoted
from tenuto.model.access.actors import Role
from tenuto.postgres.servers.read_replica import ReplicaState
from tenuto.store.filter_sql import CappedCount

_QUERY_RESULT = "the operation was done before with the same Idempotency-Key: query its result"


class ApiRoute(APIRoute):
    """Route that authorizes the caller, then reads the body, then stores the response for repeated requests.

    FastAPI reads the body before it resolves dependencies, so the route authorizes the caller itself, and the
    dependency `RequiredRole` returns the result. A request that was committed before with the same idempotency key, but
    whose response was not stored, reaches the endpoint again only if the route declares ``handles_repeats``.

    The first sentence of the endpoint's docstring is the OpenAPI summary, the rest is the description.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if options.get("summary") is None:
            summary, _, description = inspect.cleandoc(endpoint.__doc__ or "").replace("\n", " ").partition(". ")
            options |= {"summary": summary.removesuffix("."), "description": description or None}
        view = list_view(endpoint)
        if view is not None:
            # Not declared as a second media type: generated clients would then return a union.
            options["description"] = (
                f"{options.get('description') or ''} With `Accept: text/csv`, the list is CSV.".strip()
            )
            options["openapi_extra"] = {"x-csv-columns": view.csv_header(), **(options.get("openapi_extra") or {})}
        super().__init__(path, endpoint, **options)
        self.query_parameters = tuple(
            field.alias for field in get_flat_params(self.dependant) if isinstance(field.field_info, Query)
        )
        role = self.required_role
        if role is not None:
            others = {"x-other-actions": list(role.other_actions)} if role.other_actions else {}
            self.openapi_extra = {
                "x-role": role.role.key,
                "x-action": role.action,
                **others,
                **(self.openapi_extra or {}),
            }
        general = general_problems(
            has_role=role is not None,
            has_body=self.body_field is not None or "requestBody" in (self.openapi_extra or {}),
            is_idempotent="POST" in (self.methods or ()) and role is not None,
        )
        self.responses = merge_responses(general, self.responses)

    @property
    def required_role(self) -> RequiredRole | None:
        """Role that the route requires; None if it is open."""
        return next((each.call for each in self.dependant.dependencies if isinstance(each.call, RequiredRole)), None)

    @property
    def may_read_replica(self) -> bool:
        """Whether the queries of the route may read from the read replica: lists, counts and reports.

        Data of administrators (keys, sessions, secrets, the audit log) and single objects come from the primary: a
        caller decides by a single object what to do next, so it must be current.
        """
        role, model = self.required_role, self.response_model
        if "GET" not in (self.methods or ()) or role is None or role.role >= Role.ADMIN:
            return False
        is_list = inspect.isclass(model) and issubclass(model, (Page, Items, CappedCount))
        return is_list or "reports" in self.tags

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, required_role = super().get_route_handler(), self.required_role
        may_read_replica = self.may_read_replica

        async def handle_strictly(request: Request) -> Response:
            strict = StrictRequest(request.scope, request.receive)
            call: ApiCall | None = None
            try:
                if required_role is not None:
                    call = strict.state.api_call = await required_role.authorize(strict)
                    if call is not None and call.is_repeat and not required_role.handles_repeats:
                        raise Conflict(
                            "the request was done before, and its response is not stored",
                            code="request.idempotency_key.already_done",
                            remedy=_QUERY_RESULT,
                        )
                if self.include_in_schema:
                    self._refuse_unknown_parameters(strict)
                if self.body_field is not None:
                    await check_json_body(strict)
                response = await _answer(handle, strict, call, may_read_replica=may_read_replica)
                if call is not None and required_role is not None and required_role.stores_response:
                    await store_response(strict.app.state.tenuto, call, response)
                return response
            except Conflict as error:
                if call is not None and call.is_repeat:
                    if self.status_code == 204:
                        return Response(status_code=204)  # the first request succeeded; its response had no body
                    error.code = "request.idempotency_key.already_done"
                    error.remedy = _QUERY_RESULT
                raise
            except ClientDisconnect:
                return Response(status_code=400)  # is not sent

        return handle_strictly

    def _refuse_unknown_parameters(self, request: Request) -> None:
        for name in request.query_params:
            if name not in self.query_parameters:
                allowed = ", ".join(self.query_parameters)
                near = get_close_matches(name, self.query_parameters, 1)
                remedy = f"use any of {allowed}" if allowed else "this operation has no query parameters"
                raise Invalid(
                    f"the query parameter {quoted(name, 60)} is unknown",
                    code="request.parameter.unknown",
                    field=name[:60],
                    remedy=f"did you mean {near[0]}? {remedy}" if near else remedy,
                )


Handler = Callable[[Request], Coroutine[Any, Any, Response]]


async def _answer(handle: Handler, request: Request, call: ApiCall | None, *, may_read_replica: bool) -> Response:
    """Handle an authorized request. A query may read from the read replica, and a change is remembered for those."""
    reads = replica_reads(request.app)
    if reads is None or call is None:
        return await handle(request)
    if request.method in SAFE_METHODS:
        replica = await reads.choose(request, call) if may_read_replica else None
        if replica is not None:
            return await _read_replica(handle, request, call, replica, reads)
        response = await handle(request)
        reads.remember_newest(call)
        return response
    try:
        response = await handle(request)
    finally:
        reads.remember_newest(call)
    await reads.add_cookie(request, call, response)
    return response


async def _read_replica(
    handle: Handler, request: Request, call: ApiCall, replica: ReplicaState, reads: ReplicaReads
) -> Response:
    on_primary, call.app, call.replica = call.app, call.app.reading_from(replica.database), replica
    staleness = replica.staleness_seconds
    try:
        response = await handle(request)
    except NotFound:  # it may be newer than the state of the replica
        call.app, call.replica = on_primary, None
        response = await handle(request)
        reads.remember_newest(call)
        return response
    response.headers[STALENESS_HEADER] = f"{staleness:.3f}"
    return response
