"""Access control of requests: authentication, rate limits, roles, CSRF check, audit context and idempotency keys.

Every route declares the role that it requires and the action name of its audit entry, or a test lists it as open.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from fastapi import Depends, Request, Response

from tenuto.api.problems import Refused
from tenuto.api.security.proxy_login import SCOPE_KEY, ProxyLogin
from tenuto.api.security.rate_limit import RateLimiter, too_many_failures
from tenuto.app import Tenuto
from tenuto.errors import quoted
from tenuto.ids import new_id
from tenuto.model.access.actors import Actor, Caller, Role
from tenuto.model.access.operation_context import IdempotencyKey
from tenuto.postgres.servers.read_replica import ReplicaState
from tenuto.store.access import idempotency_keys

SESSION_COOKIE = "tenuto_session"
PAGE_HEADER = "Tenuto-Page"
"""Header of changes by the pages of the dashboard. A page of another site cannot send it without our consent (CORS)."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_MAX_STORED_RESPONSE_BYTES = 256 * 1024
_MAX_REASON_LENGTH = 1000
_STORED_HEADERS = ("content-type", "location", "etag")


@dataclass(slots=True)
class ApiCall:
    """An authorized request."""

    request: Request
    app: Tenuto
    """The app acting as the caller: it records every change for the caller."""
    caller: Caller
    object_id: UUID
    """Id of the object that the request creates; the same id when the request is repeated with its idempotency key."""
    is_repeat: bool = False
    """The request was committed before with the same idempotency key, but its response was not stored."""
    idempotency_key: IdempotencyKey | None = None
    reason: str | None = None
    """Reason given by the caller (``X-Reason``)."""
    replica: ReplicaState | None = None
    """The read replica from which the queries of this request read; None for the primary."""


class RequiredRole:
    """Dependency of a route: the role that it requires and the action name of its audit entry."""

    def __init__(
        self,
        role: Role,
        action: str,
        *,
        streams_body: bool = False,
        stores_response: bool = True,
        handles_repeats: bool = False,
        accepts_forms: bool = False,
        other_actions: tuple[str, ...] = (),
    ) -> None:
        """``accepts_forms``: a form of our own pages may call the route, which cannot send `PAGE_HEADER`.
        ``streams_body``: the route reads the body itself and handles the idempotency key.
        ``stores_response``: False if the response contains a secret.
        ``handles_repeats``: the route recognises by `ApiCall.object_id` or `ApiCall.is_repeat` what the first request
        did, and returns its result. The other routes are not called again: see `ApiRoute`.
        ``other_actions``: the body decides whether the audit entry has one of these action names instead."""
        self.role = role
        self.action = action
        self.streams_body = streams_body
        self.stores_response = stores_response
        self.handles_repeats = handles_repeats
        self.accepts_forms = accepts_forms
        self.other_actions = other_actions

    async def __call__(self, request: Request) -> ApiCall:
        """Return the call, which `ApiRoute` has authorized before it read the body."""
        call: ApiCall = request.state.api_call
        return call

    async def authorize(self, request: Request) -> ApiCall | None:
        """Authorize a request and return the call, or raise `Refused`. Subclasses return None for an open route."""
        app: Tenuto = request.app.state.tenuto
        caller = await _authenticate(request, app)
        if caller.via_session and request.method not in SAFE_METHODS and not self.accepts_forms:
            require_page_header(request)
        require_role(caller, self.role)
        call = ApiCall(request, app, caller, new_id(), reason=_decode_reason(request.headers.get("x-reason")))
        if request.method not in SAFE_METHODS and not self.streams_body:
            await _check_idempotency_key(request, call)
        call.app = app.acting_as(
            caller.actor,
            source=client_address(request),
            reason=call.reason,
            idempotency_key=None if call.is_repeat else call.idempotency_key,
            correlation_id=request.scope.get("tenuto_request_id"),
        )
        return call


def _decode_reason(text: str | None) -> str | None:
    """Return the reason; text beyond Latin-1 is percent-encoded after ``UTF-8''``, as in RFC 8187."""
    if text is None:
        return None
    if text.upper().startswith("UTF-8''"):
        text = unquote(text[len("UTF-8''") :], errors="replace").replace("\x00", "")
    return text[:_MAX_REASON_LENGTH]


