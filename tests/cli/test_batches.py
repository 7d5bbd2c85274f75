"""``tenuto batch``, as people type it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tenuto.cli.work.batch_progress import bar, counts, share
from tenuto.cli.work.batch_submit import Rows
from tenuto.errors import Invalid
from tests.cli.conftest import Shell

ADD = ("manifest", "add", "doubles", "--job", "double", "--on-demand")


def rows(shell: Shell, *lines: Any, name: str = "rows.jsonl") -> None:
    (shell.folder / name).write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )


# ---- submitting


def test_rows_become_a_batch_that_can_be_watched_to_its_end(shell: Shell) -> None:
    shell(*ADD)
    rows(shell, {"n": 1}, 2, {"n": 3})
    submitted = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--name", "three", LOGNAME="ana")
    id = submitted.out.strip()
    assert (submitted.code, submitted.err) == (
        0,
        f"3 items of doubles are in; follow them:\n  tenuto batch watch {id}\n",
    )
    shown = shell("batch", "show", id[:18]).out
    assert shown.startswith(f"● in progress  doubles  three  {id}\n")
    assert "✓ 0 done  ◌ 3 waiting" in shown
    shell.start("worker").until("worker ready")
    watched = shell("batch", "watch", id)
    assert watched.code == 0
    assert watched.out.splitlines()[-1].split("  ")[0].endswith("ended 100 %")
    assert "✓ 3 done" in watched.out
    (listed,) = shell("batch", "list", "-o", "json").json
    assert (listed["external_id"], listed["name"], listed["total"], listed["initiator_name"]) == (
        "doubles",
        "three",
        3,
        "ana",
    )
    lines = [json.loads(line) for line in shell("batch", "items", id, "-o", "jsonl").out.splitlines()]
    assert [(line["status"], line["input"], line["output"]) for line in lines] == [
        ("completed", {"n": n}, 2 * n) for n in (1, 2, 3)
    ]
    table = list(csv.DictReader(io.StringIO(shell("batch", "items", id, "-o", "csv").out)))
    assert [(line["status"], line["output"]) for line in table] == [
        ("completed", "2"),
        ("completed", "4"),
        ("completed", "6"),
    ]


def test_a_bad_row_is_named_by_its_line_and_what_went_before_stands(shell: Shell) -> None:
    shell(*ADD)
    rows(shell, {"n": 1}, {"n": 2}, "", {"n": "x"}, {"n": 4})
    refused = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--batch-key", "k")
    assert (refused.code, refused.out) == (2, "")
    assert "2 items before it are in; their batch waits for the rest" in refused.err
    assert "error: rows.jsonl, line 4: n: Input should be a valid integer" in refused.err
    assert "tenuto batch submit doubles --from rows.jsonl --batch-key k" in refused.err
    found = shell("batch", "show", "k", "-o", "json").json
    assert (found["state"], found["total"]) == ("filling", 2)
    rows(shell, {"n": 1}, {"n": 2}, "", {"n": 3}, {"n": 4})
    mended = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--batch-key", "k", "-o", "json").json
    assert (mended["id"], mended["state"], mended["total"]) == (found["id"], "in_progress", 4)
    inputs = [json.loads(line)["input"] for line in shell("batch", "items", "k", "-o", "jsonl").out.splitlines()]
    assert inputs == [{"n": n} for n in (1, 2, 3, 4)], "each once"


def test_a_bad_row_among_thousands_is_named_by_its_line(shell: Shell) -> None:
    shell(*ADD)
    rows(shell, *({"n": n} for n in range(2100)), "", {"n": "x"}, *({"n": n} for n in range(50)), "not json")
    refused = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--batch-key", "k")
    assert "2,100 items before it are in" in refused.err
    assert "error: rows.jsonl, line 2102: n: Input should be a valid integer" in refused.err


def test_of_an_atomic_batch_nothing_stands_and_of_a_file_that_does_not_fit_neither(shell: Shell) -> None:
    shell(*ADD)
    rows(shell, {"n": 1}, "not json")
    refused = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--atomic")
    assert (refused.code, "error: rows.jsonl, line 2: is not JSON" in refused.err) == (2, True)
    rows(shell, "[")
    assert "error: rows.jsonl, line 1: is not JSON" in shell("batch", "submit", "doubles", "--from", "rows.jsonl").err
    rows(shell)
    assert "holds no rows" in shell("batch", "submit", "doubles", "--from", "rows.jsonl").err
    assert "cannot be read" in shell("batch", "submit", "doubles", "--from", "gone.csv").err
    assert shell("batch", "list", "-o", "json").json == []


def test_items_that_are_open_already_are_left_out_by_their_key(shell: Shell) -> None:
    shell(*ADD)
    rows(shell, "id,n", "a,1", "b,2", name="rows.csv")
    first = shell("batch", "submit", "doubles", "--from", "rows.csv", "--key", "id", "-o", "json").json
    assert (first["total"], first["duplicates"]) == (2, 0)
    second = shell(
        "batch", "submit", "doubles", "--from", "-", "--key", "id", stdin='{"id": "b", "n": 2}\n{"id": "c", "n": 3}\n'
    )
    assert "1 items of doubles are in (1 left out: they are open already)" in second.err
    keyless = shell("batch", "submit", "doubles", "--from", "-", "--key", "id", stdin='{"n": 2}\n')
    assert (keyless.code, "error: stdin, line 1: has no 'id'" in keyless.err) == (2, True)


# ---- control


def test_a_batch_is_paused_resumed_and_cancelled(shell: Shell) -> None:
    shell(*ADD)
    rows(shell, 1, 2, 3)
    id = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "-q").out.strip()
    paused = shell("batch", "pause", id, LOGNAME="ana")
    assert f"batch {id} is paused, by ana\n" in paused.err
    assert shell("batch", "pause", id).code == 7
    assert shell("batch", "show", id).out.startswith("‖ paused  doubles")
    assert "goes on" in shell("batch", "resume", id).err
    assert "3 cancelled" in shell("batch", "cancel", id, LOGNAME="bo").err
    found = shell("batch", "show", id, "-o", "json").json
    assert (found["state"], found["cancelled_by"], found["left"]) == ("cancelled", "bo", 0)
    assert shell("batch", "watch", id).code == 1
    assert shell("batch", "show", "nowhere").code == 2
    assert shell("batch", "show", "00000000").code == 3


def test_what_failed_is_run_again_and_the_watching_tells_by_its_exit_code(shell: Shell) -> None:
    shell("manifest", "add", "bad", "--job", "hopeless", "--on-demand")
    rows(shell, {}, {})
    shell.start("worker").until("worker ready")
    watched = shell("batch", "submit", "bad", "--from", "rows.jsonl", "--watch", "--batch-key", "b")
    assert (watched.code, "✕ 2 failed" in watched.out) == (1, True)
    assert "tenuto batch retry-failed" in watched.err
    shown = shell("batch", "show", "b").out
    assert shown.startswith("▲ some failed  bad")
    assert "2 × tenuto.PermanentFailure: this cannot be done" in shown or "PermanentFailure" in shown
    again = shell("batch", "retry-failed", "b", "--watch", "--note", "once more")
    assert (again.code, "2 items run again" in again.err) == (1, True)
    found = shell("batch", "show", "b", "-o", "json").json
    assert (found["total"], found["failed"], found["retried"]) == (2, 2, 2)
    assert len(shell("batch", "items", "b", "--status", "failed", "-o", "json").json) == 2


LETTERS = """
INSERT INTO tenuto.dead_letters (id, manifest_id, external_id, item, batch_id, task_id, activity_id, dead_lettered_at,
    reason, fingerprint, attempts, input)
