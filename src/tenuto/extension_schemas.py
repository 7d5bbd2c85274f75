"""Schemas of extensions: their migrations, applied and checked apart from those of the core.

A schema that does not fit stops the operations of its extension only.
"""

from __future__ import annotations

from tenuto.errors import TenutoError
from tenuto.extension import Extension
from tenuto.extension_registry import ExtensionRegistry
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tenuto.postgres.migrator import Component, Migration

_PART = "migrations"


class ExtensionSchemas:
    """The schemas of an app's extensions."""

    def __init__(self, registry: ExtensionRegistry) -> None:
        self._registry = registry
        self._prepared: set[str] = set()

    def components(self) -> list[Component]:
        """Return the extensions that have migrations."""
        found = self._registry.collect(_PART, lambda extension: filter(None, [_component(extension)]))
        return [contribution.value for contribution in found]

    async def migrate(self, database: Database) -> list[Migration]:
        """Migrate every extension, each in its own transaction; then raise the first error."""
        applied: list[Migration] = []
        errors: list[TenutoError] = []
        for component in self.components():
            try:
                applied += await migrator.migrate(database, component)
                self._registry.clear_failure(component.name, _PART)
            except TenutoError as error:
                self._registry.report_failure(component.name, _PART, error)
                errors.append(error)
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


def _component(extension: Extension) -> Component | None:
    directory = extension.migrations()
    return None if directory is None else Component(extension.name, directory)
