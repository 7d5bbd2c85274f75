"""Repeated and concurrent requests for manifest runs: idempotency, and checks against the changed manifest."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.store.work import task_creation
from tests.support.errors import raises_code
from tests.support.model_values import make_new_task
from tests.support.waiting import eventually


async def test_repeated_manifest_request_creates_no_second_task_if_the_first_has_ended(app: Tenuto, url: str) -> None:
    @app.job
    async def bake(number: int = 0) -> None: ...

    app.manifest("bake", bake, on_demand=True)
    await app.manifests.deploy()
    db, request = await app.open(), new_id()
    first = await asyncpg.connect(url)
    async with first.transaction():
        await first.execute("SELECT FROM tenuto.manifests FOR UPDATE")
        second = asyncio.create_task(app.manifests.enqueue("bake", {"number": 1}, request_id=request))
        await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        task = make_new_task()
        task.id = request
        await task_creation.enqueue_tasks(db, [task])  # as by the first request, whose reply was lost
        await app.cancel(request)
    assert await second == request
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 0
    await first.close()


async def test_run_of_a_manifest_object_instead_of_its_external_id_is_refused(app: Tenuto) -> None:
    @app.job
    async def bake(number: int = 0) -> None: ...

    manifest: Any = app.manifest("bake", bake, on_demand=True)
    await app.manifests.deploy()
    with raises_code("manifest.external_id.invalid"):
        await app.manifests.run(manifest)
    with raises_code("manifest.external_id.invalid"):
        await app.manifests.enqueue(manifest, {"number": 1})


@pytest.mark.parametrize("operation", ["run", "enqueue", "retry"])
async def test_manifest_input_is_checked_against_the_job_at_the_time_of_the_run(
    app: Tenuto, url: str, operation: str
) -> None:
    @app.job(max_attempts=1)
    async def double(number: int) -> None:
        raise ValueError

    @app.job
    async def greet(who: str) -> None: ...

    app.manifest("any", double, on_demand=True)
    await app.manifests.deploy()
    async with app.worker(poll_seconds=60):
        await app.wait(await app.manifests.enqueue("any", {"number": 1}), 20)
    (letter,) = await app.dead_letters.list()
    db = await app.open()
    other = await asyncpg.connect(url)
    changing = other.transaction()
    await changing.start()
    await other.execute("UPDATE tenuto.manifests SET job = 'greet', definition = definition || $1", '{"job": "greet"}')
    if operation == "retry":
        begun = asyncio.create_task(app.dead_letters.retry(letter.id, input={"number": 5}))
    else:
        call = app.manifests.run if operation == "run" else app.manifests.enqueue
        begun = asyncio.create_task(call("any", {"number": 5}))
    await eventually(lambda: db.fetch_value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
    await changing.commit()
    with pytest.raises(Invalid):
        await begun
    assert await db.fetch_value("SELECT count(*) FROM tenuto.tasks") == 0
    await other.close()
