"""From single figures to results: alternating runs, medians, and ratios in which more is better."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.contender import Contender


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Case:
    """One case of a benchmark, and the figures of each contender, run by run."""

    name: str
    unit: str
    baseline: Case | None = None
    """The case of Tenuto that this one is compared with, if it is compared with itself."""
    figures: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    """What limits the figure, if that was measured."""

    def add(self, contender: str, figure: float) -> None:
        self.figures.setdefault(contender, []).append(figure)
        progress(f"  {self.name}, {contender}: {rounded(figure):,} {self.unit}")

    def median(self, contender: str) -> float | None:
        found = self.figures.get(contender)
        return rounded(statistics.median(found)) if found else None

    def ratio(self) -> dict[str, float]:
        """Return how much better Tenuto is than each of the others, or than its own baseline."""
        own = self.median("tenuto")
        others = {name: self.median(name) for name in self.figures if name != "tenuto"}
        if self.baseline is not None:
            others[self.baseline.name] = self.baseline.median("tenuto")
        return {name: rounded(self.advantage(own, other)) for name, other in others.items() if own and other}

    def result(self) -> dict[str, object]:
        """Return the case in the shape that all benchmarks share."""
        found: dict[str, object] = {
            "case": self.name,
            "unit": self.unit,
            "tenuto": self.median("tenuto"),
            "peers": {name: self.median(name) for name in self.figures if name not in ("tenuto", "raw")},
            "raw": self.median("raw"),
            "ratio": self.ratio(),
        }
        return found | {"note": self.note} if self.note else found

    def advantage(self, own: float, other: float) -> float:
        """Return how much better Tenuto is: rates divided by the other's rate, the other's times and costs divided by
        ours.
        """
        return own / other if self.unit.endswith("/s") else other / own


def rounded(figure: float) -> float:
    """Round to four significant digits; the measurement is not more precise."""
    return float(f"{figure:.4g}")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


async def alternate(
    contenders: Sequence[Contender], runs: int, verb: Callable[[Contender], Awaitable[None]], what: str
) -> None:
    """Run A, B, C, A, B, C, …, so that a drift of the machine affects all of them."""
    for run in range(runs):
        progress(f"{what}, run {run + 1} of {runs}")
        for contender in contenders:
            await verb(contender)
