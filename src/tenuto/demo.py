"""The tour: real work through a real database, with a worker killed in front of you, ending in a ledger.

Everything happens in a temporary folder (or the one given with ``--keep``) and ends by itself within a minute. The
exit code is 0 only if the ledger balances: everything submitted is done or has failed for good, nothing is lost,
nothing is done twice. A tour's tasks carry a tag of their own, so that one in a kept folder counts nobody else's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tenuto.app import Tenuto
from tenuto.clock import steady
from tenuto.demo_view import Plain, Silent, Story, Terminal
from tenuto.handlers.context import Context
from tenuto.handlers.jobs import Job
from tenuto.ids import new_id
from tenuto.model.retries import RetryPolicy
from tenuto.settings import load

TIME_LIMIT = 55.0
LEASE_SECONDS = 3.0
SMALL, FLAKY, HOPELESS, LONG = 5000, 150, 5, 12

quickly = RetryPolicy(max_retries=4, base_seconds=0.4, cap_seconds=2)
# Always the embedded server in a folder of its own, whatever database the environment or a settings file names.
app = Tenuto(settings=load(home=os.environ.get("TENUTO_DEMO_HOME")).model_copy(update={"database": None}))


@app.job
async def thumbnail(picture: int) -> str:
    """Small and quick: what queues are full of."""
    return f"picture-{picture:05}.webp"


@app.job(retry=quickly)
async def fetch_rates(bank: str, ctx: Context) -> float:
    """Fails once or twice before it works, like anything on a network."""
    if ctx.attempt <= random.Random(ctx.idempotency_key).randint(1, 2):
        raise ConnectionError(f"{bank} does not answer")
    return 1.17


@app.job(retry=RetryPolicy(max_retries=2, base_seconds=0.3))
def bill_customer(number: int) -> None:
    """Never works: ends as failed, with its attempts on record."""
    raise ValueError(f"customer {number} has no address")


@app.job(timeout="30s")
async def nightly_report(region: str, ctx: Context) -> dict[str, Any]:
    """Takes a few seconds and says how far it is: what a worker holds when it is killed."""
    for page in range(1, 41):
        await asyncio.sleep(0.1)
        ctx.progress(page, 40, f"{region}: page {page}")
    return {"region": region, "pages": 40}


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was asked for, and what became of it."""

    submitted: int
    done: int
    failed: int
    open: int
    lost: int
    doubled: int
    attempts: int
    retries: int
    killed_workers: int
    taken_back: int
    seconds: float

    @property
    def balances(self) -> bool:
        return self.submitted == self.done + self.failed and self.open == self.lost == self.doubled == 0


