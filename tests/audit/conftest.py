"""Fixtures of these tests: a worker, an app and a reused database."""

from __future__ import annotations

from tests.support.engine_fixtures import reusable_database, sql, truncated_url, url, with_isolated_jobs, worker
from tests.support.store_fixtures import database, empty_home, home, prepared_home, settings, start_server_holder

__all__ = [
    "database",
    "empty_home",
    "home",
    "prepared_home",
    "reusable_database",
    "settings",
    "sql",
    "start_server_holder",
    "truncated_url",
    "url",
    "with_isolated_jobs",
    "worker",
]
