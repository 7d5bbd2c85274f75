"""Which values of a preview are shown to callers who may not see sensitive ones."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreviewMask:
    """What is hidden from a caller."""

    attributes: frozenset[str]
    """Attributes whose values are hidden."""
    hides_all: bool = False
    """All values are hidden, and so are names and addresses, which rules can compute from any attribute."""


REVEALED = PreviewMask(frozenset())


def preview_mask(recorded: Collection[str] | None, live: frozenset[str], *, has_definitions: bool) -> PreviewMask:
    """Return what is hidden. ``recorded`` are the attributes that were sensitive when the preview ran, None before.

    The definitions of a preview may move a sensitive value into any other attribute, or declare it as not sensitive.
    Its values are therefore hidden as a whole, unless no attribute at all is sensitive.
    """
    attributes = live | frozenset(recorded or ())
    return PreviewMask(attributes, recorded is None or (has_definitions and bool(attributes)))
