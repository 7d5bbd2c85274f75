"""The files in deploy/ are consistent, and their commands work; no container engine is needed."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from tenuto import secret_encryption
from tenuto.cli.command_tree import build_full_tree
from tenuto.model.work.worker_states import STALE_AFTER
from tenuto.settings import Settings, WorkerSettings, load_settings
from tests.cli.conftest import Shell
from tests.support.waiting import eventually_blocking

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE_FILE = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE)
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
TENUTO_SERVICES = {name: service for name, service in COMPOSE["services"].items() if service.get("image") == "tenuto"}
VARIABLES = (
    {f"TENUTO_{name.upper()}" for name in Settings.model_fields}
    | {f"TENUTO_WORKER_{name.upper()}" for name in WorkerSettings.model_fields}
    | {"TENUTO_APP", "TENUTO_CONFIG"}
)


def parse_command(arguments: list[str], groups_of_extensions: Mapping[str, Any] | None = None) -> str:
    """Parse a command line completely without running it; return the name of the command."""
    command: Any = build_full_tree()
    name, rest, context = "tenuto", arguments, None
    while True:
        context = command.make_context(name, list(rest), parent=context)
        rest = [*getattr(context, "_protected_args", ()), *context.args]
        if not rest:
            return name
        name, rest = rest[0], rest[1:]
        command = {**command.commands, **(groups_of_extensions or {})}[name]


def instructions(keyword: str) -> list[str]:
    return re.findall(rf"^{keyword} (.+)$", DOCKERFILE, re.MULTILINE)


# --- compose --------------------------------------------------------------------------------------------------------


def test_compose_has_a_database_two_schedulers_two_workers_and_a_web_service() -> None:
    replicas = {name: service.get("deploy", {}).get("replicas", 1) for name, service in TENUTO_SERVICES.items()}
    assert replicas == {"migrate": 1, "scheduler": 2, "worker": 2, "web": 1}
    assert COMPOSE["services"]["database"]["image"].startswith("postgres:")


def test_compose_commands_are_valid_command_lines() -> None:
    for name, service in TENUTO_SERVICES.items():
        assert parse_command(service["command"]) == name
        test = service.get("healthcheck", {}).get("test")
        if test is not None:
            assert test[:2] == ["CMD", "tenuto"]
            assert parse_command(test[2:]) == "health"
            assert test[3] == name
    with pytest.raises(Exception, match="No such option"):
        parse_command(["worker", "--slotz", "3"])


def test_compose_services_are_locked_down_and_wait_for_the_schema() -> None:
    for name, service in TENUTO_SERVICES.items():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert "/tmp" in service["tmpfs"]
        assert not service.get("privileged")
        awaited = service["depends_on"]
        if name == "migrate":
            assert awaited == {"database": {"condition": "service_healthy"}}
        else:
            assert awaited == {"migrate": {"condition": "service_completed_successfully"}}
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(str(port).startswith("127.0.0.1:") for port in published), "clients connect through a TLS proxy"


def test_compose_contains_no_secret_and_sets_only_existing_variables() -> None:
    for service in COMPOSE["services"].values():
        for name, value in service.get("environment", {}).items():
            assert not name.startswith("TENUTO_") or name in VARIABLES, name
            if "PASSWORD" in name or "://" in str(value):
                assert "${POSTGRES_PASSWORD:?" in value
    grace = WorkerSettings.model_fields["grace_seconds"].default
    assert int(TENUTO_SERVICES["worker"]["stop_grace_period"].removesuffix("s")) > grace + 5


def test_compose_services_share_a_master_key_from_outside(tmp_path: Path) -> None:
    for name, service in TENUTO_SERVICES.items():
        assert service["secrets"] == ["master_key"], name
        assert service["environment"]["TENUTO_MASTER_KEY_FILE"] == "/run/secrets/master_key"
    assert COMPOSE["secrets"] == {"master_key": {"file": "${TENUTO_MASTER_KEY_FILE:-./master.key}"}}
    (made,) = re.findall(r"^#     (\(umask .+?\)) && sudo chown (\d+) master.key$", COMPOSE_FILE, re.MULTILINE)
    assert f"--uid {made[1]} " in DOCKERFILE
    subprocess.run(["sh", "-c", made[0]], cwd=tmp_path, check=True)
    settings = load_settings(
        home=tmp_path, database="postgresql://database/tenuto", master_key_file=tmp_path / "master.key"
    )
    keys = secret_encryption.require_keys(settings)
    assert keys.decrypt(keys.encrypt("password", 1, "hush")) == "hush"
    ignored = (DEPLOY.parent / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert "/deploy/master.key" in ignored


def test_compose_accepts_a_trusted_proxy(tmp_path: Path) -> None:
    environment = TENUTO_SERVICES["web"]["environment"]
    assert environment["TENUTO_WEB_BEHIND_PROXY"] == "true"
    for name in ("TENUTO_WEB_HOSTS", "TENUTO_WEB_PROXIES"):
        assert environment[name] == f"${{{name}:-}}", "a variable of the caller arrives"
    assert load_settings(home=tmp_path, web_proxies="").web_proxies == (), "an unset variable means none"
    assert load_settings(home=tmp_path, web_proxies="172.18.0.1, 10.0.0.0/8").web_proxies == (
        "172.18.0.1",
        "10.0.0.0/8",
    )


# --- image ----------------------------------------------------------------------------------------------------------


def test_image_runs_as_an_unprivileged_user_with_a_health_check() -> None:
    *_, user = instructions("USER")
    assert user == "tenuto"
    assert "--uid 10001" in DOCKERFILE
    assert DOCKERFILE.index("\nUSER ") < DOCKERFILE.index("\nENTRYPOINT ")
    (check,) = instructions("HEALTHCHECK")
    arguments = json.loads(check[check.index("[") :])
    assert (arguments[0], parse_command(arguments[1:])) == ("tenuto", "health")
    assert re.match(r"--interval=\d+s --timeout=\d+s --start-period=\d+s --retries=\d+ CMD", check)
    (entry,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entry) == ["tenuto"]
    assert parse_command(json.loads(command)) == "worker"


def test_image_contains_the_locked_packages_and_no_secret() -> None:
    installs = [line for line in instructions("RUN") if "pip install" in line]
    assert "--require-hashes -r requirements/server.lock" in installs[0]
    assert "pgserver" not in (DEPLOY.parent / "requirements" / "server.lock").read_text(encoding="utf-8")
    assert "--no-deps" in installs[1]
    assert not instructions("ARG")
    assert not instructions("ADD")
    for line in instructions("ENV"):
        assert not re.search(r"PASSWORD|SECRET|TOKEN|KEY|://", line)
        assert set(re.findall(r"(TENUTO_\w+)=", line)) <= VARIABLES
    for line in instructions("COPY"):
        source = line.split()[-2]
        if "--from=" not in line:
            assert all((DEPLOY.parent / one).exists() for one in line.split()[:-1]), source
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignored
    assert "!src" in ignored


def test_image_writes_to_a_volume_only() -> None:
    (home,) = re.findall(r"TENUTO_HOME=(\S+)", DOCKERFILE)
    assert instructions("VOLUME") == [home]
    assert f"--home-dir {home} --create-home" in DOCKERFILE


# --- systemd --------------------------------------------------------------------------------------------------------


def read_unit(unit: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_starts_an_existing_command_with_time_to_stop(unit: Path) -> None:
    service = read_unit(unit)["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("/bin/tenuto")
    assert parse_command(arguments) in unit.stem
    assert (service["User"], service["Restart"]) == ("tenuto", "always")
    variables = re.findall(r"^Environment=(TENUTO_\w+)=", unit.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(variables) <= VARIABLES
    mentioned = re.findall(r"TENUTO_[A-Z_]+[A-Z]", unit.read_text(encoding="utf-8"))
    assert set(mentioned) <= VARIABLES
    if "worker" in unit.stem:
        assert service["KillMode"] == "mixed"
        assert float(service["TimeoutStopSec"]) > WorkerSettings.model_fields["grace_seconds"].default + 5


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_units_may_open_network_and_unix_sockets_only(unit: Path) -> None:
    families = read_unit(unit)["Service"]["RestrictAddressFamilies"].split()
    assert set(families) == {"AF_INET", "AF_INET6", "AF_UNIX"}


def test_systemd_accepts_the_units_with_a_low_exposure(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed")
    assert {unit.stem.removeprefix("tenuto-").removesuffix("@") for unit in UNITS} == STALE_AFTER.keys()
    for unit in UNITS:
        copy = tmp_path / unit.name  # with a program that exists
        text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text(encoding="utf-8"))
        copy.write_text(text, encoding="utf-8")
        verified = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, timeout=60)
        said = [line for line in verified.stderr.splitlines() if unit.name.partition("@")[0] in line]
        assert (verified.returncode, said) == (0, [])
        judged = subprocess.run(
            [analyze, "security", "--offline=true", "--threshold=25", "--no-pager", str(copy)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if "Unknown" not in judged.stderr and "unrecognized" not in judged.stderr:
            assert judged.returncode == 0, judged.stdout.splitlines()[-1:]


# --- the same commands, outside a container -------------------------------------------------------------------------


def test_compose_commands_work_together_outside_a_container(shell: Shell, empty_url: str) -> None:
    shutil.copy(DEPLOY / "tasks.py", shell.folder / "tasks.py")
    shell.environment["TENUTO_DATABASE"] = empty_url
    shell.environment["TENUTO_LOG_FORMAT"] = "json"
    shell.environment["TENUTO_METRICS_PUBLIC"] = "true"
    shell.environment["TENUTO_METRICS_PORT"] = "0"
    started = [shell.start_service(*TENUTO_SERVICES[name]["command"]) for name in ("scheduler", "worker")]
    endpoint = f"http://{json.loads(started[1].wait_for_line('metrics endpoint listening'))['address']}"
    started[1].wait_for_line("connection postponed")  # before the schema exists: they wait
    assert httpx2.get(f"{endpoint}/readyz").status_code == 503
    assert shell(*TENUTO_SERVICES["migrate"]["command"]).code == 0
    elsewhere = {"0.0.0.0": "127.0.0.1", "8321": "0"}  # this machine is not a container
    started.append(
        shell.start_service(*(elsewhere.get(argument, argument) for argument in TENUTO_SERVICES["web"]["command"]))
    )
    address = json.loads(started[2].wait_for_line("web service started"))["address"]
    json.loads(started[0].wait_for_line("scheduler started"))
    json.loads(started[1].wait_for_line("worker started"))
    for name in ("scheduler", "web"):
        eventually_blocking(lambda name=name: shell(*TENUTO_SERVICES[name]["healthcheck"]["test"][2:]).code == 0)  # type: ignore[misc]
    (check,) = instructions("HEALTHCHECK")
    assert shell(*json.loads(check[check.index("[") :])[1:]).code == 0
    assert shell("run", "greet", "--input", '{"name": "you"}', "--wait", "--timeout", "30").out == '"Hello, you"\n'
    assert httpx2.get(f"{address}/healthz").text == "ok\n"
    ready = httpx2.get(f"{address}/readyz")
    assert (ready.status_code, ready.json()["ready"]) == (200, True)
    assert 'tenuto_services{service="worker",state="alive"} 1.0' in httpx2.get(f"{address}/metrics").text
    assert httpx2.get(f"{endpoint}/readyz").json()["ready"]
    metrics = httpx2.get(f"{endpoint}/metrics").text  # reported by the worker about itself
    assert 'tenuto_attempts_ended_total{name="greet",queue="default",reason="",status="completed"} 1.0' in metrics
    assert "tenuto_claimed_tasks_total 1.0" in metrics
    assert [service.stop() for service in started] == [0, 0, 0]
    assert [shell("health", name).code for name in STALE_AFTER] == [1, 1, 1]
