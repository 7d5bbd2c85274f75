"""Fixtures of the store's tests: a reused database."""

from __future__ import annotations

from tests.support.store_fixtures import (
    database,
    empty_home,
    home,
    prepared_home,
    reusable_database,
    settings,
    start_server_holder,
    truncated_url,
    url,
)

__all__ = [
    "database",
    "empty_home",
    "home",
    "prepared_home",
    "reusable_database",
    "settings",
    "start_server_holder",
    "truncated_url",
    "url",
]
