"""Lists that need no page of their own design: their columns are those of the command line (`tenuto.presentation`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.list_pages import After, cursor_instant, decode_cursor, encode_cursor
from tenuto.api.parameters import Id, Name
from tenuto.api.security.authentication import ApiCall
from tenuto.app import Tenuto
from tenuto.errors import NotFound, UnknownJob
from tenuto.jobs.registry import Job
from tenuto.model.access.actors import Role
from tenuto.model.filter_keys import AUDIT_KEYS, LEDGER_KEYS, LOG_ENTRY_KEYS, ONE_SHOT_KEYS
from tenuto.model.filters import DEFAULT_WINDOW, Filter, quote_value
from tenuto.model.work.one_shots import OneShotSummary
from tenuto.model.work.worker_states import WorkerState
from tenuto.operations.argument_checks import build_filter
from tenuto.operations.reports import AttemptFigures
from tenuto.presentation.admin_views import AUDIT_ENTRIES, LOG_ENTRIES, LOGS, SECRETS
from tenuto.presentation.columns import ResourceView
from tenuto.presentation.definition_views import LEDGER
from tenuto.presentation.work_views import ONE_SHOTS
from tenuto.store.access.audit_log import AuditEntryRecord
from tenuto.store.definitions.schedules import LedgerRecord
from tenuto.store.filter_sql import CappedCount
from tenuto.store.named_logs import LogEntryRecord
from tenuto.store.work.activities import ActivityRecord
from tenuto.web.components.filters import (
    PAGE_SIZE,
    FilterBar,
    FilterText,
    QuickFilter,
    Window,
    count_matches,
    count_text,
    load_filtered_list,
    read_filter,
)
from tenuto.web.components.links import Links
from tenuto.web.components.schema_forms import ArgumentsForm, make_arguments_form
from tenuto.web.page import PageRoute, PageView, Reader, page_role

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Admin = Annotated[ApiCall, page_role(Role.ADMIN, "page.read")]
_MAX_JOBS = 500
_LIVE_STATES = {WorkerState.ALIVE, WorkerState.DRAINING}
ONE_SHOT_QUICK = (
    QuickFilter("Open", ""),
    QuickFilter("Running", "state:running", "run"),
    QuickFilter("Completed", "state:completed", "done"),
    QuickFilter("Failed", "state:failed", "fail"),
    QuickFilter("Cancelled", "state:terminated", "cancel"),
)
_ENDED_STATES = {"completed", "failed", "terminated"}
LEDGER_QUICK = (
    QuickFilter("All", ""),
    QuickFilter("Fired", "decision:fired", "done"),
    QuickFilter("Queued", "decision:queued", "queued"),
    QuickFilter("Skipped", "decision:skipped,coalesced", "cancel"),
    QuickFilter("Missed", "decision:missed", "fail"),
    QuickFilter("Last 24 h", "due:>1d"),
)


@dataclass(frozen=True, slots=True)
class RecordList:
    """Records with their columns."""

    title: str
    path: str
    view: ResourceView
    rows: Sequence[Any]
    topics: str
    next: str | None = None
    is_first: bool = True
    bar: FilterBar | None = None
    link: Callable[[Links, Any], str] | None = None
    """Address of the page of a record, given the links."""
    key: Callable[[Any], str] = lambda record: str(record.id)
    empty: str = "Nothing here yet."
    """What would put something into the list."""
    hint: str = ""
    about: str = ""
    """What the list contains, beside its title."""
    actions: str = ""
    """Name of the actions of a row in the template."""
    bulk: Sequence[tuple[str, str, str, str]] = ()
    """Kind, label, effect and style of the bulk operations on selected rows."""
    total: str = ""
    """Number of matching records."""
    search: str | None = None
    """Part of the name that is searched for; None if the list has no such search."""


@dataclass(frozen=True, slots=True)
class Change:
    """A field before and after a change; None if it did not exist."""

    field: str
    before: str | None
    after: str | None

    @property
    def is_changed(self) -> bool:
        return self.before != self.after


@dataclass(frozen=True, slots=True)
class AuditEntryPage:
    entry: AuditEntryRecord
    changes: Sequence[Change]


def compare_values(before: Any, after: Any) -> list[Change]:
    """Return the fields of two JSON values, changed fields first; values other than objects are one field."""
    first, second = (
        value if isinstance(value, dict) else {} if value is None else {"value": value} for value in (before, after)
    )
    changes = [
        Change(name, *(_json_line(value[name]) if name in value else None for value in (first, second)))
        for name in {**first, **second}
    ]
    return sorted(changes, key=lambda change: not change.is_changed)


def _json_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _show(view: PageView, model: RecordList) -> Response:
    status = 422 if model.bar is not None and model.bar.error is not None else 200
    modules = ("filter", "select") if model.bulk else ("filter",) if model.bar is not None else ()
    return await view.render(
        "pages/records.html", model, title=model.title, current=model.path, status=status, modules=modules
    )


@router.get("/one-shots")
async def show_one_shots(request: Request, call: Reader, q: FilterText = "", after: After = None) -> Response:
    """Show the one-shots that have not ended, next one first; ended ones, newest first, if the filter asks for them."""
    view = PageView(request, call)
    zone = view.viewer.zone_name

    async def load(app: Tenuto) -> RecordList:
        where, bar = read_filter(ONE_SHOT_KEYS, "/one-shots", q, (await app.open()).clock.now(), zone, ONE_SHOT_QUICK)
        found: Sequence[OneShotSummary] = ()
        total = following = None
        is_ended = where is not None and _selects_ended(where)
        if where is not None and is_ended:
            below = decode_cursor(after, UUID)
            ended = await app.one_shots.list_ended(where, below=below[0] if below else None, limit=PAGE_SIZE)
            following = encode_cursor(ended[-1].activity_id) if len(ended) == PAGE_SIZE else None
            found = ended
        elif where is not None:
            found = await app.one_shots.list(where, after=decode_cursor(after, cursor_instant, UUID), limit=PAGE_SIZE)
            following = encode_cursor(found[-1].run_at, found[-1].id) if len(found) == PAGE_SIZE else None
        if where is not None:
            bar, total = await count_matches(where, bar, partial(_count_one_shots, app))
        return RecordList(
            "One-shots",
            "/one-shots",
            ONE_SHOTS,
            found,
            "queues",
            following,
            after is None,
            bar,
            link=lambda links, each: links.task(each.id),
            actions="ended_one_shot" if is_ended else "one_shot",
            bulk=()
            if is_ended
            else (
                ("one_shot.cancel", "Cancel", "They do not run. Those that run already are asked to stop.", "danger"),
            ),
            total=count_text(total),
            empty="No one-shot is due. A one-shot runs a step or a job once, at an instant.",
            hint="""tenuto once add log.append --in 10m --payload '{"message": "Hello"}'""",
        )

    return await _show(view, await view.shared(("one-shots", q, after, zone), load))


async def _count_one_shots(app: Tenuto, wheres: Sequence[str | Filter]) -> Sequence[CappedCount]:
    """Count the one-shots that meet each of the filters; open ones and ended ones by one statement each."""
    now = (await app.open()).clock.now()
    filters = [build_filter(ONE_SHOT_KEYS, where, now) for where in wheres]
    ended = [each for each in filters if _selects_ended(each)]
    others = [each for each in filters if not _selects_ended(each)]
    counts = await asyncio.gather(
        app.one_shots.count_of_each(ended, ended=True), app.one_shots.count_of_each(others, ended=False)
    )
    iterators = [iter(each) for each in counts]
    return [next(iterators[0 if _selects_ended(each) else 1]) for each in filters]


def _selects_ended(where: Filter) -> bool:
    """Return whether a filter selects one-shots that have ended."""
    return any(
        clause.key is not None
        and clause.key.name == "state"
        and not clause.is_negated
        and set(clause.values) <= _ENDED_STATES
        for clause in where.clauses
    )


@router.get("/ledger")
async def show_ledger(request: Request, call: Reader, q: FilterText = "", after: After = None) -> Response:
    """Show every due instant and its decision, newest first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name

    async def load(app: Tenuto) -> RecordList:
        cursor = decode_cursor(after, cursor_instant, UUID)
        before, below = (cursor[0], cursor[1]) if cursor else (None, None)
        now = (await app.open()).clock.now()
        where, bar = read_filter(LEDGER_KEYS, "/ledger", q, now, zone, LEDGER_QUICK)
        found: Sequence[LedgerRecord] = ()
        total = None
        if where is not None:
            found, (bar, total) = await asyncio.gather(
                app.schedules.ledger(where=where, before=before, below=below, limit=PAGE_SIZE),
                count_matches(where, bar, app.schedules.count_ledger_of_each),
            )
        following = encode_cursor(found[-1].due_at, found[-1].id) if len(found) == PAGE_SIZE else None
        return RecordList(
            "Ledger",
            "/ledger",
            LEDGER,
            found,
            "executions",
            following,
            after is None,
            bar,
            total=count_text(total),
            empty="No schedule was due yet. Every due instant is listed here with its decision.",
            link=lambda links, each: (
                links.execution(each.execution_id) if each.execution_id else links.schedule(each.schedule_name)
            ),
        )

    return await _show(view, await view.shared(("ledger", q, after, zone), load))


