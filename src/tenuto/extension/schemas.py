"""Schemas of extensions: their migrations, applied and checked apart from those of the core.

A schema that does not fit stops the operations of its extension only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenuto.errors import Invalid, SchemaMismatch, TenutoError, Unavailable
from tenuto.extension.contract import Extension
from tenuto.extension.registry import ExtensionRegistry
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.postgres.migrator import Component, Migration

_PART = "migrations"


class ExtensionSchemas:
    """The schemas of an app's extensions."""

    def __init__(self, registry: ExtensionRegistry) -> None:
        self._registry = registry
        self._prepared: set[str] = set()

    def readable_components(self) -> list[Component]:
        """Return the extensions that have migrations; one whose migrations cannot be read is reported and left out."""

        def contribute(extension: Extension) -> list[Component]:
            component = _component(extension)
            if component is None:
                return []
            component.load_migrations()
            return [component]

        return [contribution.value for contribution in self._registry.collect(_PART, contribute)]

    async def migrate(self, database: Database) -> list[Migration]:
        """Migrate every extension, each in its own transaction; then raise the first error with its extension."""
        applied: list[Migration] = []
        errors: list[TenutoError] = []
        for extension in self._registry.extensions:
            with self._registry.isolate(extension, _PART), _collect_error(extension, errors):
                component = _component(extension)
                if component is not None:
                    applied += await migrator.migrate(database, component)
        if errors:
            raise errors[0]
        return applied

    async def prepare(self, database: Database, extension: Extension, *, migrate: bool) -> None:
        """Raise an error unless the schema of the extension has the version of this program.

        ``migrate`` applies missing migrations before, as for the embedded database.
        """
        component = _component(extension)
        if component is None or extension.name in self._prepared:
            return
        try:
            if migrate:
                await migrator.migrate(database, component)
            else:
                versions = await migrator.load_versions(database)
                migrator.check_component(component, versions.get(component.name, 0))
        except TenutoError as error:
            self._registry.report_failure(extension.name, _PART, error)
            raise
        self._registry.clear_failure(extension.name, _PART)
        self._prepared.add(extension.name)

    async def prepare_all(self, database: Database, *, migrate: bool) -> None:
        """Prepare every extension; failures are reported and do not stop the caller."""
        for extension in self._registry.extensions:
            with self._registry.isolate(extension, _PART):
                await self.prepare(database, extension, migrate=migrate)


@contextmanager
def _collect_error(extension: Extension, errors: list[TenutoError]) -> Iterator[None]:
    """Add an error of the block to the list, with the name of the extension, and raise it."""
    try:
        yield
    except (Unavailable, SchemaMismatch) as error:  # they name the schema of the extension
        errors.append(error)
        raise
    except TenutoError as error:
        message = f"the extension {extension.name!r} was not migrated: {error.message}"
        errors.append(Invalid(message, code=error.code, remedy=error.remedy))
        raise
    except (Exception, SystemExit) as error:  # code of an extension: the others are migrated all the same
        errors.append(
            Invalid(
                f"the extension {extension.name!r} was not migrated: {type(error).__name__}: {error}",
                code="extension.migrations.failed",
                remedy=f"upgrade or uninstall the extension {extension.name}",
            )
        )
        raise


def _component(extension: Extension) -> Component | None:
    directory = extension.migrations()
    if directory is not None and not isinstance(directory, Path):
        raise Invalid(
            f"migrations() returns {directory!r}, not a path",
            code="extension.migrations.invalid",
            remedy="return pathlib.Path(…), the folder with the migrations",
        )
    return None if directory is None else Component(extension.name, directory)
