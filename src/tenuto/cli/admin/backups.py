"""``tenuto backup`` and ``tenuto restore``: an installation in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tenuto.cli.command import Session, command
from tenuto.cli.output import ProgressLine
from tenuto.cli.parameters import argument, flag
from tenuto.presentation.formatting import count_noun, safe_text

File = Annotated[str, argument("FILE", "File of the backup.")]


@command(None, "backup", "tenuto-2031-05-17.backup", "/backup/nightly.backup -q")
async def create_backup(session: Session, file: File) -> None:
    """Write the database and all keys to one file.

    The file contains a consistent dump of the database, the master keys, the audit keys and checkpoints, and the
    administrator key. Services may run meanwhile. Only its owner may read the file: who has it can decrypt all secrets.
    """
    progress = ProgressLine(quiet=session.quiet)
    try:
        made = await session.app.backup(Path(file), progress.show)
    finally:
        progress.clear()
    size = _file_size(file)
    content = f"{count_noun(made.task_count, 'open task')}, {count_noun(made.secret_count, 'secret')}"
    session.report(
        {"file": file, "bytes": size, **_document(made)},
        f"{safe_text(file)} written: {size / 1e6:,.1f} MB, {content}, files {', '.join(made.files) or 'none'}",
        "keep it safe: it contains the keys of the secrets",
    )


@command(None, "restore", "tenuto-2031-05-17.backup --home /var/lib/tenuto-new", "nightly.backup --replace")
async def restore_backup(
    session: Session,
    file: File,
    replace: Annotated[bool, flag("Replace the content of the database and the key files.", "--replace")] = False,
) -> None:
    """Restore a backup into an empty database, and write its key files.

    Without --database the target is an embedded server in the home folder. The database is loaded in one transaction
    and migrated to this version. With --replace, schemas of Tenuto that exist are dropped in the same transaction, and
    replaced files of the home folder are kept beside the new ones. No service may use the target.
    """
    progress = ProgressLine(quiet=session.quiet)
    try:
        restored = await session.app.restore(Path(file), replace=replace, on_progress=progress.show)
    finally:
        progress.clear()
    written = [f"written {safe_text(name)}" for name in restored.written_files]
    session.report(
        {"backup": restored.backup, "written_files": restored.written_files, "messages": restored.messages},
        f"backup of {restored.backup.created_at} restored",
        *written,
        *restored.messages,
        "check it with: tenuto doctor; tenuto audit verify",
    )


def _file_size(file: str) -> int:
    return Path(file).stat().st_size


def _document(made: object) -> dict[str, object]:
    return {name: getattr(made, name) for name in type(made).__dataclass_fields__}  # type: ignore[attr-defined]
