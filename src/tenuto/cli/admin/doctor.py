"""``tenuto doctor``: run all checks of an installation and print the findings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command
from tenuto.cli.formatting import format_duration, safe_text
from tenuto.cli.output import print_json, print_rich, styled_state
from tenuto.clock import monotonic_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tenuto.model.findings import Finding


@command(None, "doctor", "", "-o json | jq '.checks[] | select(.severity != \"ok\")'")
async def run_doctor(session: Session) -> int:
    """Check the installation for problems.

    Checks the server, the schema, the clock and the consistency of the stored data. It changes nothing. Its duration
    does not grow with the history: only the newest tasks are followed through their history. Exit code 1 if there is a
    problem; warnings do not count.
    """
    started_at = monotonic_seconds()
    progress = _ProgressLine(enabled=not session.quiet and sys.stderr.isatty())
    try:
        findings = await session.app.doctor(progress.show)
    finally:
        progress.clear()
    counts = {
        severity: sum(finding.severity == severity for finding in findings) for severity in ("problem", "warning")
    }
    if session.as_json:
        print_json({"healthy": counts["problem"] == 0, "checks": [_finding_document(finding) for finding in findings]})
    else:
        print_rich(*(part for finding in findings for part in _finding_lines(finding)))
        result = ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts.items() if count)
        duration = format_duration(monotonic_seconds() - started_at)
        session.print_message(f"\n{len(findings)} checks in {duration}: {result or 'no problems'}")
    return exit_codes.FAILED if counts["problem"] else exit_codes.OK


class _ProgressLine:
    """A line on stderr with the current check; erased before the result is printed."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._write("checking …")

    def show(self, finding: Finding, number: int, check_count: int) -> None:
        self._write(f"{number} of {check_count} checks: {finding.title}")

    def clear(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        if self._enabled:
            sys.stderr.write(f"\r\x1b[K{safe_text(text)[:78]}")
            sys.stderr.flush()


def _finding_document(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "title": finding.title,
        "severity": finding.severity,
        "details": finding.details,
        "meaning": finding.meaning,
        "remedy": finding.remedy,
    }


def _finding_lines(finding: Finding) -> list[RenderableType]:
    line = styled_state(finding.severity)
    line.pad_right(max(11 - len(line), 1))
    line.append(finding.title, style="" if finding.severity == "ok" else "bold")
    if finding.severity == "ok":
        line.append(f"  {safe_text('; '.join(finding.details))}" if finding.details else "", style="dim")
        return [line]
    parts: list[RenderableType] = [line]
    parts += [Padding(Text(safe_text(detail)), (0, 0, 0, 13)) for detail in finding.details]
    if finding.meaning:
        parts.append(Padding(Text(finding.meaning, style="dim"), (0, 0, 0, 11)))
    if finding.remedy:
        parts.append(Padding(Text(f"try: {safe_text(finding.remedy)}"), (0, 0, 0, 11)))
    return parts
