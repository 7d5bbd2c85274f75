"""``app.logs``: named logs that steps and people append to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid
from tenuto.ids import new_id
from tenuto.model import stored_values
from tenuto.operations.listing import Open, Record, listed
from tenuto.store import named_logs
from tenuto.store.access import audit_recorder


class Logs:
    """``app.logs``: named logs that steps and people append to."""

    def __init__(self, open: Open) -> None:
        self._open = open

    async def names(self, *, after: str = "", limit: int = 100) -> Sequence[Record]:
        """The logs there are, by name, each with its newest entry; page with ``after``."""
        return await named_logs.names(await self._open(), after, listed(limit))

    async def read(
        self,
        log: str = stored_values.DEFAULT,
        *,
        below: int | None = None,
        above: int | None = None,
        oldest_first: bool = False,
        limit: int = 100,
    ) -> Sequence[Record]:
        """Entries of a log, the newest first, and on request the oldest. A log nobody has appended to is empty.

        Page with the id of the last entry: ``below`` it if the newest come first, ``above`` it if the oldest do.
        """
        if (above if not oldest_first else below) is not None:
            field, way = ("below", "oldest") if oldest_first else ("above", "newest")
            raise Invalid(f"does not go with the {way} first", field=field, remedy="turn the order round")
        stored_values.log_name(log)
        bound = above if oldest_first else below
        if bound is not None and not 0 <= bound < 2**63:
            raise Invalid("is not the id of an entry", field="above" if oldest_first else "below")
        find = named_logs.oldest if oldest_first else named_logs.newest
        return await find(await self._open(), log, bound, listed(limit))

    async def append(
        self, log: str, message: str, fields: Mapping[str, Any] | None = None, *, key: UUID | None = None
    ) -> Record:
        """Append an entry; what is stored. A key makes sure that it is appended once, however often that is asked."""
        given = None if fields is None else dict(fields)
        stored_values.log_name(log)
        stored_values.message(message)
        stored_values.fields(given)
        database = await self._open()
        audit_recorder.tell(target=log, after={"message": message, "fields": given})
        return await named_logs.append(database, log, database.clock.now(), message, given, key=key or new_id())
