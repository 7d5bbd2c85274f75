"""Runs command lines one after the other, given as JSON on stdin, with the id of the work seen last in place of ``ID``.

The last line printed is JSON: the exit codes, and the id seen last. An id is the first one a command shows: what was
just asked for, or the newest of a list.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, TextIO

from tenuto.cli.command_tree import run

_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b")


class Overheard:
    """A stream that passes everything on, and remembers it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.said = ""

    def write(self, text: str) -> int:
        self.said += text
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main() -> None:
    given = json.load(sys.stdin)
    last: str = given["last"]
    codes = []
    for arguments in given["lines"]:
        heard = Overheard(sys.__stdout__ or sys.stdout)
        sys.stdout = heard
        assert last or "ID" not in arguments, arguments
        codes.append(run([last if word == "ID" else word for word in arguments]))
        found = _ID.search(heard.said)
        last = found[0] if found else last
    sys.stdout = sys.__stdout__ or sys.stdout
    sys.stdout.write("\n" + json.dumps({"codes": codes, "last": last}) + "\n")


if __name__ == "__main__":
    main()
