"""The conformance suite of connectors, for this package and for third parties.

Describe a system to test by a `ConnectorUnderTest` and run every check of `CHECKS`, for example with pytest::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check, system):
        check(system)

A check that does not apply to the capabilities of the connector returns without a result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

from tenuto_identity.connectors.contract import (
    Connector,
    ConnectorError,
    DeletedObject,
    ImportedObject,
    ReadComplete,
    ReadEvent,
    ReadScope,
    ReadWarning,
    WatermarkLost,
    WriteChange,
    WriteOutcome,
    WriteRequest,
    WriteResult,
)
from tenuto_identity.model.decoding import Decoding, decode_key, decode_object, fingerprint
from tenuto_identity.model.schema import ObjectType
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import Value

HOSTILE_TEXTS: Final = (
    "*)(uid=*",
    "a,ou=admins",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "Robert'); DROP TABLE people;--",
    "100%",
    "_",
    'say "hello"',
    "back\\slash",
    "Müller-Lüdenscheidt",
    "日本語",
    "line\nbreak",
)
"""Texts that a connector must store as data."""


@dataclass(frozen=True)
class Sample:
    """A new object: its address and its attributes."""

    address: str
    values: Mapping[str, tuple[Value, ...]]
    anchor: str | None = None
    """The anchor, if the connector does not assign it."""


class OpenConnector(Protocol):
    """Opens a connector on the system under test."""

    def __call__(self, *, read_only: bool = False) -> Connector: ...


@dataclass(frozen=True)
class ConnectorUnderTest:
    """An empty system and how to use it."""

    open: OpenConnector
    object_type: ObjectType
    sample: Callable[[int], Sample]
    """Returns the n-th new object; all differ in address and anchor."""
    text_attribute: str
    """A single-valued text that can be set and cleared."""
    multi_attribute: str | None = None
    """A multi-valued text; None if the system has none."""
    renamed: Callable[[str], str] | None = None
    """Returns another valid address for an address; None if objects cannot be renamed."""
    interrupted: Callable[[], AbstractContextManager[object]] | None = None
    """Makes reads incomplete while it is entered, as a dropped connection or a truncated file does."""
    forget_changes: Callable[[], object] | None = None
    """Makes the watermarks taken so far invalid."""
    delta_has_deletions: bool = True
    """Whether a delta reports deletions; if not, it must warn about that."""
    delta_repeats_newest: bool = False
    """Whether a delta reads the last change before the watermark again."""
    decoding: Decoding = field(default_factory=Decoding)

    @property
    def scope(self) -> ReadScope:
        return ReadScope((self.object_type,))


# --- what the checks use --------------------------------------------------------------------------------------------


def _changes(values: Mapping[str, tuple[Value, ...]]) -> tuple[WriteChange, ...]:
    return tuple(WriteChange(name, ChangeOp.SET, found) for name, found in values.items())


def _create(system: ConnectorUnderTest, number: int, **more: Value) -> WriteRequest:
    sample = system.sample(number)
    values = {**sample.values, **{name: (value,) for name, value in more.items()}}
    return WriteRequest(ExportKind.CREATE, system.object_type.name, sample.anchor, sample.address, _changes(values))


def _update(
    system: ConnectorUnderTest, result: WriteResult, attribute: str, op: ChangeOp, *values: Value
) -> WriteRequest:
    return WriteRequest(
        ExportKind.UPDATE,
        system.object_type.name,
        result.anchor,
        result.address or "",
        (WriteChange(attribute, op, values),),
    )


def _write(connector: Connector, *requests: WriteRequest) -> list[WriteResult]:
    results = connector.write(list(requests))
    assert len(results) == len(requests), "write must return one result for each request"
    return results


def _write_ok(connector: Connector, *requests: WriteRequest) -> list[WriteResult]:
    results = _write(connector, *requests)
    for request, result in zip(requests, results, strict=True):
        assert result.is_ok, f"{request} was refused: {result.error} {result.text}"
    return results


def _read(
    system: ConnectorUnderTest, connector: Connector, since: Mapping[str, object] | None = None
) -> list[ReadEvent]:
    events = list(connector.read(system.scope, since))
    assert events, "a read must end with ReadComplete"
    assert isinstance(events[-1], ReadComplete), f"a read must end with ReadComplete, not {events[-1]}"
    assert sum(isinstance(each, ReadComplete) for each in events) == 1, "a read must yield one ReadComplete"
    return events


def _objects(events: Iterable[ReadEvent]) -> dict[str, ImportedObject]:
    found: dict[str, ImportedObject] = {}
    for each in events:
        if isinstance(each, ImportedObject):
            assert each.anchor not in found, f"a read must yield {each.anchor} once"
            found[each.anchor] = each
    return found


def _values(system: ConnectorUnderTest, imported: ImportedObject) -> Mapping[str, list[Value]]:
    decoded = decode_object(system.object_type, imported.cells, system.decoding)
    assert not decoded.errors, decoded.errors
    return {name: list(values) for name, values in decoded.attributes.items()}


def _fingerprints(system: ConnectorUnderTest, events: Iterable[ReadEvent]) -> dict[str, bytes]:
    key = decode_key([system.object_type], system.decoding)
    return {
        anchor: fingerprint(key, each.type, each.address, each.container, each.cells)
        for anchor, each in _objects(events).items()
    }


# --- checks ---------------------------------------------------------------------------------------------------------


def check_settings_and_schema(system: ConnectorUnderTest) -> None:
    """`check` accepts a working system; `discover` names types whose anchor is an attribute."""
    connector = system.open()
    _write_ok(connector, _create(system, 1))
    connector.check()
    for object_type in connector.discover().types:
        assert object_type.anchor in object_type.attributes
    connector.close()
    connector.close()


def check_created_object_is_read(system: ConnectorUnderTest) -> None:
    """A created object is read with its anchor, its address and its values."""
    connector = system.open()
    first, second = _write_ok(connector, _create(system, 1), _create(system, 2))
    assert first.anchor is not None
    assert first.anchor != second.anchor
    events = _read(system, connector)
    found = _objects(events)
    assert set(found) == {first.anchor, second.anchor}
    complete = events[-1]
    assert isinstance(complete, ReadComplete)
    assert system.object_type.name in complete.types
    address = found[first.anchor].address
    assert address == (first.address or ""), f"the write returned the address {first.address!r}, the read {address!r}"
    values = _values(system, found[first.anchor])
    for name, sent in system.sample(1).values.items():
        assert values.get(name) == sorted(sent), f"{name} was sent as {sent} and read as {values.get(name)}"


def check_reading_twice_gives_equal_fingerprints(system: ConnectorUnderTest) -> None:
    """Two reads of an unchanged system give the same objects with the same fingerprints."""
    connector = system.open()
    _write_ok(connector, *(_create(system, number) for number in range(1, 8)))
    first = _fingerprints(system, _read(system, connector))
    assert len(first) == 7
    assert _fingerprints(system, _read(system, system.open())) == first


def check_create_can_be_repeated(system: ConnectorUnderTest) -> None:
    """A create that has taken effect already succeeds again and creates nothing."""
    connector = system.open()
    request = _create(system, 1)
    (first,) = _write_ok(connector, request)
    (again,) = _write_ok(
        connector,
        WriteRequest(request.kind, request.type, request.anchor, request.address, request.changes, uncertain=True),
    )
    assert again.anchor == first.anchor
    assert len(_objects(_read(system, connector))) == 1


def check_create_does_not_overwrite(system: ConnectorUnderTest) -> None:
    """A create for an object that exists with other values is refused as ``exists``; the object stays as it is."""
    connector = system.open()
    _write_ok(connector, _create(system, 1, **{system.text_attribute: "original"}))
    (result,) = _write(connector, _create(system, 1, **{system.text_attribute: "another"}))
    assert result.outcome is WriteOutcome.REFUSED
    assert result.error == "exists"
    (found,) = _objects(_read(system, connector)).values()
    assert _values(system, found)[system.text_attribute] == ["original"]


def check_set_and_clear_can_be_repeated(system: ConnectorUnderTest) -> None:
    """``set`` and ``clear`` have the same result if they are repeated."""
    connector = system.open()
    (created,) = _write_ok(connector, _create(system, 1))
    for _ in range(2):
        _write_ok(connector, _update(system, created, system.text_attribute, ChangeOp.SET, "changed"))
        (found,) = _objects(_read(system, connector)).values()
        assert _values(system, found)[system.text_attribute] == ["changed"]
    for _ in range(2):
        _write_ok(connector, _update(system, created, system.text_attribute, ChangeOp.CLEAR))
        (found,) = _objects(_read(system, connector)).values()
        assert system.text_attribute not in _values(system, found)


def check_add_and_remove_build_a_set(system: ConnectorUnderTest) -> None:
    """Several ``add`` and ``remove`` of one attribute in one request work on single values, and can be repeated."""
    if system.multi_attribute is None:
        return
    name = system.multi_attribute
    connector = system.open()
    (created,) = _write_ok(connector, _create(system, 1))
    _write_ok(connector, _update(system, created, name, ChangeOp.SET, "a", "b"))
    request = WriteRequest(
        ExportKind.UPDATE,
        system.object_type.name,
        created.anchor,
        created.address or "",
        (
            WriteChange(name, ChangeOp.REMOVE, ("a",)),
            WriteChange(name, ChangeOp.ADD, ("c",)),
            WriteChange(name, ChangeOp.ADD, ("d", "c")),
        ),
    )
    for _ in range(2):
        _write_ok(connector, request)
        (found,) = _objects(_read(system, connector)).values()
        assert _values(system, found)[name] == ["b", "c", "d"]


def check_delete_can_be_repeated(system: ConnectorUnderTest) -> None:
    """A delete removes one object; a delete of an object that does not exist succeeds."""
    connector = system.open()
    first, second = _write_ok(connector, _create(system, 1), _create(system, 2))
    request = WriteRequest(ExportKind.DELETE, system.object_type.name, first.anchor, first.address or "")
    for _ in range(2):
        _write_ok(connector, request)
        assert set(_objects(_read(system, connector))) == {second.anchor}


def check_rename_keeps_the_anchor(system: ConnectorUnderTest) -> None:
    """A rename changes the address and not the anchor, and can be repeated."""
    if system.renamed is None:
        return
    connector = system.open()
    (created,) = _write_ok(connector, _create(system, 1))
    address = system.renamed(created.address or "")
    for _ in range(2):
        _write_ok(connector, _update(system, created, "address", ChangeOp.RENAME, address))
        (found,) = _objects(_read(system, connector)).values()
        assert found.anchor == created.anchor
        assert found.address == address


def check_results_are_positional(system: ConnectorUnderTest) -> None:
    """One refused request does not affect the others; each result is at the position of its request."""
    connector = system.open()
    _write_ok(connector, _create(system, 1, **{system.text_attribute: "original"}))
    requests = [
        _create(system, 2),
        _create(system, 1, **{system.text_attribute: "another"}),
        _create(system, 3),
    ]
    outcomes = [result.is_ok for result in _write(connector, *requests)]
    assert outcomes == [True, False, True]
    assert len(_objects(_read(system, connector))) == 3


def check_hostile_values_are_data(system: ConnectorUnderTest) -> None:
    """Values with special characters are read as they were written."""
    connector = system.open()
    for number, text in enumerate(HOSTILE_TEXTS, 1):
        (created,) = _write_ok(connector, _create(system, number, **{system.text_attribute: text}))
        found = _objects(_read(system, connector))
        assert created.anchor is not None
        assert _values(system, found[created.anchor])[system.text_attribute] == [text], text


def check_delta_reports_changes(system: ConnectorUnderTest) -> None:
    """A delta has what was added, changed and deleted since the watermark, each object once, and nothing else."""
    connector = system.open()
    if not connector.capabilities.delta:
        assert connector.watermark(system.scope) is None
        return
    first, second, third = _write_ok(connector, *(_create(system, number) for number in (1, 2, 3)))
    watermark = connector.watermark(system.scope)
    assert watermark is not None
    watermark = json.loads(json.dumps(watermark))
    repeated = set(_objects(_read(system, connector, watermark)))
    assert repeated <= ({third.anchor} if system.delta_repeats_newest else set())
    (fourth,) = _write_ok(connector, _create(system, 4))
    _write_ok(connector, _update(system, second, system.text_attribute, ChangeOp.SET, "x"))
    _write_ok(connector, _update(system, second, system.text_attribute, ChangeOp.SET, "y"))
    _write_ok(connector, WriteRequest(ExportKind.DELETE, system.object_type.name, third.anchor, third.address or ""))
    events = _read(system, connector, watermark)
    found = _objects(events)
    assert set(found) == {second.anchor, fourth.anchor}
    assert first.anchor not in found
    assert second.anchor is not None
    assert _values(system, found[second.anchor])[system.text_attribute] == ["y"]
    if system.delta_has_deletions:
        assert [each.anchor for each in events if isinstance(each, DeletedObject)] == [third.anchor]
    else:
        assert any(isinstance(each, ReadWarning) for each in events), "a delta without deletions must warn about that"


def check_lost_watermark_is_reported(system: ConnectorUnderTest) -> None:
    """A watermark that the system no longer knows raises `WatermarkLost` instead of yielding part of the changes."""
    connector = system.open()
    if system.forget_changes is None or not connector.capabilities.delta:
        return
    _write_ok(connector, _create(system, 1))
    watermark = connector.watermark(system.scope)
    _write_ok(connector, _create(system, 2))
    system.forget_changes()
    try:
        list(connector.read(system.scope, watermark))
    except WatermarkLost:
        return
    raise AssertionError("a watermark that is not valid any more must raise WatermarkLost")


def check_incomplete_read_raises(system: ConnectorUnderTest) -> None:
    """A read that is not complete raises `ConnectorError` and never yields `ReadComplete`."""
    if system.interrupted is None:
        return
    connector = system.open()
    _write_ok(connector, *(_create(system, number) for number in range(1, 6)))
    events: list[ReadEvent] = []
    with system.interrupted():
        try:
            events.extend(system.open().read(system.scope, None))
        except ConnectorError:
            assert not any(isinstance(each, ReadComplete) for each in events)
            return
    raise AssertionError("an incomplete read must raise ConnectorError")


def check_one_object_can_be_read(system: ConnectorUnderTest) -> None:
    """With the capability ``read_one``, a read by anchor yields that object only."""
    connector = system.open()
    if not connector.capabilities.read_one:
        return
    _, second = _write_ok(connector, _create(system, 1), _create(system, 2))
    assert second.anchor is not None
    scope = ReadScope((system.object_type,), anchors=(second.anchor,))
    found = _objects(connector.read(scope, None))
    assert set(found) == {second.anchor}


def check_read_only_connector_writes_nothing(system: ConnectorUnderTest) -> None:
    """A connector that was opened read-only, for a preview, refuses to write."""
    _write_ok(system.open(), _create(system, 1))
    connector = system.open(read_only=True)
    try:
        connector.write([_create(system, 2)])
    except ConnectorError:
        assert len(_objects(_read(system, connector))) == 1
        return
    raise AssertionError("a read-only connector must refuse to write")


Check = Callable[[ConnectorUnderTest], None]
CHECKS: Final[tuple[Check, ...]] = (
    check_settings_and_schema,
    check_created_object_is_read,
    check_reading_twice_gives_equal_fingerprints,
    check_create_can_be_repeated,
    check_create_does_not_overwrite,
    check_set_and_clear_can_be_repeated,
    check_add_and_remove_build_a_set,
    check_delete_can_be_repeated,
    check_rename_keeps_the_anchor,
    check_results_are_positional,
    check_hostile_values_are_data,
    check_delta_reports_changes,
    check_lost_watermark_is_reported,
    check_incomplete_read_raises,
    check_one_object_can_be_read,
    check_read_only_connector_writes_nothing,
)
