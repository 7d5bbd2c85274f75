"""The receiver of notifications: a real HTTP server that keeps every document, and refuses some at first."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tenuto import Tenuto
from tests.support.http_site import ReceivedRequest, Send, Site, make_response

EACH, GROUPED = "each failed task", "dead letters, grouped"
"""Rules: one message for each event, and one for the events of a time."""
_PATH = "/hook"
_REFUSAL_PROBABILITY = 0.1


class NotificationReceiver(Site):
    """An HTTP server on loopback in a thread of the chaos run. It is never killed, so what it received is a fact."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._accepted: list[dict[str, Any]] = []
        self.pages[_PATH] = self._receive

    def _receive(self, request: ReceivedRequest, send: Send) -> None:
        if self._chance.random() < _REFUSAL_PROBABILITY:
            send(make_response(503, b"", "Retry-After: 1"))
            return
        self._accepted.append(json.loads(request.body))
        send(make_response(204))

    def messages(self) -> Sequence[tuple[str, UUID, int]]:
        """Return rule, id and number of events of each message that was received, each once."""
        found = {UUID(each["id"]): (each["rule"], UUID(each["id"]), int(each["count"])) for each in self._accepted}
        return list(found.values())

    def named_tasks(self) -> Sequence[tuple[UUID, UUID]]:
        """Return message and task of each failed task that a message names."""
        return sorted(
            {
                (UUID(document["id"]), UUID(event["fields"]["id"]))
                for document in self._accepted
                if document["rule"] == EACH
                for event in document["events"]
            }
        )

    async def create_rules(self, app: Tenuto) -> None:
        for name, event, window in ((EACH, "task.failed", 0), (GROUPED, "dead_letter.opened", 2)):
            channel = {"kind": "webhook", "url": self.url(_PATH)}
            rule = {"name": name, "event": event, "channel": channel, "group": {"window": window}}
            await app.extensions.notifications.create(rule)
