"""The list ``notification_rules`` of definition files.

A declaration takes effect only if it differs from the previous one, so that changes by operators remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenuto.errors import Conflict, quoted
from tenuto.extension import ChangeAuthor, DefinitionList, ListChange, ListEntry, ListPlan
from tenuto.postgres.database import Connection
from tenuto_notifications.delivery.webhooks import check_channel
from tenuto_notifications.model.events import refuse_misspelled_event
from tenuto_notifications.model.rules import Rule, parse_rule
from tenuto_notifications.store import rules
from tenuto_notifications.store.rules import RuleRecord


def parse(entry: ListEntry) -> Rule:
    rule = parse_rule(entry.value)
    refuse_misspelled_event(rule.event)
    check_channel(rule)
    return rule


async def plan(connection: Connection, declared: Sequence[Rule], prune: bool) -> ListPlan:
    stored = {each.name: each for each in await rules.read_rules(connection)}
    changes = [_compare(rule, stored.get(rule.name)) for rule in declared]
    if prune:
        names = {rule.name for rule in declared}
        changes += [
            ListChange(each.name, "deleted", _fields(each), None)
            for each in stored.values()
            if each.origin == "file" and each.name not in names
        ]
    return ListPlan(changes)


def _compare(rule: Rule, stored: RuleRecord | None) -> ListChange:
    fields = rule.to_fields()
    if stored is None:
        return ListChange(rule.name, "created", None, fields)
    if stored.declared == fields:
        notes = (
            [] if _fields(stored) == fields else ["an operator has changed it; the declaration is the same as before"]
        )
        return ListChange(rule.name, "unchanged", fields, fields, notes)
    before = _fields(stored)
    # A rule of an operator with the same content becomes one of the file.
    return ListChange(rule.name, "changed", before, fields)


def _fields(stored: RuleRecord) -> dict[str, Any]:
    return {**stored.definition, **({} if stored.enabled else {"enabled": False})}


async def apply(connection: Connection, planned: ListPlan, author: ChangeAuthor) -> None:
    for change in planned.changes:
        if change.effect == "unchanged":
            continue
        found = await rules.lock_rule(connection, change.key)
        if (None if found is None else _fields(found)) != change.before:
            raise Conflict(
                f"the notification rule {quoted(change.key)} has changed since the plan",
                code="notifications.rule.changed",
                remedy="plan again",
            )
        if change.effect == "deleted":
            await rules.delete_rule(connection, change.key)
            continue
        fields: Mapping[str, Any] = change.after
        write = rules.insert_rule if found is None else rules.update_rule
        await write(
            connection, change.key, fields, enabled=fields.get("enabled", True), origin="file", declared=fields,
            now=author.now, author=author.actor.name,
        )  # fmt: skip


NOTIFICATION_RULES = DefinitionList("notification_rules", parse, lambda rule: rule.name, plan, apply)
