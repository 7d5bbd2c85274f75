"""The nine rules of the executor (J9), typed properties and items (J1), and what operators may change (J1)."""

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
from tenuto.model.manifests import Manifest
from tenuto.postgres.database import Database
from tenuto.store import tasks as store
from tests.support.engine_fixtures import Quick
from tests.support.manifests import a_batch, end, kept, outcome, started, table, take
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


async def test_1_a_task_nobody_knows_is_refused(app: Tenuto, db: Database, register_worker: Register) -> None:
    await started(db, await kept(db))
    (task,) = await take(db, await register_worker())
    assert await completion.finish(db, [outcome(replace(task, id=new_id()), db.clock.now())]) == set()
    with pytest.raises(NotFound, match="no task"):
        await app.wait(new_id())
    with pytest.raises(NotFound, match="no task"):
        await app.cancel(new_id())


async def test_2_what_runs_already_is_not_begun_again(db: Database, register_worker: Register) -> None:
    await started(db, await kept(db))
    assert len(await take(db, await register_worker())) == 1
    assert await take(db, await register_worker()) == []


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_3_and_4_what_has_ended_well_or_badly_is_not_begun_again(
    db: Database, register_worker: Register, status: str
) -> None:
    me, stored = await register_worker(), await kept(db)
    id = await started(db, stored)
    (task,) = await take(db, me)
    await end(db, task, status)
    assert await completion.finish(db, [outcome(task, db.clock.now())]) == set()
    assert await started(db, stored, id=id) is None
    assert await take(db, me) == []
    assert [row["status"] for row in await table(db, "activities")] == [status]


async def test_5_a_manifest_that_is_missing_is_refused_by_name(app: Tenuto) -> None:
    with pytest.raises(NotFound, match="no manifest 'bread'"):
        await app.manifests.run("bread")
    with pytest.raises(NotFound, match="no manifest 'bread'"):
        await app.manifests.enqueue("bread", {})
    with pytest.raises(NotFound, match="no manifest 'bread'"):
        await app.bulk_enqueue("bread", [])


async def test_5_a_manifest_cannot_go_while_something_of_it_is_open(app: Tenuto, db: Database) -> None:
    await a_batch(db, await kept(db), 1)
    with pytest.raises(Conflict, match="has open tasks"):
        await app.manifests.delete("bake")


async def test_6_what_is_pending_runs_through_the_registry_with_typed_properties(app: Tenuto, worker: Quick) -> None:
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
    assert (record["status"], record["output"], record["manifest_id"]) == ("completed", 3, stored.id)
    assert seen == [(Config("prod", {"a": 1}), Slice(table="users", number=3), False)]


async def test_6_a_job_nobody_knows_any_more_is_refused_and_leaves_a_letter(
    app: Tenuto, worker: Quick, db: Database
) -> None:
    stored = await kept(db, job="forgotten")
    async with worker():
        id = await started(db, stored, db.clock.now())
        assert id is not None
        record = await app.wait(id, 10)
        assert (record["status"], record["reason"]) == ("failed", "refused")
        (letter,) = await app.dead_letters.list()
        assert "forgotten" in letter["reason"]
    with pytest.raises(UnknownJob, match="forgotten"):
        await app.manifests.run("bake")


