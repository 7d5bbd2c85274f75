"""Life of a run: exclusion of other runs, cancellation at page borders, take-over, lost connections, conflicts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenuto.jobs.context import current_context
from tenuto_identity.runs import run_lifecycle, sync_decisions, sync_run
from tenuto_identity.runs.run_lifecycle import Run
from tests.identity.scenario_site import ADA, OPEN_RUN, Site, open_site
from tests.support.require_value import known
from tests.support.waiting import eventually


def people(count: int) -> list[str]:
    return [f"{1000 + n},F{n},L{n},p{n}@example.org,Research,Fellow,,2020-01-01," for n in range(count)]


async def test_cancelled_run_finishes_its_page_and_stores_no_watermark(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.apply(site.definitions(page_size=2))
    site.ad.put_many("user", [(f"u{n:02}", {"cn": f"U{n}"}) for n in range(20)], address="cn=x,dc=ad,dc=test")
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()
    pages = 0

    def observe(point: str) -> None:
        nonlocal pages
        pages += point == "import_page_written"
        if pages == 4 and point == "import_page_written":
            loop.call_soon_threadsafe(reached.set)
            known(current_context.get()).wait(30)  # until the request to stop has arrived

    monkeypatch.setattr(Run, "observe", staticmethod(observe))
    execution = await site.fire("AD", "Full Import")
    await asyncio.wait_for(reached.wait(), 30)
    await site.app.executions.cancel(execution)
    done = await site.finish(execution)
    assert done.state == "cancelled"
    assert await site.count("connector_objects") == 8, "the fourth page is committed, the fifth never begins"
    assert await site.count("watermarks") == 0
    assert await site.count("runs", "state = 'cancelled'") == 1
    monkeypatch.setattr(Run, "observe", staticmethod(lambda point: None))
    again = await site.run("AD", "Full Import")
    assert (again.state, len(again.changes)) == ("completed", 12)


async def test_second_run_of_a_system_waits_and_names_the_run_it_waits_for(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lifecycle, "WAIT_SECONDS", 2)
    await site.apply(site.definitions())
    database = await site.database()
    await site.open_run(3, "Full Sync", "full_sync")
    execution = await site.fire("HR", "Full Sync")

    async def waiting() -> str | None:
        found = await database.fetch_value("SELECT progress::text FROM tenuto.tasks WHERE execution_id = $1", execution)
        return found if found and "waiting for the run" in found else None

    assert "Full Sync of LDAP" in str(await eventually(waiting))
    open_run = await database.fetch_value("SELECT id FROM tenuto_identity.runs WHERE initiator_name = 'test'")
    task = await database.fetch_value("SELECT id FROM tenuto.tasks WHERE execution_id = $1", execution)

    async def between_two_tries() -> str | None:
        (reason, *_) = (await site.app.why(task)).reasons
        return reason.message if reason.code == "not_due" else None

    assert f"waiting for the run {open_run} (Full Sync of LDAP)" in str(await eventually(between_two_tries))
    imported = await site.run("AD", "Full Import")
    assert imported.state == "completed", "imports of other systems do not wait"
    await database.write_all("UPDATE tenuto_identity.runs SET state = 'completed' WHERE initiator_name = 'test'")
    assert (await site.finish(execution)).state == "completed"


@pytest.mark.parametrize(
    ("system_number", "profile", "kind"),
    [(1, "Export", "export"), (3, "Full Sync", "full_sync")],
    ids=["of the same system", "two syncs"],
)
async def test_a52_run_that_begins_together_with_another_one_waits_for_it(
    site: Site, url: str, monkeypatch: pytest.MonkeyPatch, system_number: int, profile: str, kind: str
) -> None:
    monkeypatch.setattr(run_lifecycle, "WAIT_SECONDS", 0.2)
    await site.apply(site.definitions())
    database = await site.database()
    other = await asyncpg.connect(url)
    beginning = other.transaction()
    await beginning.start()
    await other.execute(OPEN_RUN, await site.waiting_task(), system_number, profile, kind)
    execution = await site.fire("HR", "Full Sync")
    waits_for_commit = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE '%INTO runs%'"
    )
    await eventually(lambda: database.fetch_value(waits_for_commit))  # it found no open run, and inserts its own
    await beginning.commit()

    async def reported() -> str | None:
        found = await database.fetch_value("SELECT progress::text FROM tenuto.tasks WHERE execution_id = $1", execution)
        return found if found and "waiting for the run" in found else None

    assert profile in str(await eventually(reported))
    await other.execute("UPDATE tenuto_identity.runs SET state = 'completed' WHERE initiator_name = 'test'")
    await other.close()
    assert (await site.finish(execution)).state == "completed"


INTERRUPTED = ("import_page_written", "sync_page_written", "export_claimed", "export_sent")
"""Points of imports, syncs and exports, inside and between their transactions."""


async def test_run_repeats_its_page_after_a_lost_connection(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.apply(site.definitions(page_size=2))
    site.write_hr(*people(10))
    database = await site.database()
    loop = asyncio.get_running_loop()
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenuto job'"
        " AND datname = current_database()"
    )
    done: list[str] = []

    def observe(point: str) -> None:
        if point in INTERRUPTED and point not in done:
            done.append(point)
            asyncio.run_coroutine_threadsafe(database.write_all(kill), loop).result(30)

    monkeypatch.setattr(Run, "observe", staticmethod(observe))
    imported = await site.run("HR", "Full Import")
    synced = await site.run("HR", "Full Sync")
    assert (imported.state, imported.changes) == ("completed", ["Added"] * 10)
    assert (synced.state, synced.changes) == ("completed", ["Projected"] * 10)
    sent = len(site.ad.requests())
    exported = await site.run("AD", "Export")
    assert (exported.state, exported.changes) == ("completed", ["Exported"] * 10)
    creates = [each["address"] for each in site.ad.requests()[sent:] if each["kind"] == "create"]
    assert len(creates) == len(set(creates)) == 10, "a batch whose results were recorded is not sent again"
    confirmed = await site.run("AD", "Full Import")
    assert (confirmed.state, confirmed.changes) == ("completed", ["Confirmed"] * 10)
    assert await site.count("pending_exports", "system_number = 2") == 0
    assert done == list(INTERRUPTED)


async def test_export_that_is_claimed_while_a_page_is_decided_gets_queued_changes(
    site: Site, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.apply(site.definitions())
    site.write_hr(ADA)
    await site.run("HR", "Full Import")
    await site.run("HR", "Full Sync")
    site.write_hr(ADA.replace("Director", "Countess"))
    await site.run("HR", "Full Import")
    decide = sync_decisions.decide_outbound
    calls: list[int] = []

    def claim_and_decide(*arguments: Any) -> None:
        if not calls:
            asyncio.run(_execute(url, "UPDATE tenuto_identity.pending_exports SET state = 'executing'"))
        calls.append(1)
        decide(*arguments)

    monkeypatch.setattr(sync_run, "decide_outbound", claim_and_decide)
    assert (await site.run("HR", "Delta Sync")).state == "completed"
    assert len(calls) == 2
    assert await site.count("pending_exports", "state = 'executing' AND queued_changes IS NOT NULL") == 2


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.slow
async def test_worker_that_continues_after_its_lease_was_lost_writes_nothing(url: str, tmp_path: Path) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=2))
        site.write_hr(*people(10))
        execution = await site.fire("HR", "Full Import")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.identity.killed_worker",
            url,
            str(tmp_path),
            "import_page_committed",
            "2",
            "STOP",
        )
        try:
            await eventually(lambda: site.count("connector_objects", "true"))

            async def is_stopped() -> bool:
                return "T" in Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

            await eventually(is_stopped)
            async with site.app.worker(lease_seconds=1.5):
                done = await site.finish(execution)
                assert done.state == "completed"
                database = await site.database()
                query = "SELECT id, state, page, counts::text FROM tenuto_identity.runs ORDER BY id"
                before = await database.fetch_all(query)
                process.send_signal(signal.SIGCONT)
                await site.run("AD", "Full Import")
            after = await database.fetch_all(query)
            assert after[: len(before)] == before
            assert [row["state"] for row in before] == ["lost", "completed"]
            assert await site.count("items") == 10
        finally:
            with suppress(ProcessLookupError):  # it ends itself when it finds its lease lost
                process.kill()
            await process.wait()


@pytest.mark.slow
async def test_a50_page_of_a_worker_that_has_not_noticed_the_loss_of_its_lease_is_refused(
    url: str, tmp_path: Path
) -> None:
    async with open_site(url, tmp_path, has_worker=False) as site:
        await site.apply(site.definitions(page_size=2))
        site.write_hr(*people(10))
        execution = await site.fire("HR", "Full Import")
        command = ["-m", "tests.identity.killed_worker", url, str(tmp_path), "import_page_committed", "2", "STOP"]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "TENUTO_TEST_LEASE_SECONDS": "600"},  # by its own clock it keeps the task
        )
        assert process.stdout is not None
        try:
            lines = [(await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip() for _ in range(2)]
            assert lines == ["ready", "HR"]
            await eventually(lambda: _is_stopped(process.pid))
            database = await site.database()
            await database.write_all(
                "UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 minute' WHERE state = 'running'"
            )
            async with site.app.worker(lease_seconds=1.5):
                assert (await site.finish(execution)).state == "completed"
            query = "SELECT id, state, page, counts::text FROM tenuto_identity.runs ORDER BY id"
            before = await database.fetch_all(query)
            process.send_signal(signal.SIGCONT)
            assert (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip() == "page refused"
            assert await database.fetch_all(query) == before
            assert [row["state"] for row in before] == ["lost", "completed"]
            assert await site.count("items") == 10
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _is_stopped(pid: int) -> bool:
    return "T" in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
