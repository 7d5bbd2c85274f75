"""Pending exports: merging, staging again, order, and results of an export."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto_identity.model.sync.engine import TargetValues, apply_pending
from tenuto_identity.model.sync.pending_exports import (
    QUEUED_DELETE,
    Change,
    ChangeOp,
    ChangeState,
    ExportKind,
    ExportState,
    PendingExport,
    decode_changes,
    encode_changes,
    is_foreign,
    merge_changes,
    order_exports,
    record_exported,
    record_missing_dependency,
    record_refused,
    restage_changes,
    retry,
    retry_delay,
    sendable_changes,
    withdraw,
)
from tests.identity.model.strategies import EVERY_TYPE, NOW, changes


def export(*found: Change, kind: ExportKind = ExportKind.UPDATE, identity: int = 7) -> PendingExport:
    return PendingExport(identity, "T", 1, kind, found)


def refuse(pending: PendingExport) -> PendingExport:
    refused = record_refused(pending, "no", NOW)
    assert refused is not None
    return refused


def set_to(value: str, attribute: str = "text_one", **options: object) -> Change:
    return Change(attribute, ChangeOp.SET, (value,), **options)  # type: ignore[arg-type]


def effect(found: tuple[Change, ...] | list[Change], start: list[str]) -> list[str]:
    """Apply changes one after the other."""
    values = TargetValues({"text_many": start} if start else {})
    for change in found:
        values = apply_pending(values, [change], EVERY_TYPE)
    return [str(value) for value in values.attributes.get("text_many", ())]


starts = st.lists(st.sampled_from("abcd"), unique=True).map(sorted)


@given(changes(), changes(), starts)
@settings(max_examples=200)
def test_merged_changes_have_the_effect_of_both(first: list[Change], second: list[Change], start: list[str]) -> None:
    merged = merge_changes(first, second)
    assert effect(merged, start) == effect([*first, *second], start)


@given(changes(), changes(), changes(), starts)
@settings(max_examples=200)
def test_merging_is_associative(a: list[Change], b: list[Change], c: list[Change], start: list[str]) -> None:
    left = merge_changes(merge_changes(a, b), c)
    right = merge_changes(a, merge_changes(b, c))
    assert effect(left, start) == effect(right, start)


@given(changes())
def test_merging_with_nothing_changes_nothing(found: list[Change]) -> None:
    assert merge_changes(found, []) == tuple(found)
    assert merge_changes(merge_changes([], found), []) == merge_changes([], found)


def test_newest_change_of_an_attribute_wins_and_an_equal_one_keeps_its_attempts() -> None:
    old = set_to("a", attempts=3, state=ChangeState.UNCONFIRMED)
    assert merge_changes([old], [set_to("b")]) == (set_to("b"),)
    assert merge_changes([old], [set_to("a")])[0].values == ("a",)
    assert merge_changes([old], [set_to("x", "other")]) == (old, set_to("x", "other"))


@given(changes())
def test_changes_survive_their_stored_form(found: list[Change]) -> None:
    rich = [
        replace(each, state=ChangeState.UNCONFIRMED, attempts=2, observed=("x",), owned=False, references=(1, 2))
        for each in found
    ]
    for each in (found, rich):
        assert decode_changes(json.loads(json.dumps(encode_changes(each)))) == tuple(each)


# --- staging again --------------------------------------------------------------------------------------------------


def test_new_evaluation_replaces_a_change_that_was_not_sent() -> None:
    pending = (set_to("a"), set_to("x", "other"))
    assert restage_changes(pending, [set_to("b"), set_to("x", "other")]) == (set_to("b"), set_to("x", "other"))
    assert restage_changes(pending, []) == ()
    assert restage_changes(pending, [], frozenset({"text_one"})) == (set_to("x", "other"),)


@pytest.mark.parametrize("state", [ChangeState.UNCONFIRMED, ChangeState.FAILED, ChangeState.PENDING])
def test_equal_change_keeps_its_state_and_attempts(state: ChangeState) -> None:
    old = set_to("a", state=state, attempts=4)
    assert restage_changes([old], [set_to("a")]) == (old,)
    assert restage_changes([old], [set_to("b")]) == (set_to("b"),)


def test_change_that_waits_for_confirmation_stays_until_another_value_replaces_it() -> None:
    sent = set_to("a", state=ChangeState.EXPORTED)
    assert restage_changes([sent], []) == (sent,)
    assert restage_changes([sent], [set_to("b")]) == (set_to("b"),)
    added = Change("text_many", ChangeOp.ADD, ("a",), state=ChangeState.EXPORTED)
    more = Change("text_many", ChangeOp.ADD, ("b",))
    assert restage_changes([added], [more]) == (added, more)


def test_withdrawing_keeps_only_what_was_sent() -> None:
    sent = set_to("a", state=ChangeState.EXPORTED)
    found = withdraw(export(sent, set_to("b", "other")))
    assert found is not None
    assert found.changes == (sent,)
    assert withdraw(export(set_to("a"))) is None
    assert withdraw(export(kind=ExportKind.DELETE)) is None


# --- order ----------------------------------------------------------------------------------------------------------


def test_exports_are_sent_parents_first_and_deleted_children_first() -> None:
    rename = Change("address", ChangeOp.RENAME, ("cn=z",))
    found = [
        (export(kind=ExportKind.DELETE, identity=1), "ou=a,dc=x"),
        (export(kind=ExportKind.DELETE, identity=2), "cn=b,ou=a,dc=x"),
        (replace(export(set_to("a"), identity=3), deferred_reference_count=1), "cn=c,dc=x"),
        (export(set_to("a"), identity=4), "cn=d,dc=x"),
        (export(rename, identity=5), "cn=e,dc=x"),
        (export(kind=ExportKind.CREATE, identity=6), "cn=b,ou=a,dc=x"),
        (export(kind=ExportKind.CREATE, identity=7), "ou=a,dc=x"),
    ]
    assert [each.object_id for each in order_exports(found)] == [7, 6, 5, 4, 3, 2, 1]


# --- results --------------------------------------------------------------------------------------------------------


def test_refused_export_is_retried_later_and_fails_after_five_attempts() -> None:
    current = export(set_to("a"))
    delays = []
    for _ in range(4):
        current = refuse(current)
        assert current.state is ExportState.PENDING
        assert current.next_attempt_at is not None
        delays.append(current.next_attempt_at - NOW)
    assert delays == [timedelta(minutes=minutes) for minutes in (2, 4, 8, 16)]
    current = refuse(current)
    assert current.state is ExportState.FAILED
    assert retry(current).attempts == 0
    assert retry(current).state is ExportState.PENDING
    assert max(retry_delay(attempts) for attempts in range(1, 100)) == timedelta(minutes=60)


def test_missing_dependency_counts_no_attempt() -> None:
    found = record_missing_dependency(export(set_to("a")), "missing_parent", NOW)
    assert found is not None
    assert (found.attempts, found.state) == (0, ExportState.PENDING)
    assert found.next_attempt_at is not None


def test_success_waits_for_confirmation_or_is_one() -> None:
    found = record_exported(export(set_to("a")))
    assert found is not None
    assert found.state is ExportState.EXPORTED
    assert [change.state for change in found.changes] == [ChangeState.EXPORTED]
    assert not sendable_changes(found)
    assert record_exported(export(set_to("a")), confirmed=True) is None
    assert record_exported(export(kind=ExportKind.DELETE), confirmed=True) is None


def test_deferred_references_are_sent_by_a_later_export() -> None:
    members = Change("reference_many", ChangeOp.SET, references=(1, 2, 3))
    manager = Change("reference_one", ChangeOp.SET, references=(9,))
    pending = export(members, manager, set_to("a"), kind=ExportKind.CREATE)
    found = record_exported(pending, deferred=frozenset({("reference_many", 3), ("reference_one", 9)}))
    assert found is not None
    assert found.kind is ExportKind.UPDATE
    assert found.state is ExportState.PENDING
    assert found.deferred_reference_count == 2
    assert [(each.attribute, each.op, each.references) for each in sendable_changes(found)] == [
        ("reference_many", ChangeOp.ADD, (3,)),
        ("reference_one", ChangeOp.SET, (9,)),
    ]
    confirmed = record_exported(pending, deferred=frozenset({("reference_many", 3)}), confirmed=True)
    assert confirmed is not None
    assert [(each.op, each.references) for each in confirmed.changes] == [(ChangeOp.ADD, (3,))]


def test_changes_queued_during_the_export_follow_it() -> None:
    executing = replace(export(set_to("a")), state=ExportState.EXECUTING, queued_changes=(set_to("b"),))
    found = record_exported(executing)
    assert found is not None
    assert found.state is ExportState.PENDING
    assert sendable_changes(found) == (set_to("b"),)
    same = record_exported(replace(executing, queued_changes=(set_to("a"),)))
    assert same is not None
    assert same.state is ExportState.EXPORTED
    refused = refuse(executing)
    assert refused.changes == (set_to("b"),)


def test_delete_queued_during_a_create_follows_it_only_if_the_create_may_have_taken_effect() -> None:
    create = replace(export(set_to("a"), kind=ExportKind.CREATE), state=ExportState.EXECUTING)
    queued = replace(create, queued_changes=(QUEUED_DELETE,))
    assert record_refused(queued, "exists: no", NOW, foreign_anchor="other") is None
    assert record_missing_dependency(queued, "no", NOW) is None
    for found in (
        record_refused(replace(queued, uncertain=True), "exists: no", NOW, foreign_anchor="other"),
        record_refused(queued, "no", NOW, foreign_anchor="other", was_created=True),
    ):
        assert found is not None
        assert (found.kind, found.foreign_anchor) == (ExportKind.DELETE, "other")
        assert [is_foreign(found, anchor) for anchor in (None, "other", "own")] == [True, True, False]
    refused = record_refused(replace(create, uncertain=True), "no", NOW)
    assert refused is not None
    assert refused.uncertain
    exported = record_exported(replace(create, foreign_anchor="other"))
    assert exported is not None
    assert exported.foreign_anchor is None


def test_delete_queued_during_the_export_follows_it() -> None:
    executing = replace(export(set_to("a")), state=ExportState.EXECUTING, queued_changes=(QUEUED_DELETE,))
    for found in (
        record_exported(executing),
        record_refused(executing, "no", NOW),
        record_missing_dependency(executing, "no", NOW),
    ):
        assert found is not None
        assert (found.kind, found.state, found.changes) == (ExportKind.DELETE, ExportState.PENDING, ())
