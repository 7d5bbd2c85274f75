"""Data of the benchmark `identity`: people by a seed, the HR file, and the definitions of systems and rules.

Standard library only, because every contender uses it.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

COLUMNS = (
    "employee_id", "first", "last", "mail", "department", "title", "manager", "starts", "ends", "phone", "room",
    "city", "company", "cost_centre",
)  # fmt: skip
_FIRST = [
    "Ada",
    "Grace",
    "Alan",
    "Edsger",
    "Barbara",
    "Donald",
    "Margaret",
    "Dennis",
    "Radia",
    "Ken",
    "Frances",
    "John",
    "Jean",
    "Niklaus",
    "Hedy",
    "Tim",
]
_LAST = [
    "Lovelace",
    "Hopper",
    "Turing",
    "Dijkstra",
    "Liskov",
    "Knuth",
    "Hamilton",
    "Ritchie",
    "Perlman",
    "Thompson",
    "Allen",
    "Backus",
    "Wirth",
]
_DEPARTMENTS = ["Research", "Engineering", "Sales", "Finance", "Legal", "Operations", "Support", "Marketing"]
_TITLES = ["Engineer", "Senior Engineer", "Director", "Fellow", "Analyst", "Manager", "Assistant", "Consultant"]
_CITIES = ["Vienna", "Zürich", "Łódź", "Berlin", "Prague", "Graz", "London", "Malmö"]


def people(count: int, *, changed: int = 0) -> Iterator[list[str]]:
    """Yield the rows of that many people, the same for the same count; so many of them with another title."""
    dice = random.Random(16)
    for number in range(count):
        first, last = dice.choice(_FIRST), dice.choice(_LAST)
        title = dice.choice(_TITLES)
        starts = date(2005, 1, 1) + timedelta(days=dice.randrange(7_000))
        manager = "" if number < 20 else f"E{dice.randrange(number // 10 + 1):07}"
        if changed and number * changed // count != (number - 1) * changed // count:
            title = f"Acting {title}"
        yield [
            f"E{number:07}",
            first,
            f"{last}{number % 977}",
            f"{first}.{last}.{number}@example.org".lower(),
            dice.choice(_DEPARTMENTS),
            title,
            manager,
            starts.isoformat(),
            "",
            f"+43 1 {dice.randrange(10**6):06}",
            f"R{dice.randrange(900):03}",
            dice.choice(_CITIES),
            "Example",
            f"C{dice.randrange(60):02}",
        ]


def write_people(path: Path, count: int, *, changed: int = 0) -> None:
    """Write the HR file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(people(count, changed=changed))


def definitions(folder: Path) -> str:
    """Return the definition file: the HR file, two target files, and rules with 12 mappings, 3 of them expressions."""
    return _DEFINITIONS.format(folder=folder)


_DEFINITIONS = """
systems:
  - name: HR
    connector: csv
    settings: {{path: {folder}/hr.csv}}
    types:
      - name: person
        anchor: employee_id
        attributes: {{employee_id: text, first: text, last: text, mail: text, department: text, title: text,
                     manager: {{type: reference, to: person}}, starts: date, ends: date, phone: text, room: text,
                     city: text, company: text, cost_centre: text}}
    run_profiles: [{{name: Full Import, kind: full_import}}, {{name: Full Sync, kind: full_sync}},
                   {{name: Delta Sync, kind: delta_sync}}]
  - name: Directory
    connector: csv
    settings: {{path: {folder}/directory.csv, allow_empty: true}}
    types:
      - name: user
        anchor: employee_id
        attributes: {{employee_id: text, cn: text, sn: text, mail: text, title: text, department: text,
                     manager: {{type: reference, to: user}}}}
    run_profiles: [{{name: Full Import, kind: full_import}}, {{name: Export, kind: export}}]
  - name: Mail
    connector: csv
    settings: {{path: {folder}/mail.csv, allow_empty: true}}
    types:
      - name: account
        anchor: employee_id
        attributes: {{employee_id: text, uid: text, cn: text, mail: text, city: text}}
    run_profiles: [{{name: Full Import, kind: full_import}}, {{name: Export, kind: export}}]
metaverse:
  - type: person
    attributes: {{employee_id: text, first: text, last: text, display: text, mail: text, login: text,
                 department: text, title: text, manager: {{type: reference, to: person}}, starts: date, city: text,
                 room: text}}
    deletion: {{rule: authoritative_source, sources: [HR]}}
sync_rules:
  - name: HR people in
    in: {{system: HR, type: person, to: person}}
    project: true
    match: [{{object: employee_id, metaverse: employee_id}}]
    map:
      same: [employee_id, first, last, mail, department, title, manager, starts, city]
      display: {{value: 'first + " " + last'}}
      login: {{value: 'unique(slug(first) + "." + slug(last) + right(employee_id, 5))'}}
      room: {{value: 'city + " " + room'}}
  - name: Directory people out
    out: {{from: person, system: Directory, type: user}}
    match: [{{object: mail, metaverse: mail}}]
    provision: true
    on_out_of_scope: delete
    map:
      same: [employee_id, mail, title, department, manager]
      cn: display
      sn: last
  - name: Mail people out
    out: {{from: person, system: Mail, type: account}}
    match: [{{object: mail, metaverse: mail}}]
    provision: true
    on_out_of_scope: delete
    map:
      same: [employee_id, mail, city]
      uid: login
      cn: display
"""
