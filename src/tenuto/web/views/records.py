"""Lists that need no page of their own design: their columns are those of the command line (`tenuto.presentation`)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from tenuto.api.auth import ApiCall
from tenuto.api.paging import After, cursor_instant, decode_cursor, encode_cursor
from tenuto.api.parameters import Id, Name
from tenuto.app import Tenuto
from tenuto.errors import NotFound, UnknownJob
from tenuto.jobs.registry import Job
from tenuto.model.actors import Role
from tenuto.model.filter_keys import AUDIT_KEYS
from tenuto.model.filters import quote_value
from tenuto.operations.reports import AttemptFigures
from tenuto.presentation.admin_views import API_KEYS, AUDIT_ENTRIES, LOG_ENTRIES, LOGS, SECRETS
from tenuto.presentation.columns import ResourceView
from tenuto.presentation.definition_views import LEDGER
from tenuto.presentation.work_views import ONE_SHOTS
from tenuto.store.access.audit_log import AuditEntryRecord
from tenuto.store.activities import ActivityRecord
from tenuto.web.filters import PAGE_SIZE, FilterBar, load_filtered_list, read_filter
from tenuto.web.links import Links
from tenuto.web.page import PageRoute, PageView, Reader, page_role

router = APIRouter(route_class=PageRoute, include_in_schema=False)

Admin = Annotated[ApiCall, page_role(Role.ADMIN, "page.read")]
_MAX_JOBS = 500


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
    hint: str = ""
    about: str = ""
    """What the list contains, beside its title."""
    actions: str = ""
    """Name of the actions of a row in the template."""


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
    return await view.render("pages/records.html", model, title=model.title, current=model.path, status=status)


@router.get("/one-shots")
async def show_one_shots(request: Request, call: Reader, after: After = None) -> Response:
    """Show the one-shots that have not ended, next one first."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> RecordList:
        cursor = decode_cursor(after, cursor_instant, UUID)
        found = await app.one_shots.list(after=(cursor[0], cursor[1]) if cursor else None, limit=PAGE_SIZE)
        following = encode_cursor(found[-1].run_at, found[-1].id) if len(found) == PAGE_SIZE else None
        return RecordList(
            "One-shots",
            "/one-shots",
            ONE_SHOTS,
            found,
            "queues",
            following,
            after is None,
            link=lambda links, each: links.task(each.id),
            actions="one_shot",
            hint="tenuto once create log.append --in 10m",
        )

    return await _show(view, await view.shared(("one-shots", after), load))


@router.get("/ledger")
async def show_ledger(request: Request, call: Reader, after: After = None) -> Response:
    """Show every due instant and its decision, newest first."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> RecordList:
        cursor = decode_cursor(after, cursor_instant, UUID)
        before, below = (cursor[0], cursor[1]) if cursor else (None, None)
        found = await app.schedules.ledger(before=before, below=below, limit=PAGE_SIZE)
        following = encode_cursor(found[-1].due_at, found[-1].id) if len(found) == PAGE_SIZE else None
        return RecordList(
            "Ledger",
            "/ledger",
            LEDGER,
            found,
            "executions",
            following,
            after is None,
            link=lambda links, each: (
                links.execution(each.execution_id) if each.execution_id else links.schedule(each.schedule_name)
            ),
        )

    return await _show(view, await view.shared(("ledger", after), load))


@router.get("/logs")
async def show_logs(request: Request, call: Reader, after: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show the named logs with their newest entries."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> RecordList:
        found = await app.logs.names(after=after, limit=PAGE_SIZE)
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
            hint="tenuto log append MESSAGE",
        )

    return await _show(view, await view.shared(("logs", after), load))


@router.get("/logs/{name:name}")
async def show_log(
    request: Request, call: Reader, name: Name, after: Annotated[int | None, Query(ge=0)] = None
) -> Response:
    """Show a named log, newest entry first."""
    view = PageView(request, call)

    async def load(app: Tenuto) -> RecordList:
        found = await app.logs.read(name, below=after, limit=2 * PAGE_SIZE)
        following = str(found[-1].id) if len(found) == 2 * PAGE_SIZE else None
        path = f"/logs/{name}"
        return RecordList(f"Log {name}", path, LOG_ENTRIES, found, "activities", following, after is None)

    return await _show(view, await view.shared(("log", name, after), load))


@router.get("/audit")
async def show_audit_log(
    request: Request, call: Admin, q: Annotated[str, Query(max_length=500)] = "", after: After = None
) -> Response:
    """Show the audit log, newest entry first."""
    view = PageView(request, call)
    now = (await view.app.open()).clock.now()
    found, bar = read_filter(AUDIT_KEYS, "/audit", q, now, view.viewer.zone_name)
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


@router.get("/keys")
async def show_keys(request: Request, call: Admin) -> Response:
    """Show API keys without their texts."""
    view = PageView(request, call)
    found = await view.app.api_keys.list()
    return await _show(view, RecordList("Keys", "/keys", API_KEYS, found, "overview", actions="key"))


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


@router.get("/jobs")
async def show_jobs(request: Request, call: Reader) -> Response:
    """Show the jobs that this web service knows."""
    view = PageView(request, call)
    rows = [_job_row(name, job) for name, job in sorted(view.app.jobs.jobs_by_name.items())[:_MAX_JOBS]]
    return await view.render("pages/jobs.html", rows, title="Jobs", current="/jobs")


@dataclass(frozen=True, slots=True)
class JobPage:
    """One job with its last attempts."""

    row: JobRow
    documentation: str
    schema: dict[str, Any]
    required: Sequence[str]
    example: str
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
        required = sorted(job.required_parameters)
        return JobPage(
            _job_row(name, job),
            (job.__doc__ or "").strip(),
            schema,
            required,
            json.dumps(dict.fromkeys(required), indent=2),
            attempts,
            open_count.count,
            report.series[0].total if report.series else None,
        )

    model = await view.shared(("job", name), load)
    return await view.render("pages/job.html", model, title=name, current="/jobs")


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
