"""Commands that schedules and manifests share: add, edit, enable, disable, delete, history; and parts of `show`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from shlex import quote
from typing import Any, Generic, TypeVar

import click
from rich.console import RenderableType
from rich.text import Text

from tenuto.app import Tenuto
from tenuto.cli.command import Session, command, login_name
from tenuto.cli.lists import build_filters, limit, print_page
from tenuto.cli.output import print_json
from tenuto.cli.parameters import Declaration, flag, option
from tenuto.cli.tables import print_rich, styled_state, titled_diff
from tenuto.errors import NotFound
from tenuto.model.definitions.schedules import changed_fields
from tenuto.presentation import descriptions
from tenuto.presentation.columns import ResourceView
from tenuto.presentation.text_formats import format_relative, format_with_age, safe_text
from tenuto.store.definitions.definition_rows import StoredDefinition, Version

S = TypeVar("S", bound=StoredDefinition[Any])
REASON = option("TEXT", "Reason, stored in the change history.")
_EXAMPLES_WITH_REASON = ("{}", "{} --reason 'moved to the new server'")
_COMMON_TEXTS = {
    "enable": "Enable a {noun} from now on; runs missed while it was disabled are not made up.",
    "disable": "Disable a {noun}; active runs continue, and manual runs remain possible.",
    "delete": """{own}

