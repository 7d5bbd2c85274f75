"""Every operation that changes rows leaves an audit entry, and no statement can change rows without one."""

from __future__ import annotations

import inspect
import io
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tenuto import Actor, RetryPolicy, Step, Tenuto, every, manual
from tenuto.errors import Conflict, StoreError, UserError
from tenuto.ids import new_id
from tenuto.model.access.actors import Role
from tenuto.model.access.operation_context import OperationContext
from tenuto.model.events.approvals import Decision
from tenuto.operations.bound_operation import OperationGroup
from tenuto.operations.definitions.manifests import build_manifest
from tenuto.operations.definitions.plans import read_declarations
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Connection, Database
from tenuto.settings import load_settings
from tenuto.store.access.audit_recorder import AuditedDatabase, AuditEntry
from tenuto.store.events.approvals import NewApproval, request_approval
from tenuto.store.work import task_creation
from tenuto_inventory.extension import Inventory
from tests.support.errors import raises_code
from tests.support.model_values import make_held_task, make_new_task

EVE = Actor.user("eve")
RECORDS = ("audit", "audit_unsealed", "audit_chain", "requests")
"""Tables that record changes."""

QUERIES = {
    "activities", "activity", "activity_log", "attempts", "chain_steps", "children", "find", "outcome_counts",
    "queues", "stats",
    "count_activities", "count_tasks", "task", "tasks", "wait", "why", "workers", "schedules.get", "schedules.ledger",
    "schedules.list", "schedules.next", "schedules.plan", "schedules.simulate", "schedules.versions",
    "executions.find", "executions.count", "executions.get", "executions.list", "executions.wait",
    "executions.timeline", "executions.why", "manifests.details", "manifests.get", "manifests.dependents",
    "manifests.obstacles", "schedules.dependents", "schedules.obstacles", "manifests.group", "manifests.groups",
    "manifests.list", "manifests.plan", "manifests.polls", "manifests.versions", "dead_letters.count",
    "dead_letters.find", "dead_letters.get", "dead_letters.groups", "dead_letters.list", "dead_letters.select",
    "dead_letters.summary", "batches.count", "batches.find", "batches.get", "batches.items", "batches.list",
    "batches.list_items", "batches.wait", "plans.plan", "reports.overview",
    "schedules.count_ledger_of_each", "executions.count_of_each", "reports.queue_obstacles", "count_activities_of_each",
    "executions.usual_seconds", "count_tasks_of_each", "executions.recent_outcomes",
    "manifests.recent_outcomes", "bulk_operations.all_items",
    "tasks.next_to_claim", "batches.count_of_each", "one_shots.count_of_each", "dead_letters.count_of_each",
    "reports.count_open_work", "reports.queue_settings", "reports.search", "reports.series", "reports.figures_by_name",
    "one_shots.count", "events.get", "events.list", "events.waits", "events.waits_of_task", "approvals.find",
    "approvals.get", "approvals.list", "approvals.list_undecided", "approvals.open_link", "approvals.pending",
    "one_shots.find", "one_shots.list", "one_shots.list_ended", "one_shots.status", "api_keys.authenticate",
    "api_keys.authenticate_session", "api_keys.get", "api_keys.has_prefix", "api_keys.list", "api_keys.sessions",
    "invitations.list", "logs.names",
    "logs.read", "secrets.count_old_keys", "secrets.list", "secrets.resolve_text", "secrets.reveal",
    "extensions.inventory.items", "extensions.inventory.get", "extensions.inventory.orders",
    "extensions.inventory.search", "schedules.why", "manifests.why", "reports.upcoming",
    "schedules.check", "schedules.explain", "schedules.preview_backfill",
    "bulk_operations.find", "bulk_operations.get", "bulk_operations.items",
    "bulk_operations.list", "bulk_operations.preview", "bulk_operations.wait",
}  # fmt: skip
"""Operations that only read. `api_keys.authenticate` also stores the last use of a key, which is no act of a person."""
NOT_OPERATIONS = {
    "open", "close", "connect", "connect_for_services", "run", "run_scheduler", "run_worker", "migrate", "doctor",
    "executions.close", "api_keys.close", "bulk_enqueue", "backup", "restore", "migration_status",
    "pending_migration_script",
    "schedules.report_undeclared", "manifests.report_undeclared",
}  # fmt: skip
"""Life cycle of the app and its services; `bulk_enqueue` is `batches.enqueue`, and
`report_undeclared` deletes with `delete`."""


