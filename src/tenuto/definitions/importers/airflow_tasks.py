"""Tasks of Airflow DAGs: their order, and the conditions under which their steps run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from tenuto.definitions.importers.python_source import Reference
from tenuto.model.definitions.step_expressions import MAX_CONDITION_LENGTH

RULES_OF_SUCCESS = frozenset({"all_success", "none_failed", "none_failed_min_one_success"})
"""Trigger rules that hold when all earlier tasks have succeeded: the condition under which a step starts."""
RULES_AFTER_FAILURES = frozenset({"all_done", "one_failed", "all_failed", "one_success", "none_skipped"})
"""Trigger rules that may hold when an earlier task has failed."""
BRANCHES = frozenset({"task.branch", "BranchPythonOperator"})
SHORT_CIRCUITS = frozenset({"task.short_circuit", "ShortCircuitOperator"})


@dataclass(slots=True, eq=False)
class DagTask:
    """A task of a DAG."""

    id: str
    line: int
    step: dict[str, Any] | None
    """Its step; none for a task that only orders others, or that has no equivalent."""
    options: dict[str, Any]
    upstream: set[DagTask] = field(default_factory=set)
    kind: str = ""
    """The operator or decorator whose output decides which tasks run after it."""


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The result of a task, or a part of it, as the argument of another task."""

    task: DagTask
    parts: tuple[str | int, ...] = ()

    def to_reference(self) -> str:
        parts = "".join(
            f".{part}" if isinstance(part, str) and _is_identifier(part) else f"[{json.dumps(part)}]"
            for part in self.parts
        )
        return f"${{{step_reference(self.task)}.output{parts}}}"


def step_reference(task: DagTask) -> str:
    return f"steps.{task.id}" if _is_identifier(task.id) else f"steps[{json.dumps(task.id)}]"


def _is_identifier(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text) is not None


@dataclass(slots=True, eq=False)
class Dag:
    """A DAG, with its tasks in the order of the source."""

    name: str
    line: int
    options: dict[str, Any]
    tasks: dict[str, DagTask] = field(default_factory=dict)


def find_edges(task: DagTask) -> list[DagTask]:
    """Return the steps directly before a task; tasks without a step are looked through."""
    found, seen, waiting = set[DagTask](), set[DagTask](), [*task.upstream]
    while waiting:
        other = waiting.pop()
        if other.step is not None:
            found.add(other)
        elif other not in seen:
            seen.add(other)
            waiting += other.upstream
    return sorted(found, key=lambda each: (each.line, each.id))


class CircularOrder(Exception):
    """Tasks stand before themselves."""


class ConditionTooLong(Exception):
    """No step can have the condition of a task."""

    def __init__(self, task: DagTask) -> None:
        super().__init__(task.id)
        self.task = task


Truth = bool | str
"""A condition, or whether it always or never holds."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Conditions under which a task has succeeded, has failed, or was skipped."""

    succeeded: Truth
    failed: Truth
    skipped: Truth


