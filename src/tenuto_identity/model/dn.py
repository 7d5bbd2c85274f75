"""Distinguished names by RFC 4514: parsing, escaping, normal form, parent and depth.

A DN is parsed into RDNs; an RDN is one or more pairs of attribute type and value. Nothing else in the package splits or
builds DNs from text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

_TYPE = re.compile(r"(?:[A-Za-z][A-Za-z0-9-]*|[0-9]+(?:\.[0-9]+)*)\Z")
_BLANKS = re.compile(r"\s+")
_SPECIAL = re.compile(r'[\\"+;]')
_NEEDS_ESCAPE = re.compile(r"""[,+"\\<>;=\x00-\x1f\x7f]|\A[ #]| \Z""")
_ESCAPED = set(',+"\\<>;=')
_HEX = set("0123456789abcdefABCDEF")


class InvalidDn(ValueError):
    """A text is not a distinguished name."""


class Pair(NamedTuple):
    """One attribute type and value of an RDN; the value is without escapes."""

    type: str
    value: str


Rdn = tuple[Pair, ...]
"""One level of a DN; several pairs if it is multi-valued."""


def parse(text: str) -> tuple[Rdn, ...]:
    """Return the RDNs of a DN, the most specific first; raise `InvalidDn`."""
    if not text.strip():
        return ()
    rdns: list[Rdn] = []
    pairs: list[Pair] = []
    for part, separator in _split(text):
        pairs.append(_parse_pair(part, text))
        if separator != "+":
            rdns.append(tuple(pairs))
            pairs = []
    return tuple(rdns)


def build(rdns: Sequence[Rdn]) -> str:
    """Return the text of RDNs, escaped."""
    return ",".join("+".join(f"{pair.type}={escape(pair.value)}" for pair in rdn) for rdn in rdns)


def escape(value: str) -> str:
    """Return an attribute value escaped for a DN."""
    if not _NEEDS_ESCAPE.search(value):
        return value
    last = len(value) - 1
    escaped: list[str] = []
    for index, character in enumerate(value):
        if character in _ESCAPED or (character in " #" and index == 0) or (character == " " and index == last):
            escaped.append("\\" + character)
        elif character < " " or character == "\x7f":
            escaped.append(f"\\{ord(character):02x}")
        else:
            escaped.append(character)
    return "".join(escaped)


def is_type(name: str) -> bool:
    """Return whether a text is an attribute type, such as ``cn`` or an OID."""
    return _TYPE.match(name) is not None


@lru_cache(maxsize=1000)
def parse_base(text: str) -> tuple[Rdn, ...]:
    """Parse a DN that occurs in many names, such as that of a container; raise `InvalidDn`."""
    return parse(text)


def normalize(text: str) -> str:
    """Return a form that is the same for DNs that a directory treats as equal; raise `InvalidDn`.

    Attribute types in lower case, values with folded case and spaces, multi-valued RDNs sorted, escapes resolved.
    """
    if (plain := _split_plain(text)) and (container := _read_container(plain[1])):
        return f"{build([_normalize_rdn((_parse_pair(plain[0], text),))])},{container.normal}"
    return build([_normalize_rdn(rdn) for rdn in parse(text)])


def normalize_or_fold(text: str) -> str:
    """Return the normal form of a DN, or the folded text if it is not a DN."""
    try:
        return normalize(text)
    except InvalidDn:
        return _fold(text)


def parent(text: str) -> str:
    """Return the DN of the parent entry; ``""`` for a DN of one level."""
    if (plain := _split_plain(text)) and (container := _read_container(plain[1])):
        _parse_pair(plain[0], text)  # it may not be valid
        return container.text
    return build(parse(text)[1:])


def first_rdn(text: str) -> str:
    """Return the text of the most specific RDN."""
    return build(parse(text)[:1])


def depth(text: str) -> int:
    """Return the number of levels; 0 for a text that is not a DN."""
    try:
        if (plain := _split_plain(text)) and (container := _read_container(plain[1])):
            _parse_pair(plain[0], text)  # it may not be valid
            return 1 + container.depth
        return len(parse(text))
    except InvalidDn:
        return 0


