"""The collector: a service of schedulers that finds events, matches them with rules and creates messages.

Each step of a cycle commits its events, its messages and its progress in one transaction. If a process dies, its last
step is rolled back and any collector repeats it. Any number of collectors may run. The lock of the progress lets one
work at a time, and the unique key of events refuses a second record of the same event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tenuto.clock import monotonic_seconds
from tenuto.diagnostics.doctor import run_checks
from tenuto.errors import SchemaMismatch
from tenuto.extension import ExtensionServices, Finding
from tenuto.ids import new_id
from tenuto.logs import Log
from tenuto.maintenance.activity_rollups import limit_transactions
from tenuto.postgres.database import Connection, Database
from tenuto.service.polling_loop import PollingLoop
from tenuto_notifications.collection.conditions import find_conditions, track_conditions
from tenuto_notifications.collection.core_events import find_core_events
from tenuto_notifications.collection.failure_isolation import FailureLog, record_events
from tenuto_notifications.collection.message_creation import dispatch
from tenuto_notifications.collection.topics import TopicChanges, read_topics
from tenuto_notifications.model.dispatch import group_key
from tenuto_notifications.model.events import Event, is_core_event, to_stored_fields
from tenuto_notifications.model.filter_matching import matches
from tenuto_notifications.model.rules import Rule, load_rule
from tenuto_notifications.settings import NotificationSettings
from tenuto_notifications.store import messages, rules, sources
from tenuto_notifications.store.messages import NewEvent
from tenuto_notifications.store.rules import RuleRecord

IDLE_SECONDS = 30.0
_MAX_STEPS_PER_CYCLE = 100

log = Log("tenuto.notifications")


@dataclass(frozen=True, slots=True)
class CollectionStep:
    """Result of one transaction."""

    event_count: int = 0
    message_count: int = 0
    has_more: bool = False
    """Further transactions had ended before the step began."""
    is_idle: bool = False
    """No rule is enabled, or another collector holds the lock of the progress."""


@dataclass(slots=True)
class PolledFacts:
    """Facts that a cycle reads before its transaction, because reading them may take long or fail."""

    topics: Sequence[TopicChanges] = ()
    checks_conditions: bool = False
    findings: Sequence[Finding] | None = None
    """Findings of the doctor; None if it did not run."""


@dataclass(slots=True)
class Collector:
    """Finds events and creates messages."""

    services: ExtensionServices
    name: str = "tenuto-notifications"
    _loop: PollingLoop | None = None
    _next_conditions: float = 0.0
    _next_doctor: float = 0.0
    _reported_rules: set[str] = field(default_factory=set)
    _failures: FailureLog = field(default_factory=FailureLog)

    @property
    def is_ready(self) -> bool:
        return self._loop is not None and self._loop.is_ready

    async def start(self) -> None:
        database: Database | None
        try:
            database = await self.services.open_database()
        except SchemaMismatch:  # every cycle reports it until an operator has migrated the schema
            database = None
        self._loop = PollingLoop(self.name, self.run_cycle, log, database=database, notifications={"notifications"})
        await self._loop.start()

    async def stop(self) -> None:
        if self._loop is not None:
            await self._loop.stop()

    async def run_cycle(self) -> float:
        """Run one cycle; return the seconds until the next one."""
        database = await self.services.open_database()
        records = await rules.find_enabled_rules(database)
        if not records:
            await self._stop_collecting(database)
            return IDLE_SECONDS
        facts = await self._poll(database, self._load_rules(records))
        for number in range(_MAX_STEPS_PER_CYCLE):
            step = await self.run_step(database, facts if number == 0 else PolledFacts())
            if not step.has_more:
                break
        return self.services.section(NotificationSettings).poll_seconds

    async def run_step(self, database: Database, facts: PolledFacts) -> CollectionStep:
        """Read the events of the next transactions and create the messages that are due, in one transaction."""

        async def run(connection: Connection) -> CollectionStep:
            found = await sources.lock_progress(connection)
            if found is None:
                return CollectionStep(is_idle=True)
            now = database.clock.now()
            known = self._load_rules(await rules.list_enabled_rules(connection))
            if found.new_next_transaction_id < found.next_transaction_id:
                # Transaction ids started again: the database was restored from a dump, with the ids of the old server.
                await sources.store_progress(connection, found, now)
                log.warning("notifications restarted after a restore", since=now.isoformat())
                return CollectionStep()
            progress = limit_transactions(found)
            kinds = {rule.event for rule, _ in known}
            events = await find_core_events(connection, progress, kinds)
            for topic in facts.topics:
                events += topic.events
                await messages.store_topic_progress(connection, topic.topic, topic.read_at)
            by_kind, event_count = _group_by_kind(events), 0
            for rule, active_since in known:
                matched = await self._match(connection, rule, active_since, by_kind, facts, now)
                event_count += await record_events(connection, matched, now, self._failures)
            await sources.store_progress(connection, progress, progress.since)
            message_count = await dispatch(self.services, connection, [rule for rule, _ in known], now, self._failures)
            has_more = progress.new_next_transaction_id < found.new_next_transaction_id
            return CollectionStep(event_count, message_count, has_more)

        step = await database.transaction(run)
        if step.message_count:
            log.debug("notifications created", events=step.event_count, messages=step.message_count)
        return step

    async def _match(
        self,
        connection: Connection,
        rule: Rule,
        active_since: datetime,
        events: Mapping[str, Sequence[Event]],
        facts: PolledFacts,
        now: datetime,
    ) -> list[NewEvent]:
        """Return the events that a rule waits for. An error about one rule must not stop the others."""
        try:
            if not rule.kind.is_condition:
                return match_events(rule, active_since, events.get(rule.event, ()), now)
            if not facts.checks_conditions:
                return []
            async with connection.transaction():
                return await _track(connection, rule, facts, now)
        except Exception as error:  # noqa: BLE001 — see above
            self._failures.report(rule.name, error)
            return []

    async def _stop_collecting(self, database: Database) -> None:
        """Delete the progress while no rule is enabled, and drop the events that wait for a message."""

        async def stop(connection: Connection) -> None:
            if await sources.lock_progress(connection) is None:
                return
            if await rules.list_enabled_rules(connection):
                return  # a rule was enabled since the cycle began
            await messages.drop_other_events(connection, [])
            await sources.delete_progress(connection)

        await database.transaction(stop)

    async def _poll(self, database: Database, known: Sequence[tuple[Rule, datetime]]) -> PolledFacts:
        """Read the facts that are read outside of the transaction: topics of extensions and findings of the doctor."""
        section, now = self.services.section(NotificationSettings), monotonic_seconds()
        facts = PolledFacts()
        topics: dict[str, datetime] = {}
        for rule, active_since in known:
            if not is_core_event(rule.event):
                topics[rule.event] = min(active_since, topics.get(rule.event, active_since))
        if topics:
            facts.topics = await read_topics(self.services, database, topics)
        if any(rule.kind.is_condition for rule, _ in known) and now >= self._next_conditions:
            self._next_conditions = now + section.condition_seconds
            facts.checks_conditions = True
        if any(rule.event == "doctor.warning" for rule, _ in known) and now >= self._next_doctor:
            self._next_doctor = now + section.doctor_seconds
            facts.findings = await self._run_doctor()
        return facts

    async def _run_doctor(self) -> Sequence[Finding]:
        database = await self.services.connect()
        try:
            return await run_checks(database, self.services.extensions)
        finally:
            await database.close()

    def _load_rules(self, records: Sequence[RuleRecord]) -> list[tuple[Rule, datetime]]:
        loaded = [(self._load_rule(record), record.active_since) for record in records]
        return [(rule, since) for rule, since in loaded if rule is not None]

    def _load_rule(self, record: RuleRecord) -> Rule | None:
        """Return a stored rule; None if it is not readable, as after a downgrade. The other rules are not affected."""
        try:
            return load_rule({**record.definition, "name": record.name, "enabled": record.enabled})
        except ValueError as error:
            if record.name not in self._reported_rules:
                self._reported_rules.add(record.name)
                log.error("notification rule not readable", rule=record.name, error=str(error))
            return None


def match_events(rule: Rule, active_since: datetime, events: Sequence[Event], now: datetime) -> list[NewEvent]:
    """Return the events that a rule waits for, from the instant at which it was enabled."""
    if not events:
        return []
    filter = rule.parse_filter(now)
    return [
        _new_event(rule, event)
        for event in events
        if event.at >= active_since and matches(filter, event.title, event.fields)
    ]


def _group_by_kind(events: Sequence[Event]) -> Mapping[str, list[Event]]:
    found: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        found[event.kind].append(event)
    return found


def _new_event(rule: Rule, event: Event) -> NewEvent:
    fields = to_stored_fields(event.fields)
    key = group_key(rule, event.key, fields)
    return NewEvent(new_id(), rule.name, event.key, event.kind, event.title, fields, event.path, key, event.at)


async def _track(connection: Connection, rule: Rule, facts: PolledFacts, now: datetime) -> list[NewEvent]:
    found = await find_conditions(connection, rule, facts.findings, now)
    if found is None:
        return []
    return [_new_event(rule, event) for event in await track_conditions(connection, rule, found, now)]
