"""Checkpoints of the audit chain: its head, recorded every hour in a file in the home directory and in the log.

A database administrator could cut off the end of the chain, or rebuild a chain that is sealed without a key. A
checkpoint records the length of the chain and its last seal, so that both are detected.
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

FILE_NAME = "audit.heads"
CHECKPOINT_INTERVAL = timedelta(hours=1)
_MAX_LINE_BYTES = 4096

T = TypeVar("T")

log = Log("tenuto.audit")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Length and last seal of the chain at one time."""

    position: int
    seal: bytes
    at: datetime


async def record_checkpoint(database: Database, home: Path) -> None:
    """Record the head of the chain if the last checkpoint is an hour old and the chain has grown."""
    now = database.clock.now()
    identity = await audit_log.load_database_identity(database)
    known = await asyncio.to_thread(read_checkpoints, home, identity)
    if known and now - known[-1].at < CHECKPOINT_INTERVAL:
        return
    head = await audit_log.load_head(database)
    longest = max((checkpoint.position for checkpoint in known), default=0)
    if head.position < longest:  # the longer checkpoint is the proof, so it is not superseded
        log.error("audit chain shortened", previous_length=longest, length=head.position)
    elif head.position > longest:
        line = {"database": identity, "position": head.position, "seal": head.seal.hex(), "at": now.isoformat()}
        await asyncio.to_thread(append_line, home / FILE_NAME, json.dumps(line), parse_checkpoint)
        log.info("audit checkpoint recorded", position=head.position, seal=head.seal.hex())


def read_checkpoints(home: Path, database: str) -> Sequence[Checkpoint]:
    """Return the checkpoints of a database, oldest first."""
    file = home / FILE_NAME
    try:
        return [checkpoint for identity, checkpoint in read_lines(file, parse_checkpoint) if identity == database]
    except ValueError as error:
        raise Invalid(
            f"{file} contains a line that is not an audit checkpoint",
            code="audit.checkpoints.unreadable",
            remedy="restore the file from a backup; if it is lost, move it away: new checkpoints are then recorded",
        ) from error


def parse_checkpoint(line: bytes) -> tuple[str, Checkpoint]:
    """Parse a line of the file into the database identity and the checkpoint."""
    try:
        fields = json.loads(line)
        checkpoint = Checkpoint(
            int(fields["position"]), bytes.fromhex(fields["seal"]), datetime.fromisoformat(fields["at"])
        )
        return fields["database"], checkpoint
    except (KeyError, TypeError) as error:
        raise ValueError("not an audit checkpoint") from error


# --- files of lines --------------------------------------------------------------------------------------------------
# A crash may leave the beginning of a line; an editor or a secret store may leave a complete line without a line end.
# The parser distinguishes them: the beginning of a line must never parse.


def read_lines(file: Path, parse: Callable[[bytes], T]) -> list[T]:
    """Parse the complete lines of a file, if it exists; raise `ValueError` if one of them cannot be parsed."""
    try:
        *lines, rest = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [parse(line) for line in ([*lines, rest] if _is_complete(rest, parse) else lines)]


def append_line(file: Path, line: str, parse: Callable[[bytes], object]) -> None:
    """Append one line, completely or not at all, synced to disk, in a file that only its owner can read."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # until the file is closed: other processes may append
        size, remaining = os.fstat(handle).st_size, f"{line}\n".encode()
        rest = _read_unterminated_line(handle, size)
        if _is_complete(rest, parse):
            remaining = b"\n" + remaining
        else:
            size -= len(rest)
            os.ftruncate(handle, size)
        try:
            while remaining:  # a nearly full disk may write only a part
                remaining = remaining[os.write(handle, remaining) :]
        except OSError:
            os.ftruncate(handle, size)
            raise
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_unterminated_line(handle: int, size: int) -> bytes:
    tail = os.pread(handle, _MAX_LINE_BYTES, max(size - _MAX_LINE_BYTES, 0))
    return tail[tail.rfind(b"\n") + 1 :]


def _is_complete(line: bytes, parse: Callable[[bytes], object]) -> bool:
    try:
        parse(line)
    except ValueError:
        return False
    return True
