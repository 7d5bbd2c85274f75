"""Messages: their words and their forms for the channels. Rendered once, when the message is created."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tenuto_notifications.model.rules import PLACEHOLDER, Rule

MAX_LISTED_EVENTS = 20
"""Events that one message describes; it counts the others."""
_MAX_SUBJECT_CHARACTERS = 200
_MAX_BODY_CHARACTERS = 20_000
_MAX_FIELD_CHARACTERS = 2000
_MAX_FIELD_VALUES = 50
"""Values of a list or mapping."""
_MAX_FIELD_DEPTH = 6
_MAX_FIELDS_BYTES = 32 * 1024
_MAX_DOCUMENT_BYTES = 240 * 1024
"""Less than the limit of the input of a task, `tenuto.model.validation.MAX_INPUT_BYTES`."""


@dataclass(frozen=True, slots=True)
class ListedEvent:
    """An event that a message describes, with its fields as JSON values."""

    kind: str
    title: str
    at: str
    fields: Mapping[str, Any]
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """The words of a message, and the document that webhooks and jobs receive."""

    subject: str
    body: str
    document: dict[str, Any]


def compose(
    message_id: str, rule: Rule, events: Sequence[ListedEvent], count: int, base_url: str | None, *, is_test: bool
) -> Content:
    """Return the words of a message about some events; ``count`` includes those that are not listed."""
    listed = events[:MAX_LISTED_EVENTS]
    values = _values(rule, listed, count, base_url)
    subject = _fill(rule.template.subject, values) if rule.template.subject else _default_subject(listed, count)
    body = _fill(rule.template.body, values) if rule.template.body else _default_body(rule, listed, count, base_url)
    if is_test:
        subject = f"[Test] {subject}"
    subject = " ".join(subject.split())[:_MAX_SUBJECT_CHARACTERS]
    body = body[:_MAX_BODY_CHARACTERS]
    document: dict[str, Any] = {
        "id": message_id,
        "rule": rule.name,
        "event": rule.event,
        "is_test": is_test,
        "subject": subject,
        "body": body,
        "count": count,
        "omitted": count,
        "events": [],
    }
    remaining = _MAX_DOCUMENT_BYTES - _size(document)
    for each in listed:
        described = _describe(each, base_url)
        remaining -= _size(described)
        if remaining < 0:
            break
        document["events"].append(described)
    document["omitted"] = count - len(document["events"])
    return Content(subject, body, document)


def _describe(event: ListedEvent, base_url: str | None) -> dict[str, Any]:
    """Return an event as documents contain it."""
    fields, remaining = {}, _MAX_FIELDS_BYTES
    for name, value in _shorten_fields(event.fields).items():
        remaining -= _size({name: value})
        if remaining < 0:
            break
        fields[name] = value
    link = _link(event, base_url)
    return {
        "event": event.kind,
        "title": _shorten(event.title),
        "at": event.at,
        "fields": fields,
        **({"link": link} if link else {}),
    }


def _size(value: Any) -> int:
    """Return the size in bytes as JSON, with what separates it from the next value."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")) + 2


def _default_subject(events: Sequence[ListedEvent], count: int) -> str:
    return events[0].title if count == 1 else f"{events[0].title} (and {count - 1:,} more)"


def _default_body(rule: Rule, events: Sequence[ListedEvent], count: int, base_url: str | None) -> str:
    lines = []
    for each in events:
        lines.append(f"{each.at}  {each.title}")
        error = each.fields.get("error")
        if error:
            lines.append(f"    {_one_line(str(error))}")
        if link := _link(each, base_url):
            lines.append(f"    {link}")
    if count > len(events):
        lines.append(f"… and {count - len(events):,} more")
    lines += ["", f"Sent by the notification rule {rule.name}."]
    return "\n".join(lines)


def _values(rule: Rule, events: Sequence[ListedEvent], count: int, base_url: str | None) -> dict[str, str]:
    first = events[0]
    own = {name: _text(value) for name, value in _shorten_fields(first.fields).items()}
    return own | {
        "rule": rule.name,
        "event": rule.event,
        "count": str(count),
        "omitted": str(count - len(events)),
        "title": first.title,
        "titles": "\n".join(each.title for each in events),
        "at": first.at,
        "link": _link(first, base_url) or "",
    }


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Replace placeholders; a field that the event does not have is empty. Values are not searched for placeholders."""
    return PLACEHOLDER.sub(lambda found: values.get(found[1], ""), template)


def _link(event: ListedEvent, base_url: str | None) -> str | None:
    return f"{base_url}{event.path}" if base_url and event.path else None


def _text(value: Any) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, list) else str(value)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 300 else line[:299] + "…"


def _shorten_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _shorten(value) for name, value in fields.items()}


def _shorten(value: Any, depth: int = 0) -> Any:
    """Return a JSON value without the rest of long texts, lists and mappings."""
    if isinstance(value, str):
        return value if len(value) <= _MAX_FIELD_CHARACTERS else value[: _MAX_FIELD_CHARACTERS - 1] + "…"
    if not isinstance(value, list | tuple | Mapping):
        return value
    if depth == _MAX_FIELD_DEPTH:
        return "…"
    if isinstance(value, Mapping):
        return {name: _shorten(each, depth + 1) for name, each in list(value.items())[:_MAX_FIELD_VALUES]}
    shortened = [_shorten(each, depth + 1) for each in value[:_MAX_FIELD_VALUES]]
    return shortened if len(value) <= _MAX_FIELD_VALUES else [*shortened, "…"]


# --- forms ------------------------------------------------------------------------------------------------------------


def to_slack(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message for a webhook of Slack."""
    return {"text": f"*{_escape_slack(document['subject'])}*\n{_escape_slack(document['body'])}"}


def _escape_slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_teams(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message for a webhook of Teams: an adaptive card."""
    lines = [
        {"type": "TextBlock", "text": _escape_markdown(document["subject"]), "weight": "bolder", "wrap": True},
        {"type": "TextBlock", "text": _escape_markdown(document["body"]).replace("\n", "\n\n"), "wrap": True},
    ]
    content = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": lines,
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": content}
    return {"type": "message", "attachments": [attachment]}


def _escape_markdown(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\*_[]`#~" else char for char in text)
