"""Example data from a template: reproducible by seed, a tree of managers without cycles, unique texts."""

from __future__ import annotations

import asyncpg

from tenuto.errors import Invalid
from tests.identity.scenario_site import Site
from tests.support.errors import raises_code
from tests.support.repetition_counts import times
from tests.support.waiting import eventually

PEOPLE, GROUPS = times(300, in_a_proof=10_000), times(5, in_a_proof=500)
TEMPLATE = f"""
metaverse:
  - type: group
    attributes: {{cn: text, members: {{type: reference, to: person, multi: true}}}}
templates:
  - name: example people
    objects:
      - type: person
        count: {PEOPLE}
        attributes:
          employee_id: {{sequence: 1000}}
          first: {{choice: [Ada, Grace, Alan]}}
          last: {{choice: [Lovelace, Hopper]}}
          mail: {{pattern: "{{first}}.{{last}}{{n?}}@example.org"}}
          department: {{weighted: {{Research: 3, Engineering: 1}}}}
          title: {{choice: [Fellow], population: 40%}}
          starts: {{date: [2015-01-01, 2026-01-01]}}
          manager: {{tree: 8}}
      - type: group
        count: {GROUPS}
        attributes: {{cn: {{pattern: "group {{sequence}}"}}, members: {{sample: 10}}}}
"""


async def test_template_generates_people_and_groups(site: Site) -> None:
    await site.apply(site.definitions())
    await site.apply(TEMPLATE)
    identity = site.app.extensions.identity
    done = await site.app.wait(await identity.run_template("example people", seed="7"), timeout=60)
    assert (done.state, done.output) == ("completed", {"template": "example people", "created": PEOPLE + GROUPS})
    assert await site.count("metaverse_objects", "origin = 'internal'") == PEOPLE + GROUPS
    database = await site.database()
    roots = await database.fetch_value(
        "WITH RECURSIVE below AS (SELECT m.id FROM tenuto_identity.metaverse_objects AS m"
        " WHERE m.attributes ? 'employee_id' AND NOT EXISTS (SELECT FROM tenuto_identity.metaverse_references"
        " WHERE object_id = m.id)"
        " UNION ALL SELECT r.object_id FROM tenuto_identity.metaverse_references AS r"
        " JOIN below ON below.id = r.target_id"
        " JOIN tenuto_identity.metaverse_objects AS o ON o.id = r.object_id AND o.attributes ? 'employee_id')"
        " SELECT count(*) FROM below"
    )
    assert roots == PEOPLE, "every person is below one root, once"
    assert (
        await database.fetch_value(
            "SELECT count(DISTINCT attributes -> 'mail' ->> 0) FROM tenuto_identity.metaverse_objects"
        )
        == PEOPLE
    )
    values = await _values(site)
    await database.write_all("DELETE FROM tenuto_identity.metaverse_objects")
    await database.write_all("DELETE FROM tenuto_identity.match_keys")
    await site.app.wait(await identity.run_template("example people", seed="7"), timeout=60)
    assert await _values(site) == values


async def test_a59_template_reports_how_many_objects_it_has_generated(site: Site, url: str) -> None:
    await site.apply(site.definitions())
    await site.apply(TEMPLATE)
    database = await site.database()
    other = await asyncpg.connect(url)
    blocking = other.transaction()
    await blocking.start()
    await other.execute("LOCK TABLE tenuto_identity.template_runs IN EXCLUSIVE MODE")  # written at the end
    task = await site.app.extensions.identity.run_template("example people", seed="7")

    async def reported() -> str | None:
        found = await database.fetch_value("SELECT progress ->> 'message' FROM tenuto.tasks WHERE id = $1", task)
        return found if found and found.startswith(f"{PEOPLE + GROUPS} of") else None

    assert await eventually(reported) == f"{PEOPLE + GROUPS} of {PEOPLE + GROUPS} objects generated"
    await blocking.commit()
    await other.close()
    assert (await site.app.wait(task, timeout=60)).state == "completed"


async def test_template_with_an_unknown_attribute_is_refused_with_its_place(site: Site) -> None:
    await site.apply(site.definitions())
    with raises_code("identity.definition.invalid", Invalid) as refused:
        await site.apply(TEMPLATE.replace("employee_id: {sequence", "employe_id: {sequence"))
    assert "line 11" in str(refused.value.field)
    assert "employee_id" in str(refused.value.remedy)


async def _values(site: Site) -> list[str]:
    database = await site.database()
    rows = await database.fetch_all("SELECT attributes::text AS attributes FROM tenuto_identity.metaverse_objects")
    return sorted(row["attributes"] for row in rows)
