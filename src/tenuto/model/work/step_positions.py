"""Positions of the stored calls of chains and workflows: their order, and how they are shown as a tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_POSITION = re.compile(r"(?:sleep in )?(\d+(?:\.\d+)*) ?(.*)", re.DOTALL)


def position_of_step(name: str) -> tuple[int, ...]:
    """Return the position in the name of a stored call; decisions, which have none, come first."""
    found = _POSITION.fullmatch(name)
    return () if found is None else tuple(int(part) for part in found[1].split("."))


def tree_of_steps(names: Iterable[str]) -> list[tuple[int, str]]:
    """Return the depth and the shown name of stored calls: branches are indented, repeated calls are numbered.

    ``4.2.1 price`` is at depth 1 and shown as ``4.2.1 price``; the second ``3 pack`` of a loop as ``3 pack (2)``.
    """
    known = [(name, position_of_step(name)) for name in names]
    totals, counts = Counter(map(_call_of, known)), Counter[tuple[tuple[int, ...], str]]()
    shown = []
    for name, position in known:
        call = _call_of((name, position))
        counts[call] += 1
        is_repeated = bool(position) and totals[call] > 1
        shown.append((max(len(position) - 1, 0) // 2, f"{name} ({counts[call]})" if is_repeated else name))
    return shown


def _call_of(step: tuple[str, tuple[int, ...]]) -> tuple[tuple[int, ...], str]:
    """Return the branch and the label of a stored call."""
    name, position = step
    found = _POSITION.fullmatch(name)
    return position[:-1], name if found is None or name.startswith("sleep") else found[2]
