"""Tracing: a trace connects the caller with the code of the job, across processes and attempts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from tenuto import Context, RetryPolicy, Step, Tenuto, cron, tracing
from tests.support.service_fixtures import WorkerFactory


class RecordedSpan(trace.NonRecordingSpan):
    """A span whose attributes and errors tests can read."""

    def __init__(self, context: SpanContext, name: str, kind: SpanKind, parent: SpanContext, attributes: Any) -> None:
        super().__init__(context)
        self.name, self.kind, self.parent, self.attributes = name, kind, parent, dict(attributes or {})
        self.errors: list[BaseException] = []

    def is_recording(self) -> bool:
        return True

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        self.errors.append(exception)


class SpanRecorder(trace.TracerProvider, trace.Tracer):
    """A minimal OpenTelemetry tracer provider that records spans, without the SDK."""

    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []
        self._number = count(1)

    def get_tracer(self, *_: Any, **__: Any) -> trace.Tracer:
        return self

    def start_span(
        self,
        name: str,
        context: TraceContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Any = None,
        *_: Any,
        **__: Any,
    ) -> trace.Span:
        parent = trace.get_current_span(context).get_span_context()
        number = next(self._number)
        span_context = SpanContext(parent.trace_id if parent.is_valid else 1000 + number, number, False, TraceFlags(1))
        self.spans.append(RecordedSpan(span_context, name, kind, parent, attributes))
        return self.spans[-1]

    @contextmanager
    def _as_current(self, name: str, *arguments: Any, **options: Any) -> Iterator[trace.Span]:
        span = self.start_span(name, *arguments)
        with trace.use_span(span, record_exception=True):
            yield span

    def start_as_current_span(self, *arguments: Any, **options: Any) -> Any:
        return self._as_current(*arguments, **options)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> SpanRecorder:
    recorder = SpanRecorder()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorder)
    return recorder


def spans_of_kind(recorder: SpanRecorder, kind: SpanKind) -> Sequence[RecordedSpan]:
    return [span for span in recorder.spans if span.kind is kind]


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

    caller = SpanContext(0xABC, 0xDEF, False, TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(caller)):
        tasks = [await app.enqueue(flaky), await app.enqueue(plain)]
        assert await app.enqueue_many(plain, [{}, {}]) == 2
    async with worker():
        first, second = [await app.wait(task, timeout=20) for task in tasks]
        for open in await app.tasks():
            await app.wait(open.id, timeout=20)
    assert (first.state, first.attempt) == ("completed", 2)
    assert trace_ids == [0xABC] * 5
    assert (second.output or "").startswith(f"00-{0xABC:032x}-")
    assert {span.parent.span_id for span in spans_of_kind(recorder, SpanKind.PRODUCER)} == {0xDEF}
    runs = [span for span in spans_of_kind(recorder, SpanKind.CONSUMER) if span.name == "run flaky"]
    producer_ids = {
        span.get_span_context().span_id for span in spans_of_kind(recorder, SpanKind.PRODUCER) if "flaky" in span.name
    }
    assert {span.parent.span_id for span in runs} == producer_ids
    assert all(span.parent.is_remote for span in runs)
    assert [span.attributes["tenuto.attempt"] for span in runs] == [1, 2]
    assert {span.attributes["tenuto.task_id"] for span in runs} == {str(tasks[0].id)}
    assert [str(error) for error in runs[0].errors] == ["not yet"]


async def test_concurrent_enqueues_keep_the_trace_of_their_caller(app: Tenuto, recorder: SpanRecorder) -> None:
    """They share a statement, which one of them sends."""

    @app.job
    async def plain() -> None: ...

    async def enqueue(trace_id: int) -> tuple[int, UUID]:
        with trace.use_span(trace.NonRecordingSpan(SpanContext(trace_id, 0xDEF, False, TraceFlags(1)))):
            return trace_id, (await app.enqueue(plain)).id

    enqueued = await asyncio.gather(*(enqueue(0x1000 + number) for number in range(7)))
    for trace_id, task_id in enqueued:
        policy = (await app.task(task_id)).policy
        assert policy["traceparent"].startswith(f"00-{trace_id:032x}-")
    assert len(spans_of_kind(recorder, SpanKind.PRODUCER)) == 7


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
    runs = spans_of_kind(recorder, SpanKind.CONSUMER)
    steps = [span for span in runs if span.attributes.get("tenuto.execution_id") == str(run.execution_id)]
    items = [span for span in runs if span not in steps]
    assert (len(steps), len(items)) == (2, 2)
    for spans in (steps, items):
        assert len({span.get_span_context().trace_id for span in spans}) == 1
    policies = [json.loads(policy) for policy in await load_policies(app)]
    assert policies == []


async def load_policies(app: Tenuto) -> list[str]:
    return [row["policy"] for row in await (await app.open()).fetch_all("SELECT policy FROM tenuto.tasks")]


async def test_traceparent_is_not_stored_without_tracer_provider(app: Tenuto) -> None:
    @app.job
    async def quiet() -> None: ...

    assert not tracing.is_enabled()
    with trace.use_span(trace.NonRecordingSpan(SpanContext(0xABC, 0xDEF, False, TraceFlags(1)))):
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
    (run,) = spans_of_kind(recorder, SpanKind.CONSUMER)
    assert not run.parent.is_valid


async def test_spans_reach_an_opentelemetry_sdk_exporter(
    app: Tenuto, worker: WorkerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)

    @app.job
    async def seen() -> None: ...

    task = await app.enqueue(seen)
    async with worker():
        await app.wait(task, timeout=20)
    enqueue_span, run_span = memory.get_finished_spans()
    assert (enqueue_span.name, run_span.name) == ("enqueue seen", "run seen")
    assert run_span.parent is not None
    assert (run_span.parent.span_id, run_span.parent.trace_id) == (
        enqueue_span.context.span_id,
        enqueue_span.context.trace_id,
    )
    assert run_span.context.trace_id == enqueue_span.context.trace_id
