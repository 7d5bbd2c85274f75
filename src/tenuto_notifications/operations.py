"""The operations ``app.extensions.notifications``: rules, silences, test messages and deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tenuto.errors import Conflict, Invalid, NotFound, quoted
from tenuto.extension import ExtensionServices
from tenuto.ids import new_id
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.operations.argument_checks import check_limit
from tenuto.operations.bound_operation import Operation, OperationGroup
from tenuto.postgres.database import Connection
from tenuto_notifications.collection.message_creation import create_message
from tenuto_notifications.collection.topics import list_topics
from tenuto_notifications.delivery.webhooks import check_channel
from tenuto_notifications.model.events import KINDS, require_known_event
from tenuto_notifications.model.messages import ListedEvent
from tenuto_notifications.model.rules import Rule, describe_channel, load_rule, parse_rule
from tenuto_notifications.store import messages, rules
from tenuto_notifications.store.messages import MessageRecord
from tenuto_notifications.store.rules import RuleRecord, SilenceRecord

MAX_SILENCE = timedelta(days=90)
DELIVERY_STATES: Mapping[str, tuple[str, ...] | None] = {
    "open": ("queued", "scheduled", "running", "waiting"),
    "delivered": ("completed", "completed_with_warning"),
    "failed": ("failed", "completed_with_error", "cancelled"),
}
"""The states of deliveries, with the states of tasks and the outcomes of attempts that they stand for."""


@dataclass(frozen=True, slots=True)
class RuleView:
    """A notification rule as interfaces show it."""

    name: str
    enabled: bool
    event: str
    filter: str
    channel: str
    """Kind of the channel."""
    target: str
    """Where messages go, without a credential."""
    definition: dict[str, Any]
    """The whole rule as plain data."""
    origin: str
    """``file`` or ``operator``."""
    active_since: datetime
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message and what became of it."""

    id: UUID
    """Also the id of the task that delivers it."""
    rule: str
    event: str
    event_count: int
    is_test: bool
    channel: str
    target: str
    subject: str
    document: dict[str, Any]
    """What webhooks and jobs receive."""
    created_at: datetime
    state: str
    """``open``, ``delivered``, ``failed``, or ``unknown`` if retention has deleted the task."""
    attempt: int | None
    ended_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class EventDescription:
    """A kind of event that rules may wait for."""

    name: str
    help: str
    fields: list[str]
    """Keys of filters, and placeholders of templates."""
    is_condition: bool
    default_after: float | None


