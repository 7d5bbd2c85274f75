"""A trace leads from whoever asked for work to the code that did it, across processes and attempts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from tenuto import Context, RetryPolicy, Step, Tenuto, cron, tracing
from tests.support.engine_fixtures import WorkerFactory


class RecordedSpan(trace.NonRecordingSpan):
    """A span that is told of afterwards."""

    def __init__(self, context: SpanContext, name: str, kind: SpanKind, parent: SpanContext, about: Any) -> None:
        super().__init__(context)
        self.name, self.kind, self.parent, self.about = name, kind, parent, dict(about or {})
        self.errors: list[BaseException] = []

    def is_recording(self) -> bool:
        return True

    def record_exception(self, exception: BaseException, *_: Any, **__: Any) -> None:
        self.errors.append(exception)


class SpanRecorder(trace.TracerProvider, trace.Tracer):
    """The least that OpenTelemetry takes for a provider; no SDK is needed to see what is asked of one."""

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
        own = SpanContext(parent.trace_id if parent.is_valid else 1000 + number, number, False, TraceFlags(1))
        self.spans.append(RecordedSpan(own, name, kind, parent, attributes))
        return self.spans[-1]

    @contextmanager
    def _as_current(self, name: str, *given: Any, **options: Any) -> Iterator[trace.Span]:
        span = self.start_span(name, *given)
        with trace.use_span(span, record_exception=True):
            yield span

    def start_as_current_span(self, *given: Any, **options: Any) -> Any:
        return self._as_current(*given, **options)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> SpanRecorder:
    recorder = SpanRecorder()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", recorder)
    return recorder


def spans_of_kind(recorder: SpanRecorder, kind: SpanKind) -> Sequence[RecordedSpan]:
    return [span for span in recorder.spans if span.kind is kind]


async def test_every_attempt_belongs_to_the_trace_of_who_asked(
    app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    inside: list[int] = []

    @app.job(retry=RetryPolicy(max_retries=2, base_seconds=0))
    async def flaky(ctx: Context) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)
        if ctx.attempt == 1:
            raise ValueError("not yet")

    @app.job
    def plain() -> str | None:
        inside.append(trace.get_current_span().get_span_context().trace_id)
        return tracing.current_traceparent()

    asking = SpanContext(0xABC, 0xDEF, False, TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(asking)):
        tasks = [await app.enqueue(flaky), await app.enqueue(plain)]
        assert await app.enqueue_many(plain, [{}, {}]) == 2
    async with worker():
        first, second = [await app.wait(task, timeout=20) for task in tasks]
        for open in await app.tasks():
            await app.wait(open["id"], timeout=20)
    assert (first["status"], first["attempt"]) == ("completed", 2)
    assert inside == [0xABC] * 5
    assert second["output"].startswith(f"00-{0xABC:032x}-")
    assert {span.parent.span_id for span in spans_of_kind(recorder, SpanKind.PRODUCER)} == {0xDEF}
    runs = [span for span in spans_of_kind(recorder, SpanKind.CONSUMER) if span.name == "run flaky"]
    asked = {
        span.get_span_context().span_id for span in spans_of_kind(recorder, SpanKind.PRODUCER) if "flaky" in span.name
    }
    assert {span.parent.span_id for span in runs} == asked
    assert all(span.parent.is_remote for span in runs)
    assert [span.about["tenuto.attempt"] for span in runs] == [1, 2]
    assert {span.about["tenuto.task"] for span in runs} == {str(tasks[0].id)}
    assert [str(error) for error in runs[0].errors] == ["not yet"]


async def test_the_steps_of_an_execution_and_the_items_of_a_batch_share_a_trace(
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
    steps = [span for span in runs if span.about.get("tenuto.execution") == str(run.execution_id)]
    items = [span for span in runs if span not in steps]
    assert (len(steps), len(items)) == (2, 2)
    for together in (steps, items):
        assert len({span.get_span_context().trace_id for span in together}) == 1
    policies = [json.loads(policy) for policy in await load_policies(app)]
    assert policies == []


async def load_policies(app: Tenuto) -> list[str]:
    return [row["policy"] for row in await (await app.open()).fetch_all("SELECT policy FROM tenuto.tasks")]


async def test_without_a_provider_nothing_is_carried(app: Tenuto) -> None:
    @app.job
    async def quiet() -> None: ...

    assert not tracing.is_enabled()
    with trace.use_span(trace.NonRecordingSpan(SpanContext(0xABC, 0xDEF, False, TraceFlags(1)))):
        await app.enqueue(quiet)
    assert await load_policies(app) == ["{}"]
    assert tracing.current_traceparent() is None


@pytest.mark.parametrize("broken", ["", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", 7, None, ["x"]])
async def test_a_trace_nobody_can_read_hinders_nobody(
    broken: object, app: Tenuto, worker: WorkerFactory, recorder: SpanRecorder
) -> None:
    @app.job(retry=RetryPolicy(max_retries=3))
    async def fine() -> None: ...

    task = await app.enqueue(fine)
    database = await app.open()
    await database.fetch_all(
        "UPDATE tenuto.tasks SET policy = policy || $1::jsonb", json.dumps({"traceparent": broken})
    )
    async with worker():
        assert (await app.wait(task, timeout=20))["status"] == "completed"
    (run,) = spans_of_kind(recorder, SpanKind.CONSUMER)
    assert not run.parent.is_valid


async def test_spans_reach_an_exporter_of_the_sdk(
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
    asked, ran = memory.get_finished_spans()
    assert (asked.name, ran.name) == ("enqueue seen", "run seen")
    assert ran.parent is not None
    assert (ran.parent.span_id, ran.parent.trace_id) == (asked.context.span_id, asked.context.trace_id)
    assert ran.context.trace_id == asked.context.trace_id
