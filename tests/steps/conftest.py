"""Fixtures of the step kinds' tests: a bench without a database, and a worker with one."""

from __future__ import annotations

from tests.jobs.conftest import bench
from tests.support.engine_fixtures import sql, swept, url, used_again, with_isolated_jobs, worker

__all__ = ["bench", "sql", "swept", "url", "used_again", "with_isolated_jobs", "worker"]
