"""The step kind http.call: requests, stored responses, retries, limits, and addresses that are not allowed."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpcore2
import psutil
import pytest

from tenuto.errors import Invalid
from tenuto.jobs.attempts import StopReason
from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job
from tenuto.model.access.actors import Actor
from tenuto.model.access.secrets import SecretRef, TextOrSecret
from tenuto.model.work.tasks import Outcome, OutcomeStatus
from tenuto.settings import load_settings
from tenuto.steps import http_call as http
from tenuto.steps import http_transport
from tenuto.steps.built_in_kinds import StepServices
from tenuto.steps.http_response import MAX_READ_BYTES
from tests.jobs.conftest import RunnerHarness
from tests.support.http_site import Behaviour, ReceivedRequest, Send, Site, make_response
from tests.support.waiting import eventually, eventually_blocking

SECRETS = {"token": "s3cr3t-t0ken", "hook": "", "broken": "line\n"}


class HttpCallHarness:
    """Runs HTTP calls as steps and returns their outcomes."""

    def __init__(self, harness: RunnerHarness, home: Path) -> None:
        self._harness = harness
        self._home = home
        self.names: dict[str, list[list[str]]] = {}
        """Addresses of host names; each list is returned once, the last one always."""
        self.resolved: list[str] = []
        self.allow: tuple[str, ...] = ("127.0.0.1",)

    def create_job(self) -> Job[..., Any]:
        settings = load_settings(home=self._home, http_allowed_hosts=self.allow)
        return http.create_job(StepServices(_open_no_database, lambda: settings, _reveal), self._resolve)

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def __call__(self, **arguments: Any) -> Outcome:
        job = self.create_job()
        self._harness.app.jobs.handlers_by_kind[http.KIND] = job
        return self._harness.run(job, _fields={"kind": http.KIND}, **arguments)

    def get_output(self, **arguments: Any) -> Any:
        """Run a call that must succeed; return its output."""
        outcome = self(**arguments)
        assert outcome.status is OutcomeStatus.COMPLETED, outcome.error
        assert outcome.output is not None
        return json.loads(outcome.output)

    def get_failure(self, **arguments: Any) -> tuple[str, Outcome]:
        """Run a call that must fail; return its error message and outcome."""
        outcome = self(**arguments)
        assert outcome.status is OutcomeStatus.FAILED
        assert outcome.error is not None
        return json.loads(outcome.error)["message"], outcome


async def _open_no_database() -> Any:
    raise AssertionError("HTTP calls need no database")


async def _reveal(ctx: Context, text: TextOrSecret) -> str:
    return SECRETS[text.secret] and text.prefix + SECRETS[text.secret] if isinstance(text, SecretRef) else text


@pytest.fixture
def http_call(harness: RunnerHarness, tmp_path: Path) -> HttpCallHarness:
    return HttpCallHarness(harness, tmp_path)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def test_http_call_sends_the_request_and_stores_the_response(http_call: HttpCallHarness, site: Site) -> None:
    site.pages["/json"] = make_response(
        201, b'{"id": 7, "names": ["a"]}', "Content-Type: application/json; charset=utf-8"
    )
    site.pages["/text"] = make_response(200, "grün\x00".encode("latin-1"), "Content-Type: text/plain; charset=latin-1")
    site.pages["/odd"] = make_response(200, b'{"a": NaN}', "Content-Type: application/json")

    given = http_call.get_output(
        url=site.url("/json?x=1"), body={"who": "Zoë"}, headers={"X-Own": "yes", "Tenuto-Fence": "mine"}
    )
    assert (given["status"], given["body"], given["truncated"]) == (201, {"id": 7, "names": ["a"]}, False)
    assert 0 <= given["duration"] < 30
    first = site.requests[0]
    assert (first.method, first.target, json.loads(first.body)) == ("POST", "/json?x=1", {"who": "Zoë"})
    assert first.headers["host"] == f"127.0.0.1:{site.port}"
    assert first.headers["content-type"] == "application/json"
    assert (first.headers["x-own"], first.headers["tenuto-fence"]) == ("yes", "mine")
    assert first.headers["tenuto-attempt"] == "1"
    assert len(first.headers["idempotency-key"]) == 36

    assert http_call.get_output(url=site.url("/text"), body="plain", method="put")["body"] == "grün␀"
    assert (site.requests[1].method, site.requests[1].body) == ("PUT", b"plain")
    assert site.requests[1].headers["content-type"].startswith("text/plain")
    assert http_call.get_output(url=site.url("/odd"), method="GET")["body"] == '{"a": NaN}'
    assert site.requests[2].body == b""
    assert "content-type" not in site.requests[2].headers


def test_http_call_sends_secrets_and_does_not_show_them(http_call: HttpCallHarness, site: Site) -> None:
    SECRETS["hook"] = site.url("/hook/T0/B0?sig=abc")
    site.pages["/hook/T0/B0"] = [make_response(200), make_response(400)]
    http_call.get_output(
        url={"secret": "hook"},
        headers={"Authorization": {"secret": "token", "prefix": "Bearer "}},
        body={"deep": [{"password": {"secret": "token"}}]},
    )
    assert site.requests[0].headers["authorization"] == "Bearer s3cr3t-t0ken"
    assert json.loads(site.requests[0].body) == {"deep": [{"password": "s3cr3t-t0ken"}]}
    message, _ = http_call.get_failure(url={"secret": "hook"}, body={"secret": "token"})
    assert site.requests[1].body == b"s3cr3t-t0ken"
    assert message == f"POST http://127.0.0.1:{site.port} responded with status 400, expected 200-299"
    message, outcome = http_call.get_failure(url=site.url("/"), headers={"X-Key": {"secret": "broken"}})
    assert "header 'X-Key' contains a control character" in message
    assert not outcome.may_retry
    assert len(site.requests) == 2


def test_http_call_with_unexpected_status_is_retried_only_if_it_is_transient(
    http_call: HttpCallHarness, site: Site
) -> None:
    for status in (301, 400, 401, 404, 409, 422, 408, 425, 429, 500, 502, 503):
        site.pages[f"/{status}"] = make_response(status, b"because", "Location: http://127.0.0.1:1/")
        message, outcome = http_call.get_failure(url=site.url(f"/{status}?token=x"))
        assert message.startswith(f"POST {site.url(f'/{status}')} responded with status {status}, expected 200-299")
        assert outcome.may_retry == (status in (408, 425, 429) or status >= 500)
        assert outcome.retry_at is None
        assert "because" in (outcome.log or "")
    assert http_call.get_output(url=site.url("/404"), expected_status=[404])["status"] == 404
    assert http_call.get_output(url=site.url("/422"), expected_status=["2xx", "400-499"])["status"] == 422
    site.pages["/ok"] = make_response(200)
    assert (
        "responded with status 200, expected 204"
        in http_call.get_failure(url=site.url("/ok"), expected_status=[204])[0]
    )


def test_http_call_respects_retry_after_within_limits(http_call: HttpCallHarness, site: Site) -> None:
    date = "Date: Wed, 21 Oct 2026 07:28:00 GMT"
    for given, wait in (
        ("Retry-After: 120", 120),
        ("Retry-After: 0", 1),
        ("Retry-After: 999999999999999", 3600),
        ("Retry-After: Wed, 21 Oct 2026 07:30:00 GMT", 120),
        ("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", 3600),
        ("Retry-After: soon", None),
    ):
        site.pages["/busy"] = make_response(503, b"", given, date)
        _, outcome = http_call.get_failure(url=site.url("/busy"))
        assert outcome.may_retry
        if wait is None:
            assert outcome.retry_at is None
        else:
            assert outcome.retry_at is not None
            assert outcome.ended_at is not None
            assert (outcome.retry_at - outcome.ended_at).total_seconds() == wait


def test_http_call_to_an_unreachable_server_may_be_retried(http_call: HttpCallHarness, site: Site) -> None:
    with Site() as gone:
        nowhere = gone.url("/x?token=1")
    message, outcome = http_call.get_failure(url=nowhere)
    assert "refused" in message.lower()
    assert "token" not in message
    assert outcome.may_retry
    assert "cannot be resolved" in http_call.get_failure(url="http://nobody.example/")[0]
    site.pages["/silent"] = b""
    site.pages["/nonsense"] = b"SSH-2.0-OpenSSH_9.2\r\n\r\n"
    site.pages["/cut"] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    site.pages["/badgzip"] = make_response(200, b"no gzip", "Content-Encoding: gzip")
    for path in ("/silent", "/nonsense", "/cut", "/badgzip"):
        message, outcome = http_call.get_failure(url=site.url(path))
        assert message.startswith(f"POST {site.url(path)} failed: "), message
        assert outcome.may_retry


# --- limits (B46, B47) -----------------------------------------------------------------------------------------------


def hostile_pages(ends: threading.Event, sent: list[int]) -> dict[str, Any]:
    """Return pages of a server that tries to exhaust its clients."""

    def send_for_ever(opening: bytes, more: bytes, pause: float = 0.0) -> Behaviour:
        def behave(_: ReceivedRequest, send: Send) -> None:
            send(opening)
            while not ends.wait(pause):
                send(more)
                sent.append(len(more))

        return behave

    ok = b"HTTP/1.1 200 OK\r\n"
    bomb = gzip.compress(b"0" * 50_000_000, 9)
    many = "\r\n".join(["HTTP/1.1 200 OK", "Content-Length: 0", *(f"X{n}: y" for n in range(7_000))])
    too_many = "\r\n".join(["HTTP/1.1 200 OK", "Content-Length: 0", *(f"X-{n}: yyyy" for n in range(10_000))])
    return {
        "/endless": send_for_ever(ok + b"Content-Type: application/json\r\n\r\n", b"[" * 65536),
        "/chunked": send_for_ever(ok + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000),
        "/drops": send_for_ever(ok + b"Content-Length: 1000\r\n\r\n", b"x", 0.02),
        "/never": lambda _asked, _send: ends.wait(30),
        "/heads": send_for_ever(ok, b"X-Filler: " + b"y" * 1000 + b"\r\n"),
        "/hundreds": send_for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
        "/bomb": make_response(200, bomb, "Content-Encoding: gzip", "Content-Type: application/json"),
        "/twice": make_response(200, gzip.compress(bomb), "Content-Encoding: gzip, gzip"),
        "/chain": make_response(200, b"x", "Content-Encoding: " + ", ".join(["gzip"] * 9000)),
        "/many": many.encode() + b"\r\n\r\n",
        "/too-many": too_many.encode() + b"\r\n\r\n",
    }


def test_http_call_limits_time_and_memory_whatever_the_server_sends(http_call: HttpCallHarness, site: Site) -> None:
    ends, sent = threading.Event(), list[int]()
    site.pages |= hostile_pages(ends, sent)
    try:
        began = time.monotonic()
        for path, limit in (("/endless", 64 * 1024), ("/endless", 10), ("/bomb", 64 * 1024), ("/twice", 0)):
            given = http_call.get_output(url=site.url(path), response_limit=limit)
            assert given["truncated"], path
            assert len(given["body"]) == limit
        assert sum(sent) < 100 * MAX_READ_BYTES, "the connection is closed; the rest was in buffers of the system"
        assert http_call.get_output(url=site.url("/chunked"))["truncated"]
        assert http_call.get_output(url=site.url("/many"))["headers"] == {"content-length": "0"}
        for path in ("/heads", "/too-many", "/chain"):
            message, outcome = http_call.get_failure(url=site.url(path))
            assert "failed" in message
            assert outcome.may_retry
        for path in ("/drops", "/never", "/hundreds"):
            message, outcome = http_call.get_failure(url=site.url(path), timeout=0.3)
            assert "got no complete response within 0.3 s" in message
            assert outcome.may_retry
        assert time.monotonic() - began < 60
    finally:
        ends.set()


def test_http_call_stores_bodies_that_grow_when_stored(http_call: HttpCallHarness, site: Site) -> None:
    json_type = "Content-Type: application/json"
    site.pages |= {
        "/binary": make_response(200, b"\xff\x01" * 250_000),
        "/control": make_response(200, b"\x01" * 500_000),
        "/numbers": make_response(200, b"[" + b"1e15," * 80_000 + b"1]", json_type),
        "/null": make_response(200, b"null", json_type),
        "/deep": make_response(200, b"[" * 1000 + b"]" * 1000, json_type),
        "/nul": make_response(200, b'"\\u0000"', json_type),
    }
    for path, truncated in (("/binary", True), ("/control", True), ("/numbers", False), ("/deep", False)):
        given = http_call.get_output(url=site.url(path), response_limit=500_000)
        assert (given["status"], given["truncated"]) == (200, truncated)
        assert isinstance(given["body"], str)
    assert http_call.get_output(url=site.url("/nul"))["body"] == '"\\u0000"'
    assert http_call.get_output(url=site.url("/null"))["body"] == "null"


def test_cancelled_http_call_ends_at_once(http_call: HttpCallHarness, site: Site, harness: RunnerHarness) -> None:
    ends = threading.Event()
    site.pages |= hostile_pages(ends, [])
    harness.app.jobs.handlers_by_kind[http.KIND] = job = http_call.create_job()
    attempt = harness.start(job, _fields={"kind": http.KIND}, url=site.url("/never"))
    eventually_blocking(lambda: site.requests)
    attempt.stop(StopReason.CANCELLED, Actor.user("ana", "Ana"))
    outcome = harness.wait_for_outcome(attempt, timeout=12)  # without cancellation it ends after 15 s
    ends.set()
    assert outcome is not None
    assert outcome.status is OutcomeStatus.CANCELLED


def test_http_call_does_not_store_headers_with_credentials(http_call: HttpCallHarness, site: Site) -> None:
    site.pages["/"] = make_response(
        201,
        b"",
        "Set-Cookie: session=abc",
        "Authorization: Bearer abc",
        "X-Api-Key: abc",
        "Location: https://u:abc@shop.example/orders/7?token=abc#abc",
        f"ETag: {'e' * 5000}",
        "X-Request-Id: r-1",
    )
    headers = http_call.get_output(url=site.url())["headers"]
    assert headers["location"] == "https://shop.example/orders/7?…"
    assert headers["x-request-id"] == "r-1"
    assert len(headers["etag"]) < 1100
    assert "abc" not in json.dumps(headers)


# --- name resolution -------------------------------------------------------------------------------------------------


async def test_silent_name_server_does_not_block_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup blocks a thread of the resolver, and the number of its threads is limited."""
    answers = threading.Event()
    real = socket.getaddrinfo

    def lookup(host: str, *args: Any, **kwargs: Any) -> Any:
        if host.startswith("silent"):
            assert answers.wait(60)
            host = "127.0.0.1"
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    resolver = http_transport.NameResolver(max_threads=4)
    waiting = [asyncio.ensure_future(resolver.resolve(f"silent-{number}", 80)) for number in range(40)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "others work"), 30) == "others work"
    named = [thread for thread in threading.enumerate() if thread.name == "tenuto-resolver"]
    assert all(thread.daemon for thread in named)
    assert resolver._thread_count == 4
    waiting[0].cancel()
    waiting[-1].cancel()
    with pytest.raises(TimeoutError):
        await http_transport.NameResolver(max_threads=1, timeout_seconds=0.05).resolve("silent-too", 80)
    answers.set()
    found = await asyncio.wait_for(asyncio.gather(*waiting[1:-1]), 30)
    assert found == [["127.0.0.1"]] * 38
    assert await resolver.resolve("127.0.0.1", 80) == ["127.0.0.1"]
    with pytest.raises(socket.gaierror):
        await resolver.resolve("no-such-name.invalid", 80)


