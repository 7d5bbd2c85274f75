"""Fixtures of the tests of extensions: the extension that is installed with Tenuto is hidden from them."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from tenuto.extension import registry
from tenuto.extension.registry import find_entry_points


@pytest.fixture(autouse=True)
def _hide_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_others() -> list[EntryPoint]:
        return [each for each in find_entry_points() if each.name != "identity"]

    monkeypatch.setattr(registry, "find_entry_points", find_others)
