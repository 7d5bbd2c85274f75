"""What the templates of extensions use besides ``ui`` and ``links``: tables with filters and paging, facts, changes.

The functions of an extension's pages make the values of this module; the templates render them with ``kit.NAME(…)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from jinja2 import Environment
from markupsafe import Markup

from tenuto.presentation.columns import Column, ResourceView


@dataclass(frozen=True, slots=True)
class Action:
    """A button of an operation of the API, with the options of `Elements.action`. If the viewer may not call the
    operation, the button is disabled and names the role."""

    operation: str
    """Operation id of the route."""
    label: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    text: str = ""
    """Effect in plain English, which the dialog states before the viewer confirms it."""
    reason: Literal["", "optional", "required"] = ""
    fields: Sequence[Mapping[str, Any]] = ()
    body: Mapping[str, Any] | None = None
    submit: str = ""
    done: str = ""
    goto: str = ""
    blocked: str = ""
    """Why the action is not possible now."""
    style: str = ""
    expected: int = 0


@dataclass(frozen=True, slots=True)
class FilterField:
    """A field of the filter form: a text, or a choice of values."""

    name: str
    """Name of the query parameter, which the page declares."""
    label: str
    value: str = ""
    """The present value."""
    choices: Sequence[str | tuple[str, str]] = ()
    """Values, or pairs of value and label; the empty choice is added."""

    @property
    def options(self) -> list[tuple[str, str]]:
        return [each if isinstance(each, tuple) else (each, each.replace("_", " ")) for each in self.choices]


class _PagedList:
    """The addresses of a list: its filters and the cursor of its next page."""

    __slots__ = ()
    filters: Sequence[FilterField]
    cursor: str
    next: str | None

    @property
    def query(self) -> dict[str, str]:
        """The present filters."""
        return {each.name: each.value for each in self.filters if each.value}

    @property
    def is_filtered(self) -> bool:
        return bool(self.query)

    @property
    def next_query(self) -> dict[str, str]:
        return {**self.query, self.cursor: self.next or ""}


@dataclass(frozen=True, slots=True)
class Listing(_PagedList):
    """A page of records that the template of the extension draws itself, between ``kit.filters`` and ``kit.pager``."""

    title: str
    """What the list contains, for screen readers."""
    rows: Sequence[Any]
    path: str
    """Path of the page, such as ``/inventory/items``."""
    filters: Sequence[FilterField] = ()
    cursor: str = "after"
    """Name of the query parameter of the next page."""
    next: str | None = None
    """Its value; None on the last page."""
    is_first: bool = True


@dataclass(frozen=True, slots=True)
class Table(_PagedList):
    """A page of records with their columns."""

    title: str
    """What the table contains, for screen readers."""
    view: ResourceView
    """The columns, as the command line shows them."""
    rows: Sequence[Any]
    path: str
    """Path of the page, such as ``/inventory/items``."""
    key: Callable[[Any], str] = lambda record: str(record.id)
    """Identifies a row, so that live updates keep it."""
    link: Callable[[Any], str] | None = None
    """Path of the page of a record."""
    filters: Sequence[FilterField] = ()
    cursor: str = "after"
    """Name of the query parameter of the next page."""
    next: str | None = None
    """Its value; None on the last page."""
    is_first: bool = True
    actions: Callable[[Any], Sequence[Action]] | None = None
    """Buttons of a row; if there are more than two, all but the first are in a menu."""
    empty: str = "Nothing here yet."
    hint: str = ""
    """Command that would put something here."""

    @property
    def columns(self) -> Sequence[Column]:
        return self.view.columns

    @property
    def slug(self) -> str:
        """Part of the ids of the menus of its rows, which differs from that of the other tables of a page."""
        return re.sub(r"\W+", "-", self.title.lower())


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field before and after a change; None if it did not exist."""

    name: str
    before: Any
    after: Any


def path_of(*parts: object) -> str:
    """Join names to a dashboard path, each percent-encoded."""
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


@dataclass(frozen=True, slots=True)
class Kit:
    """Renders the values of this module for one viewer."""

    environment: Environment
    context: Mapping[str, Any]

    def table(self, table: Table) -> Markup:
        """Return a table with its filter form and its links to other pages."""
        return self._render("kit/table.html", t=table)

    def filters(self, listing: Listing | Table) -> Markup:
        """Return the filter form of a list."""
        return self._render("kit/filters.html", t=listing)

    def pager(self, listing: Listing | Table) -> Markup:
        """Return the links to the first and to the next page of a list."""
        return self._render("kit/pager.html", t=listing)

    def action(self, action: Action) -> Markup:
        """Return a button."""
        options = asdict(action)
        markup: Markup = self.context["ui"].action(
            options.pop("operation"), options.pop("label"), options.pop("parameters"), **options
        )
        return markup

    def facts(self, facts: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> Markup:
        """Return names and values as a list; markup, such as ``ui.time(…)``, stays markup."""
        return self._render("kit/facts.html", facts=list(facts.items() if isinstance(facts, Mapping) else facts))

    def changes(self, changes: Sequence[FieldChange], title: str = "Changes") -> Markup:
        """Return fields with their values before and after a change."""
        return self._render("kit/changes.html", changes=changes, title=title)

    def _render(self, template: str, **values: Any) -> Markup:
        return Markup(self.environment.get_template(template).render({**self.context, "kit": self, **values}))
