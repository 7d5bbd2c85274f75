"""Backups of an installation in one file: the database, the master keys, the audit keys and checkpoints, the admin key.

A backup is a ZIP archive that only its owner may read. The dump is a consistent snapshot. Checkpoints of the audit log
are read before it and keys before and after it, so that none of them is newer or older than the rows that need them.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tenuto import secret_encryption
from tenuto.audit import checkpoints
from tenuto.audit import keys as audit_keys
from tenuto.errors import Conflict, Invalid, StoreError
from tenuto.postgres import dump_tools, migrator
from tenuto.postgres.database import Database
from tenuto.settings import Settings
from tenuto.store import backups as store
from tenuto.store.access import audit_log
from tenuto.version import __version__

FORMAT = 1
_DESCRIPTION = "backup.json"
_DUMP = "database.sql"
_MASTER_KEYS, _ADMIN_KEY = "master.key", "admin.key"
_DEFLATE_LEVEL = 6

ReportProgress = Callable[[str], None]
"""Receives a text such as ``dumping: 12 MB``."""


@dataclass(frozen=True, slots=True)
class BackupDescription:
    """What a backup contains."""

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
    """What a restore did."""

    backup: BackupDescription
    written_files: Sequence[str]
    messages: Sequence[str]
    """What the operator has to do next."""


# --- create -----------------------------------------------------------------------------------------------------------


async def create_backup(
    database: Database, settings: Settings, file: Path, on_progress: ReportProgress
) -> BackupDescription:
    """Write a backup. An existing file is an error; an interrupted backup leaves none."""
    temporary, descriptor = await asyncio.to_thread(_create_file, file)
    try:
        with (
            os.fdopen(descriptor, "w+b") as raw,
            zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED, compresslevel=_DEFLATE_LEVEL) as archive,
        ):
            description = await _write_archive(database, settings, archive, on_progress)
            archive.close()
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


def read_description(archive: zipfile.ZipFile, file: Path) -> BackupDescription:
    """Return the description of a backup; reject a file that is not one, or one of a newer program."""
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


def open_archive(file: Path) -> zipfile.ZipFile:
    """Open a backup, and check that it is complete."""
    try:
        archive = zipfile.ZipFile(file)
    except FileNotFoundError as error:
        raise Invalid(f"there is no file {file}", code="backup.file.not_found", field="FILE") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise _not_a_backup(file) from error
    damaged = archive.testzip()
    if damaged is not None:
        archive.close()
        raise Invalid(
            f"{file} is damaged: {damaged} does not have its checksum",
            code="backup.damaged",
            field="FILE",
            remedy="use another backup",
        )
    return archive


def _not_a_backup(file: Path) -> Invalid:
    return Invalid(
        f"{file} is not a backup of Tenuto", code="backup.invalid", field="FILE", remedy="make one with tenuto backup"
    )


async def restore_backup(
    database: Database, settings: Settings, file: Path, on_progress: ReportProgress, *, replace: bool = False
) -> RestoreResult:
    """Load a backup into a database without Tenuto's tables; with ``replace``, instead of what is there.

    The database is loaded in one transaction, so a failed restore changes nothing in it. Files of the home directory
    that are replaced are kept beside the new ones.
    """
    with await asyncio.to_thread(open_archive, file) as archive:
        description = read_description(archive, file)
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