class Conditions:
    """The conditions of steps: trigger rules, branches and short circuits.

    A task without a step, such as an `EmptyOperator`, has no state at run time: its state is derived from the states of
    the tasks before it, by its own trigger rule.
    """

    def __init__(self, dag: Dag, defaults: Mapping[str, Any]) -> None:
        self.found: dict[DagTask, str] = {}
        """Steps with a condition; they may be skipped."""
        self._rules = {task: trigger_rule({**defaults, **task.options}) for task in dag.tasks.values()}
        self.may_fail = {
            each for task, rule in self._rules.items() if rule in RULES_AFTER_FAILURES for each in find_edges(task)
        }
        """Steps whose failure does not fail the execution, because a task after them runs nevertheless."""
        self._outcomes: dict[DagTask, _Outcome] = {}
        self._ancestors: dict[DagTask, set[DagTask]] = {}
        self._downstream: dict[DagTask, list[DagTask]] = {}
        for task in dag.tasks.values():
            for other in task.upstream:
                self._downstream.setdefault(other, []).append(task)
        try:
            order = list(TopologicalSorter({task: task.upstream for task in dag.tasks.values()}).static_order())
        except CycleError:
            raise CircularOrder from None
        for task in order:
            self._ancestors[task] = task.upstream.union(*(self._ancestors[each] for each in task.upstream))
        for task in order:
            self._add(task)

    def _add(self, task: DagTask) -> None:
        before = sorted(task.upstream, key=lambda each: (each.line, each.id))
        condition = _all([*self._choices(task), self._rule_holds(task, before)])
        if isinstance(condition, str) and len(condition) > MAX_CONDITION_LENGTH:
            raise ConditionTooLong(task)
        if task.step is None:
            failed: Truth = False
            if self._rules[task] not in RULES_AFTER_FAILURES:
                failed = _any([self._outcomes[each].failed for each in before])
            self._outcomes[task] = _Outcome(condition, failed, _all([_not(condition), _not(failed)]))
            return
        name = step_reference(task)
        if condition is not True:
            first = step_reference((find_edges(task) or [task])[0])
            self.found[task] = condition or f"{first}.succeeded and {first}.failed"
        failed = f"{name}.failed" if task in self.may_fail else False
        skipped: Truth = f"{name}.skipped" if task in self.found else False
        self._outcomes[task] = _Outcome(f"{name}.succeeded" if failed or skipped else True, failed, skipped)

    def _rule_holds(self, task: DagTask, before: Sequence[DagTask]) -> Truth:
        outcomes = [self._outcomes[each] for each in before]
        if not outcomes:
            return True
        succeeded, failed = [each.succeeded for each in outcomes], [each.failed for each in outcomes]
        match self._rules[task]:
            case "all_success" | None:
                return _all(succeeded)
            case "none_failed":
                return _all([_not(each) for each in failed])
            case "none_failed_min_one_success" | "none_failed_or_skipped":
                return _all([*(_not(each) for each in failed), _any(succeeded)])
            case "one_failed":
                return _any(failed)
            case "all_failed":
                return _all(failed)
            case "one_success":
                return _any(succeeded)
            case "none_skipped":
                return _all([_not(each.skipped) for each in outcomes])
            case _:  # all_done, or a rule that is reported
                return True

    def _choices(self, task: DagTask) -> list[Truth]:
        """Return the conditions under which the branches and short circuits before a task let it run."""
        return [
            _any([choice, _not(self._outcomes[other].succeeded)])
            for other in sorted(self._ancestors[task], key=lambda each: (each.line, each.id))
            if (choice := self._choice(other, task))
        ]

    def _choice(self, other: DagTask, task: DagTask) -> str:
        if other.step is None:
            return ""
        is_direct = other in task.upstream
        if other.kind in BRANCHES and is_direct:
            # Airflow does not skip a task that also stands after the chosen one.
            others = [each for each in self._downstream[other] if each in self._ancestors[task]]
            return str(_any([f"{step_reference(other)}.output == {json.dumps(each.id)}" for each in [task, *others]]))
        if other.kind in SHORT_CIRCUITS:
            # Without all_success, a task that is not directly after it would run; Airflow skips it nevertheless.
            is_skipped_whatever_its_rule = other.options.get("ignore_downstream_trigger_rules") is not False
            if is_direct or (is_skipped_whatever_its_rule and self._rules[task] not in ("all_success", None)):
                return f"{step_reference(other)}.output"
        return ""


def _all(parts: Sequence[Truth]) -> Truth:
    if any(part is False for part in parts):
        return False
    texts = list(dict.fromkeys(str(part) for part in parts if part is not True))
    return " and ".join(texts) if texts else True


def _any(parts: Sequence[Truth]) -> Truth:
    if any(part is True for part in parts):
        return True
    texts = list(dict.fromkeys(str(part) for part in parts if part is not False))
    if len(texts) < 2:
        return texts[0] if texts else False
    return f"({' or '.join(f'({text})' if ' and ' in text else text for text in texts)})"


def _not(part: Truth) -> Truth:
    if isinstance(part, bool):
        return not part
    is_single = re.search(r" (and|or|==) ", part) is None
    return f"not {part}" if is_single and not part.startswith("not ") else f"not ({part})"


def trigger_rule(options: Mapping[str, Any]) -> str | None:
    """Return the trigger rule of a task; None if it is not in the file."""
    rule = options.get("trigger_rule", "all_success")
    return rule.last_name.lower() if isinstance(rule, Reference) else rule if isinstance(rule, str) else None
