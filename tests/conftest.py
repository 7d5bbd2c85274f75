"""Fixtures of all tests: one PostgreSQL server for the session and a new database for each test.

The server is the embedded one. It does not flush commits to disk, because tests kill processes but not the machine.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import HealthCheck, Phase, settings

from tenuto import Tenuto
from tenuto.ids import new_id
from tenuto.jobs.output_capture import OutputCapture
from tenuto.lifecycle import completion
from tenuto.postgres import embedded_server, scratch_databases
from tenuto.postgres.database import Database
from tenuto.postgres.scratch_databases import database_url as database_url
from tenuto.store import partitions
from tests.support.repetition_counts import THOROUGH
from tests.support.temp_dirs import new_temp_dir, remove_stale_temp_dirs, stop_server_and_remove

# The tests of Tenuto run without the extensions that are installed with it; `tests/identity` and `tests/notifications`
# enable theirs.
os.environ["TENUTO_DISABLED_EXTENSIONS"] = "identity,notifications"

FAST_SERVER_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}

# No deadline: the duration of an example depends on the machine and its load. No explain phase: it traces every line,
# and with Python 3.11 a failing example was twice seen to run forever while traced (cause not reproduced).
settings.register_profile(
    "suite",
    derandomize=not THOROUGH,  # only scripts/proofs uses random examples
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
settings.load_profile("suite")

SLOW_DIRECTORIES = {
    "api", "bad_inputs", "chaos", "cli", "deploy", "docs", "examples", "guards", "identity/api", "identity/cli",
    "identity/connectors", "identity/docs", "identity/ldap", "identity/pages", "identity/runs", "identity/scenarios",
    "identity/scim", "identity/sql", "identity/tasks", "installation", "jobs", "postgres", "races", "state_machine",
    "failover", "steps", "testing", "web", "worker",
}  # fmt: skip
"""Tests that start real processes, servers or programs, or run whole synchronisations. `scripts/test fast` excludes
them all, and does not import them. In the other directories, the modules in `SLOW_MODULES` and the tests that carry the
marker themselves are slow."""

SLOW_MODULES = {"lifecycle/test_task_cancellation.py", "operations/admin/test_backups.py"}
"""Modules in the other directories that start programs or wait for polling intervals."""

DIRECTORIES_WITH_SHARED_DATABASE = {
    "audit", "bad_inputs", "definitions", "diagnostics", "lifecycle", "maintenance", "observability", "operations",
    "postgres", "scheduling", "service", "simulation", "steps", "store", "worker",
}  # fmt: skip
"""Tests that use one database, truncated between them."""
MODULES_WITH_OWN_DATABASE = {
    "test_doctor.py",
    "test_doctor_manifests.py",
    "test_doctor_guarantees.py",
    "test_doctor_schedules.py",
    "test_embedded_server.py",
    "test_housekeeping.py",
    "test_query_plans_of_manifests.py",
    "test_migrator.py",
    "test_operation_records.py",
    "test_partitions.py",
    "test_query_plans.py",
    "test_query_plans_of_executions.py",
    "test_query_plans_of_lists.py",
    "test_embedded_restart.py",
}
"""Modules in these directories that change the structure of their database, or need a new one."""

pytest_plugins = ["tests.support.store_fixtures", "tests.support.service_fixtures"]

_number = count(1)


def is_slow(path: Path) -> bool:
    """Return whether all tests of a module or directory are slow."""
    relative = path.relative_to(Path(__file__).parent)
    return relative.as_posix() in SLOW_MODULES or not SLOW_DIRECTORIES.isdisjoint(
        ("/".join(relative.parts[:1]), "/".join(relative.parts[:2]))
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import slow modules only to deselect their tests, which takes longer than the import of the others."""
    return True if config.option.markexpr == "not slow" and is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exempt what is loaded from garbage collection: thousands of tests would be traversed again and again."""
    gc.collect()
    gc.freeze()


def _test_directory(module: Path) -> str:
    """Return the directory below `tests` that a test module is in."""
    return module.relative_to(Path(__file__).parent).parts[0]


def database_name(suffix: str) -> str:
    """Return a database name that is unique to this process, because processes may share a server."""
    return f"tenuto_suite_{os.getpid()}_{suffix}"


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """URL of the server's maintenance database; TENUTO_TEST_SERVER selects another server."""
    if external := os.environ.get("TENUTO_TEST_SERVER"):
        yield external
        return
    remove_stale_temp_dirs("tenuto-tests-")
    home = new_temp_dir("tenuto-tests-")
    hold = embedded_server.acquire_server(home, linger_seconds=0.0, settings=FAST_SERVER_SETTINGS)
    try:
        yield hold.url
    finally:
        hold.release()
        stop_server_and_remove(home)


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """Name of a database with the schema, from which others are copied."""
    name = database_name("template")
    asyncio.run(scratch_databases.create_template_database(server, name, partitions.ensure_partitions))
    yield name
    asyncio.run(scratch_databases.drop_database(server, name))


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """URL of an empty database with the schema."""
    shared = _test_directory(request.path) in DIRECTORIES_WITH_SHARED_DATABASE
    own = request.path.name in MODULES_WITH_OWN_DATABASE
    url: str = request.getfixturevalue("truncated_url" if shared and not own else "new_url")
    return url


