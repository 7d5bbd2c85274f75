"""Descriptions of schedules and manifests for people: trigger, steps, policies, and the difference of two versions.

They are made from stored fields, so that old versions are described like the present one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from difflib import unified_diff
from typing import Any
from zoneinfo import ZoneInfo

from tenuto.model.definitions.policies import STEP_RETRY, policy_from_json
from tenuto.model.definitions.schedules import changed_fields
from tenuto.model.triggers import Trigger, describe_trigger
from tenuto.model.triggers.zones import MICROSECOND
from tenuto.presentation.text_formats import count_noun, format_duration, one_line

Fields = Mapping[str, Any]

_OVERLAP_TEXTS = {
    "skip": "a run that is due while another is active is skipped",
    "queue_one": "one run that is due while another is active waits for its end",
    "allow": "runs may overlap",
    "cancel_previous": "a run that is due cancels the active one",
}
_ON_DEAD_LETTER_TEXTS = {
    "block": "no further run until the dead letter of a failed run is resolved",
    "continue": "the next run is due as usual; the dead letter stays open",
}
_DIFF_CONTEXT_LINES = 2
_FIELD_ORDER = (
    "name", "description", "enabled", "job", "properties", "trigger", "depends_on", "steps", "overlap", "misfire",
    "policy",
)  # fmt: skip
_FIELD_TITLES = {
    "trigger": "when", "misfire": "missed runs", "depends_on": "after", "policy": "policy",
    "max_active": "maximum active", "on_dead_letter": "on dead letter",
}  # fmt: skip
_DEFAULTS = {"queue": "default", "priority": 0}
_IMPLIED_BY = {"property_type": "properties", "schedule_type": "trigger"}
"""A change of the key is not shown if the value changed too, because it follows from it."""


def describe_overlap(policy: str) -> str:
    return f"{policy}: {_OVERLAP_TEXTS.get(policy, '')}"


def describe_on_dead_letter(choice: str) -> str:
    return f"{choice}: {_ON_DEAD_LETTER_TEXTS.get(choice, '')}"


def describe_misfire(fields: Fields) -> str:
    match fields.get("policy", "once"):
        case "all":
            return f"all: the last {fields.get('max_runs', 100)} missed runs are made up, one by one"
        case "skip":
            return f"skip: a run more than {format_duration(fields.get('grace_seconds', 300.0))} late is skipped"
        case _:
            return "once: one run replaces all missed runs"


def describe_step(fields: Fields) -> str:
    """Describe a step on one line, without default values."""
    parts = []
    if fields.get("kind", "job") != "job":
        is_known = fields["target"] in (fields["name"], fields["kind"])
        parts.append(f"{fields['kind']}" + ("" if is_known else f" {fields['target']}"))
    elif fields["target"] != fields["name"]:
        parts.append(f"runs {fields['target']}")
    if fields.get("continue_on_failure"):
        parts.append("continues on failure")
    if fields.get("needs"):
        parts.append(f"needs {' and '.join(fields['needs'])}")
    if fields.get("when"):
        parts.append(f"if {fields['when']}")
    policy = fields.get("policy") or {}
    if policy.get("timeout_seconds"):
        parts.append(f"timeout {format_duration(policy['timeout_seconds'])}")
    attempts = policy.get("max_attempts", STEP_RETRY.max_attempts)
    if attempts != STEP_RETRY.max_attempts and fields.get("kind", "job") != "schedule":
        parts.append(count_noun(attempts, "attempt"))
    if policy.get("on_lost", "retry") != "retry":
        parts.append(f"on lost: {policy['on_lost']}")
    if fields.get("queue", "default") != "default":
        parts.append(f"queue {fields['queue']}")
    if fields.get("priority"):
        parts.append(f"priority {fields['priority']}")
    # Sorted, because the database stores keys in another order, and equal arguments must read the same.
    arguments = json.dumps(fields.get("arguments") or {}, ensure_ascii=False, sort_keys=True)
    arguments = f" {arguments}" if fields.get("arguments") else ""
    details = f" ({', '.join(parts)})" if parts else ""
    return one_line(f"{fields['name']}{arguments}{details}", 300)


def describe_policy(policy: Fields) -> str:
    """Describe the retry policy and the timeout of a task."""
    parsed = policy_from_json(json.dumps(dict(policy)))
    attempts, retry = parsed.retry.max_attempts, parsed.retry
    wait = f", first wait {format_duration(retry.base_seconds)}, each next × {retry.factor:g}" if attempts > 1 else ""
    up_to = f" up to {format_duration(retry.cap_seconds)}" if attempts > 2 and retry.factor > 1 else ""
    parts = [f"{count_noun(attempts, 'attempt')}{wait.replace('.0 s', ' s')}{up_to}"]
    if parsed.timeout_seconds:
        parts.append(f"timeout {format_duration(parsed.timeout_seconds)} each".replace(".0 s", " s"))
    if parsed.on_lost != "retry":
        parts.append("fails if its worker is lost")
    return "; ".join(parts)


def describe_steps(groups: Sequence[Sequence[Fields]]) -> list[tuple[str, str]]:
    """Return (number and bracket, description) of every step; a bracket joins the steps of a group."""
    width = len(str(len(groups)))
    lines = []
    for number, group in enumerate(groups, 1):
        for position, fields in enumerate(group):
            label = f"{number:>{width}}" if position == 0 else " " * width
            lines.append((f"{label} {_bracket(position, len(group))}", describe_step(fields)))
    return lines


def _bracket(position: int, length: int) -> str:
    if length == 1:
        return "─"
    if position == 0:
        return "┬"
    return "└" if position == length - 1 else "├"


# --- changes --------------------------------------------------------------------------------------------------------


def describe_changes(before: Fields | None, after: Fields | None) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the diff lines (``-``, ``+`` or blank first) of every changed field."""
    differing = changed_fields(before, after)
    for name in sorted(
        differing, key=lambda name: _FIELD_ORDER.index(name) if name in _FIELD_ORDER else len(_FIELD_ORDER)
    ):
        if name == "external_id" or (not before and differing[name][1] == _DEFAULTS.get(name)):
            continue
        if _IMPLIED_BY.get(name) in differing or (name == "schedule_type" and "depends_on" in differing):
            continue
        if lines := _change_lines(name, *differing[name]):
            yield _FIELD_TITLES.get(name, name), lines


