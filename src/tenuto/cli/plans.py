"""``tenuto plan`` and ``tenuto apply``: schedules kept in files, what they would change, and doing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import exits
from tenuto.cli.frame import Session, command, login_name
from tenuto.cli.schedules import Reason
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from tenuto.engine.planning import Change, Planned
    from tenuto.model.definitionfiles import Declared
    from tenuto.model.triggers import Trigger

Files = Annotated[
    list[str], typer.Argument(metavar="FILE…", help="YAML or TOML; of a folder, every such file directly in it.")
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Delete what a file once declared and these do not. Otherwise it stays.")
]
_MAX_FILES = 1000
_SIGNS = {"created": ("+", "green"), "changed": ("~", "yellow"), "unchanged": ("=", "dim"), "kept": ("!", "magenta")}


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    command(
        root,
        "plan",
        "tenuto plan schedules.yaml --app tasks:app",
        "tenuto plan schedules/ --app tasks:app --prune -o json",
    )(plan)
    command(
        root,
        "apply",
        "tenuto apply schedules.yaml --app tasks:app --reason 'release 42'",
        "tenuto apply schedules/ --app tasks:app --prune --yes",
    )(apply)


async def plan(session: Session, files: Files, prune: Prune = False) -> int:
    """Show what the schedules of files would change; change nothing.

    Exit 0 if nothing would change, 2 if something would; what is wrong ends with 1 here, so that 2 has one meaning.
    """
    from tenuto.cli.output import show_json

    try:
        planned = await session.app.schedules.plan(read(files), prune=prune)
    except Invalid as error:
        message = f"{error.field}: {error.message}" if error.field else error.message
        exits.complain(message, error.remedy or "tenuto plan --help")
        return exits.FAILED
    if session.as_json:
        show_json(as_data(planned))
    else:
        show_plan(session, planned)
    return exits.WOULD_CHANGE if planned.changes_something else exits.OK


async def apply(
    session: Session,
    files: Files,
    prune: Prune = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before anything is deleted.")] = False,
    reason: Reason = None,
) -> int:
    """Show what the schedules of files change, and change it: all of it or, if anything is wrong, nothing.

    Doing it again changes nothing. Whether a schedule is enabled, and what an operator has changed since the file said
    it, stays. What the files do not declare stays too, unless --prune is given; then it is named and asked for first.
    """
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        planned = await app.schedules.plan(read(files), prune=prune)
        if not session.as_json:
            show_plan(session, planned)
        if planned.deleted and not yes and not _confirmed([each.name for each in planned.deleted]):
            session.say("nothing was changed")
            return exits.FAILED
        await app.schedules.carry_out(planned, reason=reason)
    if session.as_json:
        show_json({**as_data(planned), "applied": True})
    elif planned.changes_something:
        session.say(f"done, by {login_name()}")
    return exits.OK


def _confirmed(names: list[str]) -> bool:
    import sys

    if not sys.stdin.isatty():
        raise Invalid(
            f"would delete {', '.join(names)}, and nobody is there to be asked", field="--prune", remedy="add --yes"
        )
    return typer.confirm(f"delete {', '.join(names)}?", err=True)


# --- reading --------------------------------------------------------------------------------------------------------


def read(files: Iterable[str]) -> list[Declared]:
    """Every schedule these files declare."""
    from tenuto.model import documents
    from tenuto.model.definitionfiles import schedules_of

    found = list(dict.fromkeys(path for file in files for path in _files_at(Path(file))))
    if len(found) > _MAX_FILES:
        raise Invalid(f"these are {len(found)} files", field="FILE", remedy=f"keep to {_MAX_FILES:,}")
    return schedules_of(documents.read(str(path), _content(path)) for path in found)


def _files_at(path: Path) -> Iterator[Path]:
    from tenuto.model.documents import SUFFIXES

    if not path.is_dir():
        yield path
        return
    within = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES and each.is_file())
    if not within:
        raise Invalid(f"{path} holds no YAML or TOML", field="FILE", remedy=f"name files *{', *'.join(SUFFIXES)}")
    yield from within


def _content(path: Path) -> bytes:
    from tenuto.model.documents import MAX_BYTES

    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", field="FILE", remedy="look at the path") from None


# --- showing --------------------------------------------------------------------------------------------------------


def as_data(planned: Planned) -> dict[str, Any]:
    """A plan for programs."""
    return {
        "changes_something": planned.changes_something,
        "schedules": [_change_as_data(change) for change in planned.changes],
        "not_declared": [each.name for each in planned.others],
        "deleted": [each.name for each in planned.deleted],
    }


def _change_as_data(change: Change) -> dict[str, Any]:
    return {
        "name": change.name,
        "effect": change.effect,
        "file": change.declared.document.name,
        "path": change.declared.path,
        "version": None if change.present is None else change.present.version,
        "changes": {field: {"before": before, "after": after} for field, (before, after) in change.differences.items()},
        "definition": change.definition.to_fields(),
        "notes": list(change.notes),
        "next_runs": {"before": list(change.runs_before), "after": list(change.runs_after)},
    }


def show_plan(session: Session, planned: Planned) -> None:
    """A plan for people: what it is about on stdout, the sum of it on stderr."""
    from rich.text import Text

    from tenuto.cli.output import show
    from tenuto.cli.words import plain

    parts: list[RenderableType] = []
    for change in planned.changes:
        parts += _told(change)
    gone = {each.name for each in planned.deleted}
    for each in planned.others:
        if each.name in gone:
            parts.append(Text(f"- {plain(each.name)}  deleted: the files do not declare it", style="red"))
        else:
            parts.append(Text(f"? {plain(each.name)}  not declared any more; it stays", style="dim"))
    if parts:
        show(*parts)
    effects = [change.effect for change in planned.changes]
    counts = {
        "to create": effects.count("created"),
        "to change": effects.count("changed"),
        "to delete": len(gone),
        "unchanged": effects.count("unchanged"),
        "kept as an operator changed them": effects.count("kept"),
        "not declared any more": len(planned.others) - len(gone),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    session.say(told or "no schedules are declared")


def _told(change: Change) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    from tenuto.cli import describing
    from tenuto.cli.words import plain

    sign, colour = _SIGNS[change.effect]
    title = Text.assemble((f"{sign} ", colour), (plain(change.name), "bold"), (f"  {change.effect}", colour))
    lines: list[RenderableType] = [title]
    lines += [Text(f"    {note}", style="dim") for note in change.notes]
    if change.present is None:
        lines.append(Text(f"    {plain(change.definition.trigger.words())}"))
        fields = change.definition.to_fields()
        lines += [Text(f"    {bracket} {plain(step)}") for bracket, step in describing.plan(fields["steps"])]
        for rule in ("overlap", "misfire"):
            lines.append(Text(f"    {rule}  {plain(getattr(describing, rule)(fields[rule]))}", style="dim"))
    else:
        before, after = change.present.definition.to_fields(), change.definition.to_fields()
        for what, difference in describing.differences(before, after):
            lines += [Text(f"    {what}"), Padding(describing.painted(difference), (0, 0, 0, 6))]
    if change.effect in ("created", "changed"):
        lines += [Text("    next runs"), Padding(describing.painted(_runs(change)), (0, 0, 0, 6))]
    return lines


def _runs(change: Change) -> list[str]:
    """The next runs, before and after."""
    trigger = change.definition.trigger
    if change.present is not None and not change.present.enabled:
        return ["  none while it is disabled"]
    if change.present is None:
        return [f"+ {_when(each, trigger)}" for each in change.runs_after] or ["  only by hand"]
    was = change.present.definition.trigger
    if list(change.runs_before) == list(change.runs_after):
        return [f"  {_when(each, trigger)}" for each in change.runs_after] or ["  only by hand"]
    before = [f"- {_when(each, was)}" for each in change.runs_before] or ["- only by hand"]
    return [*before, *([f"+ {_when(each, trigger)}" for each in change.runs_after] or ["+ only by hand"])]


def _when(instant: datetime, trigger: Trigger) -> str:
    from tenuto.cli.describing import on_the_wall

    return on_the_wall(instant, trigger.fields().get("zone"))
