"""Expressions: what they compute, what is refused, and that they can neither escape nor block other threads."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import Invalid
from tenuto_identity.model.rules.expression_functions import (
    FUNCTIONS,
)
from tenuto_identity.model.rules.expression_values import (
    Kind,
    UniqueBases,
)
from tenuto_identity.model.rules.expressions import (
    Evaluation,
    Expression,
    ExpressionFailed,
    RuleClock,
    Variables,
    compile_expression,
)

NOW = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
KINDS = {
    "first": Kind.TEXT,
    "last": Kind.TEXT,
    "department": Kind.TEXT,
    "phones": Kind.LIST,
    "size": Kind.NUMBER,
    "active": Kind.BOOLEAN,
    "starts": Kind.INSTANT,
    "ends": Kind.INSTANT,
    "changed": Kind.INSTANT,
    "anything": Kind.ANY,
}
ADA: Mapping[str, Any] = {
    "first": "Ada",
    "last": "Lovelace",
    "department": "Research",
    "phones": ["+44 2", "+44 1"],
    "size": 7,
    "active": True,
    "starts": date(2020, 1, 1),
}


def evaluate(text: str, values: Mapping[str, Any] = ADA, *, zone: str = "UTC", now: datetime = NOW) -> Evaluation:
    expression = compile_expression(text, KINDS)
    return expression.evaluate(Variables(values.get), RuleClock(now, zone))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('first + " " + last', "Ada Lovelace"),
        ('lower(first) + "." + lower(last)', "ada.lovelace"),
        ("size + 1 - 3", 5),
        ("-size", -7),
        ("1.5 + 1", Decimal("2.5")),
        ('first if active else "nobody"', "Ada"),
        ('"x" if department == "Temp" else last', "Lovelace"),
        ('department in ["Research", "Sales"]', True),
        ('department not in ["Research", "Sales"]', False),
        ('"sear" in department', True),
        ('"+44 1" in phones', True),
        ("not active", False),
        ("ends == none", True),
        ("ends != none", False),
        ("starts != none", True),
        ('ends or "open"', "open"),
        ('first or "open"', "Ada"),
        ("size - 7 or 5", 0),
        ("upper(first)", "ADA"),
        ('title("ada LOVELACE")', "Ada Lovelace"),
        ('trim("  a ")', "a"),
        ('collapse(" a \u00a0 b ")', "a b"),
        ('ascii("Müller-Žižek")', "Muller-Zizek"),
        ('slug("Zoë  O\u2019Brien")', "zoe-o-brien"),
        ("left(last, 4)", "Love"),
        ("right(last, 4)", "lace"),
        ("right(last, 0)", ""),
        ('pad("7", 3, "0")', "007"),
        ('replace(last, "e", "3")', "Lov3lac3"),
        ('split("a; b;;c", ";")', ["a", "b", "c"]),
        ('join(sorted(phones), "/")', "+44 1/+44 2"),
        ("first(phones)", "+44 2"),
        ("sorted(phones)", ["+44 1", "+44 2"]),
        (r'matches(first, "^A.a$")', True),
        (r'extract("EMP-0042", "([0-9]+)")', "0042"),
        (r'extract("none", "([0-9]+)")', None),
        ("coalesce(ends, none, first)", "Ada"),
        ('date("2026-02-03")', date(2026, 2, 3)),
        ('date("03.02.2026", "%d.%m.%Y")', date(2026, 2, 3)),
        ('format_date(starts, "%d/%m/%Y")', "01/01/2020"),
        ("add_days(starts, 31)", date(2020, 2, 1)),
        ('filetime(date("1601-01-02"))', 864_000_000_000),
        ("from_filetime(864000000000)", datetime(1601, 1, 2, tzinfo=UTC)),
        ("from_filetime(0)", None),
        ("from_filetime(9223372036854775807)", None),
        ('dn("cn", "Lovelace, Ada", "ou=people,dc=test")', r"cn=Lovelace\, Ada,ou=people,dc=test"),
        ('dn("cn", "a", "ou", "b")', "cn=a,ou=b"),
        ('escape_dn("a,b")', r"a\,b"),
        (r'rdn("cn=a\\,b,ou=c")', r"cn=a\,b"),
        ('parent("cn=a,ou=c,dc=d")', "ou=c,dc=d"),
        ("bit(514, 2)", True),
        ("set_bit(512, 2)", 514),
        ("clear_bit(514, 2)", 512),
        ('phone_e164("020 7946 0018", "GB")', "+442079460018"),
        ("length(first)", 3),
        ("length(phones)", 2),
        ('length("é")', 1),
        ('contains(phones, "+44 1")', True),
        ('contains(first, "d")', True),
        ('starts_with(first, "A")', True),
        ('ends_with(first, "a")', True),
        ('phones + ["+44 3"]', ["+44 2", "+44 1", "+44 3"]),
        ("[first, ends, last]", ["Ada", "Lovelace"]),
        ("today()", date(2026, 3, 14)),
        ("now()", NOW),
        ("true", True),
        ("none", None),
    ],
)
def test_expression_gives_its_result(text: str, expected: object) -> None:
    assert evaluate(text).value == expected


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_gives_no_value_for_a_missing_input(name: str) -> None:
    signature = FUNCTIONS[name]
    count = signature.least
    if count == 0 or signature.pattern_argument is not None:
        return
    arguments = ", ".join(["none"] * count)
    assert evaluate(f"{name}({arguments})").value is None


@pytest.mark.parametrize(
    "text",
    [
        "missing < first", "missing <= first", "missing > first", "missing >= first", "missing == first",
        "missing != first", "first != missing", 'missing in ["a"]', 'missing not in ["a"]', "first in missing",
    ],
)  # fmt: skip
def test_comparison_with_a_missing_value_is_false(text: str) -> None:
    assert evaluate(text.replace("missing", "anything")).value is False


def test_missing_input_gives_a_missing_result_and_no_text() -> None:
    assert evaluate('first + " " + last', {"first": "Ada"}).value is None
    assert evaluate("size + 1", {}).value is None
    assert evaluate('last or "Staff"', {}).value == "Staff"
    assert evaluate('"" or "Staff"', {}).value == "Staff"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("first - 1", "needs a number"),
        ("first + size", "cannot join"),
        ("lower(anything)", "needs a text"),
        ("anything < first", "cannot be compared"),
        ('date("soon")', "not a date"),
        ('replace(first, "", "x")', "blank"),
        ("left(first, -1)", "whole number"),
        ('pad(first, 100000, "x")', "whole number"),
        ("9223372036854775807 + 1", "64 bits"),
        ('dn("cn", " ", "dc=test")', "blank"),
        ('dn("cn", "a", "not a dn")', "not a DN"),
        ('phone_e164("12", "GB")', "phone number"),
        ("add_days(starts, 3650000)", "years"),
    ],
)
def test_failure_names_the_expression_and_its_inputs(text: str, message: str) -> None:
    with pytest.raises(ExpressionFailed, match=message) as caught:
        evaluate(text, {**ADA, "anything": 1})
    assert caught.value.expression == text
    assert set(caught.value.inputs) == compile_expression(text, KINDS).names


# --- dates ----------------------------------------------------------------------------------------------------------

IN_SERVICE = "starts <= today() and (ends == none or ends >= today())"


@pytest.mark.parametrize(
    ("starts", "ends", "zone", "result", "reevaluate_at"),
    [
        (date(2026, 3, 17), None, "UTC", False, datetime(2026, 3, 17, tzinfo=UTC)),
        (date(2026, 3, 17), None, "Europe/Berlin", False, datetime(2026, 3, 16, 23, tzinfo=UTC)),
        (date(2020, 1, 1), date(2026, 3, 16), "UTC", True, datetime(2026, 3, 17, tzinfo=UTC)),
        (date(2020, 1, 1), date(2026, 3, 14), "America/New_York", True, datetime(2026, 3, 15, 4, tzinfo=UTC)),
        (date(2020, 1, 1), date(2026, 3, 13), "UTC", False, None),
        (date(2020, 1, 1), None, "UTC", True, None),
        (None, None, "UTC", False, None),
        (date(9999, 12, 31), None, "UTC", False, datetime(9999, 12, 31, tzinfo=UTC)),
    ],
)
def test_scope_by_date_knows_when_it_changes(
    starts: date | None, ends: date | None, zone: str, result: bool, reevaluate_at: datetime | None
) -> None:
    found = evaluate(IN_SERVICE, {"starts": starts, "ends": ends}, zone=zone)
    assert found.value is result
    assert found.reevaluate_at == reevaluate_at


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
@pytest.mark.parametrize("form", ["starts {op} today()", "today() {op} starts", "add_days(today(), 3) {op} starts"])
@given(days=st.integers(-6, 6), zone=st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia"]))
@settings(max_examples=15)
def test_date_comparison_does_not_change_before_its_instant(op: str, form: str, days: int, zone: str) -> None:
    text = form.format(op=op)
    values = {"starts": NOW.date() + timedelta(days=days)}
    found = evaluate(text, values, zone=zone)
    until = found.reevaluate_at or NOW + timedelta(days=30)
    before = until - timedelta(microseconds=1)
    assert evaluate(text, values, zone=zone, now=before).value == found.value
    if found.reevaluate_at is not None:
        assert evaluate(text, values, zone=zone, now=found.reevaluate_at).value != found.value


@pytest.mark.parametrize("op", ["<", "<=", ">", ">=", "==", "!="])
@given(seconds=st.integers(-100_000, 100_000))
@settings(max_examples=15)
def test_comparison_with_now_does_not_change_before_its_instant(op: str, seconds: int) -> None:
    values = {"changed": NOW + timedelta(seconds=seconds)}
    text = f"now() {op} changed"
    found = evaluate(text, values)
    until = found.reevaluate_at or NOW + timedelta(days=30)
    assert evaluate(text, values, now=until - timedelta(microseconds=1)).value == found.value
    if found.reevaluate_at is not None:
        assert evaluate(text, values, now=found.reevaluate_at).value != found.value


def test_clock_outside_of_a_comparison_is_evaluated_again_at_midnight() -> None:
    found = evaluate('format_date(today(), "%Y")', zone="Europe/Berlin")
    assert found.value == "2026"
    assert found.reevaluate_at == datetime(2026, 3, 14, 23, tzinfo=UTC)


def test_instants_and_dates_are_compared_as_dates_of_the_zone() -> None:
    values = {"changed": datetime(2026, 3, 14, 23, 30, tzinfo=UTC), "starts": date(2026, 3, 15)}
    assert evaluate("changed == starts", values, zone="Europe/Berlin").value is True
    assert evaluate("changed == starts", values, zone="UTC").value is False


# --- unique ---------------------------------------------------------------------------------------------------------


def test_unique_gives_candidates_in_order() -> None:
    expression = compile_expression('unique(slug(first) + "." + slug(last), slug(last))', KINDS)
    assert expression.is_unique
    found = expression.evaluate(Variables(ADA.get), RuleClock(NOW)).value
    assert isinstance(found, UniqueBases)
    assert found.candidates()[:4] == ["ada.lovelace", "lovelace", "ada.lovelace2", "ada.lovelace3"]
    assert evaluate("unique(department)", {}).value is None


# --- refused --------------------------------------------------------------------------------------------------------

ESCAPES = [
    "().__class__", "first.__class__", "first.upper()", '"a".format(first)', '"a"*10**9', "9**9**9", "2**100",
    "first * 3", "size % 2", "size / 2", "size // 2", "1 << 100", "~size", "size | 1", "size & 1", "size ^ 1",
    "[x for x in phones]", "{x for x in phones}", "{x: 1 for x in phones}", "(x for x in phones)", 'f"{first}"',
    'f"{first!r:>{size}}"', "lambda: 1", "(lambda: 1)()", "first[0]", "phones[0]", "phones[0:1]",
    '__import__("os")', "__builtins__", "_context", "_variables", "_add(1, 2)", "_f_lower(first)", "_t1",
    "eval('1')", "exec('1')", "open('/etc/passwd')", "getattr(first, 'x')", "globals()", "print(first)",
    "(y := 5)", "first if active else (y := 1)", "*phones", "lower(*phones)", "lower(text=first)",
    "lower(**{})", "{}", "{1, 2}", "(1, 2)", "1 if", "first last", "import os", "x = 1", "yield 1", "await first",
    "...", "b'bytes'", "1j", "first is none", "1 < size < 9", "lower", "lower.upper(first)", "lower(lower)",
    "1e999999 ** 2", "9" * 30, "'a' 'b' * 3", "not_there", "nothing()", "unique(first) + last", "lower(unique(first))",
    "matches(first, last)", 'matches(first, "(")', r'matches(first, "(?P<a>x)(?P=a)")', "", "   ", "# comment",
    "\\", "\x00", "first\n\nlast", "lower(first,)(first)", "[[[[]]]][0]", "first < 1", "today(1)", "lower()",
    "lower(phones)", "join(first, last)", "first in 5",
]  # fmt: skip


@pytest.mark.parametrize("text", ESCAPES)
def test_expression_outside_of_the_language_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        compile_expression(text, KINDS, field="map.login.value")
    assert caught.value.field == "map.login.value"
    assert caught.value.code == "identity.expression.invalid"


@pytest.mark.parametrize(
    "text",
    ["(" * 200 + "1" + ")" * 200, "(" * 1000 + "1" + ")" * 1000, "1+" * 1500 + "1", "not " * 400 + "active",
     "-" * 1000 + "size", "lower(" * 40 + "first" + ")" * 40, "[" * 90 + "]" * 90, "x" * 3000,
     "1 if active else " * 60 + "2", " and ".join(["active"] * 200), "first + " * 150 + "first"],
)  # fmt: skip
def test_large_expression_is_refused_or_quick(text: str) -> None:
    try:
        expression = compile_expression(text, KINDS)
    except Invalid:
        return
    start = time.perf_counter()
    for _ in range(10):
        expression.evaluate(Variables(ADA.get), RuleClock(NOW))
    assert (time.perf_counter() - start) / 10 < 0.05


def test_error_names_the_column_and_a_suggestion() -> None:
    with pytest.raises(Invalid, match=r"column 9.*did you mean last\?"):
        compile_expression("first + lst", KINDS)
    with pytest.raises(Invalid, match=r"did you mean lower\?"):
        compile_expression("  lowr(first)", KINDS)
    with pytest.raises(Invalid, match=r"write left\(text, count\)"):
        compile_expression("left(first)", KINDS)


@pytest.mark.parametrize(
    "text",
    [
        'replace(replace(replace(replace(x, "a", x), "a", x), "a", x), "a", x)',
        'x + x + x + x + x',
        'join([x, x, x, x], x)',
        'join(split(x, "a"), x)',
        'pad(x, 65000, "é")',
    ],
)  # fmt: skip
def test_result_and_intermediate_texts_are_bounded(text: str) -> None:
    expression = compile_expression(text, {"x": Kind.TEXT})
    start = time.perf_counter()
    with pytest.raises(ExpressionFailed, match=r"more than|whole number"):
        expression.evaluate(Variables({"x": "ba" * 15_000}.get), RuleClock(NOW))
    assert time.perf_counter() - start < 1


def test_no_expression_blocks_other_threads() -> None:
    """A pattern that hangs Python's own matcher, and the largest inputs, leave other threads running."""
    gaps: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not stop.wait(0.005):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    texts = ['matches(first, "(a+)+$")', 'extract(first, "(a|aa)+$")', 'replace(first, "a", "b")', "slug(first)"]
    expressions = [compile_expression(text, KINDS) for text in texts]
    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for length in (40, 30_000):
            for expression in expressions:
                expression.evaluate(Variables({"first": "a" * length + "!"}.get), RuleClock(NOW))
    finally:
        stop.set()
        thread.join()
    assert max(gaps, default=0) < 0.5  # the goal is 0.1 on an idle machine; Python's matcher would take for ever


