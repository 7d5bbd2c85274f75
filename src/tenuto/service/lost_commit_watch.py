"""Watch whether the database still has the commits that this process saw acknowledged.

A service process marks the history of its database about once a second while it writes, and every ten seconds
otherwise. It compares its newest acknowledged mark with what it finds on every new connection. A server that was
replaced by a promoted one is not used. If commits are lost, everything in the memory of the process may be from a
history that no longer exists, so the process exits; its service manager restarts it. The newest mark is also in a file
beside the lock of the process name, so that the loss is found if no process survived it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import NoReturn
from uuid import UUID

from tenuto.clock import monotonic_seconds
from tenuto.errors import Unavailable
from tenuto.ids import new_id
from tenuto.logs import Log
from tenuto.model.lost_commits import FoundHistory, HistoryVerdict, SeenHistory, judge_history
from tenuto.postgres.database import Connection, Database
from tenuto.postgres.servers.server_selection import UnsuitableServer
from tenuto.service.polling_loop import PollingLoop
from tenuto.service.process_identity import ProcessIdentity
from tenuto.service.signals import EXIT_LOST_CONTROL
from tenuto.store import database_history as store

BUSY_MARK_SECONDS = 1.0
IDLE_MARK_SECONDS = 10.0
BUSY_WRITE_COUNT = 20
"""Number of writes since the last mark from which a process is busy."""
_FILE_PREFIX = "history-"

log = Log("tenuto.history")


@dataclass(frozen=True, slots=True)
class RememberedMark:
    """The newest mark of one process, from its file."""

    process: UUID
    service: str
    name: str
    seen: SeenHistory


class HistoryWatch:
    """Marks the history of the database and checks new connections of one process."""

    def __init__(self, home: Path, identity: ProcessIdentity) -> None:
        self._home = home
        self._identity = identity
        self._process = new_id()
        self._remembered: RememberedMark | None = None
        self._seen: SeenHistory | None = None
        self._database: Database | None = None
        self._marked_at = -IDLE_MARK_SECONDS
        self._marked_write_count = 0
        self.loop = PollingLoop("tenuto-history", self._run_cycle, log)

    async def recall(self) -> None:
        """Read what an earlier process of this name remembers."""
        self._remembered = await asyncio.to_thread(read_mark, self._home, self._identity.service, self._identity.name)
        if self._remembered is not None:
            self._process = self._remembered.process

    async def begin(self, database: Database) -> None:
        """Compare the database with what was recalled, and check its new connections from now on.

        Raise `Unavailable` if the server was replaced by a promoted one.
        """
        found = await store.load_history(database, self._process)
        remembered = self._remembered
        if remembered is not None and not is_other_database(remembered.seen, found):
            verdict = judge_history(remembered.seen, found)
            if verdict is HistoryVerdict.FORMER_PRIMARY:
                raise Unavailable(
                    _describe_former_primary(remembered.seen, found),
                    code="database.server.former_primary",
                    remedy="stop that server, or make it a standby of the promoted one",
                )
            if verdict is HistoryVerdict.LOST_COMMITS:
                await store.record_loss(database, self._identity.service, self._identity.name, remembered.seen, found)
                _log_loss(remembered.seen, found, consequence="work accepted since then is lost; see tenuto doctor")
            elif verdict is HistoryVerdict.PROMOTED:
                _log_promotion(remembered.seen, found)
        self._seen = SeenHistory(found.system, found.timeline, found.number, found.now)
        self._database = database
        database.gate.check = self.check_connection

    async def check_connection(self, connection: Connection) -> None:
        """Refuse a connection to a former primary; exit if the server has lost commits.

        Before `begin`, only the timeline is compared. Without this, a restarted process would connect to a former
        primary again and again, because the server that was used last is tried first.
        """
        seen = self._seen  # before the query: its snapshot may lack a mark that is acknowledged while it runs
        if seen is not None:
            found = await store.find_history(connection, self._process)
            self._accept(seen, found)  # guard: failover.mark_before_query
        elif self._remembered is not None:
            found = await store.find_timeline(connection)
            is_other = is_other_database(self._remembered.seen, found)
            if not is_other and judge_history(self._remembered.seen, found) is HistoryVerdict.FORMER_PRIMARY:
                former = _describe_former_primary(self._remembered.seen, found)
                raise UnsuitableServer(former)  # guard: failover.former_primary_at_start

    def _accept(self, seen: SeenHistory, found: FoundHistory) -> None:
        """Compare what was found with what had been seen when the query was sent."""
        verdict = judge_history(seen, found)
        if verdict is HistoryVerdict.FORMER_PRIMARY:
            raise UnsuitableServer(_describe_former_primary(seen, found))  # guard: failover.former_primary
        if verdict is HistoryVerdict.LOST_COMMITS:
            _exit(seen, found)  # guard: failover.exit_after_loss
        if verdict is HistoryVerdict.PROMOTED:
            _log_promotion(seen, found)
            self._seen = replace(self._seen or seen, system=found.system, timeline=found.timeline)

    async def _run_cycle(self) -> float:
        database, seen = self._database, self._seen
        assert database is not None and seen is not None  # noqa: PT018 (set by `begin`)
        age_seconds = monotonic_seconds() - self._marked_at
        is_busy = database.write_count - self._marked_write_count >= BUSY_WRITE_COUNT
        if age_seconds >= IDLE_MARK_SECONDS or is_busy:
            await self._record_mark(database)
        return BUSY_MARK_SECONDS

    async def _record_mark(self, database: Database) -> None:
        if database.behind_pooler:  # it may have changed the server of an open connection
            seen = self._seen
            assert seen is not None
            self._accept(seen, await store.load_history(database, self._process))
        seen = self._seen
        assert seen is not None
        number = seen.number + 1
        at = await store.record_mark(database, self._process, self._identity.service, self._identity.name, number)
        seen = self._seen or seen
        self._seen = replace(seen, number=number, at=at or seen.at)  # only now: the commit is acknowledged
        self._marked_at, self._marked_write_count = monotonic_seconds(), database.write_count
        mark = RememberedMark(self._process, self._identity.service, self._identity.name, self._seen)
        await asyncio.to_thread(_write_mark, self._home, mark)


def is_other_database(seen: SeenHistory, found: FoundHistory) -> bool:
    """Return whether a process was started with the address of another database than before."""
    return (found.system != seen.system and found.number == 0) or found.now - seen.at > store.MARK_RETENTION


def _describe_former_primary(seen: SeenHistory, found: FoundHistory) -> str:
    return (
        f"the server is a former primary: it is on timeline {found.timeline}, and its successor, which this host has"
        f" used, on timeline {seen.timeline}"
    )


def _log_loss(seen: SeenHistory, found: FoundHistory, *, consequence: str) -> None:
    log.error(
        "committed data lost by the database",
        last_seen_at=seen.at.isoformat(),
        seen_mark=seen.number,
        found_mark=found.number,
        seen_timeline=seen.timeline,
        found_timeline=found.timeline,
        consequence=consequence,
    )


def _log_promotion(seen: SeenHistory, found: FoundHistory) -> None:
    log.warning(
        "database server changed", timeline_before=seen.timeline, timeline=found.timeline, marks="all found again"
    )
    if found.now < seen.at:
        log.warning("database clock set back", seconds=round((seen.at - found.now).total_seconds(), 3))


def _exit(seen: SeenHistory, found: FoundHistory) -> NoReturn:
    """Exit the process at once: what it would still write is from a lost history."""
    _log_loss(seen, found, consequence="the process exits, and must be restarted")
    os._exit(EXIT_LOST_CONTROL)


# --- files -----------------------------------------------------------------------------------------------------------


def read_mark(home: Path, service: str, name: str) -> RememberedMark | None:
    """Return the newest mark of the last process of this name, if there is one."""
    return _read_file(_file_path(home, service, name))


def read_all_marks(home: Path) -> Sequence[RememberedMark]:
    """Return the newest marks of all processes that used this home directory."""
    found = (_read_file(path) for path in sorted((home / "run").glob(f"{_FILE_PREFIX}*.json")))
    return [mark for mark in found if mark is not None]


def _file_path(home: Path, service: str, name: str) -> Path:
    return home / "run" / f"{_FILE_PREFIX}{service}-{name.replace('/', '_')}.json"


def _read_file(path: Path) -> RememberedMark | None:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        seen = fields["seen"]
        return RememberedMark(
            UUID(fields["process"]),
            str(fields["service"]),
            str(fields["name"]),
            SeenHistory(
                str(seen["system"]), int(seen["timeline"]), int(seen["number"]), datetime.fromisoformat(seen["at"])
            ),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("history mark not readable", file=str(path), error=str(error))
        return None


def _write_mark(home: Path, mark: RememberedMark) -> None:
    path = _file_path(home, mark.service, mark.name)
    seen = {**asdict(mark.seen), "at": mark.seen.at.isoformat()}
    fields = {"process": str(mark.process), "service": mark.service, "name": mark.name, "seen": seen}
    written = path.with_suffix(f".{os.getpid()}.new")
    try:
        written.write_text(json.dumps(fields), encoding="utf-8")
        written.replace(path)
    except OSError as error:  # the memory of the process still has it
        log.warning("history mark not written", file=str(path), error=str(error))
