"""Checks the figures of the README against the saved benchmark results.

The section "Comparison" has a table whose columns are Tenuto's figure and its ratios `against …`, and sentences. A rate
reads "NAME: FIGURE, which is RATIO × THIS and RATIO × THAT." A duration reads "NAME: FIGURE, where THIS takes RATIO and
THAT RATIO times as long." A digit in any other form is reported, because it cannot be checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

HEADING = "## Comparison"

CASES = {
    "jobs a second, one worker process": ("drain", "one worker"),
    "jobs a second, two worker processes": ("drain", "two workers"),
    "enqueued a second, in bulk": ("enqueue", "bulk"),
    "enqueued a second, one by one": ("enqueue", "one by one"),
    "pick-up of a single job, from commit to start, p50": ("latency", "pick-up p50"),
    "pick-up of a single job, from commit to start, p99": ("latency", "pick-up p99"),
    "runs of four step groups a second": ("executions", "executions, one worker"),
    "a single run of four step groups, p50": ("executions", "single execution p50"),
}
"""Benchmark and case of each name in the README."""

PEERS = {"PgQueuer": "pgqueuer", "the bare database": "raw", "Celery on Redis": "celery", "DBOS": "dbos"}

_NUMBER = re.compile(r"(?P<number>\d[\d,]*(?:\.\d+)?)(?: (?P<unit>×|ms|s|%))?")
_SENTENCES = (
    re.compile(r"(?P<name>[^:]+): (?P<own>[\d.,]*\d)(?:, which is (?P<ratios>.+))?\."),
    re.compile(r"(?P<name>[^:]+): (?P<own>[\d.,]*\d ms)(?:, where (?P<ratios>.+) times as long)?\."),
)
"""Sentence about a rate, and about a duration."""
_RATIOS = (
    re.compile(r"(?P<figure>[\d.,]*\d) × (?P<peer>.+?)(?:, | and |$)"),
    re.compile(r"(?P<peer>.+?) (?:takes )?(?P<figure>[\d.,]*\d)(?:, | and |$)"),
)


@dataclass(frozen=True)
class QuotedFigure:
    """One figure of the README: Tenuto's own figure, or its ratio to a peer."""

    line: int
    name: str
    figure: str
    peer: str | None = None

    def find_error(self, results: Mapping[str, Mapping[str, Any]]) -> str | None:
        """Return how the figure deviates from the saved result, or None."""
        if self.name.lower() not in CASES:
            return "no benchmark case has this name"
        benchmark, name = CASES[self.name.lower()]
        if benchmark not in results:
            return f"benchmarks/results/{benchmark}.json does not exist"
        if results[benchmark]["environment"]["quick"]:
            return f"benchmarks/results/{benchmark}.json is a quick run, which must not be quoted"
        case = next((each for each in results[benchmark]["results"] if each["case"] == name), None)
        if case is None:
            return f"benchmarks/results/{benchmark}.json has no case {name!r}"
        if self.peer is None:
            return self._compare(case["tenuto"], case["unit"])
        if self.peer not in PEERS or PEERS[self.peer] not in case["ratio"]:
            return f"benchmarks/results/{benchmark}.json has no ratio of {name!r} to {self.peer}"
        return self._compare(case["ratio"][PEERS[self.peer]], "×")

    def _compare(self, measured: float, unit: str) -> str | None:
        found = _NUMBER.fullmatch(self.figure)
        if found is None:
            return f"{self.figure!r} is not a figure"
        shown_unit = found["unit"] or ""
        # The name of a rate may contain its unit; durations and ratios must have one.
        if shown_unit != unit and (shown_unit or not unit.endswith("/s")):
            return f"{self.figure!r} has no unit; it should be {unit}"
        decimals = len(found["number"].partition(".")[2])
        # Rounding to this number of decimals may go either way.
        if abs(float(found["number"].replace(",", "")) - measured) <= 0.5 * 10**-decimals + 1e-9:
            return None
        return f"{self.figure!r} is shown, {measured:,.{decimals}f} was measured"


def find_errors(text: str, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the errors in the figures of a README, by line."""
    errors = []
    for figure in quoted_figures(text):
        if isinstance(figure, str):
            errors.append(figure)
        elif error := figure.find_error(results):
            against = f", against {figure.peer}" if figure.peer else ""
            errors.append(f"README.md:{figure.line}: {figure.name}{against}: {error}")
    return errors


def quoted_figures(text: str) -> Iterator[QuotedFigure | str]:
    """Yield every figure of the section, or an error for a figure that cannot be parsed."""
    for line, paragraph in _paragraphs(text):
        joined = " ".join(paragraph)
        if paragraph[0].startswith("|"):
            yield from _parse_table(line, paragraph)
        elif re.search(r"\d", re.sub(r"`[^`]*`", "", joined)):
            yield from _parse_sentence(line, joined)


def _paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the paragraphs of the section, each with the number of its first line."""
    lines = text.splitlines()
    begin = lines.index(HEADING) + 1
    end = next((index for index in range(begin, len(lines)) if lines[index].startswith("## ")), len(lines))
    paragraph: list[str] = []
    for index in range(begin, end + 1):
        if index < end and lines[index].strip():
            paragraph.append(lines[index].strip())
        elif paragraph:
            yield index + 1 - len(paragraph), paragraph
            paragraph = []


def _parse_table(line: int, rows: list[str]) -> Iterator[QuotedFigure | str]:
    heads = _cells(rows[0])
    for number, row in enumerate(rows[2:], line + 2):
        name, own, *ratios = _cells(row)
        yield QuotedFigure(number, name, own)
        for head, ratio in zip(heads[2:], ratios, strict=True):
            if ratio:
                yield QuotedFigure(number, name, ratio, head.removeprefix("against "))


def _parse_sentence(line: int, text: str) -> Iterator[QuotedFigure | str]:
    for sentence, ratio in zip(_SENTENCES, _RATIOS, strict=True):
        found = sentence.fullmatch(text)
        ratios = list(ratio.finditer(found["ratios"] or "")) if found else []
        if found is not None and "".join(each[0] for each in ratios) == (found["ratios"] or ""):
            yield QuotedFigure(line, found["name"], found["own"])
            for each in ratios:
                yield QuotedFigure(line, found["name"], f"{each['figure']} ×", each["peer"])
            return
    yield f"README.md:{line}: {text!r} has figures in a form that cannot be checked"


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]
