"""The figures in the words of Prometheus: what each is called, what it means, and the text a scraper reads.

Two sorts: what the services of *this process* have done (`observability.process_metrics`), and what the database tells of the *whole
installation* (`store.reports.metrics`), which every web service tells alike. Names and meanings stand in one table here; the
reference is made from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from tenuto.clock import steady
from tenuto.observability.cached_query import Answer
from tenuto.observability.process_metrics import BOUNDS, Counters, Spread
from tenuto.store.reports.metrics import LATELY, Gathered
from tenuto.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


_LATELY = f"in the last {LATELY.total_seconds():.0f} s"

OF_THIS_PROCESS = (
    Metric("tenuto_build_info", "gauge", "Always 1; the label tells the version.", ("version",)),
    Metric("tenuto_claims_total", "counter", "How often the worker of this process took tasks: a batch each time."),
    Metric("tenuto_claimed_tasks_total", "counter", "Tasks it has taken."),
    Metric("tenuto_outcome_batches_total", "counter", "Batches of outcomes written here; each is one commit."),
    Metric("tenuto_attempts_ended_total", "counter", "Attempts that ended here.", ("status", "reason")),
    Metric("tenuto_outcomes_stale_total", "counter", "Outcomes that came too late: the lease had been lost by then."),
    Metric("tenuto_attempt_seconds", "histogram", "How long attempts ran here."),
    Metric("tenuto_start_late_seconds", "histogram", "How long after they were due attempts began here."),
    Metric("tenuto_schedules_fired_total", "counter", "Schedules the scheduler of this process fired."),
)
OF_THE_INSTALLATION = (
    Metric("tenuto_database_up", "gauge", "1 if the database answered; with 0, what follows is missing."),
    Metric("tenuto_gathering_seconds", "gauge", "How long it took to ask the database for what follows."),
    Metric("tenuto_gathered_seconds_ago", "gauge", "How long ago that was."),
    Metric("tenuto_queue_waiting", "gauge", "Tasks of a queue that are due and not yet taken.", ("queue",)),
    Metric(
        "tenuto_queue_oldest_seconds", "gauge", "For how long the first of them to fall due has waited.", ("queue",)
    ),
    Metric("tenuto_tasks", "gauge", "Open tasks by their state.", ("state",)),
    Metric(
        "tenuto_leases", "gauge", "Tasks of a queue held by workers, by whether the lease is live.", ("queue", "lease")
    ),
    Metric("tenuto_executions_in_progress", "gauge", "Runs of schedules that have not ended."),
    Metric("tenuto_executions_paused", "gauge", "How many of them are paused."),
    Metric("tenuto_dead_letters_open", "gauge", "Dead letters that wait for somebody."),
    Metric("tenuto_due", "gauge", "Schedules and manifests that are due and have not been fired yet.", ("what",)),
    Metric("tenuto_due_late_seconds", "gauge", "How late the first of them is.", ("what",)),
    Metric("tenuto_services", "gauge", "Services in the register, by whether they are heard of.", ("service", "state")),
    Metric("tenuto_slots", "gauge", "Slots of all workers that are alive and take work."),
    Metric("tenuto_repairs_total", "counter", "How often a net found something; in normal operation never.", ("net",)),
    Metric("tenuto_recent_attempts", "gauge", f"Attempts that ended {_LATELY}.", ("status", "reason")),
    Metric("tenuto_recent_run_seconds", "gauge", f"How long attempts that ended {_LATELY} ran, all together."),
    Metric("tenuto_recent_longest_seconds", "gauge", f"How long the longest attempt that ended {_LATELY} ran."),
    Metric("tenuto_recent_latest_seconds", "gauge", f"How late the latest start of those that ended {_LATELY} was."),
)

Value = tuple[tuple[str, ...], float]


def text(counters: Counters, answer: Answer[Gathered]) -> str:
    """What a scraper reads."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(counters, answer))
    return generate_latest(registry).decode("utf-8")


