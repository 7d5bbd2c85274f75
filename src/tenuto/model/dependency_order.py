"""Dependency graphs of names: topological order and cycle detection.

Dependencies of a name are requested once. The walks are iterative, so that a chain of thousands of names needs no
deep stack, and each name is visited once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

GetDependencies = Callable[[str], Iterable[str]]


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
