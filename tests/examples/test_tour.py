"""The tour ends with a ledger that balances, is readable in 80 columns, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from examples.tour import __main__ as demo
from examples.tour import crew, jobs, ledger, tour
from examples.tour.view import WIDTH, Plain, Terminal
from rich.console import Console

from tenuto.postgres import embedded_server
from tests.support.waiting import eventually_blocking

REPORTS = 6
ASKED = jobs.STEPS + 1 + 2 + 60 + REPORTS + 40
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for kind, few in {"BATCH": 60, "REPORTS": REPORTS, "INVOICES": 40}.items():
            patch.setattr(tour, kind, few)
        for room in (crew, tour):
            patch.setattr(room, "PACE", 0.4)
        yield


class Everybody:
    """Tells several audiences the same."""

    has_readers = False

    def __init__(self, *audiences: Any) -> None:
        self._audiences = audiences

    def __getattr__(self, name: str) -> Any:
        def tell_all(*told: Any, **how: Any) -> None:
            for audience in self._audiences:
                getattr(audience, name)(*told, **how)

        return tell_all


@dataclass(frozen=True)
class Kept:
    """The folder of a tour that is over, and what it said to machines."""

    home: Path
    exit_code: int
    told: dict[str, Any]


@pytest.fixture(scope="module")
def kept(small: None) -> Iterator[Kept]:
    home = Path(tempfile.mkdtemp(prefix="tnt-tour-", dir="/tmp"))
    home.chmod(0o755)
    try:
        with redirect_stdout(io.StringIO()) as out:
            exit_code = demo.main(["--headless", "--json", "--keep", str(home)])
        yield Kept(home, exit_code, json.loads(out.getvalue() or "{}"))
    finally:
        embedded_server.stop_server(home)
        shutil.rmtree(home, ignore_errors=True)


def is_what_was_asked_for(submitted: int) -> bool:
    """Reports are asked for again if all of them have ended before anybody was seen at work, on a busy machine."""
    return submitted >= ASKED and (submitted - ASKED) % REPORTS == 0


def test_a_tour_tells_machines_what_became_of_everything(kept: Kept) -> None:
    assert kept.exit_code == 0
    told = kept.told
    assert is_what_was_asked_for(told["submitted"])
    assert (told["done"], told["failed"]) == (told["submitted"] - 1, 1)
    assert (told["open"], told["lost"], told["doubled"], told["balances"]) == (0, 0, 0, True)
    assert (told["killed_workers"], told["database_restarts"], told["dead_letters_retried"]) == (1, 1, 1)
    assert told["taken_back"] >= 1
    assert told["retries"] >= told["taken_back"] + 2
    assert told["batch_items"] == 60


def test_a_tour_in_a_kept_folder_counts_only_its_own_and_can_be_read_in_80_columns(kept: Kept) -> None:
    lines, screen = io.StringIO(), io.StringIO()
    terminal = Terminal(Console(file=screen, force_terminal=True, width=WIDTH, height=24, color_system=None))
    story = Everybody(Plain(lines), terminal)
    again = tour.Tour(kept.home, story)
    jobs.app.settings = jobs.app.settings.model_copy(update={"home": kept.home})
    try:
        balanced = asyncio.run(again.run())
    finally:
        again.stop()
    story.ledger(balanced)
    assert balanced.balances
    assert is_what_was_asked_for(balanced.submitted)
    for text in (lines.getvalue(), _CONTROL.sub("", screen.getvalue())):
        assert [line for line in re.split(r"[\r\n]", text) if len(line) > WIDTH] == []
        for said in (*(f"{number}/7" for number in range(1, 8)), "Nightly HR Sync", "kill -9", "PostgreSQL is back"):
            assert said in text
        assert f"{balanced.submitted:,}  asked for" in text
        assert "The ledger balances" in text


def test_a_ledger_that_misses_or_doubles_something_does_not_balance() -> None:
    events = {
        "killed_workers": 1, "database_restarts": 1, "dead_letters_retried": 1, "batch_items": 1,
        "batch_items_a_second": 1, "seconds": 1.0,
    }  # fmt: skip
    counts = {"done": 9, "failed": 1, "open": 0, "doubled": 0, "attempts": 12, "lost_attempts": 1}
    assert ledger.of(10, counts, **events).balances
    assert ledger.of(10, counts, **events).retries == 2
    assert not ledger.of(11, counts, **events).balances
    assert ledger.of(11, counts, **events).lost == 1
    assert not ledger.of(10, {**counts, "open": 1}, **events).balances
    assert not ledger.of(10, {**counts, "doubled": 1}, **events).balances


def test_a_tour_that_is_broken_off_leaves_nothing_behind() -> None:
    command = [sys.executable, "-P", "-m", "examples.tour", "--headless"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "PostgreSQL started" in line)
        home = Path(line.split(" in ")[1].split()[0])
        pids = next(re.findall(r"pid (\d+)", line) for line in process.stdout if "three workers" in line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    assert not home.exists()
    eventually_blocking(lambda: not any(_lives(int(pid)) for pid in pids))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
