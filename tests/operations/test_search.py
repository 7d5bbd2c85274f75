"""Search by the beginning of an id and by name."""

from __future__ import annotations

from tenuto import Step, Tenuto, every
from tenuto.operations.definitions.schedules import schedule_definition
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory


async def test_search_finds_objects_of_every_kind_by_the_beginning_of_their_id(app: Tenuto) -> None:
    @app.job
    async def bake(loaves: int = 1) -> int:
        return loaves

    app.manifest("oven", bake, on_demand=True)
    await app.manifests.deploy()
    await app.schedules.create(schedule_definition("Nightly", every("1d"), [Step.job(bake)]))
    run = await app.schedules.run("Nightly")
    task = await app.enqueue(bake)
    ended = await app.enqueue(bake)
    await app.cancel(ended.id)
    shot = await app.one_shots.create("2131-01-01T00:00:00Z", "log.append", {"message": "x"})
    batch = await app.batches.enqueue("oven", [{}])
    operation = await app.bulk_operations.create("task.cancel", "name:none")
    schedule = await app.schedules.get("Nightly")
    expected = {
        run.execution_id: ("execution", "Nightly"), task.id: ("task", "bake"), ended.id: ("activity", "bake"),
        shot.id: ("one_shot", "log.append"), batch.id: ("batch", "oven"), operation.id: ("operation", "task.cancel"),
        schedule.id: ("schedule", "Nightly"),
    }  # fmt: skip
    for id, (kind, name) in expected.items():
        assert id is not None
        [hit] = await app.reports.search(str(id))
        assert (hit.kind, hit.name, hit.id) == (kind, name, id)
    assert len(await app.reports.search(str(task.id)[:4])) > 1, "a short prefix matches several objects"


async def test_search_finds_names_and_lists_whole_names_and_beginnings_first(
    app: Tenuto, worker: WorkerFactory
) -> None:
    @app.job
    async def mail(to: str = "") -> None: ...

    for name in ("daily mail", "mail merge", "Hourly"):
        await app.schedules.create(schedule_definition(name, every("1d"), [Step.job(mail)]))
    app.manifest("mails", mail, on_demand=True)
    await app.manifests.deploy()
    async with worker(name="mailman", queues=["mail"]):
        hits = [(hit.kind, hit.name) for hit in await app.reports.search("MAIL")]
    assert hits[:2] == [("job", "mail"), ("queue", "mail")]
    assert sorted(hits[2:5]) == [("manifest", "mails"), ("schedule", "mail merge"), ("worker", "mailman")]
    assert hits[5:] == [("schedule", "daily mail")]


async def test_search_returns_at_most_twenty_objects(app: Tenuto) -> None:
    @app.job
    async def bake() -> None: ...

    for number in range(25):
        await app.schedules.create(schedule_definition(f"bread {number}", every("1d"), [Step.job(bake)]))
    assert len(await app.reports.search("bread")) == 20
    assert len(await app.reports.search("bread", limit=3)) == 3
    assert await app.reports.search("no such thing") == []
    assert await app.reports.search("%") == []


async def test_search_without_text_is_rejected(app: Tenuto) -> None:
    for text in ("", "  ", "x" * 201):
        with raises_code("value.label.invalid"):
            await app.reports.search(text)
    with raises_code("list.limit.out_of_range"):
        await app.reports.search("x", limit=21)
