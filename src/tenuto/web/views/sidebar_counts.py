"""Live counts beside the entries of the sidebar."""

from __future__ import annotations

from tenuto.app import Tenuto
from tenuto.web.navigation import Counts


async def load_counts(app: Tenuto) -> Counts:
    """Return the counts of open work. Every page shows them, so they must cost less than the page itself."""
    found = await app.reports.count_open_work()
    return Counts(
        executions=found.execution_count,
        tasks=found.task_count,
        dead_letters=found.dead_letter_count,
        one_shots=found.one_shot_count,
        workers=found.worker_count,
    )
