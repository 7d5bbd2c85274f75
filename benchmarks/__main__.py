"""The command line: `python -m benchmarks NAME [--json] [--quick] [--runs N] [--only CONTENDER …]`.

Prints one object (`--json`) or a table on stdout, and its progress on stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from types import FrameType

from benchmarks import figures, growth
from benchmarks.api import SERVICE, api
from benchmarks.contest import QUEUES, contenders
from benchmarks.environment import describe
from benchmarks.executions import RUNNERS, executions
from benchmarks.figures import Size
from benchmarks.load import Watch
from benchmarks.manifests import BULK, MANAGERS, bulk, managers
from benchmarks.measure import progress
from benchmarks.processes import ContenderFailed
from benchmarks.report import report, table
from benchmarks.schedules import CLOCKS, schedules
from benchmarks.server import server

# Each with the scripts of its contenders.
BENCHMARKS = {
    "drain": (figures.drain, QUEUES),
    "enqueue": (figures.enqueue, QUEUES),
    "latency": (figures.latency, QUEUES),
    "growth": (growth.growth, QUEUES),
    "executions": (executions, RUNNERS),
    "schedules": (schedules, CLOCKS),
    "bulk": (bulk, BULK),
    "manager": (managers, MANAGERS),
    "api": (api, SERVICE),
}
EVERYBODY = sorted({name for _, scripts in BENCHMARKS.values() for name in scripts})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--json", action="store_true", help="print the object instead of a table")
    parser.add_argument("--quick", action="store_true", help="small counts, one run: to try, not to quote")
    parser.add_argument("--runs", type=int, help="runs per contender and case (3; with --quick 1)")
    parser.add_argument(
        "--only", nargs="+", choices=EVERYBODY, default=EVERYBODY, metavar="CONTENDER", help=", ".join(EVERYBODY)
    )
    asked = parser.parse_args()
    size = Size(asked.runs or (1 if asked.quick else 3), asked.quick)
    signal.signal(signal.SIGTERM, _leave)
    try:
        with server() as url:
            return asyncio.run(run(asked.name, url, asked.only, size, as_json=asked.json))
    except ContenderFailed as failure:
        print(f"benchmark failed: {failure}", file=sys.stderr)
        return 1


async def run(name: str, url: str, names: list[str], size: Size, *, as_json: bool) -> int:
    benchmark, scripts = BENCHMARKS[name]
    chosen = contenders(url, scripts, names)
    environment = await describe(url, chosen, size)
    watch = await Watch.start(url)
    cases = await benchmark(chosen, size)
    load = watch.load()
    environment |= {"cores used by others": load.others, "cores stolen by the host": load.stolen}
    if not load.quotable:
        progress(f"others used {load.others} cores meanwhile, the host took {load.stolen}: repeat when it is quiet")
    print(json.dumps(report(name, cases, environment)) if as_json else table(name, cases, environment))
    return 0


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
