"""``tenuto log``: what is appended is listed and shown, page by page, and obeyed by no terminal."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_logs_are_appended_to_listed_and_shown(shell: Shell) -> None:
    empty = shell("log", "list")
    assert (empty.code, empty.out, empty.err) == (0, "", "no logs yet\n")
    assert shell("log", "show", "orders").err == "nothing in orders yet\n"

    made = shell("log", "append", "orders", "first \x1b[31mred\x1b[0m", "--fields", '{"n": 1, "x": "\\u001b[2J"}')
    assert (made.code, made.out) == (0, "")
    assert made.err.endswith(" in orders\n")
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

    for words, field in (
        (("append", "a b", "x"), "log:"),
        (("append", "a", " "), "message:"),
        (("append", "a", "x", "--fields", "[1]"), "--fields:"),
        (("append", "a", "x", "--fields", "{"), "--fields:"),
        (("show", "a", "--above", "1"), "above:"),
    ):
        refused = shell("log", *words)
        assert refused.code == 2
        assert refused.err.startswith(f"error: {field}")
