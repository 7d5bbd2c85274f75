"""Performance goals, each with the case it is about. The page shows whether each is met."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.sizing import PLANNING

OWN_FIGURE = "itself"
PLANNED_IN = "planned on the sizing page"
PLANNED_ENQUEUE_WAL_BYTES = 1_000.0
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
    Goal("drain", "one worker$", "one worker ≥ 2.6 × PgQueuer", 2.6, "pgqueuer"),
    Goal("drain", "one worker$", "one worker ≥ 0.7 × raw", 0.7, "raw"),
    Goal("drain", "two workers$", "two workers ≥ 2.2 × PgQueuer", 2.2, "pgqueuer"),
    Goal("drain", "two workers$", "two workers ≥ 0.65 × raw", 0.65, "raw"),
    Goal("drain", "one worker, right after start$", "one worker, right after start ≥ 2.6 × PgQueuer", 2.6, "pgqueuer"),
    Goal("drain", "one worker, right after start$", "… ≥ 0.7 × raw", 0.7, "raw"),
    Goal(
        "drain", "two workers, right after start$", "two workers, right after start ≥ 2.2 × PgQueuer", 2.2, "pgqueuer"
    ),
    Goal("drain", "two workers, right after start$", "… ≥ 0.65 × raw", 0.65, "raw"),
    Goal(
        "drain",
        r"one worker, [\d,]+ jobs right after start$",
        "one worker, 20,000 right after start ≥ 2.6 × PgQueuer",
        2.6,
        "pgqueuer",
    ),
    Goal("drain", r"one worker, [\d,]+ jobs right after start$", "… ≥ 0.7 × raw", 0.7, "raw"),
    Goal(
        "drain",
        r"two workers, [\d,]+ jobs right after start$",
        "two workers, 20,000 right after start ≥ 2.2 × PgQueuer",
        2.2,
        "pgqueuer",
    ),
    Goal("drain", r"two workers, [\d,]+ jobs right after start$", "… ≥ 0.65 × raw", 0.65, "raw"),
    Goal("enqueue", "bulk", "bulk ≥ 1.4 × PgQueuer", 1.4, "pgqueuer"),
    Goal("enqueue", "bulk", "bulk ≥ 0.6 × raw `COPY`", 0.6, "raw"),
    Goal("enqueue", "one by one", "one by one ≥ 1 × PgQueuer", 1.0, "pgqueuer"),
    Goal("enqueue", "50 callers$", "50 callers in one process ≥ 5 × PgQueuer", 5.0, "pgqueuer"),
    Goal("enqueue", "50 callers, p99", "50 callers: p99 of a call better than PgQueuer's", 1.0, "pgqueuer"),
    Goal("latency", "pick-up p50", "p50 ≤ 3 ms", 3.0, at_most=True),
    Goal("latency", "pick-up p50", "p50 better than PgQueuer's", 1.0, "pgqueuer"),
    Goal("latency", "pick-up p99", "p99 better than PgQueuer's", 1.0, "pgqueuer"),
    Goal("latency", "pick-up p99 ÷", "p99 ≤ 2 × p50 + 2 ms", 1.0, at_most=True),
    Goal("growth", r"(100k|10k) waiting", "many waiting: within 1.3 × of 1k (÷ ≥ 0.77)", FLAT_RATIO, "1k waiting"),
    Goal("growth", r"(1M|20k) waiting", "very many waiting: within 1.3 × (÷ ≥ 0.77)", FLAT_RATIO, "1k waiting"),
    Goal("growth", r"1k waiting, \w+ finished", "a long past: within 1.3 × (÷ ≥ 0.77)", FLAT_RATIO, "1k waiting"),
    Goal("growth", r"1k waiting, old snapshot", "an old snapshot: within 4 × (÷ ≥ 0.25)", 0.25, "1k waiting"),
    Goal("growth", "idle `tenuto up`, CPU$", "idle `tenuto up` ≤ 0.5 % of a core (300 ms/min)", 300.0, at_most=True),
    Goal("growth", "idle `tenuto up`, CPU with the server", "… with the CPU time of the server", 300.0, at_most=True),
    Goal(
        "history",
        "a claim of 100, .* finished",
        "claim with everything: within 1.3 × (÷ ≥ 0.77)",
        FLAT_RATIO,
        OWN_FIGURE,
    ),
    Goal(
        "history", "slowest page .* finished", "pages with everything: within 1.3 × (÷ ≥ 0.77)", FLAT_RATIO, OWN_FIGURE
    ),
    Goal("history", "queries .* finished", "overview with everything: within 1.3 × (÷ ≥ 0.77)", FLAT_RATIO, OWN_FIGURE),
    Goal("history", "end of a month, .* finished", "end of a month, with its files, ≤ 1 s", 1000.0, at_most=True),
    Goal("history", "doctor, .* finished", "doctor with everything ≤ 60 s", 60.0, at_most=True),
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
    Goal("executions", "single execution p99 ÷ p50", "a single one: p99 ≤ 2 × p50", 2.0, at_most=True),
    Goal("executions", "group to group p50", "group to group p50 ≤ 4 ms", 4.0, at_most=True),
    Goal("workflows", "steps, one worker", "≥ 2 × DBOS", 2.0, "dbos"),
    Goal("workflows", "single workflow p50", "a single one better than DBOS'", 1.0, "dbos"),
    Goal("workflows", "single workflow p99 ÷ p50", "a single one: p99 ≤ 2 × p50", 2.0, at_most=True),
    Goal("schedules", r"[\d,]+ due at once", "10,000 at one instant ≤ 10 s", 10.0, at_most=True),
    Goal("schedules", r"100 due among (1,000,000|20,000)", "the due ones among 1,000,000 ≤ 2 ms", 2.0, at_most=True),
    Goal("schedules", "start after it was due p99", "on time: p99 ≤ 250 ms", 250.0, at_most=True),
    Goal("bulk", "bulk of", "typed items ≥ 50,000/s", 50_000.0),
    Goal("bulk", "bulk of", "typed items ≥ 1 × PgQueuer's untyped", 1.0, "pgqueuer"),
    Goal("bulk", r"memory grown by (1,000,000|20,000)", "memory flat: ≤ 20 MB for a million", 20.0, at_most=True),
    Goal(
        "bulk",
        r"drain of .* manifest runs without",
        "runs without a cap: within 10 % of jobs (÷ ≥ 0.9)",
        0.9,
        OWN_FIGURE,
    ),
    Goal("bulk", r"drain of .* 50 active at most", "capped at 50: ≤ 1.3 × uncapped (÷ ≥ 0.77)", FLAT_RATIO, OWN_FIGURE),
    Goal("bulk", r"most active of 50", "capped at 50: never one more", 50.0, at_most=True),
    Goal(
        "bulk", r"most active of 10 in a group", "8 groups capped at 10, 4 workers: never one more", 10.0, at_most=True
    ),
    Goal("manager", "poll with 100 due among (100,000|5,000)", "100 due among 100,000 ≤ 50 ms", 50.0, at_most=True),
    Goal("api", r"POST /api/schedule$", "one-shots ≥ 1,000/s", 1000.0),
    Goal("api", "POST /api/v1/tasks", "tasks from 50 connections ≥ 2,500/s", 2500.0),
    Goal("api", "POST /api/schedule at 500 a second, p99", "p99 at 500 a second ≤ 50 ms", 50.0, at_most=True),
    Goal("api", r"a page with .* p99", "a page of a list among 1,000,000, p99 ≤ 50 ms", 50.0, at_most=True),
    Goal("doctor", r"doctor, [\d,]+ tasks", "1,000,000 tasks and as many records ≤ 60 s", 60.0, at_most=True),
    Goal("dashboard", "slowest list page, p95", "every list page: server time p95 ≤ 30 ms", 30.0, at_most=True),
    Goal("dashboard", "server time of overview, p95", "overview: server time p95 ≤ 60 ms", 60.0, at_most=True),
    Goal(
        "dashboard",
        "server time of execution of 200 steps, p95",
        "an execution of 200 steps: server time p95 ≤ 60 ms",
        60.0,
        at_most=True,
    ),
    Goal("dashboard", "slowest first request", "every page at first: ≤ 150 ms", 150.0, at_most=True),
    Goal(
        "dashboard",
        "server time of timeline, p95",
        "timeline of 500 schedules: server time p95 ≤ 60 ms",
        60.0,
        at_most=True,
    ),
    Goal("dashboard", "timeline of 24h, nothing cached", "timeline, nothing cached ≤ 150 ms", 150.0, at_most=True),
    Goal(
        "dashboard",
        "server time of execution of 2,000 steps in a group, p95",
        "a group of 2,000 steps: server time p95 ≤ 300 ms",
        300.0,
        at_most=True,
    ),
    Goal("dashboard", "first visit, transferred", "first visit ≤ 60 kB", 60.0, at_most=True),
    Goal("dashboard", "first visit, requests", "first visit ≤ 14 requests", 14.0, at_most=True),
    Goal("dashboard", "first visit, DOMContentLoaded", "first visit: DOMContentLoaded ≤ 300 ms", 300.0, at_most=True),
    Goal("dashboard", "first visit, largest", "first visit: largest contentful paint ≤ 500 ms", 500.0, at_most=True),
    Goal("dashboard", "second visit, transferred", "second visit ≤ 15 kB", 15.0, at_most=True),
    Goal("dashboard", "end of a step to the screen", "a step's end on the screen: p95 ≤ 2 s", 2.0, at_most=True),
    Goal("dashboard", "line of a log", "a line of a log on the screen: p95 ≤ 1.5 s", 1.5, at_most=True),
    Goal("dashboard", r"50 live pages while \d+ jobs/s run$", "50 live pages under load ≤ 25 %", 25.0, at_most=True),
    Goal("dashboard", "50 live pages, idle", "50 live pages, idle ≤ 3 % of a core", 3.0, at_most=True),
    Goal("dashboard", r"jobs at \d+/s with \d", "jobs beside 50 live pages: within 5 % (÷ ≥ 0.95)", 0.95, OWN_FIGURE),
    Goal("dashboard", "requests of a hidden tab", "a hidden tab sends no request", 0.0, at_most=True),
    Goal(
        "dashboard",
        "drain beside an unused web service ÷ without one, median",
        "no viewers: drain within 1 % (median of pairs ÷ ≥ 0.99)",
        0.99,
    ),
    Goal("api", r"\d+ streams", "500 streams < 10 % of a core", 10.0, at_most=True),
    Goal(
        "scale",
        r"enqueue, \d+ callers over \d+ processes$",
        "200 enqueuers: ≥ 1.5 × NOTIFY in each statement",
        1.5,
        "NOTIFY in each statement",
    ),
    Goal(
        "scale",
        r"enqueue, \d+ callers over \d+ processes$",
        "200 enqueuers: ≥ 0.8 × without NOTIFY",
        0.8,
        "without NOTIFY",
    ),
    Goal("scale", r"enqueue, \d+ connections through PgBouncer, p99", "PgBouncer: p99 ≤ 1 s", 1000.0, at_most=True),
    Goal("scale", r"enqueue, \d+ connections .* to the server", "PgBouncer: ≤ 20 connections", 20.0, at_most=True),
    Goal("scale", r"\d+ idle workers, statements", "64 idle workers ≤ 200 statements/s", 12_000.0, at_most=True),
    Goal("scale", r"\d+ idle workers, CPU of the database", "64 idle workers ≤ 10 % of a core", 6_000.0, at_most=True),
    *(
        Goal("scale", case, f"{name} as {PLANNED_IN}", bound, at_most=True)
        for case, name, bound in (
            ("cost of a task, WAL to run it", "WAL of a run", PLANNING.wal_bytes - PLANNED_ENQUEUE_WAL_BYTES),
            ("cost of a task, WAL to enqueue it alone", "WAL of an enqueue", PLANNED_ENQUEUE_WAL_BYTES),
            ("cost of a task, disk", "disk of a record", PLANNING.record_bytes),
            (
                "cost of a task, CPU of the database to run it",
                "CPU of the database for a run",
                PLANNING.database_ms / 2,
            ),
            ("cost of a task, CPU of the worker", "CPU of the worker", PLANNING.worker_ms),
            ("connections of a busy worker", "connections of a worker", PLANNING.connections),
        )
    ),
    Goal("ldap", "LDAP export of new", "LDAP export ≥ 0.8 × a script that adds in a loop", 0.8, "script"),
    Goal("ldap", "LDAP read, nothing stored", "LDAP read ≥ 0.8 × a script that reads in pages", 0.8, "script"),
    Goal("ldap", "LDAP full import, all new", "LDAP full import ≥ 0.8 × a script with one flat table", 0.8, "script"),
    Goal("ldap", "LDAP full import, nothing", "LDAP import without changes ≥ 0.8 × the script", 0.8, "script"),
    Goal("ldap", "LDAP confirming import", "LDAP confirming import ≥ 0.8 × the script's import", 0.8, "script"),
    Goal(
        "ldap",
        "LDAP delta import of 500 among 100,000",
        "LDAP delta import flat from 10,000 to 100,000 entries (÷ ≥ 0.8)",
        0.8,
        "LDAP delta import of 500 among 10,000",
    ),
    Goal(
        "ldap",
        r"memory grown by the LDAP import of (100,000|1,000)$",
        "memory of an LDAP import flat from 20,000 to 100,000 (÷ ≥ 0.77)",
        FLAT_RATIO,
        "memory grown by the LDAP import of 20,000",
    ),
    Goal("identity", "import, all new", "import of new people ≥ 10,000/s", 10_000.0),
    Goal("identity", "import, all new", "import of new people ≥ 0.4 × its floor", 0.4, "floor"),
    Goal("identity", "import, nothing changed", "import without changes ≥ 50,000/s", 50_000.0),
    Goal("identity", "import, nothing changed", "import without changes ≥ 0.15 × `csv.reader`", 0.15, "csv.reader"),
    Goal(
        "identity",
        "import, 1 % changed",
        "1 % changed ≥ 0.8 × without changes",
        0.8,
        "import, nothing changed, 100,000",
    ),
    Goal("identity", "full sync, all new", "full sync of new people to two targets ≥ 2,500/s", 2_500.0),
    Goal("identity", "full sync, all new", "full sync of new people ≥ 0.3 × its floor", 0.3, "floor"),
    Goal("identity", "full sync, nothing changed", "full sync without changes ≥ 10,000/s", 10_000.0),
    Goal("identity", r"delta sync of 1,000 among 100,000", "delta sync of 1,000 ≤ 1 s", 1.0, at_most=True),
    Goal(
        "identity",
        r"delta sync of 1,000 among 100,000",
        "delta sync flat from 10,000 to 100,000 people (÷ ≥ 0.8)",
        0.8,
        "delta sync of 1,000 among 10,000",
    ),
    Goal(
        "identity",
        r"memory grown by the import of 100,000",
        "memory of an import flat from 10,000 to 100,000 (÷ ≥ 0.77)",
        FLAT_RATIO,
        "memory grown by the import of 10,000",
    ),
    Goal(
        "identity",
        r"memory grown by the first sync of 100,000",
        "memory of a sync flat from 10,000 to 100,000 (÷ ≥ 0.77)",
        FLAT_RATIO,
        "memory grown by the first sync of 10,000",
    ),
]
