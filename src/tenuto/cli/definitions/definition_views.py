"""What is told alike of schedules and manifests: whether one is on, who keeps it, its changes, which one was meant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tenuto.cli.formatting import ago, local, plain

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from tenuto.cli.command import Session
    from tenuto.definitions.declarations import InForce
    from tenuto.store.definition_rows import Version


_MADE_AGAIN_BY = {
    "code": "code: the next start of a service of that program",
    "file": "a file: the next `tenuto apply` of that file",
}


def say_if_made_again(session: Session, origin: str, instead: str) -> None:
    """Of what was deleted: whether its declaration brings it back, and what to do instead."""
    if origin in _MADE_AGAIN_BY:
        session.say(
            f"  it is declared in {_MADE_AGAIN_BY[origin]} makes it again, switched on; what is to stay off is kept off"
            f" with: {instead}"
        )


def switch(*, enabled: bool) -> Text:
    """Whether it runs by itself."""
    from tenuto.cli.output import state

    return state("on" if enabled else "off")


def title(words: str) -> list[RenderableType]:
    """What stands above a part of what is shown."""
    from rich.text import Text

    return ["", Text(words, style="bold")]


def keeper(found: InForce) -> str:
    """Who says what it is to be."""
    who = {"code": "code", "file": "a file", "hand": "hand"}.get(found.origin, found.origin)
    edited = found.declared is not None and found.declared != found.fields
    return f"{who}, and edited since" if edited else who


# --- changes --------------------------------------------------------------------------------------------------------


async def show_history(session: Session, found: Sequence[Version], limit: int, *, known_by: str) -> None:
    """Changes, the newest first."""
    from tenuto.cli.output import show, show_json

    if session.as_json:
        show_json([version_as_data(version, known_by) for version in found])
        return
    now = (await session.app.open()).clock.now()
    parts: list[RenderableType] = []
    for version in found:
        parts += [*([""] if parts else []), *in_lines(version, now)]
    show(*parts)
    if len(found) == limit:
        session.say(f"the newest {limit}; there may be more: add --limit {min(limit * 5, 500)}")


def in_lines(version: Version, now: datetime) -> list[RenderableType]:
    """One change for a person: who, when, why, and what was and what is."""
    from rich.padding import Padding
    from rich.text import Text

    from tenuto.cli import descriptions

    who = f"{plain(version.actor.name)} ({version.actor.type.replace('_', ' ')})"
    title = Text.assemble((f"version {version.version}  {version.change}", "bold"), f" by {who}")
    when = Text(f"  {local(version.at)} ({ago(version.at, now)})", style="dim")
    lines: list[RenderableType] = [title, when]
    if version.reason:
        lines.append(Text(f"  why: {plain(version.reason)}"))
    if version.after is None:
        return lines
    for what, difference in descriptions.differences(version.before, version.after):
        lines += [Text(f"  {what}"), Padding(descriptions.painted(difference), (0, 0, 0, 4))]
    return lines


def version_as_data(version: Version, known_by: str) -> dict[str, Any]:
    """A change as one document."""
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
async def known(
    what: str, name: str, declared: Collection[str], names: Callable[[], Awaitable[Iterable[str]]]
) -> AsyncIterator[None]:
    """Whoever names a schedule or a manifest that is not there is told which one they may have meant."""
    from difflib import get_close_matches

    from tenuto.errors import NotFound

    try:
        yield
    except NotFound as error:
        if name in declared:
            error.remedy = "it is declared in code and comes into force when a service starts, as with: tenuto up"
        else:
            by_lower = {each.lower(): each for each in await names()}
            if near := get_close_matches(name.lower(), by_lower, 1):
                error.remedy = f"did you mean {by_lower[near[0]]!r}? `tenuto {what} list` shows all"
        raise
