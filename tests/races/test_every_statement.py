"""Every statement that writes is a crash point: whoever dies before it, or just after its commit, breaks nothing, and
what was interrupted is done when it is done again.

The register is read from the SQL files: a statement nobody dies at fails its file's test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import pytest

from tenuto.diagnostics.checks import Severity
from tenuto.diagnostics.doctor import examine
from tenuto.errors import Conflict, NotFound, StaleLease
from tenuto.postgres.database import Database
from tenuto.settings import load_settings
from tests.races.execution_actions import violated_invariants
from tests.races.scenarios.all_scenarios import SCENARIOS
from tests.races.scenarios.scenario import Action, Preparation, Scenario
from tests.races.scenarios.tasks import CLAIMS, recover_unknown_claims
from tests.races.simulated_crashes import Action, CrashableDatabase, dump_rows, truncate_tables, writing_statements

RegisterWorker = Callable[..., Awaitable[UUID]]
Dies = Callable[[Action, int], Awaitable[bool]]
SAME = {file: [other for other in SCENARIOS if SCENARIOS[other] is script] for file, script in SCENARIOS.items()}
FIRST = sorted({files[0] for files in SAME.values()})


@pytest.fixture
async def crashable(url: str) -> AsyncIterator[CrashableDatabase]:
    database = await CrashableDatabase.at(url)
    yield database
    await database.close()


def test_every_file_with_statements_that_write_has_a_script() -> None:
    assert writing_statements().keys() == SCENARIOS.keys()


@pytest.mark.parametrize("file", FIRST)
async def test_who_dies_at_any_statement_that_writes_has_broken_nothing_and_can_do_it_again(
    db: Database, crashable: CrashableDatabase, register_worker: RegisterWorker, tmp_path: Path, file: str
) -> None:
    async def whole(dies: Dies | None) -> list[str]:
        await truncate_tables(db)
        scenario = Scenario(db, await register_worker("the worker"))
        for step in SCENARIOS[file]:
            await until_done(crashable, step, scenario, dies)
        found = [each for each in await examine(db, settings) if each.severity is Severity.PROBLEM]
        assert found == [], found
        return await dump_rows(db)

    settings = load_settings(database=crashable.url, home=tmp_path)
    undisturbed = await whole(None)
    interrupted = await whole(crashable.crashes_before)
    assert list((Counter(interrupted) - Counter(undisturbed)).elements()) == []
    assert list((Counter(undisturbed) - Counter(interrupted)).elements()) == []
    await whole(crashable.crashes_after)

    wanted = {name for other in SAME[file] for name in writing_statements()[other]}
    assert wanted - crashable.crashed_before == set(), (
        "nobody dies before these: add an action to tests/races/scenarios/all_scenarios.py"
    )
    assert wanted - crashable.crashed_after == set(), (
        "nobody dies after these: add an action to tests/races/scenarios/all_scenarios.py"
    )


async def until_done(crashable: CrashableDatabase, step: Action, scenario: Scenario, dies: Dies | None) -> None:
    """Do this, die at its first statement, do it again, die at the second …, until it is done."""

    async def action(database: Database) -> None:
        await step(database, scenario)

    if dies is None or isinstance(step, Preparation):
        await action(crashable)
        return
    place, died = 0, True
    while died:
        place += 1
        died = False
        with suppress(*(() if place == 1 else (Conflict, NotFound, StaleLease))):  # it had been done all the same
            died = await dies(action, place)
        if died and step in CLAIMS:
            await recover_unknown_claims(scenario)
        scenario.violates_invariants = scenario.violates_invariants and died
        assert scenario.violates_invariants or await violated_invariants(scenario.db) == [], (step, place)
