"""Long responses: export and verification of the audit log in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tenuto import Tenuto
from tenuto.audit import keys, verifier
from tenuto.audit.sealer import seal_entries
from tenuto.model.access.actors import Role
from tenuto.web.server import web_server
from tests.api.conftest import ApiClient

INSERT_AUDIT_ENTRIES = """
WITH created AS (
    INSERT INTO tenuto.audit (id, at, actor_type, actor_name, source, action, after)
    SELECT gen_random_uuid(), clock_timestamp(), 'user', 'eve', 'test', 'queue.limit',
           jsonb_build_object('text', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, $2) AS i))
    FROM generate_series(1, $1) AS n
    RETURNING id
)
INSERT INTO tenuto.audit_chain (position, audit_id, sealed_at, seal)
SELECT (SELECT count(*) FROM tenuto.audit_chain) + row_number() OVER (), id, clock_timestamp(), decode('00', 'hex')
FROM created
"""


async def test_audit_export_is_aborted_when_its_key_is_revoked(url: str, tmp_path: Path) -> None:
    async with Tenuto(url, home=tmp_path) as app:
        _, key = await app.api_keys.create("auditor", Role.ADMIN)
        await (await app.open()).fetch_all(INSERT_AUDIT_ENTRIES, 12_000, 60)
        headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"}
        read, cut = 0, ""
        async with (
            web_server(app, port=0) as address,
            httpx2.AsyncClient(timeout=30) as client,
            client.stream("GET", f"{address}/api/v1/audit/export", headers=headers) as response,
        ):
            lines = response.aiter_lines()
            assert json.loads(await anext(lines))["position"] == 1
            await app.api_keys.revoke("auditor", allow_last_admin=True)
            try:
                async for _line in lines:
                    read += 1
            except httpx2.RemoteProtocolError as error:
                cut = str(error)
        assert 0 < read < 12_000
        assert "incomplete" in cut, "the response ended like a complete one"


async def verify_in_parts(service: ApiClient, **query: Any) -> list[dict[str, Any]]:
    found = [await service.get_json("/api/v1/audit/verification", params=query)]
    while found[-1]["next"] is not None:
        found.append(await service.get_json("/api/v1/audit/verification", params={"after": found[-1]["next"]}))
        assert len(found) < 100
    return found


async def test_audit_verification_in_parts_finds_all_faults(
    service: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    (whole,) = await verify_in_parts(service)
    assert (whole["is_sound"], whole["next"]) == (True, None)
    monkeypatch.setattr(verifier, "_PART_SECONDS", 0.0)
    monkeypatch.setattr(verifier, "_LINKS_PER_PAGE", 3)
    monkeypatch.setattr(verifier, "_ENTRIES_PER_PAGE", 4)
    for number in range(10):
        await service.put(f"/api/v1/queues/q{number}/limit", json={"max_running": number + 1})
    database = await service.app.open()
    await seal_entries(database, keys.load_audit_keys(service.app.settings))
    some = await verify_in_parts(service)
    assert len(some) > 4
    assert all(part["is_sound"] for part in some)
    length = some[-1]["end_position"]
    assert sum(part["checked_link_count"] for part in some) == length
    assert sum(part["checked_link_count"] for part in await verify_in_parts(service, newest=5)) == 5

    connection = await asyncpg.connect(service.app.settings.database)
    await connection.execute("SET session_replication_role = replica")
    nth = "(SELECT audit_id FROM tenuto.audit_chain WHERE position = {})"
    await connection.execute(f"UPDATE tenuto.audit SET reason = 'x' WHERE id = {nth.format(4)}")  # first of a part
    await connection.execute(f"UPDATE tenuto.audit SET reason = 'x' WHERE id = {nth.format(6)}")  # last of one
    await connection.execute(
        "INSERT INTO tenuto.audit (id, at, actor_type, actor_name, source, action)"
        " VALUES ('00000000-0000-0000-0000-000000000007', now(), 'user', 'eve', 'test', 'put.in')"
    )  # the oldest by its id: in the last part
    await connection.close()
    found = [(fault["kind"], fault["position"]) for part in await verify_in_parts(service) for fault in part["faults"]]
    whole_result = await service.app.audit.verify()
    assert found == [("changed", 4), ("changed", 6), ("inserted", None)]
    assert [(fault.kind, fault.position) for fault in whole_result.faults] == found
    assert (await service.get("/api/v1/audit/verification", params={"after": "WzEsMl0"})).status_code == 422
