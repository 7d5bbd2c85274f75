"""Installations of the wheel in new environments: without extras, and with each extra.

The locked wheels are downloaded once per test run, in most cases from the cache of pip. From these files pip makes the
environments; that of an extra begins as a copy of the bare one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from tenuto import extras
from tenuto.errors import MissingExtra
from tenuto.postgres import embedded_server
from tenuto.web.assets import FOLDER as STATIC_FOLDER
from tenuto.web.assets import Assets
from tests.support.temp_dirs import new_temp_dir

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
MAX_PACKAGES = 20
"""Including Tenuto itself."""
MASTER_KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
UNREACHABLE = ("NewConnectionError", "NameResolutionError", "ConnectTimeout", "ProxyError", "from versions: none")

ROUND_TRIP = """
import asyncio
from tenuto import Tenuto

app = Tenuto()

@app.job
async def add(a: int, b: int) -> int:
    return a + b

async def main() -> None:
    async with app, app.worker():
        record = await app.wait(await app.enqueue(add, 19, b=23), timeout=30)
        print("output", record.output)
        print("sound", (await app.audit.verify()).is_sound)

asyncio.run(main())
"""
HTTP_STEP = """
import asyncio, sys
from tenuto import Step, Tenuto, manual

app = Tenuto()
app.schedule("calls", manual(), [Step.http(sys.argv[1], method="GET")])

async def main() -> None:
    async with app, app.worker():
        await app.schedules.deploy()
        run = await app.schedules.run("calls")
        print((await app.executions.wait(run.execution_id, timeout=30)).state)

asyncio.run(main())
"""
SECRET = """
import asyncio
from tenuto import Tenuto

app = Tenuto()

@app.job
async def reads() -> int:
    return len(await app.secrets.reveal("token"))

async def main() -> None:
    async with app, app.worker():
        print((await app.wait(await app.enqueue(reads), timeout=30)).output)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment in which Tenuto is installed."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def packages(self) -> set[str]:
        found = self.run("-c", "from importlib.metadata import distributions as d; print(*{each.name for each in d()})")
        return set(found.stdout.split())

    def run(self, *arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
            env=self.variables(environment),
            check=False,
        )

    def tenuto(self, *arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "tenuto", *arguments, text=text, **environment)

    @contextmanager
    def service(self, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """Run a service for the duration of the block; its lines are on stderr."""
        command = [str(self.python), "-m", "tenuto", *arguments]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=self.folder, env=self.variables(environment)
        )
        try:
            yield process
            process.terminate()
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {**kept, "TENUTO_HOME": str(self.folder / "home"), **given}


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        if text in line:
            return line
        seen.append(line)
    raise AssertionError(f"no line contains {text!r}: {seen}")


def pip(*arguments: str) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0", "PIP_NO_INPUT": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    skip_if_unreachable(done)
    assert done.returncode == 0, done.stderr


def skip_if_unreachable(done: subprocess.CompletedProcess[str]) -> None:
    """Skip the test if the package index cannot be reached; with ``CI=true`` that is an error."""
    if done.returncode and any(sign in done.stderr for sign in UNREACHABLE):
        problem = "the package index cannot be reached, and the cache of pip lacks a locked package"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{problem}: {done.stderr}")
        pytest.skip(problem)


@contextmanager
def made_once(folder: Path) -> Iterator[bool]:
    """Whether this process makes the folder, which all processes of a test run share; the others wait for it."""
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder.parent / f"{folder.name}.done"
        yield not done.exists()
        done.touch()


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "installation"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def install(shared_folder: Path) -> Callable[[Environment, str], None]:
    wheels = shared_folder / "wheels"
    with made_once(wheels) as is_first:
        if is_first:
            lock_file = str(ROOT / "requirements" / "runtime.lock")
            pip("download", "--no-deps", "--require-hashes", "--only-binary=:all:", "-d", str(wheels), "-r", lock_file)
            pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT))

    def install(environment: Environment, requirement: str) -> None:
        options = ("--no-index", "--find-links", str(wheels), "--no-compile")
        pip("--python", str(environment.python), "install", *options, requirement)

    return install


@pytest.fixture(scope="module")
def bare(shared_folder: Path, install: Callable[[Environment, str], None]) -> Environment:
    """An environment with Tenuto alone."""
    environment = Environment(shared_folder / "bare")
    with made_once(environment.folder) as is_first:
        if is_first:
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment.folder], check=True)
            install(environment, "tenuto")
    return environment


@pytest.fixture
def install_extra(
    bare: Environment, install: Callable[[Environment, str], None]
) -> Iterator[Callable[[str], Environment]]:
    """Install Tenuto with an extra into a new environment, which is removed after the test."""
    made: list[Path] = []

    def create(extra: str) -> Environment:
        folder = new_temp_dir("installation")
        made.append(folder)
        environment = Environment(folder / extra)
        shutil.copytree(bare.folder, environment.folder, symlinks=True, ignore=shutil.ignore_patterns("home"))
        install(environment, f"tenuto[{extra}]")
        return environment

    yield create
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


def assert_names_command(done: subprocess.CompletedProcess[str], extra: str) -> None:
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "installation.extra_missing"
    assert f"pip install 'tenuto[{extra}]'" in done.stderr


# --- without extras -------------------------------------------------------------------------------------------------


