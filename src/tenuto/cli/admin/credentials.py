"""``tenuto key``, ``tenuto login`` and ``tenuto secret``: API keys, login links for the web service, secrets.

No command prints the value of a secret, and only `tenuto key add` and `tenuto key rotate` print a key.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from getpass import getpass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from tenuto.app import Tenuto
from tenuto.cli.command import Session, command, group, login_name
from tenuto.cli.lists import limit, list_command
from tenuto.cli.parameters import argument, choice, flag, option
from tenuto.clock import SystemClock
from tenuto.errors import Invalid
from tenuto.model.access.actors import Role
from tenuto.model.triggers.field_parser import parse_instant
from tenuto.operations.admin.api_keys import INITIAL_KEY_FILE, has_key_file_of, replace_in_key_file
from tenuto.operations.admin.secrets import MAX_VALUE_BYTES
from tenuto.presentation.admin_views import API_KEYS, SECRETS
from tenuto.presentation.text_formats import count_noun, format_local_time, safe_text
from tenuto.service.health_file import read_health
from tenuto.settings import Settings

RoleName = Literal["viewer", "operator", "editor", "admin"]
Key = Annotated[str, argument("KEY", "Name or prefix of the key.")]
_ROLE_HELP = "Role: viewer reads; operator also runs and stops; editor also changes definitions; admin may do all."

api_keys = group("key", "Create, list, rotate and revoke API keys.", "list", "add deploy --role editor")


@command(api_keys, "add", "deploy --role editor", "ana --person", "ci --expires 2031-12-31T00:00:00Z > ci.key")
async def create_key(
    session: Session,
    name: Annotated[str, argument("NAME", "Name of the key.")],
    role: Annotated[RoleName, choice(_ROLE_HELP)] = "viewer",
    expires: Annotated[str | None, option("INSTANT", "Expiry time. (default: valid until revoked)")] = None,
    person: Annotated[bool, flag("Key of a person, whom the audit log names as a user.", "--person")] = False,
) -> None:
    """Create an API key and print it. It is never shown again."""
    expires_at = None if expires is None else parse_instant(expires, field="--expires")
    with session.as_user() as app:
        created, text = await app.api_keys.create(name, Role.from_key(role), expires_at=expires_at, is_person=person)
    until = "it is revoked" if expires_at is None else format_local_time(expires_at)
    message = f"key {name} ({role}) is valid until {until}; store it now, it is not shown again"
    session.report({**asdict(created), "key": text}, message, result=text)


@list_command(api_keys, "list", API_KEYS, "", "-o json | jq '.[] | select(.revoked_at == null)'")
async def list_keys(app: Tenuto) -> Sequence[Any]:
    """List API keys with role, state and last use, never the keys themselves."""
    found: list[Any] = []
    while page := await app.api_keys.list(
        after=(found[-1].revoked_at is not None, found[-1].name, found[-1].id) if found else None
    ):
        found += page
    return found


@command(api_keys, "rotate", "deploy", "admin > admin.key")
async def rotate_key(session: Session, key: Key) -> None:
    """Replace an API key by a new one with the same name and role, and print it. It is never shown again.

    The old key and the browser sessions it opened end within a second. If the home folder has the old key in admin.key,
    the new key is written there.
    """
    with session.as_user() as app:
        before = await app.api_keys.get(key)
        created, text = await app.api_keys.rotate(key)
        file = replace_in_key_file(app.settings.home, before.prefix, text)
    messages = [
        f"key {created.name} ({before.prefix}) replaced by {created.prefix}; store it now, it is not shown again"
    ]
    if file is not None:
        messages.append(f"written to {safe_text(file)}")
    session.report({**asdict(created), "key": text}, *messages, result=text)


@command(api_keys, "revoke", "deploy", "k3xv9m2a")
async def revoke_key(
    session: Session,
    key: Key,
    last_admin: Annotated[bool, flag("Revoke it although no other admin key is left.", "--last-admin")] = False,
) -> None:
    """Revoke an API key and the browser sessions it opened. It takes effect within a second."""
    with session.as_user() as app:
        revoked = await app.api_keys.revoke(key, allow_last_admin=last_admin)
        has_file = has_key_file_of(app.settings.home, revoked.prefix)
    messages = [f"key {revoked.name} ({revoked.prefix}) revoked by {revoked.revoked_by or login_name()}"]
    if has_file:
        messages.append(f"  delete {safe_text(app.settings.home / INITIAL_KEY_FILE)}: it holds the revoked key")
    session.report(revoked, *messages)


@command(None, "login", "", "--key deploy --port 9000")
async def create_login_link(
    session: Session,
    key: Annotated[str, option("KEY", "Name or prefix of the API key to log in with.")] = "admin",
    host: Annotated[
        str | None,
        option("ADDRESS", "Address of the web service. (default: of the one that runs here, else setting web_host)"),
    ] = None,
    port: Annotated[
        int | None,
        option("NUMBER", "Its port. (default: of the one that runs here, else setting web_port)", min=1, max=65535),
    ] = None,
) -> None:
    """Print a link that logs a browser in to the web service.

    The link works once, within ten minutes.
    """
    address = web_address(session.app.settings, host, port)
    with session.as_user() as app:
        link = await app.api_keys.create_link(key)
    url = f"{address}/login?link={link}"
    message = "the link works once, within ten minutes, for any browser that opens it"
    session.report({"url": url, "link": link}, message, result=url)


def web_address(settings: Settings, host: str | None, port: int | None) -> str:
    """Return the address for links: as given, else of the web service that runs here, else of the settings."""
    if host is None and port is None and (running := _find_running_web_service(settings)):
        return running
    host, port = host or settings.web_host, port or settings.web_port
    if not port:
        problem = "the port of the web service is unknown: web_port is 0, so it chose a free port"
        remedy = "give the port that the web service printed at its start: --port NUMBER"
        raise Invalid(problem, code="cli.port.unknown", field="web_port", remedy=remedy)
    scheme = "https" if settings.web_tls_certificate else "http"
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.web_path}"


def _find_running_web_service(settings: Settings) -> str | None:
    """Return the address of a web service on this machine with this home folder; its port may be an option."""
    found = read_health(settings.home, "web", SystemClock().now())
    addresses = [each.address for each in found if each.healthy and each.address]
    if not addresses or any(urlsplit(each).port == settings.web_port for each in addresses):
        return None  # the settings are right
    return addresses[0].replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://127.0.0.1:")


SecretName = Annotated[str, argument("NAME", "Name of the secret.")]

secrets = group("secret", "Store secrets for steps and jobs.", "list", "set hr-password")


@command(secrets, "set", "hr-password", "hr-password -o json")
async def set_secret(session: Session, name: SecretName) -> None:
    """Store the value of a secret, read from a hidden prompt or from stdin."""
    value = _prompt_for_value(name) if sys.stdin.isatty() else _read_value()
    with session.as_user() as app:
        version = await app.secrets.set(name, value)
    now = f", now version {version}" if version > 1 else ""
    session.report({"name": name, "version": version}, f"secret {name} set{now}")


def _prompt_for_value(name: str) -> str:
    value = getpass(f"Value of {name} (hidden): ", stream=sys.stderr)
    if getpass("Repeat: ", stream=sys.stderr) != value:
        remedy = f"try again: tenuto secret set {name}"
        raise Invalid("the two values differ", code="secret.value.mismatch", field="value", remedy=remedy)
    return value


def _read_value() -> str:
    raw = sys.stdin.buffer.read(MAX_VALUE_BYTES + 3)  # enough to detect a value that is too long
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        problem, remedy = "the value of the secret is not UTF-8 text", "encode binary values as base64"
        raise Invalid(problem, code="secret.value.not_utf8", field="value", remedy=remedy) from None
    return text.removesuffix("\n").removesuffix("\r")


_AFTER = option("NAME", "Pagination cursor: last name of the page before.")


@list_command(secrets, "list", SECRETS, "", "-o json", after=_AFTER, limit=limit(100))
async def list_secrets(app: Tenuto, **filters: Any) -> Sequence[Any]:
    """List secrets: names, versions and times, never values."""
    return await app.secrets.list(**filters)


@command(secrets, "delete", "hr-password", "hr-password -q")
async def delete_secret(session: Session, name: SecretName) -> None:
    """Delete a secret. Steps and jobs that refer to it fail from now on."""
    with session.as_user() as app:
        await app.secrets.delete(name)
    session.report({"name": name, "deleted": True}, f"secret {name} deleted")


@command(secrets, "rotate", "", "--forget-old-keys -o json")
async def rotate_secrets(
    session: Session,
    forget_old_keys: Annotated[
        bool, flag("Remove old keys from the key file; secrets in earlier dumps are lost.", "--forget-old-keys")
    ] = False,
) -> None:
    """Encrypt every secret with the current master key (embedded: a new key is made first).

    Old master keys stay in the key file, because dumps made before the rotation need them. A backup made with `tenuto
    backup` contains the keys that it needs.
    """
    with session.as_user() as app:
        count = await app.secrets.rotate(forget_old_keys=forget_old_keys)
        old = await app.secrets.count_old_keys()
    document = {"rotated": count, "old_keys": old}
    if old is None:
        session.report(document, "there is no master key; nothing to do")
        return
    messages = [f"{count_noun(count, 'secret')} encrypted with the current master key"]
    if old:
        messages.append(f"{count_noun(old, 'old key')} kept for earlier dumps; remove with --forget-old-keys")
    session.report(document, *messages)
