"""Schedules from the source of a Celery app: ``beat_schedule`` and ``add_periodic_task``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tenuto.definitions.importers.imported_definitions import ImportedDefinitions
from tenuto.definitions.importers.python_source import (
    Call,
    PythonSource,
    Reference,
    format_seconds,
    is_json,
    is_number,
    is_static,
    show_value,
    source_text,
    zone_name,
)

_SCHEDULE_NAMES = frozenset({"beat_schedule", "CELERYBEAT_SCHEDULE", "CELERY_BEAT_SCHEDULE"})
_ZONE_NAMES = frozenset({"timezone", "CELERY_TIMEZONE"})
_COMPUTED = "its value is computed"
_CRON_FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
_READING_METHODS = frozenset({"copy", "get", "items", "keys", "values"})
"""Methods that leave a dictionary as it is."""
_PERIODIC_TASK_PARAMETERS = ("schedule", "sig", "args", "kwargs", "name")
_SIGNATURE_PARAMETERS = ("args", "kwargs", "options")
_KNOWN_ENTRY_KEYS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})


def import_celery_beat(text: str, *, source: str, zone: str | None = None) -> ImportedDefinitions:
    """Convert the periodic tasks that the source of a Celery app declares. The source is read, not run."""
    python = PythonSource(text, source)
    result = ImportedDefinitions(source)
    settings = list(_find_settings(python, result))
    found_zone = zone or _find_zone(python, result, settings)
    found_any = False
    for line, key, entry in [*_find_entries(python, result, settings), *_find_periodic_tasks(python, result)]:
        found_any = True
        if isinstance(entry, dict):
            name = key if isinstance(key, str) else show_value(key)
            if name != key:
                result.omit(line, f"{name!r}: the name of the entry is computed")
            _add_entry(result, line, name, entry, found_zone or "UTC")
        else:
            result.omit(line, f"{show_value(key) if not isinstance(key, str) else key!r} is left out: {_COMPUTED}")
    if not found_any:
        result.omit(None, "the file declares no beat_schedule and calls no add_periodic_task")
    if result.schedules:
        if found_zone is None:
            result.omit(None, "the file names no time zone, these schedules use UTC; see the option --zone")
        result.omit(None, "Celery starts a task while its last run is active, a schedule does not; see `overlap`")
    return result


@dataclass(frozen=True, slots=True)
class _Setting:
    """A value that the source gives to a setting of the app, or to a key of one."""

    line: int
    name: str
    key: ast.expr | None
    value: ast.expr


def _find_settings(python: PythonSource, result: ImportedDefinitions) -> Iterator[_Setting]:
    """Yield assignments to names, attributes and keys, and the settings that ``update(…)`` and ``|=`` change."""
    for node in python.nodes():
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield _read_target(python, node.lineno, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield _read_target(python, node.lineno, target, value)
            case ast.AugAssign():
                yield from _read_augmented(python, result, node)
            case ast.Call(func=ast.Attribute() as method):
                yield from _read_method(python, result, node, method)
            case ast.Delete(targets=targets):
                for target in targets:
                    if _read_target(python, node.lineno, target, target).name in _SCHEDULE_NAMES:
                        result.omit(node.lineno, f"`{source_text(node)}` is left out: its result is not known")
            case _:
                pass


def _read_augmented(python: PythonSource, result: ImportedDefinitions, node: ast.AugAssign) -> Iterator[_Setting]:
    name = _read_target(python, node.lineno, node.target, node.value).name
    if name in _SCHEDULE_NAMES and isinstance(node.op, ast.BitOr):
        yield _Setting(node.lineno, name, None, node.value)
    elif name in _SCHEDULE_NAMES | _ZONE_NAMES:
        result.omit(node.lineno, f"the change of {name} is left out: {_COMPUTED}")


def _read_method(
    python: PythonSource, result: ImportedDefinitions, call: ast.Call, method: ast.Attribute
) -> Iterator[_Setting]:
    name = _read_target(python, call.lineno, method.value, call).name
    if name == "conf" and method.attr == "update":
        yield from _read_update(python, result, call, None)
    elif name not in _SCHEDULE_NAMES:
        return
    elif method.attr == "update":
        yield from _read_update(python, result, call, name)
    elif method.attr == "setdefault" and len(call.args) == 2:
        yield _Setting(call.lineno, name, call.args[0], call.args[1])
    elif method.attr not in _READING_METHODS:
        result.omit(call.lineno, f"the call {name}.{method.attr}(…) is left out: its result is not known")


def _read_target(python: PythonSource, line: int, target: ast.expr, value: ast.expr) -> _Setting:
    """Return a setting by its last name; ``conf["name"]`` is the setting of that name."""
    if isinstance(target, ast.Subscript):
        name = _last_name(target.value)
        key = python.evaluate(target.slice)
        if name == "conf" and isinstance(key, str):
            return _Setting(line, key, None, value)
        if isinstance(target.value, ast.Subscript):
            name = _read_target(python, line, target.value, value).name
        return _Setting(line, name, target.slice, value)
    return _Setting(line, _last_name(target), None, value)


def _last_name(target: ast.expr) -> str:
    return source_text(target).rpartition(".")[2]


def _read_update(
    python: PythonSource, result: ImportedDefinitions, call: ast.Call, schedule: str | None
) -> Iterator[_Setting]:
    """Yield what ``conf.update(…)`` sets, or ``beat_schedule.update(…)`` if the name of the schedule is given."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    computed: list[ast.expr] = []
    for argument in call.args:
        if isinstance(argument, ast.Dict):
            for key, value in zip(argument.keys, argument.values, strict=True):
                if key is None:
                    computed.append(value)
                else:
                    pairs.append((key, value))
        elif isinstance(argument, ast.Call) and source_text(argument.func) == "dict" and not argument.args:
            _read_options(argument.keywords, pairs, computed)
        else:
            computed.append(argument)
    _read_options(call.keywords, pairs, computed)
    for key, value in pairs:
        if schedule is not None:
            yield _Setting(key.lineno, schedule, key, value)
        elif isinstance(name := python.evaluate(key), str):
            yield _Setting(key.lineno, name, None, value)
        else:
            computed.append(key)
    for value in computed:
        where = source_text(call.func)
        result.omit(value.lineno, f"{source_text(value)} in {where}(…) is left out: {_COMPUTED}")


