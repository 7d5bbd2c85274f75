"""Which objects a full sync skips: any input that has changed since the last decision makes an object unsettled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto_identity.model.objects import ObjectState
from tenuto_identity.model.sync.settled_objects import (
    ENGINE_VERSION,
    JoinedFacts,
    ObjectFacts,
    SettledRules,
    is_settled,
    joined_key,
    select_unsettled,
)

PERSON, HR, AD = 1, 1, 2
RULES = SettledRules(rules_version=7, contributors=frozenset({(HR, 1)}), targets={PERSON: frozenset({AD})})
JOINS = joined_key([10, 11])
SOURCE = JoinedFacts(10, HR, 1, ObjectState.NORMAL, 3, 3, 7, ENGINE_VERSION, JOINS, None, False)
TARGET = JoinedFacts(11, AD, 1, ObjectState.NORMAL, 2, None, None, None, None, None, False)
EVALUATED: dict[str, Any] = {
    "evaluated_version": 2, "evaluated_rules": 7, "evaluated_engine": ENGINE_VERSION, "evaluated_joins": JOINS,
}  # fmt: skip


def facts(*, source: JoinedFacts = SOURCE, target: JoinedFacts | None = TARGET, **changed: Any) -> ObjectFacts:
    joined = [source, *([] if target is None else [target])]
    return replace(ObjectFacts(10, PERSON, False, False, False, joined), **changed)


def test_object_without_changes_is_settled() -> None:
    assert is_settled(facts(), RULES)


@pytest.mark.parametrize(
    "changed",
    [
        {"metaverse_type": None},
        {"is_due": True},
        {"is_deletion_scheduled": True},
        {"has_unresolved": True},
        {"target": None},
        {"source": replace(SOURCE, version=4)},
        {"source": replace(SOURCE, evaluated_version=None, evaluated_rules=None, evaluated_engine=None)},
        {"source": replace(SOURCE, evaluated_rules=6)},
        {"source": replace(SOURCE, evaluated_engine=ENGINE_VERSION - 1)},
        {"source": replace(SOURCE, mark_reason="imported")},
        {"source": replace(SOURCE, state=ObjectState.OBSOLETE)},
        {"target": replace(TARGET, has_export=True)},
        {"target": replace(TARGET, state=ObjectState.PROVISIONING)},
        {"target": replace(TARGET, mark_reason="imported")},
        {"target": replace(TARGET, mark_reason="deleted", **EVALUATED)},
        {"source": replace(SOURCE, evaluated_joins=joined_key([10, 11, 12]))},
        {"source": replace(SOURCE, evaluated_joins=joined_key([10, 12]))},
    ],
    ids=str,
)
def test_object_with_a_changed_input_is_not_settled(changed: dict[str, Any]) -> None:
    assert not is_settled(facts(**changed), RULES)


def test_object_of_changed_rules_is_not_settled() -> None:
    assert not is_settled(facts(), replace(RULES, rules_version=8))


def test_target_that_an_import_marked_is_settled_at_the_version_that_was_decided_about() -> None:
    seen = replace(TARGET, mark_reason="imported", **EVALUATED)
    assert is_settled(facts(target=seen), RULES)
    assert not is_settled(facts(target=replace(seen, version=3)), RULES)


def test_target_that_contributes_values_is_compared_by_version() -> None:
    rules = replace(RULES, contributors=frozenset({(HR, 1), (AD, 1)}))
    assert not is_settled(facts(), rules)
    seen = replace(TARGET, **EVALUATED)
    assert is_settled(facts(target=seen), rules)


@given(settled=st.lists(st.booleans(), max_size=30), limit=st.integers(1, 5))
def test_pages_of_unsettled_objects_cover_all_objects_once(settled: list[bool], limit: int) -> None:
    everything = [
        facts(
            object_id=id,
            source=replace(
                SOURCE, object_id=id, version=3 if is_same else 4, evaluated_joins=joined_key([id, TARGET.object_id])
            ),
        )
        for id, is_same in enumerate(settled, 100)
    ]
    processed: list[int] = []
    after, seen = 0, 0
    while True:
        chosen, count, last = select_unsettled([each for each in everything if each.object_id > after], RULES, limit)
        if last is None:
            break
        assert len(chosen) <= limit
        processed, seen, after = processed + chosen, seen + count, last
    assert seen == len(settled)
    assert processed == [id for id, is_same in enumerate(settled, 100) if not is_same]


@given(st.sets(st.integers(1, 2**63 - 1), min_size=1, max_size=6), st.data())
def test_key_of_joined_objects_depends_on_the_set_only(ids: set[int], data: st.DataObject) -> None:
    key = joined_key(data.draw(st.permutations(sorted(ids))))
    assert 0 <= key < 2**63
    assert key == joined_key(ids)
    assert key != joined_key(sorted(ids)[1:])
