"""Static files of the dashboard: kept compressed in memory and served below the hash of all of them.

One hash for all files keeps modules that import each other by relative paths consistent. An unknown hash is refused, so
a browser never mixes two versions.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

from tenuto.errors import NotFound
from tenuto.web.rendering import TEMPLATES

FOLDER = Path(__file__).parent / "static"
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HASH_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """One static file."""

    content: bytes
    compressed: bytes
    media_type: str


class Assets:
    """The static files of one process. With ``reload``, changed files are read again (for development)."""

    def __init__(self, folders: Iterable[tuple[str, Path]] = (("", FOLDER),), *, reload: bool = False) -> None:
        """``folders``: prefix of the paths, and the folder."""
        self._folders = tuple(folders)
        self._reload = reload
        self._stamp: float = 0.0
        self._load()

    @property
    def code_version(self) -> str | None:
        """With ``reload``: changes with every file but style sheets, which an open page replaces in place."""
        if not self._reload:
            return None
        files = [file for _, file in self._files() if file.suffix != ".css"] + list(TEMPLATES.rglob("*.html"))
        return str(max(file.stat().st_mtime_ns for file in files))

    @property
    def version(self) -> str:
        """Hash of all files, as in their addresses."""
        if self._reload and self._newest_change() > self._stamp:
            self._load()
        return self._version

    def find(self, version: str, path: str) -> Asset:
        """Return a file of the current version."""
        asset = self._assets.get(path) if version == self.version else None
        if asset is None:
            raise NotFound(
                f"there is no static file {path[:100]!r} of version {version[:20]!r}",
                code="web.asset.not_found",
                remedy="load the page again",
            )
        return asset

    def paths(self) -> list[str]:
        return sorted(self._assets)

    def _files(self) -> list[tuple[str, Path]]:
        return [
            (f"{prefix}{file.relative_to(folder).as_posix()}", file)
            for prefix, folder in self._folders
            for file in sorted(folder.rglob("*"))
            if file.suffix in _MEDIA_TYPES
        ]

    def _newest_change(self) -> float:
        return max((file.stat().st_mtime for _, file in self._files()), default=0.0)

    def _load(self) -> None:
        digest = hashlib.sha256()
        assets: dict[str, Asset] = {}
        for path, file in self._files():
            content = file.read_bytes()
            digest.update(f"{path} {len(content)}\n".encode() + content)
            media_type = f"{_MEDIA_TYPES[file.suffix]}; charset=utf-8"
            assets[path] = Asset(content, gzip.compress(content, 9, mtime=0), media_type)
        self._stamp = self._newest_change() if self._reload else 0.0
        self._assets, self._version = assets, digest.hexdigest()[:_HASH_LENGTH]


def asset_response(asset: Asset, accept_encoding: str) -> Response:
    """Return a file that the browser may keep for a year."""
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable",
        "Vary": "Accept-Encoding",
        "Content-Type": asset.media_type,
    }
    if "gzip" in accept_encoding:
        return Response(asset.compressed, headers={**headers, "Content-Encoding": "gzip"})
    return Response(asset.content, headers=headers)
