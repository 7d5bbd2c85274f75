"""Which executor a worker has: by its settings, and by its queues."""

from __future__ import annotations

import pytest

from tenuto.errors import Invalid
from tenuto.settings import load_worker_settings
from tenuto.worker.executors.native import NativeExecutor
from tenuto.worker.executors.selection import choose_executor, cluster_executor, load_worker
from tests.support.errors import raises_code

APP = "tests.worker.executors.conformance_jobs:app"
BY_QUEUE = {"gpu": "dask", "reports": "dask", "mail": "native"}


def test_queues_of_a_worker_choose_its_executor() -> None:
    assert choose_executor(load_worker_settings(queues=["mail"], queue_executors=BY_QUEUE), None) is NativeExecutor
    other = load_worker_settings(queues=["other"], executor="native", queue_executors=BY_QUEUE)
    assert choose_executor(other, None) is NativeExecutor, "a queue without an entry has the executor of the worker"
    address = "tcp://127.0.0.1:8786"
    on_dask = load_worker_settings(queues=["gpu", "reports"], queue_executors=BY_QUEUE, executor_address=address)
    chosen = choose_executor(on_dask, APP)
    assert chosen is not NativeExecutor
    assert chosen.args == ("dask", address, APP, None)  # type: ignore[attr-defined]


def test_queue_overrides_the_executor_of_the_worker() -> None:
    settings = load_worker_settings(queues=["mail"], executor="dask", queue_executors=BY_QUEUE)
    assert choose_executor(settings, None) is NativeExecutor


@pytest.mark.parametrize("queues", [["gpu", "mail"], ["reports", "other"]])
def test_queues_with_different_executors_are_refused(queues: list[str]) -> None:
    settings = load_worker_settings(queues=queues, queue_executors=BY_QUEUE)
    with raises_code("worker.executor.ambiguous") as caught:
        choose_executor(settings, APP)
    assert f"{queues[0]}=dask" in str(caught.value)
    assert isinstance(caught.value, Invalid)
    assert caught.value.remedy is not None
    assert "--queues" in caught.value.remedy


def test_executors_of_queues_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_WORKER_QUEUE_EXECUTORS", "gpu=dask, mail=native")
    monkeypatch.setenv("TENUTO_WORKER_QUEUES", "mail")
    settings, chosen = load_worker(None, None, {})
    assert settings.queue_executors == {"gpu": "dask", "mail": "native"}
    assert chosen is NativeExecutor


def test_cluster_without_address_app_or_known_name_is_refused() -> None:
    with raises_code("worker.executor.address_missing"):
        choose_executor(load_worker_settings(queues=["gpu"], queue_executors=BY_QUEUE), APP)
    with raises_code("worker.executor.app_missing"):
        cluster_executor("dask", "tcp://127.0.0.1:8786", None)
    with raises_code("worker.executor.unknown"):
        cluster_executor("spark", "spark://127.0.0.1", APP)
