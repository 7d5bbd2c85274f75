"""How lists of notifications are shown: the columns of tables and CSV rows."""

from __future__ import annotations

from tenuto.presentation.columns import Column, ResourceView

RULES = ResourceView(
    "notification rules",
    (
        Column("name", "name", flexible=True),
        Column("enabled", "enabled", "switch"),
        Column("event", "event"),
        Column("filter", "filter", flexible=True, drop=2),
        Column("channel", "channel"),
        Column("target", "target", flexible=True, drop=1),
        Column("changed", "updated_at", "age", drop=3),
        Column("by", "updated_by", drop=4),
    ),
    hint="create one with: tenuto notification create NAME --event execution.failed --webhook URL",
    next_page={"after": "name"},
)
DELIVERIES = ResourceView(
    "notifications",
    (
        Column("id", "id", "id"),
        Column("created", "created_at", "age"),
        Column("rule", "rule", flexible=True),
        Column("state", "state", "state"),
        Column("subject", "subject", flexible=True),
        Column("events", "event_count", "count"),
        Column("channel", "channel", drop=2),
        Column("target", "target", flexible=True, drop=3),
        Column("attempts", "attempt", "number", drop=4),
        Column("error", "error", "error", flexible=True, drop=1),
    ),
    hint="send one with: tenuto notification test RULE",
)
SILENCES = ResourceView(
    "silences",
    (
        Column("id", "id", "id"),
        Column("rule", lambda silence: silence.rule_name or "all rules", flexible=True),
        Column("from", "starts_at", "instant"),
        Column("to", "ends_at", "instant"),
        Column("reason", "reason", flexible=True),
        Column("by", "created_by", drop=1),
    ),
    hint="silence a rule with: tenuto notification silence RULE --for 2h",
    next_page={},
)
EVENTS = ResourceView(
    "events",
    (
        Column("event", "name"),
        Column("meaning", "help", flexible=True),
        Column("after", "default_after", "duration", drop=1),
        Column("fields", "fields", "list", flexible=True, drop=2),
    ),
    next_page={},
)
