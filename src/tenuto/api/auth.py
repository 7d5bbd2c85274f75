"""The door: who comes in, and whether they may.

Every route names the role it needs and the word under which it goes on record. Nothing is open unless it says so.
Whoever shows a browser's session instead of a key must come from our own pages when changing anything.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fastapi import Request, Response

from tenuto.api.problems import Refused
from tenuto.api.rate_limit import Rates
from tenuto.app import Tenuto
from tenuto.ids import new_id
from tenuto.model.actors import Caller, Role
from tenuto.store.access import idempotency_keys
from tenuto.store.access.audit_recorder import Deed, RequestKey, off_record, on_record

COOKIE = "tenuto_session"
SAFE = ("GET", "HEAD", "OPTIONS")
_KEPT_ANSWER = 256 * 1024


@dataclass(slots=True)
class Visit:
    """One request by somebody who may make it."""

    app: Tenuto
    caller: Caller
    id: UUID
    """What is made by this request gets this id: the same one if the request is sent again with its key."""
    again: bool = False
    """It was sent before with the same key, and is not known to have been answered."""
    key: RequestKey | None = None
    reason: str | None = None
    """Why, in the caller's words (``X-Reason``)."""
    _stack: ExitStack = field(default_factory=ExitStack)

    def begin(self, deed: Deed | None) -> None:
        """From here on everything is done on the caller's account."""
        self._stack.enter_context(self.app.acting_as(self.caller.actor))
        if deed is not None:
            self._stack.enter_context(on_record(deed))

    def end(self) -> None:
        self._stack.close()


class Replay(Exception):
    """The request was answered before; this was the answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer


class Needs:
    """A dependency of a route: who may use it, and as what it goes on record if it changes anything."""

    def __init__(self, role: Role, action: str, *, streams: bool = False, keeps_answer: bool = True) -> None:
        """``streams``: the body is read by the route as it comes, and a key of the request is the route's to heed.
        ``keeps_answer``: not where the answer holds what nobody may keep."""
        self.role = role
        self.action = action
        self.streams = streams
        self.keeps_answer = keeps_answer

    async def __call__(self, request: Request) -> Visit:
        visit: Visit | None = request.scope.get("tenuto_visit")
        if visit is None:  # else let in before its body was read
            visit = request.scope["tenuto_visit"] = await self._let_in(request)
        return visit

    async def _let_in(self, request: Request) -> Visit:
        app: Tenuto = request.app.state.tenuto
        caller = await _caller(request, app)
        if not caller.may(self.role):
            raise Refused(
                403,
                f"this needs the role {self.role.word}; the key {caller.actor.name!r} is {caller.role.word}'s",
                remedy="ask an administrator for a key that may",
            )
        visit = Visit(app, caller, new_id(), reason=_reason(request))
        deed = None
        if request.method not in SAFE:
            if not self.streams:
                await _find_earlier(request, visit)
            deed = Deed(
                caller.actor,
                self.action,
                source=_address(request),
                target=_target(request),
                reason=visit.reason,
                request_id=request.scope.get("tenuto_request_id"),
                request_key=None if visit.again else visit.key,
            )
        visit.begin(deed)
        return visit


async def _caller(request: Request, app: Tenuto) -> Caller:
    rates: Rates = request.app.state.rates
    _ration(request, app)
    caller = await _with_key(request, app) or await _with_session(request, app)
    if caller is None:
        rates.refuse_guessers(_address(request))
        if "authorization" in request.headers or COOKIE in request.cookies:
            rates.guessed(_address(request))
        raise Refused(
            401,
            "no key, or not a valid one",
            remedy="send it as `Authorization: Bearer …`; `tenuto key add` makes one",
            headers={"WWW-Authenticate": "Bearer"},
        )
    rates.count(caller.actor.id or caller.actor.name)
    return caller


def _ration(request: Request, app: Tenuto) -> None:
    """From where too many wrong keys came, strangers are seldom looked up in the database. Whoever was let in before
    is all the same: many may come from one address, as behind a proxy."""
    rates: Rates = request.app.state.rates
    if rates.has_guessed_enough(_address(request)):
        shown = _shown(request)
        if shown and not app.keys.has_let_in(shown):
            rates.look_up(_address(request))


def _address(request: Request) -> str:
    return request.client.host if request.client else "unknown"


def _shown(request: Request) -> str:
    """The key or the session that somebody shows; nothing if it is neither."""
    if "authorization" in request.headers:
        return _key(request)
    return request.cookies.get(COOKIE, "")


def _key(request: Request) -> str:
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise Refused(400, "there are two Authorization headers", remedy="send one")
    scheme, _, text = given[0].partition(" ") if given else ("", "", "")
    return text.strip() if scheme.lower() == "bearer" else ""


async def _with_key(request: Request, app: Tenuto) -> Caller | None:
    text = _key(request)
    return await app.keys.check(text) if text else None


async def _with_session(request: Request, app: Tenuto) -> Caller | None:
    token = request.cookies.get(COOKIE)
    if not token or "authorization" in request.headers:
        return None
    if request.method not in SAFE:
        refuse_strangers(request)
    return await app.keys.session(token)


async def caller_of_session(request: Request) -> Caller | None:
    """Whose browser this is, where nobody needs to be known."""
    if COOKIE not in request.cookies:
        return None
    rates: Rates = request.app.state.rates
    _ration(request, request.app.state.tenuto)
    caller = await _with_session(request, request.app.state.tenuto)
    if caller is None:
        rates.guessed(_address(request))
    return caller


async def still_welcome(request: Request, visit: Visit) -> bool:
    """Whether somebody whose request goes on and on may still make it."""
    caller = await _with_key(request, visit.app) or await _with_session(request, visit.app)
    return caller is not None and caller.role >= visit.caller.role


def refuse_strangers(request: Request) -> None:
    """A browser sends its cookie whoever wrote the page: only our own pages may change anything with it."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if site == "same-origin" or (site is None and origin == own):
        return
    raise Refused(403, "this comes from another site", remedy="send a key instead of the browser's session")


