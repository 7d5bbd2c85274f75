"""The CSV connector: what makes a file unusable, what makes a row unusable, and how a target is written."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.contract import (
    BatchConnector,
    Connector,
    ConnectorContext,
    ConnectorError,
    ImportedBatch,
    ImportedObject,
    ReadComplete,
    ReadEvent,
    ReadScope,
    ReadWarning,
    WriteChange,
    WriteRequest,
    WriteResult,
)
from tenuto_identity.connectors.csv_reader import CsvSettings, TypeColumns
from tenuto_identity.model.decoding import (
    Decoding,
    canonical_anchor,
    decode_object,
    fingerprint,
    hash_descriptions,
)
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import DataType, Value

HEADER = "employee_id,first,last,mail,department,title,manager,starts,ends"
ROWS = (
    "1001,Ada,Lovelace,ada@example.org,Research,Director,,2020-01-01,",
    "1002,Grace,Hopper,grace@example.org,Engineering,Engineer,1001,2020-02-01,",
    "1003,Alan,Turing,alan@example.org,Research,Fellow,1001,2020-03-01,",
    "1004,Edsger,Dijkstra,edsger@example.org,Engineering,Engineer,1002,2020-04-01,",
)
TEXT = "\n".join([HEADER, *ROWS, ""])
PERSON = ObjectType(
    "person",
    "employee_id",
    {
        **{name: Attribute(name) for name in ("employee_id", "first", "last", "mail", "department", "title")},
        "manager": Attribute("manager", DataType.REFERENCE, to="person"),
        "starts": Attribute("starts", DataType.DATE),
        "ends": Attribute("ends", DataType.DATE),
    },
)


class Source:
    """A CSV file and a connector for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "hr.csv"
        self.types: tuple[ObjectType, ...] = (PERSON,)

    def open(self, **settings: Any) -> Connector:
        context = ConnectorContext(self.types, (self.folder,))
        return registry.open_connector("csv", {"path": "hr.csv", **settings}, context)

    def read_batches(self, size: int) -> list[ReadEvent | ImportedBatch]:
        connector = self.open()
        assert isinstance(connector, BatchConnector)
        return list(connector.read_batches(ReadScope(self.types), size))

    def read(self, content: str | bytes | None = None, **settings: Any) -> list[ReadEvent]:
        if content is not None:
            self.path.write_bytes(content.encode() if isinstance(content, str) else content)
        return list(self.open(**settings).read(ReadScope(self.types), None))

    def objects(self, content: str | bytes | None = None, **settings: Any) -> dict[str, ImportedObject]:
        return {each.anchor: each for each in self.read(content, **settings) if isinstance(each, ImportedObject)}

    def fails(self, content: str | bytes, code: str, **settings: Any) -> ConnectorError:
        events: list[ReadEvent] = []
        self.path.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(ConnectorError) as caught:
            events.extend(self.open(**settings).read(ReadScope(self.types), None))
        assert caught.value.code == code
        return caught.value


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


# --- reading --------------------------------------------------------------------------------------------------------


def test_csv_file_is_read_with_lines_and_without_blank_cells(source: Source) -> None:
    events = source.read(TEXT)
    assert isinstance(events[-1], ReadComplete)
    assert events[-1].object_count == 4
    first = events[0]
    assert isinstance(first, ImportedObject)
    assert first.anchor == "1001"
    assert first.line == 2
    assert "manager" not in first.cells
    assert first.cells["mail"] == ("ada@example.org",)


@pytest.mark.parametrize("content", ["", HEADER, HEADER + "\n", "\n\n\n", HEADER + "\n\n \n,,,,,,,,\n"])
def test_csv_file_without_rows_is_an_error(source: Source, content: str) -> None:
    source.fails(content, "empty_source")


def test_csv_file_that_does_not_exist_is_an_error(source: Source) -> None:
    with pytest.raises(ConnectorError, match="there is no file"):
        source.read()
    with pytest.raises(ConnectorError, match="there is no file"):
        source.open().check()


def test_csv_file_cut_inside_quotes_is_truncated(source: Source) -> None:
    error = source.fails(TEXT + '1005,"Barb', "truncated")
    assert "line 6" in str(error)


def test_csv_file_cut_inside_the_last_row_is_truncated(source: Source) -> None:
    error = source.fails(TEXT + "1005,Barbara,Lisk", "truncated")
    assert "line 6" in str(error)


