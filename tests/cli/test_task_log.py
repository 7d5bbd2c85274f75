"""`tenuto task log`: the log of a task, also while it runs."""

from __future__ import annotations

import json

from tests.cli.conftest import Shell


def test_task_log_prints_the_log_of_an_ended_task(shell: Shell) -> None:
    task_id = shell("run", "third_time", "--app", "tasks:app", "-o", "json").json["id"]
    shell.start_service("worker", "--app", "tasks:app").wait_for_line("worker started")
    followed = shell("task", "log", task_id, "--follow")
    assert followed.code == 0, followed.err
    assert "this is attempt 3" in followed.out
    assert shell("task", "log", task_id, "--tail", "1").out.count("\n") == 1
    lines = [json.loads(line) for line in shell("task", "log", task_id, "--follow", "-o", "json").out.splitlines()]
    assert [(line["task_id"], line["attempt"], line["level"], line["text"]) for line in lines] == [
        (task_id, 3, "print", "this is attempt 3")
    ]
    page = shell("task", "log", task_id, "-o", "json").json
    assert page["is_complete"]
    assert "this is attempt 3" in page["text"]


def test_task_log_of_a_running_task_shows_its_lines(shell: Shell) -> None:
    task_id = shell("run", "last", "--app", "tasks:app", "-o", "json").json["id"]
    service = shell.start_service("worker", "--app", "tasks:app", "--queues", "slow", "--grace", "0")
    service.wait_for_line("worker started")
    outputs = [shell("task", "log", task_id).out for _ in range(3)]
    assert any("under way" in output for output in outputs), outputs
    shell("task", "cancel", task_id)
