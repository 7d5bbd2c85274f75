"""Routes under ``/api/v1/notifications``: rules, silences, test messages and deliveries."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from tenuto.api.api_route import ApiRoute
from tenuto.api.bodies.request_bodies import Body
from tenuto.api.csv_lists import listed_as
from tenuto.api.list_filters import FILTER_PROBLEMS
from tenuto.api.list_pages import After, Items, Limit, Page, decode_key, make_page
from tenuto.api.openapi import describe, describe_page
from tenuto.api.parameters import Id, Name
from tenuto.api.security.authentication import ApiCall, requires
from tenuto.model.access.actors import Role
from tenuto_notifications.model.rules import Channel, Grouping, QuietTime, Template
from tenuto_notifications.operations import Delivery, EventDescription, NotificationOperations, RuleView
from tenuto_notifications.store.rules import SilenceRecord
from tenuto_notifications.views import DELIVERIES, RULES

router = APIRouter(tags=["notifications"], route_class=ApiRoute)

DEFINITION: dict[str, Any] = {
    "name": "failures",
    "event": "execution.failed",
    "filter": "schedule:~nightly",
    "channel": {"kind": "webhook", "url": "https://example.org/hook", "signing_key": {"secret": "hook-key"}},
}
RULE: dict[str, Any] = {
    "name": "failures",
    "enabled": True,
    "event": "execution.failed",
    "filter": "schedule:~nightly",
    "channel": "webhook",
    "target": "https://example.org/hook",
    "definition": DEFINITION,
    "origin": "operator",
    "active_since": "2031-05-04T02:00:00Z",
    "updated_at": "2031-05-04T02:00:00Z",
    "updated_by": "ana",
}
DELIVERY: dict[str, Any] = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "rule": "failures",
    "event": "execution.failed",
    "event_count": 3,
    "is_test": False,
    "channel": "webhook",
    "target": "https://example.org/hook",
    "subject": "Nightly HR Sync failed (and 2 more)",
    "document": {},
    "created_at": "2031-05-04T02:00:00Z",
    "state": "delivered",
    "attempt": 1,
    "ended_at": "2031-05-04T02:00:01Z",
    "error": None,
}
SILENCE: dict[str, Any] = {
    "id": "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1",
    "rule_name": "failures",
    "starts_at": "2031-05-04T02:00:00Z",
    "ends_at": "2031-05-04T04:00:00Z",
    "reason": "maintenance",
    "created_at": "2031-05-04T02:00:00Z",
    "created_by": "ana",
}
EVENT: dict[str, Any] = {
    "name": "queue.waiting",
    "help": "The oldest task of a queue has waited for some time.",
    "fields": ["queue", "tasks", "due", "condition"],
    "is_condition": True,
    "default_after": 300.0,
}
INVALID = (
    "notifications.rule.invalid",
    "notifications.event.unknown",
    "notifications.field.unknown",
    "notifications.rule.after_unused",
    "value.duration.invalid",
    *(code for code in FILTER_PROBLEMS if code.startswith("filter.")),
)
NOT_FOUND = "notifications.rule.not_found"
Viewer = Annotated[ApiCall, requires(Role.VIEWER, "notifications.read")]


class RuleFields(Body):
    """A notification rule, without its name."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{name: value for name, value in DEFINITION.items() if name != "name"}]}
    )

    description: str = Field(default="", max_length=1000)
    enabled: bool = True
    event: str = Field(max_length=200, description="What the rule waits for; see the list of events.")
    filter: str = Field(default="", max_length=500, description="Filter of the events; empty for all.")
    after: float | str | None = Field(default=None, description="How long a condition must last, such as `15m`.")
    recovered: bool = Field(default=True, description="Whether the end of a condition is an event, too.")
    channel: Channel
    template: Template | None = None
    quiet: QuietTime | None = None
    group: Grouping | None = None

    def to_definition(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_none=True, exclude_unset=True) | {
            "channel": self.channel.model_dump(mode="json", exclude_none=True)
        }


class NewRule(RuleFields):
    """A notification rule."""

    model_config = ConfigDict(json_schema_extra={"examples": [DEFINITION]})

    name: str = Field(max_length=120)


