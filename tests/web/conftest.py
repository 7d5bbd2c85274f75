"""The whole web application without a socket, on a fresh database, with one API key and one session for each role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tenuto.api.security.authentication import SESSION_COOKIE
from tenuto.model.access.actors import Role
from tenuto.web.application import create_web_application
from tests.api.conftest import HOST, ApiClient, running_api

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
OWN_ORIGIN = {"Origin": HOST, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def service(url: str, tmp_path: Path) -> AsyncIterator[ApiClient]:
    async with running_api(url, tmp_path, create_web_application) as client:
        yield client


async def log_in(service: ApiClient, role: Role = Role.VIEWER) -> None:
    """Give the client a session with this role."""
    form = {"credential": service.keys[role]}
    service.client.cookies.clear()
    done = await service.client.post("/login", data=form, headers=OWN_ORIGIN)
    assert done.status_code == 303, done.text
    service.client.cookies.set(SESSION_COOKIE, done.cookies[SESSION_COOKIE])
    service.client.cookies.set("tenuto_zone", "Europe/London")


async def get_page(service: ApiClient, path: str, status: int = 200, **headers: str) -> httpx2.Response:
    """Return a page for the session of the client."""
    response = await service.client.get(path, headers={**HTML, **headers})
    assert response.status_code == status, (path, response.status_code, response.text[:2000])
    return response
