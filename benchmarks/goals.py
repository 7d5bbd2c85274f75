"""Performance goals, each with the case it is about. The page shows whether each is met."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OWN_FIGURE = "itself"
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """A bound for Tenuto's own figure, or for its ratio to a peer."""

    benchmark: str
    case: str
    """Pattern at the start of the case name; counts in it are smaller in quick runs."""
    description: str
    bound: float
    against: str = ""
    """The peer of the ratio, if the goal is one; ratios must be at least the bound."""
    at_most: bool = False

    def reached(self, result: Result) -> float | None:
        """Return the figure of the run, or None if it was not measured."""
        for case in result["results"]:
            if re.match(self.case, case["case"]):
                found = self._ratio(case["ratio"]) if self.against else case["tenuto"]
                return None if found is None else float(found)
        return None

    def _ratio(self, ratios: Mapping[str, float]) -> float | None:
        return next(iter(ratios.values()), None) if self.against == OWN_FIGURE else ratios.get(self.against)

    def is_met(self, figure: float) -> bool:
        return figure <= self.bound if self.at_most else figure >= self.bound


FLAT_RATIO = 1 / 1.3

GOALS = [
    Goal("drain", "one worker", "one worker ≥ 1.9 × PgQueuer", 1.9, "pgqueuer"),
    Goal("drain", "one worker", "one worker ≥ 0.5 × raw", 0.5, "raw"),
    Goal("drain", "two workers", "two workers ≥ 1.9 × PgQueuer", 1.9, "pgqueuer"),
    Goal("enqueue", "bulk", "bulk ≥ 1.4 × PgQueuer", 1.4, "pgqueuer"),
    Goal("enqueue", "bulk", "bulk ≥ 0.6 × raw `COPY`", 0.6, "raw"),
    Goal("enqueue", "one by one", "one by one ≥ 1 × PgQueuer", 1.0, "pgqueuer"),
    Goal("latency", "pick-up p50", "p50 ≤ 3 ms", 3.0, at_most=True),
    Goal("latency", "pick-up p50", "p50 better than PgQueuer's", 1.0, "pgqueuer"),
    Goal("latency", "pick-up p99", "p99 better than PgQueuer's", 1.0, "pgqueuer"),
    Goal("growth", r"(100k|10k) waiting", "many waiting: within 1.3 × of 1k (÷ ≥ 0.77)", FLAT_RATIO, "1k waiting"),
    Goal("growth", r"(1M|20k) waiting", "very many waiting: within 1.3 × (÷ ≥ 0.77)", FLAT_RATIO, "1k waiting"),
    Goal("growth", r"1k waiting, \w+ finished", "a long past: within 1.3 × (÷ ≥ 0.77)", FLAT_RATIO, "1k waiting"),
    Goal("growth", r"1k waiting, old snapshot", "an old snapshot: within 4 × (÷ ≥ 0.25)", 0.25, "1k waiting"),
    Goal("executions", "executions, one worker", "≥ 5 × Celery", 5.0, "celery"),
    Goal("executions", "executions, one worker", "≥ 5 × DBOS", 5.0, "dbos"),
    Goal(
        "executions",
        "single execution p50",
        "a single one ≤ a quarter of Celery's, waited for by `get`, as its manual shows (÷ ≥ 4)",
        4.0,
        "celery-get",
    ),
    Goal("executions", "single execution p50", "… waited for result by result, without polling (÷ ≥ 4)", 4.0, "celery"),
    Goal("executions", "single execution p50", "a single one ≤ a quarter of DBOS' (÷ ≥ 4)", 4.0, "dbos"),
    Goal("executions", "group to group p50", "group to group p50 ≤ 4 ms", 4.0, at_most=True),
    Goal("schedules", r"[\d,]+ due at once", "10,000 at one instant ≤ 10 s", 10.0, at_most=True),
    Goal("schedules", r"100 due among (1,000,000|20,000)", "the due ones among 1,000,000 ≤ 2 ms", 2.0, at_most=True),
    Goal("schedules", "start after it was due p99", "on time: p99 ≤ 250 ms", 250.0, at_most=True),
    Goal("bulk", "bulk of", "typed items ≥ 50,000/s", 50_000.0),
    Goal("bulk", "bulk of", "typed items ≥ 1 × PgQueuer's untyped", 1.0, "pgqueuer"),
    Goal("bulk", r"memory grown by (1,000,000|20,000)", "memory flat: ≤ 20 MB for a million", 20.0, at_most=True),
    Goal("bulk", r"drain of .* 50 active at most", "capped at 50: ≤ 1.3 × uncapped (÷ ≥ 0.77)", FLAT_RATIO, OWN_FIGURE),
    Goal("manager", "poll with 100 due among (100,000|5,000)", "100 due among 100,000 ≤ 50 ms", 50.0, at_most=True),
    Goal("api", r"POST /api/schedule$", "one-shots ≥ 1,000/s", 1000.0),
    Goal("api", "POST /api/schedule at 500 a second, p99", "p99 at 500 a second ≤ 50 ms", 50.0, at_most=True),
    Goal("api", r"a page with .* p99", "a page of a list among 1,000,000, p99 ≤ 50 ms", 50.0, at_most=True),
    Goal("doctor", r"doctor, [\d,]+ tasks", "1,000,000 tasks and as many records ≤ 60 s", 60.0, at_most=True),
    Goal("api", r"\d+ streams", "500 streams < 10 % of a core", 10.0, at_most=True),
]
