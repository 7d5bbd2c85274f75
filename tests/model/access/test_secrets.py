"""Secrets: sensitive fields are redacted; secret references stay readable where a step accepts them."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.model.access.secrets import REDACTED, REFERENCE_PLACES, may_refer_to_secret, redact_sensitive_fields
from tenuto.model.definitions.schedules import Plan
from tenuto.model.definitions.steps import Step

REF = {"secret": "hr-token", "prefix": "Bearer "}


def redacted_arguments(step: Step) -> Any:
    """Return the arguments of a step as the audit log stores them."""
    return redact_sensitive_fields({"name": "nightly", "steps": Plan.from_steps([step]).to_fields()})["steps"][0][0][
        "arguments"
    ]


@pytest.mark.parametrize(
    "data",
    [
        {"secret": "hunter2"},
        {"secret": "hunter2", "prefix": "x"},
        {"properties": {"secret": "hunter2"}},
        {"input": {"secret": "hunter2"}},
        {"arguments": {"load": {"secret": "hunter2"}}},
        {"password": {"secret": "hunter2"}},
        [{"target": "a", "is": {"properties": {"secret": "hunter2"}}}],
    ],
)
def test_plain_value_named_secret_is_redacted(data: Any) -> None:
    assert "hunter2" not in str(redact_sensitive_fields(data))
    assert REDACTED in str(redact_sensitive_fields(data))


@pytest.mark.parametrize(
    "step",
    [
        Step("job", "load", {"secret": "hunter2"}),
        Step("job", "load", {"env": {"TOKEN": {"secret": "hunter2"}}}),
        Step.manifest("load", input={"secret": "hunter2"}),
        Step.log("done", fields={"secret": "hunter2"}),
        Step.of("http.call", {"secret": "hunter2"}),
        Step.http("https://x", headers={"secret": "hunter2"}),
        Step.http("https://x", body={"secret": {"secret": "a", "more": "hunter2"}}),
        Step.executable("/bin/x", env={"secret": "hunter2"}),
        Step.sql("hr", "SELECT :secret", parameters={"secret": "hunter2"}),
        Step.of("sql", {"parameters": {"a": {"secret": ["hunter2"]}}}),
    ],
    ids=lambda step: step.kind,
)
def test_plain_value_named_secret_is_redacted_in_every_step_kind(step: Step) -> None:
    assert "hunter2" not in str(redacted_arguments(step))


def test_secret_reference_is_not_redacted_where_a_step_accepts_it() -> None:
    call = redacted_arguments(
        Step.http(REF, headers={"Authorization": REF, "Accept": "x"}, body={"a": [{"password": REF}]})
    )
    assert (call["url"], call["headers"], call["body"]) == (
        REF,
        {"Authorization": REF, "Accept": "x"},
        {"a": [{"password": REF}]},
    )
    program = redacted_arguments(Step.executable("/bin/x", env={"DB_PASSWORD": REF, "TOKEN": "plain"}, stdin=REF))
    assert (program["env"], program["stdin"]) == ({"DB_PASSWORD": REF, "TOKEN": REDACTED}, REF)
    assert redacted_arguments(Step.powershell("/srv/x.ps1", stdin=REF))["stdin"] == REF
    assert redacted_arguments(Step.sql("hr", "SELECT :secret", parameters={"secret": REF}))["parameters"] == {
        "secret": REF
    }


def test_reference_places_match_the_input_schemas_of_step_kinds(tmp_path: Any) -> None:
    jobs = Tenuto(home=tmp_path).jobs
    for kind in ("executable", "powershell", "http.call", "sql", "log.append"):
        fields = jobs.get_handler(kind, kind).input_schema()["properties"]
        takes = {name for name, schema in fields.items() if "SecretRef" in str(schema)} - {"args"}  # rejected there
        assert takes | ({"body"} if kind == "http.call" else set()) == set(REFERENCE_PLACES.get(kind, {}))


def test_counts_are_not_redacted_but_sensitive_numbers_are() -> None:
    seen = {"max_tokens": 5, "secrets": 3, "token_count": 7, "has_password": True, "token": None, "cookie": ""}
    assert redact_sensitive_fields(seen) == seen
    hidden = {"password": 1234, "secret": 42, "token": 7, "api_key": 1.5, "credentials": 99, "tokens": "abc"}
    assert redact_sensitive_fields(hidden) == dict.fromkeys(hidden, REDACTED)


def test_secret_reference_is_detected_at_any_depth() -> None:
    assert may_refer_to_secret({"a": [{"b": {"secret": "x"}}]})
    assert may_refer_to_secret({"secret": 5})
    assert not may_refer_to_secret({"secret": "x", "more": 1})
