"""The step kind ``http.call``: send one request to an allowed address and store the response.

Every attempt sends the same idempotency key, so that the receiver can act once. An unexpected status fails the attempt:
with a retry if the status may change, else permanently. Time and memory stay limited whatever the server does.
`address_policy` decides which addresses may be called.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from tenuto.clock import monotonic_seconds
from tenuto.errors import EngineError, Forbidden, Invalid, quoted
from tenuto.extras import require_extra
from tenuto.jobs.context import Context, PermanentFailure, RetryLater
from tenuto.jobs.registry import Job, TaskOptions
from tenuto.model.access.secrets import SecretRef, TextOrSecret
from tenuto.model.definitions.policies import TaskPolicy
from tenuto.model.definitions.steps import HTTP_CALL
from tenuto.model.work.tasks import parse_duration_seconds
from tenuto.steps.address_policy import AllowList, parse_address
from tenuto.steps.http_response import MAX_STORED_BODY_BYTES, ExpectedStatus, HttpResponse, is_expected, read_response
from tenuto.tracing import current_traceparent
from tenuto.version import __version__

if TYPE_CHECKING:
    import httpx2

    from tenuto.steps.built_in_kinds import StepServices
    from tenuto.steps.http_transport import Resolve

KIND = HTTP_CALL
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MAX_TIMEOUT_SECONDS = 3600.0
MAX_REDIRECTS = 3
MAX_HEADER_COUNT = 100
MAX_HEADER_BYTES = 16 * 1024
MAX_URL_CHARACTERS = 8 * 1024

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_FORBIDDEN_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
_FORBIDDEN_IN_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CLIENT_HEADERS = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers that the client sets. If sent twice, two servers could read two different requests."""
_REDIRECTED_HEADERS = frozenset({
    "accept", "content-type", "idempotency-key", "tenuto-attempt", "tenuto-fence", "user-agent",
})  # fmt: skip
"""Headers that follow a redirect to another origin: none that could be a credential."""


class CallFailed(EngineError):
    """A call did not get an expected response, but a retry may."""


# --- arguments ------------------------------------------------------------------------------------------------------


def _check_method(text: str) -> str:
    if text.upper() not in METHODS:
        raise Invalid(
            f"{quoted(text, 40)} is not an HTTP method that a step can use",
            code="step.http.method.unknown",
            field="method",
            remedy=f"use one of {', '.join(METHODS)}",
        )
    return text.upper()


def _check_url(url: TextOrSecret) -> TextOrSecret:
    if isinstance(url, str):
        parse_url(url)
    return url


def _invalid_url(problem: str, remedy: str) -> Invalid:
    """Return an error that does not show the URL, which may be a secret."""
    return Invalid(problem, code="step.http.url.invalid", field="url", remedy=remedy)


def _import_client() -> ModuleType:
    """Import the HTTP client where it is used: it belongs to an extra, and this module must load without it."""
    require_extra("http", "the step kind http.call")
    return importlib.import_module("httpx2")


def parse_url(text: str) -> httpx2.URL:
    """Return a valid URL as the HTTP client reads it."""
    client = _import_client()
    if len(text) > MAX_URL_CHARACTERS or _FORBIDDEN_IN_URL.search(text):
        raise _invalid_url(
            "the URL is too long, or contains a space, a control character or a backslash",
            f"use at most {MAX_URL_CHARACTERS:,} characters and encode special ones with %",
        )
    try:
        url: httpx2.URL = client.URL(text)
    except (client.InvalidURL, ValueError):
        raise _invalid_url("the URL is not valid", "write it as https://host/path") from None
    if url.scheme not in ("http", "https"):
        raise _invalid_url(f"the URL has the scheme {quoted(url.scheme, 20)}", "use http or https")
    if url.userinfo or "@" in re.split("[/?#]", text.partition("//")[2])[0]:
        raise _invalid_url("the URL contains a user name", "put credentials into a header, as a secret")
    if not url.host:
        raise _invalid_url("the URL has no host", "write it as https://host/path")
    if url.port is not None and not 0 < url.port < 65_536:
        raise _invalid_url(f"the URL has the port {url.port}", "use a port from 1 to 65535")
    parse_address(url.raw_host.decode("ascii"))
    return url


