"""``tenuto event`` and ``tenuto approval`` with a real worker: send, list, wait, approve and link."""

from __future__ import annotations

from tests.cli.conftest import Shell
from tests.support.waiting import eventually_blocking


def test_event_commands_send_once_and_list(shell: Shell) -> None:
    sent = [shell("event", "send", "paid", "--key", "o-1", "--payload", "[1]", "--id", "evt_1") for _ in range(2)]
    assert [each.code for each in sent] == [0, 0], sent
    assert sent[0].out == sent[1].out
    assert "no task waits for paid: it is kept" in sent[0].err
    refused = shell("event", "send", "paid", "--payload", "2", "--id", "evt_1", "-o", "json")
    assert refused.error["code"] == "event.id.reused"
    (listed,) = shell("event", "list", "--name", "paid", "--kept", "-o", "json").json
    assert (listed["key"], listed["payload"], listed["delivery_count"]) == ("o-1", [1], 0)
    assert shell("event", "waits", "-o", "json").json == []


def test_approval_commands_approve_and_explain(shell: Shell) -> None:
    arguments = '{"message": "Go live?", "approvers": ["ana"], "role": "operator"}'
    added = shell("schedule", "add", "release", "--manual", "--step", f"approval:{arguments} kind=approval")
    assert added.code == 0, added
    shell.start_service("worker", "--name", "w1")
    shell("schedule", "run", "release")
    (pending,) = eventually_blocking(lambda: shell("approval", "list", "--state", "pending", "-o", "json").json)
    id = pending["id"]
    link = shell("approval", "link", id, "--for", "ana")
    assert link.out.startswith("/approve?link=tna_")
    assert "TENUTO_BASE_URL" in link.err
    link = shell("approval", "link", id, "--for", "ana", TENUTO_BASE_URL="https://tenuto.example.org/ops/")
    assert link.out.startswith("https://tenuto.example.org/ops/approve?link=tna_")
    assert "TENUTO_BASE_URL" not in link.err
    assert "Go live?" in shell("approval", "show", id).out
    assert shell("approval", "approve", id, "--reason", "fine").code == 0
    shown = shell("approval", "show", id, "-o", "json").json
    assert (shown["approval"]["state"], shown["decisions"][0]["reason"]) == ("approved", "fine")
    assert shell("approval", "reject", id, "-o", "json").error["code"] == "approval.not_pending"
