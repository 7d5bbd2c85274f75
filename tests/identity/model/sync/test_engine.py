"""The decisions of the engine: projection, flow, confirmation, deletion, reconciliation."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto_identity.model.objects import ConnectorObject, MetaverseObject, ObjectState, Origin, Reference
from tenuto_identity.model.rules.expressions import compile_expression
from tenuto_identity.model.rules.mapping_evaluation import NoteCode
from tenuto_identity.model.rules.sync_rules import (
    DEFAULT_CLEAN,
    AttributeMapping,
    Clean,
    Direction,
    MissingInput,
    OutOfScope,
    RuleSet,
    SyncRule,
    TextCase,
)
from tenuto_identity.model.rules.variables import object_kinds
from tenuto_identity.model.schema import (
    Attribute,
    DeletionRule,
    DeletionTrigger,
    MetaverseType,
    ObjectType,
)
from tenuto_identity.model.sync.decision_trace import Trace
from tenuto_identity.model.sync.engine import (
    DeleteAfter,
    DeleteNow,
    Keep,
    apply_pending,
    change_confirmed,
    confirm_at_sync,
    deletion_rule,
    imported_values,
    is_cancelled_by,
    out_of_scope_action,
    projection,
    reconcile,
    rules_in_scope,
)
from tenuto_identity.model.sync.inbound_flow import (
    Contribution,
    Flow,
    collect_contributions,
    inbound_flow,
    with_unique,
)
from tenuto_identity.model.sync.pending_exports import (
    Change,
    ChangeOp,
    ChangeState,
    ExportKind,
    ExportState,
    PendingExport,
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

PERSON = ObjectType(
    "person",
    "id",
    {
        "id": Attribute("id"),
        "first": Attribute("first"),
        "last": Attribute("last"),
        "phones": Attribute("phones", multi=True),
        "manager": Attribute("manager", DataType.REFERENCE, to="person"),
        "members": Attribute("members", DataType.REFERENCE, multi=True, to="person"),
        "size": Attribute("size", DataType.INTEGER),
    },
)
TYPE = MetaverseType(
    "person",
    {
        "first": Attribute("first"),
        "last": Attribute("last"),
        "display": Attribute("display"),
        "login": Attribute("login"),
        "phone": Attribute("phone"),
        "phones": Attribute("phones", multi=True),
        "manager": Attribute("manager", DataType.REFERENCE, to="person"),
        "members": Attribute("members", DataType.REFERENCE, multi=True, to="person"),
        "size": Attribute("size", DataType.TEXT),
    },
)


def mapping(to: str, source: str | None = None, value: str | None = None, **options: Any) -> AttributeMapping:
    expression = compile_expression(value, {**object_kinds(PERSON), "value": Any}) if value else None  # type: ignore[dict-item]
    return AttributeMapping(to, None if value else source or to, expression, **options)


def rule(number: int, *mappings: AttributeMapping, system: str = "HR", **options: Any) -> SyncRule:
    options.setdefault("direction", Direction.IN)
    return SyncRule(
        number,
        f"rule {number}",
        system=system,
        object_type="person",
        metaverse_type="person",
        mappings=mappings,
        **options,
    )


def person(number: int = 1, system: str = "HR", **values: Any) -> ConnectorObject:
    references = values.pop("references", {})
    state = values.pop("state", ObjectState.NORMAL)
    attributes = {name: value if isinstance(value, list) else [value] for name, value in values.items()}
    return ConnectorObject(
        number, system, "person", f"a{number}", attributes=attributes, references=references, state=state
    )


def flow(
    contributions: list[tuple[SyncRule, ConnectorObject]],
    current: MetaverseObject | None = None,
    trace: Trace | None = None,
) -> Flow:
    return inbound_flow(TYPE, current, [Contribution(*each, PERSON) for each in contributions], NOW, trace=trace)


def stored(found: Flow, identity: int = 1, **more: Any) -> MetaverseObject:
    return MetaverseObject(identity, "person", found.values, found.references, found.provenance, **more)


# --- projection -----------------------------------------------------------------------------------------------------


def test_first_rule_in_scope_that_projects_decides() -> None:
    rules = [rule(1), rule(2, project=True), rule(3, project=True)]
    found = projection(person(), rules)
    assert found is not None
    assert found.rule.number == 2
    assert projection(person(), [rule(1)]) is None
    assert projection(replace(person(), pinned=True), rules) is None
    assert projection(person(state=ObjectState.OBSOLETE), rules) is None


def test_only_imported_objects_are_in_scope_of_in_rules() -> None:
    scope = compile_expression('first != "Temp"', object_kinds(PERSON))
    rules = RuleSet(
        (rule(1, scope=scope), rule(2), rule(3, enabled=False)), {"person": TYPE}, {("HR", "person"): PERSON}
    )
    assert [each.number for each in rules_in_scope(person(first="Ada"), rules, NOW).rules] == [1, 2]
    assert [each.number for each in rules_in_scope(person(first="Temp"), rules, NOW).rules] == [2]
    assert [each.number for each in rules_in_scope(person(), rules, NOW).rules] == [2]
    assert not rules_in_scope(person(state=ObjectState.PROVISIONING), rules, NOW).rules
    contributions, _ = collect_contributions(
        "person", [person(first="Ada"), person(2, state=ObjectState.OBSOLETE)], rules, NOW
    )
    assert [(each.rule.number, each.object.id) for each in contributions] == [(1, 1), (2, 1)]


def test_scope_that_fails_is_reported_and_not_in_scope() -> None:
    scope = compile_expression("first - 1 > 0", object_kinds(PERSON))
    rules = RuleSet((rule(1, scope=scope),), {"person": TYPE}, {("HR", "person"): PERSON})
    found = rules_in_scope(person(first="Ada"), rules, NOW)
    assert not found.rules
    assert found.notes[0].is_error


# --- inbound flow ---------------------------------------------------------------------------------------------------


def test_flow_copies_computes_and_records_provenance() -> None:
    found = flow(
        [(rule(4, mapping("first"), mapping("display", value='first + " " + last')), person(9, first="Ada", last="L"))]
    )
    assert found.values == {"first": ["Ada"], "display": ["Ada L"]}
    assert found.provenance == {"first": (4, 9), "display": (4, 9)}
    assert {change.attribute for change in found.changes} == {"first", "display"}


def test_winner_is_the_contribution_with_the_best_priority_that_has_a_value() -> None:
    hr = rule(1, mapping("phone", "phones", priority=1, first_sorted=True))
    book = rule(2, mapping("phone", "phones", priority=2, first_sorted=True), system="Book")
    both = [(hr, person(1, phones=["1"])), (book, person(2, "Book", phones=["2"]))]
    assert flow(both).values["phone"] == ["1"]
    without = [(hr, person(1)), (book, person(2, "Book", phones=["2"]))]
    assert flow(without).values["phone"] == ["2"]
    strict = rule(1, mapping("phone", "phones", priority=1, null_is_value=True))
    cleared = flow([(strict, person(1)), (book, person(2, "Book", phones=["2"]))], stored(flow(both)))
    assert "phone" not in cleared.values
    assert [change.attribute for change in cleared.changes] == ["phone"]


def test_rule_number_and_object_id_decide_between_equal_priorities() -> None:
    first, second = rule(1, mapping("first")), rule(2, mapping("first"))
    assert flow([(second, person(1, first="b")), (first, person(2, first="a"))]).values["first"] == ["a"]
    assert flow([(first, person(2, first="b")), (first, person(1, first="a"))]).values["first"] == ["a"]


def test_recalled_contribution_clears_or_passes_to_the_next() -> None:
    hr, book = rule(1, mapping("first")), rule(2, mapping("first"), system="Book")
    both = flow([(hr, person(1, first="a")), (book, person(2, "Book", first="b"))])
    after = flow([(book, person(2, "Book", first="b"))], stored(both))
    assert after.values["first"] == ["b"]
    assert after.provenance["first"] == (2, 2)
    assert flow([], stored(both)).values == {}


def test_scheduled_deletion_freezes_values() -> None:
    before = stored(flow([(rule(1, mapping("first")), person(first="a"))]), deletion_scheduled_at=NOW)
    after = flow([], before)
    assert after.values == before.attributes
    assert not after.changes


def test_values_of_a_template_stay_without_contributions() -> None:
    before = MetaverseObject(1, "person", {"first": ["a"], "last": ["b"]}, origin=Origin.INTERNAL)
    after = flow([(rule(1, mapping("last")), person(last="c"))], before)
    assert after.values == {"first": ["a"], "last": ["c"]}


def test_several_values_for_a_single_valued_attribute_keep_the_old_value() -> None:
    before = MetaverseObject(1, "person", {"phone": ["0"]}, provenance={"phone": (1, 1)})
    found = flow([(rule(1, mapping("phone", "phones")), person(phones=["1", "2"]))], before)
    assert found.values["phone"] == ["0"]
    assert [note.code for note in found.errors] == [NoteCode.SEVERAL_VALUES]
    taken = flow([(rule(1, mapping("phone", "phones", first_sorted=True)), person(phones=["1", "2"]))], before)
    assert taken.values["phone"] == ["1"]


def test_failed_expression_keeps_the_old_value_and_names_rule_expression_and_inputs() -> None:
    before = MetaverseObject(1, "person", {"display": ["old"]}, provenance={"display": (1, 1)})
    found = flow(
        [(rule(1, mapping("display", value="first - 1"), mapping("last")), person(first="Ada", last="L"))], before
    )
    assert found.values == {"display": ["old"], "last": ["L"]}
    (note,) = found.errors
    assert note.code is NoteCode.EXPRESSION_FAILED
    for part in ("rule 1", "display", "first - 1", "Ada"):
        assert part in note.message


def test_missing_input_gives_no_value_with_a_note_or_an_error() -> None:
    found = flow([(rule(1, mapping("display", value='first + " " + last')), person(first="Ada"))])
    assert "display" not in found.values
    assert [note.code for note in found.notes] == [NoteCode.MISSING_INPUT]
    assert not found.errors
    strict = mapping("display", value='first + " " + last', missing=MissingInput.ERROR)
    assert flow([(rule(1, strict), person(first="Ada"))]).errors


def test_text_is_cleaned_on_the_way_in() -> None:
    cases = {
        " Ada \u00a0": (Clean(), "Ada"),
        "  ": (Clean(), None),
        "a   b": (Clean(collapse=True), "a b"),
        "ada": (Clean(case=TextCase.UPPER), "ADA"),
        " x ": (Clean(trim=False), " x "),
    }
    for text, (clean, expected) in cases.items():
        found = flow([(rule(1, mapping("first", clean=clean)), person(first=text))])
        assert found.values.get("first") == ([expected] if expected is not None else None)


@given(
    st.text(st.sampled_from(" ab\u00a0é"), max_size=6),
    st.booleans(),
    st.builds(Clean, st.booleans(), st.booleans(), st.none(), st.booleans()),
)
@settings(max_examples=100)
def test_copy_of_one_value_equals_the_general_code(text: str, is_default: bool, clean: Clean) -> None:
    """A second mapping converts through an expression, which never takes the short path."""
    chosen = DEFAULT_CLEAN if is_default else clean
    source = person(first=text) if text else person()
    copied = flow([(rule(1, mapping("first", clean=chosen)), source)])
    computed = flow([(rule(1, mapping("first", value="first", clean=chosen)), source)])
    assert copied.values == computed.values


@given(
    st.lists(
        st.tuples(
            st.sampled_from([mapping("first"), mapping("phones"), mapping("phone", "phones"), mapping("size"),
                             mapping("last", clean=Clean(collapse=True)), mapping("last", "first", null_is_value=True),
                             mapping("display", value='first + " " + last'), mapping("login", value="unique(first)")]),
            st.integers(1, 3),
            st.fixed_dictionaries({}, optional={
                "first": st.sampled_from(["Ada", " Ada ", " "]), "last": st.sampled_from(["a  b", "B"]),
                "phones": st.lists(st.sampled_from(["1", "2"]), max_size=2, unique=True).map(sorted),
                "size": st.integers(0, 3),
            }),
        ),
        max_size=5,
    )
)  # fmt: skip
@settings(max_examples=100)
def test_flow_with_a_trace_equals_the_flow_without_one(
    given_mappings: list[tuple[AttributeMapping, int, dict[str, Any]]],
) -> None:
    """The general code records a trace; without one, single values are copied by a shorter path."""
    contributions = [
        Contribution(rule(number, replace(each, priority=number)), replace(person(**values), id=place), PERSON)
        for place, (each, number, values) in enumerate(given_mappings, 1)
    ]
    for _ in range(2):  # the second time with the plan of the first
        assert inbound_flow(TYPE, None, contributions, NOW) == inbound_flow(
            TYPE, None, contributions, NOW, trace=Trace()
        )


def test_for_each_evaluates_once_per_value() -> None:
    expression = compile_expression(
        'replace(value, " ", "")', {**object_kinds(PERSON), "value": object_kinds(PERSON)["first"]}
    )
    each = AttributeMapping("phones", value=expression, for_each="phones")
    found = flow([(rule(1, each), person(phones=["+44 1", "+44 2"]))])
    assert found.values["phones"] == ["+441", "+442"]


def test_types_are_converted_by_a_mapping() -> None:
    assert flow([(rule(1, mapping("size")), person(size=9007199254740993))]).values["size"] == ["9007199254740993"]


def test_unique_value_is_chosen_once_and_kept() -> None:
    unique = rule(1, mapping("login", value="unique(lower(first))"))
    found = flow([(unique, person(first="Ada"))])
    assert "login" not in found.values
    assert found.unique["login"].bases.candidates()[:2] == ["ada", "ada2"]
    chosen = with_unique(found, "login", "ada2", TYPE)
    assert chosen.values["login"] == ["ada2"]
    assert not chosen.unique
    renamed = flow([(unique, person(first="Augusta"))], stored(chosen))
    assert renamed.values["login"] == ["ada2"]
    assert not renamed.changes
    assert flow([(unique, person())], stored(chosen)).values == {}


def reference(raw: str, metaverse_id: int | None) -> Reference:
    return Reference(raw, metaverse_id and metaverse_id + 100, metaverse_id)


def test_references_flow_as_metaverse_ids() -> None:
    refs = {"manager": (reference("x", 5),), "members": (reference("y", 6), reference("z", 7))}
    found = flow([(rule(1, mapping("manager"), mapping("members")), person(references=refs))])
    assert found.references == {"manager": frozenset({5}), "members": frozenset({6, 7})}


def test_unresolved_references_hold_back_removals() -> None:
    members = rule(1, mapping("members"), mapping("manager"))
    before = stored(
        flow(
            [
                (
                    members,
                    person(
                        references={"members": (reference("a", 6), reference("b", 7)), "manager": (reference("m", 5),)}
                    ),
                )
            ]
        )
    )
    waiting = {"members": (reference("a", 6), reference("c", None)), "manager": (reference("n", None),)}
    found = flow([(members, person(references=waiting))], before)
    assert found.references == {"members": frozenset({6, 7}), "manager": frozenset({5})}
    assert [note.code for note in found.notes] == [NoteCode.UNRESOLVED_REFERENCE] * 2
    assert not found.errors
    resolved = {"members": (reference("a", 6), reference("c", 8)), "manager": (reference("n", 9),)}
    assert flow([(members, person(references=resolved))], before).references == {
        "members": frozenset({6, 8}),
        "manager": frozenset({9}),
    }


contributions_strategy = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(1, 4),
        st.sampled_from([1, 1, 5, 100]),
        st.booleans(),
        st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    ),
    max_size=5,
    unique_by=lambda each: (each[0], each[1]),
)


Parts = list[tuple[int, int, int, bool, list[str]]]


def build(parts: Parts) -> list[tuple[SyncRule, ConnectorObject]]:
    return [
        (
            rule(
                number,
                mapping("phones", priority=priority, null_is_value=null),
                mapping("display", value='first(phones) + "!"'),
            ),
            person(identity, phones=values) if values else person(identity),
        )
        for number, identity, priority, null, values in parts
    ]


@given(contributions_strategy)
@settings(max_examples=60)
def test_order_of_contributions_does_not_matter(parts: Parts) -> None:
    found = [flow(build(list(order))) for order in list(permutations(parts))[:12]]
    assert all(each.values == found[0].values and each.provenance == found[0].provenance for each in found)


@given(contributions_strategy, contributions_strategy)
@settings(max_examples=60)
def test_flow_twice_equals_flow_once(parts: Parts, earlier: Parts) -> None:
    before = stored(flow(build(earlier)))
    once = flow(build(parts), before)
    twice = flow(build(parts), stored(once))
    assert twice.values == once.values
    assert twice.references == once.references
    assert not twice.changes
    assert flow(build(parts)).values == once.values


def test_trace_records_contributions_and_winner() -> None:
    trace = Trace()
    flow(
        [
            (rule(1, mapping("first", priority=1)), person(1)),
            (
                rule(2, mapping("first", priority=2), mapping("display", value="first + last")),
                person(2, first="x", last="y"),
            ),
        ],
        trace=trace,
    )
    assert [each["rule"] for each in trace.find("contribution") if each["attribute"] == "first"] == ["rule 1", "rule 2"]
    assert next(each for each in trace.find("winner") if each["attribute"] == "first")["rule"] == "rule 2"
    computed = next(each for each in trace.find("contribution") if each["attribute"] == "display")
    assert computed["inputs"] == {"first": "x", "last": "y"}
    assert computed["values"] == ["xy"]


# --- deletion -------------------------------------------------------------------------------------------------------

GRACE = timedelta(days=30)


def metaverse_type(
    trigger: DeletionTrigger, *sources: str, all_sources: bool = False, grace: timedelta | None = None
) -> MetaverseType:
    return MetaverseType("person", TYPE.attributes, DeletionRule(trigger, frozenset(sources), all_sources, grace))


@pytest.mark.parametrize(
    ("found", "disconnected", "remaining", "expected"),
    [
        (metaverse_type(DeletionTrigger.NEVER), "HR", [], Keep),
        (metaverse_type(DeletionTrigger.LAST_CONNECTOR), "HR", ["AD"], Keep),
        (metaverse_type(DeletionTrigger.LAST_CONNECTOR), "HR", [], DeleteNow),
        (metaverse_type(DeletionTrigger.LAST_CONNECTOR, grace=GRACE), "HR", [], DeleteAfter),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR"), "HR", ["AD"], DeleteNow),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR"), "AD", [], Keep),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR", "SAP"), "HR", ["SAP"], DeleteNow),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR", "SAP", all_sources=True), "HR", ["SAP"], Keep),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR", "SAP", all_sources=True), "HR", ["AD"], DeleteNow),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR", grace=GRACE), "HR", [], DeleteAfter),
    ],
)
def test_deletion_rule_decides_by_trigger(
    found: MetaverseType, disconnected: str, remaining: list[str], expected: type
) -> None:
    assert isinstance(deletion_rule(found, Origin.PROJECTED, disconnected, remaining), expected)
    assert isinstance(deletion_rule(found, Origin.INTERNAL, disconnected, remaining), Keep)


@pytest.mark.parametrize(
    ("found", "scheduled_by", "joined", "expected"),
    [
        (metaverse_type(DeletionTrigger.LAST_CONNECTOR, grace=GRACE), "HR", "AD", True),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR", grace=GRACE), "HR", "HR", True),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR", grace=GRACE), "HR", "AD", False),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR", "SAP", grace=GRACE), "HR", "SAP", False),
        (metaverse_type(DeletionTrigger.AUTHORITATIVE_SOURCE, "HR", "SAP", all_sources=True), "HR", "SAP", True),
    ],
)
def test_return_that_reverses_the_trigger_cancels_a_deletion(
    found: MetaverseType, scheduled_by: str, joined: str, expected: bool
) -> None:
    current = MetaverseObject(1, "person", deletion_scheduled_at=NOW, deletion_system=scheduled_by)
    assert is_cancelled_by(found, current, joined) is expected
    assert not is_cancelled_by(found, MetaverseObject(1, "person"), joined)


def test_first_rule_of_the_type_says_what_happens_out_of_scope() -> None:
    rules = [
        rule(1, system="Other", on_out_of_scope=OutOfScope.REMAIN),
        rule(2, enabled=False, on_out_of_scope=OutOfScope.REMAIN),
        rule(3, on_out_of_scope=OutOfScope.REMAIN),
    ]
    assert out_of_scope_action(person(), rules) is OutOfScope.REMAIN
    assert out_of_scope_action(person(), rules[:2]) is OutOfScope.DISCONNECT


# --- changes, confirmation and reconciliation -----------------------------------------------------------------------


def pending(*changes: Change, **options: Any) -> PendingExport:
    options.setdefault("state", ExportState.EXPORTED)
    return PendingExport(7, "T", 1, options.pop("kind", ExportKind.UPDATE), changes, **options)


def sent(attribute: str, op: ChangeOp, *values: Any, **options: Any) -> Change:
    options.setdefault("state", ChangeState.EXPORTED)
    return Change(attribute, op, values, **options)


def thing(**attributes: list[Any]) -> ConnectorObject:
    return connector_object(attributes, {})


@pytest.mark.parametrize(
    ("change", "shown", "confirmed"),
    [
        (sent("text_one", ChangeOp.SET, "a"), ["a"], True),
        (sent("text_one", ChangeOp.SET, "a"), ["b"], False),
        (sent("text_one", ChangeOp.SET, "a"), [], False),
        (sent("text_one", ChangeOp.CLEAR), [], True),
        (sent("text_one", ChangeOp.CLEAR), ["a"], False),
        (sent("text_many", ChangeOp.ADD, "a"), ["a", "b"], True),
        (sent("text_many", ChangeOp.ADD, "a", "c"), ["a", "b"], False),
        (sent("text_many", ChangeOp.REMOVE, "a"), ["b"], True),
        (sent("text_many", ChangeOp.REMOVE, "a"), ["a", "b"], False),
        (sent("text_many", ChangeOp.SET, "a"), ["a", "b"], False),
        (sent("text_many", ChangeOp.SET, "a", owned=False), ["a", "b"], True),
        (sent("text_one", ChangeOp.SET, "a", owned=False), ["b"], False),
    ],
)
def test_change_is_confirmed_by_its_operation(change: Change, shown: list[str], confirmed: bool) -> None:
    found = thing(**({change.attribute: shown} if shown else {}))
    assert change_confirmed(found, change, EVERY_TYPE) is confirmed


def test_rename_is_confirmed_by_the_address() -> None:
    change = sent("address", ChangeOp.RENAME, "CN=Ada,OU=x")
    directory = replace(EVERY_TYPE, address_is_dn=True)
    assert change_confirmed(replace(thing(), address="cn=ada, ou=x"), change, directory)
    assert not change_confirmed(replace(thing(), address="cn=bob,ou=x"), change, directory)


def test_write_only_attribute_is_confirmed_by_the_write() -> None:
    attribute = Attribute("text_one", equality=Equality(EqualityKind.WRITE_ONLY))
    found = replace(EVERY_TYPE, attributes={**EVERY_TYPE.attributes, "text_one": attribute})
    assert change_confirmed(thing(), sent("text_one", ChangeOp.SET, "a"), found)


def test_reconcile_drops_confirmed_changes_and_keeps_sent_and_observed_values() -> None:
    found = reconcile(
        thing(text_one=["ADA"], text_many=["x"]),
        pending(sent("text_one", ChangeOp.SET, "ada"), sent("text_many", ChangeOp.ADD, "x")),
        EVERY_TYPE,
    )
    assert [change.attribute for change in found.confirmed] == ["text_many"]
    (rejected,) = found.unconfirmed
    assert (rejected.values, rejected.observed, rejected.attempts) == (("ada",), ("ADA",), 1)
    assert found.pending is not None
    assert found.pending.state is ExportState.UNCONFIRMED


def test_change_that_is_never_confirmed_fails_after_five_attempts() -> None:
    current: PendingExport | None = pending(
        sent("text_one", ChangeOp.SET, "a", state=ChangeState.PENDING), state=ExportState.PENDING
    )
    states = []
    for _ in range(5):
        assert current is not None
        assert current.state is not ExportState.FAILED
        exported = record_exported(current)
        assert exported is not None
        assert exported.state is ExportState.EXPORTED
        current = reconcile(thing(text_one=["b"]), exported, EVERY_TYPE).pending
        assert current is not None
        states.append(current.state)
    assert states == [ExportState.UNCONFIRMED] * 4 + [ExportState.FAILED]
    assert current is not None
    again = reconcile(thing(text_one=["b"]), current, EVERY_TYPE)
    assert again.pending == current
    assert reconcile(thing(text_one=["a"]), current, EVERY_TYPE).pending is None


def test_create_becomes_an_update_once_the_object_is_seen_and_is_repeated_if_it_is_not() -> None:
    create = record_exported(
        pending(
            sent("text_one", ChangeOp.SET, "a", state=ChangeState.PENDING),
            kind=ExportKind.CREATE,
            state=ExportState.EXECUTING,
        )
    )
    assert create is not None
    unseen = reconcile(None, create, EVERY_TYPE).pending
    assert unseen is not None
    assert (unseen.kind, unseen.state) == (ExportKind.CREATE, ExportState.UNCONFIRMED)
    other = reconcile(thing(text_one=["b"]), replace(create, kind=ExportKind.CREATE), EVERY_TYPE).pending
    assert other is not None
    assert other.kind is ExportKind.UPDATE
    assert reconcile(thing(text_one=["a"]), create, EVERY_TYPE).pending is None


def test_delete_is_confirmed_by_absence() -> None:
    delete = pending(kind=ExportKind.DELETE)
    assert reconcile(None, delete, EVERY_TYPE).pending is None
    current = delete
    for attempt in range(1, 6):
        found = reconcile(thing(), current, EVERY_TYPE).pending
        assert found is not None
        assert found.attempts == attempt
        assert found.state is (ExportState.FAILED if attempt == 5 else ExportState.UNCONFIRMED)
        current = replace(found, state=ExportState.EXPORTED)


def test_pending_and_executing_exports_are_not_touched_by_an_import() -> None:
    waiting = pending(sent("text_one", ChangeOp.SET, "a", state=ChangeState.PENDING), state=ExportState.PENDING)
    assert reconcile(thing(), waiting, EVERY_TYPE).pending == waiting
    executing = pending(sent("text_one", ChangeOp.SET, "a"), state=ExportState.EXECUTING)
    assert reconcile(thing(), executing, EVERY_TYPE).pending == executing


def test_confirmation_at_sync_drops_what_the_object_shows() -> None:
    changes = (
        sent("text_one", ChangeOp.SET, "a", state=ChangeState.UNCONFIRMED),
        sent("text_many", ChangeOp.ADD, "x", state=ChangeState.UNCONFIRMED),
    )
    late = pending(*changes, state=ExportState.UNCONFIRMED)
    found = confirm_at_sync(thing(text_one=["a"]), late, EVERY_TYPE)
    assert [change.attribute for change in found.confirmed] == ["text_one"]
    assert found.pending is not None
    assert found.pending.changes == changes[1:]
    assert confirm_at_sync(thing(text_one=["a"], text_many=["x"]), late, EVERY_TYPE).pending is None
    waiting = pending(sent("text_one", ChangeOp.SET, "a"))
    assert confirm_at_sync(thing(text_one=["a"]), waiting, EVERY_TYPE).pending == waiting


# --- every data type ------------------------------------------------------------------------------------------------


@given(documents(attributes_of_every_type()), reference_sets())
@settings(max_examples=40)
def test_every_data_type_flows_from_an_object_into_the_metaverse(attributes: Any, references: Any) -> None:
    found_type = MetaverseType("thing", attributes_of_every_type())
    mappings = tuple(
        AttributeMapping(name, name, clean=Clean(trim=False, blank_is_null=False)) for name in found_type.attributes
    )
    all_rule = SyncRule(1, "all", Direction.IN, "T", "thing", "thing", mappings=mappings)
    source = connector_object(attributes, references)
    found = inbound_flow(found_type, None, [Contribution(all_rule, source, EVERY_TYPE)], NOW)
    assert found.values == attributes
    assert found.references == references
    assert not found.notes
    again = inbound_flow(
        found_type,
        MetaverseObject(1, "thing", found.values, found.references, found.provenance),
        [Contribution(all_rule, source, EVERY_TYPE)],
        NOW,
    )
    assert not again.changes


@pytest.mark.parametrize("name", list(attributes_of_every_type()))
@given(data=st.data())
@settings(max_examples=15)
def test_changes_of_every_data_type_are_applied_and_confirmed(name: str, data: st.DataObject) -> None:
    attribute = EVERY_TYPE.attributes[name]
    before, after = data.draw(documents(attributes_of_every_type())), data.draw(documents(attributes_of_every_type()))
    refs = data.draw(reference_sets())
    current = imported_values(connector_object(before, refs))
    if attribute.is_reference:
        ids = data.draw(st.frozensets(st.integers(1, 9), max_size=3 if attribute.multi else 1))
        change = Change(
            name, ChangeOp.SET if ids else ChangeOp.CLEAR, references=tuple(sorted(ids)), state=ChangeState.EXPORTED
        )
    else:
        values = tuple(after.get(name, ()))
        change = Change(name, ChangeOp.SET if values else ChangeOp.CLEAR, values, state=ChangeState.EXPORTED)
    applied = apply_pending(current, [change], EVERY_TYPE)
    assert apply_pending(applied, [change], EVERY_TYPE) == applied
    shown = connector_object(dict(applied.attributes), dict(applied.references))  # type: ignore[arg-type]
    assert change_confirmed(shown, change, EVERY_TYPE)
    assert reconcile(shown, pending(change), EVERY_TYPE).pending is None