def test_csv_file_without_final_line_end_is_complete(source: Source) -> None:
    assert len(source.objects(TEXT.rstrip("\n"))) == 4


@pytest.mark.parametrize("row", ["1005,Barbara", "1005,Barbara,L,b@example.org,R,F,,2020-01-01,,more"])
def test_row_of_another_length_is_an_error_of_its_object(source: Source, row: str) -> None:
    content = "\n".join([HEADER, ROWS[0], row, *ROWS[1:], ""])
    events = source.read(content)
    (warning,) = [each for each in events if isinstance(each, ReadWarning)]
    assert warning.is_error
    assert warning.line == 3
    assert warning.anchor == "1005"
    assert warning.type == "person"
    assert "cells" in warning.message
    assert isinstance(events[-1], ReadComplete)
    assert sum(isinstance(each, ImportedObject) for each in events) == 4


def test_record_that_is_not_valid_csv_is_an_error_of_its_line(source: Source) -> None:
    events = source.read("\n".join([HEADER, ROWS[0], '1005,"Bar"bara,L,b,R,F,,,', ROWS[1], ""]))
    (warning,) = [each for each in events if isinstance(each, ReadWarning)]
    assert warning.line == 3
    assert len([each for each in events if isinstance(each, ImportedObject)]) == 2


