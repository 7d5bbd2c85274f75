"""Memory of a worker (A54): it does not grow with the number of objects."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tenuto.postgres import scratch_databases
from tests.conftest import database_name
from tests.identity.scenario_site import open_site
from tests.support.repetition_counts import times

SIZES = times(10_000, in_a_proof=20_000), times(40_000, in_a_proof=200_000)
"""Objects of the two sites. The small one has two pages of an import, the most that a worker keeps in memory."""
MOST_BYTES_PER_OBJECT = 30 * 2**20 // 180_000
"""30 MB between 20,000 and 200,000 objects."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


async def peak(url: str, folder: Path, count: int) -> int:
    """Return the peak memory of a worker that imports and synchronises so many people, in KiB."""
    folder.mkdir()
    async with open_site(url, folder, has_worker=False) as site:
        await site.apply(site.definitions())
        site.write_hr(*(f"{n},F{n},L{n},p{n}@example.org,D{n % 50},T{n % 9},,2020-01-01," for n in range(count)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.identity.measured_worker", url, str(folder), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    lines = output.decode().splitlines()
    assert [line.rsplit(" ", 1)[0] for line in lines] == ["Full Import completed", "Full Sync completed"]
    return int(lines[-1].rsplit(" ", 1)[1])


async def test_a54_memory_of_import_and_sync_does_not_grow_with_the_number_of_objects(
    server: str, identity_template: str, tmp_path: Path
) -> None:
    found: list[int] = []
    for number, count in enumerate(SIZES):
        name = database_name(f"identity_memory_{number}")
        url = await scratch_databases.copy_database(server, identity_template, name, by_file_copy=True)
        found.append(await peak(url, tmp_path / str(number), count))
        await scratch_databases.drop_database(server, name)
    growth = (found[1] - found[0]) * 1024 / (SIZES[1] - SIZES[0])
    assert growth < MOST_BYTES_PER_OBJECT, f"{growth:.0f} bytes for each object: {found} KiB with {SIZES} objects"
