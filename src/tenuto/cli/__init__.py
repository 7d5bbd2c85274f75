"""The command line: translate what was typed, call one verb of the app, translate the answer back.

Data goes to stdout, talk to stderr. No SQL here, no decisions, and nothing heavy is imported before a command runs:
help must come at once, and what a container's health check costs is paid every few seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _stand_in_for_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a glyph shows another instead of a traceback
    if words[:1] == ["health"]:
        from tenuto.cli.admin.health import at_once

        code = at_once(words[1:])
        if code is not None:
            raise SystemExit(code)
    from tenuto.cli.command_tree import run

    raise SystemExit(run(words))


def _stand_in_for_closed_streams() -> None:
    """A stream that was closed before we began is None, and its number would go to the next file or socket.

    Nothing comes from stdin then, and talk goes nowhere. An answer fails as it does on a full disk: stdout stands on
    what can only be read, so that whoever asked is told that nothing was written.
    """
    for name, mode, access in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode, encoding="utf-8"))
