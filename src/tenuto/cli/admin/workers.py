"""``tenuto worker``: alone, be a worker; ``worker list``, see who is there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tenuto.cli.command import SERVICE, Session, command
from tenuto.cli.formatting import ago, span

Queues = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="The queues to serve. (default: the queue `default`) [TENUTO_WORKER_QUEUES]"),
]
Slots = Annotated[
    int | None,
    typer.Option(
        min=1, max=10_000, metavar="N", help="How many attempts run at once. (default: 100) [TENUTO_WORKER_SLOTS]"
    ),
]
ServiceName = Annotated[
    str | None, typer.Option(metavar="NAME", help="A name that stays the same at every start. (default: HOST-1, -2 …)")
]
Lease = Annotated[
    float | None,
    typer.Option(min=1, max=3600, metavar="SECONDS", help="How long a task stays with a silent worker. (default: 30)"),
]
Grace = Annotated[
    float | None,
    typer.Option(min=0, max=86_400, metavar="SECONDS", help="How long work may go on after SIGTERM. (default: 25)"),
]


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    workers = typer.Typer(rich_markup_mode=None)
    command(
        workers,
        None,
        "tenuto worker --app tasks:app",
        "tenuto worker --app tasks:app --queues mail,reports --slots 20 --name mail-1",
        shared=SERVICE,
        service=True,
    )(run_worker)
    command(workers, "list", "tenuto worker list", "tenuto worker list --all -o json")(list_workers)
    root.add_typer(workers, name="worker")


async def run_worker(
    session: Session,
    queues: Queues = None,
    slots: Slots = None,
    name: ServiceName = None,
    lease: Lease = None,
    grace: Grace = None,
) -> None:
    """Be a worker, until told to stop; or list workers.

    It takes tasks of its queues and runs them. Without an app that has jobs it runs the steps that need none, such as
    programs and calls by HTTP. The first SIGTERM or Ctrl-C takes no more work and lets what runs
    end within the grace; the second hands it back at once. `tenuto worker list` shows the workers that are there.
    """
    app = session.app
    say_if_no_jobs(session)
    await app.run_worker(queues=queues, slots=slots, name=name, lease_seconds=lease, grace_seconds=grace)


def say_if_no_jobs(session: Session) -> None:
    """Steps of the built-in kinds need no code of anybody's; jobs do, and whoever meant to have some should hear."""
    if session.app.jobs.by_name:
        return
    if session.app_name is None:
        session.say("no jobs of your own are known here; name your app with --app MODULE:OBJECT")
    else:
        session.say(
            f"{session.app_name} has no jobs; register functions with @app.job, and import their modules where the app"
            " is defined"
        )


async def list_workers(
    session: Session,
    everyone: Annotated[bool, typer.Option("--all", "-a", help="Also those that have left.")] = False,
) -> None:
    """List workers and schedulers, the newest first.

    One that should have been heard of and was not is stale: its tasks go to others when their leases end.
    """
    from tenuto.cli.output import show_json, show_table
    from tenuto.cli.output import state as in_words

    found = await session.app.workers(ended=everyone)
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say("no workers are there; start one: tenuto worker --app MODULE:OBJECT")
        return
    now = (await session.app.open()).clock.now()
    show_table(
        ("name", "service", "state", "busy", "queues", "heard of", "started", "host", "pid", "version"),
        [
            (
                worker["name"],
                worker["service"],
                in_words(worker["state"]),
                _busy(worker),
                ", ".join(worker["queues"]),
                f"{span(worker['silent_for'])} ago",
                ago(worker["started_at"], now),
                worker["host"],
                worker["pid"],
                worker["version"],
            )
            for worker in found
        ],
        spare=("version", "host", "pid", "started", "queues"),
        flexible=("queues",),
    )


def _busy(worker: dict[str, Any]) -> str:
    return f"{worker['running']}/{worker['slots']}" if worker["service"] == "worker" else ""
