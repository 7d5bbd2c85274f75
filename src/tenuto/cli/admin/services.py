"""``tenuto up``, ``worker``, ``scheduler``, ``web``, ``health``, ``migrate``: run services and prepare the database.

The command ``health`` is declared here and implemented in `health.py`, which answers the usual calls without this
module: importing the services would take several times as long as the check.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from tenuto import logs
from tenuto.app import Tenuto
from tenuto.cli.admin.health import report_health
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.lists import list_command, print_page
from tenuto.cli.output import print_json, print_message
from tenuto.cli.parameters import Declaration, argument, choice, flag, option
from tenuto.clock import SystemClock
from tenuto.demo.application import QUEUES as DEMO_QUEUES
from tenuto.demo.preparation import prepare_demo
from tenuto.errors import Invalid
from tenuto.extras import install_command, is_installed
from tenuto.operations.admin.api_keys import INITIAL_KEY_FILE
from tenuto.presentation.admin_views import MIGRATIONS
from tenuto.presentation.text_formats import safe_text
from tenuto.presentation.work_views import WORKERS
from tenuto.settings import ExecutorName, redact_password
from tenuto.worker.worker import Worker

NAME = option("NAME", "Name of the process, kept over restarts. (default: HOST-1, -2 …)")
LEASE_HELP = "Time after which tasks of a silent worker are recovered. (default: 30)"
GRACE_HELP = "Time for running tasks after SIGTERM. (default: 25)"
EXECUTOR_HELP = "Where jobs run: in the worker (native), or on a cluster. (default: native) [TENUTO_WORKER_EXECUTOR]"
WORKER_OPTIONS: dict[str, Declaration] = {
    "queues": option("A,B", "Queues to serve. (default: default) [TENUTO_WORKER_QUEUES]"),
    "slots": option("N", "Concurrent attempts. (default: 100) [TENUTO_WORKER_SLOTS]", type=int, min=1, max=10_000),
    "name": NAME,
    "lease_seconds": option("SECONDS", LEASE_HELP, "--lease", type=float, min=1, max=3600),
    "grace_seconds": option("SECONDS", GRACE_HELP, "--grace", type=float, min=0, max=86_400),
    "executor": choice(EXECUTOR_HELP, ExecutorName),
    "executor_address": option("ADDRESS", "Address of that cluster. [TENUTO_WORKER_EXECUTOR_ADDRESS]", "--address"),
    "executor_callback": option("HOST[:PORT]", "Where the cluster reaches this worker.", "--callback"),
}
Prune = Annotated[
    bool, flag("Delete schedules and manifests from code that no running app declares any more.", "--prune")
]
Host = Annotated[str | None, option("ADDRESS", "Listen address of the web service.")]
Port = Annotated[int | None, option("NUMBER", "Port of the web service; 0 chooses a free one.", min=0, max=65535)]

Reload = Annotated[bool, flag("Read changed templates and static files again, for development.", "--reload")]

workers = group("worker", "Run a worker process.")


_UP_EXAMPLES = ("--app tasks:app", "--app tasks:app --queues default,mail --slots 20")
_WORKER_EXAMPLES = (
    "--app tasks:app",
    "--app tasks:app --queues mail,reports --slots 20 --name mail-1",
    "--app tasks:app --executor dask --address tcp://dask:8786",
)
_SCHEDULER_EXAMPLES = ("", "--database postgresql://tenuto@db/tenuto --name scheduler-1")


@command(None, "up", *_UP_EXAMPLES, options=WORKER_OPTIONS, service=True)
async def run_all_services(
    session: Session,
    host: Host = None,
    port: Port = None,
    no_web: Annotated[bool, flag("No web service.", "--no-web")] = False,
    prune: Prune = False,
    reload: Reload = False,
    demo: Annotated[bool, flag("Example schedules with a week of history, in a separate folder.", "--demo")] = False,
    no_browser: Annotated[bool, flag("With --demo: print the link, do not open it.", "--no-browser")] = False,
    results: Annotated[bool, flag("Print the result or the traceback of each ended attempt.", "--results")] = False,
    **options: Any,
) -> None:
    """Run scheduler, worker and web service in one process.

    Without --database they use an embedded database in the home folder. The first start creates an API key for the web
    service and prints where it is stored. Ctrl-C lets running tasks finish within the grace time; a second Ctrl-C hands
    them back to the queue. With --demo they run example schedules, and the dashboard opens in the browser if there is
    one.
    """
    if demo:
        _select_demo(session)
    app = _load_app_showing_traceback(session) if results else session.app
    if demo:
        options = {**options, "queues": options.get("queues") or ",".join(DEMO_QUEUES)}
        app.settings = app.settings.model_copy(update={"database": session.database})
        if "log_level" not in app.settings.model_fields_set:  # the failures of the examples are not news
            logs.configure(app.settings.log_format, "error")
    else:
        _warn_without_jobs(session)
    if app.settings.database is None:
        session.print_message(f"starting the embedded database in {app.settings.home} …")
    if demo:
        await prepare_demo(app, session.print_message)

    has_web = not no_web and is_installed("web")
    if not (no_web or has_web):
        session.print_message(f"web        not started: the extra 'web' is not installed; {install_command('web')}")

    def print_summary(worker: Worker) -> None:
        settings = worker.settings
        queues, jobs = ", ".join(settings.queues), ", ".join(sorted(app.jobs.jobs_by_name))
        session.print_message(
            f"database   {_database_text(app)}",
            f"worker     {worker.identity.name}: {settings.slots} slots, queues {queues}",
            *([f"jobs       {jobs}"] if jobs else []),
            *_describe_unserved_jobs(worker.unserved_jobs(), settings.queues),
            "stop with Ctrl-C",
        )
        if results and session.quiet:  # a restart of `tenuto dev`
            print_message("running again")

    def web_service() -> AbstractAsyncContextManager[object]:
        if not has_web:
            return nullcontext()
        return _serve_web(session, host, port, reload=reload, demo=demo, browser=demo and not no_browser)

    await app.run(on_ready=print_summary, alongside=web_service, app_name=session.app_name, prune=prune, **options)


def _load_app_showing_traceback(session: Session) -> Tenuto:
    """Return the app, print attempts from now on, and print the traceback of an app that cannot be imported."""
    from tenuto.cli import attempt_printer  # needs rich, which the other services do without

    try:
        app = session.app
    except Invalid as error:
        if error.__cause__ is not None:
            attempt_printer.print_exception(error.__cause__)
        raise
    attempt_printer.print_attempts()
    return app


@asynccontextmanager
async def _serve_web(
    session: Session, host: str | None, port: int | None, *, reload: bool, demo: bool, browser: bool
) -> AsyncIterator[None]:
    from tenuto.web.server import web_server_with_health  # FastAPI is loaded only by processes that serve it

    async with web_server_with_health(session.app, host, port, reload=reload) as address:
        # Created after the server listens: a start that fails must not create a key that is never reported.
        initial_key = await session.app.api_keys.create_initial_key(session.app.settings.home)
        _print_web_summary(session, address, None if initial_key is None else initial_key[0])
        link = await _print_login_link(session, address, always=demo)
        if browser and link is not None:
            open_browser(link)
        yield


def open_browser(url: str) -> bool:
    """Open an address in a graphical browser; return False if this session has none.

    Browsers in the terminal are not started: they would cover the output of the services.
    """
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False


def _select_demo(session: Session) -> None:
    """Let the session use the demo's own app and, unless they are named, its own folder and embedded database."""
    if session.app_name is not None and not session.is_app_from_environment:
        raise Invalid(
            "--app cannot be combined with --demo, which runs its own app",
            code="cli.demo.app_given",
            field="--app",
            remedy="leave out --app or --demo",
        )
    session.app_name = None
    if session.home_folder is None:
        session.home_folder = str(session.home / "demo")


