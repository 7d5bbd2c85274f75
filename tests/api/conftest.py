"""The web service without a socket: all of it, guards included, on a fresh database, with one key for each role."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from tenuto import Context, PermanentFailure, Tenuto
from tenuto.api.application import api, guarded
from tenuto.model.actors import Role
from tenuto.settings import load

HOST = "http://localhost"
MASTER_KEY = base64.b64encode(bytes(range(32))).decode()


@dataclass
class Api:
    """Somebody who has every key."""

    app: Tenuto
    made: FastAPI
    keys: dict[Role, str]
    client: httpx2.AsyncClient

    async def send(self, method: str, path: str, role: Role | None = Role.ADMIN, **given: Any) -> httpx2.Response:
        headers = dict(given.pop("headers", {}))
        if role is not None:
            headers.setdefault("Authorization", f"Bearer {self.keys[role]}")
        return await self.client.request(method, path, headers=headers, **given)

    async def get(self, path: str, role: Role | None = Role.ADMIN, **given: Any) -> httpx2.Response:
        return await self.send("GET", path, role, **given)

    async def post(self, path: str, role: Role | None = Role.ADMIN, **given: Any) -> httpx2.Response:
        return await self.send("POST", path, role, **given)

    async def put(self, path: str, role: Role | None = Role.ADMIN, **given: Any) -> httpx2.Response:
        return await self.send("PUT", path, role, **given)

    async def delete(self, path: str, role: Role | None = Role.ADMIN, **given: Any) -> httpx2.Response:
        return await self.send("DELETE", path, role, **given)

    async def read(self, path: str, **given: Any) -> Any:
        """What a GET that must go well answers with."""
        answer = await self.get(path, **given)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()


def with_jobs(app: Tenuto) -> Tenuto:
    """Some jobs to ask for."""

    @app.job
    async def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    @app.job(name="mail/send", queue="mail")
    async def send(to: str, subject: str = "", times: int = 1) -> str:
        return f"{subject} to {to}"

    @app.job(max_retries=1)
    async def boom(why: str = "no reason") -> None:
        raise PermanentFailure(why)

    @app.job
    async def family(ctx: Context, children: int) -> None:
        ctx.log.info("a family")
        for number in range(children):
            await app.enqueue(double, number)

    return app


@pytest.fixture
async def service(url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(url, tmp_path) as made:
        yield made


class serving:  # noqa: N801 — used as a function
    """The web service on a database, for as long as the block lasts."""

    def __init__(self, url: str, home: Path, **settings: Any) -> None:
        self._app = with_jobs(Tenuto(settings=load(database=url, home=home, master_key=MASTER_KEY, **settings)))

    async def __aenter__(self) -> Api:
        app = self._app
        keys = {role: (await app.keys.make(role.word, role))[1] for role in Role}
        made = api(app)
        transport = httpx2.ASGITransport(app=guarded(app, made), client=("127.0.0.1", 50000))
        return Api(app, made, keys, httpx2.AsyncClient(transport=transport, base_url=HOST))

    async def __aexit__(self, *_: object) -> None:
        await self._app.close()


def problem(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """A problem, told as problems are."""
    assert answer.status_code == status, (answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert told["status"] == status
    assert told["type"].startswith("urn:tenuto:")
    assert told["title"]
    assert told["request_id"] == answer.headers["x-request-id"]
    return told
