"""The page of figures is what the saved results give: nobody typed a figure, and no plot is older than its numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from benchmarks import page, plots
from benchmarks.goals import GOALS, ITSELF, Goal

RESULTS = page.results()


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


def test_words_in_a_plot_cannot_break_it() -> None:
    made = plots.bars("a < b & c", [("x", [plots.Bar("<script>", 1.0)])], "c")
    assert "<script>" not in made
    ElementTree.fromstring(made)
