"""Reading from a SCIM service: all resources, single ones, and those changed since a watermark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote

from tenuto_identity.connectors.contract import (
    ConnectorError,
    ImportedObject,
    ReadComplete,
    ReadEvent,
    ReadScope,
    ReadWarning,
    Watermark,
    WatermarkLost,
)
from tenuto_identity.connectors.scim.client import Json, ScimClient
from tenuto_identity.connectors.scim.discovery import address_name
from tenuto_identity.connectors.scim.paths import quote_value, resolve, to_cell
from tenuto_identity.connectors.scim.resource_list import ResourceList
from tenuto_identity.connectors.scim.resource_schema import ResourceType, ServiceSchema
from tenuto_identity.connectors.scim.settings import DeltaMethod
from tenuto_identity.model.schema import ObjectType

_OVERLAP: Final = timedelta(seconds=5)
"""A change may become visible after a later one. The changes of this time before the watermark are read again."""
_CLOCK_OVERLAP: Final = timedelta(minutes=5)
"""The same, if the time is that of the web server and not that of a resource."""
_MAX_KNOWN: Final = 1_000
"""Resources of the overlap that a watermark remembers; beyond, they are read again."""
_BEGINNING: Final = "1970-01-01T00:00:00Z"


class ObjectReader:
    """Turns resources of one object type into objects."""

    def __init__(self, object_type: ObjectType, resource_type: ResourceType) -> None:
        self.object_type = object_type
        self.resource_type = resource_type
        self._places = {name: resolve(name, resource_type) for name in object_type.attributes}
        self.address_place = resolve(address_name(object_type, resource_type), resource_type)

    def read(self, resource: Json) -> ImportedObject:
        """Return the object of a resource. Values are sorted, because a server delivers them in any order."""
        cells: dict[str, Sequence[str | bytes]] = {}
        for name, place in self._places.items():
            found = [to_cell(each) for each in place.values(resource)]
            if found:
                cells[name] = tuple(found) if len(found) == 1 else tuple(sorted(set(found)))
        return ImportedObject(self.object_type.name, str(resource["id"]), self.address(resource), "", cells)

    def address(self, resource: Json) -> str:
        return next((to_cell(each) for each in self.address_place.values(resource)), "")


class ResourceReader:
    """Reads the object types of a scope."""

    def __init__(self, client: ScimClient, schema: ServiceSchema, scope: ReadScope) -> None:
        self._client = client
        self._schema = schema
        self._settings = client.settings
        self._readers = [
            ObjectReader(each, schema.resource_type(self._settings.resource_name(each.name))) for each in scope.types
        ]

    # --- everything, and single resources ---------------------------------------------------------------------------

    def read_all(self) -> Iterator[ReadEvent]:
        """Yield all resources."""
        count = 0
        for reader in self._readers:
            for resource in self._list(reader, self._settings.type_filter(reader.object_type.name)):
                count += 1
                yield reader.read(resource)
        yield self._complete(count)

    def read_anchors(self, anchors: Sequence[str]) -> Iterator[ReadEvent]:
        """Yield the resources with these ids, as far as they exist and satisfy the filter of their type."""
        count = 0
        for reader in self._readers:
            for anchor in anchors:
                resource = self._find(reader, anchor)
                if resource is not None:
                    count += 1
                    yield reader.read(resource)
        yield self._complete(count)

    def _find(self, reader: ObjectReader, anchor: str) -> Json | None:
        """Return the resource with an id; None if it does not exist, or does not satisfy the filter of the type."""
        further = self._settings.type_filter(reader.object_type.name)
        if further is not None:
            listed = self._list(reader, f"({further}) and id eq {quote_value(anchor)}")
            return next((each for each in listed if each["id"] == anchor), None)
        answer = self._client.get(resource_path(reader.resource_type, anchor))
        return answer.body if answer.is_success and answer.body is not None and answer.body.get("id") else None

    def _list(self, reader: ObjectReader, condition: str | None) -> Iterator[Json]:
        return ResourceList(self._client, self._schema.features, reader.resource_type, condition).read()

    def _complete(self, count: int, *, is_delta: bool = False) -> ReadComplete:
        return ReadComplete(
            types=tuple(each.object_type.name for each in self._readers), is_delta=is_delta, object_count=count
        )

    # --- changes ----------------------------------------------------------------------------------------------------

    @property
    def _has_delta(self) -> bool:
        return self._settings.delta is not DeltaMethod.NONE and self._schema.features.filter

    def watermark(self) -> Watermark | None:
        """Return the watermark of now; None without delta import."""
        if not self._has_delta:
            return None
        found: dict[str, Any] = {}
        for reader in self._readers:
            since = self._newest(reader)
            if since is None:
                return None
            known = {}
            for resource in self._list(reader, self._changed(reader, since)):
                known[str(resource["id"])] = _digest(resource)
                if len(known) > _MAX_KNOWN:
                    known = {}
                    break
            found[reader.object_type.name] = {"since": since, "known": known, "source": self._source(reader)}
        return {"method": DeltaMethod.LAST_MODIFIED.value, "types": found}

    def _newest(self, reader: ObjectReader) -> str | None:
        """Return the time from which the next delta reads; None if the resources have no time."""
        query: dict[str, str | int] = {"startIndex": 1, "count": 1}
        if self._schema.features.sort:
            query |= {"sortBy": "meta.lastModified", "sortOrder": "descending"}
        answer = self._client.get(reader.resource_type.endpoint, query)
        resources = (answer.body or {}).get("Resources") or []
        if not resources:
            return _BEGINNING
        modified = (resources[0].get("meta") or {}).get("lastModified") if isinstance(resources[0], dict) else None
        if not isinstance(modified, str):
            return None
        if self._schema.features.sort:
            return _before(modified, _OVERLAP)
        try:
            clock = parsedate_to_datetime(answer.headers.get("date", ""))
        except ValueError:
            return None
        return _before(clock.isoformat(), _CLOCK_OVERLAP)

    def read_changes(self, since: Watermark) -> Iterator[ReadEvent]:
        """Yield the resources that were created or changed since a watermark. Deletions are not found."""
        if not self._has_delta:
            raise WatermarkLost("the server does not support filters, or delta is none")
        types = since.get("types")
        if since.get("method") != DeltaMethod.LAST_MODIFIED.value or not isinstance(types, Mapping):
            raise WatermarkLost(f"the watermark is one of {since.get('method')!r}")
        yield ReadWarning("no_deletions", "a delta by meta.lastModified does not find deletions; run a full import")
        count = 0
        for reader in self._readers:
            mark = types.get(reader.object_type.name)
            if not isinstance(mark, Mapping):
                raise WatermarkLost(f"the watermark has no time for the type {reader.object_type.name!r}")
            if mark.get("source") != self._source(reader):
                raise WatermarkLost(f"url, resource or filter of the type {reader.object_type.name!r} has changed")
            known: Mapping[str, str] = mark.get("known") or {}
            for resource in self._list(reader, self._changed(reader, str(mark["since"]))):
                if known.get(str(resource["id"])) != _digest(resource):
                    count += 1
                    yield reader.read(resource)
        yield self._complete(count, is_delta=True)

    def _source(self, reader: ObjectReader) -> str:
        """Return a digest of the settings that decide which resources are read."""
        further = self._settings.type_filter(reader.object_type.name)
        return _digest({"url": self._settings.url, "resource": reader.resource_type.name, "filter": further})

    def _changed(self, reader: ObjectReader, since: str) -> str:
        condition = f"meta.lastModified ge {quote_value(since)}"
        further = self._settings.type_filter(reader.object_type.name)
        return f"({further}) and {condition}" if further else condition


def resource_path(resource_type: ResourceType, anchor: str) -> str:
    """Return the path of one resource."""
    return f"{resource_type.endpoint}/{quote(anchor, safe='')}"


def _digest(resource: Json) -> str:
    text = json.dumps(resource, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _before(instant: str, overlap: timedelta) -> str:
    try:
        found = datetime.fromisoformat(instant)
    except ValueError:
        raise ConnectorError("invalid_answer", f"meta.lastModified {instant!r} is not a date and time") from None
    found = (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC) - overlap
    return found.isoformat().replace("+00:00", "Z")
