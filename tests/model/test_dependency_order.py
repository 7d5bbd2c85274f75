"""The order of need, and circles: linear however often things meet, and without depth."""

from __future__ import annotations

import time
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model import dependency_order
from tenuto.model.manifests import Manifest, check_no_manifest_cycle
from tenuto.model.manifests import sort_manifests_by_dependency as manifests_in_order
from tenuto.model.schedules import ScheduleDefinition, Plan, check_no_schedule_cycle
from tenuto.model.schedules import sort_schedules_by_dependency as schedules_in_order
from tenuto.model.steps import Step
from tenuto.model.triggers import manual
from tests.support.proofs import times

LONG = 5000

graphs = st.dictionaries(st.sampled_from("abcdefg"), st.lists(st.sampled_from("abcdefgx"), max_size=3), max_size=7)


def runs(*names: str) -> Plan:
    return Plan.from_steps([Step.schedule(name) for name in names] or [Step("job", "x")])


def in_line(last: str | None) -> dict[str, str | None]:
    """Each needs the one after it."""
    return {str(n): last if n == LONG - 1 else str(n + 1) for n in range(LONG)}


@settings(max_examples=times(300, in_a_proof=6000), deadline=None)
@given(graphs)
def test_each_comes_once_after_those_it_needs_or_the_circle_is_shown(graph: dict[str, list[str]]) -> None:
    try:
        ordered = dependency_order.sort_by_dependency(graph, lambda name: graph[name], Invalid)
    except Invalid as refused:
        way = refused.message.split(" → ")
        assert way[0] == way[-1]
        assert all(needed in graph[name] for name, needed in pairwise(way))
        assert len(set(way)) == len(way) - 1
        with pytest.raises(CycleError):
            TopologicalSorter(graph).prepare()
    else:
        assert sorted(ordered) == sorted(graph)
        place = {name: position for position, name in enumerate(ordered)}
        assert all(place[needed] < place[name] for name in graph for needed in graph[name] if needed in graph)


@settings(max_examples=times(300, in_a_proof=6000), deadline=None)
@given(graphs, st.sampled_from("abcdefg"))
def test_there_is_a_way_back_exactly_if_a_thing_is_reached_from_what_it_needs(
    graph: dict[str, list[str]], start: str
) -> None:
    reached, before = set(graph.get(start, [])), -1
    while len(reached) > before:
        before = len(reached)
        reached |= {needed for name in reached for needed in graph.get(name, [])}
    way = dependency_order.find_cycle(start, lambda name: graph.get(name, []))
    assert (way is not None) == (start in reached)
    if way is not None:
        assert (way[0], way[-1]) == (start, start)
        assert all(needed in graph[name] for name, needed in pairwise(way))


def test_schedules_that_meet_again_and_again_are_walked_once() -> None:
    layers = 400
    plans = {
        f"{n}{side}": runs(*(f"{n + 1}a", f"{n + 1}b")[: 2 * (n + 1 < layers)]) for n in range(layers) for side in "ab"
    }
    began = time.process_time()
    check_no_schedule_cycle("top", runs("0a", "0b"), plans)
    assert len(schedules_in_order(ScheduleDefinition(name, manual(), plan) for name, plan in plans.items())) == 2 * layers
    assert time.process_time() - began < 2


def test_schedules_in_a_long_line_are_put_in_order_and_their_circle_is_refused() -> None:
    def plans(last: str | None) -> dict[str, Plan]:
        return {name: runs(*([needed] if needed else [])) for name, needed in in_line(last).items()}

    def ordered(last: str | None) -> list[str]:
        return [
            each.name for each in schedules_in_order(ScheduleDefinition(n, manual(), plan) for n, plan in plans(last).items())
        ]

    check_no_schedule_cycle("top", runs("0"), plans(None))
    assert ordered(None) == [str(n) for n in reversed(range(LONG))]
    with pytest.raises(Invalid, match=r"runs itself: top → 0 → 1 → .* → 4999 → top"):
        check_no_schedule_cycle("top", runs("0"), plans("top"))
    with pytest.raises(Invalid, match=r"runs itself: 4990 → .* → 4999 → 4990"):
        ordered("4990")


def test_manifests_in_a_long_line_are_put_in_order_and_their_circle_is_refused() -> None:
    def ordered(last: str | None) -> list[str]:
        wanted = (Manifest(name, "job", depends_on=needed) for name, needed in in_line(last).items())
        return [each.external_id for each in manifests_in_order(wanted)]

    began = time.process_time()
    check_no_manifest_cycle("top", "0", in_line(None))
    assert ordered(None) == [str(n) for n in reversed(range(LONG))]
    with pytest.raises(Invalid, match=r"would run after itself: top → 0 → 1 → .* → 4999 → top"):
        check_no_manifest_cycle("top", "0", in_line("top"))
    with pytest.raises(Invalid, match=r"would run after itself: 4990 → .* → 4999 → 4990"):
        ordered("4990")
    assert time.process_time() - began < 2