def test_bare_installation_runs_tasks_on_a_given_database(bare: Environment, empty_url: str) -> None:
    packages = bare.packages()
    assert len(packages) <= MAX_PACKAGES, sorted(packages)
    assert [each for each in bare.folder.rglob("*postgres") if each.is_file()] == [], "PostgreSQL binaries"
    database = {"TENUTO_DATABASE": empty_url, "TENUTO_MASTER_KEY": MASTER_KEY}
    assert bare.tenuto("migrate", **database).returncode == 0
    done = bare.run("-c", ROUND_TRIP, **database)
    assert done.stdout.split() == ["output", "42", "sound", "True"], done.stderr
    listed = bare.tenuto("task", "list", "-o", "json", **database)
    assert listed.returncode == 0, listed.stderr
    verified = bare.tenuto("audit", "verify", **database)
    assert verified.returncode == 0, verified.stderr
    with bare.service("up", **database) as process:
        assert "pip install 'tenuto[web]'" in wait_for_line(process, "web        not started")
        wait_for_line(process, "stop with Ctrl-C")
    assert process.returncode == 0


def test_bare_installation_names_the_command_that_installs_an_extra(bare: Environment, url: str) -> None:
    database = {"TENUTO_DATABASE": url, "TENUTO_MASTER_KEY": MASTER_KEY}
    assert_names_command(bare.tenuto("task", "list", "-o", "json"), "embedded")
    web = bare.tenuto("web", **database)
    assert (web.returncode, "try: pip install 'tenuto[web]'" in web.stderr) == (1, True), web.stderr
    assert_names_command(bare.tenuto("secret", "set", "token", "-o", "json", text="swordfish", **database), "secrets")
    call = bare.run("-c", HTTP_STEP, "https://example.org/", **database)
    assert "MissingExtra" in call.stderr
    assert "pip install 'tenuto[http]'" in call.stderr


# --- with one extra -------------------------------------------------------------------------------------------------


def test_extra_embedded_runs_tasks_without_a_given_database(install_extra: Callable[[str], Environment]) -> None:
    environment = install_extra("embedded")
    environment.folder.parent.chmod(0o755)
    home = environment.folder.parent / "home"
    try:
        done = environment.run("-c", ROUND_TRIP, TENUTO_HOME=str(home))
        assert done.stdout.split() == ["output", "42", "sound", "True"], done.stderr
    finally:
        embedded_server.stop_server(home)


def test_c74_extra_web_serves_the_api_and_the_static_files_of_the_checkout(
    install_extra: Callable[[str], Environment], url: str
) -> None:
    environment = install_extra("web")
    checkout = Assets()
    with environment.service("web", "--port", "0", TENUTO_DATABASE=url) as process:
        address = wait_for_line(process, "web        ").split()[1]

        def get(path: str) -> bytes:
            with urllib.request.urlopen(f"{address}{path}") as answer:
                content: bytes = answer.read()
                return content

        assert get("/healthz") == b"ok\n"
        assert f"/static/{checkout.version}/".encode() in get("/login"), "the version is a hash of all files"
        for path in checkout.paths():
            assert get(f"/static/{checkout.version}/{path}") == (STATIC_FOLDER / path).read_bytes(), path


def test_extra_http_calls_a_server(install_extra: Callable[[str], Environment], url: str) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    environment = install_extra("http")
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = f"http://127.0.0.1:{server.server_port}/"
        done = environment.run("-c", HTTP_STEP, target, TENUTO_DATABASE=url, TENUTO_HTTP_ALLOWED_HOSTS="127.0.0.1")
        server.shutdown()
    assert done.stdout.strip() == "completed", done.stderr


def test_extra_secrets_encrypts_and_reveals(install_extra: Callable[[str], Environment], url: str) -> None:
    environment = install_extra("secrets")
    database = {"TENUTO_DATABASE": url, "TENUTO_MASTER_KEY": MASTER_KEY}
    stored = environment.tenuto("secret", "set", "token", text="swordfish", **database)
    assert stored.returncode == 0, stored.stderr
    done = environment.run("-c", SECRET, **database)
    assert done.stdout.strip() == str(len("swordfish")), done.stderr


def test_extra_all_installs_every_extra(install_extra: Callable[[str], Environment]) -> None:
    environment = install_extra("all")
    script = "from tenuto import extras; print(*[each for each in extras._MODULES if extras.is_installed(each)])"
    # The executors on a cluster are for those who have the engine installed already; `ldap` has to be compiled.
    assert environment.run("-c", script).stdout.split() == [
        each for each in extras._MODULES if each not in ("celery", "dask", "ldap", "ray")
    ]
    pip("--python", str(environment.python), "check")


# --- without an installation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_unreachable_package_index_is_an_error_in_continuous_integration(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="the package index cannot be reached"):
        skip_if_unreachable(subprocess.CompletedProcess([], 1, "", "NewConnectionError: refused"))


def test_extras_are_those_of_the_package_metadata() -> None:
    assert set(metadata.metadata("tenuto").get_all("Provides-Extra") or ()) == {*extras._MODULES, "all"}


@pytest.mark.parametrize(("is_cpython", "expected"), [(True, False), (False, True)])
def test_extra_web_needs_httptools_on_cpython_only(
    monkeypatch: pytest.MonkeyPatch, is_cpython: bool, expected: bool
) -> None:
    monkeypatch.setattr(extras, "_is_cpython", lambda: is_cpython)
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module == "httptools" else object())
    assert extras.is_installed("web") is expected


@pytest.mark.parametrize("extra", extras._MODULES)
def test_missing_extra_has_code_and_command(extra: extras.Extra, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: object())
    extras.require_extra(extra, "the feature")
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    with pytest.raises(MissingExtra) as missing:
        extras.require_extra(extra, "the feature", alternative="do without")
    assert missing.value.code == "installation.extra_missing"
    assert missing.value.remedy == f"pip install 'tenuto[{extra}]', or do without"
