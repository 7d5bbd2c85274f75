"""Obstacles: lists, doctor, metrics and probes show enabled schedules and manifests that do not run on their own."""

from __future__ import annotations

from uuid import UUID

import pytest

from tenuto import Step, Tenuto, every, manual
from tenuto.model.definitions.blocking_reasons import Obstacle, ObstacleKind, describe_obstacle, obstacle_remedy
from tenuto.model.doctor_findings import Severity
from tests.support.manifests import claim_runs, finish_task
from tests.support.tasks import Register


def declare(app: Tenuto, *schedules: str, manifests: tuple[str, ...] = ()) -> None:
    @app.job(max_attempts=1)
    async def work() -> None: ...

    for name in schedules:
        app.schedule(name, every("1h"), [Step.job(work)])
    for external_id in manifests:
        app.manifest(external_id, work, trigger=every("1h"))


def second_app(app: Tenuto) -> Tenuto:
    return Tenuto(settings=app.settings)


async def obstacle_kinds(app: Tenuto, external_id: str) -> list[str]:
    (found,) = [each for each in await app.manifests.list() if each.external_id == external_id]
    return [str(each.kind) for each in found.obstacles]


async def severities(app: Tenuto) -> dict[str, Severity]:
    return {finding.name: finding.severity for finding in await app.doctor() if finding.severity is not Severity.OK}


@pytest.mark.parametrize("choice", ["block", "continue"])
async def test_manifest_blocked_by_a_dead_letter_is_shown(app: Tenuto, register_worker: Register, choice: str) -> None:
    @app.job(max_attempts=1)
    async def work() -> None: ...

    app.manifest("tick", work, trigger=every("1h"), on_dead_letter=choice)  # type: ignore[arg-type]
    await app.manifests.deploy()
    database = await app.open()
    worker_id: UUID = await register_worker()
    await app.manifests.run("tick")
    (task,) = await claim_runs(database, worker_id)
    await finish_task(database, task, "failed")
    async with app.scheduler():
        blocked = choice == "block"
        assert await obstacle_kinds(app, "tick") == (["dead_letter"] if blocked else [])
        assert ("manifest_blocked" in await severities(app)) == blocked
        text = await app.status.metrics()
        assert ('tenuto_definitions_stopped{kind="manifest",obstacle="dead_letter"} 1.0' in text) == blocked
        (letter,) = await app.dead_letters.list()
        await app.dead_letters.acknowledge(letter.id)
        assert await obstacle_kinds(app, "tick") == []


async def test_manifest_that_waits_for_a_disabled_one_is_shown(app: Tenuto) -> None:
    @app.job
    async def work() -> None: ...

    app.manifest("import-hr", work, trigger=every("1h"))
    app.manifest("import-ad", work, after="import-hr")
    await app.manifests.deploy()
    async with app.scheduler():
        assert await obstacle_kinds(app, "import-ad") == []
        await app.manifests.disable("import-hr")
        assert await app.manifests.dependents("import-hr") == ["import-ad"]
        assert await app.manifests.obstacles("import-ad") == [Obstacle(ObstacleKind.DEPENDENCY_DISABLED, "import-hr")]
        assert (await app.manifests.details("import-ad")).obstacles
        found = next(each for each in await app.doctor() if each.name == "manifest_dependency_disabled")
        assert found.severity is Severity.WARNING
        assert found.details == ["manifest import-ad: waits for import-hr, which is disabled"]
        assert found.remedy == "tenuto manifest enable import-hr"


async def test_enabled_schedule_without_scheduler_is_shown_before_it_is_due(app: Tenuto) -> None:
    declare(app, "nightly")
    await app.schedules.deploy()
    assert await app.schedules.obstacles("nightly") == [Obstacle(ObstacleKind.NO_SCHEDULER)]
    assert (await severities(app))["scheduler_missing"] is Severity.WARNING
    assert (await app.status.readiness()).ready, "no scheduler was ever started"
    async with app.scheduler():
        assert await app.schedules.obstacles("nightly") == []
        assert "scheduler_missing" not in await severities(app)


