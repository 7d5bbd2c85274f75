"""Manifests (J1): validation, schedule type, round trip through plain data, and dependencies."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tenuto.errors import Invalid
from tenuto.model.definitions.dependency_order import check_no_cycle, sort_definitions
from tenuto.model.definitions.manifests import (
    Manifest,
    ScheduleType,
    manifest_from_fields,
)
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.triggers import at, cron, every, manual
from tests.support.errors import raises_code


def make_manifest(external_id: str = "load", **fields: Any) -> Manifest:
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
def test_manifest_schedule_type_follows_from_its_reason_to_run(fields: dict[str, Any], kind: ScheduleType) -> None:
    assert make_manifest(**fields).schedule_type is kind


@pytest.mark.parametrize(
    "fields",
    [
        {"trigger": every("1m"), "on_demand": True},
        {"trigger": every("1m"), "depends_on": "extract"},
        {"on_demand": True, "depends_on": "extract"},
    ],
)
def test_manifest_with_two_reasons_to_run_is_rejected(fields: dict[str, Any]) -> None:
    with raises_code("manifest.trigger.conflict"):
        make_manifest(**fields)


@pytest.mark.parametrize(
    ("fields", "field"),
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
def test_invalid_manifest_field_is_rejected(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as rejected:
        Manifest(**{"external_id": "load", "job": "job", **fields})
    assert rejected.value.field == field


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
            "policy": TaskPolicy(RetryPolicy(max_attempts=5, base_seconds=2.0, factor=3.0), 90.0, "fail"),
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
def test_manifest_fields_round_trip(fields: dict[str, Any]) -> None:
    made = make_manifest(**fields)
    assert manifest_from_fields(made.to_fields()) == made
    assert manifest_from_fields(made.to_fields()).to_fields() == made.to_fields()


def test_manifest_name_defaults_to_its_external_id() -> None:
    assert make_manifest().name == "load"
    assert make_manifest(name="Load").name == "Load"


def test_unknown_manifest_field_is_rejected() -> None:
    with raises_code("manifest.field.unknown") as rejected:
        manifest_from_fields({**make_manifest().to_fields(), "colour": "red"})
    assert rejected.value.field == "colour"


@pytest.mark.parametrize(
    ("external_id", "depends_on", "parents"),
    [
        ("a", "b", {"b": "a"}),
        ("a", "b", {"b": "c", "c": "a"}),
        ("a", "b", {"b": "c", "c": "d", "d": "a", "e": "a"}),
    ],
)
def test_manifest_dependency_cycle_is_rejected_with_its_path(
    external_id: str, depends_on: str, parents: dict[str, str]
) -> None:
    with raises_code("manifest.depends_on.cycle") as rejected:
        check_no_cycle(make_manifest(external_id, depends_on=depends_on), parents)
    assert re.search(r"a → b → .*a", rejected.value.message)


def test_manifest_outside_a_cycle_is_accepted() -> None:
    check_no_cycle(make_manifest("a"), {"b": "a"})
    check_no_cycle(make_manifest("c", depends_on="b"), {"b": "a"})
    check_no_cycle(make_manifest("x", depends_on="a"), {"a": "b", "b": "a"})


def test_manifests_are_sorted_by_dependency() -> None:
    wanted = [
        make_manifest("c", depends_on="b"),
        make_manifest("b", depends_on="a"),
        make_manifest("a"),
        make_manifest("d"),
    ]
    assert [each.external_id for each in sort_definitions(wanted)] == ["a", "b", "c", "d"]
    with raises_code("manifest.depends_on.cycle"):
        sort_definitions([make_manifest("a", depends_on="b"), make_manifest("b", depends_on="a")])
