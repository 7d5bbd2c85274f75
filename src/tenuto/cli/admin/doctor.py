"""``tenuto doctor``: everything that must hold, looked at."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command
from tenuto.cli.formatting import plain, span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.diagnostics.doctor import Finding


def add_to(root: typer.Typer) -> None:
    """Put the command into the tree."""
    command(root, "doctor", "tenuto doctor", "tenuto doctor -o json | jq '.checks[] | select(.verdict != \"ok\")'")(
        doctor
    )


async def doctor(session: Session) -> int:
    """Look for anything wrong.

    Looks at the server, the schema, the clock, and at every rule the work must keep. It changes nothing and is
    quick, however long the past is: histories are followed for the newest tasks. Exit 1 if there is a problem; a
    warning is none.
    """
    from tenuto.cli.output import show, show_json
    from tenuto.clock import steady

    began = steady()
    progress = _Progress(shown=not session.quiet and sys.stderr.isatty())
    try:
        findings = await session.app.doctor(progress.told)
    finally:
        progress.clear()
    problems = sum(finding.verdict == "problem" for finding in findings)
    if session.as_json:
        show_json({"healthy": problems == 0, "checks": findings})
    else:
        show(*(part for finding in findings for part in _lines(finding)))
        counts = {
            verdict: sum(finding.verdict == verdict for finding in findings) for verdict in ("problem", "warning")
        }
        words = ", ".join(f"{count} {word}{'s' if count > 1 else ''}" for word, count in counts.items() if count)
        session.say(f"\n{len(findings)} checks in {span(steady() - began)}: {words or 'all is well'}")
    return exit_codes.FAILED if problems else exit_codes.OK


class _Progress:
    """One line on stderr that says how far it has come; it is gone when the answer is there."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown
        self._write("looking …")

    def told(self, finding: Finding, number: int, of: int) -> None:
        self._write(f"{number} of {of} checks: {finding.title}")

    def clear(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{plain(text)[:78]}")
            sys.stderr.flush()


def _lines(finding: Finding) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    from tenuto.cli.output import state

    line = state(finding.verdict)
    line.pad_right(max(11 - len(line), 1))
    line.append(finding.title, style="" if finding.verdict == "ok" else "bold")
    if finding.verdict == "ok":
        line.append(f"  {plain('; '.join(finding.details))}" if finding.details else "", style="dim")
        return [line]
    parts: list[RenderableType] = [line]
    parts += [Padding(Text(plain(detail)), (0, 0, 0, 13)) for detail in finding.details]
    if finding.means:
        parts.append(Padding(Text(finding.means, style="dim"), (0, 0, 0, 11)))
    if finding.remedy:
        parts.append(Padding(Text(f"try: {plain(finding.remedy)}"), (0, 0, 0, 11)))
    return parts
