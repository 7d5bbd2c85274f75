"""The registry of extensions: discovery, compatibility, isolation of their errors, settings sections and schemas."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import cast

import pytest
from pydantic import BaseModel, Field

from tenuto import Actor, Step, Tenuto, manual
from tenuto.cli.app_loader import load_app
from tenuto.errors import Invalid, NotFound, SchemaBehind
from tenuto.extension import Extension, ExtensionServices, Retention, StepKind
from tenuto.extension.registry import ExtensionRegistry, is_compatible
from tenuto.operations.bound_operation import OperationGroup
from tenuto.operations.definitions.schedules import schedule_definition
from tenuto.postgres.database import Database
from tenuto.settings import load_section
from tenuto.version import __version__
from tests.support.errors import raises_code
from tests.support.extension_registries import make_registry


class InventorySettings(BaseModel):
    page_size: int = Field(100, ge=1)
    currency: str = "EUR"


class InventoryOperations(OperationGroup):
    def __init__(self, services: ExtensionServices) -> None:
        super().__init__(services.open_database, services.caller)
        self.services = services

    async def count(self) -> int:
        database = await self._open()
        found: int = await database.fetch_value("SELECT count(*) FROM tenuto_inventory.items")
        return found

    async def add(self, name: str) -> None:
        operation = await self._begin("inventory.add", target=name)
        await operation.database.write_all("INSERT INTO tenuto_inventory.items VALUES ($1)", name)


class Inventory(Extension):
    name = "inventory"
    requires_tenuto = ">=0.1,<0.2"
    directory: Path | None = None

    def settings(self) -> type[InventorySettings]:
        return InventorySettings

    def migrations(self) -> Path | None:
        return self.directory

    def operations(self, services: ExtensionServices) -> InventoryOperations:
        return InventoryOperations(services)


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    (tmp_path / "0001_items.sql").write_text("CREATE TABLE tenuto_inventory.items (name text PRIMARY KEY)")
    extension = Inventory()
    extension.directory = tmp_path
    return extension


# --- loading -----------------------------------------------------------------------------------------------------


class NeedsNewerTenuto(Extension):
    name = "newer"
    requires_tenuto = ">=99"


class Misnamed(Extension):
    name = "Not A Name"


class Undeclared(Extension):
    name = "undeclared"


class BrokenRetention(Extension):
    name = "broken"
    requires_tenuto = ">=0.1"

    def retention(self) -> Sequence[Retention]:
        raise KeyError("no such key")


def test_registry_loads_given_extensions(inventory: Inventory) -> None:
    registry = make_registry([inventory])
    assert registry.extensions == (inventory,)
    assert registry.find("inventory") is inventory
    assert registry.failures == []


@pytest.mark.parametrize(
    ("faulty", "problem"),
    [
        (NeedsNewerTenuto(), f"it requires Tenuto >=99, and this is {__version__}"),
        (Misnamed(), "'Not A Name' cannot be the name of an extension"),
        (Inventory(), "two extensions are named 'inventory'"),
        ("inventory", "'inventory' is not an extension"),
    ],
)
def test_registry_names_an_unusable_extension_and_uses_the_others(
    inventory: Inventory, faulty: Extension, problem: str
) -> None:
    registry = make_registry([inventory, faulty])
    assert registry.extensions == (inventory,)
    (failure,) = registry.failures
    assert (failure.part, failure.problem) == ("loading", problem)


def test_registry_omits_the_failed_contribution_only(inventory: Inventory) -> None:
    registry = make_registry([BrokenRetention(), inventory])
    assert registry.collect("retention", lambda extension: extension.retention()) == []
    assert [extension.name for extension in registry.extensions] == ["broken", "inventory"]
    (failure,) = registry.failures
    assert (failure.extension, failure.part, failure.problem) == ("broken", "retention", "KeyError: 'no such key'")


def test_registry_logs_a_failure_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = make_registry([BrokenRetention()])
    for _ in range(3):
        registry.collect("retention", lambda extension: extension.retention())
    assert [record.message.startswith("extension failed extension='broken'") for record in caplog.records] == [True]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Entry points of installed extensions."""
    found: list[EntryPoint] = []
    monkeypatch.setattr("tenuto.extension.registry.find_entry_points", lambda: found)
    return found