async def test_name_resolver_starts_a_thread_while_another_has_just_taken_a_request() -> None:
    taken, released = threading.Event(), threading.Event()

    class PausingQueue(SimpleQueue[Any]):
        """Pauses the thread that takes the first request."""

        def get(self, *args: Any, **kwargs: Any) -> Any:
            request = super().get(*args, **kwargs)
            if request[1] == "127.0.0.2":
                taken.set()
                released.wait(30)
            return request

    resolver = http_transport.NameResolver(max_threads=4)
    resolver._requests = PausingQueue()
    assert await resolver.resolve("127.0.0.1", 80) == ["127.0.0.1"]
    await eventually(lambda: resolver._idle_count == 1)
    paused = asyncio.ensure_future(resolver.resolve("127.0.0.2", 80))
    await eventually(taken.is_set)
    assert await asyncio.wait_for(resolver.resolve("127.0.0.3", 80), 10) == ["127.0.0.3"]
    released.set()
    assert await paused == ["127.0.0.2"]


# --- addresses that are not allowed (B39–B45, B48) -------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:PORT/", "http://localhost:PORT/", "http://0.0.0.0:PORT/", "http://[::]:PORT/",
        "http://[::1]:PORT/", "http://127.1.2.3:PORT/",
        "http://[::ffff:127.0.0.1]:PORT/", "http://[::ffff:169.254.169.254]/latest/meta-data",
        "http://169.254.169.254/latest/meta-data", "http://[::127.0.0.1]:PORT/", "http://[64:ff9b::7f00:1]:PORT/",
        "http://[2002:7f00:1::]:PORT/", "http://10.0.0.1/", "http://172.16.3.4/", "http://192.168.1.1/",
        "http://100.64.0.1/", "http://[fd00::1]/", "http://[fe80::1]/", "http://224.0.0.1/", "http://255.255.255.255/",
        "http://168.63.129.16/", "http://127.0.0.1:PORT#@ok.example/", "http://LOCALHOST.:PORT/",
        "http://mixed.example:PORT/", "http://inside.example:PORT/", "http://mapped.example:PORT/",
    ],
)  # fmt: skip
def test_http_call_to_an_internal_address_is_not_allowed(http_call: HttpCallHarness, site: Site, url: str) -> None:
    http_call.allow = ()
    http_call.names = {
        "localhost": [["::1", "127.0.0.1"]],
        "localhost.": [["127.0.0.1"]],
        "inside.example": [["10.1.2.3"]],
        "mixed.example": [["1.1.1.1", "127.0.0.1"]],
        "mapped.example": [["::ffff:127.0.0.1"]],
    }
    message, outcome = http_call.get_failure(url=url.replace("PORT", str(site.port)))
    assert "not allowed" in message
    assert "TENUTO_HTTP_ALLOWED_HOSTS" in message
    assert not outcome.may_retry
    assert site.requests == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://0xA9FEA9FE/", "unusual spelling"),
        ("http://2852039166/", "unusual spelling"),
        ("http://0251.0376.0251.0376/", "unusual spelling|URL"),
        ("http://127.1/", "unusual spelling"),
        ("http://0x7f.0.0.1/", "unusual spelling"),
        ("http://a@127.0.0.1/", "user name"),
        ("http://a:b@ok.example/", "user name"),
        ("http://@ok.example/", "user name"),
        ("http://ok.example\\@127.0.0.1/", "backslash"),
        ("http://127.0.0.1\t/", "control character"),
        ("http://ok.example/a b", "space"),
        ("file:///etc/passwd", "scheme"),
        ("gopher://127.0.0.1:6379/_INFO", "scheme"),
        ("ftp://ok.example/", "scheme"),
        ("unix:/var/run/docker.sock", "scheme"),
        ("//ok.example/", "scheme"),
        ("ok.example/path", "scheme"),
        ("http://", "host"),
        ("http:///x", "host"),
        ("http://[fe80::1%25lo]/", "interface|URL"),
        ("http://[::1/", "URL"),
        ("http://ok..example/", "host|URL"),
        ("http://ok.example:99999/", "port"),
        ("http://ok.example:0/", "port"),
        ("", "scheme"),
        ("http://" + "a" * 9000, "too long"),
    ],
)
def test_http_call_with_invalid_url_is_rejected(http_call: HttpCallHarness, url: str, expected: str) -> None:
    with pytest.raises(Invalid, match=expected) as caught:
        http_call.create_job().validate_input(json.dumps({"url": url}))
    assert (caught.value.code, caught.value.field) in (
        ("step.http.url.invalid", "url"),
        ("step.http.url.host_invalid", "url"),
    )


