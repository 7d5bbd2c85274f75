"""Value classes: equality, hash and slots of a frozen dataclass; mypy refuses assignments."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

from tenuto_identity.model.value_class import value_class


@value_class
class Point:
    x: int
    y: int = 0


def test_value_class_has_equality_hash_and_slots() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 1)
    assert len({Point(1), Point(1), Point(2)}) == 2
    with pytest.raises(AttributeError):
        Point(1).z = 3  # type: ignore[attr-defined]


@pytest.mark.slow
def test_value_class_is_frozen_for_type_checkers(tmp_path: Path) -> None:
    source = tmp_path / "assigns.py"
    source.write_text('from tenuto_identity.model.objects import Reference\nReference("x").raw = "y"\n')
    found, _, code = api.run([str(source), "--cache-dir", str(tmp_path / "cache"), "--follow-imports=silent"])
    assert code == 1
    assert "read-only" in found