def _read_options(options: list[ast.keyword], pairs: list[tuple[ast.expr, ast.expr]], computed: list[ast.expr]) -> None:
    for option in options:
        if option.arg is None:
            computed.append(option.value)
        else:
            pairs.append((ast.copy_location(ast.Constant(option.arg), option.value), option.value))


def _find_zone(python: PythonSource, result: ImportedDefinitions, settings: list[_Setting]) -> str | None:
    """Return the zone that is set last, and report the others."""
    found: str | None = None
    for setting in settings:
        if setting.name not in _ZONE_NAMES or setting.key is not None:
            continue
        value = python.evaluate(setting.value)
        zone = zone_name(value)
        if zone is None and value is not None:
            result.omit(setting.line, f"the time zone {show_value(value)} is left out: {_COMPUTED}")
        elif zone is not None:
            if found not in (None, zone):
                result.omit(setting.line, f"the time zone {found} is left out: this line replaces it with {zone}")
            found = zone
    return found


def _find_entries(
    python: PythonSource, result: ImportedDefinitions, settings: list[_Setting]
) -> Iterator[tuple[int, Any, Any]]:
    """Yield line, name and value of the entries of ``beat_schedule``; an entry replaces another of its name."""
    entries: dict[Any, tuple[int, Any, Any]] = {}
    for line, key, entry in _read_schedules(python, settings):
        identity = key if isinstance(key, str) else (line, show_value(key))
        if identity in entries:
            result.omit(entries[identity][0], f"{key!r} is left out: line {line} replaces it")
        entries[identity] = line, key, entry
    yield from entries.values()


def _read_schedules(python: PythonSource, settings: list[_Setting]) -> Iterator[tuple[int, Any, Any]]:
    for setting in settings:
        if setting.name not in _SCHEDULE_NAMES:
            continue
        if setting.key is not None:
            yield setting.line, python.evaluate(setting.key), python.evaluate(setting.value)
        elif isinstance(setting.value, ast.Dict):
            for key, entry in zip(setting.value.keys, setting.value.values, strict=True):
                if key is None:
                    yield entry.lineno, f"**{source_text(entry)}", Reference(source_text(entry))
                else:
                    yield key.lineno, python.evaluate(key), python.evaluate(entry)
        else:
            yield setting.line, setting.name, Reference(source_text(setting.value))


def _find_periodic_tasks(python: PythonSource, result: ImportedDefinitions) -> Iterator[tuple[int, str, Any]]:
    for node in python.nodes():
        if isinstance(node, ast.Call) and _last_name(node.func) == "add_periodic_task":
            yield node.lineno, *_read_periodic_task(result, node.lineno, python.evaluate(node))


def _read_periodic_task(result: ImportedDefinitions, line: int, call: Any) -> tuple[str, Any]:
    """Return name and entry of ``sender.add_periodic_task(schedule, task.s(…), name=…)``."""
    unknown = "add_periodic_task", Reference("add_periodic_task")
    if not isinstance(call, Call) or len(call.arguments) > len(_PERIODIC_TASK_PARAMETERS):
        return unknown
    given = dict(zip(_PERIODIC_TASK_PARAMETERS, call.arguments, strict=False)) | dict(call.options)
    entry = _read_signature(given.get("sig"))
    if entry is None:
        return unknown
    entry["schedule"] = given.get("schedule")
    if not entry.pop("immutable"):  # Celery puts the arguments of this call in front, and prefers its options
        entry["args"] = _join(given.get("args"), entry["args"], lambda before, after: [*before, *after], list)
        entry["kwargs"] = _join(entry["kwargs"], given.get("kwargs"), lambda first, second: first | second, dict)
    own = {key: value for key, value in given.items() if key not in _PERIODIC_TASK_PARAMETERS}
    entry["options"] = _join(entry["options"], own, lambda first, second: first | second, dict)
    name = given.get("name") or entry["task"]
    if not isinstance(name, str):
        result.omit(line, f"{entry['task']!r}: the name {show_value(name)} is computed")
        name = entry["task"]
    return name, entry


