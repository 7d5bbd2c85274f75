"""Several requests in one: ``/Bulk`` of RFC 7644.

It only makes an export faster. A request that the bulk request did not carry out is sent again by itself, which decides
about it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tenuto_identity.connectors.scim.client import Answer, Busy, Disconnected, Json, ScimClient
from tenuto_identity.connectors.scim.resource_schema import Features

BULK_SCHEMA: Final = "urn:ietf:params:scim:api:messages:2.0:BulkRequest"
_REFERENCE: Final = "bulkid:"


def is_suitable(operation: Json) -> bool:
    """Return whether a bulk request may have an operation: a server would take a text such as ``bulkId:1`` as the id
    of another operation."""
    return not _has_reference(operation.get("data"))  # guard: identity.scim_bulk_reference


def _has_reference(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower().startswith(_REFERENCE)
    if isinstance(value, Mapping):
        return any(_has_reference(each) for each in value.values())
    return any(_has_reference(each) for each in value) if isinstance(value, list) else False


def send(client: ScimClient, features: Features, operations: Sequence[Json]) -> list[Answer | None]:
    """Send operations in as few requests as the server allows; return their answers, None where there is none."""
    answers: list[Answer | None] = []
    for part in _split(operations, features.max_operations, features.max_payload_bytes):
        answers += _send_part(client, part)
    return answers


def _send_part(client: ScimClient, operations: Sequence[Json]) -> list[Answer | None]:
    unknown: list[Answer | None] = [None] * len(operations)
    marked = [{**each, "bulkId": str(position)} for position, each in enumerate(operations)]
    try:
        answer = client.request("POST", "/Bulk", {"schemas": [BULK_SCHEMA], "Operations": marked})
    except (Busy, Disconnected):
        return unknown
    results = (answer.body or {}).get("Operations")
    if not answer.is_success or not isinstance(results, list) or len(results) != len(operations):
        return unknown
    return [_answer(each, str(position)) for position, each in enumerate(results)]


def _answer(result: Any, mark: str) -> Answer | None:
    """Return the answer to one operation; None if it is not the one with the mark."""
    if not isinstance(result, dict) or result.get("bulkId", mark) != mark:
        return None
    try:
        status = int(str(result.get("status")))
    except ValueError:
        return None
    body, location = result.get("response"), result.get("location")
    headers = {"location": location} if isinstance(location, str) else {}
    return Answer(status, body if isinstance(body, dict) else None, headers)


def _split(operations: Sequence[Json], most: int, most_bytes: int) -> Iterator[list[Json]]:
    """Yield operations in parts; one that is too large for any part is alone, and the server refuses it."""
    part: list[Json] = []
    size = 0
    for each in operations:
        length = len(json.dumps(each)) + 100
        if part and (len(part) >= most or size + length > most_bytes - 200):
            yield part
            part, size = [], 0
        part.append(each)
        size += length
    if part:
        yield part
