"""How lists of identity synchronisation are shown: the columns of tables and CSV rows."""

from __future__ import annotations

from typing import Any

from tenuto.presentation.columns import Column, ResourceView


def _attribute_names(export: Any) -> list[str]:
    return sorted({change["attribute"] for change in export.changes})


def _steps(steps: Any) -> list[str]:
    return [f"{step.system}: {step.origin} ({step.rule})" for step in steps]


def _changed_values(entry: Any) -> str:
    """Return the values before and after of each attribute; of a hidden one only the name."""
    found = []
    for name, diff in sorted(entry.diff.items()):
        if not isinstance(diff, list) or len(diff) != 2:
            found.append(f"{name}: ***")
        elif not diff[0]:
            found.append(f"{name}: {_joined(diff[1])}")
        else:
            found.append(f"{name}: {_joined(diff[0])} → {_joined(diff[1]) or 'no value'}")
    return "; ".join(found)


def _joined(values: Any) -> str:
    return ", ".join(map(str, values)) if isinstance(values, list) else str(values)


ATTRIBUTE_FLOWS = ResourceView(
    "attributes",
    (
        Column("type", "type"),
        Column("attribute", "attribute"),
        Column("from, by priority", lambda flow: _steps(flow.contributions), "list", flexible=True),
        Column("to", lambda flow: _steps(flow.targets), "list", flexible=True, drop=1),
    ),
    hint="declare metaverse types and sync rules in a definition file and apply it",
    next_page={},
)
SYSTEMS = ResourceView(
    "connected systems",
    (
        Column("name", "name", flexible=True),
        Column("connector", "connector", drop=2),
        Column("state", lambda system: "held" if system.held else system.state),
        Column("objects", "object_count", "count"),
        Column("pending exports", "export_count", "count"),
        Column("last run", lambda system: system.recent_runs[0].state if system.recent_runs else None, "state", drop=3),
        Column("changed", "updated_at", "age", drop=1),
    ),
    hint="declare one in a definition file and apply it",
    next_page={"after": "name"},
)
RUNS = ResourceView(
    "runs",
    (
        Column("id", "id", "id"),
        Column("system", "system"),
        Column("profile", "profile"),
        Column("state", "state", "state"),
        Column("started", "started_at", "age", drop=1),
        Column("by", "initiator_name", drop=3),
        Column("problem", "problem", "error", flexible=True, drop=2),
    ),
    hint="start one with `tenuto identity run SYSTEM PROFILE`",
    next_page={"before": "id"},
)
PREVIEWS = ResourceView(
    "previews",
    (
        Column("id", "id", "id"),
        Column("subject", "subject", flexible=True),
        Column("state", "state", "state"),
        Column("runs", lambda preview: len(preview.steps), "count", drop=2),
        Column("requests", lambda preview: sum(step["requests"] for step in preview.steps), "count"),
        Column("started", "requested_at", "age", drop=1),
        Column("by", "requested_by", drop=3),
        Column("problem", "problem", "error", flexible=True, drop=2),
    ),
    hint="start one with `tenuto identity preview`",
    next_page={"before": "id"},
)
ITEMS = ResourceView(
    "items",
    (
        Column("number", "number", "number", drop=2),
        Column("type", "type", drop=1),
        Column("anchor", "anchor"),
        Column("name", "display", flexible=True),
        Column("change", "change"),
        Column("error", "error", "error"),
        Column("message", "message", flexible=True),
    ),
    next_page={"after": "number"},
)
PENDING_EXPORTS = ResourceView(
    "pending exports",
    (
        Column("id", "object_id", "number"),
        Column("system", "system"),
        Column("object", lambda export: export.address or export.anchor or export.display, flexible=True),
        Column("kind", "kind"),
        Column("state", "state"),
        Column("attributes", _attribute_names, "list", flexible=True, drop=1),
        Column("attempts", "attempts", "count", drop=2),
        Column("error", "error", "error", flexible=True),
    ),
    next_page={"after": "object_id"},
)
OBJECTS = ResourceView(
    "objects",
    (
        Column("id", "id", "number"),
        Column("system", "system"),
        Column("type", "type", drop=2),
        Column("anchor", "anchor", flexible=True),
        Column("address", "address", flexible=True, drop=1),
        Column("state", "state"),
        Column("identity", "metaverse_id", "number"),
        Column("joined by", "join_kind", drop=3),
    ),
    hint="import them with `tenuto identity run SYSTEM PROFILE`",
    next_page={"after": "id"},
)
IDENTITIES = ResourceView(
    "identities",
    (
        Column("id", "id", "number"),
        Column("type", "type"),
        Column("name", "display", flexible=True),
        Column("systems", "systems", "list", flexible=True),
        Column("changed", "changed_at", "age", drop=1),
        Column("deleted after", "delete_after", "instant", drop=2),
    ),
    next_page={"after": "id"},
)
HISTORY = ResourceView(
    "changes",
    (
        Column("started", "started_at", "instant"),
        Column("system", "system"),
        Column("profile", "profile", drop=1),
        Column("subject", "subject"),
        Column("change", "change"),
        Column("values", _changed_values, flexible=True),
    ),
    next_page={},
)
