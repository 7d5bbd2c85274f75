"""Redaction (B93, B98): secret values do not occur, in any form, in anything an attempt leaves behind."""

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
from hypothesis import strategies as st

from tenuto import Context, logs
from tenuto.jobs import redaction
from tenuto.jobs.redaction import Redactor
from tests.jobs.conftest import RunnerHarness
from tests.support import isolated_jobs

SECRET = 's3cr/t+"ä\\ value?%'


@pytest.fixture(autouse=True)
def forget_values() -> Iterator[None]:
    """Forget the redacted values of each test."""
    before = logs._redact
    yield
    Redactor.__init__(redaction.process_redactor, redaction._MAX_PROCESS_VALUES)
    logs._redact = before


def create_redactor(*values: str) -> Redactor:
    redactor = Redactor()
    for value in values:
        redactor.add(value)
    return redactor


def test_redactor_with_long_values_redacts_a_short_one() -> None:
    long = ["\n".join(f"{number:02d}-{line:05d}-abc" for line in range(4500)) for number in range(3)]
    redactor = create_redactor("hunter2", *long)
    assert redactor.redact_text("it is hunter2") == "it is ***"


def test_redactor_finds_every_form_of_a_value() -> None:
    redactor, raw = create_redactor(SECRET), SECRET.encode()
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
        shown = redactor.redact_text(f"<{form}>")
        assert "***" in shown
        assert "s3cr" not in shown
        assert len(shown) < 30, (form, shown)


def test_redactor_redacts_every_line_of_a_value_except_short_ones() -> None:
    redactor = create_redactor("-----BEGIN KEY-----\nabcdefgh\n}\nijklmnop\n")
    assert redactor.redact_text("x abcdefgh } ijklmnop y") == "x *** } *** y"


def test_redacted_json_stays_json() -> None:
    redactor = create_redactor('{"do', "12345678", "true", "key-name")
    hidden = redactor.redact_json(
        json.dumps({"done": 12345678, "key-name": ['{"do', True, None, 1.5], "s": "it is true"})
    )
    assert json.loads(hidden) == {"done": "***", "***": ["***", True, None, 1.5], "s": "it is ***"}


@given(st.text(min_size=4, max_size=40), st.text(max_size=40), st.lists(st.integers(0, 120), max_size=6))
def test_redactor_finds_a_value_across_chunks(value: str, around: str, cuts: list[int]) -> None:
    assume(len(value.strip()) >= 4 and "*" not in value + around)
    redactor = create_redactor(value)
    text, out, pending = f"{around}{value}{around}", "", ""
    places = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    for begin, end in pairwise(places):
        shown, pending = redactor.redact_stream(pending + text[begin:end])
        out += shown
    assert value not in out + redactor.redact_text(pending)


@given(st.lists(st.text('ab-="é', min_size=4, max_size=9), max_size=8), st.text('ab-="é', max_size=60), st.data())
def test_redactor_with_index_and_without_give_the_same_result(
    values: list[str], text: str, data: st.DataObject
) -> None:
    """Includes values that overlap, have a common prefix or contain each other."""
    values = [value for value in values if len(value.strip()) >= 4]
    few, many = create_redactor(*values), create_redactor(*(f"##{number:05d}##" for number in range(100)), *values)
    assert many.redact_text(text) == few.redact_text(text)
    assert not any(value in many.redact_text(text) for value in values)
    cut = data.draw(st.integers(0, len(text)))
    (first, pending), (others, rest) = many.redact_stream(text[:cut]), ("", "")
    others, rest = many.redact_stream(pending + text[cut:])
    assert first + others + many.redact_text(rest) == few.redact_text(text)


def test_redactor_with_ten_thousand_values_is_fast() -> None:
    redactor, values = Redactor(), [f"key-{number:06d}-{number * 7919 % 100_003:06d}" for number in range(10_000)]
    for value in values:
        redactor.add(value)
    text = "an ordinary line, as there are many of them in the log of a service\n" * 1000
    began = time.process_time()
    for value in values[::100]:
        assert redactor.redact_text(f"it is {value}, and {quote(value)}") == "it is ***, and ***"
    assert redactor.redact_text(text + values[-1]) == text + "***"
    assert redactor.redact_stream(text + values[-1][:9]) == (text, values[-1][:9])
    assert time.process_time() - began < 2, "a search for each value would take minutes"


def test_redactor_forgets_the_oldest_value_beyond_its_limit(caplog: pytest.LogCaptureFixture) -> None:
    redactor = Redactor(3)
    for value in ("first-of-all", "x1x1", "second-one", "first-of-all", "third-one"):
        redactor.add(value)
    assert redactor.redact_text("first-of-all x1x1 second-one third-one") == "*** x1x1 *** ***"
    assert redactor.redact_stream("x1x")[1] == "", "its prefixes are forgotten too"
    assert ["redaction value evicted" in record.getMessage() for record in caplog.records] == [True]


