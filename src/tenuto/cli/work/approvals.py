"""``tenuto approval``: list approvals, approve, reject, and create links with which persons decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from tenuto.app import Tenuto
from tenuto.cli.command import Session, command, group
from tenuto.cli.lists import limit, list_command
from tenuto.cli.output import print_json
from tenuto.cli.parameters import argument, choice, option
from tenuto.cli.tables import name_value_table, print_rich, record_heading
from tenuto.errors import Invalid
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.operations.events.approvals import ApprovalDetails, describe_approvers
from tenuto.presentation.event_views import APPROVALS
from tenuto.presentation.text_formats import compact_json, format_with_age

Id = Annotated[str, argument("ID", "Id of the approval, or its first characters.")]
Reason = Annotated[str | None, option("TEXT", "Reason, stored with the decision.")]
State = Literal["pending", "approved", "rejected", "expired", "withdrawn"]

approvals = group(
    "approval", "Approve or reject what steps wait for.", "list --state pending", "approve 019a8b3c --reason 'tested'"
)


@list_command(
    approvals,
    "list",
    APPROVALS,
    "",
    "--state pending -o json",
    state=choice("Filter by state.", State),
    execution_id=option("ID", "Filter by execution.", "--execution", type=UUID),
    limit=limit(50),
)
async def list_approvals(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List approvals, newest first."""
    return await app.approvals.list(**filters)


@command(approvals, "show", "019a8b3c", "019a8b3c -o json")
async def show_approval(session: Session, id: Id) -> None:
    """Show an approval with the decisions about it."""
    operations = session.app.approvals
    found = await operations.get(await operations.find(id))
    if session.as_json:
        print_json(found)
        return
    now, approval = await session.now(), found.approval
    facts = [
        ("message", approval.message),
        ("context", compact_json(approval.context) if approval.context else ""),
        ("schedule", approval.schedule_name or ""),
        ("execution", str(approval.execution_id or "")),
        ("may decide", describe_approvers(approval)),
        ("approved", f"{approval.approval_count} of {approval.required_count}"),
        ("requested", format_with_age(approval.requested_at, now)),
        ("deadline", f"{format_with_age(approval.expires_at, now)}, then: {approval.on_deadline}"),
        *(
            (
                f"{each.decision}d by" if each.decision == "approve" else "rejected by",
                f"{each.person}{' by link' if each.via_link else ''}{f': {each.reason}' if each.reason else ''}",
            )
            for each in found.decisions
        ),
    ]
    print_rich(record_heading(approval.state, approval.step, approval.id), name_value_table(*facts))


@command(approvals, "approve", "019a8b3c", "019a8b3c --reason 'tests are green'")
async def approve(session: Session, id: Id, reason: Reason = None) -> int:
    """Approve as the user of the terminal. The step continues when enough persons have approved."""
    with session.as_user() as app:
        found = await app.approvals.approve(await app.approvals.find(id), reason)
    return _report(session, found)


@command(approvals, "reject", "019a8b3c", "019a8b3c --reason 'not before Monday'")
async def reject(session: Session, id: Id, reason: Reason = None) -> int:
    """Reject as the user of the terminal. The step fails."""
    with session.as_user() as app:
        found = await app.approvals.reject(await app.approvals.find(id), reason)
    return _report(session, found)


def _report(session: Session, found: ApprovalDetails) -> int:
    approval = found.approval
    count = f"{approval.approval_count} of {approval.required_count}"
    message = f"approved by {count} persons" if approval.state == "pending" else f"the step {approval.step!r} continues"
    if approval.state == "rejected":
        message = f"the step {approval.step!r} is rejected"
    return session.report(found, message)


@command(approvals, "link", "019a8b3c --for ana", "019a8b3c --for ana --expires 8h")
async def create_link(
    session: Session,
    id: Id,
    person: Annotated[str, option("NAME", "One of the approvers that the step names.", "--for")],
    expires: Annotated[str, option("DURATION", "How long the link is valid.")] = "2d",
) -> int:
    """Create a link with which a person decides once. Prints its address, with the setting base_url, or its path.

    Opening the link decides nothing: its page asks for confirmation.
    """
    seconds = parse_duration_seconds(expires, field="--expires")
    if seconds is None or not 0 < seconds < 1e9:
        raise Invalid("--expires is not a duration", code="value.duration.invalid", field="--expires")
    with session.as_user() as app:
        found = await app.approvals.create_link(
            await app.approvals.find(id), person, lifetime=timedelta(seconds=seconds)
        )
    base_url = session.app.settings.base_url
    message = f"valid once for {found.person}"
    if base_url is None:
        message += "; append the path to the address of the web service, or set TENUTO_BASE_URL"
    url = base_url and f"{base_url}{found.path}"
    return session.report({**asdict(found), "url": url}, message, result=url or found.path)
