"""The bitmap of seen objects behaves like a set of ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tenuto_identity.runs.imports.seen_objects import SeenObjects

RANGES = st.builds(lambda start, count: list(range(start, start + count)), st.integers(0, 90), st.integers(0, 90))
SCATTERED = st.lists(st.integers(0, 200_000), max_size=30)


@given(st.lists(RANGES | SCATTERED, max_size=5), st.integers(0, 200_000))
def test_seen_objects_equal_a_set_of_ids(pages: list[list[int]], other: int) -> None:
    seen, expected = SeenObjects(), set[int]()
    for page in pages:
        seen.add_all(page)
        expected.update(page)
        assert seen.count == len(expected)
    assert all(id in seen for id in expected)
    assert (other in seen) == (other in expected)
    ids = sorted({*expected, *(id + 1 for id in expected), other})
    for asked in (ids, list(range(150)), list(range(8, 200_200, 100))):
        assert seen.without_seen(asked) == [id for id in asked if id not in expected]
        assert seen.among(asked) == [id for id in asked if id in expected]