class NotificationOperations(OperationGroup):
    """Notification rules and their deliveries."""

    def __init__(self, services: ExtensionServices) -> None:
        super().__init__(services.open_database, services.caller)
        self._services = services

    # --- queries --------------------------------------------------------------------------------------------------

    async def rules(self, *, after: str = "", limit: int = 100) -> Sequence[RuleView]:
        """List rules by name; page with ``after``."""
        return [to_view(each) for each in await rules.list_rules(await self._open(), after, check_limit(limit))]

    async def get(self, name: str) -> RuleView:
        """Return one rule."""
        found = await rules.load_rule(await self._open(), name)
        if found is None:
            raise _rule_not_found(name)
        return to_view(found)

    async def silences(self, *, rule: str | None = None, limit: int = 100) -> Sequence[SilenceRecord]:
        """List silences that have not ended."""
        database = await self._open()
        return await rules.list_silences(database, database.clock.now(), rule, check_limit(limit))

    async def deliveries(
        self, *, rule: str | None = None, state: str | None = None, below: UUID | None = None, limit: int = 100
    ) -> Sequence[Delivery]:
        """List messages with what became of them, newest first; page with ``below``."""
        if state is not None and state not in DELIVERY_STATES:
            raise Invalid(
                f"the state {quoted(state, 40)} is unknown",
                code="notifications.delivery.state_unknown",
                field="state",
                remedy=f"use one of {', '.join(DELIVERY_STATES)}",
            )
        states = None if state is None else DELIVERY_STATES[state]
        found = await messages.list_messages(
            await self._open(), below=below, rule_name=rule, states=states, limit=check_limit(limit)
        )
        return [to_delivery(each) for each in found]

    async def delivery(self, id: UUID) -> Delivery:
        """Return one message with what became of it."""
        found = await messages.load_message(await self._open(), id)
        if found is None:
            raise NotFound(f"there is no notification {id}", code="notifications.message.not_found")
        return to_delivery(found)

    def events(self) -> Sequence[EventDescription]:
        """List the events that rules may wait for: those of Tenuto, then topics of extensions."""
        own = [
            EventDescription(kind.name, kind.help, list(kind.field_names), kind.is_condition, kind.default_after)
            for kind in KINDS
        ]
        topics = [
            EventDescription(topic, "An event of an extension.", [], is_condition=False, default_after=None)
            for topic in list_topics(self._services)
        ]
        return [*own, *topics]

    # --- rules ----------------------------------------------------------------------------------------------------

    async def create(self, definition: Mapping[str, Any], *, reason: str | None = None) -> RuleView:
        """Create a rule from plain data; see `tenuto_notifications.model.rules.Rule`."""
        rule = self._parse(definition)
        fields = rule.to_fields()
        operation = await self._begin("notifications.rule.create", target=rule.name, after=fields, reason=reason)

        async def insert(connection: Connection) -> None:
            if not await rules.insert_rule(
                connection, rule.name, fields, enabled=rule.enabled, origin="operator", declared=None,
                now=operation.now, author=operation.actor.name,
            ):  # fmt: skip
                raise Conflict(
                    f"there is a notification rule {quoted(rule.name)}",
                    code="notifications.rule.exists",
                    field="name",
                    remedy="choose another name, or edit the rule",
                )

        await operation.database.transaction(insert)
        return await self.get(rule.name)

    async def edit(self, name: str, definition: Mapping[str, Any], *, reason: str | None = None) -> RuleView:
        """Replace a rule; its name stays."""
        rule = self._parse({**definition, "name": name})
        return await self._change("notifications.rule.edit", name, lambda _: rule, reason)

    async def enable(self, name: str, *, reason: str | None = None) -> RuleView:
        """Enable a rule. Events from before do not concern it."""
        return await self._change("notifications.rule.enable", name, lambda rule: _with_enabled(rule, True), reason)

    async def disable(self, name: str, *, reason: str | None = None) -> RuleView:
        """Disable a rule. Collected events that are in no message are dropped."""
        return await self._change("notifications.rule.disable", name, lambda rule: _with_enabled(rule, False), reason)

    async def _change(self, action: str, name: str, change: Any, reason: str | None) -> RuleView:
        operation = await self._begin(action, target=name, reason=reason)

        async def update(connection: Connection) -> None:
            found = await rules.lock_rule(connection, name)
            if found is None:
                raise _rule_not_found(name)
            before = load_rule({**found.definition, "name": name, "enabled": found.enabled})
            after: Rule = change(before)
            if after == before:
                operation.entry.mark_unchanged()
                return
            operation.entry.before, operation.entry.after = before.to_fields(), after.to_fields()
            await rules.update_rule(
                connection, name, after.to_fields(), enabled=after.enabled, origin=found.origin,
                declared=found.declared, now=operation.now, author=operation.actor.name,
            )  # fmt: skip

        await operation.database.transaction(update)
        return await self.get(name)

    async def delete(self, name: str, *, reason: str | None = None) -> None:
        """Delete a rule. Its messages stay until retention deletes them."""
        operation = await self._begin("notifications.rule.delete", target=name, reason=reason)

        async def remove(connection: Connection) -> None:
            found = await rules.lock_rule(connection, name)
            if found is None or not await rules.delete_rule(connection, name):
                raise _rule_not_found(name)
            operation.entry.before = found.definition

        await operation.database.transaction(remove)

    async def test(self, name: str, *, reason: str | None = None, request_id: UUID | None = None) -> Delivery:
        """Send a test message of a rule, also if it is disabled, silenced or quiet. Calls with the same ``request_id``
        send one."""
        operation, id = await self._begin("notifications.rule.test", target=name, reason=reason), request_id or new_id()

        async def send(connection: Connection) -> None:
            found = await rules.lock_rule(connection, name)
            if found is None:
                raise _rule_not_found(name)
            if await messages.message_exists(connection, id):  # guard: notifications.test_once_per_request
                operation.entry.mark_unchanged()
                return
            rule = load_rule({**found.definition, "name": name, "enabled": found.enabled})
            example = ListedEvent(
                rule.event, f"This is a test of the rule {name}", operation.now.isoformat(timespec="seconds"), {}
            )
            await create_message(
                self._services, connection, rule, [example], operation.now, id=id, group_key="", count=1, is_test=True
            )

        await operation.database.transaction(send)
        return await self.delivery(id)

    def _parse(self, definition: Mapping[str, Any]) -> Rule:
        rule = parse_rule(definition)
        require_known_event(rule.event, list_topics(self._services))
        check_channel(rule)
        return rule

    # --- silences -------------------------------------------------------------------------------------------------

    async def silence(
        self,
        rule: str | None,
        duration: float | str | timedelta,
        *,
        starts_at: datetime | None = None,
        reason: str | None = None,
        request_id: UUID | None = None,
    ) -> SilenceRecord:
        """Send nothing of a rule, or of all rules, for a time. Events of that time are recorded and never sent."""
        seconds = parse_duration_seconds(duration, field="duration")
        if seconds is None or not 0 < seconds <= MAX_SILENCE.total_seconds():
            raise Invalid(
                f"the duration {quoted(duration, 40)} is not between 0 s and {MAX_SILENCE.days} days",
                code="notifications.silence.out_of_range",
                field="duration",
                remedy="disable the rule instead",
            )
        operation = await self._begin("notifications.silence.create", target=rule or "*", reason=reason)
        begin = self._check_start(operation, starts_at)
        new = SilenceRecord(
            request_id or new_id(), rule, begin, begin + timedelta(seconds=seconds), reason, operation.now,
            operation.actor.name,
        )  # fmt: skip
        operation.entry.after = {"starts_at": new.starts_at.isoformat(), "ends_at": new.ends_at.isoformat()}

        async def insert(connection: Connection) -> SilenceRecord:
            if rule is not None and await rules.lock_rule(connection, rule) is None:
                raise _rule_not_found(rule)
            if not await rules.insert_silence(connection, new):
                operation.entry.mark_unchanged()
            return await rules.load_silence(connection, new.id) or new

        return await operation.database.transaction(insert)

    def _check_start(self, operation: Operation, starts_at: datetime | None) -> datetime:
        if starts_at is None:
            return operation.now
        if starts_at.tzinfo is None:
            raise Invalid(
                f"the instant {starts_at} has no UTC offset",
                code="value.instant.no_utc_offset",
                field="starts_at",
                remedy="write it like 2031-05-04T22:00:00Z",
            )
        if starts_at > operation.now + MAX_SILENCE:
            raise Invalid(
                f"the silence would begin in more than {MAX_SILENCE.days} days",
                code="notifications.silence.out_of_range",
                field="starts_at",
            )
        return starts_at.astimezone(UTC)

    async def end_silence(self, id: UUID, *, reason: str | None = None) -> None:
        """End a silence now."""
        operation = await self._begin("notifications.silence.end", target=str(id), reason=reason)

        async def end(connection: Connection) -> None:
            found = await rules.load_silence(connection, id)
            if found is None:
                raise NotFound(f"there is no silence {id}", code="notifications.silence.not_found")
            if not await rules.end_silence(connection, id, operation.now):
                operation.entry.mark_unchanged()

        await operation.database.transaction(end)


