"""Diagnosis of schedules and manifests: what keeps them from running, since when, and which command helps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Actor, Step, Tenuto, cron, manual
from tenuto.diagnostics.reasons import Diagnosis, ReasonCode
from tenuto.ids import new_id
from tests.support.errors import raises_code
from tests.support.service_fixtures import WorkerFactory
from tests.support.waiting import eventually

Sql = Callable[..., Awaitable[list[dict[str, Any]]]]


def codes(found: Diagnosis) -> list[str]:
    return [str(reason.code) for reason in found.reasons]


@pytest.fixture
def jobs(app: Tenuto) -> Tenuto:
    @app.job
    async def hello() -> None: ...

    @app.job(max_attempts=1)
    async def boom() -> None:
        raise ConnectionError("the server is away")

    return app


async def insert_scheduler(sql: Sql, *, silent_for: str = "0 s") -> None:
    await sql(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES ($1, 's-1', 'scheduler', 'here', 'boot', 1, '0', '{}', 0, now(), now() - $2::text::interval)",
        new_id(),
        silent_for,
    )


async def deploy_nightly(app: Tenuto, **options: Any) -> None:
    app.schedule("Nightly", cron("0 2 * * *"), [Step.job(app.jobs.get_job("hello"))], **options)
    await app.schedules.deploy()


# --- schedules ------------------------------------------------------------------------------------------------------


async def test_why_of_a_schedule_names_the_next_run(jobs: Tenuto, sql: Sql) -> None:
    await deploy_nightly(jobs)
    await insert_scheduler(sql)
    found = await jobs.schedules.why("Nightly")
    (reason,) = found.reasons
    assert (found.name, found.state, reason.code) == ("Nightly", "enabled", ReasonCode.NOT_DUE)
    assert reason.ends_at == reason.fields["next_run_at"] == (await jobs.schedules.get("Nightly")).next_run_at


async def test_why_names_the_next_run_in_the_time_zone_of_the_definition(jobs: Tenuto, sql: Sql) -> None:
    """An operator who reads only UTC expects a schedule for 01:30 in Kathmandu, 5:45 ahead, at another time."""
    await insert_scheduler(sql)
    trigger = cron("30 1 * * *", zone="Asia/Kathmandu")
    hello = jobs.jobs.get_job("hello")
    jobs.schedule("Far", trigger, [Step.job(hello)])
    jobs.manifest("far", hello, trigger=trigger)
    await jobs.schedules.deploy()
    await jobs.manifests.deploy()
    for found in (await jobs.schedules.why("Far"), await jobs.manifests.why("far")):
        reason = found.reasons[-1]
        assert (reason.code, reason.fields.get("zone")) == (ReasonCode.NOT_DUE, "Asia/Kathmandu")
        assert "01:30:00 in Asia/Kathmandu" in reason.message
        assert "19:45:00 UTC" in reason.message


async def test_why_of_a_schedule_names_the_missing_scheduler(jobs: Tenuto, sql: Sql) -> None:
    await deploy_nightly(jobs)
    found = await jobs.schedules.why("Nightly")
    assert codes(found) == ["no_scheduler", "not_due"]
    assert found.reasons[0].command == "tenuto scheduler --app MODULE:OBJECT"
    await insert_scheduler(sql, silent_for="10 minutes")
    silent = (await jobs.schedules.why("Nightly")).reasons[0]
    assert silent.code is ReasonCode.NO_SCHEDULER
    assert "s-1 is dead (last seen 600 s ago)" in silent.message


async def test_why_of_a_due_schedule_says_since_when_and_that_no_scheduler_decides(jobs: Tenuto, sql: Sql) -> None:
    await deploy_nightly(jobs)
    await sql("UPDATE tenuto.schedules SET next_run_at = now() - interval '1 hour'")
    found = await jobs.schedules.why("Nightly")
    assert codes(found) == ["due", "no_scheduler"]
    assert "not decided yet: no scheduler is running" in found.reasons[0].message


async def test_why_of_a_disabled_schedule_names_who_and_the_command(jobs: Tenuto) -> None:
    await deploy_nightly(jobs)
    await jobs.acting_as(Actor.user("ana")).schedules.disable("Nightly", reason="holidays")
    (reason,) = (await jobs.schedules.why("Nightly")).reasons
    assert (reason.code, reason.command) == (ReasonCode.DISABLED, "tenuto schedule enable Nightly")
    assert (reason.fields["disabled_by"], reason.fields["disable_reason"]) == ("ana", "holidays")
    assert "by ana since" in reason.message


async def test_why_of_a_manual_schedule_names_the_command_that_runs_it(jobs: Tenuto) -> None:
    jobs.schedule("By hand", manual(), [Step.job(jobs.jobs.get_job("hello"))])
    await jobs.schedules.deploy()
    (reason,) = (await jobs.schedules.why("By hand")).reasons
    assert (reason.code, reason.command) == (ReasonCode.MANUAL_ONLY, "tenuto schedule run 'By hand'")


@pytest.mark.parametrize(("overlap", "expected"), [("skip", ["overlap"]), ("queue_one", ["run_queued", "overlap"])])
async def test_why_of_a_schedule_with_an_active_execution_names_it(
    jobs: Tenuto, sql: Sql, overlap: str, expected: list[str]
) -> None:
    await deploy_nightly(jobs, overlap=overlap)
    await insert_scheduler(sql)
    started = await jobs.schedules.run("Nightly")
    await jobs.schedules.run("Nightly")
    found = await jobs.schedules.why("Nightly")
    assert codes(found) == [*expected, "not_due"]
    assert {reason.ids for reason in found.reasons[:-1]} == {(started.execution_id,)}
    assert found.reasons[0].command == f"tenuto execution why {started.execution_id}"
    if overlap == "skip":
        assert found.reasons[-1].fields["last_decision"] == "skipped"
        assert "was skipped" in found.reasons[-1].message


async def test_why_of_a_schedule_without_a_further_run_says_so(jobs: Tenuto, sql: Sql) -> None:
    await deploy_nightly(jobs)
    await sql("UPDATE tenuto.schedules SET next_run_at = NULL, planned = true")
    assert codes(await jobs.schedules.why("Nightly")) == ["never_again"]


async def test_why_of_unknown_definitions_is_not_found(app: Tenuto) -> None:
    with raises_code("schedule.not_found"):
        await app.schedules.why("nope")
    with raises_code("manifest.not_found"):
        await app.manifests.why("nope")


# --- manifests ------------------------------------------------------------------------------------------------------


async def deploy_manifest(app: Tenuto, external_id: str, job: str = "hello", **options: Any) -> None:
    app.manifest(external_id, app.jobs.get_job(job), **options)
    await app.manifests.deploy()


async def test_why_of_a_manifest_names_the_open_dead_letter(jobs: Tenuto, sql: Sql, worker: WorkerFactory) -> None:
    await deploy_manifest(jobs, "import", "boom", trigger=cron("0 2 * * *"))
    await insert_scheduler(sql)
    async with worker():
        await jobs.wait(await jobs.manifests.run("import"), timeout=20)
    (letter,) = await jobs.dead_letters.list()
    found = await jobs.manifests.why("import")
    assert codes(found) == ["dead_letter", "not_due"]
    reason = found.reasons[0]
    assert (reason.ids, reason.command) == ((letter.id,), f"tenuto dead-letter retry {letter.id}")
    assert reason.last_error is not None
    assert "the server is away" in reason.last_error.message
    assert "the server is away" in reason.message
    assert "until it is resolved, only manual runs start" in reason.message
    assert await jobs.manifests.run("import") is not None, "a manual run starts"


async def test_why_of_a_manifest_that_continues_does_not_name_its_dead_letter(
    jobs: Tenuto, sql: Sql, worker: WorkerFactory
) -> None:
    await deploy_manifest(jobs, "import", "boom", trigger=cron("0 2 * * *"), on_dead_letter="continue")
    await insert_scheduler(sql)
    async with worker():
        await jobs.wait(await jobs.manifests.run("import"), timeout=20)
    assert codes(await jobs.manifests.why("import")) == ["not_due"]


async def test_why_of_a_dependent_manifest_names_the_disabled_one(jobs: Tenuto, sql: Sql) -> None:
    await deploy_manifest(jobs, "import-hr")
    await deploy_manifest(jobs, "import-ad", after="import-hr")
    await insert_scheduler(sql)
    (waits,) = (await jobs.manifests.why("import-ad")).reasons
    assert (waits.code, waits.command) == (ReasonCode.WAITS_FOR_MANIFEST, "tenuto manifest why import-hr")
    await jobs.manifests.disable("import-hr")
    (blocked,) = (await jobs.manifests.why("import-ad")).reasons
    assert blocked.code is ReasonCode.DEPENDENCY_DISABLED
    assert (blocked.fields["manifest"], blocked.command) == ("import-hr", "tenuto manifest enable import-hr")


async def test_why_of_a_manifest_with_an_open_run_includes_the_reasons_of_its_task(jobs: Tenuto, sql: Sql) -> None:
    await deploy_manifest(jobs, "import", trigger=cron("0 2 * * *"), group="reports")
    await insert_scheduler(sql)
    task_id = await jobs.manifests.run("import")
    await jobs.pause_queue("default", reason="a move")
    await jobs.manifests.change_group("reports", enabled=False)
    found = await jobs.manifests.why("import")
    assert codes(found) == ["group_disabled", "run_open", "queue_paused", "group_disabled", "no_worker", "not_due"]
    assert {reason.task_id for reason in found.reasons[1:5]} == {task_id}
    assert found.reasons[0].command == "tenuto manifest group reports --enable"


async def test_why_of_a_disabled_on_demand_manifest(jobs: Tenuto) -> None:
    await deploy_manifest(jobs, "mail", on_demand=True)
    await jobs.acting_as(Actor.user("ana")).manifests.disable("mail")
    found = await jobs.manifests.why("mail")
    assert (found.state, codes(found)) == ("disabled", ["disabled", "manual_only"])
    assert found.reasons[0].fields["disabled_by"] == "ana"


async def test_why_changes_nothing_and_needs_no_scheduler(jobs: Tenuto, sql: Sql) -> None:
    await deploy_manifest(jobs, "import", trigger=cron("0 2 * * *"))
    before = asdict((await jobs.manifests.list())[0])
    assert codes(await jobs.manifests.why("import"))[0] in {"no_scheduler", "due"}
    assert asdict((await jobs.manifests.list())[0]) == before


async def test_why_of_a_live_schedule_and_manifest_with_a_real_scheduler(jobs: Tenuto) -> None:
    await deploy_nightly(jobs)
    await deploy_manifest(jobs, "import", trigger=cron("0 2 * * *"))

    async def explain() -> list[str] | None:
        found = [*codes(await jobs.schedules.why("Nightly")), *codes(await jobs.manifests.why("import"))]
        return found if "due" not in found else None

    async with jobs.scheduler():
        async with asyncio.timeout(timedelta(seconds=20).total_seconds()):
            assert await eventually(explain) == ["not_due", "not_due"]
