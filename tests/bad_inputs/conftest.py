"""The database and the web service of the neighbours, for bad inputs."""

from __future__ import annotations

from tests.api.conftest import service
from tests.support.store_fixtures import truncated_url, url, reusable_database

__all__ = ["service", "truncated_url", "url", "reusable_database"]
