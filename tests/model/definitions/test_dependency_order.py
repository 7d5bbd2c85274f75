"""Dependency order: topological sorting and cycle detection in linear time and without recursion."""

from __future__ import annotations

import time
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model.definitions import dependency_order
from tenuto.model.definitions.dependency_order import check_no_cycle, sort_definitions
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.schedules import Plan, ScheduleDefinition
from tenuto.model.definitions.steps import Step
from tenuto.model.triggers import manual
from tests.support.repetition_counts import times

LONG = 5000

graphs = st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefgx"), max_size=3), max_size=7)


def make_plan_of_schedules(*names: str) -> Plan:
    return Plan.from_steps([Step.schedule(name) for name in names] or [Step("job", "x")])


def make_schedule(name: str, *names: str) -> ScheduleDefinition:
    return ScheduleDefinition(name, manual(), make_plan_of_schedules(*names))


def make_chain(last: str | None) -> dict[str, str | None]:
    """Each name depends on the next one."""
    return {str(n): last if n == LONG - 1 else str(n + 1) for n in range(LONG)}


def references(last: str | None) -> dict[str, list[str]]:
    return {name: [needed] if needed else [] for name, needed in make_chain(last).items()}


def make_error(message: str) -> Invalid:
    return Invalid(message, code="test.cycle")


@settings(max_examples=times(300, in_a_proof=6000), deadline=None)
@given(graphs)
def test_sort_by_dependency_orders_each_name_once_or_reports_a_cycle(graph: dict[str, list[str]]) -> None:
    try:
        ordered = dependency_order.sort_by_dependency(graph, lambda name: graph[name], make_error)
    except Invalid as error:
        cycle = error.message.split(" → ")
        assert cycle[0] == cycle[-1]
        assert all(needed in graph[name] for name, needed in pairwise(cycle))
        assert len(set(cycle)) == len(cycle) - 1
        with pytest.raises(CycleError):
            TopologicalSorter(graph).prepare()
    else:
        assert sorted(ordered) == sorted(graph)
        place = {name: position for position, name in enumerate(ordered)}
        assert all(place[needed] < place[name] for name in graph for needed in graph[name] if needed in graph)


@settings(max_examples=times(300, in_a_proof=6000), deadline=None)
@given(graphs, st.sampled_from("abcdefg"))
def test_find_cycle_returns_a_path_exactly_if_a_name_is_reachable_from_itself(
    graph: dict[str, list[str]], start: str
) -> None:
    reached, before = set(graph.get(start, [])), -1
    while len(reached) > before:
        before = len(reached)
        reached |= {needed for name in reached for needed in graph.get(name, [])}
    cycle = dependency_order.find_cycle(start, lambda name: graph.get(name, []))
    assert (cycle is not None) == (start in reached)
    if cycle is not None:
        assert (cycle[0], cycle[-1]) == (start, start)
        assert all(needed in graph[name] for name, needed in pairwise(cycle))


def test_schedule_graph_with_many_shared_dependencies_is_sorted_in_linear_time() -> None:
    layers = 400
    others = [
        make_schedule(f"{n}{side}", *(f"{n + 1}a", f"{n + 1}b")[: 2 * (n + 1 < layers)])
        for n in range(layers)
        for side in "ab"
    ]
    began = time.process_time()
    check_no_cycle(make_schedule("top", "0a", "0b"), {each.name: each.references for each in others})
    assert len(sort_definitions(others)) == 2 * layers
    assert time.process_time() - began < 2


def test_long_chain_of_schedules_is_sorted_and_its_cycle_is_rejected() -> None:
    def ordered(last: str | None) -> list[str]:
        wanted = (make_schedule(name, *needed) for name, needed in references(last).items())
        return [each.name for each in sort_definitions(wanted)]

    check_no_cycle(make_schedule("top", "0"), references(None))
    assert ordered(None) == [str(n) for n in reversed(range(LONG))]
    with pytest.raises(Invalid, match=r"would run itself: top → 0 → 1 → .* → 4999 → top"):
        check_no_cycle(make_schedule("top", "0"), references("top"))
    with pytest.raises(Invalid, match=r"would run itself: 4990 → .* → 4999 → 4990"):
        ordered("4990")


def test_long_chain_of_manifests_is_sorted_and_its_cycle_is_rejected() -> None:
    def ordered(last: str | None) -> list[str]:
        wanted = (Manifest(name, "job", depends_on=needed) for name, needed in make_chain(last).items())
        return [each.external_id for each in sort_definitions(wanted)]

    began = time.process_time()
    check_no_cycle(Manifest("top", "job", depends_on="0"), references(None))
    assert ordered(None) == [str(n) for n in reversed(range(LONG))]
    with pytest.raises(Invalid, match=r"would run after itself: top → 0 → 1 → .* → 4999 → top"):
        check_no_cycle(Manifest("top", "job", depends_on="0"), references("top"))
    with pytest.raises(Invalid, match=r"would run after itself: 4990 → .* → 4999 → 4990"):
        ordered("4990")
    assert time.process_time() - began < 2