async def _print_login_link(session: Session, address: str, *, always: bool = False) -> str | None:
    """On a terminal, print and return a link that logs in to the dashboard once; elsewhere it would stay in a log."""
    if session.quiet or not (always or sys.stderr.isatty()):
        return None
    path = session.app.settings.home / INITIAL_KEY_FILE
    caller = await session.app.api_keys.authenticate(path.read_text("ascii").strip()) if path.exists() else None
    if caller is None:
        return None
    token = await session.app.acting_as(caller.actor, source="start").api_keys.create_link(caller)
    link = f"{address}/login?link={token}"
    session.print_message(f"dashboard  {link} (once, within ten minutes)")
    return link


def _print_web_summary(session: Session, address: str, key_file: Path | None) -> None:
    session.print_message(f"web        {address}")
    if key_file is not None:
        session.print_message(f"key        administrator key in {safe_text(key_file)}")


@command(workers, None, *_WORKER_EXAMPLES, options=WORKER_OPTIONS, service=True)
async def run_worker(session: Session, prune: Prune = False, **options: Any) -> None:
    """Run a worker process.

    The worker claims tasks of its queues and runs them. Without an app that has jobs it runs only steps of built-in
    kinds, such as programs and HTTP calls. On SIGTERM or Ctrl-C it stops claiming and lets running tasks finish within
    the grace time; on the second signal it hands them back to the queue. `tenuto worker list` lists the workers.
    """
    _warn_without_jobs(session)
    await session.app.run_worker(app_name=session.app_name, prune=prune, **options)


def _describe_unserved_jobs(unserved: Mapping[str, Sequence[str]], served: Sequence[str]) -> list[str]:
    """Name jobs whose tasks would wait for another worker."""
    if not unserved:
        return []
    jobs = "; ".join(f"{', '.join(names)} (queue {queue})" for queue, names in unserved.items())
    return [f"not served {jobs}; serve all queues with --queues {','.join([*served, *unserved])}"]


def _warn_without_jobs(session: Session) -> None:
    """Built-in steps need no app, but an operator who meant to name one should learn that it is missing."""
    if session.app.jobs.jobs_by_name:
        return
    if session.app_name is None:
        session.print_message("no app is named, so only built-in steps run; name one with --app MODULE:OBJECT")
    else:
        remedy = "register functions with @app.job, and import their modules where the app is defined"
        session.print_message(f"{session.app_name} has no jobs; {remedy}")


