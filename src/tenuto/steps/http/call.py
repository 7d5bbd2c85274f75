"""The step kind ``http.call``: one request, sent to an address that may be called, and what came back.

The same idempotency key goes out with every attempt, so that a receiver can act once. An answer of another status than
expected fails the attempt: for now if it may be otherwise later, for good if not. Whatever the other side does, time
and memory stay bounded. Which addresses may be called is decided in `addresses`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from tenuto.clock import steady
from tenuto.errors import EngineError, Forbidden, Invalid
from tenuto.jobs.context import Context, PermanentFailure, RetryLater
from tenuto.jobs.registry import Job, Using
from tenuto.model.policies import Policy
from tenuto.model.secrets import SecretRef, Text
from tenuto.model.steps import HTTP_CALL
from tenuto.model.tasks import seconds
from tenuto.steps.http import response as httpanswers
from tenuto.steps.http.address_policy import Allowance, literal
from tenuto.steps.http.response import Answer, ExpectedStatus, expects
from tenuto.version import __version__

if TYPE_CHECKING:
    import httpx2

    from tenuto.steps.http.transport import Resolve
    from tenuto.steps.step_kinds import Means

KIND = HTTP_CALL
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_SECONDS = 3600.0
MAX_HOPS = 3
MAX_HEADERS = 100
MAX_HEADER = 16 * 1024
MAX_URL = 8 * 1024

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f\\]")
_NOT_IN_A_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OF_THE_CONNECTION = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""What the client itself says; said twice, two readers could see two different requests."""
_GO_ALONG = frozenset({"accept", "content-type", "idempotency-key", "tenuto-attempt", "tenuto-fence", "user-agent"})
"""What is said to another host too, when a redirect leads there: nothing that could be a credential."""


class CallFailed(EngineError):
    """A call did not come to the answer that was wanted, and may yet."""


# --- the arguments --------------------------------------------------------------------------------------------------


def _method(text: str) -> str:
    if text.upper() not in METHODS:
        raise Invalid(f"{text!r:.40} is not a method", field="method", remedy=f"use one of {', '.join(METHODS)}")
    return text.upper()


def _url(given: Text) -> Text:
    if isinstance(given, str):
        parsed_url(given)
    return given


def parsed_url(text: str) -> httpx2.URL:
    """A URL that could be called, as the client reads it."""
    import httpx2

    if len(text) > MAX_URL or _NOT_IN_A_URL.search(text):
        raise Invalid("is too long, or holds a blank, a control character or a backslash", field="url")
    try:
        url = httpx2.URL(text)
    except (httpx2.InvalidURL, ValueError):
        raise Invalid("is not a URL", field="url", remedy="write it as https://host/path") from None
    if url.scheme not in ("http", "https"):
        raise Invalid(f"has the scheme {url.scheme!r:.20}", field="url", remedy="only http and https are called")
    if url.userinfo or "@" in re.split("[/?#]", text.partition("//")[2])[0]:
        raise Invalid("holds a user name", field="url", remedy="put credentials into a header, as a secret")
    if not url.host:
        raise Invalid("names no host", field="url", remedy="write it as https://host/path")
    if url.port is not None and not 0 < url.port < 65_536:
        raise Invalid(f"has the port {url.port}", field="url", remedy="ports go from 1 to 65535")
    literal(url.raw_host.decode("ascii"))
    return url


def _headers(given: dict[str, Text]) -> dict[str, Text]:
    if len(given) > MAX_HEADERS:
        raise Invalid(f"are more than {MAX_HEADERS}", field="headers")
    seen: set[str] = set()
    for name, value in given.items():
        field = f"headers.{name:.40}"
        if not _TOKEN.fullmatch(name):
            raise Invalid("is not the name of a header", field=field, remedy="use letters, digits and -")
        if name.lower() in _OF_THE_CONNECTION:
            raise Invalid("is set by the client itself", field=field, remedy="leave it out")
        if name.lower() in seen:
            raise Invalid("is given twice", field=field, remedy="names of headers are the same in upper and lower case")
        seen.add(name.lower())
        if isinstance(value, str):
            header_value(name, value)
    return given