SELECT gen_random_uuid(), gen_random_uuid(), 'doubles', '', id, gen_random_uuid(), gen_random_uuid(),
       created_at + seconds * interval '1 second', reason, reason, 1, '{}'
FROM tenuto.batches, (VALUES (1, 'refused', 600), (2, 'too late', 1200)) AS kind (seconds, reason, number),
     generate_series(1, number)
"""


def test_all_failures_of_a_batch_are_counted_by_their_kind_however_many(shell: Shell, url: str) -> None:
    async def fail() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(LETTERS)
        await connection.close()

    shell(*ADD)
    rows(shell, 1)
    shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--batch-key", "b")
    asyncio.run(fail())
    shown = [line.strip() for line in shell("batch", "show", "b").out.splitlines()]
    assert shown[shown.index("why items failed") + 1 :][:2] == ["1,200 × too late", "600 × refused"]


# ---- in a spreadsheet


def test_text_that_a_spreadsheet_would_take_for_a_formula_is_marked_unless_a_program_reads_it(shell: Shell) -> None:
    keys = ["=cmd|' /c calc'!A1", "@SUM(A1)", "+1", "-1", "\uff1d1", "a=b"]
    shell(*ADD)
    rows(shell, *({"id": key, "n": -5} for key in keys))
    shell.start("worker").until("worker ready")
    watched = shell("batch", "submit", "doubles", "--from", "rows.jsonl", "--key", "id", "--batch-key", "b", "--watch")
    assert watched.code == 0
    marked, raw = (
        [(line["key"], line["output"]) for line in csv.DictReader(io.StringIO(ended.out))]
        for ended in (shell("batch", "items", "b", "-o", "csv"), shell("batch", "items", "b", "-o", "csv", "--raw"))
    )
    assert marked == [(key if key == "a=b" else f"'{key}", "-10") for key in keys], "numbers are as they are"
    assert raw == [(key, "-10") for key in keys]
    assert "--raw: goes with -o csv" in shell("batch", "items", "b", "-o", "jsonl", "--raw").err


# ---- rows


def test_lines_of_json_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n[2]\nnope\n')
    reader = Rows(str(path), None, None, drop_key=False)
    found = iter(reader)
    assert (next(found), reader.line) == ({"a": 1}, 1)
    assert (next(found), reader.line) == ([2], 3)
    with pytest.raises(Invalid, match="is not JSON"):
        next(found)
    assert reader.place == f"{path}, line 4"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a,a\n1,2\n", 1, "different names"),
        ("a,\n1,2\n", 1, "different names"),
        ("a,b\n1,2\n1,2,3\n", 3, "has 3 cells, and there are 2 columns"),
        ('a,b\n"1\n2",3\n4,5,6\n', 4, "has 3 cells"),
        ('a\n"1\n', 2, "is not CSV"),
    ],
)
def test_a_mistake_in_a_csv_file_is_told_by_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    reader = Rows(str(path), None, None, drop_key=False)
    with pytest.raises(Invalid, match=words):
        list(reader)
    assert reader.line == line


def test_cells_are_text_and_an_empty_one_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('\ufeffid,a,b\n1,"x, y",\n\n2,,z\n', encoding="utf-8")
    found = list(Rows(str(path), None, "id", drop_key=True))
    assert [(row, row.key) for row in found] == [({"a": "x, y"}, "1"), ({"b": "z"}, "2")]


# ---- drawing


def looks() -> Iterator[dict[str, Any]]:
    whole = {"complete_at": 1, "open": {}, "state": "in_progress"}
    for done, failed, cancelled, running, waiting in (
        (0, 0, 0, 0, 0),
        (1, 1, 1, 1, 1),
        (999_999, 1, 0, 0, 0),
        (0, 0, 0, 1, 10**6),
        (33, 33, 0, 33, 1),
    ):
        yield {
            **whole,
            "done": done,
            "failed": failed,
            "cancelled": cancelled,
            "running": running,
            "left": running + waiting,
        }


def test_the_bar_is_as_long_as_it_may_be_and_leaves_nothing_out() -> None:
    for look in looks():
        for width in (10, 33, 74):
            drawn = bar(look, width)
            assert len(drawn.plain) == width
            styles = {str(span.style) for span in drawn.spans}
            assert ("red" in styles) == bool(look["failed"]), "one failure in a million is seen"
    assert share({"done": 1, "failed": 1, "cancelled": 0, "left": 2, "complete_at": None}) == 0.5
    assert counts(list(looks())[1]).plain == "✓ 1 done  ✕ 1 failed  ⊘ 1 cancelled  ● 1 running  ◌ 1 waiting"
