"""HTML with gaps, which is prepared once and filled for every row of every page.

`Markup.format` parses its text at each call; on a list of 50 rows that was the largest part of rendering
(benchmark `dashboard`). A test compares the two.
"""

from __future__ import annotations

from markupsafe import Markup, escape


class HtmlPattern:
    """A constant text with gaps ``{}``. Values are escaped unless they are markup."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text.replace("%", "%%").replace("{}", "%s")

    def format(self, *values: object) -> Markup:
        """Return the text with one value in each gap."""
        # The values are escaped; the constructor of Markup would examine the text once more.
        return str.__new__(Markup, self._text % tuple([escape(value) for value in values]))
