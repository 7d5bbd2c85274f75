"""Comparison of the tables with the model; every difference is described."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.state_machine.actions import Snapshot
from tests.state_machine.timetables import ScheduleModels
from tests.state_machine.world import ActivityModel, ExecutionModel, TaskModel, World


def differences(seen: Snapshot, world: World, calendar: ScheduleModels) -> list[str]:
    """Return the differences between the tables and the model."""
    return [
        *_different(
            "task",
            {row["id"]: _task_row(row) for row in seen.tasks},
            {id: _task_expected(w) for id, w in world.tasks.items()},
        ),
        *_different_counts("record", Counter(_activity_row(row) for row in seen.records), Counter(world.activities)),
        *_different(
            "execution",
            {row["id"]: _execution_row(row) for row in seen.runs},
            {id: _execution_expected(r) for id, r in world.executions.items()},
        ),
        *_different_counts(
            "ledger", Counter(_ledger_row(row) for row in seen.ledger), Counter(_ledger_expected(calendar))
        ),
        *_different(
            "schedule",
            {row["name"]: (row["enabled"], row["next_run_at"]) for row in seen.schedules},
            {name: (table.enabled, table.next_run_at) for name, table in calendar.schedules.items()},
        ),
        *_different("count", seen.counts, {"dead_letters": world.dead_letters, "repairs": 0}),
        *_exceeded_limits(seen),
    ]


def _task_row(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("state", "queue", "run_at", "attempt", "failures", "losses", "fence", "unique_key", "limit_key")
    values = {name: row[name] for name in kept}
    return values | {
        "worker": row["worker_id"],
        "cancel_requested": row["cancel_at"] is not None,
        "execution": row["execution_id"],
        "group": row["group_index"],
        "batch": row["batch_id"],
    }


def _task_expected(work: TaskModel) -> dict[str, Any]:
    names = (
        "state", "queue", "run_at", "attempt", "failures", "losses", "fence", "unique_key", "limit_key", "worker",
        "cancel_requested", "execution", "group", "batch",
    )  # fmt: skip
    return {name: getattr(work, name) for name in names}


def _activity_row(row: Mapping[str, Any]) -> ActivityModel:
    values = {name: value for name, value in row.items() if name != "task_id"}
    return ActivityModel(**{**values, "task": row["task_id"], "reason": row["reason"] or ""})


def _execution_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["state"], row["current_group"], row["ended_at"] is not None, row["paused_at"] is not None


def _execution_expected(run: ExecutionModel) -> tuple[Any, ...]:
    return run.state, run.current_group, run.has_ended, run.is_paused


def _ledger_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["schedule_name"], row["due_at"], row["origin"], row["decision"]


def _ledger_expected(calendar: ScheduleModels) -> list[tuple[Any, ...]]:
    return [(entry.schedule, entry.due_at, entry.origin, entry.decision) for entry in calendar.ledger]


def _different(what: str, found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> list[str]:
    problems = [f"{what} {key}: unexpected" for key in found.keys() - wanted.keys()]
    problems += [f"{what} {key}: missing" for key in wanted.keys() - found.keys()]
    for key in found.keys() & wanted.keys():
        if found[key] == wanted[key]:
            continue
        if isinstance(found[key], dict):
            parts = [
                f"{n} {found[key][n]!r} instead of {wanted[key][n]!r}"
                for n in wanted[key]
                if found[key][n] != wanted[key][n]
            ]
            problems.append(f"{what} {key}: {'; '.join(parts)}")
        else:
            problems.append(f"{what} {key}: {found[key]} instead of {wanted[key]}")
    return problems


def _different_counts(what: str, found: Counter[Any], wanted: Counter[Any]) -> list[str]:
    return [f"{what}: too many of {each}" for each in found - wanted] + [
        f"{what}: too few of {each}" for each in wanted - found
    ]


def _exceeded_limits(seen: Snapshot) -> list[str]:
    """A limit key never has more unexpired leases than allowed, independent of the model."""
    running = Counter(row["limit_key"] for row in seen.tasks if row["state"] == "running" and row["limit_key"])
    most = {row["limit_key"]: row["limit_max"] for row in seen.tasks if row["limit_key"]}
    expired = {row["limit_key"] for row in seen.tasks if row["state"] == "running" and _has_ended(row)}
    return [
        f"key {key}: {count} running, {most[key]} allowed"
        for key, count in running.items()
        if count > most[key] and key not in expired
    ]


def _has_ended(row: Mapping[str, Any]) -> bool:
    return bool(row["lease_until"] < row["claimed_at"])
