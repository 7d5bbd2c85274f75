"""Pages of the dashboard: each function returns the model of a template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid
from tenuto.extension import FoundObject, PageRequest
from tenuto.web.components.kit import Action, FilterField, Listing, Table, path_of
from tenuto_notifications.model.events import KINDS
from tenuto_notifications.operations import DELIVERY_STATES, NotificationOperations, RuleView
from tenuto_notifications.store.rules import SilenceRecord
from tenuto_notifications.views import RULES, SILENCES

PAGE_SIZE = 50
_RECENT = 10
_EXAMPLE_CHANNEL = {"kind": "webhook", "url": "https://example.org/hook"}


@dataclass(frozen=True, slots=True)
class RulesPage:
    """The list of rules."""

    table: Table
    create: Action
    silence: Action
    silences: Sequence[SilenceRecord]


@dataclass(frozen=True, slots=True)
class RulePage:
    """One rule with its latest messages."""

    rule: RuleView
    facts: Sequence[tuple[str, Any]]
    definition: str
    deliveries: Listing
    silences: Sequence[SilenceRecord]
    actions: Sequence[Action]


def _operations(request: PageRequest) -> NotificationOperations:
    found: NotificationOperations = request.operations
    return found


def _text(name: str, label: str, value: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "label": label, "value": value, **more}


def _rule_fields(rule: RuleView | None, events: Sequence[str]) -> list[dict[str, Any]]:
    given = {} if rule is None else rule.definition

    def as_json(name: str, default: Any = None) -> str:
        value = given.get(name, default)
        return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)

    fields = [
        _text("event", "Event", str(given.get("event", "execution.failed")), options=list(events), required=True),
        _text("filter", "Filter of the events (optional)", str(given.get("filter", ""))),
        _text("after", "Of a condition: how long it must last, such as 15m (optional)", _duration(given.get("after"))),
        _text("channel", "Channel", as_json("channel", _EXAMPLE_CHANNEL), type="json", required=True),
        _text("template", "Template: subject and body (optional)", as_json("template"), type="json"),
        _text("group", "Grouping: window and by (optional)", as_json("group"), type="json"),
        _text("quiet", "Quiet time: start, end, zone, then (optional)", as_json("quiet"), type="json"),
    ]
    return fields if rule is not None else [_text("name", "Name", required=True), *fields]


def _duration(seconds: Any) -> str:
    return "" if seconds is None else f"{seconds:g}s"


def _silence_action(rule: str | None) -> Action:
    return Action(
        "notification_silences_create",
        "Silence…" if rule else "Silence all…",
        title=f"Silence the rule {rule}" if rule else "Silence all rules",
        text="Events of this time are recorded and never sent.",
        fields=[_text("duration", "How long, such as 2h", "1h", required=True)],
        body={"rule": rule},
        reason="optional",
        submit="Silence",
        done="Silenced.",
        style="small" if rule else "",
    )


def _switch_action(rule: RuleView) -> Action:
    if rule.enabled:
        return Action(
            "notification_rules_disable",
            "Disable…",
            {"name": rule.name},
            title=f"Disable the rule {rule.name}",
            text="Nothing is sent until it is enabled. Collected events that are in no message are dropped.",
            reason="optional",
            submit="Disable",
            done="The rule is disabled.",
            style="small",
        )
    return Action(
        "notification_rules_enable", "Enable", {"name": rule.name}, done="The rule is enabled.", style="small"
    )


def _test_action(rule: RuleView) -> Action:
    return Action(
        "notification_rules_test",
        "Send a test",
        {"name": rule.name},
        done="A test message is on its way.",
        goto="/tasks/{id}",
        style="small",
    )


async def load_rules(request: PageRequest) -> RulesPage:
    operations, after = _operations(request), request.query.get("after", "")
    found = await operations.rules(after=after, limit=PAGE_SIZE)
    events = [each.name for each in operations.events()]
    table = Table(
        "Notification rules",
        RULES,
        found,
        "/notifications/rules",
        key=lambda rule: rule.name,
        link=lambda rule: path_of("notifications", "rules", rule.name),
        next=found[-1].name if len(found) == PAGE_SIZE else None,
        is_first=not after,
        actions=lambda rule: [_test_action(rule), _silence_action(rule.name), _switch_action(rule)],
        empty="There are no notification rules.",
        hint="tenuto notification create failures --event execution.failed --webhook URL",
    )
    create = Action(
        "notification_rules_create",
        "New rule…",
        title="New notification rule",
        text="It concerns events from now on.",
        fields=_rule_fields(None, events),
        reason="optional",
        submit="Create",
        done="The rule was created.",
        goto="/notifications/rules/{name}",
        style="primary",
    )
    return RulesPage(table, create, _silence_action(None), await operations.silences(limit=_RECENT))


async def load_rule(request: PageRequest) -> RulePage:
    operations, name = _operations(request), request.parameters["name"]
    rule = await operations.get(name)
    kinds = [each.name for each in KINDS]
    events = kinds if rule.event in kinds else [*kinds, rule.event]
    edit = Action(
        "notification_rules_edit",
        "Edit…",
        {"name": name},
        title=f"Edit the rule {name}",
        fields=_rule_fields(rule, events),
        body={key: rule.definition[key] for key in ("description", "enabled", "recovered") if key in rule.definition},
        reason="optional",
        submit="Save",
        done="The rule was changed.",
        style="small",
    )
    delete = Action(
        "notification_rules_delete",
        "Delete…",
        {"name": name},
        title=f"Delete the rule {name}",
        text="Its messages stay until retention deletes them.",
        reason="optional",
        submit="Delete the rule",
        done="The rule was deleted.",
        goto="/notifications/rules",
        style="small danger",
    )
    deliveries = await operations.deliveries(rule=name, limit=_RECENT)
    listing = Listing("Latest messages", deliveries, path_of("notifications", "rules", name))
    facts = [
        ("Event", rule.event),
        ("Filter", rule.filter or "all"),
        ("Channel", rule.channel),
        ("Target", rule.target),
        ("Origin", rule.origin),
        ("Changed by", rule.updated_by),
    ]
    return RulePage(
        rule,
        facts,
        json.dumps(rule.definition, indent=2, ensure_ascii=False),
        listing,
        [
            silence
            for silence in await operations.silences(limit=500)
            if silence.rule_name is None or silence.rule_name == name
        ],
        [_test_action(rule), _silence_action(name), _switch_action(rule), edit, delete],
    )


async def load_deliveries(request: PageRequest) -> Listing:
    rule, state = request.query.get("rule", ""), request.query.get("state", "")
    below = request.query.get("below", "")
    try:
        cursor = UUID(below) if below else None
    except ValueError:
        raise Invalid(
            "the cursor of the page is not valid",
            code="notifications.delivery.cursor_invalid",
            field="below",
            remedy="open the first page",
        ) from None
    found = await _operations(request).deliveries(rule=rule or None, state=state or None, below=cursor, limit=PAGE_SIZE)
    return Listing(
        "Deliveries",
        found,
        "/notifications/deliveries",
        filters=[FilterField("rule", "Rule", rule), FilterField("state", "State", state, tuple(DELIVERY_STATES))],
        cursor="below",
        next=str(found[-1].id) if len(found) == PAGE_SIZE else None,
        is_first=not below,
    )


async def load_silences(request: PageRequest) -> Table:
    found = await _operations(request).silences(limit=500)
    return Table(
        "Silences",
        SILENCES,
        found,
        "/notifications/silences",
        actions=lambda silence: [
            Action(
                "notification_silences_end",
                "End now",
                {"id": silence.id},
                done="The silence is ended.",
                style="small",
            )
        ],
        empty="Nothing is silenced.",
        hint="tenuto notification silence RULE --for 2h",
    )


async def search_rules(request: PageRequest) -> Sequence[FoundObject]:
    wanted = request.query["q"].lower()
    found = await _operations(request).rules(limit=500)
    return [
        FoundObject(
            "notification rule",
            rule.name,
            path_of("notifications", "rules", rule.name),
            "enabled" if rule.enabled else "disabled",
        )
        for rule in found
        if wanted in rule.name.lower()
    ][:20]
