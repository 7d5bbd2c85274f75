"""Outbound staging: provision, join, update, deprovision, withdraw, and drift."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto_identity.model.objects import ConnectorObject, JoinKind, MetaverseObject, ObjectState, Reference
from tenuto_identity.model.rules.expressions import compile_expression
from tenuto_identity.model.rules.sync_rules import AttributeMapping, Direction, MatchRule, OutOfScope, SyncRule
from tenuto_identity.model.rules.variables import metaverse_kinds
from tenuto_identity.model.schema import Attribute, MetaverseType, ObjectType, Writable
from tenuto_identity.model.sync.decision_trace import Trace
from tenuto_identity.model.sync.engine import TargetValues, apply_pending, imported_values, reconcile
from tenuto_identity.model.sync.outbound import (
    DesiredObject,
    StageAction,
    StagedExport,
    Target,
    compute_changes,
    expected_values,
    stage_exports,
)
from tenuto_identity.model.sync.pending_exports import (
    QUEUED_DELETE,
    Change,
    ChangeOp,
    ChangeState,
    ExportKind,
    ExportState,
    PendingExport,
    is_delete_queued,
    record_exported,
)
from tenuto_identity.model.values import DataType, Equality, EqualityKind
from tests.identity.model.strategies import (
    EVERY_TYPE,
    NOW,
    attributes_of_every_type,
    connector_object,
    documents,
    reference_sets,
)

USER = ObjectType(
    "user",
    "guid",
    {
        "guid": Attribute("guid", DataType.GUID, writable=Writable.NO),
        "sn": Attribute("sn"),
        "title": Attribute("title"),
        "phones": Attribute("phones", multi=True),
        "manager": Attribute("manager", DataType.REFERENCE, to="user"),
        "members": Attribute("members", DataType.REFERENCE, multi=True, to="user"),
        "control": Attribute("control", DataType.INTEGER, equality=Equality(EqualityKind.MASK, bits=2)),
        "pin": Attribute("pin", equality=Equality(EqualityKind.WRITE_ONLY)),
        "created": Attribute("created", writable=Writable.ON_CREATE),
    },
    address_is_dn=True,
)
PERSON = MetaverseType(
    "person",
    {
        **{name: Attribute(name) for name in ("last", "title", "department", "pin")},
        "phones": Attribute("phones", multi=True),
        "control": Attribute("control", DataType.INTEGER),
        "manager": Attribute("manager", DataType.REFERENCE, to="person"),
        "members": Attribute("members", DataType.REFERENCE, multi=True, to="person"),
    },
)
KINDS = metaverse_kinds(PERSON)
ADDRESS = AttributeMapping("address", value=compile_expression('dn("cn", last, "ou", department, "dc=test")', KINDS))
MAPPINGS = (
    AttributeMapping("sn", "last"),
    AttributeMapping("title", "title"),
    AttributeMapping("phones", "phones"),
    AttributeMapping("manager", "manager"),
    AttributeMapping("members", "members"),
    ADDRESS,
)
ADA = MetaverseObject(
    1, "person", {"last": ["Lovelace"], "title": ["Director"], "department": ["Research"], "phones": ["1", "2"]}
)
ENTRY = ConnectorObject(
    7,
    "AD",
    "user",
    "g7",
    "cn=Lovelace,ou=Research,dc=test",
    {"sn": ["Lovelace"], "title": ["Director"], "phones": ["1", "2"]},
    metaverse_id=1,
    join_kind=JoinKind.PROVISIONED,
)


def rule(*mappings: AttributeMapping, **options: Any) -> SyncRule:
    options.setdefault("provision", True)
    options.setdefault("on_out_of_scope", OutOfScope.DELETE)
    scope = options.pop("scope", None)
    return SyncRule(
        options.pop("number", 1),
        "AD out",
        Direction.OUT,
        "AD",
        "user",
        "person",
        scope=compile_expression(scope, KINDS) if scope else None,
        mappings=mappings or MAPPINGS,
        **options,
    )


def stage(
    metaverse: MetaverseObject = ADA,
    target: ConnectorObject | None = None,
    pending: PendingExport | None = None,
    *rules: SyncRule,
    **options: Any,
) -> StagedExport:
    unjoined = options.pop("unjoined", {})
    objects = options.pop("unjoined_objects", {})
    found = Target("AD", rules or (rule(),), {"user": USER}, target, pending, unjoined, objects)
    return stage_exports(metaverse, PERSON, found, NOW, **options)


def with_values(metaverse: MetaverseObject, **values: Any) -> MetaverseObject:
    attributes = {**metaverse.attributes, **{name: [value] for name, value in values.items() if value is not None}}
    for name in [name for name, value in values.items() if value is None]:
        attributes.pop(name, None)
    return replace(metaverse, attributes=attributes)


def ops(staged: StagedExport) -> list[tuple[str, str, tuple[Any, ...]]]:
    return [(each.attribute, each.op.value, each.values or each.references) for each in staged.changes]


# --- provisioning ---------------------------------------------------------------------------------------------------


def test_metaverse_object_without_an_object_is_provisioned_with_all_mapped_attributes() -> None:
    found = stage()
    assert found.action is StageAction.PROVISION
    assert found.address == "cn=Lovelace,ou=Research,dc=test"
    assert found.pending is not None
    assert found.pending.kind is ExportKind.CREATE
    assert ops(found) == [
        ("sn", "set", ("Lovelace",)),
        ("title", "set", ("Director",)),
        ("phones", "set", ("1", "2")),
    ]


def test_nothing_is_provisioned_without_provision_scope_or_address() -> None:
    assert stage(ADA, None, None, rule(provision=False)).action is StageAction.NOTHING
    assert stage(ADA, None, None, rule(scope='department == "Sales"')).action is StageAction.NOTHING
    homeless = stage(with_values(ADA, department=None))
    assert homeless.action is StageAction.NOTHING
    assert any(note.is_error for note in homeless.notes)


def test_existing_object_that_matches_is_joined_and_updated_instead_of_created() -> None:
    foreign = replace(ENTRY, metaverse_id=None, join_kind=None, attributes={"sn": ["LOVELACE"], "title": ["Director"]})
    matching = rule(match=(MatchRule("last", object="sn"),))
    found = stage(
        ADA, None, None, matching, unjoined={("last", "lovelace"): [(7, "LOVELACE")]}, unjoined_objects={7: foreign}
    )
    assert found.action is StageAction.JOIN
    assert found.object_id == 7
    assert ops(found) == [("sn", "set", ("Lovelace",)), ("phones", "add", ("1", "2"))]
    several = stage(ADA, None, None, matching, unjoined={("last", "lovelace"): [(7, "x"), (8, "y")]})
    assert several.action is StageAction.NOTHING
    assert several.error == "ambiguous_match"


# --- updates --------------------------------------------------------------------------------------------------------


def test_equal_values_stage_nothing() -> None:
    found = stage(ADA, ENTRY, before=ADA)
    assert found.action is StageAction.NOTHING
    assert not found.writes


def test_changed_attribute_is_the_only_change() -> None:
    found = stage(with_values(ADA, title="Admiral"), ENTRY, before=ADA)
    assert found.action is StageAction.UPDATE
    assert ops(found) == [("title", "set", ("Admiral",))]
    assert not found.drift.corrections


def test_cleared_attribute_is_cleared_and_multi_values_change_one_by_one() -> None:
    assert ops(stage(with_values(ADA, title=None), ENTRY, before=ADA)) == [("title", "clear", ())]
    changed = replace(ADA, attributes={**ADA.attributes, "phones": ["2", "3"]})
    assert ops(stage(changed, ENTRY, before=ADA)) == [("phones", "remove", ("1",)), ("phones", "add", ("3",))]


def test_moved_object_is_renamed() -> None:
    found = stage(with_values(ADA, department="Engineering"), ENTRY, before=ADA)
    assert ops(found) == [("address", "rename", ("cn=Lovelace,ou=Engineering,dc=test",))]


def test_references_are_compared_by_metaverse_id() -> None:
    entry = replace(ENTRY, references={"members": (Reference("cn=a", 11, 21), Reference("cn=foreign", None, None))})
    found = stage(replace(ADA, references={"members": frozenset({22}), "manager": frozenset({5})}), entry, before=ADA)
    assert ops(found) == [("manager", "set", (5,)), ("members", "remove", (21,)), ("members", "add", (22,))]


def test_change_that_was_sent_is_expected_and_not_sent_again() -> None:
    changed = with_values(ADA, title="Admiral")
    pending = stage(changed, ENTRY, before=ADA).pending
    assert pending is not None
    sent = record_exported(pending)
    assert stage(changed, ENTRY, sent, before=changed).action is StageAction.NOTHING
    back = stage(ADA, ENTRY, sent, before=changed)
    assert ops(back) == [("title", "set", ("Director",))]


def test_unconfirmed_change_is_kept_with_its_attempts() -> None:
    changed = with_values(ADA, title="Admiral")
    old = Change("title", ChangeOp.SET, ("Admiral",), state=ChangeState.UNCONFIRMED, attempts=3)
    pending = PendingExport(7, "AD", 1, ExportKind.UPDATE, (old,), state=ExportState.UNCONFIRMED)
    found = stage(changed, ENTRY, pending, before=changed)
    assert found.action is StageAction.NOTHING
    assert found.pending == pending


def test_change_that_is_not_needed_any_more_is_withdrawn() -> None:
    pending = PendingExport(7, "AD", 1, ExportKind.UPDATE, (Change("title", ChangeOp.SET, ("Admiral",)),))
    found = stage(ADA, ENTRY, pending, before=with_values(ADA, title="Admiral"))
    assert found.action is StageAction.WITHDRAW
    assert found.pending is None


def test_changes_during_an_export_are_queued() -> None:
    executing = PendingExport(
        7, "AD", 1, ExportKind.UPDATE, (Change("title", ChangeOp.SET, ("Admiral",)),), state=ExportState.EXECUTING
    )
    found = stage(ADA, ENTRY, executing, before=with_values(ADA, title="Admiral"))
    assert found.pending is not None
    assert found.pending.changes == executing.changes
    assert [(each.attribute, each.values) for each in found.pending.queued_changes] == [("title", ("Director",))]


def test_pending_create_is_evaluated_again_as_a_create() -> None:
    create = stage().pending
    assert create is not None
    create = replace(create, object_id=7, attempts=2)
    provisioning = replace(ENTRY, state=ObjectState.PROVISIONING, anchor=None, attributes={}, address="cn=x")
    assert stage(ADA, provisioning, create, before=ADA).action is StageAction.NOTHING
    found = stage(with_values(ADA, title="Admiral"), provisioning, create, before=ADA)
    assert found.pending is not None
    assert found.pending.kind is ExportKind.CREATE
    assert {each.attribute: each.values for each in found.pending.changes}["title"] == ("Admiral",)
    assert found.pending.attempts == 0


def test_only_on_create_and_read_only_attributes_are_not_updated() -> None:
    mappings = (
        AttributeMapping("created", "title"),
        AttributeMapping("sn", "last", only_on_create=True),
        ADDRESS,
    )
    assert [each.attribute for each in stage(ADA, None, None, rule(*mappings)).changes] == ["created", "sn"]
    changed = with_values(ADA, title="x", last="Lovelace")
    assert (
        stage(changed, replace(ENTRY, attributes={}), None, rule(*mappings), before=ADA).action is StageAction.NOTHING
    )


def test_failed_mapping_leaves_the_attribute_and_its_pending_change_alone() -> None:
    broken = AttributeMapping("title", value=compile_expression("last - 1", KINDS))
    pending = PendingExport(7, "AD", 1, ExportKind.UPDATE, (Change("title", ChangeOp.SET, ("Admiral",)),))
    found = stage(ADA, ENTRY, pending, rule(broken), before=ADA)
    assert found.action is StageAction.NOTHING
    assert found.pending == pending
    assert found.notes[0].is_error


def test_failed_scope_changes_nothing() -> None:
    found = stage(ADA, ENTRY, None, rule(scope="last - 1 > 0"), before=ADA)
    assert found.action is StageAction.NOTHING
    assert found.notes[0].is_error


# --- drift ----------------------------------------------------------------------------------------------------------


def test_drift_is_corrected_if_the_rule_enforces_the_attribute() -> None:
    edited = replace(ENTRY, attributes={**ENTRY.attributes, "title": ["Hacker"]})
    found = stage(ADA, edited, before=ADA)
    assert [each.attribute for each in found.drift.corrections] == ["title"]
    assert ops(found) == [("title", "set", ("Director",))]


def test_drift_that_is_not_enforced_is_reported_once() -> None:
    edited = replace(ENTRY, attributes={**ENTRY.attributes, "title": ["Hacker"]})
    loose = rule(AttributeMapping("title", "title", enforce=False))
    found = stage(ADA, edited, None, loose, before=ADA)
    assert found.action is StageAction.NOTHING
    assert found.writes
    assert [each.attribute for each in found.drift.reported] == ["title"]
    again = stage(ADA, replace(edited, drift_reported=found.drift.unenforced), None, loose, before=ADA)
    assert not again.writes
    changed = stage(with_values(ADA, title="Admiral"), edited, None, loose, before=ADA)
    assert ops(changed) == [("title", "set", ("Admiral",))]
    rule_changed = stage(ADA, edited, None, loose, before=ADA, all_changed=True)
    assert ops(rule_changed) == [("title", "set", ("Director",))]


def test_value_that_the_target_contributes_is_not_drift() -> None:
    edited = replace(ENTRY, attributes={**ENTRY.attributes, "title": ["Hacker"]})
    own = replace(ADA, provenance={"title": (3, 7)})
    assert stage(own, edited, before=own).action is StageAction.NOTHING


def test_bits_outside_of_the_mask_are_not_drift() -> None:
    metaverse = replace(ADA, attributes={**ADA.attributes, "control": [514]})
    entry = replace(ENTRY, attributes={**ENTRY.attributes, "control": [546]})
    mapped = rule(AttributeMapping("control", "control"))
    assert stage(metaverse, entry, None, mapped, before=metaverse).action is StageAction.NOTHING
    enabled = replace(metaverse, attributes={**ADA.attributes, "control": [512]})
    assert ops(stage(enabled, entry, None, mapped, before=metaverse)) == [("control", "set", (512,))]


def test_write_only_attribute_is_sent_only_when_it_changes() -> None:
    metaverse = with_values(ADA, pin="1234")
    mapped = rule(AttributeMapping("pin", "pin"))
    assert stage(metaverse, ENTRY, None, mapped, before=metaverse).action is StageAction.NOTHING
    assert ops(stage(metaverse, ENTRY, None, mapped, before=ADA)) == [("pin", "set", ("1234",))]


# --- deprovisioning -------------------------------------------------------------------------------------------------

OUT = 'department != "Research"'


def test_object_that_leaves_the_scope_is_deleted_if_tenuto_provisioned_it() -> None:
    found = stage(ADA, ENTRY, None, rule(scope=OUT), before=ADA)
    assert found.action is StageAction.DELETE
    assert found.pending is not None
    assert found.pending.kind is ExportKind.DELETE
    again = stage(ADA, ENTRY, found.pending, rule(scope=OUT), before=ADA)
    assert again.action is StageAction.NOTHING


def test_object_that_tenuto_did_not_provision_is_never_deleted() -> None:
    joined = replace(ENTRY, join_kind=JoinKind.JOINED)
    assert stage(ADA, joined, None, rule(scope=OUT), before=ADA).action is StageAction.DISCONNECT
    assert stage(ADA, joined, None, is_deleted=True).action is StageAction.DISCONNECT
    assert stage(ADA, joined, None, rule(scope=OUT, owned=True), before=ADA).action is StageAction.DELETE


@pytest.mark.parametrize(
    ("action", "expected", "when_deleted"),
    [
        (OutOfScope.REMAIN, StageAction.NOTHING, StageAction.DISCONNECT),
        (OutOfScope.DISCONNECT, StageAction.DISCONNECT, StageAction.DISCONNECT),
        (OutOfScope.DELETE, StageAction.DELETE, StageAction.DELETE),
    ],
)
def test_out_of_scope_action_decides(action: OutOfScope, expected: StageAction, when_deleted: StageAction) -> None:
    found = rule(scope=OUT, on_out_of_scope=action)
    assert stage(ADA, ENTRY, None, found, before=ADA).action is expected
    assert stage(ADA, ENTRY, None, found, is_deleted=True).action is when_deleted


def test_disable_sends_a_last_update_and_then_disconnects() -> None:
    disable = (AttributeMapping("title", value=compile_expression('"left"', KINDS)),)
    found = rule(scope=OUT, on_out_of_scope=OutOfScope.DISABLE, disable_mappings=disable)
    first = stage(ADA, ENTRY, None, found, before=ADA)
    assert first.action is StageAction.UPDATE
    assert ops(first) == [("title", "set", ("left",))]
    disabled = replace(ENTRY, attributes={**ENTRY.attributes, "title": ["left"]})
    assert stage(ADA, disabled, None, found, before=ADA).action is StageAction.DISCONNECT
    deleted = stage(ADA, ENTRY, None, found, is_deleted=True)
    assert deleted.action is StageAction.DISCONNECT
    assert deleted.pending is not None
    assert (first.pending is not None and first.pending.disables, deleted.pending.disables) == (True, True)
    back = stage(ADA, ENTRY, first.pending, rule(), before=ADA)
    assert back.pending is None or not back.pending.disables


def test_disable_of_an_object_whose_export_is_executing_is_queued() -> None:
    disable = (AttributeMapping("title", value=compile_expression('"left"', KINDS)),)
    found = rule(scope=OUT, on_out_of_scope=OutOfScope.DISABLE, disable_mappings=disable)
    sent = Change("mail", ChangeOp.SET, ("ada@example.org",))
    executing = PendingExport(7, "AD", 1, ExportKind.UPDATE, (sent,), state=ExportState.EXECUTING)
    staged = stage(ADA, ENTRY, executing, found, before=ADA).pending
    assert staged is not None
    assert (staged.state, staged.changes, staged.disables) == (ExportState.EXECUTING, (sent,), True)
    assert [change.attribute for change in staged.queued_changes] == ["title"]


def test_object_that_was_never_sent_is_removed_without_an_export() -> None:
    create = stage().pending
    assert create is not None
    provisioning = replace(ENTRY, state=ObjectState.PROVISIONING, anchor=None)
    found = stage(ADA, provisioning, create, rule(scope=OUT), before=ADA)
    assert found.action is StageAction.REMOVE
    assert found.pending is None
    uncertain = stage(ADA, provisioning, replace(create, uncertain=True), rule(scope=OUT), before=ADA)
    assert uncertain.action is StageAction.DELETE
    sent = record_exported(create)
    assert stage(ADA, provisioning, sent, rule(scope=OUT), before=ADA).action is StageAction.DELETE


def test_update_then_delete_is_a_delete_only() -> None:
    pending = PendingExport(7, "AD", 1, ExportKind.UPDATE, (Change("title", ChangeOp.SET, ("Admiral",)),))
    found = stage(ADA, ENTRY, pending, rule(scope=OUT), before=ADA)
    assert found.pending is not None
    assert (found.pending.kind, found.pending.changes) == (ExportKind.DELETE, ())


def test_delete_during_an_export_is_queued() -> None:
    executing = PendingExport(
        7, "AD", 1, ExportKind.UPDATE, (Change("title", ChangeOp.SET, ("Admiral",)),), state=ExportState.EXECUTING
    )
    found = stage(ADA, ENTRY, executing, rule(scope=OUT), before=ADA).pending
    assert found is not None
    assert is_delete_queued(found)
    assert found.queued_changes == (QUEUED_DELETE,)


def test_delete_is_withdrawn_if_the_object_is_back_in_scope_before_the_export() -> None:
    delete = PendingExport(7, "AD", 1, ExportKind.DELETE)
    found = stage(ADA, ENTRY, delete, before=ADA)
    assert found.action is StageAction.WITHDRAW
    assert found.pending is None
    sent = replace(delete, state=ExportState.EXPORTED)
    assert stage(ADA, ENTRY, sent, before=ADA).action is StageAction.NOTHING


def test_scheduled_deletion_can_move_an_object_out_of_scope() -> None:
    from datetime import timedelta

    leaving = replace(ADA, deletion_scheduled_at=NOW, delete_after=NOW + timedelta(days=30))
    found = rule(scope="not deletion_scheduled", on_out_of_scope=OutOfScope.DISCONNECT)
    assert stage(ADA, ENTRY, None, found, before=ADA).action is StageAction.NOTHING
    assert stage(leaving, ENTRY, None, found, before=ADA).action is StageAction.DISCONNECT


def test_source_system_without_out_rules_is_left_alone() -> None:
    target = Target("HR", (), {"user": USER}, replace(ENTRY, system="HR"))
    assert stage_exports(ADA, PERSON, target, NOW).action is StageAction.NOTHING


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "last": st.sampled_from([["Lovelace"], ["Byron"], []]),
            "title": st.sampled_from([["Director"], []]),
            "department": st.just(["Research"]),
            "phones": st.lists(st.sampled_from("123"), max_size=3, unique=True).map(sorted),
        },
    ),
    st.booleans(),
)
@settings(max_examples=60)
def test_desired_values_with_a_trace_equal_those_without_one(values: dict[str, Any], is_new: bool) -> None:
    """The general code records a trace; without one, single values are copied by a shorter path."""
    metaverse = MetaverseObject(1, "person", {name: found for name, found in values.items() if found})
    target = Target("AD", [rule(*MAPPINGS)], {"user": USER}, None if is_new else ENTRY)
    assert stage_exports(metaverse, PERSON, target, NOW) == stage_exports(metaverse, PERSON, target, NOW, trace=Trace())


def test_trace_shows_scope_desired_values_and_action() -> None:
    trace = Trace()
    stage(
        with_values(ADA, title="Admiral"), ENTRY, None, rule(scope='department == "Research"'), before=ADA, trace=trace
    )
    assert trace.find("scope")[0]["inputs"] == {"department": "Research"}
    assert {each["attribute"] for each in trace.find("desired")} >= {"title", "address"}
    assert trace.find("export")[0]["action"] == "update"


# --- properties -----------------------------------------------------------------------------------------------------

ALL_MAPPINGS = {name: AttributeMapping(name, name) for name in attributes_of_every_type()}


@given(documents(attributes_of_every_type()), reference_sets(), documents(attributes_of_every_type()), reference_sets())
@settings(max_examples=60)
def test_nothing_is_left_to_change_after_the_changes_are_applied(
    wanted: Any, references: Any, shown: Any, old: Any
) -> None:
    desired = DesiredObject(TargetValues(wanted, references), ALL_MAPPINGS)
    expected = imported_values(connector_object(shown, old))
    for creating in (False, True):
        start = TargetValues({}) if creating else expected
        changes = compute_changes(desired, start, EVERY_TYPE, creating=creating)
        assert not compute_changes(desired, apply_pending(start, changes, EVERY_TYPE), EVERY_TYPE)


@given(
    documents(attributes_of_every_type()),
    reference_sets(),
    documents(attributes_of_every_type()),
    reference_sets(),
    st.data(),
)
@settings(max_examples=60)
def test_target_that_stored_what_was_sent_leaves_nothing_pending(
    wanted: Any, references: Any, shown: Any, old: Any, data: st.DataObject
) -> None:
    before = connector_object(shown, old)
    desired = DesiredObject(TargetValues(wanted, references), ALL_MAPPINGS)
    changes = compute_changes(desired, imported_values(before), EVERY_TYPE)
    if not changes:
        return
    pending = record_exported(PendingExport(7, "T", 1, ExportKind.UPDATE, changes))
    assert pending is not None
    assert not compute_changes(desired, expected_values(before, pending, EVERY_TYPE), EVERY_TYPE)
    after = apply_pending(imported_values(before), changes, EVERY_TYPE)
    imported = connector_object(dict(after.attributes), dict(after.references))  # type: ignore[arg-type]
    assert reconcile(imported, pending, EVERY_TYPE).pending is None
