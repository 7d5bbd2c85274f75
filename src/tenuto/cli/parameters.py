"""Declarations of options and arguments, and the click parameters that are built from them.

A declaration annotates a parameter of a command (``name: Annotated[str | None, option("NAME", "…")] = None``), or is an
entry in a table of options, where it has its own type and default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from inspect import Parameter, signature
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click

REQUIRED = Parameter.empty
"""Default of a parameter that must be given."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """An option or an argument; ``type`` is str, int, float, bool, a Literal, an enum, or a list of one of these."""

    metavar: str | None
    help: str
    names: tuple[str, ...] = ()
    type: Any = str
    default: Any = None
    min: float | None = None
    max: float | None = None
    envvar: str | None = None
    is_argument: bool = False


def option(metavar: str, help: str, *names: str, **settings: Any) -> Declaration:
    """Declare an option with a value; without names, its name is that of the parameter."""
    return Declaration(metavar, help, names, **settings)


def choice(help: str, type: Any = str) -> Declaration:
    """Declare an option with one of the values of its type."""
    return Declaration(None, help, type=type)


def flag(help: str, *names: str, default: bool | None = False) -> Declaration:
    """Declare an option without a value."""
    return Declaration(None, help, names, bool, default)


def argument(metavar: str, help: str, default: Any = REQUIRED, **settings: Any) -> Declaration:
    """Declare a positional argument; without a default it is required."""
    return Declaration(metavar, help, default=default, is_argument=True, **settings)


def declared_parameters(function: Callable[..., Any], options: Mapping[str, Declaration]) -> list[click.Parameter]:
    """Return the parameters of a function after its first one; ``options`` take the place of its ``**options``."""
    found: list[click.Parameter] = []
    for parameter in list(signature(function, eval_str=True).parameters.values())[1:]:
        if parameter.kind is Parameter.VAR_KEYWORD:
            found += table_parameters(options)
        else:
            annotation, declared = get_args(parameter.annotation)
            found.append(_build_parameter(parameter.name, declared, annotation, parameter.default))
    return found


def table_parameters(options: Mapping[str, Declaration]) -> list[click.Parameter]:
    """Return the parameters of a table of options."""
    return [_build_parameter(name, declared, declared.type, declared.default) for name, declared in options.items()]


def _build_parameter(name: str, declared: Declaration, annotation: Any, default: Any) -> click.Parameter:
    kind = get_args(annotation)[0] if get_origin(annotation) in (Union, UnionType) else annotation
    is_list = get_origin(kind) is list
    kind = get_args(kind)[0] if is_list else kind
    settings: dict[str, Any] = {"metavar": declared.metavar, "help": declared.help, "type": _click_type(kind, declared)}
    if default is REQUIRED:
        settings["required"] = True
    elif not is_list:
        settings["default"] = default
    if declared.is_argument:
        return click.Argument([name], nargs=-1 if is_list else 1, **{"required": False, **settings})
    names = declared.names or (f"--{name.replace('_', '-')}",)
    shows_default = kind is not bool and "(default" not in declared.help
    return click.Option(
        [name, *names],
        is_flag=kind is bool,
        multiple=is_list,
        show_default=shows_default,
        envvar=declared.envvar,
        **settings,
    )


def _click_type(kind: Any, declared: Declaration) -> click.ParamType[Any]:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return click.Choice([member.value for member in kind])
    if kind in (int, float) and (declared.min is not None or declared.max is not None):
        return (click.IntRange if kind is int else click.FloatRange)(declared.min, declared.max)  # type: ignore[arg-type]
    types: dict[Any, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, bool: click.BOOL}
    return types.get(kind, click.STRING)


def parameter_label(parameter: click.Parameter) -> str:
    """Return the name of a parameter for errors: the option, or the placeholder of an argument."""
    if isinstance(parameter, click.Option):
        return parameter.opts[0]
    return (parameter.metavar or "").strip("[]…") or parameter.name or ""
