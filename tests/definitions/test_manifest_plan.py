"""Manifests and groups of files: looking changes nothing, doing changes what was shown, all of it or nothing."""

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
from tenuto.errors import Conflict, Invalid
from tenuto.model.manifests import Manifest
from tenuto.operations.plans import Declarations, ApplyPlan, read_declarations

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


@pytest.fixture
def app(app: Tenuto) -> Tenuto:
    @app.job(timeout="1h", max_retries=7)
    async def load(rows: int = 1) -> None: ...

    return app


def manifest(external_id: str, **fields: Any) -> dict[str, Any]:
    return {"external_id": external_id, "job": "load", **fields}


def files(*manifests: dict[str, Any], **sections: Any) -> Declarations:
    return read_declarations([Document("file.yaml", {"manifests": list(manifests), **sections})])


async def applied(app: Tenuto, wanted: Declarations, *, prune: bool = False) -> ApplyPlan:
    planned = await app.plans.plan(wanted, prune=prune)
    await app.plans.apply(planned, reason="because")
    return planned


def effects(planned: ApplyPlan) -> dict[str, str]:
    return {change.key: change.effect for change in planned.manifests.changes}


async def names(app: Tenuto) -> list[str]:
    return [row["external_id"] for row in await app.manifests.list()]


async def test_a_plan_changes_nothing_and_doing_it_again_neither(app: Tenuto, sql: Sql) -> None:
    wanted = files(manifest("b", after="a"), manifest("a", cron="@daily"), groups=[{"name": "g", "max_active": 3}])
    planned = await app.plans.plan(wanted)
    assert list(effects(planned)) == ["a", "b"], "what others run after comes first"
    assert await sql("SELECT * FROM tenuto.manifests") == []
    await app.plans.apply(planned)
    assert await names(app) == ["a", "b"]
    assert [group["max_active"] for group in await app.manifests.groups()] == [3]
    before = await sql("SELECT * FROM tenuto.manifests ORDER BY id")
    again = await applied(app, wanted)
    assert (again.has_changes, effects(again)) == (False, {"a": "unchanged", "b": "unchanged"})
    assert await sql("SELECT * FROM tenuto.manifests ORDER BY id") == before
    assert len(await app.manifests.versions("a")) == 1


async def test_a_manifest_that_has_come_to_its_end_can_still_be_changed_but_not_to_another_end_that_is_over(
    app: Tenuto, sql: Sql
) -> None:
    await applied(app, files(manifest("over", cron="@daily", end="2090-01-01")))
    ended = """definition || jsonb_build_object('trigger', definition -> 'trigger' || '{"end": "2020-01-01"}')"""
    await sql(f"UPDATE tenuto.manifests SET definition = {ended}, next_run_at = NULL")
    planned = await applied(app, files(manifest("over", cron="@daily", end="2020-01-01", priority=3)))
    assert effects(planned) == {"over": "changed"}
    assert (await app.manifests.get("over")).manifest.priority == 3
    with pytest.raises(Invalid, match="never runs up to its end"):
        await app.plans.plan(files(manifest("over", cron="@hourly", end="2020-01-01")))


async def test_what_a_file_leaves_out_is_as_the_job_has_it(app: Tenuto) -> None:
    await applied(app, files(manifest("x", retry={"base_seconds": 1}, properties={"rows": "5"})))
    found = (await app.manifests.get("x")).manifest
    assert (found.policy.retry.max_retries, found.policy.retry.base_seconds, found.policy.timeout_seconds) == (
        7,
        1,
        3600,
    )
    assert (found.properties, found.property_type) == ({"rows": 5}, "rows: int")


async def test_an_operators_change_stays_until_the_file_says_something_new(app: Tenuto) -> None:
    await applied(app, files(manifest("x", max_active=3)))
    present = await app.manifests.get("x")
    await app.manifests.edit("x", replace(present.manifest, max_active=9))
    await app.manifests.disable("x")
    kept = await applied(app, files(manifest("x", max_active=3)))
    assert effects(kept) == {"x": "kept"}
    assert (await app.manifests.get("x")).manifest.max_active == 9
    changed = await applied(app, files(manifest("x", max_active=4)))
    assert effects(changed) == {"x": "changed"}
    found = await app.manifests.get("x")
    assert (found.manifest.max_active, found.enabled) == (4, False)


async def test_of_a_group_only_what_is_said_is_changed(app: Tenuto) -> None:
    await app.manifests.change_group("g", max_active=5, priority=2, enabled=False)
    planned = await applied(app, files(groups=[{"name": "g", "max_active": "none"}]))
    assert [(each.effect, each.differences) for each in planned.manifests.groups] == [
        ("changed", {"max_active": (5, None)})
    ]
    (found,) = await app.manifests.groups()
    assert (found["max_active"], found["priority"], found["enabled"]) == (None, 2, False)


