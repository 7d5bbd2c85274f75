"""Actions on API keys, secrets, one-shots and audit entries."""

from __future__ import annotations

from tenuto.audit.sealer import seal_entries
from tenuto.model.access.actors import Role
from tenuto.model.access.audit_chain import AuditKey, AuditKeys
from tenuto.model.access.operation_context import IdempotencyKey, OperationContext
from tenuto.operations.work import one_shots
from tenuto.postgres.database import Connection, Database
from tenuto.secret_encryption import MasterKey, MasterKeys
from tenuto.store import named_logs, partitions
from tenuto.store.access import api_keys, idempotency_keys, invitations, secrets
from tenuto.store.access.api_keys import NewKey, NewSession
from tenuto.store.access.audit_recorder import AuditedDatabase, AuditEntry
from tenuto.store.access.invitations import NewInvitation
from tenuto.store.work import task_creation, workers
from tests.races.scenarios.executions import claim_one
from tests.races.scenarios.scenario import LATER, Action, Preparation, Scenario, in_transaction
from tests.races.task_actions import ACTOR, LEASE
from tests.support.operations import make_unaudited_operation

AUDIT_KEYS = AuditKeys(AuditKey("00112233445566aa", b"k" * 32))
MASTER_KEYS, ROTATED_KEYS = (
    MasterKeys([MasterKey(b"m" * 32)], "a test"),
    MasterKeys([MasterKey(b"n" * 32), MasterKey(b"m" * 32)], "a test"),
)


def _audit_entry(scenario: Scenario, key: str | None = None) -> AuditEntry:
    wanted = None if key is None else IdempotencyKey("key:1", key, b"f", scenario.id("one-shot"))
    return AuditEntry(OperationContext(ACTOR, "one_shot.create", "test", idempotency_key=wanted))


async def create_key(connection: Connection, scenario: Scenario) -> None:
    await api_keys.lock_if_no_key_exists(connection)
    await api_keys.insert_key(
        connection, NewKey(scenario.id("key"), "robot", "abcdefgh", b"d" * 32, Role.from_key("admin"), "tester")
    )


async def create_login_link(connection: Connection, scenario: Scenario) -> None:
    await api_keys.create_login_link(connection, scenario.id("link"), scenario.id("key"), b"l" * 32, LEASE)


async def use_and_end_session(db: Database, scenario: Scenario) -> None:
    await api_keys.record_use(db, scenario.id("key"))
    await db.transaction(
        lambda connection: api_keys.redeem_login_link(connection, b"l" * 32, NewSession(b"t" * 32, LEASE, LATER))
    )
    await api_keys.end_session(db, b"t" * 32)


async def open_session(connection: Connection, scenario: Scenario) -> None:
    await api_keys.open_session(
        connection, scenario.id("session"), scenario.id("key"), NewSession(b"s" * 32, LEASE, LATER)
    )


async def end_sessions(connection: Connection, scenario: Scenario) -> None:
    await api_keys.end_session_by_id(connection, scenario.id("session"), scenario.id("key"))
    await api_keys.end_other_sessions(connection, scenario.id("key"), None)
    await api_keys.end_all_sessions(connection)


async def prolong_session(db: Database, scenario: Scenario) -> None:
    await api_keys.prolong_session(db, scenario.id("session"), LEASE)


async def invite(connection: Connection, scenario: Scenario) -> None:
    for name in ("ana", "ben"):
        new = NewInvitation(
            scenario.id(f"invitation of {name}"), name, Role.VIEWER, name.encode() * 8, "tester", None, LEASE
        )
        await invitations.insert_invitation(connection, new)


async def answer_invitations(connection: Connection, scenario: Scenario) -> None:
    found = await invitations.lock_open_invitation(connection, b"ana" * 8, scenario.id("key"))
    if found is not None:
        await invitations.accept_invitation(connection, found.id, scenario.id("key"))
    await invitations.revoke_invitation(connection, scenario.id("invitation of ben"), "tester")
    await invitations.revoke_open_invitations(connection, "tester")


