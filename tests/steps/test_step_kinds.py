"""The kinds of steps that come with Tenuto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tenuto import Tenuto
from tenuto.steps import step_kinds


def test_every_kind_is_known_by_its_name_and_takes_its_arguments_by_name(tmp_path: Path) -> None:
    jobs = Tenuto("postgresql://nobody@nowhere.invalid/none", home=tmp_path).jobs
    assert {"executable", "http.call", "log.append", "powershell", "schedule", "sql"} <= jobs.by_kind.keys()
    for kind in step_kinds._HOMES:
        assert kind in jobs.by_kind
        handler = jobs.of(kind, "any")
        assert (handler.name, handler) == (kind, jobs.by_kind[kind])
        assert handler.input_schema()["properties"].keys() == handler.parameters.keys()


def test_what_runs_a_kind_is_not_loaded_before_it_is_needed() -> None:
    """A command must start quickly."""
    look = "import sys, tenuto; tenuto.Tenuto('postgresql://x@nowhere.invalid/x'); print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout.split()
    assert "tenuto.steps.step_kinds" in loaded
    assert set(step_kinds._HOMES.values()).isdisjoint(loaded)
