"""docs/performance.md and its plots, generated from benchmarks/results and the prose of performance.in.

Every figure comes from a saved run, with its date, its machine, and whether its goal is met.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import plots, sizing
from benchmarks.goals import GOALS
from benchmarks.losses import COMPLETION_TIMEOUT_SECONDS, TASK_SECONDS
from benchmarks.peers import ROOT

RESULTS = ROOT / "benchmarks" / "results"
CASE_NAMES = ROOT / "benchmarks" / "case_names.json"
TEMPLATE = ROOT / "benchmarks" / "performance.in"
PAGE = ROOT / "docs" / "performance.md"
SIZING = ROOT / "docs" / "how-to" / "sizing.md"
IMAGES = ROOT / "docs" / "images"

Results = Mapping[str, Mapping[str, Any]]

NOISY_CORES = 0.2


def load_results() -> dict[str, dict[str, Any]]:
    """Return the saved results by benchmark."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def save(name: str, result: Mapping[str, object]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return path


def load_case_names() -> dict[str, list[str]]:
    """Return the names of the cases that the benchmarks produce, from trial runs: of cases without a saved figure."""
    return json.loads(CASE_NAMES.read_text()) if CASE_NAMES.is_file() else {}


def save_case_names(name: str, result: Mapping[str, Any]) -> Path:
    names = load_case_names() | {name: [case["case"] for case in result["results"]]}
    CASE_NAMES.write_text(json.dumps(dict(sorted(names.items())), indent=1, ensure_ascii=False) + "\n")
    return CASE_NAMES


def write_page() -> list[Path]:
    """Write the page and its plots."""
    IMAGES.mkdir(exist_ok=True)
    for path, text in render_files(load_results()).items():
        path.write_text(text)
    return list(render_files(load_results()))


def render_files(found: Results) -> dict[Path, str]:
    """Return every generated file with its contents."""
    pictures = _plots(found)
    text = TEMPLATE.read_text()
    parts = {"goals": _goal_table(found), "behind": _better_peers(found), "pictures": _image_links(pictures)}
    parts |= {name: _section(found, name) for name in _NAMES}
    for name, part in parts.items():
        text = text.replace(f"{{{{ {name} }}}}", part)
    return {PAGE: text, SIZING: _fill_sizing_page(), **{IMAGES / name: picture for name, picture in pictures.items()}}


_TABLE_BEGIN, _TABLE_END = "<!-- table of benchmarks/sizing.py -->\n", "<!-- end of the table -->"


def _fill_sizing_page() -> str:
    """Return the page about sizing with its table computed again."""
    before, _, rest = SIZING.read_text().partition(_TABLE_BEGIN)
    _, _, after = rest.partition(_TABLE_END)
    return f"{before}{_TABLE_BEGIN}\n{sizing.render_table()}\n\n{sizing.render_costs()}\n\n{_TABLE_END}{after}"


_NAMES = [
    "compare",
    "drain",
    "enqueue",
    "latency",
    "growth",
    "history",
    "executions",
    "workflows",
    "schedules",
    "bulk",
    "manager",
    "api",
    "dashboard",
    "doctor",
    "executors",
    "scale",
    "identity",
    "ldap",
]

_LIMITS = frozenset({"floor", "csv.reader"})
"""Columns that are parts of the work and not peers."""


def _section(found: Results, name: str) -> str:
    if name not in found:
        return "*Not measured yet.*"
    made = {"compare": _comparison, "scale": _scale_tables}.get(name, _case_table)(found[name])
    return f"{_measurement_line(found[name])}\n\n{made}"


def _measurement_line(result: Mapping[str, Any]) -> str:
    """Return one line about date, machine, runs and noise."""
    environment = result["environment"]
    runs = environment["runs"]
    parts = [
        str(environment.get("date", "")),
        f"commit `{environment['commit']}`" if "commit" in environment else "",
        f"{environment['cores']} cores",
        f"PostgreSQL {environment['postgresql']}",
        f"median of {runs} runs" if runs > 1 else "one run",
    ]
    if environment["quick"]:
        parts.append("**small counts, trial run**")
    others = environment["cores used by others"] + environment["cores stolen by the host"]
    parts.append(f"**other processes used {others:.2g} cores**" if others > NOISY_CORES else "a quiet machine")
    return f"({', '.join(part for part in parts if part)})"


def _case_table(result: Mapping[str, Any]) -> str:
    """Return one line per case; columns without any figure are left out."""
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


def _scale_tables(result: Mapping[str, Any]) -> str:
    """Return the throughputs with one column per number of processes and their bottlenecks, then the other cases."""
    rows: dict[str, dict[int, Mapping[str, Any]]] = {}
    others = []
    for case in result["results"]:
        if found := _PROCESS_CASE.fullmatch(case["case"]):
            rows.setdefault(found["work"], {})[int(found["count"])] = case
        else:
            others.append(case)
    counts = sorted({count for row in rows.values() for count in row})
    heads = [
        "jobs/s with … worker processes",
        *map(str, counts),
        *(f"bottleneck with {count}" for count in counts[::3]),
    ]
    table = [
        [
            work,
            *(_cell(row[count]["tenuto"]) for count in counts),
            *(row[count].get("note", "") for count in counts[::3]),
        ]
        for work, row in rows.items()
    ]
    noted = [[case["case"], case["note"]] for case in others if case.get("note")]
    return "\n\n".join(
        [_markdown(heads, table), _case_table({**result, "results": others}), _markdown(["case", "bottleneck"], noted)]
    )


