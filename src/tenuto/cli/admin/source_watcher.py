"""Watches the source files of an app: compares their times of modification, without further packages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

WATCHED_SUFFIXES = (".py", ".toml", ".yaml", ".yml", ".sql")
MAX_FILES = 20_000
"""Further files are not watched."""
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages"})


class SourceWatcher:
    """The watched files below some folders, as they were at the last call of `find_changes`."""

    def __init__(self, folders: Iterable[Path], excluded: Iterable[Path] = ()) -> None:
        """``excluded``: folders with data that change while the app runs."""
        self._folders = [folder.resolve() for folder in folders]
        self._excluded = {str(folder.resolve()) for folder in excluded}
        self._known = self._scan()

    @property
    def file_count(self) -> int:
        return len(self._known)

    def find_changes(self) -> list[Path]:
        """Return the files that were changed, created or deleted since the previous call."""
        known, self._known = self._known, self._scan()
        names = known.keys() ^ self._known.keys()
        names |= {name for name in known.keys() & self._known.keys() if known[name] != self._known[name]}
        return [Path(name) for name in sorted(names)]

    def _scan(self) -> Mapping[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder in self._folders:
            for entry in self._walk(str(folder)):
                if len(found) >= MAX_FILES:
                    return found
                try:
                    status = entry.stat()
                except OSError:  # deleted meanwhile
                    continue
                found[entry.path] = (status.st_mtime_ns, status.st_size)
        return found

    def _walk(self, folder: str) -> Iterator[os.DirEntry[str]]:
        """Yield the watched files below a folder, without hidden folders, virtual environments and data."""
        waiting = [folder]
        while waiting:
            folder = waiting.pop()
            try:
                entries = list(os.scandir(folder))
            except OSError:
                continue
            if any(entry.name == "pyvenv.cfg" for entry in entries):
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _LEFT_OUT or entry.path in self._excluded:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.name.endswith(WATCHED_SUFFIXES) and entry.is_file():
                    yield entry