def test_registry_loads_installed_extensions(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("inventory", f"{__name__}:Inventory", "tenuto.extensions"))
    assert [extension.name for extension in make_registry().extensions] == ["inventory"]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("gone", "no_such_module:Extension", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("empty", f"{__name__}:NOTHING", f"AttributeError: module '{__name__}' has no attribute 'NOTHING'"),
        ("path", "pathlib:Path", "pathlib:Path is of type PosixPath, not an extension"),
        ("undeclared", f"{__name__}:Undeclared", "it does not declare which versions of Tenuto it works with"),
        ("other", f"{__name__}:Inventory", "the extension is named 'inventory', but its entry point 'other'"),
    ],
)
def test_registry_names_an_extension_that_cannot_be_imported(
    installed: list[EntryPoint], name: str, value: str, problem: str
) -> None:
    installed += [EntryPoint(name, value, "tenuto.extensions"), EntryPoint("broken", f"{__name__}:BrokenRetention", "")]
    registry = make_registry()
    assert [extension.name for extension in registry.extensions] == ["broken"]
    assert [(failure.extension, failure.problem) for failure in registry.failures] == [(name, problem)]


def test_registry_loads_a_given_extension_without_versions() -> None:
    assert [extension.name for extension in make_registry([Undeclared()]).extensions] == ["undeclared"]


def test_registry_does_not_import_disabled_extensions(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("gone", "no_such_module:Extension", "tenuto.extensions"))
    registry = ExtensionRegistry(disabled=lambda: ("gone", "identity"))
    assert (registry.extensions, registry.failures) == ((), [])


@pytest.mark.parametrize(
    ("required", "version", "expected"),
    [
        ("", "0.1.0", True),
        (">=0.1,<0.2", "0.1.0", True),
        (">=0.1,<0.2", "0.1.9.dev3", True),
        (">=0.1,<0.2", "0.2.0", False),
        (">= 0.1.1", "0.1", False),
        ("==0.1", "0.1.0", True),
        ("!=0.1.0", "0.1", False),
        (">0.1,<=0.3", "0.3.0", True),
    ],
)
def test_version_conditions(required: str, version: str, expected: bool) -> None:
    assert is_compatible(required, version) is expected


def test_malformed_version_condition_is_rejected() -> None:
    with raises_code("extension.version.invalid", Invalid):
        is_compatible("~0.1", "0.1")


# --- settings ------------------------------------------------------------------------------------------------------


def test_settings_section_comes_from_environment_file_and_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inventory: Inventory
) -> None:
    (tmp_path / "tenuto.toml").write_text('[inventory]\npage_size = 5\ncurrency = "GBP"\n')
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "tenuto.toml"))
    monkeypatch.setenv("TENUTO_INVENTORY_PAGE_SIZE", "7")
    app = Tenuto("postgresql://nowhere/x", extensions=[inventory])
    section = app.extensions.inventory.services.section(InventorySettings)
    assert (section.page_size, section.currency) == (7, "GBP")


@pytest.mark.parametrize("line", ["page_size = 0", "page_sise = 5"])
def test_settings_section_with_an_invalid_value_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inventory: Inventory, line: str
) -> None:
    (tmp_path / "tenuto.toml").write_text(f"[inventory]\n{line}\n")
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "tenuto.toml"))
    app = Tenuto("postgresql://nowhere/x", extensions=[inventory])
    with raises_code("settings.value.invalid", Invalid) as error:
        app.extensions.inventory.services.section(InventorySettings)
    assert error.value.field == f"inventory.{line.split()[0]}"