def list_operations(app: Tenuto) -> set[str]:
    """Return the names of all operations of an app and of its extensions."""
    groups: dict[str, Any] = {"": app}
    groups |= {f"{name}.": group for name, group in vars(app).items() if isinstance(group, OperationGroup)}
    groups |= {f"extensions.{name}.": getattr(app.extensions, name) for name in dir(app.extensions)}
    return {
        prefix + name
        for prefix, group in groups.items()
        for name, member in inspect.getmembers(type(group))
        if not name.startswith("_") and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
    } - NOT_OPERATIONS


class Recorder:
    """Runs operations as Eve and checks the audit entry of each."""

    def __init__(self, app: Tenuto) -> None:
        self.app = app
        self.acting = app.acting_as(EVE, source="test")
        self.recorded: set[str] = set()

    async def change(self, name: str, action: str, operation: Awaitable[Any], *, count: int = 1) -> Any:
        """Run an operation that changes rows; expect new entries with this action."""
        before, known = await self._read_rows(), await self._list_actions()
        result = await operation
        assert await self._read_rows() != before, f"{name} changed nothing: the test proves nothing"
        assert (await self._list_actions())[len(known) :] == [action] * count, name
        self.recorded.add(name)
        return result

    async def _list_actions(self) -> list[str]:
        database = await self.app.open()
        return [row["action"] for row in await database.fetch_all("SELECT action FROM tenuto.audit ORDER BY id")]

    async def _read_rows(self) -> dict[str, str]:
        database = await self.app.open()
        return {table: await table_digest(database, table) for table in await list_tables(database)}


async def list_tables(database: Database) -> list[str]:
    """Return all tables of all components, except those that record changes."""
    rows = await database.fetch_all(
        "SELECT format('%I.%I', relnamespace::regnamespace, relname) AS name, relname FROM pg_class"
        " WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace::regnamespace::text LIKE 'tenuto%'"
        " ORDER BY 1"
    )
    return [row["name"] for row in rows if row["relname"] not in RECORDS]


async def table_digest(database: Database, table: str) -> str:
    digest: str = await database.fetch_value(
        f"SELECT md5(coalesce(string_agg(r::text, '|' ORDER BY r::text), '')) FROM {table} AS r"
    )
    return digest


