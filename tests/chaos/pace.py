"""How much of a storm there is to be, and who may go on meanwhile: the load, the faults, or both. Counts come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SOME, TASKS_PER_KILL = 20, 15
"""Unless told otherwise: to kill those who have not yet come to work proves little."""
AHEAD = 0.05
"""By so much of the whole the load may be ahead of the faults, or they of it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much of it: until all that is said here has been reached."""

    seconds: float | None = 60.0
    tasks: int | None = None
    kills: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SoFar:
    """What there has been of it."""

    seconds: float = 0.0
    tasks: int = 0
    kills: int = 0
    every_fault_came: bool = False


class Pace:
    """Kills and tasks that are both counted come evenly; otherwise kills keep to a part of the tasks."""

    def __init__(self, wanted: Wanted, so_far: Callable[[], SoFar]) -> None:
        self._wanted = wanted
        self._so_far = so_far

    def is_over(self) -> bool:
        now = self._so_far()
        return (
            self._share_of_kills(now) >= 1
            and self._share_of_tasks(now) >= 1
            and now.seconds >= (self._wanted.seconds or 0)
            and now.every_fault_came
        )

    def faults_may_go_on(self) -> bool:
        now = self._so_far()
        tasks = self._share_of_tasks(now)
        if self._wanted.tasks and tasks >= 1 and not (now.every_fault_came and self._share_of_kills(now) >= 1):
            return True  # what has not come yet comes when all is asked for
        if self._both_are_counted:
            return tasks >= 1 or self._share_of_kills(now) <= tasks + AHEAD
        return now.kills <= SOME + now.tasks / TASKS_PER_KILL

    def load_may_go_on(self) -> bool:
        now = self._so_far()
        return not self._both_are_counted or self._share_of_tasks(now) <= self._share_of_kills(now) + AHEAD

    @property
    def _both_are_counted(self) -> bool:
        return bool(self._wanted.tasks and self._wanted.kills)

    def _share_of_kills(self, now: SoFar) -> float:
        return now.kills / self._wanted.kills if self._wanted.kills else 1.0

    def _share_of_tasks(self, now: SoFar) -> float:
        return now.tasks / self._wanted.tasks if self._wanted.tasks else 1.0