@pytest.mark.parametrize("name", ["web", "connections"])
def test_settings_section_with_the_prefix_of_core_settings_is_rejected(name: str) -> None:
    with raises_code("settings.section.reserved", Invalid):
        load_section(name, InventorySettings)


def test_unknown_settings_section_names_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inventory: Inventory
) -> None:
    (tmp_path / "tenuto.toml").write_text("[inventry]\npage_size = 5\n")
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "tenuto.toml"))
    with raises_code("settings.section.unknown", Invalid) as error:
        Tenuto("postgresql://nowhere/x", extensions=[inventory])
    assert "[connections], [inventory], [notifications], [worker]" in (error.value.remedy or "")


def test_command_without_app_reports_the_section_of_an_unknown_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tenuto.toml").write_text("[inventory]\npage_size = 5\n")
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "tenuto.toml"))
    app = load_app(None, "postgresql://nowhere/x", str(tmp_path), is_service=False)
    (failure,) = app.extension_registry.failures
    assert (failure.extension, failure.part) == ("inventory", "settings")
    assert "unknown table [inventory]" in failure.problem
    assert "--app" in failure.remedy


def test_service_without_app_rejects_the_section_of_an_unknown_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tenuto.toml").write_text("[inventory]\npage_size = 5\n")
    monkeypatch.setenv("TENUTO_CONFIG", str(tmp_path / "tenuto.toml"))
    with raises_code("settings.section.unknown", Invalid):
        load_app(None, "postgresql://nowhere/x", str(tmp_path), is_service=True)


def test_settings_section_is_read_once_per_app(monkeypatch: pytest.MonkeyPatch, inventory: Inventory) -> None:
    read: list[str] = []

    def load(name: str, model: type[BaseModel]) -> BaseModel:
        read.append(name)
        return load_section(name, model)

    monkeypatch.setattr("tenuto.app.load_section", load)
    app = Tenuto("postgresql://nowhere/x", extensions=[inventory])
    services = app.extensions.inventory.services
    acting = app.acting_as(Actor.user("eve")).extension_registry.create_services(inventory)
    assert services.section(InventorySettings) is acting.section(InventorySettings)
    assert read == ["inventory"]


def test_settings_section_of_another_type_is_rejected(inventory: Inventory) -> None:
    class OtherSettings(BaseModel): ...

    app = Tenuto("postgresql://nowhere/x", extensions=[inventory])
    with raises_code("extension.settings.type", Invalid):
        app.extensions.inventory.services.section(OtherSettings)


# --- operations and schemas ----------------------------------------------------------------------------------------


async def test_extension_operations_need_the_schema_of_the_extension(url: str, inventory: Inventory) -> None:
    async with Tenuto(url, extensions=[inventory]) as app:
        with raises_code("schema.missing", SchemaBehind):
            await app.extensions.inventory.count()
        assert [failure.part for failure in app.extension_registry.failures] == ["migrations"]
        applied = await app.migrate()
        assert [(each.component, each.number) for each in applied] == [("inventory", 1)]
        assert await app.extensions.inventory.count() == 0
        assert app.extension_registry.failures == []


async def test_changes_of_an_extension_are_recorded_for_the_caller(url: str, inventory: Inventory) -> None:
    async with Tenuto(url, extensions=[inventory]) as app:
        await app.migrate()
        await app.extensions.inventory.add("hammer")
        assert await app.audit.list() == []
        acting = app.acting_as(Actor.user("eve"), source="test", reason="stock-taking")
        await acting.extensions.inventory.add("nail")
        [entry] = await app.audit.list()
        assert (entry.action, entry.target, entry.actor_name, entry.reason) == (
            "inventory.add", "nail", "eve", "stock-taking",
        )  # fmt: skip
        assert await acting.extensions.inventory.count() == 2