def _change_lines(name: str, old: Any, new: Any) -> list[str]:
    if name == "steps":
        return _step_diff(old or [], new or [])
    old_text, new_text = _describe_value(name, old), _describe_value(name, new)
    if old_text == new_text and (old or new):  # the descriptions are equal: show the fields
        old_text, new_text = json.dumps(old, ensure_ascii=False), json.dumps(new, ensure_ascii=False)
    return [f"{sign} {text}" for sign, text in (("-", old_text), ("+", new_text)) if text]


def _describe_value(name: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    match name:
        case "trigger":
            return describe_trigger(value)
        case "overlap":
            return describe_overlap(value)
        case "misfire":
            return describe_misfire(value)
        case "enabled":
            return "yes" if value else "no"
        case "policy":
            return describe_policy(value)
        case "properties":
            return one_line(json.dumps(value, ensure_ascii=False, sort_keys=True), 300)
        case _:
            return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 300)


def describe_field_change(effect: str, before: Any, after: Any) -> list[str]:
    """Return the diff lines of one field of any structure; a created object has no old side, a deleted one no new."""
    old = [] if effect == "created" else _document_lines(before)
    new = [] if effect == "deleted" else _document_lines(after)
    if not old or not new or len(old) == len(new) == 1:
        return [*(f"- {line}" for line in old), *(f"+ {line}" for line in new)]
    return _diff_lines(old, new)


def _document_lines(value: Any) -> list[str]:
    """Return plain data as indented lines."""
    match value:
        case None:
            return ["none"]
        case bool():
            return ["yes" if value else "no"]
        case str():
            return value.splitlines() or ['""']
        case Mapping() if value:
            return [line for name, part in value.items() for line in _part_lines(f"{name}:", part)]
        case list() | tuple() if any(isinstance(part, Mapping | list | tuple) for part in value):
            return [line for part in value for line in _part_lines("·", part)]
        case list() | tuple():
            return [", ".join(line for part in value for line in _document_lines(part)) or "none"]
        case _:
            return [json.dumps(value, ensure_ascii=False, default=str)]


def _part_lines(label: str, part: Any) -> list[str]:
    lines = _document_lines(part)
    if len(lines) == 1 and not (isinstance(part, Mapping) and part and label != "·"):
        return [f"{label} {lines[0]}"]
    if label == "·":
        return [f"· {lines[0]}", *(f"  {line}" for line in lines[1:])]
    return [label, *(f"  {line}" for line in lines)]


def _step_diff(old: Sequence[Sequence[Fields]], new: Sequence[Sequence[Fields]]) -> list[str]:
    old_lines, new_lines = _step_lines(old), _step_lines(new)
    if old_lines == new_lines:
        old_lines, new_lines = _step_documents(old), _step_documents(new)
    return _diff_lines(old_lines, new_lines)


def _diff_lines(old_lines: Sequence[str], new_lines: Sequence[str]) -> list[str]:
    found = list(unified_diff(old_lines, new_lines, n=_DIFF_CONTEXT_LINES, lineterm=""))[2:]
    lines = ["…" if line.startswith("@@") else f"{line[0]} {line[1:]}" for line in found]
    return lines[1:] if lines[:1] == ["…"] else lines


def _step_lines(groups: Sequence[Sequence[Fields]]) -> list[str]:
    """Describe the steps without numbers, so that a group inserted before others is one change."""
    return [
        f"{_bracket(at, len(group))} {describe_step(fields)}" for group in groups for at, fields in enumerate(group)
    ]


def _step_documents(groups: Sequence[Sequence[Fields]]) -> list[str]:
    return [json.dumps(fields, ensure_ascii=False, sort_keys=True) for group in groups for fields in group]


def compare_runs(
    old_trigger: Trigger, before: Sequence[datetime], new_trigger: Trigger, after: Sequence[datetime], seed: str
) -> list[str]:
    """Return the next runs under two triggers in time order: removed, kept and added ones."""
    lines = [(run, "-", old_trigger) for run in before if not _has_run_at(new_trigger, run, seed)]
    lines += [(run, " " if _has_run_at(old_trigger, run, seed) else "+", new_trigger) for run in after]
    return [
        f"{sign} {format_in_zone(run, trigger.to_fields().get('zone'))}"
        for run, sign, trigger in sorted(lines, key=lambda line: line[0])
    ]


def _has_run_at(trigger: Trigger, instant: datetime, seed: str) -> bool:
    """Return whether a trigger has a run at this instant."""
    return trigger.next_after(instant - MICROSECOND, seed) == instant


# --- instants -------------------------------------------------------------------------------------------------------


def format_in_zone(instant: datetime, zone: str | None = None) -> str:
    """Format an instant in a time zone, or in the local one; seconds only if they are not zero."""
    shown = instant.astimezone(ZoneInfo(zone) if zone else None)
    return shown.strftime("%a %d %b %Y %H:%M:%S %Z" if shown.second else "%a %d %b %Y %H:%M %Z")
