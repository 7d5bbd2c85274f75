"""`tenuto log`: append, list and show entries in pages, without control characters."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell


def test_log_append_list_and_show(shell: Shell) -> None:
    empty = shell("log", "list")
    assert (empty.code, empty.out, empty.err) == (0, "", "no logs\n")
    assert shell("log", "show", "orders").err == "no entries in orders\n"

    appended = shell("log", "append", "orders", "first \x1b[31mred\x1b[0m", "--fields", '{"n": 1, "x": "\\u001b[2J"}')
    assert (appended.code, appended.out) == (0, "")
    assert appended.err.endswith(" appended to orders\n")
    entry = shell("log", "append", "orders", "second", "--fields", "-", "-o", "json", stdin='{"n": 2}').json
    assert (entry["log"], entry["message"], entry["fields"], entry["task_id"]) == ("orders", "second", {"n": 2}, None)

    newest, oldest = shell("log", "show", "orders").out.splitlines()
    assert newest.endswith('  second  {"n": 2}')
    assert oldest.endswith('  first red  {"n": 1, "x": "\\u001b[2J"}')
    page = shell("log", "show", "orders", "--limit", "1")
    assert (len(page.out.splitlines()), page.err) == (1, f"there may be more: add --below {entry['id']}\n")
    (first,) = shell("log", "show", "orders", "--limit", "1", "--below", str(entry["id"]), "-o", "json").json
    (again,) = shell("log", "show", "orders", "--oldest-first", "--above", str(first["id"]), "-o", "json").json
    assert again["id"] == entry["id"]

    header, row = shell("log", "list").out.splitlines()
    assert header.split() == ["name", "last", "entry", "message"]
    assert row.split()[0] == "orders"
    assert shell("log", "list", "--after", "orders", "-o", "json").json == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("append", "a b", "x"), "log"),
        (("append", "a", " "), "message"),
        (("append", "a", "x", "--fields", "[1]"), "--fields"),
        (("append", "a", "x", "--fields", "{"), "--fields"),
        (("show", "a", "--above", "1"), "above"),
    ],
)
def test_log_rejects_invalid_values(shell: Shell, arguments: tuple[str, ...], field: str) -> None:
    rejected = shell("log", *arguments, "-o", "json")
    assert (rejected.code, rejected.error["field"]) == (2, field)
