"""Audit entries of commands: every change is recorded once, with its action and the user."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.audit.sealer import AuditSealer
from tenuto.cli import command_tree
from tenuto.model.access.actors import Role
from tenuto.store.access.audit_log import AuditEntryRecord
from tests.cli.conftest import TASKS
from tests.docs.generate import commands
from tests.support.waiting import eventually

READ_ONLY_COMMANDS = {
    "", "backup", "plan", "simulate", "status", "health", "doctor", "version", "completion", "worker list",
    "schedule", "schedule list", "schedule show", "schedule explain", "series",
    "schedule next", "schedule history", "schedule ledger", "execution", "execution list", "execution show",
    "execution watch", "cron", "cron explain", "manifest", "manifest list", "manifest show", "manifest history",
    "manifest polls", "manifest groups", "batch", "batch list", "batch watch", "batch show", "batch items",
    "dead-letter", "dead-letter list", "dead-letter show", "job", "job list", "once", "once list", "once show", "task",
    "task list", "task show", "task why", "execution why", "schedule why",
    "manifest why", "event", "event list", "event waits", "approval", "approval list", "approval show",
    "activity", "activity list", "activity show", "log", "log list", "log show",
    "queue", "queue list", "key", "key list", "invitation", "invitation list", "session", "session list",
    "audit", "audit list", "audit verify", "audit export", "secret",
    "secret list", "history", "operation", "operation items", "operation list", "operation show", "operation watch",
    "search", "task log", "import", "import crontab", "import celery-beat", "import apscheduler",
    "import airflow-dag",
}  # fmt: skip
"""Commands that change nothing."""
COMMANDS_TESTED_BY_OPERATION = {
    "session end",
    "operation abort",
    "operation start",
    "task retry",
    "worker drain",
    "worker resume",
}
"""They need a failed task, an unfinished operation or a live worker: `tests/audit/test_operation_records.py` checks the
entries of their operations."""
SERVICE_COMMANDS = {"up", "dev", "worker", "scheduler", "web", "migrate", "restore"}
"""Services have no user, `migrate` runs before there is an audit log, `restore` is in `test_backups.py`."""
PLAN = """
schedules: [{name: weekly, every: 7d, steps: [{job: third_time}]}]
"""
APPROVALS = """
schedules:
  - name: release
    trigger: {kind: manual}
    overlap: allow
    steps:
      - kind: approval
        name: go live
        arguments: {message: "Deploy?", approvers: [ana, eve]}
"""

Run = Callable[..., Any]


@pytest.fixture
def tenuto(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Function that runs a command in this process, for speed, and returns its JSON output."""
    (tmp_path / "on_record_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = {
        "TENUTO_DATABASE": url, "TENUTO_HOME": str(tmp_path / "home"), "TENUTO_APP": "on_record_tasks:app",
        "LOGNAME": "eve", "TENUTO_MASTER_KEY": base64.b64encode(b"k" * 32).decode(),
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, stdin: str = "", code: int = 0) -> Any:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        out = io.StringIO()
        with redirect_stdout(out):
            assert command_tree.run([*arguments, "-o", "json"]) == code, arguments
        return json.loads(out.getvalue()) if out.getvalue().strip() else None

    yield run
    sys.modules.pop("on_record_tasks", None)


def list_audit_entries(url: str, home: Path) -> list[tuple[str, str | None]]:
    async def ask() -> list[tuple[str, str | None]]:
        async with Tenuto(url, home=home) as app:
            found = await app.audit.list(limit=200)
            assert {(entry.actor_type, entry.actor_id, entry.source) for entry in found} <= {("user", "eve", "cli")}
            return [(entry.action, entry.target) for entry in reversed(found)]

    return asyncio.run(ask())


def run_batch(url: str, home: Path, batch: str) -> None:
    async def work() -> None:
        import on_record_tasks  # type: ignore[import-not-found]

        app: Tenuto = on_record_tasks.app
        async with app.worker(slots=5, poll_seconds=0.1, grace_seconds=0):
            await app.batches.wait(await app.batches.find(batch), 20)
        await app.close()

    asyncio.run(work())


