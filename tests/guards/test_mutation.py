"""Markers select a place in the source, and a mutation changes that place only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guards.guard import Condition, Insert, Mutation, Remove, Replace, Value, guard
from tests.guards.mutation import StaleGuard, marked_places, mutate

PYTHON = """\
TEXT = "# guard: none.in_a_string"


def work(task, limit):
    # guard: work.two_lines
    if task.late and (
        task.limit > limit
    ):
        return False  # guard: work.value
    elif not task:  # guard: work.elif
        return None
    for each in task.parts:  # guard: work.loop, work.header
        each.run(task.late)
    try:
        task.stop()  # guard: work.stop
    except BaseException:  # noqa: BLE001
        # guard: work.stop
        task.kill()
    return all(
        task.parts,
        default=False,  # guard: work.argument
    )
"""

SQL = """\
-- name: claim
-- A statement.
SELECT id, 'a -- b' AS text
FROM tasks
WHERE id = $1 AND state = 'queued'  -- guard: claim.state
  AND (run_at < now() AND NOT paused)  -- guard: claim.due
  -- guard: claim.when
  AND CASE WHEN paused THEN 0 ELSE 1 END > 0
-- guard: claim.lock
FOR UPDATE SKIP LOCKED;
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "work.py").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "claim.sql").write_text(SQL, encoding="utf-8")
    (tmp_path / "migrations").mkdir()
    (tmp_path / "migrations" / "0001.sql").write_text("CREATE UNIQUE INDEX one ON t (a);\n", encoding="utf-8")
    return tmp_path


def changed(source: Path, id: str, mutation: Mutation, *, places: int = 1) -> tuple[str, str]:
    """Return what was removed from the source, and what is there instead."""
    (file, text), *others = mutate(guard(id, "Words.", mutation, places=places), source).items()
    assert not others
    before = file.read_text(encoding="utf-8")
    start = next(at for at, (old, new) in enumerate(zip(before, text, strict=False)) if old != new)
    end = 0
    while end < min(len(before), len(text)) - start and before[-1 - end] == text[-1 - end]:
        end += 1
    return before[start : len(before) - end], text[start : len(text) - end]


def test_markers_are_found_with_the_lines_they_mark(source: Path) -> None:
    found = {id: [place.line for place in places] for id, places in marked_places(source).items()}
    assert found == {
        "work.two_lines": [6],
        "work.value": [9],
        "work.elif": [10],
        "work.loop": [12],
        "work.header": [12],
        "work.stop": [15, 18],
        "work.argument": [21],
        "claim.state": [5],
        "claim.due": [6],
        "claim.when": [8],
        "claim.lock": [10],
    }


@pytest.mark.parametrize(
    ("id", "mutation", "old", "new"),
    [
        ("work.two_lines", Condition("False"), "task.late and (\n        task.limit > limit\n    )", "False"),
        ("work.two_lines", Replace("task.late and (task", "(task"), "task.late and (\n        ", "("),
        ("work.value", Value("True"), "Fals", "Tru"),
        ("work.elif", Condition("False"), "not task", "False"),
        ("work.loop", Value("[]"), "task.parts", "[]"),
        ("work.header", Replace("task", "late"), "task", "late"),
        ("work.argument", Replace("default=False,", ""), "default=False,", ""),
        ("claim.state", Condition("true"), "id = $1 AND state = 'queued'", "true"),
        ("claim.state", Replace("AND state='queued'", ""), "AND state = 'queued'", ""),
        ("claim.due", Condition("true"), "(run_at < now() AND NOT paused)", "true"),
        ("claim.due", Insert("OR false"), "", "OR false\n"),
        ("claim.when", Remove(), "AND CASE WHEN paused THEN 0 ELSE 1 END > 0", ""),
        ("claim.lock", Remove(), "FOR UPDATE SKIP LOCKED", ""),
        ("claim.lock", Replace("SKIP LOCKED", ""), "SKIP LOCKED", ""),
    ],
)
def test_mutation_changes_the_marked_place_only(source: Path, id: str, mutation: Mutation, old: str, new: str) -> None:
    removed, added = changed(source, id, mutation)
    assert (removed.strip(), added.strip()) == (old.strip(), new.strip())


def test_removed_statement_becomes_pass_in_every_place(source: Path) -> None:
    (text,) = mutate(guard("work.stop", "Words.", Remove(), places=2), source).values()
    assert "task.stop()" not in text
    assert "task.kill()" not in text
    assert text.count("pass  # guard: work.stop") == 1
    assert text.count("# guard: work.stop\n        pass\n") == 1


def test_guard_may_have_a_different_mutation_for_each_place(source: Path) -> None:
    mutations = (Insert("first()\nsecond()"), Replace("kill", "wait"))
    (text,) = mutate(guard("work.stop", "Words.", mutations, places=2), source).values()
    assert "        first()\n        second()\n        task.stop()" in text
    assert "task.wait()" in text


def test_guard_in_a_migration_is_found_by_its_text(source: Path) -> None:
    entry = guard("table.one", "Words.", Replace("UNIQUE", ""), schema="INDEX one")
    assert [text.split() for text in mutate(entry, source).values()] == [["CREATE", "INDEX", "one", "ON", "t", "(a);"]]
    with pytest.raises(StaleGuard, match="0 lines with 'INDEX on' in the migrations instead of 1"):
        mutate(guard("table.one", "Words.", Remove(), schema="INDEX on"), source)


@pytest.mark.parametrize(
    ("id", "mutation", "places", "problem"),
    [
        ("work.gone", Remove(), 1, "work.gone: 0 markers instead of 1"),
        ("work.stop", Remove(), 1, "work.stop: 2 markers instead of 1"),
        ("work.value", Replace("missing", ""), 1, "'missing' occurs 0 times in the marked place: return False"),
        ("claim.due", Replace("N", ""), 1, "'N' occurs 0 times"),
        ("work.value", Condition("True"), 1, "a Return, which has no Condition"),
        ("work.header", Value(")"), 1, "is no Python"),
        ("claim.lock", Condition("true"), 1, "the marked line has no condition"),
        ("claim.lock", Replace("SKIP", "SKIP"), 1, "changes nothing"),
    ],
)
def test_entry_that_does_not_fit_the_source_is_stale(
    source: Path, id: str, mutation: Mutation, places: int, problem: str
) -> None:
    with pytest.raises(StaleGuard) as caught:
        mutate(guard(id, "Words.", mutation, places=places), source)
    assert problem in str(caught.value)


@pytest.mark.parametrize("comment", ["# guard work.no_colon", "# guard: Not.AnId", "# guard: work.a; work.b"])
def test_misspelt_marker_is_rejected(source: Path, comment: str) -> None:
    (source / "more.py").write_text(f"x = 1  {comment}\n", encoding="utf-8")
    with pytest.raises(StaleGuard, match="not a marker"):
        marked_places(source)
