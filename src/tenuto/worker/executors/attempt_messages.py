"""The messages between a worker and the cluster process that runs code for it.

A launch request goes through the engine (Celery, Dask or Ray) as one JSON text. Everything else goes over a connection
that the cluster process opens to the worker, as one JSON object per line:

- cluster process → worker, not numbered: `hello`, `ping`.
- cluster process → worker, numbered: `start`, `progress`, `log`, `call`, `ended`. After a lost connection, the process
  sends them again until the worker has confirmed the number.
- worker → cluster process: `welcome`, `pong`, `permit`, `stop`, `reply`, `confirm`.

A launch request contains the name of the app and of the job, never their code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from tenuto.model.work.tasks import Deferral, Outcome, OutcomeReason, OutcomeStatus, Task, WaitKey

PROTOCOL = 1
MAX_LINE_BYTES = 16 * 1024 * 1024
"""More than the largest input or output with its log."""

Message = dict[str, Any]

_task: TypeAdapter[Task] = TypeAdapter(Task)
_instant: TypeAdapter[datetime] = TypeAdapter(datetime)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Asks a cluster process to run one attempt for the worker that listens on ``addresses``."""

    id: str
    """Identifies the launch. The worker permits each launch to start once."""
    addresses: list[str]
    port: int
    token: str
    app: str
    """MODULE:OBJECT of the app, as in ``--app``."""
    task: Task

    def to_json(self) -> str:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "task"}
        return to_json({"protocol": PROTOCOL, **fields, "task": _task.dump_python(self.task, mode="json")}).decode()

    @classmethod
    def from_json(cls, text: str) -> LaunchRequest:
        fields = from_json(text)
        if fields.pop("protocol", None) != PROTOCOL:
            raise ValueError("the worker runs another version of Tenuto than this process")
        return cls(**{**fields, "task": _task.validate_python(fields["task"])})


def encode_line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def encode_outcome(outcome: Outcome | None, *, is_stopped: bool) -> Message:
    """Return an outcome as a message, without what the worker knows: times, log, progress and reason of a stop."""
    if outcome is None or (is_stopped and outcome.status in (OutcomeStatus.FAILED, OutcomeStatus.CANCELLED)):
        return {"is_stopped": True}
    message: Message = {
        "status": outcome.status.value,
        "reason": None if outcome.reason is None else outcome.reason.value,
        "output": outcome.output,
        "error": outcome.error,
        "may_retry": outcome.may_retry,
    }
    if outcome.retry_at is not None and outcome.ended_at is not None:
        message["retry_after"] = (outcome.retry_at - outcome.ended_at).total_seconds()
    if outcome.deferral is not None:
        if outcome.deferral.resume_at is not None:
            message["resume_at"] = outcome.deferral.resume_at.isoformat()
        if outcome.deferral.waits:
            message["waits"] = [[each.step, each.number] for each in outcome.deferral.waits]
        message["is_deferred"] = True
    return message


def decode_outcome(message: Mapping[str, Any]) -> tuple[Outcome, float | None]:
    """Return an outcome without its times, and the delay in seconds after which the job wants to be retried."""
    outcome = Outcome(
        OutcomeStatus(message["status"]),
        None if message["reason"] is None else OutcomeReason(message["reason"]),
        output=message["output"],
        error=message["error"],
        may_retry=message["may_retry"],
    )
    if message.get("is_deferred"):
        resume_at, waits = message.get("resume_at"), message.get("waits", [])
        outcome.deferral = Deferral(
            None if resume_at is None else _instant.validate_python(resume_at),
            waits=tuple(WaitKey(*each) for each in waits),
        )
    return outcome, message.get("retry_after")
