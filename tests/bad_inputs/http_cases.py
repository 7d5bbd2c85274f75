"""Bad inputs over HTTP: a request, its status, and the code and field of the problem.

These complete the requests in `tests/api/test_bad_inputs.py`. A refused case changes nothing in the database.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from tenuto.model.access.actors import Role

SCHEDULES = "/api/v1/schedules"
TASKS = "/api/v1/tasks"
SECRETS = "/api/v1/secrets"


class HttpCase(NamedTuple):
    """A request that is refused."""

    number: str
    method: str
    path: str
    options: dict[str, Any]
    status: int
    code: str
    """Error code, or the beginning of it."""
    field: str = ""
    """Beginning of the field name; empty if the problem names no field."""
    role: Role | None = Role.ADMIN


def make_jwt(header: dict[str, Any], **claims: Any) -> str:
    """Return a JWT, which Tenuto does not accept."""
    parts = [json.dumps(header), json.dumps({"sub": "admin", "role": "admin", **claims}), "signature"]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


def bearer(number: str, token: str) -> HttpCase:
    headers = {"Authorization": f"Bearer {token}"}
    return HttpCase(number, "GET", SCHEDULES, {"headers": headers}, 401, "auth.invalid", role=None)


def step(number: str, kind: str, argument: str | None, code: str, **arguments: Any) -> HttpCase:
    field = "steps[0]" if argument is None else f"steps[0].arguments.{argument}"
    body = {"name": "bad", "steps": [{"kind": kind, "name": "s", "arguments": arguments}]}
    return HttpCase(number, "POST", SCHEDULES, {"json": body}, 422, code, field)


def http_call(number: str, url: Any, code: str) -> HttpCase:
    return step(number, "http.call", "url", code, url=url)


def program(number: str, field: str, code: str, **arguments: Any) -> HttpCase:
    return step(number, "executable", field, code, **arguments)


_OTHER_SITE = {"Origin": "http://evil", "Cookie": "tenuto_session=x"}

REFUSED = [
    HttpCase("B18", "POST", TASKS, {"json": {"job": "double"}, "headers": {"Cookie": "tenuto_session=x"}}, 403,
             "auth.csrf", role=None),
    HttpCase("B22", "GET", "/api/v1/events", {"headers": _OTHER_SITE}, 401, "auth.invalid", role=None),
    bearer("B31", make_jwt({"alg": "none", "typ": "JWT"})),
    bearer("B31", make_jwt({"alg": "None"}).rpartition(".")[0] + "."),
    bearer("B32", make_jwt({"alg": "HS256"})),
    bearer("B33", make_jwt({"alg": "RS256"}, aud="another")),
    bearer("B34", make_jwt({"alg": "RS256", "kid": "1"}, iss="https://evil")),
    bearer("B35", make_jwt({"alg": "RS256"}, exp=0)),
    bearer("B35", make_jwt({"alg": "RS256"}, nbf=9999999999)),
    bearer("B36", make_jwt({"alg": "RS256"}, nonce="used", state="used")),
    bearer("B37", make_jwt({"alg": "HS256", "kid": "../../dev/null"})),
    bearer("B37", make_jwt({"alg": "RS256", "jku": "http://evil/keys"})),
    bearer("B38", make_jwt({"alg": "RS256"}, email="admin@example.com.evil.org", email_verified=False)),
    # HTTP calls: addresses that are checked when the step is stored.
    http_call("B39", "http://0177.0.0.1/", "step.http.url"),
    http_call("B40", "http://0xA9FEA9FE/", "step.http.url.host_invalid"),
    http_call("B40", "http://2852039166/", "step.http.url.host_invalid"),
    http_call("B40", "http://0251.0376.0251.0376/", "step.http.url"),
    http_call("B41", "http://a@127.0.0.1/", "step.http.url.invalid"),
    *(
        http_call("B44", url, "step.http.url.invalid")
        for url in ("file:///etc/passwd", "gopher://x/", "ftp://x/", "unix:/x")
    ),
    http_call("B45", "http://[fe80::1%25lo]/", "step.http.url.host_invalid"),
    # Programs.
    program("B49", "args", "job.input.invalid", program="echo", args="; id"),
    program("B50", "program", "step.program.path_invalid", program="-rf/x"),
    program("B51", "program", "step.program.path_invalid", program="../../bin/sh"),
    *(
        program("B52", f"env.{name}", "step.program.env.reserved", program="echo", env={name: "x"})
        for name in ("LD_PRELOAD", "PYTHONPATH", "PATH")
    ),
    step("B54", "powershell", "script", "step.powershell.script.not_ps1", script="/x/'; Stop-Computer #"),
    program("B55", "args", "step.program.args.too_many", program="echo", args=["x"] * 10_000),
    program("B56", "sha256", "step.program.digest.invalid", program="echo", sha256="abc"),
    step("B60", "sql", "connection", "step.sql.connection.is_url", connection="postgresql://u@h/d", script="x"),
    step("B61", "sql", "script", "step.sql.script.empty", connection="sqlite:///x.db", script=" "),
    # Directories: there is no step kind for them.
    step("B65", "ldap", None, "step.kind.unknown", filter="*)(uid=*))(|(uid=*"),
    step("B70", "ldap", None, "step.kind.unknown", base="a,ou=admins"),
    HttpCase("B68", "PUT", f"{SECRETS}/ldap-password", {"json": {"value": ""}}, 422, "secret.value.too_short", "value"),
    # Secrets.
    HttpCase("B93", "PUT", f"{SECRETS}/x", {"json": {"value": "a"}}, 422, "secret.value.too_short", "value"),
    HttpCase("B93", "PUT", f"{SECRETS}/x", {"json": {"value": "x" * 70_000}}, 422, "value.too_large", "value"),
    HttpCase("B93", "PUT", f"{SECRETS}/x", {"json": {"value": "a\0bcdefgh"}}, 422, "request.text.nul"),
    http_call("B94", {"secret": {"secret": "x"}}, "job.input.invalid"),
    http_call("B94", {"secret": "x", "of": "another project"}, "job.input.invalid"),
    program("B98", "args.0", "step.program.args.secret", program="echo", args=[{"secret": "x"}]),
]  # fmt: skip