@list_command(
    workers, "list", WORKERS, "", "--all -o json", all=flag("Include processes that have ended.", "--all", "-a")
)
async def list_workers(app: Tenuto, all: bool) -> Sequence[Any]:
    """List workers and schedulers, newest first.

    A process that missed three heartbeats is dead. Its tasks are recovered when their leases end.
    """
    return await app.workers(ended=all)


WorkerName = Annotated[str, argument("NAME", "Name of the worker.")]


@command(workers, "drain", "box-1", "box-1 --reason 'new kernel'")
async def drain_worker(
    session: Session,
    name: WorkerName,
    reason: Annotated[str | None, option("TEXT", "Reason, recorded in the audit log.")] = None,
) -> None:
    """Drain a worker: it claims no more tasks. Running tasks continue.

    The worker claims tasks again when it is resumed, or started again.
    """
    with session.as_user() as app:
        await app.drain_worker(name, reason)
    await _report_worker(session, name, f"drained by {login_name()}; resume with: tenuto worker resume {name}")


@command(workers, "resume", "box-1", "box-1 -q")
async def resume_worker(session: Session, name: WorkerName) -> None:
    """Let a drained worker claim tasks again."""
    with session.as_user() as app:
        await app.resume_worker(name)
    await _report_worker(session, name, f"resumed by {login_name()}")


async def _report_worker(session: Session, name: str, change: str) -> None:
    found = [each for each in await session.app.workers() if (each.name, each.service) == (name, "worker")]
    session.report(found[0] if found else None, f"worker {name} {change}")


@command(None, "scheduler", *_SCHEDULER_EXAMPLES, service=True)
async def run_scheduler(session: Session, name: Annotated[str | None, NAME] = None, prune: Prune = False) -> None:
    """Run a scheduler process.

    The scheduler starts due schedules and manifests and recovers tasks of dead workers. Several may run.
    """
    await session.app.run_scheduler(name=name, prune=prune)


@command(None, "web", "--app tasks:app", "--host 0.0.0.0 --port 8443", service=True)
async def run_web(
    session: Session,
    host: Host = None,
    port: Port = None,
    name: Annotated[str | None, NAME] = None,
    reload: Reload = False,
) -> None:
    """Run the web service.

    It serves the API under /api. Several may run, each on its own port. On addresses other than loopback it requires
    TLS, or a setting which says that a proxy provides it (settings web_…).
    """
    from tenuto.web.server import run_web_service  # FastAPI is loaded only by processes that serve it

    def print_summary(address: str, key_file: Path | None) -> None:
        _print_web_summary(session, address, key_file)

    await run_web_service(session.app, host=host, port=port, name=name, reload=reload, ready=print_summary)


def _database_text(app: Tenuto) -> str:
    if app.settings.database is None:
        return f"embedded PostgreSQL in {safe_text(app.settings.home)}/postgres"
    return safe_text(redact_password(app.settings.database))


@command(None, "health", "worker", "scheduler --name scheduler-1 -q", shared=("home", "output", "quiet"))
def check_health(
    session: Session,
    service: Annotated[Literal["worker", "scheduler", "web"], argument("worker|scheduler|web", "Kind of service.")],
    name: Annotated[str | None, option("NAME", "Name of the process.")] = None,
) -> int:
    """Check the health of services on this machine.

    Each service updates a file in the folder `run` of the home folder; the database is not queried. Exit code 1 if a
    file is too old or if there is none. Meant for the health check of a container.
    """
    return report_health(session.home, service, name, as_json=session.as_json)


@command(
    None, "migrate", "--database postgresql://tenuto@db/tenuto", "--status", "--dry-run > step.sql", app_use="checks"
)
async def migrate_database(
    session: Session,
    status: Annotated[
        bool, flag("Print the version and the missing migrations of each component; change nothing.", "--status")
    ] = False,
    dry_run: Annotated[bool, flag("Print the SQL of the missing migrations; change nothing.", "--dry-run")] = False,
    print_only: Annotated[bool, flag("Print the SQL for an empty database; change nothing.", "--print")] = False,
) -> None:
    """Migrate the database schema to this version.

    The command may run repeatedly and concurrently. An embedded database is migrated automatically. The core and each
    extension are components with their own versions; migrations go forward only.
    """
    if print_only:
        click.echo(session.app.migration_script())
        return
    if dry_run:
        click.echo(await session.app.pending_migration_script())
        return
    if status:
        found = await session.app.migration_status()
        if session.as_json:
            print_json(found)
        else:
            await print_page(session, MIGRATIONS, found, now=SystemClock().now())
        return
    applied = [f"{migration.number:04} {migration.name}" for migration in await session.app.migrate()]
    messages = [f"applied {migration}" for migration in applied]
    session.report({"applied": applied}, *messages, f"the schema of {_database_text(session.app)} is up to date")
