"""What is done to keys, secrets, one-shots and the record, for `tests.races.scripts`."""

from __future__ import annotations

from tenuto.audit.sealer import seal_some
from tenuto.model.actors import Role
from tenuto.model.audit_chain import AuditKey, AuditKeys
from tenuto.operations import one_shots
from tenuto.postgres.database import Connection, Database
from tenuto.secret_encryption import Key, Keys
from tenuto.store import named_logs, partitions, workers
from tenuto.store import one_shots as shots
from tenuto.store.access import api_keys, idempotency_keys, secrets
from tenuto.store.access.api_keys import NewKey
from tenuto.store.access.audit_recorder import Deed, RequestKey, on_record
from tests.races.scenarios.executions import take_one
from tests.races.scenarios.scenario import LATER, Calm, Stage, Step, within
from tests.races.tasks import LEASE, SOMEBODY

AUDIT_KEYS = AuditKeys(AuditKey("00112233445566aa", b"k" * 32))
MASTER, OTHER = Keys([Key(b"m" * 32)], "a test"), Keys([Key(b"n" * 32), Key(b"m" * 32)], "a test")


def _deed(stage: Stage, key: str | None = None) -> Deed:
    wanted = None if key is None else RequestKey("key:1", key, b"f", stage.id("one-shot"))
    return Deed(SOMEBODY, "once.create", "test", request_key=wanted)


async def make_key(connection: Connection, stage: Stage) -> None:
    await api_keys.there_is_none(connection)
    await api_keys.make(
        connection, NewKey(stage.id("key"), "robot", "abcdefgh", b"d" * 32, Role.named("admin"), "somebody")
    )


async def make_link(connection: Connection, stage: Stage) -> None:
    await api_keys.make_link(connection, stage.id("link"), stage.id("key"), b"l" * 32, LEASE)


async def follow_and_leave(db: Database, stage: Stage) -> None:
    await api_keys.mark_used(db, stage.id("key"))
    await api_keys.follow(db, b"l" * 32, b"t" * 32, LEASE)
    await api_keys.end_session(db, b"t" * 32)


async def revoke_key(connection: Connection, stage: Stage) -> None:
    await api_keys.revoke(connection, stage.id("key"), "somebody")


async def forget_sessions(db: Database, stage: Stage) -> None:
    await api_keys.forget_sessions(db, db.clock.now() + LATER, 100)


async def set_secret(connection: Connection, stage: Stage) -> None:
    await secrets.hold(connection)
    await secrets.put(connection, MASTER.seal("password", 1, "hush, hush"), stage.db.clock.now(), "somebody")


async def rotate_secret(connection: Connection, stage: Stage) -> None:
    await secrets.hold(connection)
    for each in await secrets.under_other_keys(connection, OTHER.current.id, ""):
        await secrets.rewrapped(connection, OTHER.rewrap(each))


async def delete_secret(db: Database, stage: Stage) -> None:
    await secrets.delete(db, "password")


async def one_shot(db: Database, stage: Stage) -> None:
    await shots.create(db, stage.task("quiet one-shot", origin="once"))
    await shots.create_on_record(
        db, [(shots.row_of_one(stage.task("one-shot", origin="once")), _deed(stage, "asked once"))]
    )
    several = [f"one-shot {number}" for number in (2, 3)]
    await shots.create_on_record(
        db, [(shots.row_of_one(stage.task(name, origin="once")), _deed(stage, name)) for name in several]
    )


async def a_change_on_record(db: Database, stage: Stage) -> None:
    with on_record(_deed(stage, "asked for a limit")):
        await workers.limit_queue(db, "mail", 3)


async def answered(db: Database, stage: Stage) -> None:
    await idempotency_keys.answered(db, "key:1", "asked once", "{}")


async def cancel_one_shot(db: Database, stage: Stage) -> None:
    await one_shots.cancel(db, stage.id("quiet one-shot"), SOMEBODY)


async def wipe(db: Database, stage: Stage) -> None:
    await one_shots.wipe(db, SOMEBODY)


async def seal(db: Database, stage: Stage) -> None:
    await seal_some(db, AUDIT_KEYS)


async def log(db: Database, stage: Stage) -> None:
    await named_logs.append(db, "a log", db.clock.now(), "a line", None, key=stage.id("line"))


async def forget_the_rest(db: Database, stage: Stage) -> None:
    cutoff = db.clock.now() + LATER
    await named_logs.forget(db, cutoff, 100)
    await idempotency_keys.forget(db, cutoff, 100)
    await partitions.delete_old(db, cutoff, 100)


ACCESS: tuple[Step, ...] = (
    within(make_key), within(make_link), follow_and_leave, within(revoke_key), forget_sessions, within(set_secret),
    within(rotate_secret), delete_secret, one_shot, a_change_on_record, answered, cancel_one_shot, Calm(take_one),
    wipe, seal, log, forget_the_rest,
)  # fmt: skip
