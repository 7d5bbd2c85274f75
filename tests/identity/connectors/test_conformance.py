"""The conformance suite over the built-in connectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenuto_identity.connectors import registry
from tenuto_identity.connectors.conformance import CHECKS, Check, ConnectorUnderTest, Sample
from tenuto_identity.connectors.contract import Connector, ConnectorContext
from tenuto_identity.connectors.memory import MemorySystem
from tenuto_identity.model.schema import Attribute, ObjectType
from tenuto_identity.model.values import DataType

PERSON = ObjectType(
    "person",
    anchor="id",
    attributes={
        "id": Attribute("id"),
        "name": Attribute("name"),
        "title": Attribute("title"),
        "size": Attribute("size", DataType.INTEGER),
        "active": Attribute("active", DataType.BOOLEAN),
        "born": Attribute("born", DataType.DATE),
        "phones": Attribute("phones", multi=True),
    },
)
ENTRY = ObjectType(
    "person",
    anchor="id",
    attributes={**PERSON.attributes, "id": Attribute("id", DataType.GUID)},
    address_is_dn=True,
)


def opener(name: str, settings: dict[str, Any], folder: Path, object_type: ObjectType) -> Callable[..., Connector]:
    def open_connector(*, read_only: bool = False) -> Connector:
        context = ConnectorContext((object_type,), (folder,), read_only=read_only)
        return registry.open_connector(name, settings, context)

    return open_connector


def person(number: int) -> Sample:
    values: dict[str, tuple[str | int | bool, ...]] = {
        "id": (f"{number:04}",),
        "name": (f"Person {number}",),
        "size": (9007199254740993 + number,),
        "active": (number % 2 == 0,),
        "born": (f"2000-01-{number:02}",),
        "phones": (f"+44 {number}", f"+49 {number}"),
    }
    return Sample(f"{number:04}", values)


def entry(number: int) -> Sample:
    values = {name: value for name, value in person(number).values.items() if name != "id"}
    return Sample(f"cn=Person {number},ou=people,dc=test", values)


def csv_system(folder: Path, **settings: Any) -> ConnectorUnderTest:
    path = folder / "people.csv"

    @contextmanager
    def truncated() -> Iterator[None]:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) - 60])
        yield
        path.write_bytes(content)

    all_settings = {"path": str(path), "allow_empty": True, **settings}
    return ConnectorUnderTest(
        open=opener("csv", all_settings, folder, PERSON),
        object_type=PERSON,
        sample=person,
        text_attribute="title",
        multi_attribute="phones",
        interrupted=truncated,
        decoding=registry.find_connector("csv").decoding(
            registry.parse_settings(registry.find_connector("csv"), all_settings)
        ),
    )


def memory_system(folder: Path) -> ConnectorUnderTest:
    path = folder / "memory.json"
    system = MemorySystem(path)

    @contextmanager
    def interrupted() -> Iterator[None]:
        system.behave(fail_after=3)
        yield
        system.behave(fail_after=None)

    return ConnectorUnderTest(
        open=opener("memory", {"path": str(path)}, folder, ENTRY),
        object_type=ENTRY,
        sample=entry,
        text_attribute="title",
        multi_attribute="phones",
        renamed=lambda address: address.replace("cn=Person", "cn=Somebody else"),
        interrupted=interrupted,
        forget_changes=system.forget_log,
    )


SYSTEMS: dict[str, Callable[[Path], ConnectorUnderTest]] = {
    "csv": csv_system,
    "csv-semicolon-german": lambda folder: csv_system(folder, delimiter=";", locale="de", encoding="utf-16"),
    "csv-guarded": lambda folder: csv_system(folder, guard_formulas=True, quote="'"),
    "memory": memory_system,
}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_connector_passes_the_conformance_suite(check: Check, name: str, tmp_path: Path) -> None:
    check(SYSTEMS[name](tmp_path))
