"""A task server that has nothing in common with the built-in one keeps the contract too."""

from __future__ import annotations

from tenuto.worker.executors import Executor, ExecutorContext
from tests.worker.executors.conformance import Conformance
from tests.worker.executors.fork_executor import ForkExecutor


class TestForkExecutor(Conformance):
    """Every attempt in a process of its own."""

    keeps_steps = False

    def make(self, terms: ExecutorContext) -> Executor:
        return ForkExecutor(terms)
