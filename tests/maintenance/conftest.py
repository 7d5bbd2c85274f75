"""Fixtures of these tests: a worker, an app and a reused database."""

from __future__ import annotations

from tests.support.engine_fixtures import sql, truncated_url, url, reusable_database, with_isolated_jobs, worker
from tests.support.store_fixtures import database, empty_home, start_server_holder, home, prepared_home, settings

__all__ = [
    "database",
    "empty_home",
    "start_server_holder",
    "home",
    "prepared_home",
    "settings",
    "sql",
    "truncated_url",
    "url",
    "reusable_database",
    "with_isolated_jobs",
    "worker",
]
