"""Reads which metrics and labels a PromQL query uses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser
from promql_parser import AggregateExpr, Expr, MatchOp, VectorSelector


@dataclass(frozen=True)
class MetricUse:
    """A selector of a query."""

    name: str
    equal: dict[str, str]
    """Labels and the values that they must have."""
    labels: frozenset[str]
    """All labels by which the query selects or groups the metric."""


def metric_uses(query: str) -> list[MetricUse]:
    """Return the selectors of a query; an invalid query raises ValueError."""
    found: list[MetricUse] = []

    def collect(node: Expr, groups: frozenset[str]) -> None:
        if isinstance(node, AggregateExpr) and node.modifier is not None:
            groups |= frozenset(node.modifier.labels)
        if isinstance(node, VectorSelector):
            matchers = node.matchers.matchers
            assert node.name is not None, query
            found.append(
                MetricUse(
                    node.name,
                    {each.name: each.value for each in matchers if each.op == MatchOp.Equal},
                    groups | {each.name for each in matchers},
                )
            )
        for child in _children(node):
            collect(child, groups)

    collect(promql_parser.parse(query), frozenset())
    return found


def _children(node: Expr) -> Iterator[Expr]:
    for name in ("expr", "lhs", "rhs", "vector_selector"):
        if isinstance(child := getattr(node, name, None), Expr):
            yield child
    arguments = getattr(node, "args", None)
    yield from (each for each in (arguments or ()) if isinstance(each, Expr))
