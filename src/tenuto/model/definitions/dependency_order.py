"""Dependencies between definitions: topological order and cycle detection.

The walks are iterative, so that a chain of thousands of definitions needs no deep stack, and each is visited once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from tenuto.errors import Invalid

GetDependencies = Callable[[str], Iterable[str]]


class HasReferences(Protocol):
    """A definition that may refer to others of its kind."""

    @property
    def key(self) -> str: ...
    @property
    def references(self) -> Collection[str]:
        """Keys of the definitions that this one needs."""

    @staticmethod
    def cycle_error(cycle: str) -> Invalid: ...


R = TypeVar("R", bound=HasReferences)


def check_no_cycle(new: HasReferences, references: Mapping[str, Collection[str]]) -> None:
    """Raise `Invalid` if the new definition would depend on itself.

    ``references`` holds the keys that each stored definition refers to.
    """
    cycle = find_cycle(new.key, lambda key: sorted(new.references if key == new.key else references.get(key, ())))
    if cycle is not None:
        raise new.cycle_error(format_cycle(cycle))


def sort_definitions(definitions: Iterable[R]) -> list[R]:
    """Return definitions, each after those that it needs."""
    by_key = {each.key: each for each in definitions}
    if not by_key:
        return []
    cycle_error = next(iter(by_key.values())).cycle_error
    return [by_key[key] for key in sort_by_dependency(by_key, lambda key: sorted(by_key[key].references), cycle_error)]


def find_cycle(start: str, dependencies: GetDependencies) -> list[str] | None:
    """Return the path from a name over its dependencies back to itself; None if there is none."""
    path, remaining, seen = [start], [iter(dependencies(start))], {start}
    while path:
        for needed in remaining[-1]:
            if needed == start:
                return [*path, start]
            if needed not in seen:
                seen.add(needed)
                path.append(needed)
                remaining.append(iter(dependencies(needed)))
                break
        else:
            path.pop()
            remaining.pop()
    return None


def sort_by_dependency(
    names: Iterable[str], dependencies: GetDependencies, cycle_error: Callable[[str], Exception]
) -> list[str]:
    """Return the names, each after those of them that it depends on; raise ``cycle_error`` of the path of a cycle."""
    wanted = dict.fromkeys(names)
    ordered: dict[str, None] = {}
    for name in wanted:
        path: dict[str, Iterator[str]] = {} if name in ordered else {name: iter(dependencies(name))}
        while path:
            current, remaining = next(reversed(path.items()))
            for needed in remaining:
                if needed in path:
                    cycle = list(path)
                    raise cycle_error(format_cycle([*cycle[cycle.index(needed) :], needed]))
                if needed in wanted and needed not in ordered:
                    path[needed] = iter(dependencies(needed))
                    break
            else:
                del path[current]
                ordered[current] = None
    return list(ordered)


def format_cycle(path: Iterable[str]) -> str:
    return " → ".join(path)
