"""Dead letters (J4): retry with the same or another input, acknowledge, each once and with its author."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto import Actor, RetryPolicy, Tenuto
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.ids import new_id
from tenuto.settings import load_settings
from tenuto.store.work.dead_letters import DeadLetterRecord
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory

BEN = Actor.user("u-2", "Ben")


@pytest.fixture
async def failing(app: Tenuto) -> Tenuto:
    """An app with a manifest whose job fails unless its input says otherwise."""

    @app.job(max_attempts=1)
    async def bake(flour: int, salt: int = 1) -> int:
        if flour < 3:
            raise ValueError(f"only {flour} flour")
        return flour

    app.manifest("bread", bake, on_demand=True)
    await app.manifests.deploy()
    return app


async def create_dead_letter(app: Tenuto, **item: int) -> DeadLetterRecord:
    await app.wait(await app.manifests.enqueue("bread", item), 10)
    (letter, *_) = await app.dead_letters.list()
    return letter


async def test_dead_letter_has_input_and_error_of_every_attempt(app: Tenuto, worker: WorkerFactory) -> None:
    @app.job(retry=RetryPolicy(max_attempts=3, base_seconds=0.01, jitter=0))
    async def bake(flour: int) -> int:
        raise ValueError(f"only {flour} flour")

    app.manifest("bread", bake)
    await app.manifests.deploy()
    async with worker():
        await app.wait(await app.manifests.run("bread", {"flour": 2}), 10)
        (listed,) = await app.dead_letters.list()
        shown = await app.dead_letters.get(listed.id)
    assert (shown.attempt_count, shown.input, shown.reason) == (3, {"flour": 2}, "ValueError: only 2 flour")
    assert [record.attempt for record in shown.attempts] == [1, 2, 3]
    assert {record.error["message"] for record in shown.attempts} == {"only 2 flour"}


async def test_dead_letter_retry_runs_same_input_and_links_the_new_task(failing: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        letter = await create_dead_letter(failing, flour=2)
        task = await failing.acting_as(BEN).dead_letters.retry(letter.id, note="try once more")
        record = await failing.wait(task, 10)
        resolved = await failing.dead_letters.get(letter.id)
        assert (record.input, record.state, record.attempt) == ({"flour": 2, "salt": 1}, "failed", 1)
        assert record.initiator_name == "Ben"
        assert (resolved.state, resolved.retry_task_id, resolved.note) == ("retried", task, "try once more")
        assert (resolved.resolved_by, resolved.resolved_by_id) == ("Ben", "u-2")
        (second,) = await failing.dead_letters.list()
        assert (second.task_id, second.attempt_count) == (task, 1), "a new failure is a new dead letter"


async def test_dead_letter_retry_checks_a_new_input(failing: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        letter = await create_dead_letter(failing, flour=2)
        for wrong, field in (({"flour": "much"}, "flour"), ({"flour": 3, "sugar": 1}, "sugar"), ({}, "flour")):
            with pytest.raises(Invalid) as refused:
                await failing.dead_letters.retry(letter.id, input=wrong)
            assert refused.value.field == field
        assert (await failing.dead_letters.get(letter.id)).state == "awaiting_intervention"
        record = await failing.wait(await failing.dead_letters.retry(letter.id, input={"flour": 4}), 10)
        assert (record.output, record.input) == (4, {"flour": 4, "salt": 1})
        assert (await failing.dead_letters.get(letter.id)).input == {"flour": 2, "salt": 1}


async def test_dead_letter_is_resolved_once(failing: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        letter = await create_dead_letter(failing, flour=1)
        await failing.dead_letters.acknowledge(letter.id, note="thrown away")
        for act in (failing.dead_letters.acknowledge, failing.dead_letters.retry):
            with raises_code("dead_letter.already_resolved", Conflict):
                await act(letter.id)
        assert await failing.dead_letters.list() == []
        assert len(await failing.dead_letters.list(state="acknowledged")) == 1
        await failing.manifests.poll()
        assert await failing.dead_letters.list() == [], "resolved dead letters stay resolved"
        with raises_code("dead_letter.not_found", NotFound):
            await failing.dead_letters.get(new_id())
        with raises_code("dead_letter.not_found", NotFound):
            await failing.dead_letters.acknowledge(new_id())


async def test_dead_letter_note_is_required_if_configured(url: str, tmp_path: Any) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path, dead_letter_note_required=True))
    async with app:
        for act in (
            app.dead_letters.acknowledge(new_id()),
            app.dead_letters.retry(new_id(), note="  "),
            app.dead_letters.retry_all(),
            app.dead_letters.acknowledge_all(note=""),
        ):
            with raises_code("dead_letter.note.required", Invalid) as refused:
                await act
            assert refused.value.field == "note"
        with raises_code("dead_letter.not_found", NotFound):
            await app.dead_letters.acknowledge(new_id(), note="seen to")


async def test_retry_all_retries_only_dead_letters_that_matched_at_the_call(
    failing: Tenuto, worker: WorkerFactory
) -> None:
    async with worker():
        batch = await failing.bulk_enqueue("bread", [{"flour": n % 2} for n in range(6)])
        await batch.wait(10)
        single = await create_dead_letter(failing, flour=0)
        (kind,) = await failing.dead_letters.groups()
        assert (kind.dead_letter_count, kind.external_id) == (7, "bread")
        chosen = await failing.dead_letters.select(batch=batch.id)
        assert len(chosen) == 6
        assert await failing.dead_letters.retry_all(batch=batch.id, note="again") == 6
        await batch.wait(10)
        assert await failing.dead_letters.retry_all(until=single.dead_lettered_at) == 1
        open_now = await failing.dead_letters.select()
        assert set(open_now).isdisjoint(chosen)
        assert await failing.dead_letters.acknowledge_all(fingerprint="0" * 12) == 0
        assert await failing.dead_letters.acknowledge_all(fingerprint=kind.fingerprint) >= 6


async def test_dead_letter_of_deleted_manifest_can_only_be_acknowledged(failing: Tenuto, worker: WorkerFactory) -> None:
    async with worker():
        letter = await create_dead_letter(failing, flour=1)
        await failing.manifests.delete("bread")
        with raises_code("dead_letter.manifest.deleted", Conflict):
            await failing.dead_letters.retry(letter.id)
        assert await failing.dead_letters.retry_all() == 0
        await failing.dead_letters.acknowledge(letter.id)


async def test_dead_letter_is_not_retried_while_a_run_of_its_item_is_open(
    failing: Tenuto, worker: WorkerFactory
) -> None:
    async with worker():
        await failing.wait(await failing.manifests.enqueue("bread", {"flour": 1}, key="a"), 10)
    (letter,) = await failing.dead_letters.list()
    await failing.manifests.enqueue("bread", {"flour": 5}, key="a")
    with raises_code("manifest.run.already_open", Conflict):
        await failing.dead_letters.retry(letter.id)
    assert (await failing.dead_letters.get(letter.id)).state == "awaiting_intervention"
    assert await failing.dead_letters.retry_all() == 0


async def test_failures_of_one_kind_share_a_fingerprint_whatever_they_say(
    failing: Tenuto, worker: WorkerFactory
) -> None:
    async with worker():
        batch = await failing.bulk_enqueue("bread", [{"flour": n} for n in range(3)])
        await batch.wait(10)
        (kind,) = await failing.dead_letters.groups()
        assert kind.dead_letter_count == 3
        assert len(await failing.dead_letters.list(fingerprint=kind.fingerprint)) == 3


async def test_groups_of_dead_letters_have_manifests_trend_and_last_resolution(
    failing: Tenuto, worker: WorkerFactory
) -> None:
    failing.manifest("cake", failing.jobs.get_job("bake"), on_demand=True)
    await failing.manifests.deploy()
    async with worker():
        first = await create_dead_letter(failing, flour=2)
        await failing.acting_as(BEN).dead_letters.acknowledge(first.id, note="bought flour")
        await create_dead_letter(failing, flour=1)
        await failing.wait(await failing.manifests.enqueue("cake", {"flour": 2}), 10)
    [group] = await failing.dead_letters.groups()
    assert (group.dead_letter_count, list(group.manifests)) == (2, ["bread", "cake"])
    assert (len(group.hourly_counts), group.hourly_counts[-1], sum(group.hourly_counts)) == (24, 3, 3)
    last = group.last_resolution
    assert last is not None
    assert (last.id, last.state, last.resolved_by, last.note) == (first.id, "acknowledged", "Ben", "bought flour")
