"""Long lists in pages."""

from __future__ import annotations

from uuid import UUID

from tenuto.model.access.actors import Role
from tenuto.postgres.database import Connection, Database
from tenuto.store.access.api_keys import SQL
from tests.api.conftest import ApiClient, assert_problem


async def test_api_pages_through_long_lists(service: ApiClient, db: Database) -> None:
    await db.fetch_all(
        "INSERT INTO tenuto.api_keys (id, name, prefix, digest, role, created_at, created_by, revoked_at, revoked_by)"
        " SELECT gen_random_uuid(), 'key-' || n % 300, 'p' || n, '', 'viewer', now(), 'test',"
        " CASE WHEN n > 300 THEN now() END, CASE WHEN n > 300 THEN 'test' END FROM generate_series(1, 600) AS n"
    )
    await db.fetch_all(
        "INSERT INTO tenuto.manifest_groups (name, priority, enabled, changed_at, changed_by)"
        " SELECT 'group-' || n, 0, true, now(), 'test' FROM generate_series(1, 1100) AS n"
    )
    for path, total in (("/api/v1/keys", 600 + len(Role)), ("/api/v1/manifest-groups", 1100)):
        found, after = [], None
        while True:
            page = await service.get_json(path, params={"limit": 250, **({"after": after} if after else {})})
            found += [each.get("id") or each["name"] for each in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert (len(found), len(set(found))) == (total, total), path
    changed = await service.put("/api/v1/manifest-groups/zzz", json={"max_active": 3})
    assert (changed.status_code, changed.json()["max_active"]) == (200, 3)
    assert (await service.get_json("/api/v1/manifest-groups/zzz"))["name"] == "zzz"
    assert_problem(await service.get("/api/v1/manifest-groups/none"), 404)
    assert_problem(await service.get("/api/v1/keys", params={"after": "WzEsMiwzXQ"}), 422)


async def test_api_pages_through_versions_and_lists_steps_alone(service: ApiClient) -> None:
    schedule = {"name": "s", "steps": [{"job": "double", "input": {"n": 1}}, {"job": "boom"}]}
    assert (await service.post("/api/v1/schedules", json=schedule)).status_code == 201
    manifest = {"external_id": "m", "job": "double", "on_demand": True}
    assert (await service.post("/api/v1/manifests", json=manifest)).status_code == 201
    for number in range(4):
        change = {"description": f"the {number}th"}
        for path, body in (("/api/v1/schedules/s", schedule), ("/api/v1/manifests/m", manifest)):
            assert (await service.put(path, json={**body, **change})).status_code == 200, path
    for path in ("/api/v1/schedules/s/versions", "/api/v1/manifests/m/versions"):
        first = await service.get_json(path, params={"limit": 3})
        rest = await service.get_json(path, params={"limit": 3, "after": first["next"]})
        assert [each["version"] for each in (*first["items"], *rest["items"])] == [5, 4, 3, 2, 1], path
        assert rest["next"] is None
        assert_problem(await service.get(path, params={"after": "WzEsMl0"}), 422)
    run = (await service.post("/api/v1/schedules/s/run")).json()["execution_id"]
    steps = (await service.get_json(f"/api/v1/executions/{run}/steps"))["items"]
    assert [step["target"] for step in steps] == ["double", "boom"]


async def test_sessions_of_a_revoked_key_are_found_by_index(db: Database) -> None:
    async def plan(connection: Connection) -> str:
        await connection.execute("SET LOCAL enable_seqscan = off")
        return str(await connection.fetch("EXPLAIN " + SQL.end_sessions_of_key.replace("$1", f"'{UUID(int=7)}'::uuid")))

    assert "sessions_of_key" in await db.transaction(plan)
