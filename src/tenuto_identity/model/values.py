"""Data types of attributes, documents of values, and equality.

A document is ``{"attribute": [value, …]}`` in the form in which it is stored: text, integer and boolean as JSON values,
all other types as text in one canonical form. Values are sorted and unique; an attribute without a value is absent.
References are never part of a document.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from tenuto_identity.model import dn

Value: TypeAlias = str | int | bool
"""One value in its stored form."""
Document: TypeAlias = Mapping[str, Sequence[Value]]
"""Attribute name → values, sorted and unique. Absent: no value."""
PythonValue: TypeAlias = str | int | bool | Decimal | datetime | date | bytes
"""One value as expressions see it."""

MAX_VALUE_BYTES = 1024 * 1024
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
MAX_DECIMAL_DIGITS = 100
_BLANKS = re.compile(r"\s+")
_TRUE = frozenset({"true", "yes", "1", "t", "y", "on"})
_FALSE = frozenset({"false", "no", "0", "f", "n", "off"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_LDAP_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(?:(\d\d)(?:[.,](\d{1,6})\d*)?)?Z")


class DataType(StrEnum):
    """The type of an attribute."""

    TEXT = "text"
    INTEGER = "integer"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATETIME = "datetime"
    DATE = "date"
    BINARY = "binary"
    GUID = "guid"
    REFERENCE = "reference"


_TEXT = DataType.TEXT


class BadValue(ValueError):
    """A value does not fit the type of its attribute. The text names the value and what is expected."""


# --- canonical form -------------------------------------------------------------------------------------------------


def canonical_value(value: object, data_type: DataType) -> Value:
    """Return a value in its stored form, from text or from the Python type of the data type; raise `BadValue`."""
    if data_type is _TEXT:  # the common case
        return _canonical_text(value)
    match data_type:
        case DataType.TEXT:
            return _canonical_text(value)
        case DataType.INTEGER:
            return _canonical_integer(value)
        case DataType.DECIMAL:
            return _canonical_decimal(value)
        case DataType.BOOLEAN:
            return _canonical_boolean(value)
        case DataType.DATETIME:
            return _format_datetime(_parse_datetime(value))
        case DataType.DATE:
            return _parse_date(value).isoformat()
        case DataType.BINARY:
            return _canonical_binary(value)
        case DataType.GUID:
            return _canonical_guid(value)
        case DataType.REFERENCE:
            return _canonical_text(value)


def python_value(value: Value, data_type: DataType) -> PythonValue:
    """Return a stored value as the Python type that expressions see."""
    if data_type is _TEXT:  # the common case
        return value
    match data_type:
        case DataType.DECIMAL:
            return Decimal(str(value))
        case DataType.DATETIME:
            return datetime.fromisoformat(str(value))
        case DataType.DATE:
            return date.fromisoformat(str(value))
        case DataType.BINARY:
            return base64.b64decode(str(value))
        case _:
            return value


def canonical_values(values: Iterable[Value]) -> list[Value]:
    """Return values of one type sorted and unique."""
    found = values if isinstance(values, list | tuple) else list(values)
    if len(found) < 2:
        return list(found)
    return sorted(set(found), key=_sort_key)


def _sort_key(value: Value) -> tuple[int, int, str]:
    """Order for values of any mixture of types, so that a stored document of an earlier schema can be sorted too."""
    if isinstance(value, str):
        return (1, 0, value)
    return (0, int(value), "")


def canonical_document(document: Mapping[str, Iterable[Value]]) -> dict[str, list[Value]]:
    """Return a document with sorted, unique values and without empty attributes."""
    return {name: found for name in sorted(document) if (found := canonical_values(document[name]))}


def normalize_anchor(anchor: str) -> str:
    """Return the stored form of an anchor: NFC, blanks (also non-breaking) folded and trimmed."""
    if anchor.isascii():  # the common case; the code below gives the same result
        return " ".join(anchor.split())
    return _BLANKS.sub(" ", unicodedata.normalize("NFC", anchor)).strip()


def fold_key(value: Value) -> str:
    """Return the key that matching compares: NFKC, case folded, trimmed. Blank values have the key ``""``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.isascii():  # the common case; the code below gives the same result
        return " ".join(value.lower().split())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", str(value)).casefold())
    return _BLANKS.sub(" ", folded).strip()


def _canonical_text(value: object) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, datetime):
        text = _format_datetime(_parse_datetime(value))
    elif isinstance(value, date):
        text = value.isoformat()
    elif isinstance(value, int | Decimal):
        text = str(_canonical_decimal(value))
    else:
        raise BadValue(f"{_short(value)} is not a text")
    if "\x00" in text:
        raise BadValue(f"{_short(text)} contains a NUL character")
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise BadValue(f"{_short(text)} contains a lone surrogate") from None
    if size > MAX_VALUE_BYTES:
        raise BadValue(f"the value has {size:,} bytes, more than {MAX_VALUE_BYTES:,}")
    return text


def _canonical_integer(value: object) -> int:
    if isinstance(value, bool):
        raise BadValue(f"{_short(value)} is not an integer")
    if isinstance(value, str):
        text = value.strip()
        if not _INTEGER.fullmatch(text):
            raise BadValue(f"{_short(value)} is not an integer")
        number = int(text)
    elif isinstance(value, int):
        number = value
    elif isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value():
        number = int(value)
    else:
        raise BadValue(f"{_short(value)} is not an integer")
    if not MIN_INTEGER <= number <= MAX_INTEGER:
        raise BadValue(f"{_short(value)} does not fit into 64 bits")
    return number


