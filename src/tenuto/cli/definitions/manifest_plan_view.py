"""What a plan says of manifests and their groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.definitions.manifest_plan import GroupChange, ManifestChange, PlannedManifests

_TOLD_ABOVE = ("name", "when", "after", "schedule_type")
"""What the first lines say of a new one."""


def as_data(planned: PlannedManifests) -> dict[str, Any]:
    """For programs."""
    from tenuto.cli.definitions.plans import before_and_after, change_as_data

    return {
        "manifests": [change_as_data(change, "external_id") for change in planned.changes],
        "groups": [
            {
                "name": change.key,
                "effect": change.effect,
                "file": change.declared.document.name,
                "path": change.declared.path,
                "changes": before_and_after(change.differences),
            }
            for change in planned.groups
        ],
    }


def told(planned: PlannedManifests) -> list[RenderableType]:
    """For people."""
    lines: list[RenderableType] = []
    for group in planned.groups:
        lines += _group(group)
    for change in planned.changes:
        lines += _manifest(change)
    return lines


def _manifest(change: ManifestChange) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    from tenuto.cli import descriptions
    from tenuto.cli.definitions.manifest_views import when
    from tenuto.cli.definitions.plans import runs, titled
    from tenuto.cli.formatting import plain

    lines: list[RenderableType] = [titled(change.key, change.effect, "manifest ")]
    lines += [Text(f"    {note}", style="dim") for note in change.notes]
    before = None if change.present is None else change.present.manifest.to_fields()
    if before is None:
        lines.append(Text(f"    {plain(when(change.definition))}"))
    for what, difference in descriptions.differences(before, change.definition.to_fields()):
        if before is not None or what not in _TOLD_ABOVE:
            lines += [Text(f"    {what}"), Padding(descriptions.painted(difference), (0, 0, 0, 6))]
    if change.effect in ("created", "changed") and (change.runs_before or change.runs_after):
        was = None if change.present is None else change.present.manifest.trigger
        painted = descriptions.painted(runs(change, was, change.definition.trigger))
        lines += [Text("    next runs"), Padding(painted, (0, 0, 0, 6))]
    return lines


def _group(change: GroupChange) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    from tenuto.cli import descriptions
    from tenuto.cli.definitions.plans import titled

    name = "* (all manifests together)" if change.key == "*" else change.key
    lines: list[RenderableType] = [titled(name, change.effect, "group ")]
    for field, (before, after) in change.differences.items():
        title = {"max_active": "at most active"}.get(field, field)
        words = [f"- {_word(before)}", f"+ {_word(after)}"]
        lines += [Text(f"    {title}"), Padding(descriptions.painted(words), (0, 0, 0, 6))]
    return lines


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no limit" if value is None else str(value)
