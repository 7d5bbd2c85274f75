"""Schedules from source that uses APScheduler 3: ``add_job`` and ``scheduled_job``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from datetime import date, datetime
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

_CRON_DEFAULTS = {
    "year": "*",
    "month": "1",
    "day": "1",
    "week": "*",
    "day_of_week": "*",
    "hour": "0",
    "minute": "0",
    "second": "0",
}
"""Fields of a cron trigger, most significant first, with the values of those below the last one that is given."""
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_UNIT_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
_MIN_GRACE_SECONDS = 60
"""A run that is less late counts as on time."""
_JOB_OPTIONS = ("id", "name", "args", "kwargs", "max_instances", "coalesce", "misfire_grace_time")
_DROPPED_OPTIONS = frozenset({"replace_existing", "jobstore", "executor"})
"""Options that concern only APScheduler itself."""
_TRIGGERS = {"CronTrigger": "cron", "IntervalTrigger": "interval", "DateTrigger": "date", "from_crontab": "crontab"}


class _NotConvertible(Exception):
    """The reason why a job cannot be carried over."""


def import_apscheduler(text: str, *, source: str, zone: str | None = None) -> ImportedDefinitions:
    """Convert the jobs that the source adds to a scheduler. The source is read, not run."""
    python = PythonSource(text, source)
    result = ImportedDefinitions(source)
    default_zone = zone or _find_zone(python)
    found_any = False
    for line, function, call in _find_jobs(python):
        found_any = True
        name = str(call.options.get("id") or call.options.get("name") or function or "job")
        if function is None:
            result.omit(line, f"{name!r} is left out: its function is not written in the file")
            continue
        try:
            fields = _convert_trigger(result, line, name, call, default_zone)
        except _NotConvertible as reason:
            result.omit(line, f"{name!r} is left out: {reason}")
            continue
        step = _convert_input(result, line, name, function, call.options)
        result.add(line, name, {**fields, **_convert_policies(result, line, name, call.options), "steps": [step]})
    if not found_any:
        result.omit(None, "the file calls neither add_job nor scheduled_job")
    if result.schedules and default_zone is None:
        result.omit(
            None, "APScheduler uses the time zone of its machine, these schedules use UTC; see the option --zone"
        )
    return result


def _find_zone(python: PythonSource) -> str | None:
    for node in python.nodes():
        if isinstance(node, ast.Call) and re.search(r"Scheduler$|\.configure$", ast.unparse(node.func)):
            call = python.evaluate(node)
            if isinstance(call, Call) and (zone := zone_name(call.options.get("timezone"))):
                return zone
    return None


def _find_jobs(python: PythonSource) -> Iterator[tuple[int, str | None, Call]]:
    """Yield line, name of the function, and the call without the function."""
    decorated: dict[int, str] = {}
    for node in python.nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorated.update((id(decorator), node.name) for decorator in node.decorator_list)
    for node in python.nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        call = python.evaluate(node)
        if not isinstance(call, Call):
            continue
        if node.func.attr == "add_job":
            function = call.options.get("func", next(iter(call.arguments), None))
            rest = call.arguments[0 if "func" in call.options else 1 :]
            yield node.lineno, _function_name(function), Call(call.name, rest, call.options)
        elif node.func.attr == "scheduled_job" and id(node) in decorated:
            yield node.lineno, decorated[id(node)], call


def _function_name(function: Any) -> str | None:
    match function:
        case str():
            return re.split(r"[.:]", function)[-1]
        case Reference() if re.fullmatch(r"[\w.]+", function.text):
            return function.last_name
        case _:
            return None


def _convert_trigger(
    result: ImportedDefinitions, line: int, name: str, call: Call, default_zone: str | None
) -> dict[str, Any]:
    trigger = call.options.get("trigger", next(iter(call.arguments), None))
    options = {key: value for key, value in call.options.items() if key not in (*_JOB_OPTIONS, "trigger", "func")}
    kind: Any = trigger
    if isinstance(trigger, Call):
        kind = _TRIGGERS.get(trigger.last_name)
        if kind is None or (trigger.arguments and kind != "crontab"):
            raise _NotConvertible(f"the trigger {trigger.name}(…) has no equivalent")
        options |= trigger.options
    for option in options.keys() & _DROPPED_OPTIONS:
        del options[option]
    if "next_run_time" in options:
        result.omit(line, f"{name!r}: next_run_time; disable a schedule with `tenuto schedule disable`")
        del options["next_run_time"]
    zone = zone_name(options.pop("timezone", None)) or default_zone or "UTC"
    if kind in ("date", None):
        raise _NotConvertible("it runs once; see `tenuto once`")
    limits = _convert_limits(result, line, name, options)
    if not is_static(options):
        raise _NotConvertible("its trigger is computed")
    match kind:
        case "cron":
            fields = {"cron": _cron_line(options)}
        case "crontab" if isinstance(trigger, Call) and trigger.arguments:
            fields = {"cron": _crontab_line(str(trigger.arguments[0]))}
        case "interval":
            fields = {"every": _interval(options)}
        case _:
            raise _NotConvertible("its trigger is computed")
    return {**fields, "zone": zone, **limits}


def _convert_limits(result: ImportedDefinitions, line: int, name: str, options: dict[str, Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for option, field in (("start_date", "start"), ("end_date", "end")):
        if (value := options.pop(option, None)) is None:
            continue
        day, has_time = _parse_day(value)
        if day is None:
            result.omit(line, f"{name!r}: {option} is computed")
            continue
        limits[field] = day.isoformat()
        if has_time:
            result.omit(line, f"{name!r}: the time of day of {option}; the whole day counts")
    if isinstance(jitter := options.pop("jitter", None), int):
        limits["jitter"] = format_seconds(jitter)
    return limits


def _parse_day(value: Any) -> tuple[date | None, bool]:
    if isinstance(value, Call) and value.last_name in ("datetime", "date") and is_static(list(value.arguments)):
        numbers = value.arguments
        has_time = any(numbers[3:]) or bool(value.options.keys() & {"hour", "minute", "second"})
        try:
            return date(*numbers[:3]), has_time
        except (TypeError, ValueError):
            return None, False
    if isinstance(value, str):
        try:
            instant = datetime.fromisoformat(value)
        except ValueError:
            return None, False
        return instant.date(), instant.time().isoformat() != "00:00:00"
    return None, False


def _cron_line(options: Mapping[str, Any]) -> str:
    if unknown := options.keys() - _CRON_DEFAULTS.keys():
        raise _NotConvertible(f"cron triggers have no field {min(unknown)}")
    given = {name: str(value).replace(" ", "").lower() for name, value in options.items() if value is not None}
    if not given:
        raise _NotConvertible("it runs every second; the shortest period of a cron line is a minute")
    names = list(_CRON_DEFAULTS)
    last = max(names.index(name) for name in given)
    fields = {
        name: given.get(name, _CRON_DEFAULTS[name] if number > last else "*") for number, name in enumerate(names)
    }
    if fields["second"] not in ("0", "00"):
        raise _NotConvertible(f"second={fields['second']}: the shortest period of a cron line is a minute")
    for name in ("year", "week"):
        if fields[name] != "*":
            raise _NotConvertible(f"{name}={fields[name]}: a cron line has no such field")
    line = [fields["minute"], fields["hour"], fields["day"], fields["month"], _weekdays(fields["day_of_week"])]
    return _join_cron_fields(line)


def _crontab_line(text: str) -> str:
    fields = text.split()
    if len(fields) != 5:
        raise _NotConvertible(f"{text!r} has not five fields")
    return _join_cron_fields([*fields[:4], _weekdays(fields[4].lower())])


def _join_cron_fields(line: list[str]) -> str:
    if any("last" in field or re.search(r"\d(st|nd|rd|th)", field) for field in line):
        raise _NotConvertible("a cron line cannot count weekdays or days from the end of the month")
    if not line[2].startswith("*") and line[4] != "*":
        raise _NotConvertible("APScheduler requires that a day matches both day fields, a cron line one of them")
    return " ".join(line)


def _weekdays(text: str) -> str:
    """Return weekdays by name: APScheduler counts from Monday, a cron line from Sunday."""
    found: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"(\*|\w+)(?:-(\w+))?(?:/(\d+))?", item)
        if match is None:
            return text
        if match[3] and match[1][0].isalpha():
            raise _NotConvertible(f"day_of_week={item}: APScheduler ignores a step after names")
        low, high = (0, 6) if match[1] == "*" else (_weekday(match[1]), _weekday(match[2] or match[1]))
        found.update(range(low, high + 1, int(match[3] or 1) or 1))
    return "*" if len(found) == 7 else ",".join(_WEEKDAYS[day] for day in sorted(found))


def _weekday(text: str) -> int:
    if text[:3] in _WEEKDAYS:
        return _WEEKDAYS.index(text[:3])
    if text.isdigit() and int(text) < 7:
        return int(text)
    raise _NotConvertible(f"day_of_week {text!r} is not a weekday")


def _interval(options: Mapping[str, Any]) -> str:
    if unknown := options.keys() - _UNIT_SECONDS.keys():
        raise _NotConvertible(f"interval triggers have no option {min(unknown)}")
    return format_seconds(sum(value * _UNIT_SECONDS[unit] for unit, value in options.items()) or 1)


def _convert_input(
    result: ImportedDefinitions, line: int, name: str, function: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    step: dict[str, Any] = {"job": function}
    if arguments := options.get("args"):
        result.omit(line, f"{name!r}: the positional arguments {show_value(arguments)}; write them by name, as input")
    given = options.get("kwargs")
    if isinstance(given, dict) and is_static(given):
        step |= {"input": given} if given else {}
    elif given is not None:
        result.omit(line, f"{name!r}: the keyword arguments {show_value(given)} are computed")
    return step


def _convert_policies(result: ImportedDefinitions, line: int, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    policies: dict[str, Any] = {}
    instances = options.get("max_instances", 1)
    if isinstance(instances, int) and instances > 1:
        policies["overlap"] = "allow"
    grace = options.get("misfire_grace_time")
    if isinstance(grace, int):
        policies["misfire"] = {"policy": "skip", "grace_seconds": max(grace, _MIN_GRACE_SECONDS)}
        if grace < _MIN_GRACE_SECONDS:
            result.omit(line, f"{name!r}: misfire_grace_time={grace}; the shortest is {_MIN_GRACE_SECONDS} s")
    elif options.get("coalesce") is False:
        policies["misfire"] = "all"
    return policies
