"""OpenTelemetry spans from the caller that enqueues a task to the code that runs it.

This module does not import OpenTelemetry. If the program has not loaded and configured it, every function returns at
once. A task stores the trace as a W3C ``traceparent`` in its policy, so each of its attempts joins the caller's trace.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

TRACEPARENT_KEY = "traceparent"
_TRACEPARENT_PATTERN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def is_enabled() -> bool:
    """Return whether the program has configured a tracer provider."""
    return _trace_api() is not None


def current_traceparent() -> str | None:
    """Return the current span as a traceparent, or None."""
    api = _trace_api()
    return None if api is None else _format_traceparent(api.get_current_span())


def record_enqueue_span(task_name: str) -> str | None:
    """Record a span for an enqueued task and return its traceparent, or None without tracing."""
    api = _trace_api()
    if api is None:
        return None
    span = api.get_tracer("tenuto").start_span(f"enqueue {task_name}", kind=api.SpanKind.PRODUCER)
    parent = _format_traceparent(span)
    span.end()
    return parent


def add_traceparent(policy: str, parent: str | None) -> str:
    """Return the stored policy with the traceparent added, if there is one."""
    return policy if parent is None else json.dumps({**json.loads(policy), TRACEPARENT_KEY: parent})


@contextmanager
def attempt_span(name: str, policy: str, attempt_fields: Mapping[str, str | int]) -> Iterator[None]:
    """Run the code of an attempt in a span of the task's trace. The span records an exception and re-raises it."""
    api = _trace_api()
    if api is None:
        yield
        return
    attributes = {f"tenuto.{key}": value for key, value in attempt_fields.items()}
    tracer, parent = api.get_tracer("tenuto"), _parent_context(api, policy)
    with tracer.start_as_current_span(f"run {name}", parent, api.SpanKind.CONSUMER, attributes):
        yield


def _trace_api() -> Any:
    """Return the loaded `opentelemetry.trace`, or None if no provider is configured (the provider is a proxy)."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return api


def _format_traceparent(span: Any) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _parent_context(api: Any, policy: str) -> Any:
    """Return the trace context stored in a policy; None starts a new trace."""
    if TRACEPARENT_KEY not in policy:
        return None
    try:
        found = _TRACEPARENT_PATTERN.fullmatch(json.loads(policy)[TRACEPARENT_KEY])
    except (ValueError, TypeError, KeyError):
        return None
    if found is None:
        return None
    flags = api.TraceFlags(int(found[3], 16))
    context = api.SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return api.set_span_in_context(api.NonRecordingSpan(context)) if context.is_valid else None