async def test_7_success_moves_the_last_successful_run_of_runs_items_and_batches(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def bake(flour: int) -> int:
        return flour

    for name in ("run", "item", "batch"):
        app.manifest(name, bake)
    await app.manifests.deploy()
    async with worker():
        run = await app.wait(await app.manifests.run("run", {"flour": 1}), 10)
        item = await app.wait(await app.manifests.enqueue("item", 1), 10)
        assert (await app.manifests.get("run")).last_successful_run == run["ended_at"]
        assert (await app.manifests.get("item")).last_successful_run == item["ended_at"]
        batch = await app.bulk_enqueue("batch", [1, 2, 3])
        await batch.wait(10)

        async def moved() -> Any:
            return (await app.manifests.get("batch")).last_successful_run

        last = max([each["ended_at"] async for each in batch.items()])
        assert await eventually(moved) <= last


async def test_8_different_inputs_are_different_runs_of_one_manifest(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def double(number: int, by: int = 2) -> int:
        return number * by

    app.manifest("double", double, on_demand=True, properties={"by": 3})
    await app.manifests.deploy()
    async with worker():
        tasks = [await app.manifests.enqueue("double", n) for n in range(3)]
        assert [(await app.wait(task, 10))["output"] for task in tasks] == [0, 3, 6]


async def test_9_cancellation_reaches_the_code_and_the_manifest_may_run_again(app: Tenuto, worker: Quick) -> None:
    stopped: list[str] = []
    begun = asyncio.Event()

    @app.job
    async def linger(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.append("stopped")

    app.manifest("slow", linger)
    await app.manifests.deploy()
    async with worker():
        task = await app.manifests.run("slow")
        await eventually(begun.is_set)
        with pytest.raises(Conflict, match="an earlier run of 'slow' is not over"):
            await app.manifests.run("slow")
        assert await app.cancel(task) == "stopping"
        record = await app.wait(task, 10)
        assert (record["status"], record["reason"], stopped) == ("cancelled", "requested", ["stopped"])
        assert await app.dead_letters.list() == [], "what somebody cancelled is no failure"
        assert (await app.manifests.get("slow")).last_successful_run is None
        await app.cancel(await app.manifests.run("slow"))


async def test_what_is_disabled_runs_by_hand_only(app: Tenuto, worker: Quick) -> None:
    @app.job
    async def bake() -> int:
        return 1

    app.manifest("bread", bake, trigger=every("1s"))
    await app.manifests.deploy()
    assert await app.manifests.disable("bread") is True
    assert await app.manifests.disable("bread") is False
    assert (await app.manifests.poll()).enqueued == 0
    async with worker():
        assert (await app.wait(await app.manifests.run("bread"), 10))["output"] == 1


async def test_an_item_whose_key_is_open_is_refused(app: Tenuto) -> None:
    @app.job
    async def bake(flour: int) -> None: ...

    app.manifest("bread", bake, on_demand=True)
    await app.manifests.deploy()
    await app.manifests.enqueue("bread", 1, key="a")
    await app.manifests.enqueue("bread", 1)
    with pytest.raises(Conflict, match="the item 'a' is not over"):
        await app.manifests.enqueue("bread", 1, key="a")


# --- typed properties and items -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "kept_as"),
    [
        (Config("a", {}), {"config": {"source": "a", "deep": {}}}),
        ({"config": Config("a", {})}, {"config": {"source": "a", "deep": {}}}),
        ({"config": {"source": "a", "deep": {"b": 1}}}, {"config": {"source": "a", "deep": {"b": 1}}}),
        ({"config": {"source": "a", "deep": {}}, "number": 3}, {"config": {"source": "a", "deep": {}}, "number": 3}),
        (None, {}),
    ],
)
async def test_properties_are_a_value_of_the_jobs_type_or_a_mapping(
    app: Tenuto, properties: Any, kept_as: dict[str, Any]
) -> None:
    @app.job
    async def copy(config: Config, number: int) -> None: ...

    assert dict(app.manifest("m", copy, properties=properties).properties) == kept_as


async def test_the_fields_of_a_value_may_be_the_parameters(app: Tenuto) -> None:
    @app.job
    async def copy(table: str, number: int) -> None: ...

    assert dict(app.manifest("m", copy, properties=Slice(table="users", number=3)).properties) == {
        "table": "users",
        "number": 3,
    }


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"slice": {"table": "users", "number": "many"}}, "properties.slice.number"),
        ({"slice": {"table": "users"}}, "properties.slice.number"),
        ({"number": "x"}, "properties.number"),
        ({"colour": "red"}, "properties.colour"),
        (Config("a", {}), "properties"),
        (1.5, "properties"),
    ],
)
async def test_properties_that_do_not_fit_are_refused_by_the_name_of_the_field(
    app: Tenuto, properties: Any, named: str
) -> None:
    @app.job
    async def copy(slice: Slice, number: int) -> None: ...

    with pytest.raises(Invalid) as refused:
        app.manifest("m", copy, properties=properties)
    assert refused.value.field == named


