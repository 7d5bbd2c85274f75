"""Statements of pages: their number does not depend on how many objects a page has."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from asyncpg.connection import LoggedQuery

from tenuto.postgres import scratch_databases
from tenuto_identity.runs import page_context, sync_run
from tenuto_identity.runs.run_lifecycle import Run
from tests.conftest import database_name
from tests.identity.scenario_site import Site, open_site

SIZES = (4, 40)
"""Objects in a page."""
AT_MOST = {
    "HR Full Import": [11, 10, 3],
    "HR Full Sync": [28, 20, 14],
    "AD Export": [14, 13, 0],
    "AD Delta Import": [17, 15, 0],
}
"""Most statements of a page whose objects are new, changed and unchanged; without changes nothing is exported."""
CONTEXT_AT_MOST = 9
"""Most statements that load the context of a page of a sync."""
pytestmark = [pytest.mark.slow]
NOT_COUNTED = ("BEGIN", "COMMIT", "SET ", "SELECT pg_catalog", "DEALLOCATE")
ENDS = {"import_page_committed", "sync_page_committed", "export_recorded"}
"""The points after the transaction of a page, or of a batch of exports."""


class StatementCounter:
    """Counts the statements of each page of a run, transactions and settings aside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: dict[str, list[list[str]]] = defaultdict(list)
        self._page: list[str] = []
        monkeypatch.setattr(Run, "at", self._at_point())
        copy = asyncpg.Connection.copy_records_to_table

        async def counted_copy(connection: Any, table: str, **arguments: Any) -> Any:
            self._page.append(f"COPY {table}")
            return await copy(connection, table, **arguments)

        monkeypatch.setattr(asyncpg.Connection, "copy_records_to_table", counted_copy)
        self.contexts: list[int] = []
        load = page_context.load_page_context

        async def counted_load(*arguments: Any) -> Any:
            before = len(self._page)
            loaded = await load(*arguments)
            self.contexts.append(len(self._page) - before)
            return loaded

        monkeypatch.setattr(sync_run, "load_page_context", counted_load)

    def _at_point(self) -> Any:
        def at(run: Run, point: str) -> None:
            if point == "run_begun":
                assert run._connection is not None
                run._connection.add_query_logger(self._log)
            if point in (*ENDS, "run_begun"):
                if point in ENDS:
                    self.pages[run.profile.name].append(self._page)
                self._page = []

        return at

    def _log(self, query: LoggedQuery) -> None:
        if not query.query.startswith(NOT_COUNTED):
            self._page.append(query.query)


def people(count: int, title: str) -> list[str]:
    """Rows of people; every second one has the first as manager."""
    manager = ["", "1000"]
    return [
        f"{1000 + n},F{n},L{n},p{n}@example.org,Staff,{title},{manager[n % 2] if n else ''},2020-01-01,"
        for n in range(count)
    ]


async def count_statements(site: Site, monkeypatch: pytest.MonkeyPatch, size: int) -> dict[str, list[int]]:
    """Return the numbers of statements of the second page of each run, when everything is new, changed, the same."""
    await site.apply(site.definitions(page_size=size))
    found: dict[str, list[int]] = defaultdict(list)
    for title in ("Clerk", "Fellow", "Fellow"):
        site.write_hr(*people(3 * size, title))
        with monkeypatch.context() as patched:
            counter = StatementCounter(patched)
            for system, profile in (
                ("HR", "Full Import"),
                ("HR", "Full Sync"),
                ("AD", "Export"),
                ("AD", "Delta Import"),
            ):
                done = await site.run(system, profile)
                assert done.state in ("completed", "completed_with_warning"), done
                if profile == "Full Sync":
                    assert 4 < max(counter.contexts) <= CONTEXT_AT_MOST
                pages = counter.pages.pop(profile, [])
                found[f"{system} {profile}"].append(len(pages[1]) if len(pages) > 1 else 0)
    return dict(found)


@pytest.fixture
async def counts(
    server: str, identity_template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[int, dict[str, list[int]]]:
    """The counts at two sizes of pages, each measured in a new database."""
    found = {}
    for size in SIZES:
        name = database_name(f"identity_statements_{size}")
        url = await scratch_databases.copy_database(server, identity_template, name, by_file_copy=True)
        folder = tmp_path / str(size)
        folder.mkdir()
        async with open_site(url, folder) as site:
            found[size] = await count_statements(site, monkeypatch, size)
        await scratch_databases.drop_database(server, name)
    return found


async def test_number_of_statements_of_a_page_does_not_depend_on_its_size(
    counts: dict[int, dict[str, list[int]]],
) -> None:
    small, large = (counts[size] for size in SIZES)
    assert small == large
    over = {
        name: found
        for name, found in small.items()
        if any(n > most for n, most in zip(found, AT_MOST[name], strict=True))
    }
    assert over == {}
    assert small.keys() == AT_MOST.keys()
    assert all(found[0] >= 10 for found in small.values()), "the statements are counted"
