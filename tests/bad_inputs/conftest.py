"""The database and the web service of the neighbours, for bad inputs."""

from __future__ import annotations

from tests.api.conftest import service
from tests.support.store_fixtures import swept, url, used_again

__all__ = ["service", "swept", "url", "used_again"]
