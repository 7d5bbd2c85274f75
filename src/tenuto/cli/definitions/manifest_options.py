"""Manifest definitions from command line options: build a new definition, or change an existing one.

The model validates the manifest; this module translates error fields to option names.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Annotated, Any

from tenuto.cli import option_parsing
from tenuto.cli.definitions.schedule_options import NONE, TRIGGER_OPTIONS, Options, build_trigger, is_given, text_option
from tenuto.cli.definitions.schedule_options import OPTIONS as SCHEDULE_OPTIONS
from tenuto.cli.option_parsing import flag, option
from tenuto.cli.work.jobs import read_text_option
from tenuto.errors import Invalid
from tenuto.jobs.registry import Job
from tenuto.model import stored_values
from tenuto.model.manifests import Manifest
from tenuto.model.policies import RetryPolicy, TaskPolicy
from tenuto.model.tasks import parse_duration_seconds
from tenuto.model.triggers import ManualTrigger, Trigger
from tenuto.model.triggers.parsing import parse_whole_seconds
from tenuto.operations.manifests import build_manifest


def _number_option(name: str, help: str) -> tuple[Any, None]:
    return Annotated[int | None, option("N", help, name)], None


def _flag_option(name: str, help: str) -> tuple[Any, bool]:
    return Annotated[bool, flag(help, name)], False


OPTIONS: dict[str, tuple[Any, Any]] = {
    **{name: SCHEDULE_OPTIONS[name] for name in TRIGGER_OPTIONS},
    "manual": _flag_option("--manual", "No trigger: manual runs only. (default)"),
    "after": text_option("--after", "MANIFEST", "Dependency: run after each success of this manifest."),
    "on_demand": _flag_option("--on-demand", "Run only for submitted input, e.g. with `tenuto batch submit`."),
    "properties": text_option("--properties", "JSON|@FILE|-", "Default arguments of every run, as a JSON object."),
    "settings": (
        Annotated[
            list[str] | None, option("ARGUMENT=VALUE", "One default argument: JSON or text. May be repeated.", "--set")
        ],
        None,
    ),
    "title": text_option("--name", "TEXT", "Display name. (default: the external id)"),
    "description": text_option("--description", "TEXT", "Description."),
    "max_retries": _number_option("--max-retries", "Failed attempts before the dead letter. (default: as in the job)"),
    "retry_wait": text_option(
        "--retry-wait", "DURATION", "Wait after the first failure, e.g. 30s; later waits are longer."
    ),
    "timeout": text_option("--timeout", "DURATION", "Maximum duration of an attempt, e.g. 5m."),
    "queue": text_option("--queue", "QUEUE", "Queue of the runs."),
    "priority": _number_option("--priority", "Priority from -1000 to 1000; higher runs earlier."),
    "group": text_option("--group", "GROUP", "Manifest group, which has a common limit and priority."),
    "max_active": text_option("--max-active", "N", "Maximum number of active runs, over all workers."),
}
_OPTION_OF_FIELD = {
    "depends_on": "--after",
    "external_id": "EXTERNAL_ID",
    "properties.": "--set {}",
    "retry": "--retry-wait",
    "retry.": "--retry-wait",
}


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
        for option, field in (("title", "name"), ("description", "description"), ("queue", "queue")):
            if options[option] is not None:
                new[field] = options[option]
        if options["priority"] is not None:
            new["priority"] = options["priority"]
        if options["group"] is not None:
            new["group"] = None if options["group"] == NONE else options["group"]
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
        raise Invalid(
            f"{found[0]} and {found[1]} cannot be combined",
            code="cli.option.conflict",
            field=found[0],
            remedy="give one reason to run",
        )
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
        properties = parse_json_object(read_text_option(options["properties"], "--properties"), "--properties")
    return {**properties, **parse_arguments(options["settings"])}


def parse_arguments(texts: list[str] | None) -> dict[str, Any]:
    """Parse ``argument=value`` texts; a value is JSON or else text."""
    arguments: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not (equals and name):
            raise Invalid(
                f"--set {text!r:.60} names no argument",
                code="cli.set.invalid",
                field="--set",
                remedy="write it as --set argument=value",
            )
        arguments[name] = option_parsing.parse_json_or_text(value, f"--set {name}")
    return arguments


def parse_json_object(text: str, option: str) -> dict[str, Any]:
    """Parse the value of an option that takes a JSON object."""
    remedy = f"write {option} '{{\"argument\": 1}}'"
    try:
        found = stored_values.parse_strict_json(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(
            f"the value of {option} is not JSON: {error}", code="cli.json.invalid", field=option, remedy=remedy
        ) from None
    if not isinstance(found, dict):
        raise Invalid(
            f"the value of {option} is not a JSON object", code="cli.json.not_an_object", field=option, remedy=remedy
        )
    return found


def _build_retry_policy(present: RetryPolicy, options: Options) -> RetryPolicy | None:
    new: dict[str, Any] = {}
    if options["max_retries"] is not None:
        new["max_retries"] = options["max_retries"]
    if options["retry_wait"] is not None:
        wait = parse_whole_seconds(options["retry_wait"], field="--retry-wait", least=1, most=30 * 86_400)
        new["base_seconds"] = float(wait)
        new["cap_seconds"] = max(present.cap_seconds, float(wait))
    return replace(present, **new) if new else None


def _build_policy(present: TaskPolicy, options: Options) -> TaskPolicy:
    new: dict[str, Any] = {}
    if (retry := _build_retry_policy(present.retry, options)) is not None:
        new["retry"] = retry
    if options["timeout"] is not None:
        new["timeout_seconds"] = (
            None if options["timeout"] == NONE else parse_duration_seconds(options["timeout"], field="timeout")
        )
    return replace(present, **new)


def _parse_limit(text: str | None) -> int | None:
    if text is None or text == NONE:
        return None
    return option_parsing.parse_whole_number(text, "--max-active", "give a whole number, or none")


def translate_manifest_errors() -> AbstractContextManager[None]:
    """Translate the fields of manifest errors to options."""
    return option_parsing.translate_error_fields(_OPTION_OF_FIELD)
