"""Services and their commands: start, stop by signal, health check, migration."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from tenuto.clock import monotonic_seconds
from tenuto.postgres import migrator
from tenuto.postgres.database import Database
from tests.cli.conftest import Shell


def test_worker_stops_on_a_signal(shell: Shell) -> None:
    worker = shell.start_service(
        "worker", "--name", "mail-1", "--queues", "default,slow", "--slots", "7", "--grace", "20"
    )
    worker.wait_for_line("worker started")
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
    assert [each["state"] for each in shell("worker", "list", "--all", "-o", "json").json] == ["ended"]
    assert shell("health", "worker").code == 1


def test_worker_hands_its_tasks_back_on_the_second_signal(shell: Shell) -> None:
    worker = shell.start_service("worker", "--queues", "slow", "--grace", "1000")
    worker.wait_for_line("worker started")
    task_id = shell("run", "last", "-q").out.strip()
    worker.wait_for_line("under way")
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for_line("drain started")
    assert worker.stop(signal.SIGTERM) == 0
    shown = shell("task", "show", task_id, "-o", "json").json
    assert [attempt["reason"] for attempt in shown["attempts"]] == ["handed_back", None]
    assert shown["task"]["state"] == "queued"


def test_worker_rejects_a_name_in_use(shell: Shell) -> None:
    shell.start_service("worker", "--name", "one").wait_for_line("worker started")
    second = shell("worker", "--name", "one")
    assert second.code == 7
    assert "a worker named 'one' is already running on this machine" in second.err
    assert "--name" in second.err.partition("  try: ")[2]


def test_scheduler_runs_without_an_app(shell: Shell) -> None:
    del shell.environment["TENUTO_APP"]
    scheduler = shell.start_service("scheduler", "--name", "s1")
    scheduler.wait_for_line("scheduler started")
    assert shell("health", "scheduler", "--name", "s1").code == 0
    (listed,) = shell("worker", "list", "-o", "json").json
    assert (listed["service"], listed["name"]) == ("scheduler", "s1")
    assert scheduler.stop(signal.SIGINT) == 0


def test_worker_without_jobs_says_so_and_runs_built_in_steps(shell: Shell) -> None:
    del shell.environment["TENUTO_APP"]
    (shell.folder / "empty.py").write_text("from tenuto import Tenuto\napp = Tenuto()\n")
    shell.start_service("worker", "--app", "empty:app", "--name", "w1").wait_for_line(
        "empty:app has no jobs; register functions"
    )
    worker = shell.start_service("worker", "--name", "w2")
    worker.wait_for_line("no app is named, so only built-in steps run; name one with --app MODULE:OBJECT")
    worker.wait_for_line("worker started")
    step = 'note:{"log": "orders", "message": "counted"} kind=log.append'
    added = shell("schedule", "add", "stock", "--manual", "--step", step)
    assert added.code == 0, added.err
    ran = shell("schedule", "run", "stock", "--wait", "--timeout", "60")
    assert ran.code == 0, ran.err
    assert [entry["message"] for entry in shell("log", "show", "orders", "-o", "json").json] == ["counted"]
    assert worker.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("settings", "setting", "problem"),
    [
        ({"TENUTO_WEB_TLS_CERTIFICATE": "/nowhere.crt"}, "web_tls_certificate", "No such file"),
        ({"TENUTO_WEB_TLS_KEY": "/nowhere.key"}, "web_tls_certificate", "is not"),
    ],
)
def test_web_service_names_the_wrong_tls_setting(
    shell: Shell, settings: dict[str, str], setting: str, problem: str
) -> None:
    ended = shell("web", **settings)
    assert (ended.code, ended.out) == (2, "")
    assert setting in ended.err
    assert problem in ended.err


@pytest.mark.parametrize("service", ["web", "up"])
def test_web_service_reports_a_taken_port_before_it_creates_the_first_key(shell: Shell, service: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ended = shell(service, "--port", str(taken.getsockname()[1]))
    assert (ended.code, "cannot listen on 127.0.0.1:" in ended.err) == (7, True), ended.err
    remedy = ended.err.partition("  try: ")[2]
    assert all(part in remedy for part in ("--port N", "TENUTO_WEB_PORT", "--no-web")), ended.err
    started = shell.start_service(service, "--port", "0")
    address = started.wait_for_line("web        ").split()[-1]
    assert started.wait_for_line("administrator key in ").endswith("admin.key\n")
    login = shell("login")
    assert login.out.startswith(f"{address}/login?link="), login.err
    assert started.stop(signal.SIGTERM) == 0


def test_services_use_uvloop(shell: Shell) -> None:
    pytest.importorskip("uvloop")
    (shell.folder / "loop.py").write_text(
        "import asyncio, sys\nfrom tasks import app\n"
        "connect = app.connect\n"
        "async def reporting_connect(**options):\n"
        "    print('loop:', type(asyncio.get_running_loop()).__module__, file=sys.stderr, flush=True)\n"
        "    return await connect(**options)\n"
        "app.connect = reporting_connect\n"
    )
    assert "uvloop" in shell.start_service("worker", "--app", "loop:app").wait_for_line("loop:")


# ---- all services in one process


@pytest.mark.slow
def test_up_runs_an_app_on_an_embedded_database(open_shell: Callable[..., Shell], embedded_home: Path) -> None:
    shell = open_shell(TENUTO_HOME=str(embedded_home), TENUTO_APP="tasks:app")
    services = shell.start_service("up", "--queues", "default,slow")
    services.wait_for_line(f"creating an embedded PostgreSQL in {embedded_home}")
    assert f"embedded PostgreSQL in {embedded_home}/postgres" in services.wait_for_line("database  ")
    assert "queues default, slow" in services.wait_for_line("worker ")
    assert "double, hopeless, last, third_time" in services.wait_for_line("jobs ")
    services.wait_for_line("worker started")
    assert shell("run", "double", "--input", '{"n": 4}', "--wait", "--timeout", "60").out == "8\n"
    listed = {each["service"] for each in shell("worker", "list", "-o", "json").json}
    assert listed == {"worker", "scheduler"}
    assert [shell("health", service).code for service in ("worker", "scheduler", "web")] == [0, 0, 0]
    examined = shell("doctor", "-o", "json")
    assert (examined.code, examined.json["healthy"]) == (0, True)
    assert {check["severity"] for check in examined.json["checks"]} == {"ok"}
    assert services.stop(signal.SIGTERM) == 0
    assert services.process.stdout is not None
    assert services.process.stdout.read() == ""


def test_up_without_an_app_runs_no_jobs_and_says_so(shell: Shell) -> None:
    del shell.environment["TENUTO_APP"]
    waiting = shell("run", "double", "--app", "tasks:app", "--input", '{"n": 1}', "-q").out.strip()
    services = shell.start_service("up")
    services.wait_for_line("name one with --app MODULE:OBJECT")
    services.wait_for_line("scheduler started")
    assert services.stop() == 0
    assert shell("task", "show", waiting, "-o", "json").json["task"]["state"] == "queued"


@pytest.mark.slow
def test_up_demo_runs_example_schedules_and_prints_a_link_that_logs_in(shell: Shell, url: str) -> None:
    services = shell.start_service("up", "--demo", "--no-browser", "--database", url, "--port", "0")
    services.wait_for_line("created 7 days of example history")
    link = services.wait_for_line("dashboard  ").split()[1]
    with urllib.request.urlopen(link, timeout=10) as page:
        assert "Log in" in page.read().decode()
    services.wait_for_line("stop with Ctrl-C")
    assert "Nightly HR Sync" in shell("schedule", "list", "--database", url).out
    assert services.stop() == 0


def test_up_demo_has_its_own_app(shell: Shell) -> None:
    ended = shell("up", "--demo", "--app", "tasks:app")
    assert (ended.code, "--app cannot be combined with --demo" in ended.err) == (2, True), ended.err


def test_up_prints_no_password_and_names_the_jobs_of_queues_that_it_does_not_serve(shell: Shell, url: str) -> None:
    head, at, tail = url.partition("@")
    services = shell.start_service("up", "--database", f"{head}:se%20cret{at}{tail}")
    assert "cret" not in services.wait_for_line("database  ")
    services.wait_for_line("stop with Ctrl-C")
    (unserved,) = [line for line in services.lines if line.startswith("not served ")] or [""]
    assert "(queue slow)" in unserved
    assert "--queues default,slow" in unserved
    assert services.stop() == 0


# ---- health


def test_health_reports_missing_and_stale_files(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "home" / "run" / "worker-w1.health"
    none = shell("health", "worker")
    assert none.code == 1
    assert "no worker runs on this machine" in none.err

    file.parent.mkdir(parents=True)
    file.write_text(datetime.now(UTC).isoformat())
    assert shell("health", "worker").code == 0
    assert shell("health", "worker", "--name", "w2").code == 1
    assert shell("health", "scheduler").code == 1

    file.write_text((datetime.now(UTC) - timedelta(seconds=61)).isoformat())
    stale = shell("health", "worker", "-o", "json")
    assert (stale.code, stale.json[0]["name"], stale.json[0]["healthy"]) == (1, "w1", False)
    assert "worker w1 has not updated its health file in time" in stale.err
    file.write_text("not a time")
    assert shell("health", "worker").code == 1


def test_health_ignores_the_file_of_a_crashed_process_while_another_is_healthy(shell: Shell, tmp_path: Path) -> None:
    shell.start_service("worker", "--name", "p1").wait_for_line("worker started")
    crashed = shell.start_service("worker", "--name", "p2")
    crashed.wait_for_line("worker started")
    crashed.stop(signal.SIGKILL)
    for file in (tmp_path / "home" / "run").glob("worker-p2.health"):
        file.write_text(f"{datetime.now(UTC) - timedelta(minutes=5)}\n{os.uname().nodename}\n")
    ended = shell("health", "worker")
    assert ended.code == 0, ended.err
    assert "○ ended  p2" in ended.out
    assert shell("health", "worker", "--name", "p2").code == 1


def test_health_reports_a_worker_that_hangs_beside_a_healthy_one(shell: Shell, tmp_path: Path) -> None:
    shell.start_service("worker", "--name", "p1").wait_for_line("worker started")
    hanging = shell.start_service("worker", "--name", "p2")
    hanging.wait_for_line("worker started")
    hanging.process.send_signal(signal.SIGSTOP)
    (tmp_path / "home" / "run" / "worker-p2.health").write_text(
        f"{datetime.now(UTC) - timedelta(minutes=5)}\n{os.uname().nodename}\n"
    )
    ended = shell("health", "worker")
    assert (ended.code, "worker p2 has not updated its health file in time" in ended.err) == (1, True)
    hanging.process.send_signal(signal.SIGCONT)


def test_health_needs_neither_database_nor_app(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "home" / "run" / "scheduler-s1.health"
    file.parent.mkdir(parents=True)
    file.write_text(datetime.now(UTC).isoformat())
    ended = shell("health", "scheduler", TENUTO_DATABASE="postgresql://127.0.0.1:1/none", TENUTO_APP="nowhere:app")
    assert ended.code == 0


def test_health_prints_a_line_for_each_service(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "run"
    folder.mkdir(parents=True)
    (folder / "worker-a.health").write_text(datetime.now(UTC).isoformat())
    (folder / "worker-b.health").write_text((datetime.now(UTC) - timedelta(minutes=2)).isoformat())
    first, second = shell("health", "worker").out.splitlines()
    assert first.startswith("● alive  a  last seen ")
    assert second.startswith("✕ stale  b  last seen 2 min")


@pytest.mark.parametrize(
    "arguments",
    [[], ["woker"], ["worker", "worker"], ["worker", "--name"], ["worker", "-o", "xml"], ["worker", "--what"]],
)
def test_health_rejects_invalid_arguments_like_any_command(shell: Shell, arguments: list[str]) -> None:
    ended = shell("health", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "--help" in ended.err.partition("  try: tenuto ")[2]
    assert len(ended.err.splitlines()) == 2


def test_service_that_fails_to_start_leaves_no_health_file(shell: Shell, tmp_path: Path) -> None:
    assert shell("worker", "--database", "nonsense://x").code == 8
    assert list((tmp_path / "home" / "run").glob("*.health")) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_worker_waiting_for_its_database_is_healthy_and_can_be_stopped(
    how: signal.Signals, shell: Shell, tmp_path: Path
) -> None:
    started_at = monotonic_seconds()
    worker = shell.start_service("worker", "--database", "postgresql://ana:secret@127.0.0.1:1/none")
    line = worker.wait_for_line("connection postponed")
    assert monotonic_seconds() - started_at < 8, "at once, on a loaded machine too"
    assert "no server listens on 127.0.0.1 port 1" in line
    assert "server='127.0.0.1 port 1'" in line
    assert "report_seconds=30" in line
    assert "secret" not in line
    assert shell("health", "worker").code == 0
    assert worker.stop(how) == 0
    assert list((tmp_path / "home" / "run").glob("*.health")) == []


# ---- migrate


def test_database_without_schema_is_reported_with_remedy(shell: Shell, empty_url: str) -> None:
    ended = shell("task", "list", "--database", empty_url)
    assert ended.code == 8
    assert "the database has no Tenuto schema" in ended.err
    assert "tenuto migrate" in ended.err.partition("  try: ")[2]
    examined = shell("doctor", "--database", empty_url, "-o", "json")
    assert (examined.code, examined.json["healthy"]) == (1, False)
    assert examined.json["checks"][-1]["remedy"] == "run `tenuto migrate`"


async def test_migrate_may_run_concurrently(shell: Shell, empty_url: str) -> None:
    ended = await asyncio.gather(
        *(asyncio.to_thread(shell, "migrate", "--database", empty_url, "-o", "json") for _ in range(3))
    )
    assert [result.code for result in ended] == [0, 0, 0]
    assert sorted(len(result.json["applied"]) for result in ended)[:2] == [0, 0]
    assert shell("task", "list", "--database", empty_url, "-o", "json").json == []
    assert "is up to date" in shell("migrate", "--database", empty_url).err


async def test_migrate_print_creates_the_same_schema(shell: Shell, empty_url: str) -> None:
    del shell.environment["TENUTO_APP"]
    printed = shell("migrate", "--print")
    assert (printed.code, printed.err) == (0, "")
    connection = await asyncpg.connect(empty_url)
    await connection.execute(printed.out)
    await connection.close()
    assert shell("migrate", "--database", empty_url, "-o", "json").json == {"applied": []}
    assert shell("doctor", "--database", empty_url).code == 5, "only warnings: the server runs without fsync"


async def test_worker_whose_registration_expired_ends_with_an_error(shell: Shell, url: str) -> None:
    worker = shell.start_service("worker", "--name", "gone", "--lease", "2")
    await asyncio.to_thread(worker.wait_for_line, "worker started")
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE tenuto.workers SET ended_at = now()")
    await connection.close()
    line = await asyncio.to_thread(worker.wait_for_line, "error: ")
    assert "worker gone was declared dead" in line
    assert await asyncio.to_thread(worker.process.wait, 60) == 1


def test_doctor_with_warnings_ends_with_5_and_problems_shows_only_them(shell: Shell) -> None:
    shell("schedule", "add", "nightly", "--cron", "0 2 * * *", "--step", 'double:{"n": 1}')
    ended = shell("doctor", "--problems")
    assert ended.code == 5, ended.err
    assert "no scheduler is running: 1 schedule will not fire (nightly)" in ended.out
    assert "✓" not in ended.out
    assert "✓" in shell("doctor").out
    document = shell("doctor", "--problems", "-o", "json").json
    # The server of the tests runs without fsync.
    assert [each["name"] for each in document["checks"]] == ["server", "scheduler_missing"]
    shell("schedule", "disable", "nightly")
    assert "nightly" not in shell("doctor", "--problems").out


def test_lists_and_disable_name_what_does_not_run(shell: Shell) -> None:
    shell("manifest", "add", "import-hr", "--job", "hopeless", "--every", "1h")
    shell("manifest", "add", "import-ad", "--job", "hopeless", "--after", "import-hr")
    assert (
        "import-ad runs after it, and not at all while it is disabled" in shell("manifest", "disable", "import-hr").err
    )
    assert "waits for import-hr, which is disabled" in shell("manifest", "list").out
    assert "waits for import-hr, which is disabled" in shell("manifest", "show", "import-ad").out
    listed = {each["external_id"]: each["obstacles"] for each in shell("manifest", "list", "-o", "json").json}
    assert {"kind": "dependency_disabled", "subject": "import-hr"} in listed["import-ad"]
    shell("run", "last")
    assert "▲ none" in shell("queue", "list").out


async def test_migrate_status_and_dry_run_begin_at_the_present_version(
    shell: Shell, empty_url: str, tmp_path: Path
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    migrations = sorted(migrator.core_component().directory.glob("*.sql"))
    for file in migrations[:13]:
        (older / file.name).write_text(file.read_text())
    database = await Database.open(empty_url)
    try:
        await migrator.migrate(database, migrator.Component("tenuto", older))
    finally:
        await database.close()
    at = ("--database", empty_url)
    (core,) = [each for each in shell("migrate", "--status", *at, "-o", "json").json if each["component"] == "tenuto"]
    assert (core["version"], core["newest_version"], len(core["pending"])) == (
        13,
        len(migrations),
        len(migrations) - 13,
    )
    assert "▲ behind" in shell("migrate", "--status", *at).out
    script = shell("migrate", "--dry-run", *at).out
    assert "-- component tenuto, from version 13" in script
    assert "0014 index_manifest_failures" in script
    assert "CREATE TABLE tenuto.tasks" not in script
    assert shell("migrate", "--status", *at, "-o", "json").json[0]["version"] == 13, "nothing was changed"
    connection = await asyncpg.connect(empty_url)
    try:
        await connection.execute(script)
    finally:
        await connection.close()
    assert shell("migrate", "--status", *at, "-o", "json").json[0]["pending"] == []
    assert "✓ current" in shell("migrate", "--status", *at).out
    assert shell("migrate", "--dry-run", *at).out == "-- the schema is up to date\n"
    assert shell("migrate", *at, "-o", "json").json == {"applied": []}


def test_health_reports_a_killed_worker_at_once(shell: Shell) -> None:
    killed = shell.start_service("worker", "--name", "p1")
    killed.wait_for_line("worker started")
    assert shell("health", "worker").code == 0
    killed.stop(signal.SIGKILL)
    ended = shell("health", "worker")
    assert (ended.code, "○ ended  p1" in ended.out) == (1, True)
    assert "worker p1 has ended without an orderly shutdown" in ended.err
    named = shell("health", "worker", "--name", "p1").err
    assert "shutdown" in named
    assert "no other worker" not in named, "only one was asked for"
    (found,) = shell("health", "worker", "-o", "json").json
    assert (found["healthy"], found["has_ended"]) == (False, True)
    shell.start_service("worker", "--name", "p1").wait_for_line("worker started")
    assert shell("health", "worker").code == 0
