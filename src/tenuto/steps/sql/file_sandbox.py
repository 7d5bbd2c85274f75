"""Which files a step may name: those in one folder, wherever links lead, and none of Tenuto's own.

The folder is `Settings.files_folder`, or else ``files`` in the home, which is made when it is first looked into. Keys,
settings and the database of Tenuto lie outside of it, and stay out of reach even where somebody has chosen a folder
that holds them, or has put a second name of one (a hard link) into it. Opens nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tenuto import paths
from tenuto.errors import Forbidden, Invalid
from tenuto.settings import Settings

IN_HOME = "files"


def folder_of(settings: Settings) -> Path:
    """The folder, which is there."""
    if settings.files_folder is not None:
        return settings.files_folder.resolve()
    folder = settings.home / IN_HOME
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder.resolve()


def inside(settings: Settings, path: Path, field: str) -> Path:
    """The file a step means, behind every link; or a refusal."""
    folder = folder_of(settings)
    try:
        file = (folder / path).resolve()
    except (OSError, ValueError, RuntimeError):
        raise Invalid(f"{str(path)!r:.200} is not a path", field=field) from None
    if not file.is_relative_to(folder):
        raise Invalid(
            f"{str(path)!r:.200} lies outside of {folder}",
            field=field,
            remedy="name a file in that folder, or set TENUTO_FILES_FOLDER",
        )
    if _is_ours(settings, file):
        raise Forbidden(
            f"{str(path)!r:.200} is one of Tenuto's own files",
            field=field,
            remedy=f"keep the files of steps in a folder of their own, such as {settings.home / IN_HOME}",
        )
    return file


def _is_ours(settings: Settings, file: Path) -> bool:
    home = settings.home.resolve()
    if file.is_relative_to(home) and not file.is_relative_to(home / IN_HOME):
        return True
    return any(_same(file, each) for each in _with_keys(settings))


def _with_keys(settings: Settings) -> Iterator[Path]:
    """The files that hold keys and passwords, and may lie anywhere or have a second name somewhere."""
    yield from (each for each in (settings.master_key_file, settings.web_tls_key) if each is not None)
    yield paths.settings_file()
    if settings.home.is_dir():
        yield from (each for each in settings.home.iterdir() if each.is_file())


def _same(file: Path, other: Path) -> bool:
    if file == other.resolve():
        return True
    try:
        return file.samefile(other)
    except OSError:  # one of them is not there
        return False
