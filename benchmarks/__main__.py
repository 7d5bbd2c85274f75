"""The command line: `python -m benchmarks NAME [--json] [--save] [--quick] [--runs N] [--only CONTENDER …]`.

Prints one object (`--json`) or a table on stdout, and its progress on stderr. `all` runs every benchmark in turn, saves
each as it ends and writes the page; `page` writes the page of the results there are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from types import FrameType
from typing import Any

from benchmarks import figures, growth, page
from benchmarks.api import SERVICE, api
from benchmarks.compare import compare, summary
from benchmarks.contest import QUEUES, contenders
from benchmarks.doctor import DOCTOR, doctor
from benchmarks.environment import describe
from benchmarks.executions import RUNNERS, executions
from benchmarks.figures import Size
from benchmarks.lineup import LINEUP
from benchmarks.load import Watch
from benchmarks.manifests import BULK, MANAGERS, bulk, managers
from benchmarks.measure import progress
from benchmarks.processes import ContenderFailed
from benchmarks.report import report, table
from benchmarks.schedules import CLOCKS, schedules
from benchmarks.server import server

# Each with the scripts of its contenders.
BENCHMARKS: dict[str, tuple[Any, dict[str, str]]] = {
    "drain": (figures.drain, QUEUES),
    "enqueue": (figures.enqueue, QUEUES),
    "latency": (figures.latency, QUEUES),
    "growth": (growth.growth, QUEUES),
    "executions": (executions, RUNNERS),
    "schedules": (schedules, CLOCKS),
    "bulk": (bulk, BULK),
    "manager": (managers, MANAGERS),
    "api": (api, SERVICE),
    "doctor": (doctor, DOCTOR),
    "compare": (None, {}),  # it brings its own line-up
}
EVERYBODY = sorted({name for _, scripts in BENCHMARKS.values() for name in scripts} | {one.name for one in LINEUP})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=[*BENCHMARKS, "all", "page"])
    parser.add_argument("--json", action="store_true", help="print the object instead of a table")
    parser.add_argument("--save", action="store_true", help="keep the object in benchmarks/results, for the page")
    parser.add_argument("--quick", action="store_true", help="small counts, one run: to try, not to quote")
    parser.add_argument("--runs", type=int, help="runs per contender and case (3; with --quick 1)")
    parser.add_argument("--only", nargs="+", metavar="CONTENDER", help=f"with spaces or commas: {', '.join(EVERYBODY)}")
    asked = parser.parse_args()
    only = [name for word in asked.only or [",".join(EVERYBODY)] for name in word.split(",") if name]
    if unknown := set(only) - set(EVERYBODY):
        parser.error(f"no such contender: {', '.join(sorted(unknown))}; there are {', '.join(EVERYBODY)}")
    if asked.name == "page":
        return _page()
    size = Size(asked.runs or (1 if asked.quick else 3), asked.quick)
    signal.signal(signal.SIGTERM, _leave)
    if asked.name == "all":
        return _all(only, size)
    try:
        result, text = _once(asked.name, only, size)
    except ContenderFailed as failure:
        print(f"benchmark failed: {failure}", file=sys.stderr)
        return 1
    if asked.save:
        progress(f"saved as {page.save(asked.name, result)}")
    print(json.dumps(result) if asked.json else text)
    return 0


def _once(name: str, only: list[str], size: Size) -> tuple[dict[str, object], str]:
    """One benchmark on a server of its own."""
    with server() as url:
        return asyncio.run(run(name, url, only, size))


def _all(only: list[str], size: Size) -> int:
    """Every benchmark in turn. One that fails leaves its last result in place; the others go on."""
    failed = []
    for place, name in enumerate(BENCHMARKS, 1):
        began = time.monotonic()
        progress(f"=== {name} ({place} of {len(BENCHMARKS)})")
        try:
            result, text = _once(name, only, size)
        except (ContenderFailed, OSError) as failure:
            progress(f"=== {name} failed: {failure}")
            failed.append(name)
            continue
        page.save(name, result)
        progress(f"{text}\n=== {name}: saved after {(time.monotonic() - began) / 60:.1f} minutes")
    _page()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _page() -> int:
    for path in page.write():
        print(path)
    return 0


async def run(name: str, url: str, names: list[str], size: Size) -> tuple[dict[str, object], str]:
    """The object of one benchmark, and the same for people."""
    benchmark, scripts = BENCHMARKS[name]
    chosen = contenders(url, scripts, names)
    environment = await describe(url, chosen, size)
    watch = await Watch.start(url)
    extra: dict[str, object] = {}
    if name == "compare":
        cases, extra = await compare(url, names, size)
    else:
        cases = await benchmark(chosen, size)
    load = watch.load()
    environment |= {"cores used by others": load.others, "cores stolen by the host": load.stolen}
    if not load.quotable:
        progress(f"others used {load.others} cores meanwhile, the host took {load.stolen}: repeat when it is quiet")
    text = table(name, cases, environment)
    return report(name, cases, environment) | extra, f"{text}\n\n{summary(extra)}" if extra else text


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