def request_approval(url: str, home: Path) -> str:
    """Run a worker until a step waits for an approval, and return the id of the approval."""

    async def work() -> str:
        import on_record_tasks

        app: Tenuto = on_record_tasks.app

        async def find() -> str | None:
            found = await app.approvals.pending()
            return str(found[0].id) if found and (await app.task(found[0].id)).state == "scheduled" else None

        async with app.worker(slots=5, poll_seconds=0.1, grace_seconds=0):
            id: str = await eventually(find)
        await app.close()
        return id

    return asyncio.run(work())


def test_every_command_is_classified_as_changing_or_read_only() -> None:
    changing = {" ".join(arguments) for arguments in CHANGING_COMMANDS}
    unclassified = set(commands()) - READ_ONLY_COMMANDS - SERVICE_COMMANDS - COMMANDS_TESTED_BY_OPERATION - changing
    assert not unclassified, f"add them to READ_ONLY_COMMANDS, or to the test below: {unclassified}"


CHANGING_COMMANDS = {
    ("schedule", "add"): "schedule.create",
    ("schedule", "edit"): "schedule.change",
    ("schedule", "enable"): "schedule.enable",
    ("schedule", "disable"): "schedule.disable",
    ("schedule", "delete"): "schedule.delete",
    ("schedule", "run"): "schedule.run",
    ("schedule", "backfill"): "schedule.backfill",
    ("operation", "pause"): "operation.pause",
    ("operation", "resume"): "operation.resume",
    ("execution", "pause"): "execution.pause",
    ("execution", "resume"): "execution.resume",
    ("execution", "cancel"): "execution.cancel",
    ("execution", "retry"): "execution.retry",
    ("apply",): "plan.apply",
    ("run",): "task.create",
    ("task", "cancel"): "task.cancel",
    ("manifest", "add"): "manifest.create",
    ("manifest", "edit"): "manifest.change",
    ("manifest", "enable"): "manifest.enable",
    ("manifest", "disable"): "manifest.disable",
    ("manifest", "delete"): "manifest.delete",
    ("manifest", "run"): "manifest.run",
    ("manifest", "group"): "manifest_group.change",
    ("batch", "submit"): "manifest.bulk",
    ("batch", "pause"): "batch.pause",
    ("batch", "resume"): "batch.resume",
    ("batch", "cancel"): "batch.cancel",
    ("batch", "retry-failed"): "batch.retry",
    ("dead-letter", "retry"): "dead_letter.retry",
    ("dead-letter", "acknowledge"): "dead_letter.acknowledge",
    ("once", "add"): "one_shot.create",
    ("once", "cancel"): "one_shot.cancel",
    ("once", "wipe"): "one_shot.wipe",
    ("log", "append"): "log.append",
    ("event", "send"): "event.send",
    ("approval", "approve"): "approval.approve",
    ("approval", "reject"): "approval.reject",
    ("approval", "link"): "approval.link",
    ("queue", "limit"): "queue.limit",
    ("queue", "rate"): "queue.limit",
    ("queue", "pause"): "queue.pause",
    ("queue", "resume"): "queue.resume",
    ("key", "add"): "key.create",
    ("key", "rotate"): "key.rotate",
    ("invitation", "create"): "invitation.create",
    ("invitation", "revoke"): "invitation.revoke",
    ("key", "revoke"): "key.revoke",
    ("login",): "key.link",
    ("secret", "set"): "secret.set",
    ("secret", "delete"): "secret.delete",
    ("secret", "rotate"): "secret.rotate",
}
"""By command: the action in its audit entry."""


