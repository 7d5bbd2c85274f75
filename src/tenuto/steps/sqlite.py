"""Driver for SQL scripts on SQLite files. It runs in a thread and is limited to one file, without extensions.

An authorizer rejects statements that reach beyond the file. Time limit and cancellation are checked every few thousand
virtual machine steps, at every row, at every short wait for a locked file and while the script is parsed, so that they
also end a query without end.
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
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from tenuto.clock import monotonic_seconds
from tenuto.errors import Invalid, NotFound
from tenuto.model.definitions.sql_scripts import Script, ScriptFailed, StatementResult

T = TypeVar("T")

SCHEME = "sqlite"
_VM_STEPS_PER_CHECK = 2000
_TOKENS_PER_CHECK = 1000
_BUSY_TIMEOUT_SECONDS = 5.0
_BUSY_WAIT_SECONDS = 0.25
"""How long SQLite itself waits for a locked file: meanwhile the limits cannot be checked."""
_MAX_VALUE_BYTES = 64 * 1024 * 1024
_ALLOWED_PRAGMAS = frozenset(
    {
        "foreign_keys", "foreign_key_list", "foreign_key_check", "defer_foreign_keys", "table_info", "table_xinfo",
        "table_list", "index_list", "index_info", "index_xinfo", "user_version", "application_id", "integrity_check",
        "quick_check", "optimize", "page_count", "page_size", "freelist_count", "encoding", "recursive_triggers",
        "journal_mode", "wal_checkpoint", "synchronous", "cache_size", "case_sensitive_like",
    }
)  # fmt: skip
# The expressions have no nested repetition: scripts are user input and may be long.
_PART = re.compile(
    r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)|;|[^;'"`\[/-]+|.""",
    re.DOTALL,
)
_TOKEN = re.compile(r"(?P<gap>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))|[A-Za-z0-9_$\x80-\U0010ffff]+|.", re.DOTALL)
_TRIGGER = re.compile(r"(?:EXPLAIN (?:QUERY PLAN )?)?CREATE (?:TEMP |TEMPORARY )?TRIGGER(?: |\Z)")
_MAX_TRIGGER_TOKENS = 6
"""EXPLAIN QUERY PLAN CREATE TEMPORARY TRIGGER"""
_FORBIDDEN_FUNCTIONS = frozenset({"load_extension", "writefile", "readfile", "edit", "fts3_tokenizer"})


def parse_path(url: str) -> Path:
    """Return the file of a URL: ``sqlite:///in/the/folder.db``, or an absolute path after four slashes."""
    parts = urlsplit(url)
    is_file_url = parts.scheme == SCHEME and not parts.netloc and parts.path.startswith("/") and len(parts.path) > 1
    if not is_file_url or parts.query or parts.fragment:
        raise Invalid(
            "connection has options, which SQLite files do not support"
            if is_file_url
            else "connection is not the URL of a SQLite file",
            code="step.sql.connection.sqlite_url_invalid",
            field="connection",
            remedy="write sqlite:///file.db",
        )
    return Path(unquote(parts.path[1:]))


async def run_script(
    script: Script, *, busy_timeout_seconds: float = _BUSY_TIMEOUT_SECONDS
) -> AsyncIterator[StatementResult]:
    """Run a script and yield the result of each statement when it has ended."""
    run = _ScriptRun(parse_path(script.url), script, busy_timeout_seconds)
    try:
        while (result := await run.in_thread(run.run_next_statement)) is not None:
            yield result
        await run.in_thread(run.finish)
    finally:
        try:
            await run.in_thread(run.close)
        finally:
            run.release_thread()


