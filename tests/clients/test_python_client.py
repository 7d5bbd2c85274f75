"""A Python client generated from the OpenAPI document passes strict type checks and drives a real service."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tenuto import Tenuto
from tenuto.api.application import create_api
from tenuto.api.openapi import openapi_document
from tests.cli.conftest import Shell, embedded_home, open_shell

__all__ = ["embedded_home", "open_shell"]

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "programs" / "drive_service.py"


@pytest.fixture(scope="module")
def client_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the generated package and of the program that uses it."""
    folder = tmp_path_factory.mktemp("client")
    document = folder / "openapi.json"
    document.write_text(json.dumps(openapi_document(create_api(Tenuto()))), "utf-8")
    command = [
        *(sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning", "--meta", "none"),
        *("--path", str(document), "--config", str(FOLDER / "python_client_config.yml")),
        *("--output-path", str(folder / "tenuto_client")),
    ]
    run(command, folder)
    (folder / PROGRAM.name).write_bytes(PROGRAM.read_bytes())
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_generated_python_client_passes_strict_type_checks(client_folder: Path) -> None:
    settings = ("--config-file", str(FOLDER / "mypy.ini"))
    run([sys.executable, "-m", "mypy", *settings, "tenuto_client", PROGRAM.name], client_folder)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_generated_python_client_drives_a_real_service(
    client_folder: Path, open_shell: Callable[..., Shell], embedded_home: Path
) -> None:
    shell = open_shell(TENUTO_HOME=str(embedded_home), TENUTO_APP="tasks:app")
    service = shell.start_service("up", "--port", "0")
    address = service.wait_for_line("http://").split()[-1]
    service.wait_for_line("stop with Ctrl-C")
    key = (embedded_home / "admin.key").read_text().strip()
    assert run([sys.executable, PROGRAM.name, address, key], client_folder).strip() == "done"
    assert service.stop() == 0


def run(command: list[str], folder: Path) -> str:
    """Run a program to its end; return its output."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))  # the generator calls ruff
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
