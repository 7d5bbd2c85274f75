"""One-shots survive kill -9 of all processes including the database."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cli.conftest import Service, Shell, embedded_home, open_shell
from tests.support.servers import is_locked, kill, processes_of
from tests.support.waiting import eventually_blocking

__all__ = ["embedded_home", "open_shell"]


class Client:
    """HTTP client with the address and the API key."""

    def __init__(self, address: str, key: str) -> None:
        self._address = address.rstrip("/")
        self._key = key

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            self._address + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            text = response.read()
            return response.status, json.loads(text) if text else None

    def create(self, at: datetime, message: str) -> str:
        body = {"exec_at": at.isoformat(), "prompt_type": "log.append", "payload": {"message": message}}
        status, response = self("POST", "/api/schedule", body)
        assert status == 202
        id: str = response["transaction_id"]
        return id

    def wait_until_ended(self, id: str) -> dict[str, Any]:
        def find_ended() -> dict[str, Any] | None:
            found: dict[str, Any] = self("GET", f"/api/schedule/{id}/status?history=true")[1]
            return found if "ended_at" in found else None

        status: dict[str, Any] = eventually_blocking(find_ended, timeout=30)
        return status


def start_all(shell: Shell, home: Path) -> tuple[Service, Client]:
    """Start all services in one process; return the process and a client."""
    service = shell.start_service("up", "--port", "0", "--name", "one")
    address = service.wait_for_line("http://").split()[-1]
    service.wait_for_line("stop with Ctrl-C")
    return service, Client(address, (home / "admin.key").read_text().strip())


def kill_all(service: Service, home: Path) -> None:
    """Kill the services, the database server and its supervisor."""
    for process in [psutil.Process(service.process.pid), *processes_of(home)]:
        kill(process)
    service.process.wait(timeout=20)
    eventually_blocking(lambda: not is_locked(home, "supervisor"))


@pytest.mark.slow
def test_one_shots_survive_a_crash_of_all_processes_and_missed_ones_run_immediately(
    open_shell: Callable[..., Shell], embedded_home: Path
) -> None:
    shell = open_shell(TENUTO_HOME=str(embedded_home), TENUTO_WORKER_POLL_SECONDS="60")  # polls cannot start them
    service, client = start_all(shell, embedded_home)
    now = datetime.now(UTC)
    far = client.create(now + timedelta(days=30 * 365), "far")
    doomed = client.create(now + timedelta(days=2), "doomed")
    missed = client.create(due := datetime.now(UTC) + timedelta(seconds=1), "missed")
    kill_all(service, embedded_home)

    eventually_blocking(lambda: datetime.now(UTC) > due + timedelta(milliseconds=100))
    service, client = start_all(shell, embedded_home)
    assert client.wait_until_ended(missed)["runtimeStatus"] == "Completed"
    listed = client("GET", "/api/schedule")[1]
    assert list(listed) == [doomed, far]
    assert listed[far]["exec_at_utc"][:4] == str((now + timedelta(days=30 * 365)).year)
    at = datetime.now(UTC) + timedelta(seconds=1)
    status = client.wait_until_ended(client.create(at, "on time"))
    assert timedelta(0) <= datetime.fromisoformat(status["started_at"]) - at < timedelta(seconds=20)
    assert [event["event"] for event in status["history"]] == ["Created", "Scheduled", "Started", "Completed"]
    assert client("DELETE", f"/api/schedule/{doomed}") == (204, None)
    assert client("DELETE", "/api/schedule")[1] == {"terminated": [far], "total": 1, "stopping": []}
    assert client("GET", "/api/schedule")[1] == {}
    assert client("GET", f"/api/schedule/{far}/status")[1]["runtimeStatus"] == "Terminated"
    assert service.stop() == 0
