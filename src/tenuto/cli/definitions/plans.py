"""``tenuto plan`` and ``tenuto apply``: compare schedules and manifests in files with the database, and apply them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tenuto.cli import descriptions, exit_codes
from tenuto.cli.command import Session, command, login_name, top_level
from tenuto.cli.definitions.definition_commands import ReasonOption, before_and_after
from tenuto.cli.definitions.manifests import describe_manifest_trigger
from tenuto.cli.descriptions import format_in_zone
from tenuto.cli.formatting import safe_text
from tenuto.cli.option_parsing import argument, flag
from tenuto.cli.output import print_json, print_rich
from tenuto.definitions import document_parser
from tenuto.definitions.declarations import PlannedChange
from tenuto.definitions.definition_files import DeclaredSchedule, parse_schedules
from tenuto.definitions.document_parser import MAX_BYTES, SUFFIXES, Document
from tenuto.definitions.manifest_plan import GroupChange, ManifestChange, ManifestPlan
from tenuto.definitions.schedule_plan import ScheduleChange
from tenuto.errors import Invalid
from tenuto.model.triggers import Trigger
from tenuto.operations.plans import ApplyPlan, Declarations, read_declarations

FilesArgument = Annotated[list[str], argument("FILE…", "YAML or TOML files, or folders that contain them.")]
PruneOption = Annotated[bool, flag("Delete definitions that came from files and are not in these files.", "--prune")]
_MAX_FILES = 1000
_SIGNS = {"created": ("+", "green"), "changed": ("~", "yellow"), "unchanged": ("=", "dim"), "kept": ("!", "magenta")}


@command(top_level, "plan", "schedules.yaml --app tasks:app", "schedules/ --app tasks:app --prune -o json")
async def plan_definitions(session: Session, files: FilesArgument, prune: PruneOption = False) -> int:
    """Show what applying definition files would change, without changing it.

    Exit code 0 without changes, 2 with changes; errors end with 1, so that 2 is unambiguous.
    """
    planned = await session.app.plans.plan(read_definitions(files), prune=prune)
    if session.as_json:
        print_json(plan_document(planned))
    else:
        print_plan(session, planned)
    return exit_codes.WOULD_CHANGE if planned.has_changes else exit_codes.OK


@command(
    top_level,
    "apply",
    "schedules.yaml --app tasks:app --reason 'release 42'",
    "schedules/ --app tasks:app --prune --yes",
)
async def apply_definitions(
    session: Session,
    files: FilesArgument,
    prune: PruneOption = False,
    yes: Annotated[bool, flag("Delete without confirmation.", "--yes")] = False,
    reason: ReasonOption = None,
) -> int:
    """Apply the schedules and manifests of definition files in one transaction.

    Prints the plan first. Applying the same files again changes nothing. The enabled state and changes made by
    operators are kept. Definitions that the files do not declare are kept too; --prune deletes them after confirmation.
    """
    with session.as_user() as app:
        planned = await app.plans.plan(read_definitions(files), prune=prune)
        if not session.as_json:
            print_plan(session, planned)
        if planned.deleted and not yes and not _confirm_deletion(planned.deleted):
            session.print_message("nothing changed")
            return exit_codes.FAILED
        await app.plans.apply(planned, reason=reason)
    if session.as_json:
        print_json({**plan_document(planned), "applied": True})
    elif planned.has_changes:
        session.print_message(f"applied by {login_name()}")
    return exit_codes.OK


def _confirm_deletion(names: Sequence[str]) -> bool:
    if not sys.stdin.isatty():
        raise Invalid(
            f"--prune would delete {', '.join(names)}, and stdin is not a terminal for the confirmation",
            code="cli.prune.not_confirmed",
            field="--prune",
            remedy="add --yes",
        )
    return typer.confirm(f"delete {', '.join(names)}?", err=True)


# --- read -----------------------------------------------------------------------------------------------------------


def read_schedules(files: Iterable[str]) -> list[DeclaredSchedule]:
    """Return the schedules that the files declare."""
    return parse_schedules(_read_documents(files))


def read_definitions(files: Iterable[str]) -> Declarations:
    """Return all definitions that the files declare."""
    return read_declarations(_read_documents(files))


def _read_documents(files: Iterable[str]) -> Iterator[Document]:
    found = list(dict.fromkeys(path for file in files for path in _definition_files(Path(file))))
    if len(found) > _MAX_FILES:
        raise Invalid(
            f"{len(found):,} files given; the maximum is {_MAX_FILES:,}",
            code="definition_file.too_many",
            field="FILE",
            remedy="apply fewer files at a time",
        )
    return (document_parser.parse_document(str(path), _read_bytes(path)) for path in found)


def _definition_files(path: Path) -> Iterator[Path]:
    try:
        if not path.is_dir():
            yield path
            return
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
    except OSError as error:  # name too long, or no permission
        raise _unreadable(path, error) from None
    if not files:
        raise Invalid(
            f"folder {path} contains no YAML or TOML files",
            code="definition_file.none_in_folder",
            field="FILE",
            remedy=f"name the files *{', *'.join(SUFFIXES)}",
        )
    yield from files


def _read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> Invalid:
    return Invalid(
        f"{path} cannot be read: {error.strerror}",
        code="definition_file.unreadable",
        field="FILE",
        remedy="check the path and its permissions",
    )


# --- print ----------------------------------------------------------------------------------------------------------


def plan_document(planned: ApplyPlan) -> dict[str, Any]:
    """Return a plan as a JSON document."""
    others = [each.name for each in planned.schedules.undeclared]
    return {
        "changes_something": planned.has_changes,
        "schedules": [change_document(change, "name") for change in planned.schedules.changes],
        **manifest_plan_document(planned.manifests),
        "not_declared": [*others, *(each.external_id for each in planned.manifests.undeclared)],
        "deleted": list(planned.deleted),
    }


def change_document(change: PlannedChange[Any, Any, Any], known_by: str) -> dict[str, Any]:
    """Return the planned change of one definition as a JSON document."""
    return {
        known_by: change.key,
        "effect": change.effect,
        "file": change.entry.document.name,
        "path": change.entry.path,
        "version": None if change.current is None else change.current.version,
        "changes": before_and_after(change.differences),
        "definition": change.definition.to_fields(),
        "notes": list(change.notes),
        "next_runs": {"before": list(change.runs_before), "after": list(change.runs_after)},
    }


def print_plan(session: Session, planned: ApplyPlan) -> None:
    """Print a plan for people: the changes on stdout, the totals on stderr."""
    parts: list[RenderableType] = []
    for change in planned.schedules.changes:
        parts += _schedule_lines(change)
    parts += manifest_plan_lines(planned.manifests)
    others = [each.name for each in planned.schedules.undeclared]
    others += [each.external_id for each in planned.manifests.undeclared]
    for name in others:
        if name in planned.deleted:
            parts.append(Text(f"- {safe_text(name)}  deleted: not declared in the files", style="red"))
        else:
            parts.append(Text(f"? {safe_text(name)}  no longer declared; kept", style="dim"))
    if parts:
        print_rich(*parts)
    effects = [change.effect for change in planned.schedules.changes]
    effects += [change.effect for change in planned.manifests.changes]
    effects += [group.effect for group in planned.manifests.groups]
    counts = {
        "to create": effects.count("created"),
        "to change": effects.count("changed"),
        "to delete": len(planned.deleted),
        "unchanged": effects.count("unchanged"),
        "kept with changes of operators": effects.count("kept"),
        "no longer declared": len(others) - len(planned.deleted),
    }
    totals = ", ".join(f"{count} {label}" for label, count in counts.items() if count)
    session.print_message(totals or "the files declare nothing")


def _schedule_lines(change: ScheduleChange) -> list[RenderableType]:
    lines = [change_title(change.key, change.effect)]
    lines += [Text(f"    {note}", style="dim") for note in change.notes]
    if change.current is None:
        lines.append(Text(f"    {safe_text(change.definition.trigger.describe())}"))
        fields = change.definition.to_fields()
        lines += [
            Text(f"    {bracket} {safe_text(step)}") for bracket, step in descriptions.describe_steps(fields["steps"])
        ]
        for field, describe in (("overlap", descriptions.describe_overlap), ("misfire", descriptions.describe_misfire)):
            lines.append(Text(f"    {field}  {safe_text(describe(fields[field]))}", style="dim"))
    else:
        before, after = change.current.definition.to_fields(), change.definition.to_fields()
        for title, difference in descriptions.describe_changes(before, after):
            lines += [Text(f"    {title}"), Padding(descriptions.coloured_diff(difference), (0, 0, 0, 6))]
    if change.effect in ("created", "changed"):
        old_trigger = None if change.current is None else change.current.definition.trigger
        diff = descriptions.coloured_diff(run_lines(change, old_trigger, change.definition.trigger))
        lines += [Text("    next runs"), Padding(diff, (0, 0, 0, 6))]
    return lines


def change_title(name: str, effect: str, kind: str = "") -> RenderableType:
    """Return the title line of a change."""
    sign, colour = _SIGNS[effect]
    return Text.assemble((f"{sign} ", colour), (kind, "dim"), (safe_text(name), "bold"), (f"  {effect}", colour))


def run_lines(change: PlannedChange[Any, Any, Any], old_trigger: Trigger | None, trigger: Trigger) -> list[str]:
    """Return the next runs in time order: removed, kept and added ones."""
    if change.current is not None and not change.current.enabled:
        return ["  none while it is disabled"]
    if old_trigger is None:
        return [f"+ {_format_run(run, trigger)}" for run in change.runs_after] or ["  manual runs only"]
    if not change.runs_before and not change.runs_after:
        return ["  manual runs only"]
    seed = "" if change.current is None else str(change.current.id)
    manual = [
        f"{sign} manual runs only" for sign, runs in (("-", change.runs_before), ("+", change.runs_after)) if not runs
    ]
    return [*manual, *descriptions.compare_runs(old_trigger, change.runs_before, trigger, change.runs_after, seed)]


def _format_run(instant: datetime, trigger: Trigger) -> str:
    return format_in_zone(instant, trigger.to_fields().get("zone"))


_FIELDS_SHOWN_ABOVE = ("name", "when", "after", "schedule_type")
"""Fields of a new manifest that the title lines show already."""


def manifest_plan_document(planned: ManifestPlan) -> dict[str, Any]:
    """Return the manifest part of a plan as a JSON document."""
    return {
        "manifests": [change_document(change, "external_id") for change in planned.changes],
        "groups": [
            {
                "name": change.key,
                "effect": change.effect,
                "file": change.entry.document.name,
                "path": change.entry.path,
                "changes": before_and_after(change.differences),
            }
            for change in planned.groups
        ],
    }


def manifest_plan_lines(planned: ManifestPlan) -> list[RenderableType]:
    """Return the manifest part of a plan as lines."""
    lines: list[RenderableType] = []
    for group in planned.groups:
        lines += _group_lines(group)
    for change in planned.changes:
        lines += _manifest_lines(change)
    return lines


def _manifest_lines(change: ManifestChange) -> list[RenderableType]:
    lines: list[RenderableType] = [change_title(change.key, change.effect, "manifest ")]
    lines += [Text(f"    {note}", style="dim") for note in change.notes]
    before = None if change.current is None else change.current.manifest.to_fields()
    if before is None:
        lines.append(Text(f"    {safe_text(describe_manifest_trigger(change.definition))}"))
    for title, difference in descriptions.describe_changes(before, change.definition.to_fields()):
        if before is not None or title not in _FIELDS_SHOWN_ABOVE:
            lines += [Text(f"    {title}"), Padding(descriptions.coloured_diff(difference), (0, 0, 0, 6))]
    if change.effect in ("created", "changed") and (change.runs_before or change.runs_after):
        old_trigger = None if change.current is None else change.current.manifest.trigger
        diff = descriptions.coloured_diff(run_lines(change, old_trigger, change.definition.trigger))
        lines += [Text("    next runs"), Padding(diff, (0, 0, 0, 6))]
    return lines


def _group_lines(change: GroupChange) -> list[RenderableType]:
    name = "* (all manifests)" if change.key == "*" else change.key
    lines: list[RenderableType] = [change_title(name, change.effect, "group ")]
    for field, (before, after) in change.differences.items():
        title = {"max_active": "maximum active"}.get(field, field)
        difference = [f"- {_format_value(before)}", f"+ {_format_value(after)}"]
        lines += [Text(f"    {title}"), Padding(descriptions.coloured_diff(difference), (0, 0, 0, 6))]
    return lines


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no limit" if value is None else str(value)
