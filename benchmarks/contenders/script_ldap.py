"""The script of the usual kind for `ldap`: a loop of adds and a paged read by ldap3, on one connection.

It sends the entries that the export of Tenuto sends, and reads the attributes that its import reads. It keeps nothing:
no joins, history, guards or confirmation.
"""

from __future__ import annotations

import argparse
from itertools import islice
from typing import Any

import ldap3

from benchmarks.contenders import contender_protocol
from benchmarks.contenders.identity_people import people
from benchmarks.contenders.stage_clock import StageClock
from benchmarks.slapd_server import MANAGER, PASSWORD, PEOPLE, SUFFIX

ATTRIBUTES = ["entryUUID", "cn", "sn", "uid", "mail", "title", "departmentNumber", "employeeNumber"]
PAGE_SIZE = 500


def connect(directory: str) -> Any:
    server = ldap3.Server(directory, get_info=ldap3.NONE)
    return ldap3.Connection(server, MANAGER, PASSWORD, auto_bind=True, check_names=False, raise_exceptions=True)


def create_containers(connection: Any) -> None:
    connection.add(SUFFIX, ["dcObject", "organization"], {"o": "bench"})
    connection.add(PEOPLE, "organizationalUnit")


def measure(url: str, directory: str, count: int) -> None:
    """Add all people and read them again; answer with the durations."""
    import psycopg

    with psycopg.connect(url) as database:
        clock = StageClock(database.info.backend_pid)
    connection = connect(directory)
    create_containers(connection)
    rows = list(people(count))
    with clock.stage("export"):
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
    with clock.stage("read"):
        found = 0
        for entry in connection.extend.standard.paged_search(
            PEOPLE, "(objectClass=inetOrgPerson)", attributes=ATTRIBUTES, paged_size=PAGE_SIZE
        ):
            found += bool(entry["raw_attributes"]["entryUUID"])
    if found != count:
        raise SystemExit(f"{found} entries instead of {count}")
    connection.unbind()
    contender_protocol.print_answer(stages=clock.stages)


def change(directory: str, count: int) -> None:
    """Change so many entries, as an administrator does."""
    connection = connect(directory)
    found = connection.extend.standard.paged_search(
        PEOPLE, "(objectClass=inetOrgPerson)", attributes=["1.1"], paged_size=PAGE_SIZE
    )
    for number, entry in enumerate(islice(found, count)):
        connection.modify(entry["dn"], {"title": [(ldap3.MODIFY_REPLACE, [f"Acting {number}"])]})
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
            contender_protocol.versions(("ldap3",))
        case "prepare":
            pass
        case _:
            measure(asked.url, asked.directory, asked.count)


if __name__ == "__main__":
    main()
