"""What is done to keys, secrets, one-shots and the record, for `tests.races.scenarios.all_scenarios`."""

from __future__ import annotations

from tenuto.audit.sealer import seal_entries
from tenuto.model.actors import Role
from tenuto.model.audit_chain import AuditKey, AuditKeys
from tenuto.operations import one_shots
from tenuto.postgres.database import Connection, Database
from tenuto.secret_encryption import MasterKey, MasterKeys
from tenuto.store import named_logs, partitions, workers
from tenuto.store import one_shots as shots
from tenuto.store.access import api_keys, idempotency_keys, secrets
from tenuto.store.access.api_keys import NewKey
from tenuto.store.access.audit_recorder import AuditContext, IdempotencyKey, audited
from tenuto.store.tasks import task_row
from tests.races.scenarios.executions import take_one
from tests.races.scenarios.scenario import LATER, Calm, Scenario, Step, within
from tests.races.task_actions import LEASE, ACTOR

AUDIT_KEYS = AuditKeys(AuditKey("00112233445566aa", b"k" * 32))
MASTER, OTHER = MasterKeys([MasterKey(b"m" * 32)], "a test"), MasterKeys([MasterKey(b"n" * 32), MasterKey(b"m" * 32)], "a test")


def _deed(scenario: Scenario, key: str | None = None) -> AuditContext:
    wanted = None if key is None else IdempotencyKey("key:1", key, b"f", scenario.id("one-shot"))
    return AuditContext(ACTOR, "once.create", "test", idempotency_key=wanted)


async def make_key(connection: Connection, scenario: Scenario) -> None:
    await api_keys.lock_if_no_key_exists(connection)
    await api_keys.insert_key(
        connection, NewKey(scenario.id("key"), "robot", "abcdefgh", b"d" * 32, Role.from_key("admin"), "tester")
    )


async def make_link(connection: Connection, scenario: Scenario) -> None:
    await api_keys.create_login_link(connection, scenario.id("link"), scenario.id("key"), b"l" * 32, LEASE)


async def follow_and_leave(db: Database, scenario: Scenario) -> None:
    await api_keys.record_use(db, scenario.id("key"))
    await api_keys.redeem_login_link(db, b"l" * 32, b"t" * 32, LEASE)
    await api_keys.end_session(db, b"t" * 32)


async def revoke_key(connection: Connection, scenario: Scenario) -> None:
    await api_keys.revoke_key(connection, scenario.id("key"), "tester")


async def forget_sessions(db: Database, scenario: Scenario) -> None:
    await api_keys.delete_old_sessions(db, db.clock.now() + LATER, 100)


async def set_secret(connection: Connection, scenario: Scenario) -> None:
    await secrets.lock_secrets(connection)
    await secrets.store_secret(connection, MASTER.encrypt("password", 1, "hush, hush"), scenario.db.clock.now(), "tester")


async def rotate_secret(connection: Connection, scenario: Scenario) -> None:
    await secrets.lock_secrets(connection)
    for each in await secrets.list_secrets_under_other_keys(connection, OTHER.current.id, ""):
        await secrets.update_wrapping(connection, OTHER.rewrap(each))


async def delete_secret(db: Database, scenario: Scenario) -> None:
    await secrets.delete_secret(db, "password")


async def one_shot(db: Database, scenario: Scenario) -> None:
    await shots.create_one_shot(db, scenario.task("quiet one-shot", origin="once"))
    await shots.create_audited_one_shots(
        db, [(task_row(scenario.task("one-shot", origin="once")), _deed(scenario, "asked once"))]
    )
    several = [f"one-shot {number}" for number in (2, 3)]
    await shots.create_audited_one_shots(
        db, [(task_row(scenario.task(name, origin="once")), _deed(scenario, name)) for name in several]
    )


async def a_change_on_record(db: Database, scenario: Scenario) -> None:
    with audited(_deed(scenario, "asked for a limit")):
        await workers.limit_queue(db, "mail", 3)


async def answered(db: Database, scenario: Scenario) -> None:
    await idempotency_keys.store_response(db, "key:1", "asked once", "{}")


async def cancel_one_shot(db: Database, scenario: Scenario) -> None:
    await one_shots.cancel_one_shot(db, scenario.id("quiet one-shot"), ACTOR)


async def wipe(db: Database, scenario: Scenario) -> None:
    await one_shots.cancel_all_one_shots(db, ACTOR)


async def seal(db: Database, scenario: Scenario) -> None:
    await seal_entries(db, AUDIT_KEYS)


async def log(db: Database, scenario: Scenario) -> None:
    await named_logs.append_entry(db, "a log", db.clock.now(), "a line", None, key=scenario.id("line"))


async def forget_the_rest(db: Database, scenario: Scenario) -> None:
    cutoff = db.clock.now() + LATER
    await named_logs.delete_old_entries(db, cutoff, 100)
    await idempotency_keys.delete_old_requests(db, cutoff, 100)
    await partitions.delete_old_default_rows(db, cutoff, 100)


ACCESS: tuple[Step, ...] = (
    within(make_key), within(make_link), follow_and_leave, within(revoke_key), forget_sessions, within(set_secret),
    within(rotate_secret), delete_secret, one_shot, a_change_on_record, answered, cancel_one_shot, Calm(take_one),
    wipe, seal, log, forget_the_rest,
)  # fmt: skip
