"""Four nights of the Nightly HR Sync: the first accounts, a joiner, a mover and a leaver.

``python nights.py [DIRECTORY]`` applies `nightly.yaml`, runs the schedule after each change of the HR file, and prints
what each step did and what changed in the two targets. Without a directory it works in a temporary one.
"""

from __future__ import annotations

import asyncio
import csv
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from tenuto import Tenuto
from tenuto.definitions.document_parser import parse_document
from tenuto.operations.definitions.plans import read_declarations
from tenuto.postgres import embedded_server

EXAMPLE = Path(__file__).resolve().parent
SCHEDULE = "Nightly HR Sync"
TARGETS = {"AD": "ad.csv", "LDAP": "ldap.csv"}
TIMEOUT_SECONDS = 120.0

Rows = list[dict[str, str]]


def joiner(people: Rows) -> None:
    """Barbara joins the engineers."""
    values = ("1006", "Barbara", "Liskov", "barbara@example.org", "Engineering", "Engineer", "1002", "2020-06-01", "")
    people.append(dict(zip(people[0], values, strict=True)))


def mover(people: Rows) -> None:
    """Alan moves to Engineering and has another manager."""
    person = next(each for each in people if each["first"] == "Alan")
    person.update(department="Engineering", title="Principal Engineer", manager="1002")


def leaver(people: Rows) -> None:
    """Edsger leaves."""
    people[:] = [each for each in people if each["first"] != "Edsger"]


NIGHTS: tuple[tuple[str, Callable[[Rows], None] | None], ...] = (
    ("the first night", None),
    ("a joiner", joiner),
    ("a mover", mover),
    ("a leaver", leaver),
)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def read_rows(file: Path) -> Rows:
    """Return the rows of a CSV file; none if there is no file."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8-sig") as stream:
        return list(csv.DictReader(stream))


def write_rows(file: Path, rows: Rows) -> None:
    """Replace a CSV file in one step, as the HR system would."""
    new = file.with_suffix(".new")
    with new.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    new.replace(file)


def compare(before: Rows, after: Rows) -> list[str]:
    """Return the difference of two files as lines, by their first column."""
    key = next(iter((before or after)[0]), "") if before or after else ""
    old, new = ({each[key]: each for each in rows} for rows in (before, after))
    lines = []
    for name in sorted(old.keys() | new.keys()):
        if name not in old:
            lines.append(f"+ {name}: {', '.join(value for value in new[name].values() if value)}")
        elif name not in new:
            lines.append(f"- {name}")
        elif old[name] != new[name]:
            changed = [column for column in old[name] if old[name][column] != new[name][column]]
            values = (f"{column} {old[name][column]} → {new[name][column]}" for column in changed)
            lines.append(f"~ {name}: {', '.join(values)}")
    return lines


async def apply(app: Tenuto) -> None:
    """Plan and apply the definitions."""
    file = EXAMPLE / "nightly.yaml"
    declared = read_declarations([parse_document(file.name, file.read_bytes())])
    await app.plans.apply(await app.plans.plan(declared))


async def run_night(app: Tenuto) -> UUID:
    """Run the schedule now and wait for its end."""
    fired = await app.schedules.run(SCHEDULE)
    assert fired.execution_id is not None
    await app.executions.wait(fired.execution_id, TIMEOUT_SECONDS)
    return fired.execution_id


async def show_steps(app: Tenuto, execution_id: UUID) -> bool:
    """Print the steps of a night; return whether all completed."""
    execution = await app.executions.get(execution_id)
    for step in execution.steps:
        items = await app.extensions.identity.items(step.activity_id) if step.activity_id else []
        changes = [item.change or item.error or "" for item in items]
        counts = ", ".join(f"{name} {changes.count(name)}" for name in dict.fromkeys(changes)) or "no change"
        say(f"  {step.group + 1}  {step.name:<26} {step.state:<10} {counts}")
    return execution.state == "completed"


async def run(home: Path) -> int:
    """Run all nights in a directory; return the exit code."""
    files = home / "files"
    files.mkdir(parents=True, exist_ok=True)
    people = read_rows(EXAMPLE / "people.csv")
    async with Tenuto(home=home) as app, app.worker():
        await apply(app)
        for number, (title, change) in enumerate(NIGHTS, 1):
            if change is not None:
                change(people)
            write_rows(files / "people.csv", people)
            before = {system: read_rows(files / name) for system, name in TARGETS.items()}
            say(f"\nNight {number}: {title}")
            if not await show_steps(app, await run_night(app)):
                return 1
            for system, name in TARGETS.items():
                for line in compare(before[system], read_rows(files / name)):
                    say(f"     {system:<4} {line}")
    return 0


def main(arguments: list[str]) -> int:
    if arguments:
        return asyncio.run(run(Path(arguments[0]).absolute()))
    home = Path(tempfile.mkdtemp(prefix="tenuto-nights-"))
    home.chmod(0o755)  # as root, the server runs under another account, which needs access
    try:
        return asyncio.run(run(home))
    finally:
        embedded_server.stop_server(home)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
