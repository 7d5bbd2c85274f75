"""Masking (B93, B98): what an attempt was shown is in nothing it leaves behind, in whatever form it goes out."""

from __future__ import annotations

import base64
import html
import json
import logging
import sys
import time
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from tenuto import Context, logs
from tenuto.jobs import redaction
from tenuto.jobs.redaction import Mask
from tests.jobs.conftest import Bench
from tests.support import isolated_jobs

SECRET = 's3cr/t+"ä\\ value?%'


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """What one test hides, the next may see."""
    before = logs._hide
    yield
    Mask.__init__(redaction.shown_here, redaction._MOST_REMEMBERED)
    logs._hide = before


def hiding(*values: str) -> Mask:
    mask = Mask()
    for value in values:
        mask.add(value)
    return mask


def test_an_attempt_that_was_shown_long_values_hides_the_short_one_too() -> None:
    long = ["\n".join(f"{number:02d}-{line:05d}-abc" for line in range(4500)) for number in range(3)]
    mask = hiding("hunter2", *long)
    assert mask.text("it is hunter2") == "it is ***"


def test_a_value_is_found_in_every_form_it_takes() -> None:
    mask, raw = hiding(SECRET), SECRET.encode()
    forms = [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote(SECRET, safe="").lower(),
        quote_plus(SECRET),
        repr(SECRET),
        repr(raw),
        raw.hex(),
        raw.hex().upper(),
        html.escape(SECRET),
        html.escape(SECRET, quote=False),
        raw.decode("latin-1"),
        json.dumps(raw.decode("latin-1")),
        base64.b64encode(raw).decode(),
        base64.urlsafe_b64encode(raw).decode(),
        base64.b64encode(b"user:" + raw + b"!").decode(),
        base64.b64encode(b"admin!:" + raw).decode(),
        base64.b64encode(b"me:" + raw + b"\n").decode(),
        f"postgresql://u:{quote(SECRET, safe='')}@h/d",
    ]
    for form in forms:
        shown = mask.text(f"<{form}>")
        assert "***" in shown
        assert "s3cr" not in shown
        assert len(shown) < 30, (form, shown)


def test_every_line_of_a_value_is_hidden_but_not_the_shortest_ones() -> None:
    mask = hiding("-----BEGIN KEY-----\nabcdefgh\n}\nijklmnop\n")
    assert mask.text("x abcdefgh } ijklmnop y") == "x *** } *** y"


def test_json_stays_json_whatever_is_hidden_in_it() -> None:
    mask = hiding('{"do', "12345678", "true", "key-name")
    hidden = mask.json(json.dumps({"done": 12345678, "key-name": ['{"do', True, None, 1.5], "s": "it is true"}))
    assert json.loads(hidden) == {"done": "***", "***": ["***", True, None, 1.5], "s": "it is ***"}


@given(some.text(min_size=4, max_size=40), some.text(max_size=40), some.lists(some.integers(0, 120), max_size=6))
def test_however_a_stream_is_cut_into_chunks_no_value_goes_through(value: str, around: str, cuts: list[int]) -> None:
    assume(len(value.strip()) >= 4 and "*" not in value + around)
    mask = hiding(value)
    text, out, held = f"{around}{value}{around}", "", ""
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    for begin, end in pairwise(places):
        shown, held = mask.stream(held + text[begin:end])
        out += shown
    assert value not in out + mask.text(held)


@given(
    some.lists(some.text('ab-="é', min_size=4, max_size=9), max_size=8), some.text('ab-="é', max_size=60), some.data()
)
def test_many_values_are_hidden_as_few_are_and_nothing_of_any_is_left(
    values: list[str], text: str, data: some.DataObject
) -> None:
    """Those that overlap, begin alike, or are a part of each other, among more than are sought one by one."""
    values = [value for value in values if len(value.strip()) >= 4]
    few, many = hiding(*values), hiding(*(f"##{number:05d}##" for number in range(100)), *values)
    assert many.text(text) == few.text(text)
    assert not any(value in many.text(text) for value in values)
    cut = data.draw(some.integers(0, len(text)))
    (first, held), (others, rest) = many.stream(text[:cut]), ("", "")
    others, rest = many.stream(held + text[cut:])
    assert first + others + many.text(rest) == few.text(text)


def test_ten_thousand_values_are_hidden_and_take_no_longer_than_a_hundred() -> None:
    mask, values = Mask(), [f"key-{number:06d}-{number * 7919 % 100_003:06d}" for number in range(10_000)]
    for value in values:
        mask.add(value)
    text = "an ordinary line, as there are many of them in the log of a service\n" * 1000
    began = time.process_time()
    for value in values[::100]:
        assert mask.text(f"it is {value}, and {quote(value)}") == "it is ***, and ***"
    assert mask.text(text + values[-1]) == text + "***"
    assert mask.stream(text + values[-1][:9]) == (text, values[-1][:9])
    assert time.process_time() - began < 2, "one by one it would be minutes"


