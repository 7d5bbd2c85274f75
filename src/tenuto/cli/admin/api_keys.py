"""``tenuto key`` and ``tenuto login``: who may use the web service, and a link that opens it in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.formatting import ago, local
from tenuto.errors import Invalid

if TYPE_CHECKING:
    from datetime import datetime

    from tenuto.settings import Settings

RoleWord = Literal["viewer", "operator", "editor", "admin"]
Key = Annotated[str, typer.Argument(metavar="KEY", help="The key's name or prefix.")]


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    keys = group(
        root, "key", "Make, list and revoke API keys.", "tenuto key list", "tenuto key add deploy --role editor"
    )
    command(
        keys,
        "add",
        "tenuto key add deploy --role editor",
        "tenuto key add ci --expires 2031-12-31T00:00:00Z > ci.key",
    )(add_key)
    command(keys, "list", "tenuto key list", "tenuto key list -o json | jq '.[] | select(.revoked_at == null)'")(
        list_keys
    )
    command(keys, "revoke", "tenuto key revoke deploy", "tenuto key revoke k3xv9m2a")(revoke_key)
    command(root, "login", "tenuto login", "tenuto login --key deploy --port 9000")(login)


async def add_key(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")],
    role: Annotated[
        RoleWord,
        typer.Option(help="viewer looks; operator runs and stops; editor changes definitions; admin does everything."),
    ] = "viewer",
    expires: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Until when it is good; without one, until it is revoked.")
    ] = None,
) -> None:
    """Make an API key and print it: this is the only time it is shown."""
    from tenuto.cli.output import show_json, show_text
    from tenuto.model.actors import Role
    from tenuto.model.triggers.parsing import instant

    ends = None if expires is None else instant(expires, field="--expires")
    with session.as_user() as app:
        made, text = await app.keys.make(name, Role.named(role), expires_at=ends)
    if session.as_json:
        show_json({**made, "key": text})
        return
    show_text(text)
    until = "until it is revoked" if ends is None else f"until {local(ends)}"
    session.say(f"key {name} ({role}) is good {until}; keep it now, it is not shown again")


async def list_keys(session: Session) -> None:
    """List the keys: who they are for and what they may do, never the keys themselves."""
    from tenuto.cli.output import show_json, show_table
    from tenuto.cli.output import state as in_words

    found = list(some := await session.app.keys.list())
    while some:
        last = found[-1]
        found += (some := await session.app.keys.list(after=(last["revoked_at"] is not None, last["name"], last["id"])))
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say("there are no keys; make one with: tenuto key add NAME --role admin")
        return
    now = (await session.app.open()).clock.now()
    show_table(
        ("name", "prefix", "role", "state", "last used", "made", "by", "ends"),
        [
            (
                key["name"],
                key["prefix"],
                key["role"],
                in_words(_state(key)),
                ago(key["last_used_at"], now) or "never",
                ago(key["created_at"], now),
                key["created_by"],
                _ends(key, now),
            )
            for key in found
        ],
        spare=("made", "by"),
        flexible=("name",),
    )


def _state(key: dict[str, Any]) -> str:
    if key["revoked_at"] is not None:
        return "revoked"
    return "expired" if key["expired"] else "in use"


def _ends(key: dict[str, Any], now: datetime) -> str:
    if key["revoked_at"] is not None:
        return f"{ago(key['revoked_at'], now)} by {key['revoked_by']}"
    return ago(key["expires_at"], now)


async def revoke_key(session: Session, key: Key) -> None:
    """End a key and every session it opened; within a second nothing opens with it."""
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        ended = await app.keys.revoke(key)
    if session.as_json:
        show_json(ended)
    else:
        session.say(f"key {ended['name']} ({ended['prefix']}) is revoked, by {ended['revoked_by'] or login_name()}")


async def login(
    session: Session,
    key: Annotated[str, typer.Option(metavar="KEY", help="On whose account: a key's name or prefix.")] = "admin",
    host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where the web service listens, if it was told at its start.")
    ] = None,
    port: Annotated[int | None, typer.Option(metavar="NUMBER", help="Its port, likewise.", min=1, max=65535)] = None,
) -> None:
    """Print a link that opens the web service in a browser: once, and within ten minutes."""
    from tenuto.cli.output import show_json, show_text

    where = _web_address(session.app.settings, host, port)
    with session.as_user() as app:
        link = await app.keys.link(key)
    address = f"{where}/login?link={link}"
    if session.as_json:
        show_json({"url": address, "link": link})
        return
    show_text(address)
    session.say("it opens once, within ten minutes; whoever opens it is let in")


def _web_address(settings: Settings, host: str | None, port: int | None) -> str:
    host, port = host or settings.web_host, port or settings.web_port
    if not port:
        raise Invalid(
            "is 0, for any port that is free: which one it has become is not known here",
            field="web_port",
            remedy="give the port the web service said at its start: --port NUMBER",
        )
    scheme = "https" if settings.web_tls_certificate else "http"
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
