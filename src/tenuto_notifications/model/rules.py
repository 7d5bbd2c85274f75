"""Notification rules: which events lead to a message, over which channel, when, and in which words.

A rule is parsed from plain data, as definition files, the API and the command line give it. Secrets are references.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tenuto.errors import Invalid, quoted
from tenuto.model.access.secrets import SecretRef, TextOrSecret
from tenuto.model.filters import MAX_FILTER_LENGTH, Filter, parse_filter
from tenuto.model.triggers.zones import load_zone
from tenuto.model.validation import check_name
from tenuto.model.work.tasks import MAX_QUEUE_NAME_CHARACTERS, parse_duration_seconds
from tenuto_notifications.model.events import APPROVAL_EVENT, EventKind, find_kind

MAX_RECIPIENTS = 50
MAX_TEMPLATE_CHARACTERS = 10_000
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
COMMON_FIELDS = ("rule", "event", "count", "omitted", "title", "titles", "at", "link")
"""Placeholders that the templates of all rules may use besides the fields of the event."""
PLACEHOLDER = re.compile(r"\{\{\s*([a-z_][a-z0-9_]*)\s*\}\}")
_BRACES = re.compile(r"\{\{.*?\}\}")
_ADDRESS = re.compile(r"[^\s@<>,;:\"\\\x00-\x1f\x7f]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,120}")


class _Refused(ValueError):
    """An error of Tenuto as one that pydantic reports with the field."""

    def __init__(self, error: Invalid) -> None:
        super().__init__(error.message)
        self.error = error


def _duration(value: Any) -> float | None:
    try:
        return parse_duration_seconds(value, field="duration")
    except Invalid as error:
        raise _Refused(error) from None


def is_address(text: str) -> bool:
    """Return whether a text is an e-mail address."""
    return _ADDRESS.fullmatch(text) is not None


def check_address(text: str) -> str:
    """Return an e-mail address; raise an error if the text is none."""
    if not is_address(text):
        raise ValueError(f"{quoted(text, 80)} is not an e-mail address such as ana@example.org")
    return text


def _time_of_day(text: Any) -> str:
    if not isinstance(text, str) or not re.fullmatch(r"(?:[01]?\d|2[0-3]):[0-5]\d", text):
        raise ValueError(f"{quoted(text, 40)} is not a time such as 22:00; quote it in YAML")
    return text.rjust(5, "0")


def _zone_name(name: str) -> str:
    try:
        load_zone(name)
    except Invalid as error:
        raise _Refused(error) from None
    return name


Duration = Annotated[float, BeforeValidator(_duration)]
TimeOfDay = Annotated[str, BeforeValidator(_time_of_day)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Webhook(_Part):
    """A POST request with a JSON document."""

    kind: Literal["webhook"] = "webhook"
    url: TextOrSecret
    signing_key: SecretRef | None = None
    """Secret with the key of the signature (Standard Webhooks)."""
    headers: dict[str, TextOrSecret] = Field(default_factory=dict)


class Slack(_Part):
    """A message to a webhook that understands the format of Slack."""

    kind: Literal["slack"]
    url: SecretRef
    """Secret with the address of the webhook, which is a credential."""


class Teams(_Part):
    """A message to a webhook of Microsoft Teams: an adaptive card."""

    kind: Literal["teams"]
    url: SecretRef
    """Secret with the address of the webhook, which is a credential."""


class Email(_Part):
    """An e-mail, sent over the mail server of the settings."""

    kind: Literal["email"]
    to: Annotated[list[Annotated[str, AfterValidator(check_address)]], Field(max_length=MAX_RECIPIENTS)] = []
    approver_links: bool = False
    """Send each approver of a requested approval a separate mail with a link that decides once.

    Each approval has its own message, whatever the grouping of the rule, so that no approver reads of those of others.
    """

    @model_validator(mode="after")
    def _check(self) -> Email:
        if not self.to and not self.approver_links:
            raise ValueError("no recipient is given")
        return self


class JobChannel(_Part):
    """A task of a job, with the message as the argument ``notification``."""

    kind: Literal["job"]
    job: str
    queue: str | None = None


Channel = Annotated[Webhook | Slack | Teams | Email | JobChannel, Field(discriminator="kind")]


class Grouping(_Part):
    """How events are combined to one message."""

    window: Annotated[Duration, Field(ge=0, le=86_400 * 7)] = 60.0
    """The first event is sent at once, those of the following seconds are combined. With 0, each has its message."""
    by: list[str] = Field(default_factory=list, max_length=10)
    """Fields of the event: only events with the same values are combined."""


class QuietTime(_Part):
    """A time of the day at which nothing is sent."""

    start: TimeOfDay
    end: TimeOfDay
    zone: Annotated[str, AfterValidator(_zone_name)] = "UTC"
    days: list[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]] = Field(default_factory=list)
    """Days on which the time begins; every day if empty."""
    then: Literal["hold", "drop"] = "hold"
    """``hold``: send when it ends, combined. ``drop``: never send."""

    @model_validator(mode="after")
    def _check(self) -> QuietTime:
        if self.start == self.end:
            raise ValueError("start and end are equal; write 00:00 to 23:59, or disable the rule")
        return self

    def contains(self, now: datetime) -> bool:
        """Return whether an instant is in the quiet time."""
        local = now.astimezone(load_zone(self.zone))
        begin, end, at = time.fromisoformat(self.start), time.fromisoformat(self.end), local.time()
        if begin < end:
            return begin <= at < end and self._begins_on(local)
        if at >= begin:
            return self._begins_on(local)
        return at < end and self._begins_on(local - timedelta(days=1))

    def _begins_on(self, local: datetime) -> bool:
        return not self.days or WEEKDAYS[local.weekday()] in self.days


class Template(_Part):
    """Words of the message, with fields in double braces: ``{{schedule}}``."""

    subject: str | None = Field(default=None, min_length=1, max_length=500)
    body: str | None = Field(default=None, min_length=1, max_length=MAX_TEMPLATE_CHARACTERS)


class Rule(_Part):
    """A notification rule."""

    name: str
    description: str = Field(default="", max_length=1000)
    enabled: bool = True
    event: str
    filter: str = Field(default="", max_length=MAX_FILTER_LENGTH)
    after: Annotated[Duration, Field(ge=1, le=86_400 * 30)] | None = None
    """Of a condition: how long it must last."""
    recovered: bool = True
    """Of a condition: send a message when it ends, too."""
    channel: Channel
    template: Template = Template()
    quiet: QuietTime | None = None
    group: Grouping = Grouping()

    @property
    def kind(self) -> EventKind:
        return find_kind(self.event)

    @property
    def after_seconds(self) -> float:
        return self.after or self.kind.default_after or 0.0

    @property
    def has_approver_links(self) -> bool:
        """Whether messages contain links of approvers. Each event then has a separate message."""
        return isinstance(self.channel, Email) and self.channel.approver_links

    def parse_filter(self, now: datetime) -> Filter:
        """Return the filter; ages in it count from ``now``."""
        return parse_filter(self.kind.schema, self.filter, now, zone=UTC, field="filter")

    def to_fields(self) -> dict[str, Any]:
        """Return the rule as plain data without what is not set, the form in which it is stored and compared."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=True) | {
            "channel": self.channel.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
            | {"kind": self.channel.kind}
        }


