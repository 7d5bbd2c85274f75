"""Named log operations (``app.logs``): list, read and append to the logs of steps and operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.model import validation
from tenuto.model.filter_keys import LOG_ENTRY_KEYS
from tenuto.model.filters import Filter
from tenuto.operations.argument_checks import build_filter, check_limit
from tenuto.operations.bound_operation import OperationGroup
from tenuto.postgres.database import Connection
from tenuto.store import named_logs
from tenuto.store.named_logs import LogEntryRecord, NamedLogRecord


class Logs(OperationGroup):
    """Operations on named logs."""

    async def names(self, *, search: str = "", after: str = "", limit: int = 100) -> Sequence[NamedLogRecord]:
        """List the logs whose name contains a text, by name, each with its newest entry; page with ``after``."""
        return await named_logs.list_logs(await self._open(), after, check_limit(limit), search)

    async def read(
        self,
        log: str = validation.DEFAULT_LOG_NAME,
        where: str | Filter | None = None,
        *,
        below: int | None = None,
        above: int | None = None,
        oldest_first: bool = False,
        limit: int = 100,
    ) -> Sequence[LogEntryRecord]:
        """List the entries of a log, newest first or ``oldest_first``. A log without entries is empty.

        ``where`` is a filter such as ``at:>1d refused``. Page with the id of the last entry: ``below`` with newest
        first, ``above`` with oldest first.
        """
        if (above if not oldest_first else below) is not None:
            field, order = ("below", "oldest") if oldest_first else ("above", "newest")
            raise Invalid(
                f"{field} cannot be used with the {order} entries first",
                code="log.order.conflict",
                field=field,
                remedy="use above with oldest_first, below without it",
            )
        validation.check_log_name(log)
        bound = above if oldest_first else below
        if bound is not None and not 0 <= bound < 2**63:
            raise Invalid(
                f"{bound} is not the id of a log entry",
                code="log.entry_id.invalid",
                field="above" if oldest_first else "below",
            )
        find = named_logs.list_oldest_entries if oldest_first else named_logs.list_newest_entries
        database = await self._open()
        filter = build_filter(LOG_ENTRY_KEYS, where, database.clock.now())
        return await find(database, log, bound, check_limit(limit), filter)

    async def append(
        self, log: str, message: str, fields: Mapping[str, Any] | None = None, *, key: UUID | None = None
    ) -> LogEntryRecord:
        """Append an entry and return it. Calls with the same ``key`` append one entry."""
        given = None if fields is None else dict(fields)
        validation.check_log_name(log)
        validation.check_log_message(message)
        validation.check_log_fields(given)
        operation = await self._begin("log.append", target=log, after={"message": message, "fields": given})
        entry_key = key or new_id()

        async def append(connection: Connection) -> LogEntryRecord:
            entry, is_new = await named_logs.append_entry_in_tx(
                connection, log, operation.now, message, given, key=entry_key
            )
            if not is_new:
                operation.entry.mark_unchanged()
            return entry

        return await operation.database.transaction(append)
