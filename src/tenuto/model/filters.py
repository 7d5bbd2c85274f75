"""The filter grammar of lists: text such as ``state:failed,cancelled started:>2h -tag:demo timeout`` as typed clauses.

Blanks join clauses by *and*, commas join values by *or*, ``-`` negates a clause, ``~`` means *contains*. A word without
a key is searched for in the texts of a record. Each resource declares its keys (`FilterSchema`); nothing else is
accepted. The module knows no SQL: `store.filter_sql` translates clauses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta, tzinfo
from difflib import get_close_matches
from enum import Enum, StrEnum, auto
from typing import Any
from uuid import UUID

from tenuto.errors import Invalid, quoted
from tenuto.model.triggers.zones import FIRST_YEAR, LAST_YEAR

MAX_FILTER_LENGTH = 500
"""In characters."""
DEFAULT_WINDOW = 100_000
"""Number of newest records that a clause without an index searches."""
MAX_WINDOW = 10_000_000
_MAX_CLAUSES = 30
MAX_ALTERNATIVES = 50
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_COMPARISONS = (">=", "<=", ">", "<", "~")
_SMALLEST_DURATION = timedelta(microseconds=1)
_YES, _NO = ("yes", "true"), ("no", "false")
_INSTANT_FORMS = "an age such as 2h or 7d, a date such as 2031-05-04, an instant, or today"
_DURATION_FORMS = "a duration such as 30s, 15m, 2h or 7d"


class KeyType(Enum):
    """Format of the values of a key."""

    TEXT = auto()
    CHOICE = auto()
    TAGS = auto()
    ID = auto()
    """An id, or its first characters."""
    NUMBER = auto()
    DURATION = auto()
    INSTANT = auto()
    FLAG = auto()


_RANGE_TYPES = (KeyType.NUMBER, KeyType.DURATION, KeyType.INSTANT)


class Match(Enum):
    """Comparison that a clause makes."""

    EQUALS = auto()
    CONTAINS = auto()
    RANGE = auto()


@dataclass(frozen=True, slots=True)
class Range:
    """From ``low``, inclusive, to ``high``, exclusive; None means no bound."""

    low: Any = None
    high: Any = None


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids from ``low`` to ``high``, both inclusive."""

    low: UUID
    high: UUID


Value = str | bool | Range | IdRange


@dataclass(frozen=True, slots=True)
class FilterKey:
    """A key by which a resource can be filtered."""

    name: str
    type: KeyType
    help: str
    """A noun phrase, for documentation and completion."""
    choices: tuple[str, ...] = ()
    is_windowed: bool = False
    """Whether no index supports the key, so that only the newest records are searched."""


@dataclass(frozen=True, slots=True)
class FilterSchema:
    """The keys of one resource."""

    noun: str
    """The records, in the plural."""
    keys: tuple[FilterKey, ...]
    time_key: str
    """The key that a start and an end of a period without a key refer to."""
    text_help: str
    """What a word without a key is searched in."""
    has_window: bool = True
    """Whether keys without an index search the newest records only."""

    def find(self, name: str) -> FilterKey | None:
        return next((key for key in self.keys if key.name == name), None)

    def get(self, name: str, *, field: str | None = None, position: int | None = None) -> FilterKey:
        """Return a key, or raise an error that names the nearest one."""
        found = self.find(name.lower())
        if found is not None:
            return found
        names = [key.name for key in self.keys]
        near = get_close_matches(name.lower(), names, 1, 0.5)
        remedy = f"use any of {', '.join(names)}; quote a text that contains a colon"
        raise _error(
            f"{self.noun} have no filter key {quoted(name, 60)}",
            code="filter.key.unknown",
            at=position,
            field=field or name[:60],
            remedy=f"did you mean {near[0]}? {remedy}" if near else remedy,
        )


