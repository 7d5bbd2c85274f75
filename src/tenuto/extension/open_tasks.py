"""Open tasks for extensions: whether the task behind a record of an extension still waits or runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from tenuto.postgres.database import Connection


async def find_open_tasks(connection: Connection, task_ids: Collection[UUID]) -> set[UUID]:
    """Return those of these tasks that wait, run, or will be tried again; the others have ended, or never existed.

    A lost attempt counts as running until its loss is noticed. Read the records that name the tasks first, and call
    this afterwards: then a task that is missing from the result has ended.
    """
    from tenuto.store.work import tasks

    return await tasks.find_open_tasks(connection, task_ids) if task_ids else set()
