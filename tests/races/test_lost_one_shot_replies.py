"""One-shots over a connection that loses replies: created once, audited once, and cancelling all reports the
cancelled ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from tenuto import Actor, Tenuto
from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.model.access.operation_context import IdempotencyKey, OperationContext
from tenuto.postgres.database import Database
from tenuto.store.access.audit_recorder import AuditEntry
from tenuto.store.work.task_creation import SQL, insert_audited_tasks, insert_tasks
from tenuto.store.work.task_outcomes import end_tasks
from tests.races.proxy import Proxy
from tests.races.task_actions import claim, complete
from tests.support.errors import raises_code
from tests.support.model_values import make_new_task
from tests.support.waiting import eventually

FAR_FUTURE = "2056-07-07T15:00:00+08:00"
KEY = Actor.api_key("k-1", "billing")


@pytest.fixture
async def proxied_app(proxy: Proxy, tmp_path: Path) -> AsyncIterator[Tenuto]:
    async with Tenuto(proxy.url, home=tmp_path) as app:

        @app.job(name="bread.bake")
        async def bake(loaves: int) -> None: ...

        yield app


def acting(app: Tenuto, id: UUID) -> Tenuto:
    """Return the app for a request with its own idempotency key."""
    return app.acting_as(KEY, idempotency_key=IdempotencyKey("api_key:k-1", "order-7", b"print", id))


async def row_counts(db: Database) -> tuple[int, ...]:
    tables = ("tasks", "audit", "requests")
    return tuple([await db.fetch_value(f"SELECT count(*) FROM tenuto.{table}") for table in tables])


@pytest.mark.parametrize("lose", ["lose_reply", "lose_request"])
async def test_one_shot_with_lost_reply_is_created_and_audited_once(
    proxied_app: Tenuto, db: Database, proxy: Proxy, lose: str
) -> None:
    getattr(proxy, lose)(SQL.enqueue_task)
    plain = await proxied_app.one_shots.create(FAR_FUTURE, "bread.bake", {"loaves": 1})
    assert (plain.created, proxy.lost) == (True, 1)

    getattr(proxy, lose)(SQL.enqueue_audited_tasks)
    id = new_id()
    made = await acting(proxied_app, id).one_shots.create(FAR_FUTURE, "bread.bake", {"loaves": 1}, id=id)
    assert (made.id, proxy.lost) == (id, 1)
    assert await row_counts(db) == (2, 1, 1)

    other = new_id()
    with raises_code("request.idempotency_key.in_use", Conflict):
        await acting(proxied_app, other).one_shots.create(FAR_FUTURE, "bread.bake", {"loaves": 1}, id=other)
    assert await row_counts(db) == (2, 1, 1), "a request completed by another process creates nothing"


@pytest.mark.parametrize(
    ("statement", "beside"),
    [(SQL.enqueue_task, 0), (SQL.enqueue_tasks, 1), (SQL.enqueue_audited_tasks, 0), (SQL.enqueue_audited_tasks, 1)],
    ids=["unaudited", "several unaudited", "audited", "several audited"],
)
async def test_one_shot_ending_during_a_repeated_request_is_not_created_again(
    proxied_app: Tenuto,
    db: Database,
    proxy: Proxy,
    worker_id: UUID,
    other: asyncpg.Connection,
    statement: str,
    beside: int,
) -> None:
    """The repeated request finds no activity yet, and the task is gone by the time it can be inserted."""
    ending: list[asyncio.Task[None]] = []

    async def begin_to_finish() -> None:
        claimed = await claim(db, worker_id, count=1 + beside)
        transaction = other.transaction()
        await transaction.start()
        await end_tasks(other, [complete(db, task) for task in claimed])

        async def commit_when_awaited() -> None:
            await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
            await transaction.commit()

        ending.append(asyncio.create_task(commit_when_awaited()))

    is_audited = statement == SQL.enqueue_audited_tasks

    async def create() -> list[bool | None]:
        database = await proxied_app.open()
        if not beside:
            app = proxied_app.acting_as(KEY) if is_audited else proxied_app
            made = await app.one_shots.create(database.clock.now(), "bread.bake", {"loaves": 1})
            return [made.created]
        tasks = [make_new_task(origin="once") for _ in range(1 + beside)]
        if not is_audited:
            return [isinstance(created, bool) for created in await insert_tasks(database, tasks)]
        context = OperationContext(KEY, "one_shot.create", "here")
        requests = [(task, AuditEntry(context, target=str(task.id))) for task in tasks]
        return [created is not None for created in await insert_audited_tasks(database, requests)]

    await proxied_app.open()
    proxy.lose_reply(statement)
    proxy.after_loss = begin_to_finish
    made = await create()
    await asyncio.gather(*ending)

    assert (proxy.lost, made) == (1, [True] * (1 + beside))
    assert (await row_counts(db))[:2] == (0, 1 + beside if is_audited else 0)
    assert await db.fetch_value("SELECT count(*) FROM tenuto.activities") == 1 + beside


async def test_one_shot_requested_again_by_id_while_ending_is_not_created_again(
    proxied_app: Tenuto, db: Database, worker_id: UUID, other: asyncpg.Connection
) -> None:
    now, id = (await proxied_app.open()).clock.now(), new_id()
    await proxied_app.one_shots.create(now, "bread.bake", {"loaves": 1}, id=id)
    (task,) = await claim(db, worker_id)
    async with other.transaction():
        await end_tasks(other, [complete(db, task)])
        repeated = asyncio.create_task(proxied_app.one_shots.create(now, "bread.bake", {"loaves": 1}, id=id))
        await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))

    assert not (await repeated).created
    assert await row_counts(db) == (0, 0, 0)


async def test_cancelling_all_one_shots_with_lost_reply_reports_the_cancelled_ones(
    proxied_app: Tenuto, db: Database, proxy: Proxy
) -> None:
    made = [(await proxied_app.one_shots.create(FAR_FUTURE, "bread.bake", {"loaves": n})).id for n in range(5)]
    running = await proxied_app.one_shots.create(
        (await proxied_app.open()).clock.now() - timedelta(1), "bread.bake", {"loaves": 9}
    )
    await db.fetch_all(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = gen_random_uuid(), claimed_at = now(),"
        " lease_until = now() + interval '1 h' WHERE id = $1",
        running.id,
    )
    proxy.lose_reply("COMMIT")
    wiped = await proxied_app.acting_as(KEY).one_shots.cancel_all()
    assert proxy.lost == 1
    assert set(wiped.terminated) == {*made, running.id}
    assert len(wiped.terminated) == 6
    assert wiped.stopping == [running.id]
    assert await row_counts(db) == (1, 1, 0)
    assert await proxied_app.one_shots.list() == []
