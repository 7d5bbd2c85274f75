"""Backups of an installation in one file: the database, the master keys, the audit keys and checkpoints, the admin key.

A backup is a ZIP archive that only its owner may read; with a passphrase it is encrypted (`backup_encryption`). The
dump is a consistent snapshot. Checkpoints of the audit log are read before it and keys before and after it, so that
none of them is newer or older than the rows that need them.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

from tenuto import secret_encryption
from tenuto.audit import checkpoints
from tenuto.audit import keys as audit_keys
from tenuto.errors import Conflict, Invalid, StoreError
from tenuto.operations.admin.backup_encryption import CHUNK_BYTES, DecryptingReader, EncryptingWriter, is_encrypted
from tenuto.postgres import dump_tools, migrator
from tenuto.postgres.database import Connection, Database
from tenuto.settings import Settings
from tenuto.store import backups as store
from tenuto.store.access import api_keys, audit_log, invitations
from tenuto.store.events import approvals
from tenuto.version import __version__

FORMAT = 1
_DESCRIPTION = "backup.json"
_DUMP = "database.sql"
_MASTER_KEYS, _ADMIN_KEY = "master.key", "admin.key"
_DEFLATE_LEVEL = 6
_MAX_NAMED_KEYS = 100

ReportProgress = Callable[[str], None]
"""Receives a text such as ``dumping: 12 MB``."""


@dataclass(frozen=True, slots=True)
class BackupDescription:
    """Contents of a backup."""

    format: int
    created_at: str
    tenuto_version: str
    server_version: int
    schema_versions: Mapping[str, int]
    database_identity: str
    """Identifies the checkpoints of the database in ``audit.heads``."""
    task_count: int
    activity_count: int
    secret_count: int
    files: Sequence[str]
    """Files of the home directory in the backup."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """Result of a restore."""

    backup: BackupDescription
    written_files: Sequence[str]
    messages: Sequence[str]
    """What the operator has to do next."""


# --- create -----------------------------------------------------------------------------------------------------------


async def create_backup(
    database: Database, settings: Settings, file: Path, on_progress: ReportProgress, *, passphrase: str | None = None
) -> BackupDescription:
    """Write a backup. An existing file is an error; an interrupted backup leaves none."""
    temporary, descriptor = await asyncio.to_thread(_create_file, file)
    try:
        with os.fdopen(descriptor, "w+b") as raw:
            encrypted = None if passphrase is None else await asyncio.to_thread(EncryptingWriter, raw, passphrase)
            target: IO[bytes] = raw if encrypted is None else cast(IO[bytes], encrypted)
            with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=_DEFLATE_LEVEL) as archive:
                description = await _write_archive(database, settings, archive, on_progress)
            if encrypted is not None:
                encrypted.finish()
            raw.flush()
            os.fsync(raw.fileno())
        temporary.rename(file)
    finally:
        temporary.unlink(missing_ok=True)
    return description


def _create_file(file: Path) -> tuple[Path, int]:
    """Create a file beside the backup that only its owner may read."""
    if file.exists():
        raise Conflict(
            f"{file} exists", code="backup.file.exists", field="FILE", remedy="name another file, or delete this one"
        )
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        return temporary, os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise Invalid(
            f"{file} cannot be written: {error.strerror}", code="backup.file.not_writable", field="FILE"
        ) from error


async def _write_archive(
    database: Database, settings: Settings, archive: zipfile.ZipFile, on_progress: ReportProgress
) -> BackupDescription:
    heads = await asyncio.to_thread(_read_file, settings.home / checkpoints.FILE_NAME)
    keys_before = await asyncio.to_thread(_master_keys, settings)
    facts = await store.load_facts(database)
    versions = await migrator.load_versions(database)
    with archive.open(_DUMP, "w", force_zip64=True) as output:
        await dump_tools.dump_schemas(
            database.url,
            facts.server_version,
            output,
            lambda written: on_progress(f"dumping the database: {written / 1e6:,.0f} MB"),
        )
    keys = {key.id: key for key in (*await asyncio.to_thread(_master_keys, settings), *keys_before)}
    files = {
        _MASTER_KEYS: "".join(f"{key.text}\n" for key in keys.values()).encode(),
        audit_keys.FILE_NAME: await asyncio.to_thread(_read_file, settings.home / audit_keys.FILE_NAME),
        checkpoints.FILE_NAME: heads,
        _ADMIN_KEY: await asyncio.to_thread(_read_file, settings.home / _ADMIN_KEY),
    }
    present = [name for name, content in files.items() if content]
    for name in present:
        archive.writestr(name, files[name] or b"")
    description = BackupDescription(
        FORMAT,
        database.clock.now().isoformat(),
        __version__,
        facts.server_version,
        versions,
        await audit_log.load_database_identity(database),
        facts.task_count,
        facts.activity_count,
        facts.secret_count,
        present,
    )
    archive.writestr(_DESCRIPTION, json.dumps(asdict(description), indent=2))
    return description


def _master_keys(settings: Settings) -> list[secret_encryption.MasterKey]:
    found = secret_encryption.find_keys(settings)
    return [] if found is None else list(found)


def _read_file(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


# --- restore ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenBackup:
    """A backup that was checked and can be restored; `close` it."""

    archive: zipfile.ZipFile
    description: BackupDescription

    def close(self) -> None:
        self.archive.close()


def open_backup(file: Path, passphrase: str | None = None) -> OpenBackup:
    """Open and check a backup: reject a file that is none, is damaged or was written by a newer program."""
    archive = _open_archive(file, passphrase)
    try:
        return OpenBackup(archive, _read_description(archive, file))
    except BaseException:
        archive.close()
        raise


def _read_description(archive: zipfile.ZipFile, file: Path) -> BackupDescription:
    try:
        given: dict[str, Any] = json.loads(archive.read(_DESCRIPTION))
        described = BackupDescription(**given)
    except (KeyError, ValueError, TypeError) as error:
        raise _not_a_backup(file) from error
    newest = migrator.load_migrations()[-1].number
    if described.format > FORMAT or described.schema_versions.get("tenuto", 0) > newest:
        raise Conflict(
            f"{file} was written by Tenuto {described.tenuto_version}, which is newer than this program",
            code="backup.too_new",
            remedy="restore it with that version or a newer one",
        )
    return described


def _open_archive(file: Path, passphrase: str | None) -> zipfile.ZipFile:
    """Open a backup, and check that it is complete."""
    try:
        if is_encrypted(file):
            if passphrase is None:
                raise Invalid(
                    f"{file} is encrypted",
                    code="backup.passphrase.missing",
                    field="passphrase",
                    remedy="name the file with its passphrase: --passphrase-file FILE",
                )
            source = io.BufferedReader(DecryptingReader(file, passphrase), CHUNK_BYTES)
            archive = zipfile.ZipFile(source)
        else:
            archive = zipfile.ZipFile(file)
            if passphrase is not None:  # guard: restore.plain_instead_of_encrypted
                archive.close()
                raise Invalid(
                    f"{file} is not encrypted, although a passphrase is given",
                    code="backup.passphrase.unexpected",
                    field="passphrase",
                    remedy="check where the file comes from; if it is your own plain backup, omit the passphrase",
                )
    except FileNotFoundError as error:
        raise Invalid(f"there is no file {file}", code="backup.file.not_found", field="FILE") from error
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise _not_a_backup(file) from error
    try:
        damaged = archive.testzip()
    except (zlib.error, EOFError, OSError, RuntimeError) as error:  # the headers or the compressed data are damaged
        archive.close()
        raise _damaged(file, str(error)) from error
    except BaseException:
        archive.close()
        raise
    if damaged is not None:
        archive.close()
        raise _damaged(file, f"{damaged} does not have its checksum")
    return archive


def _damaged(file: Path, problem: str) -> Invalid:
    return Invalid(f"{file} is damaged: {problem}", code="backup.damaged", field="FILE", remedy="use another backup")


def _not_a_backup(file: Path) -> Invalid:
    return Invalid(
        f"{file} is not a backup of Tenuto", code="backup.invalid", field="FILE", remedy="make one with tenuto backup"
    )


async def restore_backup(
    database: Database, settings: Settings, backup: OpenBackup, on_progress: ReportProgress, *, replace: bool = False
) -> RestoreResult:
    """Load a backup into a database without Tenuto's tables; with ``replace``, instead of what is there.

    The database is loaded in one transaction, so a failed restore changes nothing in it. Files of the home directory
    that are replaced are kept beside the new ones.
    """
    archive, description = backup.archive, backup.description
    facts = await store.load_facts(database)
    await _check_target(database, facts, settings, replace=replace)
    contents = {name: archive.read(name) for name in description.files}
    key_file = _key_file(settings)
    _check_key_file(settings, key_file, contents.get(_MASTER_KEYS), replace=replace)
    size = archive.getinfo(_DUMP).file_size
    with archive.open(_DUMP) as script:
        await dump_tools.load_script(
            database.url,
            facts.server_version,
            script,
            lambda read: on_progress(f"loading the database: {read / 1e6:,.0f} of {size / 1e6:,.0f} MB"),
            before="".join(f'DROP SCHEMA "{schema}" CASCADE;\n' for schema in facts.schemas),
        )
    identity = await audit_log.load_database_identity(database)
    return await asyncio.to_thread(_restore_files, settings, key_file, contents, description, identity, database)


async def end_restored_access(connection: Connection, by: str) -> list[str]:
    """End the sessions, links and open invitations that a restore brought back, and return messages about them and
    about the keys that are active. The transaction counts as a change, so its audit entry is written."""
    await store.mark_as_change(connection)
    session_count = await api_keys.end_all_sessions(connection)  # guard: restore.sessions_end
    invitation_count = await invitations.revoke_open_invitations(connection, by)  # guard: restore.invitations_end
    await approvals.end_links(connection)  # guard: restore.approval_links_end
    messages = []
    if session_count or invitation_count:
        sessions = "1 session or login link" if session_count == 1 else f"{session_count:,} sessions and login links"
        invited = "1 open invitation" if invitation_count == 1 else f"{invitation_count:,} open invitations"
        messages.append(f"ended: {sessions}, {invited}")
    keys = await api_keys.list_active_keys(connection, _MAX_NAMED_KEYS + 1)
    if keys:
        named = [f"{name} ({role})" for name, role in keys[:_MAX_NAMED_KEYS]]
        more = " and more" if len(keys) > _MAX_NAMED_KEYS else ""
        messages.append(
            f"active keys: {', '.join(named)}{more}; revoke those that ended after the backup: tenuto key revoke NAME"
        )
    return messages


async def _check_target(database: Database, facts: store.DatabaseFacts, settings: Settings, *, replace: bool) -> None:
    if not facts.schemas:
        return
    target = "the embedded database" if settings.database is None else "the database"
    if not replace:
        raise Conflict(
            f"{target} is not empty: it has the schema {', '.join(facts.schemas)}",
            code="restore.target.not_empty",
            remedy="restore into an empty database, or replace its content with --replace",
        )
    running = await store.list_live_processes(database)
    if running:
        raise Conflict(
            f"services use {target}: {', '.join(running)}",
            code="restore.target.in_use",
            remedy="stop them; a process that was killed no longer counts after two minutes",
        )


def _key_file(settings: Settings) -> Path | None:
    """Return the file that the master keys are restored to; None if the environment holds them."""
    if settings.master_key is not None:
        return None
    return settings.master_key_file or settings.home / _MASTER_KEYS


def _check_key_file(settings: Settings, key_file: Path | None, restored: bytes | None, *, replace: bool) -> None:
    """Reject a restore whose secrets could not be read afterwards, before anything is changed."""
    if not restored:
        return
    wanted = {key.id for key in secret_encryption.parse_keys(restored.decode("ascii"), _MASTER_KEYS)}
    configured = _configured_keys(settings, key_file)
    missing = wanted - {key.id for key in configured}
    if not missing or (key_file is not None and (replace or not configured)):
        return
    place = "TENUTO_MASTER_KEY" if key_file is None else str(key_file)
    raise Conflict(
        f"the secrets of the backup need {len(missing)} master keys that are not in {place}",
        code="restore.master_key.missing",
        field="master_key",
        remedy="remove TENUTO_MASTER_KEY for the restore, so that the keys are written to the home directory"
        if key_file is None
        else "add --replace: the keys of the backup are then put before those in the file",
    )


def _configured_keys(settings: Settings, key_file: Path | None) -> list[secret_encryption.MasterKey]:
    if key_file is None:
        return _master_keys(settings)
    if not key_file.exists():
        return []
    return secret_encryption.parse_keys(secret_encryption.read_key_file(key_file), str(key_file))


def _restore_files(
    settings: Settings,
    key_file: Path | None,
    contents: Mapping[str, bytes],
    description: BackupDescription,
    identity: str,
    database: Database,
) -> RestoreResult:
    home = settings.home
    suffix = f".before-restore-{database.clock.now():%Y%m%dT%H%M%S}"
    written: list[str] = []
    messages: list[str] = []

    def write(file: Path, content: bytes) -> None:
        if content and _read_file(file) != content:
            _replace_file(file, content, suffix)
            written.append(str(file))

    if contents.get(_MASTER_KEYS) and key_file is not None:
        restored = secret_encryption.parse_keys(contents[_MASTER_KEYS].decode("ascii"), _MASTER_KEYS)
        keys = {key.id: key for key in (*restored, *_configured_keys(settings, key_file))}
        write(key_file, "".join(f"{key.text}\n" for key in keys.values()).encode("ascii"))
        if settings.database is not None and settings.master_key_file is None:
            messages.append(f"set TENUTO_MASTER_KEY_FILE={key_file} for every process: secrets and seals need it")
    own_keys = _read_file(home / audit_keys.FILE_NAME) or b""
    added = [line for line in contents.get(audit_keys.FILE_NAME, b"").splitlines(keepends=True) if line not in own_keys]
    write(home / audit_keys.FILE_NAME, own_keys + b"".join(added))
    write(home / checkpoints.FILE_NAME, _restored_checkpoints(home, contents, description, identity))
    admin_key = home / _ADMIN_KEY
    write(admin_key, contents.get(_ADMIN_KEY, b""))
    return RestoreResult(description, written, messages)


def _restored_checkpoints(
    home: Path, contents: Mapping[str, bytes], description: BackupDescription, identity: str
) -> bytes:
    """Return the checkpoints of other databases, and those of the backup as checkpoints of the restored database."""
    others = [
        line
        for line in (_read_file(home / checkpoints.FILE_NAME) or b"").splitlines(keepends=True)
        if _database_of(line) != identity
    ]
    restored = [
        json.dumps({**json.loads(line), "database": identity}).encode() + b"\n"
        for line in contents.get(checkpoints.FILE_NAME, b"").splitlines()
        if _database_of(line) == description.database_identity
    ]
    return b"".join(others + restored)


def _database_of(line: bytes) -> str | None:
    try:
        return checkpoints.parse_checkpoint(line.strip())[0]
    except (ValueError, KeyError, StoreError):
        return None


def _replace_file(file: Path, content: bytes, suffix: str) -> None:
    """Write a file that only its owner may read; the previous one is kept beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(descriptor)
    if file.exists():
        file.rename(file.with_name(file.name + suffix))
    temporary.rename(file)
