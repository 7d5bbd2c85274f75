"""Schedules from source that uses APScheduler 3: ``add_job`` and ``scheduled_job``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
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
_DEFAULT_GRACE_SECONDS = 1
_MIN_GRACE_SECONDS = 60
"""A run that is less late counts as on time."""
_JOB_PARAMETERS = (
    "trigger", "args", "kwargs", "id", "name", "misfire_grace_time", "coalesce", "max_instances", "next_run_time",
    "jobstore", "executor", "replace_existing",
)  # fmt: skip
"""Parameters of ``add_job`` after the function, in order; ``scheduled_job`` has all but the last."""
_POLICY_OPTIONS = ("max_instances", "coalesce", "misfire_grace_time")
_JOB_OPTIONS = frozenset({"id", "name", "args", "kwargs", *_POLICY_OPTIONS})
_DROPPED_OPTIONS = frozenset({"replace_existing", "jobstore", "executor"})
"""Options that concern only APScheduler itself."""
_TRIGGERS = {"CronTrigger": "cron", "IntervalTrigger": "interval", "DateTrigger": "date", "from_crontab": "crontab"}


class _NotConvertible(Exception):
    """The reason why a job cannot be carried over."""


def import_apscheduler(text: str, *, source: str, zone: str | None = None) -> ImportedDefinitions:
    """Convert the jobs that the source adds to a scheduler. The source is read, not run."""
    python = PythonSource(text, source)
    result = ImportedDefinitions(source)
    defaults = _find_defaults(python, result)
    default_zone = zone or defaults.zone
    found_any = False
    skips_by_default = False
    for line, function, call in _find_jobs(python):
        found_any = True
        if call is None or len(call.arguments) > len(_JOB_PARAMETERS):
            result.omit(line, f"{function or 'job'!r} is left out: the arguments of the call are computed")
            continue
        options = dict(zip(_JOB_PARAMETERS, call.arguments, strict=False)) | dict(call.options)
        names = [given for given in (options.get("id"), options.get("name")) if isinstance(given, str) and given]
        name = next(iter(names), function or "job")
        if function is None:
            result.omit(line, f"{name!r} is left out: its function is not written in the file")
            continue
        try:
            fields = _convert_trigger(result, line, name, options, default_zone, is_zone_given=zone is not None)
        except _NotConvertible as reason:
            result.omit(line, f"{name!r} is left out: {reason}")
            continue
        for option in ("id", "name"):
            if options.get(option) is not None and not isinstance(options[option], str):
                result.omit(line, f"{name!r}: the {option} {show_value(options[option])} is computed")
        description = {"description": names[1]} if len(names) == 2 and names[0] != names[1] else {}
        step = _convert_input(result, line, name, function, options)
        policies = _convert_policies(result, line, name, defaults.policies | options)
        skips_by_default |= "misfire_grace_time" not in defaults.policies | options
        result.add(line, name, {**description, **fields, **policies, "steps": [step]})
    if not found_any:
        result.omit(None, "the file calls neither add_job nor scheduled_job")
    if result.schedules and default_zone is None:
        result.omit(
            None, "APScheduler uses the time zone of its machine, these schedules use UTC; see the option --zone"
        )
    if result.schedules and skips_by_default:
        result.omit(
            None,
            "without misfire_grace_time, APScheduler skips a run that is 1 s late, "
            f"these schedules one that is {_MIN_GRACE_SECONDS} s late; see `misfire`",
        )
    return result


@dataclass(slots=True)
class _Defaults:
    """What the source sets for all jobs of a scheduler."""

    zone: str | None = None
    policies: dict[str, Any] = field(default_factory=dict)


def _find_defaults(python: PythonSource, result: ImportedDefinitions) -> _Defaults:
    """Read ``timezone`` and ``job_defaults`` of schedulers and of ``configure``."""
    found = _Defaults()
    for node in python.nodes():
        if not isinstance(node, ast.Call) or not re.search(r"Scheduler$|\.configure$", source_text(node.func)):
            continue
        call = python.evaluate(node)
        if not isinstance(call, Call) or not all(isinstance(argument, dict) for argument in call.arguments):
            result.omit(node.lineno, f"the options of {source_text(node.func)}(…) are computed")
            continue
        options = {key: value for argument in call.arguments for key, value in argument.items()} | dict(call.options)
        options = {str(key).removeprefix("apscheduler."): value for key, value in options.items()}
        _read_default_zone(result, node.lineno, options.get("timezone"), found)
        policies = options.get("job_defaults", {})
        if not isinstance(policies, dict):
            result.omit(node.lineno, f"job_defaults={show_value(policies)} is computed")
            policies = {}
        prefix = "job_defaults."
        texts = {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}
        for key, value in (policies | texts).items():
            if key not in _POLICY_OPTIONS or isinstance(value, str) or found.policies.get(key, value) != value:
                result.omit(node.lineno, f"job_defaults: {key}={show_value(value)}; write it in the calls of add_job")
            else:
                found.policies[key] = value
    return found


def _read_default_zone(result: ImportedDefinitions, line: int, given: Any, found: _Defaults) -> None:
    if given is None:
        return
    zone = zone_name(given)
    if zone is None:
        result.omit(line, f"the time zone {show_value(given)} of the scheduler is computed")
    elif found.zone not in (None, zone):
        result.omit(line, f"the time zone {zone} of a further scheduler; its schedules use {found.zone}")
    else:
        found.zone = zone


def _find_jobs(python: PythonSource) -> Iterator[tuple[int, str | None, Call | None]]:
    """Yield line, name of the function, and the call without the function; none if its arguments are computed."""
    decorated: dict[int, str] = {}
    for node in python.nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorated.update((id(decorator), node.name) for decorator in node.decorator_list)
    for node in python.nodes():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        call = python.evaluate(node)
        if node.func.attr == "add_job":
            if not isinstance(call, Call):
                first = python.evaluate(node.args[0]) if node.args else None
                yield node.lineno, _function_name(first), None
                continue
            function = call.options.get("func", next(iter(call.arguments), None))
            rest = call.arguments[0 if "func" in call.options else 1 :]
            yield node.lineno, _function_name(function), Call(call.name, rest, call.options)
        elif node.func.attr == "scheduled_job":
            yield node.lineno, decorated.get(id(node)), call if isinstance(call, Call) else None


def _function_name(function: Any) -> str | None:
    match function:
        case str():
            return re.split(r"[.:]", function)[-1]
        case Reference() if re.fullmatch(r"[\w.]+", function.text):
            return function.last_name
        case _:
            return None


def _convert_trigger(
    result: ImportedDefinitions,
    line: int,
    name: str,
    given: Mapping[str, Any],
    default_zone: str | None,
    *,
    is_zone_given: bool,
) -> dict[str, Any]:
    kind: Any = given.get("trigger")
    trigger = kind if isinstance(kind, Call) else None
    known = (*_JOB_OPTIONS, *_DROPPED_OPTIONS, "trigger", "func", "next_run_time")
    options = {key: value for key, value in given.items() if key not in known}
    if trigger is not None:
        kind = _TRIGGERS.get(trigger.last_name)
        if kind is None or len(trigger.arguments) > (2 if kind == "crontab" else 0):
            raise _NotConvertible(f"the trigger {trigger.name}(…) has no equivalent")
        for option in options:
            result.omit(line, f"{name!r}: {option}={show_value(options[option])}; APScheduler ignores it")
        options = dict(zip(("expr", "timezone"), trigger.arguments, strict=False)) | dict(trigger.options)
    if kind in ("date", None):
        raise _NotConvertible("it runs once; see `tenuto once`")
    zone = _own_zone(options.pop("timezone", None))
    if "next_run_time" in given:
        result.omit(line, f"{name!r}: next_run_time; disable a schedule with `tenuto schedule disable`")
    limits = _convert_limits(result, line, name, options)
    if not is_static(options):
        raise _NotConvertible("its trigger is computed")
    match kind:
        case "cron":
            fields = {"cron": _cron_line(options)}
        case "crontab" if isinstance(options.get("expr"), str) and len(options) == 1:
            fields = {"cron": _crontab_line(options["expr"])}
        case "interval":
            fields = {"every": _interval(options)}
        case _:
            raise _NotConvertible("its trigger is computed")
    if zone is None and trigger is not None and kind != "interval" and default_zone is not None and not is_zone_given:
        text = f"without timezone, {trigger.name}(…) uses the zone of its machine, this schedule {default_zone}"
        result.omit(line, f"{name!r}: {text}")
    return {**fields, "zone": zone or default_zone or "UTC", **limits}


def _own_zone(given: Any) -> str | None:
    zone = zone_name(given)
    if zone is None and given is not None:
        raise _NotConvertible(f"its time zone {show_value(given)} is computed")
    return zone


def _convert_limits(result: ImportedDefinitions, line: int, name: str, options: dict[str, Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    for option, limit in (("start_date", "start"), ("end_date", "end")):
        if (value := options.pop(option, None)) is None:
            continue
        day, has_time = _parse_day(value)
        if day is None:
            result.omit(line, f"{name!r}: {option} is computed")
            continue
        limits[limit] = day.isoformat()
        if has_time:
            result.omit(line, f"{name!r}: the time of day of {option}; the whole day counts")
    jitter = options.pop("jitter", None)
    if is_number(jitter):
        limits |= {"jitter": format_seconds(jitter)} if jitter else {}
    elif jitter is not None:
        result.omit(line, f"{name!r}: jitter={show_value(jitter)} is not a number in the file")
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
    if text.isdecimal() and int(text) < 7:
        return int(text)
    raise _NotConvertible(f"day_of_week {text!r} is not a weekday")


def _interval(options: Mapping[str, Any]) -> str:
    if unknown := options.keys() - _UNIT_SECONDS.keys():
        raise _NotConvertible(f"interval triggers have no option {min(unknown)}")
    for unit, value in options.items():
        if not is_number(value):
            raise _NotConvertible(f"{unit}={show_value(value)} is not a number")
    return format_seconds(sum(value * _UNIT_SECONDS[unit] for unit, value in options.items()) or 1)


def _convert_input(
    result: ImportedDefinitions, line: int, name: str, function: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    step: dict[str, Any] = {"job": function}
    if arguments := options.get("args"):
        result.omit(line, f"{name!r}: the positional arguments {show_value(arguments)}; write them by name, as input")
    given = options.get("kwargs")
    if isinstance(given, dict) and is_json(given):
        step |= {"input": given} if given else {}
    elif given is not None:
        reason = "are not JSON values" if is_static(given) else "are computed"
        result.omit(line, f"{name!r}: the keyword arguments {show_value(given)} {reason}")
    return step


def _convert_policies(result: ImportedDefinitions, line: int, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    policies: dict[str, Any] = {}
    instances = options.get("max_instances", 1)
    if not is_number(instances):
        result.omit(line, f"{name!r}: max_instances={show_value(instances)} is not a number in the file")
    elif instances > 1:
        policies["overlap"] = "allow"
        result.omit(line, f"{name!r}: max_instances={instances}; runs overlap without a limit, see `limit` of the job")
    coalesce = options.get("coalesce", True)
    if not isinstance(coalesce, bool):
        result.omit(line, f"{name!r}: coalesce={show_value(coalesce)} is neither True nor False in the file")
        coalesce = True
    grace = options.get("misfire_grace_time", _DEFAULT_GRACE_SECONDS)
    if grace is None:  # no limit
        return policies | ({} if coalesce else {"misfire": "all"})
    if not is_number(grace):
        result.omit(line, f"{name!r}: misfire_grace_time={show_value(grace)} is not a number in the file")
        grace = _DEFAULT_GRACE_SECONDS
    elif grace < _MIN_GRACE_SECONDS and "misfire_grace_time" in options:
        result.omit(line, f"{name!r}: misfire_grace_time={grace}; the shortest is {_MIN_GRACE_SECONDS} s")
    if not coalesce:
        result.omit(line, f"{name!r}: coalesce=False; runs that are missed within the grace time become one")
    return policies | {"misfire": {"policy": "skip", "grace_seconds": max(grace, _MIN_GRACE_SECONDS)}}
