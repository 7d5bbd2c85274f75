"""The peers' own environment: made by the benchmark itself in `.bench/`, apart from Tenuto's dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".bench"
WANTED = Path(__file__).with_name("peers.txt")


def peers_python() -> Path:
    """The interpreter of the peers' environment, which is made or made anew when `peers.txt` asks for another one."""
    home = FOLDER / "venv"
    python = home / "bin" / "python"
    stamp = home / "made-from.txt"
    wanted = f"python {sys.version_info.major}.{sys.version_info.minor}\n{WANTED.read_text()}"
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    print("making the peers' environment in .bench/ …", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    venv.create(home, with_pip=True, symlinks=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(WANTED)]
    subprocess.run(install, check=True, stdout=sys.stderr, timeout=600)
    stamp.write_text(wanted)
    return python
