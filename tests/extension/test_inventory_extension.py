"""The sample extension: everything that it contributes works, and it can be built and installed by a third party."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tenuto import Actor, Step, Tenuto, manual
from tenuto.api.application import add_middleware, create_api
from tenuto.api.openapi import openapi_document
from tenuto.definitions.document_parser import parse_document
from tenuto.errors import Conflict, Invalid
from tenuto.maintenance.housekeeping import Housekeeping
from tenuto.model.access.actors import Role
from tenuto.model.doctor_findings import Severity
from tenuto.observability.event_feed import ChangeDetector, EventFeed
from tenuto.operations.definitions.plans import Declarations, read_declarations
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.store.access import idempotency_keys
from tenuto_inventory.extension import Inventory
from tenuto_inventory.steps import OrderArguments
from tests.api.conftest import HOST, ApiClient, assert_problem
from tests.support.errors import raises_code
from tests.support.waiting import eventually

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "inventory_extension"


@pytest.fixture
async def app(url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    """An app with the extension, migrated."""
    async with Tenuto(url, home=tmp_path, extensions=[Inventory()]) as app:
        await app.migrate()
        yield app
        assert app.extension_registry.failures == []


def declare(text: str) -> Declarations:
    return read_declarations([parse_document("inventory.yaml", text.encode())])


async def test_operations_are_audited(app: Tenuto) -> None:
    caller = app.acting_as(Actor.user("ana"))
    await caller.extensions.inventory.add("bolt", level=100)
    with raises_code("inventory.item.exists", Conflict):
        await caller.extensions.inventory.add("bolt", level=5)
    assert [item.name for item in await app.extensions.inventory.items()] == ["bolt"]
    entries = await app.audit.list()
    assert [(entry.action, entry.target) for entry in entries] == [("inventory.item.add", "bolt")]


async def test_step_kind_checks_arguments_and_derives_its_limit(app: Tenuto) -> None:
    step = Step.of("inventory.order", OrderArguments(item="bolt", quantity=50))
    refused: list[tuple[dict[str, object], str]] = [
        ({"item": "bolt", "quantity": 50}, "inventory.item.not_found"),
        ({"item": "bolt", "quantity": 0}, "job.input.invalid"),
        ({"item": "bolt", "quantty": 1}, "job.input.invalid"),
        ({"quantity": 1}, "job.input.invalid"),
    ]
    for arguments, code in refused:
        with raises_code(code, Invalid):
            await app.schedules.create(schedule_definition("s", manual(), [Step.of("inventory.order", arguments)]))
    await app.extensions.inventory.add("bolt", level=100)
    with raises_code("inventory.order.too_large", Invalid) as error:
        await app.schedules.create(
            schedule_definition("s", manual(), [Step.of("inventory.order", {"item": "bolt", "quantity": 5000})])
        )
    assert error.value.field == "steps.inventory.order.arguments.quantity"
    created = await app.schedules.create(schedule_definition("restock", manual(), [step]))
    (saved,) = [step for _, _, step in created.plan.enumerate_steps()]
    assert (saved.limit_key, saved.limit_max) == ("inventory:bolt", 1)


async def test_step_runs_in_a_worker_and_its_order_is_an_event(app: Tenuto) -> None:
    await app.extensions.inventory.add("bolt", level=100)
    database = await app.open()
    detector = ChangeDetector(extensions=app.extension_registry)
    await detector.detect_changes(database, database.clock.now())
    assert "inventory.orders" in EventFeed(app.open, app.extension_registry).topics
    step = Step.of("inventory.order", {"item": "bolt", "quantity": 150})
    await app.schedules.create(schedule_definition("restock", manual(), [step]))
    async with app.worker():
        run = await app.schedules.run("restock")
        assert run.execution_id is not None
        assert (await app.executions.wait(run.execution_id, 30)).state == "completed"
    (item,) = await app.extensions.inventory.items()
    assert item.stock == 150
    events = await detector.detect_changes(database, database.clock.now())
    assert [event.data for event in events if event.topic == "inventory.orders"] == [{"item": "bolt", "quantity": 150}]
    assert 'tenuto_inventory_items{stock="sufficient"} 1.0' in await app.status.metrics()


async def test_doctor_reports_low_stock(app: Tenuto) -> None:
    await app.extensions.inventory.add("bolt", level=100)
    findings = {finding.name: finding for finding in await app.doctor()}
    assert findings["inventory_stock"].severity is Severity.WARNING
    assert findings["inventory_stock"].details == ["bolt: 0 of 100"]
    assert (findings["extensions"].severity, findings["extensions"].details) == (Severity.OK, ["inventory"])


async def test_definition_list_is_applied_with_the_schedules_that_use_it(app: Tenuto) -> None:
    both = declare(
        "items: [{name: bolt, level: 100}]\n"
        "schedules: [{name: restock, steps: [{kind: inventory.order, arguments: {item: bolt, quantity: 5}}]}]\n"
    )
    planned = await app.plans.plan(both)
    assert planned.has_changes
    await app.plans.apply(planned)
    assert [item.level for item in await app.extensions.inventory.items()] == [100]
    assert (await app.schedules.get("restock")).name == "restock"
    assert not (await app.plans.plan(both)).has_changes
    raised = await app.plans.plan(declare("items: [{name: nut, level: 7}]"), prune=True)
    assert list(raised.deleted) == ["restock", "bolt"]


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("items: [{name: bolt, level: -1}]", "inventory.item.invalid", "line 1: items[0].level"),
        (
            "items: [{name: a, level: 1}, {name: a, level: 2}]",
            "definition.duplicate",
            "line 1: items[1]",
        ),
        ("itms: [{name: bolt}]", "definition.field.unknown", "line 1: itms"),
    ],
)
async def test_invalid_entry_of_a_definition_list_is_located(app: Tenuto, text: str, code: str, place: str) -> None:
    with raises_code(code, Invalid) as error:
        await app.plans.plan(declare(text))
    assert error.value.field == f"inventory.yaml, {place}"


async def test_migration_creates_partitions_of_the_extension(app: Tenuto) -> None:
    database = await app.open()
    month = f"tenuto_inventory.levels_{database.clock.now():%Y_%m}"
    assert await database.fetch_value("SELECT to_regclass($1)::text", month) is not None


async def test_housekeeping_applies_retention_and_creates_partitions(app: Tenuto) -> None:
    database = await app.open()
    registry = app.extension_registry
    await database.write_all(
        "INSERT INTO tenuto_inventory.orders (task_id, item, quantity, at) VALUES"
        " (gen_random_uuid(), 'bolt', 1, now() - interval '100 days'), (gen_random_uuid(), 'nut', 1, now())"
    )
    housekeeping = Housekeeping(
        database, database.clock, app.settings, retention=registry.retention(), tables=registry.partitioned_tables()
    )
    await housekeeping.run_cycle()
    assert await database.fetch_value("SELECT string_agg(item, ',') FROM tenuto_inventory.orders") == "nut"
    month = f"levels_{database.clock.now():%Y_%m}"
    assert await database.fetch_value("SELECT to_regclass($1)::text", f"tenuto_inventory.{month}") is not None
    old = await database.fetch_value("SELECT to_regclass('tenuto_inventory.levels_2001_01')")
    assert old is None
    await database.write_all(
        "CREATE TABLE tenuto_inventory.levels_2001_01 PARTITION OF tenuto_inventory.levels"
        " FOR VALUES FROM ('2001-01-01') TO ('2001-02-01')"
    )
    await database.write_all(
        "INSERT INTO tenuto_inventory.levels VALUES ('2000-12-31', 'bolt', 1), (now() - interval '60 days', 'bolt', 1)"
    )
    await housekeeping.apply_retention(database.clock.now() + timedelta(seconds=1))
    assert await database.fetch_value("SELECT to_regclass('tenuto_inventory.levels_2001_01')") is None
    assert await database.fetch_value("SELECT count(*) FROM tenuto_inventory.levels") == 1, "the default partition"


async def test_background_service_runs_in_a_scheduler(app: Tenuto) -> None:
    await app.extensions.inventory.add("bolt", level=100)
    database = await app.open()
    async with app.scheduler():
        await eventually(lambda: database.fetch_value("SELECT count(*) FROM tenuto_inventory.levels"))


def test_routes_are_documented(tmp_path: Path) -> None:
    app = Tenuto("postgresql://nowhere/x", home=tmp_path, extensions=[Inventory()])
    described = openapi_document(create_api(app))["paths"]["/api/v1/inventory/items"]
    assert described["post"]["x-role"] == "editor"
    for method, status in (("get", "200"), ("post", "201")):
        assert "example" in described[method]["responses"][status]["content"]["application/json"], method
    assert app.extension_registry.failures == []


async def test_routes_page_items_and_add_one_for_a_repeated_request(
    app: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = await app.api_keys.create("admin", Role.ADMIN)
    api = create_api(app)
    transport = httpx2.ASGITransport(app=add_middleware(app, api), client=("127.0.0.1", 50000))
    client = ApiClient(app, api, {Role.ADMIN: key}, httpx2.AsyncClient(transport=transport, base_url=HOST))
    add: dict[str, Any] = {"path": "/api/v1/inventory/items", "headers": {"Idempotency-Key": "one"}}
    bolt = {"name": "bolt", "level": 100}

    async def crash(*_: object) -> None:
        raise ConnectionError("process crashed")

    with monkeypatch.context() as patched:
        patched.setattr(idempotency_keys, "store_response", crash)
        with pytest.raises(ConnectionError):
            await client.post(**add, json=bolt)
    again = await client.post(**add, json=bolt)
    assert (again.status_code, again.json()) == (201, {**bolt, "stock": 0}), again.text
    assert [entry.action for entry in await app.audit.list()].count("inventory.item.add") == 1
    assert_problem(await client.post(add["path"], json=bolt), 409, "inventory.item.exists")
    await client.post(add["path"], json={"name": "nut", "level": 1})
    page = await client.get_json("/api/v1/inventory/items?limit=1")
    assert [item["name"] for item in page["items"]] == ["bolt"]
    rest = await client.get_json(f"/api/v1/inventory/items?limit=100&after={page['next']}")
    assert ([item["name"] for item in rest["items"]], rest["next"]) == (["nut"], None)


def test_code_on_the_page_is_taken_from_the_sample() -> None:
    sources = [
        textwrap.dedent(line) for file in FOLDER.rglob("*.py") for line in file.read_text(encoding="utf-8").splitlines()
    ]
    page = FOLDER.parents[1] / "docs" / "how-to" / "write-an-extension.md"
    code = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(code) > 10
    known = set(sources)
    assert [line for block in code for line in block.splitlines() if textwrap.dedent(line) not in known] == []


# --- installation --------------------------------------------------------------------------------------------------


USE_INSTALLED = """
import asyncio
import httpx2
import tenuto_inventory
from tenuto import Step, Tenuto, manual
from tenuto.web.server import web_server
from tenuto.model.access.actors import Role