def test_a_process_that_was_shown_too_much_forgets_the_oldest_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    mask = Mask(3)
    for value in ("first-of-all", "x1x1", "second-one", "first-of-all", "third-one"):
        mask.add(value)
    assert mask.text("first-of-all x1x1 second-one third-one") == "*** x1x1 *** ***"
    assert mask.stream("x1x")[1] == "", "nothing of it is sought any more"
    assert [record.getMessage().split()[:2] for record in caplog.records] == [["masking.forgot", "values=1"]]


def test_a_form_two_values_take_is_hidden_until_both_are_forgotten() -> None:
    mask = Mask(2)
    for value in ("a first line\na second line", "a second line", "another"):
        mask.add(value)
    assert mask.text("a first line, a second line") == "a first line, ***"
    mask.add("one more")
    assert mask.text("a second line, another") == "a second line, ***"


def test_nothing_an_attempt_leaves_behind_holds_what_it_was_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "kanarie-in-the-mine"
    heard, printed = StringIO(), StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    listener = logging.StreamHandler(heard)
    logging.getLogger().addHandler(listener)

    @bench.app.job
    async def leak(ctx: Context) -> dict[str, Any]:
        ctx.conceal(value)
        ctx.progress(1, 2, f"using {value}")
        ctx.warn(f"warned of {value}")
        ctx.log.info("said %s", value)
        print(f"printed {value}")
        print(value[:7], end="")
        print(value[7:])
        print("x" * 8190, end="")
        print(value, end="", flush=True)
        logging.getLogger("somebody").error("logged %s", value)
        try:
            raise KeyError(value)
        except KeyError:
            logging.getLogger("somebody").exception("wrong %s", "here")
        logs.Log("tenuto.house").error("an event of ours", what=value)
        return {"token": f"Bearer {value}", value: base64.b64encode(f"u:{value}".encode()).decode()}

    @bench.app.job
    def fail(ctx: Context) -> None:
        ctx.conceal(value)
        raise ValueError("x" * 4090 + f"failed with {value}" + "y" * 8000)

    done, failed = bench.run(leak), bench.run(fail)
    bench.close()
    logging.getLogger().removeHandler(listener)
    left = [done.output, done.error, done.log, done.progress, failed.error, failed.log, heard.getvalue()]
    for text in [*left, printed.getvalue()]:
        assert text is None or value not in text
        assert text is None or "in-the-mine" not in text
    assert json.loads(done.output or "") == {"token": "Bearer ***", "***": f"{json.loads(done.output or '')['***']}"}
    assert json.loads(done.progress or "")["message"] == "using ***"
    assert json.loads(done.error or "")["message"] == "warned of ***"
    assert "said ***" in (done.log or "")
    assert "printed ***\n" in printed.getvalue()
    assert "\n***\n" in printed.getvalue()
    assert "logged ***" in heard.getvalue()
    assert "KeyError: '***'" in heard.getvalue()
    assert "what='***'" in heard.getvalue()
    assert "kanarie" not in (failed.error or "")


def test_bytes_that_are_written_are_shown_without_it_in_whatever_pieces(
    bench: Bench, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    @bench.app.job
    def say(ctx: Context) -> None:
        ctx.conceal("ünder the rose")
        for piece in ("it is ün", "der the", " rose", ", \n"):
            sys.stdout.buffer.write(piece.encode())
        sys.stdout.buffer.write(b"\xff\n")

    assert "it is ***," in (bench.run(say).log or "")
    bench.close()
    sys.stdout.flush()
    assert b"it is ***, \n\xff\n" in capfdbinary.readouterr()[0]


def test_a_child_process_leaves_nothing_either(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.app.jobs.by_name.update(isolated_jobs.app.jobs.by_name)
    for value in ("works-kanarie", "fails-kanarie"):
        ended = bench.run(isolated_jobs.whisper, value=value[::-1])
        assert "said ***" in (ended.log or "")
        assert "printed ***" in (ended.log or "")
        assert "***" in (ended.output or ended.error or "")
        left = [ended.output, ended.error, ended.log, ended.progress, *capfd.readouterr()]
        assert all("kanarie" not in text for text in left if text is not None)


def test_what_another_attempt_returns_is_its_own_business(bench: Bench) -> None:
    @bench.app.job
    async def shown(ctx: Context) -> None:
        ctx.conceal("password")

    @bench.app.job
    async def not_shown() -> str:
        return "a password is a word"

    bench.run(shown)
    assert bench.run(not_shown).output == '"a password is a word"'
