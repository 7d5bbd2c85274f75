"""Manifests and groups as files declare them."""

from __future__ import annotations

import pytest

from tenuto.definitions.definition_files import DeclaredManifest, parse_groups, parse_manifests
from tenuto.definitions.definition_files import parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.errors import Invalid

WHOLE = """
schedules:
  - {name: s, steps: [{job: a}]}
groups:
  - {name: reports, max_active: 4, priority: 2, enabled: false}
  - {name: "*", max_active: none}
manifests:
  - external_id: report
    job: make
    name: The report
    properties: {days: 7}
    cron: "0 6 * * *"
    zone: Europe/London
    retry: {max_retries: 5, base_seconds: 1}
    timeout: 5m
    group: reports
    max_active: 2
  - {external_id: mail, job: mail, after: report}
  - {external_id: bulk, job: copy, on_demand: true}
"""


def declared(text: str) -> list[DeclaredManifest]:
    return parse_manifests([parse_document("file.yaml", text.encode())])


def test_a_file_may_hold_schedules_groups_and_manifests_side_by_side() -> None:
    document = parse_document("file.yaml", WHOLE.encode())
    assert [each.name for each in parse_schedules([document])] == ["s"]
    assert [(each.name, each.options) for each in parse_groups([document])] == [
        ("reports", {"max_active": 4, "priority": 2, "enabled": False}),
        ("*", {"max_active": None}),
    ]
    report, mail, bulk = parse_manifests([document])
    assert (report.external_id, report.job, report.path) == ("report", "make", "manifests[0]")
    assert report.options["trigger"].describe() == "Every day at 06:00, Europe/London"
    assert {name: value for name, value in report.options.items() if name != "trigger"} == {
        "name": "The report",
        "properties": {"days": 7},
        "retry": {"max_retries": 5, "base_seconds": 1},
        "timeout": "5m",
        "group": "reports",
        "max_active": 2,
    }
    assert (mail.options, bulk.options) == ({"after": "report"}, {"on_demand": True})


@pytest.mark.parametrize(
    ("entry", "path", "words"),
    [
        ("{external_id: x}", "[0].job", "is missing"),
        ("{job: x}", "[0].external_id", "is missing"),
        ("{external_id: 7, job: x}", "[0].external_id", "7 is not a text"),
        ("{external_id: 'a b', job: x}", "[0].external_id", ""),
        ("{external_id: x, job: x, max_retrys: 3}", "[0].max_retrys", "did you mean max_retries?"),
        ("{external_id: x, job: x, enabled: false}", "[0].enabled", "the operator's to say"),
        ("{external_id: x, job: x, input: {a: 1}}", "[0].input", "write properties"),
        ("{external_id: x, job: x, on_demand: yes please}", "[0].on_demand", "neither true nor false"),
        ("{external_id: x, job: x, properties: [1]}", "[0].properties", "not a set of named values"),
        ("{external_id: x, job: x, retry: {max_retires: 1}}", "[0].retry.max_retires", "did you mean max_retries?"),
        ("{external_id: x, job: x, cron: '61 * * * *'}", "[0].cron", ""),
        ("{external_id: x, job: x, zone: UTC}", "[0]", "does not say when"),
        ("{external_id: x, job: x}, {external_id: x, job: y}", "[1].external_id", "declared already"),
    ],
)
def test_a_mistake_is_refused_with_its_place(entry: str, path: str, words: str) -> None:
    with pytest.raises(Invalid) as refused:
        declared(f"manifests: [{entry}]")
    assert (refused.value.field or "").startswith(f"file.yaml, line 1: manifests{path}")
    assert words in f"{refused.value.message} {refused.value.remedy}"


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        ("{max_active: 3}", "[0].name"),
        ("{name: g, max_active: 0}", "[0].max_active"),
        ("{name: g, max_active: true}", "[0].max_active"),
        ("{name: '*', priority: 1}", "[0].priority"),
        ("{name: g, enabled: 1}", "[0].enabled"),
        ("{name: g}, {name: g}", "[1].name"),
    ],
)
def test_a_mistake_in_a_group_is_refused_with_its_place(entry: str, path: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_groups([parse_document("file.yaml", f"groups: [{entry}]".encode())])
    assert refused.value.field == f"file.yaml, line 1: groups{path}"


def test_what_is_found_wrong_later_is_told_by_its_place() -> None:
    nested = (
        "manifests:\n- external_id: x\n  job: a\n  trigger: {cron: '@daily'}\n  retry: {max_retries: 1}\n  after: y\n"
    )
    (found,) = declared(nested)
    for field, path in (
        ("depends_on", "line 6: manifests[0].after"),
        ("max_retries", "line 5: manifests[0].retry.max_retries"),
        ("cron", "line 4: manifests[0].trigger.cron"),
        ("job", "line 3: manifests[0].job"),
    ):
        assert found.locate_error(Invalid("no", field=field)).field == f"file.yaml, {path}"
