"""Schedules in words: when they run, what they run, by which rules, and what a change has changed.

Made from plain data as versions keep it, so that the past can be told as well as the present.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from difflib import unified_diff
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from tenuto.cli.formatting import ago, one_line, span
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from tenuto.model.triggers import Trigger

Fields = Mapping[str, Any]

_OVERLAP = {
    "skip": "if it is due while it runs, that run is skipped",
    "queue_one": "if it is due while it runs, one run waits for the end",
    "allow": "runs may overlap",
    "cancel_previous": "if it is due while it runs, the earlier run is cancelled",
}
_CONTEXT = 2
_ORDER = (
    "name", "description", "enabled", "job", "properties", "trigger", "depends_on", "steps", "overlap", "misfire",
    "policy",
)  # fmt: skip
_TITLES = {
    "trigger": "when", "misfire": "missed runs", "depends_on": "after", "policy": "rules",
    "max_active": "at most active",
}  # fmt: skip
_AS_USUAL = {"queue": "default", "priority": 0}
_TOLD_BY_OTHERS = {"property_type": "properties", "schedule_type": "trigger"}
"""What follows from another field is not told beside it."""


def overlap(word: str) -> str:
    """The overlap rule."""
    return f"{word}: {_OVERLAP.get(word, '')}"


def misfire(fields: Fields) -> str:
    """The rule for missed runs."""
    match fields.get("policy", "once"):
        case "all":
            return f"all: each of the last {fields.get('max_runs', 100)} missed runs is made up for"
        case "skip":
            return f"skip: a run more than {span(fields.get('grace_seconds', 300.0))} late does not take place"
        case _:
            return "once: one run stands for all that were missed"


def trigger(fields: Fields) -> str:
    """When it runs; as data if this program cannot read it."""
    from tenuto.model.triggers import trigger_from_fields

    try:
        return trigger_from_fields(fields).words()
    except Invalid:
        return json.dumps(fields, ensure_ascii=False)


def step(fields: Fields) -> str:
    """One step on a line; what is as usual is not said."""
    parts = []
    if fields.get("kind", "job") != "job":
        parts.append(f"{fields['kind']}" + (f" {fields['target']}" if fields["target"] != fields["name"] else ""))
    elif fields["target"] != fields["name"]:
        parts.append(f"runs {fields['target']}")
    if fields.get("continue_on_failure"):
        parts.append("goes on if it fails")
    policy = fields.get("policy") or {}
    if policy.get("timeout_seconds"):
        parts.append(f"at most {span(policy['timeout_seconds'])}")
    if "max_retries" in policy and fields.get("kind", "job") != "schedule":
        parts.append(_attempts(policy["max_retries"]))
    if policy.get("on_lost", "retry") != "retry":
        parts.append(f"on lost: {policy['on_lost']}")
    if fields.get("queue", "default") != "default":
        parts.append(f"queue {fields['queue']}")
    if fields.get("priority"):
        parts.append(f"priority {fields['priority']}")
    # In one order: the database keeps these in its own, and what is the same must read the same.
    arguments = json.dumps(fields.get("arguments") or {}, ensure_ascii=False, sort_keys=True)
    arguments = f" {arguments}" if fields.get("arguments") else ""
    told = f" ({', '.join(parts)})" if parts else ""
    return one_line(f"{fields['name']}{arguments}{told}", 300)


def rules(policy: Fields) -> str:
    """How often and how long something is tried."""
    from tenuto.model.policies import policy_from_json

    known = policy_from_json(json.dumps(dict(policy)))
    most, retry = max(known.retry.max_retries, 1), known.retry
    wait = f", the first wait {span(retry.base_seconds)}, each next × {retry.factor:g}" if most > 1 else ""
    up_to = f" up to {span(retry.cap_seconds)}" if most > 2 and retry.factor > 1 else ""
    parts = [f"{_attempts(most)}{wait.replace('.0 s', ' s')}{up_to}"]
    if known.timeout_seconds:
        parts.append(f"each at most {span(known.timeout_seconds)}".replace(".0 s", " s"))
    if known.on_lost != "retry":
        parts.append("fails if its worker is lost")
    return "; ".join(parts)


def _attempts(max_retries: int) -> str:
    return "1 attempt" if max_retries <= 1 else f"{max_retries} attempts"


def plan(groups: Sequence[Sequence[Fields]]) -> list[tuple[str, str]]:
    """(number and bracket, step) for every step: those of a group are held together by a bracket."""
    width = len(str(len(groups)))
    lines = []
    for number, group in enumerate(groups, 1):
        for position, fields in enumerate(group):
            label = f"{number:>{width}}" if position == 0 else " " * width
            lines.append((f"{label} {_bracket(position, len(group))}", step(fields)))
    return lines


def _bracket(position: int, length: int) -> str:
    if length == 1:
        return "─"
    if position == 0:
        return "┬"
    return "└" if position == length - 1 else "├"


# --- changes --------------------------------------------------------------------------------------------------------


def differences(before: Fields | None, after: Fields | None) -> Iterator[tuple[str, list[str]]]:
    """(what, lines that begin with - + or a blank) for everything that differs."""
    from tenuto.model.schedules import changes

    differing = changes(before, after)
    for name in sorted(differing, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
        if name == "external_id" or (not before and differing[name][1] == _AS_USUAL.get(name)):
            continue
        if _TOLD_BY_OTHERS.get(name) in differing or (name == "schedule_type" and "depends_on" in differing):
            continue
        if lines := _lines(name, *differing[name]):
            yield _TITLES.get(name, name), lines


def _lines(name: str, old: Any, new: Any) -> list[str]:
    if name == "steps":
        return _plan_lines(old or [], new or [])
    was, becomes = _value(name, old), _value(name, new)
    if was == becomes and (old or new):  # the words do not tell them apart
        was, becomes = json.dumps(old, ensure_ascii=False), json.dumps(new, ensure_ascii=False)
    return [f"{sign} {text}" for sign, text in (("-", was), ("+", becomes)) if text]


def _value(name: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    match name:
        case "trigger":
            return trigger(value)
        case "overlap":
            return overlap(value)
        case "misfire":
            return misfire(value)
        case "enabled":
            return "yes" if value else "no"
        case "policy":
            return rules(value)
        case "properties":
            return one_line(json.dumps(value, ensure_ascii=False, sort_keys=True), 300)
        case _:
            return one_line(value, 300)


def _plan_lines(old: Sequence[Sequence[Fields]], new: Sequence[Sequence[Fields]]) -> list[str]:
    was, becomes = _unnumbered(old), _unnumbered(new)
    if was == becomes:
        was, becomes = _as_data(old), _as_data(new)
    found = list(unified_diff(was, becomes, n=_CONTEXT, lineterm=""))[2:]
    lines = ["…" if line.startswith("@@") else f"{line[0]} {line[1:]}" for line in found]
    return lines[1:] if lines[:1] == ["…"] else lines


def _unnumbered(groups: Sequence[Sequence[Fields]]) -> list[str]:
    """Without numbers: a group put in before the others is one change, not a change of each."""
    return [f"{_bracket(at, len(group))} {step(fields)}" for group in groups for at, fields in enumerate(group)]


def _as_data(groups: Sequence[Sequence[Fields]]) -> list[str]:
    return [json.dumps(fields, ensure_ascii=False, sort_keys=True) for group in groups for fields in group]


def moved_runs(
    was: Trigger, before: Sequence[datetime], becomes: Trigger, after: Sequence[datetime], seed: str
) -> list[str]:
    """The next runs under two triggers in the order of time: those that go, those that stay, those that come."""
    lines = [(each, "-", was) for each in before if not _comes(becomes, each, seed)]
    lines += [(each, " " if _comes(was, each, seed) else "+", becomes) for each in after]
    return [
        f"{sign} {on_the_wall(each, whose.fields().get('zone'))}"
        for each, sign, whose in sorted(lines, key=lambda line: line[0])
    ]


def _comes(trigger: Trigger, instant: datetime, seed: str) -> bool:
    """Whether a trigger has a run at that very instant, be it among the next ones or not."""
    from tenuto.model.triggers.zones import MOMENT

    return trigger.next_after(instant - MOMENT, seed) == instant


def painted(lines: Sequence[str]) -> Text:
    """Lines of a difference, in its colours."""
    from rich.text import Text

    from tenuto.cli.formatting import plain

    text = Text()
    for line in lines:
        style = {"-": "red", "+": "green"}.get(line[:1], "dim")
        text.append(("\n" if text else "") + plain(line), style=style)
    return text


# --- instants -------------------------------------------------------------------------------------------------------


def on_the_wall(instant: datetime, zone: str | None = None) -> str:
    """When, on the clock of a zone, or of this machine; seconds only if there are any."""
    shown = instant.astimezone(ZoneInfo(zone) if zone else None)
    return shown.strftime("%a %d %b %Y %H:%M:%S %Z" if shown.second else "%a %d %b %Y %H:%M %Z")


def runs(instants: Sequence[datetime], zone: str, now: datetime) -> RenderableType:
    """Runs to come: in the zone of the schedule, here if that is another, and how far off."""
    from tenuto.cli.output import fitted

    there = [on_the_wall(instant, zone) for instant in instants]
    here = [on_the_wall(instant) for instant in instants]
    away = [ago(instant, now) for instant in instants]
    if here == there:
        return fitted((zone, "from now"), list(zip(there, away, strict=True)))
    return fitted((zone, "here", "from now"), list(zip(there, here, away, strict=True)))
