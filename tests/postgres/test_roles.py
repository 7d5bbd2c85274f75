"""Roles with the least rights: the grants of the guide suffice for each purpose, and allow nothing more."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from tenuto import Step, Tenuto, manual
from tenuto.postgres.database import PermissionDenied
from tests.support.errors import raises_code

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "database-roles.md"
ROLES = ("tenuto_service", "tenuto_enqueue", "tenuto_reader", "tenuto_stranger")


def url_of(url: str, role: str, password: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}:{password}@{host}"))


@pytest.fixture
async def role_urls(app: Tenuto, url: str) -> AsyncIterator[dict[str, str]]:
    """Run the statements of the guide; return the URL of each role."""
    await app.open()
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    passwords = dict(re.findall(r"CREATE ROLE (\w+) LOGIN PASSWORD '([^']+)'", block))
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(block)
        await connection.execute("CREATE ROLE tenuto_stranger LOGIN PASSWORD 'none'")
        yield {role: url_of(url, role, password) for role, password in {**passwords, "tenuto_stranger": "none"}.items()}
    finally:
        await app.close()
        for role in ROLES:
            await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await connection.close()


def make_app(url: str, home: Path) -> Tenuto:
    app = Tenuto(url, home=home)

    @app.job
    async def double(n: int) -> int:
        return 2 * n

    app.schedule("nightly", manual(), [Step.job(double, 3)])
    return app


async def test_service_role_runs_workers_and_schedulers_but_cannot_change_the_schema(
    role_urls: dict[str, str], tmp_path: Path
) -> None:
    app = make_app(role_urls["tenuto_service"], tmp_path)
    try:
        async with app.worker(), app.scheduler():
            record = await app.wait(await app.enqueue(app.jobs.get_job("double"), 4), timeout=30)
            assert record.output == 8
            started = await app.schedules.run("nightly")
            assert started.execution_id is not None
            assert (await app.executions.wait(started.execution_id, timeout=30)).state == "completed"
        database = await app.open()
        for statement in (
            "ALTER TABLE tenuto.activities DISABLE TRIGGER USER",
            "DROP TABLE tenuto.audit",
            "DELETE FROM tenuto.migrations",
        ):
            with raises_code("database.permission_denied", PermissionDenied):
                await database.fetch_all(statement)
    finally:
        await app.close()


async def test_enqueue_role_creates_tasks_and_nothing_else(
    role_urls: dict[str, str], app: Tenuto, tmp_path: Path
) -> None:
    sender = make_app(role_urls["tenuto_enqueue"], tmp_path)
    try:
        job = sender.jobs.get_job("double")
        task = await sender.enqueue(job, 4)
        database = await sender.open()
        async with database.connection() as connection, connection.transaction():
            await sender.enqueue_within(connection, job, 5)
            await connection.fetchval("SELECT tenuto.enqueue('double', '{\"n\": 6}')")
        assert {each.id for each in await app.tasks()} > {task.id}
        assert len(await app.tasks()) == 3
        with raises_code("database.permission_denied") as refusal:
            await sender.pause_queue("mail")
        assert "GRANT SELECT" in (refusal.value.remedy or "")
        assert "tenuto.queues" in (refusal.value.remedy or "")
        with raises_code("database.permission_denied"):
            await database.fetch_all("DELETE FROM tenuto.tasks")
        with raises_code("database.permission_denied"):
            await sender.secrets.list()
    finally:
        await sender.close()


async def test_reader_role_reads_lists_and_changes_nothing(role_urls: dict[str, str], tmp_path: Path) -> None:
    reader = make_app(role_urls["tenuto_reader"], tmp_path)
    try:
        assert await reader.tasks() == []
        assert await reader.schedules.list() == []
        assert await reader.doctor()
        with raises_code("database.permission_denied"):
            await reader.enqueue(reader.jobs.get_job("double"), 4)
    finally:
        await reader.close()


async def test_role_without_rights_learns_the_missing_grant_and_the_page(
    role_urls: dict[str, str], tmp_path: Path
) -> None:
    stranger = make_app(role_urls["tenuto_stranger"], tmp_path)
    try:
        with raises_code("database.permission_denied") as refusal:
            await stranger.tasks()
        remedy = refusal.value.remedy or ""
        assert remedy.startswith("GRANT USAGE ON SCHEMA tenuto TO the role")
        assert "docs/how-to/database-roles.md" in remedy
    finally:
        await stranger.close()
