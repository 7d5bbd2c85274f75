"""A site with something on every page: runs with errors, refused and unconfirmed exports, a hold, previews, identities.

Names and refusals contain markup, and the title is a sensitive attribute.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tenuto import Step, manual
from tenuto.model.access.actors import Role
from tenuto.operations.definitions.schedules import schedule_definition
from tests.identity.scenario_site import NIGHT, PEOPLE, Site, open_site

HOSTILE = "<img src=x onerror=alert(1)>"
SECRET_TITLE = "Keeper of <b>secrets</b>"
NIGHTLY = "Nightly HR Sync"
UNJOINED = "stray/1"
DEPARTMENTS = ("Research", "Engineering", "Sales", "Finance")
NAMES = (
    "Katherine Johnson", "Barbara Liskov", "Donald Knuth", "Radia Perlman", "John McCarthy", "Frances Allen",
    "Tony Hoare", "Margaret Hamilton", "Dennis Ritchie", "Adele Goldberg", "Niklaus Wirth", "Karen Jones",
    "Leslie Lamport", "Shafi Goldwasser", "Ken Thompson", "Anita Borg", "Robin Milner", "Lynn Conway",
    "Michael Stonebraker", "Evelyn Boyd", "Jim Gray", "Hedy Lamarr", "Vint Cerf", "Susan Kare",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Populated:
    """The ids of what the pages show."""

    url: str
    home: Path
    keys: dict[Role, str]
    execution_id: UUID
    import_id: UUID
    """A run with errors."""
    held_run_id: UUID
    preview_id: UUID
    hostile_id: int
    leaver_id: int
    """An identity whose deletion is scheduled."""
    ada_id: int


def people() -> list[str]:
    rows = list(PEOPLE)
    for number, name in enumerate(NAMES):
        first, last = name.split(" ")
        department, title = DEPARTMENTS[number % 4], ("Engineer", "Analyst", "Lead")[number % 3]
        mail = f"{first.lower()}@example.org"
        rows.append(f"{1010 + number},{first},{last},{mail},{department},{title},1001,2020-05-01,")
    rows.append(f"1090,{HOSTILE},\u202eMallory,mallory@example.org,Sales,{SECRET_TITLE},1002,2020-06-01,")
    return rows


async def populate(url: str, home: Path) -> Populated:
    """Run two nights and the import that a guard holds."""
    async with open_site(url, home) as site:
        definitions = site.definitions(grace=", grace: 30d").replace(
            "title: text,", "title: {type: text, sensitive: true},"
        )
        await site.apply(definitions)
        steps = [
            Step.of(
                "run_profile",
                {"system": system, "profile": profile},
                name=f"{system} - {profile}",
                continue_on_failure=True,
            )
            for system, profile in NIGHT
        ]
        await site.app.schedules.create(schedule_definition(NIGHTLY, manual(), steps))
        site.write_hr(*people())
        site.ad.behave(
            refuse={"cn=Ada Lovelace,ou=Research,ou=people,dc=ad,dc=test": f"constraint violation: {HOSTILE}"}
        )
        site.ldap.behave(transform={"cn": "upper"})
        first = await site.app.schedules.run(NIGHTLY)
        assert first.execution_id is not None
        await site.app.executions.wait(first.execution_id, 60)
        site.ad.put(
            "user", UNJOINED, {"cn": "Stray Account", "mail": "stray@example.org"}, address="cn=Stray,dc=ad,dc=test"
        )
        changed = people()
        changed[1] = changed[1].replace("Engineer,", "Principal Engineer,")
        site.write_hr(*(row for row in changed if not row.startswith("1004,")), ADA_TWICE, ADA_TWICE)
        imported = await site.run("HR", "Full Import")
        await site.run("HR", "Full Sync")
        await site.run("AD", "Full Import")
        preview = await _preview(site)
        site.write_hr(*changed[:12])
        held = await site.run("HR", "Full Import")
        operations = site.app.extensions.identity
        ids = {each.display: each.id for each in await operations.identities(limit=100)}
        keys = {role: (await site.app.api_keys.create(f"{role.key}s", role, is_person=True))[1] for role in Role}
        return Populated(
            url, home, keys, first.execution_id, imported.id, held.id, preview,
            next(id for name, id in ids.items() if name and HOSTILE in name), ids["Edsger Dijkstra"],
            ids["Ada Lovelace"],
        )  # fmt: skip


ADA_TWICE = "1099,Twin,Twice,twin@example.org,Sales,Analyst,,2020-01-01,"


async def _preview(site: Site) -> UUID:
    operations = site.app.extensions.identity
    await site.app.wait(await operations.preview(schedule=NIGHTLY), 60)
    [found] = await operations.previews()
    return UUID(str(found.id))
