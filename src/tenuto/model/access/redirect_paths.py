"""Paths of pages that a browser is sent to."""

from __future__ import annotations

_DOTS = {".", ".."}


def is_page_path(target: str) -> bool:
    """Return whether a target of a link or redirect is a page of this service: never another site, nor the API."""
    path = target.partition("?")[0].partition("#")[0]
    return (
        path.startswith("/")
        and not path.startswith(("//", "/\\"))
        and target.isprintable()
        and not any(character in target for character in '\\"<>')
        and not any(part.lower().replace("%2e", ".") in _DOTS for part in path.split("/"))
        and not path.startswith("/api/")
    )