def test_redactor_keeps_a_form_shared_by_two_values() -> None:
    redactor = Redactor(2)
    for value in ("a first line\na second line", "a second line", "another"):
        redactor.add(value)
    assert redactor.redact_text("a first line, a second line") == "a first line, ***"
    redactor.add("one more")
    assert redactor.redact_text("a second line, another") == "a second line, ***"


def test_attempt_leaves_no_redacted_value_behind(harness: RunnerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "kanarie-in-the-mine"
    logged_text, printed = StringIO(), StringIO()
    monkeypatch.setattr(sys, "stdout", printed)
    handler = logging.StreamHandler(logged_text)
    logging.getLogger().addHandler(handler)

    @harness.app.job
    async def leak(ctx: Context) -> dict[str, Any]:
        ctx.redact(value)
        ctx.progress(1, 2, f"using {value}")
        ctx.warn(f"warned of {value}")
        ctx.log.info("said %s", value)
        print(f"printed {value}")
        print(value[:7], end="")
        print(value[7:])
        print("x" * 8190, end="")
        print(value, end="", flush=True)
        logging.getLogger("other").error("logged %s", value)
        try:
            raise KeyError(value)
        except KeyError:
            logging.getLogger("other").exception("wrong %s", "here")
        logs.Log("tenuto.test").error("event reported", value=value)
        return {"token": f"Bearer {value}", value: base64.b64encode(f"u:{value}".encode()).decode()}

    @harness.app.job
    def fail(ctx: Context) -> None:
        ctx.redact(value)
        raise ValueError("x" * 4090 + f"failed with {value}" + "y" * 8000)

    done, failed = harness.run(leak), harness.run(fail)
    harness.close()
    logging.getLogger().removeHandler(handler)
    left = [done.output, done.error, done.log, done.progress, failed.error, failed.log, logged_text.getvalue()]
    for text in [*left, printed.getvalue()]:
        assert text is None or value not in text
        assert text is None or "in-the-mine" not in text
    assert json.loads(done.output or "") == {"token": "Bearer ***", "***": f"{json.loads(done.output or '')['***']}"}
    assert json.loads(done.progress or "")["message"] == "using ***"
    assert json.loads(done.error or "")["message"] == "warned of ***"
    assert "said ***" in (done.log or "")
    assert "printed ***\n" in printed.getvalue()
    assert "\n***\n" in printed.getvalue()
    assert "logged ***" in logged_text.getvalue()
    assert "KeyError: '***'" in logged_text.getvalue()
    assert "value='***'" in logged_text.getvalue()
    assert "kanarie" not in (failed.error or "")


def test_written_bytes_are_redacted_across_chunks(
    harness: RunnerHarness, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    @harness.app.job
    def say(ctx: Context) -> None:
        ctx.redact("ünder the rose")
        for piece in ("it is ün", "der the", " rose", ", \n"):
            sys.stdout.buffer.write(piece.encode())
        sys.stdout.buffer.write(b"\xff\n")

    assert "it is ***," in (harness.run(say).log or "")
    harness.close()
    sys.stdout.flush()
    assert b"it is ***, \n\xff\n" in capfdbinary.readouterr()[0]


def test_child_process_leaves_no_redacted_value_behind(
    harness: RunnerHarness, capfd: pytest.CaptureFixture[str]
) -> None:
    harness.app.jobs.jobs_by_name.update(isolated_jobs.app.jobs.jobs_by_name)
    for value in ("works-kanarie", "fails-kanarie"):
        ended = harness.run(isolated_jobs.leak_secret, value=value[::-1])
        assert "said ***" in (ended.log or "")
        assert "printed ***" in (ended.log or "")
        assert "***" in (ended.output or ended.error or "")
        left = [ended.output, ended.error, ended.log, ended.progress, *capfd.readouterr()]
        assert all("kanarie" not in text for text in left if text is not None)


def test_redaction_does_not_change_the_output_of_other_attempts(harness: RunnerHarness) -> None:
    @harness.app.job
    async def shown(ctx: Context) -> None:
        ctx.redact("password")

    @harness.app.job
    async def not_shown() -> str:
        return "a password is a word"

    harness.run(shown)
    assert harness.run(not_shown).output == '"a password is a word"'


@pytest.mark.parametrize("isolated", [False, True])
def test_name_of_an_error_class_is_redacted(harness: RunnerHarness, isolated: bool) -> None:
    def fail_in_this_process(ctx: Context) -> None:
        ctx.redact("secret-value-in-a-name")
        raise type("Error_secret-value-in-a-name", (Exception,), {})("no")

    harness.app.jobs.jobs_by_name.update(isolated_jobs.app.jobs.jobs_by_name)
    job = isolated_jobs.fail_with_secret_class if isolated else harness.app.job(fail_in_this_process)
    outcome = harness.run(job)
    assert json.loads(outcome.error or "")["type"].endswith("Error_***")
    assert "secret-value" not in (outcome.error or "")
