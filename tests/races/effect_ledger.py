"""Effects ledger: a record of the code that really ran, written by the jobs and not by the system under test.

Every job appends a line when its code begins and one when it ends, to a file shared by all processes. Instants come
from the monotonic clock of the machine, which all its processes share.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from uuid import UUID

FOREVER_NS = 2**63


@dataclass(frozen=True, slots=True)
class Effect:
    """One run of the code of one attempt."""

    task: UUID
    attempt: int
    fence: int
    pid: int
    group: str
    began_ns: int
    ended_ns: int | None
    """None if the process was killed before the code ended."""


class Ledger:
    """The ledger file. Each line is one short write, so that lines of several processes never mix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def close(self) -> None:
        os.close(self._descriptor)

    @contextmanager
    def effect(self, task: UUID, attempt: int, fence: int, group: str = "-") -> Iterator[None]:
        """Record the code of the block as an effect."""
        self._write(task, attempt, fence, group, "begins")
        try:
            yield
        finally:
            self._write(task, attempt, fence, group, "ends")

    def _write(self, task: UUID, attempt: int, fence: int, group: str, what: str) -> None:
        line = f"{task} {attempt} {fence} {os.getpid()} {group} {what} {time.monotonic_ns()}\n"
        os.write(self._descriptor, line.encode())

    def effects(self) -> list[Effect]:
        """Return all effects in the order in which they began."""
        began: dict[tuple[str, ...], int] = {}
        ended: dict[tuple[str, ...], int] = {}
        whole, _, _ = self.path.read_text(encoding="ascii").rpartition("\n")  # the last line may be incomplete
        for line in whole.splitlines():
            *key, what, instant = line.split()
            into = began if what == "begins" else ended
            assert tuple(key) not in into, f"one claim ran its code twice: {line}"
            into[tuple(key)] = int(instant)
        return [
            Effect(UUID(key[0]), int(key[1]), int(key[2]), int(key[3]), key[4], instant, ended.get(key))
            for key, instant in began.items()
        ]

    def begun_count(self) -> int:
        return self.path.read_bytes().count(b" begins ")

    def effects_of(self, task: UUID) -> list[Effect]:
        return [effect for effect in self.effects() if effect.task == task]


def overlaps(effects: Iterable[Effect], died: Mapping[int, int]) -> list[tuple[Effect, Effect]]:
    """Return pairs of effects of one task that overlap; ``died`` gives the last instant at which killed processes
    lived.
    """
    by_task: dict[UUID, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_task[effect.task].append(effect)
    found = []
    for spans in by_task.values():
        spans.sort(key=lambda effect: effect.began_ns)
        for first, second in pairwise(spans):
            end = first.ended_ns if first.ended_ns is not None else died.get(first.pid, FOREVER_NS)
            if second.began_ns < end:
                found.append((first, second))
    return found


def peak_concurrency(effects: Iterable[Effect], died: Mapping[int, int]) -> dict[str, int]:
    """Return for each group the greatest number of effects at the same time."""
    steps: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for effect in effects:
        end = effect.ended_ns if effect.ended_ns is not None else died.get(effect.pid, FOREVER_NS)
        steps[effect.group] += [(effect.began_ns, 1), (end, -1)]
    most = {}
    for group, changes in steps.items():
        changes.sort()
        running = highest = 0
        for _, change in changes:
            running += change
            highest = max(highest, running)
        most[group] = highest
    return most
