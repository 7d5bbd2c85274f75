"""Tracing: a trace connects the caller with the code of the job, across processes and attempts."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from itertools import pairwise
from types import ModuleType
from typing import Any
from uuid import UUID

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags

from tenuto import Context, RetryPolicy, Step, Tenuto, cron, manual, tracing
from tenuto.api.application import add_middleware, create_api
from tenuto.blocking import Portal
from tenuto.model.access.actors import Role
from tests.support import isolated_jobs
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually


class SpanRecorder:
    """The spans that the OpenTelemetry SDK has exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def of_kind(self, kind: SpanKind) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> SpanRecorder:
    recorder = SpanRecorder()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorder.provider)
    return recorder


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    return span.attributes or {}


def in_trace(trace_id: int) -> AbstractContextManager[Any]:
    """Continue the trace of a caller whose span has the id 0xDEF."""
    return trace.use_span(trace.NonRecordingSpan(SpanContext(trace_id, 0xDEF, False, TraceFlags(1))))


async def test_attempt_spans_belong_to_the_trace_of_the_caller(
    app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    trace_ids: list[int] = []

    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0))
    async def flaky(ctx: Context) -> None:
        trace_ids.append(trace.get_current_span().get_span_context().trace_id)
        if ctx.attempt == 1:
            raise ValueError("not yet")

    @app.job
    def plain() -> str | None:
        trace_ids.append(trace.get_current_span().get_span_context().trace_id)
        return tracing.current_traceparent()

    with in_trace(0xABC):
        tasks = [await app.enqueue(flaky), await app.enqueue(plain)]
        assert await app.enqueue_many(plain, [{}, {}]) == 2
    async with worker():
        first, second = [await app.wait(task, timeout=20) for task in tasks]
        for open in await app.tasks():
            await app.wait(open.id, timeout=20)
    assert (first.state, first.attempt) == ("completed", 2)
    assert trace_ids == [0xABC] * 5
    assert (second.output or "").startswith(f"00-{0xABC:032x}-")
    assert {parent_id(span) for span in recorder.of_kind(SpanKind.PRODUCER)} == {0xDEF}
    runs = recorder.named("run flaky")
    assert {parent_id(span) for span in runs} == {span_id(span) for span in recorder.named("enqueue flaky")}
    assert all(span.parent is not None and span.parent.is_remote for span in runs)
    assert [attributes_of(span)["tenuto.attempt"] for span in runs] == [1, 2]
    assert {attributes_of(span)["tenuto.task_id"] for span in runs} == {str(tasks[0].id)}
    assert [attributes_of(span)["tenuto.queue"] for span in runs] == ["default"] * 2
    assert [span.status.status_code for span in runs] == [StatusCode.ERROR, StatusCode.UNSET]
    (error,) = runs[0].events
    assert (error.attributes or {})["exception.message"] == "not yet"


async def test_concurrent_enqueues_keep_the_trace_of_their_caller(app: Tenuto, recorder: SpanRecorder) -> None:
    """They share a statement, which one of them sends."""

    @app.job
    async def plain() -> None: ...

    async def enqueue(number: int) -> tuple[int, UUID]:
        with in_trace(number):
            return number, (await app.enqueue(plain)).id

    enqueued = await asyncio.gather(*(enqueue(0x1000 + number) for number in range(7)))
    for number, task_id in enqueued:
        policy = (await app.task(task_id)).policy
        assert policy["traceparent"].startswith(f"00-{number:032x}-")
    assert len(recorder.of_kind(SpanKind.PRODUCER)) == 7