@pytest.mark.parametrize(
    "content",
    [
        TEXT,
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("Turing", '"Tu\nring"'),
        TEXT + "\n \n,,,,,,,,\n" + ROWS[0].replace("1001", "1005") + "\n",
        TEXT + "1005,Barbara\n" + ROWS[0].replace("1001", "1006") + "\n",
        TEXT + '1005,"Bar"bara,L,b,R,F,,,\n' + ROWS[0].replace("1001", "1006") + "\n",
        TEXT.replace("1003", " "),
        TEXT.replace("Lovelace", "Love\x1flace"),
        TEXT.replace("Hopper", "Hop\udcffper"),
        TEXT.replace("ada@", "ädä@"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_batches_of_a_csv_file_have_the_objects_of_single_rows(source: Source, content: str, size: int) -> None:
    single = source.read(content.encode("utf-8", "surrogateescape"))
    found: list[Any] = []
    for event in source.read_batches(size):
        if not isinstance(event, ImportedBatch):
            found.append(event)
            continue
        batch = event.objects
        made = [batch.make_object(position) for position in range(len(batch.descriptions))]
        assert 0 < len(made) <= size
        assert hash_descriptions(b"key", batch.type, batch.descriptions) == [
            fingerprint(b"key", each.type, each.address, each.container, each.cells) for each in made
        ]
        found += made
    assert found == single


@pytest.mark.parametrize("end", ['1005,"Barb', "1005,Barbara,Lisk"])
def test_truncated_csv_file_is_an_error_in_batches_too(source: Source, end: str) -> None:
    source.path.write_text(TEXT + end, encoding="utf-8")
    with pytest.raises(ConnectorError, match="line 6") as caught:
        source.read_batches(100)
    assert caught.value.code == "truncated"


def test_missing_column_is_named_before_any_row_is_read(source: Source) -> None:
    source.path.write_text(TEXT.replace(",mail,", ",e-mail,", 1), encoding="utf-8")
    reading = source.open().read(ReadScope(source.types), None)
    with pytest.raises(ConnectorError, match=r"no column mail.*did you mean e-mail") as caught:
        next(reading)
    assert caught.value.code == "missing_column"


def test_quoting_and_line_ends_do_not_change_the_cells(source: Source) -> None:
    plain = source.objects(TEXT)
    quoted = "\r\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in TEXT.splitlines()) + "\r\n"
    assert {anchor: each.cells for anchor, each in source.objects(quoted).items()} == {
        anchor: each.cells for anchor, each in plain.items()
    }


SETTINGS = CsvSettings.model_validate({"path": "people.csv"})


def fingerprint_of(columns: TypeColumns, *cells: str) -> bytes:
    found = columns.imported(cells, 2)
    return fingerprint(b"key", found.type, found.address, found.container, found.cells)


def test_fingerprint_of_a_csv_row_covers_exactly_its_selected_cells() -> None:
    selected = ObjectType("person", "id", {name: Attribute(name) for name in ("id", "a", "b")})
    columns = TypeColumns(selected, ["id", "a", "other", "b"], SETTINGS)
    base = fingerprint_of(columns, "1", "x", "", "y")
    assert base == fingerprint_of(columns, "1", "x", "not selected", "y")
    reordered = TypeColumns(selected, ["b", "id", "a"], SETTINGS)
    assert base == fingerprint_of(reordered, "y", "1", "x")
    others = [
        *(fingerprint_of(columns, "1", *cells) for cells in (("y", "", "x"), ("xy", "", ""), ("", "", "xy"))),
        # The text between the cells occurs in cells.
        *(fingerprint_of(columns, "1", *cells) for cells in (("x\x1fy", "", "z"), ("x", "", "y\x1fz"))),
        fingerprint_of(columns, "1", "('1', 'x', 'y')", "", ""),
        fingerprint_of(columns, "1", "\udcff", "", "y"),
    ]
    assert base not in others
    assert len(set(others)) == len(others)


CELLS = st.sampled_from(["", " ", "x", " x ", "2020-01-31", "soon", "7", "x" * 600, "a\x00", "\udcff", "é", "+1,5"])


@given(st.lists(CELLS, min_size=5, max_size=5))
def test_cells_of_a_row_are_decoded_like_other_cells(row: list[str]) -> None:
    types = (DataType.TEXT, DataType.TEXT, DataType.DATE, DataType.REFERENCE, DataType.INTEGER)
    names = [f"a{number}" for number in range(len(types))]
    attributes = {name: Attribute(name, each) for name, each in zip(names, types, strict=True)}
    selected = ObjectType("person", "a0", attributes)
    cells = TypeColumns(selected, names, SETTINGS).imported(row, 2).cells
    for old in (None, {"a2": ["2019-01-01"]}):
        assert decode_object(selected, cells, Decoding(), old=old) == decode_object(
            selected, dict(cells), Decoding(), old=old
        )


def test_cells_of_a_csv_row_are_a_mapping_without_blank_cells() -> None:
    attributes = {"id": Attribute("id"), "a": Attribute("a"), "several": Attribute("several", multi=True)}
    columns = TypeColumns(ObjectType("person", "id", attributes), ["id", "a", "several", "several"], SETTINGS)
    cells = columns.imported(["1", " ", "x|y", "x"], 2).cells
    assert cells == {"id": ("1",), "several": ("x", "y")}
    assert "a" not in cells
    assert cells.get("a") is None
    assert len(cells) == 2


def test_undecodable_row_is_an_error_with_its_byte(source: Source) -> None:
    content = TEXT.replace("Hopper", "Müller").encode("cp1252")
    events = source.read(content)
    (warning,) = [each for each in events if isinstance(each, ReadWarning)]
    assert warning.code == "undecodable"
    assert warning.line == 3
    assert warning.anchor == "1002"
    assert f"byte {content.index(bytes([0xFC]))}" in warning.message
    assert len([each for each in events if isinstance(each, ImportedObject)]) == 3
    assert source.objects(content, encoding="cp1252")["1002"].cells["last"] == ("Müller",)


def test_many_undecodable_rows_fail_the_read_at_once(source: Source) -> None:
    rows = [f"{number},Ä,Ö,a@b,R,F,,2020-01-01," for number in range(100)]
    error = source.fails("\n".join([HEADER, *rows, ""]).encode("cp1252"), "undecodable")
    assert "51 of the first 51 rows" in str(error)
    assert "cp1252" in str(error)


def test_byte_order_marks_are_recognised(source: Source) -> None:
    assert len(source.objects(b"\xef\xbb\xbf" + TEXT.encode())) == 4
    assert len(source.objects(TEXT.encode("utf-16"), encoding="utf-16")) == 4
    error = source.fails(TEXT.encode("utf-16"), "undecodable")
    assert "UTF-16" in str(error)


def test_file_that_changes_while_it_is_read_is_an_error(source: Source) -> None:
    source.path.write_text(TEXT, encoding="utf-8")
    reading = source.open().read(ReadScope(source.types), None)
    next(reading)
    os.utime(source.path, (0, 0))
    with pytest.raises(ConnectorError) as caught:
        list(reading)
    assert caught.value.code == "source_changed"


def test_trailer_shows_that_the_file_is_complete(source: Source) -> None:
    assert len(source.objects(TEXT + "END,4,,,,,,,\n", trailer="END")) == 4
    source.fails(TEXT, "truncated", trailer="END")
    source.fails(TEXT + "END,5,,,,,,,\n", "truncated", trailer="END")
    source.fails(TEXT + "END,4,,,,,,,\n" + ROWS[0], "truncated", trailer="END")


def test_checksum_shows_that_the_file_is_complete(source: Source) -> None:
    sidecar = source.folder / "hr.csv.sha256"
    source.fails(TEXT, "truncated", checksum="sha256")
    sidecar.write_text(f"{hashlib.sha256(TEXT.encode()).hexdigest()}  hr.csv\n")
    assert len(source.objects(TEXT, checksum="sha256")) == 4
    source.fails(TEXT[:-10], "truncated", checksum="sha256")


def test_file_that_was_just_written_is_refused_until_it_settles(source: Source) -> None:
    source.fails(TEXT, "not_settled", settle_seconds=60)
    os.utime(source.path, (0, 0))
    assert len(source.objects(settle_seconds=60)) == 4


def test_path_outside_of_the_allowed_folders_is_refused(
    source: Source, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "hr.csv"
    outside.write_text(TEXT, encoding="utf-8")
    for path in (str(outside), "../hr.csv"):
        with pytest.raises(ConnectorError, match="outside of the folders"):
            source.open(path=path)
    (source.folder / "hr.csv").symlink_to(outside)
    with pytest.raises(ConnectorError, match="outside of the folders"):
        source.open()


def test_type_column_selects_the_type_of_a_row(source: Source) -> None:
    group = ObjectType("group", "employee_id", {"employee_id": Attribute("employee_id"), "first": Attribute("first")})
    source.types = (PERSON, group)
    lines = [f"kind,{HEADER}", f"person,{ROWS[0]}", "group,g1,Staff,,,,,,,", f"robot,{ROWS[1]}", ""]
    events = source.read("\n".join(lines), type_column="kind")
    assert [(each.type, each.anchor) for each in events if isinstance(each, ImportedObject)] == [
        ("person", "1001"),
        ("group", "g1"),
    ]
    (warning,) = [each for each in events if isinstance(each, ReadWarning)]
    assert (warning.code, warning.line) == ("unknown_type", 4)


def test_multi_valued_cells_and_repeated_columns_are_several_values(source: Source) -> None:
    source.types = (ObjectType("p", "id", {"id": Attribute("id"), "phones": Attribute("phones", multi=True)}),)
    found = source.objects("id,phones,phones\n1,+44 1|+44 2,+44 3\n2, +44 1 |+44 1,\n3,,\n")
    assert found["1"].cells["phones"] == ("+44 1", "+44 2", "+44 3")
    assert found["2"].cells["phones"] == ("+44 1",)
    assert "phones" not in found["3"].cells
    assert source.objects("id,phones\n1,a;b\n", multi_value_delimiter=";")["1"].cells["phones"] == ("a", "b")


def test_large_and_hostile_cells_are_read_as_data(source: Source) -> None:
    large = "x" * 1_000_000
    found = source.objects(f'{HEADER}\n1,"{large}","a\x00b",=1+1,R,F,,,\n')
    assert found["1"].cells["first"] == (large,)
    assert found["1"].cells["last"] == ("a\x00b",)


def test_settings_are_checked_with_suggestions() -> None:
    kind = registry.find_connector("csv")
    for settings, text in (
        ({"path": "x", "delimeter": ";"}, "did you mean delimiter"),
        ({"path": "x", "encoding": "utf-99"}, "no encoding 'utf-99'"),
        ({}, "path"),
        ({"path": "x", "delimiter": ";;"}, "delimiter"),
    ):
        with pytest.raises(Exception, match=text):
            registry.parse_settings(kind, settings)
    with pytest.raises(Exception, match="did you mean csv"):
        registry.find_connector("csvv")


def test_anchors_are_compared_in_their_canonical_form() -> None:
    text = PERSON
    number = ObjectType("n", "id", {"id": Attribute("id", DataType.INTEGER)})
    assert canonical_anchor(" 7 ", text) == canonical_anchor("7", text)
    assert canonical_anchor("\u00a07\u00a0", text) == "7"
    assert canonical_anchor("e\u0301", text) == canonical_anchor("\u00e9", text)
    assert canonical_anchor("007", text) != canonical_anchor("7", text)
    assert canonical_anchor("007", number) == canonical_anchor("7", number)
    assert canonical_anchor("9007199254740993", number) == "9007199254740993"
    assert canonical_anchor("9223372036854775807", number) == "9223372036854775807"
    assert canonical_anchor(" \u00a0", text) == ""


# --- writing --------------------------------------------------------------------------------------------------------

TARGET = ObjectType(
    "account",
    "login",
    {
        "login": Attribute("login"),
        "name": Attribute("name"),
        "groups": Attribute("groups", multi=True),
        "active": Attribute("active", DataType.BOOLEAN),
    },
)


@pytest.fixture
def target(tmp_path: Path) -> Source:
    found = Source(tmp_path)
    found.types = (TARGET,)
    return found


def request(kind: ExportKind, login: str, **values: tuple[Value, ...]) -> WriteRequest:
    changes = tuple(WriteChange(name, ChangeOp.SET, each) for name, each in values.items())
    if kind is ExportKind.CREATE:
        changes = (WriteChange("login", ChangeOp.SET, (login,)), *changes)
    return WriteRequest(kind, "account", None if kind is ExportKind.CREATE else login, login, changes)


def write(target: Source, *requests: WriteRequest, **settings: Any) -> list[WriteResult]:
    return target.open(**settings).write(list(requests))


CONTENT = (
    'note,login,name,groups,active\r\n "keep" ,ada,"Ada, L","a|b",true\r\nx,bob,Bob,,false\r\ny,cyd,Cyd,a,true\r\n'
)


def test_csv_target_changes_only_the_rows_that_change(target: Source) -> None:
    target.path.write_bytes(CONTENT.encode())
    target.path.chmod(0o640)
    results = write(
        target,
        request(ExportKind.CREATE, "dee", name=("Dee",), groups=("x", "y"), active=(True,)),
        request(ExportKind.CREATE, "eve", name=('E "quoted", v',)),
        request(ExportKind.UPDATE, "bob", name=("Robert",)),
        request(ExportKind.DELETE, "cyd"),
    )
    assert all(result.is_ok for result in results)
    assert target.path.read_bytes().decode() == (
        'note,login,name,groups,active\r\n "keep" ,ada,"Ada, L","a|b",true\r\nx,bob,Robert,,false\r\n'
        ',dee,Dee,x|y,true\r\n,eve,"E ""quoted"", v",,\r\n'
    )
    assert target.path.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in target.folder.iterdir()] == ["hr.csv"]


def test_csv_target_is_created_with_a_header_and_closed_mode(target: Source) -> None:
    write(target, request(ExportKind.CREATE, "ada", name=("Ada",)))
    assert target.path.read_text(encoding="utf-8") == "login,name,groups,active\nada,Ada,,\n"
    assert target.path.stat().st_mode & 0o777 == 0o600


def test_csv_target_is_written_with_memory_that_does_not_grow_with_the_file(target: Source) -> None:
    def peak_bytes(rows: int) -> int:
        header = "login,name,groups,active\n"
        target.path.write_text(header + "".join(f"u{n},Name {n},a,true\n" for n in range(rows)), encoding="utf-8")
        requests = [request(ExportKind.UPDATE, f"u{n}", name=("New",)) for n in range(100)]
        tracemalloc.start()
        try:
            assert all(result.is_ok for result in write(target, *requests))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak_bytes(200)  # what is imported and cached at the first call
    assert peak_bytes(20_000) < peak_bytes(2_000) + 500_000


def test_csv_target_is_not_written_if_nothing_changes(target: Source) -> None:
    target.path.write_bytes(CONTENT.encode())
    before = target.path.stat().st_ino
    results = write(target, request(ExportKind.DELETE, "gone"), request(ExportKind.UPDATE, "bob", name=("Bob",)))
    assert all(result.is_ok for result in results)
    assert target.path.stat().st_ino == before


def test_csv_target_refuses_what_it_cannot_store(target: Source) -> None:
    target.path.write_bytes(CONTENT.encode())
    results = write(
        target,
        request(ExportKind.UPDATE, "gone", name=("x",)),
        request(ExportKind.UPDATE, "bob", groups=("a|b",)),
        request(ExportKind.UPDATE, "bob", phone=("1",)),
        WriteRequest(ExportKind.CREATE, "account", None, "", (WriteChange("name", ChangeOp.SET, ("x",)),)),
        request(ExportKind.UPDATE, "ada", name=("Ada!",)),
    )
    assert [result.is_ok for result in results] == [False, False, False, False, True]
    assert "delimiter" in str(results[1].text)
    assert b"Ada!" in target.path.read_bytes()


def test_csv_target_that_cannot_be_read_is_not_overwritten(target: Source) -> None:
    content = CONTENT + 'z,fay,"Fay'
    target.path.write_bytes(content.encode())
    with pytest.raises(ConnectorError):
        write(target, request(ExportKind.UPDATE, "bob", name=("x",)))
    assert target.path.read_bytes() == content.encode()


def test_csv_target_keeps_rows_that_it_cannot_read(target: Source) -> None:
    content = CONTENT.encode() + b"short,row\r\nz,fay,M\xfcller,,\r\n"
    target.path.write_bytes(content)
    write(target, request(ExportKind.UPDATE, "bob", name=("Robert",)))
    assert target.path.read_bytes() == content.replace(b"bob,Bob", b"bob,Robert")


def test_csv_target_is_complete_if_the_rename_never_happens(target: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    target.path.write_bytes(CONTENT.encode())

    def interrupted(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(OSError, match="no space left"):
        write(target, request(ExportKind.UPDATE, "bob", name=("Robert",)))
    assert target.path.read_bytes() == CONTENT.encode()
    assert [path.name for path in target.folder.iterdir()] == ["hr.csv"]


def test_formulas_are_guarded_only_if_asked(target: Source) -> None:
    write(target, request(ExportKind.CREATE, "ada", name=("=1+1",)))
    assert "ada,=1+1" in target.path.read_text(encoding="utf-8")
    write(target, request(ExportKind.CREATE, "bob", name=("=1+1",)), guard_formulas=True)
    assert "bob,'=1+1" in target.path.read_text(encoding="utf-8")
    assert target.objects(guard_formulas=True)["bob"].cells["name"] == ("=1+1",)


def test_trailer_is_counted_again_after_a_change(target: Source) -> None:
    target.path.write_text("login,name,groups,active\nada,Ada,,\nEND,1,,\n", encoding="utf-8")
    write(target, request(ExportKind.CREATE, "bob", name=("Bob",)), trailer="END")
    assert target.path.read_text(encoding="utf-8") == "login,name,groups,active\nada,Ada,,\nbob,Bob,,\nEND,2,,\n"
    assert len(target.objects(trailer="END")) == 2


def test_csv_target_that_was_changed_between_two_writes_is_read_again(target: Source) -> None:
    target.path.write_text(CONTENT)
    connector = target.open()
    assert connector.write([request(ExportKind.UPDATE, "bob", name=("Robert",))])[0].is_ok
    target.path.write_text(target.path.read_text().replace("Cyd", "Sid"))
    assert connector.write([request(ExportKind.UPDATE, "ada", name=("Countess",))])[0].is_ok
    found = target.path.read_text()
    assert [name in found for name in ("Robert", "Sid", "Countess")] == [True] * 3


def test_csv_target_is_read_once_for_several_writes(target: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    target.path.write_bytes(CONTENT.encode())
    connector = target.open()
    connector.write([request(ExportKind.UPDATE, "bob", name=("Robert",))])
    read: list[Any] = []
    monkeypatch.setattr(connector, "_load_table", lambda: read.append(1))
    connector.write(
        [request(ExportKind.CREATE, "dee", name=("Dee",)), request(ExportKind.UPDATE, "bob", name=("Rob",))]
    )
    connector.write([request(ExportKind.DELETE, "cyd")])
    assert not read
    assert target.path.read_bytes().decode() == (
        'note,login,name,groups,active\r\n "keep" ,ada,"Ada, L","a|b",true\r\nx,bob,Rob,,false\r\n,dee,Dee,,\r\n'
    )


def test_csv_write_that_failed_leaves_nothing_for_the_next_one(target: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    target.path.write_bytes(CONTENT.encode())
    connector = target.open()
    connector.write([request(ExportKind.UPDATE, "bob", name=("Robert",))])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _raise_no_space)
        with pytest.raises(OSError, match="space"):
            connector.write([request(ExportKind.UPDATE, "ada", name=("Lost",))])
    connector.write([request(ExportKind.UPDATE, "cyd", name=("Kept",))])
    found = target.path.read_text()
    assert ("Kept" in found, "Lost" in found) == (True, False)


def _raise_no_space(_descriptor: int) -> None:
    raise OSError(28, "No space left on device")
