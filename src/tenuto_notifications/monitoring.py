"""Doctor check and metrics of notifications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from tenuto.extension import (
    DoctorCheck,
    Examination,
    Finding,
    LabelledValue,
    Metric,
    MetricSource,
    Severity,
)
from tenuto.postgres.database import Connection
from tenuto_notifications.collection.topics import list_topics
from tenuto_notifications.model.events import is_core_event
from tenuto_notifications.settings import NotificationSettings
from tenuto_notifications.store import messages, rules

_DAY = timedelta(days=1)
_FAILED = ("failed", "completed_with_error", "cancelled")


def doctor_checks() -> list[DoctorCheck]:
    """Return the checks of ``tenuto doctor``."""
    return [DoctorCheck("notification_rules", check_rules), DoctorCheck("notification_deliveries", check_deliveries)]


async def check_rules(examination: Examination) -> Finding:
    """Name the enabled rules whose messages cannot be sent."""
    services = examination.services
    database = await services.open_database()
    enabled = await rules.find_enabled_rules(database)
    section, topics = services.section(NotificationSettings), list_topics(services)
    secrets = sorted({name for each in enabled for name in _secrets(each.definition.get("channel"))})

    async def find_missing(connection: Connection) -> list[str]:
        return await messages.list_missing_secrets(connection, secrets)

    missing = set(await database.transaction(find_missing)) if secrets else set[str]()
    found: list[str] = []
    for each in enabled:
        channel: Mapping[str, Any] = each.definition.get("channel", {})
        event = str(each.definition.get("event"))
        if event not in topics and not is_core_event(event):
            found.append(f"{each.name}: no extension has the event {event}")
        if channel.get("kind") == "email" and (section.smtp_host is None or section.smtp_from is None):
            found.append(f"{each.name}: no mail server is configured (smtp_host, smtp_from)")
        if channel.get("approver_links") and services.get_settings().base_url is None:
            found.append(f"{each.name}: the address of the dashboard is not set (base_url)")
        found += [f"{each.name}: there is no secret {name}" for name in sorted(_secrets(channel) & missing)]
    return Finding.from_details(
        "notification_rules",
        found,
        passed="the enabled notification rules can send messages",
        failed="notification rules cannot send messages",
        severity=Severity.WARNING,
        meaning="Their messages fail or are never created.",
        remedy="correct them, and try them with `tenuto notification test NAME --wait`",
    )


def _secrets(channel: Any) -> set[str]:
    if isinstance(channel, Mapping):
        if isinstance(channel.get("secret"), str):
            return {channel["secret"]}
        return {name for each in channel.values() for name in _secrets(each)}
    return set()


async def check_deliveries(examination: Examination) -> Finding:
    """Name the rules with failed deliveries in the last day."""
    database = await examination.services.open_database()
    since = database.clock.now() - _DAY

    async def count(connection: Connection) -> tuple[list[tuple[str, str, int]], list[tuple[str, int, str]]]:
        dropped = await messages.list_dropped_for_errors(connection, since)
        return await messages.count_deliveries(connection, since), dropped

    counted, dropped = await database.transaction(count)
    failed = [f"{rule}: {number:,} failed" for rule, state, number in counted if state in _FAILED]
    failed += [f"{rule}: no message about {number:,} events: {reason}" for rule, number, reason in dropped]
    return Finding.from_details(
        "notification_deliveries",
        failed,
        passed="no notification of the last day has failed",
        failed="notifications of the last day could not be delivered",
        severity=Severity.WARNING,
        meaning="Their receivers do not know what happened.",
        remedy="see `tenuto notification deliveries --state failed`, and retry the dead letters of"
        " notifications.deliver",
    )


def metric_sources() -> list[MetricSource]:
    """Return the metrics of the installation."""
    metrics = (
        Metric(
            "tenuto_notifications_events",
            "gauge",
            "Recorded events in no message, by rule and state.",
            ("rule", "state"),
        ),
        Metric(
            "tenuto_notifications_messages", "gauge", "Messages of the last day by rule and outcome.", ("rule", "state")
        ),
    )
    return [MetricSource(metrics, load_metrics)]


async def load_metrics(connection: Connection) -> Mapping[str, Sequence[LabelledValue]]:
    """Return the values of the metrics."""
    events = await messages.count_unsent_events(connection)
    since = await messages.read_clock(connection) - _DAY
    sent = await messages.count_deliveries(connection, since)
    return {
        "tenuto_notifications_events": [((rule, state), number) for rule, state, number in events],
        "tenuto_notifications_messages": [((rule, state), number) for rule, state, number in sent],
    }
