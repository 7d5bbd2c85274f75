"""The public face: every name can be had, importing one loads no more than it needs, and the types are as told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tenuto

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("asyncpg", "pydantic", "typer", "structlog", "psutil", "pydantic_settings", "rich", "uvloop")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout


@pytest.mark.parametrize("name", tenuto.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(tenuto, name) is not None


def test_names_are_listed_in_order_and_once() -> None:
    assert tenuto.__all__ == sorted(set(tenuto.__all__))


def test_a_name_that_is_not_there_is_an_ordinary_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tenuto.nonsense


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = python("import sys, tenuto; print(*sorted(sys.modules))").split()
    assert "tenuto" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_a_small_name_does_not_load_the_engine() -> None:
    loaded = python("import sys; from tenuto import TenutoError; print(*sorted(sys.modules))").split()
    assert [name for name in ("asyncpg", "tenuto.app", "tenuto.worker.worker") if name in loaded] == []


def test_everything_can_be_imported_with_a_star() -> None:
    assert python("from tenuto import *; print(Tenuto.__name__, Context.__name__)").split() == ["Tenuto", "Context"]


def test_the_types_of_the_public_face_are_as_a_program_expects_them() -> None:
    """`tests/typing/api.py` says what must be accepted, and with `type: ignore` what must be refused."""
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "tests/typing/api.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(tenuto.__file__).parent / "py.typed").is_file()