def _check_headers(headers: dict[str, TextOrSecret]) -> dict[str, TextOrSecret]:
    if len(headers) > MAX_HEADER_COUNT:
        raise Invalid(
            f"the request has {len(headers)} headers; at most {MAX_HEADER_COUNT} are allowed",
            code="step.http.headers.too_many",
            field="headers",
        )
    seen: set[str] = set()
    for name, value in headers.items():
        field = f"headers.{name:.40}"
        if not _TOKEN.fullmatch(name):
            raise Invalid(
                f"{quoted(name, 40)} is not a valid header name",
                code="step.http.headers.name_invalid",
                field=field,
                remedy="use A-Z, a-z, 0-9 and -",
            )
        if name.lower() in _CLIENT_HEADERS:
            raise Invalid(
                f"header {quoted(name, 40)} is set by the HTTP client", code="step.http.headers.reserved", field=field
            )
        if name.lower() in seen:
            raise Invalid(
                f"header {quoted(name, 40)} is given twice",
                code="step.http.headers.duplicate",
                field=field,
                remedy="remove one of them; header names are not case-sensitive",
            )
        seen.add(name.lower())
        if isinstance(value, str):
            encode_header(name, value)
    return headers


def encode_header(name: str, value: str) -> bytes:
    """Return the value of a header as it is sent. Errors do not show the value, which may be a secret."""
    encoded = value.encode("utf-8", "surrogatepass")
    if len(encoded) > MAX_HEADER_BYTES:
        raise Invalid(
            f"the value of header {quoted(name, 40)} is longer than {MAX_HEADER_BYTES} bytes",
            code="step.http.headers.value_too_long",
            field=f"headers.{name:.40}",
        )
    if _FORBIDDEN_IN_HEADER.search(value) or value != value.strip():
        raise Invalid(
            f"the value of header {quoted(name, 40)} contains a control character, or begins or ends with a space",
            code="step.http.headers.value_invalid",
            field=f"headers.{name:.40}",
            remedy="remove it; a secret read from a file often ends with a line break",
        )
    return encoded


def _parse_timeout(timeout: Any) -> float:
    seconds = parse_duration_seconds(timeout, field="timeout")
    if seconds is None or not 0 < seconds <= MAX_TIMEOUT_SECONDS:
        raise Invalid(
            f"timeout {quoted(timeout, 40)} is not between 0 s and {MAX_TIMEOUT_SECONDS:g} s",
            code="step.http.timeout.out_of_range",
            field="timeout",
        )
    return seconds


Method = Annotated[str, AfterValidator(_check_method)]
Url = Annotated[TextOrSecret, AfterValidator(_check_url)]
Headers = Annotated[dict[str, TextOrSecret], AfterValidator(_check_headers)]
Timeout = Annotated[float, BeforeValidator(_parse_timeout)]
ResponseLimit = Annotated[int, Field(ge=0, le=MAX_STORED_BODY_BYTES)]


def create_job(services: StepServices, resolve: Resolve | None = None) -> Job[..., Any]:
    """Create the handler of this kind; ``resolve`` replaces the name resolution of the system."""

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
        """Send one HTTP request and store the response."""
        request = await _prepare(services, ctx, url, method, headers, body)
        started_at = monotonic_seconds()
        try:
            async with asyncio.timeout(timeout):
                response = await send_request(
                    request,
                    services.get_settings().http_allowed_hosts,
                    body_limit=response_limit,
                    redirects=MAX_REDIRECTS if follow_redirects else 0,
                    resolve=resolve,
                )
        except TimeoutError:
            raise CallFailed(
                f"{request} got no complete response within {timeout:g} s", code="step.http.timeout"
            ) from None
        if not is_expected(expected_status, response.status):
            fail_unexpected(ctx, request, response, expected_status)
        return response.to_output(round(monotonic_seconds() - started_at, 3))

    return Job(http_call, KIND, TaskPolicy(), TaskOptions(), isolated=False)


