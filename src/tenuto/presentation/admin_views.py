"""Views of administration: API keys, secrets, audit log, named logs, findings of the doctor."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tenuto.presentation.columns import Column, ResourceView
from tenuto.presentation.text_formats import format_relative


def _key_state(key: Any) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expired else "valid"


def _key_end(key: Any, now: datetime) -> str:
    if key.revoked_at is not None:
        return f"{format_relative(key.revoked_at, now)} by {key.revoked_by}"
    return format_relative(key.expires_at, now)


API_KEYS = ResourceView(
    "API keys",
    (
        Column("name", "name", flexible=True),
        Column("prefix", "prefix"),
        Column("role", "role"),
        Column("kind", "kind", drop=3),
        Column("state", _key_state, "state"),
        Column("last used", "last_used_at", text=lambda key, now: format_relative(key.last_used_at, now) or "never"),
        Column("created", "created_at", "age", drop=2),
        Column("by", "created_by", drop=1),
        Column("ends", lambda key: key.revoked_at or key.expires_at, text=_key_end),
    ),
    hint="create one with: tenuto key add NAME --role admin",
)


INVITATIONS = ResourceView(
    "invitations",
    (
        Column("name", "name", flexible=True),
        Column("role", "role"),
        Column("state", "state", "state"),
        Column("created", "created_at", "age"),
        Column("by", "created_by", drop=1),
        Column("expires", "expires_at", text=lambda each, now: format_relative(each.expires_at, now)),
        Column("id", "id", "id", drop=2),
    ),
    hint="invite a person with: tenuto invitation create NAME --role operator",
    next_page={"below": "id"},
)

SESSIONS = ResourceView(
    "sessions",
    (
        Column("id", "id", "id"),
        Column("name", "name", flexible=True),
        Column("role", "role"),
        Column("last used", "last_used_at", "age"),
        Column("opened", "opened_at", "age", drop=1),
        Column("ends", "expires_at", text=lambda each, now: format_relative(each.expires_at, now)),
        Column("address", "address"),
        Column("browser", "browser", flexible=True, drop=2),
    ),
    hint="open one with: tenuto login",
    next_page={},
)


def _migration_state(status: Any) -> str:
    if status.version > status.newest_version:
        return "newer"
    return "behind" if status.pending else "current"


MIGRATIONS = ResourceView(
    "components",
    (
        Column("component", "component"),
        Column("state", _migration_state, "state"),
        Column("version", "version", "number"),
        Column("newest", "newest_version", "number"),
        Column("pending", "pending", "list", flexible=True),
    ),
    next_page={},
)

SECRETS = ResourceView(
    "secrets",
    (
        Column("name", "name", flexible=True),
        Column("version", "version", "number"),
        Column("set", "updated_at", "age"),
        Column("by", "updated_by", flexible=True),
        Column("key", "key_id", drop=1),
    ),
    hint="set one with: tenuto secret set NAME",
    next_page={"after": "name"},
)

AUDIT_ENTRIES = ResourceView(
    "audit entries",
    (
        Column("time", "at", "instant"),
        Column("actor", "actor_name"),
        Column("source", "source", drop=1),
        Column("action", "action"),
        Column("target", "target", flexible=True),
        Column("reason", "reason", flexible=True),
        Column("position", "position", "number", drop=2),
    ),
)
AUDIT_FAULTS = ResourceView(
    "faults",
    (
        Column("position", "position", "number"),
        Column("fault", lambda fault: fault.kind.replace("_", " ")),
        Column("description", "description", flexible=True),
    ),
)

LOGS = ResourceView(
    "logs",
    (
        Column("name", "log"),
        Column("last", "last_entry_at", "age"),
        Column("entry", "last_entry_id", "number", drop=1),
        Column("message", "last_message", flexible=True),
    ),
    next_page={"after": "log"},
)
LOG_ENTRIES = ResourceView(
    "entries",
    (
        Column("id", "id", "number"),
        Column("at", "at", "instant"),
        Column("message", "message", flexible=True),
        Column("fields", "fields", "json"),
        Column("task id", "task_id", "id"),
    ),
)

FINDINGS = ResourceView(
    "findings",
    (
        Column("name", "name"),
        Column("title", "title"),
        Column("severity", "severity", "state"),
        Column("details", lambda finding: "; ".join(finding.details), flexible=True),
        Column("meaning", "meaning", flexible=True),
        Column("remedy", "remedy", flexible=True),
    ),
)
