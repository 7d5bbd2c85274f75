"""SQL scripts on SQLite files, in a thread, fenced in: one file, no other; no extension; an end that is kept.

An authorizer refuses what reaches beyond the file, and a look every few thousand steps of the machine makes time limits
and cancellation real, also for a query without end.
"""

from __future__ import annotations

import asyncio
import math
import re
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from tenuto.clock import steady
from tenuto.errors import Invalid, NotFound
from tenuto.model.scripts import Ran, Script, ScriptFailed

T = TypeVar("T")

SCHEME = "sqlite"
_STEPS_BETWEEN_LOOKS = 2000
_BUSY_SECONDS = 5.0
_LONGEST_VALUE = 64 * 1024 * 1024
_MAY_BE_SET = frozenset(
    {
        "foreign_keys", "foreign_key_list", "foreign_key_check", "defer_foreign_keys", "table_info", "table_xinfo",
        "table_list", "index_list", "index_info", "index_xinfo", "user_version", "application_id", "integrity_check",
        "quick_check", "optimize", "page_count", "page_size", "freelist_count", "encoding", "recursive_triggers",
        "journal_mode", "wal_checkpoint", "synchronous", "cache_size", "busy_timeout", "case_sensitive_like",
    }
)  # fmt: skip
_BEFORE_IT = re.compile(r"(?:\s+|;|--[^\n]*|/\*.*?\*/)*", re.DOTALL)
_PART = re.compile(
    r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)|;|[^;'"`\[/-]+|.""",
    re.DOTALL,
)
_GAP = r"(?:\s|--[^\n]*\n|/\*.*?\*/)+"
_TRIGGER = re.compile(
    rf"(?:EXPLAIN{_GAP}(?:QUERY{_GAP}PLAN{_GAP})?)?CREATE{_GAP}(?:TEMP(?:ORARY)?{_GAP})?TRIGGER\b",
    re.IGNORECASE | re.DOTALL,
)
_REACHES_OUT = frozenset({"load_extension", "writefile", "readfile", "edit", "fts3_tokenizer"})


def path_in(url: str) -> Path:
    """The file an address names: ``sqlite:///in/the/folder.db``, or with four strokes from the root."""
    parts = urlsplit(url)
    if parts.scheme != SCHEME or parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2:
        raise Invalid("is not the address of a SQLite file", field="connection", remedy="write sqlite:///file.db")
    if parts.query or parts.fragment:
        raise Invalid("options are not understood here", field="connection", remedy="write sqlite:///file.db")
    return Path(unquote(parts.path[1:]))


async def run(script: Script) -> AsyncIterator[Ran]:
    """Run a script; what became of each statement, as they end."""
    file = _File(path_in(script.url), script)
    try:
        found = await file.in_thread(lambda: list(_statements(script.text)))
        for number, (line, text) in enumerate(found, start=1):
            yield await file.in_thread(partial(file.execute, number, line, text))
        await file.in_thread(file.conclude)
    finally:
        try:
            await file.in_thread(file.close)
        finally:
            file.let_thread_go()


