"""Fixtures of the step kinds' tests: a harness without a database, and a worker with one."""

from __future__ import annotations

from tests.jobs.conftest import harness
from tests.support.engine_fixtures import reusable_database, sql, truncated_url, url, with_isolated_jobs, worker

__all__ = ["harness", "reusable_database", "sql", "truncated_url", "url", "with_isolated_jobs", "worker"]