def _canonical_decimal(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise BadValue(f"{_short(value)} is not a decimal number")
    try:
        number = Decimal(value.strip() if isinstance(value, str) else value)
    except InvalidOperation:
        raise BadValue(f"{_short(value)} is not a decimal number") from None
    if not number.is_finite() or abs(number.adjusted()) > MAX_DECIMAL_DIGITS or len(number.as_tuple().digits) > 100:
        raise BadValue(f"{_short(value)} is not a decimal number of at most {MAX_DECIMAL_DIGITS} digits")
    if number == 0:
        return "0"
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _canonical_boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        folded = value.strip().lower()
        if folded in _TRUE:
            return True
        if folded in _FALSE:
            return False
    raise BadValue(f"{_short(value)} is not a boolean (true or false)")


def _canonical_binary(value: object) -> str:
    if isinstance(value, bytes):
        data = value
    elif isinstance(value, str):
        try:
            data = base64.b64decode("".join(value.split()), validate=True)
        except (binascii.Error, ValueError):
            raise BadValue(f"{_short(value)} is not base64") from None
    else:
        raise BadValue(f"{_short(value)} is not binary data")
    if len(data) > MAX_VALUE_BYTES:
        raise BadValue(f"the value has {len(data):,} bytes, more than {MAX_VALUE_BYTES:,}")
    return base64.b64encode(data).decode("ascii")


def _canonical_guid(value: object) -> str:
    try:
        return str(UUID(str(value).strip()))
    except ValueError:
        raise BadValue(f"{_short(value)} is not a GUID") from None


def _parse_datetime(value: object) -> datetime:
    found: datetime | None = None
    if isinstance(value, datetime):
        found = value
    elif isinstance(value, date):
        found = datetime(value.year, value.month, value.day, tzinfo=UTC)
    elif isinstance(value, str):
        found = _read_datetime(value.strip())
    if found is None:
        raise BadValue(f"{_short(value)} is not a date and time (2026-01-31T08:00:00Z)")
    try:
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError:
        raise BadValue(f"{_short(value)} is outside of the years 1 to 9999") from None


def _read_datetime(text: str) -> datetime | None:
    try:
        if generalized := _LDAP_TIME.fullmatch(text):
            *parts, second, fraction = generalized.groups()
            micros = int((fraction or "0").ljust(6, "0"))
            year, month, day, hour, minute = (int(part) for part in parts)
            return datetime(year, month, day, hour, minute, int(second or 0), micros, tzinfo=UTC)
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _format_datetime(value: datetime) -> str:
    return value.isoformat().replace("+00:00", "Z")


def _parse_date(value: object) -> date:
    if isinstance(value, datetime):
        return value.astimezone(UTC).date() if value.tzinfo else value.date()
    if isinstance(value, date):
        return value
    if isinstance(value, str):
        text = value.strip()
        try:
            return date.fromisoformat(text)
        except ValueError:
            if (instant := _read_datetime(text)) is not None:
                return instant.date()
    raise BadValue(f"{_short(value)} is not a date (2026-01-31)")


def _short(value: object) -> str:
    return f"{value!r:.60}"


# --- equality -------------------------------------------------------------------------------------------------------


class EqualityKind(StrEnum):
    """How two values of an attribute are compared."""

    EXACT = "exact"
    IGNORE_CASE = "ignore_case"
    DN = "dn"
    NUMBER = "number"
    INSTANT = "instant"
    MASK = "mask"
    WRITE_ONLY = "write_only"


@dataclass(frozen=True, slots=True)
class Equality:
    """The comparison of an attribute of a system: which differences the server may make."""

    kind: EqualityKind = EqualityKind.EXACT
    precision_seconds: float = 1.0
    """For ``instant``: values that fall into the same interval of this length are equal."""
    bits: int = 0
    """For ``mask``: only these bits are compared."""
    equivalent: tuple[Value, ...] = ()
    """Values that mean the same, such as 0 and 9223372036854775807 of accountExpires."""

    def key(self, value: Value) -> Hashable:
        """Return a key that is the same for equal values. A value that the comparison cannot read is its own key."""
        if self.equivalent and value in self.equivalent:
            value = self.equivalent[0]
        match self.kind:
            case EqualityKind.EXACT | EqualityKind.WRITE_ONLY:
                return value
            case EqualityKind.IGNORE_CASE:
                return fold_key(value)
            case EqualityKind.DN:
                return dn.normalize_or_fold(str(value))
            case EqualityKind.NUMBER:
                return _number_key(value)
            case EqualityKind.INSTANT:
                return _instant_key(value, self.precision_seconds)
            case EqualityKind.MASK:
                number = _number_key(value)
                return int(number) & self.bits if isinstance(number, Decimal) and number % 1 == 0 else number

    def keys(self, values: Iterable[Value]) -> frozenset[Hashable]:
        """Return the keys of several values."""
        return frozenset(self.key(value) for value in values)

    def are_equal(self, left: Iterable[Value], right: Iterable[Value]) -> bool:
        """Return whether two sets of values are equal."""
        return self.keys(left) == self.keys(right)


EXACT = Equality()


def _number_key(value: Value) -> Hashable:
    try:
        return Decimal(str(value).strip()) if not isinstance(value, bool) else value
    except InvalidOperation:
        return value


def _instant_key(value: Value, precision_seconds: float) -> Hashable:
    found = _read_datetime(str(value))
    if found is None:
        return value
    elapsed = (found if found.tzinfo else found.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return elapsed // timedelta(seconds=max(precision_seconds, 0.000001))
