"""Requests to a SCIM service: authentication, verified TLS, allowed addresses, busy servers, bounded answers.

Redirects are not followed, because they would send the credentials elsewhere.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias
from urllib.parse import quote

from tenuto.errors import Forbidden, Invalid
from tenuto.extension import open_http_transport
from tenuto.extras import require_extra
from tenuto_identity.connectors.contract import ConnectorContext, ConnectorError, SecretName
from tenuto_identity.connectors.scim.settings import ScimSettings

if TYPE_CHECKING:
    import httpx2

Json: TypeAlias = dict[str, Any]
"""A resource or message as the server delivers it."""

MEDIA_TYPE: Final = "application/scim+json"
MAX_RESPONSE_BYTES: Final = 64 * 1024 * 1024
BUSY_STATUSES: Final = (429, 503)
UNCERTAIN_STATUS: Final = 503
"""The busy status after which the request may have been executed."""
_FIRST_WAIT_SECONDS = 1.0
"""How long the client waits if a busy server does not say how long; doubled each time."""
_MIN_WAIT_SECONDS = 0.1
"""What a request counts that the server asks to repeat at once; without it, such a server would be asked for ever."""
_MAX_TEXT = 500


class Disconnected(ConnectorError):
    """The connection failed. The server may have executed the request."""

    def __init__(self, message: str) -> None:
        super().__init__("unreachable", message, remedy="check the setting url and the network")


class Busy(ConnectorError):
    """The server asks to repeat the request later than the settings allow. It did not execute the request."""

    def __init__(self, message: str) -> None:
        super().__init__("busy", message, remedy="repeat the run later, or raise max_wait_seconds")


class WaitEnded(Busy):
    """The run was cancelled while the client waited for a busy server."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the server."""

    status: int
    body: Json | None = None
    """The JSON object; None without one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    text: str = ""
    """Beginning of a body that is not JSON."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def scim_type(self) -> str:
        """The kind of a SCIM error, such as ``uniqueness``."""
        return str((self.body or {}).get("scimType") or "")

    def describe(self) -> str:
        """Return the message of the server."""
        body = self.body or {}
        parts = [f"status {self.status}", self.scim_type, str(body.get("detail") or self.text or "")]
        return " ".join(part for part in parts if part)[:_MAX_TEXT]

    def retry_after(self) -> float | None:
        """Return how many seconds the server asks to wait, by its own clock; None if it does not say."""
        found = self.headers.get("retry-after", "").strip()
        if found.isascii() and found.isdigit():
            return float(found[:9])
        try:
            wanted, now = (parsedate_to_datetime(each) for each in (found, self.headers.get("date", "")))
        except ValueError:
            return None
        return max(0.0, wanted.timestamp() - now.timestamp())


