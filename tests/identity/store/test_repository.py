"""Statements of the repository: columns of all records, invariants of the database, lookups in every plan mode."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tenuto_identity.store
from tenuto.errors import StaleLease
from tenuto.model.access.actors import Actor
from tenuto.postgres.database import Connection
from tenuto.store import row_mapping
from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.sync.pending_exports import (
    Change,
    ChangeOp,
    ChangeState,
    ExportKind,
    ExportState,
    PendingExport,
    encode_changes,
)
from tenuto_identity.store import exports, objects, run_items, runs, sync_marks
from tenuto_identity.store.objects import ChangedObject, NewObject, ReferenceRow
from tenuto_identity.store.runs import NewRun
from tenuto_identity.store.sync_marks import MarkReason
from tests.identity.model.strategies import changes

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SYSTEMS = {1: "HR", 2: "AD"}

for module in pkgutil.walk_packages(tenuto_identity.store.__path__, "tenuto_identity.store."):
    importlib.import_module(module.name)
MAPPERS = [
    each for each in row_mapping.registered_mappers() if each.record_type.__module__.startswith("tenuto_identity.")
]


def new_object(id: int, anchor: str | None, **fields: Any) -> NewObject:
    given = {
        "system_number": 1, "type_number": 1, "address": None, "address_key": None, "container": None,
        "state": ObjectState.NORMAL, "attributes": {"first": [anchor or "none"]}, "fingerprint": b"f" * 16,
    }  # fmt: skip
    return NewObject(id=id, anchor=anchor, **{**given, **fields})


def new_run(**fields: Any) -> NewRun:
    given: dict[str, Any] = {
        "id": uuid4(), "task_id": uuid4(), "fence": 1, "system_number": 1, "profile": "Full Import",
        "kind": "full_import", "rules_version": 1, "started_at": NOW, "initiator": Actor.user("ana"),
    }  # fmt: skip
    return NewRun(**{**given, **fields})


@pytest.mark.parametrize("mapper", MAPPERS, ids=lambda mapper: mapper.record_type.__name__)
async def test_columns_of_statements_are_the_fields_of_their_record(connection: Connection, mapper: Any) -> None:
    assert mapper.statements
    for statement in mapper.statements:
        prepared = await connection.prepare(statement)
        assert mapper.describe_mismatch([column.name for column in prepared.get_attributes()]) is None


async def test_every_statement_can_be_prepared(connection: Connection) -> None:
    for name in ("definitions", "exports", "run_items", "metaverse", "objects", "previews", "runs", "sync_marks"):
        for _, statement in importlib.import_module(f"tenuto_identity.store.{name}").SQL:
            await connection.prepare(statement)


# --- objects --------------------------------------------------------------------------------------------------------


async def test_objects_are_classified_by_anchor_and_fingerprint(connection: Connection) -> None:
    await objects.insert_objects(connection, [new_object(1, "1001"), new_object(2, "1002")], NOW)
    found = await objects.classify_objects(
        connection, 1, [1, 1, 1, 2], ["1001", "1002", "1003", "1001"], [b"f" * 16, b"x" * 16, b"f" * 16, b"f" * 16]
    )
    assert [(each.position, each.id, each.is_same, each.attributes) for each in found] == [
        (1, 1, True, None),
        (2, 2, False, {"first": ["1002"]}),
    ]


async def test_object_without_anchor_is_found_by_address_while_it_waits_for_its_import(connection: Connection) -> None:
    waiting = new_object(5, None, address="CN=Ada", address_key="cn=ada", state=ObjectState.PROVISIONING)
    await objects.insert_objects(connection, [waiting], NOW)
    found = await objects.find_provisioning(
        connection, 1, [1, 1, 2], ["cn=ada", "cn=alan", "cn=ada"], ["e1", "e2", "e3"]
    )
    assert [(each.position, each.id) for each in found] == [(1, 5)]
    changed = ChangedObject(5, "e1", "cn=Ada", "cn=ada", "ou=people", {"first": ["Ada"]}, b"g" * 16)
    await objects.update_objects(connection, [changed], NOW)
    (stored,) = await objects.load_objects(connection, [5])
    assert (stored.anchor, stored.state, stored.attributes) == ("e1", ObjectState.NORMAL, {"first": ["Ada"]})
    assert await objects.find_provisioning(connection, 1, [1], ["cn=ada"], ["e1"]) == []


async def test_references_are_resolved_by_address_then_by_anchor_and_when_the_target_comes(
    connection: Connection,
) -> None:
    await objects.insert_objects(
        connection, [new_object(1, "1001", address="A", address_key="a"), new_object(2, "1002")], NOW
    )
    found = await objects.find_reference_targets(connection, 1, ["a", "1002", "1003"], ["A", "1002", "1003"], [1, 1, 1])
    assert found == {0: 1, 1: 2}
    await objects.insert_references(connection, 1, [ReferenceRow(1, 7, "1003", "1003", None, None)])
    await objects.insert_objects(connection, [new_object(3, "1003")], NOW)
    assert await objects.resolve_waiting_references(connection, 1, [("1003", 3)]) == [1]
    (reference,) = await objects.load_references(connection, [1])
    assert reference.target_id == 3
    await objects.delete_objects(connection, [3])
    (reference,) = await objects.load_references(connection, [1])
    assert reference.target_id is None


# --- invariants -----------------------------------------------------------------------------------------------------


async def test_database_refuses_two_objects_with_one_anchor(connection: Connection) -> None:
    await objects.insert_objects(connection, [new_object(1, "1001")], NOW)
    with pytest.raises(asyncpg.UniqueViolationError, match="connector_objects_by_anchor"):
        await objects.insert_objects(connection, [new_object(2, "1001")], NOW)


async def test_database_refuses_two_objects_of_a_system_for_one_identity(connection: Connection) -> None:
    from tenuto_identity.model.objects import JoinKind

    joined = {"metaverse_id": 9, "join_kind": JoinKind.JOINED}
    await objects.insert_objects(connection, [new_object(1, "1001", **joined)], NOW)
    await objects.insert_objects(connection, [new_object(2, "1001", system_number=2, **joined)], NOW)
    with pytest.raises(asyncpg.UniqueViolationError, match="connector_objects_by_identity"):
        await objects.insert_objects(connection, [new_object(3, "1002", **joined)], NOW)


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        (("full_import", 1), ("export", 1), True),
        (("full_import", 1), ("full_import", 2), False),
        (("full_sync", 1), ("delta_sync", 2), True),
        (("full_sync", 1), ("export", 2), False),
    ],
)
async def test_database_allows_one_open_run_of_a_system_and_one_open_sync(
    connection: Connection, first: tuple[str, int], second: tuple[str, int], is_refused: bool
) -> None:
    await runs.insert_run(connection, new_run(kind=first[0], system_number=first[1]))
    if is_refused:
        with pytest.raises(runs.OtherRunBegun, match="runs_one_open"):
            await runs.insert_run(connection, new_run(kind=second[0], system_number=second[1]))
    else:
        await runs.insert_run(connection, new_run(kind=second[0], system_number=second[1]))


async def test_page_of_an_attempt_with_a_smaller_fence_is_refused(connection: Connection) -> None:
    run = new_run(fence=7)
    await runs.insert_run(connection, run)
    assert await runs.begin_fenced_page(connection, run.id, 7, 1)
    assert not await runs.begin_fenced_page(connection, run.id, 7, 1), "committed before"
    with pytest.raises(StaleLease):
        await runs.begin_fenced_page(connection, run.id, 6, 2)
    await runs.end_run(connection, run.id, 7, "completed", None, {}, NOW)
    with pytest.raises(StaleLease):
        await runs.begin_fenced_page(connection, run.id, 7, 2)


# --- marks and exports ----------------------------------------------------------------------------------------------


async def test_mark_that_is_set_again_since_it_was_read_stays(connection: Connection) -> None:
    await sync_marks.set_marks(connection, [(1, 1), (2, 1)], MarkReason.IMPORTED)
    until = await sync_marks.draw_stamp(connection)
    read = await sync_marks.load_marks_page(connection, 1, 0, until, 10)
    await sync_marks.set_marks(connection, [(2, 1)], MarkReason.REFERENCE)
    await sync_marks.delete_marks(connection, read)
    left = await sync_marks.load_marks(connection, [1, 2])
    assert [(each.object_id, each.reason) for each in left.values()] == [(2, MarkReason.REFERENCE)]
    assert await sync_marks.load_marks_page(connection, 1, 0, until, 10) == []


def update_of(object_id: int, **fields: Any) -> PendingExport:
    change = Change("title", ChangeOp.SET, ("Admiral",))
    return PendingExport(object_id, "AD", 9, ExportKind.UPDATE, (change,), **fields)


async def test_exports_are_claimed_in_order_and_released_by_the_next_run(connection: Connection) -> None:
    run_id: UUID = uuid4()
    await exports.write_exports(connection, [update_of(3), update_of(1), update_of(2)], {"AD": 2}, {1: 5}, NOW)
    first = await exports.claim_exports(connection, 2, 2, (-1000, 0), NOW, 2, run_id, SYSTEMS)
    assert [each.pending.object_id for each in first] == [2, 3]
    rest = await exports.claim_exports(connection, 2, 2, (0, 3), NOW, 2, run_id, SYSTEMS)
    assert [(each.pending.object_id, each.pending.state) for each in rest] == [(1, ExportState.EXECUTING)]
    assert sorted(await exports.release_uncertain_exports(connection, 2, uuid4())) == [1, 2, 3]
    stored = await exports.load_exports(connection, [1, 2, 3], SYSTEMS)
    assert {(each.state, each.uncertain) for each in stored.values()} == {(ExportState.PENDING, True)}


async def test_export_is_stored_as_it_was(connection: Connection) -> None:
    whole = update_of(
        4,
        queued_changes=(Change("manager", ChangeOp.SET, references=(12,)),),
        state=ExportState.UNCONFIRMED,
        attempts=2,
        next_attempt_at=NOW,
        uncertain=True,
        deferred_reference_count=1,
        error="refused",
        foreign_anchor="e9",
    )
    await exports.write_exports(connection, [whole], {"AD": 2}, {}, NOW)
    assert await exports.lock_exports(connection, [4, 5], SYSTEMS) == {4: whole}


async def test_tables_that_have_grown_tenfold_are_analysed_once(connection: Connection) -> None:
    assert await runs.analyze_grown_tables(connection) == []
    await objects.insert_objects(connection, [new_object(id, f"anchor-{id}") for id in range(1, 3_001)], NOW)
    assert await runs.analyze_grown_tables(connection) == ["connector_objects"]
    assert await runs.analyze_grown_tables(connection) == []


TEXTS = st.text(max_size=5) | st.text('a"\\\\:[],{}', max_size=8)
DOCUMENTS = st.dictionaries(TEXTS, st.lists(TEXTS | st.integers(-9, 9) | st.booleans(), min_size=1, max_size=3))


@given(DOCUMENTS)
def test_diff_of_new_values_is_made_of_their_json(values: dict[str, list[Any]]) -> None:
    expected = objects.encode_json({name: ([], found) for name, found in values.items()})
    assert run_items.encode_added_values(values, objects.encode_json(values)) == expected


def varied(found: list[Change]) -> list[Change]:
    return [
        replace(each, state=ChangeState.UNCONFIRMED, attempts=2, observed=("x",), owned=False, references=(1, 2))
        for each in found
    ]


@given(changes() | changes().map(varied))
def test_json_of_changes_is_that_of_their_stored_form(found: list[Change]) -> None:
    assert exports.encode_pending_changes(found) == objects.encode_json(encode_changes(found))
