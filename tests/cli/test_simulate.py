"""`tenuto simulate` and `tenuto task why`, as somebody types them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from tenuto.cli.definitions import simulate
from tenuto.model.occurrences import Decision
from tenuto.simulation.simulator import Run
from tests.cli.conftest import Shell

FILE = """
schedules:
  - name: Nightly
    cron: "30 1 * * *"
    zone: Europe/London
    steps:
      - job: double
        input: {n: 1}
  - name: Often
    every: 10m
    steps:
      - job: double
        input: {n: 2}
"""
WEEKEND = ("--from", "2026-03-28", "--to", "2026-03-30", "--zone", "Europe/London")


@pytest.fixture
def written(shell: Shell) -> Shell:
    (shell.folder / "schedules.yaml").write_text(FILE)
    return shell


def test_a_file_is_played_through_before_it_is_in_force(written: Shell) -> None:
    ended = written("simulate", "--file", "schedules.yaml", *WEEKEND, "--duration", "Often=15m", "--slots", "1")
    assert ended.code == 0, ended.err
    drawing = ended.out.splitlines()[2:7]
    assert drawing[2].startswith("Nightly ")
    assert max(len(line) for line in drawing) <= 80
    assert "Nightly: on 2026-03-29 the clock of Europe/London jumps ahead from 01:00 to 02:00" in ended.out
    assert "01:30 does not exist; it runs once, at 02:00" in ended.out
    assert "'Often' is skipped: the previous run is still active — 141 times" in ended.out
    assert "queue default has room for 1 at a time, and up to 2 are wanted (Nightly, Often)" in ended.out
    assert "never run, taken to last 60 s" in ended.err
    assert written("schedule", "list", "-o", "json").json == [], "nothing has been changed"


def test_as_json_there_is_everything(written: Shell) -> None:
    found = written("simulate", "--file", "schedules.yaml", *WEEKEND, "-o", "json").json
    assert [(total["schedule"], total["due"], total["fired"]) for total in found["totals"]] == [
        ("Nightly", 2, 2),
        ("Often", 282, 282),
    ]
    assert len(found["runs"]) == 284
    assert [run["due_at"] for run in found["runs"] if run["schedule"] == "Nightly"] == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T01:00:00+00:00",
    ]


def test_what_is_stored_is_played_through_and_can_be_narrowed(written: Shell) -> None:
    assert written("apply", "schedules.yaml").code == 0
    found = written("simulate", "--schedule", "Often", "--from", "2026-01-01T00:00Z", "--to", "1h", "-o", "json").json
    assert [total["schedule"] for total in found["totals"]] == ["Often"]
    assert len(found["runs"]) == 6
    outage = "2026-01-01T00:05Z/2026-01-01T00:35Z"
    found = written(
        "simulate", "--schedule", "Often", "--from", "2026-01-01T00:00Z", "--to", "1h", "--outage", outage, "-o", "json"
    ).json
    assert [run["decision"] for run in found["runs"]] == ["fired", "coalesced", "coalesced", "fired", "fired", "fired"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--from", "soon"), 2, "--from: 'soon' is not an instant"),
        (("--to", "2001-01-01"), 2, "to: is not after the beginning"),
        (("--schedule", "None such"), 3, "no schedule named 'None such'"),
        (("--duration", "x=long"), 2, "--duration: 'long' is not a span"),
        (("--slots", "many"), 2, "--slots: 'many' is not a whole number"),
        (("--outage", "now"), 2, "--outage: needs two instants"),
        (("--zone", "Europe/Londn"), 2, "did you mean Europe/London"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_its_name(
    shell: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    ended = shell("simulate", *words)
    assert said in ended.err
    assert ended.code == code


def test_a_task_says_why_it_is_not_running(shell: Shell) -> None:
    task = shell("run", "double", "--input", '{"n": 1}', "-o", "json").json["id"]
    shell("queue", "pause", "default", "--reason", "the server is down")
    ended = shell("task", "why", task[:23])
    assert ended.code == 0, ended.err
    assert "• queue default is paused by" in ended.out
    assert "the server is down" in ended.out
    assert "• no live worker serves queue default" in ended.out
    found = shell("task", "why", task, "-o", "json").json
    assert [reason["code"] for reason in found["reasons"]] == ["queue_paused", "no_worker"]
    shown = shell("task", "show", task)
    assert "why it is not running" in shown.out
    assert "the server is down" in shown.out
    shell("task", "cancel", task)
    assert [reason["code"] for reason in shell("task", "why", task, "-o", "json").json["reasons"]] == ["ended"]
    assert "why it is" not in shell("task", "show", task).out


# ---- the drawing

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)


def test_a_run_that_still_waits_is_drawn_as_waiting_and_not_as_skipped() -> None:
    hour = timedelta(hours=1)
    runs = [
        Run("a", NOON, Decision.FIRED, None, NOON, NOON + 2 * hour),
        Run("a", NOON + hour, Decision.SKIPPED),
        Run("a", NOON + 3 * hour, Decision.QUEUED),
    ]
    *_, line = simulate.drawn(["a"], runs, NOON, NOON + timedelta(days=1), UTC)
    assert line.split()[1].startswith("1×·◌·")
    assert "◌ waits" in simulate.LEGEND
    assert cell_len(simulate.LEGEND) <= simulate.WIDTH


@pytest.mark.parametrize("name", ["a", "夜間同期", "夜" * 10, "x夜" * 20, "e\u0301te\u0301", "a" * 19])
def test_the_columns_of_a_timeline_stand_below_each_other_however_wide_the_letters_of_a_name(name: str) -> None:
    *_, line = simulate.drawn([name], [], NOON, NOON + timedelta(days=1), UTC)
    assert cell_len(line.partition("·")[0]) == simulate.NAME + 2


def test_a_run_that_ends_on_another_day_says_on_which(written: Shell) -> None:
    ended = written(
        "simulate", "--file", "schedules.yaml", "--schedule", "Nightly", *WEEKEND, "--duration", "Nightly=23h",
        COLUMNS="200",
    )  # fmt: skip
    first = next(line for line in ended.out.splitlines() if "Sat 2026-03-28 01:30:00 GMT  " in line)
    assert first.split()[-2:] == ["2026-03-29", "00:30:00"], ended.out
    assert first.split()[-3] == "01:30:00"
    every_second = FILE.replace("every: 10m", "every: 1m")
    (written.folder / "schedules.yaml").write_text(every_second)
    ended = written("simulate", "--file", "schedules.yaml", "--schedule", "Often", *WEEKEND)
    assert ended.out.count("2,820") == 3, "due and fired, and how many runs"
