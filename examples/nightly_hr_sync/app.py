"""The jobs of the Nightly HR Sync: people flow from an HR system to Active Directory and LDAP, and are read back.

The three systems are simulated by JSON files in one folder (``HR_FOLDER``), so that several workers see the same. Each
step takes ``HR_SECONDS`` or twice that, to be watched. When they run, and in which order, is said in `schedule.yaml`.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path

from tenuto import Context, Tenuto

app = Tenuto()

FOLDER = Path(os.environ.get("HR_FOLDER") or Path(tempfile.gettempdir()) / "tenuto-nightly-hr-sync")
SECONDS = float(os.environ.get("HR_SECONDS", "2"))
PACE = {"LDAP": 2.0}
"""One system is slower than the other, as they are."""
NAMES = ("Ada", "Grace", "Katherine", "Edsger", "Barbara", "Alan", "Radia", "Donald", "Frances", "Tony")

People = dict[str, dict[str, str]]


def read(system: str) -> People:
    """What a system holds."""
    file = FOLDER / f"{system}.json"
    people: People = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return people


def write(system: str, people: People) -> None:
    """Put everything a system holds in its place at once, so that nobody ever reads half of it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    new = FOLDER / f"{system}.new.{os.getpid()}"
    new.write_text(json.dumps(people, indent=1), "utf-8")
    new.replace(FOLDER / f"{system}.json")


async def work(ctx: Context, total: int, doing: str, pace: float = 1) -> None:
    """Take some time, and say how far it has come."""
    for done in range(1, total + 1):
        await asyncio.sleep(SECONDS * pace / total)
        ctx.progress(done, total, doing)


@app.job
async def full_import(ctx: Context, system: str, people: int = len(NAMES)) -> int:
    """Read everybody a source system knows."""
    await work(ctx, people, f"reading {system}")
    everybody = {f"{n:05}": {"name": NAMES[n % len(NAMES)], "department": f"D{n % 4}"} for n in range(people)}
    write(f"{system}-import", everybody)
    return len(everybody)


@app.job
async def full_sync(ctx: Context, system: str) -> int:
    """Work out from the import what every target system should hold."""
    imported = read(f"{system}-import")
    await work(ctx, len(imported) or 1, "matching people")
    write(
        "wanted",
        {id: {**person, "mail": f"{person['name'].lower()}.{id}@example.com"} for id, person in imported.items()},
    )
    return len(imported)


@app.job(max_retries=3, timeout="10m")
async def export(ctx: Context, system: str) -> int:
    """Bring a target system to what it should hold; how many people that changed."""
    wanted, held = read("wanted"), read(system)
    await work(ctx, len(wanted) or 1, f"writing to {system}", PACE.get(system, 1))
    write(system, wanted)
    return sum(held.get(id) != person for id, person in wanted.items())


@app.job
async def confirming_import(ctx: Context, system: str) -> int:
    """Read a target system back and compare; how many people are as they should be."""
    wanted, held = read("wanted"), read(system)
    await work(ctx, len(held) or 1, f"reading {system} back", PACE.get(system, 1))
    wrong = sorted(id for id, person in wanted.items() if held.get(id) != person)
    for id in wrong:
        ctx.error(f"{id} is not in {system} as it should be")
    return len(wanted) - len(wrong)
