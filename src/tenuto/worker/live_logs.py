"""Sends the new lines of watched attempts to the database, so that a client can read a log while the attempt runs.

Runs on the watchdog's event loop. While no client watches, nothing is written. The complete log is written when the
attempt ends; what is sent here may leave out lines if there are too many of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.jobs.attempts import Attempt
from tenuto.postgres.database import Database
from tenuto.store.work import live_logs

MAX_WATCHED_ATTEMPTS = 50
"""Attempts of one worker whose logs are sent at the same time."""
MAX_CHARACTERS_PER_SECOND = 64 * 1024
_KEPT_CHARACTERS = 512 * 1024
"""Older texts of an attempt are deleted."""
_CHECK_SECONDS = 2.0
"""Watches are looked up so often without a notification, while the worker holds tasks."""


class _Stream:
    """The log of one attempt: lines that wait to be sent, and how many characters may be sent now."""

    def __init__(self, attempt: Attempt, now: float) -> None:
        self.attempt = attempt
        self.trimmed_offset = 0
        self._is_started = False
        self._waiting: deque[str] = deque()
        self._waiting_size = 0
        self._offset = 0
        """Number of characters of the log before the first waiting line."""
        self._allowance = float(MAX_CHARACTERS_PER_SECOND)
        self._refilled_at = now

    def take_text(self, now: float) -> tuple[int, str]:
        """Return the offset and the text of the next lines. If more wait than a second allows, the oldest are left
        out."""
        self._collect_lines()
        self._allowance += (now - self._refilled_at) * MAX_CHARACTERS_PER_SECOND
        self._allowance = min(self._allowance, MAX_CHARACTERS_PER_SECOND)
        self._refilled_at = now
        while self._waiting_size > MAX_CHARACTERS_PER_SECOND:
            self._take_line()
        offset, lines = self._offset, list[str]()
        while self._waiting and len(self._waiting[0]) <= self._allowance:  # guard: live_logs.characters_per_second
            line = self._take_line()
            self._allowance -= len(line)
            lines.append(line)
        return offset, "".join(lines)

    def _collect_lines(self) -> None:
        if not self.attempt.context.has_log:
            return
        if self._is_started:
            lines = self.attempt.context.log.take_live_lines()
        else:
            self._is_started = True
            self._offset, lines = self.attempt.context.log.start_live()
        self._waiting.extend(lines)
        self._waiting_size += sum(map(len, lines))

    def _take_line(self) -> str:
        line = self._waiting.popleft()
        self._waiting_size -= len(line)
        self._offset += len(line)
        return line

    def stop(self) -> None:
        if self.attempt.context.has_log:
            self.attempt.context.log.stop_live()


class LiveLogs:
    """The watched logs of one worker."""

    def __init__(self) -> None:
        self._is_check_requested = False
        self._checked_at = 0.0
        self._watched: frozenset[UUID] = frozenset()
        self._streams: dict[UUID, _Stream] = {}

    def check_watches(self) -> None:
        """Look up the watches at the next call: a client has begun to watch a log."""
        self._is_check_requested = True

    async def send(self, database: Database, held: Collection[Attempt]) -> None:
        """Send the new lines of all watched attempts; delete what is no longer watched or has ended."""
        now = monotonic_seconds()
        if self._is_check_requested or (now - self._checked_at >= _CHECK_SECONDS and (held or self._streams)):
            self._is_check_requested, self._checked_at = False, now
            self._watched = frozenset(await live_logs.list_watched(database))
        if not self._watched and not self._streams:
            return
        running = {each.context.activity_id: each for each in held}
        if ended := [id for id in self._streams if id not in self._watched or id not in running]:
            await live_logs.remove_live_logs(database, ended)
            for id in ended:
                self._streams.pop(id).stop()
        self._start_streams(running, now)
        await self._append(database, now)

    def _start_streams(self, running: Mapping[UUID, Attempt], now: float) -> None:
        for id in sorted(self._watched & running.keys() - self._streams.keys()):
            if len(self._streams) >= MAX_WATCHED_ATTEMPTS:  # guard: live_logs.attempts_per_worker
                return
            self._streams[id] = _Stream(running[id], now)

    async def _append(self, database: Database, now: float) -> None:
        texts, floors = [], []
        for id, stream in self._streams.items():
            first_offset, text = stream.take_text(now)
            if text:
                texts.append((id, first_offset, text))
            if first_offset - stream.trimmed_offset > 2 * _KEPT_CHARACTERS:
                stream.trimmed_offset = first_offset - _KEPT_CHARACTERS
                floors.append((id, stream.trimmed_offset))
        if texts:
            await live_logs.append_texts(database, texts)
        if floors:
            await live_logs.trim_texts(database, floors)
