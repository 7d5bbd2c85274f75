"""The contract of executors holds for Celery, also while its processes are killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.worker.executors.cluster_tests import ClusterConformance, ClusterFaults
from tests.worker.executors.clusters import CeleryCluster, Cluster
from tests.worker.executors.conformance import SLOTS

pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(
        shutil.which("redis-server") is None and not os.environ.get("TENUTO_REQUIRE_REDIS"),
        reason="redis-server is not installed: apt-get install redis-server",
    ),
]


class TestCelery(ClusterConformance):
    """Conformance of the executor on a prefork worker of Celery."""

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        cluster = CeleryCluster(tmp_path_factory.mktemp("celery"))
        cluster.start_worker(SLOTS)
        yield cluster
        cluster.stop()


class TestFaultsOfCelery(ClusterFaults):
    """A cluster of Celery whose parts are killed."""

    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
        cluster = CeleryCluster(tmp_path_factory.mktemp("celery"))
        yield cluster
        cluster.stop()
