"""``tenuto manifest``: list, show, create, change, enable, disable, delete and run manifests and their groups."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from rich.console import RenderableType

from tenuto.cli import descriptions
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.definitions.definition_commands import (
    DefinitionResource,
    ReasonOption,
    definition_heading,
    enabled_label,
    origin_facts,
    section_title,
)
from tenuto.cli.definitions.definition_options import (
    MANIFEST_OPTIONS,
    change_manifest,
    manifest_from_options,
    parse_arguments,
    translate_manifest_errors,
)
from tenuto.cli.descriptions import format_in_zone
from tenuto.cli.formatting import format_duration, format_relative, one_line, safe_text
from tenuto.cli.option_parsing import (
    BelowOption,
    LimitOption,
    build_filters,
    option_conflict,
    require_wait,
    translate_error_fields,
)
from tenuto.cli.output import (
    Column,
    Record,
    compact_json,
    fitted_table,
    name_value_table,
    print_json,
    print_list,
    print_rich,
    record_table,
    state_symbol,
    styled_state,
)
from tenuto.cli.parameters import argument, flag, option
from tenuto.cli.work.jobs import suggest_job_list, wait_for_task
from tenuto.cli.work.task_report import error_summary, run_duration
from tenuto.errors import NotFound
from tenuto.model.manifests import Manifest, manifest_from_fields
from tenuto.model.policies import RetryPolicy
from tenuto.store.definition_rows import Version
from tenuto.store.manifests import StoredManifest

manifests = group(
    "manifest",
    "Create, inspect, change and run manifests (job definitions).",
    "list",
    "add nightly-report --job report --cron '0 6 * * mon-fri' --app tasks:app",
)

ManifestId = Annotated[str, argument("EXTERNAL_ID", "External id of the manifest.")]
ALL_MANIFESTS = "*"
_JOB_AND_INPUT = ("--job", "--set", "--properties")
_OPEN_COUNT_LIMIT = 10_001
"""The list counts open tasks up to this number."""
_GROUP_FIELDS = (
    "name",
    "max_active",
    "priority",
    "enabled",
    "changed_at",
    "changed_by",
    "manifest_count",
    "active_count",
)
"""Fields of a group in JSON. Active runs of all manifests are counted only if they have a limit."""


def describe_manifest_trigger(manifest: Manifest) -> str:
    """Describe the reason to run."""
    if manifest.on_demand:
        return "On demand, for submitted input"
    if manifest.depends_on is not None:
        return f"After each success of {manifest.depends_on}"
    return manifest.trigger.describe()


async def _print_next_run(session: Session, manifest: StoredManifest) -> None:
    if not manifest.enabled:
        session.print_message(f"  it is disabled; enable it with: tenuto manifest enable {manifest.external_id}")
    elif manifest.manifest.on_demand:
        session.print_message(f"  submit input with: tenuto batch submit {manifest.external_id} --from rows.jsonl")
    elif manifest.next_run_at is not None:
        session.print_message(f"  next {_format_instant(manifest.next_run_at, await session.now())}")


MANIFESTS = DefinitionResource[StoredManifest](
    "manifest",
    "external_id",
    lambda app: app.manifests,
    describe_manifest_trigger,
    _print_next_run,
    ("version", "origin", "created_at", "updated_at", "last_successful_run_at", "last_run_at", "next_run_at"),
)


# --- list -----------------------------------------------------------------------------------------------------------


@command(manifests, "list", "", "--group reports --off -o json")
async def list_manifests(
    session: Session,
    on: Annotated[bool | None, flag("Filter by enabled or disabled.", "--on/--off")] = None,
    group: Annotated[str | None, option("GROUP", "Filter by group.")] = None,
    search: Annotated[str | None, option("TEXT", "Filter by text in the external id or name.")] = None,
    limit: LimitOption = 100,
    after: Annotated[str | None, option("EXTERNAL_ID", "Pagination cursor: the last external id shown.")] = None,
) -> None:
    """List manifests by external id with next run, last success and open tasks."""
    filters = build_filters(after=after, enabled=on, group=group, search=search, limit=limit)
    found = await session.app.manifests.list(**filters)
    manifest_by_id = {row["external_id"]: manifest_from_fields(row["definition"]) for row in found}

    def next_run(row: Record, now: datetime) -> str:
        return _next_run(row, manifest_by_id[row["external_id"]], now)

    await print_list(
        session,
        [{**row, "when": describe_manifest_trigger(manifest_by_id[row["external_id"]])} for row in found],
        {
            "external id": "external_id",
            "when": "when",
            "job": lambda row, _: manifest_by_id[row["external_id"]].job,
            "state": lambda row, _: enabled_label(enabled=row["enabled"]),
            "open": lambda row, _: _format_count(row["open_task_count"]),
            "next run": next_run,
            "last success": _last_success,
            "group": "group",
            "dead letters": lambda row, _: "yes" if row["has_dead_letters"] else "no",
        },
        two_line_columns={
            "manifest": lambda row, _: (row["external_id"], row["when"]),
            "state": lambda row, _: (
                enabled_label(enabled=row["enabled"]),
                f"{_format_count(row['open_task_count'])} open" if row["open_task_count"] else "",
            ),
            "next run": lambda row, now: (next_run(row, now), row["group"] and f"in {row['group']}"),
            "last success": lambda row, now: (
                _last_success(row, now),
                "✉ dead letters" if row["has_dead_letters"] else None,
            ),
        },
        flexible=("manifest",),
        noun="manifests",
        hint=MANIFESTS.empty_list_hint(session.app),
        filters=filters,
        next_page="--after",
        cursor="external_id",
    )


def _last_success(row: Record, now: datetime) -> str:
    return format_relative(row["last_successful_run_at"], now) or "never"


def _format_count(number: int) -> str:
    return "over 10,000" if number >= _OPEN_COUNT_LIMIT else f"{number:,}"


def _next_run(row: Record, manifest: Manifest, now: datetime) -> str:
    if manifest.on_demand:
        return "on demand"
    if not row["enabled"]:
        return "none"
    if row["next_run_at"] is not None:
        return "due" if row["next_run_at"] <= now else format_relative(row["next_run_at"], now)
    if manifest.depends_on is not None:
        return f"after {one_line(manifest.depends_on, 24)}"
    return "manual" if manifest.trigger.kind == "manual" else "no further run"


# --- one manifest ---------------------------------------------------------------------------------------------------


@command(manifests, "show", "nightly-report", "nightly-report -o json")
async def show_manifest(session: Session, external_id: ManifestId) -> None:
    """Show a manifest with its policies, next run, open runs, limits, dead letters and last attempts."""
    app = session.app
    async with MANIFESTS.suggesting_names(app, external_id):
        found = await app.manifests.details(external_id)
    stored: StoredManifest = found["manifest"]
    change = await MANIFESTS.last_change(app, stored)
    batches = await app.batches.list(manifest=external_id, limit=3)
    if session.as_json:
        details = {name: value for name, value in found.items() if name != "manifest"}
        change_document = MANIFESTS.version_document(change)
        print_json({**MANIFESTS.document(stored), **details, "batches": batches, "last_change": change_document})
        return
    now = await session.now()
    name = "" if stored.manifest.name == external_id else f"  {safe_text(stored.manifest.name)}"
    parts = [*definition_heading(stored, name), name_value_table(*_summary(found, change, now))]
    if found["open_runs"]:
        parts += [*section_title(f"open: {_describe_open_runs(found['open_counts'])}"), _open_runs_table(found, now)]
    if batches:
        parts += [*section_title("last batches"), _batches_table(batches, now)]
    if found["last_attempts"]:
        parts += [*section_title("last attempts"), _attempts_table(found["last_attempts"], now)]
    print_rich(*parts)


def _summary(found: Record, change: Version, now: datetime) -> list[tuple[str, Any]]:
    stored: StoredManifest = found["manifest"]
    manifest = stored.manifest
    priority = f", priority {manifest.priority}" if manifest.priority else ""
    dead_letters = found["open_dead_letter_count"]
    list_command = f"tenuto dead-letter list --manifest {stored.external_id}"
    return [
        ("job", manifest.job),
        ("properties", compact_json(dict(manifest.properties)) if manifest.properties else None),
        ("when", describe_manifest_trigger(manifest)),
        ("next run", _describe_next_run(stored, dead_letters, now)),
        ("last success", _format_instant(stored.last_successful_run_at, now) or "never"),
        ("policy", descriptions.describe_policy(manifest.to_fields()["policy"])),
        ("queue", f"{manifest.queue}{priority}"),
        ("limits", _describe_limits(found)),
        ("dependents", ", ".join(map(safe_text, found["dependents"]))),
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
    note = "; skipped while a dead letter is open" if dead_letter_count else ""
    return f"{_format_instant(stored.next_run_at, now)}{note}"


def _format_instant(instant: datetime | None, now: datetime) -> str | None:
    return None if instant is None else f"{format_in_zone(instant)} ({format_relative(instant, now)})"


def _describe_limits(found: Record) -> str:
    """Describe the limits that apply to the manifest, with the number of active runs."""
    manifest: Manifest = found["manifest"].manifest
    active = found["open_counts"].get("running", 0)
    parts = [
        f"manifest {active} of {manifest.max_active} active" if manifest.max_active else f"manifest {active} active"
    ]
    for limit, label in ((found["group"], f"group {manifest.group}"), (found["all_manifests"], "all manifests")):
        if limit is not None and not limit["enabled"]:
            parts.append(f"{label} is disabled")
        elif limit is not None and limit["max_active"] is not None:
            parts.append(f"{label} {limit['active_count']} of {limit['max_active']} active")
        elif limit is not None and limit is found["group"]:
            parts.append(f"{label} {limit['active_count']} active, no limit")
    return "; ".join(parts)


def _describe_open_runs(counts: Record) -> str:
    return ", ".join(
        f"{counts[state]:,} {state}" for state in ("running", "queued", "scheduled", "waiting") if state in counts
    )


def _open_runs_table(found: Record, now: datetime) -> RenderableType:
    rows = [
        (f"{state_symbol(run['state'])} {describe_progress(run, now)}", run["item_key"], run["id"])
        for run in found["open_runs"]
    ]
    if not any(item for _, item, _ in rows):
        return fitted_table(("progress", "task"), [(progress, id) for progress, _, id in rows])
    return fitted_table(("progress", "item", "task"), rows, optional=("item",), flexible=("item",))


def describe_progress(run: Record, now: datetime) -> str:
    """Describe an open run: ``attempt 3 of 5, next in 40 s``."""
    max_attempts = max(run["policy"].get("max_retries", RetryPolicy().max_retries), 1)
    attempt = f"attempt {run['failures'] + 1} of {max_attempts}"
    match run["state"]:
        case "running":
            return f"{attempt}, running for {format_duration(now - run['claimed_at'])}"
        case "scheduled":
            label = "next" if run["failures"] or run["losses"] else "due"
            return f"{attempt}, {label} {format_relative(run['run_at'], now)}"
        case "waiting":
            return f"{attempt}, held back"
        case _:
            return f"{attempt}, waiting for {format_duration(now - run['run_at'])}"


def _batches_table(found: Sequence[Record], now: datetime) -> RenderableType:
    columns: dict[str, Column] = {
        "batch": "id",
        "items": lambda batch, _: f"{batch['total']:,}",
        "open": lambda batch, _: f"{batch['open']:,}",
        "failed": lambda batch, _: f"{batch['failed']:,}",
        "created": lambda batch, now: format_relative(batch["created_at"], now),
    }
    return record_table(found, columns, now)


def _attempts_table(found: list[Record], now: datetime) -> RenderableType:
    columns: dict[str, Column] = {
        "status": lambda run, _: styled_state(run["state"]),
        "attempt": lambda run, _: f"{run['attempt']}{'' if run['final'] else ' ↻'}",
        "ended": lambda run, now: format_relative(run["ended_at"], now),
        "ran": lambda run, _: run_duration(run),
        "error": lambda run, _: error_summary(run["error"]),
    }
    return record_table(found, columns, now, optional=("ran",), flexible=("error",))


# --- history --------------------------------------------------------------------------------------------------------


@command(manifests, "history", "nightly-report", "nightly-report -o json")
async def show_history(session: Session, external_id: ManifestId, limit: LimitOption = 20) -> None:
    """Show all changes of a manifest with author, time, reason and difference, even if it was deleted."""
    await MANIFESTS.print_history(session, external_id, limit)


# --- manifest manager -----------------------------------------------------------------------------------------------


@command(manifests, "polls", "", "--all --limit 10 -o json")
async def list_polls(
    session: Session,
    everything: Annotated[bool, flag("Include polls without work.", "--all")] = False,
    limit: LimitOption = 20,
    below: BelowOption = None,
) -> None:
    """List polls of the manifest manager, newest first, with runs enqueued, dead-lettered, timed out and skipped."""
    filters = build_filters(below=below, limit=limit)
    await print_list(
        session,
        await session.app.manifests.polls(only_busy=not everything, **filters),
        {
            "when": lambda poll, now: format_relative(poll["at"], now),
            "enqueued": "enqueued_count",
            "dead-lettered": "dead_lettered_count",
            "timed out": "timed_out_count",
            "took": lambda poll, _: format_duration(poll["duration_seconds"]),
            "by": "by",
            "skipped": lambda poll, _: poll["error"] or _describe_skipped(poll["skipped"]),
        },
        optional=("took", "by", "timed out"),
        flexible=("skipped",),
        noun="polls" if everything else "polls with work",
        hint="a scheduler makes them, for example: tenuto up" if everything else "--all lists all polls",
        filters=filters,
    )


def _describe_skipped(skipped: Record) -> str:
    return "; ".join(
        f"{', '.join(summary.external_ids)}{' …' if summary.count > len(summary.external_ids) else ''}: {reason}"
        for reason, summary in skipped.items()
    )


# --- create and change ----------------------------------------------------------------------------------------------


@command(
    manifests,
    "add",
    "nightly-report --job report --cron '0 6 * * *' --set days=7 --app tasks:app",
    "replicate-users --job replicate --on-demand --set source=prod --max-active 5",
    "mail-report --job mail --after nightly-report --max-retries 5 --retry-wait 30s",
    options=MANIFEST_OPTIONS,
)
async def add_manifest(
    session: Session,
    external_id: ManifestId,
    job: Annotated[str, option("JOB", "Job to run, as listed by `tenuto job list`.", "--job")],
    disabled: Annotated[bool, flag("Create the manifest disabled.", "--disabled")] = False,
    reason: ReasonOption = None,
    **options: Any,
) -> None:
    """Create a manifest: a job with default arguments, a trigger and policies.

    --app names the app that defines the job.
    """
    with session.as_user() as app, suggest_job_list(session, *_JOB_AND_INPUT), translate_manifest_errors():
        new = manifest_from_options(external_id, session.app_with_jobs.jobs.get_job(job), options)
        created = await app.manifests.create(new, enabled=not disabled, reason=reason)
    await MANIFESTS.report_created(session, created)


@command(
    manifests,
    "edit",
    "nightly-report --cron '30 6 * * *' --reason 'the import got slower'",
    "replicate-users --max-active 20 --timeout none",
    options=MANIFEST_OPTIONS,
)
async def edit_manifest(session: Session, external_id: ManifestId, reason: ReasonOption = None, **options: Any) -> None:
    """Change the given options of a manifest.

    `none` removes the value of --after, --group, --max-active, --timeout, --between, --on, --start, --end or --exclude.
    Open runs keep their policies. Prints the difference.
    """
    with session.as_user() as app:
        before = await MANIFESTS.get(app, external_id)
        with suggest_job_list(session, *_JOB_AND_INPUT), translate_manifest_errors():
            new = change_manifest(before.manifest, options)
            after = await app.manifests.edit(external_id, new, reason=reason, version=before.version)
    MANIFESTS.report_edited(session, before, after, {})
    if after.version != before.version and not session.as_json:
        await _print_next_run(session, after)


@command(manifests, "enable", "nightly-report", "nightly-report --reason 'moved to the new server'")
async def enable_manifest(session: Session, external_id: ManifestId, reason: ReasonOption = None) -> None:
    """Enable a manifest from now on; runs missed while it was disabled are not made up."""
    await MANIFESTS.set_enabled(session, external_id, reason, enabled=True)


@command(manifests, "disable", "nightly-report", "nightly-report --reason 'moved to the new server'")
async def disable_manifest(session: Session, external_id: ManifestId, reason: ReasonOption = None) -> None:
    """Disable a manifest; queued and running tasks continue, and manual runs remain possible."""
    await MANIFESTS.set_enabled(session, external_id, reason, enabled=False)


@command(manifests, "delete", "nightly-report", "nightly-report --reason 'moved to the new server'")
async def delete_manifest(session: Session, external_id: ManifestId, reason: ReasonOption = None) -> None:
    """Delete a manifest that has no open runs and no dependents; its past runs and its history remain.

    A manifest that is declared in code or in a file is created again, enabled, by the next start or apply. Disable it
    instead.
    """
    await MANIFESTS.delete(session, external_id, reason)


# --- run ------------------------------------------------------------------------------------------------------------


@command(manifests, "run", "nightly-report --app tasks:app --wait", "nightly-report --app tasks:app --set days=30")
async def run_manifest(
    session: Session,
    external_id: ManifestId,
    settings: Annotated[
        list[str] | None, option("ARGUMENT=VALUE", "Argument for this run only: JSON or text.", "--set")
    ] = None,
    wait: Annotated[bool, flag("Wait for the end; exit 1 unless the task completed.", "--wait")] = False,
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


# --- groups ---------------------------------------------------------------------------------------------------------


@command(manifests, "groups", "", "-o json")
async def list_groups(session: Session) -> None:
    """List manifest groups with their limits and active runs; * is the group of all manifests."""
    found = list(page := await session.app.manifests.groups())
    while page:
        found += (page := await session.app.manifests.groups(after=found[-1]["name"]))
    await _print_groups(session, found)


@command(manifests, "group", "reports", "reports --max-active 10 --priority 5", "'*' --max-active 200")
async def show_or_change_group(
    session: Session,
    name: Annotated[str, argument("NAME", "Name of the group; '*' for all manifests.")],
    max_active: Annotated[int | None, option("N", "Maximum number of active runs, over all workers.")] = None,
    no_limit: Annotated[bool, flag("Remove the limit.", "--no-limit")] = False,
    priority: Annotated[int | None, option("N", "Number added to the priority of new runs.")] = None,
    enabled: Annotated[bool | None, flag("Whether runs of the group may start.", "--enable/--disable")] = None,
) -> None:
    """Show a manifest group, or change its limit, its priority and whether its runs may start.

    Active runs continue, even if the new limit is lower.
    """
    if max_active is not None and no_limit:
        raise option_conflict("--max-active", "--no-limit", "give one of the two")
    limit: int | Literal["keep"] | None = "keep" if max_active is None else max_active
    if no_limit:
        limit = None
    changes = limit != "keep" or priority is not None or enabled is not None
    with session.as_user() as app, translate_error_fields({"group": "NAME", "name": "NAME"}):
        if changes:
            await app.manifests.change_group(name, max_active=limit, priority=priority, enabled=enabled)
        try:
            found = [await app.manifests.group(name)]
        except NotFound:
            if name != ALL_MANIFESTS:
                raise
            found = []
    if session.as_json:
        unlimited = {**dict.fromkeys(_GROUP_FIELDS), "name": ALL_MANIFESTS, "priority": 0, "enabled": True}
        print_json(found[0] if found else unlimited)
        return
    if changes:
        session.print_message(f"{_group_label(name)}: {_describe_group(found[0])}, by {login_name()}")
    elif found:
        await _print_groups(session, found)
    else:
        session.print_message("all manifests: no limit")


def _group_label(name: str) -> str:
    return "all manifests" if name == ALL_MANIFESTS else f"group {name}"


def _describe_group(found: Record) -> str:
    limit = "no limit" if found["max_active"] is None else f"at most {found['max_active']} active"
    priority = f", priority {found['priority']}" if found["priority"] else ""
    return f"{limit} ({found['active_count']} now){priority}{'' if found['enabled'] else ', disabled'}"


async def _print_groups(session: Session, groups: Sequence[Record]) -> None:
    await print_list(
        session,
        groups,
        {
            "group": lambda group, _: "* (all manifests)" if group["name"] == ALL_MANIFESTS else group["name"],
            "state": lambda group, _: enabled_label(enabled=group["enabled"]),
            "active": "active_count",
            "limit": lambda group, _: "none" if group["max_active"] is None else group["max_active"],
            "priority": "priority",
            "manifests": "manifest_count",
            "changed": lambda group, now: (
                f"{format_relative(group['changed_at'], now)} by {group['changed_by']}" if group["changed_at"] else ""
            ),
        },
        optional=("changed", "manifests"),
        flexible=("group",),
        noun="groups",
        hint="add a manifest to one: tenuto manifest edit EXTERNAL_ID --group NAME",
    )
