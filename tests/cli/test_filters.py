"""`--where` and its short forms: filters, counts and errors of list commands."""

from __future__ import annotations

from tests.cli.conftest import Shell
from tests.support.waiting import eventually_blocking


def test_lists_are_filtered_by_where_and_short_forms(shell: Shell) -> None:
    shell("run", "hopeless")
    shell("run", "double", "--input", '{"n": 1}')
    shell.start_service("worker", "--name", "box-1").wait_for_line("worker started")
    eventually_blocking(lambda: shell("activity", "list", "--count").out == "2\n", 30)
    failed = shell(
        "activity", "list", "--state", "failed", "--final", "--since", "1h", "--worker", "box-1", "-o", "json"
    )
    assert [each["name"] for each in failed.json] == ["hopeless"]
    assert shell("activity", "list", "--until", "1h", "-o", "json").json == []
    assert shell("activity", "list", "--since", "today", "--where", "state:completed", "--count").out == "1\n"
    counted = shell("activity", "list", "--where", "error:~cannot", "--count", "-o", "json")
    assert counted.json == {"count": 1, "is_exact": True}
    found = shell("activity", "list", "--where", "no such text")
    assert found.err.splitlines() == [
        "no matching activities",
        "searched the newest 100,000 activities; search more with: --window 1000000",
    ]


def test_filter_errors_name_option_and_nearest_key(shell: Shell) -> None:
    result = shell("task", "list", "--where", "stat:queued", "-o", "json")
    assert result.code == 2
    assert (result.error["code"], result.error["field"]) == ("filter.key.unknown", "--where")
    assert "did you mean state?" in result.error["remedy"]
    wrong = shell("execution", "list", "--since", "noon", "-o", "json")
    assert (wrong.error["code"], wrong.error["field"]) == ("filter.value.invalid", "--since")


def test_every_filtered_list_has_a_count(shell: Shell) -> None:
    for words in ("execution", "task", "activity", "dead-letter", "batch", "audit", "once"):
        assert shell(words, "list", "--count").out == "0\n", words
        assert shell(words, "list", "--where", "id:01", "--count").out == "0\n", words


def test_search_and_history_commands_print_what_they_found(shell: Shell) -> None:
    shell("queue", "pause", "mail", "--reason", "server down")
    (hit,) = shell("search", "mai", "-o", "json").json
    assert (hit["kind"], hit["name"]) == ("queue", "mail")
    assert shell("search", "nothing").err == "no matching objects\n"
    (entry,) = shell("history", "queue:mail", "-o", "json").json
    assert (entry["action"], entry["reason"]) == ("queue.pause", "server down")
    assert shell("history", "mail", "-o", "json").error["code"] == "history.target.invalid"
