"""Schedules and manifests from command line options: build a new definition, or change an existing one.

The model validates triggers, policies and steps; this module translates error fields to option names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Literal

from tenuto.cli.definitions.step_syntax import parse_overrides, parse_step_group
from tenuto.cli.option_parsing import (
    invalid_value,
    missing_option,
    option_conflict,
    parse_json_or_text,
    parse_whole_number,
    read_json_option,
    translate_error_fields,
)
from tenuto.cli.parameters import Declaration, choice, flag, option
from tenuto.errors import Invalid
from tenuto.jobs.registry import Job
from tenuto.model.definitions.manifests import Manifest
from tenuto.model.definitions.policies import RetryPolicy, TaskPolicy
from tenuto.model.definitions.schedules import (
    Misfire,
    MisfirePolicy,
    OverlapPolicy,
    Plan,
    ScheduleDefinition,
    misfire_from_fields,
    override_arguments,
)
from tenuto.model.triggers import ManualTrigger, Trigger, trigger_from_fields
from tenuto.model.triggers.field_parser import parse_whole_seconds
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.operations.definitions.manifests import build_manifest

Options = Mapping[str, Any]

NONE = "none"
"""Value that removes a setting."""


SCHEDULE_OPTIONS: dict[str, Declaration] = {
    "cron": option("LINE", "Cron trigger, e.g. '0 2 * * *' or @daily."),
    "every": option("DURATION", "Interval trigger: elapsed time such as 30s, 15m, 2h or 1d."),
    "at": option("TIMES", "Times of day, e.g. 06:00,18:30."),
    "manual": flag("No trigger: manual runs only."),
    "between": option("FROM-TO", "With --every: time window, e.g. 22:00-06:00."),
    "days": option("DAYS", "With --every or --at: days of the week, e.g. mon-fri or sat,sun.", "--on"),
    "zone": option("ZONE", "Time zone of the trigger, e.g. Europe/London. (default: UTC)"),
    "start": option("DATE", "First date on which it runs, e.g. 2031-12-25."),
    "end": option("DATE", "Last date on which it runs, e.g. 2032-01-31."),
    "excluded": option(
        "DATES", "Dates without runs, separated by commas; may be repeated.", "--exclude", type=list[str]
    ),
    "jitter": option("DURATION", "Maximum random delay of a run, to spread the load."),
    "steps": option(
        "STEP",
        'Step: JOB or JOB:{"argument": 1}, then options such as name=x continue_on_failure timeout=5m. Repeat it for '
        "steps in sequence; separate parallel steps by a comma.",
        "--step",
        type=list[str],
    ),
    "overlap": choice(
        "Overlap policy: what to do when a run is due while the previous one is active. (default: skip)", OverlapPolicy
    ),
    "misfire": choice("Misfire policy: what to do with runs missed during downtime. (default: once)", MisfirePolicy),
    "grace": option("DURATION", "With --misfire skip: maximum delay, at least 1m. (default: 5m)"),
    "max_runs": option("N", "With --misfire all: maximum number of runs. (default: 100)", type=int),
    "description": option("TEXT", "Description."),
}

_KINDS = {"cron": "cron", "every": "interval", "at": "times", "manual": "manual"}
_FIELD_OF_OPTION = {"cron": "cron", "every": "every", "at": "times"}
_DATE_OPTIONS = ("zone", "start", "end", "excluded", "jitter")
_SCHEDULE_OPTION_OF_FIELD = {
    "name": "NAME",
    "days": "--on",
    "times": "--at",
    "excluded": "--exclude",
    "cron.day_of_month": "--cron, day of month",
    "cron.day_of_week": "--cron, day of week",
    "cron.": "--cron, {}",
    "misfire.max_runs": "--max-runs",
    "misfire.grace_seconds": "--grace",
    "steps": "--step",
}
TRIGGER_OPTIONS = ("cron", "every", "at", "manual", "between", "days", *_DATE_OPTIONS)
_MISFIRE_OPTIONS = ("misfire", "grace", "max_runs")
MANIFEST_OPTIONS: dict[str, Declaration] = {
    **{name: SCHEDULE_OPTIONS[name] for name in TRIGGER_OPTIONS},
    "manual": flag("No trigger: manual runs only. (default)"),
    "after": option("MANIFEST", "Dependency: run after each success of this manifest."),
    "on_demand": flag("Run only for submitted input, e.g. with `tenuto batch submit`."),
    "properties": option("JSON|@FILE|-", "Default arguments of every run, as a JSON object."),
    "settings": option("ARGUMENT=VALUE", "Default argument: JSON or text; may be repeated.", "--set", type=list[str]),
    "title": option("TEXT", "Display name. (default: the external id)", "--name"),
    "description": option("TEXT", "Description."),
    "max_attempts": option(
        "N", "Maximum number of attempts; then a dead letter is created. (default: as in the job)", type=int
    ),
    "retry_wait": option("DURATION", "Wait after the first failure, e.g. 30s; later waits are longer."),
    "timeout": option("DURATION", "Maximum duration of an attempt, e.g. 5m."),
    "queue": option("QUEUE", "Queue of the runs."),
    "priority": option("N", "Priority from -1000 to 1000; higher runs earlier.", type=int),
    "group": option("GROUP", "Manifest group, which has a common limit and priority."),
    "max_active": option("N", "Maximum number of active runs, over all workers."),
    "on_dead_letter": option(
        "block|continue",
        "Whether open dead letters stop runs of its trigger. (default: block)",
        type=Literal["block", "continue"],
    ),
}
_MANIFEST_OPTION_OF_FIELD = {
    "depends_on": "--after",
    "external_id": "EXTERNAL_ID",
    "properties.": "--set {}",
    "retry": "--retry-wait",
    "retry.": "--retry-wait",
}


def build_schedule(name: str, options: Options) -> ScheduleDefinition:
    if not options["steps"]:
        remedy = "add --step JOB; `tenuto job list` lists the jobs"
        raise Invalid("at least one --step is required", code="schedule.steps.missing", field="--step", remedy=remedy)
    with translate_schedule_errors():
        return ScheduleDefinition(
            name,
            build_trigger(None, options),
            _parse_plan(options["steps"]),
            options["description"] or "",
            OverlapPolicy(options["overlap"] or "skip"),
            _build_misfire(None, options),
        )


def change_schedule(present: ScheduleDefinition, options: Options) -> ScheduleDefinition:
    """Return the definition with the given options changed."""
    new: dict[str, Any] = {}
    if any(is_given(options, option) for option in TRIGGER_OPTIONS):
        new["trigger"] = build_trigger(present.trigger, options)
    if options["steps"]:
        new["plan"] = _parse_plan(options["steps"])
    if overrides := parse_overrides(options.get("arguments")):
        with translate_error_fields({}, otherwise="--set {}"):
            new["plan"] = override_arguments(new.get("plan", present.plan), overrides)
    if any(options[option] is not None for option in _MISFIRE_OPTIONS):
        new["misfire"] = _build_misfire(present.misfire, options)
    for field in ("description", "overlap"):
        if options[field] is not None:
            new[field] = options[field]
    if options.get("rename") is not None:
        new["name"] = options["rename"]
    with translate_schedule_errors(renamed=True):
        return replace(present, **new)


def _parse_plan(texts: list[str]) -> Plan:
    return Plan.from_steps([parse_step_group(text) for text in texts])


# --- trigger ----------------------------------------------------------------------------------------------------


def build_trigger(present: Trigger | None, options: Options) -> Trigger:
    """Build a trigger from the options, starting from the present one."""
    with translate_schedule_errors():
        return trigger_from_fields(_trigger_fields(present.to_fields() if present is not None else None, options))


def _trigger_fields(present: dict[str, Any] | None, options: Options) -> dict[str, Any]:
    chosen = [option for option in _KINDS if is_given(options, option)]
    if len(chosen) > 1:
        raise option_conflict(f"--{chosen[0]}", f"--{chosen[1]}", "give one trigger, or create two schedules")
    if not chosen and present is None:
        problem = "one of --cron, --every, --at, --manual is required"
        remedy = "add a trigger, such as --cron '0 2 * * *', or --manual"
        raise Invalid(problem, code="schedule.trigger.missing", field="--cron", remedy=remedy)
    fields = _retained_fields(present or {}, _KINDS[chosen[0]] if chosen else None)
    if chosen and chosen[0] != "manual":
        value = options[chosen[0]]
        fields[_FIELD_OF_OPTION[chosen[0]]] = _split_commas([value]) if chosen[0] == "at" else value
    _reject_unsuitable_options(fields["kind"], options)
    _set_field(fields, "between", options["between"], lambda text: text.split("-", 1))
    for name in ("days", "zone", "start", "end", "jitter"):
        _set_field(fields, name, options[name])
    if options["excluded"]:
        dates = _split_commas(options["excluded"]) or options["excluded"]
        _set_field(fields, "excluded", NONE if dates == [NONE] else dates)
    return fields


def _retained_fields(present: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """Return the present fields that apply to the new kind: all if the kind is unchanged, else the common ones."""
    if kind is None or kind == present.get("kind"):
        return dict(present)
    if kind == "manual":
        return {"kind": kind}
    shared = (*_DATE_OPTIONS, *(("days",) if kind in ("interval", "times") else ()))
    return {"kind": kind, **{name: present[name] for name in shared if name in present}}


def _reject_unsuitable_options(kind: str, options: Options) -> None:
    if kind == "manual":
        for name in ("between", "days", *_DATE_OPTIONS):
            if is_given(options, name):
                option = _SCHEDULE_OPTION_OF_FIELD.get(name, f"--{name}")
                raise missing_option(option, "--cron, --every or --at", f"omit {option}, or add a trigger")
    if kind == "cron" and is_given(options, "days"):
        raise missing_option("--on", "--every or --at", "put the days into the cron line, as in '0 2 * * mon-fri'")
    if kind != "interval" and is_given(options, "between"):
        hours = "put the hours into the cron line, as in '*/15 9-17 * * *'"
        raise missing_option("--between", "--every", hours if kind == "cron" else "name the times with --at")


def _set_field(fields: dict[str, Any], name: str, value: Any, read: Callable[[str], Any] | None = None) -> None:
    if value == NONE:
        fields.pop(name, None)
    elif value is not None:
        fields[name] = value if read is None else read(value)


def _split_commas(texts: list[str]) -> list[str]:
    return [item.strip() for text in texts for item in text.split(",") if item.strip()]


def is_given(options: Options, option: str) -> bool:
    """Return whether an option was given. Empty text counts as given, so that an unset shell variable is rejected."""
    return options[option] is not None and options[option] is not False and options[option] != []


def translate_schedule_errors(*, renamed: bool = False, arguments: bool = False) -> AbstractContextManager[None]:
    """Translate the fields of schedule errors to options; in an edit, the name is --rename and arguments are --set."""
    own = {**({"name": "--rename"} if renamed else {}), **({"steps.": "--set {}"} if arguments else {})}
    return translate_error_fields({**_SCHEDULE_OPTION_OF_FIELD, **own})


# --- misfire policy -------------------------------------------------------------------------------------------------


def _build_misfire(present: Misfire | None, options: Options) -> Misfire:
    before: dict[str, Any] = present.to_fields() if present is not None else {"policy": "once"}
    policy = options["misfire"] or before["policy"]
    fields: dict[str, Any] = before if policy == before["policy"] else {"policy": policy}
    for field, required in (("grace", "skip"), ("max_runs", "all")):
        if options[field] is not None and policy != required:
            name = f"--{field.replace('_', '-')}"
            raise missing_option(name, f"--misfire {required}, not {policy}", f"add --misfire {required}")
    if options["grace"] is not None:
        fields["grace_seconds"] = parse_whole_seconds(
            options["grace"], field="--grace", minimum=0, maximum=366 * 86_400
        )
    if options["max_runs"] is not None:
        fields["max_runs"] = options["max_runs"]
    with translate_schedule_errors():
        return misfire_from_fields(fields)


# --- manifest ---------------------------------------------------------------------------------------------------------


def manifest_from_options(external_id: str, job: Job[..., Any], options: Options) -> Manifest:
    """Build a new manifest; the job provides the defaults."""
    with translate_manifest_errors():
        return build_manifest(
            job,
            external_id,
            **_reason_to_run(None, options),
            properties=_build_properties({}, options),
            name=options["title"] or "",
            description=options["description"] or "",
            retry=_build_retry_policy(job.policy.retry, options),
            timeout=options["timeout"],
            queue=options["queue"],
            priority=options["priority"],
            group=options["group"],
            max_active=_parse_limit(options["max_active"]),
            on_dead_letter=options["on_dead_letter"] or "block",
        )


def change_manifest(present: Manifest, options: Options) -> Manifest:
    """Return the manifest with the given options changed."""
    new: dict[str, Any] = {}
    with translate_manifest_errors():
        if any(is_given(options, option) for option in (*TRIGGER_OPTIONS, "after", "on_demand")):
            when = _reason_to_run(present.trigger, options)
            new |= {"trigger": when["trigger"], "on_demand": when["on_demand"], "depends_on": when["after"]}
        if options["properties"] is not None or options["settings"]:
            new["properties"] = _build_properties(present.properties, options)
        for option in ("title", "description", "queue", "priority", "group", "on_dead_letter"):
            if options[option] is not None:
                new["name" if option == "title" else option] = options[option]
        if options["group"] == NONE:
            new["group"] = None
        if options["max_active"] is not None:
            new["max_active"] = _parse_limit(options["max_active"])
        new["policy"] = _build_policy(present.policy, options)
        return replace(present, **new)


def _reason_to_run(present: Trigger | None, options: Options) -> dict[str, Any]:
    """Return trigger, on_demand and after; a manifest has at most one reason to run."""
    has_trigger = any(is_given(options, option) for option in TRIGGER_OPTIONS)
    reasons = {
        "--after": is_given(options, "after"),
        "--on-demand": options["on_demand"],
        "a trigger option such as --cron": has_trigger,
    }
    found = [option for option, is_used in reasons.items() if is_used]
    if len(found) > 1:
        raise option_conflict(found[0], found[1], "give one reason to run")
    if options["after"] is not None:
        after = None if options["after"] == NONE else options["after"]
        return {"trigger": ManualTrigger(), "on_demand": False, "after": after}
    if options["on_demand"]:
        return {"trigger": ManualTrigger(), "on_demand": True, "after": None}
    trigger = build_trigger(present or ManualTrigger(), options) if has_trigger else ManualTrigger()
    return {"trigger": trigger, "on_demand": False, "after": None}


def _build_properties(present: Mapping[str, Any], options: Options) -> dict[str, Any]:
    properties = dict(present)
    if options["properties"] is not None:
        properties = read_json_option(options["properties"], "--properties")
    return {**properties, **parse_arguments(options["settings"])}


def parse_arguments(texts: list[str] | None) -> dict[str, Any]:
    """Parse ``argument=value`` texts; a value is JSON or else text."""
    arguments: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not (equals and name):
            remedy = "write it as --set argument=value"
            raise invalid_value("--set", text, "names no argument", code="cli.set.invalid", remedy=remedy)
        arguments[name] = parse_json_or_text(value, f"--set {name}")
    return arguments


def _build_retry_policy(present: RetryPolicy, options: Options) -> RetryPolicy | None:
    new = {} if options["max_attempts"] is None else {"max_attempts": options["max_attempts"]}
    if options["retry_wait"] is not None:
        wait = parse_whole_seconds(options["retry_wait"], field="--retry-wait", minimum=1, maximum=30 * 86_400)
        new["base_seconds"] = float(wait)
        new["cap_seconds"] = max(present.cap_seconds, float(wait))
    return replace(present, **new) if new else None


def _build_policy(present: TaskPolicy, options: Options) -> TaskPolicy:
    new: dict[str, Any] = {}
    if (retry := _build_retry_policy(present.retry, options)) is not None:
        new["retry"] = retry
    if options["timeout"] is not None:
        text = options["timeout"]
        new["timeout_seconds"] = None if text == NONE else parse_duration_seconds(text, field="timeout")
    return replace(present, **new)


def _parse_limit(text: str | None) -> int | None:
    if text is None or text == NONE:
        return None
    return parse_whole_number(text, "--max-active", "give a whole number, or none")


def translate_manifest_errors() -> AbstractContextManager[None]:
    return translate_error_fields(_MANIFEST_OPTION_OF_FIELD)
