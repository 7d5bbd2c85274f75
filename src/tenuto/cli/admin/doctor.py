"""``tenuto doctor``: run all checks of an installation and print the findings."""

from __future__ import annotations

from typing import Annotated

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tenuto.cli import exit_codes
from tenuto.cli.command import Session, command
from tenuto.cli.lists import print_csv
from tenuto.cli.output import ProgressLine, print_json
from tenuto.cli.parameters import flag
from tenuto.cli.tables import print_rich, styled_state
from tenuto.clock import monotonic_seconds
from tenuto.model.doctor_findings import Finding, Severity
from tenuto.presentation.admin_views import FINDINGS
from tenuto.presentation.text_formats import count_noun, format_duration, safe_text


@command(None, "doctor", "", "--problems", "--problems -o json | jq .checks[].title", is_list=True, app_use="checks")
async def run_doctor(
    session: Session,
    problems: Annotated[bool, flag("Only problems, warnings and notes.", "--problems")] = False,
) -> int:
    """Check the installation for problems.

    Checks the server, the schema, the clock and the consistency of the stored data. It changes nothing. Its duration
    does not grow with the history: only the newest tasks are followed through their history. It also reports
    everything that `tenuto status` lists under "Needs attention". Exit code 1 if there is a problem (a guarantee is
    broken), 5 if there are warnings (work may be late or at risk); notes (paused by an operator, dead letters, repairs)
    do not change it.
    """
    started_at = monotonic_seconds()
    progress = ProgressLine(quiet=session.quiet)
    progress.show("checking …")
    try:
        findings = await session.app.doctor(
            lambda finding, number, count: progress.show(f"{number} of {count} checks: {finding.title}")
        )
    finally:
        progress.clear()
    severities = [str(finding.severity) for finding in findings]
    counts = {name: severities.count(name) for name in ("problem", "warning", "note")}
    shown = [finding for finding in findings if not problems or finding.severity is not Severity.OK]
    if session.as_json:
        print_json({"healthy": counts["problem"] == 0, "checks": shown})
    elif session.output == "csv":
        print_csv(FINDINGS, shown)
    else:
        if shown:
            print_rich(*(part for finding in shown for part in _finding_lines(finding)))
        result = ", ".join(count_noun(count, name) for name, count in counts.items() if count)
        duration = format_duration(monotonic_seconds() - started_at)
        session.print_message(f"\n{len(findings)} checks in {duration}: {result or 'no problems'}")
    if counts["problem"]:
        return exit_codes.FAILED
    return exit_codes.WARNINGS if counts["warning"] else exit_codes.OK


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
