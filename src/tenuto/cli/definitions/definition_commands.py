"""Commands and output that schedules and manifests have in common: enable, disable, delete, edit, change history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from shlex import quote
from typing import Annotated, Any, Generic, TypeVar

from rich.console import RenderableType
from rich.text import Text

from tenuto.app import Tenuto
from tenuto.cli import descriptions
from tenuto.cli.command import Session, login_name
from tenuto.cli.descriptions import titled_diff
from tenuto.cli.formatting import format_relative, format_with_age, safe_text
from tenuto.cli.output import Record, print_json, print_rich, styled_state
from tenuto.cli.parameters import option
from tenuto.definitions.versioned_definitions import StoredDefinition
from tenuto.errors import NotFound
from tenuto.model.schedules import changed_fields
from tenuto.store.definition_rows import Version

S = TypeVar("S", bound=StoredDefinition)
ReasonOption = Annotated[str | None, option("TEXT", "Reason, stored in the change history.")]
_RECREATED_BY = {
    "code": "declared in code: the next start of a service of that app creates it again",
    "file": "declared in a file: the next `tenuto apply` of that file creates it again",
}


@dataclass(frozen=True)
class DefinitionResource(Generic[S]):
    """One kind of definition: its names, its operations and its texts."""

    noun: str
    key_field: str
    """Name of the key in JSON."""
    operations: Callable[[Tenuto], Any]
    describe_trigger: Callable[[Any], str]
    print_next_runs: Callable[[Session, S], Awaitable[None]]
    recorded_fields: tuple[str, ...] = ("version", "origin", "created_at", "updated_at", "last_run_at", "next_run_at")
    """Attributes of the stored definition that its JSON document has in addition to the definition."""

    def document(self, found: S) -> Record:
        """Return a definition as a JSON document."""
        return {
            "id": found.id,
            **found.fields,
            "enabled": found.enabled,
            "when": self.describe_trigger(found.definition),
            **{name: getattr(found, name) for name in self.recorded_fields},
        }

    def version_document(self, version: Version) -> Record:
        return {
            "version": version.version,
            self.key_field: version.key,
            "change": version.change,
            "at": version.at,
            "actor": {"type": version.actor.type, "id": version.actor.id, "name": version.actor.name},
            "reason": version.reason,
            "before": version.before,
            "after": version.after,
        }

    def empty_list_hint(self, app: Tenuto) -> str:
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
                names = [each[self.key_field] for each in await self.operations(app).list(limit=500)]
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

    async def report_created(self, session: Session, created: S) -> None:
        """Report a new definition and its next runs."""
        when = self.describe_trigger(created.definition)
        session.report(self.document(created), f"{self.noun} {created.key} created by {login_name()}: {when}")
        if not session.as_json:
            await self.print_next_runs(session, created)

    def report_edited(
        self, session: Session, before: S, after: S, next_runs: Mapping[str, Any], lines: Sequence[RenderableType] = ()
    ) -> None:
        """Report the changed fields; ``next_runs`` and ``lines`` are the effect on the next runs."""
        if session.as_json:
            changes = before_and_after(changed_fields(before.fields, after.fields))
            print_json({self.key_field: after.key, "version": after.version, "changes": changes, **next_runs})
        elif after.version == before.version:
            session.print_message(f"{self.noun} {before.key} is unchanged")
        else:
            differences = descriptions.describe_changes(before.fields, after.fields)
            fields = [line for title, diff in differences for line in titled_diff(title, diff, style="bold")]
            print_rich(*fields, *lines)
            session.print_message(f"{self.noun} {after.key} changed to version {after.version} by {login_name()}")

    async def set_enabled(self, session: Session, key: str, reason: str | None, *, enabled: bool) -> None:
        """Enable or disable a definition and report its state."""
        with session.as_user() as app:
            operations = self.operations(app)
            async with self.suggesting_names(app, key):
                changed = await (operations.enable if enabled else operations.disable)(key, reason=reason)
            after: S = await operations.get(key)
        state = "enabled" if enabled else "disabled"
        message = f"{self.noun} {key} is {state if changed else f'already {state}'}"
        if changed and not enabled:
            message += f"; enable it with: {self.command('enable', key)}"
        session.report(self.document(after), message)
        if after.enabled and not session.as_json:
            await self.print_next_runs(session, after)

    async def delete(self, session: Session, key: str, reason: str | None) -> None:
        """Delete a definition; say if its declaration will create it again, and how to disable it instead."""
        with session.as_user() as app:
            operations = self.operations(app)
            async with self.suggesting_names(app, key):
                before: S = await operations.get(key)
                await operations.delete(key, reason=reason)
        session.report({self.key_field: key, "deleted": True}, f"{self.noun} {key} deleted by {login_name()}")
        origin = "code" if key in operations.declared else before.origin
        if origin in _RECREATED_BY:
            disable = self.command("disable", key)
            session.print_message(f"  it is {_RECREATED_BY[origin]}, enabled; to keep it disabled: {disable}")

    async def print_history(self, session: Session, key: str, limit: int) -> None:
        """Print the changes of a definition, newest first."""
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

    def command(self, name: str, key: str) -> str:
        """Return a command line about one definition."""
        return f"tenuto {self.noun} {name} {quote(key)}"


def before_and_after(differences: Mapping[str, tuple[Any, Any]]) -> Record:
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


# --- parts of `show` ------------------------------------------------------------------------------------------------


def enabled_label(*, enabled: bool) -> Text:
    """Return the enabled state with symbol and colour."""
    return styled_state("on" if enabled else "off")


def definition_heading(found: StoredDefinition, detail: str = "") -> list[RenderableType]:
    """Return the first lines: state, key and version, and the description if there is one."""
    key, about = (safe_text(found.key), "bold"), (f"  version {found.version}", "dim")
    description = found.fields.get("description")
    heading = Text.assemble(enabled_label(enabled=found.enabled), "  ", key, detail, about)
    return [heading, *([safe_text(description)] if description else []), ""]


def section_title(title: str) -> list[RenderableType]:
    return ["", Text(title, style="bold")]


def origin_facts(found: StoredDefinition, change: Version, now: datetime) -> list[tuple[str, str]]:
    """Return where the definition comes from, whether an operator changed it since, and its last change."""
    origin = {"code": "code", "file": "a file", "hand": "operators"}.get(found.origin, found.origin)
    is_edited = found.declared is not None and found.declared != found.fields
    reason = f": {change.reason}" if change.reason else ""
    return [
        ("managed by", f"{origin}, with changes of operators" if is_edited else origin),
        ("last change", f"{change.change} {format_relative(change.at, now)} by {change.actor.name}{reason}"),
    ]
