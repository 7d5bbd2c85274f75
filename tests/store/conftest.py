"""Fixtures of the store's tests: a reused database."""

from __future__ import annotations

from tests.support.store_fixtures import database, empty_home, holder, home, made, settings, swept, url, used_again

__all__ = ["database", "empty_home", "holder", "home", "made", "settings", "swept", "url", "used_again"]
