"""YAML text of definitions: the parser reads the same values back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tenuto.definitions.document_parser import parse_document
from tenuto.definitions.document_writer import write_yaml

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
AMBIGUOUS = st.sampled_from(
    ["0o7", "1e3", "yes", "off", "null", "~", "012", "1_000", "1:30", "2031-01-01", "<<", "=", "", " a", "a ", "- a",
     "a: b", "# a", "x\ny\n", "x\n y \n", "\ttab", "é\u202e", ".inf", "0x1F", "True"]
)  # fmt: skip
NUMBERS = st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False, width=32)
NAMES = (TEXTS | AMBIGUOUS).filter(lambda name: bool(name.strip()) and name != "<<")
VALUES: Any = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | AMBIGUOUS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_written_values_are_read_back(value: Any) -> None:
    document = {"value": value}
    assert parse_document("x.yaml", write_yaml(document).encode()).value == document


def test_steps_are_written_as_people_write_them() -> None:
    definition = {"name": "nightly", "steps": [{"job": "a"}, [{"job": "b"}, {"job": "c", "input": {"text": "x\ny\n"}}]]}
    assert write_yaml(definition) == (
        "name: nightly\nsteps:\n  - job: a\n  - - job: b\n    - job: c\n      input:\n        text: |\n"
        "          x\n          y\n"
    )