@router.get("/logs")
async def show_logs(
    request: Request,
    call: Reader,
    search: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Show the named logs with their newest entries."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> RecordList:
        found = await app.logs.names(search=search, after=after, limit=PAGE_SIZE)
        return RecordList(
            "Logs",
            "/logs",
            LOGS,
            found,
            "activities",
            found[-1].log if len(found) == PAGE_SIZE else None,
            not after,
            link=lambda links, each: links.log(each.log),
            key=lambda each: each.log,
            empty="No log has an entry yet. Steps of the kind log.append and operators write them.",
            hint="tenuto log append LOG MESSAGE",
            search=search,
        )

    return await _show(view, await view.shared(("logs", search, after), load))


@router.get("/logs/{name:name}")
async def show_log(
    request: Request,
    call: Reader,
    name: Name,
    q: FilterText = "",
    after: Annotated[int | None, Query(ge=0)] = None,
    window: Window = DEFAULT_WINDOW,
) -> Response:
    """Show a named log, newest entry first."""
    view = PageView(request, call)
    zone = view.viewer.zone_name
    path = f"/logs/{quote(name, safe='')}"

    async def load(app: Tenuto) -> RecordList:
        now = (await app.open()).clock.now()
        where, bar = read_filter(LOG_ENTRY_KEYS, path, q, now, zone, (), window)
        found: Sequence[LogEntryRecord] = ()
        if where is not None:
            found = await app.logs.read(name, where, below=after, limit=2 * PAGE_SIZE)
        following = str(found[-1].id) if len(found) == 2 * PAGE_SIZE else None
        return RecordList(
            f"Log {name}",
            path,
            LOG_ENTRIES,
            found,
            "activities",
            following,
            after is None,
            bar,
            empty="The log has no entry.",
        )

    return await _show(view, await view.shared(("log", name, q, after, zone, window), load))


@router.get("/audit")
async def show_audit_log(
    request: Request, call: Admin, q: FilterText = "", after: After = None, window: Window = DEFAULT_WINDOW
) -> Response:
    """Show the audit log, newest entry first."""
    view = PageView(request, call)
    now = (await view.app.open()).clock.now()
    found, bar = read_filter(AUDIT_KEYS, "/audit", q, now, view.viewer.zone_name, (), window)
    listed = await load_filtered_list(found, bar, after, view.app.audit.list, None, lambda each: each)
    model = RecordList(
        "Audit",
        "/audit",
        AUDIT_ENTRIES,
        listed.rows,
        "overview executions",
        listed.next,
        listed.is_first,
        bar,
        link=lambda links, each: links.audit_entry(each.id),
    )
    return await _show(view, model)


@router.get("/audit/{id}")
async def show_audit_entry(request: Request, call: Admin, id: Id) -> Response:
    """Show an audit entry with the values before and after the change."""
    view = PageView(request, call)
    entry: AuditEntryRecord = await view.app.audit.get(id)
    changes = compare_values(entry.before, entry.after)
    model = AuditEntryPage(entry, changes)
    return await view.render("pages/audit_entry.html", model, title=entry.action, current="/audit")


@router.get("/secrets")
async def show_secrets(request: Request, call: Admin) -> Response:
    """Show names and versions of secrets."""
    view = PageView(request, call)
    found = await view.app.secrets.list(limit=500)
    model = RecordList(
        "Secrets",
        "/secrets",
        SECRETS,
        found,
        "",
        key=lambda each: each.name,
        empty="No secret is stored. Steps refer to secrets by name.",
        hint="tenuto secret set NAME",
        about="names and versions; values cannot be read",
        actions="secret",
    )
    return await _show(view, model)


# --- jobs and settings ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobRow:
    name: str
    description: str
    queue: str
    timeout_seconds: float | None
    max_attempts: int


@dataclass(frozen=True, slots=True)
class JobList:
    """The jobs that this web service knows, and others that live workers know."""

    rows: Sequence[JobRow]
    worker_counts: Mapping[str, int]
    """How many live workers know each job."""
    unknown: Mapping[str, Sequence[str]]
    """Jobs that only workers know, with the names of the workers."""
    figures: Mapping[str, AttemptFigures]
    """Ended attempts of the last day by job."""


@router.get("/jobs")
async def show_jobs(request: Request, call: Reader) -> Response:
    """Show the jobs that this web service or a live worker knows."""
    view = PageView(request, call)
    known = view.app.jobs.jobs_by_name

    async def load(app: Tenuto) -> JobList:
        live = [each for each in await app.workers() if each.service == "worker" and each.state in _LIVE_STATES]
        by_job: dict[str, list[str]] = {}
        for worker in live:
            for name in known if worker.jobs is None else worker.jobs:  # None: it claims all tasks of its queues
                by_job.setdefault(name, []).append(worker.name)
        rows = [_job_row(name, job) for name, job in sorted(known.items())[:_MAX_JOBS]]
        unknown = {name: by_job[name] for name in sorted(by_job.keys() - known.keys())[:_MAX_JOBS]}
        figures = await app.reports.figures_by_name([*(row.name for row in rows), *unknown])
        return JobList(rows, {name: len(workers) for name, workers in by_job.items()}, unknown, figures)

    model = await view.shared("jobs", load)
    return await view.render("pages/jobs.html", model, title="Jobs", current="/jobs")


@dataclass(frozen=True, slots=True)
class JobPage:
    """One job with its last attempts."""

    row: JobRow
    documentation: str
    schema: dict[str, Any]
    run_form: ArgumentsForm
    attempts: Sequence[ActivityRecord]
    open_count: int
    figures: AttemptFigures | None
    """Ended attempts of the last day."""


@router.get("/jobs/{name:name}")
async def show_job(request: Request, call: Reader, name: Name) -> Response:
    """Show a job: input, policies, figures of the last day and last attempts."""
    view = PageView(request, call)
    try:
        job = view.app.jobs.get_job(name)
    except UnknownJob as error:
        raise NotFound(error.message, code=error.code, remedy="open the list of jobs") from None

    async def load(app: Tenuto) -> JobPage:
        where = f"name:{quote_value(name)}"
        attempts, open_count, report = await asyncio.gather(
            app.activities(where, limit=20), app.count_tasks(where), app.reports.series("24h", name=name)
        )
        schema = job.input_schema()
        return JobPage(
            _job_row(name, job),
            (job.__doc__ or "").strip(),
            schema,
            make_arguments_form("input", schema, None),
            attempts,
            open_count.count,
            report.series[0].total if report.series else None,
        )

    model = await view.shared(("job", name), load)
    return await view.render("pages/job.html", model, title=name, current="/jobs", modules=("forms",))


def _job_row(name: str, job: Job[..., Any]) -> JobRow:
    return JobRow(
        name,
        (job.function.__doc__ or "").strip().partition("\n")[0],
        job.options.queue,
        job.policy.timeout_seconds,
        job.policy.retry.max_attempts,
    )


@router.get("/settings")
async def show_settings(request: Request, call: Admin) -> Response:
    """Show the settings of this web service without secrets."""
    view = PageView(request, call)
    return await view.render("pages/settings.html", view.app.settings.redacted(), title="Settings", current="/settings")
