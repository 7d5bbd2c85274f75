"""Definition documents in files and folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tenuto.definitions.document_parser import MAX_BYTES, SUFFIXES, Document, parse_document
from tenuto.errors import Invalid

_MAX_FILES = 1000


def read_documents(files: Iterable[str]) -> Iterator[Document]:
    """Yield the documents in files, and in the YAML and TOML files of folders, in the given order."""
    found = list(dict.fromkeys(path for file in files for path in _definition_files(Path(file))))
    if len(found) > _MAX_FILES:
        raise Invalid(
            f"{len(found):,} files given; the maximum is {_MAX_FILES:,}",
            code="definition_file.too_many",
            field="FILE",
            remedy="apply fewer files at a time",
        )
    return (parse_document(str(path), _read_bytes(path)) for path in found)


def _definition_files(path: Path) -> Iterator[Path]:
    try:
        if not path.is_dir():
            yield path
            return
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
    except OSError as error:  # name too long, or no permission
        raise _unreadable(path, error) from None
    if not files:
        raise Invalid(
            f"folder {path} contains no YAML or TOML files",
            code="definition_file.none_in_folder",
            field="FILE",
            remedy=f"name the files *{', *'.join(SUFFIXES)}",
        )
    yield from files


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> Invalid:
    return Invalid(
        f"{path} cannot be read: {error.strerror}",
        code="definition_file.unreadable",
        field="FILE",
        remedy="check the path and its permissions",
    )
