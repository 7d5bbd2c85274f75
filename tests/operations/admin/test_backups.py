"""Backup and restore: secrets stay readable and the audit log verifies, also after a rotation in between."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tenuto import Actor, Role, Tenuto
from tenuto.audit import checkpoints
from tenuto.audit.keys import load_audit_keys
from tenuto.audit.sealer import seal_entries
from tenuto.errors import Conflict, Invalid
from tenuto.operations.admin.backups import open_backup
from tenuto.postgres.dump_tools import _accepted_lines, _connection_parameters
from tenuto.secret_encryption import MasterKey
from tests.support.errors import raises_code

SECRET = "correct horse battery"


def add_jobs(app: Tenuto) -> None:
    @app.job
    async def show_secret() -> int:
        return len(await app.secrets.reveal("hr-password"))

    @app.job
    async def wait_for_tomorrow() -> None: ...


async def use(app: Tenuto) -> None:
    """Leave a secret, an open task, a past attempt and a sealed audit log."""
    person = app.acting_as(Actor.user("ana"))
    await person.secrets.set("hr-password", SECRET)
    await person.enqueue(app.jobs.get_job("wait_for_tomorrow"))
    await person.pause_queue("mail", "maintenance")
    async with app.worker(queues="other"):
        pass
    await seal(app)


async def seal(app: Tenuto) -> None:
    database = await app.open()
    await seal_entries(database, load_audit_keys(app.settings))
    await checkpoints.record_checkpoint(database, app.settings.home)


async def check_restored(app: Tenuto) -> None:
    """Check that the secret is readable, the audit log verifies and the task is there."""
    verified = await app.audit.verify()
    assert verified.is_sound, verified.faults
    assert verified.end_position > 0
    assert verified.checkpoint_position > 0, "the checkpoints came along"
    assert [task.name for task in await app.tasks()] == ["wait_for_tomorrow"]
    async with app.worker():
        record = await app.wait(await app.enqueue(app.jobs.get_job("show_secret")), timeout=30)
    assert record.output == len(SECRET)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys" / "master.key"
    file.parent.mkdir()
    file.write_text(f"{MasterKey.new().text}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
async def original(url: str, tmp_path: Path, key_file: Path) -> AsyncIterator[Tenuto]:
    """An installation on a server, in use."""
    app = Tenuto(url, home=tmp_path / "home")
    app.settings = app.settings.model_copy(update={"master_key_file": key_file})
    add_jobs(app)
    try:
        await use(app)
        yield app
    finally:
        await app.close()


async def test_backup_of_a_server_is_restored_on_another(
    original: Tenuto, empty_url: str, tmp_path: Path, key_file: Path
) -> None:
    file = tmp_path / "one.backup"
    progress: list[str] = []
    made = await original.backup(file, progress.append)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (made.task_count, made.secret_count) == (1, 1)
    assert set(made.files) == {"master.key", "audit.heads"}
    assert progress[-1].startswith("dumping the database")
    assert list(tmp_path.glob(".one*")) == []

    other = Tenuto(empty_url, home=tmp_path / "other")
    add_jobs(other)
    try:
        restored = await other.restore(file)
        written = tmp_path / "other" / "master.key"
        assert str(written) in restored.written_files
        assert stat.S_IMODE(written.stat().st_mode) == 0o600
        assert restored.messages == [
            f"set TENUTO_MASTER_KEY_FILE={written} for every process: secrets and seals need it"
        ]
        other.settings = other.settings.model_copy(update={"master_key_file": written})
        await check_restored(other)
        assert {finding.name for finding in await other.doctor() if finding.severity == "problem"} == set()
    finally:
        await other.close()


async def test_restore_replaces_nothing_unless_told_to(original: Tenuto, tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    await original.backup(file)
    with raises_code("backup.file.exists", Conflict):
        await original.backup(file)
    with raises_code("restore.target.not_empty", Conflict) as refusal:
        await original.restore(file)
    assert "--replace" in (refusal.value.remedy or "")
    async with original.worker(name="busy"):
        with raises_code("restore.target.in_use", Conflict) as refusal:
            await original.restore(file, replace=True)
        assert "worker busy" in refusal.value.message
    await original.acting_as(Actor.user("ana")).pause_queue("later")
    await seal(original)
    await original.restore(file, replace=True)
    assert [queue.name for queue in await original.queues()] == ["default", "mail"], "as at the time of the backup"
    await check_restored(original)


async def test_old_backup_is_readable_after_a_rotation(original: Tenuto, tmp_path: Path, key_file: Path) -> None:
    file = tmp_path / "one.backup"
    await original.backup(file)
    key_file.write_text(f"{MasterKey.new().text}\n{key_file.read_text()}")
    assert await original.secrets.rotate() == 1
    key_file.write_text(key_file.read_text().splitlines()[0] + "\n")  # the operator removes the old key
    with raises_code("restore.target.not_empty", Conflict):
        await original.restore(file)
    await original.restore(file, replace=True)
    assert len(key_file.read_text().split()) == 2, "the keys of the backup came back, the newer one stays"
    await check_restored(original)


async def test_failed_restore_changes_nothing(original: Tenuto, tmp_path: Path) -> None:
    file, damaged, foreign = tmp_path / "one.backup", tmp_path / "two.backup", tmp_path / "three.backup"
    await original.backup(file)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    damaged.write_bytes(content)
    foreign.write_text("something else")
    for wrong, code in (
        (damaged, "backup.damaged"),
        (foreign, "backup.invalid"),
        (tmp_path / "no", "backup.file.not_found"),
    ):
        with raises_code(code, Invalid):
            await original.restore(wrong, replace=True)
    broken = tmp_path / "four.backup"
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(broken, "w") as after:
        for name in before.namelist():
            after.writestr(name, before.read(name) + (b"\nSELECT 1/0;\n" if name == "database.sql" else b""))
    with raises_code("backup.tool.failed"):
        await original.restore(broken, replace=True)
    await check_restored(original)


async def test_backup_of_a_newer_program_is_rejected(original: Tenuto, tmp_path: Path) -> None:
    file, newer = tmp_path / "one.backup", tmp_path / "two.backup"
    await original.backup(file)
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(newer, "w") as after:
        for name in before.namelist():
            text = before.read(name)
            after.writestr(name, text.replace(b'"tenuto": ', b'"tenuto": 9') if name == "backup.json" else text)
    with raises_code("backup.too_new", Conflict):
        await original.restore(newer, replace=True)


def test_settings_unknown_to_an_older_server_are_left_out(tmp_path: Path) -> None:
    script = tmp_path / "dump.sql"
    script.write_bytes(b"SET lock_timeout = 0;\nSET transaction_timeout = 0;\nCREATE SCHEMA tenuto;\nrest\n")
    for version, expected in ((15, False), (18, True)):
        with script.open("rb") as file:
            loaded = b"".join(_accepted_lines(file, version))
        assert (b"transaction_timeout" in loaded) == expected
        assert loaded.endswith(b"CREATE SCHEMA tenuto;\nrest\n")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "postgresql://ana:p%40ss@db.example.org:6432/shop?sslmode=require",
            {
                "user": "ana",
                "password": "p@ss",
                "host": "db.example.org",
                "port": "6432",
                "dbname": "shop",
                "sslmode": "require",
            },
        ),
        (
            "postgresql://tenuto@/tenuto?host=%2Frun%2Fpg&port=5432",
            {"user": "tenuto", "host": "/run/pg", "port": "5432", "dbname": "tenuto"},
        ),
        (
            "postgresql://a@one:1,two/x",
            {
                "user": "a",
                "host": "one,two",
                "port": "1,5432",
                "dbname": "x",
                "target_session_attrs": "read-write",
                "connect_timeout": "3",
            },
        ),
    ],
)
def test_url_becomes_parameters_of_the_client_programs(url: str, expected: dict[str, str]) -> None:
    assert _connection_parameters(url) == expected


async def test_restore_brings_no_ended_access_back(original: Tenuto, tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    _, text = await original.api_keys.create("ana", Role.ADMIN, is_person=True)
    caller = await original.api_keys.authenticate(text)
    assert caller is not None
    opened = await original.api_keys.open_session(caller)
    assert opened is not None
    link = await original.api_keys.create_link("ana")
    _, invitation = await original.invitations.create("ben", Role.OPERATOR)
    await original.backup(file)

    restored = await original.acting_as(Actor.user("eve")).restore(file, replace=True)
    original.api_keys._sessions.clear()
    assert await original.api_keys.authenticate_session(opened[0]) is None
    assert await original.api_keys.redeem_link(link) is None
    assert await original.invitations.accept(invitation) is None
    [invited] = await original.invitations.list()
    assert (invited.state, invited.revoked_by) == ("revoked", "eve")
    assert restored.messages[-2:] == [
        "ended: 2 sessions and login links, 1 open invitation",
        "active keys: ana (admin); revoke those that ended after the backup: tenuto key revoke NAME",
    ]
    [entry] = await original.audit.list(limit=1)
    assert (entry.action, entry.actor_name) == ("backup.restore", "eve")


def change_backup(file: Path, target: Path, change: Callable[[bytes], bytes]) -> Path:
    """Write a copy of a backup with another script."""
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(target, "w") as after:
        for name in before.namelist():
            content = before.read(name)
            after.writestr(name, change(content) if name == "database.sql" else content)
    return target


@pytest.mark.parametrize(
    "command",
    [
        "\n\\! touch {}\n",
        "\nSELECT 1 \\! touch {}\n",
        "\nSELECT 1 \\g | touch {}\n",
        "\n\\unrestrict x\n\\! touch {}\n",
        "\n\\copy (SELECT 1) TO PROGRAM 'touch {}'\n",
        "\n\\set x `touch {}`\n",
    ],
)
@pytest.mark.parametrize("at_start", [True, False])
async def test_script_of_a_backup_runs_no_programs(
    original: Tenuto, tmp_path: Path, command: str, at_start: bool
) -> None:
    file, trace = tmp_path / "one.backup", tmp_path / "trace"
    await original.backup(file)
    added = command.format(trace).encode()
    changed = change_backup(
        file, tmp_path / "two.backup", lambda script: added + script if at_start else script + added
    )
    with raises_code("backup.tool.failed") as refusal:
        await original.restore(changed, replace=True)
    assert "restrict" in refusal.value.message
    assert not trace.exists()
    assert [task.name for task in await original.tasks()] == ["wait_for_tomorrow"], "nothing was changed"


async def test_plain_backup_is_refused_if_a_passphrase_is_given(original: Tenuto, tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    await original.backup(file)
    with raises_code("backup.passphrase.unexpected", Invalid):
        await original.restore(file, replace=True, passphrase="five random words are enough")


def test_damage_anywhere_in_a_plain_backup_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "one.backup"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("database.sql", "SELECT 1;\n" * 200)
        archive.writestr("backup.json", "{}")
    content, codes = file.read_bytes(), set()
    for position in range(len(content)):
        for mask in (0x01, 0x20, 0xFF):
            file.write_bytes(content[:position] + bytes([content[position] ^ mask]) + content[position + 1 :])
            with pytest.raises(Invalid) as refusal:
                open_backup(file).close()
            codes.add(refusal.value.code)
    assert codes == {"backup.damaged", "backup.invalid"}
