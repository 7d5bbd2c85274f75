"""``tenuto manifest``: list, show, create, change, enable, disable, delete and run manifests and their groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import Annotated, Any, Literal

from rich.console import RenderableType

from tenuto.app import Tenuto
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.definitions.definition_commands import DefinitionResource, definition_heading, origin_facts
from tenuto.cli.definitions.definition_options import (
    MANIFEST_OPTIONS,
    change_manifest,
    manifest_from_options,
    parse_arguments,
    translate_manifest_errors,
)
from tenuto.cli.lists import BELOW, limit, list_command, print_page
from tenuto.cli.option_parsing import option_conflict, require_wait, translate_error_fields
from tenuto.cli.output import print_json
from tenuto.cli.parameters import REQUIRED, argument, flag, option
from tenuto.cli.tables import name_value_table, print_rich, render_table, section_title
from tenuto.cli.work.jobs import suggest_job_list, wait_for_task
from tenuto.cli.work.task_report import reason_lines
from tenuto.errors import NotFound
from tenuto.model.definitions.manifests import OnDeadLetter
from tenuto.presentation import definition_views, descriptions
from tenuto.presentation.definition_views import (
    ALL_MANIFESTS,
    GROUPS,
    OPEN_RUNS,
    POLLS,
    describe_obstacles,
)
from tenuto.presentation.descriptions import format_in_zone
from tenuto.presentation.text_formats import compact_json, format_relative, safe_text
from tenuto.presentation.work_views import ATTEMPTS, BATCHES
from tenuto.store.definitions.definition_rows import Version
from tenuto.store.definitions.manifests import ManifestDetails, ManifestGroupRecord, StoredManifest

_GROUP_EXAMPLES = ("list", "add nightly-report --job report --cron '0 6 * * mon-fri' --app tasks:app")
manifests = group("manifest", "Create, inspect, change and run manifests (job definitions).", *_GROUP_EXAMPLES)

EXTERNAL_ID = argument("EXTERNAL_ID", "External id of the manifest.")
_JOB_AND_INPUT = ("--job", "--set", "--properties")
_BATCH_COLUMNS = [
    replace(column, under="")
    for column in BATCHES.columns
    if column.name in ("id", "items", "open", "failed", "created")
]


async def _print_next_run(session: Session, manifest: StoredManifest) -> None:
    if not manifest.enabled:
        session.print_message(f"  it is disabled; enable it with: tenuto manifest enable {manifest.external_id}")
    elif manifest.manifest.on_demand:
        session.print_message(f"  submit input with: tenuto batch submit {manifest.external_id} --from rows.jsonl")
    elif manifest.next_run_at is not None:
        session.print_message(f"  next {_format_instant(manifest.next_run_at, await session.now())}")


async def _create(session: Session, external_id: str, options: dict[str, Any], **settings: Any) -> StoredManifest:
    job = options.pop("job")
    with session.as_user() as app, suggest_job_list(session, *_JOB_AND_INPUT), translate_manifest_errors():
        new = manifest_from_options(external_id, session.app_with_jobs.jobs.get_job(job), options)
        return await app.manifests.create(new, **settings)


async def _change(session: Session, before: StoredManifest, options: dict[str, Any], **settings: Any) -> StoredManifest:
    with session.as_user() as app, suggest_job_list(session, *_JOB_AND_INPUT), translate_manifest_errors():
        return await app.manifests.edit(before.external_id, change_manifest(before.manifest, options), **settings)


async def _describe_change(
    session: Session, before: StoredManifest, after: StoredManifest
) -> tuple[dict[str, Any], list[RenderableType]]:
    if after.next_run_at is None or after.version == before.version or not after.enabled:
        return {}, []
    return {}, [f"next run {_format_instant(after.next_run_at, await session.now())}"]


MANIFESTS = DefinitionResource[StoredManifest](
    group=manifests,
    noun="manifest",
    key=EXTERNAL_ID,
    key_field="external_id",
    example="nightly-report",
    operations=lambda app: app.manifests,
    print_next_runs=_print_next_run,
    create=_create,
    change=_change,
    compare_runs=_describe_change,
    options=MANIFEST_OPTIONS,
    add_options={"job": option("JOB", "Job to run, as listed by `tenuto job list`.", default=REQUIRED)},
    edit_options={},
    texts={
        "add": """Create a manifest: a job with default arguments, a trigger and policies.

