"""What a process counts of itself: every attempt once, in the right bucket."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tenuto.errors import Unavailable
from tenuto.ids import new_id
from tenuto.model.tasks import Aside, Outcome, Reason, Settlement, Status, Task
from tenuto.observability.cached_query import Answer
from tenuto.observability.process_metrics import BOUNDS, Counters
from tenuto.observability.prometheus import text

DUE = datetime(2026, 11, 16, 8, tzinfo=UTC)


def attempt(status: Status, reason: Reason | None = None, *, late: float = 0.0, ran: float | None = 1.0) -> Settlement:
    id = new_id()
    task = Task(id, id, 1, id, "job", "bake", "{}", "{}", 1, 0, 0, "default", 0, DUE, "system", None, "x", None, None)
    began = DUE + timedelta(seconds=late)
    if ran is None:  # it never began
        return Settlement(task, Outcome(status, reason, None, began))
    return Settlement(task, Outcome(status, reason, began, began + timedelta(seconds=ran)))


def test_every_outcome_is_counted_once_and_what_came_too_late_apart() -> None:
    counters = Counters()
    batch = [
        attempt(Status.COMPLETED, ran=0.001, late=-0.5),  # the clocks differ a little
        attempt(Status.COMPLETED, ran=0.002, late=0.2),
        attempt(Status.COMPLETED_WITH_WARNING, ran=61),
        attempt(Status.FAILED, Reason.TIMED_OUT, ran=9999, late=9999),
        attempt(Status.CANCELLED, Reason.REQUESTED, ran=None),
    ]
    aside = attempt(Status.COMPLETED)
    aside.outcome.aside, aside.outcome.ended_at = Aside(until=DUE), None
    stale = attempt(Status.FAILED, Reason.ERROR)
    settlements = [*batch, aside, stale]
    notable = counters.finish(settlements, {settlement.task.id for settlement in [*batch, aside]})
    counters.finish([attempt(Status.COMPLETED)], [new_id()])  # as many as there are: nobody looks further

    assert notable == [*batch[2:], aside]
    assert counters.ended == {
        ("completed", ""): 3,
        ("completed_with_warning", ""): 1,
        ("failed", "timed_out"): 1,
        ("cancelled", "requested"): 1,
    }
    assert (counters.batches, counters.stale) == (2, 1)
    assert sum(counters.durations.counts) == 5
    assert counters.durations.counts[BOUNDS.index(0.001)] == 1, "what ends at the bound belongs to it"
    assert counters.durations.counts[BOUNDS.index(0.005)] == 1
    assert counters.durations.counts[BOUNDS.index(300.0)] == 1
    assert counters.durations.counts[-1] == 1
    assert counters.lateness.counts[0] == 3
    assert counters.durations.sum == timedelta(seconds=0.003 + 61 + 9999 + 1)


def test_of_a_large_batch_every_attempt_is_counted_though_not_every_one_is_measured() -> None:
    counters = Counters()
    for size in (99, 100, 101, 377, 500):
        before = sum(counters.durations.counts)
        batch = [attempt(Status.COMPLETED, ran=0.3 if n % 2 else 2.0) for n in range(size)]
        counters.finish(batch, [new_id()] * size)
        assert sum(counters.durations.counts) - before == size
        assert sum(counters.lateness.counts) == sum(counters.durations.counts)
    assert counters.ended == {("completed", ""): 99 + 100 + 101 + 377 + 500}
    assert counters.durations.sum > timedelta(seconds=0.3) * 1177


def test_buckets_are_told_one_upon_the_other() -> None:
    counters = Counters()
    counters.finish([attempt(Status.COMPLETED, ran=span) for span in (0.0005, 0.3, 20_000)], [new_id()] * 3)
    counters.take(0)
    counters.take(3)
    told = text(counters, Answer(None, Unavailable("gone"), 0.0, 0.0)).splitlines()
    assert 'tenuto_attempt_seconds_bucket{le="0.001"} 1.0' in told
    assert 'tenuto_attempt_seconds_bucket{le="0.5"} 2.0' in told
    assert 'tenuto_attempt_seconds_bucket{le="7200"} 2.0' in told
    assert 'tenuto_attempt_seconds_bucket{le="+Inf"} 3.0' in told
    assert "tenuto_attempt_seconds_count 3.0" in told
    assert "tenuto_attempt_seconds_sum 20000.3005" in told
    assert "tenuto_claims_total 1.0" in told
    assert "tenuto_database_up 0.0" in told
