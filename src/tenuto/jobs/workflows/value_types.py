"""Types of values that are passed between steps: which type may be used for another, and how a type is written."""

from __future__ import annotations

import types
from typing import Annotated, Any, NewType, Union, get_args, get_origin


def is_assignable(kind: Any, wanted: Any) -> bool:
    """Whether every value of a type may be passed where the other type is wanted."""
    kind, wanted = unwrap_type(kind), unwrap_type(wanted)
    if wanted is Any or wanted is object or kind == wanted:
        return True
    if is_union(kind):
        return all(is_assignable(each, wanted) for each in get_args(kind))
    if is_union(wanted):
        return any(is_assignable(kind, each) for each in get_args(wanted))
    if isinstance(kind, NewType):
        return is_assignable(kind.__supertype__, wanted)
    return _is_subclass(kind, wanted)


def _is_subclass(kind: Any, wanted: Any) -> bool:
    kind_class, wanted_class = get_origin(kind) or kind, get_origin(wanted) or wanted
    if kind_class is bool and wanted_class is int:  # a subclass in Python, but a flag is not meant to be a number
        return False
    try:
        related = issubclass(kind_class, wanted_class)
    except TypeError:  # one of the two is no class
        return False
    return related and get_args(wanted) in ((), get_args(kind))


def unwrap_type(kind: Any) -> Any:
    """Return a type without `Annotated` and type aliases."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def type_name(kind: Any) -> str:
    """Return a type as it is written in code."""
    kind = unwrap_type(kind)
    if kind is type(None):
        return "None"
    if is_union(kind):
        return " | ".join(type_name(each) for each in get_args(kind))
    if get_args(kind) and get_origin(kind) is not None:
        members = ("..." if each is Ellipsis else type_name(each) for each in get_args(kind))
        return f"{type_name(get_origin(kind))}[{', '.join(members)}]"
    return getattr(kind, "__name__", str(kind))
