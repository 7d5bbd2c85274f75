"""`tenuto batch`: submit rows, watch, control and export a batch; reading of rows and drawing of progress."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenuto.cli.work.batches import count_summary, finished_share, progress_bar
from tenuto.operations.work.batch_files import RowReader
from tenuto.operations.work.batches import BatchDetails, BatchState
from tests.cli.conftest import Shell
from tests.support.errors import raises_code

ADD_MANIFEST = ("manifest", "add", "doubles", "--job", "double", "--on-demand")


def write_rows(shell: Shell, *lines: Any, name: str = "rows.jsonl") -> None:
    (shell.folder / name).write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )


# ---- submit


def test_batch_submit_creates_a_batch_that_can_be_watched_to_its_end(shell: Shell) -> None:
    shell(*ADD_MANIFEST)
    write_rows(shell, {"n": 1}, 2, {"n": 3})
    submitted = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--name", "three", LOGNAME="ana")
    id = submitted.out.strip()
    assert (submitted.code, submitted.err) == (
        0,
        f"3 items of doubles submitted; watch them with:\n  tenuto batch watch {id}\n",
    )
    shown = shell("batch", "show", id[:18]).out
    assert shown.startswith(f"● in progress  doubles  three  {id}\n")
    assert "✓ 0 done  ◌ 3 waiting" in shown
    shell.start_service("worker").wait_for_line("worker started")
    watched = shell("batch", "watch", id)
    assert watched.code == 0
    assert watched.out.splitlines()[-1].split("  ")[0].endswith("ended 100 %")
    assert "✓ 3 done" in watched.out
    (listed,) = shell("batch", "list", "-o", "json").json
    assert (listed["external_id"], listed["name"], listed["item_count"], listed["initiator_name"]) == (
        "doubles",
        "three",
        3,
        "ana",
    )
    lines = [json.loads(line) for line in shell("batch", "items", id, "-o", "jsonl").out.splitlines()]
    assert [(line["state"], line["input"], line["output"]) for line in lines] == [
        ("completed", {"n": n}, 2 * n) for n in (1, 2, 3)
    ]
    table = list(csv.DictReader(io.StringIO(shell("batch", "items", id, "-o", "csv").out)))
    assert [(line["state"], line["output"]) for line in table] == [
        ("completed", "2"),
        ("completed", "4"),
        ("completed", "6"),
    ]


def test_batch_submit_names_the_line_of_an_invalid_row_and_keeps_the_rows_before(shell: Shell) -> None:
    shell(*ADD_MANIFEST)
    write_rows(shell, {"n": 1}, {"n": 2}, "", {"n": "x"}, {"n": 4})
    rejected = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--batch-key", "k")
    assert (rejected.code, rejected.out) == (2, "")
    assert "2 items before it submitted; the batch waits for the remaining rows" in rejected.err
    assert "error: rows.jsonl, line 4: " in rejected.err
    assert "tenuto batch submit doubles --from rows.jsonl --batch-key k" in rejected.err
    found = shell("batch", "show", "k", "-o", "json").json
    assert (found["state"], found["item_count"]) == ("filling", 2)
    write_rows(shell, {"n": 1}, {"n": 2}, "", {"n": 3}, {"n": 4})
    corrected = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--batch-key", "k", "-o", "json").json
    assert (corrected["id"], corrected["state"], corrected["item_count"]) == (found["id"], "in_progress", 4)
    inputs = [json.loads(line)["input"] for line in shell("batch", "items", "k", "-o", "jsonl").out.splitlines()]
    assert inputs == [{"n": n} for n in (1, 2, 3, 4)], "each row once"


def test_batch_submit_names_the_line_of_an_invalid_row_among_thousands(shell: Shell) -> None:
    shell(*ADD_MANIFEST)
    write_rows(shell, *({"n": n} for n in range(2100)), "", {"n": "x"}, *({"n": n} for n in range(50)), "not json")
    rejected = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--batch-key", "k")
    assert "2,100 items before it submitted" in rejected.err
    assert "error: rows.jsonl, line 2102: " in rejected.err


@pytest.mark.parametrize(
    ("lines", "options", "code", "message"),
    [
        (({"n": 1}, "not json"), ("--atomic",), "batch.row.not_json", "rows.jsonl, line 2: "),
        (("[",), (), "batch.row.not_json", "rows.jsonl, line 1: "),
        ((), (), "batch.source.empty", "rows.jsonl"),
        ((), ("--from", "missing.csv"), "batch.source.not_readable", "missing.csv"),
    ],
    ids=["atomic", "first row invalid", "empty", "missing"],
)
def test_batch_submit_of_an_unsuitable_or_atomic_file_leaves_no_batch(
    shell: Shell, lines: tuple[Any, ...], options: tuple[str, ...], code: str, message: str
) -> None:
    shell(*ADD_MANIFEST)
    write_rows(shell, *lines)
    rejected = shell("batch", "submit", "doubles", "--from", "rows.jsonl", *options, "-o", "json")
    assert (rejected.code, rejected.error["code"]) == (2, code)
    assert message in rejected.error["message"]
    assert shell("batch", "list", "-o", "json").json == []


def test_batch_submit_skips_items_whose_key_is_open(shell: Shell) -> None:
    shell(*ADD_MANIFEST)
    write_rows(shell, "id,n", "a,1", "b,2", name="rows.csv")
    first = shell("batch", "submit", "doubles", "--from", "rows.csv", "--key", "id", "-o", "json").json
    assert (first["item_count"], first["duplicate_count"]) == (2, 0)
    second = shell(
        "batch", "submit", "doubles", "--from", "-", "--key", "id", stdin='{"id": "b", "n": 2}\n{"id": "c", "n": 3}\n'
    )
    assert "1 items of doubles submitted (1 skipped: already open)" in second.err
    keyless = shell("batch", "submit", "doubles", "--from", "-", "--key", "id", stdin='{"n": 2}\n')
    assert (keyless.code, keyless.err.startswith("error: stdin, line 1: ")) == (2, True)


# ---- control


def test_batch_pause_resume_and_cancel(shell: Shell) -> None:
    shell(*ADD_MANIFEST)
    write_rows(shell, 1, 2, 3)
    id = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "-q").out.strip()
    paused = shell("batch", "pause", id, LOGNAME="ana")
    assert f"batch {id} paused by ana\n" in paused.err
    assert shell("batch", "pause", id).code == 7
    assert shell("batch", "show", id).out.startswith("‖ paused  doubles")
    assert f"batch {id} resumed" in shell("batch", "resume", id).err
    assert "3 cancelled" in shell("batch", "cancel", id, LOGNAME="bo").err
    found = shell("batch", "show", id, "-o", "json").json
    assert (found["state"], found["cancelled_by"], found["open_count"]) == ("cancelled", "bo", 0)
    assert shell("batch", "watch", id).code == 1
    assert shell("batch", "show", "nowhere").code == 2
    assert shell("batch", "show", "00000000").code == 3


def test_batch_retry_failed_retries_failures_and_watch_reports_them_by_exit_code(shell: Shell) -> None:
    shell("manifest", "add", "bad", "--job", "hopeless", "--on-demand")
    write_rows(shell, {}, {})
    shell.start_service("worker").wait_for_line("worker started")
    watched = shell("batch", "submit", "bad", "--from", "rows.jsonl", "--watch", "--batch-key", "b")
    assert (watched.code, "✕ 2 failed" in watched.out) == (1, True)
    assert "tenuto batch retry-failed" in watched.err
    shown = shell("batch", "show", "b").out
    assert shown.startswith("▲ some failed  bad")
    assert "2 × tenuto.PermanentFailure: this cannot be done" in shown or "PermanentFailure" in shown
    again = shell("batch", "retry-failed", "b", "--watch", "--note", "once more")
    assert (again.code, "2 items retried" in again.err) == (1, True)
    found = shell("batch", "show", "b", "-o", "json").json
    assert (found["item_count"], found["failed_count"], found["retried_count"]) == (2, 2, 2)
    assert len(shell("batch", "items", "b", "--state", "failed", "-o", "json").json) == 2


INSERT_DEAD_LETTERS = """
INSERT INTO tenuto.dead_letters (id, manifest_id, external_id, item, batch_id, task_id, activity_id, dead_lettered_at,
    reason, fingerprint, attempts, input)