# --- request --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request that is ready to be sent."""

    method: str
    url: httpx2.URL
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes | None
    body_has_secret: bool = False
    display_url: str = ""
    """The URL for messages: without the query, and without the path if the URL is a secret."""

    def __str__(self) -> str:
        return f"{self.method} {self.display_url}"

    def redirect(self, status: int, location: str) -> HttpRequest:
        """Return the request that follows a redirect."""
        url = parse_url(_join(self.url, location))
        if url.scheme != "https" and self.url.scheme == "https":
            raise Forbidden("the redirect leads from https to http", code="step.http.redirect.insecure", field="url")
        method, body, headers = self.method, self.body, self.headers
        if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
            method, body = "GET", None
            headers = tuple(each for each in headers if each[0].lower() != b"content-type")
        if _origin(url) != _origin(self.url):  # guard: http_call.credentials
            if body is not None and self.body_has_secret:
                raise Forbidden(
                    "the redirect would send a secret to another host", code="step.http.redirect.secret", field="url"
                )
            headers = tuple(each for each in headers if each[0].lower().decode("ascii") in _REDIRECTED_HEADERS)
        return replace(
            self, method=method, url=url, headers=headers, body=body, display_url=_display_url(url, with_path=False)
        )


def _join(url: httpx2.URL, location: str) -> str:
    try:
        return str(url.join(location))
    except (_import_client().InvalidURL, ValueError):
        raise Invalid("the redirect leads to an invalid URL", code="step.http.redirect.invalid", field="url") from None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _display_url(url: httpx2.URL, *, with_path: bool) -> str:
    if with_path:
        return str(url.copy_with(query=None, fragment=None))
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


async def _prepare(
    services: StepServices, ctx: Context, url: TextOrSecret, method: str, headers: Mapping[str, TextOrSecret], body: Any
) -> HttpRequest:
    """Return the request with its secrets revealed."""
    body_encoder = _BodyEncoder(services, ctx)
    try:
        target = parse_url(await services.reveal_secret(ctx, url))
        sent = {name: encode_header(name, await services.reveal_secret(ctx, value)) for name, value in headers.items()}
    except Invalid as error:  # only revealed secrets can be invalid here: the rest was checked when it was stored
        raise PermanentFailure(str(error), code=error.code, field=error.field) from None
    content = await body_encoder.encode(body)
    if content is not None:
        _add_missing_headers(sent, {"Content-Type": _content_type(body)})
    return _assemble(
        ctx, method, target, sent, content, has_secret=body_encoder.has_secret, shows_path=isinstance(url, str)
    )


def build_request(
    ctx: Context, method: str, url: str, headers: Mapping[str, str], body: bytes | None, *, shows_path: bool
) -> HttpRequest:
    """Return a request of an attempt whose secrets are revealed, with the headers that every call sends. Messages show
    the path of the URL only with ``shows_path``."""
    encoded = {name: encode_header(name, value) for name, value in headers.items()}
    return _assemble(ctx, method, parse_url(url), encoded, body, has_secret=False, shows_path=shows_path)


def _assemble(
    ctx: Context,
    method: str,
    url: httpx2.URL,
    headers: dict[str, bytes],
    body: bytes | None,
    *,
    has_secret: bool,
    shows_path: bool,
) -> HttpRequest:
    _add_missing_headers(
        headers,
        {
            "Accept": "*/*",
            "Accept-Encoding": "gzip, deflate",
            "User-Agent": f"tenuto/{__version__}",
            "Idempotency-Key": ctx.idempotency_key,
            "Tenuto-Attempt": str(ctx.attempt),
            "Tenuto-Fence": str(ctx.fence),
            **({"Traceparent": trace} if (trace := current_traceparent()) is not None else {}),
        },
    )
    pairs = tuple((name.encode("ascii"), value) for name, value in headers.items())
    return HttpRequest(method, url, pairs, body, has_secret, _display_url(url, with_path=shows_path))


def _add_missing_headers(headers: dict[str, bytes], added: Mapping[str, str]) -> None:
    given_names = {name.lower() for name in headers}
    headers.update({name: value.encode("ascii") for name, value in added.items() if name.lower() not in given_names})


