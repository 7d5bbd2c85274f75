"""Output of a benchmark: a JSON object, and the same as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.measure import Case, rounded


def report(benchmark: str, cases: Sequence[Case], environment: Mapping[str, object]) -> dict[str, object]:
    """Return one object, with the same shape for all benchmarks; the single runs are in the environment."""
    measured = {case.name: {name: list(map(rounded, runs)) for name, runs in case.figures.items()} for case in cases}
    return {
        "benchmark": benchmark,
        "results": [case.result() for case in cases],
        "environment": {**environment, "measured": measured},
    }


def table(benchmark: str, cases: Sequence[Case], environment: Mapping[str, object]) -> str:
    """Return a table with one line per case and ratios in which more is better."""
    names = list(dict.fromkeys(name for case in cases for name in case.figures))
    others = list(dict.fromkeys(name for case in cases for name in case.ratio()))
    rows = [["case", "unit", *names, *(f"/ {name}" for name in others)]]
    for case in cases:
        ratio = case.ratio()
        figures = [_cell(case.median(name)) for name in names]
        rows.append([case.name, case.unit, *figures, *(_cell(ratio.get(name)) for name in others)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    about = "PostgreSQL {postgresql}, {cores} cores (others used {cores used by others}), runs: {runs}"
    note = "Medians. Columns with / are ratios; more than 1 is in Tenuto's favour." if others else "Medians."
    return "\n".join([f"{benchmark}: {about.format_map(environment)}", note, "", *lines])


def _cell(figure: float | None) -> str:
    if figure is None:
        return ""
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"
