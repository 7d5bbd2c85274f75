"""Scope of sync rules: which objects a rule applies to, and when that must be evaluated again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenuto_identity.model.rules.expressions import ExpressionFailed, RuleClock, Variables
from tenuto_identity.model.rules.sync_rules import SyncRule
from tenuto_identity.model.sync.decision_trace import Trace, add_if
from tenuto_identity.model.value_class import value_class


@value_class
class ScopeResult:
    """Whether an object is in the scope of a rule."""

    in_scope: bool
    reevaluate_at: datetime | None = None
    """When a date comparison changes its result."""
    error: ExpressionFailed | None = None
    """The scope could not be evaluated. The object must stay as it is: neither in nor out of scope is known."""


_ALWAYS = ScopeResult(True)


def is_in_scope(rule: SyncRule, variables: Variables, now: datetime, *, trace: Trace | None = None) -> ScopeResult:
    """Return whether an object, given by its variables, is in the scope of a rule. Without a scope all objects are."""
    if rule.scope is None:
        add_if(trace, "scope", rule=rule.name, expression=None, in_scope=True)
        return _ALWAYS
    try:
        evaluation = rule.scope.evaluate(variables, RuleClock(now, rule.zone))
    except ExpressionFailed as error:
        add_if(trace, "scope", rule=rule.name, expression=rule.scope.text, error=str(error), inputs=error.inputs)
        return ScopeResult(False, None, error)
    add_if(
        trace,
        "scope",
        rule=rule.name,
        expression=rule.scope.text,
        inputs={name: variables[name] for name in sorted(rule.scope.names)},
        in_scope=evaluation.is_true,
        reevaluate_at=evaluation.reevaluate_at,
        terms=_evaluate_terms(rule, variables, now) if trace is not None else (),
    )
    return ScopeResult(evaluation.is_true, evaluation.reevaluate_at)


def _evaluate_terms(rule: SyncRule, variables: Variables, now: datetime) -> list[dict[str, Any]]:
    """Evaluate the terms of a scope one by one, for explanations."""
    assert rule.scope is not None
    found: list[dict[str, Any]] = []
    for term in rule.scope.terms():
        inputs = {name: variables[name] for name in sorted(term.names)}
        try:
            result: Any = term.evaluate(variables, RuleClock(now, rule.zone)).value
        except ExpressionFailed as error:
            result = str(error)
        found.append({"term": term.text, "inputs": inputs, "result": result})
    return found
