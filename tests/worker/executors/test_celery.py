"""The contract of executors holds for Celery, also while its processes are killed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import eventually_blocking
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


def test_thread_of_a_celery_worker_is_not_killed_but_a_process_is(tmp_path: Path) -> None:
    cluster = CeleryCluster(tmp_path)
    engine = cluster.make_engine()
    try:
        cluster.start_worker(2, pool="threads")
        cluster.start_worker(1)
        engine.connect()
        eventually_blocking(lambda: engine.count_slots() == 3, timeout=60, what="slots of both workers")
        assert not engine.force_stop("launch", {"worker": "worker-0@localhost"})
        assert engine.force_stop("launch", {"worker": "worker-1@localhost"})
    finally:
        engine.disconnect()
        cluster.stop()
