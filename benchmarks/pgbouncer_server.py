"""PgBouncer in transaction mode before the benchmark server, on a socket in a temporary directory.

If the program is missing, root installs the Debian package with apt-get; for other users the case is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from benchmarks import databases
from benchmarks.measure import progress
from benchmarks.processes import ContenderFailed

PROGRAM = "pgbouncer"
PORT = 6432
ROLE = "bench_pooled"
PASSWORD = "only-on-this-socket"
SERVER_CONNECTIONS = 20
MAX_CLIENTS = 1_000


@contextlib.asynccontextmanager
async def pgbouncer(url: str) -> AsyncIterator[str | None]:
    """Yield the URL of a pooler to the database of ``url``, or None if PgBouncer is not available."""
    program = await asyncio.to_thread(_find_program)
    if program is None:
        progress(f"{PROGRAM} is not installed: its cases are left out (Debian: apt-get install {PROGRAM})")
        yield None
        return
    async with databases.connected(url) as connection:
        await connection.execute(
            f"DO $$ BEGIN CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD '{PASSWORD}';"
            " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        )
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-pgbouncer-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)  # as root, PgBouncer runs under another account
        (folder / "pgbouncer.ini").write_text(_configuration(url, folder))
        account = ["-u", _owner_of_socket(url)] if os.geteuid() == 0 else []
        process = subprocess.Popen(
            [program, "-q", *account, str(folder / "pgbouncer.ini")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            limit = time.monotonic() + 10
            while not (folder / f".s.PGSQL.{PORT}").exists():
                if process.poll() is not None or time.monotonic() > limit:
                    raise ContenderFailed(f"{PROGRAM} did not start")
                await asyncio.sleep(0.05)
            yield f"postgresql://{ROLE}@/bench?host={folder}&port={PORT}"
        finally:
            process.kill()
            process.wait()


def _owner_of_socket(url: str) -> str:
    """Return the account of the server, which alone reaches its socket; PgBouncer does not run as root."""
    return Path(parse_qs(urlsplit(url).query)["host"][0]).owner()


def _configuration(url: str, folder: Path) -> str:
    parts = urlsplit(url)
    where = parse_qs(parts.query)
    return f"""[databases]
bench = host={where["host"][0]} port={where["port"][0]} dbname={parts.path.lstrip("/")} user={ROLE} password={PASSWORD}
[pgbouncer]
unix_socket_dir = {folder}
listen_addr =
listen_port = {PORT}
auth_type = any
pool_mode = transaction
default_pool_size = {SERVER_CONNECTIONS}
max_client_conn = {MAX_CLIENTS}
ignore_startup_parameters = extra_float_digits
"""


def _find_program() -> str | None:
    folders = f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"
    if shutil.which(PROGRAM, path=folders) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        progress(f"installing {PROGRAM} with apt-get …")
        for verb in (["update"], ["install", "--yes", "--no-install-recommends", PROGRAM]):
            # RUNLEVEL keeps the package from starting its own service
            environment = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(
                ["apt-get", "--quiet", *verb], check=False, stdout=subprocess.DEVNULL, timeout=600, env=environment
            )
    return shutil.which(PROGRAM, path=folders)