def test_http_call_with_full_width_digits_does_not_reach_the_address(http_call: HttpCallHarness, site: Site) -> None:
    http_call.allow = ()
    try:
        message, _ = http_call.get_failure(url=f"http://\uff11\uff12\uff17.0.0.1:{site.port}/")
        assert "not allowed" in message
    except Invalid:
        pass
    assert site.requests == []


def test_http_call_connects_to_the_checked_address(http_call: HttpCallHarness, site: Site) -> None:
    """DNS rebinding: the name resolves to an allowed address first, then to one that is not allowed."""
    http_call.allow = ("127.0.0.2",)
    with Site(address="127.0.0.2") as outside:
        inside = Site(address="127.0.0.1")
        outside.pages["/"] = make_response(200, b"outside")
        http_call.names = {"twofold.example": [["127.0.0.2"], ["127.0.0.1"]]}
        assert http_call.get_output(url=outside.url("/", "twofold.example"))["body"] == "outside"
        assert http_call.resolved == ["twofold.example"]
        assert outside.requests[0].headers["host"] == f"twofold.example:{outside.port}"
        message, outcome = http_call.get_failure(url=site.url("/", "twofold.example"))
        assert "resolves to 127.0.0.1, a loopback address" in message
        assert not outcome.may_retry
        assert inside.requests == site.requests == []


