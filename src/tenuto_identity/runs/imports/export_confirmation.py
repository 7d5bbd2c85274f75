"""Confirmation of exports by an import: pending exports are compared with the objects that the system shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenuto.postgres.database import Connection
from tenuto_identity.model.objects import ConnectorObject
from tenuto_identity.model.sync.engine import Reconciled, reconcile
from tenuto_identity.model.sync.pending_exports import ExportKind, PendingExport, export_depth
from tenuto_identity.runs.imports.seen_objects import SeenObjects
from tenuto_identity.runs.page_context import display_of, to_connector_objects
from tenuto_identity.runs.run_lifecycle import Page, Run
from tenuto_identity.store import exports, objects

MISSING_PAGE_SIZE = 5_000


class ExportConfirmation:
    """Reconciles the pending exports of a system with what an import of it reads."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._system = run.system
        self._is_needed = False

    async def begin(self) -> None:
        """Find out whether there is anything to confirm. Exports that are sent later are left to the next import."""
        self._is_needed = await self._run.read(exports.has_exports_to_confirm, self._system.number)

    async def reconcile(self, connection: Connection, described: dict[int, dict[str, Any]], ids: Sequence[int]) -> None:
        """Compare the pending exports of all objects of a page with what was imported, unchanged objects included:
        that is how an export without effect is noticed. ``described`` are the fields of items, by object."""
        if not self._is_needed or not ids:
            return
        systems = self._run.configuration.system_names
        pending = await exports.load_exports_to_confirm(connection, ids, systems)
        if not pending:
            return
        rows = await objects.load_objects(connection, sorted(pending))
        references = await objects.load_references(connection, sorted(pending))
        found = to_connector_objects(self._run.configuration, rows, references)
        results = {
            id: reconcile(found[id], export, self._system.definition.types[found[id].type])
            for id, export in pending.items()
            if id in found and found[id].type in self._system.definition.types
        }
        await self._write_reconciled(connection, described, results, found, pending)

    async def _write_reconciled(
        self,
        connection: Connection,
        described: dict[int, dict[str, Any]],
        results: Mapping[int, Reconciled],
        found: Mapping[int, ConnectorObject],
        pending: Mapping[int, PendingExport],
    ) -> None:
        changed = {id: each for id, each in results.items() if each.pending != pending[id]}
        await exports.delete_exports(connection, [id for id, each in changed.items() if each.pending is None])
        remaining = [each.pending for each in changed.values() if each.pending is not None]
        depths = {
            each.object_id: export_depth(each.kind, found[each.object_id].address if each.object_id in found else "")
            for each in remaining
        }
        await exports.write_exports(
            connection, remaining, self._run.configuration.system_numbers, depths, self._run.now()
        )
        for id, each in changed.items():
            fields = described.setdefault(id, self._item_fields(found.get(id)))
            _describe_confirmation(fields, each)

    def _item_fields(self, found: ConnectorObject | None) -> dict[str, Any]:
        if found is None:
            return {}
        return {"type": found.type, "anchor": found.anchor, "display": display_of(found.attributes)}

    async def reconcile_missing(self, seen: SeenObjects) -> None:
        """After a complete read: exports whose object was not found are not confirmed."""
        if not self._is_needed:
            return
        after = 0
        while True:
            listed = await self._run.read(exports.list_exported, self._system.number, after, MISSING_PAGE_SIZE)
            if not listed:
                return
            after = listed[-1][0]
            missing = [id for id, kind in listed if id not in seen and kind is not ExportKind.DELETE]
            if missing:
                await self._run.write_page(self._unconfirm, missing)

    async def _unconfirm(self, connection: Connection, page: Page, ids: Sequence[int]) -> None:
        systems = self._run.configuration.system_names
        pending = await exports.lock_exports(connection, ids, systems)
        rows = await objects.load_objects(connection, sorted(pending))
        found = to_connector_objects(self._run.configuration, rows, [])
        results = {
            id: reconcile(None, export, self._system.definition.types[found[id].type])
            for id, export in pending.items()
            if id in found
        }
        fields: dict[int, dict[str, Any]] = {}
        await self._write_reconciled(connection, fields, results, found, pending)
        for id, each in fields.items():
            page.add_item(object_id=id, **each)


def _describe_confirmation(fields: dict[str, Any], result: Reconciled) -> None:
    """Add to an item what an import said about the pending export of its object."""
    detail = fields.setdefault("detail", {})
    if "change" in fields:
        detail["import"] = fields["change"]
    if result.unconfirmed:
        has_failed = any(change.state.value == "failed" for change in result.unconfirmed)
        fields["change"] = "NotConfirmed"
        fields["error"] = "confirmation_failed" if has_failed else "not_confirmed"
        fields["message"] = "; ".join(
            f"{change.attribute}: sent {list(change.values or change.references)},"
            f" observed {list(change.observed or ())}"
            for change in result.unconfirmed
        )
    else:
        fields["change"] = "Confirmed"
    detail["confirmed"] = sorted({change.attribute for change in result.confirmed})
