"""Needs: things that need others by name, in the order of need, and the circles in which none could come first.

What a thing needs is asked for once. The walks keep their own path instead of calling themselves, so a line of
thousands takes no deeper a stack than one of two, and what several need is walked once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

Needs = Callable[[str], Iterable[str]]


def way_back(start: str, needs: Needs) -> list[str] | None:
    """The way from a thing, by what it needs, back to itself; None if there is none."""
    path, open_needs, seen = [start], [iter(needs(start))], {start}
    while path:
        for needed in open_needs[-1]:
            if needed == start:
                return [*path, start]
            if needed not in seen:
                seen.add(needed)
                path.append(needed)
                open_needs.append(iter(needs(needed)))
                break
        else:
            path.pop()
            open_needs.pop()
    return None


def in_order(names: Iterable[str], needs: Needs, refused: Callable[[str], Exception]) -> list[str]:
    """All of the names, each after those of them it needs; of a circle, what ``refused`` makes of the way round it."""
    wanted = dict.fromkeys(names)
    ordered: dict[str, None] = {}
    for name in wanted:
        path: dict[str, Iterator[str]] = {} if name in ordered else {name: iter(needs(name))}
        while path:
            current, open_needs = next(reversed(path.items()))
            for needed in open_needs:
                if needed in path:
                    way = list(path)
                    raise refused(in_words([*way[way.index(needed) :], needed]))
                if needed in wanted and needed not in ordered:
                    path[needed] = iter(needs(needed))
                    break
            else:
                del path[current]
                ordered[current] = None
    return list(ordered)


def in_words(way: Iterable[str]) -> str:
    return " → ".join(way)
