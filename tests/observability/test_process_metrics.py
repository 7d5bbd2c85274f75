"""Metrics of a process: every attempt is counted once, in the right bucket."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prometheus_client.parser import text_string_to_metric_families

from tenuto.errors import Unavailable
from tenuto.ids import new_id
from tenuto.model.work.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, Settlement, Task
from tenuto.observability.cached_query import QueryResult
from tenuto.observability.metrics_by_name import metrics_by_name
from tenuto.observability.process_metrics import BUCKET_BOUNDS_SECONDS, AttemptSeries, ProcessMetrics
from tenuto.observability.prometheus import render_metrics
from tenuto.store.reports.metrics_by_name import (
    EnabledDefinitions,
    EndedScheduleExecutions,
    FiguresByName,
    JobTasks,
    ManifestFigures,
    OpenScheduleExecutions,
    ScheduleFigures,
)

DUE = datetime(2026, 11, 16, 8, tzinfo=UTC)


def make_settlement(
    status: OutcomeStatus,
    reason: OutcomeReason | None = None,
    *,
    delay_seconds: float = 0.0,
    run_seconds: float | None = 1.0,
    kind: str = "job",
    name: str = "bake",
    queue: str = "default",
) -> Settlement:
    id = new_id()
    task = Task(id, id, 1, id, kind, name, "{}", "{}", 1, 0, 0, queue, 0, DUE, "system", None, "x", None, None)
    started_at = DUE + timedelta(seconds=delay_seconds)
    if run_seconds is None:  # it never started
        return Settlement(task, Outcome(status, reason, None, started_at))
    return Settlement(task, Outcome(status, reason, started_at, started_at + timedelta(seconds=run_seconds)))


def test_process_metrics_count_every_outcome_once_and_stale_ones_separately() -> None:
    counters = ProcessMetrics()
    batch = [
        make_settlement(OutcomeStatus.COMPLETED, run_seconds=0.001, delay_seconds=-0.5),  # clock skew
        make_settlement(OutcomeStatus.COMPLETED, run_seconds=0.002, delay_seconds=0.2),
        make_settlement(OutcomeStatus.COMPLETED_WITH_WARNING, run_seconds=61),
        make_settlement(OutcomeStatus.FAILED, OutcomeReason.TIMED_OUT, run_seconds=9999, delay_seconds=9999),
        make_settlement(OutcomeStatus.CANCELLED, OutcomeReason.REQUESTED, run_seconds=None),
    ]
    deferred = make_settlement(OutcomeStatus.COMPLETED)
    deferred.outcome.deferral, deferred.outcome.ended_at = Deferral(resume_at=DUE), None
    stale = make_settlement(OutcomeStatus.FAILED, OutcomeReason.ERROR)
    settlements = [*batch, deferred, stale]
    notable = counters.record_outcomes(settlements, {settlement.task.id for settlement in [*batch, deferred]})
    counters.record_outcomes(
        [make_settlement(OutcomeStatus.COMPLETED)], [new_id()]
    )  # equal numbers: ids are not compared

    assert notable == [*batch[2:], deferred]
    series = counters.attempts["bake", "default"]
    assert series.ended_counts == {
        ("completed", ""): 3,
        ("completed_with_warning", ""): 1,
        ("failed", "timed_out"): 1,
        ("cancelled", "requested"): 1,
    }
    assert (counters.batch_count, counters.stale_count) == (2, 1)
    assert sum(series.durations.counts) == 5
    assert series.durations.counts[BUCKET_BOUNDS_SECONDS.index(0.001)] == 1, "a bound belongs to its bucket"
    assert series.durations.counts[BUCKET_BOUNDS_SECONDS.index(0.005)] == 1
    assert series.durations.counts[BUCKET_BOUNDS_SECONDS.index(300.0)] == 1
    assert series.durations.counts[-1] == 1
    assert series.start_delays.counts[0] == 3
    assert series.durations.sum == timedelta(seconds=0.003 + 61 + 9999 + 1)


def test_process_metrics_count_all_attempts_of_a_sampled_batch() -> None:
    counters = ProcessMetrics()
    series = counters.attempts["bake", "default"] = AttemptSeries()
    for size in (99, 100, 101, 377, 500):
        before = sum(series.durations.counts)
        batch = [make_settlement(OutcomeStatus.COMPLETED, run_seconds=0.3 if n % 2 else 2.0) for n in range(size)]
        counters.record_outcomes(batch, [new_id()] * size)
        assert sum(series.durations.counts) - before == size
        assert sum(series.start_delays.counts) == sum(series.durations.counts)
    assert series.ended_counts == {("completed", ""): 99 + 100 + 101 + 377 + 500}
    assert series.durations.sum > timedelta(seconds=0.3) * 1177


def test_prometheus_buckets_are_cumulative() -> None:
    counters = ProcessMetrics()
    counters.record_outcomes(
        [make_settlement(OutcomeStatus.COMPLETED, run_seconds=span) for span in (0.0005, 0.3, 20_000)], [new_id()] * 3
    )
    counters.record_claim(0)
    counters.record_claim(3)
    lines = render_metrics(
        counters, QueryResult(None, Unavailable("gone", code="test.error"), 0.0, 0.0), {}
    ).splitlines()
    assert 'tenuto_attempt_seconds_bucket{le="0.001",name="bake",queue="default"} 1.0' in lines
    assert 'tenuto_attempt_seconds_bucket{le="0.5",name="bake",queue="default"} 2.0' in lines
    assert 'tenuto_attempt_seconds_bucket{le="7200",name="bake",queue="default"} 2.0' in lines
    assert 'tenuto_attempt_seconds_bucket{le="+Inf",name="bake",queue="default"} 3.0' in lines
    assert 'tenuto_attempt_seconds_count{name="bake",queue="default"} 3.0' in lines
    assert 'tenuto_attempt_seconds_sum{name="bake",queue="default"} 20000.3005' in lines
    assert "tenuto_claims_total 1.0" in lines
    assert "tenuto_database_up 0.0" in lines


def test_rendered_metrics_escape_labels_and_are_read_back_by_prometheus() -> None:
    counters = ProcessMetrics()
    names = ('a "quoted"\nname', r"back\slash\n")
    series = counters.attempts[names] = AttemptSeries()
    series.ended_counts["failed", "error"] = 3
    series.durations.add([timedelta(seconds=0.3), timedelta(seconds=9999)], 2)
    text = render_metrics(counters, QueryResult(None, Unavailable("no", code="test.error"), 0.0, 0.0), {})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (ended,) = families["tenuto_attempts_ended"].samples
    assert (ended.labels, ended.value) == (
        {"name": names[0], "queue": names[1], "status": "failed", "reason": "error"},
        3,
    )
    durations = families["tenuto_attempt_seconds"]
    assert (durations.type, len(durations.samples)) == ("histogram", len(BUCKET_BOUNDS_SECONDS) + 3)
    by_bound = {sample.labels.get("le"): sample.value for sample in durations.samples if "_bucket" in sample.name}
    assert (by_bound["0.25"], by_bound["0.5"], by_bound["7200"], by_bound["+Inf"]) == (0, 2, 2, 4)
    assert {sample.name: sample.value for sample in durations.samples if "le" not in sample.labels} == {
        "tenuto_attempt_seconds_count": 4,
        "tenuto_attempt_seconds_sum": 2 * 9999.3,
    }


def test_process_metrics_count_names_beyond_the_limit_together() -> None:
    counters = ProcessMetrics(max_names=2)
    names = [("job", "a", "q"), ("http.call", "step of a schedule", "q"), ("job", "b", "q"), ("job", "c", "p")]
    batch = [make_settlement(OutcomeStatus.COMPLETED, kind=kind, name=name, queue=queue) for kind, name, queue in names]
    batch += [make_settlement(OutcomeStatus.COMPLETED, name=f"of tenant {n}", queue=f"{n}") for n in range(7)]
    counters.record_outcomes(batch, {each.task.id for each in batch})
    counters.record_outcomes(batch[:1], {batch[0].task.id})
    counts = {labels: series.ended_counts["completed", ""] for labels, series in counters.attempts.items()}
    assert counts == {("a", "q"): 2, ("http.call", "q"): 1, ("other", "q"): 1, ("other", "p"): 1, ("other", "other"): 7}
    assert sum(sum(series.durations.counts) for series in counters.attempts.values()) == 12
    assert (counters.names.folded_count, counters.queues.folded_count) == (9, 7)
    counters.record_fired(["x", "y", "z", "x", "z"])
    assert counters.fired_counts == {"x": 2, "y": 1, "other": 2}
    text = render_metrics(counters, QueryResult(None, Unavailable("no", code="test.error"), 0.0, 0.0), {})
    assert 'tenuto_metrics_folded{label="name"} 9.0' in text


def test_metrics_by_name_are_limited_and_keep_their_sums() -> None:
    found = FiguresByName(
        tasks=[JobTasks("a", "q", "queued", 9), JobTasks("a", "q", "running", 1)]
        + [JobTasks(f"of tenant {number}", f"{number}", "queued", 1) for number in range(5)],
        schedules=[ScheduleFigures("x", 60.0, "completed", 2.5), ScheduleFigures("new", None, None, None)],
        open=[OpenScheduleExecutions("x", 2), OpenScheduleExecutions("disabled", 1), OpenScheduleExecutions("z", 4)],
        ended=[EndedScheduleExecutions("z", "failed", 3)],
        manifests=[ManifestFigures("m", None)],
        enabled=EnabledDefinitions(schedule_count=7, manifest_count=1),
    )
    values = {metric.name: dict(each) for metric, each in metrics_by_name(found, max_names=2).items()}
    assert values["tenuto_job_tasks"] == {
        ("a", "q", "queued"): 9, ("a", "q", "running"): 1, ("of tenant 0", "0", "queued"): 1,
        ("other", "other", "queued"): 4,
    }  # fmt: skip
    assert values["tenuto_schedule_last_success_age_seconds"] == {("x",): 60.0}
    assert values["tenuto_schedule_last_run_failed"] == {("x",): 0.0}
    assert values["tenuto_schedule_executions_in_progress"] == {("x",): 2, ("other",): 5}
    assert values["tenuto_schedule_recent_executions"] == {("other", "failed"): 3}
    assert values["tenuto_manifest_last_success_age_seconds"] == {}
    assert values["tenuto_definitions_without_metrics"] == {("schedule",): 5, ("manifest",): 0}
