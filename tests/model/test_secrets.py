"""What sounds secret is masked; a reference to a secret is shown only where a step takes one."""

from __future__ import annotations

from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.model.schedules import Plan
from tenuto.model.secrets import REDACTED, REFERENCE_PLACES, redact_sensitive_fields, may_refer_to_secret
from tenuto.model.steps import Step

REF = {"secret": "hr-token", "prefix": "Bearer "}


def shown(step: Step) -> Any:
    """The arguments of a step of a definition, as the trail keeps them."""
    return redact_sensitive_fields({"name": "nightly", "steps": Plan.from_steps([step]).to_fields()})["steps"][0][0]["arguments"]


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
def test_a_plain_value_under_the_name_secret_is_masked(data: Any) -> None:
    assert "hunter2" not in str(redact_sensitive_fields(data))
    assert REDACTED in str(redact_sensitive_fields(data))


@pytest.mark.parametrize(
    "step",
    [
        Step("job", "load", {"secret": "hunter2"}),
        Step("job", "load", {"env": {"TOKEN": {"secret": "hunter2"}}}),
        Step.manifest("load", input={"secret": "hunter2"}),
        Step.log("done", fields={"secret": "hunter2"}),
        Step.of_kind("http.call", {"secret": "hunter2"}),
        Step.http("https://x", headers={"secret": "hunter2"}),
        Step.http("https://x", body={"secret": {"secret": "a", "more": "hunter2"}}),
        Step.executable("/bin/x", env={"secret": "hunter2"}),
        Step.sql("hr", "SELECT :secret", parameters={"secret": "hunter2"}),
        Step.of_kind("sql", {"parameters": {"a": {"secret": ["hunter2"]}}}),
    ],
    ids=lambda step: step.kind,
)
def test_no_step_shows_a_plain_value_under_the_name_secret(step: Step) -> None:
    assert "hunter2" not in str(shown(step))


def test_a_reference_is_shown_wherever_a_step_takes_one() -> None:
    call = shown(Step.http(REF, headers={"Authorization": REF, "Accept": "x"}, body={"a": [{"password": REF}]}))
    assert (call["url"], call["headers"], call["body"]) == (
        REF,
        {"Authorization": REF, "Accept": "x"},
        {"a": [{"password": REF}]},
    )
    program = shown(Step.executable("/bin/x", env={"DB_PASSWORD": REF, "TOKEN": "plain"}, stdin=REF))
    assert (program["env"], program["stdin"]) == ({"DB_PASSWORD": REF, "TOKEN": REDACTED}, REF)
    assert shown(Step.powershell("/srv/x.ps1", stdin=REF))["stdin"] == REF
    assert shown(Step.sql("hr", "SELECT :secret", parameters={"secret": REF}))["parameters"] == {"secret": REF}


def test_every_kind_that_takes_references_is_known_with_its_arguments(tmp_path: Any) -> None:
    jobs = Tenuto(home=tmp_path).jobs
    for kind in ("executable", "powershell", "http.call", "sql", "log.append"):
        fields = jobs.get_handler(kind, kind).input_schema()["properties"]
        takes = {name for name, schema in fields.items() if "SecretRef" in str(schema)} - {"args"}  # there refused
        assert takes | ({"body"} if kind == "http.call" else set()) == set(REFERENCE_PLACES.get(kind, {}))


def test_how_many_there_are_of_something_may_be_seen_but_no_number_that_is_itself_secret() -> None:
    seen = {"max_tokens": 5, "secrets": 3, "token_count": 7, "has_password": True, "token": None, "cookie": ""}
    assert redact_sensitive_fields(seen) == seen
    hidden = {"password": 1234, "secret": 42, "token": 7, "api_key": 1.5, "credentials": 99, "tokens": "abc"}
    assert redact_sensitive_fields(hidden) == dict.fromkeys(hidden, REDACTED)


def test_what_may_name_a_secret_is_asked_for_at_any_depth() -> None:
    assert may_refer_to_secret({"a": [{"b": {"secret": "x"}}]})
    assert may_refer_to_secret({"secret": 5})
    assert not may_refer_to_secret({"secret": "x", "more": 1})
