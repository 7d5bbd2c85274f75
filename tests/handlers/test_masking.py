"""Masking (S16, B93, B98): what an attempt was shown is in nothing it leaves behind, in whatever form it goes out."""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Iterator
from io import StringIO
from itertools import pairwise
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from tenuto import Context, logs
from tenuto.handlers import masking
from tenuto.handlers.masking import Mask
from tests.handlers import isolated_jobs
from tests.handlers.conftest import Bench

SECRET = 's3cr/t+"ä\\ value?%'


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    """What one test hides, the next may see."""
    before = masking.shown_here._sought, logs._hide
    yield
    masking.shown_here._sought, logs._hide = before


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