_PROCESS_CASE = re.compile(r"(?P<work>.*), (?P<count>\d+) process(es)?")


def _comparison(result: Mapping[str, Any]) -> str:
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
            *(
                f"{found[key]:,}" if not found[key] or key == "tasks" else f"**{found[key]:,}**"
                for key in _LOSS_COLUMNS
            ),
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
            (
                f"Result for {count:,} tasks of {TASK_SECONDS} s when the worker and its children "
                "are killed with SIGKILL and\n"
                f"started again, {kills} times. *Lost*: never done and no longer in the store. *Stuck*: not done\n"
                f"after {COMPLETION_TIMEOUT_SECONDS:.0f} s, but still in the store. *Twice*: completed more "
                "than once, which no product\n"
                "can rule out, because the end of a task and its record are two events. The last column is the time\n"
                "from the last start until all tasks were done."
            ),
            _markdown(["", "tasks", "lost", "stuck", "done twice", "all done after"], kept),
            "Settings of each product, and when an enqueued job is on disk:",
            _markdown(["", "store", "settings", "an enqueued job is"], how),
        ]
    )


_LOSS_COLUMNS = ("tasks", "lost", "stuck", "twice")


def _goal_table(found: Results) -> str:
    rows = []
    for goal in GOALS:
        if goal.benchmark in found:
            figure = goal.reached(found[goal.benchmark])
            verdict = "not measured" if figure is None else "met" if goal.is_met(figure) else "**not met**"
            rows.append([f"`{goal.benchmark}`", goal.description, _cell(figure), verdict])
        else:
            rows.append([f"`{goal.benchmark}`", goal.description, "", "not measured"])
    return _markdown(["benchmark", "goal", "figure", ""], rows)


def _better_peers(found: Results) -> str:
    """Return every case in which a peer's figure is better."""
    titles = {name: one["title"] for name, one in found.get("compare", {"contenders": {}})["contenders"].items()}
    rows = []
    for name in (name for name in _NAMES if name in found):
        for case in found[name]["results"]:
            ahead = {
                peer: case["peers"][peer] for peer, ratio in case["ratio"].items() if _is_peer_better(case, peer, ratio)
            }
            if ahead:
                figures = "; ".join(f"{titles.get(peer, peer)} {_cell(figure)}" for peer, figure in ahead.items())
                rows.append(
                    [f"`{name}`", _case_title(name, case["case"]), case["unit"], _cell(case["tenuto"]), figures]
                )
    if not rows:
        return "*Not measured yet.*" if not found else "No measured case has a better figure of a peer."
    return _markdown(["benchmark", "case", "unit", "Tenuto", "better"], rows)


def _is_peer_better(case: Mapping[str, Any], peer: str, ratio: float | None) -> bool:
    return peer in case["peers"] and peer not in _LIMITS and ratio is not None and ratio < 1


def _case_title(benchmark: str, case: str) -> str:
    """Return the name of a case on the page: `compare` measures from before the call, not from the commit."""
    return case.replace("pick-up", "enqueue to start") if benchmark == "compare" else case


def _plots(found: Results) -> dict[str, str]:
    """Return the plots for which there are results."""
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
        made["throughput.svg"] = plots.draw_bars("Throughput, more is better", shown, _caption(result))
        middle, tail = cases["pick-up p50"], cases["pick-up p99"]
        ordered = sorted((value, name) for name, value in middle.items() if value is not None)
        spans = [plots.Span(titles[name], value, tail[name], name == "tenuto") for value, name in ordered]
        made["latency.svg"] = plots.draw_spans(
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
        made["growth.svg"] = plots.draw_bars(
            "Cost of a claim by table size, less is better",
            [("A claim of 100, ms", claims)],
            _caption(result),
        )
    return made


def _caption(result: Mapping[str, Any]) -> str:
    environment = result["environment"]
    others = environment["cores used by others"] + environment["cores stolen by the host"]
    noise = f", other processes used {others:.2g} cores" if others > NOISY_CORES else ""
    tried = ", small counts" if environment["quick"] else ""
    machine = f"{environment['cores']} cores, {environment['processor']}"
    return f"{environment.get('date', '')}, {machine}, PostgreSQL {environment['postgresql']}{tried}{noise}"


_ALT_TEXTS = {
    "throughput.svg": "Throughput of Tenuto and its peers: drain and enqueue",
    "latency.svg": "From enqueue to start, Tenuto and its peers: p50 and p99",
    "growth.svg": "Cost of a claim with tables of different sizes",
}


def _image_links(pictures: Mapping[str, str]) -> str:
    return "\n\n".join(f"![{_ALT_TEXTS[name]}](images/{name})" for name in pictures)


def _version(one: Mapping[str, Any]) -> str:
    versions = one["versions"]
    return str(next(version for package, version in versions.items() if package != "python"))


def _cell(figure: float | None) -> str:
    return "" if figure is None else plots.format_figure(figure)


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
