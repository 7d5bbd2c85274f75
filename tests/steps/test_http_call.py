"""The step kind http.call: what is sent, what is kept, when it is tried again, and where it never goes."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil
import pytest

from tenuto.errors import Invalid
from tenuto.jobs.attempts import Stop
from tenuto.jobs.context import Context
from tenuto.jobs.registry import Job
from tenuto.model.actors import Actor
from tenuto.model.secrets import SecretRef, Text
from tenuto.model.tasks import Outcome, Status
from tenuto.settings import load
from tenuto.steps.http import call as http
from tenuto.steps.http import transport
from tenuto.steps.http.response import MAX_READ
from tenuto.steps.step_kinds import Means
from tests.jobs.conftest import Bench
from tests.support.http_site import Asked, Behaviour, Send, Site, answer
from tests.support.waiting import eventually, eventually_here

SECRETS = {"token": "s3cr3t-t0ken", "hook": "", "broken": "line\n"}


class Caller:
    """Makes calls and says what became of them."""

    def __init__(self, bench: Bench, home: Path) -> None:
        self._bench = bench
        self._home = home
        self.names: dict[str, list[list[str]]] = {}
        """What names stand for; each answer is given once, the last for ever."""
        self.resolved: list[str] = []
        self.allow: tuple[str, ...] = ("127.0.0.1",)

    def job(self) -> Job[..., Any]:
        settings = load(home=self._home, http_allow=self.allow)
        return http.job(Means(_no_database, lambda: settings, _reveal), self._resolve)

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        answers = self.names.get(host)
        if answers is None:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def __call__(self, **arguments: Any) -> Outcome:
        job = self.job()
        self._bench.app.jobs.by_kind[http.KIND] = job
        return self._bench.run(job, _fields={"kind": http.KIND}, **arguments)

    def gives(self, **arguments: Any) -> Any:
        """What a call that works comes to."""
        outcome = self(**arguments)
        assert outcome.status is Status.COMPLETED, outcome.error
        assert outcome.output is not None
        return json.loads(outcome.output)

    def fails(self, **arguments: Any) -> tuple[str, Outcome]:
        """The words of a call that fails, and its outcome."""
        outcome = self(**arguments)
        assert outcome.status is Status.FAILED
        assert outcome.error is not None
        return json.loads(outcome.error)["message"], outcome


async def _no_database() -> Any:
    raise AssertionError("a call needs no database")


async def _reveal(ctx: Context, text: Text) -> str:
    return SECRETS[text.secret] and text.prefix + SECRETS[text.secret] if isinstance(text, SecretRef) else text


@pytest.fixture
def call(bench: Bench, tmp_path: Path) -> Caller:
    return Caller(bench, tmp_path)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def test_a_request_goes_out_as_it_was_asked_for_and_the_answer_is_kept(call: Caller, site: Site) -> None:
    site.pages["/json"] = answer(201, b'{"id": 7, "names": ["a"]}', "Content-Type: application/json; charset=utf-8")
    site.pages["/text"] = answer(200, "grün\x00".encode("latin-1"), "Content-Type: text/plain; charset=latin-1")
    site.pages["/odd"] = answer(200, b'{"a": NaN}', "Content-Type: application/json")

    given = call.gives(url=site.url("/json?x=1"), body={"who": "Zoë"}, headers={"X-Own": "yes", "Tenuto-Fence": "mine"})
    assert (given["status"], given["body"], given["truncated"]) == (201, {"id": 7, "names": ["a"]}, False)
    assert 0 <= given["duration"] < 30
    first = site.asked[0]
    assert (first.method, first.target, json.loads(first.body)) == ("POST", "/json?x=1", {"who": "Zoë"})
    assert first.headers["host"] == f"127.0.0.1:{site.port}"
    assert first.headers["content-type"] == "application/json"
    assert (first.headers["x-own"], first.headers["tenuto-fence"]) == ("yes", "mine")
    assert first.headers["tenuto-attempt"] == "1"
    assert len(first.headers["idempotency-key"]) == 36

    assert call.gives(url=site.url("/text"), body="plain", method="put")["body"] == "grün␀"
    assert (site.asked[1].method, site.asked[1].body) == ("PUT", b"plain")
    assert site.asked[1].headers["content-type"].startswith("text/plain")
    assert call.gives(url=site.url("/odd"), method="GET")["body"] == '{"a": NaN}'
    assert site.asked[2].body == b""
    assert "content-type" not in site.asked[2].headers


def test_secrets_go_out_in_headers_body_and_address_and_are_told_nowhere(call: Caller, site: Site) -> None:
    SECRETS["hook"] = site.url("/hook/T0/B0?sig=abc")
    site.pages["/hook/T0/B0"] = [answer(200), answer(400)]
    call.gives(
        url={"secret": "hook"},
        headers={"Authorization": {"secret": "token", "prefix": "Bearer "}},
        body={"deep": [{"password": {"secret": "token"}}]},
    )
    assert site.asked[0].headers["authorization"] == "Bearer s3cr3t-t0ken"
    assert json.loads(site.asked[0].body) == {"deep": [{"password": "s3cr3t-t0ken"}]}
    said, _ = call.fails(url={"secret": "hook"}, body={"secret": "token"})
    assert site.asked[1].body == b"s3cr3t-t0ken"
    assert said == f"POST http://127.0.0.1:{site.port} answered 400, not 200-299"
    said, outcome = call.fails(url=site.url("/"), headers={"X-Key": {"secret": "broken"}})
    assert "headers.X-Key: holds a line break" in said
    assert not outcome.may_retry
    assert len(site.asked) == 2


def test_an_unexpected_status_fails_for_good_or_for_now_as_the_status_says(call: Caller, site: Site) -> None:
    for status in (301, 400, 401, 404, 409, 422, 408, 425, 429, 500, 502, 503):
        site.pages[f"/{status}"] = answer(status, b"because", "Location: http://127.0.0.1:1/")
        said, outcome = call.fails(url=site.url(f"/{status}?token=x"))
        assert said.startswith(f"POST {site.url(f'/{status}')} answered {status}, not 200-299")
        assert outcome.may_retry == (status in (408, 425, 429) or status >= 500)
        assert outcome.retry_at is None
        assert "because" in (outcome.log or "")
    assert call.gives(url=site.url("/404"), expected_status=[404])["status"] == 404
    assert call.gives(url=site.url("/422"), expected_status=["2xx", "400-499"])["status"] == 422
    site.pages["/ok"] = answer(200)
    assert "answered 200, not 204" in call.fails(url=site.url("/ok"), expected_status=[204])[0]


def test_a_server_that_asks_to_wait_is_given_its_time_within_reason(call: Caller, site: Site) -> None:
    date = "Date: Wed, 21 Oct 2026 07:28:00 GMT"
    for given, wait in (
        ("Retry-After: 120", 120),
        ("Retry-After: 0", 1),
        ("Retry-After: 999999999999999", 3600),
        ("Retry-After: Wed, 21 Oct 2026 07:30:00 GMT", 120),
        ("Retry-After: Fri, 31 Dec 9999 23:59:59 GMT", 3600),
        ("Retry-After: soon", None),
    ):
        site.pages["/busy"] = answer(503, b"", given, date)
        _, outcome = call.fails(url=site.url("/busy"))
        assert outcome.may_retry
        if wait is None:
            assert outcome.retry_at is None
        else:
            assert outcome.retry_at is not None
            assert outcome.ended_at is not None
            assert (outcome.retry_at - outcome.ended_at).total_seconds() == wait


def test_what_cannot_be_reached_fails_for_now_and_says_why(call: Caller, site: Site) -> None:
    with Site() as gone:
        nowhere = gone.url("/x?token=1")
    said, outcome = call.fails(url=nowhere)
    assert "refused" in said.lower()
    assert "token" not in said
    assert outcome.may_retry
    assert "cannot be resolved" in call.fails(url="http://nobody.example/")[0]
    site.pages["/silent"] = b""
    site.pages["/nonsense"] = b"SSH-2.0-OpenSSH_9.2\r\n\r\n"
    site.pages["/cut"] = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    site.pages["/badgzip"] = answer(200, b"no gzip", "Content-Encoding: gzip")
    for path in ("/silent", "/nonsense", "/cut", "/badgzip"):
        said, outcome = call.fails(url=site.url(path))
        assert said.startswith(f"POST {site.url(path)} failed: "), said
        assert outcome.may_retry


# --- bounds (B46, B47) ----------------------------------------------------------------------------------------------


def mean_pages(ends: threading.Event, sent: list[int]) -> dict[str, Any]:
    """What a server might do to whoever calls it."""

    def on_and_on(opening: bytes, more: bytes, pause: float = 0.0) -> Behaviour:
        def behave(_: Asked, send: Send) -> None:
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
        "/endless": on_and_on(ok + b"Content-Type: application/json\r\n\r\n", b"[" * 65536),
        "/chunked": on_and_on(ok + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1000),
        "/drops": on_and_on(ok + b"Content-Length: 1000\r\n\r\n", b"x", 0.02),
        "/never": lambda _asked, _send: ends.wait(30),
        "/heads": on_and_on(ok, b"X-Filler: " + b"y" * 1000 + b"\r\n"),
        "/hundreds": on_and_on(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
        "/bomb": answer(200, bomb, "Content-Encoding: gzip", "Content-Type: application/json"),
        "/twice": answer(200, gzip.compress(bomb), "Content-Encoding: gzip, gzip"),
        "/chain": answer(200, b"x", "Content-Encoding: " + ", ".join(["gzip"] * 9000)),
        "/many": many.encode() + b"\r\n\r\n",
        "/too-many": too_many.encode() + b"\r\n\r\n",
    }


def test_whatever_a_server_sends_time_and_memory_stay_bounded(call: Caller, site: Site) -> None:
    ends, sent = threading.Event(), list[int]()
    site.pages |= mean_pages(ends, sent)
    try:
        began = time.monotonic()
        for path, limit in (("/endless", 64 * 1024), ("/endless", 10), ("/bomb", 64 * 1024), ("/twice", 0)):
            given = call.gives(url=site.url(path), response_limit=limit)
            assert given["truncated"], path
            assert len(given["body"]) == limit
        assert sum(sent) < 100 * MAX_READ, "we hang up; what is beyond the cap lay in buffers of the system"
        assert call.gives(url=site.url("/chunked"))["truncated"]
        assert call.gives(url=site.url("/many"))["headers"] == {"content-length": "0"}
        for path in ("/heads", "/too-many", "/chain"):
            said, outcome = call.fails(url=site.url(path))
            assert "failed" in said
            assert outcome.may_retry
        for path in ("/drops", "/never", "/hundreds"):
            said, outcome = call.fails(url=site.url(path), timeout=0.3)
            assert "was not answered in full within 0.3 s" in said
            assert outcome.may_retry
        assert time.monotonic() - began < 60
    finally:
        ends.set()


def test_a_result_is_kept_however_its_body_grows_when_it_is_stored(call: Caller, site: Site) -> None:
    json_type = "Content-Type: application/json"
    site.pages |= {
        "/binary": answer(200, b"\xff\x01" * 250_000),
        "/control": answer(200, b"\x01" * 500_000),
        "/numbers": answer(200, b"[" + b"1e15," * 80_000 + b"1]", json_type),
        "/null": answer(200, b"null", json_type),
        "/deep": answer(200, b"[" * 1000 + b"]" * 1000, json_type),
        "/nul": answer(200, b'"\\u0000"', json_type),
    }
    for path, truncated in (("/binary", True), ("/control", True), ("/numbers", False), ("/deep", False)):
        given = call.gives(url=site.url(path), response_limit=500_000)
        assert (given["status"], given["truncated"]) == (200, truncated)
        assert isinstance(given["body"], str)
    assert call.gives(url=site.url("/nul"))["body"] == '"\\u0000"'
    assert call.gives(url=site.url("/null"))["body"] == "null"


def test_a_call_that_is_cancelled_ends_at_once(call: Caller, site: Site, bench: Bench) -> None:
    ends = threading.Event()
    site.pages |= mean_pages(ends, [])
    bench.app.jobs.by_kind[http.KIND] = job = call.job()
    attempt = bench.begin(job, _fields={"kind": http.KIND}, url=site.url("/never"))
    eventually_here(lambda: site.asked)
    attempt.stop(Stop.CANCELLED, Actor.user("ana", "Ana"))
    outcome = bench.outcome(attempt, timeout=12)  # by itself it ends after 15 s
    ends.set()
    assert outcome is not None
    assert outcome.status is Status.CANCELLED


def test_headers_that_could_open_a_door_are_not_kept(call: Caller, site: Site) -> None:
    site.pages["/"] = answer(
        201,
        b"",
        "Set-Cookie: session=abc",
        "Authorization: Bearer abc",
        "X-Api-Key: abc",
        "Location: https://u:abc@shop.example/orders/7?token=abc#abc",
        f"ETag: {'e' * 5000}",
        "X-Request-Id: r-1",
    )
    kept = call.gives(url=site.url())["headers"]
    assert kept["location"] == "https://shop.example/orders/7?…"
    assert kept["x-request-id"] == "r-1"
    assert len(kept["etag"]) < 1100
    assert "abc" not in json.dumps(kept)


# --- names that are slow to be found ------------------------------------------------------------------------------


async def test_a_name_server_that_keeps_silent_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking blocks a thread: not one of those that everybody shares, and not more of them than there may be."""
    answers = threading.Event()
    real = socket.getaddrinfo

    def asked(host: str, *given: Any, **more: Any) -> Any:
        if host.startswith("silent"):
            assert answers.wait(60)
            host = "127.0.0.1"
        return real(host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    lookups = transport.Lookups(most=4)
    waiting = [asyncio.ensure_future(lookups.find(f"silent-{number}", 80)) for number in range(40)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "others work"), 30) == "others work"
    named = [thread for thread in threading.enumerate() if thread.name == "tenuto-lookup"]
    assert all(thread.daemon for thread in named)
    assert lookups._threads == 4
    waiting[0].cancel()
    waiting[-1].cancel()
    with monkeypatch.context() as impatient:
        impatient.setattr(transport, "_LOOKUP_SECONDS", 0.05)
        with pytest.raises(TimeoutError):
            await lookups.find("silent-too", 80)
    answers.set()
    found = await asyncio.wait_for(asyncio.gather(*waiting[1:-1]), 30)
    assert found == [["127.0.0.1"]] * 38
    assert await lookups.find("127.0.0.1", 80) == ["127.0.0.1"]
    with pytest.raises(socket.gaierror):
        await lookups.find("no-such-name.invalid", 80)


