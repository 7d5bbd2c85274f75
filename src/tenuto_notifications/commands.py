"""Commands ``tenuto notification …``: rules, silences, test messages and deliveries."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

from tenuto.app import Tenuto
from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command, group
from tenuto.cli.lists import PAGE, limit, list_command, print_page
from tenuto.cli.option_parsing import confirm, missing_option, option_conflict, require_wait
from tenuto.cli.parameters import argument, flag, option
from tenuto.definitions.document_loader import read_documents
from tenuto.errors import Invalid, quoted
from tenuto_notifications.operations import Delivery, NotificationOperations
from tenuto_notifications.views import DELIVERIES, EVENTS, RULES, SILENCES

notification = group(
    "notification",
    "Send messages when something happens.",
    "create failures --event execution.failed --webhook https://example.org/hook",
    "test failures --wait",
    "deliveries --state failed",
)

RuleName = Annotated[str, argument("RULE", "Name of the rule.")]
Reason = Annotated[str | None, option("TEXT", "Reason, stored with the change.")]
_CHANNELS = "--webhook, --slack, --teams, --email (with or without --approver-links) or --job"


def _operations(app: Tenuto) -> NotificationOperations:
    found: NotificationOperations = app.extensions.notifications
    return found


@list_command(
    notification,
    "list",
    RULES,
    "",
    "-o json",
    limit=limit(100),
    after=option("NAME", "Pagination cursor: the name of the last row shown."),
)
async def list_rules(app: Tenuto, **filters: Any) -> Any:
    """List notification rules."""
    return await _operations(app).rules(**filters)


@command(notification, "show", "failures", "failures -o json")
async def show_rule(session: Session, rule: RuleName) -> int:
    """Show a notification rule."""
    found = await _operations(session.app).get(rule)
    lines = [
        f"{found.name}: {'enabled' if found.enabled else 'disabled'}, from {found.origin}",
        f"{found.event} to {found.channel} {found.target}",
        "",
        json.dumps(found.definition, indent=2, ensure_ascii=False),
    ]
    return session.report(asdict(found), result="\n".join(lines))


@command(
    notification,
    "create",
    "failures --event execution.failed --webhook https://example.org/hook --signing-key hook-key",
    "late --event execution.late --after 2h --filter 'schedule:~nightly' --email ops@example.org",
    "chat --event dead_letter.opened --slack slack-url --window 5m --quiet-time 22:00-07:00 --zone Europe/London",
    "--file rule.yaml",
)
async def create_rule(
    session: Session,
    rule: Annotated[str | None, argument("RULE", "Name of the rule.", default=None)] = None,
    event: Annotated[str | None, option("EVENT", "What the rule waits for; see `tenuto notification events`.")] = None,
    filter: Annotated[str | None, option("FILTER", "Filter of the events, such as 'schedule:~nightly'.")] = None,
    after: Annotated[str | None, option("TIME", "How long a condition must last, such as 15m.")] = None,
    webhook: Annotated[str | None, option("URL", "Send a JSON document to this address.")] = None,
    signing_key: Annotated[
        str | None, option("SECRET", "With --webhook: secret with the key of the signature.")
    ] = None,
    slack: Annotated[str | None, option("SECRET", "Secret with the address of a webhook of Slack.")] = None,
    teams: Annotated[str | None, option("SECRET", "Secret with the address of a webhook of Teams.")] = None,
    email: Annotated[list[str] | None, option("ADDRESS", "Recipient of e-mails; may be repeated.")] = None,
    approver_links: Annotated[
        bool, flag("Mail each approver of a requested approval a link that decides once.", "--approver-links")
    ] = False,
    job: Annotated[str | None, option("JOB", "Job that gets the message as its argument `notification`.")] = None,
    subject: Annotated[str | None, option("TEXT", "Subject, with fields such as {{schedule}}.")] = None,
    body: Annotated[str | None, option("TEXT", "Body, with fields such as {{error}}.")] = None,
    window: Annotated[str | None, option("TIME", "Combine the events of this time; 0s for none. (default: 1m)")] = None,
    group_by: Annotated[list[str] | None, option("FIELD", "Combine only events with the same value.")] = None,
    quiet_time: Annotated[
        str | None, option("FROM-TO", "Hold messages at this time of the day, such as 22:00-07:00.")
    ] = None,
    zone: Annotated[str | None, option("ZONE", "Time zone of --quiet-time. (default: UTC)")] = None,
    file: Annotated[str | None, option("FILE", "Rule as YAML, TOML or JSON, instead of options.")] = None,
    reason: Reason = None,
) -> int:
    """Create a notification rule. It concerns events from now on."""
    if file is not None:
        if rule is not None or event is not None:
            raise option_conflict("--file", "RULE or --event", "write everything into the file")
        definition = _read_rule(file)
    else:
        if rule is None or event is None:
            remedy = "write tenuto notification create RULE --event EVENT --webhook URL, or --file FILE"
            raise missing_option("tenuto notification create", "RULE and --event", remedy)
        channel = _channel(webhook, signing_key, slack, teams, email, approver_links, job)
        definition = {"name": rule, "event": event, "channel": channel}
        template = {name: value for name, value in (("subject", subject), ("body", body)) if value is not None}
        grouping: dict[str, Any] = {"window": window} if window is not None else {}
        if group_by:
            grouping["by"] = list(group_by)
        optional = {
            "filter": filter, "after": after, "template": template, "group": grouping, "quiet": _quiet(quiet_time, zone)
        }  # fmt: skip
        definition |= {name: value for name, value in optional.items() if value}
    with session.as_user(reason) as app:
        created = await _operations(app).create(definition, reason=reason)
    hint = f"try it with: tenuto notification test {created.name}"
    return session.report(asdict(created), hint, result=created.name)


def _channel(
    webhook: str | None,
    signing_key: str | None,
    slack: str | None,
    teams: str | None,
    email: list[str] | None,
    approver_links: bool,
    job: str | None,
) -> dict[str, Any]:
    channels: list[dict[str, Any]] = []
    if webhook is not None:
        key = {} if signing_key is None else {"signing_key": {"secret": signing_key}}
        channels.append({"kind": "webhook", "url": webhook, **key})
    elif signing_key is not None:
        raise missing_option("--signing-key", "--webhook", "omit --signing-key")
    channels += [
        {"kind": kind, "url": {"secret": secret}}
        for kind, secret in (("slack", slack), ("teams", teams))
        if secret is not None
    ]
    if email or approver_links:
        links = {"approver_links": True} if approver_links else {}
        channels.append({"kind": "email", "to": list(email or ()), **links})
    if job is not None:
        channels.append({"kind": "job", "job": job})
    if len(channels) != 1:
        raise Invalid(
            f"{len(channels)} channels are given",
            code="notifications.channel.count",
            field="channel",
            remedy=f"give exactly one of {_CHANNELS}",
        )
    return channels[0]


def _quiet(text: str | None, zone: str | None) -> dict[str, Any] | None:
    if text is None:
        if zone is not None:
            raise missing_option("--zone", "--quiet-time", "omit --zone")
        return None
    start, dash, end = text.partition("-")
    if not dash:
        raise Invalid(
            f"{quoted(text, 40)} is not a time of the day from one time to another",
            code="notifications.rule.invalid",
            field="quiet",
            remedy="write --quiet-time 22:00-07:00",
        )
    return {"start": start, "end": end, **({} if zone is None else {"zone": zone})}


def _read_rule(file: str) -> dict[str, Any]:
    (document,) = read_documents([file])
    value: Any = document.value
    if not isinstance(value, dict):
        raise Invalid(
            f"{file} does not contain a mapping",
            code="notifications.rule.invalid",
            remedy="write name, event and channel at the top level",
        )
    return value


@command(notification, "edit", "failures --file rule.yaml --reason 'new channel'")
async def edit_rule(
    session: Session,
    rule: RuleName,
    file: Annotated[str | None, option("FILE", "The new rule as YAML, TOML or JSON.")] = None,
    reason: Reason = None,
) -> int:
    """Replace a notification rule. Its name stays; `show RULE -o json` prints its definition."""
    if file is None:
        raise missing_option("tenuto notification edit", "--file", "write --file FILE")
    with session.as_user(reason) as app:
        found = await _operations(app).edit(rule, _read_rule(file), reason=reason)
    return session.report(asdict(found), f"{rule} is changed")


@command(notification, "enable", "failures")
async def enable_rule(session: Session, rule: RuleName, reason: Reason = None) -> int:
    """Enable a notification rule. Events from before do not concern it."""
    with session.as_user(reason) as app:
        found = await _operations(app).enable(rule, reason=reason)
    return session.report(asdict(found), f"{rule} is enabled")


@command(notification, "disable", "failures --reason 'migration'")
async def disable_rule(session: Session, rule: RuleName, reason: Reason = None) -> int:
    """Disable a notification rule. Collected events that are in no message are dropped."""
    with session.as_user(reason) as app:
        found = await _operations(app).disable(rule, reason=reason)
    return session.report(asdict(found), f"{rule} is disabled")


@command(notification, "delete", "failures --yes")
async def delete_rule(
    session: Session,
    rule: RuleName,
    yes: Annotated[bool, flag("Delete without confirmation.", "--yes")] = False,
    reason: Reason = None,
) -> int:
    """Delete a notification rule."""
    if not yes and not confirm(f"delete the notification rule {rule}", "--yes"):
        return exit_codes.FAILED
    with session.as_user(reason) as app:
        await _operations(app).delete(rule, reason=reason)
    return session.report({"deleted": rule}, f"deleted {rule}")


@command(notification, "test", "failures", "failures --wait --timeout 30")
async def send_test(
    session: Session,
    rule: RuleName,
    wait: Annotated[bool, flag("Wait until it is delivered; exit code 1 if it failed.", "--wait")] = False,
    timeout: Annotated[float | None, option("SECONDS", "Maximum time to wait; requires --wait.", min=0)] = None,
    reason: Reason = None,
) -> int:
    """Send a test message, also of a rule that is disabled, silenced or quiet. Prints its id."""
    require_wait(timeout, wait=wait)
    with session.as_user(reason) as app:
        sent = await _operations(app).test(rule, reason=reason)
    if not wait:
        hint = f"see what became of it with: tenuto notification delivery {sent.id}"
        return session.report(asdict(sent), hint, result=sent.id)
    await session.app.wait(sent.id, timeout)
    found = await _operations(session.app).delivery(sent.id)
    session.report(asdict(found), _outcome(found), result=found.id)
    return exit_codes.OK if found.state == "delivered" else exit_codes.FAILED


def _outcome(found: Delivery) -> str:
    return f"{found.state}: {found.error}" if found.error else found.state


@list_command(
    notification,
    "deliveries",
    DELIVERIES,
    "",
    "--state failed",
    limit=PAGE["limit"],
    below=PAGE["below"],
    rule=option("RULE", "Filter by rule."),
    state=option("STATE", "Filter by state: open, delivered or failed."),
)
async def list_deliveries(app: Tenuto, **filters: Any) -> Any:
    """List notifications with what became of them, newest first."""
    return await _operations(app).deliveries(**filters)


@command(notification, "delivery", "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1")
async def show_delivery(
    session: Session, id: Annotated[UUID, argument("ID", "Id of the notification.", type=UUID)]
) -> int:
    """Show a notification, its text, and what became of it."""
    found = await _operations(session.app).delivery(id)
    lines = [
        f"{found.id}  rule {found.rule}, {found.channel} {found.target}",
        _outcome(found),
        "",
        found.subject,
        str(found.document.get("body", "")),
    ]
    return session.report(asdict(found), f"attempts and log: tenuto task show {found.id}", result="\n".join(lines))


@command(
    notification,
    "silence",
    "failures --for 2h --reason 'maintenance'",
    "--all --for 30m --reason 'moving the database'",
)
async def create_silence(
    session: Session,
    rule: Annotated[str | None, argument("RULE", "Name of the rule.", default=None)] = None,
    duration: Annotated[str | None, option("TIME", "How long, such as 2h; at most 90d.", "--for")] = None,
    all: Annotated[bool, flag("Silence all rules.", "--all")] = False,
    reason: Reason = None,
) -> int:
    """Send nothing of a rule for a time. Events of that time are recorded and never sent. Prints the id."""
    if (rule is None) is not all:
        remedy = "write tenuto notification silence RULE --for 2h, or --all --for 2h"
        raise missing_option("tenuto notification silence", "a RULE or --all", remedy)
    if duration is None:
        raise missing_option("tenuto notification silence", "--for", "write --for 2h")
    with session.as_user(reason) as app:
        made = await _operations(app).silence(rule, duration, reason=reason)
    until = made.ends_at.isoformat(timespec="seconds")
    return session.report(asdict(made), f"{rule or 'all rules'} silenced until {until}", result=made.id)


@list_command(notification, "silences", SILENCES, "", limit=limit(100), rule=option("RULE", "Filter by rule."))
async def list_silences(app: Tenuto, **filters: Any) -> Any:
    """List silences that have not ended."""
    return await _operations(app).silences(**filters)


@command(notification, "unsilence", "01a1e30e-df3e-7536-8f11-1c7c02f1d0a1")
async def end_silence(
    session: Session, id: Annotated[UUID, argument("ID", "Id of the silence.", type=UUID)], reason: Reason = None
) -> int:
    """End a silence now."""
    with session.as_user(reason) as app:
        await _operations(app).end_silence(id, reason=reason)
    return session.report({"ended": str(id)}, "the silence is ended")


@command(notification, "events", "", "-o json", is_list=True)
async def list_events(session: Session) -> None:
    """List the events that rules may wait for, and the fields of their filters and templates."""
    await print_page(session, EVENTS, _operations(session.app).events())
