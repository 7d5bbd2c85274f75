"""Building search filters (RFC 4515). Nothing else in the connector makes filters from values.

DNs are built by `tenuto_identity.model.dn`.
"""

from __future__ import annotations

import re

from tenuto_identity.model import dn

_PLAIN = re.compile(r"[^\\*()\x00-\x1f\x7f-\uffff]*\Z")
EVERYTHING = "(objectClass=*)"


def escape(value: str | bytes) -> str:
    """Return a value escaped for a filter. Bytes that are not printable ASCII are escaped, too."""
    if isinstance(value, str):
        if _PLAIN.match(value):
            return value
        value = value.encode("utf-8", "surrogatepass")
    return "".join(chr(each) if 0x20 <= each < 0x7F and each not in b"\\*()" else f"\\{each:02x}" for each in value)


def equal(attribute: str, value: str | bytes) -> str:
    """Return the filter for one value of an attribute."""
    return f"({_checked(attribute)}={escape(value)})"


def at_least(attribute: str, value: str | bytes) -> str:
    """Return the filter for values from this one on."""
    return f"({_checked(attribute)}>={escape(value)})"


def all_of(*parts: str) -> str:
    """Return the conjunction of filters."""
    return parts[0] if len(parts) == 1 else f"(&{''.join(parts)})"


def any_of(*parts: str) -> str:
    """Return the disjunction of filters."""
    return parts[0] if len(parts) == 1 else f"(|{''.join(parts)})"


def negated(part: str) -> str:
    """Return the negation of a filter."""
    return f"(!{part})"


def check(text: str) -> None:
    """Raise `ValueError` unless a filter from the settings is one filter in parentheses."""
    depth, ends = 0, []
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth <= 0:
            ends.append(index)
    if not text.startswith("(") or ends != [len(text) - 1] or "\x00" in text or len(text) < 4:
        raise ValueError(f"{text!r:.80} is not a filter; write it in parentheses: (employeeType=staff)")


def _checked(attribute: str) -> str:
    if not dn.is_type(attribute.partition(";")[0]):
        raise ValueError(f"{attribute!r:.80} is not the name of an attribute")
    return attribute
