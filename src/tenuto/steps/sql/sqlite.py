"""SQL scripts on SQLite files, in a thread, fenced in: one file, no other; no extension; an end that is kept.

An authorizer refuses what reaches beyond the file, and a look every few thousand steps of the machine, at every row, at
every short wait for a locked file and while the script is read makes time limits and cancellation real, also for a
query without end.
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

from tenuto.clock import steady
from tenuto.errors import Invalid, NotFound
from tenuto.model.sql_scripts import Ran, Script, ScriptFailed

T = TypeVar("T")

SCHEME = "sqlite"
_STEPS_BETWEEN_LOOKS = 2000
_PARTS_BETWEEN_LOOKS = 1000
_BUSY_SECONDS = 5.0
_ONE_WAIT_SECONDS = 0.25
"""How long SQLite itself may wait for a file that others have locked: it hears nobody meanwhile."""
_LONGEST_VALUE = 64 * 1024 * 1024
_MAY_BE_SET = frozenset(
    {
        "foreign_keys", "foreign_key_list", "foreign_key_check", "defer_foreign_keys", "table_info", "table_xinfo",
        "table_list", "index_list", "index_info", "index_xinfo", "user_version", "application_id", "integrity_check",
        "quick_check", "optimize", "page_count", "page_size", "freelist_count", "encoding", "recursive_triggers",
        "journal_mode", "wal_checkpoint", "synchronous", "cache_size", "case_sensitive_like",
    }
)  # fmt: skip
# No repetition within a repetition in what follows: texts are other people's, and may be long.
_PART = re.compile(
    r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|--[^\n]*|/\*.*?(?:\*/|\Z)|;|[^;'"`\[/-]+|.""",
    re.DOTALL,
)
_TOKEN = re.compile(
    r"(?P<gap>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))|[A-Za-z0-9_$\x80-\U0010ffff]+|.",
    re.DOTALL,
)
_TRIGGER = re.compile(r"(?:EXPLAIN (?:QUERY PLAN )?)?CREATE (?:TEMP |TEMPORARY )?TRIGGER(?: |\Z)")
_LONGEST_BEGINNING = 6
"""EXPLAIN QUERY PLAN CREATE TEMPORARY TRIGGER"""
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
        while (ran := await file.in_thread(file.go_on)) is not None:
            yield ran
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
        self._statements = enumerate(_statements(script.text, self._look_while_reading), start=1)
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

    def go_on(self) -> Ran | None:
        """Run the next statement; None if there is none left."""
        self._begin_the_time()
        # Read one by one, as they are run: a long script may have millions of them.
        found = next(self._statements, None)
        if found is None:
            return None
        number, (line, command, text) = found
        where = f"statement {number} (line {line}, {command})"
        try:
            return Ran(command, self._patiently(partial(self._rows_of, text)))
        except OverflowError:
            raise Invalid(
                "is a number beyond what SQLite can hold", field="parameters", remedy="pass it as text"
            ) from None
        except sqlite3.Error as error:
            if self._refused:
                raise ScriptFailed(f"{where}: {self._refused}") from None
            if self._look():
                raise self._too_long(where) from None
            raise ScriptFailed(f"{where}: {error}") from None

    def conclude(self) -> None:
        self._begin_the_time()
        connection = self._open()
        if self._script.transaction:
            try:
                self._patiently(partial(self._say, "COMMIT"))
            except sqlite3.Error as error:
                if self._look():
                    raise self._too_long("COMMIT") from None
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
            timeout=self._one_wait(),
            isolation_level=None,
            check_same_thread=False,
        )
        self._connection = connection
        connection.text_factory = bytes  # nobody reads what is found
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

    def _rows_of(self, text: str) -> int:
        connection = self._open()
        cursor = connection.execute(text, self._script.parameters)
        found = 0
        # One by one, and let go at once: a single value may be as long as `_LONGEST_VALUE`, and take a while.
        while cursor.fetchone() is not None:
            found += 1
            if self._look():
                connection.interrupt()
        return found if cursor.description is not None else max(cursor.rowcount, 0)

    def _patiently(self, work: Callable[[], T]) -> T:
        """Have it done when others have the file locked no more. SQLite waits one short while at a time, and what it
        refuses after that has left nothing behind: it may be done again."""
        connection = self._open()
        give_up_at = math.inf
        while True:
            began, in_transaction = steady(), connection.in_transaction
            try:
                return work()
            except sqlite3.OperationalError as error:
                now = steady()
                give_up_at = min(give_up_at, now + _BUSY_SECONDS)
                locked = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
                # Refused without a wait: the others wait for us, and would do so for ever.
                of_use = now - began >= self._one_wait() / 2 and connection.in_transaction == in_transaction
                if not (locked and of_use) or now >= give_up_at or self._look():
                    raise

    def _one_wait(self) -> float:
        return min(_ONE_WAIT_SECONDS, self._script.timeout_seconds)

    def _begin_the_time(self) -> None:
        self._deadline = steady() + self._script.timeout_seconds

    def _too_long(self, what: str) -> ScriptFailed:
        limit = self._script.timeout_seconds
        return ScriptFailed(f"{what} took longer than {limit:g} s", remedy="give the step a longer timeout")

    def _look_while_reading(self) -> None:
        if self._look():
            raise self._too_long("reading the script")

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


def _statements(script: str, look: Callable[[], None]) -> Iterator[tuple[int, str, str]]:
    """The statements, with the lines they begin on and the words they begin with.

    A trigger has statements of its own. It ends, as for SQLite itself, with one that is END and nothing else.
    """
    line, counted, start = 1, 0, 0
    first, command = -1, ""
    for end in _ends(script, look):
        tokens = _tokens(script, start, end, look)
        start = end
        if first < 0:
            beginning = list(islice(tokens, _LONGEST_BEGINNING))
            if not beginning or beginning[0].group() == ";":
                continue
            first, command = beginning[0].start(), beginning[0].group().upper()
            complete = not _TRIGGER.match(" ".join(token.group().upper() for token in beginning))
        else:
            complete = [token.group().upper() for token in islice(tokens, 2)] == ["END", ";"]
        if complete or end == len(script):
            line, counted = line + script.count("\n", counted, first), first
            yield line, command, script[first:end].strip()
            first = -1


def _tokens(script: str, start: int, end: int, look: Callable[[], None]) -> Iterator[re.Match[str]]:
    """What a statement begins with, without gaps. Nothing quoted is known here: no word of interest stands after it."""
    for token in _now_and_then(look, _TOKEN.finditer(script, start, end)):
        if token.lastgroup != "gap":
            yield token


def _ends(script: str, look: Callable[[], None]) -> Iterator[int]:
    """The places after the semicolons that are neither quoted nor in a comment, and the end of it all."""
    for part in _now_and_then(look, _PART.finditer(script)):
        if part.group() == ";" and part.end() < len(script):
            yield part.end()
    yield len(script)


def _now_and_then(look: Callable[[], None], parts: Iterator[re.Match[str]]) -> Iterator[re.Match[str]]:
    for number, part in enumerate(parts):
        if number % _PARTS_BETWEEN_LOOKS == 0:
            look()
        yield part