async def main() -> None:
    print(tenuto_inventory.__file__)
    app = Tenuto()
    app.schedule("restock", manual(), [Step.of("inventory.order", {"item": "bolt", "quantity": 150})])
    async with app, app.worker():
        _, key = await app.api_keys.create("viewer", Role.VIEWER)
        async with web_server(app, port=0) as address, httpx2.AsyncClient() as client:
            headers = {"Authorization": f"Bearer {key}"}
            print((await client.get(f"{address}/api/v1/inventory/items", headers=headers)).text)
        await app.schedules.deploy()
        run = await app.schedules.run("restock")
        print((await app.executions.wait(run.execution_id, timeout=30)).state)
        print((await app.extensions.inventory.items())[0].stock)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_extension_works_when_it_is_installed(url: str, tmp_path: Path) -> None:
    """Built from its own folder and installed as a wheel beside Tenuto: found by its entry point."""
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*wheel, str(FOLDER)], check=True)
    (built,) = tmp_path.glob("tenuto_inventory-1.0.0-*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    subprocess.run([*install, str(tmp_path / "site"), str(built)], check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "site"),
        "TENUTO_DATABASE": url,
        "TENUTO_HOME": str(tmp_path / "home"),
    }

    def tenuto(*arguments: str) -> str:
        command = [sys.executable, "-m", "tenuto", *arguments]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode in (0, *([5] if arguments == ("doctor",) else [])), done.stderr  # warnings
        return done.stdout

    assert "List and add items" in tenuto("--help")
    assert "tenuto_inventory.items" in tenuto("migrate", "--print")
    tenuto("migrate")
    tenuto("inventory", "add", "bolt", "--level", "100")
    assert "bolt  0 of 100" in tenuto("inventory", "list")
    assert "the stock of some items is low" in tenuto("doctor")
    done = subprocess.run(
        [sys.executable, "-c", USE_INSTALLED],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    module, items, state, stock = done.stdout.splitlines()
    assert Path(module).is_relative_to(tmp_path / "site"), "the module is not that of the wheel"
    assert json.loads(items) == {"items": [{"name": "bolt", "stock": 0, "level": 100}], "next": None, "searched": None}
    assert (state, stock) == ("completed", "150")
