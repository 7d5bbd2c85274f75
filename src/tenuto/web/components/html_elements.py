"""Small pieces of HTML that all pages use: statuses, times, ids, buttons of API operations.

Templates call them as ``ui.NAME(…)``. Everything that is not a constant here is escaped by `HtmlPattern`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal
from uuid import UUID

from markupsafe import Markup, escape

from tenuto.diagnostics.reasons import Reason, format_instant
from tenuto.model.filters import quote_value
from tenuto.presentation.columns import Column
from tenuto.presentation.statuses import status_of
from tenuto.presentation.text_formats import error_summary, format_duration, one_line
from tenuto.web.components.attempt_text import escape_invisible
from tenuto.web.components.html_templates import HtmlPattern
from tenuto.web.components.links import Links
from tenuto.web.components.times import Times, format_instant_title
from tenuto.web.route_table import RouteTable
from tenuto.web.viewer import Viewer

SHORT_ID_LENGTH = 13
_STATUS = HtmlPattern('<span class="status is-{}">{}<span>{}</span></span>')
_ICON = HtmlPattern('<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><use href="#s-{}"/></svg>')
_ID = HtmlPattern('<code class="id" title="{}">{}<span>…{}</span></code>')
_SPARK = HtmlPattern(
    '<svg class="spark" role="img" aria-label="{}"><rect class="track" width="100%" y="19" height="1"/>{}</svg>'
)
_COLUMN = '<rect class="fill-fail" x="{:.1f}%" width="{:.1f}%" y="{:.1f}" height="{:.1f}"/>'  # numbers only
_PACE = HtmlPattern(
    '<svg class="pace" role="img" aria-label="{}"><title>{}</title><rect class="track" y="3" width="100%" height="4"/>'
    '<rect class="fill-{}" y="3" height="4"{}/><rect class="usual" x="50%" width="2" height="10"/></svg>'
)
"""A bar of twice the usual duration, with a mark in its middle."""
_MARK = '<a class="b-%s" data-key="%s" href="%s%s" title="%s, %s" tabindex="-1"></a>'
"""Without escaping: statuses are constants, ids and instants contain no special characters."""
_STRIP = HtmlPattern('<span class="strip">{}</span>')
_BDI, _CODE = HtmlPattern("<bdi>{}</bdi>"), HtmlPattern("<code>{}</code>")
_BUTTON = HtmlPattern('<button type="button"{}>{}</button>')
_OPERATION = HtmlPattern(' data-operation="{}" data-method="{}" data-url="{}"')
_DIALOG, _BODY = HtmlPattern(' data-dialog="{}"'), HtmlPattern(' data-body="{}"')
_DONE, _GOTO = HtmlPattern(' data-done="{}"'), HtmlPattern(' data-goto="{}"')
_SHORTCUT = HtmlPattern(' data-shortcut="{}" aria-keyshortcuts="{}"')
_CLASS = HtmlPattern(' class="{}"')
_BLOCKED = HtmlPattern('<button type="button" data-operation="{}" disabled="" title="{}"{}>{}</button>')
_to_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
"""Made once: `json.dumps` makes an encoder at each call with options."""
_PICK = HtmlPattern(
    '<td class="pick"><input type="checkbox" data-pick data-keep autocomplete="off" value="{}"'
    ' aria-label="Select {}"></td>'
)
_PICK_ALL = Markup(
    '<td class="pick"><input type="checkbox" data-pick-all data-keep autocomplete="off"'
    ' aria-label="Select all rows of this page"></td>'
)


@lru_cache(maxsize=20_000)
def _make_mark(id: UUID, state: str, started_at: datetime, zone_name: str, address: str) -> str:
    """Return a mark of a strip. Most marks of a list are those of its last rendering."""
    status = status_of(state)
    return _MARK % (status.tone, id, address, id, status.label, format_instant_title(started_at, zone_name))


@lru_cache(maxsize=2000)
def _make_dialog(
    title: str, text: str, reason: str, fields: Sequence[Mapping[str, Any]], submit: str, expected: int
) -> Markup:
    """Return the attribute that describes the dialog of an action; most rows of a list have the same."""
    dialog = {
        "title": escape_invisible(title),
        "text": escape_invisible(text),
        "reason": reason,
        "fields": fields,
        "submit": submit,
        "expected": expected,
    }
    return _DIALOG.format(_to_json(dialog))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run in a strip of outcomes."""

    id: UUID
    state: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class Elements:
    """Renders elements for one viewer."""

    links: Links
    times: Times
    viewer: Viewer
    routes: RouteTable

    # --- values -----------------------------------------------------------------------------------------------------

    def icon(self, name: str) -> Markup:
        return _ICON.format(name)

    def status(self, state: str, label: str | None = None) -> Markup:
        """Return icon and label of a state in its colour; another label may replace its own."""
        status = status_of(state)
        return _STATUS.format(status.tone, self.icon(status.icon), label or status.label)

    def state_icon(self, state: str) -> Markup:
        return self.icon(status_of(state).icon)

    def tone(self, state: str) -> str:
        return status_of(state).tone

    def label(self, state: str) -> str:
        return status_of(state).label

    def id(self, id: UUID | str | None) -> Markup:
        """Return beginning and end of an id, with the whole id as title. Ids that were created together differ only
        at their end."""
        return Markup("–") if id is None else _ID.format(id, short_id(id), str(id)[-4:])

    def time(self, instant: datetime | None) -> Markup:
        return self.times.instant(instant)

    def full_time(self, instant: datetime | None) -> Markup:
        return self.times.full(instant)

    def age(self, instant: datetime | None, none: str = "–") -> Markup:
        return self.times.age(instant, none)

    def soon(self, instant: datetime) -> Markup:
        return self.times.soon(instant)

    def since(self, instant: datetime) -> Markup:
        return self.times.since(instant)

    def until(self, instant: datetime) -> Markup:
        return self.times.until(instant)

    def duration(self, value: timedelta | float | None, none: str = "") -> str:
        return none if value is None else format_duration(value)

    def count(self, value: int | None, limit: int = 10_000) -> str:
        """Return a number; one that is only counted up to a limit ends with a plus sign."""
        if value is None:
            return "–"
        return f"{limit:,}+" if value > limit else f"{value:,}"

    def line(self, text: object, limit: int = 160) -> str:
        return one_line(text, limit)

    def text(self, text: object) -> str:
        """Return foreign text with its control characters made visible."""
        return escape_invisible(str(text))

    def fact(self, value: object) -> object:
        """Return a value of a list of facts: markup as it is, anything else as foreign text."""
        if value is None:
            return "–"
        return value if isinstance(value, Markup) else escape_invisible(str(value))

    def marked(self, text: str) -> Markup:
        """Return own text whose names are between backticks, with these as code."""
        pieces = [escape(piece) for piece in text.split("`")]
        if len(pieces) % 2 == 0:
            return escape(text)
        return Markup("").join(_CODE.format(piece) if at % 2 else piece for at, piece in enumerate(pieces))

    def reason(self, reason: Reason) -> Markup:
        """Return the message of a reason, with its instants in the zone of the viewer."""
        text = Markup.escape(reason.message)
        instants = [value for value in (*reason.fields.values(), reason.ends_at) if isinstance(value, datetime)]
        for instant in instants:
            text = Markup(str(text).replace(str(Markup.escape(format_instant(instant))), str(self.time(instant))))
        return text

    def instant_after(self, seconds: float) -> str:
        """Return the full minute after this delay, as the default value of a field."""
        at = self.times.local(self.times.now + timedelta(seconds=seconds)).replace(second=0, microsecond=0)
        return at.isoformat()

    def error_line(self, error: Any, limit: int = 110) -> str:
        return one_line(error_summary(error), limit)

    def name_of(self, record: Any) -> str:
        return str(record.name)

    def id_of(self, record: Any) -> str:
        return str(record.id)

    def quoted(self, text: str) -> str:
        """Return a value of a filter."""
        return quote_value(text)

    def shell(self, name: str) -> str:
        """Return a name as one word of a command line."""
        return shlex.quote(name)

    def note_field(self, is_required: bool) -> list[dict[str, Any]]:
        """Return the field of a dialog for the note of a resolved dead letter."""
        return [{"name": "note", "label": "Note" if is_required else "Note (optional)", "required": is_required}]

    def json(self, value: Any) -> str:
        """Return a stored value as indented JSON."""
        return json.dumps(value, ensure_ascii=False, indent=2, default=str)

    def cell(self, column: Column, record: Any) -> Markup:
        """Return a value of a record by the description of its column."""
        value = column.read(record)
        text = None if column.text is None else column.text(record, self.times.now)
        if text and column.since is not None and (start := column.since(record)) is not None:
            return self.since(start)
        if value is None and not text:
            return Markup("")
        match column.format:
            case "state":
                return self.status(str(value).lower(), None if text is None else str(text))
            case "switch":
                return self.status("on" if value else "off")
            case "instant" if text is None:
                return self.time(value)
            case "age" if text is None:
                return self.age(value)
            case "id":
                return self.id(value)
            case _:
                shown = column.cell(record, self.times.now).text
                return _BDI.format(one_line(shown, 160))

    def strip(self, outcomes: Sequence[Outcome], link: Callable[[str], str]) -> Markup:
        """Return the last outcomes of a definition, oldest first, each as a link. A list has a thousand of them: half
        the time of its template was spent on them (benchmark `dashboard`), so constant parts are escaped once."""
        if not outcomes:
            return Markup("")
        zone, address = self.times.zone_name, escape(link(""))
        return _STRIP.format(
            Markup("".join([_make_mark(each.id, each.state, each.started_at, zone, address) for each in outcomes]))
        )

    def spark(self, counts: Sequence[int], label: str) -> Markup:
        """Return a small column chart of counts."""
        largest, step = max([*counts, 1]), 100 / max(len(counts), 1)
        columns = "".join(
            _COLUMN.format(index * step, step * 0.8, 20 - 20 * count / largest, 20 * count / largest)
            for index, count in enumerate(counts)
            if count
        )
        return _SPARK.format(label, Markup(columns))

    def pace(self, state: str, started_at: datetime, ended_at: datetime | None, usual: float | None) -> Markup:
        """Return the duration of an execution as a bar against the usual one; the browser lets an open one grow."""
        if not usual:
            return Markup("")
        seconds = ((ended_at or self.times.now) - started_at).total_seconds()
        width = Markup(' width="{:.1f}%"').format(min(seconds / usual / 2, 1.0) * 100)
        if ended_at is None:  # what follows data-grow changes with time alone
            attributes = Markup(' data-from="{}" data-pace="{:.0f}" data-grow{}')
            width = attributes.format(int(started_at.timestamp() * 1000), usual * 2000, width)
        label = f"usually {format_duration(usual)}"
        return _PACE.format(label, label, self.tone(state), width)

    # --- rows of lists ------------------------------------------------------------------------------------------------

    def pick(self, id: UUID | str, name: object) -> Markup:
        """Return the cell with the checkbox that selects a row (static/js/select.js)."""
        return _PICK.format(id, one_line(name, 80))

    def pick_all(self) -> Markup:
        """Return the cell above the checkboxes of a list."""
        return _PICK_ALL

    # --- actions ----------------------------------------------------------------------------------------------------

    def may(self, operation: str) -> bool:
        return operation in self.routes and self.routes.may(self.viewer.role, operation)

    def role_of(self, operation: str) -> str:
        """Return the role that an operation requires."""
        return self.routes[operation].role.key

    def action(
        self,
        operation: str,
        label: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        title: str = "",
        text: str = "",
        reason: Literal["", "optional", "required"] = "",
        fields: Sequence[Mapping[str, Any]] = (),
        body: Mapping[str, Any] | None = None,
        submit: str = "",
        done: str = "",
        goto: str = "",
        blocked: str = "",
        style: str = "",
        shortcut: str = "",
        expected: int = 0,
    ) -> Markup:
        """Return the button of an operation of the API.

        With ``text``, ``reason`` or ``fields`` it opens a dialog, which states the effect and asks for them. A reason
        is sent as ``X-Reason`` unless the fields contain it. ``done`` is the message after success; ``goto`` the page
        that the message links to, where ``{name}`` is a field of the response. ``blocked`` says why the action is not
        possible now. ``{opened_at}`` as a value of the body is the instant at which the dialog opened. If
        ``expected`` is more than 1,000, the viewer must type the number.
        """
        if operation not in self.routes:
            return Markup("")
        route = self.routes[operation]
        if self.viewer.role < route.role:  # guard: web.action_role
            blocked = f"Requires the role {route.role.key}"
        if blocked:
            return _BLOCKED.format(operation, blocked, _CLASS.format(style) if style else "", label)
        options = [_OPERATION.format(operation, route.method, self.links.to(route.address(parameters or {})))]
        if text or reason or fields:
            make = _make_dialog.__wrapped__ if fields else _make_dialog
            short = label.rstrip("…")
            options.append(make(title or short, text, reason, tuple(fields), submit or short, expected))
        if body is not None:
            options.append(_BODY.format(_to_json(body)))
        if done:
            options.append(_DONE.format(escape_invisible(done)))
        if goto:
            options.append(_GOTO.format(self.links.to(goto)))
        if shortcut:
            options.append(_SHORTCUT.format(shortcut, shortcut))
        if style:
            options.append(_CLASS.format(style))
        return _BUTTON.format(Markup("".join(options)), label)


def short_id(id: UUID | str) -> str:
    return str(id)[:SHORT_ID_LENGTH]
