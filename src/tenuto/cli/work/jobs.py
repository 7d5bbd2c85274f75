"""``tenuto job`` and ``tenuto run``: what an app can do, and having it done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.formatting import plain, span
from tenuto.errors import Invalid, UnknownJob

if TYPE_CHECKING:
    from uuid import UUID

    from tenuto.app import Tenuto
    from tenuto.jobs.registry import Job

_LONGEST_TEXT = 16 * 1024 * 1024
_WELL = ("completed", "completed_with_warning")


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    jobs = group(
        root,
        "job",
        "Look at the jobs of an app.",
        "tenuto job list --app tasks:app",
        "tenuto job list --app tasks:app -o json",
    )
    command(
        jobs,
        "list",
        "tenuto job list --app tasks:app",
        "tenuto job list --app tasks:app -o json",
        shared=("app", "output", "quiet"),
    )(list_jobs)
    command(
        root,
        "run",
        "tenuto run resize --app tasks:app --input '{\"width\": 80}' --wait",
        "tenuto run resize --app tasks:app --input @picture.json",
    )(run_job)


def list_jobs(session: Session) -> None:
    """List the jobs of an app and the input each takes; as JSON, with its schema."""
    from tenuto.cli.output import show_json, show_table

    jobs = [job for _, job in sorted(session.app_with_jobs.jobs.by_name.items())]
    if session.as_json:
        show_json([_described(job) for job in jobs])
        return
    show_table(
        ("name", "input", "queue", "attempts", "timeout", "what it does"),
        [
            (
                job.name,
                ", ".join(_parameters(job.input_schema())) or "nothing",
                job.using_.queue,
                max(job.policy.retry.max_retries, 1),
                span(job.policy.timeout_seconds) if job.policy.timeout_seconds else "none",
                (job.__doc__ or "").strip().partition("\n")[0],
            )
            for job in jobs
        ],
        spare=("timeout", "attempts", "queue", "what it does"),
        flexible=("input", "what it does"),
    )


def _described(job: Job[..., Any]) -> dict[str, Any]:
    return {
        "name": job.name,
        "doc": (job.__doc__ or "").strip() or None,
        "queue": job.using_.queue,
        "priority": job.using_.priority,
        "max_retries": job.policy.retry.max_retries,
        "timeout_seconds": job.policy.timeout_seconds,
        "on_lost": job.policy.on_lost,
        "isolated": job.isolated,
        "limit_key": job.using_.limit_key,
        "limit": job.using_.limit,
        "tags": list(job.using_.tags),
        "input_schema": job.input_schema(),
    }


def _parameters(schema: dict[str, Any]) -> list[str]:
    """The input in the manner of a signature; what may be left out has a question mark."""
    required = schema.get("required", [])
    return [
        f"{name}{'' if name in required else '?'}: {_type(described)}"
        for name, described in schema.get("properties", {}).items()
    ]


def _type(described: dict[str, Any]) -> str:
    if "anyOf" in described:
        return " | ".join(_type(option) for option in described["anyOf"])
    if "$ref" in described:
        return str(described["$ref"]).rpartition("/")[2]
    return str(described.get("format") or described.get("type") or "any")


async def run_job(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name, as `tenuto job list` shows it.")],
    given: Annotated[
        str, typer.Option("--input", metavar="JSON|@FILE|-", help="Its arguments as a JSON object; - reads stdin.")
    ] = "{}",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; exit 1 unless it ended well.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="With --wait: give up after so long.")
    ] = None,
) -> int:
    """Have a job run.

    A task is put into the job's queue, for a worker to take. Prints the task's id; with --wait, the result.
    """
    from tenuto.cli.output import show_json, show_text

    only_with_wait(timeout, wait=wait)
    text = text_given(given, "--input")
    refuse_names_twice(text)
    with session.as_user() as app, pointing_to_the_list(session):
        registered = session.app_with_jobs.jobs.get(job)
        task = await app.enqueue_json(registered, text)
    if wait:
        return await wait_for_end(session, app, task.id, timeout)
    if session.as_json:
        show_json({"id": task.id, "created": task.created})
    else:
        show_text(str(task.id))
        session.say(f"in queue {registered.using_.queue}; follow it with: tenuto task show {task.id}")
    return exit_codes.OK


@contextmanager
def pointing_to_the_list(session: Session, *options: str) -> Iterator[None]:
    """Whoever got the name or the input wrong wants to see what there is; with options, only what was typed there is
    one of the two."""
    try:
        yield
    except (Invalid, UnknownJob) as error:
        if isinstance(error, UnknownJob) or not options or (error.field or "").startswith(options):
            error.remedy = error.remedy or _list_of(session)
        raise


def _list_of(session: Session) -> str:
    if session.app_name is None:
        return "name the app that has the job, with --app MODULE:OBJECT"
    return f"tenuto job list --app {session.app_name} shows each job and its input"


def only_with_wait(timeout: float | None, *, wait: bool) -> None:
    """Refuse a limit on a waiting that is not asked for."""
    if timeout is not None and not wait:
        raise Invalid("goes with --wait", field="--timeout", remedy="add --wait, or leave it out")


async def wait_for_end(session: Session, app: Tenuto, task_id: UUID, timeout: float | None) -> int:
    """Wait until a task has ended, and show what it came to; its exit code."""
    from tenuto.cli.output import compact, show_json, show_text
    from tenuto.cli.output import state as in_words
    from tenuto.cli.work.task_report import summary

    first = (await app.attempts(task_id))[0]
    if not any(
        worker["service"] == "worker" and worker["state"] == "alive" and first["queue"] in worker["queues"]
        for worker in await app.workers()
    ):
        session.say(f"nobody serves queue {first['queue']} yet; start a worker: tenuto worker --app MODULE:OBJECT")
    session.say(f"task {task_id}")
    record = await app.wait(task_id, timeout)
    if session.as_json:
        show_json(record)
    elif record["output"] is not None:
        show_text(compact(record["output"]) or "")
    well = record["status"] in _WELL
    ran = span(record["ended_at"] - record["started_at"]) if record["started_at"] else "no time"
    session.say(f"{in_words(record['status']).plain} at attempt {record['attempt']} after {ran}")
    if record["error"] is not None:
        session.say(f"  {summary(record['error'])}")
    if not well:
        session.say(f"  see: tenuto task show {task_id}")
    return exit_codes.OK if well else exit_codes.FAILED


def text_given(given: str, option: str) -> str:
    """What was typed, or stands in the file named after an @, or comes from stdin."""
    try:
        if given != "-" and not given.startswith("@"):
            return given
        with nullcontext(sys.stdin) if given == "-" else Path(given[1:]).open(encoding="utf-8") as file:
            text = file.read(_LONGEST_TEXT + 1)  # a device has no end
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(
            f"{plain(given)} cannot be read: {error}", field=option, remedy="name a text file in UTF-8 after the @"
        ) from error
    if len(text) > _LONGEST_TEXT:
        raise Invalid(f"is longer than {_LONGEST_TEXT:,} characters", field=option, remedy="pass a reference instead")
    return text


def refuse_names_twice(text: str) -> None:
    """Of two values under one name the last would count, silently. What else is wrong is told by whoever takes it."""
    from tenuto.model import stored_values

    try:
        stored_values.loads(text)
    except stored_values.NameTwice as error:
        raise Invalid(str(error), field="--input", remedy="say it once") from None
    except (ValueError, RecursionError):
        return
