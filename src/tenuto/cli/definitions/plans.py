"""``tenuto plan`` and ``tenuto apply``: compare schedules and manifests in files with the database, and apply them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rich.console import RenderableType
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, login_name
from tenuto.cli.definitions.definition_commands import REASON, before_and_after
from tenuto.cli.lists import print_csv
from tenuto.cli.option_parsing import confirm, option_conflict
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, flag
from tenuto.cli.tables import print_rich, titled_diff
from tenuto.definitions.definition_plan import ManifestChange, PlannedChange, ScheduleChange
from tenuto.definitions.document_loader import read_documents
from tenuto.definitions.versioned_definitions import CHANGING_EFFECTS
from tenuto.errors import EngineError
from tenuto.extension import PlanPreview
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.triggers import Trigger
from tenuto.operations.definitions.plans import ApplyPlan, Declarations, read_declarations
from tenuto.presentation import descriptions
from tenuto.presentation.definition_views import ALL_MANIFESTS, PLAN_CHANGES
from tenuto.presentation.descriptions import format_in_zone
from tenuto.presentation.state_symbols import state_colour, state_symbol
from tenuto.presentation.text_formats import safe_text

FilesArgument = Annotated[list[str], argument("FILE…", "YAML or TOML files, or folders that contain them.")]
PruneOption = Annotated[bool, flag("Delete definitions that came from files and are not in these files.", "--prune")]
_FIELDS_SHOWN_ABOVE = ("name", "when", "after", "schedule_type")
"""Fields of a new manifest that the title lines show already."""


@command(
    None,
    "plan",
    "schedules.yaml --app tasks:app",
    "schedules/ --app tasks:app --prune -o json",
    "identity/ --preview",
    is_list=True,
    app_use="needed",
)
async def plan_definitions(
    session: Session,
    files: FilesArgument,
    prune: PruneOption = False,
    preview: Annotated[bool, flag("Also show what would follow; a worker tries it on a copy.", "--preview")] = False,
) -> int:
    """Show what applying definition files would change.

    Nothing is changed. Exit code 0 without changes, 2 with changes; errors end with 1, so that 2 is unambiguous.
    """
    if preview and session.output == "csv":
        raise option_conflict("--preview", "-o csv", "use -o json, or leave out --preview")
    declarations = read_declarations(read_documents(files))
    planned = await session.app.plans.plan(declarations, prune=prune)
    if not session.as_json and session.output != "csv":
        print_plan(session, planned)
    previews, failures = await _preview_plan(session, planned, declarations, prune=prune) if preview else ({}, [])
    if session.as_json:
        shown = {name: each.document for name, each in previews.items()}
        print_json({**plan_document(planned), **({"previews": shown} if preview else {})})
    elif session.output == "csv":
        print_csv(PLAN_CHANGES, list(_change_rows(planned)))
    else:
        for each in previews.values():
            print_rich(Text(""), Text(safe_text(each.text)))
    if failures:
        raise EngineError(
            "; ".join(failures),
            code="extension.preview.failed",
            remedy="report it to the author of the extension, or leave out --preview",
        )
    if any(each.has_failed for each in previews.values()):
        return exit_codes.FAILED
    return exit_codes.WOULD_CHANGE if planned.has_changes else exit_codes.OK


async def _preview_plan(
    session: Session, planned: ApplyPlan, declarations: Declarations, *, prune: bool
) -> tuple[dict[str, PlanPreview], list[str]]:
    """Return what would follow, by extension, and errors: of those extensions whose lists would change."""
    changed = {each.extension for each in planned.lists if each.plan.has_changes}
    declared: dict[str, list[Any]] = {}
    for entry in declarations.further:
        declared.setdefault(entry.list_name, []).append(entry.value)
    found: dict[str, PlanPreview] = {}
    failures: list[str] = []
    with session.as_user() as app:
        for extension in app.extension_registry.extensions:
            if extension.name not in changed:
                continue
            with app.extension_registry.collect_problems(extension, "preview the plan", failures):
                preview: object = await extension.preview_plan(app, declared, prune)
                if isinstance(preview, PlanPreview):
                    found[extension.name] = preview
                elif preview is not None:
                    raise TypeError(f"expected PlanPreview, not {preview!r:.80}")
    if not found and not failures:
        session.print_message("no preview: the files change nothing that has one")
    return found, failures


@command(
    None,
    "apply",
    "schedules.yaml --app tasks:app --reason 'release 42'",
    "schedules/ --app tasks:app --prune --yes",
    app_use="needed",
)
async def apply_definitions(
    session: Session,
    files: FilesArgument,
    prune: PruneOption = False,
    yes: Annotated[bool, flag("Delete without confirmation.", "--yes")] = False,
    reason: Annotated[str | None, REASON] = None,
) -> int:
    """Apply definition files in one transaction.

    Prints the plan first. Applying the same files again changes nothing. The enabled state and changes made by
    operators are kept. Definitions that the files do not declare are kept too; --prune deletes them after confirmation.
    """
    with session.as_user() as app:
        planned = await app.plans.plan(read_declarations(read_documents(files)), prune=prune)
        if not session.as_json:
            print_plan(session, planned)
        if planned.deleted and not yes and not confirm(f"delete {', '.join(planned.deleted)}", "--prune"):
            session.print_message("nothing changed")
            return exit_codes.FAILED
        await app.plans.apply(planned, reason=reason)
    if session.as_json:
        print_json({**plan_document(planned), "applied": True})
    elif planned.has_changes:
        session.print_message(f"applied by {login_name()}")
    return exit_codes.OK


def plan_document(planned: ApplyPlan) -> dict[str, Any]:
    return {
        "changes_something": planned.has_changes,
        **{name: [change_document(change) for change in changes] for name, changes in _own_changes(planned).items()},
        "lists": {
            name: [change_document(change) for change in changes]
            for name, changes in _extension_changes(planned).items()
        },
        "not_declared": _undeclared_names(planned),
        "deleted": list(planned.deleted),
    }


def _own_changes(planned: ApplyPlan) -> dict[str, Sequence[Any]]:
    return {
        "schedules": planned.schedules.changes,
        "manifests": planned.manifests.changes,
        "groups": planned.groups,
        "queues": planned.queues.changes,
    }


def _extension_changes(planned: ApplyPlan) -> dict[str, Sequence[Any]]:
    return {each.definition_list.name: each.plan.changes for each in planned.lists}


@dataclass(frozen=True, slots=True)
class _ChangeRow:
    """A planned change in a CSV file."""

    list: str
    name: str
    effect: str
    file: str | None
    path: str | None
    changes: Any


def _change_rows(planned: ApplyPlan) -> Iterator[_ChangeRow]:
    """Yield a row for each change, with the name of its list in the files."""
    for name, changes in {**_own_changes(planned), **_extension_changes(planned)}.items():
        for change in changes:
            document = change_document(change)
            file, path = document.get("file"), document.get("path")
            yield _ChangeRow(name, change.key, document["effect"], file, path, document["changes"])


def _undeclared_names(planned: ApplyPlan) -> list[str]:
    definitions = [each.key for part in (planned.schedules, planned.manifests) for each in part.undeclared]
    return definitions + [f"queue {each.name}" for each in planned.queues.undeclared]


def change_document(change: Any) -> dict[str, Any]:
    """Return a planned change as a JSON document; only schedules and manifests have versions and runs."""
    key_field = "external_id" if isinstance(getattr(change, "definition", None), Manifest) else "name"
    document = {key_field: change.key, "effect": change.effect, "changes": before_and_after(change.differences)}
    if (notes := getattr(change, "notes", None)) is not None:  # groups have none
        document["notes"] = list(notes)
    if entry := getattr(change, "entry", None):  # changes in the lists of extensions have none
        document |= {"file": entry.document.name, "path": entry.path}
    if isinstance(change, PlannedChange):
        document |= {
            "version": None if change.current is None else change.current.version,
            "definition": change.definition.to_fields(),
            "next_runs": {"before": list(change.runs_before), "after": list(change.runs_after)},
        }
    return document


def print_plan(session: Session, planned: ApplyPlan) -> None:
    """Print a plan for people: the changes on stdout, the totals on stderr."""
    parts = [line for change in planned.schedules.changes for line in _schedule_lines(change)]
    parts += [line for group in planned.groups for line in _field_lines(group, "group ")]
    parts += [line for change in planned.queues.changes for line in _field_lines(change, "queue ")]
    parts += [line for change in planned.manifests.changes for line in _manifest_lines(change)]
    for name, changes in _extension_changes(planned).items():
        parts += [line for change in changes for line in _field_lines(change, f"{name}: ")]
    others = _undeclared_names(planned)
    for name in others:
        if name in planned.deleted:
            parts.append(Text(f"- {safe_text(name)}  deleted: not declared in the files", style="red"))
        else:
            parts.append(Text(f"? {safe_text(name)}  no longer declared; kept", style="dim"))
    if parts:
        print_rich(*parts)
    effects = [row.effect for row in _change_rows(planned)]
    counts = {
        "to create": effects.count("created"),
        "to change": effects.count("changed"),
        "to delete": len(planned.deleted),
        "unchanged": effects.count("unchanged"),
        "kept with changes of operators": effects.count("kept"),
        "no longer declared": len(set(others) - set(planned.deleted)),
    }
    totals = ", ".join(f"{count} {label}" for label, count in counts.items() if count)
    session.print_message(totals or "the files declare nothing")


def _schedule_lines(change: ScheduleChange) -> list[RenderableType]:
    fields = change.definition.to_fields()
    if change.current is not None:
        lines = _difference_lines(change.current.fields, fields)
    else:
        steps = descriptions.describe_steps(fields["steps"])
        lines = [
            Text(f"    {safe_text(change.definition.trigger.describe())}"),
            *(Text(f"    {bracket} {safe_text(step)}") for bracket, step in steps),
            Text(f"    overlap  {descriptions.describe_overlap(fields['overlap'])}", style="dim"),
            Text(f"    misfire  {descriptions.describe_misfire(fields['misfire'])}", style="dim"),
        ]
    return [*_title_lines(change), *lines, *_run_lines(change)]


def _manifest_lines(change: ManifestChange) -> list[RenderableType]:
    fields = change.definition.to_fields()
    if change.current is not None:
        lines = _difference_lines(change.current.fields, fields)
    else:
        lines = [Text(f"    {safe_text(change.definition.describe_trigger())}")]
        lines += _difference_lines(None, fields, omitted=_FIELDS_SHOWN_ABOVE)
    runs = _run_lines(change) if change.runs_before or change.runs_after else []
    return [*_title_lines(change, "manifest "), *lines, *runs]


def _field_lines(change: Any, kind: str) -> list[RenderableType]:
    """Return the change of a group or of an entry in the list of an extension, with all its fields."""
    name = "* (all manifests)" if change.key == ALL_MANIFESTS else change.key
    lines: list[RenderableType] = [_change_title(name, change.effect, kind)]
    lines += [Text(f"    {safe_text(note)}", style="dim") for note in getattr(change, "notes", ())]
    for field, (before, after) in change.differences.items():
        title = {"max_active": "maximum active", "max_running": "maximum running"}.get(field, field)
        if field in ("max_active", "max_running"):
            before, after = ("no limit" if each is None else each for each in (before, after))
        if change.effect != "created" or after is not None:
            lines += titled_diff(title, descriptions.describe_field_change(change.effect, before, after), indent=4)
    return lines


def _title_lines(change: PlannedChange[Any, Any, Any], kind: str = "") -> list[RenderableType]:
    notes = [Text(f"    {safe_text(note)}", style="dim") for note in change.notes]
    return [_change_title(change.key, change.effect, kind), *notes]


def _change_title(name: str, effect: str, kind: str) -> RenderableType:
    sign, colour = state_symbol(effect), state_colour(effect)
    return Text.assemble((f"{sign} ", colour), (kind, "dim"), (safe_text(name), "bold"), (f"  {effect}", colour))


def _difference_lines(
    before: Mapping[str, Any] | None, after: Mapping[str, Any], omitted: Sequence[str] = ()
) -> list[RenderableType]:
    changes = descriptions.describe_changes(before, after)
    return [line for title, diff in changes if title not in omitted for line in titled_diff(title, diff, indent=4)]


def _run_lines(change: PlannedChange[Any, Any, Any]) -> list[RenderableType]:
    """Return the next runs in time order: removed, kept and added ones."""
    return titled_diff("next runs", _run_differences(change), indent=4) if change.effect in CHANGING_EFFECTS else []


def _run_differences(change: PlannedChange[Any, Any, Any]) -> list[str]:
    trigger: Trigger = change.definition.trigger
    if change.current is None:
        zone = trigger.to_fields().get("zone")
        return [f"+ {format_in_zone(run, zone)}" for run in change.runs_after] or ["  manual runs only"]
    if not change.current.enabled:
        return ["  none while it is disabled"]
    before, after = change.runs_before, change.runs_after
    if not before and not after:
        return ["  manual runs only"]
    manual = [f"{sign} manual runs only" for sign, runs in (("-", before), ("+", after)) if not runs]
    old_trigger, seed = change.current.trigger, str(change.current.id)
    return [*manual, *descriptions.compare_runs(old_trigger, before, trigger, after, seed)]
