"""Schedules from the source of a Celery app: ``beat_schedule`` and ``add_periodic_task``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from tenuto.definitions.imported_definitions import ImportedDefinitions
from tenuto.definitions.python_source import (
    Call,
    PythonSource,
    Reference,
    format_seconds,
    is_static,
    show_value,
    zone_name,
)

_SCHEDULE_NAMES = frozenset({"beat_schedule", "CELERYBEAT_SCHEDULE", "CELERY_BEAT_SCHEDULE"})
_ZONE_NAMES = frozenset({"timezone", "CELERY_TIMEZONE"})
_CRON_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
_KNOWN_ENTRY_KEYS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})


def import_celery_beat(text: str, *, source: str, zone: str | None = None) -> ImportedDefinitions:
    """Convert the periodic tasks that the source of a Celery app declares. The source is read, not run."""
    python = PythonSource(text, source)
    result = ImportedDefinitions(source)
    zone = zone or _find_zone(python) or "UTC"
    found_any = False
    for line, name, entry in _find_entries(python):
        found_any = True
        if isinstance(entry, dict):
            _add_entry(result, line, name, entry, zone)
        else:
            result.omit(line, f"{name!r} is left out: its value is computed")
    if not found_any:
        result.omit(None, "the file declares no beat_schedule and calls no add_periodic_task")
    return result


def _find_zone(python: PythonSource) -> str | None:
    for name, key, value, _ in _assignments(python):
        if name in _ZONE_NAMES and key is None and (zone := zone_name(python.evaluate(value))):
            return zone
    return None


def _assignments(python: PythonSource) -> Iterator[tuple[str, ast.expr | None, ast.expr, int]]:
    """Yield last name, key, value and line of assignments, and of the options of ``conf.update(…)``."""
    for node in python.nodes():
        match node:
            case ast.Assign(targets=[ast.Subscript(value=target, slice=key)], value=value):
                yield _last_name(target), key, value, node.lineno
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                yield _last_name(target), None, value, node.lineno
            case ast.Call(func=ast.Attribute(attr="update", value=ast.Attribute(attr="conf")), keywords=options):
                yield from ((option.arg, None, option.value, node.lineno) for option in options if option.arg)
            case _:
                pass


def _last_name(target: ast.expr) -> str:
    return ast.unparse(target).rpartition(".")[2]


def _find_entries(python: PythonSource) -> Iterator[tuple[int, str, Any]]:
    for name, key, value, line in _assignments(python):
        if name not in _SCHEDULE_NAMES:
            continue
        if key is not None:
            yield line, str(python.evaluate(key)), python.evaluate(value)
        elif isinstance(value, ast.Dict):
            for entry_key, entry in zip(value.keys, value.values, strict=True):
                if entry_key is None:
                    yield entry.lineno, f"**{ast.unparse(entry)}", python.evaluate(entry)
                else:
                    yield entry_key.lineno, str(python.evaluate(entry_key)), python.evaluate(entry)
        else:
            yield line, name, Reference(ast.unparse(value))
    for node in python.nodes():
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("add_periodic_task"):
            yield node.lineno, *_read_periodic_task(python.evaluate(node))


def _read_periodic_task(call: Any) -> tuple[str, Any]:
    """Return name and entry of ``sender.add_periodic_task(schedule, task.s(…), name=…)``."""
    if not isinstance(call, Call) or len(call.arguments) < 2 or not isinstance(call.arguments[1], Call):
        return "add_periodic_task", call
    schedule, signature = call.arguments[:2]
    if signature.last_name not in ("s", "si", "signature"):
        return "add_periodic_task", call
    task = signature.name.rpartition(".")[0]
    name = call.options.get("name", task)
    entry: dict[str, Any] = {"task": task, "schedule": schedule}
    if signature.arguments:
        entry["args"] = list(signature.arguments)
    if signature.options:
        entry["kwargs"] = dict(signature.options)
    options = {key: value for key, value in call.options.items() if key not in ("name", "args", "kwargs")}
    return str(name), {**entry, **({"options": options} if options else {})}


def _add_entry(result: ImportedDefinitions, line: int, name: str, entry: dict[str, Any], zone: str) -> None:
    task = entry.get("task")
    if not isinstance(task, str):
        result.omit(line, f"{name!r} is left out: its task is not written in the file")
        return
    trigger = _convert_schedule(entry.get("schedule"))
    if isinstance(trigger, str):
        result.omit(line, f"{name!r} is left out: {trigger}")
        return
    step: dict[str, Any] = {"job": task.rpartition(".")[2]}
    if arguments := entry.get("args"):
        result.omit(line, f"{name!r}: the positional arguments {show_value(arguments)}; write them by name, as input")
    if (given := entry.get("kwargs")) is not None:
        if is_static(given) and isinstance(given, dict):
            step |= {"input": given} if given else {}
        else:
            result.omit(line, f"{name!r}: the keyword arguments {show_value(given)} are computed")
    options = entry.get("options") or {}
    if not isinstance(options, dict):
        options = {"options": options}
    for key, value in options.items():
        if key == "queue" and isinstance(value, str):
            step["queue"] = value
        else:
            result.omit(line, f"{name!r}: the option {key}={show_value(value)}")
    for key in entry.keys() - _KNOWN_ENTRY_KEYS:
        result.omit(line, f"{name!r}: {key}={show_value(entry[key])}")
    result.add(line, name, {**trigger, "zone": zone, "steps": [step]})


def _convert_schedule(schedule: Any) -> dict[str, Any] | str:
    """Return the fields of a trigger, or the reason why there is none."""
    match schedule:
        case bool():
            return "its schedule is not an interval or a crontab"
        case int() | float():
            return {"every": format_seconds(schedule)}
        case timedelta():
            return {"every": format_seconds(schedule.total_seconds())}
        case Call() if schedule.last_name == "schedule":
            return _convert_schedule(schedule.options.get("run_every", next(iter(schedule.arguments), None)))
        case Call() if schedule.last_name == "crontab":
            return _convert_crontab(schedule)
        case Call() if schedule.last_name == "solar":
            return "there is no trigger for the position of the sun"
        case _:
            return f"its schedule {show_value(schedule)} is computed"


def _convert_crontab(call: Call) -> dict[str, Any] | str:
    if len(call.arguments) > 2:
        return "write the fields of crontab by name, because their order differs between versions of Celery"
    fields = dict(zip(("minute", "hour"), call.arguments, strict=False)) | dict(call.options)
    if unknown := fields.keys() - set(_CRON_FIELDS):
        return f"crontab has the option {min(unknown)}"
    texts = []
    for name in _CRON_FIELDS:
        value = fields.get(name, "*")
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int) for item in items):
            return f"the field {name} is computed"
        text = ",".join(str(item).replace(" ", "") for item in items).lower()
        texts.append(re.sub(r"[a-z]{3,}", lambda found: found[0][:3], text))
    if not texts[2].startswith("*") and not texts[4].startswith("*"):
        return "Celery requires that a day matches both day fields, a cron line one of them"
    return {"cron": " ".join(texts)}
