"""Command line: parse the arguments, call one operation of the app, print its result.

Results go to stdout, messages and errors to stderr. No SQL and no decisions here. Command modules are imported when
their command is called, because help must be fast and containers run the health check every few seconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # characters that the terminal lacks are replaced
    if arguments[:1] == ["health"]:
        from tenuto.cli.admin.health import run_without_command_tree

        code = run_without_command_tree(arguments[1:])
        if code is not None:
            raise SystemExit(code)
    from tenuto.cli.command_tree import run

    raise SystemExit(run(arguments))


def _replace_closed_streams() -> None:
    """Replace standard streams that were closed before the start; their descriptors would go to the next file opened.

    stdin is empty then, and messages are discarded. stdout is opened read-only, so that writing a result fails with an
    error instead of being lost.
    """
    for name, mode, access in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode, encoding="utf-8"))
