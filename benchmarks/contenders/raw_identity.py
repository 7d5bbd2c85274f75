"""The limit for `identity`: `csv.reader`, one COPY into a temporary table, and a set-based diff, in one transaction.

It keeps the last state of the file in one flat table: no typing, no errors by row, no references, no history.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.identity_people import COLUMNS, write_people
from benchmarks.contenders.stage_clock import StageClock

_TEXTS = ", ".join(f"{name} text" for name in COLUMNS)
_NAMES = ", ".join(COLUMNS)
_VALUES = ", ".join(COLUMNS[1:])
_READ_VALUES = ", ".join(f"r.{name}" for name in COLUMNS[1:])
_KEPT_VALUES = ", ".join(f"p.{name}" for name in COLUMNS[1:])
TABLE = f"CREATE TABLE people ({_TEXTS}, PRIMARY KEY (employee_id))"
TEMPORARY = f"CREATE TEMPORARY TABLE read_people ({_TEXTS}) ON COMMIT DROP"
DIFF = (
    f"UPDATE people AS p SET ({_VALUES}) = ({_READ_VALUES}) FROM read_people AS r"
    f" WHERE r.employee_id = p.employee_id AND ({_READ_VALUES}) IS DISTINCT FROM ({_KEPT_VALUES})",
    f"INSERT INTO people ({_NAMES}) SELECT {_NAMES} FROM read_people AS r"
    " WHERE NOT EXISTS (SELECT FROM people AS p WHERE p.employee_id = r.employee_id)",
    "DELETE FROM people AS p WHERE NOT EXISTS (SELECT FROM read_people AS r WHERE r.employee_id = p.employee_id)",
)


async def prepare(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLE)
    await connection.close()


async def measure(url: str, count: int, changed: int, folder: Path) -> None:
    """Import the file new, unchanged and changed; answer with the durations."""
    path = folder / "hr.csv"
    connection = await asyncpg.connect(url)
    clock = StageClock(await connection.fetchval("SELECT pg_backend_pid()"))
    write_people(path, count)
    with clock.stage("read"), path.open(encoding="utf-8", newline="") as file:
        found = sum(1 for _ in csv.reader(file)) - 1
    for name, changed_count in (("import new", 0), ("import unchanged", 0), ("import changed", changed)):
        write_people(path, count, changed=changed_count)
        await connection.execute("CHECKPOINT")
        with clock.stage(name):
            await import_file(connection, path)
        await connection.execute("ANALYZE people")
    stored = await connection.fetchval("SELECT count(*) FROM people WHERE title LIKE 'Acting %'")
    if (found, stored) != (count, changed):
        raise SystemExit(f"{found} rows were read and {stored} changed, instead of {count} and {changed}")
    await connection.close()
    contender_protocol.print_answer(stages=clock.stages)


async def import_file(connection: asyncpg.Connection[Any], path: Path) -> None:
    async with connection.transaction():
        await connection.execute(TEMPORARY)
        # The table has no statistics while it is empty; a nested loop over it would be quadratic.
        await connection.execute("SET LOCAL enable_nestloop = off")
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            next(reader)
            await connection.copy_records_to_table("read_people", columns=COLUMNS, records=map(tuple, reader))
        await connection.execute("ANALYZE read_people")
        for statement in DIFF:
            await connection.execute(statement)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "measure"])
    parser.add_argument("--url", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--changed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path())
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(("asyncpg",))
        case "prepare":
            contender_protocol.run(prepare(asked.url))
        case _:
            contender_protocol.run(measure(asked.url, asked.count, asked.changed, asked.folder))


if __name__ == "__main__":
    main()
