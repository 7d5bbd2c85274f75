"""Fixtures of the acceptance scenarios."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.identity.scenario_site import Site, open_site


@pytest.fixture
async def site(url: str, tmp_path: Path) -> AsyncIterator[Site]:
    """A site with the HR file, empty targets and the usual definitions."""
    async with open_site(url, tmp_path) as site:
        await site.apply(site.definitions())
        yield site
        assert site.app.extension_registry.failures == []
