"""What every test stands on: one real PostgreSQL for the session, a fresh database for each test.

The server is the embedded one. Commits are not forced to disk (a test kills processes, not the machine's power).
"""

from __future__ import annotations

import asyncio
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
from tenuto.lifecycle import completion
from tenuto.postgres import embedded_server
from tenuto.postgres.database import Database
from tenuto.store import test_databases
from tenuto.store.test_databases import address as address
from tests.support.proofs import THOROUGH
from tests.support.temp_dirs import clear_up, end_server, new_folder

CARELESS = {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}

# How long an example takes says something about the machine, and what else it has to do. Failures are not explained:
# that traces every line, and with Python 3.11 a failing example was twice seen to go on for ever while it was traced
# (perhaps because of exceptions thrown into threads, as tests of interruption do: that was not reproduced).
settings.register_profile(
    "suite",
    derandomize=not THOROUGH,  # chance is for the proofs
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],
)
settings.load_profile("suite")

_number = count(1)


def a_name(what: str) -> str:
    """What this process calls a database of its own: several may share one server, also with somebody else's."""
    return f"tenuto_suite_{os.getpid()}_{what}"


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of the server's maintenance database; another one's by TENUTO_TEST_SERVER."""
    if given := os.environ.get("TENUTO_TEST_SERVER"):
        yield given
        return
    clear_up("tenuto-tests-")
    home = new_folder("tenuto-tests-")
    hold = embedded_server.hold(home, linger=0.0, settings=CARELESS)
    try:
        yield hold.url
    finally:
        hold.release()
        end_server(home)


@pytest.fixture(scope="session")
def template(server: str) -> Iterator[str]:
    """The name of a database with the schema, to be copied."""
    name = a_name("template")
    asyncio.run(test_databases.make_template(server, name))
    yield name
    asyncio.run(test_databases.drop(server, name))


@pytest.fixture
async def url(server: str, template: str) -> AsyncIterator[str]:
    """The address of a fresh database with the schema."""
    name = a_name(str(next(_number)))
    yield await test_databases.copy(server, template, name, by_file=True)
    await test_databases.drop(server, name)


@pytest.fixture
async def empty_url(server: str) -> AsyncIterator[str]:
    """The address of a fresh database without a schema."""
    name = a_name(str(next(_number)))
    yield await test_databases.make_empty(server, name)
    await test_databases.drop(server, name)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command run in this process sets up logging to the stream of that moment, which is closed after the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level


@pytest.fixture
async def db(url: str) -> AsyncIterator[Database]:
    """A fresh database, open as a worker opens it."""
    database = await Database.open(url, generic_plans=True)
    yield database
    await database.close()


@pytest.fixture
async def app(url: str, tmp_path: Path) -> AsyncIterator[Tenuto]:
    """An app on a fresh database."""
    app = Tenuto(url, home=tmp_path)
    yield app
    await app.close()


@pytest.fixture
def register_worker(db: Database) -> Callable[..., object]:
    """Enter a worker into the register by hand: ``worker_id = await register_worker()``."""

    async def register(name: str | None = None) -> UUID:
        worker_id = new_id()
        await db.all(
            "INSERT INTO tenuto.workers"
            " (id, name, service, host, boot, pid, version, queues, slots, started_at, seen_at)"
            " VALUES ($1, $2, 'worker', 'here', 'boot', 1, '0', '{default}', 10, now(), now())",
            worker_id,
            name or str(worker_id),
        )
        return worker_id

    return register


@pytest.fixture(params=[True, False], ids=["at a stroke", "step by step"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a step group: in the one statement of the common case, and as it goes in all other cases."""
    if not request.param:
        monkeypatch.setattr(completion, "FEW", 0)


@pytest.fixture(params=[True, False] if THOROUGH else [None], ids=["at a stroke", "step by step"] if THOROUGH else [""])
def one_way_or_both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `both_ways`, for what takes long: in a proof both, else one of the two for each test, always the same one."""
    at_a_stroke = request.param
    if at_a_stroke is None:
        at_a_stroke = crc32(request.node.name.encode()) % 2 == 0
    if not at_a_stroke:
        monkeypatch.setattr(completion, "FEW", 0)
