"""Objects of containers that may have been moved out of what an import reads, while the system reports nothing about
them: one object of each container shows whether the container is still where it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from tenuto_identity.connectors.contract import Connector, ContainerConnector, ReadScope
from tenuto_identity.runs.connector_opener import call_connector
from tenuto_identity.runs.imports.seen_objects import SeenObjects
from tenuto_identity.runs.run_lifecycle import Run
from tenuto_identity.store import objects
from tenuto_identity.store.objects import PlacedObject

LOOK_UP_PAGE_SIZE = LIST_PAGE_SIZE = 500


class MovedContainers:
    """Finds the objects of moved containers after a delta."""

    def __init__(self, run: Run, connector: Connector, seen: SeenObjects) -> None:
        """``seen`` are the objects that the import has read so far."""
        self._run = run
        self._connector = connector
        self._number = run.system.number
        self._seen = seen
        self._samples: list[PlacedObject] = []

    async def sample(self) -> list[list[str]]:
        """Return the anchors of one object of each container, in pages, without those that were read already."""
        self._samples = await self._run.read(objects.sample_containers, self._number, self._run.id, whole_tables=True)
        return _pages([each.anchor for each in self._samples if each.id not in self._seen])

    async def list_moved(self, is_read: Callable[[str | None], bool]) -> list[str]:
        """Return the containers whose sample was not read, or is in another container now."""
        sampled = [each.id for each in self._samples]
        places = await self._run.read(objects.load_places, sampled) if sampled else []
        now = {each.id: each.container for each in places}
        return [
            each.container
            for each in self._samples
            if is_read(each.container) and (each.id not in self._seen or now.get(each.id) != each.container)
        ]

    async def list_unseen(self, containers: Sequence[str]) -> AsyncIterator[list[PlacedObject]]:
        """Yield the objects that are stored in these containers and were not read, in pages."""
        after = 0
        while containers:
            found = await self._run.read(
                objects.list_objects_in,
                self._number,
                self._run.id,
                containers,
                after,
                LIST_PAGE_SIZE,
                whole_tables=True,
            )
            if not found:
                return
            after = found[-1].id
            if unseen := [each for each in found if each.id not in self._seen]:
                yield unseen

    async def find_elsewhere(self, scope: ReadScope, found: Sequence[PlacedObject]) -> list[int]:
        """Return those of the objects that exist where the scope does not reach."""
        connector = self._connector
        if not isinstance(connector, ContainerConnector):
            return []
        elsewhere = await call_connector(connector.find_elsewhere, scope, [each.anchor for each in found])
        return [each.id for each in found if each.anchor in elsewhere]


def _pages(anchors: Sequence[str]) -> list[list[str]]:
    return [list(anchors[start : start + LOOK_UP_PAGE_SIZE]) for start in range(0, len(anchors), LOOK_UP_PAGE_SIZE)]
