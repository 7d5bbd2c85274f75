"""Output that schedules and manifests have in common: enabled state, origin, change history, similar names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tenuto.cli import descriptions
from tenuto.cli.command import Session
from tenuto.cli.formatting import format_local_time, format_relative, safe_text
from tenuto.cli.output import print_json, print_rich, styled_state
from tenuto.definitions.declarations import StoredDefinition
from tenuto.errors import NotFound
from tenuto.store.definition_rows import Version

_RECREATED_BY = {
    "code": "declared in code: the next start of a service of that app creates it again",
    "file": "declared in a file: the next `tenuto apply` of that file creates it again",
}


def print_redeclaration_hint(session: Session, origin: str, disable_command: str) -> None:
    """After a deletion: say that the declaration will create the definition again, and how to disable it instead."""
    if origin in _RECREATED_BY:
        session.print_message(f"  it is {_RECREATED_BY[origin]}, enabled; to keep it disabled: {disable_command}")


def enabled_label(*, enabled: bool) -> Text:
    """Return the enabled state with symbol and colour."""
    return styled_state("on" if enabled else "off")


def section_title(title: str) -> list[RenderableType]:
    """Return the lines of a section title."""
    return ["", Text(title, style="bold")]


def describe_origin(found: StoredDefinition) -> str:
    """Describe where the definition comes from, and whether an operator changed it since."""
    origin = {"code": "code", "file": "a file", "hand": "operators"}.get(found.origin, found.origin)
    is_edited = found.declared is not None and found.declared != found.fields
    return f"{origin}, with changes of operators" if is_edited else origin


# --- changes --------------------------------------------------------------------------------------------------------


async def print_history(session: Session, found: Sequence[Version], limit: int, *, known_by: str) -> None:
    """Print changes, newest first."""
    if session.as_json:
        print_json([version_document(version, known_by) for version in found])
        return
    now = await session.now()
    parts: list[RenderableType] = []
    for version in found:
        parts += [*([""] if parts else []), *change_lines(version, now)]
    print_rich(*parts)
    if len(found) == limit:
        session.print_message(f"the newest {limit} changes; for more add --limit {min(limit * 5, 500)}")


def change_lines(version: Version, now: datetime) -> list[RenderableType]:
    """Return one change as lines: author, time, reason and difference."""
    author = f"{safe_text(version.actor.name)} ({version.actor.type.replace('_', ' ')})"
    title = Text.assemble((f"version {version.version}  {version.change}", "bold"), f" by {author}")
    time = Text(f"  {format_local_time(version.at)} ({format_relative(version.at, now)})", style="dim")
    lines: list[RenderableType] = [title, time]
    if version.reason:
        lines.append(Text(f"  reason: {safe_text(version.reason)}"))
    if version.after is None:
        return lines
    for field, difference in descriptions.describe_changes(version.before, version.after):
        lines += [Text(f"  {field}"), Padding(descriptions.coloured_diff(difference), (0, 0, 0, 4))]
    return lines


def version_document(version: Version, known_by: str) -> dict[str, Any]:
    """Return a change as a JSON document."""
    return {
        "version": version.version,
        known_by: version.key,
        "change": version.change,
        "at": version.at,
        "actor": {"type": version.actor.type, "id": version.actor.id, "name": version.actor.name},
        "reason": version.reason,
        "before": version.before,
        "after": version.after,
    }


# --- names ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def suggesting_similar_name(
    kind: str, name: str, declared: Collection[str], list_names: Callable[[], Awaitable[Iterable[str]]]
) -> AsyncIterator[None]:
    """Improve the remedy of a NotFound error: suggest a similar name, or point to the declaration in code."""
    try:
        yield
    except NotFound as error:
        if name in declared:
            error.remedy = "it is declared in code and is created when a service starts, for example: tenuto up"
        else:
            by_lower_name = {existing.lower(): existing for existing in await list_names()}
            if similar := get_close_matches(name.lower(), by_lower_name, 1):
                error.remedy = f"did you mean {by_lower_name[similar[0]]!r}? `tenuto {kind} list` lists all"
        raise
