"""The commands ``tenuto simulate`` and ``tenuto task why``, and the timeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from rich.cells import cell_len

from tenuto.cli.definitions import simulation
from tenuto.model.work.occurrences import Decision
from tenuto.simulation.simulator import SimulatedRun
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
def shell_with_file(shell: Shell) -> Shell:
    (shell.folder / "schedules.yaml").write_text(FILE)
    return shell


def test_schedules_of_a_file_are_simulated_without_being_applied(shell_with_file: Shell) -> None:
    ended = shell_with_file("simulate", "--file", "schedules.yaml", *WEEKEND, "--duration", "Often=15m", "--slots", "1")
    assert ended.code == 0, ended.err
    drawing = ended.out.splitlines()[2:7]
    assert drawing[2].startswith("Nightly ")
    assert max(len(line) for line in drawing) <= 80
    change = ended.out.partition("daylight saving changes\n  Nightly: ")[2].partition("\n")[0]
    assert all(text in change for text in ("2026-03-29", "Europe/London", "01:30", "02:00")), ended.out
    assert " — 141 times" in ended.out, "runs of Often are skipped"
    assert "(Nightly, Often)" in ended.out, "the queue has one slot"
    assert "60 s" in ended.err, "the assumed duration of Nightly"
    assert shell_with_file("schedule", "list", "-o", "json").json == [], "nothing was changed"


def test_simulation_as_json_has_all_runs(shell_with_file: Shell) -> None:
    found = shell_with_file("simulate", "--file", "schedules.yaml", *WEEKEND, "-o", "json").json
    assert [(total["schedule"], total["due"], total["fired"]) for total in found["totals"]] == [
        ("Nightly", 2, 2),
        ("Often", 282, 282),
    ]
    assert len(found["runs"]) == 284
    assert [run["due_at"] for run in found["runs"] if run["schedule"] == "Nightly"] == [
        "2026-03-28T01:30:00+00:00",
        "2026-03-29T01:00:00+00:00",
    ]


def test_stored_schedules_are_simulated_and_filtered(shell_with_file: Shell) -> None:
    assert shell_with_file("apply", "schedules.yaml").code == 0
    found = shell_with_file(
        "simulate", "--schedule", "Often", "--from", "2026-01-01T00:00Z", "--to", "1h", "-o", "json"
    ).json
    assert [total["schedule"] for total in found["totals"]] == ["Often"]
    assert len(found["runs"]) == 6
    outage = "2026-01-01T00:05Z/2026-01-01T00:35Z"
    found = shell_with_file(
        "simulate", "--schedule", "Often", "--from", "2026-01-01T00:00Z", "--to", "1h", "--outage", outage, "-o", "json"
    ).json
    assert [run["decision"] for run in found["runs"]] == ["fired", "coalesced", "coalesced", "fired", "fired", "fired"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "field", "code"),
    [
        (("--from", "soon"), 2, "--from", "value.instant.invalid"),
        (("--to", "2001-01-01"), 2, "--to", "simulation.range.empty"),
        (("--schedule", "None such"), 3, None, "schedule.not_found"),
        (("--duration", "x=long"), 2, "--duration", "value.duration.invalid"),
        (("--slots", "many"), 2, "--slots", "cli.option.not_a_whole_number"),
        (("--outage", "now"), 2, "--outage", "simulation.outage.invalid"),
        (("--zone", "Europe/Londn"), 2, "--zone", "trigger.zone.unknown"),
    ],
)
def test_invalid_option_of_simulate_is_named_in_the_error(
    shell: Shell, arguments: tuple[str, ...], exit_code: int, field: str | None, code: str
) -> None:
    ended = shell("simulate", *arguments, "-o", "json")
    assert (ended.code, ended.error["field"], ended.error["code"]) == (exit_code, field, code)


def test_task_why_lists_the_reasons_of_a_queued_task(shell: Shell) -> None:
    task = shell("run", "double", "--input", '{"n": 1}', "-o", "json").json["id"]
    shell("queue", "pause", "default", "--reason", "the server is down")
    ended = shell("task", "why", task[:23])
    assert ended.code == 0, ended.err
    assert ended.out.count("• ") == 2
    assert "the server is down" in ended.out
    found = shell("task", "why", task, "-o", "json").json
    assert [reason["code"] for reason in found["reasons"]] == ["queue_paused", "no_worker"]
    shown = shell("task", "show", task)
    assert "the server is down" in shown.out
    shell("task", "cancel", task)
    assert [reason["code"] for reason in shell("task", "why", task, "-o", "json").json["reasons"]] == ["ended"]
    assert "the server is down" not in shell("task", "show", task).out


# ---- the timeline

NOON = datetime(2031, 5, 17, 12, tzinfo=UTC)


def test_timeline_shows_a_queued_run_as_waiting_and_not_as_skipped() -> None:
    hour = timedelta(hours=1)
    runs = [
        SimulatedRun("a", NOON, Decision.FIRED, None, NOON, NOON + 2 * hour),
        SimulatedRun("a", NOON + hour, Decision.SKIPPED),
        SimulatedRun("a", NOON + 3 * hour, Decision.QUEUED),
    ]
    *_, line = simulation.timeline_lines(["a"], runs, NOON, NOON + timedelta(days=1), UTC)
    assert line.split()[1].startswith("1×·◌·")
    assert "◌ waiting" in simulation.LEGEND
    assert cell_len(simulation.LEGEND) <= simulation.WIDTH


@pytest.mark.parametrize("name", ["a", "夜間同期", "夜" * 10, "x夜" * 20, "e\u0301te\u0301", "a" * 19])
def test_timeline_columns_are_aligned_for_wide_and_combining_characters(name: str) -> None:
    *_, line = simulation.timeline_lines([name], [], NOON, NOON + timedelta(days=1), UTC)
    assert cell_len(line.partition("·")[0]) == simulation.NAME_WIDTH + 2


def test_run_that_ends_on_another_day_is_shown_with_the_date(shell_with_file: Shell) -> None:
    ended = shell_with_file(
        "simulate", "--file", "schedules.yaml", "--schedule", "Nightly", *WEEKEND, "--duration", "Nightly=23h",
        COLUMNS="200",
    )  # fmt: skip
    first = next(line for line in ended.out.splitlines() if "Sat 2026-03-28 01:30:00 GMT  " in line)
    assert first.split()[-2:] == ["2026-03-29", "00:30:00"], ended.out
    assert first.split()[-3] == "01:30:00"
    every_minute = FILE.replace("every: 10m", "every: 1m")
    (shell_with_file.folder / "schedules.yaml").write_text(every_minute)
    ended = shell_with_file("simulate", "--file", "schedules.yaml", "--schedule", "Often", *WEEKEND)
    assert ended.out.count("2,820") == 3, "due, fired, and the number of runs"
