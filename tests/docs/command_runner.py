"""Runs command lines, given as JSON on stdin, and replaces the argument ``ID`` by the id that was printed last.

The last line of the output is JSON: the exit codes, and the last id. The id of a command is the first one that it
prints: the object it created, or the newest of a list.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, TextIO

from tenuto.cli.command_tree import run

_UUID7 = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b")


class RecordingStream:
    """A stream that forwards all text to another stream and records it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main() -> None:
    request = json.load(sys.stdin)
    last_id: str = request["last_id"]
    exit_codes = []
    for arguments in request["commands"]:
        output = RecordingStream(sys.__stdout__ or sys.stdout)
        sys.stdout = output
        assert last_id or "ID" not in arguments, arguments
        exit_codes.append(run([last_id if argument == "ID" else argument for argument in arguments]))
        found = _UUID7.search(output.text)
        last_id = found[0] if found else last_id
    sys.stdout = sys.__stdout__ or sys.stdout
    sys.stdout.write("\n" + json.dumps({"exit_codes": exit_codes, "last_id": last_id}) + "\n")


if __name__ == "__main__":
    main()
