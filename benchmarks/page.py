"""The page docs/performance.md and its plots, made of benchmarks/results and the words in performance.in.

Nothing on it is typed by hand but the words: what a run gave stands there, with when and on what it was measured, and
whether the goal that was set is met.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.goals import GOALS
from benchmarks.losses import NAP, PATIENCE
from benchmarks.peers import ROOT

RESULTS = ROOT / "benchmarks" / "results"
TEMPLATE = ROOT / "benchmarks" / "performance.in"
PAGE = ROOT / "docs" / "performance.md"
IMAGES = ROOT / "docs" / "images"

Results = Mapping[str, Mapping[str, Any]]

NOISY = 0.2


def results() -> dict[str, dict[str, Any]]:
    """What the last runs gave, by benchmark."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def save(name: str, result: Mapping[str, object]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return path


def write() -> list[Path]:
    """Make the page and its plots anew."""
    IMAGES.mkdir(exist_ok=True)
    for path, text in pages(results()).items():
        path.write_text(text)
    return list(pages(results()))


def pages(found: Results) -> dict[Path, str]:
    """Every file that is made of the results, and what is in it."""
    pictures = _pictures(found)
    text = TEMPLATE.read_text()
    parts = {"goals": _goals(found), "behind": _behind(found), "pictures": _shown(pictures)}
    parts |= {name: _section(found, name) for name in _NAMES}
    for name, part in parts.items():
        text = text.replace(f"{{{{ {name} }}}}", part)
    return {PAGE: text, **{IMAGES / name: picture for name, picture in pictures.items()}}


_NAMES = [
    "compare",
    "drain",
    "enqueue",
    "latency",
    "growth",
    "executions",
    "schedules",
    "bulk",
    "manager",
    "api",
    "doctor",
]


def _section(found: Results, name: str) -> str:
    if name not in found:
        return "*Not measured yet.*"
    made = _compared(found[name]) if name == "compare" else _table(found[name])
    return f"{_about(found[name])}\n\n{made}"


def _about(result: Mapping[str, Any]) -> str:
    """One line on what was measured when, where, and how quiet it was."""
    environment = result["environment"]
    runs = environment["runs"]
    words = [
        str(environment.get("date", "")),
        f"{environment['cores']} cores",
        f"PostgreSQL {environment['postgresql']}",
        f"median of {runs} runs" if runs > 1 else "one run",
    ]
    if environment["quick"]:
        words.append("**small counts, to try**")
    others = environment["cores used by others"] + environment["cores stolen by the host"]
    words.append(f"**others used {others:.2g} cores meanwhile**" if others > NOISY else "a quiet machine")
    return f"({', '.join(word for word in words if word)})"


def _table(result: Mapping[str, Any]) -> str:
    """One line a case; only columns somebody has a figure in."""
    cases = result["results"]
    peers = list(dict.fromkeys(name for case in cases for name in case["peers"]))
    raw = ["raw"] if any(case["raw"] is not None for case in cases) else []
    ratios = list(dict.fromkeys(name for case in cases for name in case["ratio"]))
    heads = [result["benchmark"], "unit", "Tenuto", *peers, *raw, *(f"÷ {name}" for name in ratios)]
    rows = []
    for case in cases:
        figures = [case["tenuto"], *(case["peers"].get(name) for name in peers), *([case["raw"]] if raw else [])]
        rows.append(
            [case["case"], case["unit"], *map(_cell, figures), *(_cell(case["ratio"].get(name)) for name in ratios)]
        )
    return _markdown(heads, rows)


def _compared(result: Mapping[str, Any]) -> str:
    about, lost = result["contenders"], result["losses"]
    cases = {case["case"]: {"tenuto": case["tenuto"], **case["peers"]} for case in result["results"]}
    single, bulk, drain, middle, tail, steps = cases.values()
    speed = [
        [
            f"{one['title']} {_version(one)}",
            one["store"],
            *(_cell(case.get(name)) for case in (single, bulk, drain)),
            " / ".join(_cell(case.get(name)) for case in (middle, tail)),
            _cell(steps.get(name)),
        ]
        for name, one in about.items()
        if drain.get(name) is not None
    ]
    kept = [
        [
            about[name]["title"],
            *(f"{found[key]:,}" if not found[key] or key == "tasks" else f"**{found[key]:,}**" for key in _LOST),
            "never" if found["seconds"] is None else f"{found['seconds']:.0f} s",
        ]
        for name, found in lost.items()
    ]
    how = [[one["title"], one["store"], one["settings"], one["durability"]] for one in about.values()]
    count, kills = (next(iter(lost.values()))[key] for key in ("tasks", "kills"))
    return "\n\n".join(
        [
            _markdown(
                [
                    "",
                    "store",
                    "enqueue one by one, jobs/s",
                    "in bulk, jobs/s",
                    "drain, jobs/s",
                    "enqueue to start p50 / p99, ms",
                    "1→1→2→2 steps, executions/s",
                ],
                speed,
            ),
            f"What is left of {count:,} tasks of {NAP} s when the worker is killed -9 with all its children and\n"
            f"started again, {kills} times. *Lost*: never done and in no store any more. *Stuck*: not done after\n"
            f"{PATIENCE:.0f} s, but still in the store. *Twice*: came to its end more than once, which nobody can\n"
            "rule out, because an end and its record are two things. The last column is the time from the last start\n"
            "until all was done.",
            _markdown(["", "tasks", "lost", "stuck", "done twice", "all done after"], kept),
            "How each was run, and when an enqueued job is on disk:",
            _markdown(["", "store", "settings", "an enqueued job is"], how),
        ]
    )


