"""A database for each test without the time it takes to make one: the same one is swept clean and used again.

Tests that change the structure of their database, and those that look at a fresh one, have one of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tests.conftest import address

OF_THEIR_OWN = {
    "test_doctor.py",
    "test_doctor_manifests.py",
    "test_doctor_schedules.py",
    "test_embedded.py",
    "test_housekeeping.py",
    "test_manifest_plans.py",
    "test_migrate.py",
    "test_partitions.py",
    "test_plans.py",
    "test_revival.py",
}

SWEEP = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
SET session_replication_role = replica;  -- the guards of the past sleep
DELETE FROM tenuto.tasks;
DELETE FROM tenuto.activities;
DELETE FROM tenuto.workers;
DELETE FROM tenuto.queues;
DELETE FROM tenuto.repairs;
DELETE FROM tenuto.schedules;
DELETE FROM tenuto.schedule_versions;
DELETE FROM tenuto.executions;
DELETE FROM tenuto.occurrences;
DELETE FROM tenuto.manifests;
DELETE FROM tenuto.manifest_versions;
DELETE FROM tenuto.manifest_groups;
DELETE FROM tenuto.batches;
DELETE FROM tenuto.dead_letters;
DELETE FROM tenuto.polls;
DELETE FROM tenuto.chain_steps;
"""


@pytest.fixture(scope="session")
def used_again(server: str, template: str) -> Iterator[str]:
    """The address of the database that is swept between tests."""

    async def execute(*statements: str) -> None:
        connection = await asyncpg.connect(server)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    drop = "DROP DATABASE IF EXISTS test_used_again WITH (FORCE)"
    asyncio.run(execute(drop, f"CREATE DATABASE test_used_again TEMPLATE {template}"))
    yield address(server, "test_used_again")
    asyncio.run(execute(drop))


@pytest.fixture
async def swept(used_again: str) -> str:
    """As good as fresh."""
    connection = await asyncpg.connect(used_again)
    await connection.execute(SWEEP)
    await connection.close()
    return used_again


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """The address of a database with the schema and nothing in it."""
    address: str = request.getfixturevalue("url" if request.path.name in OF_THEIR_OWN else "swept")
    return address