class _Collector:
    """All figures, once."""

    def __init__(self, counters: Counters, answer: Answer[Gathered]) -> None:
        self._counters = counters
        self._answer = answer

    def describe(self) -> Iterable[Family]:
        return ()

    def collect(self) -> Iterator[Family]:
        spreads = {
            "tenuto_attempt_seconds": self._counters.durations,
            "tenuto_start_late_seconds": self._counters.lateness,
        }
        values = dict(_of_process(self._counters)) | dict(_of_installation(self._answer))
        for metric in OF_THIS_PROCESS + OF_THE_INSTALLATION:
            if metric.kind == "histogram":
                yield _histogram(metric, spreads[metric.name])
            elif metric.name in values:
                yield _family(metric, values[metric.name])


def _of_process(counters: Counters) -> Iterator[tuple[str, list[Value]]]:
    yield "tenuto_build_info", [((__version__,), 1)]
    yield "tenuto_claims_total", [((), counters.takes)]
    yield "tenuto_claimed_tasks_total", [((), counters.taken)]
    yield "tenuto_outcome_batches_total", [((), counters.batches)]
    yield "tenuto_attempts_ended_total", [(words, number) for words, number in sorted(counters.ended.copy().items())]
    yield "tenuto_outcomes_stale_total", [((), counters.stale)]
    yield "tenuto_schedules_fired_total", [((), counters.fired)]


def _of_installation(answer: Answer[Gathered]) -> Iterator[tuple[str, list[Value]]]:
    found = answer.value
    yield "tenuto_database_up", [((), 0 if found is None else 1)]
    if found is None:
        return
    yield "tenuto_gathering_seconds", [((), answer.seconds)]
    yield "tenuto_gathered_seconds_ago", [((), steady() - answer.at)]
    yield "tenuto_queue_waiting", [((row["queue"],), row["waiting"]) for row in found.waiting]
    yield "tenuto_queue_oldest_seconds", [((row["queue"],), row["oldest_seconds"]) for row in found.waiting]
    states = {
        "waiting": found.held_back,
        "scheduled": found.scheduled,
        "queued": sum(row["waiting"] for row in found.waiting),
        "running": sum(row["live"] + row["overdue"] for row in found.running),
    }
    yield "tenuto_tasks", [((state,), number) for state, number in states.items()]
    yield "tenuto_leases", [((row["queue"], word), row[word]) for row in found.running for word in ("live", "overdue")]
    yield "tenuto_executions_in_progress", [((), found.executions["in_progress"])]
    yield "tenuto_executions_paused", [((), found.executions["paused"])]
    yield "tenuto_dead_letters_open", [((), found.letters)]
    yield "tenuto_due", [((row["what"],), row["due"]) for row in found.due]
    yield "tenuto_due_late_seconds", [((row["what"],), row["late_seconds"]) for row in found.due]
    yield (
        "tenuto_services",
        [((row["service"], word), row[word]) for row in found.services for word in ("alive", "silent")],
    )
    yield "tenuto_slots", [((), sum(row["slots"] for row in found.services))]
    yield "tenuto_repairs_total", [((row["net"],), row["count"]) for row in found.repairs]
    yield "tenuto_recent_attempts", [((row["status"], row["reason"]), row["attempts"]) for row in found.lately]
    yield "tenuto_recent_run_seconds", [((), sum(row["run_seconds"] for row in found.lately))]
    yield "tenuto_recent_longest_seconds", [((), max((row["longest_seconds"] for row in found.lately), default=0))]
    yield "tenuto_recent_latest_seconds", [((), max((row["latest_seconds"] for row in found.lately), default=0))]


def _family(metric: Metric, values: list[Value]) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, float(value))
    return family


def _histogram(metric: Metric, spread: Spread) -> Family:
    from prometheus_client.core import HistogramMetricFamily

    upto = list(accumulate(spread.counts))
    names = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    buckets = [(name, float(number)) for name, number in zip(names, upto, strict=True)]
    family = HistogramMetricFamily(metric.name, metric.help)
    family.add_metric((), buckets, sum_value=spread.sum.total_seconds())
    return family
