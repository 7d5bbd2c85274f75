"""The performance page, its plots and the figures of the README agree with the saved benchmark results."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page, plots
from benchmarks.contenders.start_counters import Interval, count_most_active
from benchmarks.goals import GOALS, OWN_FIGURE, Goal
from tests.docs.pages import ROOT
from tests.docs.readme_figures import CASES, HEADING, find_errors

RESULTS = page.load_results()
NOT_MEASURED_YET = {
    ("api", "POST /api/v1/tasks"),
    ("bulk", r"drain of .* manifest runs without"),
    ("bulk", r"most active of 10 in a group"),
    ("bulk", r"most active of 50"),
    ("dashboard", "drain beside an unused web service ÷ without one, median"),
    ("dashboard", "server time of execution of 2,000 steps in a group, p95"),
    ("drain", r"one worker, [\d,]+ jobs right after start$"),
    ("drain", r"two workers, [\d,]+ jobs right after start$"),
    ("drain", "one worker, right after start$"),
    ("drain", "two workers, right after start$"),
    ("enqueue", "50 callers$"),
    ("enqueue", "50 callers, p99"),
    ("executions", "single execution p99 ÷ p50"),
    ("growth", "idle `tenuto up`, CPU with the server"),
    ("latency", "pick-up p99 ÷"),
    ("ldap", "LDAP read, nothing stored"),
    ("ldap", r"memory grown by the LDAP import of (100,000|1,000)$"),
}
"""Cases of goals that were added since the last run on a quiet machine: remove them when their figures are saved."""
SINGLE_EXECUTION = "\nA single run of four step groups, p50: 18.2 ms"


def test_performance_page_and_plots_are_up_to_date() -> None:
    generated = page.render_files(RESULTS)
    stale = [path.name for path, text in generated.items() if not path.is_file() or path.read_text() != text]
    assert not stale, "run scripts/bench page"


def test_performance_images_are_all_generated() -> None:
    assert set(page.IMAGES.glob("*.svg")) == {path for path in page.render_files(RESULTS) if path.suffix == ".svg"}


def test_performance_template_has_no_unfilled_placeholder() -> None:
    assert "{{" not in page.render_files(RESULTS)[page.PAGE]
    assert "{{" not in page.render_files({})[page.PAGE]


@pytest.mark.parametrize(
    "path", [path for path in page.render_files(RESULTS) if path.suffix == ".svg"], ids=lambda p: p.name
)
def test_performance_plot_is_valid_svg_with_a_caption(path: Path) -> None:
    root = ElementTree.fromstring(page.render_files(RESULTS)[path])
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "PostgreSQL" in texts[-1]
    assert "cores" in texts[-1]


def test_performance_goals_name_measured_cases() -> None:
    measured = [goal for goal in GOALS if goal.benchmark in RESULTS]
    missing = {(goal.benchmark, goal.case) for goal in measured if goal.reached(RESULTS[goal.benchmark]) is None}
    assert missing == NOT_MEASURED_YET


def test_performance_goals_without_a_figure_name_cases_of_their_benchmarks() -> None:
    names = page.load_case_names()
    unmeasured = [goal for goal in GOALS if (goal.benchmark, goal.case) in NOT_MEASURED_YET]
    unmeasured += [goal for goal in GOALS if goal.benchmark not in RESULTS]
    unknown = {
        (goal.benchmark, goal.case)
        for goal in unmeasured
        if not any(re.match(goal.case, name) for name in names.get(goal.benchmark, ()))
    }
    assert not unknown, "misspelt, or run scripts/bench NAME --quick --names"


def test_benchmark_counts_the_most_active_handlers_of_one_scope() -> None:
    intervals = [Interval(1, 0, 10), Interval(1, 10, 20), Interval(2, 5, 30), Interval(1, 15, 25), Interval(2, 6, 7)]
    assert count_most_active(intervals) == 2
    assert count_most_active([*intervals, Interval(1, 19, 19), Interval(1, 18, 40)]) == 3
    assert count_most_active([]) == 0


def test_performance_goal_reports_whether_it_is_met() -> None:
    case = {"case": "one worker", "tenuto": 100.0, "ratio": {"pgqueuer": 1.5}}
    result = {"results": [case]}
    wanted = Goal("drain", "one worker", "", 1.9, "pgqueuer")
    assert wanted.reached(result) == 1.5
    assert not wanted.is_met(1.5)
    assert Goal("drain", "one worker", "", 1.5, OWN_FIGURE).is_met(1.5)
    assert Goal("drain", "one worker", "", 100.0, at_most=True).is_met(100.0)
    assert Goal("drain", "two workers", "", 1.0).reached(result) is None


def test_readme_figures_equal_the_saved_results() -> None:
    assert find_errors((ROOT / "README.md").read_text(encoding="utf-8"), RESULTS) == []


def test_readme_cases_exist_in_the_benchmarks() -> None:
    measured = {(name, case["case"]) for name, result in RESULTS.items() for case in result["results"]}
    assert {pair for pair in CASES.values() if pair[0] in RESULTS} - measured == set()


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("| jobs a second, one worker process | 14,190 | 2.11 × |", None),
        ("| jobs a second, one worker process | 14,191 | 2.11 × |", "'14,191' is shown, 14,190 was measured"),
        (
            "| jobs a second, one worker process | 14,190 | 2.2 × |",
            "against PgQueuer: '2.2 ×' is shown, 2.1 was measured",
        ),
        ("| jobs a second, one worker process | 14,190 | 2.11 |", "'2.11' has no unit; it should be ×"),
        ("| jobs a second, one worker process | fast | 2.11 × |", "'fast' is not a figure"),
        ("| jobs a second, two worker processes | 19,330 | |", "drain.json has no case 'two workers'"),
        ("| enqueued a second, in bulk | 39,540 | |", "benchmarks/results/enqueue.json does not exist"),
        ("| pick-up of a single job, from commit to start, p50 | 1.8 ms | |", "which must not be quoted"),
        ("| jobs an hour | 14,190 | |", "README.md:5: jobs an hour: no benchmark case has this name"),
        ("\nJobs a second, one worker process: 14,190, which is 2 × PgQueuer and 0.60 × the bare database.", None),
        ("\nJobs a second, one worker process: 14,190, which is 3 × DBOS.", "no ratio of 'one worker' to DBOS"),
        (f"{SINGLE_EXECUTION}, where DBOS takes 4.4 and Celery on Redis 1.9 times as long.", None),
        (
            f"{SINGLE_EXECUTION}, where DBOS takes 4.4 and Celery on Redis 2.9 times as long.",
            "against Celery on Redis: '2.9 ×' is shown, 1.9 was measured",
        ),
        (f"{SINGLE_EXECUTION}, which is 4.4 × DBOS.", "in a form that cannot be checked"),
        ("\nJobs a second, one worker process: 14,190, where DBOS takes 2 times as long.", "in a form that cannot be"),
        ("\nIt is 9 times as fast.", "README.md:6: 'It is 9 times as fast.' has figures in a form that"),
    ],
)
def test_readme_figure_that_deviates_is_reported(row: str, error: str | None) -> None:
    case = {"case": "one worker", "unit": "jobs/s", "tenuto": 14190.0, "ratio": {"pgqueuer": 2.108, "raw": 0.6041}}
    single = {"case": "single execution p50", "unit": "ms", "tenuto": 18.2, "ratio": {"celery": 1.9, "dbos": 4.41}}
    results: dict[str, dict[str, Any]] = {
        "executions": {"environment": {"quick": False}, "results": [single]},
        "drain": {"environment": {"quick": False}, "results": [case]},
        "latency": {"environment": {"quick": True}, "results": []},
    }
    errors = find_errors(
        f"{HEADING}\n\n| | Tenuto | against PgQueuer |\n|---|---|---|\n{row}\n\n## Further 9\n", results
    )
    assert len(errors) == (error is not None)
    assert error is None or error in errors[0]


def test_performance_plot_escapes_its_texts() -> None:
    svg = plots.draw_bars("a < b & c", [("x", [plots.Bar("<script>", 1.0)])], "c")
    assert "<script>" not in svg
    ElementTree.fromstring(svg)
