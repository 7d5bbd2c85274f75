"""Manifest runs: the nine rules of the executor (J9), typed properties and items (J1), changes by operators (J1)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import BaseModel

from tenuto import Context, Tenuto, every
from tenuto.errors import Conflict, Invalid, NotFound, UnknownJob
from tenuto.ids import new_id
from tenuto.lifecycle import completion
from tenuto.model.definitions.manifests import Manifest
from tenuto.postgres.database import Database
from tenuto.store.work import tasks as store
from tests.support.errors import raises_code
from tests.support.manifests import (
    claim_runs,
    create_batch,
    create_manifest,
    finish_task,
    make_settlement,
    read_table,
    start_run,
)
from tests.support.require_value import known
from tests.support.service_fixtures import WorkerFactory
from tests.support.tasks import Register
from tests.support.waiting import eventually


@dataclass
class Config:
    source: str
    deep: dict[str, int]


class Slice(BaseModel):
    table: str
    number: int


# --- the nine rules -------------------------------------------------------------------------------------------------


async def test_rule_1_unknown_task_is_an_error(app: Tenuto, db: Database, register_worker: Register) -> None:
    await start_run(db, await create_manifest(db))
    (task,) = await claim_runs(db, await register_worker())
    assert await completion.finish(db, [make_settlement(replace(task, id=new_id()), db.clock.now())]) == set()
    with raises_code("task.not_found", NotFound):
        await app.wait(new_id())
    with raises_code("task.not_found", NotFound):
        await app.cancel(new_id())


async def test_rule_2_running_task_is_not_started_again(db: Database, register_worker: Register) -> None:
    await start_run(db, await create_manifest(db))
    assert len(await claim_runs(db, await register_worker())) == 1
    assert await claim_runs(db, await register_worker()) == []


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_rules_3_and_4_ended_task_is_not_started_again(
    db: Database, register_worker: Register, status: str
) -> None:
    worker_id, stored = await register_worker(), await create_manifest(db)
    id = await start_run(db, stored)
    (task,) = await claim_runs(db, worker_id)
    await finish_task(db, task, status)
    assert await completion.finish(db, [make_settlement(task, db.clock.now())]) == set()
    assert await start_run(db, stored, id=id) is None
    assert await claim_runs(db, worker_id) == []
    assert [row["status"] for row in await read_table(db, "activities")] == [status]


async def test_rule_5_unknown_manifest_is_an_error(app: Tenuto) -> None:
    with raises_code("manifest.not_found", NotFound):
        await app.manifests.run("bread")
    with raises_code("manifest.not_found", NotFound):
        await app.manifests.enqueue("bread", {})
    with raises_code("manifest.not_found", NotFound):
        await app.bulk_enqueue("bread", [])


async def test_rule_5_manifest_with_open_tasks_cannot_be_deleted(app: Tenuto, db: Database) -> None:
    await create_batch(db, await create_manifest(db), 1)
    with raises_code("manifest.running", Conflict):
        await app.manifests.delete("bake")


async def test_rule_6_manifest_run_has_typed_properties(app: Tenuto, worker: WorkerFactory) -> None:
    seen: list[Any] = []

    @app.job
    async def copy(config: Config, slice: Slice, twice: bool = False) -> int:
        seen.append((config, slice, twice))
        return slice.number

    app.manifest("copy", copy, properties=Config("prod", {"a": 1}))
    await app.manifests.deploy()
    stored = await app.manifests.get("copy")
    assert stored.manifest.property_type == "config: Config"
    assert stored.manifest.properties == {"config": {"source": "prod", "deep": {"a": 1}}}
    async with worker():
        record = await app.wait(await app.manifests.run("copy", {"slice": Slice(table="users", number=3)}), 10)
    assert (record.state, record.output, record.manifest_id) == ("completed", 3, stored.id)
    assert seen == [(Config("prod", {"a": 1}), Slice(table="users", number=3), False)]


async def test_rule_6_run_of_unknown_job_waits_for_a_worker_that_knows_it(
    app: Tenuto, worker: WorkerFactory, db: Database
) -> None:
    stored = await create_manifest(db, job="forgotten")
    async with worker():
        id = await start_run(db, stored, db.clock.now())
        assert id is not None
        assert [str(reason.code) for reason in (await app.why(id)).reasons] == ["unknown_job"]
    with raises_code("job.unknown", UnknownJob):
        await app.manifests.run("bake")


async def test_rule_7_success_updates_last_successful_run_of_the_manifest(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake(flour: int) -> int:
        return flour

    for name in ("run", "item", "batch"):
        app.manifest(name, bake)
    await app.manifests.deploy()
    async with worker():
        run = await app.wait(await app.manifests.run("run", {"flour": 1}), 10)
        item = await app.wait(await app.manifests.enqueue("item", 1), 10)
        assert (await app.manifests.get("run")).last_successful_run_at == run.ended_at
        assert (await app.manifests.get("item")).last_successful_run_at == item.ended_at
        batch = await app.bulk_enqueue("batch", [1, 2, 3])
        await batch.wait(10)

        async def moved() -> Any:
            return (await app.manifests.get("batch")).last_successful_run_at

        last = max([known(each.ended_at) async for each in batch.items()])
        assert await eventually(moved) <= last


async def test_rule_8_different_inputs_are_different_runs_of_one_manifest(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def double(number: int, by: int = 2) -> int:
        return number * by

    app.manifest("double", double, on_demand=True, properties={"by": 3})
    await app.manifests.deploy()
    async with worker():
        tasks = [await app.manifests.enqueue("double", n) for n in range(3)]
        assert [(await app.wait(task, 10)).output for task in tasks] == [0, 3, 6]


async def test_rule_9_cancellation_stops_the_code_and_manifest_can_run_again(
    app: Tenuto, worker: WorkerFactory
) -> None:
    stopped: list[str] = []
    started = asyncio.Event()

    @app.job
    async def linger(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append("stopped")

    app.manifest("slow", linger)
    await app.manifests.deploy()
    async with worker():
        task = await app.manifests.run("slow")
        await eventually(started.is_set)
        with raises_code("manifest.run.already_open", Conflict):
            await app.manifests.run("slow")
        assert await app.cancel(task) == "stopping"
        record = await app.wait(task, 10)
        assert (record.state, record.reason, stopped) == ("cancelled", "requested", ["stopped"])
        assert await app.dead_letters.list() == [], "a cancellation is not a failure"
        assert (await app.manifests.get("slow")).last_successful_run_at is None
        await app.cancel(await app.manifests.run("slow"))


async def test_disabled_manifest_runs_only_manually(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job
    async def bake() -> int:
        return 1

    app.manifest("bread", bake, trigger=every("1s"))
    await app.manifests.deploy()
    assert await app.manifests.disable("bread") is True
    assert await app.manifests.disable("bread") is False
    assert (await app.manifests.poll()).enqueued == 0
    async with worker():
        assert (await app.wait(await app.manifests.run("bread"), 10)).output == 1


async def test_manifest_item_with_open_key_is_an_error(app: Tenuto) -> None:
    @app.job
    async def bake(flour: int) -> None: ...

    app.manifest("bread", bake, on_demand=True)
    await app.manifests.deploy()
    await app.manifests.enqueue("bread", 1, key="a")
    await app.manifests.enqueue("bread", 1)
    with raises_code("manifest.run.already_open", Conflict):
        await app.manifests.enqueue("bread", 1, key="a")


# --- typed properties and items -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "stored_as"),
    [
        (Config("a", {}), {"config": {"source": "a", "deep": {}}}),
        ({"config": Config("a", {})}, {"config": {"source": "a", "deep": {}}}),
        ({"config": {"source": "a", "deep": {"b": 1}}}, {"config": {"source": "a", "deep": {"b": 1}}}),
        ({"config": {"source": "a", "deep": {}}, "number": 3}, {"config": {"source": "a", "deep": {}}, "number": 3}),
        (None, {}),
    ],
)
async def test_manifest_properties_are_a_typed_value_or_a_mapping(
    app: Tenuto, properties: Any, stored_as: dict[str, Any]
) -> None:
    @app.job
    async def copy(config: Config, number: int) -> None: ...

    assert dict(app.manifest("m", copy, properties=properties).properties) == stored_as


async def test_manifest_properties_may_be_a_value_whose_fields_are_the_parameters(app: Tenuto) -> None:
    @app.job
    async def copy(table: str, number: int) -> None: ...

    assert dict(app.manifest("m", copy, properties=Slice(table="users", number=3)).properties) == {
        "table": "users",
        "number": 3,
    }


@pytest.mark.parametrize(
    ("properties", "field"),
    [
        ({"slice": {"table": "users", "number": "many"}}, "properties.slice.number"),
        ({"slice": {"table": "users"}}, "properties.slice.number"),
        ({"number": "x"}, "properties.number"),
        ({"colour": "red"}, "properties.colour"),
        (Config("a", {}), "properties"),
        (1.5, "properties"),
    ],
)
async def test_invalid_manifest_properties_error_names_the_field(app: Tenuto, properties: Any, field: str) -> None:
    @app.job
    async def copy(slice: Slice, number: int) -> None: ...

    with pytest.raises(Invalid) as refused:
        app.manifest("m", copy, properties=properties)
    assert refused.value.field == field


async def test_manifest_with_trigger_needs_all_properties(app: Tenuto) -> None:
    @app.job
    async def copy(table: str, number: int = 1) -> None: ...

    app.manifest("m", copy, trigger=every("1m"))
    with pytest.raises(Invalid) as refused:
        await app.manifests.deploy()
    assert (refused.value.code, refused.value.field) == ("manifest.property.missing", "properties.table")


async def test_invalid_manifest_item_error_names_the_field(app: Tenuto) -> None:
    @app.job
    async def copy(slice: Slice, number: int = 1) -> None: ...

    app.manifest("m", copy, on_demand=True)
    app.manifest("full", copy, properties={"slice": {"table": "a", "number": 1}, "number": 2})
    await app.manifests.deploy()
    for item, field in (({"slice": {"table": "a"}}, "slice.number"), (17, "slice"), ({"slice": None}, "slice")):
        with pytest.raises(Invalid) as refused:
            await app.manifests.enqueue("m", item)
        assert str(refused.value.field).startswith(field)
    with raises_code("manifest.item.no_parameter", Invalid):
        await app.manifests.enqueue("full", 17)


async def test_manifest_inherits_the_limit_of_its_job(app: Tenuto) -> None:
    @app.job(limit=3)
    async def bake() -> None: ...

    assert app.manifest("a", bake).max_active == 3
    assert app.manifest("b", bake, max_active=5).max_active == 5


# --- declared in code, changed by operators -------------------------------------------------------------------------


def declare_bread(app: Tenuto, **fields: Any) -> None:
    app.manifests.declared.clear()
    app.manifests.declare(Manifest("bread", "bake", **fields))


@pytest.fixture
def app_with_job(app: Tenuto) -> Tenuto:
    @app.job
    async def bake() -> None: ...

    return app


async def test_deploy_keeps_changes_of_an_operator(app_with_job: Tenuto) -> None:
    declare_bread(app_with_job, priority=1)
    assert await app_with_job.manifests.deploy() == {"bread": "created"}
    assert await app_with_job.manifests.deploy() == {"bread": "unchanged"}
    present = await app_with_job.manifests.get("bread")
    await app_with_job.manifests.edit("bread", replace(present.manifest, priority=7))
    await app_with_job.manifests.disable("bread")
    assert await app_with_job.manifests.deploy() == {"bread": "kept"}
    present = await app_with_job.manifests.get("bread")
    assert (present.manifest.priority, present.enabled) == (7, False)
    declare_bread(app_with_job, priority=2)
    assert await app_with_job.manifests.deploy() == {"bread": "changed"}
    present = await app_with_job.manifests.get("bread")
    assert (present.manifest.priority, present.enabled) == (2, False), "deploy does not change the enabled state"


async def test_deploy_keeps_manifests_that_are_no_longer_declared(app_with_job: Tenuto) -> None:
    declare_bread(app_with_job)
    for name, after in (("a", "bread"), ("z", "a")):
        app_with_job.manifests.declare(Manifest(name, "bake", depends_on=after))
    await app_with_job.manifests.deploy()
    declare_bread(app_with_job)
    await app_with_job.manifests.deploy()
    assert [manifest.external_id for manifest in await app_with_job.manifests.list()] == ["a", "bread", "z"]


async def test_manifest_edit_checks_the_expected_version(app_with_job: Tenuto) -> None:
    made = await app_with_job.manifests.create(Manifest("bread", "bake"))
    await app_with_job.manifests.edit("bread", replace(made.manifest, priority=1), version=1)
    with raises_code("definition.version_conflict", Conflict):
        await app_with_job.manifests.edit("bread", replace(made.manifest, priority=2), version=1)
    with raises_code("manifest.external_id.immutable", Invalid):
        await app_with_job.manifests.edit("bread", Manifest("other", "bake"))
    with raises_code("manifest.already_exists", Conflict):
        await app_with_job.manifests.create(Manifest("bread", "bake"))


async def test_task_returned_to_queue_under_limits_is_unchanged(db: Database, register_worker: Register) -> None:
    worker_id = await register_worker()
    await start_run(db, await create_manifest(db))
    before = await read_table(db, "tasks")
    held = await claim_runs(db, worker_id)
    await store.return_tasks_to_queue(db, worker_id, held)
    after = await read_table(db, "tasks")
    assert [{**row, "fence": 0} for row in after] == [{**row, "fence": 0} for row in before]
