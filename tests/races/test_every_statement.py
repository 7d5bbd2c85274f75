"""Every writing statement is a crash point: a process that crashes before it, or just after its commit, violates no
invariant, and repeating the interrupted action completes it.

The statements are read from the SQL files; a statement at which no scenario crashes fails the test of its file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from tenuto.errors import Conflict, NotFound, StaleLease
from tenuto.model.doctor_findings import Severity
from tenuto.postgres.database import Database
from tenuto.settings import load_settings
from tests.races.execution_actions import violated_invariants
from tests.races.scenarios.all_scenarios import SCENARIOS
from tests.races.scenarios.scenario import Action, Preparation, Scenario
from tests.races.scenarios.tasks import CLAIMS, recover_unknown_claims
from tests.races.simulated_crashes import CrashableDatabase, dump_rows, truncate_tables, writing_statements
from tests.support.doctor import run_checks

RegisterWorker = Callable[..., Awaitable[UUID]]
Interrupt = Callable[[Callable[[Database], Awaitable[object]], int], Awaitable[bool]]
FILES_OF_SAME_SCENARIO = {
    file: [other for other in SCENARIOS if SCENARIOS[other] is scenario] for file, scenario in SCENARIOS.items()
}
FIRST_FILES = sorted({files[0] for files in FILES_OF_SAME_SCENARIO.values()})


@pytest.fixture
async def crashable(url: str) -> AsyncIterator[CrashableDatabase]:
    database = await CrashableDatabase.at(url)
    yield database
    await database.close()


def test_every_sql_file_with_writing_statements_has_a_scenario() -> None:
    assert writing_statements().keys() == SCENARIOS.keys()


@pytest.mark.parametrize("file", FIRST_FILES)
async def test_process_that_crashes_at_any_writing_statement_can_repeat_its_action(
    db: Database, crashable: CrashableDatabase, register_worker: RegisterWorker, tmp_path: Path, file: str
) -> None:
    async def run_scenario(interrupt: Interrupt | None) -> list[str]:
        await truncate_tables(db)
        scenario = Scenario(db, await register_worker("the worker"))
        for action in SCENARIOS[file]:
            await run_until_complete(crashable, action, scenario, interrupt)
        problems = [finding for finding in await run_checks(db, settings) if finding.severity is Severity.PROBLEM]
        assert problems == [], problems
        return await dump_rows(db)

    settings = load_settings(database=crashable.url, home=tmp_path)
    undisturbed = await run_scenario(None)
    interrupted = await run_scenario(crashable.crashes_before)
    assert list((Counter(interrupted) - Counter(undisturbed)).elements()) == []
    assert list((Counter(undisturbed) - Counter(interrupted)).elements()) == []
    await run_scenario(crashable.crashes_after)

    expected = {name for other in FILES_OF_SAME_SCENARIO[file] for name in writing_statements()[other]}
    assert expected - crashable.crashed_before == set(), "no crash before these: add an action to tests/races/scenarios"
    assert expected - crashable.crashed_after == set(), "no crash after these: add an action to tests/races/scenarios"


async def run_until_complete(
    crashable: CrashableDatabase, action: Action, scenario: Scenario, interrupt: Interrupt | None
) -> None:
    """Run an action, crash at its first statement, repeat it, crash at the second …, until it completes."""

    async def run(database: Database) -> None:
        await action(database, scenario)

    if interrupt is None or isinstance(action, Preparation):
        await run(crashable)
        return
    place, crashed = 0, True
    while crashed:
        place += 1
        crashed = False
        # An interrupted action may have been committed: its repetition is rejected.
        with suppress(*(() if place == 1 else (Conflict, NotFound, StaleLease))):
            crashed = await interrupt(run, place)
        if crashed and action in CLAIMS:
            await recover_unknown_claims(scenario)
        scenario.violates_invariants = scenario.violates_invariants and crashed
        assert scenario.violates_invariants or await violated_invariants(scenario.db) == [], (action, place)