async def test_a_look_up_does_not_wait_behind_one_that_was_only_just_taken() -> None:
    taken, goes_on = threading.Event(), threading.Event()

    class Held(SimpleQueue[Any]):
        """Whoever takes the first is interrupted right then."""

        def get(self, *given: Any, **named: Any) -> Any:
            asked = super().get(*given, **named)
            if asked[1] == "127.0.0.2":
                taken.set()
                goes_on.wait(30)
            return asked

    lookups = transport.Lookups(most=4)
    lookups._asked = Held()
    assert await lookups.find("127.0.0.1", 80) == ["127.0.0.1"]
    await eventually(lambda: lookups._free == 1)
    held = asyncio.ensure_future(lookups.find("127.0.0.2", 80))
    await eventually(taken.is_set)
    assert await asyncio.wait_for(lookups.find("127.0.0.3", 80), 10) == ["127.0.0.3"]
    goes_on.set()
    assert await held == ["127.0.0.2"]


# --- where it never goes (B39–B45, B48) -----------------------------------------------------------------------------


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
def test_nothing_inside_is_called_unless_it_is_listed(call: Caller, site: Site, url: str) -> None:
    call.allow = ()
    call.names = {
        "localhost": [["::1", "127.0.0.1"]],
        "localhost.": [["127.0.0.1"]],
        "inside.example": [["10.1.2.3"]],
        "mixed.example": [["1.1.1.1", "127.0.0.1"]],
        "mapped.example": [["::ffff:127.0.0.1"]],
    }
    said, outcome = call.fails(url=url.replace("PORT", str(site.port)))
    assert "such are not called" in said
    assert "TENUTO_HTTP_ALLOW" in said
    assert not outcome.may_retry
    assert site.asked == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://0xA9FEA9FE/", "odd spelling"),
        ("http://2852039166/", "odd spelling"),
        ("http://0251.0376.0251.0376/", "odd spelling|URL"),
        ("http://127.1/", "odd spelling"),
        ("http://0x7f.0.0.1/", "odd spelling"),
        ("http://a@127.0.0.1/", "user name"),
        ("http://a:b@ok.example/", "user name"),
        ("http://@ok.example/", "user name"),
        ("http://ok.example\\@127.0.0.1/", "backslash"),
        ("http://127.0.0.1\t/", "control character"),
        ("http://ok.example/a b", "blank"),
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
def test_an_address_that_makes_no_sense_is_refused_when_it_is_given(call: Caller, url: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as refusal:
        call.job().check_input(json.dumps({"url": url}))
    assert refusal.value.field == "url"


def test_full_width_digits_are_the_address_they_look_like_or_nothing(call: Caller, site: Site) -> None:
    call.allow = ()
    try:
        said, _ = call.fails(url=f"http://\uff11\uff12\uff17.0.0.1:{site.port}/")
        assert "not called" in said
    except Invalid:
        pass
    assert site.asked == []


def test_the_checked_address_is_dialled_whatever_the_name_says_next(call: Caller, site: Site) -> None:
    """Rebinding: the name answers with an address that may be called, and then with one that may not."""
    call.allow = ("127.0.0.2",)
    with Site(address="127.0.0.2") as outside:
        inside = Site(address="127.0.0.1")
        outside.pages["/"] = answer(200, b"outside")
        call.names = {"twofold.example": [["127.0.0.2"], ["127.0.0.1"]]}
        assert call.gives(url=outside.url("/", "twofold.example"))["body"] == "outside"
        assert call.resolved == ["twofold.example"]
        assert outside.asked[0].headers["host"] == f"twofold.example:{outside.port}"
        said, outcome = call.fails(url=site.url("/", "twofold.example"))
        assert "leads to 127.0.0.1, a loopback address" in said
        assert not outcome.may_retry
        assert inside.asked == site.asked == []


def test_redirects_are_followed_only_when_asked_and_each_place_is_checked(call: Caller, site: Site) -> None:
    call.allow = ("127.0.0.2",)
    call.names = {"moves.example": [["127.0.0.2"], ["127.0.0.1"]], "other.example": [["127.0.0.2"]]}
    with Site(address="127.0.0.2") as outside:
        url = outside.url
        outside.pages |= {
            "/inside": answer(302, b"", f"Location: {site.url('/')}"),
            "/file": answer(302, b"", "Location: file:///etc/passwd"),
            "/user": answer(302, b"", f"Location: http://a@127.0.0.2:{outside.port}/ok"),
            "/odd": answer(302, b"", "Location: http://2130706433/"),
            "/torn": answer(302, b"", "Location: http://[::1"),
            "/rebound": answer(307, b"", f"Location: http://moves.example:{outside.port}/ok"),
            "/loop": answer(307, b"", "Location: /loop"),
            "/ok": answer(200, b"ok"),
            "/see": answer(303, b"", "Location: ok?a=b"),
            "/same": answer(308, b"", "Location: /ok"),
            "/elsewhere": answer(307, b"", f"Location: http://other.example:{outside.port}/ok"),
        }
        assert "follow_redirects" in call.fails(url=url("/same"))[0]
        assert call.gives(url=url("/same"), expected_status=["3xx"])["status"] == 308
        for path in ("/inside", "/file", "/user", "/odd", "/torn", "/loop"):
            said, outcome = call.fails(url=url(path), follow_redirects=True)
            assert not outcome.may_retry, said
        assert "redirected more than 3 times" in said
        said, _ = call.fails(url=url("/rebound", "moves.example"), follow_redirects=True)
        assert "leads to 127.0.0.1" in said
        assert site.asked == []

        outside.asked.clear()
        assert call.gives(url=url("/see"), body={"a": 1}, follow_redirects=True)["body"] == "ok"
        assert [(each.method, each.target, each.body) for each in outside.asked] == [
            ("POST", "/see", b'{"a": 1}'),
            ("GET", "/ok?a=b", b""),
        ]
        call.gives(url=url("/same"), headers={"Authorization": "x"}, body="b", follow_redirects=True)
        assert (outside.asked[-1].method, outside.asked[-1].body) == ("POST", b"b")
        assert outside.asked[-1].headers["authorization"] == "x"
        call.gives(url=url("/elsewhere"), headers={"Authorization": "x", "X-Key": "y"}, follow_redirects=True)
        assert not {"authorization", "x-key"} & outside.asked[-1].headers.keys()
        assert outside.asked[-1].headers["idempotency-key"] == outside.asked[-2].headers["idempotency-key"]
        said, _ = call.fails(url=url("/elsewhere"), body={"secret": "token"}, follow_redirects=True)
        assert "would carry a secret to another host" in said


def test_what_is_listed_may_be_called_and_no_more_than_that(call: Caller, site: Site) -> None:
    site.pages["/"] = answer(200)
    call.names = {"localhost": [["127.0.0.1"]], "svc.example": [["127.0.0.1"]]}
    for allow, host, works in (
        (("127.0.0.0/8",), "127.0.0.1", True),
        (("localhost",), "localhost", True),
        (("localhost",), "127.0.0.1", False),
        (("svc.example",), "svc.example", False),  # a name opens private networks, not this machine's own inside
        (("svc.example", "127.0.0.1/32"), "svc.example", True),
        (("::1",), "127.0.0.1", False),
    ):
        call.allow = allow
        if works:
            call.gives(url=site.url("/", host))
        else:
            assert "loopback" in call.fails(url=site.url("/", host))[0]


def test_proxies_of_the_environment_are_not_used(call: Caller, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.pages["/"] = answer(200, b"straight")
    with Site() as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        assert call.gives(url=site.url())["body"] == "straight"
        assert proxy.asked == []


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
def test_arguments_that_make_no_sense_are_refused_by_name(call: Caller, arguments: Any, field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        call.job().check_input(json.dumps({"url": "https://ok.example/", **arguments}))
    assert refusal.value.field == field


def test_what_is_stored_is_the_same_when_it_is_read_again(call: Caller) -> None:
    job = call.job()
    given = {"url": "https://ok.example/", "timeout": "1m", "headers": {"A": {"secret": "x", "prefix": "Bearer "}}}
    stored = job.check_input(json.dumps(given))
    assert job.check_input(stored) == stored
    assert json.loads(stored)["timeout"] == 60
    assert "url" in job.input_schema()["properties"]


def test_nothing_is_called_while_the_machines_own_addresses_cannot_be_listed(
    call: Caller, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under systemd without AF_NETLINK: an address that is not known to be ours would not be closed."""

    def refused() -> Any:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(psutil, "net_if_addrs", refused)
    words, outcome = call.fails(url=site.url("/"), method="GET")
    assert words.startswith("GET http://127.0.0.1")
    assert "was not sent: the system does not list the addresses of this machine: address family not supported" in words
    assert "RestrictAddressFamilies" in words
    assert outcome.may_retry
    assert site.asked == []