def header_value(name: str, value: str) -> bytes:
    """A header's value as it is sent, or a refusal that does not show it."""
    encoded = value.encode("utf-8", "surrogatepass")
    if len(encoded) > MAX_HEADER:
        raise Invalid(f"is longer than {MAX_HEADER} bytes", field=f"headers.{name:.40}")
    if _NOT_IN_A_HEADER.search(value) or value != value.strip():
        raise Invalid(
            "holds a line break or another control character, or begins or ends with a blank",
            field=f"headers.{name:.40}",
            remedy="remove it; a secret read from a file often ends with a line break",
        )
    return encoded


def _timeout(given: Any) -> float:
    span = seconds(given, field="timeout")
    if span is None or not 0 < span <= MAX_SECONDS:
        raise Invalid(f"must be more than 0 s and at most {MAX_SECONDS:g} s", field="timeout")
    return span


Method = Annotated[str, AfterValidator(_method)]
Url = Annotated[Text, AfterValidator(_url)]
Headers = Annotated[dict[str, Text], AfterValidator(_headers)]
Timeout = Annotated[float, BeforeValidator(_timeout)]
ResponseLimit = Annotated[int, Field(ge=0, le=httpanswers.MAX_KEPT)]


def job(means: Means, resolve: Resolve | None = None) -> Job[..., Any]:
    """What runs the steps of this kind; ``resolve`` finds the addresses of a name, if not the system is to."""

    async def http_call(
        ctx: Context,
        url: Url,
        method: Method = "POST",
        headers: Headers = {},  # noqa: B006 — validated into a copy
        body: Any = None,
        timeout: Timeout = 15.0,
        expected_status: ExpectedStatus = ["200-299"],  # noqa: B006 — as above
        response_limit: ResponseLimit = 64 * 1024,
        follow_redirects: bool = False,
    ) -> dict[str, Any]:
        """Send one HTTP request and keep what came back."""
        call = await _prepared(means, ctx, url, method, headers, body)
        began = steady()
        try:
            async with asyncio.timeout(timeout):
                answer = await _sent(call, means, resolve, response_limit, MAX_HOPS if follow_redirects else 0)
        except TimeoutError:
            raise CallFailed(f"{call} was not answered in full within {timeout:g} s") from None
        if not expects(expected_status, answer.status):
            _refuse(ctx, call, answer, expected_status)
        return answer.result(round(steady() - began, 3))

    return Job(http_call, KIND, Policy(), Using(), isolated=False)


# --- the request ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is ready to be sent."""

    method: str
    url: httpx2.URL
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None
    body_is_secret: bool = False
    place: str = ""
    """Where it goes, as may be told: without the query, and without the path if the URL is a secret."""

    def __str__(self) -> str:
        return f"{self.method} {self.place}"

    def redirected(self, status: int, location: str) -> Call:
        """The request a redirect asks for, or a refusal."""
        url = parsed_url(_joined(self.url, location))
        if url.scheme != "https" and self.url.scheme == "https":
            raise Forbidden("the redirect leads from https to http", field="url")
        method, body, headers = self.method, self.body, self.headers
        if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
            method, body = "GET", None
            headers = tuple(each for each in headers if each[0].lower() != b"content-type")
        if _origin(url) != _origin(self.url):
            if body is not None and self.body_is_secret:
                raise Forbidden("the redirect would carry a secret to another host", field="url")
            headers = tuple(each for each in headers if each[0].lower().decode("ascii") in _GO_ALONG)
        return replace(self, method=method, url=url, headers=headers, body=body, place=_place(url, whole=False))


def _joined(url: httpx2.URL, location: str) -> str:
    import httpx2

    try:
        return str(url.join(location))
    except (httpx2.InvalidURL, ValueError):
        raise Invalid("the redirect leads to what is no URL", field="url") from None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _place(url: httpx2.URL, *, whole: bool) -> str:
    return str(url.copy_with(query=None, fragment=None)) if whole else f"{url.scheme}://{url.netloc.decode('ascii')}"


