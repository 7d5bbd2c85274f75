"""The line that tasks stand in: what one program asks for in turn is taken in turn, whichever way it was asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from tenuto import Tenuto
from tenuto.operations.batch_inputs import SIZE


@pytest.fixture
async def baking(app: Tenuto) -> Tenuto:
    @app.job
    async def bake(word: str) -> None: ...

    app.manifest("bakery", bake, on_demand=True)
    await app.manifests.deploy()
    return app


async def line(app: Tenuto) -> list[str]:
    """What the tasks were asked with, in the order in which they are taken."""
    tasks = await (await app.open()).all(
        "SELECT input::json ->> 'word' AS word FROM tenuto.tasks ORDER BY rank, run_at, id"
    )
    return [task["word"] for task in tasks]


@pytest.mark.parametrize("off", [-2, 0, 2], ids=["clock behind", "clock right", "clock ahead"])
async def test_one_by_one_in_bulk_and_as_a_batch_they_stand_in_the_order_of_asking(baking: Tenuto, off: int) -> None:
    clock = (await baking.open()).clock
    clock.heard(clock.now() + timedelta(seconds=off))
    bake = baking.jobs.get("bake")
    await baking.enqueue_many(bake, ["1", "2"])
    await baking.enqueue(bake, "3")
    await baking.bulk_enqueue("bakery", [{"word": "4"}, {"word": "5"}])
    await baking.enqueue(bake, "6")
    await baking.bulk_enqueue("bakery", [{"word": "7"}], key=lambda one: str(one["word"]))
    await baking.enqueue(bake, "8")
    await baking.bulk_enqueue("bakery", [{"word": "9"}], atomic=True)
    await baking.enqueue_many(bake, ["A"])
    assert "".join(await line(baking)) == "123456789A"


@pytest.mark.parametrize("key", [None, lambda one: str(one["word"])], ids=["without keys", "with keys"])
async def test_what_comes_late_into_a_batch_does_not_go_before_what_was_asked_meanwhile(
    baking: Tenuto, key: Callable[[dict[str, str]], str] | None
) -> None:
    async def slow() -> AsyncIterator[dict[str, str]]:
        for number in range(SIZE):
            yield {"word": f"early {number}"}
        await baking.enqueue(baking.jobs.get("bake"), "meanwhile")
        yield {"word": "late"}

    await baking.bulk_enqueue("bakery", slow(), key=key)
    assert (await line(baking))[-2:] == ["meanwhile", "late"]
