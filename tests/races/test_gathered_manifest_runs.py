"""Concurrent runs of one manifest share a transaction, and each caller gets its own result or error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from tenuto import Actor, Tenuto
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.model.access.operation_context import IdempotencyKey
from tenuto.operations.definitions.manifests import Manifests
from tenuto.postgres.database import Database
from tenuto.store.work.task_creation import SQL
from tests.races.proxy import Proxy
from tests.support.waiting import eventually

KEY = Actor.api_key("k-1", "billing")
both_callers = pytest.mark.parametrize("is_audited", [False, True], ids=["by the program", "by an API key"])


@pytest.fixture
async def app(proxy: Proxy, tmp_path: Path) -> AsyncIterator[Tenuto]:
    async with Tenuto(proxy.url, home=tmp_path) as app:

        @app.job(name="bread.bake")
        async def bake(loaves: int) -> None: ...

        app.manifest("bread", bake, on_demand=True)
        app.manifest("cake", bake, on_demand=True, properties={"loaves": 1})
        await app.manifests.deploy()
        yield app


def manifests_of(app: Tenuto, is_audited: bool) -> Manifests:
    return (app.acting_as(KEY) if is_audited else app).manifests


async def stored_ids(db: Database) -> set[UUID]:
    return {row["id"] for row in await db.fetch_all("SELECT id FROM tenuto.tasks")}


async def audit_count(db: Database) -> int:
    return int(await db.fetch_value("SELECT count(*) FROM tenuto.audit WHERE action LIKE 'manifest.%'"))


@both_callers
async def test_concurrent_runs_of_a_manifest_are_written_in_two_transactions(
    app: Tenuto, db: Database, is_audited: bool
) -> None:
    before = await audit_count(db)
    runs = manifests_of(app, is_audited)
    ids = await asyncio.gather(*(runs.enqueue("bread", number) for number in range(30)))
    assert await stored_ids(db) == set(ids)
    transactions = await db.fetch_value("SELECT count(DISTINCT xmin::text) FROM tenuto.tasks")
    assert transactions == 2, "the first run at once, the others together"
    assert await audit_count(db) - before == (30 if is_audited else 0)


@both_callers
async def test_refused_runs_do_not_fail_those_written_with_them(app: Tenuto, db: Database, is_audited: bool) -> None:
    runs = manifests_of(app, is_audited)
    before = await audit_count(db)
    results = await asyncio.gather(
        runs.enqueue("bread", 1, key="a"), runs.enqueue("bread", 2), runs.enqueue("bread", 3, key="a"),
        runs.enqueue("bread", "none"), runs.enqueue("bread", 4), runs.enqueue("wine", 1), runs.run("cake"),
        runs.run("cake"), return_exceptions=True,
    )  # fmt: skip
    assert [type(each) for each in results] == [UUID, UUID, Conflict, Invalid, UUID, NotFound, UUID, Conflict]
    created = {each for each in results if isinstance(each, UUID)}
    assert await stored_ids(db) == created
    assert await audit_count(db) - before == (len(created) if is_audited else 0)


@pytest.mark.parametrize("lose", ["lose_reply", "lose_request"])
@both_callers
async def test_runs_that_lost_their_shared_reply_are_created_once(
    app: Tenuto, db: Database, proxy: Proxy, lose: str, is_audited: bool
) -> None:
    runs = manifests_of(app, is_audited)
    await runs.enqueue("bread", 0)
    before = await audit_count(db)
    getattr(proxy, lose)("COMMIT", within=SQL.enqueue_audited_tasks if is_audited else SQL.enqueue_tasks)
    ids = await asyncio.gather(*(runs.enqueue("bread", number, key=f"item {number}") for number in range(10)))
    assert proxy.lost == 1
    assert set(ids) < await stored_ids(db)
    assert len(await stored_ids(db)) == 11
    assert await audit_count(db) - before == (10 if is_audited else 0)


async def test_run_that_waits_for_its_manifest_delays_no_run_of_another(app: Tenuto, db: Database, url: str) -> None:
    other = await asyncpg.connect(url)
    async with other.transaction():
        await other.execute("SELECT FROM tenuto.manifests WHERE external_id = 'bread' FOR UPDATE")
        waiting = asyncio.create_task(app.manifests.enqueue("bread", 1))
        await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        async with asyncio.timeout(5):
            await asyncio.gather(*(app.manifests.enqueue("cake", {}) for _ in range(3)))
    assert await waiting in await stored_ids(db)
    await other.close()


async def test_key_of_a_refused_run_can_be_used_again(app: Tenuto, db: Database) -> None:
    async def request(key: str, subject: UUID) -> UUID:
        idempotency_key = IdempotencyKey("api_key:k-1", key, b"print", subject)
        runs = app.acting_as(KEY, idempotency_key=idempotency_key).manifests
        return await runs.enqueue("bread", 1, key="the item", request_id=subject)

    subjects = [new_id() for _ in range(4)]
    results = await asyncio.gather(
        *(request(f"key {number}", subject) for number, subject in enumerate(subjects)), return_exceptions=True
    )
    assert [type(each) for each in results] == [UUID] + [Conflict] * 3
    assert await db.fetch_value("SELECT array_agg(key) FROM tenuto.requests") == ["key 0"]
    await app.cancel(subjects[0])
    assert await request("key 1", subjects[1]) == subjects[1]
    assert await stored_ids(db) == {subjects[1]}
