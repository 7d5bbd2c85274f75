"""Registration of processes (W1, S10): one live process per name; the previous one ends only with proof."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest

from tenuto.errors import Conflict
from tenuto.ids import new_id
from tenuto.postgres.database import Connection, Database
from tenuto.store.work import workers
from tenuto.store.work.workers import ProcessRegistration
from tests.support.errors import raises_code
from tests.support.tasks import Register, create_and_claim, create_task, now, read_rows

SILENCE = timedelta(seconds=60)


def make_registration(
    name: str = "w", host: str = "here", boot: str = "boot 1", service: str = "worker"
) -> ProcessRegistration:
    return ProcessRegistration(new_id(), name, service, host, boot, 17, "0.1", ["default"], 10)


async def register(db: Database, me: ProcessRegistration, *, holds_name_lock: bool = False) -> UUID | None:
    return await workers.register_process(db, me, holds_name_lock=holds_name_lock, reserved_for=SILENCE)


async def list_live_ids(db: Database) -> list[UUID]:
    return [row["id"] for row in await read_rows(db, "workers") if row["ended_at"] is None]


async def make_claimed_task(db: Database, worker_id: UUID) -> UUID:
    """Create a task that the worker holds with a live lease."""
    held = (
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $2, fence = 1, claimed_at = now(),"
        " lease_until = now() + interval '1 h' WHERE id = $1"
    )
    id = await create_task(db)
    await db.fetch_all(held, id, worker_id)
    return id


async def test_registered_worker_is_listed_with_its_queues(db: Database) -> None:
    me = make_registration()
    assert await register(db, me) is None
    (listed,) = await workers.list_workers(db)
    assert (listed.id, listed.name, listed.queues, listed.slots, listed.running_count) == (
        me.id,
        "w",
        ["default"],
        10,
        0,
    )
    assert listed.silent_seconds < 30
    assert listed.recovered_at is None


async def test_listed_worker_says_when_its_tasks_are_recovered(db: Database) -> None:
    me = make_registration()
    await register(db, me)
    tasks = [await make_claimed_task(db, me.id) for _ in range(2)]
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = now() + interval '2 h' WHERE id = $1", tasks[0])
    (listed,) = await workers.list_workers(db)
    latest = await db.fetch_value("SELECT max(lease_until) FROM tenuto.tasks")
    assert (listed.running_count, listed.recovered_at) == (2, latest)


async def test_repeated_registration_changes_nothing(db: Database) -> None:
    me = make_registration()
    await register(db, me)
    assert await register(db, me) is None
    assert await list_live_ids(db) == [me.id]


async def test_second_worker_with_a_live_name_is_rejected(db: Database) -> None:
    first = make_registration(host="there")
    await register(db, first)
    for second in (make_registration(host="here"), make_registration(host="there")):
        with raises_code("process.name.taken", Conflict) as caught:
            await register(db, second)
        assert caught.value.field == "name"
    assert await list_live_ids(db) == [first.id]


async def test_name_lock_on_another_host_is_no_proof_of_end(db: Database) -> None:
    await register(db, make_registration(host="there"))
    with pytest.raises(Conflict):
        await register(db, make_registration(host="here"), holds_name_lock=True)
    with pytest.raises(Conflict):
        await register(db, make_registration(host="here", boot="boot 2"))


async def test_name_lock_on_the_same_host_proves_the_end(db: Database) -> None:
    first, second = make_registration(), make_registration()
    await register(db, first)
    assert await register(db, second, holds_name_lock=True) == first.id
    assert await list_live_ids(db) == [second.id]


async def test_reboot_of_the_host_proves_the_end(db: Database) -> None:
    first, second = make_registration(), make_registration(boot="boot 2")
    await register(db, first)
    assert await register(db, second) == first.id
    assert await list_live_ids(db) == [second.id]


async def make_silent(db: Database, id: UUID, seconds: int = 61) -> None:
    silent = "UPDATE tenuto.workers SET seen_at = now() - $2 * interval '1 s' WHERE id = $1"
    await db.fetch_all(silent, id, seconds)


async def test_name_of_a_silent_worker_without_lease_is_free(db: Database) -> None:
    first, second = make_registration(host="there"), make_registration()
    await register(db, first)
    await create_and_claim(db, first.id)
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() - interval '1 ms'")
    await make_silent(db, first.id)
    assert await register(db, second) is None, "silence proves nothing: the sweep takes back what has run out, no more"
    assert await list_live_ids(db) == [second.id]
    assert await workers.record_heartbeat(db, first.id) is None


async def test_name_of_a_silent_worker_with_a_live_lease_is_not_free(db: Database) -> None:
    first, second = make_registration(host="there"), make_registration()
    await register(db, first)
    await create_and_claim(db, first.id)
    await db.fetch_all("UPDATE tenuto.tasks SET lease_until = clock_timestamp() + interval '10 min'")
    await make_silent(db, first.id)
    with raises_code("process.name.taken", Conflict) as caught:
        await register(db, second)
    assert caught.value.field == "name"
    assert await list_live_ids(db) == [first.id]


async def test_tasks_of_a_silent_worker_are_not_recovered_at_once(db: Database, register_worker: Register) -> None:
    """A claim may commit while its worker is marked as ended: neither sees the other."""
    buried, gone = await register_worker(), await register_worker()
    replaced = make_registration(host="there")
    await register(db, replaced)
    for id in (buried, replaced.id):
        await make_silent(db, id, 3600)
    assert await register(db, make_registration()) is None
    assert await workers.end_silent_processes(db, timedelta(minutes=5)) == 1
    await workers.deregister_process(db, gone)
    for id in (buried, replaced.id, gone):
        await make_claimed_task(db, id)
    assert await workers.find_ended_holders(db) == [gone]


async def test_tasks_of_a_worker_proven_dead_are_recovered_at_once(db: Database) -> None:
    first, second = make_registration(), make_registration()
    await register(db, first)
    await create_and_claim(db, first.id)
    await make_silent(db, first.id)
    assert await register(db, second, holds_name_lock=True) == first.id
    assert await workers.find_ended_holders(db) == [first.id]


async def test_deregistered_worker_is_not_returned_as_predecessor(db: Database) -> None:
    first = make_registration()
    await register(db, first)
    await workers.deregister_process(db, first.id)
    assert await register(db, make_registration()) is None


async def test_worker_names_are_unique_per_service(db: Database) -> None:
    assert await register(db, make_registration()) is None
    assert await register(db, make_registration(service="scheduler")) is None
    assert len(await list_live_ids(db)) == 2


async def test_concurrent_registrations_of_a_name_admit_one(db: Database) -> None:
    answers = await asyncio.gather(
        *(register(db, make_registration(host=f"h{n}")) for n in range(6)), return_exceptions=True
    )
    assert answers.count(None) == 1
    assert len(await list_live_ids(db)) == 1


async def test_heartbeat_returns_the_time_unless_the_worker_has_ended(db: Database) -> None:
    me = make_registration()
    await register(db, me)
    await db.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '10 s'")
    server_time = await workers.record_heartbeat(db, me.id)
    assert server_time is not None
    assert abs(server_time - now()) < timedelta(minutes=1)
    (row,) = await read_rows(db, "workers")
    assert server_time - row["seen_at"] < timedelta(seconds=5)
    await workers.deregister_process(db, me.id)
    assert await workers.record_heartbeat(db, me.id) is None


async def test_deregistration_and_draining_are_recorded_once(db: Database) -> None:
    me = make_registration()
    await register(db, me)
    await workers.mark_draining(db, me.id)
    await workers.deregister_process(db, me.id)
    before = await read_rows(db, "workers")
    await workers.mark_draining(db, me.id)
    await workers.deregister_process(db, me.id)
    assert await read_rows(db, "workers") == before
    assert before[0]["draining_at"] <= before[0]["ended_at"]
    assert await workers.list_workers(db) == []
    assert len(await workers.list_workers(db, ended=True)) == 1


async def test_silent_workers_without_tasks_are_ended(db: Database, register_worker: Register) -> None:
    idle, busy, lively = [await register_worker() for _ in range(3)]
    await create_and_claim(db, busy)
    await db.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '1 h' WHERE id <> $1", lively)
    assert await workers.end_silent_processes(db, timedelta(minutes=5)) == 1
    assert set(await list_live_ids(db)) == {busy, lively}
    assert idle not in await list_live_ids(db)


async def test_long_ended_workers_are_deleted(db: Database, register_worker: Register) -> None:
    long_gone, gone, living = [await register_worker() for _ in range(3)]
    await db.fetch_all("UPDATE tenuto.workers SET ended_at = now() - interval '100 d' WHERE id = $1", long_gone)
    await workers.deregister_process(db, gone)
    await workers.delete_ended_processes(db, now() - timedelta(days=90))
    assert {row["id"] for row in await read_rows(db, "workers")} == {gone, living}


async def test_repairs_are_counted(db: Database) -> None:
    async def count(connection: Connection) -> None:
        await workers.count_repair(connection, "lease_expired", 2)
        await workers.count_repair(connection, "lease_expired", 3)
        await workers.count_repair(connection, "worker_restarted", 1)

    await db.transaction(count)
    assert [(row.repair, row.count) for row in await workers.list_repairs(db)] == [
        ("lease_expired", 5),
        ("worker_restarted", 1),
    ]


async def test_worker_does_not_end_its_own_registration(db: Database, register_worker: Register) -> None:
    own, other = [await register_worker() for _ in range(2)]
    await db.fetch_all("UPDATE tenuto.workers SET seen_at = now() - interval '1 h'")
    assert await workers.end_silent_processes(db, timedelta(minutes=5), [own]) == 1
    assert await list_live_ids(db) == [own]
    assert other not in await list_live_ids(db)
