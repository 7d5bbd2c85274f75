"""The command line: translate what was typed, call one verb of the app, translate the answer back.

Data goes to stdout, talk to stderr. No SQL here, no decisions, and nothing heavy is imported before a command runs:
help must come at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code."""
    from tenuto.cli.root import run

    raise SystemExit(run(arguments))
