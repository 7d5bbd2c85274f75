"""Audit log: one entry for each change and none for a failed one, one chain, and tampering is found."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tenuto import Step, Tenuto, manual, secret_encryption
from tenuto.audit import checkpoints
from tenuto.audit import keys as audit_keys
from tenuto.audit.sealer import AuditSealer, seal_entries
from tenuto.audit.verifier import Verification
from tenuto.errors import Conflict, Invalid, NotFound
from tenuto.model.access import audit_chain
from tenuto.model.access.actors import Actor, Role
from tenuto.model.access.audit_chain import SealedEntry
from tenuto.model.access.operation_context import OperationContext
from tenuto.model.access.secrets import redact_sensitive_fields
from tenuto.postgres.database import Database, DatabaseError
from tenuto.settings import Settings, load_settings
from tenuto.store.access.audit_recorder import AuditedDatabase, AuditEntry
from tests.support.errors import raises_code
from tests.support.waiting import eventually

EVE = Actor.user("eve")
NEW_LIMITS = itertools.count(10)
"""Each limit differs from the one before, because only a change leaves an entry."""
ENTRY = SealedEntry(
    "x", "2031-05-17T12:00:00", "user", "eve", "eve", "test", None, "queue.limit", None, None, None, None
)
MASTER = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def settings(url: str, tmp_path: Path) -> Settings:
    return load_settings(database=url, home=tmp_path, master_key=MASTER)


@pytest.fixture
async def app(settings: Settings) -> AsyncIterator[Tenuto]:
    app = Tenuto(settings=settings)
    yield app
    await app.close()


def acting_as_eve(app: Tenuto, **fields: Any) -> Tenuto:
    return app.acting_as(EVE, source="test", **fields)


async def write_sealed_entries(app: Tenuto, count: int = 5) -> None:
    """Write entries, seal them and record a checkpoint."""
    for number in range(1, count + 1):
        await acting_as_eve(app).limit_queue(f"queue-{number}", next(NEW_LIMITS))
    await seal_waiting_entries(app)
    await checkpoints.record_checkpoint(await app.open(), app.settings.home)


async def seal_waiting_entries(app: Tenuto) -> int:
    return await seal_entries(await app.open(), audit_keys.load_audit_keys(app.settings))


async def list_faults(app: Tenuto) -> list[tuple[str, int | None]]:
    found = await app.audit.verify()
    return [(fault.kind, fault.position) for fault in found.faults]


async def execute_as_superuser(app: Tenuto, *statements: str) -> None:
    """Execute statements without triggers, as a database administrator could."""
    connection = await asyncpg.connect(app.settings.database)
    await connection.execute("SET session_replication_role = replica")
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


async def count_entries(app: Tenuto) -> int:
    count: int = await (await app.open()).fetch_value("SELECT count(*) FROM tenuto.audit")
    return count


# --- entries --------------------------------------------------------------------------------------------------------


async def test_audited_change_writes_one_entry_with_actor_action_and_source(app: Tenuto) -> None:
    await acting_as_eve(app, correlation_id="r-1").pause_queue("mail", "server is down")

    [entry] = await app.audit.list()
    found = {
        name: getattr(entry, name)
        for name in ("actor_type", "actor_id", "actor_name", "source", "request_id", "action")
    }
    assert found == {
        "actor_type": "user", "actor_id": "eve", "actor_name": "eve", "source": "test", "request_id": "r-1",
        "action": "queue.pause",
    }  # fmt: skip
    assert (entry.target, entry.reason, entry.position) == ("mail", "server is down", None)
    assert await seal_waiting_entries(app) == 1
    sealed = await app.audit.get(entry.id)
    assert sealed.position == 1
    assert sealed.seal is not None
    assert sealed.seal.startswith("01")


async def test_audited_operation_without_change_writes_no_entry(app: Tenuto) -> None:
    database, acting = await app.open(), acting_as_eve(app)

    async def fails(connection: Any) -> None:
        await connection.execute("INSERT INTO tenuto.queues (name) VALUES ('x')")
        raise Conflict("no", code="test.error")

    with pytest.raises(Conflict):
        await AuditedDatabase(database, AuditEntry(OperationContext(EVE, "queue.limit"))).transaction(fails)
    with pytest.raises(Invalid):
        await acting.limit_queue("mail", 0)
    await acting.queues()
    with pytest.raises(NotFound):
        await acting.schedules.delete("nothing")
    assert await count_entries(app) == 0
    assert await database.fetch_value("SELECT count(*) FROM tenuto.audit_unsealed") == 0


async def test_opening_the_database_writes_no_audit_entry(app: Tenuto) -> None:
    database = await app.open()
    next_month = await database.fetch_value(
        "SELECT max(inhrelid::regclass::text) FROM pg_inherits"
        " WHERE inhparent = 'tenuto.activities'::regclass AND inhrelid::regclass::text ~ '_[0-9]{2}$'"
    )
    await execute_as_superuser(app, f"DROP TABLE {next_month}")
    await app.close()
    await acting_as_eve(app).queues()  # opens the database, which creates the missing partition
    assert await count_entries(app) == 0
    await acting_as_eve(app).limit_queue("mail", 3)
    assert [entry.target for entry in await app.audit.list()] == ["mail"]


async def test_audit_tables_refuse_changes(app: Tenuto) -> None:
    await write_sealed_entries(app, 2)
    database = await app.open()
    for table in ("audit", "audit_chain"):
        for statement in (
            f"DELETE FROM tenuto.{table}",
            f"TRUNCATE tenuto.{table}",
            "UPDATE tenuto.audit SET reason = 'x'",
            "UPDATE tenuto.audit_chain SET position = position + 5",
        ):
            with pytest.raises(DatabaseError, match="written once"):
                await database.fetch_all(statement)
    assert await list_faults(app) == []


async def test_audit_list_filters_and_pages_entries(app: Tenuto) -> None:
    await write_sealed_entries(app, 3)
    await acting_as_eve(app).api_keys.create("ci", Role.VIEWER)
    newest, *rest = await app.audit.list()
    assert (newest.action, newest.target, newest.after["role"]) == ("key.create", "ci", "viewer")
    assert [entry.target for entry in await app.audit.list(action="queue")] == ["queue-3", "queue-2", "queue-1"]
    assert [entry.target for entry in await app.audit.list(action="queue.limit", below=rest[0].id, limit=1)] == [
        "queue-2"
    ]
    assert len(await app.audit.list(actor="eve")) == 4
    assert await app.audit.list(actor="adam") == []
    assert len(await app.audit.list(target="queue-2")) == 1
    at = newest.at
    assert await app.audit.list(since=at) == [newest]
    assert len(await app.audit.list(until=at)) == 3
    for wrong in ({"limit": 0}, {"limit": 501}, {"since": at.replace(tzinfo=None)}, {"actor": ""}, {"target": "\x00"}):
        with pytest.raises(Invalid):
            await app.audit.list(**wrong)
    with raises_code("audit.entry.not_found", NotFound):
        await app.audit.get(UUID(int=7))


def test_redaction_of_sensitive_fields_leaves_the_original_unchanged() -> None:
    before = {
        "url": "https://x", "headers": {"Authorization": "Bearer abc", "Accept": "x"}, "PASSWORD": "p",
        "args": [{"api_key": "k", "n": 1}], "secret": None, "auth": {"secret": {"deep": "value"}},
    }  # fmt: skip
    after = redact_sensitive_fields(before)
    assert after["headers"] == {"Authorization": "***", "Accept": "x"}
    assert after["PASSWORD"] == "***"
    assert after["args"] == [{"api_key": "***", "n": 1}]
    assert after["secret"] is None
    assert after["auth"] == {"secret": "***"}
    assert "Bearer abc" in json.dumps(before)


async def test_audit_entry_redacts_job_argument_named_secret(app: Tenuto) -> None:
    @app.job
    async def log_in(secret: str) -> None: ...

    app.manifest("log-in", log_in, on_demand=True, properties={"secret": "canary-3"})
    app.schedule("nightly", manual(), [Step.job(log_in, "canary-4"), Step.http({"secret": "address"})])
    await acting_as_eve(app).manifests.deploy()
    await acting_as_eve(app).schedules.deploy()
    text = "".join(
        [row["line"] for row in await (await app.open()).fetch_all("SELECT audit::text AS line FROM tenuto.audit")]
    )
    assert "log_in" in text
    assert "canary" not in text
    assert "address" in text


async def test_audit_entry_redacts_sensitive_fields(app: Tenuto) -> None:
    fields = {"token": "canary-1", "items": [{"headers": {"authorization": "canary-2"}}]}
    await acting_as_eve(app).logs.append("calls", "called", fields)
    [entry] = await app.audit.list()
    assert entry.after["fields"] == {"token": "***", "items": [{"headers": {"authorization": "***"}}]}
    assert "canary" not in await (await app.open()).fetch_value("SELECT audit::text FROM tenuto.audit")


# --- chain ----------------------------------------------------------------------------------------------------------


async def test_audit_sealer_seals_entries_in_order(app: Tenuto) -> None:
    await write_sealed_entries(app, 7)
    found = await app.audit.verify()
    assert found == Verification(checked_link_count=7, end_position=7, is_keyed=True, checkpoint_position=7)
    assert found.is_sound
    assert (await app.audit.verify(newest=3)).checked_link_count == 3
    assert await seal_waiting_entries(app) == 0
    with raises_code("audit.newest.out_of_range", Invalid):
        await app.audit.verify(newest=0)


async def test_audit_sealer_records_a_checkpoint_once_an_hour(app: Tenuto, tmp_path: Path) -> None:
    await acting_as_eve(app).limit_queue("mail", 3)
    sealer = AuditSealer(await app.open(), app.settings)
    await sealer.run_cycle()
    await sealer.run_cycle()
    assert (await app.audit.verify()).checkpoint_position == 1
    file = tmp_path / checkpoints.FILE_NAME
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(file.read_text().splitlines()) == 1  # once an hour
    await write_sealed_entries(app, 2)
    assert len(file.read_text().splitlines()) == 1


async def test_scheduler_seals_audit_entries(app: Tenuto) -> None:
    async with app.scheduler():
        await acting_as_eve(app).limit_queue("mail", 3)

        async def is_sealed() -> bool:
            return (await app.audit.verify()).checkpoint_position == 1

        await eventually(is_sealed)
    assert (await app.audit.list())[0].position == 1
    public = "SELECT has_function_privilege('public', 'pg_control_system()', 'execute')"
    assert await (await app.open()).fetch_value(public), "every service user can identify the database"


async def test_doctor_verifies_the_audit_chain(app: Tenuto, tmp_path: Path) -> None:
    async def find_audit_finding() -> tuple[str, list[str]]:
        [finding] = [each for each in await app.doctor() if each.name == "audit"]
        return finding.severity, finding.details

    severity, (detail,) = await find_audit_finding()
    assert (severity, detail.split()[0]) == ("ok", "0")
    await write_sealed_entries(app, 2)
    assert (await find_audit_finding())[0] == "ok"
    await acting_as_eve(app).limit_queue("mail", 3)
    await execute_as_superuser(app, "UPDATE tenuto.audit SET at = at - interval '61 seconds' WHERE target = 'mail'")
    severity, (detail,) = await find_audit_finding()
    assert severity == "warning"
    assert "sealed" in detail
    await execute_as_superuser(app, "UPDATE tenuto.audit SET reason = 'x' WHERE target = 'queue-2'")
    assert (await find_audit_finding())[0] == "problem"
    (tmp_path / checkpoints.FILE_NAME).write_text("nonsense\n")
    assert (await find_audit_finding())[0] == "warning"


def _entry_at(position: int) -> str:
    return f"(SELECT audit_id FROM tenuto.audit_chain WHERE position = {position})"


TAMPERINGS: dict[str, tuple[list[str], list[tuple[str, int | None]]]] = {
    "entry changed": (
        [f"UPDATE tenuto.audit SET actor_name = 'adam' WHERE id = {_entry_at(3)}"],
        [("changed", 3)],
    ),
    "entry time changed": (
        [f"UPDATE tenuto.audit SET at = at + interval '1 microsecond' WHERE id = {_entry_at(6)}"],
        [("changed", 6)],
    ),
    "entry reason changed": (
        [f"UPDATE tenuto.audit SET reason = 'fine' WHERE id = {_entry_at(1)}"],
        [("changed", 1)],
    ),
    "entry deleted": (
        [f"DELETE FROM tenuto.audit WHERE id = {_entry_at(4)}"],
        [("deleted", 4)],
    ),
    "entry and link deleted": (
        [f"DELETE FROM tenuto.audit WHERE id = {_entry_at(4)}", "DELETE FROM tenuto.audit_chain WHERE position = 4"],
        [("deleted", 4)],
    ),
    "entry and link deleted and later links moved": (
        [
            f"DELETE FROM tenuto.audit WHERE id = {_entry_at(4)}",
            "DELETE FROM tenuto.audit_chain WHERE position = 4",
            "UPDATE tenuto.audit_chain SET position = 4 WHERE position = 5",
            "UPDATE tenuto.audit_chain SET position = 5 WHERE position = 6",
        ],
        [("changed", 4), ("cut", 5)],
    ),
    "two links exchanged": (
        [
            "UPDATE tenuto.audit_chain SET position = 100 WHERE position = 2",
            "UPDATE tenuto.audit_chain SET position = 2 WHERE position = 3",
            "UPDATE tenuto.audit_chain SET position = 3 WHERE position = 100",
        ],
        [("changed", 2), ("changed", 3), ("changed", 4)],
    ),
    "entries of two links exchanged": (
        [
            "WITH two AS (SELECT (SELECT audit_id FROM tenuto.audit_chain WHERE position = 2) AS a,"
            " (SELECT audit_id FROM tenuto.audit_chain WHERE position = 3) AS b),"
            " out AS (SELECT a, b, (SELECT seal FROM tenuto.audit_chain WHERE position = 3) AS s FROM two),"
            " gone AS (DELETE FROM tenuto.audit_chain WHERE position = 3)"
            " SELECT set_config('t.a', a::text, false), set_config('t.b', b::text, false),"
            " set_config('t.s', encode(s, 'hex'), false) FROM out",
            "UPDATE tenuto.audit_chain SET audit_id = current_setting('t.b')::uuid WHERE position = 2",
            "INSERT INTO tenuto.audit_chain VALUES (3, current_setting('t.a')::uuid, now(),"
            " decode(current_setting('t.s'), 'hex'))",
        ],
        [("changed", 2), ("changed", 3)],
    ),
    "entry inserted": (
        [
            "INSERT INTO tenuto.audit (id, at, actor_type, actor_name, source, action)"
            " VALUES (gen_random_uuid(), now(), 'user', 'adam', 'cli', 'nothing.bad')"
        ],
        [("inserted", None)],
    ),
    "entry and link inserted": (
        [
            "WITH one AS (INSERT INTO tenuto.audit (id, at, actor_type, actor_name, source, action)"
            " VALUES (gen_random_uuid(), now(), 'user', 'adam', 'cli', 'nothing.bad') RETURNING id)"
            " INSERT INTO tenuto.audit_chain SELECT 7, id, now(), '\\x00' || sha256('x') FROM one"
        ],
        [("changed", 7), ("weakened", 7)],
    ),
    "end of the chain deleted": (
        [
            f"DELETE FROM tenuto.audit WHERE id IN ({_entry_at(5)}, {_entry_at(6)})",
            "DELETE FROM tenuto.audit_chain WHERE position >= 5",
        ],
        [("cut", 4)],
    ),
    "whole chain deleted": (["DELETE FROM tenuto.audit", "DELETE FROM tenuto.audit_chain"], [("cut", 0)]),
    "seal replaced": (
        ["UPDATE tenuto.audit_chain SET seal = '\\x00' || sha256('x') WHERE position = 6"],
        [("changed", 6), ("weakened", 6), ("rewritten", 6)],
    ),
}
"""Statements, and the kinds and positions of the faults that the verifier must find."""


@pytest.mark.parametrize("case", TAMPERINGS)
async def test_audit_verifier_finds_tampering(app: Tenuto, case: str) -> None:
    statements, expected = TAMPERINGS[case]
    await write_sealed_entries(app, 6)
    assert await list_faults(app) == []
    await execute_as_superuser(app, *statements)
    assert await list_faults(app) == expected


async def test_audit_verifier_finds_tampering_before_sealing(app: Tenuto) -> None:
    await write_sealed_entries(app, 2)
    await acting_as_eve(app).limit_queue("mail", 3)
    await execute_as_superuser(app, "DELETE FROM tenuto.audit WHERE target = 'mail'")
    assert await list_faults(app) == [("deleted", None)]
    await execute_as_superuser(app, "DELETE FROM tenuto.audit_unsealed")
    await acting_as_eve(app).limit_queue("mail", 4)
    assert await list_faults(app) == []  # it may wait for a minute
    await execute_as_superuser(app, "UPDATE tenuto.audit SET at = at - interval '61 seconds' WHERE target = 'mail'")
    assert await list_faults(app) == [("unsealed", None)]
    await execute_as_superuser(app, "UPDATE tenuto.audit SET at = at - interval '1 day' WHERE target = 'mail'")
    await seal_waiting_entries(app)
    assert await list_faults(app) == [("backdated", 3)]


async def test_audit_verifier_finds_rebuilt_chain_by_checkpoints(url: str, tmp_path: Path) -> None:
    app = Tenuto(url, home=tmp_path)
    await write_sealed_entries(app, 3)
    found = await app.audit.verify()
    assert (found.is_sound, found.is_keyed) == (True, False)
    await execute_as_superuser(app, "UPDATE tenuto.audit SET actor_name = 'adam' WHERE target = 'queue-2'")
    await execute_as_superuser(
        app,
        "INSERT INTO tenuto.audit_unsealed SELECT id FROM tenuto.audit",
        "DELETE FROM tenuto.audit_chain",
    )
    await seal_waiting_entries(app)
    assert await list_faults(app) == [("rewritten", 3)]
    await app.close()


async def test_audit_sealer_never_continues_a_keyed_chain_without_a_key(url: str, app: Tenuto, tmp_path: Path) -> None:
    plain = Tenuto(url, home=tmp_path)
    await write_sealed_entries(plain, 2)
    await write_sealed_entries(app, 2)
    found = await app.audit.verify()
    assert (found.is_sound, found.end_position, found.is_keyed) == (True, 4, True)
    assert await list_faults(plain) == [("unknown_key", 3), ("unknown_key", 4)]
    await acting_as_eve(plain).limit_queue("mail", 3)
    with raises_code("audit.master_key.missing", Conflict):
        await seal_waiting_entries(plain)
    assert await seal_waiting_entries(app) == 1
    rotated = Tenuto(
        settings=load_settings(
            database=url, home=tmp_path, master_key=f"{base64.b64encode(b'x' * 32).decode()},{MASTER}"
        )
    )
    await write_sealed_entries(rotated, 1)
    assert (await rotated.audit.verify()).is_sound
    assert await list_faults(app) == [("unknown_key", 6)]
    for each in (plain, rotated):
        await each.close()


async def test_trail_sealed_with_keys_of_the_cryptography_library_is_sound(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions derived the keys with that library; trails of them must stay verifiable."""

    def derive_key(key: secret_encryption.MasterKey) -> audit_chain.AuditKey:
        derivation = HKDF(SHA256(), length=32, salt=None, info=b"tenuto audit chain")
        return audit_chain.AuditKey(key.id, derivation.derive(key.bytes))

    with monkeypatch.context() as earlier:
        earlier.setattr(audit_keys, "_derive_key", derive_key)
        await write_sealed_entries(app, 3)
    await write_sealed_entries(app, 2)
    found = await app.audit.verify()
    assert (found.is_sound, found.checked_link_count) == (True, 5)
    current = audit_keys.load_audit_keys(app.settings).current
    assert current is not None
    assert current.bytes.hex() == "5db56f0b2a69b218f6ac1d416e0fce8ea28276232504a14612e9dd6a4c09758b"