_LOST = ("tasks", "lost", "stuck", "twice")


def _goals(found: Results) -> str:
    rows = []
    for goal in GOALS:
        if goal.benchmark in found:
            figure = goal.reached(found[goal.benchmark])
            verdict = "not measured" if figure is None else "met" if goal.met(figure) else "**not met**"
            rows.append([f"`{goal.benchmark}`", goal.words, _cell(figure), verdict])
        else:
            rows.append([f"`{goal.benchmark}`", goal.words, "", "not measured"])
    return _markdown(["benchmark", "goal", "figure", ""], rows)


def _behind(found: Results) -> str:
    """Every case in which a peer's figure is better, and whose."""
    titles = {name: one["title"] for name, one in found.get("compare", {"contenders": {}})["contenders"].items()}
    rows = []
    for name in (name for name in _NAMES if name in found):
        for case in found[name]["results"]:
            ahead = {peer: case["peers"][peer] for peer, ratio in case["ratio"].items() if _is_ahead(case, peer, ratio)}
            if ahead:
                figures = "; ".join(f"{titles.get(peer, peer)} {_cell(figure)}" for peer, figure in ahead.items())
                rows.append([f"`{name}`", _called(name, case["case"]), case["unit"], _cell(case["tenuto"]), figures])
    if not rows:
        return "*Not measured yet.*" if not found else "In no case that was measured is a peer's figure better."
    return _markdown(["benchmark", "case", "unit", "Tenuto", "better"], rows)


def _is_ahead(case: Mapping[str, Any], peer: str, ratio: float | None) -> bool:
    return peer in case["peers"] and ratio is not None and ratio < 1


def _called(benchmark: str, case: str) -> str:
    """The name a case goes by here: what `compare` measures begins before the call, not with the commit."""
    return case.replace("pick-up", "enqueue to start") if benchmark == "compare" else case


def _pictures(found: Results) -> dict[str, str]:
    """The plots for which there are results."""
    made: dict[str, str] = {}
    if "compare" in found:
        result = found["compare"]
        titles = {name: one["title"] for name, one in result["contenders"].items()}
        cases = {case["case"]: {"tenuto": case["tenuto"], **case["peers"]} for case in result["results"]}

        def panel(case: str) -> list[plots.Bar]:
            found = sorted(((v, n) for n, v in cases[case].items() if v is not None), reverse=True)
            return [plots.Bar(titles[name], value, name == "tenuto") for value, name in found]

        shown = [
            ("Drain of no-op jobs, jobs/s", panel("drain")),
            ("Enqueue one by one, jobs/s", panel("enqueue one by one")),
        ]
        made["throughput.svg"] = plots.bars("Throughput, more is better", shown, _caption(result))
        middle, tail = cases["pick-up p50"], cases["pick-up p99"]
        ordered = sorted((value, name) for name, value in middle.items() if value is not None)
        spans = [plots.Span(titles[name], value, tail[name], name == "tenuto") for value, name in ordered]
        made["latency.svg"] = plots.spans(
            "From enqueue to start on an idle system, less is better",
            "From before the enqueue call to the start: p50 / p99, ms",
            spans,
            _caption(result),
        )
    if "growth" in found:
        result = found["growth"]
        claims = [
            plots.Bar(c["case"].replace("1k waiting, old snapshot", "old snapshot"), c["tenuto"], True)
            for c in result["results"]
            if c["unit"] == "ms"
        ]
        made["growth.svg"] = plots.bars(
            "What a claim costs as the tables grow, less is better",
            [("A claim of 100, ms", claims)],
            _caption(result),
        )
    return made


def _caption(result: Mapping[str, Any]) -> str:
    environment = result["environment"]
    others = environment["cores used by others"] + environment["cores stolen by the host"]
    noise = f", others used {others:.2g} cores" if others > NOISY else ""
    tried = ", small counts" if environment["quick"] else ""
    machine = f"{environment['cores']} cores, {environment['processor']}"
    return f"{environment.get('date', '')}, {machine}, PostgreSQL {environment['postgresql']}{tried}{noise}"


_ALT = {
    "throughput.svg": "Throughput of Tenuto and its peers: drain and enqueue",
    "latency.svg": "From enqueue to start, Tenuto and its peers: p50 and p99",
    "growth.svg": "The cost of a claim with tables of different sizes",
}


def _shown(pictures: Mapping[str, str]) -> str:
    return "\n\n".join(f"![{_ALT[name]}](images/{name})" for name in pictures)


def _version(one: Mapping[str, Any]) -> str:
    versions = one["versions"]
    return str(next(version for package, version in versions.items() if package != "python"))


def _cell(figure: float | None) -> str:
    return "" if figure is None else plots.figure(figure)


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
