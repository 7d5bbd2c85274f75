"""``tenuto once``, as people type it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.cli.conftest import Shell
from tests.support.waiting import eventually_here


def test_a_one_shot_is_asked_for_found_watched_and_stopped(shell: Shell) -> None:
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
    assert (cancelled.code, "is cancelled, by bo" in cancelled.err) == (0, True)
    assert "has ended already" in shell("once", "cancel", first.out.strip()).err
    shown = shell("once", "show", first.out.strip())
    assert shown.out.startswith(f"⊘ terminated  double  {first.out.strip()}\n")
    assert "cancelled by bo" in shown.out
    assert shell("once", "wipe").code == 2
    wiped = shell("once", "wipe", "--yes", "-o", "json").json
    assert wiped == {"terminated": [second["id"]], "total": 1, "stopping": []}
    assert len(shell("once", "list", "--status", "terminated", "-o", "json").json) == 2


def test_it_is_done_on_time_by_a_worker_and_tells_how_it_went(shell: Shell) -> None:
    shell.environment["TENUTO_WORKER_POLL_SECONDS"] = "60"  # nothing is found by chance, at a look around
    worker = shell.start("worker")
    worker.until("worker ready")
    at = datetime.now(UTC) + timedelta(seconds=1.5)
    done = shell("once", "add", "double", "--at", at.isoformat(), "--payload", '{"n": 4}').out.strip()
    failed = shell("once", "add", "hopeless", "--in", "0s", "--retries", "3").out.strip()

    def ended() -> dict[str, str] | None:
        told = {each["id"]: each["status"] for each in shell("once", "list", "--ended", "-o", "json").json}
        return told if told.keys() == {done, failed} else None

    assert eventually_here(ended, 40) == {done: "Completed", failed: "Failed"}
    story = shell("once", "show", done, "-o", "json").json
    assert [each["event"] for each in story["history"]] == ["Created", "Scheduled", "Started", "Completed"]
    assert story["output"] == 8
    assert timedelta(0) <= datetime.fromisoformat(story["started_at"]) - at < timedelta(seconds=30)
    bad = shell("once", "show", failed)
    assert bad.out.startswith("✕ failed  hopeless")
    assert "\x1b" not in bad.out
    assert worker.stop() == 0


def test_what_cannot_be_asked_for_is_refused_by_name(shell: Shell) -> None:
    complaints = {
        ("double",): "--at: says when",
        ("double", "--in", "99999999999d"): "--in: '99999999999d' is too long",
        ("double", "--at", "2031-05-17T12:00:00"): "--at: '2031-05-17T12:00:00' has no offset",
        ("double", "--in", "1h", "--payload", '{"m": 1}'): "--payload, n: ",
        ("triple", "--in", "1h"): "TYPE: 'triple' is not known here",
    }
    for words, complaint in complaints.items():
        refused = shell("once", "add", *words)
        assert refused.code == 2
        assert complaint in refused.err