def is_below(text: str, ancestor: str) -> bool:
    """Return whether a DN is the ancestor or an entry below it."""
    try:
        found, above = parse(normalize(text)), parse(normalize(ancestor))
    except InvalidDn:
        return False
    return len(found) >= len(above) and found[len(found) - len(above) :] == above


# Most DNs have nothing escaped, and their containers occur in many names. Measured (`ldap`, full import): parsing every
# level of every DN took a third of the time of reading. `test_short_paths_…` compares them with the general code.


def _split_plain(text: str) -> tuple[str, str] | None:
    """Return the first level and the rest of a DN; None if the general code must decide where the first level ends."""
    first, comma, rest = text.partition(",")
    return (first, rest) if comma and rest.strip() and not _SPECIAL.search(text) else None


class _Container(NamedTuple):
    """Facts about the rest of a DN after its first level, computed once for all DNs below it."""

    text: str
    normal: str
    depth: int


@lru_cache(maxsize=10_000)
def _read_container(text: str) -> _Container | None:
    """Return the container of a DN; None if it is not valid."""
    try:
        rdns = parse(text)
    except InvalidDn:
        return None
    return _Container(build(rdns), build([_normalize_rdn(rdn) for rdn in rdns]), len(rdns))


def _normalize_rdn(rdn: Rdn) -> Rdn:
    if len(rdn) == 1:
        return (Pair(rdn[0].type.lower(), _fold(rdn[0].value)),)
    return tuple(sorted(Pair(pair.type.lower(), _fold(pair.value)) for pair in rdn))


def _fold(value: str) -> str:
    if value.isascii():  # the common case; the code below gives the same result
        return " ".join(value.lower().split())
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", value).casefold())
    return _BLANKS.sub(" ", folded).strip()


def _split(text: str) -> list[tuple[str, str]]:
    """Return the pairs as raw text, each with the separator after it (``,`` ``;`` ``+`` or nothing at the end)."""
    if "\\" not in text and '"' not in text and "+" not in text and ";" not in text:
        names = text.split(",")
        return [*((name, ",") for name in names[:-1]), (names[-1], "")]
    parts: list[tuple[str, str]] = []
    start = index = 0
    quoted = False
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 2
            continue
        if character == '"':
            quoted = not quoted
        elif not quoted and character in ",;+":
            parts.append((text[start:index], "," if character == ";" else character))
            start = index + 1
        index += 1
    if quoted:
        raise InvalidDn(f"{text!r:.80} is not a DN: a quotation mark is not closed")
    parts.append((text[start:], ""))
    return parts


def _parse_pair(part: str, whole: str) -> Pair:
    name, separator, raw = part.partition("=")
    name = name.strip()
    if not separator or not _TYPE.match(name):
        raise InvalidDn(f"{whole!r:.80} is not a DN: {part.strip()!r:.40} is not TYPE=VALUE")
    return Pair(name, _unescape(raw, whole))


def _unescape(raw: str, whole: str) -> str:
    raw = raw.lstrip(" ")
    if "\\" not in raw and '"' not in raw and not raw.startswith("#"):
        return raw.rstrip(" ")
    if raw.startswith("#"):
        try:
            return "#" + bytes.fromhex(raw[1:].strip()).hex()
        except ValueError:
            raise InvalidDn(f"{whole!r:.80} is not a DN: {raw!r:.40} is not a hexadecimal value") from None
    data = bytearray()
    kept = 0
    """Length up to the last character that trailing blanks may not be cut from."""
    index = 0
    while index < len(raw):
        character = raw[index]
        if character == '"':
            kept = len(data)
        elif character != "\\":
            data += character.encode("utf-8", "surrogatepass")
            if character != " ":
                kept = len(data)
        else:
            pair = raw[index + 1 : index + 3]
            if len(pair) == 2 and set(pair) <= _HEX:
                data.append(int(pair, 16))
                index += 1
            elif pair:
                data += pair[0].encode("utf-8", "surrogatepass")
            else:
                raise InvalidDn(f"{whole!r:.80} is not a DN: it ends with a backslash")
            kept = len(data)
            index += 1
        index += 1
    try:
        return bytes(data[:kept]).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidDn(f"{whole!r:.80} is not a DN: its escaped bytes are not UTF-8") from None
