"""Looking at manifests: the list, one of them, its changes, and what the manager did. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli.command import Session, command
from tenuto.cli.definitions.definition_views import keeper, show_history, switch, title, version_as_data
from tenuto.cli.formatting import ago, one_line, plain, span
from tenuto.cli.option_parsing import Limit

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from tenuto.model.manifests import Manifest
    from tenuto.store.definition_rows import Version
    from tenuto.store.manifests import StoredManifest

Record = dict[str, Any]
Id = Annotated[str, typer.Argument(metavar="EXTERNAL_ID", help="The manifest's external id.")]
_MANY = 10_001
"""Where the list stops counting what is open."""


def add_to(manifests: typer.Typer) -> None:
    """Put the commands into the group."""
    command(manifests, "list", "tenuto manifest list", "tenuto manifest list --group reports --off -o json")(
        list_manifests
    )
    command(manifests, "show", "tenuto manifest show nightly-report", "tenuto manifest show nightly-report -o json")(
        show_manifest
    )
    command(
        manifests, "history", "tenuto manifest history nightly-report", "tenuto manifest history nightly-report -o json"
    )(history)
    command(manifests, "polls", "tenuto manifest polls", "tenuto manifest polls --all --limit 10 -o json")(polls)


def when(manifest: Manifest) -> str:
    """Its reason to run, in words."""
    if manifest.on_demand:
        return "On demand: for what it is given"
    if manifest.depends_on is not None:
        return f"After {manifest.depends_on} has succeeded"
    return manifest.trigger.words()


# --- the list -------------------------------------------------------------------------------------------------------


async def list_manifests(
    session: Session,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Only those that are on, or off.")] = None,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only those of this group.")] = None,
    search: Annotated[str | None, typer.Option(metavar="TEXT", help="Only those with this in id or name.")] = None,
    limit: Limit = 100,
    after: Annotated[
        str | None, typer.Option(metavar="EXTERNAL_ID", help="Only those that come after this one: the next page.")
    ] = None,
) -> None:
    """List manifests by external id: when each runs next, when it last succeeded, and what is open of it."""
    from tenuto.cli.output import for_a_person, show, show_json, show_table, stacked
    from tenuto.model.manifests import manifest_from_fields

    found = await session.app.manifests.list(after=after, enabled=on, group=group, search=search, limit=limit)
    read = [(row, manifest_from_fields(row["definition"])) for row in found]
    if session.as_json:
        show_json([{**row, "when": when(manifest)} for row, manifest in read])
        return
    if not found:
        narrowed = any(given is not None for given in (on, group, search, after))
        session.say("no manifests like that" if narrowed else "no manifests yet; make one: tenuto manifest add --help")
        if not narrowed and (declared := len(session.app.manifests.declared)):
            session.say(f"  {declared} declared in code come into force when a service starts, as with: tenuto up")
        return
    now = (await session.app.open()).clock.now()
    if for_a_person():
        rows = [_over_and_under(row, manifest, now) for row, manifest in read]
        show(stacked(("manifest", "state", "next run", "last success"), rows, flexible="manifest"))
    else:
        show_table(
            ("external id", "when", "job", "state", "open", "next run", "last success", "group", "dead letters"),
            [
                (
                    row["external_id"],
                    when(manifest),
                    manifest.job,
                    switch(enabled=row["enabled"]),
                    _count(row["open_tasks"]),
                    _next_run(row, manifest, now),
                    ago(row["last_successful_run"], now) or "never",
                    row["group_name"],
                    "yes" if row["has_dead_letters"] else "no",
                )
                for row, manifest in read
            ],
        )
    if len(found) == limit:
        session.say(f"there may be more: add --after {found[-1]['external_id']}")


def _over_and_under(row: Record, manifest: Manifest, now: datetime) -> list[tuple[Any, Any]]:
    from rich.text import Text

    open_tasks = f"{_count(row['open_tasks'])} open" if row["open_tasks"] else ""
    succeeded = Text(ago(row["last_successful_run"], now) or "never")
    return [
        (row["external_id"], when(manifest)),
        (switch(enabled=row["enabled"]), open_tasks),
        (_next_run(row, manifest, now), f"in {row['group_name']}" if row["group_name"] else None),
        (succeeded, "✉ dead letters" if row["has_dead_letters"] else None),
    ]


def _count(number: int) -> str:
    return "over 10,000" if number >= _MANY else f"{number:,}"


def _next_run(row: Record, manifest: Manifest, now: datetime) -> str:
    if manifest.on_demand:
        return "on demand"
    if not row["enabled"]:
        return "none"
    if row["next_run_at"] is not None:
        return "due" if row["next_run_at"] <= now else ago(row["next_run_at"], now)
    if manifest.depends_on is not None:
        return f"after {one_line(manifest.depends_on, 24)}"
    return "by hand" if manifest.trigger.kind == "manual" else "never again"


# --- one manifest ---------------------------------------------------------------------------------------------------


async def show_manifest(session: Session, external_id: Id) -> None:
    """Show a manifest: when it runs, what is open of it and at which attempt, its limits, letters and last runs."""
    from tenuto.cli.definitions.manifests import known
    from tenuto.cli.output import pairs, show, show_json

    app = session.app
    async with known(app, external_id):
        found = await app.manifests.details(external_id)
    stored: StoredManifest = found["manifest"]
    (change,) = await app.manifests.versions(stored.id, limit=1)  # its own: others may have had its external id
    batches = await app.batches.list(manifest=external_id, limit=3)
    if session.as_json:
        told = {name: value for name, value in found.items() if name != "manifest"}
        show_json(
            {**as_data(stored), **told, "batches": batches, "last_change": version_as_data(change, "external_id")}
        )
        return
    now = (await app.open()).clock.now()
    parts: list[RenderableType] = [_heading(stored)]
    parts += [plain(stored.manifest.description)] if stored.manifest.description else []
    parts += ["", pairs(*_about(found, change, now))]
    if found["runs"]:
        parts += [*title(f"open: {_open_in_words(found['open'])}"), _open_runs(found, now)]
    if batches:
        parts += [*title("last batches"), _batches(batches, now)]
    if found["last_runs"]:
        parts += [*title("last attempts"), _last_runs(found["last_runs"], now)]
    show(*parts)


def _heading(found: StoredManifest) -> Text:
    from rich.text import Text

    named = "" if found.manifest.name == found.external_id else f"  {plain(found.manifest.name)}"
    about = f"  version {found.version}"
    return Text.assemble(switch(enabled=found.enabled), "  ", (plain(found.external_id), "bold"), named, (about, "dim"))


def _about(found: Record, change: Version, now: datetime) -> list[tuple[str, Any]]:
    from tenuto.cli import descriptions
    from tenuto.cli.output import compact

    stored: StoredManifest = found["manifest"]
    manifest = stored.manifest
    priority = f", priority {manifest.priority}" if manifest.priority else ""
    why = f": {change.reason}" if change.reason else ""
    letters = found["dead_letters"]
    see = f"tenuto dead-letter list --manifest {stored.external_id}"
    return [
        ("job", manifest.job),
        ("properties", compact(dict(manifest.properties)) if manifest.properties else None),
        ("when", when(manifest)),
        ("next run", _next_in_words(stored, letters, now)),
        ("last success", _instant(stored.last_successful_run, now) or "never"),
        ("rules", descriptions.rules(manifest.to_fields()["policy"])),
        ("queue", f"{manifest.queue}{priority}"),
        ("limits", _limits(found)),
        ("runs after it", ", ".join(map(plain, found["dependents"]))),
        ("dead letters", f"{letters:,} open; see: {see}" if letters else "none"),
        ("kept by", keeper(stored)),
        ("last change", f"{change.change} {ago(change.at, now)} by {change.actor.name}{why}"),
    ]


def _next_in_words(stored: StoredManifest, letters: int, now: datetime) -> str | None:
    if stored.manifest.on_demand:
        return None
    if not stored.enabled:
        return f"none while it is off; tenuto manifest enable {stored.external_id}"
    if stored.next_run_at is None:
        return None
    held = "; passed over while its dead letter is open" if letters else ""
    return f"{_instant(stored.next_run_at, now)}{held}"


def _instant(instant: datetime | None, now: datetime) -> str | None:
    from tenuto.cli.descriptions import on_the_wall

    return None if instant is None else f"{on_the_wall(instant)} ({ago(instant, now)})"


def _limits(found: Record) -> str:
    """Each cap with what is active of it."""
    manifest: Manifest = found["manifest"].manifest
    active = found["open"].get("running", 0)
    parts = [f"itself {active} of {manifest.max_active} active" if manifest.max_active else f"itself {active} active"]
    for each, words in ((found["group"], f"group {manifest.group}"), (found["all_together"], "all manifests")):
        if each is not None and not each["enabled"]:
            parts.append(f"{words} is disabled")
        elif each is not None and each["max_active"] is not None:
            parts.append(f"{words} {each['active']} of {each['max_active']} active")
        elif each is not None and each is found["group"]:
            parts.append(f"{words} {each['active']} active, no limit")
    return "; ".join(parts)


def _open_in_words(counts: Record) -> str:
    return ", ".join(
        f"{counts[word]:,} {word}" for word in ("running", "queued", "scheduled", "waiting") if word in counts
    )


def _open_runs(found: Record, now: datetime) -> RenderableType:
    from tenuto.cli.output import fitted, glyph

    rows = [(f"{glyph(run['state'])} {how_far(run, now)}", run["item_key"], run["id"]) for run in found["runs"]]
    if not any(item for _, item, _ in rows):
        return fitted(("how far", "task"), [(words, id) for words, _, id in rows])
    return fitted(("how far", "item", "task"), rows, spare=("item",), flexible=("item",))


def how_far(run: Record, now: datetime) -> str:
    """``attempt 3 of 5, next in 40 s``."""
    from tenuto.model.policies import RetryPolicy

    most = max(run["policy"].get("max_retries", RetryPolicy().max_retries), 1)
    attempt = f"attempt {run['failures'] + 1} of {most}"
    match run["state"]:
        case "running":
            return f"{attempt}, runs for {span(now - run['claimed_at'])}"
        case "scheduled":
            word = "next" if run["failures"] or run["losses"] else "due"
            return f"{attempt}, {word} {ago(run['run_at'], now)}"
        case "waiting":
            return f"{attempt}, held back"
        case _:
            return f"{attempt}, waits for {span(now - run['run_at'])}"


def _batches(found: Sequence[Record], now: datetime) -> RenderableType:
    from tenuto.cli.output import fitted

    rows = [
        (each["id"], f"{each['total']:,}", f"{each['open']:,}", f"{each['failed']:,}", ago(each["created_at"], now))
        for each in found
    ]
    return fitted(("batch", "items", "open", "failed", "made"), rows)


def _last_runs(found: list[Record], now: datetime) -> RenderableType:
    from tenuto.cli.output import fitted, state
    from tenuto.cli.work.task_report import summary

    rows = [
        (
            state(run["status"]),
            f"{run['attempt']}{'' if run['final'] else ' ↻'}",
            ago(run["ended_at"], now),
            span(run["ended_at"] - run["started_at"]) if run["started_at"] else "",
            summary(run["error"]),
        )
        for run in found
    ]
    return fitted(("status", "attempt", "ended", "ran", "error"), rows, spare=("ran",), flexible=("error",))


def as_data(found: StoredManifest) -> Record:
    """A manifest as one document."""
    return {
        "id": found.id,
        **found.manifest.to_fields(),
        "enabled": found.enabled,
        "when": when(found.manifest),
        "version": found.version,
        "origin": found.origin,
        "created_at": found.created_at,
        "updated_at": found.updated_at,
        "last_successful_run": found.last_successful_run,
        "last_run_at": found.last_run_at,
        "next_run_at": found.next_run_at,
    }


# --- its past -------------------------------------------------------------------------------------------------------


async def history(session: Session, external_id: Id, limit: Limit = 20) -> None:
    """Show every change of a manifest: who, when, why, and what was and what is; also of one that was deleted."""
    from tenuto.cli.definitions.manifests import known

    async with known(session.app, external_id):
        found = await session.app.manifests.versions(external_id, limit=limit)
    await show_history(session, found, limit, known_by="external_id")


def show_change(before: StoredManifest, after: StoredManifest) -> None:
    """What was and what is."""
    from rich.padding import Padding
    from rich.text import Text

    from tenuto.cli import descriptions
    from tenuto.cli.output import show

    parts: list[RenderableType] = []
    for what, lines in descriptions.differences(before.manifest.to_fields(), after.manifest.to_fields()):
        parts += [Text(what, style="bold"), Padding(descriptions.painted(lines), (0, 0, 0, 2))]
    show(*parts)


# --- the manager ----------------------------------------------------------------------------------------------------


async def polls(
    session: Session,
    everything: Annotated[bool, typer.Option("--all", help="Also those at which there was nothing to do.")] = False,
    limit: Limit = 20,
    below: Annotated[
        str | None, typer.Option(metavar="ID", help="Only those older than this one: the next page.")
    ] = None,
) -> None:
    """Show what the manifest manager did, the newest first: enqueued, dead-lettered, timed out, passed over and why."""
    from tenuto.cli.option_parsing import say_if_more, where
    from tenuto.cli.output import show_json, show_table

    narrowed = where(below=below, limit=limit)
    found = await session.app.manifests.polls(busy=not everything, **narrowed)
    if session.as_json:
        show_json(found)
        return
    if not found:
        if below is not None:
            session.say("none older than that")
        elif everything:
            session.say("no look yet; a scheduler takes them, as with: tenuto up")
        else:
            session.say("nothing to do so far; --all shows every look")
        return
    now = (await session.app.open()).clock.now()
    show_table(
        ("when", "enqueued", "dead-lettered", "timed out", "took", "by", "passed over"),
        [
            (
                ago(poll["at"], now),
                poll["enqueued"],
                poll["dead_lettered"],
                poll["timed_out"],
                span(poll["seconds"]),
                poll["by"],
                poll["error"] or _passed_over(poll["skipped"]),
            )
            for poll in found
        ],
        spare=("took", "by", "timed out"),
        flexible=("passed over",),
    )
    say_if_more(session, found, limit)


def _passed_over(skipped: Record) -> str:
    return "; ".join(
        f"{', '.join(told['some'])}{' …' if told['count'] > len(told['some']) else ''}: {reason}"
        for reason, told in skipped.items()
    )
