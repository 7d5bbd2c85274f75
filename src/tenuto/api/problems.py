"""What went wrong, as ``application/problem+json``: what it is, which field, what to do, and the id of the request.

An error nobody meant to raise is told by its id alone; its story goes into the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi import HTTPException as ReadingError
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from tenuto.errors import Conflict, Forbidden, Invalid, NotFound, SchemaMismatch, TenutoError, Unavailable, UnknownJob
from tenuto.logs import Log

MEDIA_TYPE = "application/problem+json"
_TOLD = "_told_by_tenuto"

log = Log("tenuto.api")


class FieldProblem(BaseModel):
    """One field, and what is wrong with it."""

    field: str
    message: str


class Problem(BaseModel):
    """An error, told in the way of RFC 9457."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "type": "urn:tenuto:invalid",
                "title": "a value is not acceptable",
                "status": 422,
                "detail": "exec_at: has no time zone",
                "errors": [{"field": "exec_at", "message": "has no time zone"}],
                "remedy": "write it with an offset, such as 2027-01-01T00:00:00Z",
                "request_id": "01a1e30edf3e7536",
            }
        }
    )

    type: str = Field(description="What kind of problem, as a URN that stays the same.")
    title: str
    status: int
    detail: str | None = None
    errors: list[FieldProblem] | None = Field(default=None, description="The fields at fault, if fields are.")
    remedy: str | None = Field(default=None, description="What to do about it.")
    request_id: str | None = Field(default=None, description="Under this id it is in the log.")


class Refused(ReadingError):  # that one, because what it is not is told as a body that cannot be read
    """A request that is refused before anybody looks at what it asks for."""

    def __init__(
        self, status: int, detail: str, *, remedy: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, dict(headers or {}))
        self.remedy = remedy


_KINDS: tuple[tuple[type[TenutoError], int, str, str], ...] = (
    (Invalid, 422, "invalid", "a value is not acceptable"),
    (NotFound, 404, "not-found", "there is no such thing"),
    (Conflict, 409, "conflict", "the state of things does not allow it"),
    (Forbidden, 403, "forbidden", "you may not do that"),
    (UnknownJob, 422, "unknown-job", "this web service does not know the job"),
    (Unavailable, 503, "unavailable", "the database cannot be reached just now"),
    (SchemaMismatch, 503, "schema", "the database's schema does not fit this program"),
)


def install(api: FastAPI) -> None:
    """Have every error told as a problem."""
    api.add_exception_handler(TenutoError, _of_ours)
    api.add_exception_handler(RequestValidationError, _of_fields)
    api.add_exception_handler(HTTPException, _of_http)
    api.add_exception_handler(Exception, _unforeseen)


def answer(request: Request, problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A problem, as a response."""
    problem.request_id = request.scope.get("tenuto_request_id")
    body = problem.model_dump(exclude_none=True)
    return JSONResponse(body, problem.status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


async def _of_ours(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TenutoError)
    for kind, status, word, title in _KINDS:
        if isinstance(error, kind):
            fields = [FieldProblem(field=error.field, message=error.message)] if error.field else None
            detail = f"{error.field}: {error.message}" if error.field else error.message
            problem = Problem(
                type=f"urn:tenuto:{word}", title=title, status=status, detail=detail, errors=fields, remedy=error.remedy
            )
            return answer(request, problem, {"Retry-After": "1"} if status == 503 else None)
    return await _unforeseen(request, error)


async def _of_fields(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    fields = [FieldProblem(field=_where(each["loc"]), message=str(each["msg"])) for each in error.errors()[:50]]
    problem = Problem(
        type="urn:tenuto:invalid",
        title="a value is not acceptable",
        status=422,
        detail="; ".join(f"{each.field}: {each.message}" for each in fields[:3]),
        errors=fields,
    )
    return answer(request, problem)


def _where(place: tuple[Any, ...]) -> str:
    """``body.steps.0.name`` is for machines; people look for ``steps.0.name``."""
    parts = [str(part) for part in place]
    if len(parts) > 1 and parts[0] in ("body", "query", "path", "header", "cookie"):
        parts = parts[1:]
    return ".".join(parts)


async def _of_http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase.lower()
    problem = Problem(
        type=f"urn:tenuto:{phrase.replace(' ', '-')}",
        title=phrase,
        status=error.status_code,
        detail=str(error.detail),
        remedy=getattr(error, "remedy", None),
    )
    return answer(request, problem, error.headers)


async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
    log.exception(  # noqa: LOG004 — it is being handled: we are called from where it was caught
        "a request failed",
        request_id=request.scope.get("tenuto_request_id"),
        method=request.method,
        path=request.url.path,
    )
    setattr(error, _TOLD, True)
    problem = Problem(type="urn:tenuto:error", title="something went wrong here", status=500)
    return answer(request, problem)


class ToldOnce:
    """Around everything, before a server of ours: what has been answered and written down goes no further. Those who
    caught it raise it again, and the server would write it down a second time, without the id of the request."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._inner(scope, receive, send)
        except Exception as error:  # whatever it is: once told and written down it ends here
            if not getattr(error, _TOLD, False):
                raise


def described() -> dict[int | str, dict[str, Any]]:
    """The problems every route may answer with, for the OpenAPI document."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    words = {
        400: "The request cannot be read.",
        401: "No key, or not a valid one.",
        403: "The key's role does not reach so far.",
        404: "There is no such thing.",
        409: "The state of things does not allow it.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        422: "A value is not acceptable.",
        429: "Too many requests.",
        503: "The database cannot be reached just now.",
    }
    return {status: {"description": text, "content": content} for status, text in words.items()}