def require_role(caller: Caller, role: Role) -> None:
    """Refuse a caller without a role. Routes call it if the body decides that more than their own role is needed."""
    if not caller.has_role(role):
        raise Refused(
            403,
            f"the role {role.key} is required; {caller.actor.name!r} has the role {caller.role.key}",
            code="auth.role.insufficient",
            remedy=f"use a key with the role {role.key}",
        )


def requires(
    role: Role,
    action: str,
    *,
    streams_body: bool = False,
    stores_response: bool = True,
    handles_repeats: bool = False,
    accepts_forms: bool = False,
    other_actions: tuple[str, ...] = (),
) -> Any:
    """Return the dependency of a route on a role, see `RequiredRole`."""
    return Depends(
        RequiredRole(
            role,
            action,
            streams_body=streams_body,
            stores_response=stores_response,
            handles_repeats=handles_repeats,
            accepts_forms=accepts_forms,
            other_actions=other_actions,
        )
    )


# --- authentication and rate limits -----------------------------------------------------------------------------------


async def _authenticate(request: Request, app: Tenuto) -> Caller:
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    await _limit_lookups(request, app)
    caller = await _find_caller(request, app)
    if caller is None:
        has_credentials = _bearer_token(request) is not None or session_token(request) is not None
        if has_credentials:  # guard: rate_limit.only_failed_credentials
            address, prefix = client_address(request), app.api_keys.find_prefix(_credentials(request))
            rate_limiter.refuse_after_failures(address)
            rate_limiter.count_failure(address)
            if prefix is not None:
                rate_limiter.count_failure(address, prefix)
        raise Refused(
            401,
            "the API key is not valid" if has_credentials else "the request has no API key",
            code="auth.invalid" if has_credentials else "auth.missing",
            remedy="send a key as `Authorization: Bearer …`; `tenuto key add` creates one",
            headers={"WWW-Authenticate": "Bearer"},
        )
    rate_limiter.count_request(caller.actor.id or caller.actor.name)
    return caller


async def _limit_lookups(request: Request, app: Tenuto) -> None:
    """Limit the database lookups of unknown credentials after too many failures from the same address.

    Many callers may share the address of a proxy. Credentials that were valid recently are therefore exempt, and a key
    is limited only by failures with its own prefix. A prefix that no key has is refused without a lookup.
    """
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    address, credentials = client_address(request), _credentials(request)
    if not credentials or not rate_limiter.has_too_many_failures(address):
        return
    if app.api_keys.was_recently_valid(credentials):
        return
    prefix = app.api_keys.find_prefix(credentials)
    if prefix is None:
        rate_limiter.count_lookup(address)
    elif await app.api_keys.has_prefix(prefix):  # guard: rate_limit.valid_key_of_an_attacked_address
        rate_limiter.count_lookup(address, prefix)
    else:
        raise too_many_failures()


def _credentials(request: Request) -> str:
    """Return the key of the request or, without one, its session."""
    token = _bearer_token(request)
    return token if token is not None else session_token(request) or ""


def client_address(request: Request) -> str:
    """Return the IP address of the client."""
    return request.client.host if request.client else "unknown"


def _bearer_token(request: Request) -> str | None:
    """Return the token of the scheme Bearer. A proxy may forward other schemes, with which it logs people in."""
    headers = request.headers.getlist("authorization")
    if len(headers) > 1:
        raise Refused(400, "the request has two Authorization headers", code="auth.header.duplicate", remedy="send one")
    scheme, _, token = headers[0].partition(" ") if headers else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else None  # guard: auth.only_bearer


def browser_name(request: Request) -> str | None:
    """Return what the browser says about itself, for the list of sessions."""
    return request.headers.get("user-agent")


def session_cookie_name(request: Request) -> str:
    """Return the name of the session cookie. On HTTPS the browser refuses it from other hosts and from plain HTTP."""
    if request.url.scheme != "https":
        return SESSION_COOKIE
    return f"__Secure-{SESSION_COOKIE}" if request.app.state.tenuto.settings.web_path else f"__Host-{SESSION_COOKIE}"


def session_token(request: Request) -> str | None:
    """Return the token of the browser session, if the request has one."""
    return request.cookies.get(session_cookie_name(request))


async def _find_caller(request: Request, app: Tenuto) -> Caller | None:
    """Return the caller by key, else by the header of a trusted proxy, else by session."""
    return (
        await _authenticate_key(request, app)
        or _authenticate_proxy_user(request)
        or await _authenticate_session(request, app)
    )


