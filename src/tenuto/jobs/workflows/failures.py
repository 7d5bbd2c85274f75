"""Failures of steps and child jobs as the code of a workflow sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from pydantic_core import from_json, to_json

from tenuto.errors import TenutoError
from tenuto.jobs.context import PermanentFailure
from tenuto.model.validation import truncate_text

_MAX_MESSAGE_CHARACTERS = 8192


class StepFailed(TenutoError):
    """Raised by `Context.step` where the step failed: the same error in the attempt that ran it and in later ones."""

    def __init__(self, step: str, error_type: str, text: str, *, is_permanent: bool = False) -> None:
        super().__init__(f"step {step} failed: {error_type}: {text}", code="workflow.step.failed")
        self.step = step
        self.error_type = error_type
        """The name of the type of the error, such as ``ConnectionError``."""
        self.text = text
        """The message of the error."""
        self.is_permanent = is_permanent
        """Whether a retry of the task would raise it again."""

    @classmethod
    def from_error(cls, step: str, error: Exception) -> StepFailed:
        try:
            text = str(error)
        except Exception:  # noqa: BLE001 — the methods of an error are user code
            text = "(the error message cannot be printed)"
        text = truncate_text(text, _MAX_MESSAGE_CHARACTERS)
        failed = cls(step, type(error).__name__, text, is_permanent=isinstance(error, PermanentFailure))
        failed.__cause__ = error
        return failed

    def dump(self) -> str:
        """Return the failure as a checkpoint."""
        fields = {"type": self.error_type, "message": self.text, "is_permanent": self.is_permanent}
        return to_json({"failure": fields}).decode()


class ChildFailed(PermanentFailure):
    """Raised by `Context.run` where the child task failed for good or was cancelled, in every attempt."""

    def __init__(self, job: str, task_id: str, status: str, error: Mapping[str, Any] | None) -> None:
        details = error or {}
        self.job = job
        self.task_id = UUID(task_id)
        self.status = status
        """How the child ended, such as ``failed`` or ``cancelled``."""
        self.error_type: str | None = details.get("type")
        self.text: str = details.get("message", "")
        how = status.replace("_", " ")
        super().__init__(
            f"child task {task_id} ({job}) ended as {how}: {self.text}"
            if self.text
            else f"child task {task_id} ({job}) ended as {how}",
            code="workflow.child.failed",
        )


def load_failure(step: str, text: str) -> StepFailed | None:
    """Return the failure that a checkpoint holds; None for the checkpoint of a result."""
    if not text.startswith('{"failure"'):
        return None
    fields: dict[str, Any] = from_json(text)["failure"]
    return StepFailed(step, fields["type"], fields["message"], is_permanent=fields["is_permanent"])
