"""Tasks of Airflow DAGs: their order, and the conditions under which their steps run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenuto.definitions.python_source import Reference

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


@dataclass(frozen=True, slots=True)
class Edge:
    """A step directly before another one, and the task behind it on the way: the other one, or one without a step."""

    task: DagTask
    next_id: str


def find_edges(task: DagTask) -> list[Edge]:
    found: dict[tuple[DagTask, str], Edge] = {}
    waiting, seen = [(each, task.id) for each in task.upstream], set[DagTask]()
    while waiting:
        other, next_id = waiting.pop()
        if other.step is not None:
            found[other, next_id] = Edge(other, next_id)
        elif other not in seen:
            seen.add(other)
            waiting += [(each, other.id) for each in other.upstream]
    return sorted(found.values(), key=lambda edge: (edge.task.line, edge.task.id, edge.next_id))


class Conditions:
    """The conditions of steps: trigger rules, branches and short circuits. Steps are added in the order of groups."""

    def __init__(self, dag: Dag, defaults: Mapping[str, Any]) -> None:
        self.found: dict[DagTask, str] = {}
        """Steps with a condition; they may be skipped."""
        self._rules = {task: trigger_rule({**defaults, **task.options}) for task in dag.tasks.values()}
        self.may_fail = {
            edge.task
            for task, rule in self._rules.items()
            if rule in RULES_AFTER_FAILURES and task.step is not None
            for edge in find_edges(task)
        }
        """Steps whose failure does not fail the execution, because a step after them runs nevertheless."""

    def add(self, task: DagTask) -> None:
        edges = find_edges(task)
        before = list(dict.fromkeys(edge.task for edge in edges))
        uncertain = [each for each in before if each in self.found or each in self.may_fail]
        parts = [part for edge in edges if (part := self._choice(edge))]
        parts = [_any(parts)] if len({edge.task for edge in edges if self._choice(edge)}) == 1 and parts else parts
        match self._rules[task]:
            case "all_success" | None:
                parts += [f"{step_reference(each)}.succeeded" for each in uncertain]
            case "none_failed":
                parts += [f"not {step_reference(each)}.failed" for each in before if each in self.may_fail]
            case "none_failed_min_one_success" | "none_failed_or_skipped":
                parts += [f"not {step_reference(each)}.failed" for each in before if each in self.may_fail]
                if uncertain and len(uncertain) == len(before):
                    parts.append(_any([f"{step_reference(each)}.succeeded" for each in before]))
            case "one_failed":
                parts.append(_any([f"{step_reference(each)}.failed" for each in before]))
            case "all_failed":
                parts += [f"{step_reference(each)}.failed" for each in before]
            case "one_success":
                parts.append(_any([f"{step_reference(each)}.succeeded" for each in before]))
            case "none_skipped":
                parts += [f"not {step_reference(each)}.skipped" for each in before if each in self.found]
            case _:  # all_done, or a rule that is reported
                pass
        if condition := " and ".join(dict.fromkeys(part for part in parts if part)):
            self.found[task] = condition

    def _choice(self, edge: Edge) -> str:
        """Return the condition under which a branch or short circuit lets the next task run."""
        if edge.task.kind in BRANCHES:
            return f"{step_reference(edge.task)}.output == {json.dumps(edge.next_id)}"
        return f"{step_reference(edge.task)}.output" if edge.task.kind in SHORT_CIRCUITS else ""


def _any(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})" if parts else ""


def trigger_rule(options: Mapping[str, Any]) -> str | None:
    """Return the trigger rule of a task; None if it is not in the file."""
    rule = options.get("trigger_rule", "all_success")
    return rule.last_name.lower() if isinstance(rule, Reference) else rule if isinstance(rule, str) else None
