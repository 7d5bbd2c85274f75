"""A TypeScript client generated from the OpenAPI document compiles under strict settings."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document

FOLDER = Path(__file__).parent
COMPILER_OPTIONS = (
    *("--strict", "--noEmit", "--noUncheckedIndexedAccess"),
    *("--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"),
)


def test_lock_of_the_typescript_tools_names_no_registry() -> None:
    lock = json.loads((FOLDER / "package-lock.json").read_text("utf-8"))
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert packages
    for name, package in packages.items():
        assert "resolved" not in package, name
        assert package["integrity"].startswith("sha512-"), name


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("npm") is None, reason="Node.js with npm is not installed")
def test_generated_typescript_client_compiles_under_strict_settings(tmp_path: Path) -> None:
    for name in ("package.json", "package-lock.json", "programs/use_client.ts"):
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "openapi.json").write_text(json.dumps(openapi_document(create_api(Tenuto()))), "utf-8")
    run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", folder=tmp_path)
    options = ("--default-non-nullable", "false", "--output", "schema.d.ts")  # fields with defaults may be left out
    run("npx", "--no-install", "openapi-typescript", "openapi.json", *options, folder=tmp_path)
    run("npx", "--no-install", "tsc", *COMPILER_OPTIONS, "use_client.ts", folder=tmp_path)


def run(*command: str, folder: Path) -> None:
    """Run a program to its end."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
