"""What takes long: the audit trail is told and looked at in bounded parts, to those who may still see it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tenuto import Tenuto
from tenuto.api.server import serving
from tenuto.audit import checkpoints, keys, verifier
from tenuto.audit.sealer import seal_some
from tenuto.errors import Invalid
from tenuto.model.actors import Role
from tests.api.conftest import Api

FILLED = """
WITH made AS (
    INSERT INTO tenuto.audit (id, at, actor_type, actor_name, source, action, after)
    SELECT gen_random_uuid(), clock_timestamp(), 'user', 'eve', 'test', 'queue.limit',
           jsonb_build_object('text', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, $2) AS i))
    FROM generate_series(1, $1) AS n
    RETURNING id
)
INSERT INTO tenuto.audit_chain (position, audit_id, sealed_at, seal)
SELECT (SELECT count(*) FROM tenuto.audit_chain) + row_number() OVER (), id, clock_timestamp(), decode('00', 'hex')
FROM made
"""


async def test_an_export_ends_in_the_middle_once_its_key_is_revoked(url: str, tmp_path: Path) -> None:
    async with Tenuto(url, home=tmp_path) as app:
        _, key = await app.keys.make("auditor", Role.ADMIN)
        await (await app.open()).all(FILLED, 12_000, 60)
        headers = {"Authorization": f"Bearer {key}", "Accept-Encoding": "identity"}
        read, cut = 0, ""
        async with (
            serving(app, port=0) as address,
            httpx2.AsyncClient(timeout=30) as client,
            client.stream("GET", f"{address}/api/v1/audit/export", headers=headers) as answer,
        ):
            lines = answer.aiter_lines()
            assert json.loads(await anext(lines))["position"] == 1
            await app.keys.revoke("auditor")
            try:
                async for _line in lines:
                    read += 1
            except httpx2.RemoteProtocolError as error:
                cut = str(error)
        assert 0 < read < 12_000
        assert "incomplete" in cut, "it ended as an answer ends that is whole"


async def parts(service: Api, **query: Any) -> list[dict[str, Any]]:
    found = [await service.read("/api/v1/audit/verification", params=query)]
    while found[-1]["next"] is not None:
        found.append(await service.read("/api/v1/audit/verification", params={"after": found[-1]["next"]}))
        assert len(found) < 100
    return found


async def test_the_trail_is_verified_in_parts_that_miss_nothing(service: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    (whole,) = await parts(service)
    assert (whole["sound"], whole["next"]) == (True, None)
    monkeypatch.setattr(verifier, "_MOMENT", 0.0)
    monkeypatch.setattr(verifier, "_PAGE", 3)
    monkeypatch.setattr(verifier, "_ENTRIES", 4)
    for number in range(10):
        await service.put(f"/api/v1/queues/q{number}/limit", json={"max_running": number + 1})
    database = await service.app.open()
    await seal_some(database, keys.at_hand(service.app.settings))
    some = await parts(service)
    assert len(some) > 4
    assert all(part["sound"] for part in some)
    length = some[-1]["position"]
    assert sum(part["links"] for part in some) == length
    assert sum(part["links"] for part in await parts(service, newest=5)) == 5

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
    found = [(fault["kind"], fault["position"]) for part in await parts(service) for fault in part["faults"]]
    told = await service.app.audit.verify()
    assert found == [("changed", 4), ("changed", 6), ("inserted", None)]
    assert [(fault.kind, fault.position) for fault in told.faults] == found
    assert (await service.get("/api/v1/audit/verification", params={"after": "WzEsMl0"})).status_code == 422


def test_a_head_is_remembered_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "heads"
    line = json.dumps({"database": "d", "position": 1, "seal": "00", "at": "2031-01-01T00:00:00+00:00"})
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:7]))
    checkpoints.append_line(file, line, checkpoints.parsed)
    assert file.read_text() == f"{line}\n"

    def full(handle: int, data: bytes) -> int:
        if file.stat().st_size > len(line) + 20:
            raise OSError(28, "No space left on device")
        return write(handle, data[:30])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.append_line(file, line, checkpoints.parsed)
    assert file.read_text() == f"{line}\n"
    monkeypatch.setattr(os, "write", write)
    file.write_text(f"{line}\n{line[:20]}")  # the machine went down while it was written
    checkpoints.append_line(file, line, checkpoints.parsed)
    assert file.read_text() == f"{line}\n{line}\n"
    (tmp_path / checkpoints.FILE).write_text(f"{line}\n{line[:20]}")
    assert [anchor.position for anchor in checkpoints.read(tmp_path, "d")] == [1]


def test_a_head_that_lost_its_line_end_is_read_and_kept(tmp_path: Path) -> None:
    file = tmp_path / checkpoints.FILE
    first, second, third = (
        json.dumps({"database": "d", "position": position, "seal": "00", "at": "2031-01-01T00:00:00+00:00"})
        for position in (1, 2, 3)
    )
    file.write_text(f"{first}\n{second}")  # an editor saved it so
    assert [anchor.position for anchor in checkpoints.read(tmp_path, "d")] == [1, 2]
    checkpoints.append_line(file, third, checkpoints.parsed)
    assert file.read_text() == f"{first}\n{second}\n{third}\n"


@pytest.mark.parametrize(
    "line", [b"5", b"{}", b'{"database": "d", "position": 1, "seal": "0", "at": "x"}', b"\xff", b""]
)
def test_a_line_that_is_no_head_is_refused_with_a_remedy(line: bytes, tmp_path: Path) -> None:
    (tmp_path / checkpoints.FILE).write_bytes(line + b"\n")
    with pytest.raises(Invalid, match="no head") as refusal:
        checkpoints.read(tmp_path, "d")
    assert refusal.value.remedy
