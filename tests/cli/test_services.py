"""Services as an operator meets them: they start, work, leave on a signal, and can be asked how they are."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from tests.cli.conftest import Shell


def test_a_worker_leaves_in_good_order_on_a_signal(shell: Shell) -> None:
    worker = shell.start("worker", "--name", "mail-1", "--queues", "default,slow", "--slots", "7", "--grace", "20")
    worker.until("worker ready")
    assert shell("health", "worker").code == 0
    (listed,) = shell("worker", "list", "-o", "json").json
    assert (listed["name"], listed["queues"], listed["slots"], listed["state"]) == (
        "mail-1",
        ["default", "slow"],
        7,
        "alive",
    )
    assert shell("run", "double", "--input", '{"n": 1}', "--wait", "--timeout", "60").out == "2\n"
    assert worker.stop(signal.SIGTERM) == 0
    assert shell("worker", "list", "-o", "json").json == []
    assert [one["state"] for one in shell("worker", "list", "--all", "-o", "json").json] == ["ended"]
    assert shell("health", "worker").code == 1


def test_a_worker_told_twice_hands_its_work_back(shell: Shell) -> None:
    worker = shell.start("worker", "--queues", "slow", "--grace", "1000")
    worker.until("worker ready")
    task_id = shell("run", "last", "-q").out.strip()
    worker.until("under way")
    worker.process.send_signal(signal.SIGTERM)
    worker.until("draining")
    assert worker.stop(signal.SIGTERM) == 0
    shown = shell("task", "show", task_id, "-o", "json").json
    assert [attempt["reason"] for attempt in shown["attempts"]] == ["handed_back", None]
    assert shown["task"]["state"] == "queued"


def test_two_workers_do_not_share_a_name(shell: Shell) -> None:
    shell.start("worker", "--name", "one").until("worker ready")
    second = shell("worker", "--name", "one")
    assert second.code == 7
    assert "a worker named one is running on this machine already" in second.err
    assert "--name" in second.err.partition("  try: ")[2]


def test_a_scheduler_runs_without_an_app(shell: Shell) -> None:
    del shell.environment["TENUTO_APP"]
    scheduler = shell.start("scheduler", "--name", "s1")
    scheduler.until("scheduler ready")
    assert shell("health", "scheduler", "--name", "s1").code == 0
    (listed,) = shell("worker", "list", "-o", "json").json
    assert (listed["service"], listed["name"]) == ("scheduler", "s1")
    assert scheduler.stop(signal.SIGINT) == 0


def test_a_worker_without_jobs_says_so_and_runs_the_steps_that_need_none(shell: Shell) -> None:
    del shell.environment["TENUTO_APP"]
    (shell.folder / "empty.py").write_text("from tenuto import Tenuto\napp = Tenuto()\n")
    shell.start("worker", "--app", "empty:app", "--name", "w1").until("empty:app has no jobs; register functions")
    worker = shell.start("worker", "--name", "w2")
    worker.until("no jobs of your own are known here; name your app with --app MODULE:OBJECT")
    worker.until("worker ready")
    step = 'note:{"log": "orders", "message": "counted"} kind=log.append'
    added = shell("schedule", "add", "stock", "--manual", "--step", step)
    assert added.code == 0, added.err
    ran = shell("schedule", "run", "stock", "--wait", "--timeout", "60")
    assert ran.code == 0, ran.err
    assert [entry["message"] for entry in shell("log", "show", "orders", "-o", "json").json] == ["counted"]
    assert worker.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"TENUTO_WEB_TLS_CERTIFICATE": "/nowhere.crt"}, "web_tls_certificate", "No such file"),
        ({"TENUTO_WEB_TLS_KEY": "/nowhere.key"}, "web_tls_certificate", "is missing"),
    ],
)
def test_a_web_service_without_its_certificate_says_which_setting_is_wrong(
    shell: Shell, settings: dict[str, str], field: str, words: str
) -> None:
    ended = shell("web", **settings)
    assert (ended.code, ended.out) == (2, "")
    assert f"error: {field}: " in ended.err
    assert words in ended.err


@pytest.mark.parametrize("service", ["web", "up"])
def test_a_taken_port_is_told_with_the_ways_out_and_the_key_is_made_when_somebody_hears_of_it(
    shell: Shell, service: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = shell(service, "--port", str(taken.getsockname()[1]))
    assert (ended.code, "cannot listen on 127.0.0.1:" in ended.err) == (7, True), ended.err
    remedy = ended.err.partition("  try: ")[2]
    assert all(word in remedy for word in ("--port N", "TENUTO_WEB_PORT", "--no-web")), ended.err
    started = shell.start(service, "--port", "0")
    assert started.until("an administrator's, in ").endswith("admin.key\n")
    assert started.stop(signal.SIGTERM) == 0


def test_services_use_the_faster_loop(shell: Shell) -> None:
    pytest.importorskip("uvloop")
    (shell.folder / "loop.py").write_text(
        "import asyncio, sys\nfrom tasks import app\n"
        "connect = app.connect\n"
        "async def telling(**given):\n"
        "    print('loop:', type(asyncio.get_running_loop()).__module__, file=sys.stderr, flush=True)\n"
        "    return await connect(**given)\n"
        "app.connect = telling\n"
    )
    assert "uvloop" in shell.start("worker", "--app", "loop:app").until("loop:")


# ---- everything at once, on an embedded database


def test_up_serves_an_app_on_a_database_of_its_own(open_shell: Callable[..., Shell], embedded_home: Path) -> None:
    shell = open_shell(TENUTO_HOME=str(embedded_home), TENUTO_APP="tasks:app")
    everything = shell.start("up", "--queues", "default,slow")
    everything.until(f"making an embedded PostgreSQL in {embedded_home}")
    assert f"embedded PostgreSQL in {embedded_home}/postgres" in everything.until("database  ")
    assert "queues default, slow" in everything.until("worker ")
    assert "double, hopeless, last, third_time" in everything.until("jobs ")
    everything.until("worker ready")
    assert shell("run", "double", "--input", '{"n": 4}', "--wait", "--timeout", "60").out == "8\n"
    services = {one["service"] for one in shell("worker", "list", "-o", "json").json}
    assert services == {"worker", "scheduler"}
    assert [shell("health", service).code for service in ("worker", "scheduler")] == [0, 0]
    examined = shell("doctor", "-o", "json")
    assert (examined.code, examined.json["healthy"]) == (0, True)
    assert {check["verdict"] for check in examined.json["checks"]} == {"ok"}
    assert everything.stop(signal.SIGTERM) == 0
    assert everything.process.stdout is not None
    assert everything.process.stdout.read() == ""


def test_up_without_an_app_runs_nothing_and_says_so(shell: Shell) -> None:
    del shell.environment["TENUTO_APP"]
    waiting = shell("run", "double", "--app", "tasks:app", "--input", '{"n": 1}', "-q").out.strip()
    everything = shell.start("up")
    everything.until("name your app with --app MODULE:OBJECT")
    everything.until("scheduler ready")
    assert everything.stop() == 0
    assert shell("task", "show", waiting, "-o", "json").json["task"]["state"] == "queued"


def test_a_password_is_not_shown(shell: Shell, url: str) -> None:
    head, at, tail = url.partition("@")
    everything = shell.start("up", "--database", f"{head}:se%20cret{at}{tail}")
    assert "cret" not in everything.until("database  ")
    assert everything.stop() == 0


# ---- health


def test_health_goes_stale_with_its_file(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "home" / "run" / "worker-w1.health"
    none = shell("health", "worker")
    assert none.code == 1
    assert "no worker runs here" in none.err

    file.parent.mkdir(parents=True)
    file.write_text(datetime.now(UTC).isoformat())
    assert shell("health", "worker").code == 0
    assert shell("health", "worker", "--name", "w2").code == 1
    assert shell("health", "scheduler").code == 1

    file.write_text((datetime.now(UTC) - timedelta(seconds=61)).isoformat())
    stale = shell("health", "worker", "-o", "json")
    assert (stale.code, stale.json[0]["name"], stale.json[0]["healthy"]) == (1, "w1", False)
    assert "worker w1 has given no sign of life for too long" in stale.err
    file.write_text("what is this")
    assert shell("health", "worker").code == 1


def test_health_asks_neither_the_database_nor_the_app(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "home" / "run" / "scheduler-s1.health"
    file.parent.mkdir(parents=True)
    file.write_text(datetime.now(UTC).isoformat())
    ended = shell("health", "scheduler", TENUTO_DATABASE="postgresql://127.0.0.1:1/none", TENUTO_APP="nowhere:app")
    assert ended.code == 0


def test_health_says_of_each_service_how_it_is(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "run"
    folder.mkdir(parents=True)
    (folder / "worker-a.health").write_text(datetime.now(UTC).isoformat())
    (folder / "worker-b.health").write_text((datetime.now(UTC) - timedelta(minutes=2)).isoformat())
    first, second = shell("health", "worker").out.splitlines()
    assert first.startswith("● alive  a  heard of ")
    assert second.startswith("✕ stale  b  heard of 2 min")


@pytest.mark.parametrize(
    "words",
    [[], ["woker"], ["worker", "worker"], ["worker", "--name"], ["worker", "-o", "xml"], ["worker", "--what"]],
)
def test_a_health_check_that_is_mistyped_is_refused_like_any_command(shell: Shell, words: list[str]) -> None:
    ended = shell("health", *words)
    assert (ended.code, ended.out) == (2, "")
    assert "--help" in ended.err.partition("  try: tenuto ")[2]


def test_a_service_that_cannot_start_leaves_no_sign_of_life(shell: Shell, tmp_path: Path) -> None:
    assert shell("worker", "--database", "nonsense://x").code == 8
    assert list((tmp_path / "home" / "run").glob("*.health")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_waits_for_its_database_is_well_and_can_be_stopped(
    how: signal.Signals, shell: Shell, tmp_path: Path
) -> None:
    shell.environment["TENUTO_CONNECT_SECONDS"] = "0.3"  # until it says that it waits
    worker = shell.start("worker", "--database", "postgresql://127.0.0.1:1/none")
    worker.until("database not ready")
    assert shell("health", "worker").code == 0
    assert worker.stop(how) == 0
    assert list((tmp_path / "home" / "run").glob("*.health")) == []


# ---- migrate


def test_a_database_without_a_schema_says_how_to_get_one(shell: Shell, empty_url: str) -> None:
    ended = shell("task", "list", "--database", empty_url)
    assert ended.code == 8
    assert "has no Tenuto schema yet" in ended.err
    assert "tenuto migrate" in ended.err.partition("  try: ")[2]
    examined = shell("doctor", "--database", empty_url, "-o", "json")
    assert (examined.code, examined.json["healthy"]) == (1, False)
    assert examined.json["checks"][-1]["remedy"] == "run `tenuto migrate`"


async def test_migrating_twice_at_once_is_safe(shell: Shell, empty_url: str) -> None:
    ended = await asyncio.gather(
        *(asyncio.to_thread(shell, "migrate", "--database", empty_url, "-o", "json") for _ in range(3))
    )
    assert [one.code for one in ended] == [0, 0, 0]
    assert sorted(len(one.json["applied"]) for one in ended)[:2] == [0, 0]
    assert shell("task", "list", "--database", empty_url, "-o", "json").json == []
    assert "is up to date" in shell("migrate", "--database", empty_url).err


async def test_the_printed_script_makes_the_same_schema(shell: Shell, empty_url: str) -> None:
    del shell.environment["TENUTO_APP"]
    printed = shell("migrate", "--print")
    assert (printed.code, printed.err) == (0, "")
    connection = await asyncpg.connect(empty_url)
    await connection.execute(printed.out)
    await connection.close()
    assert shell("migrate", "--database", empty_url, "-o", "json").json == {"applied": []}
    assert shell("doctor", "--database", empty_url).code == 0


async def test_a_worker_declared_dead_ends_with_an_error(shell: Shell, url: str) -> None:
    worker = shell.start("worker", "--name", "gone", "--lease", "2")
    await asyncio.to_thread(worker.until, "worker ready")
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE tenuto.workers SET ended_at = now()")
    await connection.close()
    said = await asyncio.to_thread(worker.until, "error: ")
    assert "worker gone was declared dead" in said
    assert await asyncio.to_thread(worker.process.wait, 60) == 1
