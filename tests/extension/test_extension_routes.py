"""Routes and commands of extensions: mounted under their name, refused without a role, imported only when called."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from typing import Annotated

import click
import pytest
from fastapi import APIRouter

from tenuto import Tenuto
from tenuto.api.api_route import ApiRoute
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.cli import exit_codes
from tenuto.cli.command_tree import CORE_COMMANDS, LazyGroup, run
from tenuto.extension import CommandEntry, Extension, RouterEntry
from tenuto.model.access.actors import Role

router = APIRouter(route_class=ApiRoute)
open_router = APIRouter(route_class=ApiRoute)
plain_router = APIRouter()


@router.get("/items", operation_id="inventory_items")
async def list_items(call: Annotated[ApiCall, requires(Role.VIEWER, "inventory.item.list")]) -> list[str]:
    """List items."""
    return ["bolt"]


@open_router.get("/items", operation_id="inventory_open_items")
async def list_open_items() -> list[str]:
    """List items."""
    return ["bolt"]


@plain_router.get("/items", operation_id="inventory_plain_items")
async def list_plain_items(call: Annotated[ApiCall, requires(Role.VIEWER, "inventory.item.list")]) -> list[str]:
    """List items."""
    return ["bolt"]


mixed_router = APIRouter(route_class=ApiRoute)
mixed_router.add_api_route("/items", list_items, operation_id="inventory_mixed_items")
mixed_router.add_api_route("/open-items", list_open_items, operation_id="inventory_mixed_open_items")


class Inventory(Extension):
    def __init__(self, target: str = "router", name: str = "inventory") -> None:
        self.name = name
        self.target = target

    def routers(self) -> Sequence[RouterEntry]:
        return [RouterEntry(f"{__name__}:{self.target}")]

    def commands(self) -> Sequence[CommandEntry]:
        return [CommandEntry("inventory", "Work", "Count items", f"{__name__}:{self.target}")]


def api_paths(app: Tenuto) -> set[str]:
    return set(openapi_document(create_api(app))["paths"])


def test_router_is_mounted_under_the_name_of_the_extension() -> None:
    app = Tenuto("postgresql://nowhere/x", extensions=[Inventory()])
    assert "/api/v1/inventory/items" in api_paths(app)
    assert app.extension_registry.failures == []


@pytest.mark.parametrize(
    ("extension", "part", "problem"),
    [
        (Inventory("open_router"), "route /items", "the route /items declares no role"),
        (Inventory("plain_router"), "route /items", "the route /items declares no role"),
        (Inventory("list_items"), "routers", f"{__name__}:list_items is not a FastAPI router"),
        (Inventory("missing"), "routers", f"AttributeError: module '{__name__}' has no attribute 'missing'"),
        (Inventory(name="schedules"), "routers", "the path /api/v1/schedules belongs to Tenuto: /api/v1/schedules"),
    ],
)
def test_unusable_router_is_left_out_and_named(extension: Inventory, part: str, problem: str) -> None:
    app = Tenuto("postgresql://nowhere/x", extensions=[extension])
    paths = api_paths(app)
    assert "/api/v1/schedules" in paths
    assert f"/api/v1/{extension.name}/items" not in paths
    assert [(failure.part, failure.problem) for failure in app.extension_registry.failures] == [(part, problem)]


def test_only_the_route_without_a_role_is_left_out_and_named() -> None:
    app = Tenuto("postgresql://nowhere/x", extensions=[Inventory("mixed_router")])
    paths = api_paths(app)
    assert "/api/v1/inventory/items" in paths
    assert "/api/v1/inventory/open-items" not in paths
    problems = [failure.problem for failure in app.extension_registry.failures]
    assert problems == ["the route /open-items declares no role"]
    assert len(mixed_router.routes) == 2, "the router of the extension is unchanged"


def test_doctor_names_a_route_without_a_role() -> None:
    app = Tenuto("postgresql://nowhere/x", extensions=[Inventory("mixed_router")])
    app.extension_registry.try_all_parts()
    failures = [(failure.part, failure.problem) for failure in app.extension_registry.failures]
    assert ("routers", "the route /open-items declares no role") in failures


def install(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = [EntryPoint("inventory", value, "tenuto.extensions") for value in values]
    monkeypatch.setattr("tenuto.extension.registry.find_entry_points", lambda: points)


@click.command("count")
def count_items() -> None:
    """Count items."""


class CountCommand(Extension):
    name = "inventory"
    requires_tenuto = ">=0.1"

    def commands(self) -> Sequence[CommandEntry]:
        return [CommandEntry("count", "Work", "Count items", f"{__name__}:count_items")]


class SameCommand(Extension):
    name = "inventory"
    requires_tenuto = ">=0.1"

    def commands(self) -> Sequence[CommandEntry]:
        return [CommandEntry("task", "Work", "Count items", "no_such_module:command")]


class LazyCommand(Extension):
    name = "inventory"
    requires_tenuto = ">=0.1"

    def commands(self) -> Sequence[CommandEntry]:
        return [CommandEntry("lazy", "Work", "Count items lazily", "no_such_module:command")]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> LazyGroup:
    """The top-level group, before any command of an extension was added."""
    group = LazyGroup(CORE_COMMANDS, name="tenuto")
    monkeypatch.setattr("tenuto.cli.command_tree.root", group)
    return group


def test_command_of_an_extension_is_found_and_listed(monkeypatch: pytest.MonkeyPatch, root: LazyGroup) -> None:
    install(monkeypatch, f"{__name__}:CountCommand")
    context = click.Context(root)
    assert root.get_command(context, "count") is count_items
    assert "Count items" in root.get_help(context)


def test_help_does_not_import_the_module_of_a_command(monkeypatch: pytest.MonkeyPatch, root: LazyGroup) -> None:
    install(monkeypatch, f"{__name__}:LazyCommand")
    assert "Count items lazily" in root.get_help(click.Context(root))
    assert "no_such_module" not in sys.modules


def test_core_command_is_called_without_looking_for_extensions(
    monkeypatch: pytest.MonkeyPatch, root: LazyGroup
) -> None:
    def fail() -> list[EntryPoint]:
        raise AssertionError("extensions were searched")

    monkeypatch.setattr("tenuto.extension.registry.find_entry_points", fail)
    assert root.get_command(click.Context(root), "version") is not None


@pytest.mark.parametrize("value", ["no_such_module:Extension", f"{__name__}:SameCommand"])
def test_help_names_an_extension_whose_commands_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, root: LazyGroup, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    install(monkeypatch, value)
    assert "Administration" in root.get_help(click.Context(root))
    assert root.entries["task"].target.startswith("tenuto.cli.")
    assert [record.message.startswith("extension failed extension='inventory'") for record in caplog.records] == [True]


def test_command_that_cannot_be_imported_is_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, root: LazyGroup, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, f"{__name__}:LazyCommand")
    assert run(["lazy"]) == exit_codes.FAILED
    message = "error: the command 'lazy' cannot be loaded from no_such_module:command: ModuleNotFoundError"
    assert capsys.readouterr().err.startswith(message)
    assert run(["lazy", "-o", "json"]) == exit_codes.FAILED
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "cli.command.failed"