@pytest.fixture
async def app(new_url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    settings = load_settings(database=new_url, home=tmp_path, master_key="A" * 43 + "=")
    app = Tenuto(settings=settings, extensions=[Inventory()])
    await app.migrate()

    @app.job(name="bake", retry=RetryPolicy(max_attempts=1))
    async def bake(loaves: int = 1) -> int:
        raise ValueError(f"no flour for {loaves}")

    yield app
    await app.close()


async def make_every_change(app: Tenuto) -> set[str]:
    """Run every operation that changes rows and return their names."""
    recorder = Recorder(app)
    acting, change = recorder.acting, recorder.change
    bake = app.jobs.get_job("bake")

    task = await change("enqueue", "task.create", acting.enqueue(bake))
    await change("enqueue_json", "task.create", acting.enqueue_json(bake, "{}"))
    await change("enqueue_many", "task.create", acting.enqueue_many(bake, [{}, {}]))
    await change("once", "one_shot.create", acting.once(bake, at="2131-01-01T00:00:00Z"))
    await change("enqueue_within", "task.create", _enqueue_within(app, acting, bake))
    await change("cancel", "task.cancel", acting.cancel(task.id))
    await change("limit_queue", "queue.limit", acting.limit_queue("default", 7))
    await change("limit_queue_rate", "queue.limit", acting.limit_queue_rate("default", "100/m"))
    await change("pause_queue", "queue.pause", acting.pause_queue("default"))
    await change("resume_queue", "queue.resume", acting.resume_queue("default"))
    await change("drain_worker", "worker.drain", _drain_worker(app, acting))
    await change("resume_worker", "worker.resume", acting.resume_worker("box-1"))

    nightly = schedule_definition("nightly", every("1d"), [Step.job(bake)])
    app.schedules.declare(schedule_definition("declared", manual(), [Step.job(bake)]))
    await change("schedules.create", "schedule.create", acting.schedules.create(nightly))
    edited = schedule_definition("nightly", every("2d"), [Step.job(bake)])
    await change("schedules.edit", "schedule.change", acting.schedules.edit("nightly", edited))
    await change("schedules.deploy", "schedule.apply", acting.schedules.deploy())
    applied = schedule_definition("applied", manual(), [Step.job(bake)])
    await change("schedules.apply", "schedule.apply", acting.schedules.apply([applied]))
    await change("schedules.disable", "schedule.disable", acting.schedules.disable("nightly"))
    await change("schedules.enable", "schedule.enable", acting.schedules.enable("nightly"))
    started = await change("schedules.run", "schedule.run", acting.schedules.run("nightly"))
    backfill = acting.schedules.backfill("nightly", "2025-01-01", "2025-01-31")
    backfilled = await change("schedules.backfill", "schedule.backfill", backfill)
    paused = acting.bulk_operations.pause(backfilled.id)
    await change("bulk_operations.pause", "operation.pause", paused)
    resumed = acting.bulk_operations.resume(backfilled.id)
    await change("bulk_operations.resume", "operation.resume", resumed)
    await change("executions.pause", "execution.pause", acting.executions.pause(started.execution_id))
    await change("executions.resume", "execution.resume", acting.executions.resume(started.execution_id))
    await change("executions.cancel", "execution.cancel", acting.executions.cancel(started.execution_id))
    again = await change("executions.retry", "execution.retry", acting.executions.retry(started.execution_id))
    await acting.executions.cancel(again)
    await change("schedules.delete", "schedule.delete", acting.schedules.delete("nightly"))

    await change("events.send", "event.send", acting.events.send("paid", {"amount": 1}))
    approvals = [await _request_approval(app) for _ in range(3)]
    await change("approvals.approve", "approval.approve", acting.approvals.approve(approvals[0]))
    await change("approvals.reject", "approval.reject", acting.approvals.reject(approvals[1]))
    linked = await change(
        "approvals.create_link", "approval.link", acting.approvals.create_link(approvals[2], EVE.name)
    )
    await change("approvals.create_links", "approval.link", acting.approvals.create_links(approvals[2]))
    by_link = acting.approvals.decide_by_link(linked.link, Decision.APPROVE)
    await change("approvals.decide_by_link", "approval.approve", by_link)

    oven = build_manifest(bake, "oven", on_demand=True)
    app.manifests.declare(build_manifest(bake, "declared", on_demand=True))
    await change("manifests.create", "manifest.create", acting.manifests.create(oven))
    warmer = build_manifest(bake, "oven", on_demand=True, priority=3)
    await change("manifests.edit", "manifest.change", acting.manifests.edit("oven", warmer))
    await change("manifests.deploy", "manifest.apply", acting.manifests.deploy())
    regular = build_manifest(bake, "regular", trigger=every("1d"))
    await change("manifests.apply", "manifest.apply", acting.manifests.apply([regular]))
    await change("manifests.disable", "manifest.disable", acting.manifests.disable("oven"))
    await change("manifests.enable", "manifest.enable", acting.manifests.enable("oven"))
    await change("manifests.change_group", "manifest_group.change", acting.manifests.change_group("g", max_active=3))
    await change("manifests.run", "manifest.run", acting.manifests.run("oven"))
    await change("manifests.enqueue", "manifest.enqueue", acting.manifests.enqueue("oven", {"loaves": 2}))
    await change("manifests.poll", "manifest.poll", acting.manifests.poll())
    batch = await change(
        "batches.enqueue", "manifest.bulk", acting.batches.enqueue("oven", [{"loaves": n} for n in range(6)])
    )
    await change("batches.pause", "batch.pause", acting.batches.pause(batch.id))
    await change("batches.resume", "batch.resume", acting.batches.resume(batch.id))
    async with app.worker(poll_seconds=0.1):
        await app.batches.wait(batch.id, 30)
    letters = [dead_letter.id for dead_letter in await app.dead_letters.list(batch=batch.id)]
    await change("dead_letters.retry", "dead_letter.retry", acting.dead_letters.retry(letters[0]))
    await change("dead_letters.acknowledge", "dead_letter.acknowledge", acting.dead_letters.acknowledge(letters[1]))
    await change("dead_letters.retry_selected", "dead_letter.retry", acting.dead_letters.retry_selected(letters[2:3]))
    await change(
        "dead_letters.acknowledge_selected",
        "dead_letter.acknowledge",
        acting.dead_letters.acknowledge_selected(letters[3:4]),
    )
    await change("dead_letters.retry_all_of_batch", "batch.retry", acting.batches.retry_failed(batch.id))
    recorder.recorded.add("batches.retry_failed")
    await change("batches.cancel", "batch.cancel", acting.batches.cancel(batch.id))
    async with app.worker(poll_seconds=0.1):
        await app.batches.wait((await app.batches.enqueue("oven", [{"loaves": n} for n in range(2)])).id, 30)
    await change("dead_letters.retry_all", "dead_letter.retry", acting.dead_letters.retry_all(manifest="oven"))
    async with app.worker(poll_seconds=0.1):
        await app.batches.wait((await app.batches.enqueue("oven", [{"loaves": n} for n in range(2)])).id, 30)
    started = await change(
        "bulk_operations.create", "operation.create", acting.bulk_operations.create("dead_letter.acknowledge", "")
    )
    await change("bulk_operations.abort", "operation.abort", acting.bulk_operations.abort(started.id))
    await change("dead_letters.acknowledge_all", "dead_letter.acknowledge", acting.dead_letters.acknowledge_all())
    async with app.worker(poll_seconds=0.1):
        await app.batches.wait((await app.batches.enqueue("oven", [{"loaves": 1}])).id, 30)
    (dead_letter,) = await app.dead_letters.list()
    await change("tasks.retry", "task.retry", acting.tasks.retry(dead_letter.task_id))
    recorder.recorded.add("dead_letters.retry_task")
    await change("manifests.delete", "manifest.delete", acting.manifests.delete("regular"))
    planned = await app.plans.plan(
        read_declarations([_document("schedules: [{name: weekly, every: 7d, steps: [{job: bake}]}]")])
    )
    await change("plans.apply", "plan.apply", acting.plans.apply(planned))

    later = (await app.open()).clock.now() + timedelta(days=1)
    shot = await change("one_shots.create", "one_shot.create", acting.one_shots.create(later, "bake", {}))
    await change("one_shots.cancel", "one_shot.cancel", acting.one_shots.cancel(shot.id))
    await change("one_shots.cancel_all", "one_shot.wipe", acting.one_shots.cancel_all())
    await change("logs.append", "log.append", acting.logs.append("orders", "counted"))
    await change("secrets.set", "secret.set", acting.secrets.set("password", "open sesame"))
    await change("secrets.delete", "secret.delete", acting.secrets.delete("password"))
    await app.secrets.set("password", "open sesame")
    app.settings = app.settings.model_copy(
        update={"master_key": load_settings(master_key=f"{'B' * 43}= {'A' * 43}=").master_key}
    )
    await change("secrets.rotate", "secret.rotate", acting.secrets.rotate())

    await change("api_keys.create_initial_key", "key.first", acting.api_keys.create_initial_key(app.settings.home))
    key, _ = await change("api_keys.create", "key.create", acting.api_keys.create("ci", Role.VIEWER))
    link = await change("api_keys.create_link", "key.link", acting.api_keys.create_link(key.name))
    opened = await change("api_keys.redeem_link", "session.open", acting.api_keys.redeem_link(link))
    caller = await app.api_keys.authenticate_session(opened[0])
    assert caller is not None
    await change("api_keys.open_session", "session.open", acting.api_keys.open_session(caller))
    await change("api_keys.end_session", "session.close", acting.api_keys.end_session(opened[0]))
    [session] = await app.api_keys.sessions(key.id)
    await change("api_keys.end_session_by_id", "session.end", acting.api_keys.end_session_by_id(session.id))
    await app.api_keys.open_session(caller)
    await change("api_keys.end_other_sessions", "session.end", acting.api_keys.end_other_sessions(key.id))
    _, invitation = await change("invitations.create", "invitation.create", acting.invitations.create("a", Role.VIEWER))
    await change("invitations.accept", "invitation.accept", acting.invitations.accept(invitation))
    await app.invitations.create("b", Role.VIEWER)
    await change("invitations.revoke", "invitation.revoke", acting.invitations.revoke("b"))
    await change("api_keys.rotate", "key.rotate", acting.api_keys.rotate("ci"))
    await change("api_keys.revoke", "key.revoke", acting.api_keys.revoke("ci"))

    inventory = acting.extensions.inventory
    await change("extensions.inventory.add", "inventory.item.add", inventory.add("flour", level=3))
    await change("extensions.inventory.remove", "inventory.item.remove", inventory.remove("flour"))
    return recorder.recorded


async def _request_approval(app: Tenuto) -> UUID:
    """Request an approval that the caller may decide, as a running step does."""
    database = await app.open()
    worker_id, now = new_id(), database.clock.now()
    await task_creation.enqueue_tasks(database, [make_new_task(queue="approvals")])
    await database.fetch_all(
        "UPDATE tenuto.tasks SET state = 'running', worker_id = $1, fence = 1, claimed_at = now(),"
        " lease_until = now() + interval '1 day' WHERE queue = 'approvals' AND state = 'queued'",
        worker_id,
    )
    id = await database.fetch_value("SELECT id FROM tenuto.tasks WHERE worker_id = $1", worker_id)
    task = replace(make_held_task(), id=id, activity_id=id, worker_id=worker_id)
    new = NewApproval(
        "go live", None, None, "Go?", "{}", None, [EVE.name], 1, "fail", now + timedelta(days=1), EVE
    )  # fmt: skip

    async def request(connection: Connection) -> None:
        await request_approval(connection, task, new, now)

    await database.transaction(request)
    return task.id


async def _drain_worker(app: Tenuto, acting: Tenuto) -> None:
    database = await app.open()
    await database.fetch_all(
        "INSERT INTO tenuto.workers (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
        " VALUES ($1, 'box-1', 'worker', 'host', 'boot', 1, '1', '{}', 1, now(), now())",
        new_id(),
    )
    await acting.drain_worker("box-1")


async def _enqueue_within(app: Tenuto, acting: Tenuto, job: Any) -> None:
    async with (await app.open()).connection() as connection, connection.transaction():
        await acting.enqueue_within(connection, job)


def _document(text: str) -> Any:
    from tenuto.definitions.document_parser import parse_document

    return parse_document("plan.yaml", text.encode())


async def test_every_operation_is_a_query_or_leaves_an_entry_with_its_action(app: Tenuto) -> None:
    recorded = await make_every_change(app)
    assert list_operations(app) - QUERIES - recorded == set(), "an operation is missing in this test"
    assert QUERIES & recorded == set()


STATEMENTS = {
    "INSERT": "INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT * FROM {table}",
    "UPDATE": "UPDATE {table} SET {column} = {column}",
    "DELETE": "DELETE FROM {table}",
    "MERGE": "MERGE INTO {table} AS t USING (SELECT 1) AS s ON true WHEN MATCHED THEN DELETE",
    "COPY": "COPY {table} FROM PROGRAM 'true'",
    "TRUNCATE": "TRUNCATE {table} CASCADE",
}


async def render_statement(database: Database, verb: str, table: str) -> str:
    column = await database.fetch_value(
        "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0"
        " AND NOT attisdropped AND attgenerated = '' AND attidentity = '' ORDER BY attnum LIMIT 1",
        table,
    )
    return STATEMENTS[verb].format(table=table, column=column)


async def test_query_of_an_audited_operation_refuses_every_change(app: Tenuto) -> None:
    database = await app.open()
    reading = AuditedDatabase(database)
    for table in await list_tables(database):
        for verb in STATEMENTS:
            statement = await render_statement(database, verb, table)
            with raises_code("audit.change_by_query", StoreError):
                await reading.fetch_all(statement)
            with raises_code("audit.change_by_query", StoreError):
                await AuditedDatabase(database, AuditEntry(OperationContext(EVE, "test.read"))).fetch_all(statement)
    assert await database.fetch_value("SELECT count(*) FROM tenuto.audit") == 0


@pytest.mark.slow
async def test_every_change_of_an_audited_operation_is_refused_or_recorded(app: Tenuto) -> None:
    await make_every_change(app)
    database = await app.open()
    recorded = 0
    for table in await list_tables(database):
        for verb in ("UPDATE", "INSERT", "COPY", "MERGE", "DELETE", "TRUNCATE"):
            statement, before = await render_statement(database, verb, table), await table_digest(database, table)
            entry = AuditEntry(OperationContext(EVE, f"test.{verb.lower()}"), target=table)
            operation = AuditedDatabase(database, entry)
            try:
                await (_copy_rows(operation, table) if verb == "COPY" else operation.write_all(statement))
            except UserError:
                raise
            except StoreError:  # refused by a constraint or a trigger
                assert await table_digest(database, table) == before, (table, verb)
                continue
            if await table_digest(database, table) != before:
                assert entry.is_written, (table, verb)
            found = await database.fetch_value("SELECT count(*) FROM tenuto.audit WHERE id = $1", entry.id)
            assert found == entry.is_written, (table, verb)
            recorded += entry.is_written
    assert recorded > 20


async def _copy_rows(operation: AuditedDatabase, table: str) -> None:
    """Copy the rows of a table into itself; a unique key may refuse it."""
    schema, _, name = table.partition(".")

    async def load(connection: Connection) -> None:
        rows = io.BytesIO()
        await connection.copy_from_query(f"SELECT * FROM {table} LIMIT 1", output=rows)
        rows.seek(0)
        await connection.copy_to_table(name, schema_name=schema, source=rows)

    await operation.copy(load)


async def test_database_and_connections_of_an_audited_app_are_read_only(app: Tenuto) -> None:
    acting = app.acting_as(EVE)
    with raises_code("audit.change_by_query", StoreError):
        await (await acting.open()).write_all("INSERT INTO tenuto.queues (name) VALUES ('x')")
    async with (await acting.open()).connection() as connection:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await connection.execute("INSERT INTO tenuto.queues (name) VALUES ('x')")
    assert await app.queues() == []


async def test_refused_or_repeated_operation_leaves_no_entry(app: Tenuto) -> None:
    acting, bake = app.acting_as(EVE), app.jobs.get_job("bake")
    for change in (acting.limit_queue("default", 3), acting.pause_queue("default"), acting.pause_queue("mail")):
        await change
    await acting.resume_queue("mail")
    await app.manifests.create(build_manifest(bake, "oven", on_demand=True))
    await app.resume_queue("default")
    batch = await app.batches.enqueue("oven", [{"loaves": 1}, {"loaves": 2}])
    async with app.worker(poll_seconds=0.1):
        await app.batches.wait(batch.id, 30)
    paused = await app.batches.enqueue("oven", [{"loaves": 3}])
    letters = [dead_letter.id for dead_letter in await app.dead_letters.list()]
    await acting.dead_letters.acknowledge_selected(letters)
    await acting.batches.pause(paused.id)
    await acting.pause_queue("default")
    line = new_id()
    await acting.logs.append("orders", "counted", key=line)
    known = [entry.id for entry in await app.audit.list()]

    await acting.limit_queue("default", 3)
    await acting.pause_queue("default")
    await acting.resume_queue("mail")
    await acting.logs.append("orders", "counted", key=line)
    with raises_code("batch.already_paused", Conflict):
        await acting.batches.pause(paused.id)
    with raises_code("batch.not_paused", Conflict):
        await acting.batches.resume(batch.id)
    assert await acting.dead_letters.retry_selected(letters) == 0
    assert await acting.dead_letters.acknowledge_selected(letters) == 0
    with raises_code("dead_letter.already_resolved", Conflict):
        await acting.dead_letters.retry(letters[0])

    assert [entry.id for entry in await app.audit.list()] == known


async def test_declaration_that_adopts_a_definition_leaves_an_entry(app: Tenuto) -> None:
    bake = app.jobs.get_job("bake")
    definition = schedule_definition("by hand", manual(), [Step.job(bake)])
    await app.schedules.create(definition)
    acting = app.acting_as(EVE)
    assert await acting.schedules.apply([definition]) == {"by hand": "unchanged"}
    [entry] = await app.audit.list()
    assert (entry.target, entry.before, entry.after) == ("by hand", {"origin": "hand"}, {"origin": "file"})
    assert await acting.schedules.apply([definition]) == {"by hand": "unchanged"}
    assert len(await app.audit.list()) == 1
