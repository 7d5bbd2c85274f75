"""The manager's rounds: a poll whenever a manifest is due, when one is changed, and now and then."""

from __future__ import annotations

from math import inf

from tenuto.clock import steady
from tenuto.engine import manager
from tenuto.engine.rounds import Rounds
from tenuto.logs import Log
from tenuto.store import manifests
from tenuto.store.database import Database

_SOON = 0.001
_HELD_BY_ANOTHER = 0.05
"""What was due and yet not ours to enqueue, because somebody else holds it, is looked at again so soon."""
THOROUGH_EVERY = 60.0
"""So often it looks through all failures of late, though a manifest may be due each second. The doctor counts on it."""

log = Log("tenuto.manager")


class Managing:
    """One manager, from start to stop."""

    def __init__(self, database: Database, name: str, poll_seconds: float) -> None:
        self._database = database
        self._name = name
        self._poll_seconds = poll_seconds
        self._left_out = manager.none_left_out()
        self._tried_all_at = steady()
        self._was_thorough_at = -inf
        self._rounds = Rounds("tenuto-manager", database, self.round, {"manifests"}, log)

    def start(self) -> None:
        self._rounds.start()

    async def stop(self) -> None:
        await self._rounds.stop()

    async def round(self) -> float:
        """One poll; how long until the next."""
        if steady() - self._tried_all_at >= self._poll_seconds:
            self._left_out.try_again()
            self._tried_all_at = steady()
        now = self._database.clock.now()
        thorough = steady() - self._was_thorough_at >= THOROUGH_EVERY
        result = await manager.poll(self._database, now, self._name, self._left_out, thorough=thorough)
        if thorough and result.broken is None:
            self._was_thorough_at = steady()
        if result.enqueued:
            log.debug("manifests enqueued", manifests=result.enqueued)
        if result.broken is not None:
            raise result.broken  # what is due is due still, and to poll for it without pause would not help
        due = await manifests.next_due(self._database, self._left_out.ids)
        if due is None:
            return self._poll_seconds
        if due <= now:
            return min(_HELD_BY_ANOTHER, self._poll_seconds)
        wait = (due - self._database.clock.now()).total_seconds()
        return min(max(wait, _SOON), self._poll_seconds)
