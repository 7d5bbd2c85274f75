"""The contract of executors holds for Dask, also while its processes are killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.worker.executors.cluster_tests import ClusterConformance, ClusterFaults
from tests.worker.executors.clusters import Cluster, DaskCluster
from tests.worker.executors.conformance import SLOTS


class TestDask(ClusterConformance):
    """Conformance of the executor on a Dask cluster whose processes have several threads."""

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        cluster = DaskCluster(tmp_path_factory.mktemp("dask"), slots_per_process=SLOTS // 2)
        cluster.start_worker(SLOTS)
        yield cluster
        cluster.stop()


class TestFaultsOfDask(ClusterFaults):
    """A Dask cluster whose processes have one thread each."""

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        cluster = DaskCluster(tmp_path_factory.mktemp("dask"))
        yield cluster
        cluster.stop()
