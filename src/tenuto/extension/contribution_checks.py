"""Checks of the values that extensions contribute: their types, and the names that belong to an extension.

A value is checked where its extension can be blamed for it. Code that uses it later need not expect errors in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tenuto.errors import Invalid
from tenuto.extension.contract import (
    CORE_LISTS,
    AuditAction,
    DefinitionList,
    Event,
    EventTopics,
    Extension,
    FoundObject,
    LabelledValue,
    Metric,
    MetricSource,
    Page,
    Panel,
    Retention,
    RouterEntry,
    SearchSource,
)
from tenuto.jobs.step_kind import StepKind
from tenuto.model.access.redirect_paths import is_page_path
from tenuto.service.service_protocol import Service

T = TypeVar("T")

_METRIC_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LIST_NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_values(extension: Extension, values: Iterable[object], kind: type[T], *, owns_names: bool = True) -> list[T]:
    """Return the contributed values; raise an error if one has another type or a name that is not the extension's.

    ``owns_names`` is False for extensions of Tenuto itself, whose names have no prefix.
    """
    checked: list[T] = []
    for value in values:
        _expect(isinstance(value, kind), kind.__name__, value)
        assert isinstance(value, kind)
        if kind in _FIELD_CHECKS:
            _FIELD_CHECKS[kind](value)
        if owns_names and kind in _NAME_CHECKS:
            _NAME_CHECKS[kind](extension.name, value)
        checked.append(value)
    return checked


def check_router(router: T) -> T:
    """Return a router; raise an error that names a route without a role, which the web service leaves out."""
    for route in getattr(router, "routes", ()):
        if getattr(route, "required_role", None) is None and hasattr(route, "path"):
            raise Invalid(
                f"the route {route.path} declares no role",
                code="extension.route.no_role",
                remedy="create the router with route_class=ApiRoute, and give every route a parameter with requires(…)",
            )
    return router


def check_metric_values(
    source: MetricSource, values: Mapping[str, Sequence[LabelledValue]]
) -> dict[Metric, list[LabelledValue]]:
    """Return the loaded values of each metric; raise an error if they do not fit its labels."""
    found: dict[Metric, list[LabelledValue]] = {}
    for metric in source.metrics:
        found[metric] = []
        for labels, value in values.get(metric.name, ()):
            if len(labels) != len(metric.labels) or not all(isinstance(label, str) for label in labels):
                raise Invalid(
                    f"the metric {metric.name} has the labels {metric.labels!r}, but a value has {labels!r}",
                    code="extension.metric.labels",
                    remedy="return a text for each label of the metric",
                )
            found[metric].append((tuple(labels), float(value)))
    return found


def _expect(is_met: bool, expected: str, value: object) -> None:
    if not is_met:
        raise Invalid(
            f"expected {expected}, not {value!r:.80}",
            code="extension.contribution.invalid",
            remedy="correct the extension, or upgrade it to a version for this version of Tenuto",
        )


def check_service(service: Service) -> Service:
    """Return a background service; raise an error if it has no name, start or stop. ``is_ready`` may fail before the
    start, so it is not read here."""
    for method in ("start", "stop"):
        _expect(callable(getattr(service, method, None)), f"a service with the method {method}", service)
    _expect(isinstance(getattr(service, "name", None), str), "a service with a name", service)
    return service


def _check_retention(retention: Retention) -> None:
    _expect(isinstance(retention.name, str), "a text as Retention.name", retention.name)
    _expect(callable(retention.delete_batch), "a function as Retention.delete_batch", retention.delete_batch)
    is_function = retention.cutoff is None or callable(retention.cutoff)
    _expect(is_function, "a function or None as Retention.cutoff", retention.cutoff)


def _check_topics(topics: EventTopics) -> None:
    _expect(_is_texts(topics.topics), "a tuple of texts as EventTopics.topics", topics.topics)
    _expect(callable(topics.create_source), "a function as EventTopics.create_source", topics.create_source)


def _check_event(event: Event) -> None:
    _expect(isinstance(event.topic, str), "a text as Event.topic", event.topic)


def _check_metrics(source: MetricSource) -> None:
    _expect(isinstance(source.metrics, tuple | list), "a tuple as MetricSource.metrics", source.metrics)
    _expect(callable(source.load), "a function as MetricSource.load", source.load)
    for metric in source.metrics:
        _expect(isinstance(metric, Metric), "Metric", metric)
        _expect(
            isinstance(metric.name, str) and bool(_METRIC_NAME.fullmatch(metric.name)), "a metric name", metric.name
        )
        _expect(metric.kind in ("counter", "gauge"), "'counter' or 'gauge' as Metric.kind", metric.kind)
        _expect(isinstance(metric.help, str) and "\n" not in metric.help, "one line as Metric.help", metric.help)
        _expect(_is_texts(metric.labels), "a tuple of texts as Metric.labels", metric.labels)


def _check_list(definition_list: DefinitionList[Any]) -> None:
    name = definition_list.name
    _expect(isinstance(name, str) and bool(_LIST_NAME.fullmatch(name)), "a name as DefinitionList.name", name)
    if name in CORE_LISTS:
        raise Invalid(
            f"the list {name!r} of definition files belongs to Tenuto",
            code="extension.list.reserved",
            remedy="rename the list of the extension",
        )


def _check_router(router: RouterEntry) -> None:
    _expect(isinstance(router.target, str), "a text as RouterEntry.target", router.target)


_PAGE_PATH = re.compile(r"(?:[a-z0-9_-]+|\{[a-z_]+\})(?:/(?:[a-z0-9_-]+|\{[a-z_]+\}))*|")
_PLACES = ("overview", "execution", "task", "schedule", "manifest")
_TARGET = re.compile(r"[\w.]+:\w+")


def _check_page(page: Page) -> None:
    is_path = isinstance(page.path, str) and bool(_PAGE_PATH.fullmatch(page.path))
    _expect(is_path, "a path such as 'items/{name}' as Page.path", page.path)
    _check_view("Page", page)
    _expect(_is_texts(page.query), "a tuple of texts as Page.query", page.query)


def _check_panel(panel: Panel) -> None:
    is_place = panel.place in _PLACES or str(panel.place).startswith("step:")
    _expect(is_place, f"one of {', '.join(_PLACES)} or step:KIND as Panel.place", panel.place)
    _check_view("Panel", panel)


def _check_view(kind: str, view: Page | Panel) -> None:
    _expect(isinstance(view.title, str) and bool(view.title), f"a text as {kind}.title", view.title)
    is_target = isinstance(view.load, str) and bool(_TARGET.fullmatch(view.load))
    _expect(is_target, f"'module:function' as {kind}.load", view.load)
    is_template = isinstance(view.template, str) and ".." not in view.template and not view.template.startswith("/")
    _expect(is_template, f"the name of a template as {kind}.template", view.template)
    _expect(_is_texts(view.topics), f"a tuple of texts as {kind}.topics", view.topics)


def _check_search(source: SearchSource) -> None:
    is_target = isinstance(source.load, str) and bool(_TARGET.fullmatch(source.load))
    _expect(is_target, "'module:function' as SearchSource.load", source.load)


def _check_found_object(found: FoundObject) -> None:
    _expect(isinstance(found.name, str) and isinstance(found.kind, str), "a FoundObject with texts", found)
    is_path = isinstance(found.path, str) and is_page_path(found.path)
    _expect(is_path, "a path of a page such as '/inventory/items/bolt' as FoundObject.path", found.path)


def _check_step_kind(kind: StepKind) -> None:
    _expect(isinstance(kind.name, str), "a text as StepKind.name", kind.name)
    _expect(callable(kind.create_job), "a function as StepKind.create_job", kind.create_job)


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)


_FIELD_CHECKS: Mapping[type, Callable[[Any], None]] = {
    Retention: _check_retention,
    EventTopics: _check_topics,
    Event: _check_event,
    MetricSource: _check_metrics,
    DefinitionList: _check_list,
    RouterEntry: _check_router,
    StepKind: _check_step_kind,
    Page: _check_page,
    Panel: _check_panel,
    SearchSource: _check_search,
    FoundObject: _check_found_object,
}


def _require_prefix(prefix: str, names: Iterable[str], noun: str) -> None:
    for name in names:
        if not name.startswith(prefix) or name == prefix:
            raise Invalid(
                f"the {noun} {name!r} does not begin with {prefix!r}",
                code="extension.prefix.missing",
                remedy=f"begin every {noun} of the extension with {prefix!r}",
            )


_NAME_CHECKS: Mapping[type, Callable[[str, Any], None]] = {
    EventTopics: lambda owner, each: _require_prefix(f"{owner}.", each.topics, "topic"),
    Event: lambda owner, each: _require_prefix(f"{owner}.", [each.topic], "topic"),
    MetricSource: lambda owner, each: _require_prefix(
        f"tenuto_{owner}_", [metric.name for metric in each.metrics], "metric"
    ),
    AuditAction: lambda owner, each: _require_prefix(f"{owner}.", [each.name], "audit action"),
    FoundObject: lambda owner, each: _require_prefix(f"/{owner}/", [each.path], "path"),
}