async def test_failed_migration_of_an_extension_is_raised_after_all_others(
    url: str, db: Database, inventory: Inventory, tmp_path: Path
) -> None:
    class Broken(Extension):
        name = "broken"

        def migrations(self) -> Path:
            return tmp_path / "broken"

    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "0001_first.sql").write_text("CREATE TABEL x ()")
    async with Tenuto(url, extensions=[Broken(), inventory]) as app:
        with pytest.raises(Invalid, match=r"the extension 'broken' was not migrated: .*syntax error"):
            await app.migrate()
        assert [failure.extension for failure in app.extension_registry.failures] == ["broken"]
        assert await app.extensions.inventory.count() == 0


class FaultyMigrations(Extension):
    name = "faulty"
    directory: object = None

    def migrations(self) -> Path | None:
        if isinstance(self.directory, BaseException):
            raise self.directory
        return cast("Path | None", self.directory)


@pytest.fixture(params=["text", "not UTF-8", "misnamed", "failing", "exiting"])
def faulty_migrations(request: pytest.FixtureRequest, tmp_path: Path) -> FaultyMigrations:
    folder = tmp_path / "faulty"
    folder.mkdir()
    if request.param == "not UTF-8":
        (folder / "0001_first.sql").write_bytes(b"SELECT '\xff'")
    if request.param == "misnamed":
        (folder / "first.sql").write_text("SELECT 1")
    extension = FaultyMigrations()
    values = {"text": str(folder), "failing": KeyError("folder"), "exiting": SystemExit(3)}
    extension.directory = values.get(request.param, folder)
    return extension


async def test_migrate_names_the_extension_whose_migrations_cannot_be_read(
    url: str, db: Database, inventory: Inventory, faulty_migrations: FaultyMigrations
) -> None:
    async with Tenuto(url, extensions=[faulty_migrations, inventory]) as app:
        with pytest.raises(Invalid, match="the extension 'faulty' was not migrated"):
            await app.migrate()
        assert [(each.extension, each.part) for each in app.extension_registry.failures] == [("faulty", "migrations")]
        assert await app.extensions.inventory.count() == 0


def test_migration_script_leaves_out_migrations_that_cannot_be_read(
    inventory: Inventory, faulty_migrations: FaultyMigrations
) -> None:
    app = Tenuto("postgresql://nowhere/x", extensions=[faulty_migrations, inventory])
    script = app.migration_script()
    assert "CREATE SCHEMA IF NOT EXISTS tenuto_inventory;" in script
    assert "tenuto_faulty" not in script
    assert [(each.extension, each.part) for each in app.extension_registry.failures] == [("faulty", "migrations")]


def test_missing_extension_is_named(inventory: Inventory) -> None:
    app = Tenuto("postgresql://nowhere/x", extensions=[inventory, NeedsNewerTenuto(), BrokenRetention()])
    with raises_code("extension.not_found", NotFound):
        _ = app.extensions.unknown
    with raises_code("extension.failed", NotFound):
        _ = app.extensions.newer
    with raises_code("extension.no_operations", NotFound):
        _ = app.extensions.broken
    assert not hasattr(app.extensions, "unknown")


def test_migration_script_contains_the_schemas_of_extensions(inventory: Inventory) -> None:
    script = Tenuto("postgresql://nowhere/x", extensions=[inventory]).migration_script()
    assert "CREATE SCHEMA IF NOT EXISTS tenuto_inventory;" in script


async def test_schedule_of_a_broken_extension_is_left_out_and_the_others_are_deployed(url: str) -> None:
    class Broken(Extension):
        name = "notes"
        requires_tenuto = ">=0.1,<0.2"

        def step_kinds(self, services: ExtensionServices) -> Sequence[StepKind]:
            raise KeyError("no such table")

    async with Tenuto(url, extensions=[Broken()]) as app:

        @app.job
        async def bake() -> None: ...

        app.schedule("notes", manual(), [Step.of("notes.write")])
        app.schedule("bread", manual(), [Step.job(bake)])
        async with app.scheduler():
            assert [schedule.name for schedule in await app.schedules.list()] == ["bread"]
        with raises_code("step.kind.not_available", Invalid):
            await app.schedules.create(schedule_definition("other", manual(), [Step.of("notes.write")]))
