"""Fixtures of the store and API tests."""

from __future__ import annotations

from tests.api.conftest import service
from tests.support.store_fixtures import reusable_database, truncated_url, url

__all__ = ["reusable_database", "service", "truncated_url", "url"]
