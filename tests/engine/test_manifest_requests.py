"""A run of a manifest that is asked for again, as no reply came, is not made anew, even if it has ended since."""

from __future__ import annotations

import asyncio

import asyncpg

from tenuto import Tenuto
from tenuto.ids import new_id
from tenuto.store import tasks as store
from tests.model.making import a_new_task
from tests.waiting import eventually


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
