"""Writing to a SCIM service: each request of the contract becomes a few HTTP requests, several at the same time.

Lists such as members are changed by single values and never replaced. What depends on the current resource is sent
with ``If-Match``, if the server has versions, and computed again if the resource has changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from tenuto_identity.connectors.contract import (
    ConnectorError,
    WriteChange,
    WriteRequest,
    WriteResult,
    missing,
    refused,
)
from tenuto_identity.connectors.scim import bulk
from tenuto_identity.connectors.scim.client import Answer, Busy, Disconnected, Json, ScimClient
from tenuto_identity.connectors.scim.paths import Place, Shape, quote_value, resolve, to_cell, to_json
from tenuto_identity.connectors.scim.resource_list import ResourceList
from tenuto_identity.connectors.scim.resource_reader import ObjectReader, resource_path
from tenuto_identity.connectors.scim.resource_schema import ServiceSchema
from tenuto_identity.model.decoding import Decoding, decode_object
from tenuto_identity.model.schema import ObjectType
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import DataType, Equality, EqualityKind, fold_key

PATCH_SCHEMA: Final = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
_GATEWAY_STATUSES: Final = (502, 504)
"""The service behind a gateway did not answer: the run fails, and the request is uncertain."""
_GONE_STATUSES: Final = (404, 410)
_MAX_TRIES: Final = 3
"""How often an update is computed from a resource that other programs change."""


class ResourceWriter:
    """Writes requests to a service."""

    def __init__(self, client: ScimClient, schema: ServiceSchema, types: Iterable[ObjectType]) -> None:
        self._client = client
        self._schema = schema
        self._types = {each.name: each for each in types}
        self._failure: ConnectorError | None = None
        self._uncertain: dict[int, WriteRequest] = {}
        """Requests that a bulk request may have carried out."""

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        """Return one result for each request, by position."""
        # Requests for one address run one after another: a service may accept two groups of the same name.
        by_address: dict[tuple[str, str], list[int]] = {}
        for position, each in enumerate(requests):
            address = each.anchor or fold_key(each.address) or str(position)
            by_address.setdefault((each.type, address), []).append(position)
        results = self._write_bulk(requests, [same[0] for same in by_address.values() if len(same) == 1])

        def run(positions: Sequence[int]) -> None:
            for position in positions:
                if position in results:
                    continue
                if self._failure is not None:
                    return
                try:
                    results[position] = self._write_one(self._uncertain.get(position, requests[position]))
                except ConnectorError as error:
                    self._failure = error

        with ThreadPoolExecutor(max_workers=self._client.settings.concurrency) as pool:
            list(pool.map(run, by_address.values()))
        if self._failure is not None:
            raise self._failure
        return [results[position] for position in range(len(requests))]

    def _write_bulk(self, requests: Sequence[WriteRequest], positions: Sequence[int]) -> dict[int, WriteResult]:
        """Return the results of the requests that bulk requests carried out."""
        features = self._schema.features
        if not self._client.settings.bulk or not features.bulk:
            return {}
        writers: dict[int, _ObjectWriter] = {}
        operations: list[Json] = []
        for position in positions:
            object_type = self._types.get(requests[position].type)
            if object_type is None:
                continue
            writer = _ObjectWriter(self._client, self._schema, object_type, requests[position])
            operation = writer.bulk_operation()
            if operation is not None and bulk.is_suitable(operation):
                writers[position] = writer
                operations.append(operation)
        results: dict[int, WriteResult] = {}
        if len(operations) < 2:
            return results
        answers = bulk.send(self._client, features, operations)
        for (position, writer), answer in zip(writers.items(), answers, strict=True):
            if answer is None:
                self._uncertain[position] = replace(requests[position], uncertain=True)
            elif (result := writer.bulk_result(answer)) is not None:
                results[position] = result
        return results

    def _write_one(self, request: WriteRequest) -> WriteResult:
        object_type = self._types.get(request.type)
        if object_type is None:
            return refused("unknown_type", f"the type {request.type!r} is not selected")
        try:
            return self._perform(object_type, request)
        except Busy as error:
            return missing("busy", error.message)
        except Disconnected:
            return self._perform(object_type, replace(request, uncertain=True))

    def _perform(self, object_type: ObjectType, request: WriteRequest) -> WriteResult:
        writer = _ObjectWriter(self._client, self._schema, object_type, request)
        if writer.problem is not None:
            return writer.problem
        match request.kind:
            case ExportKind.CREATE:
                return writer.create()
            case ExportKind.UPDATE:
                return writer.update()
            case ExportKind.DELETE:
                return writer.delete()


@dataclass(frozen=True, slots=True)
class _Edit:
    """A change of one attribute, with its place and its values as JSON."""

    place: Place
    op: ChangeOp
    values: tuple[Any, ...]
    change: WriteChange


class _ObjectWriter:
    """One request."""

    def __init__(
        self, client: ScimClient, schema: ServiceSchema, object_type: ObjectType, request: WriteRequest
    ) -> None:
        self._client = client
        self._settings = client.settings
        self._features = schema.features
        self._type = object_type
        self._request = request
        self._resource_type = schema.resource_type(client.settings.resource_name(object_type.name))
        self._reader = ObjectReader(object_type, self._resource_type)
        self._address = self._reader.address_place
        self.problem: WriteResult | None = None
        """Why the request cannot be sent."""
        self._edits = self._make_edits()

    def _make_edits(self) -> list[_Edit]:
        found: list[_Edit] = []
        for change in self._request.changes:
            if change.op is ChangeOp.RENAME:
                place, op = self._address, ChangeOp.SET
            else:
                place, op = resolve(change.attribute, self._resource_type), change.op
            if not place.is_writable:
                self.problem = refused("not_writable", f"the server does not accept values of {change.attribute!r}")
            attribute = self._type.attributes.get(change.attribute)
            values = tuple(to_json(each, attribute) for each in change.values)
            if op is ChangeOp.SET and not values:
                op = ChangeOp.CLEAR
            if change.op is ChangeOp.RENAME:
                found = [each for each in found if each.place.path != place.path]
            elif any(each.change.op is ChangeOp.RENAME and each.place.path == place.path for each in found):
                continue  # the rename has the value already
            found.append(_Edit(place, op, values, change))
        return found

    # --- as a part of a bulk request --------------------------------------------------------------------------------

    def bulk_operation(self) -> Json | None:
        """Return the request as one operation; None if it needs more than one, or the current resource."""
        request = self._request
        if self.problem is not None:
            return None
        if request.kind is ExportKind.CREATE:
            body, further = self._new_resource()
            if further or request.uncertain or not self._address.leaf.is_unique:
                return None
            return {"method": "POST", "path": self._resource_type.endpoint, "data": body}
        if request.anchor is None:
            return None
        path = resource_path(self._resource_type, request.anchor)
        if request.kind is ExportKind.DELETE:
            return {"method": "DELETE", "path": path}
        if self._is_replaced or not self._edits or any(self._needs_current(each) for each in self._edits):
            return None
        parts = _split(self._operations(self._edits, None), self._settings.max_values)
        if len(parts) != 1:
            return None
        return {"method": "PATCH", "path": path, "data": {"schemas": [PATCH_SCHEMA], "Operations": parts[0]}}

    def bulk_result(self, answer: Answer) -> WriteResult | None:
        """Return the result of the operation; None if the request must be sent by itself."""
        match self._request.kind:
            case ExportKind.CREATE if answer.is_success:
                body, _ = self._new_resource()
                result = self._created(answer, self._reader.address(body))
                return result if result.is_ok else None
            case ExportKind.UPDATE if answer.is_success:
                return WriteResult(anchor=self._request.anchor, address=self._new_address())
            case ExportKind.DELETE if answer.is_success or answer.status in _GONE_STATUSES:
                return WriteResult(anchor=self._request.anchor, address=self._request.address)
            case _:
                return None

    # --- create -----------------------------------------------------------------------------------------------------

    def create(self) -> WriteResult:
        body, further = self._new_resource()
        address = self._reader.address(body) or self._request.address
        # Where addresses are not unique, only a look before the create prevents a second object.
        if self._request.uncertain or not self._address.leaf.is_unique:  # guard: identity.scim_create_once
            existing = self._find(address)
            if existing:
                return self._adopt(existing, further)
        existing = []

        def is_missing() -> bool:
            """Look before the request is repeated: a server that seems busy may have created the resource."""
            self._request = replace(self._request, uncertain=True)
            existing.extend(self._find(address))
            return not existing

        answer = self._client.request("POST", self._resource_type.endpoint, body, may_repeat=is_missing)
        if existing:
            return self._adopt(existing, further)
        if _is_conflict(answer):
            return self._adopt(self._find(address), further, answer)
        if not answer.is_success:
            return _refusal(answer)
        result = self._created(answer, address)
        return self._complete(result, further) if result.is_ok else result

    def _created(self, answer: Answer, address: str) -> WriteResult:
        """Return the result of a new resource: the id that the server gave it, and its address."""
        resource = answer.body or {}
        anchor = str(resource.get("id") or answer.headers.get("location", "").rstrip("/").rpartition("/")[2])
        if not anchor:
            return refused("refused", "the server created the resource and did not tell its id")
        return WriteResult(anchor=anchor, address=self._reader.address(resource) or address)

    def _new_resource(self) -> tuple[Json, list[_Edit]]:
        """Return the body of a new resource, and the values that do not fit into the first request."""
        body: Json = {"schemas": [self._resource_type.schema]}
        further: list[_Edit] = []
        for edit in self._edits:
            if edit.op not in (ChangeOp.SET, ChangeOp.ADD):
                continue
            first, rest = edit.values[: self._settings.max_values], edit.values[self._settings.max_values :]
            edit.place.put(body, first)
            if rest:
                further.append(replace(edit, op=ChangeOp.ADD, values=rest))
            if edit.place.schema and edit.place.schema not in body["schemas"]:
                body["schemas"].append(edit.place.schema)
        if self._request.address and self._address.is_writable and not self._address.values(body):
            self._address.put(body, [self._request.address])
        return body, further

    def _complete(self, result: WriteResult, further: Sequence[_Edit]) -> WriteResult:
        """Send the values that did not fit into the first request. The object exists now, so its id must not get lost:
        values that the server does not accept are found missing by the confirming import, and sent again."""
        if further:
            with suppress(Busy):
                self._patch(result.anchor or "", self._operations(further, None), None)
        return result

    def _find(self, address: str) -> list[Json]:
        """Return the resources with an address, ignoring case unless the schema says that it matters."""
        if not address:
            return []
        condition = f"{self._address.path} eq {quote_value(address)}" if self._features.filter else None
        listed = ResourceList(self._client, self._features, self._resource_type, condition)
        equality = _equality(self._address)
        wanted = equality.key(address)
        # A server may ignore the filter and return everything.
        return [each for each in listed.read() if equality.key(self._reader.address(each)) == wanted]

    def _adopt(self, existing: Sequence[Json], further: Sequence[_Edit], answer: Answer | None = None) -> WriteResult:
        """The resource exists: it is ours if it has our values, or the part of a list that an earlier attempt wrote."""
        for resource in existing:
            partial = {each.place.path for each in further} if self._request.uncertain else set[str]()
            if self._has_our_values(resource, partial):
                result = WriteResult(anchor=str(resource["id"]), address=self._reader.address(resource))
                return self._complete(result, further if partial else ())
        text = answer.describe() if answer is not None else f"there is {self._request.address!r} already"
        anchor = str(existing[0]["id"]) if len(existing) == 1 else None
        return refused("exists", f"{text}, with other values" if existing else text, anchor=anchor)

    def _has_our_values(self, resource: Json, partial: set[str]) -> bool:
        decoded = decode_object(self._type, self._reader.read(resource).cells, Decoding())
        for edit in self._edits:
            attribute = self._type.attributes.get(edit.change.attribute)
            if edit.op not in (ChangeOp.SET, ChangeOp.ADD) or attribute is None:
                continue
            if attribute.equality.kind is EqualityKind.WRITE_ONLY:
                continue
            name = edit.change.attribute
            found = decoded.references.get(name) or decoded.attributes.get(name, ())
            equality = attribute.equality
            if equality.kind is EqualityKind.EXACT and attribute.type is DataType.TEXT:
                equality = _equality(edit.place)
            sent, present = equality.keys(edit.change.values), equality.keys(found)
            if sent != present and not (edit.place.path in partial and present < sent):
                return False
        return True

    # --- update -----------------------------------------------------------------------------------------------------

    def update(self) -> WriteResult:
        anchor = self._request.anchor or self._anchor_by_address()
        if anchor is None:
            return refused("missing_object", f"there is no resource {self._request.address!r}")
        if not self._edits:
            return WriteResult(anchor=anchor, address=self._request.address)
        problem = self._replace(anchor) if self._is_replaced else self._change(anchor)
        return _refusal(problem) if problem is not None else WriteResult(anchor=anchor, address=self._new_address())

    @property
    def _is_replaced(self) -> bool:
        """Whether an update sends the whole resource."""
        replaced = self._resource_type.name.lower() in self._settings.form.replaced_types
        return replaced or not self._features.patch

    def _new_address(self) -> str:
        """Return the address that the object has after an update."""
        renamed = next((each for each in self._edits if each.place.path == self._address.path and each.values), None)
        return to_cell(renamed.values[0]) if renamed is not None else self._request.address

    def _change(self, anchor: str) -> Answer | None:
        """Send the changes as PATCH; return the answer that refuses them."""
        needs_current = any(self._needs_current(each) for each in self._edits)
        answer: Answer | None = None
        for _ in range(_MAX_TRIES):
            current, version = None, None
            if needs_current:
                found = self._client.get(resource_path(self._resource_type, anchor))
                if not found.is_success:
                    return found
                current, version = found.body, self._version(found)
            answer = self._patch(anchor, self._operations(self._edits, current), version)
            # A server may refuse to remove what is not there; what is left to do depends on the resource.
            has_no_target = answer is not None and answer.scim_type == "noTarget" and current is None
            if answer is None or not (has_no_target or answer.status == 412):
                return answer
            needs_current = True
        return answer

    def _needs_current(self, edit: _Edit) -> bool:
        if edit.place.shape is Shape.CHOSEN:
            return True
        if edit.place.is_list and edit.op is ChangeOp.SET:
            return True
        return edit.place.is_list and edit.op is ChangeOp.ADD and self._request.uncertain

    def _operations(self, edits: Sequence[_Edit], current: Json | None) -> list[Json]:
        """Return the operations of a PATCH; with the current resource only those that change something."""
        found: list[Json] = []
        for edit in edits:
            place, values = edit.place, list(edit.values)
            old = None if current is None else place.values(current)
            match edit.op:
                case ChangeOp.CLEAR:
                    if old != []:
                        found.append(self._remove_operation(place))
                case ChangeOp.SET if place.is_list:
                    before, after = _keyed(old or ()), _keyed(values)
                    found += self._remove_values(place, [before[key] for key in before if key not in after])
                    found += self._add_values(place, [after[key] for key in after if key not in before])
                case ChangeOp.ADD if place.is_list:
                    before = _keyed(old or ())
                    found += self._add_values(place, [each for each in values if to_cell(each) not in before])
                case ChangeOp.REMOVE if place.is_list:
                    left = None if old is None else _keyed(old)
                    gone = [each for each in values if left is None or to_cell(each) in left]
                    found += self._remove_values(place, gone)
                case ChangeOp.REMOVE:
                    found.append(self._remove_operation(place))
                case _ if place.shape is Shape.CHOSEN and current is not None and not place.has_element(current):
                    found.append(self._operation("add", place.owner_path, [place.new_element(values[0])]))
                case _ if place.is_pointer:
                    found.append(self._operation("replace", place.owner_path, {place.leaf.name: values[0]}))
                case _:
                    found.append(self._operation("replace", place.path, values[0]))
        return found

    def _remove_operation(self, place: Place) -> Json:
        if place.is_pointer:
            return self._operation("remove", place.owner_path)
        is_element = place.shape is Shape.CHOSEN and place.leaf.name == "value"
        return self._operation("remove", place.element_path if is_element else place.path)

    def _add_values(self, place: Place, values: Sequence[Any]) -> list[Json]:
        size = self._settings.max_values
        parts = [values[start : start + size] for start in range(0, len(values), size)]
        return [self._operation("add", place.owner_path, _elements(place, part)) for part in parts]

    def _remove_values(self, place: Place, values: Sequence[Any]) -> list[Json]:
        if self._settings.form.removes_by_value:
            return [self._operation("remove", place.owner_path, _elements(place, [each])) for each in values]
        return [self._operation("remove", f"{place.owner_path}[value eq {quote_value(each)}]") for each in values]

    def _operation(self, op: str, path: str, value: Any = None) -> Json:
        found: Json = {"op": op.capitalize() if self._settings.form.capitalized_operations else op, "path": path}
        return found if value is None else {**found, "value": value}

    def _patch(self, anchor: str, operations: Sequence[Json], version: str | None) -> Answer | None:
        """Send operations in requests of at most ``max_values`` values; return the answer that refuses one."""
        for part in _split(operations, self._settings.max_values):
            body: Json = {"schemas": [PATCH_SCHEMA], "Operations": part}
            answer = self._client.request("PATCH", resource_path(self._resource_type, anchor), body, if_match=version)
            if not answer.is_success:
                return answer
            if version is not None:
                version = self._version(answer)
        return None

    def _replace(self, anchor: str) -> Answer | None:
        """Send the whole resource as PUT; return the answer that refuses it."""
        answer: Answer | None = None
        path = resource_path(self._resource_type, anchor)
        for _ in range(_MAX_TRIES):
            found = self._client.get(path)
            if not found.is_success or found.body is None:
                return found
            new = self._changed(found.body)
            if new == found.body:
                return None
            new.pop("meta", None)
            for (schema, _name), attribute in self._resource_type.attributes.items():
                if not schema and attribute.mutability == "readOnly" and attribute.name != "id":
                    new.pop(attribute.name, None)
            answer = self._client.request("PUT", path, new, if_match=self._version(found))
            if answer.is_success:
                return None
            if answer.status != 412:
                return answer
        return answer

    def _changed(self, resource: Json) -> Json:
        new = copy.deepcopy(resource)
        for edit in self._edits:
            old = edit.place.values(new)
            match edit.op:
                case ChangeOp.ADD if edit.place.is_list:
                    edit.place.put(new, _keyed([*old, *edit.values]).values())
                case ChangeOp.REMOVE if edit.place.is_list:
                    gone = _keyed(edit.values)
                    edit.place.put(new, [each for each in old if to_cell(each) not in gone])
                case ChangeOp.CLEAR | ChangeOp.REMOVE:
                    edit.place.put(new, ())
                case _:
                    edit.place.put(new, edit.values)
            if edit.place.schema and edit.place.schema in new and edit.place.schema not in new.get("schemas", ()):
                new["schemas"] = [*new.get("schemas", ()), edit.place.schema]
        return new

    def _version(self, answer: Answer) -> str | None:
        """Return the version of a resource for ``If-Match``; None if the server has no versions."""
        if not self._features.etag:  # guard: identity.scim_if_match
            return None
        meta = (answer.body or {}).get("meta")
        found = answer.headers.get("etag") or (meta.get("version") if isinstance(meta, Mapping) else None)
        return found if isinstance(found, str) else None

    # --- delete -----------------------------------------------------------------------------------------------------

    def delete(self) -> WriteResult:
        anchor = self._request.anchor or self._anchor_by_address()
        if anchor is None:
            return WriteResult(address=self._request.address)
        answer = self._client.request("DELETE", resource_path(self._resource_type, anchor))
        if answer.is_success or answer.status in _GONE_STATUSES:
            return WriteResult(anchor=anchor, address=self._request.address)
        return _refusal(answer)

    def _anchor_by_address(self) -> str | None:
        """Return the id of the only resource with the address of the request."""
        found = self._find(self._request.address)
        return str(found[0]["id"]) if len(found) == 1 else None


def _equality(place: Place) -> Equality:
    return Equality(EqualityKind.EXACT if place.leaf.case_exact else EqualityKind.IGNORE_CASE)


def _keyed(values: Iterable[Any]) -> dict[str, Any]:
    return {to_cell(each): each for each in values}


def _elements(place: Place, values: Sequence[Any]) -> list[Any]:
    return list(values) if place.shape is Shape.LIST else [place.new_element(each) for each in values]


def _split(operations: Sequence[Json], size: int) -> list[list[Json]]:
    """Return operations in groups, none with more than ``size`` values."""
    groups: list[list[Json]] = [[]]
    used = 0
    for each in operations:
        count = len(each["value"]) if isinstance(each.get("value"), list) else 1
        if groups[-1] and used + count > size:
            groups.append([])
            used = 0
        groups[-1].append(each)
        used += count
    return [group for group in groups if group]


def _is_conflict(answer: Answer) -> bool:
    return answer.status == 409 or (answer.status == 400 and answer.scim_type == "uniqueness")


def _refusal(answer: Answer) -> WriteResult:
    if answer.status in _GATEWAY_STATUSES:
        raise ConnectorError("unreachable", f"the server did not execute a request: {answer.describe()}")
    if _is_conflict(answer):
        return refused("exists", answer.describe())
    if answer.status in _GONE_STATUSES:
        return refused("missing_object", answer.describe())
    return refused("refused", answer.describe())