async def test_what_changed_since_it_was_planned_is_refused_and_nothing_is_done(app: Tenuto) -> None:
    await applied(app, files(manifest("x")))
    step = {"name": "s", "steps": [{"job": "load"}]}
    planned = await app.plans.plan(files(manifest("x", cron="@daily"), manifest("y"), schedules=[step]))
    await app.manifests.disable("x")
    with pytest.raises(Conflict, match="'x' was changed while this was planned"):
        await app.plans.apply(planned)
    assert await names(app) == ["x"]
    assert await app.schedules.list() == []


async def test_only_what_a_file_declared_is_pruned_dependents_first(app: Tenuto) -> None:
    await app.manifests.create((await app.plans.plan(files(manifest("by-hand")))).manifests.changes[0].definition)
    await applied(app, files(manifest("a"), manifest("b", after="a"), manifest("c", after="b")))
    named = await applied(app, files(manifest("a")))
    assert [each.external_id for each in named.manifests.undeclared] == ["b", "c"]
    assert await names(app) == ["a", "b", "by-hand", "c"]
    with pytest.raises(Invalid, match="there is no manifest 'b'"):
        await app.plans.plan(files(manifest("z", after="b")), prune=True)
    pruned = await applied(app, files(), prune=True)
    assert pruned.deleted == ["c", "b", "a"]
    assert await names(app) == ["by-hand"]


async def test_pruning_looks_at_all_of_them(app: Tenuto, sql: Sql) -> None:
    await sql(
        "INSERT INTO tenuto.manifests (id, external_id, name, enabled, definition, job, schedule_type, version, origin,"
        " created_at, updated_at, planned) SELECT gen_random_uuid(), name, name, true,"
        " jsonb_build_object('external_id', name, 'job', 'load'), 'load', 'none', 1, 'file', now(), now(), true"
        " FROM (SELECT 'm' || n AS name FROM generate_series(1, 620) AS n) AS many"
    )
    pruned = await applied(app, files(manifest("m7")), prune=True)
    assert len(pruned.deleted) == 619
    assert await names(app) == ["m7"]


async def test_a_circle_through_what_is_stored_is_refused(app: Tenuto) -> None:
    await applied(app, files(manifest("a"), manifest("b", after="a")))
    with pytest.raises(Invalid, match="would run after itself") as refused:
        await app.plans.plan(files(manifest("a", after="b")))
    assert refused.value.field == "file.yaml: manifests[0].after"


async def test_what_code_declares_is_not_declared_in_a_file_too(app: Tenuto) -> None:
    app.manifest("x", app.jobs.get_job("load"))
    with pytest.raises(Invalid, match="declared in code too"):
        await app.plans.plan(files(manifest("x")))


async def test_many_who_apply_the_same_file_at_once_make_it_once(app: Tenuto) -> None:
    wanted = files(manifest("a"), manifest("b", after="a"), groups=[{"name": "g", "max_active": 1}])
    planned = [await app.plans.plan(wanted) for _ in range(6)]
    await asyncio.gather(*(app.plans.apply(each) for each in planned))
    assert await names(app) == ["a", "b"]
    assert len(await app.manifests.versions("b")) == 1


async def test_a_service_starts_though_a_manifest_of_its_program_is_over_by_now(app: Tenuto, sql: Sql) -> None:
    database = await app.open()
    soon: date = (database.clock.now() + timedelta(days=2)).date()
    app.manifest("short", app.jobs.get_job("load"), trigger=cron("@daily", end=soon))
    assert await app.manifests.deploy() == {"short": "created"}
    past = cron("@daily", end=(database.clock.now() - timedelta(days=2)).date())
    over = replace(app.manifests.declared["short"], trigger=past)
    stored = json.dumps(over.to_fields())  # as if the days had gone by
    await sql("UPDATE tenuto.manifests SET definition = $1, declared = $1 WHERE external_id = 'short'", stored)
    app.manifests.declared["short"] = over
    assert await app.manifests.deploy() == {"short": "unchanged"}


async def test_no_manifest_batch_or_one_shot_is_given_a_name_or_tag_nobody_sees(app: Tenuto) -> None:
    with pytest.raises(Invalid, match=r"U\+001B") as refusal:
        await app.manifests.create(Manifest("seen", "load", "\x1b[31mred"))
    assert refusal.value.field == "name"
    with pytest.raises(Invalid, match=r"U\+001B"):
        await app.plans.plan(files(manifest("seen", name="\x1b[31mred")))
    await app.manifests.create(Manifest("seen", "load", "red", on_demand=True))
    with pytest.raises(Invalid, match=r"U\+001B"):
        await app.manifests.edit("seen", Manifest("seen", "load", "\x1b[31mred", on_demand=True))
    with pytest.raises(Invalid, match=r"U\+202E") as refusal:
        await app.bulk_enqueue("seen", [{"rows": 1}], name="\u202eder")
    assert refusal.value.field == "name"
    with pytest.raises(Invalid, match=r"U\+009B") as refusal:
        await app.one_shots.create("2031-05-17T12:00:00Z", "load", {}, tags=["\x9b1m"])
    assert refusal.value.field == "tags"
