"""Schedules in words, and what a change has changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tenuto import Step, cron, every
from tenuto.cli import descriptions
from tenuto.model.policies import Policy, RetryPolicy
from tenuto.model.schedules import Definition, Late, Misfire, Overlap, Plan


def of(*steps: Any, **more: Any) -> Definition:
    return Definition("nightly", cron("0 2 * * *"), Plan.of(steps), **more)


def told(before: Definition, after: Definition) -> dict[str, list[str]]:
    return dict(descriptions.differences(before.to_fields(), after.to_fields()))


A, B, C, D = (Step("job", name) for name in "abcd")


def test_a_step_says_only_what_is_not_as_usual() -> None:
    assert descriptions.step(A.to_fields()) == "a"
    policy = Policy(RetryPolicy(max_retries=5), 300.0, "fail")
    odd = Step("job", "a", {"n": 1}, "other", True, policy, queue="slow", priority=3)
    assert descriptions.step(odd.to_fields()) == (
        'other {"n": 1} (runs a, goes on if it fails, at most 5 min, 5 attempts, on lost: fail, queue slow, priority 3)'
    )
    assert descriptions.step(Step.schedule("Nightly").to_fields()) == "Nightly (schedule)"


def test_a_step_that_is_tried_once_has_one_attempt() -> None:
    for retries in (0, 1):
        once = Step("job", "a", policy=Policy(RetryPolicy(max_retries=retries)))
        assert descriptions.step(once.to_fields()) == "a (1 attempt)"


def test_a_plan_is_drawn_with_a_bracket_around_what_runs_side_by_side() -> None:
    assert descriptions.plan(Plan.of([A, [B, C, D]]).to_fields()) == [
        ("1 ─", "a"),
        ("2 ┬", "b"),
        ("  ├", "c"),
        ("  └", "d"),
    ]


def test_a_step_put_in_before_the_others_is_one_change() -> None:
    assert told(of(A, B, C), of(D, A, B, C)) == {"steps": ["+ ─ d", "  ─ a", "  ─ b"]}


def test_what_differs_stands_under_its_name_in_a_fixed_order() -> None:
    before = of(A)
    after = replace(
        before,
        trigger=every("15m"),
        description="why",
        overlap=Overlap.QUEUE_ONE,
        misfire=Misfire(Late.SKIP, grace_seconds=600),
    )
    assert list(told(before, after).items()) == [
        ("description", ["+ why"]),
        ("when", ["- Every day at 02:00, UTC", "+ Every 15 minutes, UTC"]),
        (
            "overlap",
            [
                "- skip: if it is due while it runs, that run is skipped",
                "+ queue_one: if it is due while it runs, one run waits for the end",
            ],
        ),
        (
            "missed runs",
            [
                "- once: one run stands for all that were missed",
                "+ skip: a run more than 10 min late does not take place",
            ],
        ),
    ]


def test_a_change_the_words_do_not_show_is_shown_as_data() -> None:
    changed = told(of(A), of(replace(A, limit_key="one", limit_max=1)))
    assert changed["steps"] == [
        '- {"kind": "job", "name": "a", "target": "a"}',
        '+ {"kind": "job", "limit_key": "one", "limit_max": 1, "name": "a", "target": "a"}',
    ]


def test_a_trigger_of_a_later_version_is_shown_as_it_is() -> None:
    assert descriptions.trigger({"kind": "moon"}) == '{"kind": "moon"}'


def test_an_instant_is_told_on_the_clock_of_its_zone() -> None:
    instant = datetime(2031, 7, 1, 1, 0, 30, tzinfo=UTC)
    assert descriptions.on_the_wall(instant, "Europe/London") == "Tue 01 Jul 2031 02:00:30 BST"
    assert descriptions.on_the_wall(instant.replace(second=0), "Asia/Kathmandu") == "Tue 01 Jul 2031 06:45 +0545"
