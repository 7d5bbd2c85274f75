"""The tour: its ledger balances, its output fits 80 columns, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from examples.tour import __main__ as demo
from examples.tour import jobs, ledger, processes, tour
from examples.tour.view import WIDTH, PlainPresenter, SilentPresenter, TerminalPresenter
from rich.console import Console

from tenuto.postgres import embedded_server
from tenuto.store.work.activities import OutcomeCounts
from tests.identity.ldap.slapd import SLAPD
from tests.support.waiting import eventually_blocking

ROOT = Path(__file__).resolve().parents[2]
REPORTS = 6
SUBMITTED = jobs.STEP_COUNT + 1 + 2 + 60 + REPORTS + 40
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def small_tour() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, count in {"BATCH_SIZE": 60, "REPORT_COUNT": REPORTS, "INVOICE_COUNT": 40}.items():
            patch.setattr(tour, name, count)
        for module in (processes, tour):
            patch.setattr(module, "PACE", 0.4)
        yield


class PresenterGroup:
    """Passes every event to several presenters."""

    has_readers = False

    def __init__(self, *presenters: Any) -> None:
        self._presenters = presenters

    def __getattr__(self, name: str) -> Any:
        def call_all(*args: Any, **kwargs: Any) -> None:
            for presenter in self._presenters:
                getattr(presenter, name)(*args, **kwargs)

        return call_all


class LoggerObserver(SilentPresenter):
    """Records at each scene, and after the database was stopped, which loggers hide warnings."""

    def __init__(self) -> None:
        self.hidden: dict[str, set[str]] = {}

    def scene(self, title: str, text: str) -> None:
        self._observe(title)

    def message(self, line: str, *, is_alert: bool = False) -> None:
        self._observe(line)

    def _observe(self, moment: str) -> None:
        names = ("asyncpg", "tenuto", "tenuto.event_feed", "tenuto.worker", "tenuto.extensions")
        self.hidden[moment] = {name for name in names if not logging.getLogger(name).isEnabledFor(logging.WARNING)}


@dataclass(frozen=True)
class KeptTour:
    """Directory, exit code, JSON output and loggers of a finished tour."""

    home: Path
    exit_code: int
    output: dict[str, Any]
    hidden_loggers: dict[str, set[str]]


@pytest.fixture(scope="module")
def kept_tour(small_tour: None) -> Iterator[KeptTour]:
    home = Path(tempfile.mkdtemp(prefix="tnt-tour-", dir="/tmp"))
    home.chmod(0o755)
    observer = LoggerObserver()
    try:
        with redirect_stdout(io.StringIO()) as out, pytest.MonkeyPatch.context() as patch:
            patch.setattr(demo, "_make_presenter", lambda options: observer)
            exit_code = demo.main(["--headless", "--json", "--keep", str(home)])
        yield KeptTour(home, exit_code, json.loads(out.getvalue() or "{}"), observer.hidden)
    finally:
        embedded_server.stop_server(home)
        shutil.rmtree(home, ignore_errors=True)


def is_expected_count(submitted: int) -> bool:
    """On a busy machine, the tour submits the reports again if all ended before one was seen running."""
    return submitted >= SUBMITTED and (submitted - SUBMITTED) % REPORTS == 0


@pytest.mark.slow
def test_tour_json_output_accounts_for_all_work(kept_tour: KeptTour) -> None:
    assert kept_tour.exit_code == 0
    output = kept_tour.output
    assert is_expected_count(output["submitted"])
    assert (output["done"], output["failed"]) == (output["submitted"] - 1, 1)
    assert (output["open"], output["lost"], output["doubled"], output["balances"]) == (0, 0, 0, True)
    assert (output["killed_workers"], output["database_restarts"], output["dead_letters_retried"]) == (1, 1, 1)
    assert output["taken_back"] >= 1
    assert output["retries"] >= output["taken_back"] + 2
    assert output["batch_items"] == 60
    assert output["directories"] == (2 if SLAPD is not None else 0)


@pytest.mark.slow
def test_tour_hides_expected_warnings_only_while_it_restarts_the_database(kept_tour: KeptTour) -> None:
    hidden = {moment: names for moment, names in kept_tour.hidden_loggers.items() if names}
    assert hidden["PostgreSQL has been stopped"] == {"asyncpg", "tenuto.event_feed"}
    assert {moment[:3] for moment in hidden if "/7" in moment} == {"6/7"}
    assert not any(moment.startswith(("three workers", "kill -9")) for moment in hidden)


@pytest.mark.slow
def test_tour_in_kept_directory_counts_only_its_own_work_and_fits_80_columns(kept_tour: KeptTour) -> None:
    lines, screen = io.StringIO(), io.StringIO()
    terminal = TerminalPresenter(Console(file=screen, force_terminal=True, width=WIDTH, height=24, color_system=None))
    presenter = PresenterGroup(PlainPresenter(lines), terminal)
    again = tour.Tour(kept_tour.home, presenter)
    jobs.app.settings = jobs.app.settings.model_copy(update={"home": kept_tour.home})

    async def run_and_list_keys() -> tuple[ledger.Ledger, list[Any]]:
        balanced = await again.run()
        async with jobs.app:
            return balanced, list(await jobs.app.api_keys.list())

    try:
        balanced, keys = asyncio.run(run_and_list_keys())
    finally:
        again.stop()
    presenter.ledger(balanced)
    assert balanced.balances
    assert is_expected_count(balanced.submitted)
    of_tours = [each for each in keys if each.name.startswith("tour-")]
    assert [each.revoked_at is not None for each in of_tours] == [True, True], "a key of a link can still be used"
    for text in (lines.getvalue(), _CONTROL_SEQUENCE.sub("", screen.getvalue())):
        wide = [line for line in re.split(r"[\r\n]", text) if len(line) > WIDTH]
        assert [line for line in wide if "/login?link=tnl_" not in line] == []
        for expected in (
            *(f"{number}/7" for number in range(1, 8)),
            "Nightly HR Sync",
            "kill -9",
            "PostgreSQL is back",
        ):
            assert expected in text
        assert f"{balanced.submitted:,}  submitted" in text
        assert "The ledger balances" in text


def test_ledger_with_lost_or_doubled_work_does_not_balance() -> None:
    events = {
        "killed_workers": 1, "database_restarts": 1, "dead_letters_retried": 1, "batch_items": 1,
        "batch_items_a_second": 1, "seconds": 1.0,
    }  # fmt: skip
    counts = OutcomeCounts(
        attempt_count=12, done_count=9, failed_count=1, lost_attempt_count=1, open_count=0, doubled_count=0
    )
    assert ledger.build_ledger(10, counts, **events).balances
    assert ledger.build_ledger(10, counts, **events).retries == 2
    assert not ledger.build_ledger(11, counts, **events).balances
    assert ledger.build_ledger(11, counts, **events).lost == 1
    assert not ledger.build_ledger(10, replace(counts, open_count=1), **events).balances
    assert not ledger.build_ledger(10, replace(counts, doubled_count=1), **events).balances


@pytest.mark.slow
def test_interrupted_tour_leaves_no_processes_and_files() -> None:
    command = [sys.executable, "-P", "-m", "examples.tour", "--headless"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "PostgreSQL started" in line)
        home = Path(line.split(" in ")[1].split()[0])
        pids = next(re.findall(r"pid (\d+)", line) for line in process.stdout if "three workers" in line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    assert not home.exists()
    eventually_blocking(lambda: not any(_is_alive(int(pid)) for pid in pids))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_dashboard_of_the_demo_stays_until_it_is_terminated() -> None:
    home = Path(tempfile.mkdtemp(prefix="tnt-stay-", dir="/tmp"))
    home.chmod(0o755)
    program = (
        "import sys; from pathlib import Path; from examples.tour.__main__ import stay;"
        "sys.exit(stay(Path(sys.argv[1]), 0, browser=False))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(home)], stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stderr is not None
    try:
        lines = list[str]()
        while not lines or "stop with Ctrl-C" not in lines[-1]:
            lines.append(process.stderr.readline())
            assert lines[-1], lines
        assert any("/login?link=tnl_" in line for line in lines), lines
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
        embedded_server.stop_server(home / demo.DASHBOARD_FOLDER)
        shutil.rmtree(home, ignore_errors=True)
