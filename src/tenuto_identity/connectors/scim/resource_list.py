"""Lists of resources in pages, complete even if resources are created or deleted while they are read.

A page is found by its position, so a deletion moves the rest of the list towards the beginning. Each page therefore
begins with the last resource of the page before. If that resource is not there, or the total has changed, the pages
before are read again until their first resource is where it was. The order of the list must be stable: it is sorted by
id where the server can sort.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tenuto_identity.connectors.contract import ConnectorError
from tenuto_identity.connectors.scim.client import Json, ScimClient
from tenuto_identity.connectors.scim.resource_schema import Features, ResourceType

MAX_STEPS_BACK = 100
"""How many pages are read again before the list counts as one that cannot be read."""


class ResourceList:
    """One list of resources: those of a type, or those that a filter chooses."""

    def __init__(
        self, client: ScimClient, features: Features, resource_type: ResourceType, condition: str | None = None
    ) -> None:
        self._client = client
        self._endpoint = resource_type.endpoint
        self._condition = condition
        size = client.settings.page_size
        self._size = size if features.max_results is None else max(2, min(size, features.max_results))
        self._sort = client.settings.sort_by if features.sort else None
        self._order: list[str] = []
        """Ids by position, as far as the list was read."""
        self._known: set[str] = set()
        """The same ids."""
        self._yielded: set[str] = set()

    def read(self) -> Iterator[Json]:
        """Yield each resource once; raise `ConnectorError` unless all of them were read."""
        start, total, steps_back = 1, 0, 0
        while True:
            resources, now_total = self._page(start)
            ids = [_id(each, self._endpoint) for each in resources]
            if start > 1 and (ids[:1] != self._order[start - 1 : start] or now_total != total):
                steps_back += 1
                if steps_back > MAX_STEPS_BACK:
                    raise self._incomplete("the list changes while it is read, or the server ignores startIndex")
                start, total = max(1, start - self._size), now_total  # guard: identity.scim_shifted_page
                continue
            self._keep(start, ids)
            total = now_total
            for identifier, resource in zip(ids, resources, strict=True):
                if identifier not in self._yielded:
                    self._yielded.add(identifier)
                    yield resource
            count = len(self._order)
            if count == total:  # guard: identity.scim_total
                return
            if count > total or count <= start:
                raise self._incomplete(f"the server says that there are {total} resources, and sent {count}")
            start = count

    def _keep(self, start: int, ids: list[str]) -> None:
        """Replace the known resources from a position on."""
        for each in self._order[start - 1 :]:
            self._known.discard(each)
        del self._order[start - 1 :]
        for each in ids:
            if each in self._known:
                raise self._incomplete(f"the server sent the resource {each!r} twice")
            self._known.add(each)
            self._order.append(each)

    def _page(self, start: int) -> tuple[list[Json], int]:
        query: dict[str, str | int] = {"startIndex": start, "count": self._size}
        if self._condition:
            query["filter"] = self._condition
        if self._sort:
            query["sortBy"] = self._sort
        answer = self._client.get(self._endpoint, query)
        if answer.status == 404 or answer.body is None:
            raise ConnectorError("missing_class", f"the service has no list {self._endpoint}: {answer.describe()}")
        total = answer.body.get("totalResults")
        found: Any = answer.body.get("Resources") or []
        if not isinstance(total, int) or isinstance(total, bool) or not isinstance(found, list):
            raise ConnectorError("invalid_answer", f"GET {self._endpoint}: the answer is not a list of resources")
        return [each for each in found if isinstance(each, dict)], total

    def _incomplete(self, reason: str) -> ConnectorError:
        return ConnectorError("incomplete", f"the list {self._endpoint} is not complete: {reason}")


def _id(resource: Json, endpoint: str) -> str:
    found = resource.get("id")
    if not isinstance(found, str) or not found:
        raise ConnectorError("invalid_answer", f"the list {endpoint} has a resource without an id")
    return found