class _File:
    """The file while a script runs on it. Its own thread does one thing at a time."""

    def __init__(self, path: Path, script: Script) -> None:
        self._path = path
        self._script = script
        self._connection: sqlite3.Connection | None = None
        self._deadline = math.inf
        self._stop = threading.Event()
        self._refused = ""
        self._ours = False
        """What is executed is ours and not the script's."""
        # Not one of the threads everybody on the loop shares: a few long scripts would keep them all, and names could
        # be resolved and secrets be opened for nobody.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tenuto-sqlite")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Have it done beside the loop. Whoever cancels it waits until it has really stopped."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        cancelled: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.wait([running])
            except asyncio.CancelledError as error:
                cancelled = error
                self._stop.set()
        if cancelled is not None:
            running.exception()
            raise cancelled
        return running.result()

    def let_thread_go(self) -> None:
        self._thread.shutdown(wait=False)

    def execute(self, number: int, line: int, text: str) -> Ran:
        command = text.split(None, 1)[0].rstrip(";(").upper()
        where = f"statement {number} (line {line}, {command})"
        limit = self._script.timeout_seconds
        try:
            connection = self._open()
            self._deadline = steady() + limit
            cursor = connection.execute(text, self._script.parameters)
            found = 0
            while rows := cursor.fetchmany(1000):
                found += len(rows)
            rows_written = cursor.rowcount
            return Ran(command, found if cursor.description is not None else max(rows_written, 0))
        except OverflowError:
            raise Invalid(
                "is a number beyond what SQLite can hold", field="parameters", remedy="pass it as text"
            ) from None
        except sqlite3.Error as error:
            if self._refused:
                raise ScriptFailed(f"{where}: {self._refused}") from None
            if steady() >= self._deadline:
                raise ScriptFailed(
                    f"{where} took longer than {limit:g} s", remedy="give the step a longer timeout"
                ) from None
            raise ScriptFailed(f"{where}: {error}") from None
        finally:
            self._deadline = math.inf

    def conclude(self) -> None:
        connection = self._open()
        if self._script.transaction:
            try:
                self._say("COMMIT")
            except sqlite3.Error as error:
                raise ScriptFailed(f"it could not be committed: {error}") from None
        elif connection.in_transaction:
            raise ScriptFailed("it left a transaction open, which was rolled back", remedy="end the script with COMMIT")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()  # what is not committed is rolled back

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        if not self._path.is_file():
            raise NotFound(f"there is no file {self._path}", field="connection", remedy="make it, or correct the path")
        connection = sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?mode=rw",
            uri=True,
            timeout=min(_BUSY_SECONDS, self._script.timeout_seconds),
            isolation_level=None,
            check_same_thread=False,
        )
        self._connection = connection
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.set_progress_handler(self._look, _STEPS_BETWEEN_LOOKS)
        connection.set_authorizer(self._allow)
        if self._script.transaction:
            self._say("BEGIN")
        return connection

    def _say(self, words: str) -> None:
        assert self._connection is not None
        self._ours = True
        try:
            self._connection.execute(words)
        finally:
            self._ours = False

    def _look(self) -> int:
        return int(self._stop.is_set() or steady() >= self._deadline)

    def _allow(
        self, action: int, first: str | None, second: str | None, _database: str | None, _inner: str | None
    ) -> int:
        why = None if self._ours else self._objection(action, first, second)
        if why is None:
            return sqlite3.SQLITE_OK
        self._refused = why
        return sqlite3.SQLITE_DENY

    def _objection(self, action: int, first: str | None, second: str | None) -> str | None:
        # VACUUM attaches a file with an empty name; no name at all is one that is worked out only as it runs.
        if action == sqlite3.SQLITE_ATTACH and first != "":
            return "ATTACH is not allowed: a script works on one file"
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REACHES_OUT:
            return f"the function {second} is not allowed"
        if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() not in _MAY_BE_SET:
            return f"PRAGMA {first} is not allowed"
        if action == sqlite3.SQLITE_TRANSACTION and self._script.transaction:
            return f"{first} would end the transaction that makes it all or nothing; say transaction: false"
        return None


def _statements(script: str) -> Iterator[tuple[int, str]]:
    """The statements with the lines they begin on. Of a trigger, which has statements of its own, SQLite itself says
    where it is complete."""
    line, start = 1, 0
    for end in [*_semicolons(script), len(script)]:
        before = _BEFORE_IT.match(script, start, end)
        assert before is not None
        first = before.end()
        of_a_trigger = end < len(script) and _TRIGGER.match(script, first, end)
        if of_a_trigger and not sqlite3.complete_statement(script[first:end]):
            continue
        if statement := script[first:end].strip():
            yield line + script.count("\n", start, first), statement
        line += script.count("\n", start, end)
        start = end


def _semicolons(script: str) -> Iterator[int]:
    """The places after those that are neither quoted nor in a comment. Once through: scripts may be long."""
    for part in _PART.finditer(script):
        if part.group() == ";":
            yield part.end()
