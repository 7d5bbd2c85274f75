"""An import that recognises unchanged objects by their fingerprints gives what an import without it gives."""

from __future__ import annotations

from typing import Any

import yaml

from tests.identity.scenario_site import Site

PAGE_SIZE = 4


def person(number: int, title: str = "Fellow") -> str:
    manager = f"P{number - 1}" if number > 1 else ""
    return f"P{number},First,Last{number},p{number}@example.org,Research,{title},{manager},2020-01-01,"


BASE = [person(number) for number in range(1, 13)]
FILES = {
    "the same": BASE,
    "changed": [person(3, "Director") if row == person(3) else row for row in BASE],
    "changed back, in reverse order": BASE[::-1],
    "in order again": BASE,
    "inserted and removed": [*BASE[:2], person(21), *BASE[3:7], person(22), *BASE[8:]],
    "repeated in the same page": [BASE[0], BASE[1], BASE[1], *BASE[3:]],
    "all again": BASE,
    "repeated with another value in the same page": [BASE[0], BASE[1], person(2, "Director"), *BASE[3:]],
    "repeated in a later page": [*BASE, BASE[1]],
    "repeated among the objects that are expected next": [*BASE[1:4], BASE[0], BASE[1], *BASE[4:]],
    "repeated with another value in a later page": [*BASE, person(2, "Director")],
    "not regular": [*BASE[:5], "", "P6,First", *BASE[6:], "P13,é,Last13,p13@example.org,Research,,,soon,"],
}


async def prepare(site: Site) -> None:
    """Let HR be read in batches, and Rows row by row from the same file."""
    whole = yaml.safe_load(site.definitions(page_size=PAGE_SIZE))
    hr = whole["systems"][0]
    rows = {**hr, "name": "Rows", "settings": {**hr["settings"], "guard_formulas": True}}
    await site.apply(yaml.safe_dump({"systems": [hr, rows]}))


async def import_into(site: Site, system: str) -> tuple[Any, ...]:
    """Return the result of an import, and what the connector space has afterwards."""
    run = await site.run(system, "Full Import")
    database = await site.database()
    stored = await database.fetch_all(
        "SELECT o.anchor, o.state, o.attributes::text AS attributes, o.version, m.reason"
        " FROM tenuto_identity.connector_objects AS o"
        " JOIN tenuto_identity.systems AS s ON s.number = o.system_number"
        " LEFT JOIN tenuto_identity.sync_marks AS m ON m.object_id = o.id"
        " WHERE s.name = $1 ORDER BY o.anchor",
        system,
    )
    counts = await database.fetch_value(
        "SELECT counts::text FROM tenuto_identity.runs ORDER BY started_at DESC, id DESC LIMIT 1"
    )
    items = sorted((str(each["anchor"]), str(each["change"]), str(each["error"])) for each in run.items)
    return run.state, counts, items, [tuple(each) for each in stored]


async def test_import_in_batches_gives_what_an_import_of_single_rows_gives(site: Site) -> None:
    await prepare(site)
    for name, rows in FILES.items():
        site.write_hr(*rows)
        assert await import_into(site, "HR") == await import_into(site, "Rows"), name
