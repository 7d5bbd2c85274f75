"""``tenuto backup`` and ``tenuto restore``: an installation in one file."""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

from tenuto.cli.command import Session, command
from tenuto.cli.output import ProgressLine
from tenuto.cli.parameters import argument, flag, option
from tenuto.errors import Invalid
from tenuto.presentation.text_formats import count_noun, safe_text
from tenuto.settings import load_settings

File = Annotated[str, argument("FILE", "File of the backup.")]
PassphraseFile = Annotated[
    str | None, option("FILE", "File with the passphrase that encrypts the backup; - reads it from stdin.")
]


@command(None, "backup", "tenuto-2031-05-17.backup", "/backup/nightly.backup -q")
async def create_backup(session: Session, file: File, passphrase_file: PassphraseFile = None) -> None:
    """Write the database and all keys to one file.

    The file contains a consistent dump of the database, the master keys, the audit keys and checkpoints, and the
    administrator key. Services may run meanwhile. Only its owner may read the file: anyone with the file can decrypt
    all secrets. With --passphrase-file it is encrypted with the first line of that file (AES-256-GCM, scrypt), which
    needs the extra `secrets`; without the passphrase it cannot be restored.
    """
    passphrase = _read_passphrase(passphrase_file)
    progress = ProgressLine(quiet=session.quiet)
    try:
        made = await session.app.backup(Path(file), progress.show, passphrase=passphrase)
    finally:
        progress.clear()
    size = _file_size(file)
    content = f"{count_noun(made.task_count, 'open task')}, {count_noun(made.secret_count, 'secret')}"
    session.report(
        {"file": file, "bytes": size, **_document(made)},
        f"{safe_text(file)} written: {size / 1e6:,.1f} MB, {content}, files {', '.join(made.files) or 'none'}",
        "keep it safe: it contains the keys of the secrets"
        if passphrase is None
        else "it is encrypted; keep the passphrase elsewhere: without it, the backup cannot be restored",
    )


@command(None, "restore", "tenuto-2031-05-17.backup --home /var/lib/tenuto-new", "nightly.backup --replace")
async def restore_backup(
    session: Session,
    file: File,
    replace: Annotated[bool, flag("Replace the content of the database and the key files.", "--replace")] = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Restore a backup into an empty database, and write its key files.

    Without --database the target is an embedded server in the home folder. The database is loaded in one transaction
    and migrated to this version. With --replace, schemas of Tenuto that exist are dropped in the same transaction, and
    replaced files of the home folder are kept beside the new ones. No service may use the target. Sessions, login
    links and open invitations end; keys that were revoked after the backup are active again, and are listed.
    """
    progress = ProgressLine(quiet=session.quiet)
    try:
        with session.as_user() as app:
            restored = await app.restore(
                Path(file), replace=replace, on_progress=progress.show, passphrase=_read_passphrase(passphrase_file)
            )
    finally:
        progress.clear()
    written = [f"written {safe_text(name)}" for name in restored.written_files]
    target = _target_options(session)
    session.report(
        {"backup": restored.backup, "written_files": restored.written_files, "messages": restored.messages},
        f"backup of {restored.backup.created_at} restored",
        *written,
        *map(safe_text, restored.messages),
        f"check it with: tenuto doctor{target}; tenuto audit verify{target}",
    )


def _target_options(session: Session) -> str:
    """Return the options that lead the next command to the restored installation; none if the environment does."""
    given, environment = session.app.settings, load_settings()
    options = ""
    if given.home != environment.home:
        options += f" --home {quote(str(given.home))}"
    if given.database != environment.database:
        options += " --database …"
    return options


def _read_passphrase(file: str | None) -> str | None:
    """Return the first line of a file, or of stdin; None without a file."""
    if file is None:
        return None
    try:
        text = sys.stdin.readline() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise Invalid(
            f"the passphrase cannot be read from {file}: {reason}",
            code="backup.passphrase.unreadable",
            field="passphrase-file",
        ) from error
    return text.partition("\n")[0].rstrip("\r")


def _file_size(file: str) -> int:
    return Path(file).stat().st_size


def _document(made: object) -> dict[str, object]:
    return {name: getattr(made, name) for name in type(made).__dataclass_fields__}  # type: ignore[attr-defined]