def parse_rule(value: Any) -> Rule:
    """Return a rule from plain data; raise `Invalid` with the field at fault."""
    if not isinstance(value, Mapping):
        raise Invalid(
            f"a notification rule is a mapping, not {quoted(value, 40)}",
            code="notifications.rule.invalid",
            remedy="write {name: …, event: execution.failed, channel: {kind: webhook, url: …}}",
        )
    try:
        rule = Rule.model_validate(value)
    except ValidationError as error:
        raise _to_invalid(error) from None
    _check_rule(rule)
    return rule


def load_rule(fields: Mapping[str, Any]) -> Rule:
    """Return a stored rule."""
    return Rule.model_validate(fields)


def _check_rule(rule: Rule) -> None:
    if not _NAME.fullmatch(rule.name) or rule.name != rule.name.strip():
        raise Invalid(
            f"the name {quoted(rule.name, 60)} is empty, too long, or contains control characters",
            code="notifications.rule.invalid",
            field="name",
            remedy="use 1 to 120 characters",
        )
    if isinstance(rule.channel, JobChannel):
        _check_job(rule.channel)
    if rule.has_approver_links and rule.event != APPROVAL_EVENT:
        raise Invalid(
            f"the event {rule.event} has no approvers",
            code="notifications.rule.approver_links_unused",
            field="channel.approver_links",
            remedy=f"remove approver_links, or wait for the event {APPROVAL_EVENT}",
        )
    kind = rule.kind
    if rule.after is not None and kind.default_after is None:
        raise Invalid(
            f"the event {rule.event} has no duration",
            code="notifications.rule.after_unused",
            field="after",
            remedy="remove after",
        )
    rule.parse_filter(datetime(2030, 1, 1, tzinfo=UTC))
    if not kind.field_names:  # an event of an extension: its fields are not known
        return
    for name in rule.group.by:
        _check_field(name, kind.field_names, "group.by", kind)
    for field, text in (("template.subject", rule.template.subject), ("template.body", rule.template.body)):
        check_template(text or "", (*COMMON_FIELDS, *kind.field_names), field, kind)


