"""Lists of events, waits and approvals."""

from __future__ import annotations

from tenuto.presentation.columns import Column, ResourceView

EVENTS = ResourceView(
    "events",
    (
        Column("id", "id", "id"),
        Column("name", "name"),
        Column("key", "key"),
        Column("sent", "sent_at", "age"),
        Column("delivered to", "delivery_count", "number"),
        Column("kept until", "expires_at", "instant", drop=2),
        Column("sender", "sender_name", drop=1),
        Column("payload", "payload", "json", flexible=True),
    ),
)
WAITS = ResourceView(
    "waits",
    (
        Column("task", "task_id", "id"),
        Column("job", "job"),
        Column("event", "name"),
        Column("key", "key"),
        Column("waits since", "registered_at", "age"),
        Column("until", "expires_at", "instant"),
        Column("step", "step", drop=1),
        Column("queue", "queue", drop=2),
    ),
)
APPROVALS = ResourceView(
    "approvals",
    (
        Column("id", "id", "id"),
        Column("state", "state", "state", text=lambda approval, _: "Pending" if approval.state == "pending" else None),
        Column("schedule", "schedule_name"),
        Column("step", "step"),
        Column("approved", lambda approval: f"{approval.approval_count} of {approval.required_count}"),
        Column("until", "expires_at", "instant"),
        Column("requested", "requested_at", "age", drop=1),
        Column("message", "message", flexible=True),
    ),
)