def _join(first: Any, second: Any, join: Callable[[Any, Any], Any], kind: type) -> Any:
    """Return two lists or dictionaries as one; a computed one makes the result computed."""
    parts = [part for part in (first, second) if not (part is None or part in ([], {}))]
    if all(isinstance(part, kind) for part in parts):
        return join(*parts) if len(parts) == 2 else next(iter(parts), None)
    return Reference(" and ".join(map(show_value, parts)))


def _read_signature(signature: Any) -> dict[str, Any] | None:
    """Return task, arguments and options of ``task.s(…)``, ``task.signature(…)`` or ``app.signature("task", …)``."""
    if not isinstance(signature, Call):
        return None
    task, _, method = signature.name.rpartition(".")
    arguments, options = list(signature.arguments), dict(signature.options)
    if method in ("s", "si"):
        found = {"args": arguments, "kwargs": options, "options": {}, "immutable": method == "si"}
    elif method in ("signature", "subtask"):
        if arguments and isinstance(arguments[0], str):
            task = arguments.pop(0)
        elif not task or isinstance(next(iter(arguments), None), Reference | Call) or "varies" in options:
            return None
        if len(arguments) > len(_SIGNATURE_PARAMETERS):
            return None
        given = dict(zip(_SIGNATURE_PARAMETERS, arguments, strict=False)) | options
        found = {name: given.pop(name, None) for name in _SIGNATURE_PARAMETERS}
        found["immutable"] = given.pop("immutable", False) is True
        found["options"] = _join(found["options"], given, lambda first, second: first | second, dict)
    else:
        return None
    return {"task": task, **found} if re.fullmatch(r"[\w.]+", task) else None


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
        if is_json(given) and isinstance(given, dict):
            step |= {"input": given} if given else {}
        else:
            reason = "are not JSON values" if is_static(given) else "are computed"
            result.omit(line, f"{name!r}: the keyword arguments {show_value(given)} {reason}")
    options = entry.get("options") or {}
    if not isinstance(options, dict):
        options = {"options": options}
    for key, value in options.items():
        if key == "queue" and isinstance(value, str):
            step["queue"] = value
        elif value is not None:
            result.omit(line, f"{name!r}: the option {key}={show_value(value)}")
    for key in sorted(entry.keys() - _KNOWN_ENTRY_KEYS, key=str):
        result.omit(line, f"{name!r}: {key}={show_value(entry[key])}")
    result.add(line, name, {**trigger, "zone": zone, "steps": [step]})


def _convert_schedule(schedule: Any) -> dict[str, Any] | str:
    """Return the fields of a trigger, or the reason why there is none."""
    match schedule:
        case int() | float() if is_number(schedule):
            return {"every": format_seconds(schedule)}
        case timedelta():
            return {"every": format_seconds(schedule.total_seconds())}
        case Call() if schedule.last_name == "schedule":
            if schedule.options.keys() - {"run_every", "relative"} or len(schedule.arguments) > 2:
                return f"its schedule {show_value(schedule)} has options without an equivalent"
            return _convert_schedule(schedule.options.get("run_every", next(iter(schedule.arguments), None)))
        case Call() if schedule.last_name == "crontab":
            return _convert_crontab(schedule)
        case Call() if schedule.last_name == "solar":
            return "there is no trigger for the position of the sun"
        case Reference() | Call():
            return f"its schedule {show_value(schedule)} is computed"
        case _:
            return f"its schedule {show_value(schedule)} is not an interval or a crontab"


def _convert_crontab(call: Call) -> dict[str, Any] | str:
    if len(call.arguments) > 2:
        return "write the fields of crontab by name, because their order differs between versions of Celery"
    fields = dict(zip(("minute", "hour"), call.arguments, strict=False)) | dict(call.options)
    if unknown := fields.keys() - set(_CRON_FIELDS):
        return f"crontab has the option {min(unknown)}"
    texts = []
    for name in _CRON_FIELDS:
        value = fields.get(name, "*")
        items = sorted(value, key=str) if isinstance(value, set) else value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int) for item in items):
            return f"the field {name} is computed"
        text = ",".join(str(item).replace(" ", "") for item in items).lower()
        texts.append(re.sub(r"[a-z]{3,}", lambda found: found[0][:3], text))
    if not texts[2].startswith("*") and not texts[4].startswith("*"):
        return "Celery requires that a day matches both day fields, a cron line one of them"
    return {"cron": " ".join(texts)}
