"""The filter grammar: clauses, typed values, time forms, and errors that name position and nearest key."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto.model.filter_keys import ACTIVITY_KEYS, DEAD_LETTER_KEYS, EXECUTION_KEYS, TASK_KEYS
from tenuto.model.filters import (
    Filter,
    FilterSchema,
    IdRange,
    Match,
    Range,
    parse_condition,
    parse_filter,
    quote_value,
)
from tests.support.errors import raises_code

NOW = datetime(2031, 5, 4, 12, 0, tzinfo=UTC)
LONDON = ZoneInfo("Europe/London")


def parse(text: str, schema: FilterSchema = ACTIVITY_KEYS, zone: tzinfo = UTC) -> Filter:
    return parse_filter(schema, text, NOW, zone=zone)


def value_of(text: str, schema: FilterSchema = ACTIVITY_KEYS, zone: tzinfo = UTC) -> object:
    [clause] = parse(text, schema, zone).clauses
    [value] = clause.values
    return value


def test_filter_parser_reads_the_example_of_every_form() -> None:
    text = (
        "state:failed,cancelled name:hr_import queue:mail worker:box-1 by:ana tag:x started:>2h"
        " started:2026-11-01..2026-11-08 ran:>30s attempts:>=3 error:~timeout -tag:demo id:01a8c3f0"
    )
    found = parse(text)
    assert [clause.key.name for clause in found.clauses if clause.key] == [
        "state", "name", "queue", "worker", "by", "tag", "started", "started", "ran", "attempts", "error", "tag", "id",
    ]  # fmt: skip
    assert [clause.is_negated for clause in found.clauses] == [False] * 11 + [True, False]
    assert found.clauses[0].values == ("failed", "cancelled")
    assert found.clauses[10].match is Match.CONTAINS


def test_filter_parser_reads_quoted_values_and_escapes() -> None:
    assert value_of('schedule:"Nightly HR Sync"', schema=EXECUTION_KEYS) == "Nightly HR Sync"
    assert value_of(r'name:"a \"b\" \\ c"') == 'a "b" \\ c'
    [clause] = parse('name:"a,b",c').clauses
    assert clause.values == ("a,b", "c")
    assert value_of('tag:""') == ""


def test_filter_parser_treats_words_without_key_as_text() -> None:
    [first, second] = parse('"connection refused" -timeout').clauses
    assert (first.key, first.values, first.is_negated) == (None, ("connection refused",), False)
    assert (second.key, second.values, second.is_negated) == (None, ("timeout",), True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ended:>2h", Range(NOW - timedelta(hours=2), None)),
        ("ended:>=1h30m", Range(NOW - timedelta(minutes=90), None)),
        ("ended:<7d", Range(None, NOW - timedelta(days=7))),
        ("ended:2031-05-01", Range(datetime(2031, 5, 1, tzinfo=UTC), datetime(2031, 5, 2, tzinfo=UTC))),
        ("ended:>2031-05-01", Range(datetime(2031, 5, 2, tzinfo=UTC), None)),
        ("ended:<=2031-05-01", Range(None, datetime(2031, 5, 2, tzinfo=UTC))),
        ("ended:2031-05-01..2031-05-03", Range(datetime(2031, 5, 1, tzinfo=UTC), datetime(2031, 5, 4, tzinfo=UTC))),
        ("ended:2031-05-01..", Range(datetime(2031, 5, 1, tzinfo=UTC), None)),
        ("ended:7d..1d", Range(NOW - timedelta(days=7), NOW - timedelta(days=1))),
        ("ended:today", Range(datetime(2031, 5, 4, tzinfo=UTC), datetime(2031, 5, 5, tzinfo=UTC))),
        ("ended:yesterday", Range(datetime(2031, 5, 3, tzinfo=UTC), datetime(2031, 5, 4, tzinfo=UTC))),
        ("ended:>=2031-05-04T10:00:00+02:00", Range(datetime(2031, 5, 4, 8, tzinfo=UTC), None)),
        (
            "ended:2031-05-04T10:00Z",
            Range(datetime(2031, 5, 4, 10, tzinfo=UTC), datetime(2031, 5, 4, 10, 1, tzinfo=UTC)),
        ),
        ("attempts:>=3", Range(3, None)),
        ("attempts:>3", Range(4, None)),
        ("attempts:3", Range(3, 4)),
        ("attempts:2..5", Range(2, 6)),
        ("ran:<500ms", Range(None, timedelta(milliseconds=500))),
    ],
)  # fmt: skip
def test_filter_parser_normalises_ranges(text: str, expected: Range) -> None:
    assert value_of(text) == expected


def test_filter_dates_are_days_of_the_given_zone() -> None:
    day = value_of("ended:2031-05-01", zone=LONDON)
    assert day == Range(datetime(2031, 4, 30, 23, tzinfo=UTC), datetime(2031, 5, 1, 23, tzinfo=UTC))


def test_filter_ids_may_be_prefixes() -> None:
    assert value_of("id:01a8c3f0") == IdRange(
        UUID("01a8c3f0-0000-0000-0000-000000000000"), UUID("01a8c3f0-ffff-ffff-ffff-ffffffffffff")
    )


@pytest.mark.parametrize(
    ("text", "code", "position", "hint"),
    [
        ("stat:failed", "filter.key.unknown", 0, "did you mean state?"),
        ("name:x -stat:failed", "filter.key.unknown", 8, "did you mean state?"),
        ("state:faild", "filter.value.invalid", 6, "did you mean failed?"),
        ("state:>failed", "filter.value.invalid", 6, "write state:completed"),
        ("ended:soon", "filter.value.invalid", 6, "an age such as 2h"),
        ("ended:2h", "filter.value.invalid", 6, "write ended:>2h"),
        ("ended:2031-13-01", "filter.value.invalid", 6, "a date such as"),
        ("ended:>99999999999999d", "filter.value.invalid", 6, "an age"),
        ("ended:..", "filter.value.invalid", 6, "write ended:"),
        ("ran:30s", "filter.value.invalid", 4, "write ran:>30s"),
        ("ran:>fast", "filter.value.invalid", 4, "a duration such as"),
        ("attempts:~3", "filter.value.invalid", 9, "write attempts:>=3"),
        ("attempts:x", "filter.value.invalid", 9, "write attempts:>=3"),
        ("id:xyz", "filter.value.invalid", 3, "copy it from a list"),
        ("final:maybe", "filter.value.invalid", 6, "write yes or no"),
        ("error:~", "filter.value.invalid", 6, "write error:~part"),
        ("name:", "filter.syntax", 5, "write a value"),
        ("name:a,,b", "filter.syntax", 7, "write a value"),
        ('name:"a', "filter.syntax", 5, 'add "'),
        ("- name:a", "filter.syntax", 0, "write -tag:demo"),
        ('""', "filter.syntax", 0, "write a word"),
        ("a\x00b", "filter.syntax", 0, "remove it"),
    ],
)
def test_filter_error_names_position_and_remedy(text: str, code: str, position: int, hint: str) -> None:
    with raises_code(code) as refusal:
        parse(text)
    error = refusal.value
    assert isinstance(error, Invalid)
    assert (error.position, error.field) == (position, "q")
    assert hint in (error.remedy or "")


def test_filter_that_is_too_long_is_rejected() -> None:
    with raises_code("filter.too_long"):
        parse("x" * 501)
    with raises_code("filter.too_long"):
        parse("a " * 31)


def test_filter_with_a_key_without_index_or_a_text_states_its_window() -> None:
    assert parse("name:x state:failed ended:>2h id:01").searched_count is None
    assert parse("name:x tag:y").searched_count == 100_000
    assert parse("timeout").searched_count == 100_000
    assert parse("name:~part").searched_count == 100_000
    assert parse("timeout").without_window().searched_count is None


def test_filter_shorthands_are_clauses_of_the_same_kind() -> None:
    filter = Filter(TASK_KEYS).where(state="queued", name=None, batch=UUID(int=1))
    assert [clause.values for clause in filter.clauses] == [("queued",), (IdRange(UUID(int=1), UUID(int=1)),)]
    with raises_code("filter.key.unknown"):
        Filter(TASK_KEYS).where(nmae="x")
    since = parse_condition(ACTIVITY_KEYS, "ended", ">=2h", NOW, zone=UTC, field="--since")
    assert since.clauses[0].values == (Range(NOW - timedelta(hours=2), None),)


def test_filter_is_described_in_plain_english() -> None:
    text = parse("state:failed,cancelled -name:~hr ended:>2h attempts:>=3 final:yes boom").describe()
    assert text == (
        "state is failed or cancelled, name does not contain hr, ended from 2031-05-04T10:00:00+00:00,"
        " attempts at least 3, final, containing 'boom'"
    )
    assert Filter(DEAD_LETTER_KEYS).describe() == "all dead letters"


@given(st.text(max_size=200))
def test_filter_parser_accepts_or_rejects_any_text_without_another_error(text: str) -> None:
    with suppress(Invalid):
        parse(text).describe()


@given(st.text(min_size=1, max_size=60).filter(lambda text: "\x00" not in text))
def test_quoted_filter_value_is_read_back(text: str) -> None:
    assert value_of(f"name:{quote_value(text)}") == text
