"""``tenuto plan`` and ``tenuto apply``: compare schedules and manifests in files with the database, and apply them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from rich.console import RenderableType
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, login_name
from tenuto.cli.definitions.definition_commands import REASON, before_and_after
from tenuto.cli.lists import print_csv
from tenuto.cli.option_parsing import confirm
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, flag
from tenuto.cli.tables import print_rich, titled_diff
from tenuto.definitions.definition_plan import GroupChange, ManifestChange, PlannedChange, ScheduleChange
from tenuto.definitions.document_files import read_documents
from tenuto.definitions.versioned_definitions import CHANGING_EFFECTS
from tenuto.model.triggers import Trigger
from tenuto.operations.plans import ApplyPlan, PlannedList, read_declarations
from tenuto.presentation import descriptions
from tenuto.presentation.definition_views import PLAN_CHANGES, describe_manifest_trigger
from tenuto.presentation.descriptions import format_in_zone
from tenuto.presentation.formatting import safe_text
from tenuto.presentation.states import state_colour, state_symbol

FilesArgument = Annotated[list[str], argument("FILE…", "YAML or TOML files, or folders that contain them.")]
PruneOption = Annotated[bool, flag("Delete definitions that came from files and are not in these files.", "--prune")]
_FIELDS_SHOWN_ABOVE = ("name", "when", "after", "schedule_type")
"""Fields of a new manifest that the title lines show already."""


@command(None, "plan", "schedules.yaml --app tasks:app", "schedules/ --app tasks:app --prune -o json", is_list=True)
async def plan_definitions(session: Session, files: FilesArgument, prune: PruneOption = False) -> int:
    """Show what applying definition files would change, without changing it.

    Exit code 0 without changes, 2 with changes; errors end with 1, so that 2 is unambiguous.
    """
    planned = await session.app.plans.plan(read_declarations(read_documents(files)), prune=prune)
    if session.as_json:
        print_json(plan_document(planned))
    elif session.output == "csv":
        print_csv(PLAN_CHANGES, list(_change_rows(planned)))
    else:
        print_plan(session, planned)
    return exit_codes.WOULD_CHANGE if planned.has_changes else exit_codes.OK


@command(
    None, "apply", "schedules.yaml --app tasks:app --reason 'release 42'", "schedules/ --app tasks:app --prune --yes"
)
async def apply_definitions(
    session: Session,
    files: FilesArgument,
    prune: PruneOption = False,
    yes: Annotated[bool, flag("Delete without confirmation.", "--yes")] = False,
    reason: Annotated[str | None, REASON] = None,
) -> int:
    """Apply the schedules and manifests of definition files in one transaction.

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
        "schedules": [change_document(change, "name") for change in planned.schedules.changes],
        "manifests": [change_document(change, "external_id") for change in planned.manifests.changes],
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
        "lists": {
            each.definition_list.name: [
                {"name": change.key, "effect": change.effect, "changes": before_and_after(change.differences)}
                for change in each.plan.changes
            ]
            for each in planned.lists
        },
        "not_declared": _undeclared_names(planned),
        "deleted": list(planned.deleted),
    }


def _change_rows(planned: ApplyPlan) -> Iterator[dict[str, Any]]:
    """Yield a row for each change, with the name of its list in the files."""
    own = {"schedules": planned.schedules.changes, "manifests": planned.manifests.changes, "groups": planned.groups}
    lists: dict[str, Sequence[Any]] = {
        **own,
        **{each.definition_list.name: each.plan.changes for each in planned.lists},
    }
    for name, changes in lists.items():
        for change in changes:
            entry = getattr(change, "entry", None)  # changes in the lists of extensions have none
            yield {
                "list": name,
                "name": change.key,
                "effect": change.effect,
                "file": entry and entry.document.name,
                "path": entry and entry.path,
                "changes": before_and_after(change.differences),
            }


def _undeclared_names(planned: ApplyPlan) -> list[str]:
    return [each.key for part in (planned.schedules, planned.manifests) for each in part.undeclared]


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
    schedules, manifests, groups = planned.schedules.changes, planned.manifests.changes, planned.groups
    parts = [line for change in schedules for line in _schedule_lines(change)]
    parts += [line for group in groups for line in _group_lines(group)]
    parts += [line for change in manifests for line in _manifest_lines(change)]
    parts += [line for each in planned.lists for line in _list_lines(each)]
    others = _undeclared_names(planned)
    for name in others:
        if name in planned.deleted:
            parts.append(Text(f"- {safe_text(name)}  deleted: not declared in the files", style="red"))
        else:
            parts.append(Text(f"? {safe_text(name)}  no longer declared; kept", style="dim"))
    if parts:
        print_rich(*parts)
    changes: list[PlannedChange[Any, Any, Any] | GroupChange] = [*schedules, *manifests, *groups]
    effects: list[str] = [change.effect for change in changes]
    effects += [change.effect for each in planned.lists for change in each.plan.changes]
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
        overlap, misfire = (
            descriptions.describe_overlap(fields["overlap"]),
            descriptions.describe_misfire(fields["misfire"]),
        )
        lines = [
            Text(f"    {safe_text(change.definition.trigger.describe())}"),
            *(Text(f"    {bracket} {safe_text(step)}") for bracket, step in steps),
            Text(f"    overlap  {safe_text(overlap)}", style="dim"),
            Text(f"    misfire  {safe_text(misfire)}", style="dim"),
        ]
    return [*_title_lines(change), *lines, *_run_lines(change)]


def _manifest_lines(change: ManifestChange) -> list[RenderableType]:
    fields = change.definition.to_fields()
    if change.current is not None:
        lines = _difference_lines(change.current.fields, fields)
    else:
        lines = [Text(f"    {safe_text(describe_manifest_trigger(change.definition))}")]
        lines += _difference_lines(None, fields, omitted=_FIELDS_SHOWN_ABOVE)
    runs = _run_lines(change) if change.runs_before or change.runs_after else []
    return [*_title_lines(change, "manifest "), *lines, *runs]


def _list_lines(planned: PlannedList) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for change in planned.plan.changes:
        lines.append(_change_title(change.key, change.effect, f"{planned.definition_list.name}: "))
        for field, (before, after) in change.differences.items():
            lines += titled_diff(field, [f"- {_format_value(before)}", f"+ {_format_value(after)}"], indent=4)
    return lines


def _group_lines(change: GroupChange) -> list[RenderableType]:
    name = "* (all manifests)" if change.key == "*" else change.key
    lines: list[RenderableType] = [_change_title(name, change.effect, "group ")]
    for field, (before, after) in change.differences.items():
        title = {"max_active": "maximum active"}.get(field, field)
        lines += titled_diff(title, [f"- {_format_value(before)}", f"+ {_format_value(after)}"], indent=4)
    return lines


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no limit" if value is None else str(value)


def _title_lines(change: PlannedChange[Any, Any, Any], kind: str = "") -> list[RenderableType]:
    notes = [Text(f"    {note}", style="dim") for note in change.notes]
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
    if change.effect not in CHANGING_EFFECTS:
        return []
    return titled_diff("next runs", _run_differences(change), indent=4)


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
