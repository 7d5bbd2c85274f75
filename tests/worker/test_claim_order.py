"""Claim order: tasks of one program are claimed in the order of submission, whichever way they were submitted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from tenuto import Tenuto
from tenuto.operations.work.batch_inputs import CHUNK_SIZE


@pytest.fixture
async def bakery_app(app: Tenuto) -> Tenuto:
    @app.job
    async def bake(word: str) -> None: ...

    app.manifest("bakery", bake, on_demand=True)
    await app.manifests.deploy()
    return app


async def list_inputs_in_claim_order(app: Tenuto) -> list[str]:
    """Return the inputs of the tasks in claim order."""
    tasks = await (await app.open()).fetch_all(
        "SELECT input::json ->> 'word' AS word FROM tenuto.tasks ORDER BY rank, run_at, id"
    )
    return [task["word"] for task in tasks]


@pytest.mark.parametrize("off", [-2, 0, 2], ids=["clock behind", "clock right", "clock ahead"])
async def test_single_bulk_and_batch_tasks_are_claimed_in_submission_order(bakery_app: Tenuto, off: int) -> None:
    clock = (await bakery_app.open()).clock
    clock.synchronize(clock.now() + timedelta(seconds=off))
    bake = bakery_app.jobs.get_job("bake")
    await bakery_app.enqueue_many(bake, ["1", "2"])
    await bakery_app.enqueue(bake, "3")
    await bakery_app.bulk_enqueue("bakery", [{"word": "4"}, {"word": "5"}])
    await bakery_app.enqueue(bake, "6")
    await bakery_app.bulk_enqueue("bakery", [{"word": "7"}], key=lambda one: str(one["word"]))
    await bakery_app.enqueue(bake, "8")
    await bakery_app.bulk_enqueue("bakery", [{"word": "9"}], atomic=True)
    await bakery_app.enqueue_many(bake, ["A"])
    assert "".join(await list_inputs_in_claim_order(bakery_app)) == "123456789A"


@pytest.mark.parametrize("key", [None, lambda one: str(one["word"])], ids=["without keys", "with keys"])
async def test_late_batch_items_do_not_overtake_later_tasks(
    bakery_app: Tenuto, key: Callable[[dict[str, str]], str] | None
) -> None:
    async def slow() -> AsyncIterator[dict[str, str]]:
        for number in range(CHUNK_SIZE):
            yield {"word": f"early {number}"}
        await bakery_app.enqueue(bakery_app.jobs.get_job("bake"), "meanwhile")
        yield {"word": "late"}

    await bakery_app.bulk_enqueue("bakery", slow(), key=key)
    assert (await list_inputs_in_claim_order(bakery_app))[-2:] == ["meanwhile", "late"]
