"""Operators and functions of expressions: pure, bounded in time and size; a missing input gives a missing result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

from tenuto_identity.model import dn
from tenuto_identity.model.rules.expression_values import (
    MAX_RESULT_BYTES,
    ClockDate,
    ClockInstant,
    EvaluationContext,
    ExpressionFailed,
    Kind,
    UniqueBases,
    bounded,
    plain,
)

MAX_LIST_ITEMS: Final = 10_000
MAX_DAYS: Final = 365 * 10_000
FILETIME_EPOCH: Final = datetime(1601, 1, 1, tzinfo=UTC)
FILETIME_NEVER: Final = frozenset({0, 2**63 - 1})
_BLANKS = re.compile(r"\s+")
_NOT_SLUG = re.compile(r"[^a-z0-9]+")

_TEXT = Kind.TEXT


# --- operators ------------------------------------------------------------------------------------------------------


def _is_missing(value: Any) -> bool:
    return value is None or value == []


def _is_present(value: Any) -> bool:
    return not _is_missing(value)


def _has(value: Any) -> bool:
    """Whether ``x or y`` gives x: false, no value and blank text do not count."""
    return value is not None and value is not False and value != "" and value != []


def _not(value: Any) -> bool | None:
    return None if value is None else not _has(value)


def _number(value: Any, what: str) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ExpressionFailed(f"{what} needs a number, not {_name_of(value)}")
    return value


def _in_range(value: int | Decimal) -> int | Decimal:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ExpressionFailed("the number does not fit into 64 bits")
    return value


def _add(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        return bounded(left + right)
    if isinstance(left, list) and isinstance(right, list):
        return _list(left + right)
    if isinstance(left, str) or isinstance(right, str):
        raise ExpressionFailed(f"+ cannot join {_name_of(left)} and {_name_of(right)}")
    return _in_range(_number(left, "+") + _number(right, "+"))


def _subtract(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    return _in_range(_number(left, "-") - _number(right, "-"))


def _negate(value: Any) -> Any:
    return None if value is None else _in_range(-_number(value, "-"))


def _list(items: list[Any]) -> list[Any]:
    if len(items) > MAX_LIST_ITEMS:
        raise ExpressionFailed(f"a list has more than {MAX_LIST_ITEMS:,} items")
    return [item for item in items if item is not None]


def _name_of(value: Any) -> str:
    match value:
        case bool():
            return "a boolean"
        case int() | Decimal():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case date() | ClockDate() | ClockInstant():
            return "a date"
        case bytes():
            return "a binary value"
        case None:
            return "no value"
        case _:
            return type(value).__name__


def _comparable(context: EvaluationContext, left: Any, right: Any) -> tuple[Any, Any]:
    """Return two values in forms that can be compared; dates and instants meet as dates of the zone."""
    kinds = _order_kind(left), _order_kind(right)
    if kinds[0] != kinds[1]:
        raise ExpressionFailed(f"{_name_of(left)} cannot be compared with {_name_of(right)}")
    if kinds[0] == "date" and isinstance(left, datetime) != isinstance(right, datetime):
        zone = ZoneInfo(context.clock.zone)
        left = left.astimezone(zone).date() if isinstance(left, datetime) else left
        right = right.astimezone(zone).date() if isinstance(right, datetime) else right
    return left, right


def _order_kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | Decimal():
            return "number"
        case date():
            return "date"
        case _:
            return type(value).__name__


_Test = Callable[[Any, Any], bool]
_TESTS: dict[str, _Test] = {
    "_equal": lambda a, b: bool(a == b),
    "_not_equal": lambda a, b: bool(a != b),
    "_less": lambda a, b: bool(a < b),
    "_less_or_equal": lambda a, b: bool(a <= b),
    "_greater": lambda a, b: bool(a > b),
    "_greater_or_equal": lambda a, b: bool(a >= b),
}


def _comparison(name: str) -> Callable[[EvaluationContext, Any, Any], bool]:
    test = _TESTS[name]
    orders = name not in ("_equal", "_not_equal")

    def compare(context: EvaluationContext, left: Any, right: Any) -> bool:
        """A comparison with a missing value is false."""
        if left is None or right is None:
            return False
        is_left_clock = isinstance(left, ClockDate | ClockInstant)
        is_right_clock = isinstance(right, ClockDate | ClockInstant)
        if is_left_clock or is_right_clock:
            if is_left_clock and is_right_clock:
                return _compare_plain(context, plain(context, left), plain(context, right))
            return _compare_with_clock(context, left, right, _compare_plain)
        return _compare_plain(context, left, right)

    def _compare_plain(context: EvaluationContext, left: Any, right: Any) -> bool:
        if orders and (isinstance(left, list | bytes) or isinstance(right, list | bytes)):
            raise ExpressionFailed(f"{_name_of(left)} has no order")
        return test(*_comparable(context, left, right))

    return compare


def _compare_with_clock(
    context: EvaluationContext, left: Any, right: Any, compare: Callable[[EvaluationContext, Any, Any], bool]
) -> bool:
    """Compare with ``today()`` or ``now()``, and note the instant at which the result changes."""
    clock_is_left = isinstance(left, ClockDate | ClockInstant)
    clock, other = (left, right) if clock_is_left else (right, left)

    def result_at(value: Any) -> bool:
        return compare(context, value, other) if clock_is_left else compare(context, other, value)

    result = result_at(clock.value)
    for instant, value in _turning_points(context, clock, other):
        if instant > context.clock.now and result_at(value) != result:
            context.note_change(instant)
            break
    return result


def _turning_points(context: EvaluationContext, clock: Any, other: Any) -> Iterator[tuple[datetime, Any]]:
    """Yield the instants, in order, at which a comparison with the clock may change, with the clock's value then."""
    offset = timedelta(days=clock.offset_days)
    # A date at the end of the calendar, such as 9999-12-31, has no day after it: that turning point never comes.
    with suppress(OverflowError):
        if isinstance(clock, ClockInstant) and isinstance(other, datetime):
            tick = timedelta(microseconds=1)
            yield other - offset, other
            yield other - offset + tick, other + tick
            return
        if isinstance(other, datetime):
            other = other.astimezone(ZoneInfo(context.clock.zone)).date()
        if not isinstance(other, date):
            return
        for step in (timedelta(), timedelta(days=1)):
            if isinstance(clock, ClockInstant):
                midnight = context.clock.midnight(other + step)
                yield midnight - offset, midnight
            else:
                yield context.clock.midnight(other + step - offset), other + step


