"""Links with which approvers decide, created when a message is delivered: their text is in the mail and nowhere else.

Every attempt creates new ones. Those of an earlier attempt stay valid, because its mail may have arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.extension import ExtensionServices
from tenuto.jobs.context import PermanentFailure
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.operations.events.approvals import Approvals
from tenuto_notifications.model.events import APPROVAL_EVENT


@dataclass(frozen=True, slots=True)
class ApproverLink:
    """A link for one approver about one event of a message."""

    person: str
    title: str
    url: str


async def create_links(
    services: ExtensionServices, rule_name: str, document: Mapping[str, Any]
) -> Sequence[ApproverLink]:
    """Create a link for each approver of the pending approvals that a message names; a test message names none."""
    base_url = services.get_settings().base_url
    actor = Actor.system(f"notification rule {rule_name}"[:200])
    operations = Approvals(services.open_database, OperationCaller(lambda: actor, True, "notifications"))
    found: list[ApproverLink] = []
    for event in document["events"]:
        if event["event"] != APPROVAL_EVENT or "id" not in event["fields"]:
            continue
        if base_url is None:
            raise PermanentFailure(
                "the address of the dashboard is not set, so approvers cannot get links",
                code="notifications.base_url.not_set",
                remedy="set TENUTO_BASE_URL on workers, and retry the dead letter",
            )
        links = await operations.create_links(UUID(event["fields"]["id"]))
        found += [ApproverLink(each.person, event["title"], f"{base_url}{each.path}") for each in links]
    return found
