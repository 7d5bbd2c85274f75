"""A manifest by the options of a command line: from what was typed to a definition, whole or changed in places.

Reads and puts together only. What a manifest may be is decided where it is made; its refusals are brought back to the
option they came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tenuto.cli import option_parsing
from tenuto.cli.definitions.schedule_options import NONE, WHEN, Given, said, trigger_of
from tenuto.cli.definitions.schedule_options import OPTIONS as OF_SCHEDULES
from tenuto.errors import Invalid
from tenuto.model import stored_values

if TYPE_CHECKING:
    from tenuto.jobs.registry import Job
    from tenuto.model.manifests import Manifest
    from tenuto.model.policies import Policy, RetryPolicy
    from tenuto.model.triggers import Trigger


def _text(option: str, metavar: str, help: str) -> tuple[Any, None]:
    return Annotated[str | None, typer.Option(option, metavar=metavar, help=help)], None


def _number(option: str, help: str) -> tuple[Any, None]:
    return Annotated[int | None, typer.Option(option, metavar="N", help=help)], None


def _flag(option: str, help: str) -> tuple[Any, bool]:
    return Annotated[bool, typer.Option(option, help=help)], False


OPTIONS: dict[str, tuple[Any, Any]] = {
    **{name: OF_SCHEDULES[name] for name in WHEN},
    "manual": _flag("--manual", "Only when run by hand. (default)"),
    "after": _text("--after", "MANIFEST", "When: each time that manifest has succeeded."),
    "on_demand": _flag("--on-demand", "When: for what it is given, as with `tenuto batch submit`."),
    "properties": _text("--properties", "JSON|@FILE|-", "The arguments every run starts from, as a JSON object."),
    "settings": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--set", metavar="ARGUMENT=VALUE", help="One of them: JSON, or else text. Give it several times."
            ),
        ],
        None,
    ),
    "title": _text("--name", "TEXT", "What to call it. (default: its external id)"),
    "description": _text("--description", "TEXT", "What it is for."),
    "max_retries": _number("--max-retries", "Failed attempts before the dead letter. (default: as the job)"),
    "retry_wait": _text("--retry-wait", "SPAN", "The wait after the first failure, such as 30s; each next is longer."),
    "timeout": _text("--timeout", "SPAN", "How long one attempt may take, such as 5m."),
    "queue": _text("--queue", "QUEUE", "The queue its runs go into."),
    "priority": _number("--priority", "The higher the earlier, from -1000 to 1000."),
    "group": _text("--group", "GROUP", "The group whose limit and priority it shares."),
    "max_active": _text("--max-active", "N", "How many of its runs may be active at once, everywhere."),
}
_OPTION_OF = {
    "depends_on": "--after",
    "external_id": "EXTERNAL_ID",
    "properties.": "--set {}",
    "retry": "--retry-wait",
    "retry.": "--retry-wait",
}


def new_manifest(external_id: str, job: Job[..., Any], given: Given) -> Manifest:
    """A new manifest; what is not said is as the job has it."""
    from tenuto.operations.manifests import manifest_of

    with by_option():
        return manifest_of(
            job,
            external_id,
            **_when(None, given),
            properties=_properties({}, given),
            name=given["title"] or "",
            description=given["description"] or "",
            retry=_retry(job.policy.retry, given),
            timeout=given["timeout"],
            queue=given["queue"],
            priority=given["priority"],
            group=given["group"],
            max_active=_most(given["max_active"]),
        )


def changed(present: Manifest, given: Given) -> Manifest:
    """A manifest with what was given in the place of what it had; all else stays."""
    from dataclasses import replace

    new: dict[str, Any] = {}
    with by_option():
        if any(said(given, option) for option in (*WHEN, "after", "on_demand")):
            when = _when(present.trigger, given)
            new |= {"trigger": when["trigger"], "on_demand": when["on_demand"], "depends_on": when["after"]}
        if given["properties"] is not None or given["settings"]:
            new["properties"] = _properties(present.properties, given)
        for option, field in (("title", "name"), ("description", "description"), ("queue", "queue")):
            if given[option] is not None:
                new[field] = given[option]
        if given["priority"] is not None:
            new["priority"] = given["priority"]
        if given["group"] is not None:
            new["group"] = None if given["group"] == NONE else given["group"]
        if given["max_active"] is not None:
            new["max_active"] = _most(given["max_active"])
        new["policy"] = _policy(present.policy, given)
        return replace(present, **new)


def _when(present: Trigger | None, given: Given) -> dict[str, Any]:
    """The one reason to run: a clock, another manifest, demand; or none but a person."""
    from tenuto.model.triggers import Manual

    clock = any(said(given, option) for option in WHEN)
    reasons = [("--after", said(given, "after")), ("--on-demand", given["on_demand"]), ("a clock", clock)]
    found = [option for option, is_given in reasons if is_given]
    if len(found) > 1:
        raise Invalid(f"cannot stand beside {found[1]}", field=found[0], remedy="a manifest has one reason to run")
    if given["after"] is not None:
        return {"trigger": Manual(), "on_demand": False, "after": None if given["after"] == NONE else given["after"]}
    if given["on_demand"]:
        return {"trigger": Manual(), "on_demand": True, "after": None}
    trigger = trigger_of(present or Manual(), given) if clock else Manual()
    return {"trigger": trigger, "on_demand": False, "after": None}


def _properties(present: Mapping[str, Any], given: Given) -> dict[str, Any]:
    from tenuto.cli.work.jobs import text_given

    found = dict(present)
    if given["properties"] is not None:
        found = json_object(text_given(given["properties"], "--properties"), "--properties")
    return {**found, **settings_of(given["settings"])}


def settings_of(given: list[str] | None) -> dict[str, Any]:
    """``argument=value`` as arguments; a value is JSON or, if it is none, text."""
    found: dict[str, Any] = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not (equals and name):
            raise Invalid(
                f"{each!r:.60} does not say which argument", field="--set", remedy="write it as --set argument=value"
            )
        found[name] = option_parsing.value_of(value, f"--set {name}")
    return found


def json_object(text: str, option: str) -> dict[str, Any]:
    """A JSON object that was typed or stands in a file."""
    try:
        found = stored_values.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"is not JSON: {error}", field=option, remedy=f"write {option} '{{\"argument\": 1}}'") from None
    if not isinstance(found, dict):
        raise Invalid("is not a JSON object", field=option, remedy=f"write {option} '{{\"argument\": 1}}'")
    return found


def _retry(present: RetryPolicy, given: Given) -> RetryPolicy | None:
    from dataclasses import replace

    from tenuto.model.triggers.parsing import whole_seconds

    new: dict[str, Any] = {}
    if given["max_retries"] is not None:
        new["max_retries"] = given["max_retries"]
    if given["retry_wait"] is not None:
        wait = whole_seconds(given["retry_wait"], field="--retry-wait", least=1, most=30 * 86_400)
        new["base_seconds"] = float(wait)
        new["cap_seconds"] = max(present.cap_seconds, float(wait))
    return replace(present, **new) if new else None


def _policy(present: Policy, given: Given) -> Policy:
    from dataclasses import replace

    from tenuto.model.tasks import seconds

    new: dict[str, Any] = {}
    if (retry := _retry(present.retry, given)) is not None:
        new["retry"] = retry
    if given["timeout"] is not None:
        new["timeout_seconds"] = None if given["timeout"] == NONE else seconds(given["timeout"], field="timeout")
    return replace(present, **new)


def _most(given: str | None) -> int | None:
    if given is None or given == NONE:
        return None
    return option_parsing.whole_number(given, "--max-active", "give one, or none")


def by_option() -> AbstractContextManager[None]:
    """A refusal of a manifest's field names the option it was typed into."""
    return option_parsing.by_option(_OPTION_OF)
