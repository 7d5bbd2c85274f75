"""Links with which approvers decide, created when a message is delivered: their text is in the mail and nowhere else.

An attempt creates links for the persons whose mail the mail server has not accepted yet. Those of an earlier attempt
stay valid, because its mail may have arrived.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.extension import ExtensionServices
from tenuto.jobs.context import PermanentFailure
from tenuto.model.access.actors import Actor
from tenuto.model.access.operation_context import OperationCaller
from tenuto.operations.events.approvals import Approvals
from tenuto_notifications.model.events import APPROVAL_EVENT
from tenuto_notifications.model.rules import is_address
from tenuto_notifications.settings import NotificationSettings


@dataclass(frozen=True, slots=True)
class ApproverLink:
    """A link for one approver about one event of a message."""

    person: str
    address: str
    title: str
    url: str


async def create_links(
    services: ExtensionServices, rule_name: str, document: Mapping[str, Any], *, mailed: Collection[str] = ()
) -> tuple[Sequence[ApproverLink], Sequence[str]]:
    """Create a link for each approver of the pending approvals that a message names; a test message names none.

    Persons who have been ``mailed``, and those without a known address, get none. Return the links, and the approvers
    without a known address.
    """
    base_url = services.get_settings().base_url
    section = services.section(NotificationSettings)
    actor = Actor.system(f"notification rule {rule_name}"[:200])
    operations = Approvals(services.open_database, OperationCaller(lambda: actor, True, "notifications"))
    found: list[ApproverLink] = []
    unknown: dict[str, None] = {}
    for event in document["events"]:
        if event["event"] != APPROVAL_EVENT or "id" not in event["fields"]:
            continue
        if base_url is None:
            raise PermanentFailure(
                "the address of the dashboard is not set, so approvers cannot get links",
                code="notifications.base_url.not_set",
                remedy="set TENUTO_BASE_URL on workers, and retry the dead letter",
            )
        id = UUID(event["fields"]["id"])
        addresses = {person: find_address(section, person) for person in await operations.list_undecided(id)}
        unknown |= {person: None for person, address in addresses.items() if address is None}
        known = {person: address for person, address in addresses.items() if address and person not in mailed}
        links = await operations.create_links(id, persons=known) if known else []
        found += [
            ApproverLink(each.person, known[each.person], event["title"], f"{base_url}{each.path}") for each in links
        ]
    return found, list(unknown)


def find_address(section: NotificationSettings, person: str) -> str | None:
    """Return the e-mail address of an approver."""
    return section.addresses.get(person) or (person if is_address(person) else None)
