"""Fixtures of these tests: a worker, an app and a reused database."""

from __future__ import annotations

from tests.support.engine_fixtures import sql, swept, url, used_again, with_isolated_jobs, worker
from tests.support.store_fixtures import database, empty_home, holder, home, made, settings

__all__ = [
    "database",
    "empty_home",
    "holder",
    "home",
    "made",
    "settings",
    "sql",
    "swept",
    "url",
    "used_again",
    "with_isolated_jobs",
    "worker",
]