def _check_job(channel: JobChannel) -> None:
    """Refuse what no task can have; see `tenuto.model.work.tasks.check_new_task`."""
    check_name(channel.job, field="channel.job")
    if channel.queue is not None:
        check_name(channel.queue, field="channel.queue", limit=MAX_QUEUE_NAME_CHARACTERS)


def _check_field(name: str, known: tuple[str, ...], field: str, kind: EventKind) -> None:
    if name not in known:
        raise Invalid(
            f"events of the kind {kind.name} have no field {quoted(name, 60)}",
            code="notifications.field.unknown",
            field=field,
            remedy=f"use one of {', '.join(known)}",
        )


def check_template(text: str, known: tuple[str, ...], field: str, kind: EventKind) -> None:
    """Raise an error for a placeholder that no event of the kind has."""
    for braces in _BRACES.findall(text):
        found = PLACEHOLDER.fullmatch(braces)
        _check_field(found[1] if found else braces, known, field, kind)


def _to_invalid(error: ValidationError) -> Invalid:
    first = error.errors(include_url=False, include_input=False)[0]
    parts = [
        str(part)
        for part in first["loc"]
        if part not in ("str", "SecretRef", "webhook", "slack", "teams", "email", "job")
    ]
    field = ".".join(parts) or None
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, _Refused):
        return Invalid(cause.error.message, code=cause.error.code, field=field, remedy=cause.error.remedy)
    message = str(first["msg"]).removeprefix("Value error, ")
    return Invalid(
        f"{field}: {message}" if field else message,
        code="notifications.rule.invalid",
        field=field,
        remedy="see the reference of notification rules in docs/how-to/notifications.md",
    )


def describe_channel(fields: Mapping[str, Any]) -> str:
    """Describe the target of a channel without a credential."""
    match fields.get("kind", "webhook"):
        case "email":
            return ", ".join([*fields.get("to", ()), *(["approvers"] if fields.get("approver_links") else [])])
        case "job":
            return str(fields["job"])
        case _:
            url = fields["url"]
            if isinstance(url, Mapping):
                return f"secret {url['secret']}"
            return _without_query(str(url))


def _without_query(url: str) -> str:
    """Return scheme, host and path of a URL, without the query."""
    return url.partition("?")[0].partition("#")[0]
