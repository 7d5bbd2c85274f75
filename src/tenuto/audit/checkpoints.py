"""The head of the audit trail, remembered outside the database every hour: in a file in the home, and in the log.

Whoever may do anything in the database could cut off the end of the trail, or (where it is sealed without a key) make
all of it anew. A line here says how long the trail was and what its last seal was: both show afterwards.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from tenuto.errors import Invalid
from tenuto.logs import Log
from tenuto.postgres.database import Database
from tenuto.store.access import audit_log

FILE = "audit.heads"
EVERY = timedelta(hours=1)
_LONGEST_LINE = 4096

T = TypeVar("T")

log = Log("tenuto.audit")


@dataclass(frozen=True, slots=True)
class Anchor:
    """How long the trail was at an instant, and its last seal."""

    position: int
    seal: bytes
    at: datetime


async def drop(database: Database, home: Path) -> None:
    """Remember the head, if an hour has gone by since the last time and the trail has grown."""
    now = database.clock.now()
    which = await audit_log.identity(database)
    known = await asyncio.to_thread(read, home, which)
    if known and now - known[-1].at < EVERY:
        return
    head = await audit_log.head_now(database)
    longest = max((anchor.position for anchor in known), default=0)
    if head.position < longest:  # nothing is written over it: what was remembered is the proof
        log.error("the audit trail is shorter than it was", was=longest, now=head.position)
    elif head.position > longest:
        line = {"database": which, "position": head.position, "seal": head.seal.hex(), "at": now.isoformat()}
        await asyncio.to_thread(append_line, home / FILE, json.dumps(line), parsed)
        log.info("audit head", position=head.position, seal=head.seal.hex())


def read(home: Path, database: str) -> Sequence[Anchor]:
    """What is remembered of a database, in order."""
    file = home / FILE
    try:
        return [anchor for which, anchor in read_lines(file, parsed) if which == database]
    except ValueError as error:
        raise Invalid(
            f"{file} holds a line that is no head of an audit trail",
            remedy="restore the file; if it is lost, move it away: the trail is then anchored anew",
        ) from error


def parsed(line: bytes) -> tuple[str, Anchor]:
    """A line of the file: of which database, and what is remembered of it."""
    try:
        told = json.loads(line)
        anchor = Anchor(int(told["position"]), bytes.fromhex(told["seal"]), datetime.fromisoformat(told["at"]))
        return told["database"], anchor
    except (KeyError, TypeError) as error:
        raise ValueError("is no head of an audit trail") from error


# --- files of lines --------------------------------------------------------------------------------------------------
# A crash may leave the beginning of a line, an editor or a store of secrets a whole one without its line end. What a
# line says tells the two apart: the beginning of one must never parse.


def read_lines(file: Path, parse: Callable[[bytes], T]) -> list[T]:
    """What the whole lines of a file say, if there is one; `ValueError` if one of them cannot be parsed."""
    try:
        *lines, rest = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [parse(line) for line in ([*lines, rest] if _is_whole(rest, parse) else lines)]


def append_line(file: Path, line: str, parse: Callable[[bytes], object]) -> None:
    """One line at the end, on disk before anybody relies on it, for the owner's eyes only: whole, or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed: others may be at it
        size, left = os.fstat(handle).st_size, f"{line}\n".encode()
        rest = _after_the_last_line_end(handle, size)
        if _is_whole(rest, parse):
            left = b"\n" + left
        else:
            size -= len(rest)
            os.ftruncate(handle, size)
        try:
            while left:  # a disk that is filling up takes in less than it is given
                left = left[os.write(handle, left) :]
        except OSError:
            os.ftruncate(handle, size)
            raise
        os.fsync(handle)
    finally:
        os.close(handle)


def _after_the_last_line_end(handle: int, size: int) -> bytes:
    tail = os.pread(handle, _LONGEST_LINE, max(size - _LONGEST_LINE, 0))
    return tail[tail.rfind(b"\n") + 1 :]


def _is_whole(line: bytes, parse: Callable[[bytes], object]) -> bool:
    try:
        parse(line)
    except ValueError:
        return False
    return True