def _with_enabled(rule: Rule, enabled: bool) -> Rule:
    return rule.model_copy(update={"enabled": enabled})


def _rule_not_found(name: str) -> NotFound:
    return NotFound(
        f"there is no notification rule {quoted(name)}",
        code="notifications.rule.not_found",
        remedy="list the rules with `tenuto notification list`",
    )


def to_view(record: RuleRecord) -> RuleView:
    """Return a rule as interfaces show it."""
    channel = record.definition.get("channel", {})
    return RuleView(
        record.name,
        record.enabled,
        str(record.definition.get("event", "")),
        str(record.definition.get("filter", "")),
        str(channel.get("kind", "webhook")),
        describe_channel(channel),
        {**record.definition, "enabled": record.enabled},
        record.origin,
        record.active_since,
        record.updated_at,
        record.updated_by,
    )


def to_delivery(record: MessageRecord) -> Delivery:
    """Return a message as interfaces show it."""
    state = next((name for name, states in DELIVERY_STATES.items() if states and record.state in states), "unknown")
    return Delivery(
        record.id,
        record.rule_name,
        record.event,
        record.event_count,
        record.is_test,
        str(record.channel.get("kind", "webhook")),
        describe_channel(record.channel),
        record.subject,
        record.content,
        record.created_at,
        state,
        record.attempt,
        record.ended_at,
        record.error,
    )