def test_http_call_follows_redirects_on_request_and_checks_each_target(http_call: HttpCallHarness, site: Site) -> None:
    http_call.allow = ("127.0.0.2",)
    http_call.names = {"moves.example": [["127.0.0.2"], ["127.0.0.1"]], "other.example": [["127.0.0.2"]]}
    with Site(address="127.0.0.2") as outside:
        url = outside.url
        outside.pages |= {
            "/inside": make_response(302, b"", f"Location: {site.url('/')}"),
            "/file": make_response(302, b"", "Location: file:///etc/passwd"),
            "/user": make_response(302, b"", f"Location: http://a@127.0.0.2:{outside.port}/ok"),
            "/odd": make_response(302, b"", "Location: http://2130706433/"),
            "/torn": make_response(302, b"", "Location: http://[::1"),
            "/rebound": make_response(307, b"", f"Location: http://moves.example:{outside.port}/ok"),
            "/loop": make_response(307, b"", "Location: /loop"),
            "/ok": make_response(200, b"ok"),
            "/see": make_response(303, b"", "Location: ok?a=b"),
            "/same": make_response(308, b"", "Location: /ok"),
            "/elsewhere": make_response(307, b"", f"Location: http://other.example:{outside.port}/ok"),
        }
        assert "follow_redirects" in http_call.get_failure(url=url("/same"))[0]
        assert http_call.get_output(url=url("/same"), expected_status=["3xx"])["status"] == 308
        for path in ("/inside", "/file", "/user", "/odd", "/torn", "/loop"):
            message, outcome = http_call.get_failure(url=url(path), follow_redirects=True)
            assert not outcome.may_retry, message
        assert "redirected more than 3 times" in message
        message, _ = http_call.get_failure(url=url("/rebound", "moves.example"), follow_redirects=True)
        assert "resolves to 127.0.0.1" in message
        assert site.requests == []

        outside.requests.clear()
        assert http_call.get_output(url=url("/see"), body={"a": 1}, follow_redirects=True)["body"] == "ok"
        assert [(each.method, each.target, each.body) for each in outside.requests] == [
            ("POST", "/see", b'{"a": 1}'),
            ("GET", "/ok?a=b", b""),
        ]
        http_call.get_output(url=url("/same"), headers={"Authorization": "x"}, body="b", follow_redirects=True)
        assert (outside.requests[-1].method, outside.requests[-1].body) == ("POST", b"b")
        assert outside.requests[-1].headers["authorization"] == "x"
        http_call.get_output(url=url("/elsewhere"), headers={"Authorization": "x", "X-Key": "y"}, follow_redirects=True)
        assert not {"authorization", "x-key"} & outside.requests[-1].headers.keys()
        assert outside.requests[-1].headers["idempotency-key"] == outside.requests[-2].headers["idempotency-key"]
        message, _ = http_call.get_failure(url=url("/elsewhere"), body={"secret": "token"}, follow_redirects=True)
        assert "would send a secret to another host" in message


