"""Texts of an attempt for display: lines of its log, colours of terminal output, frames of a stack trace.

Foreign text stays text: colours become classes, other control sequences are removed, control characters made visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tenuto.model.validation import INVISIBLE_CHARACTERS
from tenuto.presentation.text_formats import count_noun

MAX_LINES = 500
MAX_SHOWN_LINES = 10_000
MAX_LINE_CHARACTERS = 16 * 1024
_CUT = re.compile(r"… (\d+) lines cut …")
MAX_DOCUMENT_CHARACTERS = 64 * 1024
_LINE = re.compile(r"(\d\d):(\d\d):(\d\d)\.(\d{3})\d* (\S+) +(.*)", re.DOTALL)
_COLOUR = re.compile("\x1b\\[([0-9;]*)m")
_SEQUENCE = re.compile("(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\\]|\x9d)[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?")
_COLOURS = {1: "bold", 2: "dim", 31: "red", 32: "green", 33: "yellow", 34: "blue", 35: "magenta", 36: "cyan"}
_FRAME = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
_LIBRARY_PATHS = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen", "/tenuto/")


@dataclass(frozen=True, slots=True)
class Segment:
    """Text in one colour."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log; without a time if it was not written by the attempt's log."""

    number: int
    at: datetime | None
    level: str
    segments: Sequence[Segment]


@dataclass(frozen=True, slots=True)
class LogText:
    """The last lines of a log."""

    lines: Sequence[LogLine]
    line_count: int
    dropped_count: int = 0
    """Lines that the worker left out of a long log."""

    @property
    def first_number(self) -> int:
        return self.lines[0].number if self.lines else 1

    @property
    def next_limit(self) -> int:
        """Number of lines to show together with older ones."""
        return min(len(self.lines) + MAX_LINES, MAX_SHOWN_LINES)


def parse_log(text: str | None, start: datetime | None, limit: int = MAX_LINES) -> LogText:
    """Parse the log of an attempt. Its lines have a time of day in UTC; the date follows from the start."""
    all_lines = (text or "").removesuffix("\n").split("\n") if text else []
    first = max(len(all_lines) - limit, 0)
    lines = [_parse_line(number, line, start) for number, line in enumerate(all_lines[first:], first + 1)]
    dropped = sum(int(found[1]) for line in all_lines if line.startswith("…") and (found := _CUT.fullmatch(line)))
    return LogText(lines, len(all_lines), dropped)


def _parse_line(number: int, line: str, start: datetime | None) -> LogLine:
    if len(line) > MAX_LINE_CHARACTERS:
        line = f"{line[:MAX_LINE_CHARACTERS]}… {len(line) - MAX_LINE_CHARACTERS:,} characters are in the raw text"
    found = _LINE.fullmatch(line)
    if found is None or start is None:
        return LogLine(number, None, "", tuple(colour_segments(line)))
    hour, minute, second, milliseconds = (int(part) for part in found.groups()[:4])
    try:
        at = start.replace(hour=hour, minute=minute, second=second, microsecond=milliseconds * 1000)
    except ValueError:
        return LogLine(number, None, "", tuple(colour_segments(line)))
    if at < start - timedelta(hours=12):  # after midnight
        at += timedelta(days=1)
    return LogLine(number, at, found[5], tuple(colour_segments(found[6])))


def colour_segments(text: str) -> Iterator[Segment]:
    """Split terminal output by its colours; all other control sequences are removed."""
    style, position = "", 0
    for found in _COLOUR.finditer(text):
        if clean := visible_text(text[position : found.start()]):
            yield Segment(clean, style)
        for code in (int(part or 0) for part in found[1].split(";") if len(part) < 4):
            style = (
                ""
                if code in (0, 39)
                else f"ansi-{_COLOURS[code % 60 if code >= 90 else code]}"
                if (code % 60 if code >= 90 else code) in _COLOURS
                else style
            )
        position = found.end()
    if clean := visible_text(text[position:]):
        yield Segment(clean, style)


def visible_text(text: str) -> str:
    """Remove control sequences and show other invisible characters by their code point."""
    return escape_invisible(_SEQUENCE.sub("", text))


def escape_invisible(text: str) -> str:
    """Show invisible characters by their code point."""
    return INVISIBLE_CHARACTERS.sub(
        lambda found: found.group() if found.group() in "\n\t" else f"\\x{ord(found.group()):02x}", text
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """Consecutive lines of a stack trace."""

    lines: Sequence[str]
    is_library: bool
    title: str = ""

    @property
    def library_text(self) -> str:
        """How many frames of libraries are folded; each has two lines."""
        return count_noun(len(self.lines) // 2 or 1, "library frame")


def parse_stack(stack: str | None) -> list[Frame]:
    """Split a stack trace into frames of the user's code and runs of library frames, which are shown folded."""
    frames: list[Frame] = []
    for line in visible_text(stack or "").splitlines():
        found = _FRAME.fullmatch(line)
        if found is not None:
            is_library = any(part in found["file"].replace("\\", "/") for part in _LIBRARY_PATHS)
            title = f"{found['file'].rpartition('/')[2]}:{found['line']} {found['function']}"
            if is_library and frames and frames[-1].is_library:
                frames[-1] = Frame((*frames[-1].lines, line), True, "library frames")
            else:
                frames.append(Frame((line,), is_library, "library frames" if is_library else title))
        elif frames and line.startswith("    "):
            frames[-1] = Frame((*frames[-1].lines, line), frames[-1].is_library, frames[-1].title)
        elif line.strip():
            frames.append(Frame((line,), False))
    return frames


def shorten_document(text: str) -> tuple[str, bool]:
    """Return a document that is not too long for a page, and whether it was cut."""
    return text[:MAX_DOCUMENT_CHARACTERS], len(text) > MAX_DOCUMENT_CHARACTERS
