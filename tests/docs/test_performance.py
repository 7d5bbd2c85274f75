"""The page of figures is what the saved results give: nobody typed a figure, and no plot is older than its numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from benchmarks import page, plots
from benchmarks.goals import GOALS, ITSELF, Goal
from tests.docs.pages import ROOT
from tests.docs.quoted_output import CASES, troubles

RESULTS = page.results()
SINGLE = "\nA single run of four step groups, p50: 18.2 ms"


def test_the_page_and_its_plots_are_what_the_results_give() -> None:
    made = page.pages(RESULTS)
    stale = [path.name for path, text in made.items() if not path.is_file() or path.read_text() != text]
    assert not stale, "run scripts/bench page"


def test_every_image_there_is_made_of_the_results() -> None:
    assert set(page.IMAGES.glob("*.svg")) == {path for path in page.pages(RESULTS) if path.suffix == ".svg"}


def test_every_place_in_the_template_is_filled() -> None:
    assert "{{" not in page.pages(RESULTS)[page.PAGE]
    assert "{{" not in page.pages({})[page.PAGE]


@pytest.mark.parametrize("path", [path for path in page.pages(RESULTS) if path.suffix == ".svg"], ids=lambda p: p.name)
def test_every_plot_is_sound_svg_with_a_caption(path: Path) -> None:
    root = ElementTree.fromstring(page.pages(RESULTS)[path])
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "PostgreSQL" in texts[-1]
    assert "cores" in texts[-1]


def test_every_goal_is_about_a_case_that_is_measured() -> None:
    measured = [goal for goal in GOALS if goal.benchmark in RESULTS]
    assert not [goal.words for goal in measured if goal.reached(RESULTS[goal.benchmark]) is None]


def test_a_goal_that_is_missed_says_so() -> None:
    case = {"case": "one worker", "tenuto": 100.0, "ratio": {"pgqueuer": 1.5}}
    result = {"results": [case]}
    wanted = Goal("drain", "one worker", "", 1.9, "pgqueuer")
    assert wanted.reached(result) == 1.5
    assert not wanted.met(1.5)
    assert Goal("drain", "one worker", "", 1.5, ITSELF).met(1.5)
    assert Goal("drain", "one worker", "", 100.0, at_most=True).met(100.0)
    assert Goal("drain", "two workers", "", 1.0).reached(result) is None


def test_every_figure_of_the_readme_is_what_the_saved_results_give() -> None:
    assert troubles((ROOT / "README.md").read_text(encoding="utf-8"), RESULTS) == []


def test_every_case_the_readme_may_quote_is_one_the_benchmarks_have() -> None:
    measured = {(name, case["case"]) for name, result in RESULTS.items() for case in result["results"]}
    assert {pair for pair in CASES.values() if pair[0] in RESULTS} - measured == set()


@pytest.mark.parametrize(
    ("row", "trouble"),
    [
        ("| jobs a second, one worker process | 14,190 | 2.11 × |", None),
        ("| jobs a second, one worker process | 14,191 | 2.11 × |", "'14,191' is shown, 14,190 was measured"),
        (
            "| jobs a second, one worker process | 14,190 | 2.2 × |",
            "against PgQueuer: '2.2 ×' is shown, 2.1 was measured",
        ),
        ("| jobs a second, one worker process | 14,190 | 2.11 |", "'2.11' is given without its unit, ×"),
        ("| jobs a second, one worker process | fast | 2.11 × |", "'fast' is no figure"),
        ("| jobs a second, two worker processes | 19,330 | |", "drain.json has no case 'two workers'"),
        ("| enqueued a second, in bulk | 39,540 | |", "benchmarks/results/enqueue.json is not there"),
        ("| pick-up of a single job, from commit to start, p50 | 1.8 ms | |", "to try and not to quote"),
        ("| jobs an hour | 14,190 | |", "README.md:5: jobs an hour: no result is known for this line"),
        ("\nJobs a second, one worker process: 14,190, which is 2 × PgQueuer and 0.60 × the bare database.", None),
        ("\nJobs a second, one worker process: 14,190, which is 3 × DBOS.", "no ratio of 'one worker' to DBOS"),
        (f"{SINGLE}, where DBOS takes 4.4 and Celery on Redis 1.9 times as long.", None),
        (
            f"{SINGLE}, where DBOS takes 4.4 and Celery on Redis 2.9 times as long.",
            "against Celery on Redis: '2.9 ×' is shown, 1.9 was measured",
        ),
        (f"{SINGLE}, which is 4.4 × DBOS.", "in a form that cannot be checked"),
        ("\nJobs a second, one worker process: 14,190, where DBOS takes 2 times as long.", "in a form that cannot be"),
        ("\nIt is 9 times as fast.", "README.md:6: 'It is 9 times as fast.' has figures in a form that"),
    ],
)
def test_a_figure_of_the_readme_without_its_result_is_named(row: str, trouble: str | None) -> None:
    case = {"case": "one worker", "unit": "jobs/s", "tenuto": 14190.0, "ratio": {"pgqueuer": 2.108, "raw": 0.6041}}
    single = {"case": "single execution p50", "unit": "ms", "tenuto": 18.2, "ratio": {"celery": 1.9, "dbos": 4.41}}
    results: dict[str, dict[str, Any]] = {
        "executions": {"environment": {"quick": False}, "results": [single]},
        "drain": {"environment": {"quick": False}, "results": [case]},
        "latency": {"environment": {"quick": True}, "results": []},
    }
    said = troubles(f"## Figures\n\n| | Tenuto | against PgQueuer |\n|---|---|---|\n{row}\n\n## Further 9\n", results)
    assert len(said) == (trouble is not None)
    assert trouble is None or trouble in said[0]


def test_words_in_a_plot_cannot_break_it() -> None:
    made = plots.bars("a < b & c", [("x", [plots.Bar("<script>", 1.0)])], "c")
    assert "<script>" not in made
    ElementTree.fromstring(made)
