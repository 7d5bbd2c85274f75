"""Pages of the dashboard: each function returns the model of a template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid
from tenuto.extension import FoundObject, PageRequest
from tenuto.web.components.extension_kit import Action, FilterField, Listing, Table, path_of
from tenuto_notifications.model.events import KINDS
from tenuto_notifications.operations import DELIVERY_STATES, NotificationOperations, RuleView
from tenuto_notifications.store.rules import SilenceRecord
from tenuto_notifications.views import RULES, SILENCES

PAGE_SIZE = 50
_RECENT = 10
_CHANNELS = [
    {"value": "webhook", "label": "Webhook"},
    {"value": "slack", "label": "Slack"},
    {"value": "teams", "label": "Microsoft Teams"},
    {"value": "email", "label": "E-mail"},
    {"value": "job", "label": "Job of the app"},
]
_FILTER_HELP = "Such as schedule:~nightly or queue:mail,default."
_WORDS, _TIMES = "Words of the message", "Grouping and quiet time"


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


def _rule_fields(rule: RuleView | None, events: Sequence[str], zone_name: str) -> list[dict[str, Any]]:
    """Return the fields of the dialog. What a rule has beyond them is one field of JSON."""
    given = {} if rule is None else rule.definition
    template, group, quiet = (given.get(name) or {} for name in ("template", "group", "quiet"))
    fields = [
        _text("event", "Event", str(given.get("event", "execution.failed")), options=list(events), required=True),
        _text("filter", "Only events that match (optional)", str(given.get("filter", "")), description=_FILTER_HELP),
        *_channel_fields(given.get("channel") or {}),
        _text(
            "after",
            "How long a condition must last (optional)",
            _duration(given.get("after")),
            section="Conditions: late, stuck, waiting",
            description="Such as 15m or 2h.",
        ),
        _text("template.subject", "Subject (optional)", template.get("subject", ""), section=_WORDS),
        _text("template.body", "Body (optional)", template.get("body", ""), type="textarea", section=_WORDS),
        _text(
            "group.window",
            "Combine events of (optional)",
            _duration(group.get("window")),
            section=_TIMES,
            description="Such as 5m. The first event is sent at once; 0s sends each alone.",
        ),
        _text(
            "group.by",
            "Combine only events with the same fields (optional)",
            ", ".join(group.get("by", ())),
            type="list",
            section=_TIMES,
        ),
    ]
    if quiet.get("days"):
        fields.append(_text("quiet", "Quiet time", _to_json(quiet), type="json", section=_TIMES))
    else:
        zone = quiet.get("zone", "UTC") if quiet else zone_name
        fields += [
            _text("quiet.start", "Quiet from (optional)", quiet.get("start", ""), section=_TIMES),
            _text(
                "quiet.end", "Quiet until (optional)", quiet.get("end", ""), section=_TIMES, description="Like 07:00."
            ),
            _text("quiet.zone", "Time zone of the quiet time", zone, section=_TIMES, when="quiet.start"),
            _text(
                "quiet.then",
                "Messages of the quiet time",
                quiet.get("then", "hold"),
                options=[
                    {"value": "hold", "label": "are sent when it ends, combined"},
                    {"value": "drop", "label": "are never sent"},
                ],
                section=_TIMES,
                when="quiet.start",
            ),
        ]
    return fields if rule is not None else [_text("name", "Name", required=True), *fields]


def _channel_fields(channel: Mapping[str, Any]) -> list[dict[str, Any]]:
    url, signing_key = channel.get("url", ""), channel.get("signing_key") or {}
    is_simple = set(channel) <= {"kind", "url", "signing_key", "to", "approver_links", "job", "queue"} and (
        channel.get("kind", "webhook") != "webhook" or isinstance(url, str)
    )
    if not is_simple or set(signing_key) - {"secret"} or (isinstance(url, dict) and set(url) - {"secret"}):
        return [_text("channel", "Channel", _to_json(channel), type="json", required=True)]
    secret = url.get("secret", "") if isinstance(url, dict) else ""
    return [
        _text("channel.kind", "Send by", channel.get("kind", "webhook"), options=_CHANNELS),
        _text(
            "channel.url",
            "Address",
            url if isinstance(url, str) else "",
            when="channel.kind=webhook",
            required=True,
            description="Receives a POST request with a JSON document.",
        ),
        _text(
            "channel.signing_key.secret",
            "Secret with the key of the signature (optional)",
            signing_key.get("secret", ""),
            when="channel.kind=webhook",
        ),
        _text(
            "channel.url.secret",
            "Secret with the address of the webhook",
            secret,
            when="channel.kind=slack,teams",
            required=True,
            description="The address is a credential: store it on the page Secrets.",
        ),
        _text(
            "channel.to",
            "Recipients, separated by commas",
            ", ".join(channel.get("to", ())),
            type="list",
            when="channel.kind=email",
        ),
        _text(
            "channel.approver_links",
            "Links for approvers",
            "true" if channel.get("approver_links") else "",
            options=[
                {"value": "", "label": "none"},
                {"value": "true", "label": "each approver gets a mail with a link that decides once"},
            ],
            when="channel.kind=email",
            description="Of the event approvals.requested.",
        ),
        _text("channel.job", "Job", channel.get("job", ""), when="channel.kind=job", required=True),
        _text("channel.queue", "Queue (optional)", channel.get("queue", ""), when="channel.kind=job"),
    ]


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _duration(seconds: Any) -> str:
    """Return a duration as a person would enter it."""
    if seconds is None:
        return ""
    for size, unit in ((3600, "h"), (60, "m")):
        if seconds and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


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
        fields=_rule_fields(None, events, request.zone_name),
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
        fields=_rule_fields(rule, events, request.zone_name),
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
