"""Manifests as values (J1): checked when made, one reason to run, stored as plain data and read back the same."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto.errors import Invalid
from tenuto.model.manifests import Manifest, ScheduleType, manifest_from_fields, check_no_manifest_cycle, sort_manifests_by_dependency
from tenuto.model.policies import TaskPolicy, RetryPolicy
from tenuto.model.triggers import at, cron, every, manual


def a_manifest(external_id: str = "load", **fields: Any) -> Manifest:
    return Manifest(external_id, "job", **fields)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, ScheduleType.NONE),
        ({"trigger": manual()}, ScheduleType.NONE),
        ({"trigger": cron("0 3 * * *", zone="Europe/Berlin")}, ScheduleType.CRON),
        ({"trigger": at("03:00")}, ScheduleType.CRON),
        ({"trigger": every("90s")}, ScheduleType.INTERVAL),
        ({"on_demand": True}, ScheduleType.ON_DEMAND),
        ({"depends_on": "extract"}, ScheduleType.DEPENDENT),
    ],
)
def test_what_makes_it_run_is_its_schedule_type(fields: dict[str, Any], kind: ScheduleType) -> None:
    assert a_manifest(**fields).schedule_type is kind


@pytest.mark.parametrize(
    "fields",
    [
        {"trigger": every("1m"), "on_demand": True},
        {"trigger": every("1m"), "depends_on": "extract"},
        {"on_demand": True, "depends_on": "extract"},
    ],
)
def test_it_has_one_reason_to_run(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="more than one reason"):
        a_manifest(**fields)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"external_id": ""}, "external_id"),
        ({"external_id": "a\x00b"}, "external_id"),
        ({"job": ""}, "job"),
        ({"name": "x" * 2000}, "name"),
        ({"queue": "no/such queue\n"}, "queue"),
        ({"group": ""}, "group"),
        ({"priority": 1001}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"max_active": 0}, "max_active"),
        ({"max_active": 100_001}, "max_active"),
        ({"trigger": "0 3 * * *"}, "trigger"),
        ({"depends_on": "load"}, "depends_on"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid) as refused:
        Manifest(**{"external_id": "load", "job": "job", **fields})
    assert refused.value.field == named


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {
            "name": "Load the users",
            "description": "every night",
            "properties": {"table": "users", "deep": {"a": [1, 2]}},
            "property_type": "table: str",
            "trigger": cron("30 2 * * mon-fri", zone="America/New_York"),
            "policy": TaskPolicy(RetryPolicy(max_retries=5, base_seconds=2.0, factor=3.0), 90.0, "fail"),
            "queue": "slow",
            "priority": -7,
            "group": "nightly",
            "max_active": 3,
        },
        {"on_demand": True},
        {"depends_on": "extract"},
        {"trigger": every("15m")},
    ],
)
def test_what_is_stored_is_read_back_the_same(fields: dict[str, Any]) -> None:
    made = a_manifest(**fields)
    assert manifest_from_fields(made.to_fields()) == made
    assert manifest_from_fields(made.to_fields()).to_fields() == made.to_fields()


def test_its_name_is_its_external_id_unless_it_has_one() -> None:
    assert a_manifest().name == "load"
    assert a_manifest(name="Load").name == "Load"


def test_a_field_nobody_knows_is_refused() -> None:
    with pytest.raises(Invalid) as refused:
        manifest_from_fields({**a_manifest().to_fields(), "colour": "red"})
    assert refused.value.field == "colour"


@pytest.mark.parametrize(
    ("external_id", "depends_on", "parents"),
    [
        ("a", "b", {"b": "a"}),
        ("a", "b", {"b": "c", "c": "a"}),
        ("a", "b", {"b": "c", "c": "d", "d": "a", "e": "a"}),
    ],
)
def test_a_circle_is_refused_and_shown(external_id: str, depends_on: str, parents: dict[str, str | None]) -> None:
    with pytest.raises(Invalid, match=r"a → b → .*a"):
        check_no_manifest_cycle(external_id, depends_on, parents)


def test_a_line_is_no_circle_nor_is_one_that_others_have_made() -> None:
    check_no_manifest_cycle("a", None, {"b": "a"})
    check_no_manifest_cycle("c", "b", {"b": "a"})
    check_no_manifest_cycle("x", "a", {"a": "b", "b": "a"})


def test_each_comes_after_the_one_it_runs_after() -> None:
    wanted = [a_manifest("c", depends_on="b"), a_manifest("b", depends_on="a"), a_manifest("a"), a_manifest("d")]
    assert [each.external_id for each in sort_manifests_by_dependency(wanted)] == ["a", "b", "c", "d"]
    with pytest.raises(Invalid, match="after itself"):
        sort_manifests_by_dependency([a_manifest("a", depends_on="b"), a_manifest("b", depends_on="a")])
