"""Fixtures for pytest: an app with a new database on an embedded server for every test.

Enable them in a ``conftest.py``: ``pytest_plugins = ["tenuto.testing.fixtures"]``. The server runs in a temporary
directory for the whole session, without flushing commits to disk. ``TENUTO_TEST_SERVER`` selects another server, on
which the login may create databases.
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
from tenuto.postgres import embedded_server, scratch_databases
from tenuto.store import partitions

_number = count(1)
_TEMPLATE = f"tenuto_template_{os.getpid()}"


@pytest.fixture(scope="session")
def tenuto_server() -> Iterator[str]:
    """URL of a PostgreSQL server for this session."""
    if given := os.environ.get("TENUTO_TEST_SERVER"):
        yield given
        return
    home = Path(tempfile.mkdtemp(prefix="tenuto-tests-"))
    home.chmod(0o755)  # as root, the server runs under another account, which needs access
    hold = embedded_server.acquire_server(
        home, linger_seconds=0.0, settings={"fsync": "off", "full_page_writes": "off"}
    )
    try:
        yield hold.url
    finally:
        hold.release()
        embedded_server.stop_server(home)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def tenuto_template(tenuto_server: str) -> Iterator[str]:
    """Name of a database with the schema, from which the databases of tests are copied."""
    asyncio.run(scratch_databases.create_template_database(tenuto_server, _TEMPLATE, partitions.ensure_partitions))
    yield _TEMPLATE
    asyncio.run(scratch_databases.drop_database(tenuto_server, _TEMPLATE))


@pytest.fixture
def tenuto_database(tenuto_server: str, tenuto_template: str) -> Iterator[str]:
    """URL of a new database for this test."""
    name = f"tenuto_test_{os.getpid()}_{next(_number)}"
    yield asyncio.run(scratch_databases.copy_database(tenuto_server, tenuto_template, name))
    asyncio.run(scratch_databases.drop_database(tenuto_server, name))


@pytest.fixture
def tenuto_app(tenuto_database: str, tmp_path: Path) -> Tenuto:
    """An app without jobs on that database; open it with ``async with`` or a `TimeMachine`."""
    return Tenuto(tenuto_database, home=tmp_path)
