"""The contract of executors holds for Dask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tenuto.worker.executors import Executor, ExecutorContext
from tenuto.worker.executors.cluster import ClusterExecutor
from tenuto.worker.executors.dask_engine import DaskEngine
from tests.worker.executors.clusters import DaskCluster, dask_cluster
from tests.worker.executors.conformance import SLOTS, Conformance

pytestmark = pytest.mark.slow
APP = "tests.worker.executors.conformance_jobs:app"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskCluster]:
    with dask_cluster(tmp_path_factory.mktemp("dask")) as cluster:
        cluster.start_worker(processes=2, threads=SLOTS // 2)
        yield cluster


class TestDask(Conformance):
    """Conformance of the executor on a Dask cluster."""

    runs_elsewhere = True

    @pytest.fixture(autouse=True)
    def _use_cluster(self, cluster: DaskCluster) -> None:
        self._cluster = cluster

    def make_executor(self, context: ExecutorContext) -> Executor:
        return ClusterExecutor(context, DaskEngine(self._cluster.address), APP)
