"""The sizing table is the one that `benchmarks.sizing` computes, and a simulated day agrees with it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import page, sizing
from benchmarks.bottlenecks import Use, find_bottleneck
from benchmarks.sizing import COSTS, PLANNING, STEPS, TARGET_USE, Costs, Load, arrivals, plan, simulate_day

LOADS = [load for load, _ in STEPS]


def test_sizing_page_has_the_computed_table_and_the_planned_costs() -> None:
    text = page.SIZING.read_text()
    assert f"\n{sizing.render_table()}\n" in text, "run scripts/bench page"
    assert f"\n{sizing.render_costs()}\n" in text, "run scripts/bench page"


def test_costs_come_from_the_saved_measurement_rounded_up(tmp_path: Path) -> None:
    figures = {
        "cost of a task, WAL to enqueue it alone": 912.0,
        "cost of a task, WAL to run it": 1_201.0,
        "cost of a task, disk for its record": 1_500.0,
        "cost of a task, CPU of the database to enqueue it alone": 0.151,
        "cost of a task, CPU of the database to run it": 0.1,
        "cost of a task, CPU of the worker": 0.101,
        "connections of a busy worker": 5.0,
    }
    file = tmp_path / "scale.json"
    assert sizing.load_costs(file) == PLANNING
    assert "assumed: no measurement" in sizing.render_costs(PLANNING)
    file.write_text(json.dumps({"results": [{"case": name, "tenuto": figure} for name, figure in figures.items()]}))
    costs = sizing.load_costs(file)
    assert costs == Costs(wal_bytes=2_200, record_bytes=1_500, database_ms=0.26, worker_ms=0.11, connections=5)
    assert "rounded up from the last measurement" in sizing.render_costs(costs)
    assert plan(Load(10_000_000), costs).wal_gigabytes_per_day == pytest.approx(22)


def test_costs_name_cases_that_the_benchmark_has() -> None:
    source = (Path(sizing.__file__).parent / "scale.py").read_text(encoding="utf-8")
    for cases in sizing._CASES.values():
        for case in cases:
            assert f'self._add("{case}"' in source


def test_callers_that_wait_for_slow_commits_enqueue_later() -> None:
    load = LOADS[-1]
    slow = simulate_day(load, plan(load), replace(COSTS, commit_ms=10.0))
    assert slow.busiest_commits == pytest.approx(1)
    assert simulate_day(load, plan(load)).busiest_commits < 0.5


@pytest.mark.parametrize("days", [1, 31])
def test_records_are_kept_for_the_retention_and_one_partition(days: int) -> None:
    load = Load(1_000_000, retention_days=7, partition_days=days)
    assert plan(load).record_gigabytes == pytest.approx((7 + days) * 1e6 * COSTS.record_bytes / 1e9)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.tasks_per_day:,}")
def test_simulated_day_confirms_the_planned_installation(load: Load) -> None:
    installation = plan(load)
    day = simulate_day(load, installation)
    assert day.finished == pytest.approx(load.tasks_per_day)
    assert day.longest_wait_minutes == 0
    assert max(day.busiest_database, day.busiest_workers) <= TARGET_USE + 1e-9
    assert day.wal_gigabytes == pytest.approx(installation.wal_gigabytes_per_day * installation.databases)
    outage = simulate_day(load, installation, outage_minutes=30)
    assert outage.finished == pytest.approx(load.tasks_per_day)
    assert outage.longest_wait_minutes >= 30
    assert 30 <= outage.backlog_minutes <= 60, "the reserve catches up within the time of the outage"


def test_simulated_day_shows_what_is_too_small() -> None:
    load = LOADS[-1]
    installation = plan(load)
    few_workers = simulate_day(load, replace(installation, workers=installation.workers // 3))
    assert few_workers.busiest_workers == pytest.approx(1)
    assert few_workers.longest_wait_minutes > 10
    slow_database = simulate_day(load, replace(installation, databases=1, database_cores=1))
    assert slow_database.busiest_database == pytest.approx(1)
    assert slow_database.backlog_minutes > 10


def test_tasks_of_a_day_arrive_in_a_wave_with_the_planned_peak() -> None:
    load = Load(1_440_000)
    by_minute = [arrivals(load, minute) for minute in range(sizing.DAY_MINUTES)]
    assert sum(by_minute) == pytest.approx(load.tasks_per_day)
    assert max(by_minute) == by_minute[sizing.NOON] == pytest.approx(1000 * sizing.PEAK_FACTOR)
    assert min(by_minute) > 0


@pytest.mark.parametrize(
    ("use", "busiest", "waits", "expected"),
    [
        (Use(10, 12, 6, cores=2), 12, {}, "CPU: processes 60%, database 30%"),
        (Use(10, 9, 2, cores=8), 9, {"IO:WalSync": 900}, "CPU of the process: one core"),
        (Use(10, 2, 2, cores=2), 1, {"IO:WalSync": 30, "LWLock:WALWrite": 40, "Client:X": 900}, "commits to disk"),
        (Use(10, 2, 2, cores=2), 1, {"Lock:object": 60}, "the lock of NOTIFY"),
        (Use(10, 2, 2, cores=2), 1, {"Lock:object": 40}, "slots: the jobs wait"),
        (Use(10, 8, 2, cores=2), 4, {}, "CPU: processes 40%, database 10%"),
    ],
)  # fmt: skip
def test_bottleneck_is_what_was_used_or_waited_for_most(
    use: Use, busiest: float, waits: dict[str, int], expected: str
) -> None:
    assert find_bottleneck(use, busiest, Counter(waits), sample_count=100) == expected