def _target(request: Request) -> str | None:
    return "/".join(str(value) for value in request.path_params.values()) or None


def _reason(request: Request) -> str | None:
    reason = request.headers.get("x-reason")
    return None if reason is None else reason[:1000]


# --- requests that are sent again ------------------------------------------------------------------------------------


async def _find_earlier(request: Request, visit: Visit) -> None:
    key = request.headers.get("idempotency-key")
    if key is None or request.method != "POST":
        return
    if not 1 <= len(key) <= 255 or not key.isprintable():
        raise Refused(422, "Idempotency-Key: must be 1 to 255 printable characters")
    body = hashlib.sha256(await request.body()).digest()
    fingerprint = hashlib.sha256(f"{request.method} {request.url.path}?{request.url.query}\n".encode() + body).digest()
    actor = f"{visit.caller.actor.type}:{visit.caller.actor.id or visit.caller.actor.name}"
    visit.key = RequestKey(actor, key, fingerprint, visit.id)
    earlier = await idempotency_keys.find(await visit.app.open(), actor, key)
    if earlier is None:
        return
    if earlier.fingerprint != fingerprint:
        raise Refused(
            422, "Idempotency-Key: was used for another request", remedy="use a new key for each request of its own"
        )
    if earlier.answer is not None:
        raise Replay(earlier.answer)
    visit.again, visit.id = True, earlier.subject


async def remember_answer(visit: Visit, response: Response) -> None:
    """Keep what was answered, for a request that may come again."""
    body = getattr(response, "body", None)
    if visit.key is None or body is None or response.status_code >= 500 or len(body) > _KEPT_ANSWER:
        return
    headers = {name: value for name, value in response.headers.items() if name in ("content-type", "location", "etag")}
    answer = {
        "status": response.status_code,
        "headers": headers,
        "body": bytes(body).decode("utf-8"),
    }
    with off_record():  # to remember is no deed: what changed nothing when it came again leaves no entry
        await idempotency_keys.answered(await visit.app.open(), visit.key.actor, visit.key.key, json.dumps(answer))


def replayed(replay: Replay) -> Response:
    """The answer of before."""
    answer = replay.answer
    return Response(
        answer["body"].encode("utf-8"), answer["status"], headers={**answer["headers"], "Idempotent-Replayed": "true"}
    )
