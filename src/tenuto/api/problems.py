"""Errors as ``application/problem+json`` (RFC 9457): stable code, message, field, remedy and request id.

An unexpected error is returned with its request id only; the details go to the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi import HTTPException as FastApiHTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.errors import (
    Conflict,
    Forbidden,
    Invalid,
    MissingExtra,
    NotFound,
    SchemaMismatch,
    TenutoError,
    Unavailable,
    UnknownJob,
)
from tenuto.logs import Log

MEDIA_TYPE = "application/problem+json"
_LOGGED_ATTRIBUTE = "_logged_by_tenuto"
_MAX_FIELD_PROBLEMS = 50

log = Log("tenuto.api")


class FieldProblem(BaseModel):
    """A field of the request and its problem."""

    field: str
    message: str
    position: int | None = Field(default=None, description="In a filter: the character at fault, counted from 0.")


class Problem(BaseModel):
    """An error response in the format of RFC 9457."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "urn:tenuto:invalid",
                "code": "task.run_at.no_utc_offset",
                "title": "a value is not acceptable",
                "status": 422,
                "detail": "run_at '2027-01-01T00:00:00' has no UTC offset",
                "errors": [{"field": "run_at", "message": "run_at '2027-01-01T00:00:00' has no UTC offset"}],
                "remedy": "write it with an offset, such as 2027-01-01T00:00:00Z",
                "request_id": "01a1e30edf3e7536",
            }
        }
    )

    type: str = Field(description="Category of the problem: a URN that follows from the status and never changes.")
    code: str = Field(description="Stable code of the error, for programs; `request.invalid` for malformed requests.")
    title: str = Field(description="Title of the category.")
    status: int = Field(description="HTTP status.")
    detail: str | None = Field(default=None, description="Error message for people. The wording may change.")
    errors: list[FieldProblem] | None = Field(default=None, description="Fields at fault.")
    remedy: str | None = Field(default=None, description="What to do about the error.")
    request_id: str | None = Field(default=None, description="Id of the request in the log of the web service.")


class Refused(FastApiHTTPException):
    """The web service refuses a request before a route handles it.

    Derived from FastAPI's exception, because FastAPI converts other exceptions raised while it reads a body.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str,
        remedy: str | None = None,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.code = code
        self.field = field
        self.remedy = remedy


_CATEGORIES: tuple[tuple[type[TenutoError], int, str, str], ...] = (
    (Invalid, 422, "invalid", "a value is not acceptable"),
    (NotFound, 404, "not-found", "the object does not exist"),
    (Conflict, 409, "conflict", "the current state does not allow the operation"),
    (Forbidden, 403, "forbidden", "the caller lacks permission"),
    (UnknownJob, 422, "unknown-job", "the job is not registered in this web service"),
    (MissingExtra, 501, "not-installed", "this web service lacks a package that the feature needs"),
    (Unavailable, 503, "unavailable", "the database cannot be reached"),
    (SchemaMismatch, 503, "schema", "the database schema does not fit this version of Tenuto"),
)


def install_error_handlers(api: FastAPI) -> None:
    """Return every error as a problem."""
    api.add_exception_handler(TenutoError, _handle_tenuto_error)
    api.add_exception_handler(RequestValidationError, _handle_validation_error)
    api.add_exception_handler(HTTPException, handle_http_error)
    api.add_exception_handler(Exception, _handle_unexpected_error)


def problem_response(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a problem as a response."""
    problem.request_id = request.scope.get("tenuto_request_id")
    body = problem.model_dump(exclude_none=True)
    return JSONResponse(body, problem.status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def describe_error(error: Exception) -> Problem:
    """Return a known error as a problem; any other error as an internal one, without its details."""
    if isinstance(error, RequestValidationError):
        return _describe_validation_error(error)
    if isinstance(error, HTTPException):
        return _describe_http_error(error)
    for kind, status, category, title in _CATEGORIES:
        if isinstance(error, kind):
            return Problem(
                type=f"urn:tenuto:{category}",
                code=error.code,
                title=title,
                status=status,
                detail=error.message,
                errors=[_field_problem(error)] if error.field else None,
                remedy=error.remedy,
            )
    return Problem(type="urn:tenuto:error", code="internal.error", title="internal error", status=500)


async def _handle_tenuto_error(request: Request, error: Exception) -> JSONResponse:
    problem = describe_error(error)
    if problem.status == 500:
        return await _handle_unexpected_error(request, error)
    return problem_response(request, problem, {"Retry-After": "1"} if problem.status == 503 else None)


def _field_problem(error: TenutoError) -> FieldProblem:
    position = error.position if isinstance(error, Invalid) else None
    return FieldProblem(field=error.field or "", message=error.message, position=position)


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    return problem_response(request, describe_error(error))


def _describe_validation_error(error: RequestValidationError) -> Problem:
    found = error.errors()[:_MAX_FIELD_PROBLEMS]
    fields = [FieldProblem(field=_field_path(each["loc"]), message=str(each["msg"])) for each in found]
    return Problem(
        type="urn:tenuto:invalid",
        code="request.invalid",
        title="a value is not acceptable",
        status=422,
        detail="; ".join(f"{each.field}: {each.message}" for each in fields[:3]),
        errors=fields,
    )


def _field_path(location: tuple[Any, ...]) -> str:
    """Return ``steps.0.name`` for ``("body", "steps", 0, "name")``."""
    parts = [str(part) for part in location]
    if len(parts) > 1 and parts[0] in ("body", "query", "path", "header", "cookie"):
        parts = parts[1:]
    return ".".join(parts)


async def handle_http_error(request: Request, error: Exception) -> JSONResponse:
    """Return an error of the framework, or a refusal, as a problem."""
    assert isinstance(error, HTTPException)
    return problem_response(request, describe_error(error), error.headers)


def _describe_http_error(error: HTTPException) -> Problem:
    phrase, field = HTTPStatus(error.status_code).phrase.lower(), getattr(error, "field", None)
    return Problem(
        type=f"urn:tenuto:{phrase.replace(' ', '-')}",
        code=error.code if isinstance(error, Refused) else f"request.{phrase.replace(' ', '_')}",
        title=phrase,
        status=error.status_code,
        detail=str(error.detail),
        errors=[FieldProblem(field=field, message=str(error.detail))] if field else None,
        remedy=getattr(error, "remedy", None),
    )


async def _handle_unexpected_error(request: Request, error: Exception) -> JSONResponse:
    log.exception(  # noqa: LOG004 — the caller of this handler has caught the error
        "request failed",
        request_id=request.scope.get("tenuto_request_id"),
        method=request.method,
        path=request.url.path,
    )
    setattr(error, _LOGGED_ATTRIBUTE, True)
    problem = Problem(type="urn:tenuto:error", code="internal.error", title="internal error", status=500)
    return problem_response(request, problem)


class SuppressLoggedErrors:
    """Outermost middleware of our own server: drop errors that have been answered and logged.

    Starlette raises them again after the handler, and uvicorn would log them a second time without the request id.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._inner(scope, receive, send)
        except Exception as error:  # only errors that were logged end here
            if not getattr(error, _LOGGED_ATTRIBUTE, False):
                raise
