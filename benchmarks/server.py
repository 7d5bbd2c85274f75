"""The PostgreSQL server of one benchmark run, started before the first case and removed after the last.

It is Tenuto's embedded server in a temporary home, with durable commits; all contenders use its socket.
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
    """Yield the URL of a fresh server and stop it in any case. If this process is killed, the supervisor stops it
    soon after.
    """
    home = Path(tempfile.mkdtemp(prefix="tenuto-bench-", dir="/var/tmp"))
    home.chmod(0o755)  # as root, the server runs under another account that needs access
    try:
        with embedded_server.acquire_server(home, linger_seconds=0.0) as held:
            yield held.url
    finally:
        embedded_server.stop_server(home)
        shutil.rmtree(home, ignore_errors=True)
