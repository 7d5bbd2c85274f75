"""Environment of the peer systems: created by the benchmarks in `.bench/`, apart from Tenuto's dependencies."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".bench"
LOCK_FILE = Path(__file__).with_name("peers.txt")


def peers_python() -> Path:
    """Return the interpreter of the peers' environment; create the environment if the lock file has changed."""
    home = FOLDER / "venv"
    python = home / "bin" / "python"
    stamp = home / "made-from.txt"
    wanted = f"python {sys.version_info.major}.{sys.version_info.minor}\n{LOCK_FILE.read_text()}"
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    print("creating the environment of the peers in .bench/ …", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    venv.create(home, with_pip=True, symlinks=True)
    # The lock file is complete. Without --no-deps, pip resolves extras such as psycopg[pool] again and refuses them,
    # because a requirement with an extra has no separate hash.
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", str(LOCK_FILE)]
    subprocess.run([str(python), "-m", "pip", "install", *options], check=True, stdout=sys.stderr, timeout=600)
    stamp.write_text(wanted)
    return python
