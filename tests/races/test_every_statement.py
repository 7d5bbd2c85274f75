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
from tests.races.dying import Act, Mortal, emptied, remains, writes
from tests.races.runs import broken_rules
from tests.races.scenarios.scenario import Calm, Stage, Step
from tests.races.scenarios.tasks import CLAIMS, comes_back
from tests.races.scripts import SCRIPTS

RegisterWorker = Callable[..., Awaitable[UUID]]
Dies = Callable[[Act, int], Awaitable[bool]]
SAME = {file: [other for other in SCRIPTS if SCRIPTS[other] is script] for file, script in SCRIPTS.items()}
FIRST = sorted({files[0] for files in SAME.values()})


@pytest.fixture
async def mortal(url: str) -> AsyncIterator[Mortal]:
    database = await Mortal.at(url)
    yield database
    await database.close()


def test_every_file_with_statements_that_write_has_a_script() -> None:
    assert writes().keys() == SCRIPTS.keys()


@pytest.mark.parametrize("file", FIRST)
async def test_who_dies_at_any_statement_that_writes_has_broken_nothing_and_can_do_it_again(
    db: Database, mortal: Mortal, register_worker: RegisterWorker, tmp_path: Path, file: str
) -> None:
    async def whole(dies: Dies | None) -> list[str]:
        await emptied(db)
        stage = Stage(db, await register_worker("the worker"))
        for step in SCRIPTS[file]:
            await until_done(mortal, step, stage, dies)
        found = [each for each in await examine(db, settings) if each.severity is Severity.PROBLEM]
        assert found == [], found
        return await remains(db)

    settings = load_settings(database=mortal.url, home=tmp_path)
    undisturbed = await whole(None)
    interrupted = await whole(mortal.dies_before)
    assert list((Counter(interrupted) - Counter(undisturbed)).elements()) == []
    assert list((Counter(undisturbed) - Counter(interrupted)).elements()) == []
    await whole(mortal.dies_after)

    wanted = {name for other in SAME[file] for name in writes()[other]}
    assert wanted - mortal.died_before == set(), "nobody dies before these: add an act to tests/races/scripts.py"
    assert wanted - mortal.died_after == set(), "nobody dies after these: add an act to tests/races/scripts.py"


async def until_done(mortal: Mortal, step: Step, stage: Stage, dies: Dies | None) -> None:
    """Do this, die at its first statement, do it again, die at the second …, until it is done."""

    async def act(database: Database) -> None:
        await step(database, stage)

    if dies is None or isinstance(step, Calm):
        await act(mortal)
        return
    place, died = 0, True
    while died:
        place += 1
        died = False
        with suppress(*(() if place == 1 else (Conflict, NotFound, StaleLease))):  # it had been done all the same
            died = await dies(act, place)
        if died and step in CLAIMS:
            await comes_back(stage)
        stage.damaged = stage.damaged and died
        assert stage.damaged or await broken_rules(stage.db) == [], (step, place)