async def _prepared(means: Means, ctx: Context, url: Text, method: str, headers: Mapping[str, Text], body: Any) -> Call:
    """The request with its secrets looked up."""
    revealing = _Revealing(means, ctx)
    try:
        target = parsed_url(await means.reveal(ctx, url))
        sent = {name: header_value(name, await means.reveal(ctx, value)) for name, value in headers.items()}
    except Invalid as error:  # only what was a secret can fail here: the rest was looked at when it was stored
        raise PermanentFailure(str(error)) from None
    content = await revealing.body(body)
    said = {name.lower() for name in sent}
    for name, value in {
        "Accept": "*/*",
        "Accept-Encoding": "gzip, deflate",
        "User-Agent": f"tenuto/{__version__}",
        "Idempotency-Key": ctx.idempotency_key,
        "Tenuto-Attempt": str(ctx.attempt),
        "Tenuto-Fence": str(ctx.fence),
        **({} if content is None else {"Content-Type": _content_type(body)}),
    }.items():
        if name.lower() not in said:
            sent[name] = value.encode("ascii")
    return Call(
        method,
        target,
        tuple((name.encode("ascii"), value) for name, value in sent.items()),
        content,
        revealing.found,
        _place(target, whole=isinstance(url, str)),
    )


def _content_type(body: Any) -> str:
    return "text/plain; charset=utf-8" if isinstance(body, str) or _reference(body) else "application/json"


def _reference(value: Any) -> SecretRef | None:
    """The secret an object in a body speaks of, if it is such an object."""
    if not isinstance(value, Mapping) or "secret" not in value or not value.keys() <= {"secret", "prefix"}:
        return None
    return SecretRef(**value) if all(isinstance(each, str) for each in value.values()) else None


class _Revealing:
    """Puts secrets in the place of the references to them, at any depth of a body."""

    def __init__(self, means: Means, ctx: Context) -> None:
        self._means = means
        self._ctx = ctx
        self.found = False

    async def body(self, body: Any) -> bytes | None:
        if body is None:
            return None
        known = await self._revealed(body)
        text = known if isinstance(known, str) else json.dumps(known, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")

    async def _revealed(self, value: Any) -> Any:
        reference = _reference(value)
        if reference is not None:
            self.found = True
            return await self._means.reveal(self._ctx, reference)
        if isinstance(value, Mapping):
            return {name: await self._revealed(each) for name, each in value.items()}
        return [await self._revealed(each) for each in value] if isinstance(value, list) else value


# --- sending --------------------------------------------------------------------------------------------------------


async def _sent(call: Call, means: Means, resolve: Resolve | None, keep: int, hops: int) -> Answer:
    """The answer to a request; redirects are followed so many times, and each place is checked anew."""
    import httpx2

    from tenuto.steps.http import transport as dialling

    allowance = Allowance.of(means.settings().http_allow)
    try:
        own = dialling.own_addresses()
    except dialling.OwnAddressesUnknown as error:
        raise CallFailed(f"{call} was not sent: {error.message}", remedy=error.remedy) from None
    dialler = dialling.Dialler(allowance, resolve or dialling.resolve, own)
    first = call
    try:
        while True:
            async with dialling.CheckedTransport(dialler) as transport:
                answer = await _exchanged(transport, call, keep)
            location = answer.location if hops or call is not first else None
            if location is None:
                return answer
            if not hops:
                raise PermanentFailure(f"{first} was redirected more than {MAX_HOPS} times")
            hops -= 1
            call = call.redirected(answer.status, location)
    except (Forbidden, Invalid) as error:
        raise PermanentFailure(f"{call}: {error}") from None
    except httpx2.HTTPError as error:
        raise CallFailed(f"{call} failed: {str(error)[:500] or type(error).__name__}") from None


async def _exchanged(transport: httpx2.AsyncHTTPTransport, call: Call, keep: int) -> Answer:
    """One request and its answer, straight through the transport: no cookies, no netrc, no log of addresses."""
    import httpx2

    request = httpx2.Request(call.method, call.url, headers=list(call.headers), content=call.body)
    request.extensions["timeout"] = {}
    response = await transport.handle_async_request(request)
    try:
        return await httpanswers.read(response, keep)
    finally:
        await response.aclose()


def _refuse(ctx: Context, call: Call, answer: Answer, expected: list[int | str]) -> None:
    """Fail the attempt: for good, unless the status says that it may be otherwise later."""
    wanted = ", ".join(str(each) for each in expected)
    message = f"{call} answered {answer.status}, not {wanted}"
    if answer.body:
        ctx.log.warning("the answer began with: %s", answer.beginning())
    if not answer.may_pass:
        remedy = "set follow_redirects, or call the address it leads to" if answer.location else None
        raise PermanentFailure(message, remedy=remedy)
    wait = answer.retry_after()
    if wait is not None:
        raise RetryLater(message, after=wait)
    raise CallFailed(message)
