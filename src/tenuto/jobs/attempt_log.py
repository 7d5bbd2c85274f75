"""The log of one attempt, kept within a cap: the beginning and the end stay, the middle is cut and counted."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from tenuto.clock import SystemClock
from tenuto.jobs.redaction import Mask
from tenuto.logs import ABOUT
from tenuto.model import stored_values
from tenuto.model.tasks import Task

CAP = 256 * 1024
_LINE_CAP = 8 * 1024
_EMPTY: deque[str] = deque(maxlen=0)

_clock = SystemClock()
_logger = logging.getLogger("tenuto.job")


class AttemptLog:
    """The log of one attempt: `debug`, `info`, `warning`, `error`, and whatever it prints."""

    __slots__ = ("_cut", "_head", "_partial", "_size", "_tail", "_task", "mask")

    def __init__(self, task: Task) -> None:
        self._task = task
        self._head: list[str] | None = None
        self._tail: deque[str] = _EMPTY
        self._size = 0
        self._cut = 0
        self._partial = ""
        self.mask: Mask | None = None
        """What must not be seen in it, if anything."""

    def debug(self, message: str, *values: object) -> None:
        self._say(logging.DEBUG, message, values)

    def info(self, message: str, *values: object) -> None:
        self._say(logging.INFO, message, values)

    def warning(self, message: str, *values: object) -> None:
        self._say(logging.WARNING, message, values)

    def error(self, message: str, *values: object) -> None:
        self._say(logging.ERROR, message, values)

    def _say(self, level: int, message: str, values: tuple[object, ...]) -> None:
        try:
            text = str(message % values if values else message)
        except Exception:  # noqa: BLE001 — words that do not fit, or cannot be shown, are no reason to fail
            text = f"{shown(message)} ({', '.join(shown(value, repr) for value in values)})"
        text = self._hidden(text)
        self.line(logging.getLevelName(level), text)
        if _logger.isEnabledFor(level):
            told = stored_values.kept_text(text, _LINE_CAP)
            _logger.log(level, "%s", told, extra={ABOUT: self._task.about, "captured": True})

    def line(self, level: str, text: str) -> None:
        """Add a line, with the time and where it came from."""
        clean = stored_values.kept_text(self._hidden(text).rstrip("\n"), _LINE_CAP)
        line = f"{_clock.now():%H:%M:%S.%f} {level.lower():7} {clean}\n"
        if self._head is None:
            self._head, self._tail = [], deque()
        self._size += len(line)
        if not self._tail and self._size <= CAP // 2:
            self._head.append(line)
            return
        self._tail.append(line)
        self._keep_to_the_cap()

    def _keep_to_the_cap(self) -> None:
        """Cut the oldest of what may be cut. The newest line stays in any case."""
        while self._size > CAP and len(self._tail) > 1:
            self._size -= len(self._tail.popleft())
            self._cut += 1

    def printed(self, level: str, text: str) -> None:
        """Add what was printed, line by line; a line that is not ended yet waits for its end."""
        *whole, self._partial = (self._partial + text).split("\n")
        for line in whole:
            if line.strip():
                self.line(level, line)
        if len(self._partial) > _LINE_CAP:
            said, self._partial = (self._partial, "") if self.mask is None else self.mask.stream(self._partial)
            self.line(level, said)

    def _hidden(self, text: str) -> str:
        return text if self.mask is None else self.mask.text(text)

    def goes_on_from(self, earlier: str) -> None:
        """What the same attempt had said before it was put aside stands in front, in the room the beginning leaves."""
        if self._head is None:
            self._head, self._tail = [], deque()
        room = CAP // 2 - sum(map(len, self._head))
        kept = stored_values.kept_text(earlier, max(room, _LINE_CAP))
        self._head.insert(0, kept)
        self._size += len(kept)
        self._keep_to_the_cap()

    def text(self) -> str | None:
        """All that was kept, or None if nothing was said."""
        if self._partial:
            self.printed("print", "\n")
        if self._head is None:
            return None
        cut = f"… {self._cut} lines cut …\n" if self._cut else ""
        return "".join(self._head) + cut + "".join(self._tail)


def shown(value: object, how: Callable[[object], str] = str) -> str:
    """A value as text, also if it cannot be shown."""
    try:
        return how(value)
    except Exception:  # noqa: BLE001 — what it is shown by is others' code, and to speak of it must not fail a job
        return f"<{type(value).__name__} that cannot be shown>"