class Tour:
    """From an empty folder to a balanced ledger."""

    def __init__(self, home: Path, story: Story) -> None:
        self._home = home
        self._story = story
        self._tag = f"demo-{new_id().hex[-8:]}"
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._began = steady()
        self._submitted = 0
        self._killed = 0

    async def run(self) -> Ledger:
        self._story.say(f"embedded PostgreSQL in {self._home}")
        async with app:
            self._story.say(f"database ready after {steady() - self._began:.1f} s; starting 3 worker processes")
            for number in (1, 2, 3):
                self._start_worker(f"demo-{number}")
            await self._until(self._all_workers_are_registered)
            await self._submit()
            await self._kill_the_worker_that_holds_reports()
            await self._until(self._everything_has_ended)
            return await self._ledger()

    async def _submit(self) -> None:
        regions = ["north", "south", "east", "west"]
        await self._ask_for(nightly_report, (f"{regions[n % 4]} {n}" for n in range(LONG)))
        await self._ask_for(thumbnail, range(SMALL))
        await self._ask_for(fetch_rates, (f"bank {n}" for n in range(FLAKY)))
        await self._ask_for(bill_customer, range(HOPELESS))
        self._story.say(f"submitted {self._submitted:,} tasks: small ones, flaky ones, hopeless ones, long ones")

    async def _ask_for(self, job: Job[..., Any], inputs: Iterable[Any]) -> None:
        self._submitted += await app.enqueue_many(job.using(tags=[self._tag]), inputs)

    async def _kill_the_worker_that_holds_reports(self) -> None:
        victim = await self._until(self._a_worker_that_holds_reports)
        pid = self._workers[victim].pid
        held = len(await app.tasks(state="running", name="nightly_report", tag=self._tag))
        self._story.say(f"kill -9 of {victim} (pid {pid}) while {held} reports are running", loud=True)
        os.kill(pid, signal.SIGKILL)
        self._workers[victim].wait()
        self._killed += 1
        self._story.worker_died(victim)

    async def _ledger(self) -> Ledger:
        counts = await app.outcome_counts(tag=self._tag)
        return Ledger(
            submitted=self._submitted,
            done=counts["done"],
            failed=counts["failed"],
            open=counts["open"],
            lost=self._submitted - counts["done"] - counts["failed"] - counts["open"],
            doubled=counts["doubled"],
            attempts=counts["attempts"],
            retries=counts["attempts"] - counts["done"] - counts["failed"],
            killed_workers=self._killed,
            taken_back=counts["lost_attempts"],
            seconds=round(steady() - self._began, 1),
        )

    # --- conditions -------------------------------------------------------------------------------------------------

    async def _all_workers_are_registered(self) -> bool:
        return len([worker for worker in await app.workers() if worker["service"] == "worker"]) == 3

    async def _a_worker_that_holds_reports(self) -> str | None:
        running = await app.tasks(state="running", name="nightly_report", tag=self._tag)
        names = {worker["id"]: worker["name"] for worker in await app.workers()}
        for task in running:
            if task["progress"] is not None and names.get(task["worker_id"]) in self._workers:
                return str(names[task["worker_id"]])
        return None

    async def _everything_has_ended(self) -> bool:
        return (await app.outcome_counts(tag=self._tag))["open"] == 0

    async def _until(self, condition: Any) -> Any:
        while steady() - self._began < TIME_LIMIT:
            answer = await condition()
            await self._show()
            if answer:
                return answer
            await asyncio.sleep(0.15)
        raise TimeoutError(f"the tour did not end within {TIME_LIMIT:.0f} s")

    async def _show(self) -> None:
        counts = await app.outcome_counts(tag=self._tag)
        running = await app.tasks(state="running", tag=self._tag, limit=60)
        self._story.show(counts, self._submitted, await app.workers(), running, steady() - self._began)

    # --- processes --------------------------------------------------------------------------------------------------

    def _start_worker(self, name: str) -> None:
        environment = {**os.environ, "TENUTO_DEMO_HOME": str(self._home), "TENUTO_LOG_LEVEL": "error"}
        command = [sys.executable, "-P", "-m", "tenuto.demo", "--as-worker", name]
        log = (self._home / f"{name}.log").open("wb")
        self._workers[name] = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        log.close()

    def stop(self) -> None:
        """Stop what was started, by pid."""
        for process in self._workers.values():
            if process.poll() is None:
                process.terminate()
        for process in self._workers.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--headless", action="store_true", help="plain lines instead of a live display")
    parser.add_argument("--json", action="store_true", help="print the ledger as JSON on stdout")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this folder and keep it")
    parser.add_argument("--as-worker", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.as_worker:
        return _be_a_worker(given.as_worker)
    home = (given.keep or Path(tempfile.mkdtemp(prefix="tenuto-demo-", dir="/tmp"))).absolute()
    home.mkdir(parents=True, exist_ok=True)
    if given.keep is None:
        home.chmod(0o755)  # as root the server runs under another account, which must be able to pass
    return _tour(home, given)


def _tour(home: Path, given: argparse.Namespace) -> int:
    global app  # the jobs stay; the app is told where it lives
    app.settings = app.settings.model_copy(update={"home": home, "database": None})
    live = not given.headless and not given.json and sys.stdout.isatty()
    story: Story = Terminal() if live else Silent() if given.json and not sys.stderr.isatty() else Plain()
    tour = Tour(home, story)
    try:
        with story:
            ledger = asyncio.run(tour.run())
            tour.stop()
    finally:
        tour.stop()
        if given.keep is None:
            from tenuto.store import embedded

            embedded.stop_now(home)
            shutil.rmtree(home, ignore_errors=True)
    if given.json:
        sys.stdout.write(json.dumps({**asdict(ledger), "balances": ledger.balances}) + "\n")
    else:
        story.ledger(asdict(ledger), balances=ledger.balances)
    return 0 if ledger.balances else 1


def _be_a_worker(name: str) -> int:
    from tenuto import logs

    logs.configure("console", "warning")
    asyncio.run(app.run_worker(name=name, slots=20, lease_seconds=LEASE_SECONDS, grace_seconds=2))
    return 0


if __name__ == "__main__":
    # Under its real name, so that child processes and workers find the same jobs.
    from tenuto import demo

    sys.exit(demo.main())
