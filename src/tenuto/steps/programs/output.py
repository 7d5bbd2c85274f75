"""What a program writes: line by line into the attempt's log while it runs, and its last part for the result.

Made for anything: bytes that are no text, lines without an end, control characters, floods. What cannot be kept is
counted, never waited for, and the loop is not held up by it.
"""

from __future__ import annotations

import asyncio
import codecs
from typing import cast

from tenuto.jobs.attempt_log import AttemptLog

_LINE = 8 * 1024
_FREE_LINES = 10_000
_FREE_CHARACTERS = 1024 * 1024
"""So much is told to the log whole; of what comes in floods after that, the end of each piece."""
_LINES_OF_A_PIECE = 20
_FLOOD = 32 * 1024
_BREATH = 0.001
"""A pause after a large piece: others are on this loop too."""

_INERT = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "␡",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
}


def inert(text: str) -> str:
    """Text in which control characters are seen, and do nothing."""
    return text.replace("\r\n", "\n").translate(_INERT)


class Input(asyncio.BaseProtocol):
    """The stream a program reads from: given all at once, taken as the program likes, or not at all."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None

    def give(self, text: str) -> None:
        if self._transport is not None:
            self._transport.write(text.encode("utf-8", "surrogateescape"))
            self._transport.write_eof()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Output(asyncio.Protocol):
    """One of the two streams a program writes to."""

    def __init__(self, level: str, log: AttemptLog, keep: int) -> None:
        self.total = 0
        """How many bytes came."""
        self.ended = asyncio.get_running_loop().create_future()
        self._level = level
        self._log = log
        self._keep = keep
        self._tail: list[str] = []
        self._tail_size = 0
        self._cut = False
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._held = ""
        """What cannot be understood without what follows: half a line end, the beginning of a secret."""
        self._unended = ""
        self._lines = self._characters = 0
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)  # uvloop's is none by name

    def data_received(self, data: bytes) -> None:
        self.total += len(data)
        text = self._held + self._decode(data)
        text, self._held = (text[:-1], "\r") if text.endswith("\r") else (text, "")
        if self._log.mask is not None:
            text, held = self._log.mask.stream(text)
            self._held = held + self._held
        self._take(inert(text))
        if len(data) >= _FLOOD and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(_BREATH, self._go_on)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, error: Exception | None) -> None:
        text = self._held + self._decode(b"", True)
        self._take(inert(text if self._log.mask is None else self._log.mask.text(text)))
        if self._unended:
            self._log.line(self._level, self._unended)
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def tail(self) -> str:
        """The end of what was written, from the beginning of a line on."""
        text = "".join(self._tail)
        kept = text.encode()[-self._keep :].decode("utf-8", "ignore") if self._keep else ""
        if not self._cut and len(kept) == len(text):
            return kept
        return kept.partition("\n")[2] or kept

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _take(self, text: str) -> None:
        self._tail.append(text)
        self._tail_size += len(text)
        if self._tail_size > 2 * self._keep + _LINE:
            joined = "".join(self._tail)
            self._tail = [joined[-self._keep :] if self._keep else ""]
            self._tail_size, self._cut = len(self._tail[0]), True
        self._lines += text.count("\n")
        self._characters += len(text)
        text = self._unended + text
        if self._lines > _FREE_LINES or self._characters > _FREE_CHARACTERS:
            text = self._end_of(text)
        *whole, self._unended = text.split("\n")
        for line in whole:
            self._log.line(self._level, line)
        while len(self._unended) > _LINE:
            self._log.line(self._level, self._unended[:_LINE])
            self._unended = self._unended[_LINE:]

    def _end_of(self, text: str) -> str:
        """The last lines of a piece of a flood; how many went before them is said."""
        lines = text.count("\n")
        if lines > _LINES_OF_A_PIECE:
            self._log.line(self._level, f"… {lines - _LINES_OF_A_PIECE} lines left out …")
            return "\n".join(text.rsplit("\n", _LINES_OF_A_PIECE + 1)[1:])
        if len(text) > _LINES_OF_A_PIECE * _LINE:
            self._log.line(self._level, f"… {len(text) - _LINE} characters left out …")
            return text[-_LINE:]
        return text
