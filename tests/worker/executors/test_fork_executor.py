"""The contract of executors holds for an executor that shares no code with the native one."""

from __future__ import annotations

from tenuto.worker.executors import Executor, ExecutorContext
from tests.worker.executors.conformance import Conformance
from tests.worker.executors.fork_executor import ForkExecutor


class TestForkExecutor(Conformance):
    """Conformance of an executor that runs every attempt in its own process."""

    has_checkpoints = False

    def make_executor(self, context: ExecutorContext) -> Executor:
        return ForkExecutor(context)
