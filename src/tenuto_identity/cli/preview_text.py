"""A preview as text: a line for each run, what guards would hold, and the requests by target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from tenuto.cli.output import print_message
from tenuto.clock import monotonic_seconds
from tenuto.errors import Conflict, EngineError
from tenuto.extension import PlanPreview
from tenuto.model.work.tasks import ActivityState
from tenuto.model.work.worker_states import WorkerState
from tenuto_identity.store.previews import PreviewRecord, PreviewRequest, RequestCount

PREVIEW_KIND = "identity.preview"
MAX_SECONDS_WITHOUT_WORKER = 60.0
"""How long a command waits while no live worker can run its preview: workers may be restarting."""
_WORKER_CHECK_SECONDS = 5.0
MAX_VALUE_CHARACTERS = 60
GOOD_STATES = (ActivityState.COMPLETED, ActivityState.COMPLETED_WITH_WARNING)
MAX_PLAN_REQUESTS = 20
"""Requests shown for each target in the preview of a plan."""


async def preview_plan(app: Any, declared: Mapping[str, Sequence[Any]], *, prune: bool) -> PlanPreview:
    """Have a worker preview what follows from definitions; return it as text and as a document."""
    operations = app.extensions.identity
    id = await operations.preview_plan(declared, prune=prune)
    await wait_for_preview(app, id)
    record, requests, counts = await load_preview(operations, id, MAX_PLAN_REQUESTS)
    text = format_preview(record, requests, counts)
    if record.state == "completed" and not record.steps:
        text = "no stored object is affected; preview a schedule to see what its imports would do"
    return PlanPreview(text, preview_document(record, requests, counts), has_failed=not is_good(record))


async def wait_for_preview(app: Any, id: UUID, report: Callable[[str], None] = print_message) -> None:
    """Wait until a preview has ended. Report that no live worker can run it, and give up if none appears in time."""
    queue = (await app.attempts(id))[0].queue
    alone_since: float | None = None
    while True:
        if await _has_worker(app, queue):
            alone_since = None
        elif alone_since is None:
            alone_since = monotonic_seconds()
            report(
                f"no live worker serves queue {queue} and knows {PREVIEW_KIND}; waiting up to "
                f"{MAX_SECONDS_WITHOUT_WORKER:g} s; start one: tenuto worker"
            )
        elif monotonic_seconds() - alone_since >= MAX_SECONDS_WITHOUT_WORKER:
            raise EngineError(
                f"no live worker can run the preview {id}: none serves queue {queue} and knows {PREVIEW_KIND}",
                code="identity.preview.no_worker",
                remedy=f"start one with `tenuto worker`, which runs it, then: tenuto identity show-preview {id}",
            )
        try:
            await app.wait(id, min(_WORKER_CHECK_SECONDS, MAX_SECONDS_WITHOUT_WORKER))
            return
        except Conflict as error:
            if error.code != "task.wait.timeout":
                raise


async def _has_worker(app: Any, queue: str) -> bool:
    return any(
        each.service == "worker"
        and each.state in (WorkerState.ALIVE, WorkerState.DRAINING)
        and queue in each.queues
        and (each.kinds is None or PREVIEW_KIND in each.kinds)
        for each in await app.workers()
    )


async def load_preview(
    operations: Any, id: UUID, limit: int
) -> tuple[PreviewRecord, list[PreviewRequest], list[RequestCount]]:
    """Return a preview with the first requests to each target, and the number of all of them."""
    record: PreviewRecord = await operations.preview_record(id)
    targets = dict.fromkeys(step["system"] for step in record.steps if step["requests"])
    requests = [
        each for target in targets for each in await operations.preview_requests(id, system=target, limit=limit)
    ]
    return record, requests, await operations.preview_request_counts(id)


def preview_document(
    record: PreviewRecord, requests: Sequence[PreviewRequest], counts: Sequence[RequestCount]
) -> dict[str, Any]:
    """Return a preview for ``-o json``."""
    return {
        **asdict(record),
        "request_counts": [asdict(each) for each in counts],
        "requests": [asdict(each) for each in requests],
    }


def is_good(record: PreviewRecord) -> bool:
    """Return whether the preview and all its runs ended well."""
    return record.state != "failed" and all(step["status"] in GOOD_STATES for step in record.steps)


def format_preview(
    record: PreviewRecord, requests: Sequence[PreviewRequest], request_counts: Sequence[RequestCount] = ()
) -> str:
    """Return the text of a preview with the first requests."""
    lines = [f"{record.subject}: {record.state}" + (f": {record.problem}" if record.problem else "")]
    for step in record.steps:
        lines.append(f"{step['step']:>3}  {step['system']}, {step['profile']}: {describe_step(step)}")
        lines += [f"     would be held: {message}" for message in step["held"]]
        lines += [f"     warning: {message}" for message in step["warnings"]]
        if step["problem"]:
            lines.append(f"     {step['problem']}")
    systems = list(dict.fromkeys(each.system for each in requests))
    counts: dict[str, int] = {}
    for step in record.steps:
        counts[step["system"]] = counts.get(step["system"], 0) + step["requests"]
    for system in systems:
        shown = [each for each in requests if each.system == system]
        kinds = ", ".join(f"{each.request_count:,} {each.kind}" for each in request_counts if each.system == system)
        total = f"{counts.get(system, len(shown)):,} requests would be sent"
        lines += ["", f"{system}: {total}" + (f" ({kinds})" if kinds else "")]
        lines += [f"     {_describe_request(each)}" for each in shown]
        if len(shown) < counts.get(system, 0):
            lines.append(f"     … and {counts[system] - len(shown):,} more")
    if not systems and record.state == "completed":
        lines += ["", "nothing would be sent"]
    return "\n".join(lines)


def describe_step(step: Mapping[str, Any]) -> str:
    """Return status, changes and errors of a run of a preview."""
    return describe_counts(step["status"], step)


def describe_counts(status: str, counts: Mapping[str, Any]) -> str:
    """Return status, changes and errors of a run. Without counts, the run did not get to its end."""
    parts = [status.replace("_", " ")]
    if "changes" in counts:
        parts.append(_counted(counts["changes"]) or "no changes")
    if errors := _counted(counts.get("errors", {})):
        parts.append(errors)
    return "; ".join(parts)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()) if count)


def _describe_request(request: PreviewRequest) -> str:
    name = request.address or request.anchor or request.type
    changes = "; ".join(_describe_change(each) for each in request.changes)
    return f"{request.kind} {name}" + (f": {changes}" if changes else "")


def _describe_change(change: Mapping[str, Any]) -> str:
    values = ", ".join(map(str, change["values"]))
    text = values if len(values) <= MAX_VALUE_CHARACTERS else values[: MAX_VALUE_CHARACTERS - 1] + "…"
    sign = {"set": "=", "add": "+", "remove": "-", "clear": "cleared", "rename": "→"}[change["op"]]
    return f"{change['attribute']} {sign} {text}".rstrip()
