"""Size of a chaos run, and whether load and faults may continue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_COUNT, TASKS_PER_KILL = 20, 15
"""Default ratio: killing workers that have not started to work proves little."""
MAX_LEAD = 0.05
"""Share of the whole by which the load may be ahead of the faults, or the faults ahead of the load."""


@dataclass(frozen=True, slots=True)
class RunSize:
    """Requested size of a run: it continues until all values are reached."""

    seconds: float | None = 60.0
    tasks: int | None = None
    kills: int | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    seconds: float = 0.0
    tasks: int = 0
    kills: int = 0
    every_fault_occurred: bool = False


class Pace:
    """Distributes kills and tasks evenly if both are counted; otherwise kills follow the number of tasks."""

    def __init__(self, wanted: RunSize, so_far: Callable[[], Progress]) -> None:
        self._wanted = wanted
        self._so_far = so_far

    def is_over(self) -> bool:
        now = self._so_far()
        return (
            self._kill_share(now) >= 1
            and self._task_share(now) >= 1
            and now.seconds >= (self._wanted.seconds or 0)
            and now.every_fault_occurred
        )

    def faults_may_continue(self) -> bool:
        now = self._so_far()
        tasks = self._task_share(now)
        if self._wanted.tasks and tasks >= 1 and not (now.every_fault_occurred and self._kill_share(now) >= 1):
            return True  # missing kinds of faults occur after all tasks are submitted
        if self._both_counted:
            return tasks >= 1 or self._kill_share(now) <= tasks + MAX_LEAD
        return now.kills <= DEFAULT_COUNT + now.tasks / TASKS_PER_KILL

    def load_may_continue(self) -> bool:
        now = self._so_far()
        return not self._both_counted or self._task_share(now) <= self._kill_share(now) + MAX_LEAD

    @property
    def _both_counted(self) -> bool:
        return bool(self._wanted.tasks and self._wanted.kills)

    def _kill_share(self, now: Progress) -> float:
        return now.kills / self._wanted.kills if self._wanted.kills else 1.0

    def _task_share(self, now: Progress) -> float:
        return now.tasks / self._wanted.tasks if self._wanted.tasks else 1.0