SELECT gen_random_uuid(), gen_random_uuid(), 'doubles', '', id, gen_random_uuid(), gen_random_uuid(),
       created_at + seconds * interval '1 second', reason, reason, 1, '{}'
FROM tenuto.batches, (VALUES (1, 'rejected', 600), (2, 'too late', 1200)) AS kind (seconds, reason, number),
     generate_series(1, number)
"""


def test_batch_show_counts_all_failures_by_kind(shell: Shell, url: str) -> None:
    async def insert_dead_letters() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(INSERT_DEAD_LETTERS)
        await connection.close()

    shell(*ADD_MANIFEST)
    write_rows(shell, 1)
    shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--batch-key", "b")
    asyncio.run(insert_dead_letters())
    shown = [line.strip() for line in shell("batch", "show", "b").out.splitlines()]
    assert shown[shown.index("failures") + 1 :][:2] == ["1,200 × too late", "600 × rejected"]


# ---- items as CSV


def test_batch_items_as_csv_marks_text_that_a_spreadsheet_would_run_as_a_formula(shell: Shell) -> None:
    keys = ["=cmd|' /c calc'!A1", "@SUM(A1)", "+1", "-1", "\uff1d1", "a=b"]
    shell(*ADD_MANIFEST)
    write_rows(shell, *({"id": key, "n": -5} for key in keys))
    shell.start_service("worker").wait_for_line("worker started")
    watched = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--key", "id", "--batch-key", "b", "--watch")
    assert watched.code == 0
    marked, raw = (
        [(line["key"], line["output"]) for line in csv.DictReader(io.StringIO(ended.out))]
        for ended in (shell("batch", "items", "b", "-o", "csv"), shell("batch", "items", "b", "-o", "csv", "--raw"))
    )
    assert marked == [(key if key == "a=b" else f"'{key}", "-10") for key in keys], "numbers stay unchanged"
    assert raw == [(key, "-10") for key in keys]
    assert "--raw requires -o csv" in shell("batch", "items", "b", "-o", "jsonl", "--raw").err


# ---- reading of rows


def test_row_reader_reads_json_lines_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n[2]\nnope\n')
    reader = RowReader(str(path), None, None, drop_key=False)
    found = iter(reader)
    assert (next(found), reader.line) == ({"a": 1}, 1)
    assert (next(found), reader.line) == ([2], 3)
    with raises_code("batch.row.not_json"):
        next(found)
    assert reader.line == 4


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("a,a\n1,2\n", 1, "batch.csv.header_invalid"),
        ("a,\n1,2\n", 1, "batch.csv.header_invalid"),
        ("a,b\n1,2\n1,2,3\n", 3, "batch.csv.too_many_cells"),
        ('a,b\n"1\n2",3\n4,5,6\n', 4, "batch.csv.too_many_cells"),
        ('a\n"1\n', 2, "batch.csv.invalid"),
    ],
)
def test_row_reader_knows_the_line_of_an_error_in_csv(tmp_path: Path, text: str, line: int, code: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    reader = RowReader(str(path), None, None, drop_key=False)
    with raises_code(code):
        list(reader)
    assert reader.line == line


def test_row_reader_takes_csv_cells_as_text_and_drops_empty_ones(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('\ufeffid,a,b\n1,"x, y",\n\n2,,z\n', encoding="utf-8")
    found = list(RowReader(str(path), None, "id", drop_key=True))
    assert [(row, row.key) for row in found] == [({"a": "x, y"}, "1"), ({"b": "z"}, "2")]


# ---- drawing of progress


def make_batch(done: int, failed: int, cancelled: int, running: int, waiting: int) -> BatchDetails:
    values: dict[str, Any] = {
        **{field.name: None for field in fields(BatchDetails)},
        "complete_at": datetime(2031, 5, 17, tzinfo=UTC),
        "open_counts": {},
        "state": BatchState.IN_PROGRESS,
        "done_count": done,
        "failed_count": failed,
        "cancelled_count": cancelled,
        "running_count": running,
        "open_count": running + waiting,
    }
    return BatchDetails(**values)


BATCHES = [
    make_batch(0, 0, 0, 0, 0),
    make_batch(1, 1, 1, 1, 1),
    make_batch(999_999, 1, 0, 0, 0),
    make_batch(0, 0, 0, 1, 10**6),
    make_batch(33, 33, 0, 33, 1),
]


def test_progress_bar_fills_its_width_and_shows_every_state() -> None:
    for batch in BATCHES:
        for width in (10, 33, 74):
            bar = progress_bar(batch, width)
            assert len(bar.plain) == width
            styles = {str(span.style) for span in bar.spans}
            assert ("red" in styles) == bool(batch.failed_count), "one failure in a million is visible"
    assert finished_share(make_batch(1, 1, 0, 0, 2)) == 0.5
    assert count_summary(BATCHES[1]).plain == "✓ 1 done  ✕ 1 failed  ⊘ 1 cancelled  ● 1 running  ◌ 1 waiting"