def _in(context: EvaluationContext, left: Any, right: Any) -> bool:
    if left is None or right is None:
        return False
    if isinstance(right, str):
        if not isinstance(left, str):
            raise ExpressionFailed(f"in needs a text on the left of a text, not {_name_of(left)}")
        return left in right
    if not isinstance(right, list):
        raise ExpressionFailed(f"in needs a list, not {_name_of(right)}")
    left = plain(context, left)
    return any(left == plain(context, item) for item in right)


def _not_in(context: EvaluationContext, left: Any, right: Any) -> bool:
    return left is not None and right is not None and not _in(context, left, right)


OPERATORS: Final[dict[str, Callable[..., Any]]] = {
    "_add": _add,
    "_subtract": _subtract,
    "_negate": _negate,
    "_list": _list,
    "_decimal": Decimal,
    "_has": _has,
    "_not": _not,
    "_is_missing": _is_missing,
    "_is_present": _is_present,
    "_in": _in,
    "_not_in": _not_in,
    **{name: _comparison(name) for name in _TESTS},
}


# --- functions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Signature:
    """A function of expressions."""

    call: Callable[..., Any]
    usage: str
    kinds: tuple[Kind, ...]
    result: Kind
    least: int
    most: int
    pattern_argument: int | None = None

    def kind_of(self, index: int) -> Kind:
        """Return the type of an argument; the last one repeats."""
        return self.kinds[min(index, len(self.kinds) - 1)] if self.kinds else Kind.ANY