A {noun} that is declared in code or in a file is created again, enabled, by the next start or apply. Disable it
instead.""",
    "history": "Show all changes of a {noun} with author, time, reason and difference, even if it was deleted.",
}
_VERSION_FIELDS = ("version", "change", "at", "actor", "reason", "before", "after")
_RECREATED_BY = {
    "code": "declared in code: the next start of a service of that app creates it again",
    "file": "declared in a file: the next `tenuto apply` of that file creates it again",
}


@dataclass(frozen=True)
class DefinitionResource(Generic[S]):
    """One kind of definition: its names, operations and texts, and how options become a definition."""

    group: click.Group
    noun: str
    key: Declaration
    key_field: str
    """Name of the key in JSON."""
    example: str
    """Key in the examples of the help."""
    operations: Callable[[Tenuto], Any]
    print_next_runs: Callable[[Session, S], Awaitable[None]]
    create: Callable[..., Awaitable[S]]
    """Session, key, options, keyword arguments of the operation → the new definition."""
    change: Callable[..., Awaitable[S]]
    """Session, definition, options, keyword arguments of the operation → the changed definition."""
    compare_runs: Callable[[Session, S, S], Awaitable[tuple[dict[str, Any], list[RenderableType]]]]
    """Effect of a change on the next runs, as fields of the document and as lines."""
    options: Mapping[str, Declaration]
    add_options: Mapping[str, Declaration]
    edit_options: Mapping[str, Declaration]
    texts: Mapping[str, str]
    """Help of list, add and edit, and the first sentence of delete."""
    view: ResourceView
    list_filters: Mapping[str, Declaration]
    list_example: str
    add_examples: Sequence[str]
    edit_examples: Sequence[str]
    recorded_fields: tuple[str, ...] = ("version", "origin", "created_at", "updated_at", "last_run_at", "next_run_at")
    """Attributes of the stored definition that its JSON document has in addition to the definition."""

    def add_commands(self) -> None:
        """Add the commands to the group."""
        reason, disabled = {"reason": REASON}, {"disabled": flag(f"Create the {self.noun} disabled.", "--disabled")}
        examples = tuple(each.format(self.example) for each in _EXAMPLES_WITH_REASON)
        self._add_list()
        self._add("add", self._create, self.add_examples, {**self.add_options, **self.options, **disabled, **reason})
        self._add("edit", self._edit, self.edit_examples, {**self.edit_options, **self.options, **reason})
        self._add("enable", partial(self._set_enabled, enabled=True), examples, reason)
        self._add("disable", partial(self._set_enabled, enabled=False), examples, reason)
        self._add("delete", self._delete, examples, reason)
        self._add("history", self._print_history, (self.example, f"{self.example} --limit 5"), {"limit": limit(20)})

    def _add(
        self, name: str, run: Callable[..., Any], examples: Sequence[str], options: Mapping[str, Declaration]
    ) -> None:
        def call(session: Session, **options: Any) -> Any:
            return run(session, options.pop("key"), **options)

        call.__doc__ = _COMMON_TEXTS.get(name, "{own}").format(noun=self.noun, own=self.texts.get(name))
        command(
            self.group,
            name,
            *examples,
            options={"key": self.key, **options},
            app_use="needed" if name in ("add", "edit") else "database",
        )(call)

    def _add_list(self) -> None:
        name = self.key_field.replace("_", " ")
        options = {
            "enabled": flag("Filter by enabled or disabled.", "--on/--off", default=None),
            **self.list_filters,
            "limit": limit(100),
            "after": option(self.key_field.upper(), f"Pagination cursor: the last {name} shown."),
        }

        async def print_list(session: Session, **options: Any) -> None:
            filters = build_filters(options)
            found = await self.operations(session.app).list(**filters)
            await print_page(session, self.view, found, filters, hint=self._empty_list_hint(session.app))

        print_list.__doc__ = self.texts["list"]
        command(self.group, "list", "", self.list_example, options=options, is_list=True)(print_list)

    def document(self, found: S) -> dict[str, Any]:
        """Return a definition as a JSON document."""
        return {
            "id": found.id,
            **found.fields,
            "enabled": found.enabled,
            "when": found.definition.describe_trigger(),
            **{name: getattr(found, name) for name in self.recorded_fields},
        }

    def version_document(self, version: Version) -> dict[str, Any]:
        recorded = {name: getattr(version, name) for name in _VERSION_FIELDS}
        return {self.key_field: version.key, **recorded}

    def _empty_list_hint(self, app: Tenuto) -> str:
        """Say how to create the first definition."""
        hint = f"create one: tenuto {self.noun} add --help"
        if declared := len(self.operations(app).declared):
            hint += f"\n  {declared} declared in code are created when a service starts, for example: tenuto up"
        return hint

    @asynccontextmanager
    async def suggesting_names(self, app: Tenuto, key: str) -> AsyncIterator[None]:
        """Improve the remedy of a NotFound error: suggest a similar name, or point to the declaration in code."""
        try:
            yield
        except NotFound as error:
            if key in self.operations(app).declared:
                error.remedy = "it is declared in code and is created when a service starts, for example: tenuto up"
            else:
                names = [getattr(each, self.key_field) for each in await self.operations(app).list(limit=500)]
                by_lower_name = {name.lower(): name for name in names}
                if similar := get_close_matches(key.lower(), by_lower_name, 1):
                    name = by_lower_name[similar[0]]
                    error.remedy = f"did you mean {name!r}? `tenuto {self.noun} list` lists all"
            raise

    async def get(self, app: Tenuto, key: str) -> S:
        """Return the definition with this key; suggest a similar one if there is none."""
        async with self.suggesting_names(app, key):
            found: S = await self.operations(app).get(key)
        return found

    async def last_change(self, app: Tenuto, found: S) -> Version:
        """Return the last change; it is loaded by id because names are reused."""
        change: Version
        (change,) = await self.operations(app).versions(found.id, limit=1)
        return change

    async def _create(self, session: Session, key: str, *, disabled: bool, reason: str | None, **options: Any) -> None:
        created = await self.create(session, key, options, enabled=not disabled, reason=reason)
        when = created.definition.describe_trigger()
        session.report(self.document(created), f"{self.noun} {created.key} created by {login_name()}: {when}")
        if not session.as_json:
            await self.print_next_runs(session, created)

    async def _edit(self, session: Session, key: str, *, reason: str | None, **options: Any) -> None:
        before = await self.get(session.app, key)
        after = await self.change(session, before, options, reason=reason, version=before.version)
        document, lines = await self.compare_runs(session, before, after)
        if session.as_json:
            changes = before_and_after(changed_fields(before.fields, after.fields))
            print_json({self.key_field: after.key, "version": after.version, "changes": changes, **document})
        elif after.version == before.version:
            session.print_message(f"{self.noun} {before.key} is unchanged")
        else:
            differences = descriptions.describe_changes(before.fields, after.fields)
            fields = [line for title, diff in differences for line in titled_diff(title, diff, style="bold")]
            print_rich(*fields, *lines)
            session.print_message(f"{self.noun} {after.key} changed to version {after.version} by {login_name()}")

    async def _set_enabled(self, session: Session, key: str, *, reason: str | None, enabled: bool) -> None:
        with session.as_user() as app:
            operations = self.operations(app)
            async with self.suggesting_names(app, key):
                changed = await (operations.enable if enabled else operations.disable)(key, reason=reason)
            after: S = await operations.get(key)
            dependents = [] if enabled else await operations.dependents(key)
        state = "enabled" if enabled else "disabled"
        message = f"{self.noun} {key} is {state if changed else f'already {state}'}"
        if changed and not enabled:
            message += f"; enable it with: {self.command_line('enable', key)}"
        session.report(self.document(after), message)
        if dependents:
            verb = "runs" if len(dependents) == 1 else "run"
            named = ", ".join(map(safe_text, dependents))
            session.print_message(f"  {named} {verb} after it, and not at all while it is disabled")
        if after.enabled and not session.as_json:
            await self.print_next_runs(session, after)

    async def _delete(self, session: Session, key: str, *, reason: str | None) -> None:
        with session.as_user() as app:
            operations = self.operations(app)
            async with self.suggesting_names(app, key):
                before: S = await operations.get(key)
                await operations.delete(key, reason=reason)
        session.report({self.key_field: key, "deleted": True}, f"{self.noun} {key} deleted by {login_name()}")
        origin = "code" if key in operations.declared else before.origin
        if origin in _RECREATED_BY:
            disable = self.command_line("disable", key)
            session.print_message(f"  it is {_RECREATED_BY[origin]}, enabled; to keep it disabled: {disable}")

    async def _print_history(self, session: Session, key: str, *, limit: int) -> None:
        async with self.suggesting_names(session.app, key):
            found: Sequence[Version] = await self.operations(session.app).versions(key, limit=limit)
        if session.as_json:
            print_json([self.version_document(version) for version in found])
            return
        now = await session.now()
        parts: list[RenderableType] = []
        for version in found:
            parts += [*([""] if parts else []), *_change_lines(version, now)]
        print_rich(*parts)
        if len(found) == limit:
            session.print_message(f"the newest {limit} changes; for more add --limit {min(limit * 5, 500)}")

    def command_line(self, name: str, key: str) -> str:
        """Return a command line about one definition."""
        return f"tenuto {self.noun} {name} {quote(key)}"


def before_and_after(differences: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """Return changed fields as a JSON document."""
    return {field: {"before": before, "after": after} for field, (before, after) in differences.items()}


def _change_lines(version: Version, now: datetime) -> list[RenderableType]:
    author = f"{safe_text(version.actor.name)} ({version.actor.type.replace('_', ' ')})"
    title = Text.assemble((f"version {version.version}  {version.change}", "bold"), f" by {author}")
    lines: list[RenderableType] = [title, Text(f"  {format_with_age(version.at, now)}", style="dim")]
    if version.reason:
        lines.append(Text(f"  reason: {safe_text(version.reason)}"))
    if version.after is not None:
        for field, difference in descriptions.describe_changes(version.before, version.after):
            lines += titled_diff(field, difference, indent=2)
    return lines


def definition_heading(found: StoredDefinition[Any], detail: str = "") -> list[RenderableType]:
    """Return the first lines: state, key and version, and the description if there is one."""
    key, about = (safe_text(found.key), "bold"), (f"  version {found.version}", "dim")
    description = found.fields.get("description")
    heading = Text.assemble(styled_state("on" if found.enabled else "off"), "  ", key, detail, about)
    return [heading, *([safe_text(description)] if description else []), ""]


def origin_facts(found: StoredDefinition[Any], change: Version, now: datetime) -> list[tuple[str, str]]:
    """Return where the definition comes from, whether an operator changed it since, and its last change."""
    origin = {"code": "code", "file": "a file", "hand": "operators"}.get(found.origin, found.origin)
    is_edited = found.declared is not None and found.declared != found.fields
    reason = f": {change.reason}" if change.reason else ""
    return [
        ("managed by", f"{origin}, with changes of operators" if is_edited else origin),
        ("last change", f"{change.change} {format_relative(change.at, now)} by {change.actor.name}{reason}"),
    ]
