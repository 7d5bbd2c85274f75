"""Jobs of the Nightly HR Sync: copy people from an HR system to Active Directory and LDAP, and read them back.

The three systems are simulated by JSON files in one directory (``HR_FOLDER``), which all workers share. Each step takes
``HR_SECONDS`` or twice as long. The file `schedule.yaml` defines when the jobs run and in which order.
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
"""Duration factor of slower systems."""
NAMES = ("Ada", "Grace", "Katherine", "Edsger", "Barbara", "Alan", "Radia", "Donald", "Frances", "Tony")

People = dict[str, dict[str, str]]


def read(system: str) -> People:
    """Return the people of a system."""
    file = FOLDER / f"{system}.json"
    people: People = json.loads(file.read_text("utf-8")) if file.exists() else {}
    return people


def write(system: str, people: People) -> None:
    """Replace the people of a system atomically."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    new = FOLDER / f"{system}.new.{os.getpid()}"
    new.write_text(json.dumps(people, indent=1), "utf-8")
    new.replace(FOLDER / f"{system}.json")


async def simulate_work(ctx: Context, total: int, doing: str, pace: float = 1) -> None:
    """Wait in steps and report progress."""
    for done in range(1, total + 1):
        await asyncio.sleep(SECONDS * pace / total)
        ctx.progress(done, total, doing)


@app.job
async def full_import(ctx: Context, system: str, people: int = len(NAMES)) -> int:
    """Read all people from a source system."""
    await simulate_work(ctx, people, f"reading {system}")
    everyone = {f"{n:05}": {"name": NAMES[n % len(NAMES)], "department": f"D{n % 4}"} for n in range(people)}
    write(f"{system}-import", everyone)
    return len(everyone)


@app.job
async def full_sync(ctx: Context, system: str) -> int:
    """Compute the wanted state of the target systems from the import."""
    imported = read(f"{system}-import")
    await simulate_work(ctx, len(imported) or 1, "matching people")
    write(
        "wanted",
        {id: {**person, "mail": f"{person['name'].lower()}.{id}@example.com"} for id, person in imported.items()},
    )
    return len(imported)


@app.job(max_attempts=3, timeout="10m")
async def export(ctx: Context, system: str) -> int:
    """Write the wanted state to a target system and return the number of people changed."""
    wanted, held = read("wanted"), read(system)
    await simulate_work(ctx, len(wanted) or 1, f"writing to {system}", PACE.get(system, 1))
    write(system, wanted)
    return sum(held.get(id) != person for id, person in wanted.items())


@app.job
async def confirming_import(ctx: Context, system: str) -> int:
    """Read a target system back, compare it, and return the number of correct people."""
    wanted, held = read("wanted"), read(system)
    await simulate_work(ctx, len(held) or 1, f"reading {system} back", PACE.get(system, 1))
    wrong = sorted(id for id, person in wanted.items() if held.get(id) != person)
    for id in wrong:
        ctx.error(f"person {id} differs in {system}")
    return len(wanted) - len(wrong)