def test_http_allow_list_permits_only_listed_addresses(http_call: HttpCallHarness, site: Site) -> None:
    site.pages["/"] = make_response(200)
    http_call.names = {"localhost": [["127.0.0.1"]], "svc.example": [["127.0.0.1"]]}
    for allow, host, works in (
        (("127.0.0.0/8",), "127.0.0.1", True),
        (("localhost",), "localhost", True),
        (("localhost",), "127.0.0.1", False),
        (("svc.example",), "svc.example", False),  # a name permits private networks, but not loopback
        (("svc.example", "127.0.0.1/32"), "svc.example", True),
        (("::1",), "127.0.0.1", False),
    ):
        http_call.allow = allow
        if works:
            http_call.get_output(url=site.url("/", host))
        else:
            assert "loopback" in http_call.get_failure(url=site.url("/", host))[0]


def test_http_call_ignores_proxies_of_the_environment(
    http_call: HttpCallHarness, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.pages["/"] = make_response(200, b"straight")
    with Site() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert http_call.get_output(url=site.url())["body"] == "straight"
        assert proxy.requests == []


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"method": "CONNECT"}, "method"),
        ({"method": "GET\r\nX: y"}, "method"),
        ({"headers": {"X-A": "a\r\nX-B: b"}}, "headers.X-A"),
        ({"headers": {"X A": "a"}}, "headers.X A"),
        ({"headers": {"Host": "inside"}}, "headers.Host"),
        ({"headers": {"transfer-encoding": "chunked"}}, "headers.transfer-encoding"),
        ({"headers": {"x-a": "1", "X-A": "2"}}, "headers.X-A"),
        ({"headers": {f"X-{n}": "y" for n in range(101)}}, "headers"),
        ({"headers": {"X-A": "y" * 20_000}}, "headers.X-A"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "2h"}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"expected_status": []}, "expected_status"),
        ({"expected_status": [99]}, "expected_status"),
        ({"expected_status": ["300-200"]}, "expected_status"),
        ({"expected_status": [True]}, "expected_status"),
        ({"expected_status": ["2*"]}, "expected_status"),
        ({"response_limit": -1}, "response_limit"),
        ({"response_limit": 10**9}, "response_limit"),
        ({"verify": False}, "verify"),
    ],
)
def test_invalid_http_call_argument_is_rejected(http_call: HttpCallHarness, arguments: Any, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        http_call.create_job().validate_input(json.dumps({"url": "https://ok.example/", **arguments}))
    assert caught.value.field == field


def test_http_call_input_is_stable_when_validated_again(http_call: HttpCallHarness) -> None:
    job = http_call.create_job()
    given = {"url": "https://ok.example/", "timeout": "1m", "headers": {"A": {"secret": "x", "prefix": "Bearer "}}}
    stored = job.validate_input(json.dumps(given))
    assert job.validate_input(stored) == stored
    assert json.loads(stored)["timeout"] == 60
    assert "url" in job.input_schema()["properties"]


def test_addresses_of_this_machine_are_recognized() -> None:
    """Compared with the list of psutil. Only an exact answer blocks the public addresses of the machine."""
    own = [
        ip_address(each.address)
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address
    ]
    assert own
    assert [address for address in own if not http_transport.is_local_address(address)] == []
    for other in ("8.8.8.8", "192.0.2.1", "2001:4860:4860::8888"):
        assert not http_transport.is_local_address(ip_address(other))


def test_http_call_is_not_sent_if_addresses_cannot_be_checked(
    http_call: HttpCallHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an address of this machine would be called."""

    def reject(_address: object) -> bool:
        raise httpcore2.ConnectError("too many open files")

    monkeypatch.setattr(http_transport, "is_local_address", reject)
    message, outcome = http_call.get_failure(url="http://8.8.8.8/", method="GET")
    assert "too many open files" in message
    assert outcome.may_retry