class ScimClient:
    """A session with one SCIM service."""

    def __init__(self, settings: ScimSettings, context: ConnectorContext) -> None:
        require_extra("identity", "the connector scim")
        self.settings = settings
        self._allowed_hosts = context.allowed_hosts
        self._authorization = _authorization(settings, context)
        self._client: httpx2.Client | None = None
        self._wait = context.wait
        self._has_stopped = False

    def close(self) -> None:
        """Close the session."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- requests ---------------------------------------------------------------------------------------------------

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> Answer:
        """Read something. Reconnects once. Raises `ConnectorError` for everything but 2xx and 404."""
        try:
            answer = self.request("GET", path, query=query)
        except Disconnected:
            answer = self.request("GET", path, query=query)
        if answer.is_success and answer.body is None:
            raise ConnectorError("invalid_answer", f"GET {path}: the answer is not a JSON object: {answer.text!r}")
        if not answer.is_success and answer.status != 404:
            raise ConnectorError("incomplete", f"GET {path}: {answer.describe()}")
        return answer

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str | int] | None = None,
        if_match: str | None = None,
        may_repeat: Callable[[], bool] | None = None,
    ) -> Answer:
        """Send a request, and again after the time that a busy server asks for. Raises `Disconnected` and `Busy`; also
        at once when the run is cancelled meanwhile, and for every further request.

        ``may_repeat`` is called before a request is repeated after 503, which a gateway may have answered although the
        server behind it has executed the request; if it returns False, the answer is returned."""
        left: float = self.settings.max_wait_seconds
        delay = _FIRST_WAIT_SECONDS
        while True:
            if self._has_stopped:
                raise WaitEnded(f"{method} {path}: the server is busy, and the run is cancelled")
            answer = self._exchange(method, path, body, query or {}, if_match)
            if answer.status not in BUSY_STATUSES:
                return answer
            asked = answer.retry_after()
            wait = delay if asked is None else asked
            if wait > left:
                raise Busy(f"{method} {path}: the server is busy: {answer.describe()}; it asks to wait {wait:.0f} s")
            wait = max(wait, _MIN_WAIT_SECONDS)
            if self._wait(wait):  # guard: identity.scim_retry_after
                self._has_stopped = True
                continue
            if may_repeat is not None and answer.status == UNCERTAIN_STATUS and not may_repeat():
                return answer
            left -= wait
            delay *= 2

    def _exchange(
        self, method: str, path: str, body: Json | None, query: Mapping[str, str | int], if_match: str | None
    ) -> Answer:
        import httpx2

        headers = {"Accept": f"{MEDIA_TYPE}, application/json;q=0.9", "User-Agent": "tenuto-identity"}
        content = None
        if self._authorization:
            headers["Authorization"] = self._authorization
        if body is not None:
            headers["Content-Type"] = MEDIA_TYPE
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if if_match is not None:
            headers["If-Match"] = if_match
        url = f"{self.settings.url}{path}"
        if query:
            url += "?" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        try:
            with self._session().stream(method, url, content=content, headers=headers) as response:
                return self._read(method, path, response)
        except (Forbidden, Invalid) as error:
            raise ConnectorError("address_not_allowed", error.message, remedy=error.remedy) from None
        except httpx2.InvalidURL as error:
            raise ConnectorError("invalid_url", f"the setting url is not usable: {error}") from None
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            reason = str(error)[:_MAX_TEXT] or type(error).__name__
            raise Disconnected(f"{method} {path}: the connection to {self.settings.url} failed: {reason}") from None

    def _read(self, method: str, path: str, response: httpx2.Response) -> Answer:
        content = bytearray()
        for chunk in response.iter_bytes():
            content += chunk
            if len(content) > MAX_RESPONSE_BYTES:  # guard: identity.scim_answer_limit
                raise ConnectorError(
                    "too_large",
                    f"{method} {path}: the answer has more than {MAX_RESPONSE_BYTES:,} bytes",
                    remedy="set a smaller page_size",
                )
        headers = {name.lower(): value for name, value in response.headers.items()}
        status = response.status_code
        if 300 <= status < 400:
            _refuse_redirect(method, path, headers.get("location", ""))
        if status == 401:
            raise ConnectorError(
                "unauthorized",
                f"{method} {path}: the server does not accept the credentials (status 401)",
                remedy="check the secret of the setting token or password",
            )
        try:
            body = json.loads(bytes(content), parse_float=str) if content else None
        except ValueError:
            body = None
        text = content[:_MAX_TEXT].decode("utf-8", "replace") if not isinstance(body, dict) else ""
        return Answer(status, body if isinstance(body, dict) else None, headers, " ".join(text.split()))

    def _session(self) -> httpx2.Client:
        if self._client is None:
            import httpx2

            settings = self.settings
            self._client = httpx2.Client(
                transport=open_http_transport(
                    self._allowed_hosts, _ssl_context(settings), max_connections=settings.concurrency
                ),
                timeout=httpx2.Timeout(settings.timeout_seconds, connect=settings.connect_timeout_seconds),
                follow_redirects=False,
                trust_env=False,
            )
        return self._client


def _refuse_redirect(method: str, path: str, location: str) -> NoReturn:
    raise ConnectorError(
        "redirected",
        f"{method} {path}: the server redirects to {location[:200]!r}",
        remedy="set url to the address that the redirect leads to, if it is the right one",
    )


def _ssl_context(settings: ScimSettings) -> ssl.SSLContext | None:
    """Return how certificates are verified; None: by those of the operating system."""
    if settings.verify_certificate and settings.ca_file is None:  # guard: identity.scim_certificate
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConnectorError(
            "ca_file", f"the certificates in {settings.ca_file!r} cannot be read: {error}", remedy="check ca_file"
        ) from None
    if not settings.verify_certificate:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _authorization(settings: ScimSettings, context: ConnectorContext) -> str | None:
    """Return the value of the header ``Authorization``; None without credentials."""
    if settings.token is not None:
        token = _secret(settings.token, "token", context)
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConnectorError(
                "password_missing",
                f"the secret {settings.token.secret!r} of the token has characters that a token does not have",
                remedy=f"set it with `tenuto secret set {settings.token.secret}`",
            )
        return f"Bearer {token}"
    if settings.user is not None and settings.password is not None:
        pair = f"{settings.user}:{_secret(settings.password, 'password', context)}"
        return "Basic " + base64.b64encode(pair.encode()).decode("ascii")
    return None


def _secret(name: SecretName, setting: str, context: ConnectorContext) -> str:
    found = context.secrets.get(name.secret, "").strip("\r\n")
    if not found:
        raise ConnectorError(
            "password_missing",
            f"the secret {name.secret!r} of the {setting} is empty or does not exist",
            remedy=f"set it with `tenuto secret set {name.secret}`",
        )
    return found
