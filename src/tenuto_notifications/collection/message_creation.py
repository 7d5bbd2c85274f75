"""Creation of messages with the tasks that deliver them, in the transaction of the caller."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tenuto.extension import ExtensionServices
from tenuto.ids import new_id
from tenuto.model.access.actors import Actor
from tenuto.model.work.tasks import NewTask, check_new_task
from tenuto.operations.work.tasks import new_task
from tenuto.postgres.database import Connection
from tenuto.store.work import task_creation
from tenuto_notifications.collection.failure_isolation import FailureLog
from tenuto_notifications.model.dispatch import Decision, Group, decide_rule, window_of
from tenuto_notifications.model.events import DELIVERY_KIND, OWN_CORRELATION_PREFIX
from tenuto_notifications.model.messages import MAX_LISTED_EVENTS, ListedEvent, compose
from tenuto_notifications.model.rules import JobChannel, Rule
from tenuto_notifications.settings import NotificationSettings
from tenuto_notifications.store import messages, rules
from tenuto_notifications.store.messages import NewMessage

_MAX_GROUPS_PER_CYCLE = 1000


async def dispatch(
    services: ExtensionServices,
    connection: Connection,
    known_rules: Sequence[Rule],
    now: datetime,
    failures: FailureLog,
) -> int:
    """Create the messages that are due, and return their number. Drop the events that get no message."""
    by_name = {rule.name: rule for rule in known_rules}
    silenced = await rules.list_silenced_rules(connection, now)
    names: defaultdict[Decision, list[str]] = defaultdict(list)
    for rule in known_rules:
        names[decide_rule(rule, silenced, now)].append(rule.name)
    await messages.drop_other_events(connection, list(by_name))
    for decision in (Decision.SILENCE, Decision.DROP):
        if names[decision]:
            await messages.settle_rules(connection, names[decision], decision.value)
    windows = {name: window_of(by_name[name]) for name in names[Decision.SEND]}
    if not windows:
        return 0
    if separate := [name for name in windows if by_name[name].has_approver_links]:
        await messages.separate_events(connection, separate)
    sent_count = 0
    for group in await messages.list_due_groups(connection, windows, now, _MAX_GROUPS_PER_CYCLE):
        rule = by_name[group.rule_name]
        try:
            async with connection.transaction():
                await _send_group(services, connection, rule, group, now)
            sent_count += 1
        except Exception as error:  # noqa: BLE001 — one rule must not stop the others
            reason = failures.report(rule.name, error)
            await messages.settle_group(connection, group, Decision.DROP.value, None, reason)
    return sent_count


async def _send_group(
    services: ExtensionServices, connection: Connection, rule: Rule, group: Group, now: datetime
) -> None:
    message_id = new_id()
    found = await messages.list_group_events(connection, group, MAX_LISTED_EVENTS)
    listed = [
        ListedEvent(each.kind, each.title, each.occurred_at.isoformat(timespec="seconds"), each.fields, each.path)
        for each in found
    ]
    count = await messages.settle_group(connection, group, "sent", message_id)
    await create_message(services, connection, rule, listed, now, id=message_id, group_key=group.group_key, count=count)


async def create_message(
    services: ExtensionServices,
    connection: Connection,
    rule: Rule,
    events: Sequence[ListedEvent],
    now: datetime,
    *,
    id: UUID,
    group_key: str,
    count: int,
    is_test: bool = False,
) -> None:
    """Create a message and the task that delivers it; both have the same id."""
    content = compose(str(id), rule, events, count, services.get_settings().base_url, is_test=is_test)
    channel = rule.channel.model_dump(mode="json", exclude_none=True) | {"kind": rule.channel.kind}
    message = NewMessage(id, rule.name, rule.event, group_key, count, is_test, channel, content.document, now)
    await messages.insert_message(connection, message)
    await task_creation.enqueue_tasks_within(connection, [_build_task(services, rule, content.document, id, now)])


def _build_task(
    services: ExtensionServices, rule: Rule, document: dict[str, object], id: UUID, now: datetime
) -> NewTask:
    actor = Actor.system(f"notification rule {rule.name}"[:200])
    correlation = f"{OWN_CORRELATION_PREFIX}{id}"
    if isinstance(rule.channel, JobChannel):
        known = services.jobs.jobs_by_name.get(rule.channel.job)
        text = json.dumps({"notification": document}, ensure_ascii=False)
        # A job that this process does not know gets the default policy; workers that know the job run it.
        task = (
            NewTask(id, rule.channel.job, text, now, actor, now)
            if known is None
            else new_task(known, text, now, actor, id)
        )
        task.queue = rule.channel.queue or task.queue
    else:
        services.jobs.load_more_kinds()
        job = services.jobs.handlers_by_kind[DELIVERY_KIND]
        task = new_task(job, job.validate_input(json.dumps({"message": str(id)})), now, actor, id)
        task.kind = task.name = DELIVERY_KIND
        task.queue = services.section(NotificationSettings).queue
    task.unique_key = None
    task.correlation_id = correlation
    return check_new_task(task)
