"""What a simulation plays: what is in force or would be once a file is applied, with what is active already."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tenuto import Actor, Step, Tenuto, every
from tenuto.definitions.schedule_definitions import declare, edit, set_enabled
from tenuto.definitions.versioned import ChangeContext
from tenuto.model.schedules import ScheduleDefinition
from tenuto.operations.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto.simulation.inputs import SimulationOptions, simulate_stored_schedules
from tenuto.simulation.simulator import Simulation
from tests.support.model_values import NOON
from tests.support.schedules import MINUTE, NAME, make_definition, make_change_context, run_schedule_now, create_schedule

FILE = ChangeContext(Actor.system("ci"), NOON, None, "file")
HOURLY, QUARTERLY = every("1h"), every("15m")


async def played(db: Database, *definitions: ScheduleDefinition, names: tuple[str, ...] = (), **given: Any) -> Simulation:
    start: datetime = given.pop("start", NOON + timedelta(seconds=1))
    return await simulate_stored_schedules(db, start, start + timedelta(hours=1), SimulationOptions(names, definitions, **given))


def runs(found: Simulation) -> list[str]:
    return [f"{run.due_at:%H:%M} {run.decision}" for run in found.runs]


async def test_what_an_operator_has_changed_is_played_as_it_is_in_force_while_the_file_says_nothing_new(
    db: Database,
) -> None:
    declared = make_definition(trigger=HOURLY)
    await declare(db, declared, FILE)
    await edit(db, NAME, make_definition(trigger=QUARTERLY), make_change_context(NOON))
    found = await played(db, declared)
    assert len(found.runs) == 4, "as the operator has it"
    assert f"kept as an operator changed it, and played so: {NAME}" in found.notes
    found = await played(db, make_definition(trigger=every("30m")))
    assert len(found.runs) == 2, "as the file has it, which says something new"
    assert not any("kept" in note for note in found.notes)


async def test_that_holds_for_a_file_read_without_its_app_too(app: Tenuto) -> None:
    @app.job(max_retries=7, queue="oven", timeout="1h")
    async def bake(loaves: list[int], kind: str = "rye") -> None: ...

    def declared(loaves: int) -> ScheduleDefinition:
        return schedule_definition(NAME, HOURLY, [Step("job", "bake", {"loaves": [loaves]}, rules={"max_retries": 2})])

    db = await app.open()
    await app.schedules.apply([declared(3)])
    present = (await app.schedules.get(NAME)).definition
    await app.schedules.edit(NAME, schedule_definition(NAME, QUARTERLY, list(present.plan.groups)))
    assert len((await played(db, declared(3))).runs) == 4
    assert len((await played(db, declared(4))).runs) == 1, "it says something new"


async def test_what_is_disabled_is_left_out_though_a_file_declares_it_unless_it_is_named(db: Database) -> None:
    spread = every("1h", jitter="30m")
    declared = make_definition(trigger=spread)
    await declare(db, declared, FILE)
    (as_it_runs,) = (await played(db, declared)).runs
    await set_enabled(db, NAME, make_change_context(NOON), enabled=False)
    found = await played(db, declared)
    assert found.runs == []
    assert f"disabled, and left out: {NAME}" in found.notes
    (named,) = (await played(db, declared, names=(NAME,))).runs
    assert named.due_at == as_it_runs.due_at, "it keeps its place within the jitter"
    found = await played(db, declared, seconds={NAME: 5.0})
    assert found.runs == [], "and how long it takes may be said all the same"


async def test_a_run_that_is_active_at_the_beginning_stands_in_the_way(db: Database) -> None:
    now = db.clock.now()
    await create_schedule(db, make_definition(trigger=every("10m", anchor=now)), now)
    await run_schedule_now(db, now=now)
    start = now + MINUTE
    found = await played(db, start=start, seconds={NAME: 1500.0})
    assert [run.decision for run in found.runs] == ["skipped", "skipped", "fired", "skipped", "skipped", "fired"]
    assert f"active at the beginning, and taken to last as long as usual: {NAME}" in found.notes
    found = await played(db, start=start, seconds={NAME: 1500.0}, slots={"default": 1})
    assert found.totals[0].fired == 2, "it is no run of the time that is played"
    found = await played(db, start=start + timedelta(days=1), seconds={NAME: 30.0})
    assert not any("active" in note for note in found.notes)
    found = await played(db, start=now - timedelta(days=1), seconds={NAME: 90_000.0})
    assert found.runs[0].decision == "fired", "it had not begun by then"