@dataclass(frozen=True, slots=True)
class Clause:
    """One condition. Without a key, it is a text to search for."""

    key: FilterKey | None
    match: Match
    values: tuple[Value, ...]
    is_negated: bool = False
    text: str = ""
    """The clause as it was written."""

    @property
    def is_windowed(self) -> bool:
        return self.key is None or self.key.is_windowed or self.match is Match.CONTAINS


@dataclass(frozen=True, slots=True)
class Filter:
    """Clauses that a record must meet, all of them."""

    schema: FilterSchema
    clauses: tuple[Clause, ...] = ()
    window: int | None = DEFAULT_WINDOW
    """Number of newest records that windowed clauses search, counted among those that meet the other clauses; None
    means all."""

    @property
    def is_windowed(self) -> bool:
        return self.schema.has_window and any(clause.is_windowed for clause in self.clauses)

    @property
    def searched_count(self) -> int | None:
        """Number of newest records searched; None if all are."""
        return self.window if self.is_windowed else None

    def where(self, **values: Any) -> Filter:
        """Return this filter with further exact conditions; None means no condition."""
        added = [_equal_clause(self.schema.get(name), value) for name, value in values.items() if value is not None]
        return replace(self, clauses=(*self.clauses, *added))

    def within(self, name: str, low: Any = None, high: Any = None) -> Filter:
        """Return this filter with a range of one key, from ``low``, inclusive, to ``high``, exclusive."""
        if low is None and high is None:
            return self
        clause = Clause(self.schema.get(name), Match.RANGE, (Range(low, high),))
        return replace(self, clauses=(*self.clauses, clause))

    def containing(self, text: str) -> Filter:
        """Return this filter with a text to search for."""
        return replace(self, clauses=(*self.clauses, Clause(None, Match.CONTAINS, (text,))))

    def has_key(self, name: str) -> bool:
        return any(clause.key is not None and clause.key.name == name for clause in self.clauses)

    def bounds(self, name: str) -> Range:
        """Return bounds that all values of a key meet: a superset, for an index in the order of the key."""
        low = high = None
        for clause in self.clauses:
            if clause.key is None or clause.key.name != name or clause.is_negated or len(clause.values) > 1:
                continue
            value = clause.values[0]
            if isinstance(value, Range):
                low = value.low if low is None else low if value.low is None else max(low, value.low)
                high = value.high if high is None else high if value.high is None else min(high, value.high)
        return Range(low, high)

    def combine(self, other: Filter) -> Filter:
        """Return a filter with the clauses of both."""
        return replace(self, clauses=(*self.clauses, *other.clauses))

    def without_window(self) -> Filter:
        """Return this filter for a search of all records."""
        return replace(self, window=None)

    def describe(self) -> str:
        """Return the filter in plain English."""
        return ", ".join(_describe_clause(clause) for clause in self.clauses) or f"all {self.schema.noun}"


def parse_filter(
    schema: FilterSchema,
    text: str,
    now: datetime,
    *,
    zone: tzinfo | None,
    field: str = "q",
    window: int = DEFAULT_WINDOW,
) -> Filter:
    """Parse a filter. Dates without an offset are in ``zone``; None is the time zone of the machine."""
    if len(text) > MAX_FILTER_LENGTH:
        raise Invalid(
            f"the filter has {len(text):,} characters, more than {MAX_FILTER_LENGTH}",
            code="filter.too_long",
            field=field,
            remedy="use fewer conditions",
        )
    if "\x00" in text:
        raise _error("the filter contains a NUL character", code="filter.syntax", at=0, field=field, remedy="remove it")
    clauses = tuple(_Scanner(schema, text, now, zone, field).scan())
    if len(clauses) > _MAX_CLAUSES:
        problem = f"the filter has more than {_MAX_CLAUSES} conditions"
        raise Invalid(problem, code="filter.too_long", field=field, remedy="use fewer conditions")
    return Filter(schema, clauses, check_window(window))


