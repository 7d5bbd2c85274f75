"""The memory connector: a system for tests and demonstrations, kept in a JSON file that several processes see.

`MemorySystem` is the system itself: a test or a demonstration changes its objects and its behaviour (latency, limits,
refusals, exceptions, values that it changes, a lost log, the end of the process at a given point).
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from pydantic import BaseModel, ConfigDict

from tenuto_identity.connectors.contract import (
    Capabilities,
    ConnectorContext,
    ConnectorError,
    ConnectorKind,
    DeletedObject,
    ImportedObject,
    ReadComplete,
    ReadEvent,
    ReadScope,
    ReferenceForm,
    Watermark,
    WatermarkLost,
    WriteChange,
    WriteRequest,
    WriteResult,
    missing,
    refused,
)
from tenuto_identity.model import dn
from tenuto_identity.model.containers import is_selected
from tenuto_identity.model.schema import Container, ObjectType, Schema
from tenuto_identity.model.sync.pending_exports import ChangeOp, ExportKind
from tenuto_identity.model.values import Value, fold_key

State = dict[str, Any]
_EMPTY: State = {
    "sequence": 0,
    "log_from": 0,
    "types": {},
    "log": [],
    "behaviour": {},
    "requests": [],
    "containers": [],
}


class MemorySettings(BaseModel):
    """Settings of the memory connector."""

    model_config = ConfigDict(extra="forbid")

    path: str
    """File that holds the objects."""
    delta: bool = True
    """The system keeps a log of changes."""
    confirms_immediately: bool = False
    """Success of a write is its confirmation."""
    references: ReferenceForm = ReferenceForm.ADDRESS
    """How references are written."""
    requires_parents: bool = False
    """A new object needs its parent container, as in a directory."""


class MemorySystem:
    """The system behind the connector. Every call reads and writes the file under a lock."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)

    @contextmanager
    def _change(self) -> Iterator[State]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_name(f"{self._path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.load()
            yield state
            descriptor, name = tempfile.mkstemp(prefix=".memory.", dir=self._path.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(state, file, ensure_ascii=False)
            Path(name).replace(self._path)

    def load(self) -> State:
        """Return the whole state."""
        try:
            found: State = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return json.loads(json.dumps(_EMPTY))  # type: ignore[no-any-return]
        return found

    def put(
        self,
        type_name: str,
        anchor: str,
        attributes: Mapping[str, Sequence[Value] | Value],
        *,
        address: str = "",
        container: str = "",
    ) -> None:
        """Create or replace an object."""
        self.put_many(type_name, [(anchor, attributes)], address=address, container=container)

    def put_many(
        self,
        type_name: str,
        objects: Iterable[tuple[str, Mapping[str, Sequence[Value] | Value]]],
        *,
        address: str = "",
        container: str = "",
    ) -> None:
        """Create or replace several objects in one step."""
        with self._change() as state:
            for anchor, attributes in objects:
                old = state["types"].get(type_name, {}).get(anchor, {})
                state["types"].setdefault(type_name, {})[anchor] = {
                    "address": address or old.get("address", ""),
                    "container": container or old.get("container", ""),
                    "attributes": {name: _as_list(value) for name, value in attributes.items()},
                }
                _log(state, "put", type_name, anchor)

    def change(self, type_name: str, anchor: str, **attributes: Sequence[Value] | Value | None) -> None:
        """Set attributes of an object; None removes one."""
        with self._change() as state:
            values = state["types"][type_name][anchor]["attributes"]
            for name, value in attributes.items():
                values.pop(name, None)
                if value is not None:
                    values[name] = _as_list(value)
            _log(state, "put", type_name, anchor)

    def delete(self, type_name: str, *anchors: str) -> None:
        """Delete objects."""
        with self._change() as state:
            for anchor in anchors:
                del state["types"][type_name][anchor]
                _log(state, "delete", type_name, anchor)

    def rename(self, type_name: str, anchor: str, address: str) -> None:
        """Give an object another address."""
        with self._change() as state:
            found = state["types"][type_name][anchor]
            found["address"], found["container"] = address, _container_of(address)
            _log(state, "put", type_name, anchor)

    def replace_references(self, type_name: str, attribute: str, old: str, new: str | None) -> None:
        """Change references as a directory does by itself when their target is renamed or deleted: not in the log."""
        with self._change() as state:
            for found in state["types"].get(type_name, {}).values():
                values = found["attributes"].get(attribute, [])
                if old in values:
                    changed = [new if value == old else value for value in values]
                    found["attributes"][attribute] = [value for value in changed if value is not None]

    def objects(self, type_name: str) -> dict[str, dict[str, Any]]:
        """Return the objects of a type by anchor: address, container, attributes."""
        return dict(self.load()["types"].get(type_name, {}))

    def requests(self) -> list[dict[str, Any]]:
        """Return the write requests that reached the system, in order."""
        return list(self.load()["requests"])

    def add_containers(self, *addresses: str) -> None:
        """Create containers."""
        with self._change() as state:
            state["containers"].extend(addresses)

    def forget_log(self) -> None:
        """Drop the log of changes: watermarks taken before are lost."""
        with self._change() as state:
            state["log_from"], state["log"] = state["sequence"], []

    def behave(self, **behaviour: Any) -> None:
        """Set how the system behaves from now on; None removes a behaviour.

        ``latency_seconds``: delay of each call. ``size_limit``: a read of more objects is incomplete.
        ``refuse``: {anchor, address or ``*``: text}. ``refuse_count``: how many refusals, then none.
        ``fail``: text of an exception of the next reads. ``fail_writes``: the same for writes. ``fail_after``: number
        of objects after which a read breaks off. ``transform``: {attribute: lower, upper or drop}.
        ``kill``: {point: before_write, after_write or read, count}: end the process there, once.
        ``unreadable``: types that a read returns nothing of, without an error.
        """
        with self._change() as state:
            for name, value in behaviour.items():
                state["behaviour"].pop(name, None)
                if value is not None:
                    state["behaviour"][name] = value


def _as_list(value: Sequence[Value] | Value) -> list[Value]:
    return [value] if isinstance(value, str | int | bool) else list(value)


def _log(state: State, op: str, type_name: str, anchor: str) -> None:
    state["sequence"] += 1
    state["log"].append([state["sequence"], op, type_name, anchor])


class MemoryConnector:
    """Reads and writes a `MemorySystem`."""

    def __init__(self, settings: MemorySettings, context: ConnectorContext) -> None:
        self._settings = settings
        self._context = context
        self._system = MemorySystem(settings.path)

    @property
    def capabilities(self) -> Capabilities:
        settings = self._settings
        return Capabilities(
            full=True,
            delta=settings.delta,
            export=True,
            confirms_immediately=settings.confirms_immediately,
            containers=True,
            read_one=True,
            references=settings.references,
        )

    def check(self) -> None:
        self._behave("fail")

    def discover(self) -> Schema:
        state = self._system.load()
        return Schema(
            types=self._context.types, containers=tuple(Container(address) for address in state["containers"])
        )

    def watermark(self, scope: ReadScope) -> Watermark | None:
        return {"sequence": self._system.load()["sequence"]} if self._settings.delta else None

    def close(self) -> None:
        pass

    # --- reading ----------------------------------------------------------------------------------------------------

    def read(self, scope: ReadScope, since: Watermark | None) -> Iterator[ReadEvent]:
        self._behave("fail")
        state = self._system.load()
        behaviour = state["behaviour"]
        events = list(_changes_since(state, scope, since["sequence"]) if since is not None else _all(state, scope))
        limit = behaviour.get("size_limit")
        count = 0
        for event in events:
            if limit is not None and count >= limit:
                raise ConnectorError("incomplete", f"size limit: the system returned {limit} objects and stopped")
            if behaviour.get("fail_after") == count:
                raise ConnectorError("unreachable", f"the connection was closed after {count} objects")
            self._kill("read", count)
            yield event
            count += 1
        yield ReadComplete(
            types=tuple(each.name for each in scope.types),
            containers=tuple(each.address for each in scope.containers if each.included) or None,
            is_delta=since is not None,
            object_count=count,
        )

    def _behave(self, failure: str) -> None:
        behaviour = self._system.load()["behaviour"]
        if delay := behaviour.get("latency_seconds"):
            time.sleep(delay)
        if text := behaviour.get(failure):
            raise ConnectorError("unreachable", str(text))

    def _kill(self, point: str, count: int = 0) -> None:
        found = self._system.load()["behaviour"].get("kill") if count in (0, self._kill_count()) else None
        if found and found["point"] == point and found.get("count", 0) == count:
            self._system.behave(kill=None)
            os.kill(os.getpid(), signal.SIGKILL)

    def _kill_count(self) -> int:
        if not hasattr(self, "_known_kill_count"):
            found = self._system.load()["behaviour"].get("kill")
            self._known_kill_count: int = found.get("count", 0) if found else 0
        return self._known_kill_count

    # --- writing ----------------------------------------------------------------------------------------------------

    def write(self, requests: Sequence[WriteRequest]) -> list[WriteResult]:
        if self._context.read_only:
            raise ConnectorError("read_only", "the connector was opened for reading only")
        self._behave("fail_writes")
        self._kill("before_write")
        with self._system._change() as state:
            results = [self._write_one(state, request) for request in requests]
        self._kill("after_write")
        return results

    def _write_one(self, state: State, request: WriteRequest) -> WriteResult:
        state["requests"].append(
            {
                "kind": request.kind.value,
                "type": request.type,
                "anchor": request.anchor,
                "address": request.address,
                "changes": [[each.attribute, each.op.value, list(each.values)] for each in request.changes],
                "uncertain": request.uncertain,
            }
        )
        if (text := _refusal(state, request)) is not None:
            return refused("refused", text)
        objects: dict[str, Any] = state["types"].setdefault(request.type, {})
        object_type = next((each for each in self._context.types if each.name == request.type), None)
        found = _find(objects, request, object_type)
        match request.kind:
            case ExportKind.CREATE:
                return self._create(state, objects, request, object_type, found)
            case ExportKind.DELETE:
                if found is not None:
                    del objects[found]
                    _log(state, "delete", request.type, found)
                return WriteResult(anchor=found, address=request.address)
            case ExportKind.UPDATE:
                if found is None:
                    return refused("refused", f"there is no object {request.anchor or request.address!r}")
                return self._update(state, objects, request, found)

    def _create(
        self,
        state: State,
        objects: dict[str, Any],
        request: WriteRequest,
        object_type: ObjectType | None,
        found: str | None,
    ) -> WriteResult:
        values = {
            change.attribute: _transformed(state, change) for change in request.changes if change.op is ChangeOp.SET
        }
        if found is not None:
            old = objects[found]["attributes"]
            if all(old.get(name) == sent for name, sent in values.items() if sent):
                return WriteResult(anchor=found, address=objects[found]["address"])
            return refused("exists", f"there is an object {request.address or found!r} already", anchor=found)
        if self._settings.requires_parents and not _parent_exists(state, request.address):
            return missing("missing_parent", f"there is no container {dn.parent(request.address)!r}")
        anchor = request.anchor or _anchor_from(values, object_type)
        if anchor is None:
            state["sequence"] += 1
            anchor = str(uuid5(NAMESPACE_OID, f"{request.type}:{request.address}:{state['sequence']}"))
            if object_type is not None:
                values[object_type.anchor] = [anchor]
        objects[anchor] = {
            "address": request.address,
            "container": _container_of(request.address),
            "attributes": {name: sent for name, sent in values.items() if sent},
        }
        _log(state, "put", request.type, anchor)
        return WriteResult(anchor=anchor, address=request.address)

    def _update(self, state: State, objects: dict[str, Any], request: WriteRequest, found: str) -> WriteResult:
        target = objects[found]
        attributes: dict[str, list[Value]] = target["attributes"]
        for change in sorted(request.changes, key=lambda each: each.op is not ChangeOp.RENAME):
            if change.op is ChangeOp.RENAME:
                address = str(change.values[0])
                taken = any(
                    each is not target and fold_key(each["address"]) == fold_key(address) for each in objects.values()
                )
                if taken:
                    return refused("exists", f"there is an object {address!r} already")
                if self._settings.requires_parents and not _parent_exists(state, address):
                    return missing("missing_parent", f"there is no container {dn.parent(address)!r}")
                target["address"], target["container"] = address, _container_of(address)
                continue
            _apply(attributes, change, _transformed(state, change))
        _log(state, "put", request.type, found)
        return WriteResult(anchor=found, address=target["address"])


def _apply(attributes: dict[str, list[Value]], change: WriteChange, sent: list[Value]) -> None:
    old = attributes.get(change.attribute, [])
    match change.op:
        case ChangeOp.SET:
            new = sent
        case ChangeOp.ADD:
            new = old + [value for value in sent if value not in old]
        case ChangeOp.REMOVE:
            new = [value for value in old if value not in sent]
        case ChangeOp.CLEAR | ChangeOp.RENAME:
            new = []
    attributes.pop(change.attribute, None)
    if new:
        attributes[change.attribute] = new


def _transformed(state: State, change: WriteChange) -> list[Value]:
    """Return the values that the system stores instead of those that were sent."""
    match state["behaviour"].get("transform", {}).get(change.attribute):
        case "lower":
            return [str(value).lower() for value in change.values]
        case "upper":
            return [str(value).upper() for value in change.values]
        case "drop":
            return []
        case _:
            return list(change.values)


def _refusal(state: State, request: WriteRequest) -> str | None:
    behaviour = state["behaviour"]
    refusals = behaviour.get("refuse", {})
    text = next((refusals[key] for key in (request.anchor, request.address, "*") if key in refusals), None)
    if text is None:
        return None
    left = behaviour.get("refuse_count")
    if left is not None:
        if left <= 0:
            return None
        behaviour["refuse_count"] = left - 1
    return str(text)


def _find(objects: Mapping[str, Any], request: WriteRequest, object_type: ObjectType | None) -> str | None:
    if request.anchor is not None:
        return request.anchor if request.anchor in objects else None
    if object_type is not None:
        values = {change.attribute: list(change.values) for change in request.changes if change.op is ChangeOp.SET}
        anchor = _anchor_from(values, object_type)
        if anchor is not None:
            return anchor if anchor in objects else None
    if not request.address:
        return None
    key = fold_key(request.address)
    return next((anchor for anchor, each in objects.items() if fold_key(each["address"]) == key), None)


def _anchor_from(values: Mapping[str, list[Value]], object_type: ObjectType | None) -> str | None:
    found = values.get(object_type.anchor) if object_type else None
    return str(found[0]) if found else None


def _container_of(address: str) -> str:
    try:
        return dn.parent(address)
    except dn.InvalidDn:
        return ""


def _parent_exists(state: State, address: str) -> bool:
    parent = dn.normalize_or_fold(_container_of(address))
    known = {dn.normalize_or_fold(each) for each in state["containers"]}
    return parent in known


def _all(state: State, scope: ReadScope) -> Iterator[ImportedObject]:
    unreadable = state["behaviour"].get("unreadable", ())
    for object_type in scope.types:
        if object_type.name in unreadable:
            continue
        for anchor, found in state["types"].get(object_type.name, {}).items():
            if (scope.anchors is None or anchor in scope.anchors) and _is_selected(scope, found):
                yield _imported(object_type, anchor, found)


def _changes_since(state: State, scope: ReadScope, sequence: int) -> Iterator[ReadEvent]:
    if sequence < state["log_from"]:
        raise WatermarkLost(f"the log begins at {state['log_from']}, after the watermark {sequence}")
    types = {each.name: each for each in scope.types}
    changed = dict.fromkeys((name, anchor) for number, _, name, anchor in state["log"] if number > sequence)
    for name, anchor in changed:
        if name not in types:
            continue
        found = state["types"].get(name, {}).get(anchor)
        if found is None:
            yield DeletedObject(name, anchor)
        elif _is_selected(scope, found):
            yield _imported(types[name], anchor, found)


def _is_selected(scope: ReadScope, found: Mapping[str, Any]) -> bool:
    return is_selected(found["container"], scope.containers)


def _imported(object_type: ObjectType, anchor: str, found: Mapping[str, Any]) -> ImportedObject:
    cells = {
        name: tuple(_cell(value) for value in values)
        for name, values in found["attributes"].items()
        if name in object_type.attributes
    }
    cells.setdefault(object_type.anchor, (anchor,))
    return ImportedObject(object_type.name, anchor, found["address"], found["container"], cells)


def _cell(value: Value) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _open(settings: Any, context: ConnectorContext) -> MemoryConnector:
    return MemoryConnector(settings, context)


MEMORY = ConnectorKind(
    name="memory",
    settings=MemorySettings,
    open=_open,
    capabilities=Capabilities(full=True, delta=True, export=True, containers=True, read_one=True),
)
