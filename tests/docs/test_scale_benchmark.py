"""The benchmark `scale`, with few tasks: its parts still work, and its goals and costs name its cases."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.contender import Contender
from benchmarks.goals import GOALS
from benchmarks.queue_benchmarks import Size
from benchmarks.scale import JOBS, SCALE, WAYS, scale
from benchmarks.sizing import read_measured_costs
from tests.support.repetition_counts import THOROUGH


@dataclass(frozen=True)
class FewTasks(Size):
    """Counts small enough for a test."""

    def of(self, full: int, quick: int) -> int:
        return quick if quick < 10 else quick // 10

    def choose(self, full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[int, ...]:
        return full[1:2]  # eight queues, two processes


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(not THOROUGH, reason="takes about a minute: scripts/proofs runs it")
async def test_scale_benchmark_measures_every_goal_and_cost(server: str) -> None:
    contenders = [Contender(name, module, Path(sys.executable), server) for name, module in SCALE.items()]
    found = {each.name: each for each in await scale(contenders, FewTasks(1, quick=True))}
    for job in JOBS.values():
        for limits in ("with limits", "without limits"):
            assert found[f"{job}, 8 queues, {limits}, 2 processes"].figures["tenuto"][0] > 0
    assert found["enqueue, 20 callers over 4 processes"].figures.keys() == set(WAYS.values())
    result = [{"case": name, "tenuto": each.figures["tenuto"][0] or 0.01} for name, each in found.items()]
    assert read_measured_costs({"results": result}).wal_bytes > 100, "few tasks may use no tick of the CPU, but WAL"
    named = {goal.case for goal in GOALS if goal.benchmark == "scale"}
    if not any("PgBouncer" in name for name in found):  # it is not installed
        named = {case for case in named if "connections .*" not in case and "PgBouncer" not in case}
    assert {case for case in named if not any(re.match(case, name) for name in found)} == set()
