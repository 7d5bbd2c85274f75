"""Which values of a preview are hidden."""

from __future__ import annotations

import pytest

from tenuto_identity.model.sync.preview_mask import PreviewMask, preview_mask

PIN, TITLE = frozenset({"pin"}), frozenset({"title"})


@pytest.mark.parametrize(
    ("recorded", "live", "has_definitions", "expected"),
    [
        ([], frozenset(), False, PreviewMask(frozenset())),
        ([], frozenset(), True, PreviewMask(frozenset())),
        (["pin"], frozenset(), False, PreviewMask(PIN)),
        (["pin"], TITLE, False, PreviewMask(PIN | TITLE)),  # declared as sensitive since
        (["pin"], frozenset(), True, PreviewMask(PIN, hides_all=True)),
        ([], TITLE, True, PreviewMask(TITLE, hides_all=True)),
        (None, frozenset(), False, PreviewMask(frozenset(), hides_all=True)),
    ],
)
def test_preview_hides_sensitive_attributes_and_with_definitions_all_values(
    recorded: list[str] | None, live: frozenset[str], has_definitions: bool, expected: PreviewMask
) -> None:
    assert preview_mask(recorded, live, has_definitions=has_definitions) == expected
