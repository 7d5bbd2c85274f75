"""The step kind ``log.append``: one entry in a named log of the database's, once however often the task is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job, Using
from tenuto.model import stored_values
from tenuto.model.policies import Policy
from tenuto.model.steps import LOG_APPEND
from tenuto.store import named_logs

if TYPE_CHECKING:
    from tenuto.steps.step_kinds import Means

KIND = LOG_APPEND

LogName = Annotated[str, AfterValidator(stored_values.log_name)]
Message = Annotated[str, AfterValidator(stored_values.message)]
Fields = Annotated[dict[str, Any] | None, AfterValidator(stored_values.fields)]


def job(means: Means) -> Job[..., Any]:
    """What runs the steps of this kind."""

    async def log_append(
        ctx: Context, message: Message, log: LogName = stored_values.DEFAULT, fields: Fields = None
    ) -> dict[str, Any]:
        """Append an entry to a named log."""
        database = await means.open()
        entry = await named_logs.append(
            database, log, database.clock.now(), message, fields, key=ctx.task_id, task_id=ctx.task_id
        )
        return {"log": entry["log"], "entry": entry["id"]}

    return Job(log_append, KIND, Policy(), Using(), isolated=False)
