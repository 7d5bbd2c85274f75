"""Everything that needs attention is shown by every surface: status, doctor, Overview page and HTTP API."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tenuto import Step, Tenuto, every, manual
from tenuto.diagnostics.attention import ATTENTION_KINDS, AttentionCode
from tenuto.ids import new_id
from tenuto.model.doctor_findings import Severity
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto.settings import load_settings
from tenuto.store.work import workers
from tenuto.web.application import create_web_application
from tests.api.conftest import running_api
from tests.cli.conftest import Shell
from tests.support.manifests import create_batch, create_manifest, finish_all_runs, start_run
from tests.support.schedules import create_schedule, make_definition, run_claimable_steps, start_execution
from tests.support.tasks import Register, create_task
from tests.support.waiting import eventually
from tests.web.conftest import get_page, log_in


class Situation:
    """What the functions below need to create a situation."""

    def __init__(self, db: Database, app: Tenuto, register: Register) -> None:
        self.db, self.app, self.register = db, app, register

    def declare(self, app: Tenuto, name: str) -> None:
        @app.job
        async def work() -> None: ...

        app.schedule(name, every("1h"), [Step.job(work)])


async def dead_letters_open(given: Situation) -> str:
    await start_run(given.db, await create_manifest(given.db, "marked"))
    await finish_all_runs(given.db, await given.register(), "failed")
    return "marked"


async def execution_failed(given: Situation) -> str:
    await start_execution(given.db, "marked")
    await run_claimable_steps(given.db, await given.register(), marked="failed")
    return "marked"


async def operation_failed(given: Situation) -> str:
    await given.db.fetch_all(
        "INSERT INTO tenuto.bulk_operations (id, kind, filter, description, until, state, total, failed, created_at,"
        " ended_at, actor_type, actor_name) VALUES ($1, 'task.cancel', 'queue:mail', 'marked', now(), 'ended', 9,"
        " 4, now(), now(), 'user', 'ana')",
        new_id(),
    )
    return "4 of 9 items"


async def approval_pending(given: Situation) -> str:
    gate = Step.approval("Deploy?", name="marked")
    await given.app.schedules.apply([schedule_definition("release", manual(), [gate])])
    async with given.app.worker(slots=5, poll_seconds=0.1, grace_seconds=0):
        await given.app.schedules.run("release")
        await eventually(given.app.approvals.pending)
    return "marked of release waits for approval (0 of 1 persons have approved): Deploy?"


async def queue_paused(given: Situation) -> str:
    await given.app.pause_queue("marked", "server is down")
    return "queue marked is paused by app: server is down"


async def execution_paused(given: Situation) -> str:
    run = await start_execution(given.db, "a")
    await given.db.fetch_all("UPDATE tenuto.executions SET paused_at = now(), paused_by = 'marked' WHERE id = $1", run)
    return "paused by marked"


async def batch_paused(given: Situation) -> str:
    batch_id = await create_batch(given.db, await create_manifest(given.db, "marked"), 2)
    await given.app.batches.pause(batch_id)
    return "a batch of marked is paused"


async def manifest_group_disabled(given: Situation) -> str:
    await create_manifest(given.db, "one", group="marked")
    await given.app.manifests.change_group("marked", enabled=False)
    return "manifest group marked is disabled"


async def manifest_blocked(given: Situation) -> str:
    stored = await create_manifest(given.db, "marked", trigger=every("1h"))
    await start_run(given.db, stored)
    await finish_all_runs(given.db, await given.register(), "failed")
    return "manifest marked: blocked by a dead letter"


async def manifest_dependency_disabled(given: Situation) -> str:
    await create_manifest(given.db, "first", enabled=False)
    await create_manifest(given.db, "marked", depends_on="first")
    return "manifest marked: waits for first, which is disabled"


async def definition_not_declared(given: Situation) -> str:
    given.declare(given.app, "marked")
    await given.app.schedules.deploy()
    await given.register()
    await given.db.fetch_all("UPDATE tenuto.workers SET declared_schedules = '{other}'")
    return "schedule marked: not declared by any running app"


async def scheduler_missing(given: Situation) -> str:
    given.declare(given.app, "marked")
    await given.app.schedules.deploy()
    return "no scheduler is running: 1 schedule will not fire (marked)"


async def run_late(given: Situation) -> str:
    await create_schedule(given.db, make_definition(name="marked"), given.db.clock.now())
    await given.db.fetch_all("UPDATE tenuto.schedules SET next_run_at = now() - interval '20 s', planned = true")
    return "schedule marked is due and has not been fired"


async def queue_without_worker(given: Situation) -> str:
    await create_task(given.db, queue="marked")
    return "no live worker serves queue marked: 1 task waiting"


async def job_without_worker(given: Situation) -> str:
    await given.register()
    known = '{"other": null}'
    await given.db.fetch_all("UPDATE tenuto.workers SET jobs = $1, kinds = '{}', queues = '{default}'", known)
    await create_task(given.db, name="marked", queue="default")
    return "no live worker of queue default knows job marked: 1 task waiting"


async def worker_without_cluster(given: Situation) -> str:
    await given.register("marked")
    await given.db.fetch_all("UPDATE tenuto.workers SET slots = 0")
    return "the cluster of worker marked does not answer or has no workers"


async def process_dead(given: Situation) -> str:
    await given.register("marked")
    await given.db.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '10 min'")
    return "worker marked is dead"


async def repairs_made(given: Situation) -> str:
    async with given.db.connection() as connection:
        await workers.count_repair(connection, "lease_expired", 5)
    return "5 tasks were recovered from workers that died"


SITUATIONS: dict[str, Callable[[Situation], Awaitable[str]]] = {
    each.__name__: each
    for each in (
        dead_letters_open, execution_failed, operation_failed, approval_pending, queue_paused, execution_paused,
        batch_paused,
        manifest_group_disabled, manifest_blocked, manifest_dependency_disabled, definition_not_declared,
        scheduler_missing, run_late, queue_without_worker, job_without_worker, worker_without_cluster,
        process_dead, repairs_made,
    )
}  # fmt: skip


def test_every_code_has_a_situation_and_texts() -> None:
    assert set(SITUATIONS) == set(AttentionCode) == {kind.code for kind in ATTENTION_KINDS}
    for kind in ATTENTION_KINDS:
        assert kind.severity in (Severity.NOTE, Severity.WARNING)
        assert kind.meaning.endswith(".")


@pytest.mark.parametrize("code", SITUATIONS)
async def test_every_surface_shows_what_needs_attention(
    shell: Shell, url: str, db: Database, register_worker: Register, tmp_path: Path, code: str
) -> None:
    app = Tenuto(settings=load_settings(database=url, home=tmp_path))
    try:
        marker = await SITUATIONS[code](Situation(db, app, register_worker))
    finally:
        await app.close()
    status = await asyncio.to_thread(shell, "status")
    doctor = await asyncio.to_thread(shell, "doctor", "--problems")
    async with running_api(url, tmp_path / "web", create_web_application) as service:
        document = await service.get_json("/api/v1/overview")
        await log_in(service)
        page = (await get_page(service, "/")).text
    # Approvals have a card of their own, in which a person decides.
    is_approval = code == AttentionCode.APPROVAL_PENDING
    label = 'aria-label="Waiting for approval"' if is_approval else 'data-part="attention"'
    card = re.search(f"<section[^>]*{label}.*?</section>", page, re.DOTALL)
    assert card is not None, page
    visible = html.unescape(" ".join(re.sub(r"<[^>]*>", "", card[0]).split()))
    texts = [each["text"] for each in document["attention"] if each["code"] == code]
    assert [marker in text for text in texts] == [True], document["attention"]
    assert ("Deploy?" if is_approval else marker) in visible, visible
    assert marker in " ".join(status.out.split()), status.out
    assert marker in " ".join(doctor.out.split()), doctor.out
    warned = next(each for each in document["attention"] if each["code"] == code)["severity"] == "warning"
    assert doctor.code == 5, doctor.out  # the server of the tests runs without fsync
    assert ("▲" in status.out) or not warned
