"""Command line: `python -m benchmarks NAME [--json] [--save] [--quick] [--runs N] [--only CONTENDER …]`.

Prints one object (`--json`) or a table on stdout, and its progress on stderr. `all` runs every benchmark, saves each
result and writes the page; `page` writes the page from the saved results.
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

from benchmarks import growth, page, queue_benchmarks
from benchmarks.api import SERVICE, api
from benchmarks.compare import compare, loss_summary
from benchmarks.contender import QUEUES, select_contenders
from benchmarks.dashboard import DASHBOARD, dashboard
from benchmarks.doctor import DOCTOR, doctor
from benchmarks.environment import describe
from benchmarks.executions import RUNNERS, executions
from benchmarks.executors import EXECUTORS, executors
from benchmarks.history import HISTORY, history
from benchmarks.identity import IDENTITY, identity
from benchmarks.ldap_directory import LDAP, ldap
from benchmarks.load import LoadMonitor
from benchmarks.manifests import BULK, MANAGERS, bulk, managers
from benchmarks.measure import progress
from benchmarks.peer_entries import ENTRIES
from benchmarks.processes import ContenderFailed
from benchmarks.queue_benchmarks import Size
from benchmarks.report import report, table
from benchmarks.scale import SCALE, scale
from benchmarks.schedules import CLOCKS, schedules
from benchmarks.server import server
from benchmarks.workflows import WORKFLOWS, workflows

# Each with the scripts of its contenders.
BENCHMARKS: dict[str, tuple[Any, dict[str, str]]] = {
    "drain": (queue_benchmarks.drain, QUEUES),
    "enqueue": (queue_benchmarks.enqueue, QUEUES),
    "latency": (queue_benchmarks.latency, QUEUES),
    "growth": (growth.growth, QUEUES),
    "history": (history, HISTORY),
    "executions": (executions, RUNNERS),
    "workflows": (workflows, WORKFLOWS),
    "schedules": (schedules, CLOCKS),
    "bulk": (bulk, BULK),
    "manager": (managers, MANAGERS),
    "api": (api, SERVICE),
    "dashboard": (dashboard, DASHBOARD),
    "doctor": (doctor, DOCTOR),
    "executors": (executors, EXECUTORS),
    "scale": (scale, SCALE),
    "identity": (identity, IDENTITY),
    "ldap": (ldap, LDAP),
    "compare": (None, {}),  # it has its own entries
}
LONG_BENCHMARKS = {"scale": 1, "history": 1, "identity": 1, "ldap": 1}
"""Runs per contender of benchmarks whose runs take minutes."""
ALL_CONTENDERS = sorted(
    {name for _, scripts in BENCHMARKS.values() for name in scripts} | {one.name for one in ENTRIES}
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=[*BENCHMARKS, "all", "page"])
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    parser.add_argument("--save", action="store_true", help="save the object in benchmarks/results, for the page")
    parser.add_argument("--names", action="store_true", help="save the names of the cases, for the test of the goals")
    parser.add_argument("--quick", action="store_true", help="small counts, one run: to try, not to quote")
    parser.add_argument("--million", action="store_true", help="identity: also a million people (about an hour)")
    one = ", ".join(LONG_BENCHMARKS)
    parser.add_argument("--runs", type=int, help=f"runs per contender and case (3; {one} and --quick 1)")
    parser.add_argument(
        "--only", nargs="+", metavar="CONTENDER", help=f"with spaces or commas: {', '.join(ALL_CONTENDERS)}"
    )
    asked = parser.parse_args()
    only = [name for word in asked.only or [",".join(ALL_CONTENDERS)] for name in word.split(",") if name]
    if unknown := set(only) - set(ALL_CONTENDERS):
        parser.error(f"unknown contender: {', '.join(sorted(unknown))}; known: {', '.join(ALL_CONTENDERS)}")
    if asked.name == "page":
        return _write_page()
    signal.signal(signal.SIGTERM, _exit_on_signal)
    if asked.name == "all":
        return _run_all(only, asked)
    try:
        result, text = _run_one(asked.name, only, _size(asked, asked.name))
    except ContenderFailed as failure:
        print(f"benchmark failed: {failure}", file=sys.stderr)
        return 1
    if asked.names:
        progress(f"saved in {page.save_case_names(asked.name, result)}")
    if asked.save:
        progress(f"saved as {page.save(asked.name, result)}")
    print(json.dumps(result) if asked.json else text)
    return 0


def _size(asked: argparse.Namespace, name: str) -> Size:
    runs = 1 if asked.quick else LONG_BENCHMARKS.get(name, 3)
    return Size(asked.runs or runs, asked.quick, asked.million)


def _run_one(name: str, only: list[str], size: Size) -> tuple[dict[str, object], str]:
    """Run one benchmark on its own server."""
    with server() as url:
        return asyncio.run(run(name, url, only, size))


def _run_all(only: list[str], asked: argparse.Namespace) -> int:
    """Run every benchmark. One that fails keeps its last saved result; the others continue."""
    failed = []
    for place, name in enumerate(BENCHMARKS, 1):
        began = time.monotonic()
        progress(f"=== {name} ({place} of {len(BENCHMARKS)})")
        try:
            result, text = _run_one(name, only, _size(asked, name))
        except (ContenderFailed, OSError) as failure:
            progress(f"=== {name} failed: {failure}")
            failed.append(name)
            continue
        page.save(name, result)
        progress(f"{text}\n=== {name}: saved after {(time.monotonic() - began) / 60:.1f} minutes")
    _write_page()
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _write_page() -> int:
    for path in page.write_page():
        print(path)
    return 0


async def run(name: str, url: str, names: list[str], size: Size) -> tuple[dict[str, object], str]:
    """Return the object of one benchmark, and the same as text."""
    benchmark, scripts = BENCHMARKS[name]
    chosen = select_contenders(url, scripts, names)
    environment = await describe(url, chosen, size)
    watch = await LoadMonitor.start(url)
    extra: dict[str, object] = {}
    if name == "compare":
        cases, extra = await compare(url, names, size)
    else:
        cases = await benchmark(chosen, size)
    load = watch.load()
    environment |= {"cores used by others": load.others, "cores stolen by the host": load.stolen}
    if not load.is_quotable:
        progress(f"other processes used {load.others} cores, the host took {load.stolen}: repeat on a quiet machine")
    text = table(name, cases, environment)
    return report(name, cases, environment) | extra, f"{text}\n\n{loss_summary(extra)}" if extra else text


def _exit_on_signal(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