--app names the app that defines the job.""",
        "edit": """Change the given options of a manifest.

`none` removes the value of --after, --group, --max-active, --timeout, --between, --on, --start, --end or --exclude.
Open runs keep their policies. Prints the difference.""",
        "delete": "Delete a manifest that has no open runs and no dependents; its past runs and its history remain.",
        "list": "List manifests by external id with next run, last success and open tasks.",
    },
    view=definition_views.MANIFESTS,
    list_filters={
        "group": option("GROUP", "Filter by group."),
        "search": option("TEXT", "Filter by text in the external id or name."),
    },
    list_example="--group reports --off -o json",
    add_examples=(
        "nightly-report --job report --cron '0 6 * * *' --set days=7 --app tasks:app",
        "replicate-users --job replicate --on-demand --set source=prod --max-active 5",
        "mail-report --job mail --after nightly-report --max-attempts 5 --retry-wait 30s",
    ),
    edit_examples=(
        "nightly-report --cron '30 6 * * *' --reason 'the import got slower'",
        "replicate-users --max-active 20 --timeout none",
    ),
    recorded_fields=(
        *("version", "origin", "created_at", "updated_at"),
        *("last_successful_run_at", "last_run_at", "next_run_at"),
    ),
)
MANIFESTS.add_commands()


@command(manifests, "show", "nightly-report", "nightly-report -o json")
async def show_manifest(session: Session, external_id: Annotated[str, EXTERNAL_ID]) -> None:
    """Show a manifest with its policies, next run, open runs, limits, dead letters and last attempts."""
    app = session.app
    async with MANIFESTS.suggesting_names(app, external_id):
        found = await app.manifests.details(external_id)
    stored = found.manifest
    change = await MANIFESTS.last_change(app, stored)
    batches = await app.batches.list(manifest=external_id, limit=3)
    if session.as_json:
        details = {field.name: getattr(found, field.name) for field in fields(found) if field.name != "manifest"}
        change_document = MANIFESTS.version_document(change)
        print_json({**MANIFESTS.document(stored), **details, "batches": batches, "last_change": change_document})
        return
    now = await session.now()
    name = "" if stored.manifest.name == external_id else f"  {safe_text(stored.manifest.name)}"
    parts = [*definition_heading(stored, name), name_value_table(*_summary(found, change, now))]
    if found.open_runs:
        runs = render_table(OPEN_RUNS, found.open_runs, now)
        parts += [*section_title(f"open: {_describe_open_runs(found.open_counts)}"), runs]
    if batches:
        parts += [*section_title("last batches"), render_table(_BATCH_COLUMNS, batches, now)]
    if found.last_attempts:
        parts += [*section_title("last attempts"), render_table(ATTEMPTS, found.last_attempts, now)]
    print_rich(*parts)


@command(manifests, "why", "nightly-report", "nightly-report -o json")
async def explain_manifest(session: Session, external_id: Annotated[str, EXTERNAL_ID]) -> None:
    """Explain why a manifest does not run, or when it will.

    The reasons that hold it now come first, each with the command that helps. Of an open run, the reasons of its task
    follow.
    """
    found = await MANIFESTS.get(session.app, external_id)
    why = await session.app.manifests.why(external_id)
    if session.as_json:
        print_json(why)
        return
    print_rich(*definition_heading(found), *reason_lines(why, await session.now()))


def _summary(found: ManifestDetails, change: Version, now: datetime) -> list[tuple[str, Any]]:
    stored, manifest = found.manifest, found.manifest.manifest
    priority = f", priority {manifest.priority}" if manifest.priority else ""
    dead_letters = found.open_dead_letter_count
    list_command = f"tenuto dead-letter list --manifest {stored.external_id}"
    return [
        ("job", manifest.job),
        ("properties", compact_json(dict(manifest.properties)) if manifest.properties else None),
        ("when", manifest.describe_trigger()),
        ("next run", _describe_next_run(stored, dead_letters, now)),
        ("stopped", describe_obstacles(found.obstacles)),
        ("last success", _format_instant(stored.last_successful_run_at, now) or "never"),
        ("policy", descriptions.describe_policy(manifest.to_fields()["policy"])),
        ("dead letter", descriptions.describe_on_dead_letter(manifest.on_dead_letter)),
        ("queue", f"{manifest.queue}{priority}"),
        ("limits", _describe_limits(found)),
        ("dependents", ", ".join(map(safe_text, found.dependents))),
        ("dead letters", f"{dead_letters:,} open; list them with: {list_command}" if dead_letters else "none"),
        *origin_facts(stored, change, now),
    ]


def _describe_next_run(stored: StoredManifest, dead_letter_count: int, now: datetime) -> str | None:
    if stored.manifest.on_demand:
        return None
    if not stored.enabled:
        return f"none while it is disabled; tenuto manifest enable {stored.external_id}"
    if stored.next_run_at is None:
        return None
    blocks = stored.manifest.on_dead_letter is OnDeadLetter.BLOCK
    note = "; skipped while a dead letter is open" if dead_letter_count and blocks else ""
    return f"{_format_instant(stored.next_run_at, now)}{note}"


def _format_instant(instant: datetime | None, now: datetime) -> str | None:
    return None if instant is None else f"{format_in_zone(instant)} ({format_relative(instant, now)})"


def _describe_limits(found: ManifestDetails) -> str:
    """Describe the limits that apply to the manifest, with the number of active runs."""
    manifest = found.manifest.manifest
    active = found.open_counts.get("running", 0)
    parts = [f"manifest {active}{f' of {manifest.max_active}' if manifest.max_active else ''} active"]
    for cap, label in ((found.group, f"group {manifest.group}"), (found.all_manifests, "all manifests")):
        if cap is not None and not cap.enabled:
            parts.append(f"{label} is disabled")
        elif cap is not None and cap.max_active is not None:
            parts.append(f"{label} {cap.active_count} of {cap.max_active} active")
        elif cap is not None and cap is found.group:
            parts.append(f"{label} {cap.active_count} active, no limit")
    return "; ".join(parts)


def _describe_open_runs(counts: Mapping[str, int]) -> str:
    states = ("running", "queued", "scheduled", "waiting")
    return ", ".join(f"{counts[state]:,} {state}" for state in states if state in counts)


_ALL_POLLS = flag("Include polls without work.", "--all")


@list_command(
    manifests, "polls", POLLS, "", "--all --limit 10 -o json", everything=_ALL_POLLS, limit=limit(20), below=BELOW
)
async def list_polls(app: Tenuto, *, everything: bool, **filters: Any) -> Sequence[Any]:
    """List polls of the manifest manager, newest first, with runs enqueued, dead-lettered, timed out and skipped."""
    return await app.manifests.polls(only_busy=not everything, **filters)


@command(
    manifests,
    "run",
    "nightly-report --app tasks:app --wait",
    "nightly-report --app tasks:app --set days=30",
    app_use="needed",
)
async def run_manifest(
    session: Session,
    external_id: Annotated[str, EXTERNAL_ID],
    settings: Annotated[list[str] | None, option("ARGUMENT=VALUE", "Argument for this run only.", "--set")] = None,
    wait: Annotated[bool, flag("Wait for the end; exit code 1 unless the task completed.", "--wait")] = False,
    timeout: Annotated[float | None, option("SECONDS", "With --wait: maximum time to wait.", min=0)] = None,
) -> int:
    """Run a manifest once now, and print the id of the task; with --wait, the result.

    Ends with exit code 7 while an earlier run is open. --app names the app that defines the job.
    """
    require_wait(timeout, wait=wait)
    arguments = parse_arguments(settings)
    with session.as_user() as app, suggest_job_list(session), translate_error_fields({}, otherwise="--set {}"):
        async with MANIFESTS.suggesting_names(app, external_id):
            task_id = await app.manifests.run(external_id, arguments)
    if wait:
        return await wait_for_task(session, app, task_id, timeout)
    return session.report({"task_id": task_id}, f"follow it with: tenuto task show {task_id}", result=task_id)


@list_command(manifests, "groups", GROUPS, "", "-o json")
async def list_groups(app: Tenuto) -> Sequence[Any]:
    """List manifest groups with their limits and active runs; * is the group of all manifests."""
    found = list(page := await app.manifests.groups())
    while page:
        found += (page := await app.manifests.groups(after=found[-1].name))
    return found


@command(manifests, "group", "reports", "reports --max-active 10 --priority 5", "'*' --max-active 200")
async def show_or_change_group(
    session: Session,
    name: Annotated[str, argument("NAME", "Name of the group; '*' for all manifests.")],
    max_active: Annotated[int | None, option("N", "Maximum number of active runs, over all workers.")] = None,
    no_limit: Annotated[bool, flag("Remove the limit.", "--no-limit")] = False,
    priority: Annotated[int | None, option("N", "Number added to the priority of new runs.")] = None,
    enabled: Annotated[bool | None, flag("Whether runs of the group may start.", "--enable/--disable")] = None,
    rate_limit: Annotated[str | None, option("RATE|none", "Maximum number of starts, such as 100/m or 5/s.")] = None,
) -> None:
    """Show a manifest group, or change its limits, its priority and whether its runs may start.

    Active runs continue, even if the new limit is lower.
    """
    if max_active is not None and no_limit:
        raise option_conflict("--max-active", "--no-limit", "give one of the two")
    limit: int | Literal["keep"] | None = max_active if max_active is not None or no_limit else "keep"
    changes = limit != "keep" or priority is not None or enabled is not None or rate_limit is not None
    rate = "keep" if rate_limit is None else None if rate_limit == "none" else rate_limit
    with (
        session.as_user() as app,
        translate_error_fields({"group": "NAME", "name": "NAME", "rate_limit": "--rate-limit"}),
    ):
        if changes:
            await app.manifests.change_group(
                name, max_active=limit, priority=priority, enabled=enabled, rate_limit=rate
            )
        try:
            found = [await app.manifests.group(name)]
        except NotFound:
            if name != ALL_MANIFESTS:
                raise
            found = []
    if session.as_json:
        # Active runs of all manifests are counted only if they have a limit.
        unlimited = {field.name: None for field in fields(ManifestGroupRecord)}
        print_json(found[0] if found else {**unlimited, "name": ALL_MANIFESTS, "priority": 0, "enabled": True})
        return
    if changes:
        session.print_message(f"{_group_label(name)}: {_describe_group(found[0])}, by {login_name()}")
    elif found:
        await print_page(session, GROUPS, found)
    else:
        session.print_message("all manifests: no limit")


def _group_label(name: str) -> str:
    return "all manifests" if name == ALL_MANIFESTS else f"group {name}"


def _describe_group(found: ManifestGroupRecord) -> str:
    limit = "no limit" if found.max_active is None else f"at most {found.max_active} active"
    priority = f", priority {found.priority}" if found.priority else ""
    priority += f", at most {found.rate_limit} started" if found.rate_limit else ""
    return f"{limit} ({found.active_count} now){priority}{'' if found.enabled else ', disabled'}"
