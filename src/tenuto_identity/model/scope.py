"""Scope of sync rules: which objects a rule applies to, and when that must be evaluated again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tenuto_identity.model.explain import Trace, add_if
from tenuto_identity.model.expressions import ExpressionFailed, RuleClock, Variables
from tenuto_identity.model.rules import SyncRule


@dataclass(frozen=True, slots=True)
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
    )
    return ScopeResult(evaluation.is_true, evaluation.reevaluate_at)