def test_every_changing_command_has_one_audit_entry_with_its_action(
    tenuto: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    expected: list[tuple[str, str | None]] = []

    def change(*arguments: str, target: str | None, stdin: str = "") -> Any:
        """Run a changing command and expect one audit entry with its action."""
        name = next(arguments[:n] for n in (2, 1) if arguments[:n] in CHANGING_COMMANDS)
        expected.append((CHANGING_COMMANDS[name], target))
        return tenuto(*arguments, stdin=stdin)

    change("schedule", "add", "nightly", "--at", "03:00", "--step", 'double:{"n": 1}', target="nightly")
    change("schedule", "edit", "nightly", "--at", "04:00", "--reason", "too early", target="nightly")
    tenuto("schedule", "enable", "nightly")  # already enabled: no entry
    change("schedule", "disable", "nightly", target="nightly")
    change("schedule", "enable", "nightly", target="nightly")
    ran = change("schedule", "run", "nightly", target="nightly")
    execution = ran["execution_id"]
    change("execution", "pause", execution, target=execution)
    change("execution", "resume", execution, target=execution)
    tenuto("execution", "resume", execution, code=7)  # rejected: no entry
    change("execution", "cancel", execution, target=execution)
    again = change("execution", "retry", execution, target=execution)["id"]
    change("execution", "cancel", again, target=again)
    backfill = change("schedule", "backfill", "nightly", "--from", "2025-01-01", "--to", "2025-01-31", target="nightly")
    change("operation", "pause", backfill["id"], target=backfill["id"])
    tenuto("operation", "pause", backfill["id"])  # already paused: no entry
    change("operation", "resume", backfill["id"], target=backfill["id"])
    (tmp_path / "plan.yaml").write_text(PLAN)
    change("apply", "plan.yaml", "--yes", target="weekly")
    tenuto("apply", "plan.yaml", "--yes")  # unchanged: no entry
    change("schedule", "delete", "nightly", target="nightly")
    task = change("run", "double", "--input", '{"n": 1}', target="double")
    change("task", "cancel", task["id"], target=task["id"])

    change("manifest", "add", "bad", "--job", "hopeless", "--on-demand", target="bad")
    change("manifest", "edit", "bad", "--priority", "3", target="bad")
    change("manifest", "disable", "bad", target="bad")
    change("manifest", "enable", "bad", target="bad")
    change("manifest", "group", "reports", "--max-active", "3", target="reports")
    (tmp_path / "rows.jsonl").write_text("{}\n{}\n{}\n")
    change("batch", "submit", "bad", "--from", "rows.jsonl", "--batch-key", "b", target="bad")
    batch = tenuto("batch", "show", "b")["id"]
    change("batch", "pause", batch, target=batch)
    change("batch", "resume", batch, target=batch)
    run_batch(url, home, "b")
    first, second, _ = (dead_letter["id"] for dead_letter in tenuto("dead-letter", "list"))
    expected.append(("dead_letter.acknowledge", first))  # two dead letters are two entries
    change("dead-letter", "acknowledge", first, second, target=second)
    change("batch", "retry-failed", batch, target=batch)
    change("batch", "cancel", batch, target=batch)
    ran = change("manifest", "run", "bad", target="bad")
    task_id = tenuto("task", "list")[0]["id"]
    change("task", "cancel", task_id, target=task_id)
    change("batch", "submit", "bad", "--from", "rows.jsonl", "--batch-key", "c", target="bad")
    run_batch(url, home, "c")
    dead_letter = tenuto("dead-letter", "list")[0]["id"]
    change("dead-letter", "retry", dead_letter, "--note", "once more", target=dead_letter)
    tenuto("manifest", "delete", "bad", code=7)  # it has open tasks
    change("manifest", "add", "good", "--job", "double", "--on-demand", "--set", "n=1", target="good")
    change("manifest", "delete", "good", target="good")

    change("event", "send", "invoice.paid", "--key", "order-17", "--id", "delivery-1", target="invoice.paid")
    tenuto("event", "send", "invoice.paid", "--key", "order-17", "--id", "delivery-1")  # sent before: no entry
    (tmp_path / "approvals.yaml").write_text(APPROVALS)
    change("apply", "approvals.yaml", "--yes", target="release")
    change("schedule", "run", "release", target="release")
    approval = request_approval(url, home)
    change("approval", "link", approval, "--for", "ana", target=approval)
    tenuto("approval", "link", approval, "--for", "ben", code=2)  # not an approver: no entry
    change("approval", "approve", approval, "--reason", "tested", target=approval)
    tenuto("approval", "approve", approval)  # repeated: no entry
    tenuto("approval", "reject", approval, code=7)  # decided: no entry
    change("schedule", "run", "release", target="release")
    approval = request_approval(url, home)
    change("approval", "reject", approval, target=approval)

    change("queue", "limit", "mail", "5", target="mail")
    change("queue", "rate", "mail", "100/m", target="mail")
    change("queue", "pause", "mail", "--reason", "server is down", target="mail")
    change("queue", "resume", "mail", target="mail")
    tenuto("queue", "limit", "mail", "0", code=2)
    made = change("key", "add", "ci", "--role", "editor", target="ci")
    change("login", "--key", "ci", target="ci")
    change("key", "rotate", "ci", target="ci")
    change("key", "revoke", "ci", target="ci")
    change("invitation", "create", "ana", "--role", "operator", target="ana")
    change("invitation", "revoke", "ana", target="ana")
    tenuto("key", "revoke", made["prefix"])  # already revoked: no entry

    change("secret", "set", "hr-password", stdin="open sesame", target="hr-password")
    tenuto("secret", "rotate")  # already under this key: no entry
    keys = [base64.b64encode(letter * 32).decode() for letter in (b"n", b"k")]
    monkeypatch.setenv("TENUTO_MASTER_KEY", " ".join(keys))
    sys.modules.pop("on_record_tasks")  # it has loaded its settings
    change("secret", "rotate", target=None)
    change("secret", "delete", "hr-password", target="hr-password")
    change("log", "append", "orders", "stock counted", target="orders")
    once = change("once", "add", "log.append", "--in", "2h", "--payload", '{"message": "hi"}', target=None)["id"]
    expected[-1] = ("one_shot.create", once)
    change("once", "cancel", once, target=once)
    tenuto("once", "add", "log.append", "--in", "2h", "--payload", "{}", code=2)
    other = change("once", "add", "log.append", "--in", "2h", "--payload", '{"message": "hi"}', target=None)["id"]
    expected[-1] = ("one_shot.create", other)
    change("once", "wipe", "--yes", target=None)

    assert list_audit_entries(url, home) == expected
    by_target: dict[tuple[str, str | None], AuditEntryRecord] = {}

    async def read_entries() -> None:
        async with Tenuto(url, home=home) as app:
            for entry in await app.audit.list(limit=200):
                by_target.setdefault((entry.action, entry.target), entry)
            assert made["key"] not in json.dumps(await app.audit.list(limit=200), default=str)

    asyncio.run(read_entries())
    edited = by_target["schedule.change", "nightly"]
    assert edited.reason == "too early"
    assert edited.before["trigger"] != edited.after["trigger"]
    assert by_target["schedule.delete", "nightly"].after is None
    assert by_target["manifest_group.change", "reports"].after["max_active"] == 3
    assert by_target["queue.pause", "mail"].reason == "server is down"
    assert by_target["dead_letter.retry", dead_letter].reason == "once more"
    assert by_target["key.create", "ci"].after["role"] == Role.EDITOR.key


def test_audit_log_and_api_keys_are_listed_verified_and_exported(
    tenuto: Run, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = command_tree.run([*arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    assert run("audit", "list") == (0, "", "no audit entries\n")
    assert "no entry is sealed yet" in run("audit", "verify")[2]
    assert "tenuto key add NAME" in run("key", "list")[2]
    code, key, said = run("key", "add", "ci", "--role", "operator", "--expires", "2131-12-31T00:00:00Z")
    assert (code, len(key.strip())) == (0, 56)
    assert "not shown again" in said
    code, link, _ = run("login", "--key", "ci")
    assert (code, link.partition("tnl_")[0]) == (0, "http://127.0.0.1:8321/login?link=")
    code, listed, _ = run("key", "list")
    assert (code, key.strip() in listed) == (0, False)
    assert all(word in listed for word in ("ci", key[4:12], "operator", "valid", "never", "eve"))
    assert "revoked by eve" in run("key", "revoke", key[4:12])[2]
    assert "revoked" in run("key", "list")[1]
    for arguments, field in (
        (("key", "add", "a b"), "name"),
        (("key", "add", "x", "--role", "king"), "role"),
        (("key", "add", "x", "--expires", "soon"), "--expires"),
        (("key", "add", "x", "--expires", "2001-01-01T00:00:00Z"), "expires_at"),
        (("audit", "list", "--since", "soon"), "soon"),
        (("audit", "verify", "--newest", "0"), "newest"),
        (("audit", "export", "nowhere/trail.jsonl"), "file"),
    ):
        code, _, said = run(*arguments)
        assert (code, field in said) == (2, True), arguments
    assert run("login", "--key", "nobody")[0] == 3

    code, listed, _ = run("audit", "list", "--action", "key", "--actor", "eve", "--target", "ci")
    assert (code, *(f"key.{action}" in listed for action in ("create", "revoke", "link"))) == (0, True, True, True)
    assert run("audit", "list", "--action", "nothing")[2] == "no matching audit entries\n"

    async def seal() -> None:
        async with Tenuto(url, home=tmp_path / "home") as app:
            await AuditSealer(await app.open(), app.settings).run_cycle()

    asyncio.run(age_entries(url, tmp_path / "home"))
    code, _, said = run("audit", "verify")
    assert (code, "not sealed yet" in said, "altered" in said) == (6, True, False)
    asyncio.run(seal())
    code, _, said = run("audit", "verify")
    assert (code, "3 of 3 entries verified, sealed with the master key" in said) == (0, True)
    assert "3 entries exported to trail.jsonl" in run("audit", "export", "trail.jsonl")[2]
    out = run("audit", "export", "-")[1]
    assert out == (tmp_path / "trail.jsonl").read_text()
    assert [json.loads(line)["position"] for line in out.splitlines()] == [1, 2, 3]

    async def tamper() -> None:
        async with Tenuto(url, home=tmp_path / "home") as app, (await app.open()).connection() as connection:
            await connection.execute("SET session_replication_role = replica")
            await connection.execute("UPDATE tenuto.audit SET actor_name = 'adam' WHERE action = 'key.link'")

    asyncio.run(tamper())
    code, output, message = run("audit", "verify")
    assert (code, "changed" in output, "was altered" in message) == (1, True, True)
    found = tenuto("audit", "verify", code=1)
    assert [(fault["kind"], fault["position"]) for fault in found["faults"]] == [("changed", 2)]


async def age_entries(url: str, home: Path) -> None:
    """Move the entries so far into the past that a scheduler should have sealed them."""
    async with Tenuto(url, home=home) as app, (await app.open()).connection() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("UPDATE tenuto.audit SET at = at - interval '1 hour'")


def test_login_link_has_the_address_of_the_web_service(
    tenuto: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*arguments: str, code: int = 0) -> str:
        assert command_tree.run(["login", "--key", "ci", *arguments]) == code
        said = capsys.readouterr()
        return said.err if code else said.out.partition("tnl_")[0]

    tenuto("key", "add", "ci")
    assert link("--port", "9000") == "http://127.0.0.1:9000/login?link="
    assert link("--host", "::1", "--port", "9000") == "http://[::1]:9000/login?link="
    monkeypatch.delenv("TENUTO_APP")  # that app has loaded its settings
    monkeypatch.setenv("TENUTO_WEB_PORT", "0")
    assert link("--port", "9001") == "http://127.0.0.1:9001/login?link="
    refused = link(code=2)
    assert "web_port" in refused
    assert "--port NUMBER" in refused
    assert len(tenuto("audit", "list", "--action", "key.link")) == 3, "a rejected login has no entry"
