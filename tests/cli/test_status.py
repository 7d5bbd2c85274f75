"""`tenuto status`: figures, and what needs attention with the command for it."""

from __future__ import annotations

from tests.cli.conftest import Shell


def test_status_of_an_idle_installation(shell: Shell) -> None:
    found = shell("status")
    assert found.code == 0, found.err
    assert found.out.startswith("✓ nothing needs attention\n")
    assert "running" in found.out


def test_status_names_the_command_that_starts_a_missing_worker(shell: Shell) -> None:
    assert shell("run", "last", "--app", "tasks:app").code == 0
    assert shell("queue", "pause", "other", "--reason", "server \x1b[31mdown").code == 0
    found = shell("status")
    assert "Needs attention (2)" in found.out
    assert "no live worker serves queue slow: 1 task waiting" in found.out
    assert "tenuto worker --app MODULE:OBJECT --queues slow" in found.out
    assert "server down" in found.out
    document = shell("status", "-o", "json").json
    assert document["waiting_count"] == 1
    assert [queue["name"] for queue in document["unserved_queues"]] == ["slow"]
