"""``tenuto job`` and ``tenuto run``: list the jobs of an app and enqueue them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.formatting import format_duration
from tenuto.cli.option_parsing import read_text_option, require_wait
from tenuto.cli.output import compact_json, fitted_table, print_json, print_rich, print_text, styled_state
from tenuto.cli.parameters import argument, flag, option
from tenuto.cli.work.task_report import error_summary
from tenuto.errors import Invalid, UnknownJob
from tenuto.model import validation

if TYPE_CHECKING:
    from tenuto.app import Tenuto
    from tenuto.jobs.registry import Job

_SUCCESSFUL = ("completed", "completed_with_warning")

jobs = group("job", "List the jobs of an app.", "list --app tasks:app", "list --app tasks:app -o json")


@command(jobs, "list", "--app tasks:app", "--app tasks:app -o json", shared=("app", "output", "quiet"))
def list_jobs(session: Session) -> None:
    """List the jobs of an app with their input; as JSON, with the schema of the input."""
    registered = [job for _, job in sorted(session.app_with_jobs.jobs.jobs_by_name.items())]
    if session.as_json:
        print_json([_job_document(job) for job in registered])
        return
    table = fitted_table(
        ("name", "input", "queue", "attempts", "timeout", "description"),
        [
            (
                job.name,
                ", ".join(_parameters(job.input_schema())) or "none",
                job.options.queue,
                max(job.policy.retry.max_retries, 1),
                format_duration(job.policy.timeout_seconds) if job.policy.timeout_seconds else "none",
                (job.__doc__ or "").strip().partition("\n")[0],
            )
            for job in registered
        ],
        optional=("timeout", "attempts", "queue", "description"),
        flexible=("input", "description"),
    )
    print_rich(table)


def _job_document(job: Job[..., Any]) -> dict[str, Any]:
    return {
        "name": job.name,
        "doc": (job.__doc__ or "").strip() or None,
        "queue": job.options.queue,
        "priority": job.options.priority,
        "max_retries": job.policy.retry.max_retries,
        "timeout_seconds": job.policy.timeout_seconds,
        "on_lost": job.policy.on_lost,
        "isolated": job.isolated,
        "limit_key": job.options.limit_key,
        "limit": job.options.limit,
        "tags": list(job.options.tags),
        "input_schema": job.input_schema(),
    }


def _parameters(schema: dict[str, Any]) -> list[str]:
    """Return the input like a signature; optional parameters have a question mark."""
    required = schema.get("required", [])
    return [
        f"{name}{'' if name in required else '?'}: {_type_name(parameter)}"
        for name, parameter in schema.get("properties", {}).items()
    ]


def _type_name(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " | ".join(_type_name(option) for option in schema["anyOf"])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return str(schema.get("format") or schema.get("type") or "any")


@command(
    None,
    "run",
    "resize --app tasks:app --input '{\"width\": 80}' --wait",
    "resize --app tasks:app --input @picture.json",
)
async def run_job(
    session: Session,
    job: Annotated[str, argument("JOB", "Name of the job, as in `tenuto job list`.")],
    input: Annotated[str, option("JSON|@FILE|-", "Arguments as a JSON object; - reads stdin.", "--input")] = "{}",
    wait: Annotated[bool, flag("Wait for the end; exit code 1 unless the task completed.", "--wait")] = False,
    timeout: Annotated[float | None, option("SECONDS", "Maximum time to wait; requires --wait.", min=0)] = None,
) -> int:
    """Run a job: put a task into the job's queue.

    Prints the id of the task; with --wait, its result. A worker must serve the queue.
    """
    require_wait(timeout, wait=wait)
    text = read_text_option(input, "--input")
    _reject_duplicate_names(text)
    with session.as_user() as app, suggest_job_list(session):
        registered = session.app_with_jobs.jobs.get_job(job)
        task = await app.enqueue_json(registered, text)
    if wait:
        return await wait_for_task(session, app, task.id, timeout)
    return session.report(
        {"id": task.id, "created": task.created},
        f"in queue {registered.options.queue}; see its state with: tenuto task show {task.id}",
        result=task.id,
    )


@contextmanager
def suggest_job_list(session: Session, *options: str) -> Iterator[None]:
    """Add `tenuto job list` as remedy to errors about a job or its input; with options, only to errors about these."""
    try:
        yield
    except (Invalid, UnknownJob) as error:
        if isinstance(error, UnknownJob) or not options or (error.field or "").startswith(options):
            error.remedy = error.remedy or _job_list_remedy(session)
        raise


def _job_list_remedy(session: Session) -> str:
    if session.app_name is None:
        return "name the app that has the job with --app MODULE:OBJECT"
    return f"list the jobs and their input: tenuto job list --app {session.app_name}"


async def wait_for_task(session: Session, app: Tenuto, task_id: UUID, timeout: float | None) -> int:
    """Wait until a task has ended, print its result and return the exit code."""
    queue = (await app.attempts(task_id))[0]["queue"]
    if not any(
        worker["service"] == "worker" and worker["state"] == "alive" and queue in worker["queues"]
        for worker in await app.workers()
    ):
        session.print_message(f"no worker serves queue {queue}; start one: tenuto worker --app MODULE:OBJECT")
    session.print_message(f"task {task_id}")
    record = await app.wait(task_id, timeout)
    if session.as_json:
        print_json(record)
    elif record["output"] is not None:
        print_text(compact_json(record["output"]) or "")
    duration = record["ended_at"] - record["started_at"] if record["started_at"] else 0.0
    state = styled_state(record["state"]).plain
    session.print_message(f"{state} at attempt {record['attempt']} after {format_duration(duration)}")
    if record["error"] is not None:
        session.print_message(f"  {error_summary(record['error'])}")
    if record["state"] in _SUCCESSFUL:
        return exit_codes.OK
    session.print_message(f"  see: tenuto task show {task_id}")
    return exit_codes.FAILED


def _reject_duplicate_names(text: str) -> None:
    """Reject a JSON object with duplicate names, of which a parser silently takes the last; ignore other errors."""
    try:
        validation.parse_strict_json(text)
    except validation.DuplicateKey as error:
        remedy = "give each name once"
        raise Invalid(
            f"the value of --input is ambiguous: {error}", code="cli.json.duplicate_key", field="--input", remedy=remedy
        ) from None
    except (ValueError, RecursionError):
        return
