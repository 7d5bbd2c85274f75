"""The registration of the built-in step kinds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tenuto import Tenuto
from tenuto.steps import built_in_kinds


def test_every_step_kind_has_a_handler_with_named_arguments(tmp_path: Path) -> None:
    jobs = Tenuto("postgresql://nobody@nowhere.invalid/none", home=tmp_path).jobs
    assert {"executable", "http.call", "log.append", "powershell", "schedule", "sql"} <= jobs.handlers_by_kind.keys()
    for kind in built_in_kinds._MODULES:
        assert kind in jobs.handlers_by_kind
        handler = jobs.get_handler(kind, "any")
        assert (handler.name, handler) == (kind, jobs.handlers_by_kind[kind])
        assert handler.input_schema()["properties"].keys() == handler.parameters.keys()


def test_step_kind_modules_are_imported_lazily() -> None:
    """Commands must start quickly."""
    code = "import sys, tenuto; tenuto.Tenuto('postgresql://x@nowhere.invalid/x'); print(*sys.modules, sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tenuto.steps.built_in_kinds" in loaded
    assert set(built_in_kinds._MODULES.values()).isdisjoint(loaded)
