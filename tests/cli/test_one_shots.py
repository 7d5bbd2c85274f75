"""`tenuto once`: create, list, show and cancel one-shots."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.cli.conftest import Shell
from tests.support.waiting import eventually_blocking


def test_one_shot_is_created_listed_and_cancelled(shell: Shell) -> None:
    first = shell("once", "add", "double", "--in", "2h", "--payload", '{"n": 4}', "--tag", "order-7", LOGNAME="ana")
    assert (first.code, f"tenuto once show {first.out.strip()}" in first.err) == (0, True)
    second = shell("once", "add", "last", "--at", "2056-05-17T12:00:00+08:00", "-o", "json").json
    assert second["exec_at"] == "2056-05-17T04:00:00+00:00"
    assert [each["id"] for each in shell("once", "list", "-o", "json").json] == [first.out.strip(), second["id"]]
    assert [each["id"] for each in shell("once", "list", "--search", "ORDER", "-o", "json").json] == [first.out.strip()]
    paged = shell("once", "list", "--limit", "1")
    assert f"add --after {first.out.strip()}" in paged.err
    page = shell("once", "list", "--after", first.out.strip(), "-o", "json").json
    assert [each["id"] for each in page] == [second["id"]]
    cancelled = shell("once", "cancel", first.out.strip(), LOGNAME="bo")
    assert (cancelled.code, "cancelled by bo" in cancelled.err) == (0, True)
    assert "has already ended" in shell("once", "cancel", first.out.strip()).err
    shown = shell("once", "show", first.out.strip())
    assert shown.out.startswith(f"⊘ terminated  double  {first.out.strip()}\n")
    assert "cancelled by bo" in shown.out
    assert shell("once", "wipe").code == 2
    wiped = shell("once", "wipe", "--yes", "-o", "json").json
    assert wiped == {"terminated": [second["id"]], "total": 1, "stopping": []}
    assert len(shell("once", "list", "--status", "terminated", "-o", "json").json) == 2


def test_one_shot_is_run_when_due_and_shows_its_history(shell: Shell) -> None:
    shell.environment["TENUTO_WORKER_POLL_SECONDS"] = "60"  # the task must not be found by polling
    worker = shell.start_service("worker")
    worker.wait_for_line("worker started")
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    done = shell("once", "add", "double", "--at", at.isoformat(), "--payload", '{"n": 4}').out.strip()
    failed = shell("once", "add", "hopeless", "--in", "0s", "--max-attempts", "3").out.strip()

    def ended_statuses() -> dict[str, str] | None:
        statuses = {each["id"]: each["runtime_status"] for each in shell("once", "list", "--ended", "-o", "json").json}
        return statuses if statuses.keys() == {done, failed} else None

    assert eventually_blocking(ended_statuses, 40) == {done: "Completed", failed: "Failed"}
    shown = shell("once", "show", done, "-o", "json").json
    assert [each["event"] for each in shown["history"]] == ["Created", "Scheduled", "Started", "Completed"]
    assert shown["output"] == 8
    assert timedelta(0) <= datetime.fromisoformat(shown["started_at"]) - at < timedelta(seconds=30)
    bad = shell("once", "show", failed)
    assert bad.out.startswith("✕ failed  hopeless")
    assert "\x1b" not in bad.out
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (("double",), "cli.option.conflict", "--at"),
        (("double", "--in", "1h", "--at", "2031-05-17T12:00:00Z"), "cli.option.conflict", "--at"),
        (("double", "--in", "99999999999d"), "one_shot.delay.too_long", "--in"),
        (("double", "--at", "2031-05-17T12:00:00"), "one_shot.exec_at.no_utc_offset", "--at"),
        (("double", "--in", "1h", "--payload", '{"m": 1}'), "job.input.invalid", "--payload, n"),
        (("triple", "--in", "1h"), "one_shot.prompt_type.unknown", "TYPE"),
    ],
)
def test_once_add_rejects_invalid_values(shell: Shell, arguments: tuple[str, ...], code: str, field: str) -> None:
    rejected = shell("once", "add", *arguments, "-o", "json")
    assert (rejected.code, rejected.error["code"], rejected.error["field"]) == (2, code, field)
