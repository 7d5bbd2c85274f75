"""Rendered parts that several live pages share: rendered, hashed and compressed once for all viewers that see the same.

Live pages learn of a change at the same moment, and get the same model of the view cache. What a part of it shows
depends on the model, the address and the preferences and role of the viewer, not on the name.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fastapi import Response

from tenuto.api.application import COMPRESSION_LEVEL

MAX_ENTRIES = 200
MAX_ANSWERS = 20
"""Combinations of parts that are kept of one page."""
MIN_COMPRESSED_BYTES = 1024
_PASSING_TIME = re.compile(
    rb"(?P<keep><(?:time|span)[^>]* data-(?:age|since|until)[^>]*>)[^<]*|(?P<grow> data-grow)[^>]*"
)
"""What changes with time alone: texts that the browser updates, and attributes after ``data-grow``."""


class PartsAnswer:
    """The body of an answer with parts of a page, its entity tag, and its compressed form once a client asks for it."""

    __slots__ = ("_compressed", "body", "tag")

    def __init__(self, parts: Iterable[str]) -> None:
        self.body = "\n".join(parts).encode()
        self.tag = entity_tag(self.body)
        self._compressed: bytes | None = None

    def to_response(
        self, status: int, headers: Mapping[str, str], if_none_match: str | None, accept_encoding: str
    ) -> Response:
        """Return the parts, or 304 if the client has them."""
        all_headers = {**headers, "ETag": self.tag}
        if if_none_match == self.tag:
            return Response(status_code=304, headers=all_headers)
        all_headers["Content-Type"] = "text/html; charset=utf-8"
        if len(self.body) < MIN_COMPRESSED_BYTES or "gzip" not in accept_encoding:
            return Response(self.body, status, headers=all_headers)
        if self._compressed is None:
            self._compressed = gzip.compress(self.body, COMPRESSION_LEVEL, mtime=0)
        all_headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(self._compressed, status, headers=all_headers)


@dataclass(slots=True)
class Renderings:
    """The parts of one page that were rendered from the same objects."""

    sources: tuple[object, ...]
    parts: dict[str, str] = field(default_factory=dict)
    answers: dict[tuple[str, ...], PartsAnswer] = field(default_factory=dict)

    def answer(self, names: Sequence[str], render: Callable[[str], str], unshared: Container[str] = ()) -> PartsAnswer:
        """Return the parts with these names, which ``render`` makes. Unshared ones are rendered for each viewer."""
        wanted = tuple(names)
        found = self.answers.get(wanted)
        if found is not None and not any(name in unshared for name in wanted):
            return found
        texts = []
        for name in wanted:
            text = None if name in unshared else self.parts.get(name)
            if text is None:
                text = render(name)
                if name not in unshared:
                    self.parts[name] = text
            texts.append(text)
        made = PartsAnswer(texts)
        if len(self.answers) < MAX_ANSWERS and not any(name in unshared for name in wanted):
            self.answers[wanted] = made
        return made


class SharedRenderings:
    """The newest renderings by page and kind of viewer; those that were not used for the longest time are dropped."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, Renderings] = {}

    def find(self, key: Hashable, *sources: object) -> Renderings:
        """Return the renderings of exactly these objects: empty ones if the last ones were made of others."""
        entry = self._entries.pop(key, None)
        # guard: web.rendering_of_these_objects
        if entry is None or any(kept is not given for kept, given in zip(entry.sources, sources, strict=True)):
            entry = Renderings(sources)
        self._entries[key] = entry
        if len(self._entries) > MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        return entry


def entity_tag(body: bytes) -> str:
    """Return the tag of a rendering, which does not change with time alone."""
    stable = _PASSING_TIME.sub(lambda found: found["keep"] or found["grow"], body)
    return f'"{hashlib.sha256(stable).hexdigest()[:32]}"'
