"""One populated site for all tests of the identity pages: it takes seconds to fill, and the tests change little."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tenuto.postgres import scratch_databases
from tests.conftest import database_name
from tests.identity.pages.populated_site import Populated, populate
from tests.web.browser.conftest import browser

__all__ = ["browser"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def populated(
    server: str, identity_template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Populated]:
    name = database_name("identity_pages")
    url = await scratch_databases.copy_database(server, identity_template, name, by_file_copy=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENUTO_DISABLED_EXTENSIONS", "notifications")
        found = await populate(url, tmp_path_factory.mktemp("identity_pages"))
    yield found
    await scratch_databases.drop_database(server, name)
