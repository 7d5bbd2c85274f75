"""The attempt log: one JSON line for each ended attempt, for systems that collect logs.

Lines go through the logger ``tenuto.attempts``, which is silent until a handler enables it: `AttemptLogWriter` by the
setting ``attempt_log``, or a handler of the program. Inputs and outputs are left out, because they may be confidential.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from logging.handlers import QueueHandler, QueueListener, WatchedFileHandler
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias
from uuid import UUID

from tenuto.jobs.redaction import process_redactor
from tenuto.logs import Log
from tenuto.model.work.tasks import Outcome, OutcomeStatus, Settlement
from tenuto.settings import Settings
from tenuto.tracing import trace_id_of

AttemptLogKind: TypeAlias = Literal["none", "failed", "all"]

logger = logging.getLogger("tenuto.attempts")
logger.propagate = False
logger.setLevel(logging.CRITICAL + 1)

MAX_LOG_CHARACTERS = 64 * 1024
"""Longest text of the attempt's own log in a line. Of a longer one the end is kept."""
MAX_WAITING_LINES = 10_000
"""Lines that may wait for a slow file."""
SETTLEMENT_ATTRIBUTE = "tenuto_settlement"
"""Attribute of a log record with the settled attempt."""
_FAILURES = (OutcomeStatus.FAILED, OutcomeStatus.COMPLETED_WITH_ERROR)

log = Log("tenuto.attempt_log")


@dataclass(frozen=True, slots=True)
class _AttemptMessage:
    """The message of a log record, formatted only if a handler needs it."""

    settlement: Settlement
    worker: str

    def __str__(self) -> str:
        return process_redactor.redact_json(json.dumps(attempt_fields(self.settlement, self.worker), default=str))


def report_attempts(settlements: Sequence[Settlement], written: Collection[UUID], worker: str) -> None:
    """Pass ended attempts whose outcomes are written to the handlers of the logger, if there are any."""
    if not logger.isEnabledFor(logging.ERROR):
        return
    for settlement in settlements:
        if settlement.outcome.deferral is not None or settlement.task.id not in written:
            continue
        level = logging.WARNING if settlement.outcome.status in _FAILURES else logging.INFO
        if logger.isEnabledFor(level):
            extra = {SETTLEMENT_ATTRIBUTE: settlement}
            logger.log(level, "%s", _AttemptMessage(settlement, worker), extra=extra)


def attempt_fields(settlement: Settlement, worker: str) -> dict[str, Any]:
    """Return the line of an attempt; fields without a value are left out."""
    task, outcome, retry = settlement.task, settlement.outcome, settlement.retry
    fields = {
        "timestamp": _format_instant(outcome.ended_at),
        "level": "warning" if outcome.status in _FAILURES else "info",
        "event": "attempt ended",
        "task_id": str(task.id),
        "activity_id": str(task.activity_id),
        "attempt": task.attempt,
        "job": task.name,
        "kind": task.kind,
        "queue": task.queue,
        "status": str(outcome.status),
        "reason": outcome.reason and str(outcome.reason),
        "retry_at": _format_instant(None if retry is None else retry.run_at),
        "due_at": _format_instant(task.run_at),
        "started_at": _format_instant(outcome.started_at),
        "start_delay_seconds": _seconds_between(task.run_at, outcome.started_at),
        "run_seconds": _seconds_between(outcome.started_at, outcome.ended_at),
        "worker": worker,
        "initiator": task.initiator_name,
        "correlation_id": task.correlation_id,
        "tags": task.tags or None,
        "execution_id": task.execution_id and str(task.execution_id),
        "manifest_id": task.manifest_id and str(task.manifest_id),
        "batch_id": task.batch_id and str(task.batch_id),
        "trace_id": trace_id_of(task.policy_json),
        "error": json.loads(outcome.error) if outcome.error else None,
        "log": _end_of_log(outcome),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _format_instant(instant: datetime | None) -> str | None:
    return None if instant is None else instant.isoformat().replace("+00:00", "Z")


def _seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else round((end - start).total_seconds(), 6)


def _end_of_log(outcome: Outcome) -> str | None:
    text = outcome.log
    if text is None or len(text) <= MAX_LOG_CHARACTERS:
        return text
    end = text[-MAX_LOG_CHARACTERS:]
    return f"… {len(text) - len(end)} characters cut …\n{end.partition(chr(10))[2] or end}"


class _BoundedQueueHandler(QueueHandler):
    """Hands records to the thread that writes them, and drops them rather than stop the worker."""

    dropped_count = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            if not self.dropped_count:
                log.error("attempt log incomplete: lines are written too slowly", waiting=MAX_WAITING_LINES)
            self.dropped_count += 1


class _Output:
    """A file, or stdout, with the thread that writes it. The workers of a process share it."""

    def __init__(self, kind: AttemptLogKind, file: Path | None) -> None:
        self.kind = kind
        self.user_count = 0
        target = _open_target(file)
        target.setFormatter(logging.Formatter("%(message)s"))
        self._target = target
        waiting: queue.Queue[logging.LogRecord] = queue.Queue(MAX_WAITING_LINES)
        self._handler = _BoundedQueueHandler(waiting)
        self._handler.setLevel(logging.WARNING if kind == "failed" else logging.INFO)
        self._listener = QueueListener(waiting, target)
        self._listener.start()
        logger.addHandler(self._handler)

    def close(self) -> None:
        """Write the waiting lines."""
        logger.removeHandler(self._handler)
        self._listener.stop()
        self._target.close()
        if self._handler.dropped_count:
            log.error("attempt log incomplete", dropped_lines=self._handler.dropped_count)


class AttemptLogWriter:
    """A service that writes the attempt log to a file, or to stdout, on a separate thread."""

    name = "tenuto-attempt-log"
    is_ready = True
    _outputs: ClassVar[dict[tuple[AttemptLogKind, Path | None], _Output]] = {}
    _level_before = logger.level

    def __init__(self, settings: Settings) -> None:
        self._key = (settings.attempt_log, settings.attempt_log_file)

    async def start(self) -> None:
        kind, file = self._key
        if kind == "none":
            return
        if not self._outputs:
            AttemptLogWriter._level_before = logger.level
        output = self._outputs.get(self._key)
        if output is None:
            output = self._outputs[self._key] = _Output(kind, file)
        output.user_count += 1
        logger.setLevel(min(logger.level, logging.INFO if kind == "all" else logging.WARNING))

    async def stop(self) -> None:
        """Write the waiting lines, unless another worker of this process continues."""
        output = self._outputs.get(self._key)
        if output is None:
            return
        output.user_count -= 1
        if output.user_count:
            return
        del self._outputs[self._key]
        if not self._outputs:
            logger.setLevel(self._level_before)
        output.close()


def _open_target(file: Path | None) -> logging.Handler:
    """Return the handler that writes: a file that may be rotated, or stdout as it was before the capture of output."""
    if file is None:
        return logging.StreamHandler(sys.stdout)
    return WatchedFileHandler(file, encoding="utf-8")
