"""The CSV connector: people and groups in a file with a header, as a source and as a target.

Reading is strict: a file that is truncated, that changes while it is read, or that lacks a column fails the run before
any deletion is detected. Writing replaces the file in one step; rows that do not change stay byte-identical.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tenuto.clock import SystemClock
from tenuto_identity.connectors.contract import (
    Capabilities,
    ConnectorContext,
    ConnectorError,
    ConnectorKind,
    ImportedBatch,
    ReadComplete,
    ReadEvent,
    ReadScope,
    ReadWarning,
    ReferenceForm,
    Watermark,
    WriteRequest,
    WriteResult,
    refused,
)
from tenuto_identity.connectors.csv_reader import (
    FORMULA_STARTS,
    BadRow,
    CsvSettings,
    FileReader,
    TypeColumns,
    is_decodable,
    split_cells,
)
from tenuto_identity.connectors.csv_table import CsvTable, DuplicateRow, RowKey
from tenuto_identity.connectors.file_access import allowed_path
from tenuto_identity.model.decoding import Decoding, canonical_anchor
from tenuto_identity.model.definitions.definition_reader import suggestion
from tenuto_identity.model.schema import Attribute, ObjectType, Schema
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import BadValue, DataType, Value, python_value

CAPABILITIES = Capabilities(
    full=True,
    export=True,
    confirms_immediately=True,
    read_one=True,
    references=ReferenceForm.ANCHOR,
    write_batch=5_000,  # every call writes the whole file
)


_FileState = tuple[int, int, int]
"""Size, time of change and inode: another state means that the file was written."""


class CsvConnector:
    """Reads and writes one CSV file."""

    def __init__(self, settings: CsvSettings, context: ConnectorContext) -> None:
        self._settings = settings
        self._context = context
        self._path = allowed_path(settings.path, context.allowed_folders)
        self._decoding = settings.decoding()
        self._written: tuple[_FileState, CsvTable] | None = None
        """What the last call of `write` left in the file, so that the next one need not read it again."""

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def check(self) -> None:
        settings = self._settings
        if not self._path.exists() and settings.allow_empty:
            if not os.access(self._path.parent, os.W_OK):
                raise ConnectorError("unreachable", f"the folder {self._path.parent} is not writable")
            return
        header = self._read_header()
        self._check_columns(header, self._context.types)

    def discover(self) -> Schema:
        header = list(dict.fromkeys(self._read_header()))
        repeated = {name for name in header if self._read_header().count(name) > 1}
        names = [name for name in header if name != self._settings.type_column]
        attributes = {name: Attribute(name, DataType.TEXT, multi=name in repeated) for name in names}
        known = [each.name for each in self._context.types] or ["row"]
        return Schema(
            tuple(ObjectType(name, anchor=names[0] if names else "", attributes=attributes) for name in known)
        )

    def watermark(self, scope: ReadScope) -> Watermark | None:
        return None

    def close(self) -> None:
        if self._written is not None:
            self._written[1].close()
            self._written = None

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, scope: ReadScope, since: Watermark | None) -> Iterator[ReadEvent]:
        if since is not None:
            raise ConnectorError("delta_unsupported", "a CSV file has no delta", remedy="use a full import")
        for event in self.read_batches(scope, 0):
            assert not isinstance(event, ImportedBatch)
            yield event

    def read_batches(self, scope: ReadScope, size: int) -> Iterator[ReadEvent | ImportedBatch]:
        """Like `read`, with batches of regular rows; with the size 0 without them."""
        before = self._stat()
        self._check_settled(before)
        self._check_checksum()
        reader = FileReader(self._path, self._settings)
        try:
            yield from self._read_rows(reader, scope, size)
        finally:
            reader.close()
        after = self._stat()
        # guard: identity.csv_unchanged_while_read
        if _file_state(before) != _file_state(after):
            raise ConnectorError(
                "source_changed", f"{self._path} changed while it was read", remedy="run the import again"
            )
        # guard: identity.csv_empty_source
        if reader.row_count == 0 and not self._settings.allow_empty:
            raise ConnectorError("empty_source", f"{self._path} has no rows", remedy="check what writes the file")
        yield ReadComplete(types=tuple(each.name for each in scope.types), object_count=reader.row_count)

    def _read_rows(self, reader: FileReader, scope: ReadScope, size: int) -> Iterator[ReadEvent | ImportedBatch]:
        header = reader.header
        if header is None:
            if self._settings.allow_empty:
                return
            raise ConnectorError("empty_source", f"{self._path} is empty", remedy="check what writes the file")
        self._check_columns(header, scope.types)
        types = {each.name: TypeColumns(each, header, self._settings) for each in scope.types}
        fixed = next(iter(types)) if self._settings.type_column is None and len(types) == 1 else None
        if fixed is None and self._settings.type_column is None:
            raise ConnectorError(
                "settings", f"{len(types)} types are selected and the file has one", remedy="set type_column"
            )
        type_index = header.index(self._settings.type_column) if self._settings.type_column else -1
        wanted = set(scope.anchors) if scope.anchors is not None else None
        if size and fixed is not None and wanted is None and not self._settings.guard_formulas:
            columns = types[fixed]
            while (found := reader.read_regular(size, columns.anchor_index)) is not None:
                yield ImportedBatch(columns.batch(found))
        for event in reader.rows():
            if isinstance(event, BadRow):
                yield self._rejected(event, header, types, type_index)
                continue
            name = fixed or event[type_index].strip()
            of_type = types.get(name)
            if of_type is None:
                if wanted is None and not self._is_other_type(name):
                    message = f"line {reader.line}: the type {name!r} is not known"
                    yield ReadWarning("unknown_type", message, is_error=True, type=name or None, line=reader.line)
                continue
            imported = of_type.imported(event, reader.line)
            if wanted is None or _canonical_or_raw(imported.anchor, of_type.object_type) in wanted:
                yield imported

    def _is_other_type(self, name: str) -> bool:
        """Return whether a type is known to the system and only not part of this read."""
        return any(each.name == name for each in self._context.types)

    def _rejected(
        self, row: BadRow, header: Sequence[str], types: Mapping[str, TypeColumns], type_index: int
    ) -> ReadWarning:
        """Return the error of a row, with its anchor if that can be read: the object then does not count as deleted."""
        name = next(iter(types), "") if type_index < 0 else ""
        if 0 <= type_index < len(row.cells):
            name = row.cells[type_index].strip()
        anchor = ""
        if (columns := types.get(name)) is not None:
            index = header.index(columns.object_type.anchor)
            anchor = row.cells[index] if index < len(row.cells) else ""
        has_anchor = bool(anchor.strip()) and is_decodable(anchor)
        return ReadWarning(
            row.code,
            row.message,
            is_error=True,
            type=name or None,
            anchor=anchor if has_anchor else None,
            line=row.line,
        )

    def _stat(self) -> os.stat_result:
        try:
            return self._path.stat()
        except FileNotFoundError:
            raise ConnectorError("unreachable", f"there is no file {self._path}") from None
        except OSError as error:
            raise ConnectorError("unreachable", f"{self._path} cannot be read: {error.strerror}") from None

    def _check_settled(self, found: os.stat_result) -> None:
        wait = self._settings.settle_seconds
        age = SystemClock().now().timestamp() - found.st_mtime
        if wait and age < wait:
            changed = timedelta(seconds=round(max(age, 0)))
            raise ConnectorError(
                "not_settled",
                f"{self._path} was changed {changed} ago and may still be written",
                remedy=f"files are read {wait:g} seconds after their last change (settle_seconds)",
            )

    def _check_checksum(self) -> None:
        if self._settings.checksum is None:
            return
        sidecar = self._path.with_name(f"{self._path.name}.sha256")
        try:
            expected = sidecar.read_text(encoding="ascii").split()[0].lower()
        except (OSError, IndexError, UnicodeDecodeError):
            raise ConnectorError("truncated", f"there is no checksum in {sidecar}") from None
        with self._path.open("rb") as file:
            actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != expected:
            raise ConnectorError("truncated", f"{self._path} does not have the checksum of {sidecar.name}")

    def _read_header(self) -> list[str]:
        self._stat()
        reader = FileReader(self._path, self._settings)
        try:
            if reader.header is None:
                raise ConnectorError("empty_source", f"{self._path} is empty")
            return reader.header
        finally:
            reader.close()

    def _check_columns(self, header: Sequence[str], types: Iterable[ObjectType]) -> None:
        needed = [name for each in types for name in each.attributes]
        if self._settings.type_column:
            needed.append(self._settings.type_column)
        for name in needed:
            if name not in header:
                raise ConnectorError(
                    "missing_column",
                    f"{self._path} has no column {name}",
                    remedy=suggestion(name, [each for each in header if each]),
                )
        for each in types:
            if header.count(each.anchor) > 1:
                raise ConnectorError("duplicate_column", f"{self._path} has the column {each.anchor} twice")

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        if self._context.read_only:
            raise ConnectorError("read_only", "the connector was opened for reading only")
        state = _file_state(self._path.stat()) if self._path.exists() else None
        known, self._written = self._written, None  # a call that fails leaves a table that is not in the file
        # guard: identity.csv_written_file_unchanged
        table = known[1] if known is not None and known[0] == state else self._load_table()
        results = [self._write_one(table, request) for request in requests]
        if table.is_changed:
            state = self._replace_file(table)
            table.is_changed = False
        if state is not None:
            self._written = state, table
        return results

    def _load_table(self) -> CsvTable:
        types = {each.name: each for each in self._context.types}
        if not self._path.exists() or self._path.stat().st_size == 0:
            header = list(dict.fromkeys(name for each in types.values() for name in _anchor_first(each)))
            if self._settings.type_column:
                header.insert(0, self._settings.type_column)
            return CsvTable(header, line_end="\n")
        reader = FileReader(self._path, self._settings, keeps_text=True)
        try:
            table = self._read_table(reader, types)
        finally:
            reader.close()
        return table

    def _read_table(self, reader: FileReader, types: Mapping[str, ObjectType]) -> CsvTable:
        assert reader.header is not None
        self._check_columns(reader.header, types.values())
        table = CsvTable(
            reader.header, line_end=reader.line_end, has_bom=reader.has_bom, header_text=reader.header_text
        )

        def rows() -> Iterator[tuple[RowKey | None, str]]:
            for event in reader.rows():
                if isinstance(event, BadRow):
                    # A row that cannot be read is kept as it is; only its own object cannot be changed.
                    yield None, event.text
                else:
                    yield self._row_key(table, event, types), reader.text

        try:
            table.load(rows())
        except DuplicateRow as error:
            raise ConnectorError("duplicate_object", f"{self._path} has two rows of {str(error)!r}") from None
        table.trailer = reader.trailer
        return table

    def _row_key(self, table: CsvTable, cells: Sequence[str], types: Mapping[str, ObjectType]) -> RowKey | None:
        if self._settings.type_column:
            name = cells[table.columns[self._settings.type_column][0]].strip()
        else:
            name = next(iter(types), "")
        object_type = types.get(name)
        if object_type is None:
            return None
        anchor = _canonical_or_raw(cells[table.columns[object_type.anchor][0]], object_type)
        return (name, anchor) if anchor else None

    def _write_one(self, table: CsvTable, request: WriteRequest) -> WriteResult:
        object_type = next((each for each in self._context.types if each.name == request.type), None)
        if object_type is None:
            return refused("refused", f"the type {request.type} is not selected")
        anchor = request.anchor or _anchor_of(request, object_type)
        if not anchor:
            return refused("refused", f"the new object has no {object_type.anchor}")
        key = (request.type, _canonical_or_raw(anchor, object_type))
        text = table.find(key)
        row = None if text is None else self._parse_row(text)
        if request.kind is ExportKind.DELETE:
            if row is not None:
                table.remove(key)
            return WriteResult(anchor=key[1], address=request.address)
        if request.kind is ExportKind.UPDATE and row is None:
            return refused("refused", f"there is no row of {key[1]!r}")
        try:
            cells = self._changed_cells(table, row, request, object_type)
        except BadValue as error:
            return refused("refused", str(error))
        if request.kind is ExportKind.CREATE and row is not None:
            if cells == row or (request.uncertain and self._shows(table, row, request, object_type)):
                return WriteResult(anchor=key[1], address=_address_of(table, row, object_type))
            return refused("exists", f"there is a row of {key[1]!r} already", anchor=key[1])
        if row is None:
            table.add(key, self._render_row(cells, table.line_end))
        elif cells != row:
            table.change(key, self._render_row(cells, table.line_end))
        return WriteResult(anchor=key[1], address=_address_of(table, cells, object_type))

    def _changed_cells(
        self, table: CsvTable, row: Sequence[str] | None, request: WriteRequest, object_type: ObjectType
    ) -> list[str]:
        cells = list(row) if row is not None else [""] * len(table.header)
        if row is None and self._settings.type_column:
            cells[table.columns[self._settings.type_column][0]] = request.type
        if row is None and request.anchor:
            cells[table.columns[object_type.anchor][0]] = request.anchor
        for change in request.changes:
            name = change.attribute
            if change.op is ChangeOp.RENAME:
                name = object_type.address or ""
            attribute = object_type.attributes.get(name)
            if attribute is None:
                if change.op is ChangeOp.RENAME:
                    continue
                raise BadValue(f"there is no column {name}")
            indexes = table.columns.get(name, [])
            old = split_cells([cells[index] for index in indexes], attribute, self._settings)
            sent = [self._render(value, attribute) for value in change.values]
            new = _apply(old, sent, change.op)
            for index, text in zip(indexes, self._join(new, len(indexes), attribute), strict=True):
                cells[index] = text
        return cells

    def _shows(self, table: CsvTable, row: list[str], request: WriteRequest, object_type: ObjectType) -> bool:
        return self._changed_cells(table, row, request, object_type) == row

    def _render(self, value: Value, attribute: Attribute) -> str:
        formats, separator = self._decoding.date_formats, self._decoding.decimal_separator
        match attribute.type:
            case DataType.BOOLEAN:
                text = "true" if value else "false"
            case DataType.DECIMAL if separator != ".":
                text = str(value).replace(".", separator)
            case DataType.DATE | DataType.DATETIME if formats:
                found: Any = python_value(value, attribute.type)
                text = found.strftime(formats[0])
            case _:
                text = str(value)
        if self._settings.guard_formulas and text.startswith(FORMULA_STARTS):
            return "'" + text
        return text

    def _join(self, values: Sequence[str], columns: int, attribute: Attribute) -> list[str]:
        delimiter = self._settings.multi_value_delimiter
        if columns > 1:
            if len(values) > columns:
                raise BadValue(f"{attribute.name} has {len(values)} values and the file {columns} columns for them")
            return [*values, *[""] * (columns - len(values))]
        if len(values) > 1 and not attribute.multi:
            raise BadValue(f"{attribute.name} takes one value, not {len(values)}")
        if attribute.multi:
            for value in values:
                if delimiter in value:
                    raise BadValue(f"{attribute.name} {value!r:.60} contains the multi-value delimiter {delimiter!r}")
        return [delimiter.join(values)]

    def _replace_file(self, table: CsvTable) -> _FileState:
        """Write a temporary file in the same folder, and rename it over the old one; return its state."""
        folder = self._path.parent
        try:
            mode = self._path.stat().st_mode & 0o777
        except FileNotFoundError:
            mode = 0o600
        descriptor, name = tempfile.mkstemp(prefix=f".{self._path.name}.", suffix=".tmp", dir=folder)
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), mode)
                for part in self._render_table(table):
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
                state = _file_state(os.fstat(file.fileno()))
            temporary.replace(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        parent = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
        return state

    def _render_table(self, table: CsvTable) -> Iterator[bytes]:
        """Yield the parts of the file."""
        encode = codecs.getincrementalencoder(
            "utf-8" if self._settings.encoding == "utf-8-sig" else self._settings.encoding
        )("surrogateescape").encode
        if table.has_bom:
            yield codecs.BOM_UTF8
        table.header_text = table.header_text or self._render_row(table.header, table.line_end)
        last, count = table.header_text, 0
        for text in table.texts():
            yield encode(last if last.endswith(("\n", "\r")) else last + table.line_end)
            last, count = text, count + 1
        if table.trailer is not None:
            yield encode(last)
            cells = list(table.trailer.cells)
            if len(cells) > 1 and cells[1].strip().isdigit():
                cells[1] = str(count)
            last = self._render_row(cells, table.line_end)
        yield encode(last)

    def _parse_row(self, text: str) -> list[str]:
        return next(csv.reader([text], delimiter=self._settings.delimiter, quotechar=self._settings.quote, strict=True))

    def _render_row(self, cells: Sequence[str], line_end: str) -> str:
        buffer = io.StringIO()
        csv.writer(
            buffer, delimiter=self._settings.delimiter, quotechar=self._settings.quote, lineterminator=line_end
        ).writerow(cells)
        return buffer.getvalue()


def _file_state(found: os.stat_result) -> _FileState:
    return found.st_size, found.st_mtime_ns, found.st_ino


def _anchor_first(object_type: ObjectType) -> list[str]:
    return [object_type.anchor, *(name for name in object_type.attributes if name != object_type.anchor)]


def _address_of(table: CsvTable, cells: Sequence[str], object_type: ObjectType) -> str:
    """Return the address of a row as an import reads it: another one would count as a change."""
    name = object_type.address if object_type.address in table.columns else object_type.anchor
    return cells[table.columns[name or object_type.anchor][0]].strip()


def _anchor_of(request: WriteRequest, object_type: ObjectType) -> str:
    for change in request.changes:
        if change.attribute == object_type.anchor and change.values:
            return str(change.values[0])
    return ""


def _canonical_or_raw(anchor: str, object_type: ObjectType) -> str:
    try:
        return canonical_anchor(anchor, object_type)
    except BadValue:
        return anchor


def _apply(old: list[str], sent: Sequence[str], op: ChangeOp) -> list[str]:
    """Return the values of a cell after a change; several changes of one attribute build on each other."""
    match op:
        case ChangeOp.SET | ChangeOp.RENAME:
            return list(dict.fromkeys(sent))
        case ChangeOp.ADD:
            return [*old, *(value for value in dict.fromkeys(sent) if value not in old)]
        case ChangeOp.REMOVE:
            return [value for value in old if value not in sent]
        case ChangeOp.CLEAR:
            return []


def _open(settings: Any, context: ConnectorContext) -> CsvConnector:
    return CsvConnector(settings, context)


def _decoding_of(settings: Any) -> Decoding:
    found: Decoding = settings.decoding()
    return found


CSV = ConnectorKind(name="csv", settings=CsvSettings, open=_open, capabilities=CAPABILITIES, decoding=_decoding_of)
