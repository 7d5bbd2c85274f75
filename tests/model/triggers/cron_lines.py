"""Generated cron lines: valid, with every form of field, and not too rare."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


def field(low: int, high: int) -> SearchStrategy[str]:
    numbers = st.integers(low, high)
    spans = st.tuples(numbers, numbers).map(sorted)
    steps = st.integers(1, high - low)
    ranges = spans.map(lambda span: f"{span[0]}-{span[1]}")
    wide = spans.filter(lambda span: span[0] < span[1])
    items = st.one_of(
        numbers.map(str),
        ranges,
        st.tuples(wide, steps).map(lambda given: f"{given[0][0]}-{given[0][1]}/{given[1]}"),
        st.tuples(numbers, steps).map(lambda given: f"{given[0]}/{given[1]}"),
    )
    return st.one_of(
        st.just("*"), steps.map(lambda step: f"*/{step}"), st.lists(items, min_size=1, max_size=4).map(",".join)
    )


def cron_lines() -> SearchStrategy[str]:
    """Days of the month end at 28 and are not combined with a weekday by `and`, so that every line runs soon."""
    days = st.one_of(
        st.tuples(field(1, 28), st.just("*")),
        st.tuples(st.just("*"), field(0, 7)),
        st.tuples(field(1, 28).filter(lambda text: text[0] != "*"), field(0, 7).filter(lambda text: text[0] != "*")),
    )
    parts = st.tuples(field(0, 59), field(0, 23), days, field(1, 12))
    return parts.map(lambda part: f"{part[0]} {part[1]} {part[2][0]} {part[3]} {part[2][1]}")
