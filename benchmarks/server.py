"""The PostgreSQL server of one benchmark run: started before the first case, stopped and removed after the last.

It is Tenuto's own embedded server in a temporary home, with durable commits; all contenders use its one socket.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tenuto.postgres import embedded_server


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Yield the URL of a fresh server; stop it whatever happens. Killed outright, the supervisor stops it soon after."""
    home = Path(tempfile.mkdtemp(prefix="tenuto-bench-", dir="/var/tmp"))
    home.chmod(0o755)  # run as root, the server has an account of its own that must get in
    try:
        with embedded_server.acquire_server(home, linger_seconds=0.0) as held:
            yield held.url
    finally:
        embedded_server.stop_server(home)
        shutil.rmtree(home, ignore_errors=True)
