"""OpenTelemetry spans from the caller that enqueues a task to the code that runs it.

This module does not import OpenTelemetry. If the program has not configured it, no span is recorded. A task stores the
trace as a W3C ``traceparent`` in its policy, so each of its attempts joins the trace of the caller. The trace of a
request with a ``traceparent`` is stored even if this process records no spans.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

TRACEPARENT_KEY = "traceparent"
_TRACEPARENT_PATTERN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_remote_parent: ContextVar[str | None] = ContextVar("tenuto_remote_parent", default=None)
"""The trace of the caller in another process, such as the client of a request."""


def is_enabled() -> bool:
    """Return whether the program has configured a tracer provider."""
    return _trace_api() is not None


def current_traceparent() -> str | None:
    """Return the current span, or the trace of the caller in another process, as a traceparent."""
    api = _trace_api()
    current = None if api is None else _format_traceparent(api.get_current_span())
    return current or _remote_parent.get()


@contextmanager
def remote_parent(traceparent: str | None) -> Iterator[None]:
    """Continue the trace of a caller in another process within the block, unless a span has begun here."""
    if traceparent is None or not _TRACEPARENT_PATTERN.fullmatch(traceparent):
        yield
        return
    token, api = _remote_parent.set(traceparent), _trace_api()
    try:
        span = None if api is None or _format_traceparent(api.get_current_span()) else _remote_span(api, traceparent)
        if api is None or span is None:
            yield
        else:
            with api.use_span(span):
                yield
    finally:
        _remote_parent.reset(token)


def record_enqueue_span(task_name: str) -> str | None:
    """Record a span for an enqueued task and return its traceparent. Without tracing, return that of the caller."""
    api = _trace_api()
    if api is None:
        return _remote_parent.get()
    span = api.get_tracer("tenuto").start_span(f"enqueue {task_name}", kind=api.SpanKind.PRODUCER)
    parent = _format_traceparent(span)
    span.end()
    return parent


def add_traceparent(policy: str, parent: str | None) -> str:
    """Return the stored policy with the traceparent added, if there is one."""
    return policy if parent is None else json.dumps({**json.loads(policy), TRACEPARENT_KEY: parent})


@contextmanager
def attempt_span(
    name: str,
    policy: str,
    attempt_fields: Mapping[str, str | int],
    redact: Callable[[str], str],
    find_stop_reason: Callable[[], str | None],
) -> Iterator[None]:
    """Run the code of an attempt in a span of the task's trace. The span records an exception, without secrets, and
    why the attempt was stopped."""
    api = _trace_api()
    if api is None:
        yield
        return
    attributes = {f"tenuto.{key}": value for key, value in attempt_fields.items()}
    tracer, parent = api.get_tracer("tenuto"), _parent_context(api, policy)
    with tracer.start_as_current_span(
        f"run {name}",
        parent,
        api.SpanKind.CONSUMER,
        attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except Exception as error:  # the code of the job may raise anything
            _record_error(api, span, error, redact)
            raise
        finally:
            if (reason := find_stop_reason()) is not None:
                span.set_status(api.StatusCode.ERROR, f"stopped: {reason}")


def _record_error(api: Any, span: Any, error: Exception, redact: Callable[[str], str]) -> None:
    try:
        message, stack = redact(str(error)), redact("".join(traceback.format_exception(error)))
    except Exception:  # noqa: BLE001 — the methods of the error are user code
        message = stack = "the error cannot be shown"
    attributes = {"exception.message": message, "exception.stacktrace": stack}
    span.record_exception(error, attributes=attributes)
    span.set_status(api.StatusCode.ERROR, f"{type(error).__name__}: {message}")


def trace_id_of(policy: str) -> str | None:
    """Return the id of the trace that a stored policy belongs to."""
    if TRACEPARENT_KEY not in policy:
        return None
    try:
        found = _TRACEPARENT_PATTERN.fullmatch(json.loads(policy)[TRACEPARENT_KEY])
    except (ValueError, TypeError, KeyError):
        return None
    return None if found is None else found[1]


def _trace_api() -> Any:
    """Return the loaded `opentelemetry.trace`, or None if no provider is configured (the provider is a proxy)."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if not hasattr(api, "get_tracer_provider"):  # not imported, or another thread is importing it
        return None
    if isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
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
        span = _remote_span(api, json.loads(policy)[TRACEPARENT_KEY])
    except (ValueError, TypeError, KeyError):
        return None
    return None if span is None else api.set_span_in_context(span)


def _remote_span(api: Any, traceparent: str) -> Any:
    """Return a span of another process; None if the traceparent is invalid."""
    found = _TRACEPARENT_PATTERN.fullmatch(traceparent)
    if found is None:
        return None
    flags = api.TraceFlags(int(found[3], 16))
    context = api.SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return api.NonRecordingSpan(context) if context.is_valid else None
