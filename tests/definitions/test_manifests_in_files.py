"""Manifests and groups in definition files."""

from __future__ import annotations

import pytest

from tenuto.definitions.definition_files import DeclaredManifest, parse_groups, parse_manifests, parse_schedules
from tenuto.definitions.document_parser import parse_document
from tenuto.errors import Invalid
from tests.support.errors import raises_code

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
    retry: {max_attempts: 5, base_seconds: 1}
    timeout: 5m
    group: reports
    max_active: 2
    on_dead_letter: continue
  - {external_id: mail, job: mail, after: report}
  - {external_id: bulk, job: copy, on_demand: true}
"""


def parse(text: str) -> list[DeclaredManifest]:
    return parse_manifests([parse_document("file.yaml", text.encode())])


def test_definition_file_contains_schedules_groups_and_manifests() -> None:
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
        "retry": {"max_attempts": 5, "base_seconds": 1},
        "timeout": "5m",
        "group": "reports",
        "max_active": 2,
        "on_dead_letter": "continue",
    }
    assert (mail.options, bulk.options) == ({"after": "report"}, {"on_demand": True})


@pytest.mark.parametrize(
    ("entry", "path", "code", "remedy"),
    [
        ("{external_id: x}", "[0].job", "definition.field.missing", ""),
        ("{job: x}", "[0].external_id", "definition.field.missing", ""),
        ("{external_id: 7, job: x}", "[0].external_id", "definition.field.not_text", ""),
        ("{external_id: 'a b', job: x}", "[0].external_id", "value.name.invalid", ""),
        (
            "{external_id: x, job: x, max_atempts: 3}",
            "[0].max_atempts",
            "definition.field.unknown",
            "did you mean max_attempts?",
        ),
        (
            "{external_id: x, job: x, max_retries: 3, max_attempts: 3}",
            "[0].max_retries",
            "retry.max_attempts.conflict",
            "keep one",
        ),
        (
            "{external_id: x, job: x, max_retries: 3, retry: {jitter: 0}}",
            "[0].max_retries",
            "retry.max_attempts.conflict",
            "keep one",
        ),
        ("{external_id: x, job: x, max_retries: -1}", "[0].max_retries", "retry.value.out_of_range", ""),
        ("{external_id: x, job: x, max_retries: 2.5}", "[0].max_retries", "retry.value.invalid", ""),
        (
            "{external_id: x, job: x, retry: {max_retries: 3}}",
            "[0].retry.max_retries",
            "definition.field.unknown",
            "",
        ),
        ("{external_id: x, job: x, enabled: false}", "[0].enabled", "definition.field.unknown", "manifest disable"),
        ("{external_id: x, job: x, input: {a: 1}}", "[0].input", "definition.field.unknown", "write properties"),
        ("{external_id: x, job: x, on_demand: yes please}", "[0].on_demand", "definition.field.not_boolean", ""),
        ("{external_id: x, job: x, properties: [1]}", "[0].properties", "definition.not_a_mapping", ""),
        (
            "{external_id: x, job: x, retry: {max_atempts: 1}}",
            "[0].retry.max_atempts",
            "definition.field.unknown",
            "did you mean max_attempts?",
        ),
        ("{external_id: x, job: x, cron: '61 * * * *'}", "[0].cron", "trigger.cron.item.invalid", ""),
        ("{external_id: x, job: x, zone: UTC}", "[0]", "definition.trigger.incomplete", ""),
        ("{external_id: x, job: x}, {external_id: x, job: y}", "[1].external_id", "definition.duplicate", ""),
    ],
)
def test_invalid_manifest_in_a_file_is_rejected_with_its_location(
    entry: str, path: str, code: str, remedy: str
) -> None:
    with raises_code(code) as rejected:
        parse(f"manifests: [{entry}]")
    assert (rejected.value.field or "").startswith(f"file.yaml, line 1: manifests{path}")
    assert rejected.value.message.startswith(f"{rejected.value.field}: ")
    assert remedy in (rejected.value.remedy or "")


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
def test_invalid_group_in_a_file_is_rejected_with_its_location(entry: str, path: str) -> None:
    with pytest.raises(Invalid) as rejected:
        parse_groups([parse_document("file.yaml", f"groups: [{entry}]".encode())])
    assert rejected.value.field == f"file.yaml, line 1: groups{path}"


@pytest.mark.parametrize(("given", "attempts"), [(0, 1), (1, 1), (5, 5)])
def test_max_retries_of_a_manifest_in_a_file_is_its_number_of_attempts(given: int, attempts: int) -> None:
    (found,) = parse(f"manifests: [{{external_id: x, job: x, max_retries: {given}}}]")
    assert found.options == {"max_attempts": attempts}


def test_later_error_of_a_declared_manifest_has_its_location() -> None:
    nested = (
        "manifests:\n- external_id: x\n  job: a\n  trigger: {cron: '@daily'}\n  retry: {max_attempts: 1}\n  after: y\n"
    )
    (found,) = parse(nested)
    for field, path in (
        ("depends_on", "line 6: manifests[0].after"),
        ("max_attempts", "line 5: manifests[0].retry.max_attempts"),
        ("cron", "line 4: manifests[0].trigger.cron"),
        ("job", "line 3: manifests[0].job"),
    ):
        assert found.locate_error(Invalid("no", code="test.error", field=field)).field == f"file.yaml, {path}"
