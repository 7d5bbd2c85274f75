"""A worker that is killed at any crash point: the repeated attempt converges to the result of an undisturbed run."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tenuto.postgres import scratch_databases
from tests.conftest import database_name
from tests.identity.scenario_site import ADA, ALAN, EDSGER, GRACE, NIGHT, Site, open_site, run_until_killed

Night = tuple[tuple[str, str], ...]
"""Systems and run profiles, in order."""
FIRST_NIGHT = (
    ADA,
    GRACE,
    ALAN,
    EDSGER,
    *(f"2{n:03},P{n},Q,p{n}@example.org,Staff,,1001,2020-01-01," for n in range(6)),
)
BARBARA = "3001,Barbara,Liskov,barbara@example.org,Research,Fellow,1001,2020-05-01,"
SECOND_NIGHT = (
    ADA.replace("Director,,", "Director,3001,"),  # refers to an object that is joined in a later page
    GRACE.replace("Engineer,1001", "Admiral,1001"),
    ALAN.replace("Research", "Engineering"),
    *FIRST_NIGHT[5:],
    BARBARA,
)
POINTS = [
    ("HR", "Full Import", "run_begun", 1),
    ("HR", "Full Import", "import_page_written", 2),
    ("HR", "Full Import", "import_page_committed", 2),
    ("HR", "Full Import", "import_read", 1),
    ("HR", "Full Import", "import_deletions_found", 1),
    ("HR", "Full Import", "import_deletion_page_committed", 1),
    ("HR", "Full Import", "import_ending", 1),
    ("HR", "Full Sync", "sync_page_written", 3),
    ("HR", "Full Sync", "sync_page_committed", 3),
    ("HR", "Full Sync", "sync_reference_page", 1),
    ("HR", "Full Sync", "sync_ending", 1),
    ("AD", "Export", "export_claimed", 2),
    ("AD", "Export", "export_sent", 1),
    ("AD", "Export", "export_sent", 3),
    ("AD", "Export", "export_recorded", 2),
    ("AD", "Export", "export_ending", 1),
    ("AD", "Full Import", "import_page_committed", 2),
    ("AD", "Full Import", "import_deletion_page_committed", 1),
]
DELTA_NIGHT = tuple(
    (system, {"HR Full Sync": "Delta Sync", "AD Full Import": "Delta Import"}.get(f"{system} {profile}", profile))
    for system, profile in NIGHT
)
"""The same night with a delta sync and a delta import."""
DELTA_POINTS = [
    ("HR", "Delta Sync", "run_begun", 1),
    ("HR", "Delta Sync", "sync_page_written", 2),
    ("HR", "Delta Sync", "sync_page_committed", 2),
    ("HR", "Delta Sync", "sync_ending", 1),
    ("AD", "Delta Import", "run_begun", 1),
    ("AD", "Delta Import", "import_page_written", 2),
    ("AD", "Delta Import", "import_page_committed", 2),
    ("AD", "Delta Import", "import_deletion_page_committed", 1),
    ("AD", "Delta Import", "import_ending", 1),
]
_number = count(1)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@dataclass(frozen=True)
class Prepared:
    """A site after its first night: a database to copy, and the files."""

    server: str
    database: str
    folder: Path
    backup: Path

    @asynccontextmanager
    async def open(self, *, has_worker: bool) -> AsyncIterator[tuple[Site, str]]:
        """Open a copy of the site with the files of the first night and the HR file of the second."""
        name = database_name(f"identity_crash_{next(_number)}")
        url = await scratch_databases.copy_database(self.server, self.database, name, by_file_copy=True)
        shutil.rmtree(self.folder / "files")
        shutil.copytree(self.backup, self.folder / "files")
        async with open_site(url, self.folder, has_worker=has_worker) as site:
            site.write_hr(*SECOND_NIGHT)
            yield site, url
        await scratch_databases.drop_database(self.server, name)


@pytest.fixture(scope="module")
def prepared(server: str, identity_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("crash")
    name = database_name("identity_crash")

    async def prepare() -> None:
        url = await scratch_databases.copy_database(server, identity_template, name, by_file_copy=True)
        async with open_site(url, folder) as site:
            site.write_hr(*FIRST_NIGHT)
            await site.apply(site.definitions(page_size=2))
            await site.nightly()

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TENUTO_DISABLED_EXTENSIONS", "notifications")
        asyncio.run(prepare())
    shutil.copytree(folder / "files", folder / "backup")
    yield Prepared(server, name, folder, folder / "backup")
    asyncio.run(scratch_databases.drop_database(server, name))


def run_undisturbed(prepared: Prepared, night: Night) -> dict[str, Any]:
    """Return the state after a second night without crashes."""

    async def run() -> dict[str, Any]:
        async with prepared.open(has_worker=True) as (site, _):
            for step in night:
                done = await site.run(*step)
                assert done.state == "completed", (step, done)
            return await dump(site)

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TENUTO_DISABLED_EXTENSIONS", "notifications")
        return asyncio.run(run())


@pytest.fixture(scope="module")
def undisturbed(prepared: Prepared) -> dict[str, Any]:
    return run_undisturbed(prepared, NIGHT)


@pytest.fixture(scope="module")
def undisturbed_delta(prepared: Prepared) -> dict[str, Any]:
    return run_undisturbed(prepared, DELTA_NIGHT)


@pytest.mark.parametrize(("system", "profile", "point", "count"), POINTS)
async def test_run_that_is_killed_converges(
    prepared: Prepared, undisturbed: dict[str, Any], system: str, profile: str, point: str, count: int
) -> None:
    await check_killed_night(prepared, undisturbed, NIGHT, (system, profile), point, count)


@pytest.mark.parametrize(("system", "profile", "point", "count"), DELTA_POINTS)
async def test_delta_run_that_is_killed_converges(
    prepared: Prepared, undisturbed_delta: dict[str, Any], system: str, profile: str, point: str, count: int
) -> None:
    await check_killed_night(prepared, undisturbed_delta, DELTA_NIGHT, (system, profile), point, count)


async def check_killed_night(
    prepared: Prepared, undisturbed: dict[str, Any], night: Night, killed: tuple[str, str], point: str, count: int
) -> None:
    """Kill the worker of one run of a night, and compare the end of the night with an undisturbed one."""
    async with prepared.open(has_worker=False) as (site, url):
        for step in night:
            execution = await site.fire(*step)
            if step == killed:
                await run_until_killed(url, prepared.folder, point, count)
            async with site.app.worker(lease_seconds=1.5):
                done = await site.finish(execution)
            assert done.state == "completed", (step, done)
        assert await site.count("pending_exports", "state = 'executing'") == 0
        assert await site.count("runs", "state = 'running'") == 0
        found = await dump(site)
        for part, expected in undisturbed.items():
            assert found[part] == expected, part


async def dump(site: Site) -> dict[str, Any]:
    """Return everything but ids, instants and runs, in an order that does not depend on them."""
    database = await site.database()
    found: dict[str, Any] = {}
    for name, statement in DUMPS.items():
        found[name] = sorted(tuple(map(str, row)) for row in await database.fetch_all(statement))
    found["AD"] = sorted((each["address"], sorted(map(str, each["attributes"].items()))) for each in _users(site))
    items = await database.fetch_all(
        "SELECT r.profile, s.name, i.change, coalesce(i.display, i.anchor) AS subject FROM tenuto_identity.items AS i"
        " JOIN tenuto_identity.runs AS r ON r.id = i.run_id JOIN tenuto_identity.systems AS s"
        " ON s.number = r.system_number WHERE s.name <> 'LDAP' AND i.change IS NOT NULL"
    )
    found["items"] = sorted(Counter(tuple(map(str, row)) for row in items).items())
    return found


def _users(site: Site) -> list[dict[str, Any]]:
    return [
        {**each, "attributes": {name: value for name, value in each["attributes"].items() if name != "uuid"}}
        for each in site.ad.objects("user").values()
    ]


DUMPS = {
    "objects": "SELECT o.system_number, o.type_number, o.address, o.state, o.attributes - 'uuid', o.join_kind,"
    " m.display FROM tenuto_identity.connector_objects AS o"
    " LEFT JOIN tenuto_identity.metaverse_objects AS m ON m.id = o.metaverse_id",
    "references": "SELECT o.system_number, o.address, o.attributes ->> 'mail', r.raw, t.attributes ->> 'mail'"
    " FROM tenuto_identity.connector_references AS r JOIN tenuto_identity.connector_objects AS o ON o.id = r.object_id"
    " LEFT JOIN tenuto_identity.connector_objects AS t ON t.id = r.target_id",
    "identities": "SELECT type_number, attributes, display, origin, delete_after FROM"
    " tenuto_identity.metaverse_objects",
    "metaverse references": "SELECT o.display, t.display, r.rule_number FROM tenuto_identity.metaverse_references AS r"
    " JOIN tenuto_identity.metaverse_objects AS o ON o.id = r.object_id"
    " JOIN tenuto_identity.metaverse_objects AS t ON t.id = r.target_id",
    "keys": "SELECT attribute_number, key FROM tenuto_identity.match_keys",
    "marks": "SELECT o.address, m.system_number, m.reason FROM tenuto_identity.sync_marks AS m"
    " JOIN tenuto_identity.connector_objects AS o ON o.id = m.object_id WHERE m.system_number = 1",
    "exports": "SELECT p.system_number, o.address, p.kind, p.state, p.changes FROM tenuto_identity.pending_exports AS p"
    " JOIN tenuto_identity.connector_objects AS o ON o.id = p.object_id",
    "watermarks": "SELECT system_number FROM tenuto_identity.watermarks",
}