def check_window(window: int, *, field: str = "window") -> int:
    """Return the number of newest records to search, or raise an error if it is out of range."""
    if not 1 <= window <= MAX_WINDOW:
        raise Invalid(
            f"window {window:,} is not between 1 and {MAX_WINDOW:,}", code="filter.window.out_of_range", field=field
        )
    return window


def parse_condition(
    schema: FilterSchema, name: str, text: str, now: datetime, *, zone: tzinfo | None, field: str
) -> Filter:
    """Parse the value of one key, such as ``failed,cancelled``, ``>=2h`` or ``2031-05-04``."""
    key, scanner = schema.get(name), _Scanner(schema, text, now, zone, field)
    return Filter(schema, (scanner.make_clause(key, [_Word(text, 0)], is_negated=False, text=text),))


def quote_value(text: str) -> str:
    """Return a text as a value in a filter."""
    is_plain = text and not any(char.isspace() or char in '",\\:' for char in text) and text[0] not in "-~<>"
    if is_plain and ".." not in text:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# --- scanning ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Word:
    """A value as written, and its position."""

    text: str
    position: int
    is_quoted: bool = False


@dataclass(slots=True)
class _Scanner:
    """Splits a filter into clauses and types their values."""

    schema: FilterSchema
    source: str
    now: datetime
    zone: tzinfo | None
    field: str
    at: int = dataclasses.field(default=0, init=False)

    def scan(self) -> Iterable[Clause]:
        while True:
            while self.at < len(self.source) and self.source[self.at].isspace():
                self.at += 1
            if self.at == len(self.source):
                return
            yield self._clause()

    def _clause(self) -> Clause:
        start, is_negated = self.at, False
        if self.source[self.at] == "-":
            self.at += 1
            is_negated = True
            if self.at == len(self.source) or self.source[self.at].isspace():
                raise self._fail("there is no condition after the minus sign", start, "write -tag:demo")
        name_start = self.at
        while self.at < len(self.source) and (self.source[self.at].isalnum() or self.source[self.at] == "_"):
            self.at += 1
        if self.at < len(self.source) and self.source[self.at] == ":" and self.at > name_start:
            key = self.schema.get(self.source[name_start : self.at], field=self.field, position=name_start)
            self.at += 1
            words = self._words(f"{key.name}:")
            return self.make_clause(key, words, is_negated, self.source[start : self.at])
        self.at = name_start
        [word] = self._words("", separator="")
        if not word.text.strip():
            raise self._fail("the text to search for is empty", word.position, "write a word, or key:value")
        return Clause(None, Match.CONTAINS, (word.text,), is_negated, self.source[start : self.at])

    def _words(self, after: str, separator: str = ",") -> list[_Word]:
        """Read values up to the next blank."""
        words: list[_Word] = []
        while True:
            words.append(self._word(after, separator))
            if len(words) > MAX_ALTERNATIVES:
                raise self._fail(f"there are more than {MAX_ALTERNATIVES} values", self.at, "use fewer")
            if self.at == len(self.source) or self.source[self.at] != separator:
                return words
            self.at += 1

    def _word(self, after: str, separator: str) -> _Word:
        start, parts, is_quoted = self.at, [], False
        while self.at < len(self.source):
            char = self.source[self.at]
            if char.isspace() or char == separator:
                break
            if char == '"':
                parts.append(self._quoted_part())
                is_quoted = True
            else:
                parts.append(char)
                self.at += 1
        text = "".join(parts)
        if not text and not is_quoted:
            raise self._fail(
                f"there is no value after {quoted(after)}" if after else "a value is missing",
                start,
                'write a value, or "" for an empty text',
            )
        return _Word(text, start, is_quoted)

    def _quoted_part(self) -> str:
        start = self.at
        parts: list[str] = []
        self.at += 1
        while self.at < len(self.source):
            char = self.source[self.at]
            self.at += 1
            if char == '"':
                return "".join(parts)
            if char == "\\" and self.at < len(self.source):
                char = self.source[self.at]
                self.at += 1
            parts.append(char)
        raise self._fail("a quotation mark is not closed", start, 'add " at the end of the value')

    def _fail(self, message: str, position: int, remedy: str) -> Invalid:
        return _error(message, code="filter.syntax", at=position, field=self.field, remedy=remedy)

    # --- values -------------------------------------------------------------------------------------------------------

    def make_clause(self, key: FilterKey, words: Sequence[_Word], is_negated: bool, text: str) -> Clause:
        """Return the clause of a key and its values."""
        comparison = next((sign for sign in _COMPARISONS if words[0].text.startswith(sign)), "")
        if comparison == "~":
            return self._contains_clause(key, words, is_negated, text)
        if key.type in _RANGE_TYPES:
            return Clause(key, Match.RANGE, tuple(self._range(key, word) for word in words), is_negated, text)
        if comparison and not words[0].is_quoted:
            problem = f"{key.name} cannot be compared by {comparison}"
            raise self._invalid(words[0], problem, f"write {key.name}:{self._example(key)}")
        parse: dict[KeyType, Callable[[FilterKey, _Word], Value]] = {
            KeyType.CHOICE: self._choice,
            KeyType.ID: self._id,
            KeyType.FLAG: self._flag,
        }
        make = parse.get(key.type)
        values = tuple(word.text if make is None else make(key, word) for word in words)
        return Clause(key, Match.EQUALS, values, is_negated, text)

    def _contains_clause(self, key: FilterKey, words: Sequence[_Word], is_negated: bool, text: str) -> Clause:
        if key.type not in (KeyType.TEXT, KeyType.TAGS):
            remedy = f"write {key.name}:{self._example(key)}"
            raise self._invalid(words[0], f"{key.name} is not a text, so ~ does not apply", remedy)
        values = [words[0].text[1:], *(word.text for word in words[1:])]
        if not all(values):
            raise self._invalid(words[0], "there is no text after ~", f"write {key.name}:~part")
        return Clause(key, Match.CONTAINS, tuple(values), is_negated, text)

    def _choice(self, key: FilterKey, word: _Word) -> str:
        value = word.text.lower().replace("-", "_").replace(" ", "_")
        if value in key.choices:
            return value
        near = get_close_matches(value, key.choices, 1, 0.5)
        remedy = f"use any of {', '.join(key.choices)}"
        problem = f"{key.name} {quoted(word.text, 60)} is unknown"
        raise self._invalid(word, problem, f"did you mean {near[0]}? {remedy}" if near else remedy)

    def _id(self, key: FilterKey, word: _Word) -> IdRange:
        digits = word.text.replace("-", "").lower()
        if not digits or len(digits) > 32 or any(digit not in "0123456789abcdef" for digit in digits):
            problem = f"{quoted(word.text, 60)} is not an id or the start of one"
            raise self._invalid(word, problem, "copy it from a list")
        return IdRange(UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f")))

    def _flag(self, key: FilterKey, word: _Word) -> bool:
        value = word.text.lower()
        if value in _YES or value in _NO:
            return value in _YES
        raise self._invalid(word, f"{key.name} {quoted(word.text, 60)} is neither yes nor no", "write yes or no")

    def _range(self, key: FilterKey, word: _Word) -> Range:
        """Parse ``>x``, ``<=x``, ``x..y`` or ``x``."""
        text = word.text
        comparison = next((sign for sign in _COMPARISONS if text.startswith(sign)), "")
        extent = {KeyType.NUMBER: self._number, KeyType.DURATION: self._duration, KeyType.INSTANT: self._instant}[
            key.type
        ]
        if comparison:
            at = extent(key, word, text[len(comparison) :])
            bounds = {
                ">": Range(at.high, None),
                ">=": Range(at.low, None),
                "<": Range(None, at.low),
                "<=": Range(None, at.high),
            }
            return bounds[comparison]
        low, dots, high = text.partition("..")
        if dots:
            if not low and not high:
                raise self._invalid(word, "the range has no bounds", f"write {key.name}:{self._example(key)}")
            return Range(
                extent(key, word, low).low if low else None,
                extent(key, word, high).high if high else None,
            )
        return extent(key, word, text, is_exact=True)

    def _number(self, key: FilterKey, word: _Word, text: str, is_exact: bool = False) -> Range:
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            problem = f"{key.name} {quoted(text, 60)} is not a whole number"
            raise self._invalid(word, problem, f"write {key.name}:>=3")
        return Range(int(text), int(text) + 1)

    def _duration(self, key: FilterKey, word: _Word, text: str, is_exact: bool = False) -> Range:
        found = _parse_duration(text)
        if found is None:
            raise self._invalid(word, f"{key.name} {quoted(text, 60)} is not a duration", f"write {_DURATION_FORMS}")
        if is_exact:
            problem = f"{key.name} {quoted(text, 60)} would have to be exact"
            raise self._invalid(word, problem, f"write {key.name}:>{text} or {key.name}:<{text}")
        return Range(found, found + _SMALLEST_DURATION)

    def _instant(self, key: FilterKey, word: _Word, text: str, is_exact: bool = False) -> Range:
        """Return the period that a text denotes: a day, a minute, a second, or an instant (an empty period)."""
        age = _parse_duration(text)
        if age is not None or text == "now":
            if is_exact:
                problem = f"{key.name} {quoted(text, 60)} is not a period"
                raise self._invalid(word, problem, f"write {key.name}:>{text} for the time since then")
            try:
                instant = self.now - (age or timedelta(0))
            except OverflowError:
                raise self._bad_instant(key, word, text) from None
            return Range(instant, instant)
        days = {"today": 0, "yesterday": 1}
        try:
            if text in days:
                local = self.now.astimezone(self.zone)
                return self._day(local.date() - timedelta(days=days[text]))
            if len(text) == len("2031-05-04"):
                return self._day(date.fromisoformat(text))
            start = datetime.fromisoformat(text)
            start = start if start.tzinfo is not None else self._localize(start)
        except (ValueError, OverflowError):
            raise self._bad_instant(key, word, text) from None
        if not FIRST_YEAR <= start.year <= LAST_YEAR:
            raise self._bad_instant(key, word, text)
        is_minute = len(text) >= len("2031-05-04T12:00") and text[13:14] == ":" and text[16:17] in ("", "Z", "+", "-")
        return Range(start, start + timedelta(minutes=1) if is_minute else start + timedelta(seconds=1))

    def _day(self, day: date) -> Range:
        if not FIRST_YEAR <= day.year <= LAST_YEAR:
            raise ValueError
        return Range(
            self._localize(datetime.combine(day, time())),
            self._localize(datetime.combine(day + timedelta(days=1), time())),
        )

    def _localize(self, local: datetime) -> datetime:
        return local.astimezone() if self.zone is None else local.replace(tzinfo=self.zone)

    def _bad_instant(self, key: FilterKey, word: _Word, text: str) -> Invalid:
        problem = f"{key.name} {quoted(text, 60)} is not an instant"
        return self._invalid(word, problem, f"write {_INSTANT_FORMS}")

    def _invalid(self, word: _Word, message: str, remedy: str) -> Invalid:
        return _error(message, code="filter.value.invalid", at=word.position, field=self.field, remedy=remedy)

    @staticmethod
    def _example(key: FilterKey) -> str:
        examples = {KeyType.ID: "01a8c3f0", KeyType.FLAG: "yes", KeyType.NUMBER: ">=3", KeyType.DURATION: ">30s"}
        if key.choices:
            return key.choices[0]
        return examples.get(key.type, ">2h" if key.type is KeyType.INSTANT else "value")


def _error(message: str, *, code: str, at: int | None, field: str, remedy: str) -> Invalid:
    place = "" if at is None else f" (character {at + 1} of the filter)"
    error = Invalid(f"{message}{place}", code=code, field=field, remedy=remedy)
    error.position = at
    return error


def _parse_duration(text: str) -> timedelta | None:
    """Parse ``90s`` or ``1h30m``; return None if the text is no duration."""
    total, rest = timedelta(0), text
    if not text or not text.isascii() or len(text) > 20:
        return None
    while rest:
        digits = 0
        while digits < len(rest) and (rest[digits].isdigit() or rest[digits] == "."):
            digits += 1
        letters = digits
        while letters < len(rest) and rest[letters].isalpha():
            letters += 1
        unit = _UNITS.get(rest[digits:letters])
        try:
            if unit is None:
                return None
            total += unit * float(rest[:digits])
        except (ValueError, OverflowError):
            return None
        rest = rest[letters:]
    return total


def _equal_clause(key: FilterKey, value: Any) -> Clause:
    values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
    typed: list[Value] = []
    for each in values:
        if isinstance(each, UUID):
            typed.append(IdRange(each, each))
        elif isinstance(each, StrEnum):
            typed.append(each.value)
        else:
            typed.append(each)
    if key.type is KeyType.NUMBER:
        return Clause(key, Match.RANGE, tuple(Range(each, each + 1) for each in typed))  # type: ignore[operator]
    return Clause(key, Match.EQUALS, tuple(typed))


# --- descriptions -----------------------------------------------------------------------------------------------------


def _describe_clause(clause: Clause) -> str:
    if clause.key is None:
        return f"{'not ' if clause.is_negated else ''}containing {quoted(clause.values[0], 80)}"
    name = clause.key.name.replace("_", " ")
    if clause.key.type is KeyType.FLAG:
        return f"{'' if clause.values[0] is not clause.is_negated else 'not '}{name}"
    if clause.match is Match.RANGE:
        texts = [_describe_range(value) for value in clause.values if isinstance(value, Range)]
        return f"{name} {'not ' if clause.is_negated else ''}{' or '.join(texts)}"
    verb = {Match.EQUALS: ("is", "is not"), Match.CONTAINS: ("contains", "does not contain")}[clause.match]
    texts = [_describe_value(value) for value in clause.values]
    return f"{name} {verb[clause.is_negated]} {' or '.join(texts)}"


def _describe_value(value: Value) -> str:
    if isinstance(value, IdRange):
        return str(value.low) if value.low == value.high else f"{_common_prefix(value)}…"
    return quoted(value, 80) if isinstance(value, str) and not value.replace("_", "").isalnum() else str(value)


def _common_prefix(ids: IdRange) -> str:
    low, high = str(ids.low), str(ids.high)
    length = next(place for place, (one, other) in enumerate(zip(low, high, strict=True)) if one != other)
    return low[:length].rstrip("-")


def _describe_range(range: Range) -> str:
    if isinstance(range.low, int) or isinstance(range.high, int):
        if range.low is not None and range.high == range.low + 1:
            return f"is {range.low}"
        parts = [
            f"at least {range.low}" if range.low is not None else "",
            f"at most {range.high - 1}" if range.high is not None else "",
        ]
    elif isinstance(range.low, timedelta) or isinstance(range.high, timedelta):
        parts = [
            f"more than {_seconds(range.low)}" if range.low is not None else "",
            f"less than {_seconds(range.high)}" if range.high is not None else "",
        ]
    else:
        parts = [
            f"from {range.low.isoformat(timespec='seconds')}" if range.low is not None else "",
            f"before {range.high.isoformat(timespec='seconds')}" if range.high is not None else "",
        ]
    return " and ".join(part for part in parts if part)


def _seconds(duration: timedelta) -> str:
    return f"{round(duration.total_seconds(), 3):g} s"