@pytest.fixture
async def new_url(server: str, template: str) -> AsyncIterator[str]:
    """URL of a new database with the schema."""
    name = database_name(str(next(_number)))
    yield await scratch_databases.copy_database(server, template, name, by_file_copy=True)
    await scratch_databases.drop_database(server, name)


@pytest.fixture
async def empty_url(server: str) -> AsyncIterator[str]:
    """URL of a new database without a schema."""
    name = database_name(str(next(_number)))
    yield await scratch_databases.create_empty_database(server, name)
    await scratch_databases.drop_database(server, name)


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Restore logging after a test: a command run in this process logs to a stream that is closed afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture(autouse=True)
def _require_end_of_output_capture() -> Iterator[None]:
    """Fail a test that leaves the capture of job output running: later tests would see the streams of that test."""
    yield
    left_count = OutputCapture.user_count
    while OutputCapture.user_count > 0:
        OutputCapture.stop()
    assert left_count == 0, "the test started a worker or capture that never stopped"


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    """A new database, opened with the options of a worker."""
    database = await Database.open(url, generic_plans=True)
    yield database
    await database.close()


@pytest.fixture
async def app(url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    """An app on a new database."""
    app = Tenuto(url, home=tmp_path)
    yield app
    await app.close()


@pytest.fixture
def register_worker(db: Database) -> Callable[..., object]:
    """Insert a worker row directly: ``worker_id = await register_worker()``."""

    async def register(name: str | None = None) -> UUID:
        worker_id = new_id()
        await db.fetch_all(
            "INSERT INTO tenuto.workers"
            " (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
            " VALUES ($1, $2, 'worker', 'here', 'boot', 1, '0', '{default}', 10, now(), now())",
            worker_id,
            name or str(worker_id),
        )
        return worker_id

    return register


@pytest.fixture(params=[True, False], ids=["fast path", "slow path"])
def both_completion_paths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with and without the SQL fast path that ends a step group in one statement."""
    if not request.param:
        monkeypatch.setattr(completion, "FAST_PATH_MAX_STEPS", 0)


@pytest.fixture(params=[True, False] if THOROUGH else [None], ids=["fast path", "slow path"] if THOROUGH else [""])
def one_completion_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a slow test with one of the two completion paths, always the same one; in proofs with both."""
    use_fast_path = request.param
    if use_fast_path is None:
        use_fast_path = crc32(request.node.name.encode()) % 2 == 0
    if not use_fast_path:
        monkeypatch.setattr(completion, "FAST_PATH_MAX_STEPS", 0)
