"""What this service knows: its jobs and kinds of steps with their input, and the settings in force."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from tenuto.api.auth import Needs, Visit
from tenuto.api.path_names import Name
from tenuto.api.response_docs import answers
from tenuto.api.strict_route import StrictRoute
from tenuto.errors import NotFound, UnknownJob
from tenuto.jobs.registry import Job
from tenuto.model.actors import Role
from tenuto.version import __version__

router = APIRouter(prefix="/api/v1", tags=["about"], route_class=StrictRoute)

JOB = {
    "name": "send_mail",
    "description": "Send one mail.",
    "queue": "default",
    "priority": 0,
    "required": ["to"],
    "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
}
Look = Annotated[Visit, Depends(Needs(Role.VIEWER, "job.read"))]


@router.get("/jobs", responses=answers({"items": [JOB]}))
async def list_jobs(visit: Look) -> dict[str, Any]:
    """The jobs this web service knows, by name, with the JSON schema of their input. A worker may know others."""
    return {"items": [_shown(name, job) for name, job in sorted(visit.app.jobs.by_name.items())]}


@router.get("/jobs/{name:name}", responses=answers(JOB))
async def get_job(visit: Look, name: Name) -> dict[str, Any]:
    """One job."""
    try:
        return _shown(name, visit.app.jobs.get(name))
    except UnknownJob as error:
        raise NotFound(error.message, remedy="see GET /api/v1/jobs") from None


@router.get("/step-kinds", responses=answers({"items": [{"name": "schedule", "input_schema": {}}]}))
async def list_step_kinds(visit: Look) -> dict[str, Any]:
    """The kinds of steps besides jobs, with the JSON schema of their arguments."""
    return {"items": [_shown(name, job) for name, job in sorted(visit.app.jobs.by_kind.items())]}


@router.get("/settings", responses=answers({"version": "1.0.0", "settings": {"retention_days": 90.0}}))
async def get_settings(visit: Annotated[Visit, Depends(Needs(Role.ADMIN, "settings.read"))]) -> dict[str, Any]:
    """The settings this web service runs with, passwords and keys masked."""
    return {"version": __version__, "settings": visit.app.settings.masked()}


def _shown(name: str, job: Job[..., Any]) -> dict[str, Any]:
    retry = job.policy.retry
    return {
        "name": name,
        "description": (job.__doc__ or "").strip() or None,
        "queue": job.using_.queue,
        "priority": job.using_.priority,
        "timeout": job.policy.timeout_seconds,
        "max_retries": retry.max_retries,
        "isolated": job.isolated,
        "required": sorted(job.required),
        "input_schema": job.input_schema(),
    }
