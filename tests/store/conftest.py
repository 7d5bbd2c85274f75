"""Fixtures of the store's tests: a reused database."""

from __future__ import annotations

from tests.support.store_fixtures import database, empty_home, start_server_holder, home, prepared_home, settings, truncated_url, url, reusable_database

__all__ = ["database", "empty_home", "start_server_holder", "home", "prepared_home", "settings", "truncated_url", "url", "reusable_database"]
