"""HTML with gaps, which is split once and filled for every row of every page.

`Markup.format` parses its text at each call; on a list of 50 rows that was the largest part of rendering
(benchmark `dashboard`). A test compares the two.
"""

from __future__ import annotations

from markupsafe import Markup, escape


class HtmlPattern:
    """A constant text with gaps ``{}``. Values are escaped unless they are markup."""

    __slots__ = ("_end", "_pieces")

    def __init__(self, text: str) -> None:
        *self._pieces, self._end = text.split("{}")

    def format(self, *values: object) -> Markup:
        """Return the text with one value in each gap."""
        filled = [f"{piece}{escape(value)}" for piece, value in zip(self._pieces, values, strict=True)]
        return Markup("".join(filled) + self._end)
