"""Which value goes where in a chain: decided by types, once, when the chain is made.

Pure: knows nothing of steps that run, and nothing of the database. What is there by the time of a step is offered in
groups, the chain's input first and then what each step gives; the newest group that has something fitting counts.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NewType, Union, get_args, get_origin

from tenuto.errors import Invalid


@dataclass(frozen=True, slots=True)
class Source:
    """Where a value is found: in the input (0) or in what the n-th step gave; as a whole, or a part of it."""

    place: int
    part: str | int | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """A value that is there: its type, whence it comes in words, and where it is found."""

    kind: Any
    whence: str
    source: Source


def of_inputs(kinds: dict[str, Any]) -> list[Offer]:
    """What the input of a chain offers."""
    return [Offer(kind, f"the input {name}", Source(0, name)) for name, kind in kinds.items()]


def of_step(kind: Any, label: str, place: int) -> list[Offer]:
    """What a step offers: what it returns, and the members of a tuple also one by one. None is nothing."""
    if plain(kind) is type(None):
        return []
    offers = [Offer(kind, label, Source(place))]
    members = get_args(plain(kind)) if get_origin(plain(kind)) is tuple else ()
    if members and members[-1] is not Ellipsis:
        offers += [Offer(member, label, Source(place, number)) for number, member in enumerate(members)]
    return offers


def find(wanted: Any, parameter: str, groups: Sequence[Sequence[Offer]]) -> Source | None:
    """The newest value of a type, or of one that is a kind of it.

    Within one group (several inputs, the members of a tuple) the very type goes before a kind of it, and the name
    decides between inputs of one type; what is left undecided is refused.
    """
    for group in reversed(groups):
        fitting = [offer for offer in group if fits(offer.kind, wanted)]
        fitting = [offer for offer in fitting if plain(offer.kind) == plain(wanted)] or fitting
        best = [offer for offer in fitting if offer.source.part in (None, parameter)] or fitting
        if len(best) > 1:
            raise Invalid(
                f"{len(best)} values of type {named(wanted)} come alike from "
                + " and ".join(dict.fromkeys(offer.whence for offer in best)),
                field=parameter,
                remedy="give them types of their own (NewType), or name the parameter as the input it is",
            )
        if best:
            return best[0].source
    return None


def fits(kind: Any, wanted: Any) -> bool:
    """Whether every value of one type may stand where the other is asked for."""
    kind, wanted = plain(kind), plain(wanted)
    if wanted is Any or wanted is object or kind == wanted:
        return True
    if is_union(kind):
        return all(fits(each, wanted) for each in get_args(kind))
    if is_union(wanted):
        return any(fits(kind, each) for each in get_args(wanted))
    if isinstance(kind, NewType):
        return fits(kind.__supertype__, wanted)
    return _is_a(kind, wanted)


def _is_a(kind: Any, wanted: Any) -> bool:
    its_class, other = get_origin(kind) or kind, get_origin(wanted) or wanted
    if its_class is bool and other is int:  # true for Python, and never what was meant: an answer is not a count
        return False
    try:
        related = issubclass(its_class, other)
    except TypeError:  # one of the two is no class, or one that cannot be asked
        return False
    return related and get_args(wanted) in ((), get_args(kind))


def plain(kind: Any) -> Any:
    """A type without the notes to it and the names given to it."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif type(kind).__name__ == "TypeAliasType":
            kind = kind.__value__
        else:
            return kind


def is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def named(kind: Any) -> str:
    """A type as one writes it."""
    kind = plain(kind)
    if kind is type(None):
        return "None"
    if is_union(kind):
        return " | ".join(named(each) for each in get_args(kind))
    if get_args(kind) and get_origin(kind) is not None:
        members = ("..." if each is Ellipsis else named(each) for each in get_args(kind))
        return f"{named(get_origin(kind))}[{', '.join(members)}]"
    return getattr(kind, "__name__", str(kind))


def listed(groups: Sequence[Sequence[Offer]]) -> str:
    """What is there, in words."""
    offers = [offer for group in groups for offer in group]
    return ", ".join(f"{named(offer.kind)} ({offer.whence})" for offer in offers) or "nothing"
