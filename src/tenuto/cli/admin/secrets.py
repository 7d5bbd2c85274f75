"""``tenuto secret``: set, list, delete and rotate secrets. No command prints a value."""

from __future__ import annotations

import sys
from getpass import getpass
from typing import Annotated

from tenuto.cli.command import Session, command, group, top_level
from tenuto.cli.formatting import format_relative
from tenuto.cli.option_parsing import argument, option
from tenuto.cli.output import Column, print_json, print_list
from tenuto.errors import Invalid
from tenuto.operations.secrets import MAX_VALUE_BYTES

SecretName = Annotated[str, argument("NAME", "Name of the secret.")]

secrets = group(
    top_level, "secret", "Store secrets for steps and jobs.", "tenuto secret list", "tenuto secret set hr-password"
)


@command(secrets, "set", "hr-password", "hr-password -o json")
async def set_secret(session: Session, name: SecretName) -> None:
    """Store the value of a secret, read from a hidden prompt or from stdin."""
    value = _prompt_for_value(name) if sys.stdin.isatty() else _read_value()
    with session.as_user() as app:
        version = await app.secrets.set(name, value)
    if session.as_json:
        print_json({"name": name, "version": version})
    else:
        session.print_message(f"secret {name} set" + (f", now version {version}" if version > 1 else ""))


def _prompt_for_value(name: str) -> str:
    value = getpass(f"Value of {name} (hidden): ", stream=sys.stderr)
    if getpass("Repeat: ", stream=sys.stderr) != value:
        raise Invalid(
            "the two values differ",
            code="secret.value.mismatch",
            field="value",
            remedy=f"try again: tenuto secret set {name}",
        )
    return value


def _read_value() -> str:
    raw = sys.stdin.buffer.read(MAX_VALUE_BYTES + 3)  # enough to detect a value that is too long
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid(
            "the value of the secret is not UTF-8 text",
            code="secret.value.not_utf8",
            field="value",
            remedy="encode binary values as base64",
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


@command(secrets, "list", "", "-o json")
async def list_secrets(
    session: Session,
    after: Annotated[str, option("NAME", "Pagination cursor: last name of the page before.")] = "",
    limit: Annotated[int, option("N", "Maximum number of rows.")] = 100,
) -> None:
    """List secrets: names, versions and times, never values."""
    columns: dict[str, Column] = {
        "name": "name",
        "version": "version",
        "set": lambda row, now: format_relative(row["updated_at"], now),
        "by": "updated_by",
        "key": "key_id",
    }
    await print_list(
        session,
        await session.app.secrets.list(after=after, limit=limit),
        columns,
        noun="secrets",
        hint="set one with: tenuto secret set NAME",
        filters={"after": after, "limit": limit},
        optional=("key",),
        flexible=("name", "by"),
        next_page="--after",
        cursor="name",
    )


@command(secrets, "delete", "hr-password", "hr-password -q")
async def delete_secret(session: Session, name: SecretName) -> None:
    """Delete a secret. Steps and jobs that refer to it fail from now on."""
    with session.as_user() as app:
        await app.secrets.delete(name)
    if session.as_json:
        print_json({"name": name, "deleted": True})
    else:
        session.print_message(f"secret {name} deleted")


@command(secrets, "rotate", "", "-o json")
async def rotate_secrets(session: Session) -> None:
    """Encrypt every secret with the current master key; a master key in the home folder is replaced first."""
    with session.as_user() as app:
        count = await app.secrets.rotate()
    if session.as_json:
        print_json({"rotated": count})
    else:
        session.print_message(f"{count} secrets encrypted with the current master key")
