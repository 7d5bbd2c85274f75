"""The search over the objects of Tenuto and of all extensions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Protocol

from tenuto.extension import Contribution, Extension, FoundObject, PageRequest, SearchSource
from tenuto.extension.registry import ExtensionRegistry, resolve_target
from tenuto.model.access.actors import Role
from tenuto.operations.extension_operations import ExtensionOperations
from tenuto.operations.reports import MAX_HITS, Reports
from tenuto.postgres.database import Database
from tenuto.store.reports.search import SearchHit


class SearchableApp(Protocol):
    """Part of the app that the search uses."""

    reports: Reports
    extensions: ExtensionOperations
    extension_registry: ExtensionRegistry

    async def open(self) -> Database:
        """Return the database."""


SEARCH_SECONDS = 2.0
"""How long a search waits for extensions."""


async def search_everywhere(
    app: SearchableApp, text: str, role: Role, limit: int = MAX_HITS
) -> Sequence[SearchHit | FoundObject]:
    """Return objects of Tenuto, then those of extensions. An extension that fails or is slow finds nothing."""
    hits = await app.reports.search(text, limit=limit)
    found = await asyncio.gather(*(_search(app, each, text, role) for each in app.extension_registry.searches()))
    everything: list[SearchHit | FoundObject] = [*hits, *chain.from_iterable(found)]
    return everything[:limit]


async def _search(app: SearchableApp, source: Contribution[SearchSource], text: str, role: Role) -> list[FoundObject]:
    extension, registry = source.extension, app.extension_registry
    found: list[FoundObject] = []
    with registry.isolate(extension, "searches"):
        async with registry.limit_time(SEARCH_SECONDS):
            has_operations = type(extension).operations is not Extension.operations
            operations = getattr(app.extensions, extension.name) if has_operations else None
            now = (await app.open()).clock.now()
            given = await resolve_target(source.value.load)(PageRequest(operations, role, now, query={"q": text}))
            found = registry.check(extension, given, FoundObject)
    return found
