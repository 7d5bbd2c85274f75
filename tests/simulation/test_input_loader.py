"""Simulation inputs: stored schedules, given definitions and active runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tenuto import Actor, Step, Tenuto, every
from tenuto.definitions.schedule_definitions import declare, edit, set_enabled
from tenuto.definitions.versioned_definitions import ChangeContext
from tenuto.model.definitions.schedules import ScheduleDefinition
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto.simulation.input_loader import SimulationOptions, simulate_stored_schedules
from tenuto.simulation.simulator import Simulation
from tests.support.model_values import NOON
from tests.support.schedules import (
    MINUTE,
    NAME,
    create_schedule,
    make_change_context,
    make_definition,
    run_schedule_now,
)

FILE = ChangeContext(Actor.system("ci"), NOON, None, "file")
HOURLY, EVERY_QUARTER_HOUR = every("1h"), every("15m")


async def simulate(
    db: Database, *definitions: ScheduleDefinition, names: tuple[str, ...] = (), **given: Any
) -> Simulation:
    start: datetime = given.pop("start", NOON + timedelta(seconds=1))
    return await simulate_stored_schedules(
        db, start, start + timedelta(hours=1), SimulationOptions(names, definitions, **given)
    )


async def test_simulation_keeps_an_operators_change_if_the_file_is_unchanged(
    db: Database,
) -> None:
    declared = make_definition(trigger=HOURLY)
    await declare(db, declared, FILE)
    await edit(db, NAME, make_definition(trigger=EVERY_QUARTER_HOUR), make_change_context(NOON))
    found = await simulate(db, declared)
    assert len(found.runs) == 4, "the operator's change"
    assert f"simulated with the changes of an operator, which applying keeps: {NAME}" in found.notes
    found = await simulate(db, make_definition(trigger=every("30m")))
    assert len(found.runs) == 2, "the changed file"
    assert not any("operator" in note for note in found.notes)


async def test_simulation_of_a_file_without_app_keeps_an_operators_change(app: Tenuto) -> None:
    @app.job(max_attempts=7, queue="oven", timeout="1h")
    async def bake(loaves: list[int], kind: str = "rye") -> None: ...

    def declared(loaves: int) -> ScheduleDefinition:
        return schedule_definition(NAME, HOURLY, [Step("job", "bake", {"loaves": [loaves]}, rules={"max_attempts": 2})])

    db = await app.open()
    await app.schedules.apply([declared(3)])
    present = (await app.schedules.get(NAME)).definition
    await app.schedules.edit(NAME, schedule_definition(NAME, EVERY_QUARTER_HOUR, list(present.plan.groups)))
    assert len((await simulate(db, declared(3))).runs) == 4
    assert len((await simulate(db, declared(4))).runs) == 1, "the file has changed"


async def test_simulation_skips_disabled_schedules_unless_named(db: Database) -> None:
    spread = every("1h", jitter="30m")
    declared = make_definition(trigger=spread)
    await declare(db, declared, FILE)
    (enabled_run,) = (await simulate(db, declared)).runs
    await set_enabled(db, NAME, make_change_context(NOON), enabled=False)
    found = await simulate(db, declared)
    assert found.runs == []
    assert f"not simulated because disabled: {NAME}" in found.notes
    (named,) = (await simulate(db, declared, names=(NAME,))).runs
    assert named.due_at == enabled_run.due_at, "the jitter is the same"
    found = await simulate(db, declared, run_seconds={NAME: 5.0})
    assert found.runs == [], "a duration may be given for a disabled schedule"


async def test_simulation_considers_a_run_that_is_active_at_the_start(db: Database) -> None:
    now = db.clock.now()
    await create_schedule(db, make_definition(trigger=every("10m", anchor=now)), now)
    await run_schedule_now(db, now=now)
    start = now + MINUTE
    found = await simulate(db, start=start, run_seconds={NAME: 1500.0})
    assert [run.decision for run in found.runs] == ["skipped", "skipped", "fired", "skipped", "skipped", "fired"]
    assert f"active at the start, assumed to take the usual time: {NAME}" in found.notes
    found = await simulate(db, start=start, run_seconds={NAME: 1500.0}, slots={"default": 1})
    assert found.totals[0].fired == 2, "the active run is not counted"
    found = await simulate(db, start=start + timedelta(days=1), run_seconds={NAME: 30.0})
    assert not any("active" in note for note in found.notes)
    found = await simulate(db, start=now - timedelta(days=1), run_seconds={NAME: 90_000.0})
    assert found.runs[0].decision == "fired", "the run had not started then"
