"""``tenuto secret``: keep texts that nobody may read, change them, let them go."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tenuto.cli.command import Session, command, group
from tenuto.cli.formatting import ago

SecretName = Annotated[str, typer.Argument(metavar="NAME", help="What steps call it.")]


def add_to(root: typer.Typer) -> None:
    """Put the commands into the tree."""
    secrets = group(
        root, "secret", "Keep secrets for steps and jobs.", "tenuto secret list", "tenuto secret set hr-password"
    )
    command(secrets, "set", "tenuto secret set hr-password", "tenuto secret set hr-password -o json")(set_secret)
    command(secrets, "list", "tenuto secret list", "tenuto secret list -o json")(list_secrets)
    command(secrets, "delete", "tenuto secret delete hr-password", "tenuto secret delete hr-password -q")(delete_secret)
    command(secrets, "rotate", "tenuto secret rotate", "tenuto secret rotate -o json")(rotate_secrets)


async def set_secret(session: Session, name: SecretName) -> None:
    """Keep a value under a name; it is asked for, or read from stdin, and never shown again."""
    from tenuto.cli.output import show_json

    value = _asked_for(name) if sys.stdin.isatty() else _read()
    with session.as_user() as app:
        version = await app.secrets.set(name, value)
    if session.as_json:
        show_json({"name": name, "version": version})
    else:
        session.say(f"secret {name} is set" + (f", now in version {version}" if version > 1 else ""))


def _asked_for(name: str) -> str:
    from getpass import getpass

    from tenuto.errors import Invalid

    value = getpass(f"Value of {name} (it is not shown): ", stream=sys.stderr)
    if getpass("Once more: ", stream=sys.stderr) != value:
        raise Invalid("the two were not the same", field="value", remedy=f"tenuto secret set {name}")
    return value


def _read() -> str:
    from tenuto.errors import Invalid
    from tenuto.operations.secrets import LARGEST

    raw = sys.stdin.buffer.read(LARGEST + 3)  # a longer one is refused with its own words, and need not be read
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid("is not UTF-8 text", field="value", remedy="give bytes as base64") from None
    return text.removesuffix("\n").removesuffix("\r")


async def list_secrets(
    session: Session,
    after: Annotated[str, typer.Option(metavar="NAME", help="Go on after this one.")] = "",
    limit: Annotated[int, typer.Option(metavar="N", help="How many to show at most.")] = 100,
) -> None:
    """List the secrets: their names and when they were set, never their values."""
    from tenuto.cli.output import show_json, show_table

    found = await session.app.secrets.list(after=after, limit=limit)
    if session.as_json:
        show_json(found)
        return
    if not found:
        session.say("there are no secrets; keep one with: tenuto secret set NAME")
        return
    now = (await session.app.open()).clock.now()
    show_table(
        ("name", "version", "set", "by", "key"),
        [(row["name"], row["version"], ago(row["updated_at"], now), row["updated_by"], row["key_id"]) for row in found],
        spare=("key",),
        flexible=("name", "by"),
    )


async def delete_secret(session: Session, name: SecretName) -> None:
    """Let a secret go; what refers to it fails from now on."""
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        await app.secrets.delete(name)
    if session.as_json:
        show_json({"name": name, "deleted": True})
    else:
        session.say(f"secret {name} is gone")


async def rotate_secrets(session: Session) -> None:
    """Bring every secret under the current master key; one in the home is made anew first."""
    from tenuto.cli.output import show_json

    with session.as_user() as app:
        count = await app.secrets.rotate()
    if session.as_json:
        show_json({"rotated": count})
    else:
        session.say(f"{count} secrets were brought under the current master key")
