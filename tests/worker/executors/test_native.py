"""The built-in task server keeps the contract."""

from __future__ import annotations

from tenuto.worker.executors import Executor, ExecutorContext
from tenuto.worker.executors.native import NativeExecutor
from tests.worker.executors.conformance import Conformance


class TestNative(Conformance):
    """Loop, threads and children of the worker's own process."""

    def make(self, terms: ExecutorContext) -> Executor:
        return NativeExecutor(terms)
