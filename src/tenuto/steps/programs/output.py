"""The streams of a program: each line goes into the log of the attempt while the program runs; the end is stored.

Copes with bytes that are not text, lines without an end, control characters and very much output. Output that cannot be
stored is counted and never waited for, and it does not block the event loop.
"""

from __future__ import annotations

import asyncio
import codecs
from typing import cast

from tenuto.jobs.attempt_log import AttemptLog

_MAX_LINE_CHARACTERS = 8 * 1024
_FULL_LOG_LINES = 10_000
_FULL_LOG_CHARACTERS = 1024 * 1024
"""Up to so much is logged completely; after that only the last lines of each chunk."""
_LINES_PER_CHUNK = 20
_LARGE_CHUNK_BYTES = 32 * 1024
_PAUSE_SECONDS = 0.001
"""A pause after a large chunk, so that other code on the event loop can run."""

_VISIBLE_FORMS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "␡",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
}


def escape_control_characters(text: str) -> str:
    """Replace control characters by visible ones without effect."""
    return text.replace("\r\n", "\n").translate(_VISIBLE_FORMS)


class StdinWriter(asyncio.BaseProtocol):
    """Writes the standard input of a program, which may read it or not."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def write(self, text: str) -> None:
        if self._transport is not None:
            self._transport.write(text.encode("utf-8", "surrogateescape"))
            self._transport.write_eof()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class OutputReader(asyncio.Protocol):
    """Reads stdout or stderr of a program."""

    def __init__(self, level: str, log: AttemptLog, tail_limit: int) -> None:
        self.byte_count = 0
        self.ended = asyncio.get_running_loop().create_future()
        self._level = level
        self._log = log
        self._tail_limit = tail_limit
        self._tail: list[str] = []
        self._tail_size = 0
        self._is_cut = False
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._pending = ""
        """Text that needs the next chunk to be understood: half a line end, or the beginning of a secret."""
        self._partial_line = ""
        self._line_count = self._character_count = 0
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)  # that of uvloop does not inherit from it

    def data_received(self, data: bytes) -> None:
        self.byte_count += len(data)
        text = self._pending + self._decode(data)
        text, self._pending = (text[:-1], "\r") if text.endswith("\r") else (text, "")
        if self._log.redactor is not None:
            text, pending = self._log.redactor.redact_stream(text)
            self._pending = pending + self._pending
        self._add(escape_control_characters(text))
        if len(data) >= _LARGE_CHUNK_BYTES and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._resume)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        text = self._pending + self._decode(b"", True)
        redactor = self._log.redactor
        self._add(escape_control_characters(text if redactor is None else redactor.redact_text(text)))
        if self._partial_line:
            self._log.add_line(self._level, self._partial_line)
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def tail(self) -> str:
        """Return the end of the output, from the beginning of a line."""
        text = "".join(self._tail)
        end = text.encode()[-self._tail_limit :].decode("utf-8", "ignore") if self._tail_limit else ""
        if not self._is_cut and len(end) == len(text):
            return end
        return end.partition("\n")[2] or end

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _add(self, text: str) -> None:
        self._tail.append(text)
        self._tail_size += len(text)
        if self._tail_size > 2 * self._tail_limit + _MAX_LINE_CHARACTERS:
            joined = "".join(self._tail)
            self._tail = [joined[-self._tail_limit :] if self._tail_limit else ""]
            self._tail_size, self._is_cut = len(self._tail[0]), True
        self._line_count += text.count("\n")
        self._character_count += len(text)
        text = self._partial_line + text
        if self._line_count > _FULL_LOG_LINES or self._character_count > _FULL_LOG_CHARACTERS:
            text = self._shorten(text)
        *lines, self._partial_line = text.split("\n")
        for line in lines:
            self._log.add_line(self._level, line)
        while len(self._partial_line) > _MAX_LINE_CHARACTERS:
            self._log.add_line(self._level, self._partial_line[:_MAX_LINE_CHARACTERS])
            self._partial_line = self._partial_line[_MAX_LINE_CHARACTERS:]

    def _shorten(self, text: str) -> str:
        """Return the last lines of a chunk; the number of the others is logged."""
        line_count = text.count("\n")
        if line_count > _LINES_PER_CHUNK:
            self._log.add_line(self._level, f"… {line_count - _LINES_PER_CHUNK} lines left out …")
            return "\n".join(text.rsplit("\n", _LINES_PER_CHUNK + 1)[1:])
        if len(text) > _LINES_PER_CHUNK * _MAX_LINE_CHARACTERS:
            self._log.add_line(self._level, f"… {len(text) - _MAX_LINE_CHARACTERS} characters left out …")
            return text[-_MAX_LINE_CHARACTERS:]
        return text
