"""Fixtures for pytest: an app on an embedded database that is fresh for every test.

Name the module in a ``conftest.py``: ``pytest_plugins = ["tenuto.testing.fixtures"]``. The server is started once, in a
folder of its own, and stops with the session; its commits are not forced to disk. ``TENUTO_TEST_SERVER`` names another
server, on which databases may be created.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tenuto.app import Tenuto
from tenuto.postgres import embedded_server
from tenuto.store import test_databases

_number = count(1)
_TEMPLATE = f"tenuto_template_{os.getpid()}"


@pytest.fixture(scope="session")
def tenuto_server() -> Iterator[str]:
    """The address of a PostgreSQL server for this session."""
    if given := os.environ.get("TENUTO_TEST_SERVER"):
        yield given
        return
    home = Path(tempfile.mkdtemp(prefix="tenuto-tests-"))
    home.chmod(0o755)  # as root the server runs under another account, which must be able to pass
    hold = embedded_server.hold(home, linger=0.0, settings={"fsync": "off", "full_page_writes": "off"})
    try:
        yield hold.url
    finally:
        hold.release()
        embedded_server.stop_now(home)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def tenuto_template(tenuto_server: str) -> Iterator[str]:
    """The name of a database with the schema, from which those of the tests are copied."""
    asyncio.run(test_databases.make_template(tenuto_server, _TEMPLATE))
    yield _TEMPLATE
    asyncio.run(test_databases.drop(tenuto_server, _TEMPLATE))


@pytest.fixture
def tenuto_database(tenuto_server: str, tenuto_template: str) -> Iterator[str]:
    """The address of a database for this test alone."""
    name = f"tenuto_test_{os.getpid()}_{next(_number)}"
    yield asyncio.run(test_databases.copy(tenuto_server, tenuto_template, name))
    asyncio.run(test_databases.drop(tenuto_server, name))


@pytest.fixture
def tenuto_app(tenuto_database: str, tmp_path: Path) -> Tenuto:
    """An app without jobs on that database; open it with ``async with``, or by a `TimeMachine`."""
    return Tenuto(tenuto_database, home=tmp_path)
