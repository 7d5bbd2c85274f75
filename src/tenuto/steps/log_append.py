"""The step kind ``log.append``: append one entry to a named log, once, however often the task is retried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.model import validation
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.definitions.steps import LOG_APPEND
from tenuto.store import named_logs

if TYPE_CHECKING:
    from tenuto.steps.built_in_kinds import StepServices

KIND = LOG_APPEND

LogName = Annotated[str, AfterValidator(validation.check_log_name)]
Message = Annotated[str, AfterValidator(validation.check_log_message)]
Fields = Annotated[dict[str, Any] | None, AfterValidator(validation.check_log_fields)]


def create_job(services: StepServices) -> Job[..., Any]:
    """Create the handler of this kind."""

    async def log_append(
        ctx: Context, message: Message, log: LogName = validation.DEFAULT_LOG_NAME, fields: Fields = None
    ) -> dict[str, Any]:
        """Append an entry to a named log."""
        database = await services.open_database()
        entry = await named_logs.append_entry(
            database, log, database.clock.now(), message, fields, key=ctx.task_id, task_id=ctx.task_id
        )
        return {"log": entry.log, "entry": entry.id}

    return Job(log_append, KIND, TaskPolicy(), TaskOptions(), isolated=False)
