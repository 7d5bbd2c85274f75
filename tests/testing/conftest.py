"""The public fixtures of `tenuto.testing`, on the server of the other tests."""

from __future__ import annotations

import pytest

from tenuto.testing.fixtures import tenuto_app, tenuto_database, tenuto_template

__all__ = ["tenuto_app", "tenuto_database", "tenuto_template"]


@pytest.fixture(scope="session")
def tenuto_server(server: str) -> str:
    return server
