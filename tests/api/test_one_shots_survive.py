"""One-shots across kill -9 of everything, the database included: a client sees them again, to their very end."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from tests.cli.conftest import Service, Shell, embedded_home, open_shell
from tests.support.servers import is_locked, kill, processes_of
from tests.support.waiting import eventually_here

__all__ = ["embedded_home", "open_shell"]


class Client:
    """Somebody who knows the address and the key, and nothing else."""

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
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None

    def create(self, at: datetime, message: str) -> str:
        body = {"exec_at": at.isoformat(), "prompt_type": "log.append", "payload": {"message": message}}
        status, answer = self("POST", "/api/schedule", body)
        assert status == 202
        id: str = answer["transaction_id"]
        return id

    def ended(self, id: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            found: dict[str, Any] = self("GET", f"/api/schedule/{id}/status?history=true")[1]
            return found if "ended_at" in found else None

        told: dict[str, Any] = eventually_here(look, timeout=30)
        return told


def up(shell: Shell, home: Path) -> tuple[Service, Client]:
    """Everything in one process, and somebody who calls it."""
    service = shell.start("up", "--port", "0", "--name", "one")
    address = service.until("http://").split()[-1]
    service.until("stop with Ctrl-C")
    return service, Client(address, (home / "admin.key").read_text().strip())


def kill_all(service: Service, home: Path) -> None:
    """The service, the server and whoever looks after it."""
    for process in [psutil.Process(service.process.pid), *processes_of(home)]:
        kill(process)
    service.process.wait(timeout=20)
    eventually_here(lambda: not is_locked(home, "keeper"))


def test_one_shots_survive_the_death_of_everything_and_what_fell_due_meanwhile_runs_at_once(
    open_shell: Callable[..., Shell], embedded_home: Path
) -> None:
    shell = open_shell(TENUTO_HOME=str(embedded_home), TENUTO_WORKER_POLL_SECONDS="60")  # nothing is found by chance
    service, client = up(shell, embedded_home)
    now = datetime.now(UTC)
    far = client.create(now + timedelta(days=30 * 365), "far")
    doomed = client.create(now + timedelta(days=2), "doomed")
    meanwhile = client.create(due := datetime.now(UTC) + timedelta(seconds=1), "meanwhile")
    kill_all(service, embedded_home)

    eventually_here(lambda: datetime.now(UTC) > due + timedelta(milliseconds=100))
    service, client = up(shell, embedded_home)
    assert client.ended(meanwhile)["runtimeStatus"] == "Completed"
    listed = client("GET", "/api/schedule")[1]
    assert list(listed) == [doomed, far]
    assert listed[far]["exec_at_utc"][:4] == str((now + timedelta(days=30 * 365)).year)
    at = datetime.now(UTC) + timedelta(seconds=1)
    told = client.ended(client.create(at, "on time"))
    assert timedelta(0) <= datetime.fromisoformat(told["started_at"]) - at < timedelta(seconds=20)
    assert [event["event"] for event in told["history"]] == ["Created", "Scheduled", "Started", "Completed"]
    assert client("DELETE", f"/api/schedule/{doomed}") == (204, None)
    assert client("DELETE", "/api/schedule")[1] == {"terminated": [far], "total": 1, "stopping": []}
    assert client("GET", "/api/schedule")[1] == {}
    assert client("GET", f"/api/schedule/{far}/status")[1]["runtimeStatus"] == "Terminated"
    assert service.stop() == 0
