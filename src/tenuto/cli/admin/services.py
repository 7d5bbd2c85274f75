"""``tenuto up``, ``scheduler``, ``web``, ``health``, ``migrate``: the processes of an installation and its schema."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tenuto.cli.admin.workers import Grace, Lease, Queues, ServiceName, Slots, say_if_no_jobs
from tenuto.cli.command import SERVICE, Session, command
from tenuto.cli.formatting import plain

Host = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Where the web service listens.")]
Port = Annotated[int | None, typer.Option(metavar="NUMBER", help="Its port; 0 for any that is free.", min=0, max=65535)]

if TYPE_CHECKING:
    from tenuto.app import Tenuto
    from tenuto.worker.worker import Worker


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    command(
        root,
        "up",
        "tenuto up --app tasks:app",
        "tenuto up --app tasks:app --queues default,mail --slots 20",
        shared=SERVICE,
        service=True,
    )(up)
    command(
        root,
        "scheduler",
        "tenuto scheduler",
        "tenuto scheduler --database postgresql://tenuto@db/tenuto --name scheduler-1",
        shared=SERVICE,
        service=True,
    )(scheduler)
    command(
        root,
        "web",
        "tenuto web --app tasks:app",
        "tenuto web --host 0.0.0.0 --port 8443",
        shared=SERVICE,
        service=True,
    )(web)
    command(
        root,
        "health",
        "tenuto health worker",
        "tenuto health scheduler --name scheduler-1 -q",
        shared=("home", "output", "quiet"),
    )(health)
    command(
        root,
        "migrate",
        "tenuto migrate --database postgresql://tenuto@db/tenuto",
        "tenuto migrate --print > tenuto.sql",
    )(migrate)


async def up(
    session: Session,
    queues: Queues = None,
    slots: Slots = None,
    name: ServiceName = None,
    lease: Lease = None,
    grace: Grace = None,
    host: Host = None,
    port: Port = None,
    no_web: Annotated[bool, typer.Option("--no-web", help="Without the web service.")] = False,
) -> None:
    """Run everything in one process.

    That is a scheduler, a worker and the web service, on an embedded database in the home unless another one is named.
    On the first start it makes a key for the web service and says where it is kept. Ctrl-C lets running work end
    within the grace; a second one hands it back at once.
    """
    app = session.app
    say_if_no_jobs(session)
    if app.settings.database is None:
        session.say(f"starting the embedded database in {app.settings.home} …")

    def ready(worker: Worker) -> None:
        given = worker.settings
        session.say(f"database   {_where(app)}")
        session.say(f"worker     {worker.identity.name}: {given.slots} slots, queues {', '.join(given.queues)}")
        if app.jobs.by_name:
            session.say(f"jobs       {', '.join(sorted(app.jobs.by_name))}")
        session.say("stop with Ctrl-C")

    def beside() -> AbstractAsyncContextManager[object]:
        return nullcontext() if no_web else _web_beside(session, host, port)

    options = {"queues": queues, "slots": slots, "name": name, "lease_seconds": lease, "grace_seconds": grace}
    await app.run(ready=ready, beside=beside, **options)


@asynccontextmanager
async def _web_beside(session: Session, host: str | None, port: int | None) -> AsyncIterator[None]:
    from tenuto.api.server import serving

    async with serving(session.app, host, port) as address:
        made = await session.app.keys.first(session.app.settings.home)  # told below: not before it listens
        session.say(f"web        {address}")
        if made is not None:
            session.say(f"key        an administrator's, in {plain(made[0])}")
        yield


async def web(session: Session, host: Host = None, port: Port = None, name: ServiceName = None) -> None:
    """Be the web service, until told to stop.

    It answers under /api. Any number may run; each listens on a port of its own. Beyond loopback it asks for TLS, or
    for the word that a proxy has it (settings web_…).
    """
    from tenuto.api.server import run_web

    def ready(address: str, key: Path | None) -> None:
        session.say(f"web        {address}")
        if key is not None:
            session.say(f"key        an administrator's, in {plain(key)}")

    await run_web(session.app, host=host, port=port, name=name, ready=ready)


def _where(app: Tenuto) -> str:
    if app.settings.database is None:
        return f"embedded PostgreSQL in {plain(app.settings.home)}/postgres"
    from tenuto.settings import without_password

    return plain(without_password(app.settings.database))


async def scheduler(session: Session, name: ServiceName = None) -> None:
    """Be a scheduler, until told to stop.

    It watches over schedules, and over workers that die. Any number may run.
    """
    await session.app.run_scheduler(name=name)


def health(
    session: Session,
    service: Annotated[
        Literal["worker", "scheduler", "web"],
        typer.Argument(metavar="worker|scheduler|web", help="Which kind of service."),
    ],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Only the one of this name.")] = None,
) -> int:
    """Ask whether the services on this machine are well.

    The database is not asked. Each service writes the time into a file in the home's folder `run`. Exit 1 if one
    has not for too long, or if there is none. Made for the health check of a container.
    """
    from tenuto.cli.admin.health import report

    return report(session.home, service, name, as_json=session.as_json)


async def migrate(
    session: Session,
    show_only: Annotated[
        bool, typer.Option("--print", help="Print the SQL for an empty database; change nothing.")
    ] = False,
) -> None:
    """Bring the database's schema up to date.

    Running it twice, or twice at once, is safe. An embedded database is brought up to date by itself.
    """
    from tenuto.cli.output import show_json

    if show_only:
        typer.echo(session.app.migration_script())
        return
    applied = [f"{migration.number:04} {migration.name}" for migration in await session.app.migrate()]
    if session.as_json:
        show_json({"applied": applied})
        return
    for migration in applied:
        session.say(f"applied {migration}")
    session.say(f"the schema of {_where(session.app)} is up to date")
