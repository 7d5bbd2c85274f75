"""Traces from whoever asked for work to the code that does it, where a program uses OpenTelemetry.

Nothing is imported on its behalf: a program that has set OpenTelemetry up has it loaded, and without it every call here
comes back at once. A task carries the trace along in its policy, as a W3C ``traceparent``; so each of its attempts, in
whichever process, belongs to the trace of the one who asked. Nothing here decides anything, and nobody depends on it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

KEY = "traceparent"
_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def is_on() -> bool:
    """Whether the program has set up where its traces go."""
    return _api() is not None


def traceparent() -> str | None:
    """The span that is current here, for whoever goes on with it elsewhere; None if there is none."""
    api = _api()
    return None if api is None else _written(api.get_current_span())


def asked(for_what: str) -> str | None:
    """Somebody asks for work: a span of its own, on which the attempts follow; None if nothing is traced."""
    api = _api()
    if api is None:
        return None
    span = api.get_tracer("tenuto").start_span(f"enqueue {for_what}", kind=api.SpanKind.PRODUCER)
    parent = _written(span)
    span.end()
    return parent


def carrying(policy: str, parent: str | None) -> str:
    """A policy as stored that carries a trace along, if there is one."""
    return policy if parent is None else json.dumps({**json.loads(policy), KEY: parent})


@contextmanager
def running(name: str, policy: str, about: Mapping[str, str | int]) -> Iterator[None]:
    """A span around the code of an attempt, in the trace its task carries. What the code raises is noted and raised."""
    api = _api()
    if api is None:
        yield
        return
    attributes = {f"tenuto.{key}": value for key, value in about.items()}
    tracer, parent = api.get_tracer("tenuto"), _read(api, policy)
    with tracer.start_as_current_span(f"run {name}", parent, api.SpanKind.CONSUMER, attributes):
        yield


def _api() -> Any:
    """What the program has loaded and set up. Until it has, the provider is one that stands in for another."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or isinstance(api.get_tracer_provider(), api.ProxyTracerProvider):
        return None
    return api


def _written(span: Any) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _read(api: Any, policy: str) -> Any:
    """The context a policy carries; None, for a trace of its own, if it carries none that can be read."""
    if KEY not in policy:
        return None
    try:
        found = _FORM.fullmatch(json.loads(policy)[KEY])
    except (ValueError, TypeError, KeyError):
        return None
    if found is None:
        return None
    flags = api.TraceFlags(int(found[3], 16))
    context = api.SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True, trace_flags=flags)
    return api.set_span_in_context(api.NonRecordingSpan(context)) if context.is_valid else None
