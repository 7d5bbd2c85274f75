"""Reading of CSV files: settings, records with their text and line, and the columns of an object type."""

from __future__ import annotations

import codecs
import csv
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tenuto_identity.connectors.contract import ConnectorError, ImportedObject
from tenuto_identity.model.decoding import Decoding, DescribedCells
from tenuto_identity.model.schema import Attribute, ObjectType

MAX_CELL_BYTES = 16 * 1024 * 1024
MAX_BATCH_CHARACTERS = 8 * 1024 * 1024
CHECKED_LINES = 1000
MAX_UNDECODABLE_SHARE = 0.05
_SEPARATOR = "\x1f"
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_LOCALES: Mapping[str, Mapping[str, Any]] = {
    "de": {"decimal_separator": ",", "thousands_separator": ".", "date_formats": ["%d.%m.%Y", "%d.%m.%Y %H:%M:%S"]},
    "fr": {"decimal_separator": ",", "thousands_separator": "\u202f", "date_formats": ["%d/%m/%Y"]},
    "en_GB": {"thousands_separator": ",", "date_formats": ["%d/%m/%Y", "%d/%m/%Y %H:%M:%S"]},
    "en_US": {"thousands_separator": ",", "date_formats": ["%m/%d/%Y", "%m/%d/%Y %H:%M:%S"]},
}


class CsvSettings(BaseModel):
    """Settings of the CSV connector."""

    model_config = ConfigDict(extra="forbid")

    path: str
    """The file, inside the allowed folders."""
    encoding: str = "utf-8-sig"
    """Encoding of the file. A byte order mark of UTF-16 is recognised."""
    delimiter: str = Field(",", min_length=1, max_length=1)
    """Separates the cells of a row."""
    quote: str = Field('"', min_length=1, max_length=1)
    """Encloses cells that contain delimiters or line ends."""
    multi_value_delimiter: str = Field("|", min_length=1, max_length=10)
    """Separates the values of a multi-valued attribute in one cell. Repeated columns are several values, too."""
    type_column: str | None = None
    """Column with the object type; without it the file has one type."""
    locale: Literal["de", "fr", "en_GB", "en_US"] | None = None
    """Form of numbers and dates; ISO 8601 and a decimal point by default."""
    decimal_separator: str | None = None
    """Decimal separator, instead of that of the locale."""
    thousands_separator: str | None = None
    """Separator of thousands, instead of that of the locale."""
    date_formats: list[str] | None = None
    """Forms of dates, such as ``%d.%m.%Y``, instead of those of the locale."""
    trailer: str | None = None
    """First cell of the last row, which says that the file is complete. Its second cell may be the number of rows."""
    checksum: Literal["sha256"] | None = None
    """The file PATH.sha256 has the checksum of the file."""
    settle_seconds: float = Field(0, ge=0, le=86_400)
    """A file that was changed more recently is refused, because it may still be written."""
    allow_empty: bool = False
    """A file without rows is not an error. For targets that may be empty."""
    guard_formulas: bool = False
    """Write cells that a spreadsheet would execute as text, with an apostrophe."""

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            name = codecs.lookup(value).name
        except LookupError:
            raise ValueError(f"there is no encoding {value!r}") from None
        return "utf-8-sig" if name == "utf-8" else name

    def decoding(self) -> Decoding:
        """Return how cells are decoded."""
        preset: dict[str, Any] = dict(_LOCALES.get(self.locale or "", {}))
        for name in ("decimal_separator", "thousands_separator", "date_formats"):
            if (value := getattr(self, name)) is not None:
                preset[name] = value
        return Decoding(
            decimal_separator=preset.get("decimal_separator", "."),
            thousands_separator=preset.get("thousands_separator", ""),
            date_formats=tuple(preset.get("date_formats", ())),
            source=(
                ("multi_value_delimiter", self.multi_value_delimiter),
                ("encoding", self.encoding),
                ("guard_formulas", str(self.guard_formulas)),
            ),
        )