async def test_readiness_fails_after_the_last_scheduler_ended(app: Tenuto) -> None:
    declare(app, "nightly")
    async with app.scheduler():
        pass
    readiness = await app.status.readiness()
    assert [check.name for check in readiness.checks if not check.ok] == ["scheduler"]
    await app.schedules.disable("nightly")


async def test_schedule_that_no_running_app_declares_is_shown(app: Tenuto) -> None:
    declare(app, "old", "kept", manifests=("old-manifest",))
    async with app.scheduler(), app.worker():
        assert [each.obstacles for each in await app.schedules.list()] == [(), ()]
    assert ObstacleKind.NOT_DECLARED not in {each.kind for each in await app.schedules.obstacles("old")}, (
        "no app is running, so nothing is known"
    )
    renamed = second_app(app)
    declare(renamed, "new", "kept")
    try:
        async with renamed.scheduler():
            assert await app.schedules.obstacles("old") == [Obstacle(ObstacleKind.NOT_DECLARED)]
            assert await app.schedules.obstacles("kept") == []
            assert await obstacle_kinds(app, "old-manifest") == ["not_declared"]
            assert (await severities(app))["definition_not_declared"] is Severity.WARNING
            for why, command in (
                (await app.schedules.why("old"), "tenuto schedule delete old"),
                (await app.manifests.why("old-manifest"), "tenuto manifest delete old-manifest"),
            ):
                (reason,) = [each for each in why.reasons if each.code == "not_declared"]
                assert reason.command == command
                assert "no running app declares this" in reason.message
            assert "not_declared" not in [each.code for each in (await app.schedules.why("kept")).reasons]
            async with app.worker():
                assert await app.schedules.obstacles("old") == [], "another running app declares it"
    finally:
        await renamed.close()


async def test_service_warns_at_its_start_about_undeclared_schedules(
    app: Tenuto, caplog: pytest.LogCaptureFixture
) -> None:
    declare(app, "old")
    await app.schedules.deploy()
    renamed = second_app(app)
    declare(renamed, "new")
    try:
        async with renamed.worker():
            pass
    finally:
        await renamed.close()
    (record,) = [each for each in caplog.records if "not declared by any running app" in each.getMessage()]
    assert record.levelname == "WARNING"
    assert "old" in str(vars(record))


async def test_prune_deletes_what_no_running_app_declares(app: Tenuto) -> None:
    declare(app, "old", "of other app", manifests=("old-manifest",))
    await app.schedules.deploy()
    await app.manifests.deploy()
    await app.schedules.create(
        app.schedules.declared["old"].__class__("by hand", manual(), app.schedules.declared["old"].plan)
    )
    other, renamed = second_app(app), second_app(app)
    declare(other, "of other app")
    declare(renamed, "new")
    try:
        async with other.worker():
            database = await renamed.connect_for_services(prune=True)
            await database.close()
    finally:
        await other.close()
        await renamed.close()
    assert [each.name for each in await app.schedules.list()] == ["by hand", "new", "of other app"]
    assert await app.manifests.list() == []


@pytest.mark.parametrize("kind", list(ObstacleKind))
def test_every_obstacle_has_a_text_and_a_remedy(kind: ObstacleKind) -> None:
    obstacle = Obstacle(kind, "its subject")
    assert "{" not in describe_obstacle(obstacle)
    assert "tenuto " in obstacle_remedy(obstacle, "manifest", "nightly import")


async def test_queue_with_work_shows_its_workers(app: Tenuto) -> None:
    @app.job(queue="mail")
    async def send() -> None: ...

    await app.enqueue(send)
    (queue,) = await app.queues()
    assert (queue.queued_count, queue.worker_count) == (1, 0)
    assert 'tenuto_queue_workers{queue="mail"} 0.0' in await app.status.metrics()
    await app.pause_queue("mail")
    async with app.worker(queues="mail"):
        (queue,) = await app.queues()
        assert queue.worker_count == 1
