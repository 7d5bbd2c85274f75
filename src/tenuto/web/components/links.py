"""Addresses of the dashboard, including the path prefix of the installation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlencode
from uuid import UUID


def _part(text: object) -> str:
    return str(text) if isinstance(text, UUID) else quote_part(str(text))


def _query(values: dict[str, Any]) -> str:
    given = tuple((name, str(value)) for name, value in values.items() if value not in (None, ""))
    return f"?{_encode(given)}" if given else ""


# Live pages link to the same objects again and again: encoding was a tenth of rendering the list of schedules.
@lru_cache(maxsize=10_000)
def quote_part(text: str) -> str:
    """Return a text as one part of a path."""
    return quote(text, safe="")


@lru_cache(maxsize=10_000)
def _encode(given: tuple[tuple[str, str], ...]) -> str:
    return urlencode(given)


@dataclass(frozen=True, slots=True)
class Links:
    """Makes addresses. ``prefix`` is the setting ``web_path``."""

    prefix: str = ""

    def to(self, path: str, **query: Any) -> str:
        """Return the address of a path of this service."""
        return f"{self.prefix}{path}{_query(query)}" if query else self.prefix + path

    def static(self, version: str, path: str) -> str:
        return f"{self.prefix}/static/{version}/{path}"

    def execution(self, id: UUID | str, **query: Any) -> str:
        return self.to(f"/executions/{_part(id)}", **query)

    def schedule(self, name: str, **query: Any) -> str:
        return self.to(f"/schedules/{_part(name)}", **query)

    def task(self, id: UUID | str, **query: Any) -> str:
        return self.to(f"/tasks/{_part(id)}", **query)

    def activity(self, id: UUID | str, **query: Any) -> str:
        return self.to(f"/activities/{_part(id)}", **query)

    def dead_letter(self, id: UUID | str, **query: Any) -> str:
        return self.to(f"/dead-letters/{_part(id)}", **query)

    def batch(self, id: UUID | str, **query: Any) -> str:
        return self.to(f"/batches/{_part(id)}", **query)

    def manifest(self, external_id: str, **query: Any) -> str:
        return self.to(f"/manifests/{_part(external_id)}", **query)

    def queue(self, name: str, **query: Any) -> str:
        return self.to(f"/queues/{_part(name)}", **query)

    def job(self, name: str, **query: Any) -> str:
        return self.to(f"/jobs/{_part(name)}", **query)

    def one_shot(self, id: UUID | str, **query: Any) -> str:
        return self.to(f"/one-shots/{_part(id)}", **query)

    def log(self, name: str, **query: Any) -> str:
        return self.to(f"/logs/{_part(name)}", **query)

    def audit_entry(self, id: UUID | str) -> str:
        return self.to(f"/audit/{_part(id)}")