@dataclass(slots=True, eq=False)
class Row:
    """A record of the file: its cells, and its text so that it can be written unchanged."""

    cells: list[str]
    text: str


@dataclass(frozen=True, slots=True)
class BadRow:
    """A record that cannot be used, with the cells that could be read."""

    code: str
    message: str
    line: int
    cells: Sequence[str]
    text: str


class _BadBytes:
    """Counts bytes that an encoding does not know, in all files of this process."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = Lock()
        self._escape = codecs.lookup_error("surrogateescape")

    def __call__(self, error: UnicodeError) -> tuple[str | bytes, int]:
        """Replace bytes by lone surrogates, as ``surrogateescape`` does."""
        with self._lock:
            self.count += 1
        return self._escape(error)


_bad_bytes = _BadBytes()
_ESCAPE_BAD_BYTES = "tenuto_identity.surrogateescape"
codecs.register_error(_ESCAPE_BAD_BYTES, _bad_bytes)
_TABLE_ENCODINGS = ("utf-8", "utf-16", "utf-32", "ascii", "iso8859", "cp1", "mac-", "koi8")
"""Encodings that yield lone surrogates for bad bytes only. Others are read row by row."""


@dataclass(frozen=True, slots=True)
class RegularRows:
    """Records that are decodable, as wide as the header, and have a value in the required column."""

    rows: list[list[str]]
    first_line: int
    ends: Sequence[int]
    """Line on which each record ends."""

    def line_of(self, position: int) -> int:
        """Return the line on which a record begins."""
        return self.ends[position - 1] + 1 if position else self.first_line


class FileReader:
    """Yields the records of a CSV file and checks that it is complete.

    Bytes that the encoding does not know become lone surrogates: the record that has them is reported, and the others
    are read.
    """

    def __init__(self, path: Path, settings: CsvSettings, *, keeps_text: bool = False) -> None:
        self._path = path
        self._settings = settings
        self.has_bom = self._check_byte_order_mark()
        is_wide = settings.encoding.startswith(("utf-16", "utf-32"))
        self._file = path.open(
            encoding=settings.encoding, errors="strict" if is_wide else _ESCAPE_BAD_BYTES, newline=""
        )
        self._bad_byte_count = _bad_bytes.count
        self._lines = _Lines(self._file) if keeps_text else None
        self._character_count = 0
        self._ahead: deque[tuple[int, list[str]]] = deque()
        """Records that were read by `read_regular` and are left to `rows`, with their lines."""
        self._ahead_error: tuple[int, Exception] | None = None
        """The error of the record after them."""
        csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_BYTES))
        self._reader = csv.reader(
            self._lines or self._counted_lines(), delimiter=settings.delimiter, quotechar=settings.quote, strict=True
        )
        self._offsets = _Offsets(path)
        self._undecodable_count = 0
        self.row_count = 0
        self.line = 1
        """Line on which the current record begins."""
        self.text = ""
        """Text of the current record, with ``keeps_text``."""
        self.trailer: Row | None = None
        self.header = self._read_header()
        self.header_text = self.text
        self.line_end = "\r\n" if self.text.endswith("\r\n") else "\n"

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        self._offsets.close()

    def _check_byte_order_mark(self) -> bool:
        try:
            with self._path.open("rb") as file:
                start = file.read(4)
        except OSError as error:
            raise ConnectorError("unreachable", f"{self._path} cannot be read: {error.strerror}") from None
        is_utf16 = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        if is_utf16 and not self._settings.encoding.startswith(("utf-16", "utf-32")):
            raise ConnectorError(
                "undecodable",
                f"{self._path} begins with the byte order mark of UTF-16 and is read as {self._settings.encoding}",
                remedy="set encoding: utf-16",
            )
        return start.startswith(codecs.BOM_UTF8)

    def _read_header(self) -> list[str] | None:
        try:
            found = self._next()
            while found is not None and not any(cell.strip() for cell in found):
                found = self._next()
        except _BadRecord as error:
            raise ConnectorError("bad_header", f"the header of {self._path} is not valid CSV: {error}") from None
        if found is None:
            return None
        if not is_decodable("".join(found)):
            raise ConnectorError("undecodable", f"the header of {self._path} is not {self._settings.encoding}")
        return [name.strip() for name in found]

    def _counted_lines(self) -> Iterator[str]:
        for line in self._file:
            self._character_count += len(line)
            yield line

    def _next(self) -> list[str] | None:
        """Return the next record; None at the end of the file."""
        if self._ahead:
            self.line, record = self._ahead.popleft()
            return record
        if self._ahead_error is not None:
            (self.line, ahead), self._ahead_error = self._ahead_error, None
            raise self._problem(ahead) from None
        if self._lines is not None:
            self._lines.taken.clear()
        self.line = self._reader.line_num + 1
        try:
            found = next(self._reader, None)
        except (csv.Error, UnicodeError) as error:
            self.text = "".join(self._lines.taken) if self._lines is not None else ""
            raise self._problem(error) from None
        self.text = "".join(self._lines.taken) if self._lines is not None else ""
        return found

    def _problem(self, error: Exception) -> Exception:
        """Return what is raised for an error of the reader in the current record."""
        if isinstance(error, UnicodeError):
            return ConnectorError("undecodable", f"{self._path} is not {self._settings.encoding}: {error}")
        if "unexpected end of data" in str(error):
            return self._truncated("a quotation mark is not closed")
        if "field larger" in str(error):
            return ConnectorError("truncated", f"line {self.line}: a cell is larger than 16 MB")
        return _BadRecord(str(error))

    def read_regular(self, size: int, required: int) -> RegularRows | None:
        """Return the next records, at most ``size``, if all are regular; None at the end of the file or if one is not.

        A regular record is decodable, as wide as the header and has a value in the required column. After None, `rows`
        yields these records and all that follow.
        """
        settings = self._settings
        if settings.trailer is not None or not settings.encoding.startswith(_TABLE_ENCODINGS):
            return None
        assert self.header is not None
        rows, ends, reader = [], [], self._reader
        first, most = reader.line_num + 1, self._character_count + MAX_BATCH_CHARACTERS
        try:
            for row in reader:
                rows.append(row)
                ends.append(reader.line_num)
                if len(rows) >= size or self._character_count > most:
                    break
        except (csv.Error, UnicodeError) as error:
            self._ahead_error = ends[-1] + 1 if ends else first, error
        width = len(self.header)
        # guard: identity.csv_regular_rows
        is_regular = (
            self._ahead_error is None
            and self._bad_byte_count == _bad_bytes.count
            and all(len(row) == width and not row[required].isspace() and row[required] for row in rows)
        )
        found = RegularRows(rows, first, ends)
        if is_regular and rows:
            self.row_count += len(rows)
            return found
        self._ahead.extend((found.line_of(position), row) for position, row in enumerate(rows))
        return None

    def _truncated(self, reason: str, line: int | None = None) -> ConnectorError:
        return ConnectorError(
            "truncated", f"{self._path} ends within the record that begins on line {line or self.line}: {reason}"
        )

    def rows(self) -> Iterator[list[str] | BadRow]:
        """Yield the records after the header."""
        assert self.header is not None
        width = len(self.header)
        trailer = self._settings.trailer
        short: BadRow | None = None
        """A row with too few cells: if it is the last one and has no line end, the file is truncated."""
        while True:
            try:
                found = self._next()
            except _BadRecord as error:
                self.row_count += 1
                yield self._bad_row("bad_value", f"the record is not valid CSV: {error}", [])
                continue
            if short is not None:
                # guard: identity.csv_truncated_row
                if found is None and not self._ends_with_newline():
                    raise self._truncated(f"it has {len(short.cells)} cells, and the header has {width}", short.line)
                yield short
                short = None
            if found is None:
                break
            text = "".join(found)
            if not text or text.isspace():
                continue
            if trailer is not None and found[0].strip() == trailer:
                self._end_with_trailer(found)
                return
            self.row_count += 1
            if not text.isascii() and not is_decodable(text):
                yield self._undecodable(found)
            elif len(found) < width:
                short = self._bad_row("bad_value", f"the row has {len(found)} cells, the header has {width}", found)
            elif len(found) > width:
                yield self._bad_row("bad_value", f"the row has {len(found)} cells, the header has {width}", found)
            else:
                yield found
        if trailer is not None:
            raise ConnectorError("truncated", f"{self._path} does not end with the trailer {trailer!r}")

    def _end_with_trailer(self, found: list[str]) -> None:
        self.trailer = Row(found, self.text)
        if len(found) > 1 and found[1].strip().isdigit() and int(found[1]) != self.row_count:
            raise ConnectorError(
                "truncated", f"the trailer of {self._path} says {found[1].strip()} rows, and it has {self.row_count}"
            )
        while (following := self._next()) is not None:
            if any(cell.strip() for cell in following):
                raise ConnectorError("truncated", f"{self._path} has rows after its trailer, on line {self.line}")

    def _ends_with_newline(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - 4, 0))
            tail = file.read()
        return tail.rstrip(b"\0").endswith((b"\n", b"\r"))  # in UTF-16 and UTF-32 the line end has further zero bytes

    def _bad_row(self, code: str, problem: str, cells: Sequence[str]) -> BadRow:
        return BadRow(code, f"line {self.line}: {problem}", self.line, cells, self.text)

    def _undecodable(self, cells: Sequence[str]) -> BadRow:
        self._undecodable_count += 1
        is_start = self.row_count <= CHECKED_LINES
        if is_start and self._undecodable_count > CHECKED_LINES * MAX_UNDECODABLE_SHARE:
            raise ConnectorError(
                "undecodable",
                f"{self._undecodable_count} of the first {self.row_count} rows of {self._path} are not "
                f"{self._settings.encoding}",
                remedy="set encoding, for example cp1252",
            )
        offset = self._offsets.find(self.line)
        return self._bad_row("undecodable", f"byte {offset}: the row is not {self._settings.encoding}", cells)


class _BadRecord(Exception):
    """A record is not valid CSV; the reader continues with the next line."""


class _Lines:
    """Iterator over the lines of a file; ``taken`` holds the lines of the current record."""

    def __init__(self, file: Iterator[str]) -> None:
        self._file = file
        self.taken: list[str] = []

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.taken.append(line)
        return line


class _Offsets:
    """Finds the byte offset of the first byte of a line that is not text; lines are asked for in ascending order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._line = 0
        self._offset = 0

    def find(self, line: int) -> int:
        """Return the offset of the first byte of a line that is not UTF-8, or of the line."""
        if self._file is None:
            self._file = self._path.open("rb")
        content = b""
        while self._line < line:
            self._offset += len(content)
            content = self._file.readline()
            self._line += 1
        start = self._offset
        self._offset += len(content)
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            return start + error.start
        return start

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class TypeColumns:
    """The columns of the selected attributes of an object type."""

    def __init__(self, object_type: ObjectType, header: Sequence[str], settings: CsvSettings) -> None:
        self.object_type = object_type
        self._settings = settings
        self._anchor = header.index(object_type.anchor)
        self._address = header.index(object_type.address) if object_type.address in header else self._anchor
        self._single: list[tuple[str, int]] = []
        self._multi: list[tuple[Attribute, list[int]]] = []
        for name, attribute in object_type.attributes.items():
            indexes = [index for index, column in enumerate(header) if column == name]
            if attribute.multi or len(indexes) > 1:
                self._multi.append((attribute, indexes))
            else:
                self._single.append((name, indexes[0]))
        indexes = [index for _, index in self._single] + [index for _, each in self._multi for index in each]
        indexes += [index for index in dict.fromkeys((self._anchor, self._address)) if index not in indexes]
        self._select: Callable[[Sequence[str]], Sequence[str]] = (
            itemgetter(*indexes) if len(indexes) > 1 else lambda row: [row[index] for index in indexes]
        )
        """Returns the cells of the selected attributes, of the anchor and of the address."""
        self._separator_count = len(indexes) - 1

    @property
    def anchor_index(self) -> int:
        """Return the column of the anchor."""
        return self._anchor

    def batch(self, found: RegularRows) -> RowBatch:
        """Return the objects of rows in one batch."""
        return RowBatch(self.object_type.name, self.describe_all(found.rows), self, found)

    def texts(self, row: Sequence[str]) -> Sequence[str] | None:
        """Return the cell of each attribute in order; None if one may have several."""
        return None if self._multi else [row[index] for _, index in self._single]

    def describe(self, row: Sequence[str]) -> str:
        """Return a text that identifies the cells of a row in the columns of an object."""
        cells = self._select(row)
        text = _SEPARATOR.join(cells)
        # The joined text is unambiguous if no cell contains the separator.
        is_plain = self._separator_count and text.count(_SEPARATOR) == self._separator_count
        return text if is_plain else repr(tuple(cells))

    def describe_all(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """Return `describe` of each row."""
        texts = list(map(_SEPARATOR.join, map(self._select, rows)))
        if self._separator_count and "".join(texts).count(_SEPARATOR) == self._separator_count * len(texts):
            return texts
        return [self.describe(row) for row in rows]

    def imported(self, row: Sequence[str], line: int) -> ImportedObject:
        """Return the object of a row. Blank cells are absent."""
        if self._settings.guard_formulas:
            singles = {index for _, index in self._single}
            row = [_without_guard(cell) if index in singles else cell for index, cell in enumerate(row)]
        address = row[self._address].strip()
        return ImportedObject(self.object_type.name, row[self._anchor], address, "", RowCells(self, row), line)

    def cells(self, row: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the cells of a row by attribute."""
        cells: dict[str, tuple[str, ...]] = {
            name: (cell,) for name, index in self._single if (cell := row[index]) and not cell.isspace()
        }
        for attribute, indexes in self._multi:
            if values := split_cells([row[index] for index in indexes], attribute, self._settings):
                cells[attribute.name] = tuple(values)
        return cells


@dataclass(frozen=True, slots=True)
class RowBatch:
    """The objects of several rows."""

    type: str
    descriptions: Sequence[str]
    columns: TypeColumns
    found: RegularRows

    def make_object(self, position: int) -> ImportedObject:
        """Return the object of a row."""
        return self.columns.imported(self.found.rows[position], self.found.line_of(position))


class RowCells(DescribedCells):
    """The cells of a row by attribute, separated at first use.

    Measured (`identity`, import without changes): most rows have not changed, and only their fingerprint is needed.
    """

    __slots__ = ("_cells", "_columns", "_row")

    def __init__(self, columns: TypeColumns, row: Sequence[str]) -> None:
        self._columns = columns
        self._row = row
        self._cells: dict[str, tuple[str, ...]] | None = None

    def describe(self) -> str:
        """Return a text that identifies the cells of the row."""
        return self._columns.describe(self._row)

    def texts(self) -> Sequence[str] | None:
        """Return the cell of each attribute in order; None if one may have several."""
        return self._columns.texts(self._row)

    def __repr__(self) -> str:
        return f"RowCells({self._found()!r})"

    def _found(self) -> dict[str, tuple[str, ...]]:
        if self._cells is None:
            self._cells = self._columns.cells(self._row)
        return self._cells

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return self._found()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())

    def items(self) -> ItemsView[str, tuple[str, ...]]:
        return self._found().items()


def split_cells(cells: Sequence[str], attribute: Attribute, settings: CsvSettings) -> list[str]:
    """Return the values of an attribute in the cells of its columns."""
    parts = list(cells)
    if attribute.multi:
        parts = [part.strip() for cell in cells for part in cell.split(settings.multi_value_delimiter)]
    if settings.guard_formulas:
        parts = [_without_guard(part) for part in parts]
    if not attribute.multi:
        return [part for part in parts if part.strip()]
    return list(dict.fromkeys(part for part in parts if part))


def _without_guard(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA_STARTS) else cell


def is_decodable(text: str) -> bool:
    """Return whether a text has no bytes that the encoding does not know."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