tokens = st.sampled_from(
    [*KINDS, *FUNCTIONS, "(", ")", "[", "]", ",", "+", "-", "*", ".", "==", "<", "in", "and", "or", "not", "if",
     "else", "none", "true", "1", "1.5", '"a"', "__class__", "lambda", ":", "{", "}", ":=", "**", "@"],
)  # fmt: skip


@given(st.lists(tokens, max_size=14).map(" ".join))
@settings(max_examples=300)
def test_any_text_is_refused_or_evaluated(text: str) -> None:
    """Fuzzing: nothing but `Invalid` at compilation and `ExpressionFailed` at evaluation, and only plain results."""
    try:
        expression = compile_expression(text, KINDS)
    except Invalid:
        return
    try:
        result = expression.evaluate(Variables(ADA.get), RuleClock(NOW)).value
    except ExpressionFailed:
        return
    plain = (str, int, bool, Decimal, date, datetime, bytes, type(None), UniqueBases)
    for each in result if isinstance(result, list) else [result]:
        assert isinstance(each, plain)


def test_namespace_of_compiled_code_has_no_builtins() -> None:
    expression: Expression = compile_expression("lower(first)", KINDS)
    names = expression._function.__globals__
    assert names["__builtins__"] == {}
    assert all(name.startswith(("_", "__")) for name in names)
    assert sys.modules["os"] not in names.values()