def _content_type(body: Any) -> str:
    return "text/plain; charset=utf-8" if isinstance(body, str) or _secret_reference(body) else "application/json"


def _secret_reference(value: Any) -> SecretRef | None:
    """Return the secret that an object in a body refers to, if it is a reference."""
    if not isinstance(value, Mapping) or "secret" not in value or not value.keys() <= {"secret", "prefix"}:
        return None
    return SecretRef(**value) if all(isinstance(each, str) for each in value.values()) else None


class _BodyEncoder:
    """Encodes a body and replaces references to secrets at any depth."""

    def __init__(self, services: StepServices, ctx: Context) -> None:
        self._services = services
        self._ctx = ctx
        self.has_secret = False

    async def encode(self, body: Any) -> bytes | None:
        if body is None:
            return None
        revealed = await self._reveal(body)
        text = revealed if isinstance(revealed, str) else json.dumps(revealed, ensure_ascii=False, allow_nan=False)
        return text.encode("utf-8")

    async def _reveal(self, value: Any) -> Any:
        reference = _secret_reference(value)
        if reference is not None:
            self.has_secret = True
            return await self._services.reveal_secret(self._ctx, reference)
        if isinstance(value, Mapping):
            return {name: await self._reveal(each) for name, each in value.items()}
        return [await self._reveal(each) for each in value] if isinstance(value, list) else value


# --- sending --------------------------------------------------------------------------------------------------------


async def send_request(
    request: HttpRequest,
    allowed_hosts: Collection[str],
    *,
    body_limit: int,
    redirects: int = 0,
    resolve: Resolve | None = None,
) -> HttpResponse:
    """Send a request and follow up to ``redirects`` redirects; the target of each redirect is checked.

    ``allowed_hosts`` is the setting ``http_allowed_hosts``.
    """
    from tenuto.steps import http_transport as http_transport  # its classes derive from those of the client

    backend = http_transport.CheckedNetworkBackend(AllowList.parse(allowed_hosts), resolve or http_transport.resolve)
    first = request
    try:
        while True:
            async with http_transport.CheckedTransport(backend) as transport:
                response = await _exchange(transport, request, body_limit)
            location = response.location if redirects or request is not first else None
            if location is None:
                return response
            if not redirects:
                raise PermanentFailure(
                    f"{first} was redirected more than {MAX_REDIRECTS} times", code="step.http.redirect.too_many"
                )
            redirects -= 1
            request = request.redirect(response.status, location)
    except (Forbidden, Invalid) as error:
        raise PermanentFailure(f"{request}: {error}", code=error.code) from None
    except _import_client().HTTPError as error:
        raise CallFailed(
            f"{request} failed: {str(error)[:500] or type(error).__name__}", code="step.http.connection_failed"
        ) from None


async def _exchange(transport: httpx2.AsyncHTTPTransport, request: HttpRequest, body_limit: int) -> HttpResponse:
    """Send one request through the transport itself: no cookies, no netrc, no log of URLs."""
    message = _import_client().Request(request.method, request.url, headers=list(request.headers), content=request.body)
    message.extensions["timeout"] = {}
    response = await transport.handle_async_request(message)
    try:
        return await read_response(response, body_limit)
    finally:
        await response.aclose()


def fail_unexpected(ctx: Context, request: HttpRequest, response: HttpResponse, expected: list[int | str]) -> None:
    """Fail the attempt: permanently, unless the status may change later."""
    expected_text = ", ".join(str(each) for each in expected)
    message = f"{request} responded with status {response.status}, expected {expected_text}"
    if response.body:
        ctx.log.warning("beginning of the response: %s", response.excerpt())
    code = "step.http.status.unexpected"
    if not response.is_transient:
        remedy = "set follow_redirects, or call the URL that the redirect leads to" if response.location else None
        raise PermanentFailure(message, code=code, remedy=remedy)
    delay = response.retry_after()
    if delay is not None:
        raise RetryLater(message, after=delay, code=code)
    raise CallFailed(message, code=code)