async def test_what_runs_by_itself_needs_all_of_its_input(app: Tenuto) -> None:
    @app.job
    async def copy(table: str, number: int = 1) -> None: ...

    app.manifest("m", copy, trigger=every("1m"))
    with pytest.raises(Invalid) as refused:
        await app.manifests.deploy()
    assert refused.value.field == "properties.table"


async def test_items_are_checked_and_refused_by_the_name_of_the_field(app: Tenuto) -> None:
    @app.job
    async def copy(slice: Slice, number: int = 1) -> None: ...

    app.manifest("m", copy, on_demand=True)
    app.manifest("full", copy, properties={"slice": {"table": "a", "number": 1}, "number": 2})
    await app.manifests.deploy()
    for item, named in (({"slice": {"table": "a"}}, "slice.number"), (17, "slice"), ({"slice": None}, "slice")):
        with pytest.raises(Invalid) as refused:
            await app.manifests.enqueue("m", item)
        assert str(refused.value.field).startswith(named)
    with pytest.raises(Invalid, match="no parameter left"):
        await app.manifests.enqueue("full", 17)


async def test_the_limit_of_a_job_holds_for_its_manifest_unless_that_has_one(app: Tenuto) -> None:
    @app.job(limit=3)
    async def bake() -> None: ...

    assert app.manifest("a", bake).max_active == 3
    assert app.manifest("b", bake, max_active=5).max_active == 5


# --- declared in code, changed by people ----------------------------------------------------------------------------


def declaring(app: Tenuto, **fields: Any) -> None:
    app.manifests.declared.clear()
    app.manifests.declare(Manifest("bread", "bake", **fields))


@pytest.fixture
def baking(app: Tenuto) -> Tenuto:
    @app.job
    async def bake() -> None: ...

    return app


async def test_what_an_operator_has_changed_survives_the_next_deployment(baking: Tenuto) -> None:
    declaring(baking, priority=1)
    assert await baking.manifests.deploy() == {"bread": "created"}
    assert await baking.manifests.deploy() == {"bread": "unchanged"}
    present = await baking.manifests.get("bread")
    await baking.manifests.edit("bread", replace(present.manifest, priority=7))
    await baking.manifests.disable("bread")
    assert await baking.manifests.deploy() == {"bread": "kept"}
    present = await baking.manifests.get("bread")
    assert (present.manifest.priority, present.enabled) == (7, False)
    declaring(baking, priority=2)
    assert await baking.manifests.deploy() == {"bread": "changed"}
    present = await baking.manifests.get("bread")
    assert (present.manifest.priority, present.enabled) == (2, False), "whether it is on is the operator's alone"


async def test_what_code_no_longer_declares_stays(baking: Tenuto) -> None:
    declaring(baking)
    for name, after in (("a", "bread"), ("z", "a")):
        baking.manifests.declare(Manifest(name, "bake", depends_on=after))
    await baking.manifests.deploy()
    declaring(baking)
    await baking.manifests.deploy()
    assert [row["external_id"] for row in await baking.manifests.list()] == ["a", "bread", "z"]


async def test_an_edit_may_name_the_version_it_means(baking: Tenuto) -> None:
    made = await baking.manifests.create(Manifest("bread", "bake"))
    await baking.manifests.edit("bread", replace(made.manifest, priority=1), version=1)
    with pytest.raises(Conflict, match="at version 2, not 1"):
        await baking.manifests.edit("bread", replace(made.manifest, priority=2), version=1)
    with pytest.raises(Invalid, match="cannot be changed"):
        await baking.manifests.edit("bread", Manifest("other", "bake"))
    with pytest.raises(Conflict, match="there is a manifest 'bread'"):
        await baking.manifests.create(Manifest("bread", "bake"))


async def test_what_is_taken_under_limits_is_put_back_as_it_was(db: Database, register_worker: Register) -> None:
    me = await register_worker()
    await started(db, await kept(db))
    before = await table(db, "tasks")
    held = await take(db, me)
    await store.put_back(db, me, held)
    after = await table(db, "tasks")
    assert [{**row, "fence": 0} for row in after] == [{**row, "fence": 0} for row in before]
