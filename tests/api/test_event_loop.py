"""Requests with large definitions: other requests are answered while one is converted, planned or checked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import httpx2
import pytest

from tenuto.clock import monotonic_seconds
from tenuto.model.access.actors import Role
from tests.api.conftest import ApiClient

YAML = f"name: a\nvalues: [{'1, ' * 30_000}1]"
SCHEDULES = [
    {"name": f"s{number}", "cron": "0 2 * * *", "steps": [{"job": "double", "input": {"n": 1}}]}
    for number in range(3000)
]
STEPS = [{"job": "double", "name": f"step {number}", "input": {"n": number}} for number in range(8000)]


async def measure(request: Awaitable[httpx2.Response]) -> tuple[httpx2.Response, float, float]:
    """Return the response, how long it took, and the longest time in it in which the event loop did nothing else."""
    longest, started_at = 0.0, monotonic_seconds()
    last = started_at
    sent = asyncio.ensure_future(request)
    while not sent.done():
        await asyncio.sleep(0)
        now = monotonic_seconds()
        longest, last = max(longest, now - last), now
    return await sent, last - started_at, longest


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("plans/convert", {"text": YAML}),
        ("plans/convert", {"definition": {"values": [1] * 30_000}}),
        ("plans", {"schedules": SCHEDULES}),
        ("schedules/check", {"name": "a", "cron": "0 2 * * *", "steps": STEPS}),
    ],
)
async def test_large_definition_does_not_block_other_requests(
    service: ApiClient, path: str, body: dict[str, Any]
) -> None:
    headers = {"Authorization": f"Bearer {service.keys[Role.VIEWER]}", "Content-Type": "application/json"}
    await service.client.post(f"/api/v1/{path}", content=b"{}", headers=headers)  # the first one imports modules
    content = json.dumps(body).encode()
    response, seconds, longest = await measure(service.client.post(f"/api/v1/{path}", content=content, headers=headers))
    assert response.status_code == 200, response.text[:500]
    assert longest < seconds * 0.6
