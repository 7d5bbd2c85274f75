"""Plan and apply of manifests and groups in definition files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import pytest

from tenuto import Tenuto, cron
from tenuto.definitions.document_parser import Document
from tenuto.model.definitions.manifests import Manifest
from tenuto.operations.definitions.plans import ApplyPlan, Declarations, read_declarations
from tests.support.errors import raises_code

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
def app(app: Tenuto) -> Tenuto:
    @app.job(timeout="1h", max_attempts=7)
    async def load(rows: int = 1) -> None: ...

    return app


def make_manifest_data(external_id: str, **fields: Any) -> dict[str, Any]:
    return {"external_id": external_id, "job": "load", **fields}


def make_declarations(*manifests: dict[str, Any], **sections: Any) -> Declarations:
    return read_declarations([Document("file.yaml", {"manifests": list(manifests), **sections})])


async def apply(app: Tenuto, wanted: Declarations, *, prune: bool = False) -> ApplyPlan:
    planned = await app.plans.plan(wanted, prune=prune)
    await app.plans.apply(planned, reason="because")
    return planned


def effects(planned: ApplyPlan) -> dict[str, str]:
    return {change.key: change.effect for change in planned.manifests.changes}


async def list_ids(app: Tenuto) -> list[str]:
    return [manifest.external_id for manifest in await app.manifests.list()]


async def test_manifest_plan_changes_nothing_and_applying_is_idempotent(app: Tenuto, sql: Sql) -> None:
    wanted = make_declarations(
        make_manifest_data("b", after="a"),
        make_manifest_data("a", cron="@daily"),
        groups=[{"name": "g", "max_active": 3}],
    )
    planned = await app.plans.plan(wanted)
    assert list(effects(planned)) == ["a", "b"], "manifests that others depend on come first"
    assert await sql("SELECT * FROM tenuto.manifests") == []
    await app.plans.apply(planned)
    assert await list_ids(app) == ["a", "b"]
    assert [group.max_active for group in await app.manifests.groups()] == [3]
    before = await sql("SELECT * FROM tenuto.manifests ORDER BY id")
    again = await apply(app, wanted)
    assert (again.has_changes, effects(again)) == (False, {"a": "unchanged", "b": "unchanged"})
    assert await sql("SELECT * FROM tenuto.manifests ORDER BY id") == before
    assert len(await app.manifests.versions("a")) == 1


async def test_ended_manifest_can_be_changed_but_not_to_another_past_end(app: Tenuto, sql: Sql) -> None:
    await apply(app, make_declarations(make_manifest_data("over", cron="@daily", end="2090-01-01")))
    ended = """definition || jsonb_build_object('trigger', definition -> 'trigger' || '{"end": "2020-01-01"}')"""
    await sql(f"UPDATE tenuto.manifests SET definition = {ended}, next_run_at = NULL")
    planned = await apply(
        app, make_declarations(make_manifest_data("over", cron="@daily", end="2020-01-01", priority=3))
    )
    assert effects(planned) == {"over": "changed"}
    assert (await app.manifests.get("over")).manifest.priority == 3
    with raises_code("schedule.trigger.never_fires"):
        await app.plans.plan(make_declarations(make_manifest_data("over", cron="@hourly", end="2020-01-01")))


async def test_manifest_in_a_file_takes_missing_fields_from_the_job(app: Tenuto) -> None:
    await apply(app, make_declarations(make_manifest_data("x", retry={"base_seconds": 1}, properties={"rows": "5"})))
    found = (await app.manifests.get("x")).manifest
    assert (found.policy.retry.max_attempts, found.policy.retry.base_seconds, found.policy.timeout_seconds) == (
        7,
        1,
        3600,
    )
    assert (found.properties, found.property_type) == ({"rows": 5}, "rows: int")


async def test_operators_change_of_a_manifest_is_kept_until_the_file_changes(app: Tenuto) -> None:
    await apply(app, make_declarations(make_manifest_data("x", max_active=3)))
    present = await app.manifests.get("x")
    await app.manifests.edit("x", replace(present.manifest, max_active=9))
    await app.manifests.disable("x")
    kept = await apply(app, make_declarations(make_manifest_data("x", max_active=3)))
    assert effects(kept) == {"x": "kept"}
    assert (await app.manifests.get("x")).manifest.max_active == 9
    changed = await apply(app, make_declarations(make_manifest_data("x", max_active=4)))
    assert effects(changed) == {"x": "changed"}
    found = await app.manifests.get("x")
    assert (found.manifest.max_active, found.enabled) == (4, False)


async def test_group_in_a_file_changes_only_the_given_options(app: Tenuto) -> None:
    await app.manifests.change_group("g", max_active=5, priority=2, enabled=False)
    planned = await apply(app, make_declarations(groups=[{"name": "g", "max_active": "none"}]))
    assert [(each.effect, each.differences) for each in planned.groups] == [("changed", {"max_active": (5, None)})]
    (found,) = await app.manifests.groups()
    assert (found.max_active, found.priority, found.enabled) == (None, 2, False)


async def test_manifest_plan_conflicts_if_a_definition_changed_since(app: Tenuto) -> None:
    await apply(app, make_declarations(make_manifest_data("x")))
    step = {"name": "s", "steps": [{"job": "load"}]}
    planned = await app.plans.plan(
        make_declarations(make_manifest_data("x", cron="@daily"), make_manifest_data("y"), schedules=[step])
    )
    await app.manifests.disable("x")
    with raises_code("definition.changed_since_plan"):
        await app.plans.apply(planned)
    assert await list_ids(app) == ["x"]
    assert await app.schedules.list() == []


async def test_prune_deletes_only_manifests_from_files_dependents_first(app: Tenuto) -> None:
    await app.manifests.create(
        (await app.plans.plan(make_declarations(make_manifest_data("by-hand")))).manifests.changes[0].definition
    )
    await apply(
        app,
        make_declarations(
            make_manifest_data("a"), make_manifest_data("b", after="a"), make_manifest_data("c", after="b")
        ),
    )
    named = await apply(app, make_declarations(make_manifest_data("a")))
    assert [each.external_id for each in named.manifests.undeclared] == ["b", "c"]
    assert await list_ids(app) == ["a", "b", "by-hand", "c"]
    with raises_code("manifest.depends_on.not_found"):
        await app.plans.plan(make_declarations(make_manifest_data("z", after="b")), prune=True)
    pruned = await apply(app, make_declarations(), prune=True)
    assert pruned.deleted == ["c", "b", "a"]
    assert await list_ids(app) == ["by-hand"]


async def test_prune_covers_all_undeclared_manifests(app: Tenuto, sql: Sql) -> None:
    await sql(
        "INSERT INTO tenuto.manifests (id, external_id, name, enabled, definition, job, schedule_type, version, origin,"
        " created_at, updated_at, planned) SELECT gen_random_uuid(), name, name, true,"
        " jsonb_build_object('external_id', name, 'job', 'load'), 'load', 'none', 1, 'file', now(), now(), true"
        " FROM (SELECT 'm' || n AS name FROM generate_series(1, 620) AS n) AS many"
    )
    pruned = await apply(app, make_declarations(make_manifest_data("m7")), prune=True)
    assert len(pruned.deleted) == 619
    assert await list_ids(app) == ["m7"]


async def test_manifest_plan_rejects_a_cycle_through_stored_manifests(app: Tenuto) -> None:
    await apply(app, make_declarations(make_manifest_data("a"), make_manifest_data("b", after="a")))
    with raises_code("manifest.depends_on.cycle") as rejected:
        await app.plans.plan(make_declarations(make_manifest_data("a", after="b")))
    assert rejected.value.field == "file.yaml: manifests[0].after"


async def test_manifest_declared_in_code_and_file_is_rejected(app: Tenuto) -> None:
    app.manifest("x", app.jobs.get_job("load"))
    with raises_code("plan.declared_in_code"):
        await app.plans.plan(make_declarations(make_manifest_data("x")))


async def test_concurrent_applies_of_one_file_create_a_manifest_once(app: Tenuto) -> None:
    wanted = make_declarations(
        make_manifest_data("a"), make_manifest_data("b", after="a"), groups=[{"name": "g", "max_active": 1}]
    )
    planned = [await app.plans.plan(wanted) for _ in range(6)]
    await asyncio.gather(*(app.plans.apply(each) for each in planned))
    assert await list_ids(app) == ["a", "b"]
    assert len(await app.manifests.versions("b")) == 1


async def test_service_starts_although_a_declared_manifest_has_ended(app: Tenuto, sql: Sql) -> None:
    database = await app.open()
    soon: date = (database.clock.now() + timedelta(days=2)).date()
    app.manifest("short", app.jobs.get_job("load"), trigger=cron("@daily", end=soon))
    assert await app.manifests.deploy() == {"short": "created"}
    past = cron("@daily", end=(database.clock.now() - timedelta(days=2)).date())
    over = replace(app.manifests.declared["short"], trigger=past)
    stored = json.dumps(over.to_fields())  # as if the days had passed
    await sql("UPDATE tenuto.manifests SET definition = $1, declared = $1 WHERE external_id = 'short'", stored)
    app.manifests.declared["short"] = over
    assert await app.manifests.deploy() == {"short": "unchanged"}


async def test_names_and_tags_with_invisible_characters_are_rejected(app: Tenuto) -> None:
    with raises_code("value.invisible_character") as rejected:
        await app.manifests.create(Manifest("seen", "load", "\x1b[31mred"))
    assert rejected.value.field == "name"
    with raises_code("value.invisible_character"):
        await app.plans.plan(make_declarations(make_manifest_data("seen", name="\x1b[31mred")))
    await app.manifests.create(Manifest("seen", "load", "red", on_demand=True))
    with raises_code("value.invisible_character"):
        await app.manifests.edit("seen", Manifest("seen", "load", "\x1b[31mred", on_demand=True))
    with raises_code("value.invisible_character") as rejected:
        await app.bulk_enqueue("seen", [{"rows": 1}], name="\u202eder")
    assert rejected.value.field == "name"
    with raises_code("value.invisible_character") as rejected:
        await app.one_shots.create("2031-05-17T12:00:00Z", "load", {}, tags=["\x9b1m"])
    assert rejected.value.field == "tags"
