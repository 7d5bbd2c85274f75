"""The script of the usual kind for `identity`: row by row, one query and one statement each, a commit per row.

It keeps people, identities and accounts in flat tables, without history, joins, guards or pending exports.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.identity_people import COLUMNS, write_people
from benchmarks.contenders.stage_clock import StageClock

TABLES = (
    f"CREATE TABLE people (employee_id text PRIMARY KEY, {', '.join(f'{name} text' for name in COLUMNS[1:])})",
    "CREATE TABLE identities (employee_id text PRIMARY KEY, display text, login text UNIQUE, mail text, title text)",
    "CREATE TABLE accounts (system text, employee_id text, cn text, mail text, title text,"
    " PRIMARY KEY (system, employee_id))",
)
_PERSON = f"INSERT INTO people VALUES ({', '.join(['%s'] * len(COLUMNS))})"
_UPDATE = f"UPDATE people SET {', '.join(f'{name} = %s' for name in COLUMNS[1:])} WHERE employee_id = %s"
TARGETS = ("Directory", "Mail")

Connection = psycopg.Connection[tuple[Any, ...]]


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in TABLES:
            connection.execute(statement)


def measure(url: str, count: int, changed: int, folder: Path) -> None:
    """Import, synchronise and export as the script does; answer with the durations."""
    path = folder / "hr.csv"
    with psycopg.connect(url, autocommit=True) as connection:
        clock = StageClock(connection.info.backend_pid)
        write_people(path, count)
        for name, work in (("import new", import_file), ("import unchanged", import_file)):
            with clock.stage(name):
                work(connection, path)
        with clock.stage("sync new"):
            synchronise(connection)
        with clock.stage("sync unchanged"):
            synchronise(connection)
        with clock.stage("export"):
            export(connection, folder / "directory.csv")
        write_people(path, count, changed=changed)
        with clock.stage("import changed"):
            import_file(connection, path)
        found = connection.execute("SELECT count(*) FROM accounts").fetchone()
        if found != (2 * count,):
            raise SystemExit(f"{found} accounts instead of {2 * count}")
    contender_protocol.print_answer(stages=clock.stages)


def import_file(connection: Connection, path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        next(reader)
        for row in reader:
            found = connection.execute("SELECT * FROM people WHERE employee_id = %s", (row[0],)).fetchone()
            if found is None:
                connection.execute(_PERSON, row)
            elif list(found) != row:
                connection.execute(_UPDATE, (*row[1:], row[0]))


def synchronise(connection: Connection) -> None:
    for person in connection.execute("SELECT employee_id, first, last, mail, title FROM people").fetchall():
        id, first, last, mail, title = person
        wanted = (id, f"{first} {last}", f"{first}.{last}{id[-5:]}".lower(), mail, title)
        found = connection.execute("SELECT * FROM identities WHERE employee_id = %s", (id,)).fetchone()
        if found is None:
            connection.execute("INSERT INTO identities VALUES (%s, %s, %s, %s, %s)", wanted)
        for system in TARGETS:
            account = connection.execute(
                "SELECT * FROM accounts WHERE system = %s AND employee_id = %s", (system, id)
            ).fetchone()
            if account is None:
                connection.execute(
                    "INSERT INTO accounts VALUES (%s, %s, %s, %s, %s)", (system, id, *wanted[1:2], mail, title)
                )


def export(connection: Connection, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        ids = connection.execute("SELECT employee_id FROM accounts WHERE system = 'Directory'").fetchall()
        for (id,) in ids:
            row = connection.execute(
                "SELECT * FROM accounts WHERE system = 'Directory' AND employee_id = %s", (id,)
            ).fetchone()
            writer.writerow(row or ())


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
            contender_protocol.versions(("psycopg",))
        case "prepare":
            prepare(asked.url)
        case _:
            measure(asked.url, asked.count, asked.changed, asked.folder)


if __name__ == "__main__":
    main()
