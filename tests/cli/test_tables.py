"""Tables of lists: one line per record, values below others on a narrow terminal, nothing omitted in a pipe; CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from tenuto.cli import tables
from tenuto.cli.output import ProgressLine
from tenuto.presentation import admin_views, definition_views, work_views
from tenuto.presentation.columns import Column, ResourceView
from tests.cli.conftest import Shell

NOW = datetime(2031, 5, 17, 12, tzinfo=UTC)
COLUMNS = (
    Column("id", "id", "id", under="name"),
    Column("name", "name", flexible=True),
    Column("state", "state", "state"),
    Column("failed", "failed", "count", under="state", label="{} failed"),
    Column("host", "host", drop=1),
    Column("version", "version", drop=2),
)
ID = "01a8c3f0-2b40-7d11-9c3e-5f0a7be1d2c4"
RECORDS = [
    SimpleNamespace(id=ID, name="replicate", state="failed", failed=3, host="box-1", version="1.2"),
    SimpleNamespace(id=ID, name="n" * 60, state="completed", failed=0, host="box-2", version="1.3"),
]


def draw(
    width: int | None,
    monkeypatch: pytest.MonkeyPatch,
    records: Sequence[Any] = RECORDS,
    columns: Sequence[Column] = COLUMNS,
) -> list[str]:
    """Return the lines of a table on a terminal of this width, or in a pipe."""
    out = io.StringIO()
    console = Console(file=out, width=width or 20_000, force_terminal=width is not None, color_system=None)
    monkeypatch.setattr(tables, "_console", lambda: console)
    console.print(tables.render_table(columns, records, NOW))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert all(cell_len(line) <= (width or 20_000) for line in lines)
    return lines


def test_wide_terminal_has_one_line_per_record(monkeypatch: pytest.MonkeyPatch) -> None:
    header, _, first, second = draw(160, monkeypatch)
    assert header.split() == ["id", "name", "state", "failed", "host", "version"]
    assert first.split() == [ID, "replicate", "✕", "failed", "3", "box-1", "1.2"]
    assert "n" * 60 in second


def test_narrow_terminal_shows_values_below_others(monkeypatch: pytest.MonkeyPatch) -> None:
    header, _, *rows = draw(80, monkeypatch)
    assert header.split() == ["name", "state", "host", "version"]
    assert rows[0].split() == ["replicate", "✕", "failed", "box-1", "1.2"]
    assert rows[1].split() == [ID, "3", "failed"]
    assert rows[2].split()[0].endswith("…"), "the name is truncated"
    assert rows[3].split() == [ID], "no failure is not mentioned"


def test_very_narrow_terminal_omits_columns_in_their_order_and_never_truncates_an_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for width, names in ((60, ["name", "state", "host"]), (50, ["name", "state"])):
        header, _, *rows = draw(width, monkeypatch)
        assert header.split() == names
        assert rows[1].split()[0] == ID


@pytest.mark.parametrize("width", [36, 40, 48])
def test_terminal_too_narrow_for_a_table_has_a_line_per_value(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = draw(width, monkeypatch)
    assert lines[0] == ID
    assert [line.split() for line in lines[1:6]] == [
        ["name", "replicate"],
        ["state", "✕", "failed"],
        ["failed", "3"],
        ["host", "box-1"],
        ["version", "1.2"],
    ]
    assert (lines[6], lines[7]) == ("", ID)
    assert "".join(line.removeprefix("  name").strip() for line in lines[8:11]).startswith("n" * 60), "it is wrapped"


def test_long_error_is_wrapped_and_ends_with_an_ellipsis_after_three_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = (Column("name", "name"), Column("error", "error", "error", flexible=True))
    short, long = "cannot connect to the server at 10.0.0.7, port 389: timed out", "wrong " * 60
    records = [SimpleNamespace(name="a", error=short), SimpleNamespace(name="b", error=long)]
    _, _, *rows = draw(50, monkeypatch, records, columns)
    assert " ".join(rows[0].split()[1:] + rows[1].split()) == short
    assert len(rows) == 2 + 3
    assert rows[-1].endswith("…")


def test_progress_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(written, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr", written)
    monkeypatch.setenv("COLUMNS", "50")
    ProgressLine(quiet=False).show("7 of 60 checks: " + "long title " * 10)
    assert len(written.getvalue().removeprefix("\r\x1b[K")) == 49


VIEWS = {
    f"{module.__name__}.{name}": view
    for module in (work_views, definition_views, admin_views)
    for name, view in vars(module).items()
    if isinstance(view, ResourceView)
}


def _sample_column(column: Column) -> Column:
    """Return the column with a sample value of its format."""
    if column.format in ("state", "switch"):
        return replace(column, value=lambda _: "completed", text=None)
    sample = ID if column.format == "id" else "some text"
    return replace(column, value=lambda _: sample, text=lambda *_: sample)


@pytest.mark.parametrize("width", [40, 50])
@pytest.mark.parametrize("name", VIEWS)
def test_every_list_on_a_narrow_terminal_shows_ids_and_states_completely(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [_sample_column(column) for column in VIEWS[name].columns]
    lines = draw(width, monkeypatch, [SimpleNamespace()], columns)
    never_omitted = [column for column in columns if not column.drop and not column.under]
    text = "\n".join(lines)
    assert all(ID in text for column in never_omitted if column.format == "id")
    assert all("completed" in text for column in never_omitted if column.format == "state" and not column.flexible)


def test_pipe_has_one_complete_line_per_record(monkeypatch: pytest.MonkeyPatch) -> None:
    header, first, second = draw(None, monkeypatch)
    assert header.split() == ["id", "name", "state", "failed", "host", "version"]
    assert first.split() == [ID, "replicate", "✕", "failed", "3", "box-1", "1.2"]
    assert second.split()[1] == "n" * 60


def test_list_as_csv_has_a_header_and_values_for_programs(shell: Shell) -> None:
    task_id = shell("run", "last", "-q").out.strip()
    (row,) = csv.DictReader(io.StringIO(shell("task", "list", "-o", "csv").out))
    assert list(row) == ["id", "state", "name", "queue", "attempt", "when", "worker"]
    assert (row["id"], row["state"], row["name"], row["queue"], row["worker"]) == (
        task_id,
        "queued",
        "last",
        "slow",
        "",
    )
    assert datetime.fromisoformat(row["when"]).tzinfo is not None
    empty = shell("activity", "list", "-o", "csv")
    assert (empty.code, empty.err, len(empty.out.splitlines())) == (0, "", 1)


@pytest.mark.parametrize("arguments", ["doctor", "log show x", "job list", "queue list", "audit list", "schedule list"])
def test_findings_logs_and_other_lists_have_csv(shell: Shell, arguments: str) -> None:
    shell("log", "append", "x", "=cmd|calc")
    ended = shell(*arguments.split(), "-o", "csv")
    assert (ended.code, ended.err) == (5 if arguments == "doctor" else 0, "")  # it warns: fsync is off
    header, *rows = csv.reader(io.StringIO(ended.out))
    assert all(len(row) == len(header) for row in rows)
    if arguments == "log show x":
        assert rows[0][2] == "'=cmd|calc", "a spreadsheet does not run it"


def test_csv_is_refused_where_there_is_no_list(shell: Shell) -> None:
    ended = shell("queue", "pause", "mail", "-o", "csv")
    assert ended.code == 2
    assert "csv" in ended.err
