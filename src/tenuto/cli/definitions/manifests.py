"""``tenuto manifest``: make and change job definitions, switch them on and off, run them. Looking is next door."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.definitions import definition_views, manifest_groups, manifest_views
from tenuto.cli.definitions.definition_views import say_if_made_again
from tenuto.cli.definitions.manifest_options import OPTIONS
from tenuto.cli.definitions.manifest_views import Id
from tenuto.cli.definitions.schedule_options import taking
from tenuto.cli.definitions.schedules import Reason
from tenuto.cli.formatting import ago
from tenuto.cli.option_parsing import by_option

if TYPE_CHECKING:
    from tenuto.app import Tenuto
    from tenuto.store.manifests import StoredManifest

_JOB_AND_INPUT = ("--job", "--set", "--properties")


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    manifests = group(
        root,
        "manifest",
        "Make job definitions with input and rules of their own, look at them, run them.",
        "tenuto manifest list",
        "tenuto manifest add nightly-report --job report --cron '0 6 * * mon-fri' --app tasks:app",
    )
    command(
        manifests,
        "add",
        "tenuto manifest add nightly-report --job report --cron '0 6 * * *' --set days=7 --app tasks:app",
        "tenuto manifest add replicate-users --job replicate --on-demand --set source=prod --max-active 5",
        "tenuto manifest add mail-report --job mail --after nightly-report --max-retries 5 --retry-wait 30s",
    )(add_manifest)
    command(
        manifests,
        "edit",
        "tenuto manifest edit nightly-report --cron '30 6 * * *' --reason 'the import got slower'",
        "tenuto manifest edit replicate-users --max-active 20 --timeout none",
    )(edit_manifest)
    manifest_views.add_to(manifests)
    for word, function in (("enable", enable), ("disable", disable), ("delete", delete)):
        command(
            manifests,
            word,
            f"tenuto manifest {word} nightly-report",
            f"tenuto manifest {word} nightly-report --reason 'moved to the new server'",
        )(function)
    command(
        manifests,
        "run",
        "tenuto manifest run nightly-report --app tasks:app --wait",
        "tenuto manifest run nightly-report --app tasks:app --set days=30",
    )(run_manifest)
    manifest_groups.add_to(manifests)


# --- making and changing --------------------------------------------------------------------------------------------


async def add_manifest(
    session: Session,
    external_id: Id,
    job: Annotated[str, typer.Option("--job", metavar="JOB", help="The job it runs, as `tenuto job list` shows it.")],
    disabled: Annotated[bool, typer.Option("--disabled", help="Make it, but do not let it run yet.")] = False,
    reason: Reason = None,
    **given: Any,
) -> None:
    """Make a manifest: a job, its input, when it runs, and by which rules.

    The app that has the job is named with --app.
    """
    from tenuto.cli.definitions.manifest_options import by_option as of_manifest
    from tenuto.cli.definitions.manifest_options import new_manifest
    from tenuto.cli.output import show_json
    from tenuto.cli.work.jobs import pointing_to_the_list

    with session.as_user() as app, pointing_to_the_list(session, *_JOB_AND_INPUT), of_manifest():
        new = new_manifest(external_id, session.app_with_jobs.jobs.get(job), given)
        made = await app.manifests.create(new, enabled=not disabled, reason=reason)
    if session.as_json:
        show_json(manifest_views.as_data(made))
        return
    session.say(f"manifest {external_id} is made, by {login_name()}: {manifest_views.when(made.manifest)}")
    await _say_next(session, app, made)


async def edit_manifest(session: Session, external_id: Id, reason: Reason = None, **given: Any) -> None:
    """Change what is given, and nothing else.

    `none` takes away --after, --group, --max-active, --timeout, --between, --on, --start, --end, --exclude. Runs that
    are open keep the rules they began with. Shows what was and what is.
    """
    from tenuto.cli.definitions.manifest_options import by_option as of_manifest
    from tenuto.cli.definitions.manifest_options import changed
    from tenuto.cli.output import show_json
    from tenuto.cli.work.jobs import pointing_to_the_list
    from tenuto.model.schedules import changes

    with session.as_user() as app:
        async with known(app, external_id):
            before = await app.manifests.get(external_id)
        with pointing_to_the_list(session, *_JOB_AND_INPUT), of_manifest():
            new = changed(before.manifest, given)
            after = await app.manifests.edit(external_id, new, reason=reason, version=before.version)
    if session.as_json:
        differing = changes(before.manifest.to_fields(), after.manifest.to_fields())
        told = {field: {"before": old, "after": new} for field, (old, new) in differing.items()}
        show_json({"external_id": external_id, "version": after.version, "changes": told})
        return
    if after.version == before.version:
        session.say(f"nothing changed: manifest {external_id} is so already")
        return
    manifest_views.show_change(before, after)
    session.say(f"manifest {external_id} is at version {after.version} now, by {login_name()}")
    await _say_next(session, app, after)


taking(OPTIONS, add_manifest, after=2)
taking(OPTIONS, edit_manifest)


async def enable(session: Session, external_id: Id, reason: Reason = None) -> None:
    """Switch a manifest on, from now on: what it would have run meanwhile is not made up for."""
    with session.as_user() as app:
        async with known(app, external_id):
            switched = await app.manifests.enable(external_id, reason=reason)
        after = await app.manifests.get(external_id)
    await _switched(session, app, after, f"manifest {external_id} is on{'' if switched else ' already'}")


async def disable(session: Session, external_id: Id, reason: Reason = None) -> None:
    """Switch a manifest off: it does not run by itself. What is queued or runs goes on, and it can be run by hand."""
    with session.as_user() as app:
        async with known(app, external_id):
            switched = await app.manifests.disable(external_id, reason=reason)
        after = await app.manifests.get(external_id)
    again = f"; go on with: tenuto manifest enable {external_id}"
    await _switched(session, app, after, f"manifest {external_id} is off{again if switched else ' already'}")


async def _switched(session: Session, app: Tenuto, after: StoredManifest, words: str) -> None:
    from tenuto.cli.output import show_json

    if session.as_json:
        show_json(manifest_views.as_data(after))
        return
    session.say(words)
    if after.enabled:
        await _say_next(session, app, after)


async def _say_next(session: Session, app: Tenuto, manifest: StoredManifest) -> None:
    from tenuto.cli.descriptions import on_the_wall

    if not manifest.enabled:
        session.say(f"  it is off; let it run with: tenuto manifest enable {manifest.external_id}")
    elif manifest.manifest.on_demand:
        session.say(f"  give it work with: tenuto batch submit {manifest.external_id} --from rows.jsonl")
    elif manifest.next_run_at is not None:
        away = ago(manifest.next_run_at, (await app.open()).clock.now())
        session.say(f"  next {on_the_wall(manifest.next_run_at)} ({away})")


async def delete(session: Session, external_id: Id, reason: Reason = None) -> None:
    """Delete a manifest of which nothing is open and after which no other runs; what it did stays on record.

    One that is declared in code or in a file comes back, switched on, with the next start or apply: disable it instead.
    """
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        async with known(app, external_id):
            before = await app.manifests.get(external_id)
            await app.manifests.delete(external_id, reason=reason)
    if session.as_json:
        show_json({"external_id": external_id, "deleted": True})
    else:
        session.say(f"manifest {external_id} is deleted, by {login_name()}")
    origin = "code" if external_id in app.manifests.declared else before.origin
    say_if_made_again(session, origin, f"tenuto manifest disable {external_id}")


# --- running --------------------------------------------------------------------------------------------------------


async def run_manifest(
    session: Session,
    external_id: Id,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="ARGUMENT=VALUE", help="Another value for an argument, for this run only."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; exit 1 unless it ended well.")] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="With --wait: give up after so long.")
    ] = None,
) -> int:
    """Run a manifest once, now, with its properties. Prints the task's id; with --wait, the result.

    Refused with exit code 7 while an earlier run of it is not over. The app that has the job is named with --app.
    """
    from tenuto.cli.definitions.manifest_options import settings_of
    from tenuto.cli.output import show_json, show_text
    from tenuto.cli.work.jobs import only_with_wait, pointing_to_the_list, wait_for_end

    only_with_wait(timeout, wait=wait)
    given = settings_of(settings)
    with session.as_user() as app, pointing_to_the_list(session), by_option({}, otherwise="--set {}"):
        async with known(app, external_id):
            task = await app.manifests.run(external_id, given)
    if wait:
        return await wait_for_end(session, app, task, timeout)
    if session.as_json:
        show_json({"task_id": task})
    else:
        show_text(str(task))
        session.say(f"follow it with: tenuto task show {task}")
    return exit_codes.OK


# --- names ----------------------------------------------------------------------------------------------------------


def known(app: Tenuto, external_id: str) -> AbstractAsyncContextManager[None]:
    """Whoever names a manifest that is not there is told which one they may have meant."""

    async def names() -> list[str]:
        return [each["external_id"] for each in await app.manifests.list(limit=500)]

    return definition_views.known("manifest", external_id, app.manifests.declared, names)