class _ScriptRun:
    """A script that runs on a file, in a dedicated thread."""

    def __init__(self, path: Path, script: Script, busy_timeout_seconds: float) -> None:
        self._path = path
        self._script = script
        self._busy_timeout_seconds = busy_timeout_seconds
        self._statements = enumerate(_split_statements(script.text, self._check_while_parsing), start=1)
        self._connection: sqlite3.Connection | None = None
        self._deadline = math.inf
        self._stop = threading.Event()
        self._rejection = ""
        self._is_own_statement = False
        """The running statement is one of this driver, not of the script."""
        # The shared threads of the event loop are not used: a few long scripts would occupy them all.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tenuto-sqlite")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run a function in the thread. A cancellation returns when the function has really ended."""
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

    def release_thread(self) -> None:
        self._thread.shutdown(wait=False)

    def run_next_statement(self) -> StatementResult | None:
        """Run the next statement; None after the last one."""
        self._start_time_limit()
        # Parsed one by one: a long script may have millions of statements.
        found = next(self._statements, None)
        if found is None:
            return None
        number, (line, command, text) = found
        name = f"statement {number} (line {line}, {command})"
        try:
            return StatementResult(command, self._retry_while_locked(partial(self._count_rows, text)))
        except OverflowError:
            raise Invalid(
                "a number in parameters is larger than SQLite can store",
                code="step.sql.parameter.out_of_range",
                field="parameters",
                remedy="pass it as text",
            ) from None
        except sqlite3.Error as error:
            if self._rejection:
                raise ScriptFailed(f"{name}: {self._rejection}", code="step.sql.statement.not_allowed") from None
            if self._must_stop():
                raise self._timed_out(name) from None
            raise ScriptFailed(f"{name}: {error}", code="step.sql.statement.failed") from None

    def finish(self) -> None:
        """Commit the transaction of the script, or check that it left none open."""
        self._start_time_limit()
        connection = self._open()
        if self._script.in_transaction:
            try:
                self._retry_while_locked(partial(self._execute_own, "COMMIT"))
            except sqlite3.Error as error:
                if self._must_stop():
                    raise self._timed_out("COMMIT") from None
                raise ScriptFailed(
                    f"the transaction could not be committed: {error}", code="step.sql.commit.failed"
                ) from None
        elif connection.in_transaction:
            raise ScriptFailed(
                "the script left a transaction open, which was rolled back",
                code="step.sql.transaction.left_open",
                remedy="end the script with COMMIT",
            )

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()  # rolls an open transaction back

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        if not self._path.is_file():
            raise NotFound(
                f"the SQLite file {self._path} does not exist",
                code="step.sql.sqlite_file.not_found",
                field="connection",
                remedy="create it, or correct the path",
            )
        connection = sqlite3.connect(
            f"file:{quote(str(self._path.absolute()))}?mode=rw",
            uri=True,
            timeout=self._busy_wait_seconds(),
            isolation_level=None,
            check_same_thread=False,
        )
        self._connection = connection
        connection.text_factory = bytes  # values are not used, so they are not decoded
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        connection.set_progress_handler(self._must_stop, _VM_STEPS_PER_CHECK)
        connection.set_authorizer(self._authorize)
        if self._script.in_transaction:
            self._execute_own("BEGIN")
        return connection

    def _execute_own(self, statement: str) -> None:
        assert self._connection is not None
        self._is_own_statement = True
        try:
            self._connection.execute(statement)
        finally:
            self._is_own_statement = False

    def _count_rows(self, text: str) -> int:
        """Execute a statement and return the number of rows that it returned or changed."""
        connection = self._open()
        cursor = connection.execute(text, self._script.parameters)
        count = 0
        # One by one, without keeping them: a single value may have `_MAX_VALUE_BYTES`.
        while cursor.fetchone() is not None:
            count += 1
            if self._must_stop():
                connection.interrupt()
        return count if cursor.description is not None else max(cursor.rowcount, 0)

    def _retry_while_locked(self, work: Callable[[], T]) -> T:
        """Call a function again while other connections lock the file.

        SQLite waits only shortly each time. A statement that it then rejects has changed nothing and may be repeated.
        """
        connection = self._open()
        give_up_at = math.inf
        while True:
            started_at, in_transaction = monotonic_seconds(), connection.in_transaction
            try:
                return work()
            except sqlite3.OperationalError as error:
                now = monotonic_seconds()
                give_up_at = min(give_up_at, now + self._busy_timeout_seconds)
                is_locked = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                # A rejection without a wait is a deadlock: the other connection waits for this one.
                may_succeed = (
                    now - started_at >= self._busy_wait_seconds() / 2 and connection.in_transaction == in_transaction
                )
                if not (is_locked and may_succeed) or now >= give_up_at or self._must_stop():
                    raise

    def _busy_wait_seconds(self) -> float:
        return min(_BUSY_WAIT_SECONDS, self._script.timeout_seconds)

    def _start_time_limit(self) -> None:
        self._deadline = monotonic_seconds() + self._script.timeout_seconds

    def _timed_out(self, name: str) -> ScriptFailed:
        return ScriptFailed(
            f"{name} took longer than {self._script.timeout_seconds:g} s",
            code="step.sql.timeout",
            remedy="give the step a longer timeout",
        )

    def _check_while_parsing(self) -> None:
        if self._must_stop():
            raise self._timed_out("parsing the script")

    def _must_stop(self) -> int:
        return int(self._stop.is_set() or monotonic_seconds() >= self._deadline)

    def _authorize(
        self, action: int, first: str | None, second: str | None, _database: str | None, _inner: str | None
    ) -> int:
        rejection = None if self._is_own_statement else self._find_rejection(action, first, second)
        if rejection is None:
            return sqlite3.SQLITE_OK
        self._rejection = rejection
        return sqlite3.SQLITE_DENY

    def _find_rejection(self, action: int, first: str | None, second: str | None) -> str | None:
        # VACUUM attaches a file with an empty name. None means a name that is computed when the statement runs.
        if action == sqlite3.SQLITE_ATTACH and first != "":
            return "ATTACH is not allowed, because a script works on one file"
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN_FUNCTIONS:
            return f"the function {second} is not allowed"
        if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() not in _ALLOWED_PRAGMAS:
            return f"PRAGMA {first} is not allowed"
        if action == sqlite3.SQLITE_TRANSACTION and self._script.in_transaction:
            return f"{first} would end the transaction around the script; set transaction: false to allow it"
        return None


