"""A schedule by the options of a command line: from what was typed to a definition, whole or changed in places.

Reads and puts together only. What a trigger, a rule or a step may be is decided where they are made; their refusals
are brought back to the option they came from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from tenuto.cli import option_parsing
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from tenuto.model.schedules import Definition, Misfire, Plan
    from tenuto.model.triggers import Trigger

F = TypeVar("F", bound=Callable[..., Any])
Given = Mapping[str, Any]

OverlapWord = Literal["skip", "queue_one", "allow", "cancel_previous"]
MisfireWord = Literal["once", "all", "skip"]
NONE = "none"
"""Takes something away that was said before."""


def _text(option: str, metavar: str, help: str) -> tuple[Any, None]:
    return Annotated[str | None, typer.Option(option, metavar=metavar, help=help)], None


def _texts(option: str, metavar: str, help: str) -> tuple[Any, None]:
    return Annotated[list[str] | None, typer.Option(option, metavar=metavar, help=help)], None


OPTIONS: dict[str, tuple[Any, Any]] = {
    "cron": _text("--cron", "LINE", "When: a cron line, such as '0 2 * * *' or @daily."),
    "every": _text("--every", "SPAN", "When: every 30s, 15m, 2h, 1d of real time."),
    "at": _text("--at", "TIMES", "When: at 06:00,18:30."),
    "manual": (Annotated[bool, typer.Option("--manual", help="Only when started by hand.")], False),
    "between": _text("--between", "FROM-TO", "With --every: only from 22:00-06:00."),
    "days": _text("--on", "DAYS", "With --every or --at: only on mon-fri, or sat,sun."),
    "zone": _text("--zone", "ZONE", "The time zone all of it is in, such as Europe/London. (default: UTC)"),
    "start": _text("--start", "DATE", "The first date it runs on, such as 2031-12-25."),
    "end": _text("--end", "DATE", "The last date it runs on."),
    "excluded": _texts("--exclude", "DATES", "Dates it does not run on; give it several times, or with commas."),
    "jitter": _text("--jitter", "SPAN", "Move runs later by up to so much, to spread the load."),
    "steps": _texts(
        "--step",
        "STEP",
        'What to run: JOB, JOB:{"argument": 1}, then options such as name=x continue_on_failure timeout=5m. Give it '
        "several times for steps one after the other; a comma puts steps side by side.",
    ),
    "overlap": (
        Annotated[OverlapWord | None, typer.Option(help="What if it is due while it runs. (default: skip)")],
        None,
    ),
    "misfire": (
        Annotated[MisfireWord | None, typer.Option(help="What of the runs that were missed. (default: once)")],
        None,
    ),
    "grace": _text("--grace", "SPAN", "With --misfire skip: how late it may run, a minute or more. (default: 5m)"),
    "max_runs": (
        Annotated[int | None, typer.Option(metavar="N", help="With --misfire all: at most the last N. (default: 100)")],
        None,
    ),
    "description": _text("--description", "TEXT", "What it is for."),
}

_KINDS = {"cron": "cron", "every": "interval", "at": "times", "manual": "manual"}
_SAID_IN = {"cron": "cron", "every": "every", "at": "times"}
_LIMITS = ("zone", "start", "end", "excluded", "jitter")
_OPTION_OF = {
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
WHEN = ("cron", "every", "at", "manual", "between", "days", *_LIMITS)
_RULES = ("misfire", "grace", "max_runs")


def with_options(function: F) -> F:
    """A command whose ``**given`` stands for all the options of a schedule."""
    return taking(OPTIONS, function)


def taking(options: Mapping[str, tuple[Any, Any]], function: F, *, after: int = 1) -> F:
    """A command whose ``**given`` stands for these options; they come after so many of its own."""
    signature = inspect.signature(function, eval_str=True)
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in options.items()
    ]
    placed = [*own[: after + 1], *more, *(each.replace(kind=each.KEYWORD_ONLY) for each in own[after + 1 :])]
    function.__signature__ = signature.replace(parameters=placed)  # type: ignore[attr-defined]
    return function


def definition_of(name: str, given: Given) -> Definition:
    """A new schedule."""
    from tenuto.model.schedules import Definition, Overlap

    if not given["steps"]:
        raise Invalid(
            "says what to run, and is not there", field="--step", remedy="add --step JOB; `tenuto job list` shows them"
        )
    with by_option():
        return Definition(
            name,
            trigger_of(None, given),
            _plan(given["steps"]),
            given["description"] or "",
            Overlap(given["overlap"] or "skip"),
            _misfire(None, given),
        )


def changed(present: Definition, given: Given) -> Definition:
    """A schedule with what was given in the place of what it had; all else stays."""
    from dataclasses import replace

    from tenuto.cli.definitions.step_syntax import overrides_of
    from tenuto.model.schedules import with_arguments

    new: dict[str, Any] = {}
    if any(said(given, option) for option in WHEN):
        new["trigger"] = trigger_of(present.trigger, given)
    if given["steps"]:
        new["plan"] = _plan(given["steps"])
    if overrides := overrides_of(given.get("arguments")):
        with option_parsing.by_option({}, otherwise="--set {}"):
            new["plan"] = with_arguments(new.get("plan", present.plan), overrides)
    if any(given[option] is not None for option in _RULES):
        new["misfire"] = _misfire(present.misfire, given)
    for field in ("description", "overlap"):
        if given[field] is not None:
            new[field] = given[field]
    if given.get("rename") is not None:
        new["name"] = given["rename"]
    with by_option(renamed=True):
        return replace(present, **new)


def _plan(texts: list[str]) -> Plan:
    from tenuto.cli.definitions.step_syntax import group_of
    from tenuto.model.schedules import Plan

    return Plan.of([group_of(text) for text in texts])


# --- the trigger ----------------------------------------------------------------------------------------------------


def trigger_of(present: Trigger | None, given: Given) -> Trigger:
    """When something runs: what was given, in the place of what was so far."""
    from tenuto.model.triggers import trigger_from_fields

    with by_option():
        return trigger_from_fields(_fields(present.fields() if present is not None else None, given))


def _fields(present: dict[str, Any] | None, given: Given) -> dict[str, Any]:
    chosen = [option for option in _KINDS if said(given, option)]
    if len(chosen) > 1:
        raise Invalid(
            f"cannot stand beside --{chosen[1]}", field=f"--{chosen[0]}", remedy="give one trigger; use two schedules"
        )
    if not chosen and present is None:
        raise Invalid(
            "says when it runs, and none is there",
            field="--cron, --every, --at or --manual",
            remedy="add one, such as --cron '0 2 * * *', or --manual",
        )
    fields = _kept(present or {}, _KINDS[chosen[0]] if chosen else None)
    if chosen and chosen[0] != "manual":
        value = given[chosen[0]]
        fields[_SAID_IN[chosen[0]]] = _items([value]) if chosen[0] == "at" else value
    _refuse_what_does_not_fit(fields["kind"], given)
    _change(fields, "between", given["between"], lambda text: text.split("-", 1))
    for name in ("days", "zone", "start", "end", "jitter"):
        _change(fields, name, given[name])
    if given["excluded"]:
        dates = _items(given["excluded"]) or given["excluded"]
        _change(fields, "excluded", NONE if dates == [NONE] else dates)
    return fields


def _kept(present: dict[str, Any], kind: str | None) -> dict[str, Any]:
    """What goes on to hold: everything if the kind does not change, else what both kinds have."""
    if kind is None or kind == present.get("kind"):
        return dict(present)
    if kind == "manual":
        return {"kind": kind}
    shared = (*_LIMITS, *(("days",) if kind in ("interval", "times") else ()))
    return {"kind": kind, **{name: present[name] for name in shared if name in present}}


def _refuse_what_does_not_fit(kind: str, given: Given) -> None:
    if kind == "manual":
        for name in ("between", "days", *_LIMITS):
            if said(given, name):
                raise Invalid(
                    "goes with a clock, and there is none", field=name, remedy="leave it out, or say when it runs"
                )
    if kind == "cron" and said(given, "days"):
        raise Invalid(
            "goes with --every or --at", field="--on", remedy="put the days into the line, as in '0 2 * * mon-fri'"
        )
    if kind != "interval" and said(given, "between"):
        remedy = (
            "put the hours into the line, as in '*/15 9-17 * * *'" if kind == "cron" else "name the times with --at"
        )
        raise Invalid("goes with --every", field="--between", remedy=remedy)


def _change(fields: dict[str, Any], name: str, value: Any, read: Callable[[str], Any] | None = None) -> None:
    if value == NONE:
        fields.pop(name, None)
    elif value is not None:
        fields[name] = value if read is None else read(value)


def _items(texts: list[str]) -> list[str]:
    return [item.strip() for text in texts for item in text.split(",") if item.strip()]


def said(given: Given, option: str) -> bool:
    """Whether an option was given. Empty text was: an unset variable of a shell is refused, not taken for silence."""
    return given[option] is not None and given[option] is not False and given[option] != []


def by_option(*, renamed: bool = False, arguments: bool = False) -> AbstractContextManager[None]:
    """A refusal of a schedule's field names the option it was typed into: of an edit, the name comes from --rename,
    and arguments may come from --set."""
    own = {**({"name": "--rename"} if renamed else {}), **({"steps.": "--set {}"} if arguments else {})}
    return option_parsing.by_option({**_OPTION_OF, **own})


# --- the rule for missed runs ---------------------------------------------------------------------------------------


def _misfire(present: Misfire | None, given: Given) -> Misfire:
    from tenuto.model.schedules import misfire_from_fields
    from tenuto.model.triggers.parsing import whole_seconds

    before: dict[str, Any] = present.to_fields() if present is not None else {"policy": "once"}
    policy = given["misfire"] or before["policy"]
    fields: dict[str, Any] = before if policy == before["policy"] else {"policy": policy}
    for option, goes_with in (("grace", "skip"), ("max_runs", "all")):
        if given[option] is not None and policy != goes_with:
            name = option.replace("_", "-")
            raise Invalid(
                f"goes with --misfire {goes_with}, and it is {policy}",
                field=f"--{name}",
                remedy=f"add --misfire {goes_with}",
            )
    if given["grace"] is not None:
        fields["grace_seconds"] = whole_seconds(given["grace"], field="--grace", least=0, most=366 * 86_400)
    if given["max_runs"] is not None:
        fields["max_runs"] = given["max_runs"]
    with by_option():
        return misfire_from_fields(fields)
