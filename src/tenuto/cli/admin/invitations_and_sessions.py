"""``tenuto invitation`` and ``tenuto session``: invite people to the dashboard, list and end their browser sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

from tenuto.app import Tenuto
from tenuto.cli.admin.credentials import RoleName, web_address
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.lists import BELOW, limit, list_command
from tenuto.cli.parameters import argument, choice, option
from tenuto.errors import Invalid, NotFound
from tenuto.model.access.actors import Role
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.presentation.admin_views import INVITATIONS, SESSIONS
from tenuto.presentation.text_formats import format_local_time

invitations = group(
    "invitation", "Invite people to the dashboard, list and revoke invitations.", "list", "create ana --role operator"
)


@command(invitations, "create", "ana --role operator", "ben --role viewer --valid 7d --host tenuto.example.org")
async def create_invitation(
    session: Session,
    name: Annotated[str, argument("NAME", "Name of the person, as the audit log will show it.")],
    role: Annotated[RoleName, choice("Role of the person.")] = "viewer",
    valid: Annotated[str, option("DURATION", "Time until the link expires, such as 12h.")] = "3d",
    host: Annotated[
        str | None,
        option("ADDRESS", "Address of the web service. (default: of the one that runs here, else setting web_host)"),
    ] = None,
    port: Annotated[
        int | None,
        option("NUMBER", "Its port. (default: of the one that runs here, else setting web_port)", min=1, max=65535),
    ] = None,
) -> None:
    """Invite a person and print the link that accepts the invitation. It is never shown again.

    The first browser that opens the link and presses the button gets a key of that name and role, and a session.
    """
    lifetime = timedelta(seconds=parse_duration_seconds(valid, field="--valid") or 0)
    address = web_address(session.app.settings, host, port)
    with session.as_user() as app:
        made, link = await app.invitations.create(name, Role.from_key(role), lifetime=lifetime)
    url = f"{address}/login?link={link}"
    message = f"the link works once, until {format_local_time(made.expires_at)}; send it to {name} only"
    session.report({**asdict(made), "link": link, "url": url}, message, result=url)


@list_command(invitations, "list", INVITATIONS, "", "-o json", limit=limit(50), below=BELOW)
async def list_invitations(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List invitations, newest first, never their links."""
    return await app.invitations.list(**filters)


@command(invitations, "revoke", "ana", "01981f6e-0000-7000-8000-000000000000")
async def revoke_invitation(
    session: Session, name: Annotated[str, argument("NAME", "Name of the person, or the id of the invitation.")]
) -> None:
    """Revoke an open invitation. Its link stops working at once."""
    with session.as_user() as app:
        revoked = await app.invitations.revoke(name)
    session.report(revoked, f"invitation for {revoked.name} revoked by {login_name()}")


sessions = group("session", "List and end browser sessions.", "list", "end 01981f6e")

_KEY = option("KEY", "Filter by the name or prefix of a key.")


@list_command(sessions, "list", SESSIONS, "", "--key ana -o json", key=_KEY)
async def list_sessions(app: Tenuto, key: str | None = None) -> Sequence[Any]:
    """List open browser sessions, last used ones first."""
    return await app.api_keys.sessions(None if key is None else (await app.api_keys.get(key)).id)


@command(sessions, "end", "01981f6e", "01981f6e-0000-7000-8000-000000000000 -q")
async def end_session(
    session: Session, id: Annotated[str, argument("ID", "Id of the session, or its first characters.")]
) -> None:
    """End a browser session. It stops working within a second."""
    with session.as_user() as app:
        found = _find_session(id, await app.api_keys.sessions())
        await app.api_keys.end_session_by_id(found.id)
    session.report(found, f"session {found.id} of {found.name} ended by {login_name()}")


def _find_session(text: str, open_sessions: Sequence[Any]) -> Any:
    found = [each for each in open_sessions if str(each.id).startswith(text.lower())] if len(text) >= 4 else []
    if len(found) == 1:
        return found[0]
    if found:
        raise Invalid(
            f"{len(found)} sessions begin with {text}",
            code="session.id.ambiguous",
            field="ID",
            remedy="give more characters of the id",
        )
    raise NotFound(
        f"there is no open session {text[:60]!r}", code="session.not_found", remedy="see `tenuto session list`"
    )
