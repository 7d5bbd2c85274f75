"""``tenuto job`` and ``tenuto run``: list the jobs of an app and enqueue them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, cast
from uuid import UUID

from tenuto.app import Tenuto
from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.inline_run import run_inline
from tenuto.cli.lists import print_page
from tenuto.cli.option_parsing import read_text_option, require_wait
from tenuto.cli.output import print_json, print_text
from tenuto.cli.parameters import argument, flag, option
from tenuto.clock import SystemClock
from tenuto.errors import Invalid, UnknownJob
from tenuto.jobs.registry import TaskOptionValues
from tenuto.model import validation
from tenuto.presentation.state_symbols import state_label
from tenuto.presentation.text_formats import compact_json, error_summary, format_duration
from tenuto.presentation.work_views import JOBS, run_duration

_SUCCESSFUL = ("completed", "completed_with_warning")

jobs = group("job", "List the jobs of an app.", "list --app tasks:app", "list --app tasks:app -o json")


@command(jobs, "list", "--app tasks:app", "--app tasks:app -o json", shared=("app", "output", "quiet"), is_list=True)
async def list_jobs(session: Session) -> None:
    """List the jobs of an app with their parameters. -o json adds the JSON schema of the input."""
    found = [job.describe() for _, job in sorted(session.app_without_database.jobs.jobs_by_name.items())]
    await print_page(session, JOBS, found, now=SystemClock().now())


@command(
    None,
    "run",
    "resize --app tasks:app --input '{\"width\": 80}' --wait",
    "resize --app tasks:app --input @picture.json",
    "resize --app tasks:app --input '{\"width\": 80}' --inline",
    app_use="needed",
)
async def run_job(
    session: Session,
    job: Annotated[str, argument("JOB", "Name of the job, as in `tenuto job list`.")],
    input: Annotated[str, option("JSON|@FILE|-", "Arguments as a JSON object; - reads stdin.", "--input")] = "{}",
    wait: Annotated[bool, flag("Wait for the end; exit code 1 unless the task completed.", "--wait")] = False,
    timeout: Annotated[float | None, option("SECONDS", "Maximum time to wait; requires --wait.", min=0)] = None,
    expires_in: Annotated[
        str | None, option("DURATION", "End the task as expired if it has not started by then.")
    ] = None,
    rate_limit: Annotated[
        str | None, option("RATE", "Start at most that many tasks with the same rate key, such as 100/m.")
    ] = None,
    rate_key: Annotated[
        str | None, option("KEY", "Share the rate limit with the tasks of this key, instead of those of the job.")
    ] = None,
    inline: Annotated[
        bool, flag("Run the code here and now, without worker, database and record.", "--inline")
    ] = False,
) -> int:
    """Run a job: put a task into the job's queue.

    Prints the id of the task; with --wait, its result. A worker must serve the queue. With --inline, the command itself
    runs the code once and prints its log, its result, or the traceback; no task is created.
    """
    require_wait(timeout, wait=wait)
    text = read_text_option(input, "--input")
    _reject_duplicate_names(text)
    if inline:
        if wait or not (expires_in is rate_limit is rate_key is None):
            raise Invalid(
                "--inline creates no task, so --wait, --expires-in, --rate-limit and --rate-key have no meaning",
                code="cli.run.inline_conflict",
                field="--inline",
                remedy="leave them out",
            )
        with suggest_job_list(session):
            registered = session.app_without_database.jobs.get_job(job)
            return await run_inline(session, registered, text)
    with session.as_user() as app, suggest_job_list(session):
        registered = session.app_with_jobs.jobs.get_job(job)
        given = {"expires_in": expires_in, "rate_limit": rate_limit, "rate_key": rate_key}
        options = cast(TaskOptionValues, {name: value for name, value in given.items() if value is not None})
        registered = registered.using(**options)
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
    queue = (await app.attempts(task_id))[0].queue
    services = await app.workers()
    if not any(each.service == "worker" and each.state == "alive" and queue in each.queues for each in services):
        session.print_message(f"no worker serves queue {queue}; start one: tenuto worker --app MODULE:OBJECT")
    session.print_message(f"task {task_id}")
    record = await app.wait(task_id, timeout)
    if session.as_json:
        print_json(record)
    elif record.output is not None:
        print_text(compact_json(record.output) or "")
    duration = format_duration(run_duration(record) or 0.0)
    session.print_message(f"{state_label(record.state)} at attempt {record.attempt} after {duration}")
    if record.error is not None:
        session.print_message(f"  {error_summary(record.error)}")
    if record.state in _SUCCESSFUL:
        return exit_codes.OK
    session.print_message(f"  see: tenuto task show {task_id}")
    return exit_codes.FAILED


def _reject_duplicate_names(text: str) -> None:
    """Reject a JSON object with duplicate names, of which a parser silently takes the last; ignore other errors."""
    try:
        validation.parse_strict_json(text)
    except validation.DuplicateKey as error:
        problem, remedy = f"the value of --input is ambiguous: {error}", "give each name once"
        raise Invalid(problem, code="cli.json.duplicate_key", field="--input", remedy=remedy) from None
    except (ValueError, RecursionError):
        return