async def delete_invitations(db: Database, scenario: Scenario) -> None:
    await invitations.delete_old_invitations(db, db.clock.now() + LATER, 100)


async def rotate_key(connection: Connection, scenario: Scenario) -> None:
    new = NewKey(scenario.id("rotated key"), "robot", "ijklmnop", b"r" * 32, Role.from_key("admin"), "tester")
    await api_keys.replace_key(connection, scenario.id("key"), new)


async def revoke_key(connection: Connection, scenario: Scenario) -> None:
    await api_keys.revoke_key(connection, scenario.id("rotated key"), "tester")


async def delete_sessions(db: Database, scenario: Scenario) -> None:
    await api_keys.delete_old_sessions(db, db.clock.now() + LATER, 100)


async def set_secret(connection: Connection, scenario: Scenario) -> None:
    await secrets.lock_secrets(connection)
    await secrets.store_secret(
        connection, MASTER_KEYS.encrypt("password", 1, "hush, hush"), scenario.db.clock.now(), "tester"
    )


async def rotate_secret(connection: Connection, scenario: Scenario) -> None:
    await secrets.lock_secrets(connection)
    for each in await secrets.list_secrets_under_other_keys(connection, ROTATED_KEYS.current.id, ""):
        await secrets.update_wrapping(connection, ROTATED_KEYS.rewrap(each))


async def delete_secret(db: Database, scenario: Scenario) -> None:
    await secrets.delete_secret(db, "password")


async def create_one_shots(db: Database, scenario: Scenario) -> None:
    await task_creation.enqueue_new(db, scenario.task("quiet one-shot", origin="once"))
    await task_creation.insert_audited_tasks(
        db, [(scenario.task("one-shot", origin="once"), _audit_entry(scenario, "asked once"))]
    )
    several = [f"one-shot {number}" for number in (2, 3)]
    await task_creation.insert_audited_tasks(
        db, [(scenario.task(name, origin="once"), _audit_entry(scenario, name)) for name in several]
    )


async def change_with_audit_entry(db: Database, scenario: Scenario) -> None:
    await AuditedDatabase(db, _audit_entry(scenario, "asked for a limit")).transaction(
        lambda connection: workers.limit_queue(connection, "mail", 3)
    )


async def store_response(db: Database, scenario: Scenario) -> None:
    await idempotency_keys.store_response(db, "key:1", "asked once", "{}")


async def cancel_one_shot(db: Database, scenario: Scenario) -> None:
    await one_shots.cancel_one_shot(db, scenario.id("quiet one-shot"), ACTOR)


async def cancel_all_one_shots(db: Database, scenario: Scenario) -> None:
    await one_shots.cancel_all_one_shots(make_unaudited_operation(db, ACTOR))


async def seal_audit_entries(db: Database, scenario: Scenario) -> None:
    await seal_entries(db, AUDIT_KEYS)


async def append_log_entry(db: Database, scenario: Scenario) -> None:
    await named_logs.append_entry(db, "a log", db.clock.now(), "a line", None, key=scenario.id("line"))


async def delete_old_rows(db: Database, scenario: Scenario) -> None:
    cutoff = db.clock.now() + LATER
    await named_logs.delete_old_entries(db, cutoff, 100)
    await idempotency_keys.delete_old_requests(db, cutoff, 100)
    await partitions.delete_old_default_rows(db, cutoff, 100)


ACCESS: tuple[Action, ...] = (
    in_transaction(create_key), in_transaction(create_login_link), use_and_end_session, in_transaction(open_session),
    prolong_session, in_transaction(end_sessions), in_transaction(invite), in_transaction(answer_invitations),
    delete_invitations, in_transaction(rotate_key), in_transaction(revoke_key), delete_sessions,
    in_transaction(set_secret),
    in_transaction(rotate_secret), delete_secret, create_one_shots, change_with_audit_entry, store_response,
    cancel_one_shot, Preparation(claim_one), cancel_all_one_shots, seal_audit_entries, append_log_entry,
    delete_old_rows,
)  # fmt: skip