class NewSilence(Body):
    """A time in which a rule, or every rule, sends nothing."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"rule": "failures", "duration": "2h", "reason": "maintenance"}]}
    )

    rule: str | None = Field(default=None, max_length=120, description="Name of the rule; null for all rules.")
    duration: float | str = Field(description="How long, such as `2h`; at most 90 days.")
    starts_at: datetime | None = Field(default=None, description="Begin; now by default.")
    reason: str | None = Field(default=None, max_length=1000)


def _operations(call: ApiCall) -> NotificationOperations:
    found: NotificationOperations = call.app.extensions.notifications
    return found


@router.get("/rules", operation_id="notification_rules_list", responses=describe_page(RULE))
@listed_as(RULES)
async def list_rules(call: Viewer, limit: Limit = 100, after: After = None) -> Page[RuleView]:
    """List notification rules by name."""
    found = await _operations(call).rules(after=decode_key(after, str) or "", limit=limit)
    return make_page(found, limit, lambda each: (each.name,))


@router.post(
    "/rules",
    operation_id="notification_rules_create",
    status_code=201,
    responses=describe(RULE, 201, conflict="notifications.rule.exists", invalid=INVALID),
)
async def create_rule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "notifications.rule.create")], new: NewRule
) -> RuleView:
    """Create a notification rule. It concerns events from now on."""
    return await _operations(call).create(new.to_definition(), reason=call.reason)


@router.get("/rules/{name:name}", operation_id="notification_rules_get", responses=describe(RULE, not_found=NOT_FOUND))
async def get_rule(call: Viewer, name: Name) -> RuleView:
    """Return one notification rule."""
    return await _operations(call).get(name)


@router.put(
    "/rules/{name:name}",
    operation_id="notification_rules_edit",
    responses=describe(RULE, not_found=NOT_FOUND, invalid=INVALID),
)
async def edit_rule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "notifications.rule.edit")], name: Name, rule: RuleFields
) -> RuleView:
    """Replace a notification rule; its name stays."""
    return await _operations(call).edit(name, rule.to_definition(), reason=call.reason)


@router.delete(
    "/rules/{name:name}",
    operation_id="notification_rules_delete",
    status_code=204,
    responses=describe(None, 204, not_found=NOT_FOUND),
)
async def delete_rule(call: Annotated[ApiCall, requires(Role.EDITOR, "notifications.rule.delete")], name: Name) -> None:
    """Delete a notification rule. Its messages stay until retention deletes them."""
    await _operations(call).delete(name, reason=call.reason)


@router.post(
    "/rules/{name:name}/enable", operation_id="notification_rules_enable", responses=describe(RULE, not_found=NOT_FOUND)
)
async def enable_rule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "notifications.rule.enable")], name: Name
) -> RuleView:
    """Enable a notification rule. Events from before do not concern it."""
    return await _operations(call).enable(name, reason=call.reason)


@router.post(
    "/rules/{name:name}/disable",
    operation_id="notification_rules_disable",
    responses=describe(RULE, not_found=NOT_FOUND),
)
async def disable_rule(
    call: Annotated[ApiCall, requires(Role.EDITOR, "notifications.rule.disable")], name: Name
) -> RuleView:
    """Disable a notification rule. Collected events that are in no message are dropped."""
    return await _operations(call).disable(name, reason=call.reason)


@router.post(
    "/rules/{name:name}/test",
    operation_id="notification_rules_test",
    status_code=202,
    responses=describe(DELIVERY, 202, not_found=NOT_FOUND),
)
async def send_test(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "notifications.rule.test", handles_repeats=True)], name: Name
) -> Delivery:
    """Send a test message, also of a rule that is disabled, silenced or quiet."""
    return await _operations(call).test(name, reason=call.reason, request_id=call.object_id)


@router.get("/events", operation_id="notification_events_list", responses=describe({"items": [EVENT]}))
async def list_events(call: Viewer) -> Items[EventDescription]:
    """List the events that rules may wait for, with the fields of filters and templates."""
    return Items(items=list(_operations(call).events()))


@router.get("/silences", operation_id="notification_silences_list", responses=describe({"items": [SILENCE]}))
async def list_silences(
    call: Viewer, rule: Annotated[str | None, Query(max_length=120, description="Filter by rule.")] = None
) -> Items[SilenceRecord]:
    """List the silences that have not ended, at most 100."""
    return Items(items=list(await _operations(call).silences(rule=rule)))


@router.post(
    "/silences",
    operation_id="notification_silences_create",
    status_code=201,
    responses=describe(
        SILENCE,
        201,
        not_found=NOT_FOUND,
        invalid=("notifications.silence.out_of_range", "value.duration.invalid", "value.instant.no_utc_offset"),
    ),
)
async def create_silence(
    call: Annotated[ApiCall, requires(Role.OPERATOR, "notifications.silence.create", handles_repeats=True)],
    new: NewSilence,
) -> SilenceRecord:
    """Send nothing of a rule, or of all rules, for a time. Events of that time are recorded and never sent."""
    return await _operations(call).silence(
        new.rule,
        new.duration,
        starts_at=new.starts_at,
        reason=new.reason or call.reason,
        request_id=call.object_id,
    )


@router.delete(
    "/silences/{id}",
    operation_id="notification_silences_end",
    status_code=204,
    responses=describe(None, 204, not_found="notifications.silence.not_found"),
)
async def end_silence(call: Annotated[ApiCall, requires(Role.OPERATOR, "notifications.silence.end")], id: Id) -> None:
    """End a silence now."""
    await _operations(call).end_silence(id, reason=call.reason)


@router.get(
    "/deliveries",
    operation_id="notification_deliveries_list",
    responses=describe_page(DELIVERY, invalid="notifications.delivery.state_unknown"),
)
@listed_as(DELIVERIES)
async def list_deliveries(
    call: Viewer,
    rule: Annotated[str | None, Query(max_length=120, description="Filter by rule.")] = None,
    state: Annotated[
        str | None, Query(max_length=20, description="Filter by state: open, delivered or failed.")
    ] = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[Delivery]:
    """List messages with what became of them, newest first."""
    found = await _operations(call).deliveries(rule=rule, state=state, below=decode_key(after, UUID), limit=limit)
    return make_page(found, limit, lambda each: (each.id,))


@router.get(
    "/deliveries/{id}",
    operation_id="notification_deliveries_get",
    responses=describe(DELIVERY, not_found="notifications.message.not_found"),
)
async def get_delivery(call: Viewer, id: Id) -> Delivery:
    """Return one message with what became of it."""
    return await _operations(call).delivery(id)