def _split_statements(script: str, check: Callable[[], None]) -> Iterator[tuple[int, str, str]]:
    """Yield (line, first keyword, text) of each statement.

    A trigger contains statements. As in SQLite, it ends with a statement that is only END.
    """
    line, counted, start = 1, 0, 0
    first, command = -1, ""
    for end in _statement_ends(script, check):
        tokens = _tokens(script, start, end, check)
        start = end
        if first < 0:
            beginning = list(islice(tokens, _MAX_TRIGGER_TOKENS))
            if not beginning or beginning[0].group() == ";":
                continue
            first, command = beginning[0].start(), beginning[0].group().upper()
            is_complete = not _TRIGGER.match(" ".join(token.group().upper() for token in beginning))
        else:
            is_complete = [token.group().upper() for token in islice(tokens, 2)] == ["END", ";"]
        if is_complete or end == len(script):
            line, counted = line + script.count("\n", counted, first), first
            yield line, command, script[first:end].strip()
            first = -1


def _tokens(script: str, start: int, end: int, check: Callable[[], None]) -> Iterator[re.Match[str]]:
    """Yield tokens without gaps. Quotes are not parsed: the keywords of interest precede all quoted text."""
    for token in _checked(check, _TOKEN.finditer(script, start, end)):
        if token.lastgroup != "gap":
            yield token


def _statement_ends(script: str, check: Callable[[], None]) -> Iterator[int]:
    """Yield the positions after semicolons outside of quotes and comments, and the end of the script."""
    for part in _checked(check, _PART.finditer(script)):
        if part.group() == ";" and part.end() < len(script):
            yield part.end()
    yield len(script)


def _checked(check: Callable[[], None], parts: Iterator[re.Match[str]]) -> Iterator[re.Match[str]]:
    """Yield the parts and call ``check`` at intervals."""
    for number, part in enumerate(parts):
        if number % _TOKENS_PER_CHECK == 0:
            check()
        yield part
