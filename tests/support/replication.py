"""PostgreSQL servers that replicate: a primary and its standbys on loopback, which a test may kill and promote.

They are made from the binaries of the embedded server. Each listens on a TCP port, because multi-host addresses and
the loss of a machine are about TCP.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg

from tenuto.postgres import migrator
from tenuto.postgres.data_directory import choose_account, find_binaries
from tenuto.postgres.database import Database
from tenuto.store import partitions
from tests.support.temp_dirs import new_temp_dir
from tests.support.waiting import eventually

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # the servers are killed, but the machine goes on
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "wal_level": "replica",
    "max_wal_senders": "8",
    "max_replication_slots": "8",
    "max_connections": "120",
    "hot_standby": "on",
    "wal_retrieve_retry_interval": "100ms",
    "wal_receiver_timeout": "5s",
    "wal_sender_timeout": "10s",
    "autovacuum_naptime": "10s",
    "jit": "off",
    "timezone": "UTC",
    "log_min_messages": "warning",
}


def free_port() -> int:
    """Return a free port below the ephemeral range, so that it is free again after every kill."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port


@dataclass
class Server:
    """One server with its data directory."""

    cluster: Cluster
    name: str
    port: int
    process: subprocess.Popen[bytes] | None = None
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.cluster.home / self.name

    @property
    def url(self) -> str:
        return f"postgresql://tenuto@127.0.0.1:{self.port}/tenuto"

    def start(self) -> None:
        """Start the server process without waiting for it."""
        argv = [str(self.cluster.binaries / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        for name, value in {**_SETTINGS, **self.settings}.items():
            argv += ["-c", f"{name}={value}"]
        with (self.cluster.home / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, **self.cluster.account.subprocess_options())

    async def until_answering(self, *, standby: bool | None = None, within: float = 30) -> None:
        async def answers() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (self.cluster.home / f"{self.name}.log").read_text()[-3000:]
            try:
                found = await self.value("SELECT pg_is_in_recovery()", "postgres")
            except (OSError, asyncpg.PostgresError):
                return False
            return standby is None or found is standby

        await eventually(answers, timeout=within, what=f"{self.name} answers")

    async def value(self, query: str, database: str = "tenuto") -> object:
        connection = await asyncpg.connect(self.url, timeout=5, database=database)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    def kill(self) -> None:
        """Kill the server with SIGKILL, like a machine that fails; its other processes end by themselves."""
        assert self.process is not None
        children = _child_pids(self.process.pid)
        self.process.send_signal(signal.SIGKILL)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)
        self.process = None

    def stop(self) -> None:
        """Stop the server like ``pg_ctl stop -m fast``."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGQUIT)
                self.process.wait(20)
            self.process = None

    def promote(self) -> None:
        self.cluster.run("pg_ctl", "promote", "-D", str(self.data), "-W")


def _child_pids(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


class Cluster:
    """A primary, and standbys made of copies of it."""

    def __init__(self) -> None:
        self.home = new_temp_dir("tenuto-cluster-")
        self.account = choose_account(self.home)
        self.binaries = find_binaries(self.account)
        self.account.give_directory(self.home)
        self.servers: list[Server] = []

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.binaries / program), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            **self.account.subprocess_options(),
        )

    def create_primary(self, **settings: str) -> Server:
        server = Server(self, "server-0", free_port(), settings=settings)
        options = ["--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C", "--locale-provider=builtin"]
        self.run("initdb", "-D", str(server.data), "-U", "tenuto", *options, "--builtin-locale=C.UTF-8")
        rules = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"
        (server.data / "pg_hba.conf").write_text(rules, encoding="ascii")
        self.servers.append(server)
        return server

    def create_standby(self, primary: Server, **settings: str) -> Server:
        """Copy a running server into a standby of it, with the application name of the new server."""
        server = Server(self, f"server-{len(self.servers)}", free_port(), settings=settings)
        self._copy(primary, server)
        self.servers.append(server)
        return server

    def rebuild_standby(self, primary: Server, server: Server) -> None:
        """Replace the data of a stopped server by a copy of the primary, and start it."""
        shutil.rmtree(server.data)
        self._copy(primary, server)
        server.start()

    def _copy(self, primary: Server, server: Server) -> None:
        source = f"host=127.0.0.1 port={primary.port} user=tenuto application_name={server.name}"
        self.run("pg_basebackup", "-D", str(server.data), "-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync")

    async def start(self, *, standby: bool = True, synchronous: bool = False) -> tuple[Server, Server | None]:
        """Create a migrated primary, with a standby that has everything."""
        primary = self.create_primary()
        primary.start()
        await primary.until_answering()
        await self.create_database(primary)
        await self.migrate(primary)
        if not standby:
            return primary, None
        replica = self.create_standby(primary)
        replica.start()
        await replica.until_answering(standby=True)
        await until_streaming(primary, replica)
        if synchronous:
            await replicate_synchronously(primary, replica)
        return primary, replica

    async def create_database(self, primary: Server) -> None:
        connection = await asyncpg.connect(primary.url, database="postgres")
        await connection.execute("CREATE DATABASE tenuto")
        await connection.close()

    async def migrate(self, primary: Server) -> None:
        database = await Database.open(primary.url)
        await migrator.migrate(database)
        await partitions.ensure_partitions(database, database.clock.now())
        await database.close()

    def url(self, *servers: Server, target: str | None = "read-write") -> str:
        places = ",".join(f"127.0.0.1:{server.port}" for server in servers or self.servers)
        return f"postgresql://tenuto@{places}/tenuto" + (f"?target_session_attrs={target}" if target else "")

    def close(self) -> None:
        for server in self.servers:
            if server.process is not None and server.process.poll() is None:
                server.kill()
        shutil.rmtree(self.home)


async def replicate_synchronously(primary: Server, standby: Server) -> None:
    """Let commits of the primary wait for the standby, once the standby streams."""
    await until_streaming(primary, standby)
    connection = await asyncpg.connect(primary.url)
    await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '\"{standby.name}\"'")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()

    async def is_synchronous() -> bool:
        query = f"SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = '{standby.name}'"
        return bool(await primary.value(query))

    await eventually(is_synchronous, timeout=20, what="the standby is synchronous")


async def until_streaming(primary: Server, standby: Server) -> None:
    async def is_streaming() -> bool:
        query = f"SELECT state = 'streaming' FROM pg_stat_replication WHERE application_name = '{standby.name}'"
        return bool(await primary.value(query))

    await eventually(is_streaming, timeout=20, what=f"{standby.name} streams from {primary.name}")
