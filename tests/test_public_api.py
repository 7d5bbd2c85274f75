"""Public API: importable names, lazy imports and type annotations."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tenuto

ROOT = Path(__file__).resolve().parent.parent
HEAVY_MODULES = ("asyncpg", "pydantic", "click", "pydantic_settings", "rich", "uvloop")


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout


@pytest.mark.parametrize("name", tenuto.__all__)
def test_public_name_can_be_imported(name: str) -> None:
    assert getattr(tenuto, name) is not None


def test_public_names_are_sorted_and_unique() -> None:
    assert tenuto.__all__ == sorted(set(tenuto.__all__))


def test_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tenuto.nonsense


def test_package_import_loads_no_heavy_module() -> None:
    loaded = run_python("import sys, tenuto; print(*sorted(sys.modules))").split()
    assert "tenuto" in loaded
    assert [name for name in HEAVY_MODULES if name in loaded] == []


def test_import_of_an_error_class_does_not_load_the_app() -> None:
    loaded = run_python("import sys; from tenuto import TenutoError; print(*sorted(sys.modules))").split()
    assert [name for name in ("asyncpg", "tenuto.app", "tenuto.worker.worker") if name in loaded] == []


@pytest.mark.slow
def test_public_names_can_be_imported_with_a_star() -> None:
    assert run_python("from tenuto import *; print(Tenuto.__name__, Context.__name__)").split() == ["Tenuto", "Context"]


@pytest.mark.slow
def test_public_api_types_pass_mypy_strict() -> None:
    """`tests/typing/api.py` has the accepted uses, and with `type: ignore` the rejected ones."""
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/typing/api.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_package_has_a_py_typed_marker() -> None:
    assert (Path(tenuto.__file__).parent / "py.typed").is_file()
