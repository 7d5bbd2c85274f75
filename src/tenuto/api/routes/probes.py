"""``/healthz``, ``/readyz``, ``/metrics``: for those who watch over the web service, and for their machines.

The first two are open to all and say nothing that only operators should know. The figures name queues and failures, so
they need a key, unless the setting ``metrics_open`` says that the network keeps strangers away.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

from tenuto.api.auth import Needs
from tenuto.api.strict_route import StrictRoute
from tenuto.app import Tenuto
from tenuto.model.actors import Role
from tenuto.observability.prometheus import CONTENT_TYPE

router = APIRouter(route_class=StrictRoute, tags=["about"])

TO_ALL: dict[str, Any] = {"security": []}
"""In the OpenAPI document: no key is asked for."""


class Check(BaseModel):
    """One thing that must be so."""

    name: str = Field(examples=["database"])
    ok: bool
    detail: str = Field(examples=["answers"])


class Ready(BaseModel):
    """Whether the service should be sent requests."""

    ready: bool
    checks: list[Check]


class UnlessOpen(Needs):
    """As `Needs`, but for nobody if the figures are open to all."""

    async def __call__(self, request: Request) -> Any:
        tenuto: Tenuto = request.app.state.tenuto
        return None if tenuto.settings.metrics_open else await super().__call__(request)


@router.get("/healthz", openapi_extra=TO_ALL, response_class=PlainTextResponse)
async def healthz() -> PlainTextResponse:
    """The process lives. Nothing else is asked, the database least of all."""
    return PlainTextResponse("ok\n")


@router.get(
    "/readyz",
    openapi_extra=TO_ALL,
    response_model=Ready,
    responses={503: {"model": Ready, "description": "Not ready, and why."}},
)
async def readyz(request: Request) -> JSONResponse:
    """Whether the database answers, its schema is up to date, workers ask for work and schedules fire in time."""
    tenuto: Tenuto = request.app.state.tenuto
    found = await tenuto.observing.readiness()
    checks = [Check(name=check.name, ok=check.ok, detail=check.detail) for check in found.checks]
    return JSONResponse(Ready(ready=found.ready, checks=checks).model_dump(), 200 if found.ready else 503)


@router.get(
    "/metrics",
    dependencies=[Depends(UnlessOpen(Role.VIEWER, "metrics.read"))],
    response_class=PlainTextResponse,
)
async def metrics(request: Request) -> Response:
    """All figures, as Prometheus reads them."""
    tenuto: Tenuto = request.app.state.tenuto
    return Response(await tenuto.observing.metrics(), media_type=CONTENT_TYPE)
