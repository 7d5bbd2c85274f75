from __future__ import annotations
import json, sys
from pathlib import Path
import pytest
from tests.api.conftest import ApiClient
from tests.bad_inputs import cli_cases, http_cases
from tests.bad_inputs.cli_cases import CliCase
from tests.bad_inputs.test_bad_inputs import Prompt, prompt

async def test_http(service: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.api.state.rate_limiter, "count_failure", lambda _a: None)
    out = []
    for case in http_cases.REFUSED:
        r = await service.send(case.method, case.path, case.role, **case.options)
        b = r.json()
        out.append([case.number, r.status_code, b.get("code"), [e["field"] for e in b.get("errors", [])], b.get("detail"), b.get("remedy"), str(case.options)[:100], case.expected_texts])
    Path("/tmp/rec_http.json").write_text(json.dumps(out, indent=0))

def test_cli(prompt: Prompt) -> None:
    prompt(CliCase("", ("manifest", "add", "demand", "--job", "double", "--on-demand")))
    out = []
    for case in cli_cases.REFUSED:
        done = prompt(case._replace(arguments=(*case.arguments, "--output", "json")))
        try: e = json.loads(done.err)["error"]
        except Exception: e = {"code": None, "raw": done.err[:300], "out": done.out[:100]}
        out.append([case.number, done.code, e.get("code"), e.get("field"), e.get("message", e.get("raw"))[:150], (e.get("remedy") or "")[:80], " ".join(case.arguments)[:100], case.expected_texts])
    Path("/tmp/rec_cli.json").write_text(json.dumps(out, indent=0))