async def test_audit_keys_of_rotated_master_key_still_verify_old_seals(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    secret_encryption.find_or_create_keys(settings)
    before = audit_keys.load_audit_keys(settings)
    seal = audit_chain.make_seal(b"", ENTRY, before.current)
    keys = secret_encryption.require_keys(settings)
    added = secret_encryption.add_key(keys)
    secret_encryption.drop_unused_keys(added, [added.current.id])
    after = audit_keys.load_audit_keys(settings)
    assert after.current != before.current
    assert after.is_valid_seal(seal, b"", ENTRY)
    assert stat.S_IMODE((tmp_path / audit_keys.FILE_NAME).stat().st_mode) == 0o600
    assert not audit_keys.load_audit_keys(settings).is_valid_seal(seal, b"", replace(ENTRY, id="y"))
    for line in (b"nonsense", b"\xff", b"00" * 8 + b" 01", b"00 " + b"00" * 32):
        (tmp_path / audit_keys.FILE_NAME).write_bytes(line + b"\n")
        with raises_code("audit.keys.unreadable", Invalid):
            audit_keys.load_audit_keys(settings)


@pytest.mark.parametrize("length", [1, 16, 17, 47, 48, 80])
def test_audit_keys_file_with_incomplete_line_is_repaired(length: int, tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)
    secret_encryption.find_or_create_keys(settings)
    keys = audit_keys.load_audit_keys(settings)
    seal = audit_chain.make_seal(b"", ENTRY, keys.current)
    file = tmp_path / audit_keys.FILE_NAME
    complete = file.read_bytes()
    file.write_bytes(complete[:length])
    assert audit_keys.load_audit_keys(settings).is_valid_seal(seal, b"", ENTRY)
    assert file.read_bytes() == complete


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_audit_keys_file_without_line_end_survives_rotation(end: bytes, tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path)

    def rotate() -> None:
        added = secret_encryption.add_key(secret_encryption.require_keys(settings))
        secret_encryption.drop_unused_keys(added, [added.current.id])

    secret_encryption.find_or_create_keys(settings)
    seal = audit_chain.make_seal(b"", ENTRY, audit_keys.load_audit_keys(settings).current)
    file = tmp_path / audit_keys.FILE_NAME
    (old,) = file.read_bytes().splitlines()
    rotate()
    file.write_bytes(old + end)  # as restored from a secret store
    for _ in range(2):
        assert audit_keys.load_audit_keys(settings).is_valid_seal(seal, b"", ENTRY)
        rotate()
    assert file.read_bytes().startswith(old + end + b"\n")
    assert len(file.read_bytes().splitlines()) == 3


def test_audit_keys_prefer_the_current_key_over_a_stored_one_with_its_id() -> None:
    current, stored = audit_chain.AuditKey("00" * 8, b"r" * 32), audit_chain.AuditKey("00" * 8, b"w" * 32)
    keys = audit_chain.AuditKeys(current, [stored])
    assert keys.is_valid_seal(audit_chain.make_seal(b"", ENTRY, current), b"", ENTRY)


async def test_concurrent_and_killed_audit_sealers_build_one_chain(app: Tenuto, db: Database) -> None:
    keys = audit_keys.load_audit_keys(app.settings)
    stop = asyncio.Event()

    async def write(name: str) -> None:
        for number in range(1, 31):
            await acting_as_eve(app).limit_queue(name, number)

    async def seal_repeatedly() -> None:
        while not stop.is_set():
            await seal_entries(db, keys, 7)

    async def seal_and_die() -> None:
        while not stop.is_set():
            task = asyncio.create_task(seal_entries(db, keys, 7))
            await asyncio.sleep(0.003)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    sealers = [asyncio.create_task(work()) for work in (seal_repeatedly, seal_repeatedly, seal_and_die, seal_and_die)]
    await asyncio.gather(*(write(f"q{number}") for number in range(4)))
    stop.set()
    await asyncio.gather(*sealers)
    while await seal_entries(db, keys):
        pass
    found = await app.audit.verify()
    assert (found.checked_link_count, found.end_position, found.faults) == (120, 120, [])


# --- export ---------------------------------------------------------------------------------------------------------


async def test_audit_export_is_complete_private_and_verifiable_with_the_key(app: Tenuto, tmp_path: Path) -> None:
    await write_sealed_entries(app, 3)
    await acting_as_eve(app).logs.append("sizes", "measured", {"größe": 1.0, "b": [1, 2]})
    await seal_waiting_entries(app)
    await acting_as_eve(app).limit_queue("mail", 4)
    file = tmp_path / "audit.jsonl"
    file.write_text("an older export")

    assert await app.audit.export(file) == 5

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith(".")]
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["position"] for line in lines] == [1, 2, 3, 4, None]
    assert json.loads(lines[3]["entry"]["after"])["fields"] == {"größe": 1.0, "b": [1, 2]}
    current = audit_keys.load_audit_keys(app.settings).current
    assert current is not None
    previous = b""
    for line in lines[:4]:  # as described in docs/how-to/audit.md
        sealed = json.dumps(line["entry"], sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        proof = hmac.new(current.bytes, previous + sealed, hashlib.sha256).digest()
        assert line["seal"] == (b"\x01" + bytes.fromhex(current.id) + proof).hex()
        previous = bytes.fromhex(line["seal"])
    with raises_code("audit.export.failed", Invalid):
        await app.audit.export(tmp_path / "nowhere" / "audit.jsonl")


async def test_audit_export_is_printable_ascii_with_valid_seals(app: Tenuto, tmp_path: Path) -> None:
    control_characters = "größe \x9b31m \u202egnp.exe \u2066 \x7f \x1b]0;title\x07"
    acting = acting_as_eve(app, reason=control_characters)
    await acting.logs.append("sizes", "measured", {control_characters: control_characters})
    await seal_waiting_entries(app)
    file = tmp_path / "audit.jsonl"
    await app.audit.export(file)

    (line,) = [line async for line in app.audit.export_lines()]

    assert file.read_text(encoding="utf-8") == f"{line}\n"
    assert line.isascii()
    assert line.isprintable()
    exported = json.loads(line)
    assert exported["entry"]["reason"] == control_characters
    assert audit_keys.load_audit_keys(app.settings).is_valid_seal(
        bytes.fromhex(exported["seal"]), b"", SealedEntry(**exported["entry"])
    )


async def test_failed_audit_export_leaves_the_target_unchanged(app: Tenuto, tmp_path: Path) -> None:
    await write_sealed_entries(app, 1)
    file = tmp_path / "audit.jsonl"
    file.mkdir()
    with raises_code("audit.export.failed", Invalid):
        await app.audit.export(file)
    assert file.is_dir()
    assert not [each.name for each in tmp_path.iterdir() if each.name.startswith(".")]


async def test_audit_verification_refuses_damaged_checkpoint_file(app: Tenuto, tmp_path: Path) -> None:
    await write_sealed_entries(app, 1)
    (tmp_path / checkpoints.FILE_NAME).write_text("{}\n")
    with raises_code("audit.checkpoints.unreadable", Invalid):
        await app.audit.verify()


async def test_audit_verifier_ignores_checkpoints_of_other_databases(app: Tenuto, tmp_path: Path) -> None:
    (tmp_path / checkpoints.FILE_NAME).write_text(
        json.dumps({"database": "1/2", "position": 99, "seal": "00", "at": "2031-01-01T00:00:00+00:00"}) + "\n"
    )
    await write_sealed_entries(app, 1)
    assert (await app.audit.verify()).is_sound
