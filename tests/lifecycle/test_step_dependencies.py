"""Steps that depend on earlier ones by values, conditions and edges: advancement in the transaction that ends a step.

Every test runs with and without the SQL fast path ``finish_group``, which must leave such executions alone.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest

from tenuto.lifecycle import completion, execution_control
from tenuto.maintenance.stuck_executions import repair_stuck_executions
from tenuto.model.work.tasks import Settlement, Task
from tenuto.postgres.database import Database
from tests.support.schedules import (
    ANA,
    claim_steps,
    finish_task,
    list_attempts,
    load_execution,
    make_settlement,
    make_step,
    open_task_states,
    read_repairs,
    run_claimable_steps,
    start_execution,
)
from tests.support.tasks import Register

pytestmark = pytest.mark.usefixtures("both_completion_paths")

EXTRACT = make_step("extract")
LOAD = make_step("load", arguments={"source": "${steps.extract.output.rows}"})


@pytest.fixture
async def worker_id(register_worker: Register) -> UUID:
    return await register_worker()


def completed_with(db: Database, task: Task, output: Any) -> Settlement:
    settlement = make_settlement(task, db.clock.now())
    settlement.outcome.output = json.dumps(output)
    return settlement


async def run_steps(db: Database, worker_id: UUID, **outputs: Any) -> dict[str, Any]:
    """Claim all claimable steps and complete them, with these outputs; return their inputs by name."""
    held = await claim_steps(db, worker_id)
    settlements = [completed_with(db, task, outputs.get(name)) for name, task in held.items()]
    assert len(await completion.finish(db, settlements)) == len(held)
    return {name: json.loads(task.input) for name, task in held.items()}


async def error_of(db: Database, name: str) -> str:
    rows = await db.fetch_all("SELECT error ->> 'message' AS message FROM tenuto.activities WHERE name = $1", name)
    return str(rows[-1]["message"])


async def test_output_of_a_step_becomes_the_input_of_a_later_one(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, EXTRACT, "between", LOAD)
    await run_steps(db, worker_id, extract={"rows": [1, 2, 3]})
    await run_steps(db, worker_id)
    assert await run_steps(db, worker_id) == {"load": {"source": [1, 2, 3]}}
    ended = await load_execution(db, run)
    assert (ended.state, ended.current_group, ended.failed_step_count) == ("completed", 2, 0)
    assert await read_repairs(db) == {}


async def test_references_within_texts_and_several_steps(db: Database, worker_id: UUID) -> None:
    text = "${steps.a.output} of ${steps.b.output.n}, $${steps.a.output}"
    last = make_step("last", arguments={"text": text, "all": "${steps.b.output}"})
    await start_execution(db, ["a", "b"], last)
    await run_steps(db, worker_id, a="x", b={"n": 3})
    assert await run_steps(db, worker_id) == {"last": {"text": "x of 3, ${steps.a.output}", "all": {"n": 3}}}


async def test_missing_part_fails_the_step_and_names_reference_place_and_value(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, EXTRACT, LOAD, "after")
    await run_steps(db, worker_id, extract={"lines": 3})
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count) == ("failed", 1)
    assert await list_attempts(db, run) == [
        ("extract", "completed", None),
        ("load", "failed", "refused"),
        ("after", "cancelled", "not_run"),
    ]
    message = await error_of(db, "load")
    assert message.startswith('source: steps.extract.output.rows has no value: steps.extract.output is {"lines": 3}')
    assert "step 'load' failed" in str(ended.error)
    assert await open_task_states(db) == {}


async def test_value_larger_than_an_input_fails_the_step(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, EXTRACT, LOAD)
    await run_steps(db, worker_id, extract={"rows": "x" * 300_000})
    assert (await load_execution(db, run)).state == "failed"
    message = await error_of(db, "load")
    assert message.startswith("the input with the values of steps.extract.output.rows: input is larger than 262,144")


async def test_step_whose_condition_is_not_met_is_skipped(db: Database, worker_id: UUID) -> None:
    few = make_step("few", when="steps.extract.output.count < 10")
    many = make_step("many", when="steps.extract.output.count >= 10")
    after = make_step("after", when="steps.few.skipped and steps.many.succeeded")
    run = await start_execution(db, EXTRACT, [few, many], after)
    await run_steps(db, worker_id, extract={"count": 10})
    assert await list_attempts(db, run) == [("extract", "completed", None), ("few", "skipped", None)]
    assert await error_of(db, "few") == "skipped: its condition steps.extract.output.count < 10 is not met"
    assert set(await run_steps(db, worker_id)) == {"many"}
    assert set(await run_steps(db, worker_id)) == {"after"}
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count, ended.error) == ("completed", 0, None)


async def test_whole_groups_are_skipped_and_so_are_steps_that_take_their_values(db: Database, worker_id: UUID) -> None:
    extract = make_step("extract", continue_on_failure=True)
    middle = make_step("middle", when="steps.extract.succeeded", arguments={"x": "${steps.extract.output}"})
    last = make_step("last", arguments={"x": "${steps.middle.output}"})
    run = await start_execution(db, extract, middle, last)
    await run_claimable_steps(db, worker_id, extract="failed")
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count, ended.current_group) == ("completed", 1, 2)
    assert [each[1] for each in await list_attempts(db, run)] == ["failed", "skipped", "skipped"]
    assert await error_of(db, "last") == "skipped: it takes a value from step 'middle', which was skipped"


async def test_step_runs_because_an_earlier_one_failed(db: Database, worker_id: UUID) -> None:
    extract = make_step("extract", continue_on_failure=True)
    alert = make_step("alert", when="steps.extract.failed")
    run = await start_execution(db, extract, [alert, make_step("load", when="steps.extract.succeeded")])
    await run_claimable_steps(db, worker_id, extract="failed")
    assert await run_claimable_steps(db, worker_id) == {"alert"}
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count) == ("completed", 1)


async def test_value_of_a_failed_step_fails_the_step_that_takes_it(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, make_step("extract", continue_on_failure=True), LOAD)
    await run_claimable_steps(db, worker_id, extract="failed")
    assert (await load_execution(db, run)).state == "failed"
    assert "steps.extract.output.rows has no value: step 'extract' failed, so it has no output" in await error_of(
        db, "load"
    )


async def test_condition_between_types_fails_the_step(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, EXTRACT, make_step("load", when="steps.extract.output.count > 3"))
    await run_steps(db, worker_id, extract={"count": "many"})
    assert (await load_execution(db, run)).state == "failed"
    assert 'compares a number with "many", which is a text' in await error_of(db, "load")


# --- edges ----------------------------------------------------------------------------------------------------------


async def test_step_with_edges_does_not_wait_for_a_slow_sibling(db: Database, worker_id: UUID) -> None:
    load = make_step("load", needs=["extract"], arguments={"x": "${steps.extract.output}"})
    run = await start_execution(db, [EXTRACT, "slow"], [load, "other"], make_step("report", needs=["load"]))
    held = await claim_steps(db, worker_id)
    await completion.finish(db, [completed_with(db, held["extract"], 7)])
    assert await open_task_states(db) == {"slow": "running", "load": "queued", "other": "waiting", "report": "waiting"}
    assert (await load_execution(db, run)).current_group == 0
    assert await run_steps(db, worker_id) == {"load": {"x": 7}}
    assert await run_steps(db, worker_id) == {"report": {}}
    assert await open_task_states(db) == {"slow": "running", "other": "waiting"}
    await finish_task(db, held["slow"])
    assert (await load_execution(db, run)).current_group == 1
    assert set(await run_steps(db, worker_id)) == {"other"}
    ended = await load_execution(db, run)
    assert (ended.state, ended.current_group) == ("completed", 2)
    assert await read_repairs(db) == {}


async def test_execution_fails_when_the_steps_that_started_early_have_ended(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, [EXTRACT, "slow"], [make_step("load", needs=["extract"]), "other"], "last")
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["extract"])
    early = await claim_steps(db, worker_id)
    await finish_task(db, held["slow"], "failed")
    assert (await load_execution(db, run)).state == "in_progress"
    assert await open_task_states(db) == {"load": "running"}
    assert await repair_stuck_executions(db, db.clock.now()) == 0
    await finish_task(db, early["load"])
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count, ended.error) == ("failed", 1, "step 'slow' failed: it broke")
    assert await list_attempts(db, run) == [
        ("extract", "completed", None),
        ("slow", "failed", "error"),
        ("load", "completed", None),
        ("other", "cancelled", "not_run"),
        ("last", "cancelled", "not_run"),
    ]


async def test_execution_fails_at_once_when_the_steps_that_started_early_are_unclaimed(
    db: Database, worker_id: UUID
) -> None:
    run = await start_execution(db, [EXTRACT, "slow"], [make_step("load", needs=["extract"]), "other"], "last")
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["extract"])
    assert await open_task_states(db) == {"slow": "running", "load": "queued", "other": "waiting", "last": "waiting"}
    await finish_task(db, held["slow"], "failed")
    ended = await load_execution(db, run)
    assert (ended.state, ended.failed_step_count, ended.error) == ("failed", 1, "step 'slow' failed: it broke")
    assert await list_attempts(db, run) == [
        ("extract", "completed", None),
        ("slow", "failed", "error"),
        ("load", "cancelled", "not_run"),
        ("other", "cancelled", "not_run"),
        ("last", "cancelled", "not_run"),
    ]
    assert await read_repairs(db) == {}


async def test_step_with_edges_does_not_start_after_a_failure_that_ends_the_execution(
    db: Database, worker_id: UUID
) -> None:
    run = await start_execution(db, [EXTRACT, "slow"], make_step("load", needs=["extract"]))
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["extract"], "failed")
    assert await open_task_states(db) == {"slow": "running", "load": "waiting"}
    await finish_task(db, held["slow"])
    assert (await load_execution(db, run)).state == "failed"


async def test_siblings_that_end_at_once_start_each_step_once(db: Database, worker_id: UUID) -> None:
    names = [f"s{n}" for n in range(8)]
    edges = [make_step(f"after {name}", needs=[name], arguments={"x": f"${{steps.{name}.output}}"}) for name in names]
    last = make_step("last", arguments={name: f'${{steps["after {name}"].output}}' for name in names})
    run = await start_execution(db, names, edges, last)
    held = await claim_steps(db, worker_id)
    await asyncio.gather(*(completion.finish(db, [completed_with(db, task, n)]) for n, task in held.items()))
    assert await open_task_states(db) == {**{f"after {name}": "queued" for name in names}, "last": "waiting"}
    early = await claim_steps(db, worker_id)
    await asyncio.gather(*(completion.finish(db, [completed_with(db, task, n)]) for n, task in early.items()))
    assert await run_steps(db, worker_id) == {"last": {name: f"after {name}" for name in names}}
    assert (await load_execution(db, run)).state == "completed"


# --- pause, cancel, retry, repair -----------------------------------------------------------------------------------


async def test_step_that_becomes_ready_during_a_pause_starts_when_resumed(db: Database, worker_id: UUID) -> None:
    run = await start_execution(
        db, [EXTRACT, "slow"], [make_step("load", needs=["extract"]), make_step("no", when="steps.extract.output")]
    )
    held = await claim_steps(db, worker_id)
    await execution_control.pause_execution(db, run, db.clock.now(), ANA)
    await finish_task(db, held["extract"])
    assert await open_task_states(db) == {"slow": "running", "load": "waiting", "no": "waiting"}
    await execution_control.resume_execution(db, run, db.clock.now())
    assert await open_task_states(db) == {"slow": "running", "load": "queued", "no": "waiting"}
    await execution_control.pause_execution(db, run, db.clock.now(), ANA)
    assert (await open_task_states(db))["load"] == "waiting"
    await finish_task(db, held["slow"])
    await execution_control.resume_execution(db, run, db.clock.now())
    assert await open_task_states(db) == {"load": "queued"}
    await run_steps(db, worker_id)
    assert (await load_execution(db, run)).state == "completed"


async def test_resume_keeps_the_time_of_a_retry(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, EXTRACT, make_step("load", max_attempts=3, when="steps.extract.succeeded"))
    await run_steps(db, worker_id)
    held = await claim_steps(db, worker_id)
    await completion.finish(db, [make_settlement(held["load"], db.clock.now(), "failed")])
    assert await open_task_states(db) == {"load": "scheduled"}
    await execution_control.pause_execution(db, run, db.clock.now(), ANA)
    await execution_control.resume_execution(db, run, db.clock.now())
    assert await open_task_states(db) == {"load": "scheduled"}


async def test_cancelled_execution_with_an_early_step_ends_with_it(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, [EXTRACT, "slow"], [make_step("load", needs=["extract"]), "other"])
    held = await claim_steps(db, worker_id)
    await finish_task(db, held["extract"])
    early = await claim_steps(db, worker_id)
    assert await execution_control.cancel_execution(db, run, db.clock.now(), ANA) == "stopping"
    await finish_task(db, held["slow"], "cancelled")
    assert (await load_execution(db, run)).ended_at is None
    await finish_task(db, early["load"], "cancelled")
    ended = await load_execution(db, run)
    assert (ended.state, ended.ended_at is not None) == ("cancelled", True)


async def test_retry_uses_the_results_of_the_steps_that_it_does_not_repeat(db: Database, worker_id: UUID) -> None:
    skipped = make_step("skipped", when="steps.extract.output.rows == null")
    first = await start_execution(db, [EXTRACT, "unused"], skipped, "check", LOAD)
    await run_steps(db, worker_id, extract={"rows": [1]}, unused={"large": 1})
    await run_claimable_steps(db, worker_id, check="failed")
    second = await execution_control.retry_execution(db, first, db.clock.now(), ANA)
    (kept,) = await db.fetch_all("SELECT kept_results FROM tenuto.executions WHERE id = $1", second)
    assert json.loads(kept["kept_results"]) == {
        "0": {"state": "completed", "reason": None, "output": {"rows": [1]}},
        "1": {"state": "completed", "reason": None},
        "2": {"state": "skipped", "reason": None},
    }
    assert await run_claimable_steps(db, worker_id, check="failed") == {"check"}
    third = await execution_control.retry_execution(db, second, db.clock.now(), ANA)
    assert set(await run_steps(db, worker_id)) == {"check"}
    assert await run_steps(db, worker_id) == {"load": {"source": [1]}}
    ended = await load_execution(db, third)
    assert (ended.state, ended.first_group, ended.failed_step_count) == ("completed", 2, 0)


async def test_retry_resolves_the_input_of_its_first_group(db: Database, worker_id: UUID) -> None:
    first = await start_execution(db, EXTRACT, LOAD, make_step("late", needs=["extract"]))
    await run_steps(db, worker_id, extract={"rows": [5]})
    await run_claimable_steps(db, worker_id, load="failed")
    await execution_control.retry_execution(db, first, db.clock.now(), ANA)
    assert await run_steps(db, worker_id) == {"load": {"source": [5]}, "late": {}}


async def test_repair_decides_about_waiting_steps_instead_of_queueing_them(db: Database, worker_id: UUID) -> None:
    run = await start_execution(db, EXTRACT, [LOAD, make_step("no", when="not steps.extract.succeeded")])
    await run_steps(db, worker_id, extract={"rows": [1]})
    await db.write_all("UPDATE tenuto.tasks SET state = 'waiting', input = '{}' WHERE name = 'load'")
    assert await repair_stuck_executions(db, db.clock.now()) == 1
    assert await run_steps(db, worker_id) == {"load": {"source": [1]}}
    assert (await load_execution(db, run)).state == "completed"
    assert await read_repairs(db) == {"execution_stuck": 1}