def _authenticate_proxy_user(request: Request) -> Caller | None:
    login: ProxyLogin | None = request.scope.get(SCOPE_KEY)
    if login is None or _bearer_token(request) is not None:
        return None
    if request.method not in SAFE_METHODS:  # the browser proves its user to the proxy without being asked
        refuse_cross_site(request)  # guard: proxy_login.cross_site
    if login.role is None:
        raise Refused(
            403,
            f"the user {quoted(login.user, 60)} has no role in this service",
            code="auth.proxy_user.no_role",
            remedy="ask an administrator to map a group of the user to a role: setting web_roles",
        )
    return Caller(Actor.user(login.user), login.role, via_session=True)


async def _authenticate_key(request: Request, app: Tenuto) -> Caller | None:
    token = _bearer_token(request)
    return await app.api_keys.authenticate(token) if token else None


async def _authenticate_session(request: Request, app: Tenuto) -> Caller | None:
    token = session_token(request)
    if not token or _bearer_token(request) is not None:
        return None
    if request.method not in SAFE_METHODS:
        refuse_cross_site(request)
    return await app.api_keys.authenticate_session(token)


async def is_still_authorized(request: Request, call: ApiCall) -> bool:
    """Return whether the caller of a long request still has its role."""
    caller = await _find_caller(request, call.app)
    return caller is not None and caller.role >= call.caller.role


def refuse_cross_site(request: Request) -> None:
    """CSRF check: refuse changes by a session cookie unless they come from our own pages."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    own_origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if site == "same-origin" or (site is None and origin == own_origin):
        return
    raise Refused(
        403,
        "a browser session cannot change anything from another site",
        code="auth.csrf",
        remedy="send an API key instead of the session cookie",
    )


def require_page_header(request: Request) -> None:
    """Second layer of the CSRF check: changes by a session must come from a script of our own pages."""
    if PAGE_HEADER in request.headers:  # guard: auth.page_header
        return
    raise Refused(
        403,
        f"a change by a browser session needs the header {PAGE_HEADER}",
        code="auth.csrf",
        remedy="send an API key instead of the session cookie",
    )


# --- idempotency keys -------------------------------------------------------------------------------------------------


class ReplayedResponse(Exception):
    """The request was answered before; carries the stored response."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self.stored = stored

    def to_response(self) -> Response:
        headers = {**self.stored["headers"], "Idempotent-Replayed": "true"}
        return Response(self.stored["body"].encode("utf-8"), self.stored["status"], headers=headers)


async def _check_idempotency_key(request: Request, call: ApiCall) -> None:
    """Replay the stored response of an earlier request, or mark the call as its repetition."""
    key = request.headers.get("idempotency-key")
    if key is None or request.method != "POST":
        return
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise Refused(
            422, "the Idempotency-Key must have 1 to 255 printable characters", code="request.idempotency_key.invalid"
        )
    body = hashlib.sha256(await request.body()).digest()
    fingerprint = hashlib.sha256(f"{request.method} {request.url.path}?{request.url.query}\n".encode() + body).digest()
    actor = f"{call.caller.actor.type}:{call.caller.actor.id or call.caller.actor.name}"
    call.idempotency_key = IdempotencyKey(actor, key, fingerprint, call.object_id)
    earlier = await idempotency_keys.find_request(await call.app.open(), actor, key)
    if earlier is None:
        return
    if earlier.fingerprint != fingerprint:
        raise Refused(
            422,
            f"the Idempotency-Key {quoted(key, 60)} was used for another request",
            code="request.idempotency_key.reused",
            remedy="use a new key for each request",
        )
    if earlier.response is not None:
        raise ReplayedResponse(earlier.response)
    call.is_repeat, call.object_id = True, earlier.subject


async def store_response(app: Tenuto, call: ApiCall, response: Response) -> None:
    """Store the response for repetitions of the request."""
    key, body = call.idempotency_key, getattr(response, "body", None)
    if key is None or body is None or response.status_code >= 500 or len(body) > _MAX_STORED_RESPONSE_BYTES:
        return
    stored = {
        "status": response.status_code,
        "headers": {name: value for name, value in response.headers.items() if name in _STORED_HEADERS},
        "body": bytes(body).decode("utf-8"),
    }
    await idempotency_keys.store_response(await app.open(), key.actor, key.key, json.dumps(stored))
