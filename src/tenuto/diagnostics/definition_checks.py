"""Checks of the doctor for enabled schedules and manifests that do not run on their own, or whose code is gone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tenuto.diagnostics.checks import MAX_DETAILS, list_details
from tenuto.extension import DoctorCheck, Examination
from tenuto.model.findings import Finding, Severity
from tenuto.model.obstacles import ObstacleKind, describe_obstacle, obstacle_remedy
from tenuto.store.reports.obstacles import list_stopped_definitions


@dataclass(frozen=True, slots=True)
class _ObstacleCheck:
    name: str
    kind: ObstacleKind
    passed: str
    failed: str
    meaning: str
    severity: Severity = Severity.WARNING


_CHECKS = (
    _ObstacleCheck(
        "manifest_blocked",
        ObstacleKind.DEAD_LETTER,
        "no manifest is blocked by a dead letter",
        "manifests are blocked by dead letters",
        "They do not run on their own until the dead letter is resolved.",
    ),
    _ObstacleCheck(
        "manifest_dependency_disabled",
        ObstacleKind.DEPENDENCY_DISABLED,
        "no manifest waits for a disabled one",
        "manifests wait for disabled ones",
        "They run after each success of a manifest that does not run.",
    ),
    _ObstacleCheck(
        "manifest_group_disabled",
        ObstacleKind.GROUP_DISABLED,
        "no group with enabled manifests is disabled",
        "groups with enabled manifests are disabled",
        "Their manifests do not run on their own until the group is enabled.",
        Severity.NOTE,
    ),
    _ObstacleCheck(
        "definition_not_declared",
        ObstacleKind.NOT_DECLARED,
        "every schedule and manifest from code is declared by a running app",
        "schedules or manifests from code are not declared by any running app",
        "They were renamed or removed in the code, or their app is not running; they keep firing.",
    ),
    _ObstacleCheck(
        "scheduler_missing",
        ObstacleKind.NO_SCHEDULER,
        "a scheduler runs for the enabled schedules and manifests",
        "no scheduler runs",
        "Schedules do not fire until a scheduler runs; then the misfire policy decides.",
    ),
)


def definition_checks() -> list[DoctorCheck]:
    """Return the checks in the order of the report."""
    return [DoctorCheck(check.name, partial(_run_check, check)) for check in _CHECKS]


async def _run_check(check: _ObstacleCheck, examination: Examination) -> Finding:
    stopped = await list_stopped_definitions(examination.database, per_kind=MAX_DETAILS + 1)
    found = [each for each in stopped if each.kind == check.kind]
    if not found:
        return Finding(check.name, check.passed, Severity.OK)
    details = [f"{each.definition} {each.key}: {describe_obstacle(each.obstacle)}" for each in found]
    first = found[0]
    remedy = obstacle_remedy(first.obstacle, first.definition, first.key)
    return Finding(check.name, check.failed, check.severity, list_details(details), check.meaning, remedy)
