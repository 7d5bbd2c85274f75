"""Command line: `scripts/chaos [--seconds N] [--tasks N] [--kills N] [--seed S] [--json]`.

Without a count, faults are injected for a minute. With counts, the run continues until they are reached, and at least
for --seconds. The exit code is 0 only if every check passes.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import random
import signal
import sys

from tests.chaos.chaos_run import open_chaos_run
from tests.chaos.run_size import RunSize


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--seconds", type=float, help="minimum duration of fault injection (60 if no count is given)")
    parser.add_argument("--tasks", type=int, help="number of tasks to submit, besides those of schedules")
    parser.add_argument("--kills", type=int, help="minimum number of processes killed with SIGKILL")
    parser.add_argument("--seed", type=int, help="seed of the random choices; printed if not given")
    parser.add_argument("--json", action="store_true", help="print a JSON object instead of a table")
    parser.add_argument("--keep", action="store_true", help="keep the logs, the ledger and the database")
    asked = parser.parse_args()
    seconds = 60.0 if asked.seconds is None and asked.tasks is None and asked.kills is None else asked.seconds
    seed = random.randrange(2**32) if asked.seed is None else asked.seed
    faulthandler.enable()  # SIGABRT shows where a run hangs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by default in a background shell
    try:
        return asyncio.run(run(RunSize(seconds, asked.tasks, asked.kills, seed), as_json=asked.json, keep=asked.keep))
    except KeyboardInterrupt:
        print_progress("stopped; nothing is left running")
        return 130
    except asyncio.CancelledError:  # SIGTERM
        print_progress("stopped; nothing is left running")
        return 143


async def run(wanted: RunSize, *, as_json: bool, keep: bool) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    print_progress(f"seed {wanted.seed}")
    async with open_chaos_run(wanted, print_progress, keep=keep) as chaos_run:
        report = await chaos_run.report(await chaos_run.run())
    print(report.as_json() if as_json else report.as_table())
    return 0 if report.holds else 1


def print_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
