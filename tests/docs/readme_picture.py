"""The picture in the README: the CLI view of an execution in its third step group, as an SVG.

The code of the CLI draws it, so it always shows the current view.
"""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from uuid import UUID

from rich.console import Console
from rich.terminal_theme import MONOKAI

from tenuto.cli.work import execution_view
from tenuto.operations.work.executions import ExecutionDetails, StepDetails
from tests.support.execution_records import make_execution, make_step

WIDTH = 80
_STARTED_AT = datetime(2031, 5, 17, 2, tzinfo=UTC)
_STEPS: tuple[tuple[int, str, str, float | None, tuple[int, int, str] | None], ...] = (
    (0, "HR System - Full Import", "completed", 61.0, None),
    (1, "HR System - Full Sync", "completed", 48.0, None),
    (2, "AD - Export", "completed", 35.0, None),
    (2, "LDAP - Export", "running", 52.0, (312, 480, "writing to LDAP")),
    (3, "AD - Confirming Import", "waiting", None, None),
    (3, "LDAP - Confirming Import", "waiting", None, None),
)


def execution_picture() -> str:
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(execution_view.render_execution(_execution(), width=WIDTH))
    svg = console.export_svg(title="tenuto execution watch", theme=MONOKAI, unique_id="rail")
    # Fonts from other servers would reveal the readers of the page.
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")
    return re.sub(r"<!-- .*? -->", "<!-- Made by scripts/docs -->", svg, count=1) + "\n"


def _execution() -> ExecutionDetails:
    return make_execution(
        *(_step(number, *step) for number, step in enumerate(_STEPS)),
        id=UUID("01a8c3f0-2b40-7d11-9c3e-5f0a7be1d2c4"),
        started_at=_STARTED_AT,
        current_group=2,
        duration_seconds=161.0,
    )


def _step(
    number: int, group: int, name: str, state: str, duration: float | None, progress: tuple[int, int, str] | None
) -> StepDetails:
    shown = None if progress is None else dict(zip(("done", "total", "message"), progress, strict=True))
    return make_step(number, group, state, name=name, duration_seconds=duration, progress=shown)
