"""HTML with gaps, which is prepared once and filled for every row of every page.

`Markup.format` parses its text at each call; on a list of 50 rows that was the largest part of rendering
(benchmark `dashboard`). A test compares the two.
"""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape

_SPECIAL = re.compile("[&<>'\"]")


def to_html(value: Any) -> str:
    """Return a value as HTML: markup as it is, anything else escaped.

    This is `markupsafe.escape` without wrapping its result: the caller joins it with other HTML. A list escapes three
    thousand values, and most of them contain no special character (benchmark `dashboard`). A test compares the two.
    """
    kind = type(value)
    if kind is Markup:
        return value  # type: ignore[no-any-return]
    if kind is str:
        return escape(value) if _SPECIAL.search(value) else value
    return str(value) if kind is int or kind is float else escape(value)


class HtmlPattern:
    """A constant text with gaps ``{}``. Values are escaped unless they are markup."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text.replace("%", "%%").replace("{}", "%s")

    def format(self, *values: object) -> Markup:
        """Return the text with one value in each gap."""
        # The values are escaped; the constructor of Markup would examine the text once more.
        return str.__new__(Markup, self._text % tuple([to_html(value) for value in values]))