FUNCTIONS: Final[dict[str, Signature]] = {}


def _function(
    usage: str,
    kinds: Sequence[Kind],
    result: Kind,
    *,
    least: int | None = None,
    most: int | None = None,
    accepts_missing: bool = False,
    pattern_argument: int | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function. Unless it accepts missing values, one missing argument gives a missing result."""

    def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
        def call(context: EvaluationContext, *arguments: Any) -> Any:
            if not accepts_missing and None in arguments:
                return None
            for index, argument in enumerate(arguments):
                if type(argument) is not str or signature.kind_of(index) is not _TEXT:  # the common case needs no check
                    _check_kind(name, signature.kind_of(index), argument)
            return implementation(context, *arguments)

        name = usage.partition("(")[0]
        signature = Signature(
            call,
            usage,
            tuple(kinds),
            result,
            len(kinds) if least is None else least,
            len(kinds) if most is None else most,
            pattern_argument,
        )
        FUNCTIONS[name] = signature
        return implementation

    return register


_PYTHON_TYPES: Final[dict[Kind, tuple[type, ...]]] = {
    Kind.TEXT: (str,),
    Kind.NUMBER: (int, Decimal),
    Kind.INSTANT: (date, ClockDate, ClockInstant),
    Kind.LIST: (list,),
    Kind.BINARY: (bytes,),
    Kind.BOOLEAN: (bool,),
}


def _check_kind(name: str, kind: Kind, value: Any) -> None:
    expected = _PYTHON_TYPES.get(kind)
    if value is None or expected is None:
        return
    if not isinstance(value, expected) or (isinstance(value, bool) and kind is Kind.NUMBER):
        raise ExpressionFailed(f"{name} needs a {kind.value}, not {_name_of(value)}")


def _whole(value: int | Decimal, name: str, least: int, most: int) -> int:
    if value != int(value) or not least <= value <= most:
        raise ExpressionFailed(f"{name} needs a whole number from {least} to {most}, not {value}")
    return int(value)


@_function("lower(text)", [Kind.TEXT], Kind.TEXT)
def _lower(_context: EvaluationContext, text: str) -> str:
    return bounded(text.lower())


@_function("upper(text)", [Kind.TEXT], Kind.TEXT)
def _upper(_context: EvaluationContext, text: str) -> str:
    return bounded(text.upper())


@_function("title(text)", [Kind.TEXT], Kind.TEXT)
def _title(_context: EvaluationContext, text: str) -> str:
    return bounded(text.title())


@_function("trim(text)", [Kind.TEXT], Kind.TEXT)
def _trim(_context: EvaluationContext, text: str) -> str:
    return text.strip()


@_function("collapse(text)", [Kind.TEXT], Kind.TEXT)
def _collapse(_context: EvaluationContext, text: str) -> str:
    return _BLANKS.sub(" ", text).strip()


@_function("ascii(text)", [Kind.TEXT], Kind.TEXT)
def _ascii(_context: EvaluationContext, text: str) -> str:
    return to_ascii(text)


@_function("slug(text)", [Kind.TEXT], Kind.TEXT)
def _slug(_context: EvaluationContext, text: str) -> str | None:
    return _NOT_SLUG.sub("-", to_ascii(text).lower()).strip("-") or None


@_function("left(text, count)", [Kind.TEXT, Kind.NUMBER], Kind.TEXT)
def _left(_context: EvaluationContext, text: str, count: int | Decimal) -> str:
    return text[: _whole(count, "left", 0, MAX_RESULT_BYTES)]


@_function("right(text, count)", [Kind.TEXT, Kind.NUMBER], Kind.TEXT)
def _right(_context: EvaluationContext, text: str, count: int | Decimal) -> str:
    length = _whole(count, "right", 0, MAX_RESULT_BYTES)
    return text[-length:] if length else ""


@_function("pad(text, count, fill)", [Kind.TEXT, Kind.NUMBER, Kind.TEXT], Kind.TEXT)
def _pad(_context: EvaluationContext, text: str, count: int | Decimal, fill: str) -> str:
    if len(fill) != 1:
        raise ExpressionFailed(f"pad needs one character to fill with, not {fill!r}")
    return bounded(text.rjust(_whole(count, "pad", 0, MAX_RESULT_BYTES), fill))


@_function("replace(text, old, new)", [Kind.TEXT, Kind.TEXT, Kind.TEXT], Kind.TEXT)
def _replace(_context: EvaluationContext, text: str, old: str, new: str) -> str:
    if not old:
        raise ExpressionFailed("replace needs a text to look for, not a blank one")
    # The length is known before the text is built.
    # guard: identity.expression_size
    if len(text) + text.count(old) * (len(new) - len(old)) > MAX_RESULT_BYTES:
        raise ExpressionFailed(f"the result of replace has more than {MAX_RESULT_BYTES:,} characters")
    return text.replace(old, new)


@_function("split(text, separator)", [Kind.TEXT, Kind.TEXT], Kind.LIST)
def _split(_context: EvaluationContext, text: str, separator: str) -> list[str]:
    if not separator:
        raise ExpressionFailed("split needs a separator, not a blank text")
    return _list([part.strip() for part in text.split(separator, MAX_LIST_ITEMS + 1) if part.strip()])


@_function("join(list, separator)", [Kind.LIST, Kind.TEXT], Kind.TEXT)
def _join(_context: EvaluationContext, items: list[Any], separator: str) -> str | None:
    texts = [_text_of(item) for item in items]
    if sum(map(len, texts)) + len(separator) * len(texts) > MAX_RESULT_BYTES:
        raise ExpressionFailed(f"the result of join has more than {MAX_RESULT_BYTES:,} characters")
    return separator.join(texts) if texts else None


@_function("first(list)", [Kind.ANY], Kind.ANY)
def _first(_context: EvaluationContext, items: Any) -> Any:
    return items if not isinstance(items, list) else items[0] if items else None


@_function("sorted(list)", [Kind.LIST], Kind.LIST)
def _sorted(_context: EvaluationContext, items: list[Any]) -> list[Any]:
    if len({_order_kind(item) for item in items}) > 1:
        raise ExpressionFailed("sorted needs values of one type")
    return sorted(items)


@_function("matches(text, pattern)", [Kind.TEXT, Kind.TEXT], Kind.BOOLEAN, pattern_argument=1)
def _matches(_context: EvaluationContext, text: str, pattern: str) -> bool:
    return compile_pattern(pattern).search(text) is not None


@_function("extract(text, pattern)", [Kind.TEXT, Kind.TEXT], Kind.TEXT, pattern_argument=1)
def _extract(_context: EvaluationContext, text: str, pattern: str) -> str | None:
    found = compile_pattern(pattern).search(text)
    if found is None:
        return None
    result: str | None = found.group(1 if found.re.groups else 0)
    return result


@_function("coalesce(value, …)", [Kind.ANY], Kind.ANY, least=1, most=50, accepts_missing=True)
def _coalesce(_context: EvaluationContext, *values: Any) -> Any:
    return next((value for value in values if _is_present(value) and value != ""), None)


@_function("today()", [], Kind.INSTANT)
def _today(context: EvaluationContext) -> ClockDate:
    return ClockDate(context.clock.today())


@_function("now()", [], Kind.INSTANT)
def _now(context: EvaluationContext) -> ClockInstant:
    return ClockInstant(context.clock.now)


@_function("date(text)", [Kind.ANY], Kind.INSTANT, most=2)
def _date(context: EvaluationContext, value: Any, pattern: str | None = None) -> date | datetime:
    value = plain(context, value)
    if isinstance(value, datetime):
        return value.astimezone(ZoneInfo(context.clock.zone)).date()
    if isinstance(value, date):
        return value
    if not isinstance(value, str):
        raise ExpressionFailed(f"date needs a text, not {_name_of(value)}")
    try:
        if pattern is not None:
            return datetime.strptime(value.strip(), pattern).replace(tzinfo=UTC).date()
        return date.fromisoformat(value.strip()[:10])
    except ValueError:
        raise ExpressionFailed(f"{value!r:.60} is not a date") from None


@_function("format_date(date, pattern)", [Kind.INSTANT, Kind.TEXT], Kind.TEXT)
def _format_date(context: EvaluationContext, value: Any, pattern: str) -> str:
    value = plain(context, value)
    if len(pattern) > 100:
        raise ExpressionFailed("the pattern of format_date has more than 100 characters")
    if isinstance(value, datetime):
        value = value.astimezone(ZoneInfo(context.clock.zone))
    return bounded(value.strftime(pattern))


@_function("add_days(date, days)", [Kind.INSTANT, Kind.NUMBER], Kind.INSTANT)
def _add_days(_context: EvaluationContext, value: Any, days: int | Decimal) -> Any:
    count = _whole(days, "add_days", -MAX_DAYS, MAX_DAYS)
    moved = timedelta(days=count)
    try:
        match value:
            case ClockDate():
                return ClockDate(value.value + moved, value.offset_days + count)
            case ClockInstant():
                return ClockInstant(value.value + moved, value.offset_days + count)
            case _:
                return value + moved
    except OverflowError:
        raise ExpressionFailed("the date is outside of the years 1 to 9999") from None


@_function("filetime(date)", [Kind.INSTANT], Kind.NUMBER)
def _filetime(context: EvaluationContext, value: Any) -> int:
    value = plain(context, value)
    instant = value if isinstance(value, datetime) else context.clock.midnight(value)
    return (instant - FILETIME_EPOCH) // timedelta(microseconds=1) * 10


@_function("from_filetime(number)", [Kind.NUMBER], Kind.INSTANT)
def _from_filetime(_context: EvaluationContext, value: int | Decimal) -> datetime | None:
    if value in FILETIME_NEVER:
        return None
    try:
        return FILETIME_EPOCH + timedelta(microseconds=int(value) // 10)
    except OverflowError:
        raise ExpressionFailed(f"{value} is not a file time") from None


@_function('dn("cn", name, …, base)', [Kind.TEXT], Kind.TEXT, least=2, most=40)
def _dn(_context: EvaluationContext, *parts: str) -> str:
    pairs, base = (parts, None) if len(parts) % 2 == 0 else (parts[:-1], parts[-1])
    rdns = []
    for index in range(0, len(pairs), 2):
        if not pairs[index + 1].strip():
            raise ExpressionFailed(f"the value of {pairs[index]} in the DN is blank")
        if not dn.is_type(pairs[index]):
            raise ExpressionFailed(f"{pairs[index]!r:.40} is not an attribute type of a DN")
        rdns.append((dn.Pair(pairs[index], pairs[index + 1]),))
    try:
        base_rdns = dn.parse_base(base) if base is not None else ()
    except dn.InvalidDn as error:
        raise ExpressionFailed(str(error)) from None
    return bounded(dn.build([*rdns, *base_rdns]))


@_function("escape_dn(text)", [Kind.TEXT], Kind.TEXT)
def _escape_dn(_context: EvaluationContext, text: str) -> str:
    return bounded(dn.escape(text))


@_function("rdn(dn)", [Kind.TEXT], Kind.TEXT)
def _rdn(_context: EvaluationContext, text: str) -> str | None:
    try:
        return dn.first_rdn(text) or None
    except dn.InvalidDn as error:
        raise ExpressionFailed(str(error)) from None


@_function("parent(dn)", [Kind.TEXT], Kind.TEXT)
def _parent(_context: EvaluationContext, text: str) -> str | None:
    try:
        return dn.parent(text) or None
    except dn.InvalidDn as error:
        raise ExpressionFailed(str(error)) from None


@_function("bit(number, mask)", [Kind.NUMBER, Kind.NUMBER], Kind.BOOLEAN)
def _bit(_context: EvaluationContext, value: int | Decimal, mask: int | Decimal) -> bool:
    return bool(_bits(value, "bit") & _bits(mask, "bit"))


@_function("set_bit(number, mask)", [Kind.NUMBER, Kind.NUMBER], Kind.NUMBER)
def _set_bit(_context: EvaluationContext, value: int | Decimal, mask: int | Decimal) -> int:
    return _bits(value, "set_bit") | _bits(mask, "set_bit")


@_function("clear_bit(number, mask)", [Kind.NUMBER, Kind.NUMBER], Kind.NUMBER)
def _clear_bit(_context: EvaluationContext, value: int | Decimal, mask: int | Decimal) -> int:
    return _bits(value, "clear_bit") & ~_bits(mask, "clear_bit")


def _bits(value: int | Decimal, name: str) -> int:
    return _whole(value, name, -(2**63), 2**63 - 1)


@_function("phone_e164(text, country)", [Kind.TEXT, Kind.TEXT], Kind.TEXT, least=1)
def _phone_e164(_context: EvaluationContext, text: str, country: str | None = None) -> str:
    try:
        import phonenumbers
    except ImportError:
        raise ExpressionFailed("phone_e164 needs the package phonenumbers: install tenuto[identity]") from None
    try:
        number = phonenumbers.parse(text, country)
    except phonenumbers.NumberParseException as error:
        raise ExpressionFailed(f"{text!r:.40} is not a phone number: {error}") from None
    if not phonenumbers.is_possible_number(number):
        raise ExpressionFailed(f"{text!r:.40} is not a possible phone number")
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


@_function("length(value)", [Kind.ANY], Kind.NUMBER)
def _length(_context: EvaluationContext, value: Any) -> int:
    if not isinstance(value, str | list | bytes):
        raise ExpressionFailed(f"length needs a text or a list, not {_name_of(value)}")
    return len(value)


@_function("contains(value, part)", [Kind.ANY, Kind.ANY], Kind.BOOLEAN)
def _contains(context: EvaluationContext, value: Any, part: Any) -> bool:
    return _in(context, part, value)


@_function("starts_with(text, prefix)", [Kind.TEXT, Kind.TEXT], Kind.BOOLEAN)
def _starts_with(_context: EvaluationContext, text: str, prefix: str) -> bool:
    return text.startswith(prefix)


@_function("ends_with(text, suffix)", [Kind.TEXT, Kind.TEXT], Kind.BOOLEAN)
def _ends_with(_context: EvaluationContext, text: str, suffix: str) -> bool:
    return text.endswith(suffix)


@_function("unique(text, …)", [Kind.TEXT], Kind.TEXT, least=1, most=20, accepts_missing=True)
def _unique(_context: EvaluationContext, *bases: str | None) -> UniqueBases | None:
    found = tuple(dict.fromkeys(base.strip() for base in bases if base is not None and base.strip()))
    return UniqueBases(found) if found else None


def _text_of(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | Decimal):
        return str(value)
    raise ExpressionFailed(f"join needs texts, not {_name_of(value)}")


def to_ascii(text: str) -> str:
    """Return a text transliterated to ASCII."""
    if text.isascii():
        return text
    try:
        from anyascii import anyascii
    except ImportError:
        raise ExpressionFailed("ascii and slug need the package anyascii: install tenuto[identity]") from None
    return bounded(anyascii(text))


@lru_cache(maxsize=1000)
def compile_pattern(pattern: str) -> Any:
    """Compile a regular expression with RE2, which takes linear time; raise `ExpressionFailed`."""
    try:
        import re2  # type: ignore[import-untyped]  # the package has no types
    except ImportError:
        raise ExpressionFailed("matches and extract need the package google-re2: install tenuto[identity]") from None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        raise ExpressionFailed(reason.decode() if isinstance(reason, bytes) else str(reason)) from None
