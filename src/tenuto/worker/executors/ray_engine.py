"""Runs attempts on a Ray cluster."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

# Without this, Ray ends the process 60 s after the head node has failed. It must be set before Ray is loaded.
os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", "86400")

import ray
from ray._private.worker import global_worker, shutdown
from ray.exceptions import RayError, RpcError

from tenuto.worker.executors import remote_runner
from tenuto.worker.executors.attempt_messages import LaunchRequest
from tenuto.worker.executors.cluster import EngineUnavailable

ANSWER_SECONDS = 2
"""How long the head node may take to answer. Queries of Ray itself wait for it without limit."""


class RayEngine:
    """A Ray cluster. A slot is a CPU; every attempt runs in a separate process."""

    name = "ray"

    def __init__(self, address: str) -> None:
        self._address = address
        self.host = urlsplit(address if "://" in address else f"//{address}").hostname or "127.0.0.1"
        if self.host == "auto":
            self.host = "127.0.0.1"
        self._refs: dict[str, Any] = {}
        self._run: Any = None

    def connect(self) -> None:
        self.disconnect()
        try:
            ray.init(
                self._address, log_to_driver=False, configure_logging=False, include_dashboard=None,
                namespace="tenuto", ignore_reinit_error=True,
            )  # fmt: skip
        except (RayError, ConnectionError, RuntimeError, OSError) as error:
            raise EngineUnavailable(str(error)) from error
        # The address by which the other nodes know this one: the head node is often given as 127.0.0.1, or as "auto".
        node_id = ray.get_runtime_context().get_node_id()
        self.host = next(
            (str(each["NodeManagerAddress"]) for each in ray.nodes() if each["NodeID"] == node_id), self.host
        )
        self._run = ray.remote(num_cpus=1, max_retries=0)(_run_attempt)

    def count_slots(self) -> int:
        if not ray.is_initialized():
            raise EngineUnavailable("there is no connection to the head node")
        self._check_head()
        alive = [node for node in ray.nodes() if node["Alive"]]
        return sum(int(node["Resources"].get("CPU", 0)) for node in alive)

    def _check_head(self) -> None:
        try:
            # There is no public function with a time limit.
            global_worker.gcs_client.internal_kv_keys(b"tenuto", b"tenuto", ANSWER_SECONDS)
        except (RpcError, RayError) as error:
            raise EngineUnavailable(f"the head node does not answer: {error}") from error

    def submit(self, requests: Sequence[LaunchRequest]) -> None:
        if not ray.is_initialized() or self._run is None:
            raise EngineUnavailable("there is no connection to the head node")
        for request in requests:
            self._refs[request.id] = self._run.remote(request.to_json())

    def withdraw(self, id: str) -> None:
        ref = self._refs.get(id)
        if ref is not None:
            ray.cancel(ref, force=False)

    def has_ended(self, id: str, place: dict[str, Any]) -> bool:
        ref = self._refs.get(id)
        return ref is not None and bool(ray.wait([ref], timeout=0)[0])

    def force_stop(self, id: str, place: dict[str, Any]) -> bool:
        """Have Ray kill the process that runs the attempt."""
        ref = self._refs.get(id)
        if ref is not None:
            ray.cancel(ref, force=True)
        return True

    def forget(self, id: str) -> None:
        self._refs.pop(id, None)

    def abandon(self) -> None:
        """Leave out the shutdown of Ray at the end of the process, which waits for the head node without limit."""
        atexit.unregister(shutdown)

    def disconnect(self) -> None:
        self._refs.clear()
        if ray.is_initialized():
            ray.shutdown()


def _run_attempt(payload: str) -> str:
    return remote_runner.run_attempt(payload, {"ray_node": os.environ.get("RAY_NODE_ID")})
