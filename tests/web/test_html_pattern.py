"""Patterns of HTML: the same text and the same escaping as `Markup.format`; templates: the same text as Jinja makes."""

from __future__ import annotations

from uuid import UUID

import pytest
from jinja2 import Environment, StrictUndefined, UndefinedError
from markupsafe import Markup, escape

from tenuto.web.components.html_templates import HtmlPattern, to_html
from tenuto.web.rendering import PageEnvironment

TEXTS = ["{}", '<b title="{}">{}</b>', "no gap", "<i>{}</i> & {}", '<rect width="100%" x="{}%"/>%s']
VALUES = ["plain", "<script>alert('1')</script>", 'quote " and &amp;', Markup("<em>kept</em>"), 7, None, UUID(int=7)]


class Tricky(str):
    """A text that is markup only by its own account."""

    def __html__(self) -> str:
        return "<em>own</em>"


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


@pytest.mark.parametrize("value", [*VALUES, "'", ">", True, 1.5, "", "\x00", ["<i>"], Tricky("<b>")])
def test_values_are_escaped_as_markupsafe_does(value: object) -> None:
    assert to_html(value) == escape(value)


TEMPLATE = """
{% macro cell(text) %}<td>{{ text }}{{ caller() }}</td>{% endmacro %}
{% for row in rows %}{% set name = row ~ "<br>" %}
{% call cell(row) %}{{ ui.show(row, style="a&b") }} {{ name }} {{ loop.index }}{% endcall %}
{% endfor %}{{ ui.show(*rows[:1], **{"style": "<"}) }} {{ ui.show(ui.show("<")) | upper }} {{ markup }}
{{ other.show("'") }}
"""


class Shown:
    """Stands for the object that templates call ``ui``."""

    def show(self, text: object, style: str = "") -> Markup:
        return HtmlPattern('<b class="{}">{}</b>').format(style, text)


def test_pages_have_the_text_that_jinja_makes() -> None:
    values = {"rows": VALUES[:4], "ui": Shown(), "other": Shown(), "markup": Markup("<hr>")}
    texts = [
        make(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE).render(values)
        for make in (Environment, PageEnvironment)
    ]
    assert texts[0] == texts[1]
    assert "<script>" not in texts[1]
    assert texts[1].count("&lt;script&gt;") == 3


def test_missing_value_in_a_page_is_an_error() -> None:
    environment = PageEnvironment(autoescape=True, undefined=StrictUndefined)
    for text in ("{{ ui.show('x') }}", "{{ links.to(missing) }}", "{{ missing }}"):
        with pytest.raises(UndefinedError):
            environment.from_string(text).render({})
