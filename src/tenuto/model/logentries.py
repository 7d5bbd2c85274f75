"""Entries of named logs: what one may say, and how much."""

from __future__ import annotations

from typing import Any

from tenuto.errors import Invalid
from tenuto.model import payloads

DEFAULT = "default"
MAX_MESSAGE = 64 * 1024
MAX_FIELDS = 64 * 1024


def log_name(text: str) -> str:
    """The name of a log, or a refusal."""
    return payloads.name(text, field="log")


def message(text: str) -> str:
    """What an entry says, or a refusal."""
    if not text.strip():
        raise Invalid("says nothing", field="message", remedy="give a text")
    return payloads.storable_text(text, field="message", limit=MAX_MESSAGE)


def fields(given: dict[str, Any] | None) -> dict[str, Any] | None:
    """The data of an entry, or a refusal."""
    if given is not None:
        payloads.json_of(given, field="fields", limit=MAX_FIELDS)
    return given
