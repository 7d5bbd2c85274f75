"""``tenuto plan`` and ``tenuto apply``: definitions kept in files, what they would change, and doing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, login_name
from tenuto.cli.definitions.schedules import Reason
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from tenuto.definitions.declarations import Change
    from tenuto.definitions.schedule_files import Declared
    from tenuto.definitions.schedule_plan import ScheduleChange
    from tenuto.definitions.strict_yaml import Document
    from tenuto.model.triggers import Trigger
    from tenuto.operations.plans import Declarations, WholePlan

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
    """Show what the schedules and manifests of files would change; change nothing.

    Exit 0 if nothing would change, 2 if something would; what is wrong ends with 1 here, so that 2 has one meaning.
    """
    from tenuto.cli.output import show_json

    planned = await session.app.plans.plan(read_all(files), prune=prune)
    if session.as_json:
        show_json(as_data(planned))
    else:
        show_plan(session, planned)
    return exit_codes.WOULD_CHANGE if planned.changes_something else exit_codes.OK


async def apply(
    session: Session,
    files: Files,
    prune: Prune = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before anything is deleted.")] = False,
    reason: Reason = None,
) -> int:
    """Show what the schedules and manifests of files change, and change it: all of it, or nothing if anything is wrong.

    Doing it again changes nothing. Whether something is enabled, and what an operator has changed since the file said
    it, stays. What the files do not declare stays too, unless --prune is given; then it is named and asked for first.
    """
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        planned = await app.plans.plan(read_all(files), prune=prune)
        if not session.as_json:
            show_plan(session, planned)
        if planned.deleted and not yes and not _confirmed(planned.deleted):
            session.say("nothing was changed")
            return exit_codes.FAILED
        await app.plans.carry_out(planned, reason=reason)
    if session.as_json:
        show_json({**as_data(planned), "applied": True})
    elif planned.changes_something:
        session.say(f"done, by {login_name()}")
    return exit_codes.OK


def _confirmed(names: Sequence[str]) -> bool:
    import sys

    if not sys.stdin.isatty():
        raise Invalid(
            f"would delete {', '.join(names)}, and nobody is there to be asked", field="--prune", remedy="add --yes"
        )
    return typer.confirm(f"delete {', '.join(names)}?", err=True)


# --- reading --------------------------------------------------------------------------------------------------------


def read(files: Iterable[str]) -> list[Declared]:
    """Every schedule these files declare."""
    from tenuto.definitions.schedule_files import schedules_of

    return schedules_of(_documents(files))


def read_all(files: Iterable[str]) -> Declarations:
    """Everything these files declare."""
    from tenuto.operations.plans import declarations_of

    return declarations_of(_documents(files))


def _documents(files: Iterable[str]) -> Iterator[Document]:
    from tenuto.definitions import strict_yaml

    found = list(dict.fromkeys(path for file in files for path in _files_at(Path(file))))
    if len(found) > _MAX_FILES:
        raise Invalid(f"these are {len(found)} files", field="FILE", remedy=f"keep to {_MAX_FILES:,}")
    return (strict_yaml.read(str(path), _content(path)) for path in found)


def _files_at(path: Path) -> Iterator[Path]:
    from tenuto.definitions.strict_yaml import SUFFIXES

    try:
        if not path.is_dir():
            yield path
            return
        within = sorted(each for each in path.iterdir() if each.suffix.lower() in SUFFIXES and each.is_file())
    except OSError as error:  # a name too long, a folder one may not look into
        raise Invalid(f"{path} cannot be read: {error.strerror}", field="FILE", remedy="look at the path") from None
    if not within:
        raise Invalid(f"{path} holds no YAML or TOML", field="FILE", remedy=f"name files *{', *'.join(SUFFIXES)}")
    yield from within


def _content(path: Path) -> bytes:
    from tenuto.definitions.strict_yaml import MAX_BYTES

    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}", field="FILE", remedy="look at the path") from None


# --- showing --------------------------------------------------------------------------------------------------------


def as_data(planned: WholePlan) -> dict[str, Any]:
    """A plan for programs."""
    from tenuto.cli.definitions import manifest_plan_view

    others = [each.name for each in planned.schedules.others]
    return {
        "changes_something": planned.changes_something,
        "schedules": [change_as_data(change, "name") for change in planned.schedules.changes],
        **manifest_plan_view.as_data(planned.manifests),
        "not_declared": [*others, *(each.external_id for each in planned.manifests.others)],
        "deleted": list(planned.deleted),
    }


def change_as_data(change: Change[Any, Any, Any], known_by: str) -> dict[str, Any]:
    """What becomes of one definition, for programs."""
    return {
        known_by: change.key,
        "effect": change.effect,
        "file": change.declared.document.name,
        "path": change.declared.path,
        "version": None if change.present is None else change.present.version,
        "changes": before_and_after(change.differences),
        "definition": change.definition.to_fields(),
        "notes": list(change.notes),
        "next_runs": {"before": list(change.runs_before), "after": list(change.runs_after)},
    }


def before_and_after(differences: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    return {field: {"before": before, "after": after} for field, (before, after) in differences.items()}


def show_plan(session: Session, planned: WholePlan) -> None:
    """A plan for people: what it is about on stdout, the sum of it on stderr."""
    from rich.text import Text

    from tenuto.cli.definitions import manifest_plan_view
    from tenuto.cli.formatting import plain
    from tenuto.cli.output import show

    parts: list[RenderableType] = []
    for change in planned.schedules.changes:
        parts += _told(change)
    parts += manifest_plan_view.told(planned.manifests)
    others = [each.name for each in planned.schedules.others]
    others += [each.external_id for each in planned.manifests.others]
    for name in others:
        if name in planned.deleted:
            parts.append(Text(f"- {plain(name)}  deleted: the files do not declare it", style="red"))
        else:
            parts.append(Text(f"? {plain(name)}  not declared any more; it stays", style="dim"))
    if parts:
        show(*parts)
    effects = [change.effect for change in planned.schedules.changes]
    effects += [change.effect for change in planned.manifests.changes]
    effects += [group.effect for group in planned.manifests.groups]
    counts = {
        "to create": effects.count("created"),
        "to change": effects.count("changed"),
        "to delete": len(planned.deleted),
        "unchanged": effects.count("unchanged"),
        "kept as an operator changed them": effects.count("kept"),
        "not declared any more": len(others) - len(planned.deleted),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    session.say(told or "nothing is declared")


def _told(change: ScheduleChange) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    from tenuto.cli import descriptions
    from tenuto.cli.formatting import plain

    lines = [titled(change.key, change.effect)]
    lines += [Text(f"    {note}", style="dim") for note in change.notes]
    if change.present is None:
        lines.append(Text(f"    {plain(change.definition.trigger.words())}"))
        fields = change.definition.to_fields()
        lines += [Text(f"    {bracket} {plain(step)}") for bracket, step in descriptions.plan(fields["steps"])]
        for rule in ("overlap", "misfire"):
            lines.append(Text(f"    {rule}  {plain(getattr(descriptions, rule)(fields[rule]))}", style="dim"))
    else:
        before, after = change.present.definition.to_fields(), change.definition.to_fields()
        for what, difference in descriptions.differences(before, after):
            lines += [Text(f"    {what}"), Padding(descriptions.painted(difference), (0, 0, 0, 6))]
    if change.effect in ("created", "changed"):
        was = None if change.present is None else change.present.definition.trigger
        lines += [
            Text("    next runs"),
            Padding(descriptions.painted(runs(change, was, change.definition.trigger)), (0, 0, 0, 6)),
        ]
    return lines


def titled(name: str, effect: str, kind: str = "") -> RenderableType:
    """What becomes of something, on one line."""
    from rich.text import Text

    from tenuto.cli.formatting import plain

    sign, colour = _SIGNS[effect]
    return Text.assemble((f"{sign} ", colour), (kind, "dim"), (plain(name), "bold"), (f"  {effect}", colour))


def runs(change: Change[Any, Any, Any], was: Trigger | None, trigger: Trigger) -> list[str]:
    """The next runs in their order: those that go, those that stay, those that come."""
    from tenuto.cli import descriptions

    if change.present is not None and not change.present.enabled:
        return ["  none while it is disabled"]
    if was is None:
        return [f"+ {_when(each, trigger)}" for each in change.runs_after] or ["  only by hand"]
    if not change.runs_before and not change.runs_after:
        return ["  only by hand"]
    seed = "" if change.present is None else str(change.present.id)
    by_hand = [
        f"{sign} only by hand" for sign, some in (("-", change.runs_before), ("+", change.runs_after)) if not some
    ]
    return [*by_hand, *descriptions.moved_runs(was, change.runs_before, trigger, change.runs_after, seed)]


def _when(instant: datetime, trigger: Trigger) -> str:
    from tenuto.cli.descriptions import on_the_wall

    return on_the_wall(instant, trigger.fields().get("zone"))
