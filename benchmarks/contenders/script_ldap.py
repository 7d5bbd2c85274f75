"""The script of the usual kind for `ldap`: a loop of adds and a paged read by ldap3, on one connection.

It sends the entries that the export of Tenuto sends, and reads the attributes that its import reads. An import keeps
the entries in one flat table: an upsert for each page, in a separate transaction, and a deletion of what was not
read. There are no joins, history, guards or confirmation.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import Any

import ldap3
import psycopg

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.identity_people import people
from benchmarks.contenders.stage_clock import StageClock
from benchmarks.slapd_server import MANAGER, PASSWORD, PEOPLE, SUFFIX

ATTRIBUTES = ["entryUUID", "cn", "sn", "uid", "mail", "title", "departmentNumber", "employeeNumber"]
PAGE_SIZE = 500
_COLUMNS = ("entry_uuid", "dn", *(each.lower() for each in ATTRIBUTES[1:]))
_TABLE = f"CREATE TABLE entries ({', '.join(f'{each} text' for each in _COLUMNS)}, PRIMARY KEY (entry_uuid))"
_UPSERT = (
    f"INSERT INTO entries VALUES ({', '.join(['%s'] * len(_COLUMNS))}) ON CONFLICT (entry_uuid) DO UPDATE SET"
    f" ({', '.join(_COLUMNS[1:])}) = ({', '.join(f'excluded.{each}' for each in _COLUMNS[1:])})"
    f" WHERE ({', '.join(f'entries.{each}' for each in _COLUMNS[1:])})"
    f" IS DISTINCT FROM ({', '.join(f'excluded.{each}' for each in _COLUMNS[1:])})"
)

Database = psycopg.Connection[tuple[Any, ...]]


def connect(directory: str) -> Any:
    server = ldap3.Server(directory, get_info=ldap3.NONE)
    return ldap3.Connection(server, MANAGER, PASSWORD, auto_bind=True, check_names=False, raise_exceptions=True)


def create_containers(connection: Any) -> None:
    connection.add(SUFFIX, ["dcObject", "organization"], {"o": "bench"})
    connection.add(PEOPLE, "organizationalUnit")


def prepare(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(_TABLE)


def measure(url: str, directory: str, count: int) -> None:
    """Add all people, read them, and import them twice; answer with the durations."""
    with psycopg.connect(url, autocommit=True) as database:
        clock = StageClock(database.info.backend_pid)
        connection = connect(directory)
        create_containers(connection)
        rows = list(people(count))
        with clock.stage("export"):
            export(connection, rows)
        with clock.stage("read"):
            found = sum(bool(entry["raw_attributes"]["entryUUID"]) for entry in read_entries(connection))
        if found != count:
            raise SystemExit(f"{found} entries instead of {count}")
        for stage in ("import new", "import unchanged"):
            with clock.stage(stage):
                import_entries(connection, database)
        stored = database.execute("SELECT count(*), count(DISTINCT mail) FROM entries").fetchone()
        if stored != (count, count):
            raise SystemExit(f"{stored} entries stored instead of {count}")
        connection.unbind()
    contender_protocol.print_answer(stages=clock.stages)


def export(connection: Any, rows: list[list[str]]) -> None:
    for id, first, last, mail, department, title, *_ in rows:
        login = f"{first}.{last}{id[-5:]}".lower()
        connection.add(
            f"uid={login},{PEOPLE}",
            "inetOrgPerson",
            {
                "uid": login,
                "cn": f"{first} {last}",
                "sn": last,
                "mail": mail,
                "title": title,
                "departmentNumber": department,
                "employeeNumber": id,
            },
        )


def read_entries(connection: Any) -> Iterator[Any]:
    found: Iterator[Any] = connection.extend.standard.paged_search(
        PEOPLE, "(objectClass=inetOrgPerson)", attributes=ATTRIBUTES, paged_size=PAGE_SIZE
    )
    return found


def import_entries(connection: Any, database: Database) -> None:
    """Store what the directory has: new and different entries page by page, and without those that are not there."""
    entries = read_entries(connection)
    seen: list[str] = []
    while page := [_row(each) for each in islice(entries, PAGE_SIZE)]:
        with database.transaction(), database.cursor() as cursor:
            cursor.executemany(_UPSERT, page)
        seen += (row[0] for row in page)
    database.execute("DELETE FROM entries WHERE entry_uuid NOT IN (SELECT unnest(%s::text[]))", (seen,))


def _row(entry: Any) -> tuple[str, ...]:
    """Return the columns of an entry; of several values the first."""
    values = entry["raw_attributes"]
    return values["entryUUID"][0].decode(), entry["dn"], *(values[each][0].decode() for each in ATTRIBUTES[1:])


def change(directory: str, count: int, title: str) -> None:
    """Change the title of so many entries, as an administrator does."""
    connection = connect(directory)
    found = connection.extend.standard.paged_search(
        PEOPLE, "(objectClass=inetOrgPerson)", attributes=["1.1"], paged_size=PAGE_SIZE
    )
    for number, entry in enumerate(islice(found, count)):
        connection.modify(entry["dn"], {"title": [(ldap3.MODIFY_REPLACE, [f"{title} {number}"])]})
    connection.unbind()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["versions", "prepare", "measure"])
    parser.add_argument("--url", default="")
    parser.add_argument("--directory", default="")
    parser.add_argument("--count", type=int, default=0)
    parser.add_argument("--changed", type=int, default=0)
    parser.add_argument("--folder", default="")
    asked = parser.parse_args()
    match asked.verb:
        case "versions":
            contender_protocol.versions(("ldap3", "psycopg"))
        case "prepare":
            prepare(asked.url)
        case _:
            measure(asked.url, asked.directory, asked.count)


if __name__ == "__main__":
    main()
