"""The tour ends with a ledger that balances, however often it is taken in the same folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tenuto import demo


def test_a_tour_in_a_folder_that_was_kept_counts_only_its_own(
    embedded_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, few in {"SMALL": 50, "FLAKY": 5, "HOPELESS": 2, "LONG": 6}.items():
        monkeypatch.setattr(demo, kind, few)
    for _ in range(2):
        assert demo.main(["--json", "--keep", str(embedded_home)]) == 0
        ledger = json.loads(capsys.readouterr().out)
        assert (ledger["submitted"], ledger["done"], ledger["failed"]) == (63, 61, 2)
        assert ledger["killed_workers"] == 1
