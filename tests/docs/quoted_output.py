"""The figures the README quotes, each held against the saved result it is taken from.

They stand under the heading "Figures": a table whose columns are Tenuto's own figure and its ratios `against …`, and
sentences. Of a rate: "WORDS: FIGURE, which is RATIO × THIS and RATIO × THAT." Of a time: "WORDS: FIGURE, where THIS
takes RATIO and THAT RATIO times as long." Whatever else has a digit there is a figure that nobody can check, and
named as such.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
"""How the README calls a case: of which benchmark it is, and what it is called there."""

OTHERS = {"PgQueuer": "pgqueuer", "the bare database": "raw", "Celery on Redis": "celery", "DBOS": "dbos"}

_NUMBER = re.compile(r"(?P<number>\d[\d,]*(?:\.\d+)?)(?: (?P<unit>×|ms|s|%))?")
_SENTENCES = (
    re.compile(r"(?P<words>[^:]+): (?P<own>[\d.,]*\d)(?:, which is (?P<ratios>.+))?\."),
    re.compile(r"(?P<words>[^:]+): (?P<own>[\d.,]*\d ms)(?:, where (?P<ratios>.+) times as long)?\."),
)
"""Of a rate, and of a time: the one is to be high, the other low, and the ratio says so."""
_RATIOS = (
    re.compile(r"(?P<figure>[\d.,]*\d) × (?P<other>.+?)(?:, | and |$)"),
    re.compile(r"(?P<other>.+?) (?:takes )?(?P<figure>[\d.,]*\d)(?:, | and |$)"),
)


@dataclass(frozen=True)
class Quoted:
    """One figure as it is shown: of which case, and against whom if it is a ratio."""

    line: int
    words: str
    figure: str
    other: str | None = None

    def trouble(self, results: Mapping[str, Mapping[str, Any]]) -> str | None:
        """What is wrong with it, if anything."""
        if self.words.lower() not in CASES:
            return "no result is known for this line"
        benchmark, name = CASES[self.words.lower()]
        if benchmark not in results:
            return f"benchmarks/results/{benchmark}.json is not there"
        if results[benchmark]["environment"]["quick"]:
            return f"benchmarks/results/{benchmark}.json has small counts, to try and not to quote"
        case = next((each for each in results[benchmark]["results"] if each["case"] == name), None)
        if case is None:
            return f"benchmarks/results/{benchmark}.json has no case {name!r}"
        if self.other is None:
            return self._compared(case["tenuto"], case["unit"])
        if self.other not in OTHERS or OTHERS[self.other] not in case["ratio"]:
            return f"benchmarks/results/{benchmark}.json has no ratio of {name!r} to {self.other}"
        return self._compared(case["ratio"][OTHERS[self.other]], "×")

    def _compared(self, measured: float, unit: str) -> str | None:
        found = _NUMBER.fullmatch(self.figure)
        if found is None:
            return f"{self.figure!r} is no figure"
        shown_unit = found["unit"] or ""
        # A rate may leave its unit to the words of its line; times and ratios have to say what they are.
        if shown_unit != unit and (shown_unit or not unit.endswith("/s")):
            return f"{self.figure!r} is given without its unit, {unit}"
        places = len(found["number"].partition(".")[2])
        # As wide as a rounding to so many places, either way where it is in the middle.
        if abs(float(found["number"].replace(",", "")) - measured) <= 0.5 * 10**-places + 1e-9:
            return None
        return f"{self.figure!r} is shown, {measured:,.{places}f} was measured"


def troubles(text: str, results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is wrong with the figures of a README, line by line; nothing if each has its result."""
    said = []
    for each in quoted(text):
        if isinstance(each, str):
            said.append(each)
        elif trouble := each.trouble(results):
            against = f", against {each.other}" if each.other else ""
            said.append(f"README.md:{each.line}: {each.words}{against}: {trouble}")
    return said


def quoted(text: str) -> Iterator[Quoted | str]:
    """Every figure of the section; in place of one that cannot be made out, words about it."""
    for line, paragraph in _paragraphs(text):
        if paragraph[0].startswith("|"):
            yield from _of_table(line, paragraph)
        elif re.search(r"\d", " ".join(paragraph)):
            yield from _of_sentence(line, " ".join(paragraph))


def _paragraphs(text: str) -> Iterator[tuple[int, list[str]]]:
    """The paragraphs under the heading, each with the number of its first line."""
    lines = text.splitlines()
    begin = lines.index("## Figures") + 1
    end = next((at for at in range(begin, len(lines)) if lines[at].startswith("## ")), len(lines))
    gathered: list[str] = []
    for at in range(begin, end + 1):
        if at < end and lines[at].strip():
            gathered.append(lines[at].strip())
        elif gathered:
            yield at + 1 - len(gathered), gathered
            gathered = []


def _of_table(line: int, rows: list[str]) -> Iterator[Quoted | str]:
    heads = _cells(rows[0])
    for number, row in enumerate(rows[2:], line + 2):
        words, own, *ratios = _cells(row)
        yield Quoted(number, words, own)
        for head, ratio in zip(heads[2:], ratios, strict=True):
            if ratio:
                yield Quoted(number, words, ratio, head.removeprefix("against "))


def _of_sentence(line: int, text: str) -> Iterator[Quoted | str]:
    for sentence, ratio in zip(_SENTENCES, _RATIOS, strict=True):
        found = sentence.fullmatch(text)
        ratios = list(ratio.finditer(found["ratios"] or "")) if found else []
        if found is not None and "".join(each[0] for each in ratios) == (found["ratios"] or ""):
            yield Quoted(line, found["words"], found["own"])
            for each in ratios:
                yield Quoted(line, found["words"], f"{each['figure']} ×", each["other"])
            return
    yield f"README.md:{line}: {text!r} has figures in a form that cannot be checked"


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]
