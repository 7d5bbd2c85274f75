"""Bad inputs over HTTP: a request, its status, and what the problem says: the field, and what to do instead.

These are the ones `tests/api/test_bad_inputs.py` has no request for; a case that is refused changes nothing in the
database.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from tenuto.model.actors import Role

SCHEDULES = "/api/v1/schedules"
TASKS = "/api/v1/tasks"
SECRETS = "/api/v1/secrets"


class HttpCase(NamedTuple):
    """One request."""

    number: str
    method: str
    path: str
    options: dict[str, Any]
    status: int
    field: str = ""
    """How the name of the field begins that the problem speaks of."""
    expected_texts: tuple[str, ...] = ()
    """What must stand in it."""
    role: Role | None = Role.ADMIN


def token(header: dict[str, Any], **claims: Any) -> str:
    """Somebody's JWT."""
    parts = [json.dumps(header), json.dumps({"sub": "admin", "role": "admin", **claims}), "signature"]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


def bearing(number: str, text: str) -> HttpCase:
    """We take no tokens of others: whatever they say of themselves, they open nothing."""
    return HttpCase(number, "GET", SCHEDULES, {"headers": {"Authorization": f"Bearer {text}"}}, 401, role=None)


def step(number: str, kind: str, field: str, *says: str, **arguments: Any) -> HttpCase:
    one = {"kind": kind, "name": "s", "arguments": arguments}
    return HttpCase(number, "POST", SCHEDULES, {"json": {"name": "bad", "steps": [one]}}, 422, field, says)


def call(number: str, url: Any, *says: str) -> HttpCase:
    return step(number, "http.call", "steps.s.url", *says, url=url)


def program(number: str, field: str, *says: str, **arguments: Any) -> HttpCase:
    return step(number, "executable", f"steps.s.{field}", *says, **arguments)


REFUSED = [
    HttpCase("B18", "POST", TASKS, {"json": {"job": "double"}, "headers": {"Cookie": "tenuto_session=x"}}, 403,
          expected_texts=("another site", "send a key"), role=None),
    HttpCase("B22", "GET", "/api/v1/events", {"headers": {"Origin": "http://evil", "Cookie": "tenuto_session=x"}}, 401,
          role=None),
    bearing("B31", token({"alg": "none", "typ": "JWT"})),
    bearing("B31", token({"alg": "None"}).rpartition(".")[0] + "."),
    bearing("B32", token({"alg": "HS256"})),
    bearing("B33", token({"alg": "RS256"}, aud="another")),
    bearing("B34", token({"alg": "RS256", "kid": "1"}, iss="https://evil")),
    bearing("B35", token({"alg": "RS256"}, exp=0)),
    bearing("B35", token({"alg": "RS256"}, nbf=9999999999)),
    bearing("B36", token({"alg": "RS256"}, nonce="used", state="used")),
    bearing("B37", token({"alg": "HS256", "kid": "../../dev/null"})),
    bearing("B37", token({"alg": "RS256", "jku": "http://evil/keys"})),
    bearing("B38", token({"alg": "RS256"}, email="admin@example.com.evil.org", email_verified=False)),
    # Where a call leads: what can be seen of an address when it is stored.
    call("B39", "http://0177.0.0.1/"),
    call("B40", "http://0xA9FEA9FE/"),
    call("B40", "http://2852039166/"),
    call("B40", "http://0251.0376.0251.0376/"),
    call("B41", "http://a@127.0.0.1/", "user name", "header"),
    *(call("B44", url, "only http and https") for url in ("file:///etc/passwd", "gopher://x/", "ftp://x/", "unix:/x")),
    call("B45", "http://[fe80::1%25lo]/"),
    # Programs.
    program("B49", "args", program="echo", args="; id"),
    program("B50", "program", "/the/whole/path", program="-rf/x"),
    program("B51", "program", "/the/whole/path", program="../../bin/sh"),
    *(program("B52", f"env.{name}", program="echo", env={name: "x"}) for name in ("LD_PRELOAD", "PYTHONPATH", "PATH")),
    step("B54", "powershell", "steps.s.script", ".ps1", script="/x/'; Stop-Computer #"),
    program("B55", "args", "4,096", program="echo", args=["x"] * 10_000),
    program("B56", "sha256", "sha256sum", program="echo", sha256="abc"),
    step("B60", "sql", "steps.s.connection", "[connections.NAME]", connection="postgresql://u:p@h/d", script="x"),
    step("B61", "sql", "steps.s.script", connection="sqlite:///x.db", script=" "),
    # Directories: there is no connector, and nothing pretends to be one.
    step("B65", "ldap", "steps.s", "ldap", filter="*)(uid=*))(|(uid=*"),
    step("B70", "ldap", "steps.s", "ldap", base="a,ou=admins"),
    HttpCase("B68", "PUT", f"{SECRETS}/ldap-password", {"json": {"value": ""}}, 422, "value"),
    # Secrets.
    *(HttpCase("B93", "PUT", f"{SECRETS}/x", {"json": {"value": value}}, 422, "value") for value in ("a", "x" * 70_000)),
    HttpCase("B93", "PUT", f"{SECRETS}/x", {"json": {"value": "a\0bcdefgh"}}, 422, expected_texts=("NUL", "base64")),
    call("B94", {"secret": {"secret": "x"}}),
    call("B94", {"secret": "x", "of": "another project"}),
    program("B98", "args.0", "env or stdin", program="echo", args=[{"secret": "x"}]),
]  # fmt: skip