async def test_steps_of_execution_and_items_of_batch_share_a_trace(
    app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    @app.job
    async def step() -> None: ...

    app.schedule("daily", cron("0 2 * * *"), [Step.job(step, name="a"), Step.job(step, name="b", timeout=60)])
    app.manifest("wanted", step, on_demand=True)
    await app.schedules.deploy()
    await app.manifests.deploy()
    run = await app.schedules.run("daily")
    batch = await app.bulk_enqueue("wanted", [{}, {}])
    async with worker():
        assert run.execution_id is not None
        await app.executions.wait(run.execution_id, timeout=20)
        await app.batches.wait(batch.id, timeout=20)
    runs = recorder.of_kind(SpanKind.CONSUMER)
    steps = [span for span in runs if attributes_of(span).get("tenuto.execution_id") == str(run.execution_id)]
    items = [span for span in runs if span not in steps]
    assert (len(steps), len(items)) == (2, 2)
    for spans in (steps, items):
        assert len({trace_id(span) for span in spans}) == 1
    policies = [json.loads(policy) for policy in await load_policies(app)]
    assert policies == []


async def load_policies(app: Tenuto) -> list[str]:
    return [row["policy"] for row in await (await app.open()).fetch_all("SELECT policy FROM tenuto.tasks")]


async def test_traceparent_is_not_stored_without_tracer_provider(app: Tenuto) -> None:
    @app.job
    async def quiet() -> None: ...

    assert not tracing.is_enabled()
    with in_trace(0xABC):
        await app.enqueue(quiet)
    assert await load_policies(app) == ["{}"]
    assert tracing.current_traceparent() is None


@pytest.mark.parametrize("traceparent", ["", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, None, ["x"]])
async def test_invalid_traceparent_does_not_prevent_a_run(
    traceparent: object, app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    @app.job(retry=RetryPolicy(max_attempts=3))
    async def fine() -> None: ...

    task = await app.enqueue(fine)
    database = await app.open()
    await database.fetch_all(
        "UPDATE tenuto.tasks SET policy = policy || $1::jsonb", json.dumps({"traceparent": traceparent})
    )
    async with worker():
        assert (await app.wait(task, timeout=20)).state == "completed"
    (run,) = recorder.of_kind(SpanKind.CONSUMER)
    assert run.parent is None


async def test_tasks_enqueued_within_a_run_belong_to_its_trace(
    app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    """Also by code without an event loop, and as the run of another schedule."""

    other = Tenuto(settings=app.settings)

    async def grandchild() -> None: ...

    app.job(grandchild)
    other.job(grandchild)

    @app.job
    def child() -> None:
        with Portal(other) as portal:
            portal.run(other.enqueue(other.jobs.get_job("grandchild")))

    @app.job
    async def parent(ctx: Context) -> None:
        await app.enqueue(child)

    app.schedule("inner", manual(), [Step.job(parent)])
    app.schedule("outer", manual(), [Step.schedule("inner")])
    await app.schedules.deploy()
    with in_trace(0xABC):
        run = await app.schedules.run("outer")
    async with worker(poll_seconds=0.1):
        assert run.execution_id is not None
        assert (await app.executions.wait(run.execution_id, timeout=30)).state == "completed"
        await eventually(lambda: recorder.named("run grandchild"), timeout=30)
    spans = {span.name: span for span in recorder.exporter.get_finished_spans()}
    assert {trace_id(span) for span in spans.values()} == {0xABC}
    chain = ["run grandchild", "enqueue grandchild", "run child", "enqueue child", "run parent", "enqueue inner"]
    for later, earlier in pairwise(chain):
        assert parent_id(spans[later]) == span_id(spans[earlier]), (later, earlier)
    assert parent_id(spans["enqueue outer"]) == 0xDEF


async def test_child_of_a_workflow_belongs_to_its_trace(
    app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    @app.job(retry=RetryPolicy(max_attempts=2, base_seconds=0))
    async def load(ctx: Context, part: str) -> str:
        if ctx.attempt == 1 and part == "b":
            raise ConnectionError(part)
        return part

    @app.workflow
    async def ship(ctx: Context) -> list[str]:
        first = await ctx.run(load, "a")
        (second,) = await ctx.gather(ctx.run(load, "b"))
        return [first, second]

    with in_trace(0xABC):
        task = await app.enqueue(ship)
    async with worker(slots=1):
        assert (await app.wait(task, timeout=20)).output == ["a", "b"]
    spans = recorder.exporter.get_finished_spans()
    assert {trace_id(span) for span in spans} == {0xABC}
    (enqueued,) = recorder.named("enqueue ship")
    assert parent_id(enqueued) == 0xDEF
    runs = recorder.named("run ship")
    assert [parent_id(span) for span in runs] == [span_id(enqueued)] * 3, "at first, and after each child"
    children = recorder.named("enqueue load")
    assert [parent_id(span) for span in children] == [span_id(span) for span in runs[:2]]
    attempts = [parent_id(span) for span in recorder.named("run load")]
    assert attempts == [span_id(children[0]), span_id(children[1]), span_id(children[1])]


async def test_span_of_an_attempt_has_no_secrets_and_says_why_it_was_stopped(
    app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    @app.job(max_attempts=1)
    async def leaks(ctx: Context) -> None:
        ctx.redact("hunter2-hunter2")
        raise ValueError("wrong password hunter2-hunter2")

    @app.job(max_attempts=1, timeout=0.05)
    async def slow() -> None:
        await asyncio.Event().wait()

    tasks = [await app.enqueue(leaks), await app.enqueue(slow)]
    async with worker():
        for task in tasks:
            await app.wait(task, timeout=20)
    (failed,) = recorder.named("run leaks")
    assert "hunter2" not in failed.to_json()
    assert "wrong password" in failed.to_json()
    (stopped,) = recorder.named("run slow")
    assert (stopped.status.status_code, stopped.status.description) == (StatusCode.ERROR, "stopped: timed_out")


@asynccontextmanager
async def open_client(app: Tenuto) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=add_middleware(app, create_api(app)))
    _, key = await app.api_keys.create("caller", Role.OPERATOR)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
        yield client


async def test_http_request_with_traceparent_continues_the_trace(app: Tenuto, recorder: SpanRecorder) -> None:
    @app.job
    async def seen() -> None: ...

    header = {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01"}
    async with open_client(app) as client:
        for headers in (header, {}, {"traceparent": "00-nonsense"}):
            response = await client.post("/api/v1/tasks", json={"job": "seen"}, headers=headers)
            assert response.status_code == 202, response.text
    # FastAPI records spans of the request between the caller and the task.
    parents = {span_id(span): parent_id(span) for span in recorder.exporter.get_finished_spans()}
    roots = []
    for span in recorder.named("enqueue seen"):
        root = span_id(span)
        while (above := parents.get(root)) is not None:
            root = above
        roots.append(root)
    assert trace_id(recorder.named("enqueue seen")[0]) == 0xABC
    assert roots[0] == 0xDEF
    assert 0xDEF not in roots[1:]


async def test_http_request_with_traceparent_stores_it_without_tracer_provider(app: Tenuto) -> None:
    @app.job
    async def seen() -> None: ...

    header = f"00-{0xABC:032x}-{0xDEF:016x}-01"
    async with open_client(app) as client:
        task = (await client.post("/api/v1/tasks", json={"job": "seen"}, headers={"traceparent": header})).json()
    assert (await app.task(UUID(task["id"]))).policy["traceparent"] == header


@pytest.mark.slow
@pytest.mark.usefixtures("with_isolated_jobs")
async def test_isolated_job_continues_the_trace_of_its_attempt(
    app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    """The child process has no tracer provider here; what it enqueues joins the trace."""
    with in_trace(0xABC):
        task = await app.enqueue(isolated_jobs.report_trace)
    async with worker():
        record = await app.wait(task, timeout=60)
    (run,) = recorder.named("run report_trace")
    assert record.output == f"00-{0xABC:032x}-{span_id(run):016x}-01"


async def test_task_is_enqueued_while_another_thread_imports_opentelemetry(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is known to the interpreter before it has its functions."""
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", ModuleType("opentelemetry.trace"))

    @app.job
    async def bake() -> None: ...

    task = await app.enqueue(bake)
    assert (await app.task(task.id)).name == "bake"
