"""Workflows: code with durable steps, compared with DBOS on the same workflow.

The workflow calls ten no-op steps in a loop, then five in parallel, then a child workflow of one step. Both products
store the result of each step before the next one begins.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.contender import Contender
from benchmarks.contenders.runner_protocol import WORKFLOW_STEPS
from benchmarks.executions import Work, measure_single, measure_throughput
from benchmarks.measure import Case
from benchmarks.queue_benchmarks import Size

WORKFLOWS = {
    "tenuto": "benchmarks.contenders.tenuto_workflows",
    "dbos": "benchmarks.contenders.dbos_workflows",
}
WORK = Work(
    "workflow",
    WORKFLOW_STEPS,
    f"workflows of {WORKFLOW_STEPS} steps: 10 in a loop, 5 in parallel, 1 in a child",
    {"tenuto": (1_000, 60), "dbos": (300, 30)},
)


async def workflows(contenders: Sequence[Contender], size: Size) -> list[Case]:
    """Measure throughput, then single workflows on an idle system, from the submission until their end is known."""
    drained, submitted = await measure_throughput(contenders, size, WORK)
    steps = Case("steps, one worker", "steps/s")
    for name, figures in drained.figures.items():
        for figure in figures:
            steps.add(name, figure * WORK.steps)
    middle, tail, spread, *_ = await measure_single(contenders, size, WORK)
    return [steps, drained, submitted, middle, tail, spread]
