"""Requests for runs of manifests: what is asked for again is not made anew, even if it has ended since, and what is
asked for while a manifest changes is made for the manifest as it is then."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from tenuto import Tenuto
from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.store import tasks as store
from tests.support.model_values import a_new_task
from tests.support.waiting import eventually


async def test_what_ends_while_the_second_request_waits_is_not_made_anew(app: Tenuto, url: str) -> None:
    @app.job
    async def bake(number: int = 0) -> None: ...

    app.manifest("bake", bake, on_demand=True)
    await app.manifests.deploy()
    db, request = await app.open(), new_id()
    first = await asyncpg.connect(url)
    async with first.transaction():
        await first.execute("SELECT FROM tenuto.manifests FOR UPDATE")
        again = asyncio.create_task(app.manifests.enqueue("bake", {"number": 1}, request_id=request))
        await eventually(lambda: db.value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        made = a_new_task()
        made.id = request
        await store.start(db, [made])  # as by the first request, whose reply was lost
        await app.cancel(request)
    assert await again == request
    assert await db.value("SELECT count(*) FROM tenuto.tasks") == 0
    await first.close()


@pytest.mark.parametrize("asked", ["run", "enqueue", "retry"])
async def test_an_input_is_checked_for_the_job_that_a_manifest_has_by_the_time_its_run_is_made(
    app: Tenuto, url: str, asked: str
) -> None:
    @app.job(max_retries=1)
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
    if asked == "retry":
        begun = asyncio.create_task(app.dead_letters.retry(letter["id"], input={"number": 5}))
    else:
        ask = app.manifests.run if asked == "run" else app.manifests.enqueue
        begun = asyncio.create_task(ask("any", {"number": 5}))
    await eventually(lambda: db.value("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
    await changing.commit()
    with pytest.raises(Invalid):
        await begun
    assert await db.value("SELECT count(*) FROM tenuto.tasks") == 0
    await other.close()
