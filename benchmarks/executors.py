"""Executors on a cluster beside the bare engine: the same jobs on the same processes, in one run.

`no-op` and `10 ms` are jobs per second, of a number that is submitted at once. `pick-up` is the time from the request
for one job to the start of its code, while nothing else runs. With Tenuto this includes that the request and the
outcome are committed to PostgreSQL; the engines keep both in memory. Ray takes part where it is installed.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.contender import Contender
from benchmarks.contenders import executor_jobs
from benchmarks.measure import Case, progress
from benchmarks.queue_benchmarks import Size
from tenuto import Tenuto
from tests.worker.executors.clusters import CeleryCluster, Cluster, DaskCluster, RayCluster

EXECUTORS = {"tenuto": "benchmarks.contenders.tenuto_contender"}
SLOTS = 4
APP = "benchmarks.contenders.executor_jobs:app"

RunAll = Callable[[str, int], list[Any]]


async def executors(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Return throughput and pick-up time of each executor and of its bare engine."""
    count, pick_ups = size.of(2_000, 200), size.of(100, 20)
    cases: list[Case] = []
    for contender in contenders:
        for name in ("native", "dask", "celery", "ray"):
            if _is_missing(name):
                progress(f"{name} is not installed and left out")
                continue
            own = [
                Case(f"{name}, no-op", "jobs/s"), Case(f"{name}, 10 ms", "jobs/s"), Case(f"{name}, pick-up", "ms")
            ]  # fmt: skip
            cases += own
            with TemporaryDirectory(prefix="tenuto-bench-executors-", dir="/var/tmp") as folder:
                cluster = None if name == "native" else _start_cluster(name, Path(folder))
                try:
                    for run in range(size.runs):
                        progress(f"{name}, run {run + 1} of {size.runs}")
                        if cluster is not None:
                            await asyncio.to_thread(_measure_engine, cluster, own, count, pick_ups)
                        await _measure_tenuto(contender, cluster, own, count, pick_ups)
                finally:
                    if cluster is not None:
                        cluster.stop()
    return cases


def _is_missing(name: str) -> bool:
    if name == "celery":
        return find_spec("celery") is None or shutil.which("redis-server") is None
    return name != "native" and find_spec({"dask": "distributed"}.get(name, name)) is None


def _start_cluster(name: str, folder: Path) -> Cluster:
    cluster: Cluster
    if name == "dask":
        cluster = DaskCluster(folder)
    elif name == "celery":
        cluster = CeleryCluster(folder, module="benchmarks.contenders.executor_jobs:celery")
    else:
        cluster = RayCluster(folder)
    cluster.start_worker(SLOTS)
    return cluster


# --- Tenuto -----------------------------------------------------------------------------------------------------------


async def _measure_tenuto(
    contender: Contender, cluster: Cluster | None, cases: Sequence[Case], count: int, pick_ups: int
) -> None:
    async with contender.prepared_database("bench_executors") as url:
        with TemporaryDirectory() as home:
            app = Tenuto(url, home=home)
            app.jobs.jobs_by_name.update(executor_jobs.app.jobs.jobs_by_name)
            try:
                async with _worker(app, cluster):
                    await _run_jobs(app, "noop", SLOTS * 5)  # every process has imported the app
                    for case, name in zip(cases, ("noop", "sleep_10_ms"), strict=False):
                        began = time.perf_counter()
                        await _run_jobs(app, name, count)
                        case.add("tenuto", count / (time.perf_counter() - began))
                    cases[2].add("tenuto", await _pick_up_ms(app, pick_ups))
            finally:
                await app.close()


@asynccontextmanager
async def _worker(app: Tenuto, cluster: Cluster | None) -> AsyncIterator[None]:
    options: dict[str, Any] = {"slots": SLOTS}
    if cluster is not None:
        options |= {"executor": cluster.name, "executor_address": cluster.address, "app_name": APP}
    async with app.worker(**options):
        yield


async def _run_jobs(app: Tenuto, name: str, count: int) -> None:
    database = await app.open()
    job = executor_jobs.JOBS[name]
    await app.enqueue_many(job, ({"number": number} for number in range(count)))
    while await database.fetch_value("SELECT EXISTS (SELECT FROM tenuto.tasks)"):  # noqa: ASYNC110 — a peer polls, too
        await asyncio.sleep(0.005)


async def _pick_up_ms(app: Tenuto, count: int) -> float:
    took = []
    for number in range(count):
        asked_at = time.time()
        record = await app.wait(await app.enqueue(executor_jobs.JOBS["tell_time"], number), timeout=60)
        assert record.output is not None
        took.append(record.output - asked_at)
        await asyncio.sleep(0.01)
    return statistics.median(took) * 1000


# --- bare engines -----------------------------------------------------------------------------------------------------


def _measure_engine(cluster: Cluster, cases: Sequence[Case], count: int, pick_ups: int) -> None:
    run, close = {"dask": _dask, "celery": _celery, "ray": _ray}[cluster.name](cluster)
    try:
        run("noop", SLOTS * 5)
        for case, name in zip(cases, ("noop", "sleep_10_ms"), strict=False):
            began = time.perf_counter()
            run(name, count)
            case.add(cluster.name, count / (time.perf_counter() - began))
        took = []
        for _ in range(pick_ups):
            asked_at = time.time()
            took.append(run("tell_time", 1)[0] - asked_at)
            time.sleep(0.01)
        cases[2].add(cluster.name, statistics.median(took) * 1000)
    finally:
        close()


def _dask(cluster: Cluster) -> tuple[RunAll, Callable[[], None]]:
    from distributed import Client

    client = Client(cluster.address, set_as_default=False)  # type: ignore[no-untyped-call]

    def run(name: str, count: int) -> list[Any]:
        function = getattr(executor_jobs, name)
        results: list[Any] = client.gather(  # type: ignore[no-untyped-call]
            client.map(function, range(count), pure=False)
        )
        return results

    client.wait_for_workers(SLOTS)
    return run, client.close


def _celery(cluster: Cluster) -> tuple[RunAll, Callable[[], None]]:
    app = executor_jobs.celery
    app.conf.update(broker_url=cluster.address, result_backend=cluster.address)

    def run(name: str, count: int) -> list[Any]:
        task = executor_jobs.CELERY_TASKS[name]
        return [each.get(timeout=120) for each in [task.apply_async([n], queue="tenuto") for n in range(count)]]

    return run, app.close


def _ray(cluster: Cluster) -> tuple[RunAll, Callable[[], None]]:
    import ray

    ray.init(cluster.address, log_to_driver=False)

    def run(name: str, count: int) -> list[Any]:
        function = ray.remote(num_cpus=1)(getattr(executor_jobs, name))
        results: list[Any] = ray.get([function.remote(number) for number in range(count)])
        return results

    return run, ray.shutdown
