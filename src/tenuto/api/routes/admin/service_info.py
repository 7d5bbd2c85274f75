"""The web service itself: probes, metrics, registered jobs and step kinds, settings."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_pages import Items
from tenuto.api.openapi import describe
from tenuto.api.parameters import Name
from tenuto.api.security.authentication import ApiCall, RequiredRole, requires
from tenuto.app import Tenuto
from tenuto.errors import NotFound, UnknownJob
from tenuto.jobs.registry import Job
from tenuto.model.access.actors import Role
from tenuto.observability.prometheus import CONTENT_TYPE
from tenuto.observability.status import CheckName
from tenuto.presentation.work_views import JOBS
from tenuto.version import __version__

router = APIRouter(prefix="/api/v1", tags=["about"], route_class=ApiRoute)

JOB = {
    "name": "send_mail",
    "description": "Send one mail.",
    "queue": "default",
    "priority": 0,
    "required": ["to"],
    "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
}
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "job.read")]


class JobDescription(BaseModel):
    """A job, or a step kind, with the JSON schema of its input."""

    name: str
    description: str | None
    queue: str
    priority: int
    timeout_seconds: float | None
    max_attempts: int
    isolated: bool = Field(description="Whether it runs in a child process.")
    required: list[str] = Field(description="Arguments without a default.")
    input_schema: dict[str, Any]


class ServiceSettings(BaseModel):
    """Version and settings of the web service."""

    version: str
    settings: dict[str, Any] = Field(description="Settings by name; secrets are redacted.")


@router.get("/jobs", operation_id="jobs_list", responses=describe({"items": [JOB]}))
@listed_as(JOBS)
async def list_jobs(call: Viewer) -> Items[JobDescription]:
    """List the jobs of this web service with the JSON schema of their input. Workers may have other jobs."""
    return Items(items=[_describe_job(name, job) for name, job in sorted(call.app.jobs.jobs_by_name.items())])


@router.get("/jobs/{name:name}", operation_id="jobs_get", responses=describe(JOB, not_found="job.unknown"))
async def get_job(call: Viewer, name: Name) -> JobDescription:
    """Get a job with the JSON schema of its input."""
    try:
        return _describe_job(name, call.app.jobs.get_job(name))
    except UnknownJob as error:
        raise NotFound(error.message, code=error.code, remedy="list jobs with GET /api/v1/jobs") from None


@router.get(
    "/step-kinds",
    operation_id="step_kinds_list",
    responses=describe({"items": [{"name": "schedule", "input_schema": {}}]}),
)
@listed_as(JOBS)
async def list_step_kinds(call: Viewer) -> Items[JobDescription]:
    """List step kinds other than jobs, with the JSON schema of their arguments."""
    described = call.app.extension_registry.describe_step_kinds(call.app.jobs, _describe_job)
    return Items(items=list(described.values()))


@router.get(
    "/settings",
    operation_id="settings_get",
    responses=describe({"version": "1.0.0", "settings": {"retention_days": 90.0}}),
)
async def get_settings(call: Annotated[ApiCall, requires(Role.ADMIN, "settings.read")]) -> ServiceSettings:
    """Get the settings of this web service, with secrets redacted."""
    return ServiceSettings(version=__version__, settings=call.app.settings.redacted())


def _describe_job(name: str, job: Job[..., Any]) -> JobDescription:
    return JobDescription(
        name=name,
        description=(job.__doc__ or "").strip() or None,
        queue=job.options.queue,
        priority=job.options.priority,
        timeout_seconds=job.policy.timeout_seconds,
        max_attempts=job.policy.retry.max_attempts,
        isolated=job.isolated,
        required=sorted(job.required_parameters),
        input_schema=job.input_schema(),
    )


probe_router = APIRouter(route_class=ApiRoute, tags=["about"])

_NO_KEY_REQUIRED: dict[str, Any] = {"security": []}


class ReadinessCheck(BaseModel):
    """Result of one check."""

    name: str = Field(examples=["database"])
    ok: bool
    detail: str = Field(examples=["responds"])


class Readiness(BaseModel):
    """Whether the service can handle requests."""

    ready: bool
    checks: list[ReadinessCheck]


class RequiredRoleUnlessOpen(RequiredRole):
    """Required role that the setting ``metrics_public`` lifts. Metrics name queues and failures."""

    async def authorize(self, request: Request) -> ApiCall | None:
        tenuto: Tenuto = request.app.state.tenuto
        return None if tenuto.settings.metrics_public else await super().authorize(request)


@probe_router.get(
    "/healthz", operation_id="service_health", openapi_extra=_NO_KEY_REQUIRED, response_class=PlainTextResponse
)
async def check_health() -> PlainTextResponse:
    """Check that the process is alive. Does not use the database."""
    return PlainTextResponse("ok\n")


@probe_router.get(
    "/readyz",
    operation_id="service_readiness",
    openapi_extra=_NO_KEY_REQUIRED,
    response_model=Readiness,
    responses={
        **describe({"ready": True, "checks": [{"name": "database", "ok": True, "detail": "responds"}]}),
        503: {"model": Readiness, "description": "The service is not ready; the checks say why."},
    },
)
async def check_readiness(
    request: Request,
    exclude: Annotated[
        tuple[CheckName, ...], Query(description="Checks that readiness does not depend on; they are still reported.")
    ] = (),
) -> JSONResponse:
    """Check that the service is ready: database, schema, claims of workers, schedules on time, background services."""
    tenuto: Tenuto = request.app.state.tenuto
    readiness = await tenuto.status.readiness(exclude)
    checks = [ReadinessCheck(name=check.name, ok=check.ok, detail=check.detail) for check in readiness.checks]
    return JSONResponse(Readiness(ready=readiness.ready, checks=checks).model_dump(), 200 if readiness.ready else 503)


@probe_router.get(
    "/metrics",
    operation_id="service_metrics",
    dependencies=[Depends(RequiredRoleUnlessOpen(Role.VIEWER, "metrics.read"))],
    response_class=PlainTextResponse,
)
async def get_metrics(request: Request) -> Response:
    """Get all metrics in the Prometheus text format."""
    tenuto: Tenuto = request.app.state.tenuto
    return Response(await tenuto.status.metrics(), media_type=CONTENT_TYPE)
