"""Obstacles: why an enabled schedule or manifest does not run on its own, and what helps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from shlex import quote
from typing import Literal

DefinitionKind = Literal["schedule", "manifest"]


class ObstacleKind(StrEnum):
    DEAD_LETTER = "dead_letter"
    """A run of the manifest is an open dead letter, and the manifest is blocked by it."""
    DEPENDENCY_DISABLED = "dependency_disabled"
    """The manifest runs after another one, which is disabled."""
    GROUP_DISABLED = "group_disabled"
    """The group of the manifest is disabled."""
    NOT_DECLARED = "not_declared"
    """It was declared in code, and no running app declares it any more."""
    NO_SCHEDULER = "no_scheduler"
    """No scheduler is alive."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why a schedule or manifest does not run on its own, or runs although its code is gone."""

    kind: ObstacleKind
    subject: str | None = None
    """Id of the dead letter, or name of the dependency or group."""


_LABELS = {
    ObstacleKind.DEAD_LETTER: "blocked by a dead letter",
    ObstacleKind.DEPENDENCY_DISABLED: "waits for {subject}, which is disabled",
    ObstacleKind.GROUP_DISABLED: "group {subject} is disabled",
    ObstacleKind.NOT_DECLARED: "not declared by any running app",
    ObstacleKind.NO_SCHEDULER: "no scheduler is running",
}


def describe_obstacle(obstacle: Obstacle) -> str:
    """Return a short text for lists."""
    return _LABELS[obstacle.kind].format(subject=obstacle.subject)


def obstacle_remedy(obstacle: Obstacle, definition: DefinitionKind, key: str) -> str:
    """Return the command that helps."""
    subject = quote(obstacle.subject or "")
    match obstacle.kind:
        case ObstacleKind.DEAD_LETTER:
            resolve = f"tenuto dead-letter retry {subject}, or tenuto dead-letter acknowledge {subject}"
            return f"{resolve}; to never block it: tenuto manifest edit {quote(key)} --on-dead-letter continue"
        case ObstacleKind.DEPENDENCY_DISABLED:
            return f"tenuto manifest enable {subject}"
        case ObstacleKind.GROUP_DISABLED:
            return f"tenuto manifest group {subject} --enable"
        case ObstacleKind.NOT_DECLARED:
            return f"start the app that declares it, or tenuto {definition} delete {quote(key)}"
        case ObstacleKind.NO_SCHEDULER:
            return "tenuto scheduler --app MODULE:OBJECT, or tenuto up"
