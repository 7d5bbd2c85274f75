"""Patterns of HTML: the same text and the same escaping as `Markup.format`."""

from __future__ import annotations

from uuid import UUID

import pytest
from markupsafe import Markup

from tenuto.web.components.html_pattern import HtmlPattern

TEXTS = ["{}", '<b title="{}">{}</b>', "no gap", "<i>{}</i> & {}", '<rect width="100%" x="{}%"/>%s']
VALUES = ["plain", "<script>alert('1')</script>", 'quote " and &amp;', Markup("<em>kept</em>"), 7, None, UUID(int=7)]


@pytest.mark.parametrize("text", TEXTS)
def test_pattern_escapes_values_as_markup_does(text: str) -> None:
    count = text.count("{}")
    for first in VALUES:
        for second in VALUES:
            values = [first, second][:count]
            found = HtmlPattern(text).format(*values)
            assert found == Markup(text).format(*values)
            assert isinstance(found, Markup)


def test_pattern_with_a_wrong_number_of_values_is_refused() -> None:
    for values in ((), ("one", "two")):
        with pytest.raises(TypeError):
            HtmlPattern("<b>{}</b>").format(*values)
